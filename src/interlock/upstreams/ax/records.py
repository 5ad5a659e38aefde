"""Everybody who is registered, or may come back: by segment, by who they are, by upstream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock.protocol import ax
from interlock.upstreams.ax.desk import Timer
from interlock.upstreams.ax.dial_in import DialIn
from interlock.upstreams.ax.ownership import Holder
from interlock.upstreams.ax.session import AxSession
from interlock.upstreams.ax.subserver import Subserver

if TYPE_CHECKING:
    from interlock.upstreams.supervisor import Supervisor


class Record(Holder):
    """One subserver, from its registration until it is forgotten."""

    def __init__(self, info: Subserver, session: AxSession) -> None:
        super().__init__(info)
        self.session: AxSession | None = session
        self.dial_in: DialIn | None = None
        """None: the node started it, and its upstream is the config's."""
        self.supervisor: Supervisor | None = None
        self.grace: Timer | None = None
        self.told: ax.Budget | None = None
        """The budget that it knows of."""
        self.shown = b""
        """The keys of this node that it knows of."""

    def calm(self) -> None:
        """Nobody waits for its return any longer."""
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None


class Records:
    """A subserver_id is that of the caller who brings it: another caller with the same one is
    another subserver, and keeps nobody out."""

    def __init__(self) -> None:
        self._by_segment: dict[str, Record] = {}
        self._by_id: dict[tuple[str, str], Record] = {}
        self._by_key: dict[str, Record] = {}

    def __len__(self) -> int:
        return len(self._by_segment)

    def __iter__(self) -> Iterator[Record]:
        """All that are there now, whatever becomes of them meanwhile."""
        return iter(list(self._by_segment.values()))

    def at(self, segment: str) -> Record | None:
        return self._by_segment.get(segment)

    def of(self, caller: str, subserver_id: str) -> Record | None:
        return self._by_id.get((caller, subserver_id))

    def behind(self, key: str) -> Record | None:
        return self._by_key.get(key)

    def registered(self, session: AxSession) -> Record | None:
        """What is known of a session that is registered now."""
        wanted = session.wanted
        record = None if wanted is None else self.of(session.caller.name, wanted.subserver_id)
        return record if record is not None and record.session is session else None

    def infos(self) -> list[Subserver]:
        """By segment."""
        return [self._by_segment[segment].info for segment in sorted(self._by_segment)]

    def add(self, record: Record) -> None:
        info = record.info
        self._by_segment[info.segment] = self._by_key[info.key] = record
        self._by_id[info.caller, info.subserver_id] = record

    def remove(self, record: Record) -> bool:
        """False: it was removed before."""
        info = record.info
        if self._by_segment.get(info.segment) is not record:
            return False
        del self._by_segment[info.segment], self._by_key[info.key]
        del self._by_id[info.caller, info.subserver_id]
        return True

    def below(self, *, but: Record | None = None) -> Iterator[str]:
        """The ids of the aggregators that are below now, through whomever they are."""
        for record in self._by_segment.values():
            if record.session is not None and record is not but:
                yield from record.info.subtree_ids
