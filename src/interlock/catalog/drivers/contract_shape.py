"""A contract, compiled once: what checks its inputs, its outputs and the context of a call."""

from __future__ import annotations

from typing import Any, Final

import jsonschema_rs

from interlock.catalog.drivers.unfolding import MOST_VISITS, Unfolding
from interlock.errors import INVALID_ARGUMENTS, TOOL_UNAVAILABLE, InterlockError
from interlock.manifests.schema_view import SchemaView
from interlock.manifests.tool import ToolContract
from interlock.protocol.json_pointer import pointer_to
from interlock.protocol.schema_effort import UNEXPLAINED, errors_of

_MOST_PROBLEMS: Final = 5
_MOST_CHARACTERS: Final = 200


class ContractShape:
    """What is needed of a contract with every call."""

    __slots__ = ("_context", "_inputs", "_outputs", "contract", "only_output", "text_output")

    def __init__(self, contract: ToolContract) -> None:
        self.contract = contract
        self._inputs = _compiled(contract, "inputs", contract.inputs)
        self._outputs = _compiled(contract, "outputs", contract.outputs)
        schema = contract.context_schema
        self._context = None if schema is None else _compiled(contract, "contextSchema", schema)
        outputs = SchemaView.of(contract.outputs)
        self.text_output = outputs.types == {"string"}
        """Whether its value is a text."""
        self.only_output: str | None = None
        """The one member that its value must have, when it is an object with exactly one such."""
        if "object" in outputs.types and len(outputs.required) == 1:
            self.only_output = next(iter(outputs.required))

    def check_inputs(self, inputs: Any) -> None:
        """Raises InterlockError (AIP: input_invalid) that says where, as JSON pointers."""
        if not self._inputs.is_valid(inputs):
            problems = _problems(self._inputs, self.contract.inputs, inputs, "")
            raise _refusal(problems, self.contract, "The inputs do")

    def check_context(self, context: Any) -> None:
        """The same for the context, where the contract says what has to be in it."""
        if self._context is not None and not self._context.is_valid(context):
            schema = self.contract.context_schema
            problems = _problems(self._context, schema, context, "/context")
            raise _refusal(problems, self.contract, "The context does")

    def is_output(self, value: Any) -> bool:
        """Whether the contract may answer with this."""
        return bool(self._outputs.is_valid(value))

    def output_problems(self, value: Any) -> list[dict[str, str]]:
        """Why it may not."""
        return _problems(self._outputs, self.contract.outputs, value, "")


def _compiled(contract: ToolContract, word: str, schema: dict[str, Any]) -> Any:
    if Unfolding(schema).too_large:
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"{contract.id}: `{word}` unfolds to more than {MOST_VISITS} parts when its references "
            "are followed; refer to less, or from fewer places.",
            {"contract": contract.id},
        )
    try:
        # What was sent stays out of the sentences: they are kept in the journal.
        return jsonschema_rs.validator_for(schema, retriever=_no_retrieval, mask="the value")
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as exc:
        why = str(exc).partition("\n")[0][:_MOST_CHARACTERS]
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"{contract.id}: `{word}` cannot be used as a JSON Schema: {why}.",
            {"contract": contract.id},
        ) from None


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"schemas may not refer to {uri}")


def _refusal(problems: list[dict[str, str]], contract: ToolContract, what: str) -> InterlockError:
    sentence = "; ".join(f"{one['pointer'] or '/'}: {one['problem']}" for one in problems)
    return InterlockError(
        INVALID_ARGUMENTS,
        f"{what} not fit {contract.id}. {sentence}.",
        {"tool": contract.id, "problems": problems},
    )


def _problems(validator: Any, schema: Any, value: Any, below: str) -> list[dict[str, str]]:
    problems: list[dict[str, str]] = []
    errors = errors_of(validator, schema, value, _MOST_PROBLEMS)
    if errors is None:
        return [{"field": below[1:] or "inputs", "pointer": below, "problem": UNEXPLAINED}]
    for error in errors:
        steps = [str(step) for step in error.instance_path]
        pointer = below + pointer_to(steps)
        field = ".".join(([below[1:]] if below else []) + steps) or "inputs"
        problems.append(
            {"field": _clip(field), "pointer": _clip(pointer), "problem": _clip(error.message)}
        )
    return problems


def _clip(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
