"""Checks that a driver's entry fits its contract and the server's tool (AIP-32).

`check_entry` checks the two files. `check_listed` and `check_binding` check the tools that the
server lists. A driver that fails is not used for the contract, and the problem is reported before
the first call. Messages name the entry, the member and what to change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from interlock.errors import ProtocolError
from interlock.manifests import binding as manifest_binding
from interlock.manifests.binding import (
    ArgumentSource,
    argument_renames,
    argument_sources,
    available_inputs,
    mapping_renames,
)
from interlock.manifests.binding import check_entry as check_entry
from interlock.manifests.binding import version_problem as version_problem
from interlock.manifests.model import ImplementedContract, ToolContract
from interlock.manifests.schema_view import SchemaView
from interlock.protocol.jsonpath import (
    FilterStep,
    IndexStep,
    JsonPath,
    MemberStep,
    PathStep,
    WildcardStep,
    compile_path,
)


class BindingFindings(Struct, frozen=True):
    """The errors and warnings of a check. A binding with errors is rejected."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.errors


def check_listed(
    contract: ToolContract,
    entry: ImplementedContract,
    listed: Mapping[str, Mapping[str, Any]],
    *,
    has_hook: bool = False,
) -> BindingFindings:
    """Check an entry against the server's tool list.

    Args:
        listed: tool definitions, by the server's names.
        has_hook: driver.py builds the arguments.
    """
    if entry.mcp is None:
        return BindingFindings()
    name = entry.mcp.tool_name
    if name in listed:
        return check_binding(contract, entry, listed[name], has_hook=has_hook)
    return BindingFindings(
        (f"{contract.id}: the server has no tool {name!r}.{_suggestion(name, listed)}",)
    )


def check_binding(
    contract: ToolContract,
    entry: ImplementedContract,
    definition: Mapping[str, Any],
    *,
    has_hook: bool = False,
) -> BindingFindings:
    """Check an entry against the definition of the server's tool.

    Args:
        definition: the tool as in `tools/list`.
        has_hook: driver.py builds the arguments, so they cannot be checked.
    """
    if entry.mcp is None:
        return BindingFindings()
    errors: list[str] = []
    warnings = _effects(contract, entry.mcp.tool_name, definition)
    schema = definition.get("inputSchema")
    if not isinstance(schema, dict):
        errors.append(f"{contract.id}: `inputSchema` of {entry.mcp.tool_name!r} is not an object.")
    elif not has_hook:
        _compare_arguments(contract, entry, SchemaView.of(schema), errors, warnings)
    if isinstance(definition.get("outputSchema"), dict):
        errors += _compare_output(contract, entry, SchemaView.of(definition["outputSchema"]))
    return BindingFindings(tuple(errors), tuple(warnings))


def _compare_arguments(
    contract: ToolContract,
    entry: ImplementedContract,
    tool: SchemaView,
    errors: list[str],
    warnings: list[str],
) -> None:
    assert entry.mcp is not None
    id, name = contract.id, entry.mcp.tool_name
    inputs = SchemaView.of(contract.inputs)
    mapping, arguments = mapping_renames(entry.mapping, inputs.names), argument_renames(entry)
    arrivals_of_inputs = argument_sources(mapping, arguments, available_inputs(inputs, entry))
    errors += [
        f"{id}: the driver removes the input {dropped!r}, which the contract requires."
        for dropped in entry.drop_inputs
        if dropped in inputs.required
    ]
    by_argument: dict[str, list[ArgumentSource]] = {}
    for arrival in arrivals_of_inputs:
        by_argument.setdefault(arrival.argument, []).append(arrival)
    for argument in sorted(tool.required):
        sources = by_argument.get(argument, [])
        if any(source.source in inputs.required for source in sources):
            continue
        if sources:
            errors.append(
                f"{id}: {name!r} requires {argument!r}, which comes only from "
                f"{sources[0].source!r}, an optional input of the contract."
            )
        elif inputs.certain:
            dropped = [
                arrival.source
                for arrival in argument_sources(mapping, arguments, entry.drop_inputs)
                if arrival.argument == argument
            ]
            detail = f": the driver removes {dropped[0]!r}" if dropped else ""
            errors.append(
                f"{id}: {name!r} requires {argument!r}, but no input of the contract is "
                f"mapped to it{detail}."
            )
    for arrival in arrivals_of_inputs:
        argument_schema = tool.member(arrival.argument)
        if argument_schema is None:
            if tool.closed:
                errors.append(
                    f"{id}: {name!r} has no argument {arrival.argument!r}, to which "
                    f"{arrival.source!r} is mapped.{_suggestion(arrival.argument, tool.names)}"
                )
            elif arrival.declared and tool.names and tool.other_member() is None:
                warnings.append(
                    f"{id}: {name!r} does not declare the argument {arrival.argument!r}, to which "
                    f"{arrival.source!r} is mapped.{_suggestion(arrival.argument, tool.names)}"
                )
            continue
        input_schema = inputs.member(arrival.source)
        if arrival.transformed or input_schema is None:
            continue
        if not argument_schema.types & input_schema.types:
            errors.append(
                f"{id}: the input {arrival.source!r} is {_join_types(input_schema.types)}, "
                "but the argument "
                f"{arrival.argument!r} of {name!r} is {_join_types(argument_schema.types)}."
            )


