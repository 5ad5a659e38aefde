"""A compiled contract: the validators of its inputs, its outputs and the context of a call
(AIP-14)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs

from interlock.errors import INVALID_ARGUMENTS, TOOL_UNAVAILABLE, InterlockError
from interlock.manifests import schemas
from interlock.manifests.model import ToolContract
from interlock.manifests.schema_view import SchemaView
from interlock.protocol.json_pointer import build_pointer
from interlock.protocol.schema_cost import (
    BACKTRACK_LIMIT,
    REFERENCES,
    UNEXPLAINED,
    References,
    SchemaWork,
    collect_errors,
)

# -- Size of a schema after all references are followed.
#
# A validator follows references, and each place that refers to a part visits it again. A small file
# can cause a huge number of visits. They are counted before a schema is used, each part once.

MAX_SCHEMA_PARTS: Final = 100_000


class SchemaSize:
    """A counter of the parts of a schema document."""

    def __init__(self, document: Any, limit: int = MAX_SCHEMA_PARTS) -> None:
        self._document = document
        self._limit = limit
        self._counts: dict[int, int] = {}
        self._references = References(document)

    @property
    def is_too_large(self) -> bool:
        """Return whether the document has more parts than the limit, or is nested too deeply."""
        try:
            return self._count(self._document) > self._limit
        except RecursionError:
            return True

    def _count(self, part: Any) -> int:
        """Return the number of visits below a part. Not exact above the limit."""
        if not isinstance(part, dict | list):
            return 0
        cached = self._counts.get(id(part))
        if cached is not None:
            return cached
        # A cycle counts as 0: a validator follows it only as deep as the value is nested.
        self._counts[id(part)] = 0
        count = 1
        if isinstance(part, list):
            path: Iterator[Any] = iter(part)
        else:
            path = iter(part.values())
            for keyword in REFERENCES:
                count += self._count(self._references.target(part.get(keyword)))
        for part_below in path:
            count += self._count(part_below)
            if count > self._limit:
                break
        self._counts[id(part)] = count
        return count


_MAX_PROBLEMS: Final = 5
_MAX_CHARACTERS: Final = 200
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
_TOO_EXPENSIVE: Final = (
    "checking it against this schema would take too long; make the value smaller"
)


class ContractShape:
    """The validators of a contract that every call needs."""

    __slots__ = ("_context", "_inputs", "_outputs", "contract", "has_text_output", "single_output")

    def __init__(self, contract: ToolContract) -> None:
        self.contract = contract
        self._inputs = _compile(contract, "inputs", contract.inputs)
        self._outputs = _compile(contract, "outputs", contract.outputs)
        schema = contract.context_schema
        self._context = None if schema is None else _compile(contract, "contextSchema", schema)
        outputs = SchemaView.of(contract.outputs)
        self.has_text_output = outputs.types == {"string"}
        """True if the value is a string."""
        self.single_output: str | None = None
        """The only required member, if the value is an object with exactly one required member."""
        if "object" in outputs.types and len(outputs.required) == 1:
            self.single_output = next(iter(outputs.required))

    def check_inputs(self, inputs: Any) -> None:
        """Check the inputs of a call. Raises InterlockError (AIP: input_invalid) with the locations
        as JSON pointers."""
        problems = self._inputs.problems(inputs, "")
        if problems:
            raise _input_error(problems, self.contract, "The inputs do")

    def check_context(self, context: Any) -> None:
        """Check the context of a call, if the contract declares a schema for it. Raises
        InterlockError."""
        problems = [] if self._context is None else self._context.problems(context, "/context")
        if problems:
            raise _input_error(problems, self.contract, "The context does")

    def is_output(self, value: Any) -> bool:
        """Return whether a value is valid by the outputs of the contract."""
        return self._outputs.is_valid(value)

    def output_problems(self, value: Any) -> list[dict[str, str]]:
        """Return why a value is not valid."""
        return self._outputs.problems(value, "")


class _SchemaValidator:
    """A validator of one contract schema. The schema and the values are untrusted, so the work of a
    validation is limited."""

    __slots__ = ("_schema", "_validator", "_work")

    def __init__(self, schema: dict[str, Any], work: SchemaWork, validator: Any) -> None:
        self._schema = schema
        self._work = work
        self._validator = validator

    def is_valid(self, value: Any) -> bool:
        """Return whether a value is valid. False also if the validation would take too long."""
        return self._work.can_validate_value(value) and bool(self._validator.is_valid(value))

    def problems(self, value: Any, path: str) -> list[dict[str, str]]:
        """Return the problems of a value. Empty: it is valid.

        Args:
            path: the pointer of the value.
        """
        if not self._work.can_validate_value(value):
            return [{"field": path[1:] or "inputs", "pointer": path, "problem": _TOO_EXPENSIVE}]
        if self._validator.is_valid(value):
            return []
        return _problems(self._validator, self._schema, value, path)


def _compile(contract: ToolContract, keyword: str, schema: dict[str, Any]) -> _SchemaValidator:
    if SchemaSize(schema).is_too_large:
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"{contract.id}: `{keyword}` has more than {MAX_SCHEMA_PARTS} parts after its "
            "references are followed. Use fewer or smaller references.",
            {"contract": contract.id},
        )
    work = _work_of(schema)
    if work.problem:
        advice = (
            "use fewer parts, fewer references, or smaller counts in patterns"
            if work.compile_problem
            else "refer only to #/$defs/name, and use $id only in the root"
        )
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"{contract.id}: checking a value against `{keyword}` may take too long: "
            f"{work.problem}; {advice}.",
            {"contract": contract.id},
        )
    try:
        # Values must not appear in error messages: the messages are written to the journal.
        validator = jsonschema_rs.validator_for(
            schema, retriever=_no_retrieval, mask="the value", pattern_options=_PATTERNS
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as exc:
        reason = str(exc).partition("\n")[0][:_MAX_CHARACTERS]
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"{contract.id}: `{keyword}` cannot be used as a JSON Schema: {reason}.",
            {"contract": contract.id},
        ) from None
    return _SchemaValidator(schema, work, validator)


def _work_of(schema: dict[str, Any]) -> SchemaWork:
    """Return the work estimate of a schema. Embedded schemas of the specification are known and
    cost nothing."""
    definitions = schema.get("$defs")
    known_addresses = {
        address
        for address, part in (definitions if isinstance(definitions, dict) else {}).items()
        if ":" in address and schemas.find_schema(address) == part
    }
    if not known_addresses:
        return SchemaWork(schema)
    assert isinstance(definitions, dict)
    rest = {name: part for name, part in definitions.items() if name not in known_addresses}
    return SchemaWork({**schema, "$defs": rest}, known_addresses)


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"a schema must not refer to {uri}")


def _input_error(
    problems: list[dict[str, str]], contract: ToolContract, subject: str
) -> InterlockError:
    sentence = "; ".join(
        f"{problem['pointer'] or '/'}: {problem['problem']}" for problem in problems
    )
    return InterlockError(
        INVALID_ARGUMENTS,
        f"{subject} not fit {contract.id}. {sentence}.",
        {"tool": contract.id, "problems": problems},
    )


def _problems(validator: Any, schema: Any, value: Any, path: str) -> list[dict[str, str]]:
    problems: list[dict[str, str]] = []
    errors = collect_errors(validator, schema, value, _MAX_PROBLEMS)
    if errors is None:
        return [{"field": path[1:] or "inputs", "pointer": path, "problem": UNEXPLAINED}]
    for error in errors:
        steps = [str(step) for step in error.instance_path]
        pointer = path + build_pointer(steps)
        field = ".".join(([path[1:]] if path else []) + steps) or "inputs"
        problems.append(
            {"field": _clip(field), "pointer": _clip(pointer), "problem": _clip(error.message)}
        )
    return problems


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "…"
