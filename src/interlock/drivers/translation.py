"""Translation between a contract and a tool: inputs to arguments, and result to value (AIP-32).

Arguments: `mapping` is applied first, then `argument_mapping`. An input that the driver does not
support is rejected, never dropped silently. Value: `result_extract` finds it, `drop_outputs` are
removed, and the rest must be valid by the contract. A value is never converted, with one exception
(`wrapped`): a bare value becomes the member of an object that has exactly one required member.

A `BoundEntry` is created once per contract and entry. A call costs two dictionaries and two checks.
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
    rename_values,
    targets,
)
from interlock.manifests.model import ImplementedContract, ToolContract
from interlock.manifests.schema_view import SchemaView
from interlock.protocol.jsonpath import PathNotFoundError, compile_path

Transforms = Mapping[str, Callable[[Any], Any]]
"""Transformers of a driver.py, by name."""

NO_TRANSFORMS: Final[Transforms] = {}
UNKNOWN_ERROR: Final = "unknown"
"""Message for a tool error without text."""
_MAX_ERROR_CHARACTERS: Final = 4000
_decode = msgspec.json.Decoder().decode


class ExtractedValue(Struct, frozen=True):
    """The value of a contract, and whether it was wrapped into the only required member."""

    value: Any
    wrapped: bool = False


class BoundEntry:
    """A contract with the entry of a driver that serves it, prepared for calls."""

    __slots__ = (
        "_arguments", "_drops", "_mapping", "_path", "_transforms", "entry", "has_transforms",
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
        """Args:
            transforms: the transformers of driver.py.
            shape: the compiled contract, if it exists already.

        Raises:
            InterlockError: the contract and the entry do not fit.
        """
        self.entry = entry
        self.shape = ContractShape(contract) if shape is None else shape
        self._mapping = mapping_renames(entry.mapping, SchemaView.of(contract.inputs).names)
        for mapping_targets in self._mapping.values():
            for target in mapping_targets:
                if target.transform and target.transform not in transforms:
                    raise InterlockError(
                        EXECUTE_BINDING_MISMATCH,
                        f"{contract.id}: driver.py has no transformer {target.transform!r}; "
                        "add it, or remove it from `mapping`.",
                    )
        self._transforms = transforms
        self.has_transforms = any(
            target.transform
            for mapping_targets in self._mapping.values()
            for target in mapping_targets
        )
        """True if the mapping uses a transformer of driver.py."""
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

    def unsupported_inputs(self, inputs: Mapping[str, Any]) -> list[str]:
        """Return the inputs of a call that the driver does not support, in their order."""
        drops = self._drops
        return [name for name in inputs if name in drops] if drops else []

    def required_transforms(self, inputs: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the transformers that a call needs, in order, each with the name of its input.
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
        """Map the inputs to the driver's names. Raises InterlockError (input_unsupported).

        Args:
            transforms: replaces the transformers for this call.
        """
        self._require_supported(inputs)
        if not self._mapping:
            return dict(inputs)
        return _map_inputs(self._mapping, inputs, transforms or self._transforms, self.contract.id)

    def _require_supported(self, inputs: Mapping[str, Any]) -> None:
        dropped = self.unsupported_inputs(inputs)
        if dropped:
            names = ", ".join(repr(name) for name in dropped)
            raise InterlockError(
                INPUT_UNSUPPORTED,
                f"The driver of {self.contract.id} does not support the input {names}. Omit it, or "
                "pin another driver.",
                {"contract": self.contract.id, "fields": dropped},
            )

    def tool_arguments(self, mapped: Mapping[str, Any]) -> dict[str, Any]:
        """Map the driver's input to the tool's argument names."""
        return rename_values(self._arguments, mapped)

    def arguments(
        self, inputs: Mapping[str, Any], transforms: Transforms | None = None
    ) -> dict[str, Any]:
        """Return the arguments of the tool call. Raises InterlockError."""
        return self.tool_arguments(self.driver_input(inputs, transforms))

    def extract_value(self, result: Mapping[str, Any]) -> ExtractedValue:
        """Extract the contract's value from a tool result. Raises InterlockError (upstream_error,
        output_parse_failed)."""
        if result.get("isError") is True:
            raise InterlockError(UPSTREAM_ERROR, error_text(result))
        try:
            value = self._path.find(self._root(result))
        except PathNotFoundError as exc:
            raise self._parse_error(str(exc)) from None
        return self.check_value(value)

    def check_value(self, value: Any) -> ExtractedValue:
        """Check an extracted value against the contract and drop the outputs that the driver
        excludes. Raises InterlockError (output_parse_failed)."""
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
            f"The tool's result does not match the contract. {sentence}.", problems
        )

    def _root(self, result: Mapping[str, Any]) -> Any:
        """Return the value of `$`: the structured content, else JSON in the first text, else, for
        `$` alone, the content blocks, or the text if the contract expects a string."""
        structured = result.get("structuredContent")
        if structured is not None:
            return structured
        content = result.get("content")
        blocks = content if isinstance(content, list) else []
        text = _first_text(blocks)
        is_whole = self._path.is_root
        if is_whole and self.shape.has_text_output:
            # A string result stays a string, even if it is JSON. The text may follow an image.
            for block in blocks:
                block_text = _first_text([block])
                if block_text is not None:
                    return block_text
        if text is not None:
            parsed = _parse_json(text)
            if parsed is not None:
                return parsed
        if not is_whole:
            raise self._parse_error(
                f"`{self._path.text}` finds nothing: the result has no structured content, "
                "and its first content block is not JSON text."
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
    """Map the inputs of one call to the driver's names: see `BoundEntry`."""
    return BoundEntry(contract, entry, transforms=transforms).driver_input(inputs)


