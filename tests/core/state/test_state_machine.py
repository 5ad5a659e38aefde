"""Any order of writes, expiries, restarts and watches over every adapter, against a model."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from interlock.core.state.store import Bucket, Changes, StaleRevisionError, StateStore
from tests.core.state.test_state_adapters import ADAPTERS, LAMPS, Adapter, Lamp
from tests.support.clock import ManualClock
from tests.support.timeouts import HANG_TIMEOUT

KEYS = st.sampled_from(["a", "a/1", "a/2", "b"])
TTLS = st.sampled_from([None, None, 5.0, 20.0])


class StateStores(RuleBasedStateMachine):
    """One or two stores over the same records, and a model of what they hold."""

    adapter = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = ManualClock()
        self.model: dict[str, tuple[int, int, float | None]] = {}
        """By key: the level, the revision, and when it expires."""
        self.used_revisions: set[int] = {0}
        self.level = 0

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(HANG_TIMEOUT):
                return await coroutine

        return self.loop.run_until_complete(bounded())

    @initialize()
    def open(self) -> None:
        shared = self.adapter != "memory"
        self.stores = [self._open() for _ in range(2 if shared else 1)]
        self._open_watches()

    def teardown(self) -> None:
        for watch in self.watches:
            self.run(watch.aclose())  # type: ignore[attr-defined]
        for store in self.stores:
            self.run(store.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    def bucket(self, number: int) -> Bucket[Lamp]:
        return self.stores[number % len(self.stores)].bucket(LAMPS)

    @rule(key=KEYS, store=st.integers(0, 1), ttl=TTLS)
    def create(self, key: str, store: int, ttl: float | None) -> None:
        self._write(key, self.bucket(store).create(key, self._lamp(), ttl=ttl), 0, ttl)

    @rule(key=KEYS, store=st.integers(0, 1), ttl=TTLS, data=st.data())
    def update(self, key: str, store: int, ttl: float | None, data: st.DataObject) -> None:
        current = self.model[key][1] if key in self.model else 1
        revision = data.draw(st.sampled_from([current, *sorted(self.used_revisions - {0})[-3:]]))
        write = self.bucket(store).update(key, self._lamp(), revision, ttl=ttl)
        self._write(key, write, revision, ttl)

    @rule(key=KEYS, store=st.integers(0, 1))
    def delete(self, key: str, store: int) -> None:
        self.run(self.bucket(store).delete(key))
        self.model.pop(key, None)

    @rule(writers=st.lists(st.tuples(KEYS, st.integers(0, 1)), min_size=2, max_size=6))
    def write_concurrently(self, writers: list[tuple[str, int]]) -> None:
        async def update(key: str, store: int, revision: int) -> int | None:
            bucket = self.bucket(store)
            try:
                if revision == 0:
                    return await bucket.create(key, Lamp("red", self.level))
                return await bucket.update(key, Lamp("red", self.level), revision)
            except StaleRevisionError:
                return None

        async def update_all() -> list[int | None]:
            return await asyncio.gather(
                *(
                    update(key, store, self.model[key][1] if key in self.model else 0)
                    for key, store in writers
                )
            )

        self.level += 1
        results = self.run(update_all())
        for key in {key for key, _ in writers}:
            [revision] = [
                result
                for (name, _), result in zip(writers, results, strict=True)
                if name == key and result is not None
            ]
            self._store(key, revision, None)

    @rule(seconds=st.sampled_from([1.0, 6.0, 30.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for store in self.stores:
            assert isinstance(store.adapter, Adapter)
            store.adapter.check_expiry()
        now = self.clock.wall()
        self.model = {
            key: entry for key, entry in self.model.items() if entry[2] is None or entry[2] > now
        }

    @precondition(lambda self: self.adapter != "memory")
    @rule(store=st.integers(0, 1))
    def restart(self, store: int) -> None:
        for watch in self.watches:
            self.run(watch.aclose())  # type: ignore[attr-defined]
        self.run(self.stores[store].close())
        self.stores[store] = self._open()
        self._open_watches()

    @invariant()
    def stores_hold_the_model(self) -> None:
        if not hasattr(self, "stores"):
            return
        expected = {key: (level, revision) for key, (level, revision, _) in self.model.items()}
        for store in self.stores:
            entries = self.run(store.bucket(LAMPS).list())
            result = {entry.key: (entry.value.level, entry.revision) for entry in entries}
            assert result == expected
            for key in ("a", "b"):
                entry = self.run(store.bucket(LAMPS).get(key))
                assert (entry and (entry.value.level, entry.revision)) == expected.get(key)

    @invariant()
    def watches_report_the_model(self) -> None:
        if not hasattr(self, "stores"):
            return
        for watch, replica in zip(self.watches, self.replicas, strict=True):
            self.run(self._follow(watch, replica))

    async def _follow(self, watch: AsyncIterator[Changes[Lamp]], replica: dict[str, int]) -> None:
        expected = {key: revision for key, (_, revision, _) in self.model.items()}
        while replica != expected:
            changes, is_complete = await anext(watch)
            if is_complete:
                replica.clear()
            for change in changes:
                if change.value is None:
                    replica.pop(change.key, None)
                else:
                    replica[change.key] = change.revision

    def _lamp(self) -> Lamp:
        self.level += 1
        return Lamp("red", self.level)

    def _write(
        self, key: str, write: Coroutine[Any, Any, int], expected: int, ttl: float | None
    ) -> None:
        current = self.model[key][1] if key in self.model else 0
        if expected == current:
            self._store(key, self.run(write), ttl)
        else:
            with pytest.raises(StaleRevisionError):
                self.run(write)

    def _store(self, key: str, revision: int, ttl: float | None) -> None:
        assert revision not in self.used_revisions
        self.used_revisions.add(revision)
        expires_at = None if ttl is None else self.clock.wall() + ttl
        self.model[key] = (self.level, revision, expires_at)

    def _open(self) -> StateStore:
        store = StateStore(ADAPTERS[self.adapter](self.folder, self.clock))
        self.run(store.start())
        return store

    def _open_watches(self) -> None:
        self.watches = [store.bucket(LAMPS).watch() for store in self.stores]
        self.replicas: list[dict[str, int]] = [{} for _ in self.stores]


class SqliteStores(StateStores):
    """Two stores on one file."""

    adapter = "sqlite"


TestMemory = StateStores.TestCase
TestSqlite = SqliteStores.TestCase
