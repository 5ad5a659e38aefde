"""The state store: buckets of small typed records, and streams, over an adapter.

Every change of a record gets a revision that is higher than all earlier ones of the store. An
update names the revision that it replaces, so that of two concurrent updates one fails. There is no
transaction over several keys: an operation that needs two orders its writes so that a crash between
them rejects and never duplicates.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from interlock.errors import UNRECORDABLE, InterlockError

T = TypeVar("T")

ABSENT: Final = 0
"""The expected revision of a key that must not exist."""
MAX_KEY_LENGTH: Final = 512
MAX_VALUE_BYTES: Final = 1024 * 1024
RENEWAL_SHARE: Final = 3
"""A lease is renewed after this part of its time: twice more before it expires."""


class StaleRevisionError(Exception):
    """The record is not at the expected revision: another write was first."""


class Durability(enum.Enum):
    """The state of a write when it is acknowledged."""

    FORCED = "forced"
    """It is on the disk: it survives a power failure."""
    SOON = "soon"
    """It survives the end of the process, and within a second a power failure."""
    VOLATILE = "volatile"
    """It survives the end of the process. Nothing forces it to the disk."""


class BucketSpec(NamedTuple, Generic[T]):
    """A bucket: the type of its records, and how durable they are."""

    name: str
    record_type: type[T]
    durability: Durability
    reason: str
    """Why this durability, for the table in the documentation."""
    version: int = 1
    upgrades: dict[int, Callable[[bytes], bytes]] = {}  # noqa: RUF012
    """By version: rewrites a stored record for the next version."""


class StreamSpec(NamedTuple, Generic[T]):
    """A stream: the type of its entries, and how many are kept."""

    name: str
    record_type: type[T]
    durability: Durability
    reason: str
    max_entries: int
    version: int = 1


class StoredValue(NamedTuple):
    """The value of a key as an adapter knows it."""

    key: str
    revision: int
    version: int
    """The version of the record's type."""
    value: bytes | None
    """None: the key was deleted, or its time is over."""


class Write(NamedTuple):
    """A change of one key."""

    bucket: str
    key: str
    value: bytes | None
    """None: delete the key."""
    version: int
    durability: Durability
    expected: int | None
    """The revision that is replaced, `ABSENT`, or None for any."""
    ttl: float | None = None
    """Seconds until the key expires. None: it does not."""


class Append(NamedTuple):
    """A new entry of a stream."""

    stream: str
    value: bytes
    version: int
    durability: Durability
    max_entries: int


