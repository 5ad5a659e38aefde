"""From a driver's entry to the contract that it serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from msgspec import Struct

from interlock.core.config.problems import BadValue, one_of, quoted
from interlock.errors import ProtocolError
from interlock.manifests.model import ArgumentMapping, ImplementedContract, ToolContract
from interlock.manifests.ranges import in_range, newest
from interlock.manifests.schema_view import SchemaView
from interlock.protocol.jsonpath import compile_path

TOOL_UNAVAILABLE = "tool_unavailable"


class EntryBinding(Struct, frozen=True):
    """An entry of a driver, and the contract that it serves."""

    entry: ImplementedContract
    contract: ToolContract


def choose_contract(text: str, wanted: str, versions: list[ToolContract]) -> ToolContract:
    """The newest of a contract's versions that is in a range. Raises BadValue."""
    fitting = {one.version: one for one in versions if in_range(one.version, wanted)}
    if not fitting:
        there = one_of(sorted(one.version for one in versions))
        raise BadValue(
            f"the driver is for {quoted(wanted)}, but {text} is {there}",
            "change version to a range that has it",
        )
    return fitting[newest(list(fitting))]


# -- Does a driver's entry fit its contract, by the two files alone?
#
# What is unlawful whatever code the driver brings (`shape_faults`) refuses the driver where its
# file is read. The rest waits for whoever knows its code. What the server really lists is held
# against both later. Sentences name the entry, the member and what to change.


class EntryFault(NamedTuple):
    """What is wrong with an entry: the field, and what to say of it."""

    field: str
    message: str
    hint: str = ""

    def sentence(self, contract_id: str) -> str:
        hint = f" {self.hint[0].upper()}{self.hint[1:]}" if self.hint else ""
        return f"{contract_id}: {self.message}.{hint}{'.' if hint and hint[-1] != '?' else ''}"


def version_problem(contract: ToolContract, entry: ImplementedContract) -> str:
    """Why the entry does not serve this version of the contract. Empty: it does."""
    try:
        if in_range(contract.version, entry.version):
            return ""
    except ValueError as exc:
        return f"{contract.id}: {exc}"
    return (
        f"{contract.id} is version {contract.version}, and the driver serves {entry.version}: "
        "change `version` of the entry, or take another contract."
    )


def check_entry(
    contract: ToolContract,
    entry: ImplementedContract,
    *,
    transforms: Collection[str] = (),
    has_hook: bool = False,
) -> list[str]:
    """What is wrong with an entry, by the two files and what is known of the code.

    `transforms`: the transformers that driver.py has. `has_hook`: driver.py executes this contract
    itself, so that no tool of a server needs to be named.
    """
    faults = shape_faults(contract, entry)
    faults += _transformers(entry, transforms)
    if entry.mcp is not None:
        faults += _arguments(entry, SchemaView.of(contract.inputs))
        try:
            compile_path(entry.mcp.result_extract)
        except ProtocolError as exc:
            faults.append(
                EntryFault("metadata.mcp", f"`result_extract`: {exc.message.rstrip('.')}")
            )
    elif not has_hook:
        message = "`metadata.mcp.tool_name` is missing"
        faults.append(EntryFault("metadata.mcp", message, "say which tool of the server serves it"))
    outdated = version_problem(contract, entry)
    return [*([outdated] if outdated else ()), *(one.sentence(contract.id) for one in faults)]


def shape_faults(contract: ToolContract, entry: ImplementedContract) -> list[EntryFault]:
    """What an entry must not do to its contract, whatever code the driver brings."""
    if not (entry.drop_inputs or entry.drop_outputs or entry.mapping):
        return []
    inputs, outputs = SchemaView.of(contract.inputs), SchemaView.of(contract.outputs)
    faults = list(_narrowing("inputs", entry.drop_inputs, inputs))
    faults += _narrowing("outputs", entry.drop_outputs, outputs)
    renames = mapping_renames(entry.mapping, inputs.names)
    for source in renames:
        if source not in inputs.names and inputs.certain:
            message = f"`mapping` has {source!r}, which is no input of the contract"
            faults.append(EntryFault("mapping", message, near(source, inputs.names)))
    faults += _collisions("mapping", "mapping", passed_on(inputs, entry), renames)
    return faults


def passed_on(inputs: SchemaView, entry: ImplementedContract) -> list[str]:
    """The inputs that a call can bring."""
    return [name for name in inputs.names if name not in entry.drop_inputs]


def near(name: str, known: Collection[str]) -> str:
    """A question, where a name looks like another one."""
    found = get_close_matches(name, known, 1)
    return f"did you mean {found[0]!r}?" if found else ""