def _compare_output(
    contract: ToolContract, entry: ImplementedContract, tool: SchemaView
) -> list[str]:
    """Check that the result path fits the output schema of the tool."""
    assert entry.mcp is not None
    try:
        path = compile_path(entry.mcp.result_extract)
    except ProtocolError:
        # `check_entry` reports it.
        return []
    id, name = contract.id, entry.mcp.tool_name
    problem, schema = resolve(tool, path)
    if problem:
        return [
            f"{id}: `result_extract` ({path.text}) does not fit the output of {name!r}: {problem}"
        ]
    if schema is None:
        return []
    outputs = SchemaView.of(contract.outputs)
    types = frozenset({"array"}) if path.is_multiple else schema.types
    expected_types = outputs.types
    if "object" in expected_types and len(outputs.required) == 1:
        # A bare value is wrapped into the only required member.
        member = outputs.member(next(iter(outputs.required)))
        expected_types |= member.types if member is not None else types
    if types & expected_types:
        return []
    return [
        f"{id}: `result_extract` ({path.text}) finds {_join_types(types)} in the output of "
        f"{name!r}, but the contract's outputs are {_join_types(expected_types)}."
    ]


def resolve(view: SchemaView, path: JsonPath) -> tuple[str, SchemaView | None]:
    """Follow a path through a schema. Return an error text, or the schema at the path.

    The schema is None if too little is declared to know it.
    """
    location = "$"
    current: SchemaView | None = view
    for step in path.steps:
        problem, current = _step(current, step)
        if problem:
            return f"{problem} at `{location}`.", None
        if current is None:
            return "", None
        location += str(step)
    return "", current


def _step(view: SchemaView | None, step: PathStep) -> tuple[str, SchemaView | None]:
    if view is None:
        return "", None
    branches = list(view.alternatives())
    if branches:
        results = [_step(branch, step) for branch in branches]
        direct = _plain_step(view, step)
        if not direct[0] or any(not problem for problem, _ in results):
            # The schema depends on the branch.
            return "", direct[1] if not direct[0] and direct[1] is not None else None
        return direct
    return _plain_step(view, step)


def _plain_step(view: SchemaView, step: PathStep) -> tuple[str, SchemaView | None]:
    types = {MemberStep: {"object"}, IndexStep: {"array"}}.get(type(step), {"object", "array"})
    if not view.types & types:
        return f"the schema has {_join_types(view.types)}, not {' or '.join(sorted(types))},", None
    if not view.certain:
        return "", None
    if isinstance(step, MemberStep):
        member = view.member(step.name) or view.other_member()
        if member is None and (view.closed or view.names):
            return f"there is no member {step.name!r}", None
        return "", member
    if isinstance(step, IndexStep):
        return "", view.item(step.index) if step.index >= 0 else None
    if isinstance(step, WildcardStep | FilterStep) and view.types & {"array", "object"} == {
        "array"
    }:
        return "", view.item()
    return "", None


def _effects(contract: ToolContract, name: str, definition: Mapping[str, Any]) -> list[str]:
    """Return warnings about annotations of the tool that contradict the contract."""
    hints = definition.get("annotations")
    if not isinstance(hints, dict):
        return []
    if not contract.mutates and hints.get("readOnlyHint") is False:
        return [
            f"{contract.id} changes nothing according to its contract, but {name!r} declares that "
            "it does (readOnlyHint is false)."
        ]
    if (
        contract.risk_level < 3
        and hints.get("destructiveHint") is True
        and hints.get("readOnlyHint") is not True
    ):
        return [
            f"{contract.id} is reversible according to its contract (risk_level "
            f"{contract.risk_level}), but {name!r} declares that it is destructive."
        ]
    return []


def _join_types(types: frozenset[str]) -> str:
    names = types - {"integer"} if "number" in types else types
    return " or ".join(sorted(names)) or "nothing"


def _suggestion(name: str, candidates: Collection[str]) -> str:
    question = manifest_binding.suggest_name(name, candidates)
    return f" {question[0].upper()}{question[1:]}" if question else ""