class StateAdapter(Protocol):
    """The storage of records. All methods run on the event loop and never block it."""

    problem: str
    """The reason why it cannot be used at the moment, for an operator. Empty: it can be used."""

    async def start(self) -> None:
        """Raises InterlockError for a file of another program, of a newer version, or damaged."""

    async def close(self) -> None: ...

    async def get(self, bucket: str, key: str) -> StoredValue | None: ...

    async def list_records(self, bucket: str, prefix: str) -> Sequence[StoredValue]:
        """Return the records of a bucket, ordered by key."""

    async def list_keys(self, bucket: str, prefix: str) -> Sequence[str]:
        """Return the keys of a bucket in order, without their values."""

    async def write(self, write: Write) -> int:
        """Return the new revision. Raises StaleRevisionError or InterlockError."""

    async def changes(
        self, bucket: str, prefix: str, after: int
    ) -> tuple[Sequence[StoredValue], int] | None:
        """Return the newest state of each key that changed after a revision, in the order of the
        changes, and the revision up to which that is complete. None: deletions so far back are
        forgotten; list the bucket instead."""

    async def append(self, append: Append) -> int:
        """Return the number of the entry. Raises InterlockError."""

    async def read(self, stream: str, after: int, limit: int) -> Sequence[StoredValue]:
        """Return entries after a number, oldest first; `revision` is the number of the entry."""

    async def revision(self) -> int:
        """Return the newest revision of the store."""

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on the event loop after each change, also of another process. Returns a
        function that ends it."""


class Entry(NamedTuple, Generic[T]):
    """A record with its key and revision."""

    key: str
    revision: int
    value: T


Entries = list[Entry[T]]
Keys = list[str]


class Change(NamedTuple, Generic[T]):
    """The newest state of a key that changed."""

    key: str
    revision: int
    value: T | None
    """None: the key was deleted, or its time is over."""


class Changes(NamedTuple, Generic[T]):
    """The changes that a watch reports together."""

    changes: list[Change[T]]
    is_complete: bool
    """True if these are all records of the bucket: keys that are not among them do not exist."""


class StateStore:
    """The buckets and streams of one adapter."""

    def __init__(self, adapter: StateAdapter) -> None:
        self.adapter = adapter

    async def start(self) -> None:
        await self.adapter.start()

    async def close(self) -> None:
        await self.adapter.close()

    def bucket(self, spec: BucketSpec[T]) -> Bucket[T]:
        return Bucket(self.adapter, spec)

    def stream(self, spec: StreamSpec[T]) -> Stream[T]:
        return Stream(self.adapter, spec)


class Bucket(Generic[T]):
    """Small records of one type, by key."""

    def __init__(self, adapter: StateAdapter, spec: BucketSpec[T]) -> None:
        self.spec = spec
        self._adapter = adapter
        self._decoder = msgspec.json.Decoder(spec.record_type)

    async def get(self, key: str) -> Entry[T] | None:
        if not is_valid_key(key):
            return None
        stored = await self._adapter.get(self.spec.name, key)
        return None if stored is None else self._entry(stored)

    async def list(self, prefix: str = "") -> Entries[T]:
        """Return the records whose key begins with a prefix, ordered by key."""
        return [
            self._entry(stored)
            for stored in await self._adapter.list_records(self.spec.name, prefix)
        ]

    async def keys(self, prefix: str = "") -> Keys:
        """Return the keys that begin with a prefix, in order."""
        return list(await self._adapter.list_keys(self.spec.name, prefix))

    async def create(self, key: str, value: T, *, ttl: float | None = None) -> int:
        """Return the revision of the new record. Raises StaleRevisionError if the key exists."""
        return await self._write(key, value, ABSENT, ttl)

    async def update(self, key: str, value: T, revision: int, *, ttl: float | None = None) -> int:
        """Return the new revision. Raises StaleRevisionError if the record is at another one."""
        return await self._write(key, value, revision, ttl)

    async def put(self, key: str, value: T, *, ttl: float | None = None) -> int:
        """Create or replace a record, whatever its revision. Returns the new revision."""
        return await self._write(key, value, None, ttl)

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete a record. A key that does not exist is no error, unless a revision is named."""
        check_key(key)
        spec = self.spec
        await self._adapter.write(
            Write(spec.name, key, None, spec.version, spec.durability, revision)
        )

    async def watch(self, prefix: str = "") -> AsyncIterator[Changes[T]]:
        """Yield the records, then what changes, without an end.

        Changes of one key between two turns are one change. A watcher that is slow costs nothing:
        nothing is kept for it, and one that missed deletions gets all records again.
        """
        async for stored, is_complete in _follow(self._adapter, self.spec.name, prefix):
            changes = [
                Change(value.key, value.revision, self._decode_change(value)) for value in stored
            ]
            yield Changes(changes, is_complete)

    async def lease(self, key: str, value: T, ttl: float, clock: Callable[[], float]) -> Lease[T]:
        """Acquire a key for a time. Raises StaleRevisionError while another holder has it.

        Args:
            clock: a monotonic clock, by which the holder sees that its lease may be over.
        """
        before = clock()
        revision = await self.create(key, value, ttl=ttl)
        return Lease(self, key, value, ttl, revision, before + ttl, clock)

    async def _write(self, key: str, value: T, expected: int | None, ttl: float | None) -> int:
        check_key(key)
        data = _encode(value)
        spec = self.spec
        return await self._adapter.write(
            Write(spec.name, key, data, spec.version, spec.durability, expected, ttl)
        )

    def _entry(self, stored: StoredValue) -> Entry[T]:
        return Entry(stored.key, stored.revision, self._decode(stored))

    def _decode_change(self, stored: StoredValue) -> T | None:
        return None if stored.value is None else self._decode(stored)

    def _decode(self, stored: StoredValue) -> T:
        assert stored.value is not None
        spec = self.spec
        data = stored.value
        if stored.version > spec.version:
            raise InterlockError(
                UNRECORDABLE,
                f"Record {stored.key!r} of the state store (bucket {spec.name}) was written by a "
                "newer Interlock. Upgrade this one.",
            )
        try:
            for version in range(stored.version, spec.version):
                data = spec.upgrades[version](data)
            return self._decoder.decode(data)
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            raise _unreadable(spec.name, stored.key, error) from error


