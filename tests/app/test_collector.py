"""The garbage collector of a node: young objects by time, all objects after growth."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from interlock.app.garbage_collector import (
    COLLECT_SECONDS,
    GROWTH_BYTES,
    GarbageCollector,
    measure_memory,
)
from tests.support.clock import ManualClock


@pytest.fixture(autouse=True)
def same_settings() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


class CycleMember:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


def make_cycle() -> weakref.ref[CycleMember]:
    return weakref.ref(CycleMember())


def test_frees_young_cycles_by_time() -> None:
    clock = ManualClock()
    collector = GarbageCollector(clock.call_later, lambda: 0)
    collector.start()
    for _ in range(3):
        lost = make_cycle()
        assert lost() is not None
        clock.advance(COLLECT_SECONDS)
        assert lost() is None
    collector.stop()
    assert clock.timers == 0


def test_frees_old_cycles_after_growth() -> None:
    clock, memory = ManualClock(), [0]
    collector = GarbageCollector(clock.call_later, lambda: memory[0])
    collector.start()
    kept = CycleMember()
    lost = weakref.ref(kept)
    # It lives long enough to be old.
    clock.advance(COLLECT_SECONDS * 3)
    del kept
    clock.advance(COLLECT_SECONDS * 3)
    assert lost() is not None
    memory[0] = GROWTH_BYTES
    clock.advance(COLLECT_SECONDS)
    assert lost() is None
    collector.stop()


def test_measures_memory() -> None:
    assert measure_memory() > 1024 * 1024
