"""From a contract's inputs to a tool's arguments, and from its result to the contract's value.

On the way out: `mapping`, then `argument_mapping`; an input that the driver drops is refused, never
lost. On the way back: `result_extract` finds the value, what the driver drops is taken out, and
the rest must be what the contract says. A value is never bent to fit, with one exception that is
told (`wrapped`): a bare value for an object that has exactly one required member.

`BoundEntry` is made once per contract and entry; a call costs two dictionaries and two checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from interlock.drivers.contract_shape import ContractShape
from interlock.errors import (
    EXECUTE_BINDING_MISMATCH,
    INPUT_UNSUPPORTED,
    INTERNAL,
    OUTPUT_PARSE_FAILED,
    TOOL_UNAVAILABLE,
    UPSTREAM_ERROR,
    InterlockError,
    ProtocolError,
)
from interlock.manifests.binding import (
    MappingTargets,
    argument_renames,
    mapping_renames,
    renamed,
    targets,
)
from interlock.manifests.model import ImplementedContract, ToolContract
from interlock.manifests.schema_view import SchemaView
from interlock.protocol.jsonpath import PathNotFoundError, compile_path

Transforms = Mapping[str, Callable[[Any], Any]]
"""The transformers of a driver.py, by name."""

NO_TRANSFORMS: Final[Transforms] = {}
UNKNOWN: Final = "unknown"
"""What is said of a tool's error that has no text."""
_MOST_CHARACTERS: Final = 4000
_decode = msgspec.json.Decoder().decode


class ExtractedValue(Struct, frozen=True):
    """A contract's value, and whether it had to be put into its only required member."""

    value: Any
    wrapped: bool = False