class Lease(Generic[T]):
    """A key that one holder has for a time.

    The revision of the lease is higher than those of all earlier holders: what the holder writes
    elsewhere can carry it, so that a holder that slept is recognised there.
    """

    def __init__(
        self,
        bucket: Bucket[T],
        key: str,
        value: T,
        ttl: float,
        revision: int,
        until: float,
        clock: Callable[[], float],
    ) -> None:
        self.key = key
        self.revision = revision
        self._bucket = bucket
        self._value = value
        self._ttl = ttl
        self._until = until
        self._clock = clock

    @property
    def is_held(self) -> bool:
        """False: its time is over, or it was lost. Another holder may have it."""
        return self._clock() < self._until

    @property
    def renewal_seconds(self) -> float:
        """Seconds between two renewals."""
        return self._ttl / RENEWAL_SHARE

    async def renew(self) -> None:
        """Hold the lease for its whole time again. Raises StaleRevisionError if it was lost."""
        before = self._clock()
        try:
            self.revision = await self._bucket.update(
                self.key, self._value, self.revision, ttl=self._ttl
            )
        except StaleRevisionError:
            self._until = before
            raise
        self._until = before + self._ttl

    async def release(self) -> None:
        """Give the key free, unless another holder has it already."""
        self._until = self._clock()
        try:
            await self._bucket.delete(self.key, self.revision)
        except StaleRevisionError:
            return


class Stream(Generic[T]):
    """Entries of one type, in the order in which they were appended."""

    def __init__(self, adapter: StateAdapter, spec: StreamSpec[T]) -> None:
        self.spec = spec
        self._adapter = adapter
        self._decoder = msgspec.json.Decoder(spec.record_type)

    async def append(self, value: T) -> int:
        """Return the number of the entry."""
        spec = self.spec
        return await self._adapter.append(
            Append(spec.name, _encode(value), spec.version, spec.durability, spec.max_entries)
        )

    async def read(self, after: int = 0, limit: int = 1000) -> list[Entry[T]]:
        """Return entries after a number, oldest first. A gap means that older ones are gone."""
        stored = await self._adapter.read(self.spec.name, after, limit)
        return [Entry(value.key, value.revision, self._decode(value)) for value in stored]

    async def subscribe(self, after: int) -> AsyncIterator[list[Entry[T]]]:
        """Yield the entries after a number, as they come, without an end."""
        with _Waker(self._adapter) as waker:
            while True:
                entries = await self.read(after)
                if entries:
                    after = entries[-1].revision
                    yield entries
                else:
                    await waker.wait()

    def _decode(self, stored: StoredValue) -> T:
        assert stored.value is not None
        try:
            return self._decoder.decode(stored.value)
        except msgspec.DecodeError as error:
            raise _unreadable(self.spec.name, str(stored.revision), error) from error


class _Waker:
    """Waits for changes of an adapter. A change between two waits is not lost."""

    def __init__(self, adapter: StateAdapter) -> None:
        self._adapter = adapter
        self._changed = asyncio.Event()

    def __enter__(self) -> _Waker:
        self._end = self._adapter.subscribe(self._changed.set)
        # The first look comes before the first wait: what it sees need not wake anybody.
        self._changed.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    async def wait(self) -> None:
        await self._changed.wait()
        self._changed.clear()


async def _follow(
    adapter: StateAdapter, bucket: str, prefix: str
) -> AsyncIterator[tuple[Sequence[StoredValue], bool]]:
    """Yield what is stored, and whether that is complete; then what changes."""
    after: int | None = None
    with _Waker(adapter) as waker:
        while True:
            found = None if after is None else await adapter.changes(bucket, prefix, after)
            if found is None:
                # The revision is read first: what changes in between is reported twice, not lost.
                after = await adapter.revision()
                yield await adapter.list_records(bucket, prefix), True
                continue
            changes, after = found
            if changes:
                yield changes, False
            else:
                await waker.wait()


def is_valid_key(key: str) -> bool:
    """Return whether every adapter can store the key."""
    return 0 < len(key) <= MAX_KEY_LENGTH and key.isprintable()


def check_key(key: str) -> None:
    """Raises ValueError for a key that an adapter could not store."""
    if not is_valid_key(key):
        raise ValueError(f"A key has 1 to {MAX_KEY_LENGTH} printable characters.")


def _encode(value: object) -> bytes:
    data = msgspec.json.encode(value)
    if len(data) > MAX_VALUE_BYTES:
        raise ValueError(f"A record has at most {MAX_VALUE_BYTES} bytes.")
    return data


def _unreadable(bucket: str, key: str, error: Exception) -> InterlockError:
    return InterlockError(
        UNRECORDABLE, f"Record {key!r} of the state store (bucket {bucket}) is damaged: {error}."
    )
