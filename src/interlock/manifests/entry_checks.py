"""Does a driver's entry fit its contract, by the two files alone?

What is unlawful whatever code the driver brings (`shape_faults`) refuses the driver where its file
is read. The rest waits for whoever knows its code. What the server really lists is held against
both later. Sentences name the entry, the member and what to change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import NamedTuple

from interlock.errors import ProtocolError
from interlock.manifests.driver import Implements, MappedFrom
from interlock.manifests.parameter_names import Renames, argument_renames, mapping_renames, targets
from interlock.manifests.ranges import in_range
from interlock.manifests.schema_view import SchemaView
from interlock.manifests.tool import ToolContract
from interlock.protocol.jsonpath import compile_path


class Fault(NamedTuple):
    """What is wrong with an entry: the field, and what to say of it."""

    field: str
    message: str
    hint: str = ""

    def sentence(self, contract_id: str) -> str:
        hint = f" {self.hint[0].upper()}{self.hint[1:]}" if self.hint else ""
        return f"{contract_id}: {self.message}.{hint}{'.' if hint and hint[-1] != '?' else ''}"


def version_problem(contract: ToolContract, entry: Implements) -> str:
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
    entry: Implements,
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
            faults.append(Fault("metadata.mcp", f"`result_extract`: {exc.message.rstrip('.')}"))
    elif not has_hook:
        message = "`metadata.mcp.tool_name` is missing"
        faults.append(Fault("metadata.mcp", message, "say which tool of the server serves it"))
    outdated = version_problem(contract, entry)
    return [*([outdated] if outdated else ()), *(one.sentence(contract.id) for one in faults)]


def shape_faults(contract: ToolContract, entry: Implements) -> list[Fault]:
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
            faults.append(Fault("mapping", message, near(source, inputs.names)))
    faults += _collisions("mapping", "mapping", passed_on(inputs, entry), renames)
    return faults


def passed_on(inputs: SchemaView, entry: Implements) -> list[str]:
    """The inputs that a call can bring."""
    return [name for name in inputs.names if name not in entry.drop_inputs]


def near(name: str, known: Collection[str]) -> str:
    """A question, where a name looks like another one."""
    found = get_close_matches(name, known, 1)
    return f"did you mean {found[0]!r}?" if found else ""


def _narrowing(what: str, dropped: Iterable[str], view: SchemaView) -> Iterable[Fault]:
    field = f"schema_narrowing.drop_{what}"
    for name in dropped:
        if name in view.required:
            message = f"`drop_{what}` has {name!r}, which is required by the contract"
            yield Fault(field, message, "only what is optional can be left out")
        elif name not in view.names and view.certain:
            message = f"`drop_{what}` has {name!r}, which is none of the contract's {what}"
            yield Fault(field, message, near(name, view.names))


def _transformers(entry: Implements, transforms: Collection[str]) -> Iterable[Fault]:
    for key, value in entry.mapping.items():
        if isinstance(value, MappedFrom) and value.transform and value.transform not in transforms:
            yield Fault(
                "mapping",
                f"`mapping` of {key!r} wants the transformer {value.transform!r}, which "
                "driver.py does not have",
                "give it to define_driver there, under transforms",
            )


def _arguments(entry: Implements, inputs: SchemaView) -> Iterable[Fault]:
    mapping, arguments = mapping_renames(entry.mapping, inputs.names), argument_renames(entry)
    field = "metadata.mcp.argument_mapping"
    known = [target.name for name in inputs.names for target in targets(mapping, name)]
    for source in arguments:
        if source not in known and inputs.certain:
            after = " after `mapping`" if mapping else ""
            yield Fault(
                field,
                f"`argument_mapping` has {source!r}, which is no input of the contract{after}",
                near(source, known),
            )
    arriving = passed_on(inputs, entry)
    passed = dict.fromkeys(to.name for name in arriving for to in targets(mapping, name))
    yield from _collisions(field, "argument_mapping", passed, arguments)


def _collisions(field: str, word: str, names: Collection[str], renames: Renames) -> Iterable[Fault]:
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
            yield Fault(field, message, "give each a name of its own")
