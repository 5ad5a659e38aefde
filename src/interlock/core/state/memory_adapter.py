"""A state adapter in memory, for tests and for nodes without a state folder."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from interlock.core.state.store import ABSENT, Append, StaleRevisionError, StoredValue, Write


class _Kept(NamedTuple):
    """A stored value and the time of its end."""

    stored: StoredValue
    expires_at: float | None


class MemoryAdapter:
    """Keeps everything as long as the process runs."""

    problem = ""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._buckets: dict[str, dict[str, _Kept]] = {}
        self._streams: dict[str, deque[StoredValue]] = {}
        self._numbers: dict[str, int] = {}
        self._revision = 0
        self._subscribers: list[Callable[[], None]] = []
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    async def start(self) -> None: ...

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    async def get(self, bucket: str, key: str) -> StoredValue | None:
        self.check_expiry()
        kept = self._buckets.get(bucket, {}).get(key)
        return None if kept is None or kept.stored.value is None else kept.stored

    async def list_records(self, bucket: str, prefix: str) -> Sequence[StoredValue]:
        self.check_expiry()
        return [
            kept.stored
            for key, kept in sorted(self._buckets.get(bucket, {}).items())
            if key.startswith(prefix) and kept.stored.value is not None
        ]

    async def list_keys(self, bucket: str, prefix: str) -> Sequence[str]:
        return [stored.key for stored in await self.list_records(bucket, prefix)]

    async def write(self, write: Write) -> int:
        self.check_expiry()
        records = self._buckets.setdefault(write.bucket, {})
        kept = records.get(write.key)
        current = ABSENT if kept is None or kept.stored.value is None else kept.stored.revision
        if write.expected is not None and write.expected != current:
            raise StaleRevisionError(write.key)
        if write.value is None and current == ABSENT:
            return self._revision
        if timer := self._timers.pop((write.bucket, write.key), None):
            timer.cancel()
        self._revision += 1
        expires_at = None if write.ttl is None else self._clock() + write.ttl
        records[write.key] = _Kept(
            StoredValue(write.key, self._revision, write.version, write.value), expires_at
        )
        if write.ttl is not None:
            loop = asyncio.get_running_loop()
            self._timers[write.bucket, write.key] = loop.call_later(write.ttl, self.check_expiry)
        self._notify()
        return self._revision

    async def changes(
        self, bucket: str, prefix: str, after: int
    ) -> tuple[Sequence[StoredValue], int] | None:
        self.check_expiry()
        changed = [
            kept.stored
            for key, kept in self._buckets.get(bucket, {}).items()
            if key.startswith(prefix) and kept.stored.revision > after
        ]
        return sorted(changed, key=lambda stored: stored.revision), self._revision

    async def append(self, append: Append) -> int:
        number = self._numbers[append.stream] = self._numbers.get(append.stream, 0) + 1
        entries = self._streams.setdefault(append.stream, deque())
        entries.append(StoredValue("", number, append.version, append.value))
        while len(entries) > append.max_entries:
            entries.popleft()
        self._notify()
        return number

    async def read(self, stream: str, after: int, limit: int) -> Sequence[StoredValue]:
        entries = self._streams.get(stream, ())
        return [stored for stored in entries if stored.revision > after][:limit]

    async def revision(self) -> int:
        return self._revision

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._subscribers.append(wake)
        return lambda: self._subscribers.remove(wake)

    def check_expiry(self) -> None:
        """Delete the records whose time is over."""
        now = self._clock()
        for records in self._buckets.values():
            for key, kept in records.items():
                if kept.expires_at is not None and kept.expires_at <= now:
                    self._revision += 1
                    deleted = kept.stored._replace(revision=self._revision, value=None)
                    records[key] = _Kept(deleted, None)
                    self._notify()

    def _notify(self) -> None:
        for wake in tuple(self._subscribers):
            wake()