class BoundEntry:
    """One contract and the entry of a driver that serves it, ready for calls."""

    __slots__ = (
        "_arguments", "_drops", "_mapping", "_path", "_transforms", "entry", "is_transformed",
        "shape",
    )  # fmt: skip

    def __init__(
        self,
        contract: ToolContract,
        entry: ImplementedContract,
        *,
        transforms: Transforms = NO_TRANSFORMS,
        shape: ContractShape | None = None,
    ) -> None:
        """Raises InterlockError when the two cannot work together. `shape`: the contract's, where
        there is one already."""
        self.entry = entry
        self.shape = ContractShape(contract) if shape is None else shape
        self._mapping = mapping_renames(entry.mapping, SchemaView.of(contract.inputs).names)
        for found in self._mapping.values():
            for target in found:
                if target.transform and target.transform not in transforms:
                    raise InterlockError(
                        EXECUTE_BINDING_MISMATCH,
                        f"{contract.id}: the driver has no transformer {target.transform!r}.",
                    )
        self._transforms = transforms
        self.is_transformed = any(
            target.transform for found in self._mapping.values() for target in found
        )
        """Whether its mapping names a transformer of a driver.py."""
        self._arguments = argument_renames(entry)
        self._drops = frozenset(entry.drop_inputs)
        text = "$" if entry.mcp is None else entry.mcp.result_extract
        try:
            self._path = compile_path(text)
        except ProtocolError as exc:
            raise InterlockError(TOOL_UNAVAILABLE, f"{contract.id}: {exc.message}") from None

    @property
    def contract(self) -> ToolContract:
        return self.shape.contract

    def unsupported(self, inputs: Mapping[str, Any]) -> list[str]:
        """Inputs of this call that the driver cannot take, in their order."""
        drops = self._drops
        return [name for name in inputs if name in drops] if drops else []

    def transformed(self, inputs: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The transformers that a call needs, in their order, each with the name of its input.
        Raises InterlockError (input_unsupported)."""
        self._require_supported(inputs)
        return [
            (target.transform, name)
            for name in inputs
            for target in targets(self._mapping, name)
            if target.transform
        ]

    def driver_input(
        self, inputs: Mapping[str, Any], transforms: Transforms | None = None
    ) -> dict[str, Any]:
        """The inputs in the driver's names. `transforms`: other transformers, for this call. Raises
        InterlockError (input_unsupported)."""
        self._require_supported(inputs)
        if not self._mapping:
            return dict(inputs)
        return _mapped(self._mapping, inputs, transforms or self._transforms, self.contract.id)

    def _require_supported(self, inputs: Mapping[str, Any]) -> None:
        dropped = self.unsupported(inputs)
        if dropped:
            named = ", ".join(repr(name) for name in dropped)
            raise InterlockError(
                INPUT_UNSUPPORTED,
                f"The driver of {self.contract.id} does not take {named}: leave it out, or choose "
                "another driver.",
                {"contract": self.contract.id, "fields": dropped},
            )

    def tool_arguments(self, mapped: Mapping[str, Any]) -> dict[str, Any]:
        """The driver's input in the tool's names."""
        return renamed(self._arguments, mapped)

    def arguments(
        self, inputs: Mapping[str, Any], transforms: Transforms | None = None
    ) -> dict[str, Any]:
        """What the tool is called with. Raises InterlockError."""
        return self.tool_arguments(self.driver_input(inputs, transforms))

    def value(self, result: Mapping[str, Any]) -> ExtractedValue:
        """The contract's value in a tool's result. Raises InterlockError (upstream_error,
        output_parse_failed)."""
        if result.get("isError") is True:
            raise InterlockError(UPSTREAM_ERROR, error_text(result))
        try:
            value = self._path.find(self._root(result))
        except PathNotFoundError as exc:
            raise self._parse_error(str(exc)) from None
        return self.checked(value)

    def checked(self, value: Any) -> ExtractedValue:
        """What is found, or what driver.py made of a result, as the contract has it."""
        dropped = self.entry.drop_outputs
        if dropped and isinstance(value, dict) and not value.keys().isdisjoint(dropped):
            value = {name: item for name, item in value.items() if name not in dropped}
        shape = self.shape
        if shape.is_output(value):
            return ExtractedValue(value)
        if shape.single_output is not None:
            wrapped = {shape.single_output: value}
            if shape.is_output(wrapped):
                return ExtractedValue(wrapped, True)
        problems = shape.output_problems(value)
        sentence = "; ".join(
            f"{problem['pointer'] or '/'}: {problem['problem']}" for problem in problems
        )
        raise self._parse_error(
            f"What the tool answered does not fit the contract. {sentence}.", problems
        )

    def _root(self, result: Mapping[str, Any]) -> Any:
        """What `$` is: structured content, else JSON in the first text, else, for `$` alone, the
        content as it is, or its text where the contract wants one."""
        structured = result.get("structuredContent")
        if structured is not None:
            return structured
        content = result.get("content")
        blocks = content if isinstance(content, list) else []
        text = _first_text(blocks)
        whole = self._path.is_root
        if whole and self.shape.has_text_output:
            # A text that happens to be JSON is a text all the same; also one below a picture.
            for block in blocks:
                found = _first_text([block])
                if found is not None:
                    return found
        if text is not None:
            parsed = _parsed(text)
            if parsed is not None:
                return parsed
        if not whole:
            raise self._parse_error(
                f"`{self._path.text}` finds nothing: the tool answered with no structured content, "
                "and its first content is no JSON text."
            )
        return {"content": blocks}

    def _parse_error(
        self, sentence: str, problems: list[dict[str, str]] | None = None
    ) -> InterlockError:
        contract, mcp = self.contract, self.entry.mcp
        data: dict[str, Any] = {"contract": contract.id, "path": self._path.text}
        if mcp is not None:
            data["tool"] = mcp.tool_name
        if problems:
            data["problems"] = problems
        return InterlockError(OUTPUT_PARSE_FAILED, f"{contract.id}: {sentence}", data)


def driver_input(
    contract: ToolContract,
    entry: ImplementedContract,
    inputs: Mapping[str, Any],
    transforms: Transforms = NO_TRANSFORMS,
) -> dict[str, Any]:
    """The inputs in the driver's names, for one call: see BoundEntry."""
    return BoundEntry(contract, entry, transforms=transforms).driver_input(inputs)


def tool_arguments(entry: ImplementedContract, mapped: Mapping[str, Any]) -> dict[str, Any]:
    """The driver's input in the tool's names."""
    return renamed(argument_renames(entry), mapped)


def contract_value(
    contract: ToolContract, entry: ImplementedContract, result: Mapping[str, Any]
) -> ExtractedValue:
    """The contract's value in one result: see BoundEntry."""
    return BoundEntry(contract, entry).value(result)


def error_text(result: Mapping[str, Any]) -> str:
    """What a tool says that went wrong."""
    content = result.get("content")
    text = _first_text(content) if isinstance(content, list) else None
    if not text:
        return UNKNOWN
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


def _first_text(blocks: list[Any]) -> str | None:
    first = blocks[0] if blocks else None
    if isinstance(first, dict) and first.get("type") == "text":
        text = first.get("text")
        return text if isinstance(text, str) else None
    return None


def _parsed(text: str) -> Any:
    """A text that is a JSON object or array. None: it is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _mapped(
    mapping: MappingTargets, inputs: Mapping[str, Any], transforms: Transforms, id: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in inputs.items():
        for target in targets(mapping, name):
            if not target.transform:
                found[target.name] = value
                continue
            try:
                found[target.name] = transforms[target.transform](value)
            except InterlockError:
                raise
            except Exception as exc:
                # A stranger's code. What it was given may be secret, and so may its words be.
                why = type(exc).__name__
                raise transformer_failed(id, target.transform, name, why) from None
    return found


def transformer_failed(id: str, transform: str, name: str, why: str) -> InterlockError:
    """A transformer of a driver.py failed on an input of the contract `id`."""
    return InterlockError(
        INTERNAL,
        f"{id}: the transformer {transform!r} of the driver failed on the input {name!r} ({why}).",
    )
