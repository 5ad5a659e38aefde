"""Does the server's tool fit the entry and its contract? Asked at registration.

`check_entry` looks at the two files; `check_listed` and `check_binding` look at what the server
really lists. A driver that fails here is not used for the contract, and says so before anybody
calls. Sentences name the entry, the member and what to change.
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
    arrivals,
    mapping_renames,
    passed_on,
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
    """What is wrong, and what is only worth saying. With errors the binding is refused."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not self.errors


def check_listed(
    contract: ToolContract,
    entry: ImplementedContract,
    listed: Mapping[str, Mapping[str, Any]],
    *,
    has_hook: bool = False,
) -> BindingFindings:
    """Hold the entry against everything that the server lists: own name → definition."""
    if entry.mcp is None:
        return BindingFindings()
    name = entry.mcp.tool_name
    if name in listed:
        return check_binding(contract, entry, listed[name], has_hook=has_hook)
    return BindingFindings(
        (f"{contract.id}: the server has no tool {name!r}.{_near(name, listed)}",)
    )


def check_binding(
    contract: ToolContract,
    entry: ImplementedContract,
    definition: Mapping[str, Any],
    *,
    has_hook: bool = False,
) -> BindingFindings:
    """Hold the entry against the server's tool, as it stands in `tools/list`.

    `has_hook`: driver.py makes the arguments, so that nothing can be said about them here.
    """
    if entry.mcp is None:
        return BindingFindings()
    errors: list[str] = []
    warnings = _effects(contract, entry.mcp.tool_name, definition)
    schema = definition.get("inputSchema")
    if not isinstance(schema, dict):
        errors.append(f"{contract.id}: `inputSchema` of {entry.mcp.tool_name!r} is no object.")
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
    found = arrivals(mapping, arguments, passed_on(inputs, entry))
    errors += [
        f"{id}: the driver drops the input {dropped!r}, which the contract requires."
        for dropped in entry.drop_inputs
        if dropped in inputs.required
    ]
    by_argument: dict[str, list[ArgumentSource]] = {}
    for arrival in found:
        by_argument.setdefault(arrival.argument, []).append(arrival)
    for argument in sorted(tool.required):
        sources = by_argument.get(argument, [])
        if any(source.source in inputs.required for source in sources):
            continue
        if sources:
            errors.append(
                f"{id}: {name!r} requires {argument!r}, which comes from {sources[0].source!r} "
                "only, and that is optional in the contract."
            )
        elif inputs.certain:
            dropped = [
                one.source
                for one in arrivals(mapping, arguments, entry.drop_inputs)
                if one.argument == argument
            ]
            why = f": the driver drops {dropped[0]!r}" if dropped else ""
            errors.append(
                f"{id}: {name!r} requires {argument!r}, which no input of the contract leads to"
                f"{why}."
            )
    for arrival in found:
        declared = tool.member(arrival.argument)
        if declared is None:
            if tool.closed:
                errors.append(
                    f"{id}: {name!r} takes no argument {arrival.argument!r}, where {arrival.source!r} "
                    f"leads.{_near(arrival.argument, tool.names)}"
                )
            elif arrival.declared and tool.names and tool.other_member() is None:
                warnings.append(
                    f"{id}: {name!r} does not mention the argument {arrival.argument!r}, where "
                    f"{arrival.source!r} leads.{_near(arrival.argument, tool.names)}"
                )
            continue
        said = inputs.member(arrival.source)
        if arrival.transformed or said is None:
            continue
        if not declared.types & said.types:
            errors.append(
                f"{id}: the input {arrival.source!r} is {_listed(said.types)}, and the argument "
                f"{arrival.argument!r} of {name!r} is {_listed(declared.types)}."
            )


def _compare_output(
    contract: ToolContract, entry: ImplementedContract, tool: SchemaView
) -> list[str]:
    """The tool declares what it answers with: does the path lead anywhere in it?"""
    assert entry.mcp is not None
    try:
        path = compile_path(entry.mcp.result_extract)
    except ProtocolError:
        # `check_entry` has said so.
        return []
    id, name = contract.id, entry.mcp.tool_name
    problem, found = resolve(tool, path)
    if problem:
        return [
            f"{id}: `result_extract` ({path.text}) does not fit what {name!r} answers: {problem}"
        ]
    if found is None:
        return []
    wanted = SchemaView.of(contract.outputs)
    types = frozenset({"array"}) if path.is_multiple else found.types
    fits = wanted.types
    if "object" in fits and len(wanted.required) == 1:
        # A value alone is put into the one member that the contract requires.
        only = wanted.member(next(iter(wanted.required)))
        fits |= only.types if only is not None else types
    if types & fits:
        return []
    return [
        f"{id}: `result_extract` ({path.text}) finds {_listed(types)} in what {name!r} answers, "
        f"and the contract's outputs are {_listed(fits)}."
    ]


def resolve(view: SchemaView, path: JsonPath) -> tuple[str, SchemaView | None]:
    """Follow a path through a schema: why it leads nowhere, or what is said of the value there.

    None: the schema says too little to tell.
    """
    place = "$"
    here: SchemaView | None = view
    for step in path.steps:
        problem, here = _step(here, step)
        if problem:
            return f"{problem} at `{place}`.", None
        if here is None:
            return "", None
        place += str(step)
    return "", here


def _step(view: SchemaView | None, step: PathStep) -> tuple[str, SchemaView | None]:
    if view is None:
        return "", None
    branches = list(view.alternatives())
    if branches:
        found = [_step(branch, step) for branch in branches]
        plain = _plain_step(view, step)
        if not plain[0] or any(not problem for problem, _ in found):
            # What it is depends on the branch.
            return "", plain[1] if not plain[0] and plain[1] is not None else None
        return plain
    return _plain_step(view, step)


def _plain_step(view: SchemaView, step: PathStep) -> tuple[str, SchemaView | None]:
    wanted = {MemberStep: {"object"}, IndexStep: {"array"}}.get(type(step), {"object", "array"})
    if not view.types & wanted:
        return f"there is {_listed(view.types)} and no {' or '.join(sorted(wanted))}", None
    if not view.certain:
        return "", None
    if isinstance(step, MemberStep):
        found = view.member(step.name) or view.other_member()
        if found is None and (view.closed or view.names):
            return f"there is no member {step.name!r}", None
        return "", found
    if isinstance(step, IndexStep):
        return "", view.item(step.index) if step.index >= 0 else None
    if isinstance(step, WildcardStep | FilterStep) and view.types & {"array", "object"} == {
        "array"
    }:
        return "", view.item()
    return "", None


def _effects(contract: ToolContract, name: str, definition: Mapping[str, Any]) -> list[str]:
    """What the tool says of itself that the contract does not."""
    hints = definition.get("annotations")
    if not isinstance(hints, dict):
        return []
    if not contract.mutates and hints.get("readOnlyHint") is False:
        return [
            f"{contract.id} changes nothing by its contract, but {name!r} says of itself that it "
            "changes things (readOnlyHint is false)."
        ]
    if (
        contract.risk_level < 3
        and hints.get("destructiveHint") is True
        and hints.get("readOnlyHint") is not True
    ):
        return [
            f"{contract.id} can be undone by its contract (risk_level {contract.risk_level}), but "
            f"{name!r} says of itself that it is destructive."
        ]
    return []


def _listed(types: frozenset[str]) -> str:
    shown = types - {"integer"} if "number" in types else types
    return " or ".join(sorted(shown)) or "nothing"


def _near(name: str, known: Collection[str]) -> str:
    question = manifest_binding.near(name, known)
    return f" {question[0].upper()}{question[1:]}" if question else ""
