"""Bindings of a driver's entries to the contracts that they serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from msgspec import Struct

from interlock.core.config.problems import InvalidValueError, join_alternatives, quote
from interlock.errors import ProtocolError
from interlock.manifests.model import ArgumentMapping, ImplementedContract, ToolContract
from interlock.manifests.ranges import in_range, newest
from interlock.manifests.schema_view import SchemaView
from interlock.protocol.jsonpath import compile_path

TOOL_UNAVAILABLE = "tool_unavailable"


class EntryBinding(Struct, frozen=True):
    """An entry of a driver, and its contract."""

    entry: ImplementedContract
    contract: ToolContract


def choose_contract(text: str, version_range: str, versions: list[ToolContract]) -> ToolContract:
    """Return the newest version of a contract in a range. Raises InvalidValueError."""
    matches = {
        contract.version: contract
        for contract in versions
        if in_range(contract.version, version_range)
    }
    if not matches:
        available = join_alternatives(sorted(contract.version for contract in versions))
        raise InvalidValueError(
            f"the driver requires {quote(version_range)}, but {text} is {available}",
            "change version to a range that includes it",
        )
    return matches[newest(list(matches))]


# -- Checks of an entry against its contract, by the two files alone.
#
# Errors that no code of the driver can repair (`shape_faults`) reject the driver when its file is
# read. Other errors are reported once the code of the driver is known. The tools that the server
# lists are checked later. Messages name the entry, the member and the change.


class EntryFault(NamedTuple):
    """An error in an entry: the field, and the message."""

    field: str
    message: str
    hint: str = ""

    def sentence(self, contract_id: str) -> str:
        hint = f" {self.hint[0].upper()}{self.hint[1:]}" if self.hint else ""
        return f"{contract_id}: {self.message}.{hint}{'.' if hint and hint[-1] != '?' else ''}"


def version_problem(contract: ToolContract, entry: ImplementedContract) -> str:
    """Return why the entry does not serve this version of the contract. Empty: it does."""
    try:
        if in_range(contract.version, entry.version):
            return ""
    except ValueError as exc:
        return f"{contract.id}: {exc}"
    return (
        f"{contract.id} is version {contract.version}, and the driver serves {entry.version}: "
        "change `version` of the entry, or use another contract."
    )


def check_entry(
    contract: ToolContract,
    entry: ImplementedContract,
    *,
    transforms: Collection[str] = (),
    has_hook: bool = False,
) -> list[str]:
    """Return the errors of an entry, by the two files and what is known of the code.

    Args:
        transforms: the transformers of driver.py.
        has_hook: whether driver.py executes this contract itself, so that the entry needs no tool.
    """
    faults = shape_faults(contract, entry)
    faults += _transform_faults(entry, transforms)
    if entry.mcp is not None:
        faults += _argument_faults(entry, SchemaView.of(contract.inputs))
        try:
            compile_path(entry.mcp.result_extract)
        except ProtocolError as exc:
            faults.append(
                EntryFault("metadata.mcp", f"`result_extract`: {exc.message.rstrip('.')}")
            )
    elif not has_hook:
        message = "`metadata.mcp.tool_name` is missing"
        faults.append(
            EntryFault("metadata.mcp", message, "name the tool of the server that serves it")
        )
    outdated = version_problem(contract, entry)
    return [*([outdated] if outdated else ()), *(fault.sentence(contract.id) for fault in faults)]


def shape_faults(contract: ToolContract, entry: ImplementedContract) -> list[EntryFault]:
    """Return the errors that no code of the driver can repair."""
    if not (entry.drop_inputs or entry.drop_outputs or entry.mapping):
        return []
    inputs, outputs = SchemaView.of(contract.inputs), SchemaView.of(contract.outputs)
    faults = list(_narrowing_faults("inputs", entry.drop_inputs, inputs))
    faults += _narrowing_faults("outputs", entry.drop_outputs, outputs)
    renames = mapping_renames(entry.mapping, inputs.names)
    for source in renames:
        if source not in inputs.names and inputs.certain:
            message = f"`mapping` has {source!r}, which is not an input of the contract"
            faults.append(EntryFault("mapping", message, suggest_name(source, inputs.names)))
    faults += _collision_faults("mapping", "mapping", available_inputs(inputs, entry), renames)
    return faults


def available_inputs(inputs: SchemaView, entry: ImplementedContract) -> list[str]:
    """Return the inputs that a call can have."""
    return [name for name in inputs.names if name not in entry.drop_inputs]


def suggest_name(name: str, names: Collection[str]) -> str:
    """Return a question that suggests a similar name. Empty: there is none."""
    matches = get_close_matches(name, names, 1)
    return f"did you mean {matches[0]!r}?" if matches else ""


def _narrowing_faults(what: str, dropped: Iterable[str], view: SchemaView) -> Iterable[EntryFault]:
    field = f"schema_narrowing.drop_{what}"
    for name in dropped:
        if name in view.required:
            message = f"`drop_{what}` has {name!r}, which is required by the contract"
            yield EntryFault(field, message, "only optional members can be removed")
        elif name not in view.names and view.certain:
            message = f"`drop_{what}` has {name!r}, which is not among the contract's {what}"
            yield EntryFault(field, message, suggest_name(name, view.names))


def _transform_faults(
    entry: ImplementedContract, transforms: Collection[str]
) -> Iterable[EntryFault]:
    for key, value in entry.mapping.items():
        if (
            isinstance(value, ArgumentMapping)
            and value.transform
            and value.transform not in transforms
        ):
            yield EntryFault(
                "mapping",
                f"`mapping` of {key!r} uses the transformer {value.transform!r}, which "
                "driver.py does not have",
                "pass it to define_driver there, under transforms",
            )


def _argument_faults(entry: ImplementedContract, inputs: SchemaView) -> Iterable[EntryFault]:
    mapping, arguments = mapping_renames(entry.mapping, inputs.names), argument_renames(entry)
    field = "metadata.mcp.argument_mapping"
    names = [target.name for name in inputs.names for target in targets(mapping, name)]
    for source in arguments:
        if source not in names and inputs.certain:
            after = " after `mapping`" if mapping else ""
            yield EntryFault(
                field,
                f"`argument_mapping` has {source!r}, which is not an input of the contract{after}",
                suggest_name(source, names),
            )
    available = available_inputs(inputs, entry)
    passed = dict.fromkeys(target.name for name in available for target in targets(mapping, name))
    yield from _collision_faults(field, "argument_mapping", passed, arguments)


def _collision_faults(
    field: str, keyword: str, names: Collection[str], renames: MappingTargets
) -> Iterable[EntryFault]:
    """Report inputs that would get the same name. An input without a mapping keeps its name."""
    counts = Counter(target.name for name in names for target in targets(renames, name))
    declared = {target.name for renamed_to in renames.values() for target in renamed_to}
    for target_name, count in counts.items():
        if count > 1 and target_name in declared:
            sources = [
                name
                for name in names
                if any(target.name == target_name for target in targets(renames, name))
            ]
            inputs = " and ".join(repr(name) for name in dict.fromkeys(sources))
            message = f"`{keyword}` maps {inputs} to the same name, {target_name!r}"
            yield EntryFault(field, message, "give each input its own name")


# -- Names of a contract's inputs on the way to a tool: `mapping`, then `argument_mapping`.
#
# The two steps come from two specifications (AIP-30 binds, AIP-32 names the arguments of the tool).
# Each passes on inputs that it does not mention under their own names.


class MappingTarget(NamedTuple):
    """The new name of an input, and its transformer."""

    name: str
    transform: str = ""


MappingTargets = dict[str, tuple[MappingTarget, ...]]
"""Maps a source to its targets. A source that is not in it keeps its name."""


def mapping_renames(
    mapping: Mapping[str, str | ArgumentMapping], inputs: Collection[str]
) -> MappingTargets:
    """Return the renames of the `mapping` of an entry.

    A plain string maps the contract's name to the driver's. In the long form, `from` is the source
    if the contract knows it; otherwise the key is the source, and `from` is the driver's name.

    Args:
        inputs: the names that the contract knows.
    """
    renames: MappingTargets = {}
    for key, value in mapping.items():
        if isinstance(value, str):
            source, target = key, MappingTarget(value)
        elif value.source in inputs:
            source, target = value.source, MappingTarget(key, value.transform)
        else:
            source, target = key, MappingTarget(value.source or key, value.transform)
        renames[source] = (*renames.get(source, ()), target)
    return renames


def argument_renames(entry: ImplementedContract) -> MappingTargets:
    """Return the renames of the `argument_mapping` of an entry."""
    if entry.mcp is None:
        return {}
    return {source: (MappingTarget(name),) for source, name in entry.mcp.argument_mapping.items()}


def targets(renames: MappingTargets, name: str) -> tuple[MappingTarget, ...]:
    """Return the targets of an input."""
    return renames.get(name) or (MappingTarget(name),)


def rename_values(renames: MappingTargets, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values under their new names. Transformers are not run."""
    if not renames:
        return dict(values)
    return {
        target.name: value for name, value in values.items() for target in targets(renames, name)
    }


class ArgumentSource(NamedTuple):
    """The source of one argument of a tool."""

    argument: str
    source: str
    """The input of the contract."""
    transformed: bool
    declared: bool
    """True if a mapping names it; otherwise it keeps its name."""


def argument_sources(
    mapping: MappingTargets, arguments: MappingTargets, inputs: Collection[str]
) -> list[ArgumentSource]:
    """Return the arguments that these inputs become, through both mappings."""
    sources = []
    for source in inputs:
        for first in targets(mapping, source):
            for last in targets(arguments, first.name):
                sources.append(
                    ArgumentSource(
                        last.name,
                        source,
                        bool(first.transform or last.transform),
                        source in mapping or first.name in arguments,
                    )
                )
    return sources