def _narrowing(what: str, dropped: Iterable[str], view: SchemaView) -> Iterable[EntryFault]:
    field = f"schema_narrowing.drop_{what}"
    for name in dropped:
        if name in view.required:
            message = f"`drop_{what}` has {name!r}, which is required by the contract"
            yield EntryFault(field, message, "only what is optional can be left out")
        elif name not in view.names and view.certain:
            message = f"`drop_{what}` has {name!r}, which is none of the contract's {what}"
            yield EntryFault(field, message, near(name, view.names))


def _transformers(entry: ImplementedContract, transforms: Collection[str]) -> Iterable[EntryFault]:
    for key, value in entry.mapping.items():
        if (
            isinstance(value, ArgumentMapping)
            and value.transform
            and value.transform not in transforms
        ):
            yield EntryFault(
                "mapping",
                f"`mapping` of {key!r} wants the transformer {value.transform!r}, which "
                "driver.py does not have",
                "give it to define_driver there, under transforms",
            )


def _arguments(entry: ImplementedContract, inputs: SchemaView) -> Iterable[EntryFault]:
    mapping, arguments = mapping_renames(entry.mapping, inputs.names), argument_renames(entry)
    field = "metadata.mcp.argument_mapping"
    known = [target.name for name in inputs.names for target in targets(mapping, name)]
    for source in arguments:
        if source not in known and inputs.certain:
            after = " after `mapping`" if mapping else ""
            yield EntryFault(
                field,
                f"`argument_mapping` has {source!r}, which is no input of the contract{after}",
                near(source, known),
            )
    arriving = passed_on(inputs, entry)
    passed = dict.fromkeys(to.name for name in arriving for to in targets(mapping, name))
    yield from _collisions(field, "argument_mapping", passed, arguments)


def _collisions(
    field: str, word: str, names: Collection[str], renames: MappingTargets
) -> Iterable[EntryFault]:
    """Two inputs that would end under one name. One that is not mentioned keeps its own."""
    ends = Counter(target.name for name in names for target in targets(renames, name))
    declared = {target.name for found in renames.values() for target in found}
    for end, times in ends.items():
        if times > 1 and end in declared:
            sources = [
                name for name in names if any(one.name == end for one in targets(renames, name))
            ]
            both = " and ".join(repr(name) for name in dict.fromkeys(sources))
            message = f"`{word}` leads {both} to one name, {end!r}"
            yield EntryFault(field, message, "give each a name of its own")


# -- How a contract's inputs are called on their way to a tool: `mapping`, then `argument_mapping`.
#
# The two are steps of two specifications (AIP-30 binds, AIP-32 names the tool's arguments), and
# each passes on under its own name what it does not mention.


class MappingTarget(NamedTuple):
    """Where an input goes, and what is done to it on the way."""

    name: str
    transform: str = ""


MappingTargets = dict[str, tuple[MappingTarget, ...]]
"""Source → where it goes. What is not in it keeps its name."""


def mapping_renames(
    mapping: Mapping[str, str | ArgumentMapping], inputs: Collection[str]
) -> MappingTargets:
    """The `mapping` of an entry. `inputs`: the names that the contract knows.

    A plain string leads from the contract's name to the driver's. In the long form `from` is the
    source if the contract knows it; else the key is, and `from` says what the driver calls it.
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
    """The `argument_mapping` of an entry."""
    if entry.mcp is None:
        return {}
    return {source: (MappingTarget(name),) for source, name in entry.mcp.argument_mapping.items()}


def targets(renames: MappingTargets, name: str) -> tuple[MappingTarget, ...]:
    """Where an input goes."""
    return renames.get(name) or (MappingTarget(name),)


def renamed(renames: MappingTargets, values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under their new names. Transformers are not run."""
    if not renames:
        return dict(values)
    return {
        target.name: value for name, value in values.items() for target in targets(renames, name)
    }


class ArgumentSource(NamedTuple):
    """What feeds one argument of a tool."""

    argument: str
    source: str
    """The contract's input."""
    transformed: bool
    declared: bool
    """Whether a mapping names it; else it only keeps its name."""


def arrivals(
    mapping: MappingTargets, arguments: MappingTargets, inputs: Collection[str]
) -> list[ArgumentSource]:
    """Where each of these inputs ends, through both mappings."""
    found = []
    for source in inputs:
        for first in targets(mapping, source):
            for last in targets(arguments, first.name):
                found.append(
                    ArgumentSource(
                        last.name,
                        source,
                        bool(first.transform or last.transform),
                        source in mapping or first.name in arguments,
                    )
                )
    return found
