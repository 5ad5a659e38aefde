"""One behaviour of buckets, leases and streams over every adapter of the state store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from interlock.core.state.memory_adapter import MemoryAdapter
from interlock.core.state.sqlite_adapter import SqliteAdapter
from interlock.core.state.store import (
    MAX_KEY_LENGTH,
    MAX_VALUE_BYTES,
    BucketSpec,
    Changes,
    Durability,
    StaleRevisionError,
    StateStore,
    StreamSpec,
)
from interlock.errors import UNRECORDABLE, InterlockError
from tests.support.clock import ManualClock, run_ready_tasks
from tests.support.timeouts import HANG_TIMEOUT


class Lamp(msgspec.Struct):
    """A record of a test."""

    color: str
    level: int = 0


LAMPS = BucketSpec("lamps", Lamp, Durability.FORCED, "a test")
OTHERS = BucketSpec("others", Lamp, Durability.VOLATILE, "a test")
EVENTS = StreamSpec("events", Lamp, Durability.SOON, "a test", max_entries=5)

Adapter = MemoryAdapter | SqliteAdapter
ADAPTERS: dict[str, Callable[[Path, ManualClock], Adapter]] = {
    "memory": lambda _, clock: MemoryAdapter(clock.wall),
    "sqlite": lambda folder, clock: SqliteAdapter(folder / "state.db", clock=clock.wall),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=sorted(ADAPTERS))
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[StateStore]:
    async with open_store(ADAPTERS[request.param](tmp_path, clock)) as store:
        yield store


@asynccontextmanager
async def open_store(adapter: Adapter) -> AsyncIterator[StateStore]:
    store = StateStore(adapter)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def advance(store: StateStore, clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds)
    assert isinstance(store.adapter, Adapter)
    store.adapter.check_expiry()


async def next_changes(watch: AsyncIterator[Changes[Lamp]]) -> Changes[Lamp]:
    async with asyncio.timeout(HANG_TIMEOUT):
        return await anext(watch)


# -- records


async def test_returns_created_record(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    revision = await lamps.create("hall", Lamp("red", 2))
    assert await lamps.get("hall") == ("hall", revision, Lamp("red", 2))


async def test_returns_none_for_missing_key(store: StateStore) -> None:
    assert await store.bucket(LAMPS).get("hall") is None


async def test_rejects_second_create(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    await lamps.create("hall", Lamp("red"))
    with pytest.raises(StaleRevisionError):
        await lamps.create("hall", Lamp("blue"))
    entry = await lamps.get("hall")
    assert entry is not None
    assert entry.value == Lamp("red")


async def test_update_needs_current_revision(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    first = await lamps.create("hall", Lamp("red"))
    second = await lamps.update("hall", Lamp("blue"), first)
    assert second > first
    with pytest.raises(StaleRevisionError):
        await lamps.update("hall", Lamp("green"), first)
    assert await lamps.get("hall") == ("hall", second, Lamp("blue"))


async def test_update_of_missing_key_fails(store: StateStore) -> None:
    with pytest.raises(StaleRevisionError):
        await store.bucket(LAMPS).update("hall", Lamp("blue"), 1)


async def test_put_replaces_any_revision(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    await lamps.put("hall", Lamp("red"))
    revision = await lamps.put("hall", Lamp("blue"))
    assert await lamps.get("hall") == ("hall", revision, Lamp("blue"))


async def test_deletes_record(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    revision = await lamps.create("hall", Lamp("red"))
    await lamps.delete("hall")
    assert await lamps.get("hall") is None
    assert await lamps.list() == []
    assert await lamps.create("hall", Lamp("blue")) > revision


async def test_delete_with_revision_needs_that_revision(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    first = await lamps.create("hall", Lamp("red"))
    second = await lamps.update("hall", Lamp("blue"), first)
    with pytest.raises(StaleRevisionError):
        await lamps.delete("hall", first)
    await lamps.delete("hall", second)
    with pytest.raises(StaleRevisionError):
        await lamps.delete("hall", second)
    await lamps.delete("hall")


async def test_lists_records_by_prefix_in_order_of_keys(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    for key in ("b/2", "a/2", "a%/1", "a/10", "a", "A/1", "a_/1"):
        await lamps.create(key, Lamp(key))
    await store.bucket(OTHERS).create("a/3", Lamp("other"))
    assert [entry.key for entry in await lamps.list("a/")] == ["a/10", "a/2"]
    assert await lamps.keys("a/") == ["a/10", "a/2"]
    assert [entry.key for entry in await lamps.list()] == sorted(
        ("b/2", "a/2", "a%/1", "a/10", "a", "A/1", "a_/1")
    )


async def test_one_of_many_concurrent_updates_succeeds(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    revision = await lamps.create("hall", Lamp("red"))
    results = await asyncio.gather(
        *(lamps.update("hall", Lamp("blue", level), revision) for level in range(20)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, StaleRevisionError) for result in results) == 19


@pytest.mark.parametrize("key", ["", "x" * (MAX_KEY_LENGTH + 1), "a\nb", "a\0", "\ud800"])
async def test_rejects_invalid_key(store: StateStore, key: str) -> None:
    lamps = store.bucket(LAMPS)
    with pytest.raises(ValueError, match="key"):
        await lamps.create(key, Lamp("red"))
    with pytest.raises(ValueError, match="key"):
        await lamps.delete(key)
    assert await lamps.get(key) is None


async def test_rejects_too_large_value(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    with pytest.raises(ValueError, match="bytes"):
        await lamps.create("hall", Lamp("x" * MAX_VALUE_BYTES))
    assert await lamps.get("hall") is None


# -- types


async def test_upgrades_records_of_older_versions(store: StateStore) -> None:
    class Named(msgspec.Struct):
        title: str
        level: int

    def rename(data: bytes) -> bytes:
        old = msgspec.json.decode(data)
        return msgspec.json.encode({"title": old["color"], "level": old["level"]})

    def raise_level(data: bytes) -> bytes:
        old = msgspec.json.decode(data)
        return msgspec.json.encode({**old, "level": old["level"] + 1})

    await store.bucket(LAMPS).create("hall", Lamp("red", 2))
    spec = LAMPS._replace(record_type=Named, version=3, upgrades={1: rename, 2: raise_level})  # type: ignore[arg-type]
    entry = await store.bucket(spec).get("hall")
    assert entry is not None
    assert entry.value == Named("red", 3)


async def test_rejects_record_of_newer_version(store: StateStore) -> None:
    await store.bucket(LAMPS._replace(version=2)).create("hall", Lamp("red"))
    with pytest.raises(InterlockError) as raised:
        await store.bucket(LAMPS).get("hall")
    assert raised.value.failure is UNRECORDABLE


async def test_rejects_record_of_another_type(store: StateStore) -> None:
    class Other(msgspec.Struct):
        color: int

    await store.bucket(LAMPS).create("hall", Lamp("red"))
    with pytest.raises(InterlockError) as raised:
        await store.bucket(LAMPS._replace(record_type=Other)).get("hall")  # type: ignore[arg-type]
    assert raised.value.failure is UNRECORDABLE
    assert "red" not in raised.value.message


# -- watching


async def test_watch_reports_records_then_changes(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    first = await lamps.create("hall", Lamp("red"))
    watch = lamps.watch()
    assert await next_changes(watch) == ([("hall", first, Lamp("red"))], True)
    second = await lamps.create("yard", Lamp("blue"))
    assert await next_changes(watch) == ([("yard", second, Lamp("blue"))], False)
    await lamps.delete("hall")
    changes, is_complete = await next_changes(watch)
    assert [(change.key, change.value) for change in changes] == [("hall", None)]
    assert not is_complete


async def test_watch_reports_newest_state_only(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    watch = lamps.watch()
    await next_changes(watch)
    for level in range(100):
        revision = await lamps.put("hall", Lamp("red", level))
    await store.bucket(OTHERS).put("hall", Lamp("other"))
    assert await next_changes(watch) == ([("hall", revision, Lamp("red", 99))], False)


async def test_watch_reports_prefix_only(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    watch = lamps.watch("a/")
    assert await next_changes(watch) == ([], True)
    await lamps.put("b/1", Lamp("red"))
    revision = await lamps.put("a/1", Lamp("blue"))
    assert await next_changes(watch) == ([("a/1", revision, Lamp("blue"))], False)


async def test_two_watches_report_same_changes(store: StateStore) -> None:
    lamps = store.bucket(LAMPS)
    watches = [lamps.watch(), lamps.watch()]
    for watch in watches:
        await next_changes(watch)
    waiting = [asyncio.ensure_future(next_changes(watch)) for watch in watches]
    revision = await lamps.put("hall", Lamp("red"))
    assert await asyncio.gather(*waiting) == [([("hall", revision, Lamp("red"))], False)] * 2


# -- expiry and leases


async def test_record_expires(store: StateStore, clock: ManualClock) -> None:
    lamps = store.bucket(LAMPS)
    watch = lamps.watch()
    await next_changes(watch)
    revision = await lamps.create("hall", Lamp("red"), ttl=10.0)
    assert await next_changes(watch) == ([("hall", revision, Lamp("red"))], False)
    advance(store, clock, 9.9)
    assert await lamps.get("hall") is not None
    waiting = asyncio.ensure_future(next_changes(watch))
    await run_ready_tasks()
    advance(store, clock, 0.1)
    assert await lamps.get("hall") is None
    assert await lamps.list() == []
    changes, _ = await waiting
    assert [(change.key, change.value) for change in changes] == [("hall", None)]
    with pytest.raises(StaleRevisionError):
        await lamps.update("hall", Lamp("blue"), revision)


async def test_update_without_ttl_ends_expiry(store: StateStore, clock: ManualClock) -> None:
    lamps = store.bucket(LAMPS)
    revision = await lamps.create("hall", Lamp("red"), ttl=10.0)
    await lamps.update("hall", Lamp("red"), revision)
    advance(store, clock, 100.0)
    assert await lamps.get("hall") is not None


async def test_lease_has_one_holder(store: StateStore, clock: ManualClock) -> None:
    lamps = store.bucket(LAMPS)
    lease = await lamps.lease("leader", Lamp("one"), 10.0, clock)
    assert lease.is_held
    with pytest.raises(StaleRevisionError):
        await lamps.lease("leader", Lamp("two"), 10.0, clock)
    await lease.release()
    assert not lease.is_held
    second = await lamps.lease("leader", Lamp("two"), 10.0, clock)
    assert second.revision > lease.revision


async def test_renewed_lease_is_held_longer(store: StateStore, clock: ManualClock) -> None:
    lamps = store.bucket(LAMPS)
    lease = await lamps.lease("leader", Lamp("one"), 9.0, clock)
    assert lease.renewal_seconds == 3.0
    for _ in range(5):
        advance(store, clock, 6.0)
        assert lease.is_held
        await lease.renew()
    with pytest.raises(StaleRevisionError):
        await lamps.lease("leader", Lamp("two"), 10.0, clock)


async def test_holder_knows_that_lease_was_lost(store: StateStore, clock: ManualClock) -> None:
    lamps = store.bucket(LAMPS)
    lease = await lamps.lease("leader", Lamp("one"), 10.0, clock)
    await lamps.put("leader", Lamp("two"))
    with pytest.raises(StaleRevisionError):
        await lease.renew()
    assert not lease.is_held


async def test_holder_that_slept_knows_it(store: StateStore, clock: ManualClock) -> None:
    lamps = store.bucket(LAMPS)
    lease = await lamps.lease("leader", Lamp("one"), 10.0, clock)
    advance(store, clock, 10.0)
    assert not lease.is_held
    second = await lamps.lease("leader", Lamp("two"), 10.0, clock)
    with pytest.raises(StaleRevisionError):
        await lease.renew()
    await lease.release()
    assert second.is_held
    entry = await lamps.get("leader")
    assert entry is not None
    assert entry.value == Lamp("two")


# -- streams


async def test_reads_stream_in_order(store: StateStore) -> None:
    events = store.stream(EVENTS)
    numbers = [await events.append(Lamp("red", level)) for level in range(3)]
    assert [entry.value.level for entry in await events.read()] == [0, 1, 2]
    assert [entry.revision for entry in await events.read(after=numbers[0], limit=1)] == [
        numbers[1]
    ]


async def test_stream_keeps_newest_entries(store: StateStore) -> None:
    events = store.stream(EVENTS)
    for level in range(12):
        last = await events.append(Lamp("red", level))
    assert [entry.value.level for entry in await events.read()] == [7, 8, 9, 10, 11]
    assert await events.append(Lamp("red", 12)) == last + 1


async def test_subscription_reports_entries_as_they_come(store: StateStore) -> None:
    events = store.stream(EVENTS)
    first = await events.append(Lamp("red", 0))
    await events.append(Lamp("red", 1))
    subscription = events.subscribe(first)
    async with asyncio.timeout(HANG_TIMEOUT):
        assert [entry.value.level for entry in await anext(subscription)] == [1]
        waiting = asyncio.ensure_future(anext(subscription))
        await events.append(Lamp("red", 2))
        assert [entry.value.level for entry in await waiting] == [2]
