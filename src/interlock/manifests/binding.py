"""From a driver's entry to the contract that it serves: found, in range, and not narrowed too far.

Also what can be said of an entry and its contract together, without asking any server: which input
goes where, and what a call costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from interlock.config.problems import BadValue, Problem, one_of, quoted
from interlock.manifests.driver import Cost, DriverManifest, Implements, MappedFrom
from interlock.manifests.ranges import in_range, newest
from interlock.manifests.tool import ToolContract

TOOL_UNAVAILABLE = "tool_unavailable"


class Binding(Struct, frozen=True):
    """An entry of a driver, and the contract that it serves."""

    entry: Implements
    contract: ToolContract


class MappingStep(Struct, frozen=True):
    """One input of the contract on its way to the driver."""

    source: str
    """The contract's input."""
    target: str
    """What the driver calls it."""
    transform: str = ""


def mapping_steps(
    mapping: Mapping[str, str | MappedFrom], contract: ToolContract
) -> tuple[MappingStep, ...]:
    """Which input goes where.

    `key: name` renames the contract's input `key`. In the long form `from` is the source when the
    contract has such an input; otherwise the key is the source and `from` is what the driver calls
    it.
    """
    inputs = _properties(contract.inputs)
    steps = []
    for key, value in mapping.items():
        if isinstance(value, str):
            steps.append(MappingStep(key, value))
        elif value.source in inputs:
            steps.append(MappingStep(value.source, key, value.transform))
        else:
            steps.append(MappingStep(key, value.source, value.transform))
    return tuple(steps)


def cost_for(driver: DriverManifest, entry: Implements) -> Cost | None:
    """What a call costs: what the entry says wins over what the driver says."""
    if entry.cost is None or driver.cost is None:
        return entry.cost or driver.cost
    own, general = entry.cost, driver.cost
    return Cost(
        cost_class=own.cost_class or general.cost_class,
        units_per_call=(
            own.units_per_call if own.units_per_call is not None else general.units_per_call
        ),
        currency=own.currency or general.currency,
    )


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


def check_binding(driver: DriverManifest, index: int, contract: ToolContract) -> list[Problem]:
    """What an entry must not do to its contract."""
    entry = driver.implements[index]
    if not (entry.drop_inputs or entry.drop_outputs or entry.mapping):
        return []
    where = f"implements[{index}]"
    problems = []
    inputs, required = _properties(contract.inputs), _required(contract.inputs)
    for name in entry.drop_inputs:
        place = f"{where}.schema_narrowing.drop_inputs"
        if name in required:
            problems.append(
                _problem(
                    driver.file, entry, place, f"{name} is required by {contract.id}",
                    "only an optional input can be dropped",
                )
            )  # fmt: skip
        elif name not in inputs:
            problems.append(
                _problem(
                    driver.file, entry, place, f"{contract.id} has no input {name}",
                    _have(inputs, "inputs"),
                )
            )  # fmt: skip
    outputs, promised = _properties(contract.outputs), _required(contract.outputs)
    for name in entry.drop_outputs:
        place = f"{where}.schema_narrowing.drop_outputs"
        if name in promised:
            problems.append(
                _problem(
                    driver.file, entry, place, f"{name} is promised by {contract.id}",
                    "only an optional output can be dropped",
                )
            )  # fmt: skip
        elif outputs and name not in outputs:
            problems.append(
                _problem(
                    driver.file, entry, place, f"{contract.id} has no output {name}",
                    _have(outputs, "outputs"),
                )
            )  # fmt: skip
    problems += _mapping_problems(driver, entry, where, contract)
    return problems


def _mapping_problems(
    driver: DriverManifest, entry: Implements, where: str, contract: ToolContract
) -> list[Problem]:
    if not entry.mapping:
        return []
    place, inputs = f"{where}.mapping", _properties(contract.inputs)
    problems = []
    targets: dict[str, str] = {}
    for step in mapping_steps(entry.mapping, contract):
        if (
            inputs
            and step.source not in inputs
            and contract.inputs.get("additionalProperties")
            in (
                None,
                False,
            )
        ):
            problems.append(
                _problem(
                    driver.file, entry, place, f"{contract.id} has no input {step.source}",
                    _have(inputs, "inputs"),
                )
            )  # fmt: skip
        if step.target in targets:
            problems.append(
                _problem(
                    driver.file, entry, place,
                    f"{targets[step.target]} and {step.source} both become {step.target}",
                    "give each a name of its own",
                )
            )  # fmt: skip
        targets[step.target] = step.source
    return problems


def _problem(file: Path, entry: Implements, place: str, message: str, hint: str) -> Problem:
    return Problem(str(file), entry.line, 1, place, message, hint)


def _have(names: Mapping[str, Any], what: str) -> str:
    return f"its {what} are {', '.join(sorted(names))}" if names else f"it has no {what}"


def _properties(schema: dict[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: dict[str, Any]) -> frozenset[str]:
    found = schema.get("required")
    return (
        frozenset(one for one in found if isinstance(one, str))
        if isinstance(found, list)
        else (frozenset())
    )
