"""What the log tells of drivers: which there are when the node starts, and what becomes of them
when their files change."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from interlock.upstreams.drivers.driver import Driver

_log = logging.getLogger("interlock.drivers")


def tell_begin(drivers: Mapping[str, Driver]) -> None:
    """The node has read its drivers for the first time."""
    used = [one for one in drivers.values() if not one.standing.refused]
    if used:
        ids = ", ".join(sorted(one.manifest.id for one in used))
        _log.info("%d %s: %s", len(used), "driver" if len(used) == 1 else "drivers", ids)


def tell_changes(
    before: Mapping[str, Driver], now: Mapping[str, Driver], unusable: Collection[Path]
) -> None:
    """Files have changed. `unusable`: those that cannot be used as they are; what is wrong with
    them was told already."""
    for key, driver in before.items():
        if key not in now:
            broken = driver.manifest.file in unusable
            what = "is taken out: its files are wrong" if broken else "was removed"
            _log.info("driver %s %s%s", driver.manifest.id, what, _served(driver, "; it served"))
    for key, driver in now.items():
        if before.get(key) is driver or driver.standing.refused:
            # Why it is refused was told where it was made.
            continue
        what = "changed" if key in before else "was added"
        _log.info("driver %s %s%s", driver.manifest.id, what, _served(driver, ": it serves"))


def tell_verified(driver: Driver) -> None:
    """Its server was asked, and has listed its tools."""
    _log.info("driver %s is ready%s", driver.manifest.id, _served(driver, ": it serves"))


def _served(driver: Driver, words: str) -> str:
    ids = sorted(one.contract.id for one in driver.bindings.values() if one.counts)
    return f"{words} {', '.join(ids)}" if ids else ""