def tool_arguments(entry: ImplementedContract, mapped: Mapping[str, Any]) -> dict[str, Any]:
    """Map the driver's input to the tool's argument names."""
    return rename_values(argument_renames(entry), mapped)


def contract_value(
    contract: ToolContract, entry: ImplementedContract, result: Mapping[str, Any]
) -> ExtractedValue:
    """Extract the contract's value from one result: see `BoundEntry`."""
    return BoundEntry(contract, entry).extract_value(result)


def error_text(result: Mapping[str, Any]) -> str:
    """Return the error text of a failed tool result."""
    content = result.get("content")
    text = _first_text(content) if isinstance(content, list) else None
    if not text:
        return UNKNOWN_ERROR
    return text if len(text) <= _MAX_ERROR_CHARACTERS else text[:_MAX_ERROR_CHARACTERS] + "…"


def _first_text(blocks: list[Any]) -> str | None:
    first = blocks[0] if blocks else None
    if isinstance(first, dict) and first.get("type") == "text":
        text = first.get("text")
        return text if isinstance(text, str) else None
    return None


def _parse_json(text: str) -> Any:
    """Parse a text that is a JSON object or array. None: it is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _map_inputs(
    mapping: MappingTargets, inputs: Mapping[str, Any], transforms: Transforms, id: str
) -> dict[str, Any]:
    mapped: dict[str, Any] = {}
    for name, value in inputs.items():
        for target in targets(mapping, name):
            if not target.transform:
                mapped[target.name] = value
                continue
            try:
                mapped[target.name] = transforms[target.transform](value)
            except InterlockError:
                raise
            except Exception as exc:
                # This is third-party code. Its input and its error message may contain secrets.
                reason = type(exc).__name__
                raise transformer_failed(id, target.transform, name, reason) from None
    return mapped


def transformer_failed(id: str, transform: str, name: str, reason: str) -> InterlockError:
    """Return the error for a transformer of driver.py that failed on an input of contract `id`."""
    return InterlockError(
        INTERNAL,
        f"{id}: transformer {transform!r} of the driver failed on input {name!r} ({reason}).",
    )
