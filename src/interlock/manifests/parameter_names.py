"""How a contract's inputs are called on their way to a tool: `mapping`, then `argument_mapping`.

The two are steps of two specifications (AIP-30 binds, AIP-32 names the tool's arguments), and each
passes on under its own name what it does not mention.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from interlock.manifests.driver import Implements, MappedFrom


class Target(NamedTuple):
    """Where an input goes, and what is done to it on the way."""

    name: str
    transform: str = ""


Renames = dict[str, tuple[Target, ...]]
"""Source → where it goes. What is not in it keeps its name."""


def mapping_renames(mapping: Mapping[str, str | MappedFrom], inputs: Collection[str]) -> Renames:
    """The `mapping` of an entry. `inputs`: the names that the contract knows.

    A plain string leads from the contract's name to the driver's. In the long form `from` is the
    source if the contract knows it; else the key is, and `from` says what the driver calls it.
    """
    renames: Renames = {}
    for key, value in mapping.items():
        if isinstance(value, str):
            source, target = key, Target(value)
        elif value.source in inputs:
            source, target = value.source, Target(key, value.transform)
        else:
            source, target = key, Target(value.source or key, value.transform)
        renames[source] = (*renames.get(source, ()), target)
    return renames


def argument_renames(entry: Implements) -> Renames:
    """The `argument_mapping` of an entry."""
    if entry.mcp is None:
        return {}
    return {source: (Target(name),) for source, name in entry.mcp.argument_mapping.items()}


def targets(renames: Renames, name: str) -> tuple[Target, ...]:
    """Where an input goes."""
    return renames.get(name) or (Target(name),)


def renamed(renames: Renames, values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under their new names. Transformers are not run."""
    if not renames:
        return dict(values)
    return {
        target.name: value for name, value in values.items() for target in targets(renames, name)
    }


class Arrival(NamedTuple):
    """What feeds one argument of a tool."""

    argument: str
    source: str
    """The contract's input."""
    transformed: bool
    declared: bool
    """Whether a mapping names it; else it only keeps its name."""


def arrivals(mapping: Renames, arguments: Renames, inputs: Collection[str]) -> list[Arrival]:
    """Where each of these inputs ends, through both mappings."""
    found = []
    for source in inputs:
        for first in targets(mapping, source):
            for last in targets(arguments, first.name):
                found.append(
                    Arrival(
                        last.name,
                        source,
                        bool(first.transform or last.transform),
                        source in mapping or first.name in arguments,
                    )
                )
    return found
