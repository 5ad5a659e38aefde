"""From a driver's entry to the contract that it serves."""

from __future__ import annotations

from msgspec import Struct

from interlock.core.config.problems import BadValue, one_of, quoted
from interlock.manifests.driver import Implements
from interlock.manifests.ranges import in_range, newest
from interlock.manifests.tool import ToolContract

TOOL_UNAVAILABLE = "tool_unavailable"


class Binding(Struct, frozen=True):
    """An entry of a driver, and the contract that it serves."""

    entry: Implements
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
