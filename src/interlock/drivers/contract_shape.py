"""A contract, compiled once: what checks its inputs, its outputs and the context of a call."""

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

# -- How large a schema is once every reference in it is followed.
#
# Whoever validates follows references, and each place that refers to another is another visit: a
# small file can ask for more of them than anybody can wait for. They are counted here, each part
# of the schema once, before a schema is used.

MAX_SCHEMA_PARTS: Final = 100_000


class SchemaSize:
    """Counts the parts of one document."""

    def __init__(self, document: Any, most: int = MAX_SCHEMA_PARTS) -> None:
        self._document = document
        self._most = most
        self._known: dict[int, int] = {}
        self._references = References(document)

    @property
    def is_too_large(self) -> bool:
        """Whether it has more parts than anybody should visit, or lies too deep to be walked."""
        try:
            return self._count(self._document) > self._most
        except RecursionError:
            return True

    def _count(self, part: Any) -> int:
        """How many visits it takes from here on; not exact where it is too many."""
        if not isinstance(part, dict | list):
            return 0
        known = self._known.get(id(part))
        if known is not None:
            return known
        # Who comes here again from below goes round, as deep as the value is and no deeper.
        self._known[id(part)] = 0
        count = 1
        if isinstance(part, list):
            below: Iterator[Any] = iter(part)
        else:
            below = iter(part.values())
            for word in REFERENCES:
                count += self._count(self._references.target(part.get(word)))
        for part_below in below:
            count += self._count(part_below)
            if count > self._most:
                break
        self._known[id(part)] = count
        return count


_MOST_PROBLEMS: Final = 5
_MOST_CHARACTERS: Final = 200
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
_TOO_EXPENSIVE: Final = "to check it by this schema would take too long; make it smaller"


class ContractShape:
    """What is needed of a contract with every call."""

    __slots__ = ("_context", "_inputs", "_outputs", "contract", "has_text_output", "single_output")

    def __init__(self, contract: ToolContract) -> None:
        self.contract = contract
        self._inputs = _compiled(contract, "inputs", contract.inputs)
        self._outputs = _compiled(contract, "outputs", contract.outputs)
        schema = contract.context_schema
        self._context = None if schema is None else _compiled(contract, "contextSchema", schema)
        outputs = SchemaView.of(contract.outputs)
        self.has_text_output = outputs.types == {"string"}
        """Whether its value is a text."""
        self.single_output: str | None = None
        """The one member that its value must have, when it is an object with exactly one such."""
        if "object" in outputs.types and len(outputs.required) == 1:
            self.single_output = next(iter(outputs.required))

    def check_inputs(self, inputs: Any) -> None:
        """Raises InterlockError (AIP: input_invalid) that says where, as JSON pointers."""
        problems = self._inputs.problems(inputs, "")
        if problems:
            raise _refusal(problems, self.contract, "The inputs do")

    def check_context(self, context: Any) -> None:
        """The same for the context, where the contract says what has to be in it."""
        problems = [] if self._context is None else self._context.problems(context, "/context")
        if problems:
            raise _refusal(problems, self.contract, "The context does")

    def is_output(self, value: Any) -> bool:
        """Whether the contract may answer with this."""
        return self._outputs.is_valid(value)

    def output_problems(self, value: Any) -> list[dict[str, str]]:
        """Why it may not."""
        return self._outputs.problems(value, "")


class _SchemaValidator:
    """One schema of a contract. A stranger wrote it, and values are a stranger's as well: the work
    of checking one by the other is bounded."""

    __slots__ = ("_schema", "_validator", "_work")

    def __init__(self, schema: dict[str, Any], work: SchemaWork, validator: Any) -> None:
        self._schema = schema
        self._work = work
        self._validator = validator

    def is_valid(self, value: Any) -> bool:
        """False, too, where to find out would take too long."""
        return self._work.can_validate_value(value) and bool(self._validator.is_valid(value))

    def problems(self, value: Any, below: str) -> list[dict[str, str]]:
        """What is wrong with a value, `below` a pointer. None: it is valid."""
        if not self._work.allows_unwritten(value):
            return [{"field": below[1:] or "inputs", "pointer": below, "problem": _TOO_EXPENSIVE}]
        if self._validator.is_valid(value):
            return []
        return _problems(self._validator, self._schema, value, below)


def _compiled(contract: ToolContract, word: str, schema: dict[str, Any]) -> _SchemaValidator:
    if SchemaSize(schema).is_too_large:
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"{contract.id}: `{word}` unfolds to more than {MAX_SCHEMA_PARTS} parts when its references "
            "are followed; refer to less, or from fewer places.",
            {"contract": contract.id},
        )
    work = _work_of(schema)
    if work.problem:
        advice = (
            "use fewer parts, fewer references, or smaller counts in patterns"
            if work.compile_problem
            else "refer only to #/$defs/name, and give no part but the root an $id"
        )
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"{contract.id}: checking a value by `{word}` may take too long: {work.problem}; "
            f"{advice}.",
            {"contract": contract.id},
        )
    try:
        # What was sent stays out of the sentences: they are kept in the journal.
        validator = jsonschema_rs.validator_for(
            schema, retriever=_no_retrieval, mask="the value", pattern_options=_PATTERNS
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as exc:
        why = str(exc).partition("\n")[0][:_MOST_CHARACTERS]
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"{contract.id}: `{word}` cannot be used as a JSON Schema: {why}.",
            {"contract": contract.id},
        ) from None
    return _SchemaValidator(schema, work, validator)


def _work_of(schema: dict[str, Any]) -> SchemaWork:
    """Schemas of the specification that were put into it are known, and cost nothing."""
    definitions = schema.get("$defs")
    own = {
        address
        for address, part in (definitions if isinstance(definitions, dict) else {}).items()
        if ":" in address and schemas.at_address(address) == part
    }
    if not own:
        return SchemaWork(schema)
    assert isinstance(definitions, dict)
    rest = {name: part for name, part in definitions.items() if name not in own}
    return SchemaWork({**schema, "$defs": rest}, own)


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"schemas may not refer to {uri}")


def _refusal(problems: list[dict[str, str]], contract: ToolContract, what: str) -> InterlockError:
    sentence = "; ".join(
        f"{problem['pointer'] or '/'}: {problem['problem']}" for problem in problems
    )
    return InterlockError(
        INVALID_ARGUMENTS,
        f"{what} not fit {contract.id}. {sentence}.",
        {"tool": contract.id, "problems": problems},
    )


def _problems(validator: Any, schema: Any, value: Any, below: str) -> list[dict[str, str]]:
    problems: list[dict[str, str]] = []
    errors = collect_errors(validator, schema, value, _MOST_PROBLEMS)
    if errors is None:
        return [{"field": below[1:] or "inputs", "pointer": below, "problem": UNEXPLAINED}]
    for error in errors:
        steps = [str(step) for step in error.instance_path]
        pointer = below + build_pointer(steps)
        field = ".".join(([below[1:]] if below else []) + steps) or "inputs"
        problems.append(
            {"field": _clip(field), "pointer": _clip(pointer), "problem": _clip(error.message)}
        )
    return problems


def _clip(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
