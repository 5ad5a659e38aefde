"""All approvals that a node knows: what waits, what became of the others, and every step between.

A step is written down before anybody acts on it or hears of it. One record takes one step at a
time, so of two who decide at once exactly one does. Time is looked at twice: on the wall clock, by
which a record says when it expires, and on the clock that never goes back, so that a wall clock
that is set back gives nobody more time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, Final, Protocol

from interlock.core import crash_points as faults
from interlock.core.call import Call, Caller, ClientSession, Outcome
from interlock.core.config.trust import ApprovalsConfig
from interlock.core.ports import Clock, Recorder
from interlock.errors import TOO_BUSY, InterlockError
from interlock.trust.approvals.record import (
    APPROVED,
    DISPATCHING,
    EXPIRED,
    LOST,
    PENDING,
    VOID,
    Approval,
)

# -- What approvals ask of whoever keeps them. Only shapes here.


class Kept(Enum):
    """What became of a record that was to be written."""

    WRITTEN = "written"
    """It is on the disk, and stays there through a power cut."""
    TAKEN = "taken"
    """It was no longer in the state that it was thought to be in: nothing was written."""
    USED = "used"
    """The one-time token was used before: nothing was written."""
    FAILED = "failed"
    """It could not be written."""


class Keeper(Protocol):
    """A durable store of approvals. `write` and `forget` return at once."""

    def load(self) -> list[Approval]:
        """All that nobody else looks after, the oldest first. Waits. Raises InterlockError."""
        ...

    def write(
        self,
        approval: Approval,
        before: str | None,
        then: Callable[[Kept], None],
        *,
        token: tuple[str, str] | None = None,
    ) -> None:
        """Write a record whose last written state was `before` (None: it is new).

        `token`: an anchor and the id of its one-time token, used from now on and for good. `then`
        is told on the event loop.
        """

    def forget(self, ids: Iterable[str]) -> None:
        """Nobody asks for these any more."""

    def close(self) -> None:
        """Write what is left, and stop."""


FUTURE: Final = 5.0
"""So much may a wall clock be behind the one by which a record was made."""
MOST_WAITING: Final = 32 * 1024 * 1024
"""Bytes of arguments, exact and as they are shown, of all calls that wait together."""
MOST_WAITING_OF_ONE: Final = 4 * 1024 * 1024
"""The same of one caller."""
MOST_KEPT: Final = 64 * 1024 * 1024
"""Bytes of results, and of arguments as they are shown, of all calls that are over."""
MOST_KEPT_OF_ONE: Final = 16 * 1024 * 1024
"""The same of one caller."""
VERB: Final = "approval"
"""What its entries in the journal are about."""

_log = logging.getLogger("interlock.approvals")

Whose = tuple[str, str, str, str, int]
Told = Callable[["Outcome | None", "InterlockError | None"], None]


def size(record: Approval) -> int:
    """How many bytes of it there may be many of."""
    asked = len(record.arguments) + len(record.meta)
    return asked + len(record.shown) + len(record.meta_shown) + len(record.result)


def _trim(entries: list[Entry], most: int, newest: Approval | None) -> None:
    total = sum(size(one.record) for one in entries)
    if total <= most:
        return
    for one in sorted(entries, key=lambda one: (not one.record.collected, one.record.ended)):
        if one.record is not newest:
            before = size(one.record)
            one.record = one.record.without_bulk()
            total -= before - size(one.record)
            if total <= most:
                return


def whose(caller: Caller, digest: str, session: ClientSession | None = None) -> Whose:
    """By what the identical call of the same client is known. `session`: the client's, on the
    session protocol; several clients may be one caller."""
    asker = 0 if session is None else id(session)
    return caller.name, caller.kind, caller.above, digest, asker


class Entry:
    """A record, and what there is beside it for as long as the process lives."""

    __slots__ = (
        "asked_plainly",
        "asker",
        "call",
        "early",
        "heard_below",
        "live",
        "on_over",
        "on_written",
        "own",
        "record",
        "session",
        "timer",
        "told",
        "until",
        "url_offered",
        "waiters",
        "writing",
        "written",
        "wrong",
    )  # fmt: skip

    def __init__(self, record: Approval, written: str | None) -> None:
        self.record = record
        self.written = written
        """The state that is on disk. None: none is yet."""
        self.writing = False
        """A step is on its way to the disk."""
        self.until = 0.0
        """When it expires, on the clock that never goes back."""
        self.timer: Any = None
        self.session: ClientSession | None = None
        self.asker: ClientSession | None = None
        """The session whose repeated call is this one. None: calls without a session."""
        self.url_offered = False
        self.asked_plainly = written is not None
        """Whether its caller was told of it outside of a room, too, and comes for what it came to.
        Of one from before a restart nobody knows: it may."""
        self.told = False
        """Whether its caller was told the outcome. The record says so once that is written."""
        self.live = False
        """Whether somebody has just approved it, and it is about to be dispatched."""
        self.call: Call | None = None
        """The call that it is used for."""
        self.early: tuple[Outcome | None, InterlockError | None] | None = None
        self.heard_below: tuple[str, Outcome] | None = None
        """What a gate below (its approval's id) let through while it was being asked about."""
        self.on_written: list[Callable[[Kept], None]] = []
        self.waiters: list[Told] = []
        """The identical calls of its caller that wait for what becomes of it."""
        self.on_over: list[Told] = []
        """Those who confirmed it."""
        self.own = False
        """Whether its own caller brought the proof, and is told so."""
        self.wrong = 0
        """How many proofs of it did not count."""

    @property
    def only_proposed(self) -> bool:
        """Whether it came from a room alone, which is told what becomes of it: nobody else comes
        for that."""
        return self.record.proposal is not None and not self.asked_plainly


class Inbox:
    """Keeps the entries, and takes them from state to state."""

    def __init__(
        self,
        keeper: Keeper,
        *,
        settings: ApprovalsConfig,
        recorder: Recorder | None,
        clock: Clock,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        journals_digests: bool = True,
    ) -> None:
        """`journals_digests`: whether the journal has `args_sha256` of what is held."""
        self.settings = settings
        self._journals_digests = journals_digests
        self.seconds_of: Callable[[Call], float | None] = lambda _: None
        """For how long calls of some operations wait. None: as long as any other."""
        self.wall_clock = wall_clock
        self._keeper = keeper
        self._recorder = recorder
        self._clock = clock
        self._call_later = call_later
        self._entries: dict[str, Entry] = {}
        self._by_call: dict[Whose, Entry] = {}
        self._below: dict[str, str] = {}
        """From an approval of a node below to the one here whose call waits, or waited, for it."""
        self._watchers: list[Callable[[Approval], None]] = []
        self.on_ended: Callable[[Entry], None] = lambda _: None
        """Told when a record that nobody used for a call came to its end."""

    # -- what there is

    def expiry_of(self, call: Call) -> float:
        """For how many seconds a call waits for a human."""
        own = self.seconds_of(call)
        return self.settings.expiry if own is None else own

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, id: str) -> Entry | None:
        return self._entries.get(id)

    def named(self, id: str) -> Entry | None:
        """The approval of this id, or the one whose call waited for this approval of a node below:
        then its caller was told that id."""
        return self._entries.get(self._below.get(id, id))

    def waits_below(self, record: Approval) -> None:
        """The call of this approval waits for one of a node below, and its caller is told that."""
        if record.below not in self._entries:
            self._below[record.below] = record.id

    def of_call(self, caller: Caller, digest: str, asker: ClientSession | None) -> Entry | None:
        """The identical call of this client, if its outcome was not told yet."""
        return self._by_call.get(whose(caller, digest, asker))

    def watch(self, callback: Callable[[Approval], None]) -> Callable[[], None]:
        """Hear of every step of every record. Returns what ends that."""
        self._watchers.append(callback)

        def stop() -> None:
            if callback in self._watchers:
                self._watchers.remove(callback)

        return stop

    # -- life

    def load(self) -> None:
        """Take up what an earlier process left. Raises InterlockError when it cannot be read."""
        now = self.wall_clock()
        for record in self._keeper.load():
            entry = Entry(record, record.state)
            self._entries[record.id] = entry
            if record.below:
                self.waits_below(record)
            if record.over:
                self._keep(entry, record.ended + self.settings.keep - now)
                if not record.collected:
                    self.index(entry)
                continue
            self.index(entry)
            # What is left of its time, and never more than it had in all.
            left = min(record.expires - now, record.expires - record.created)
            entry.until = self._clock() + left
            if record.state == DISPATCHING:
                self.end(
                    entry,
                    LOST,
                    note="The node stopped while the call was under way. Whether it was executed "
                    "is not known: look before it is made again.",
                    outcome="lost",
                    # What it heard from a gate below before it asked there again is past.
                    result=b"",
                    below="",
                    below_until=0.0,
                )
            elif record.created > now + FUTURE:
                self.end(entry, VOID, note="It was made in the future: the clock was set back.")
            else:
                self._arm(entry)
        self._make_room()

    def close(self) -> None:
        """Write what is left. Not for the event loop: it waits. Timers that are still to come find
        a store that takes nothing any more."""
        self._keeper.close()

    # -- steps

    def add(
        self,
        record: Approval,
        session: ClientSession | None,
        asker: ClientSession | None = None,
    ) -> Entry:
        """Write a new one down. `asker`: the session that it is bound to. Raises InterlockError
        when too many wait already."""
        waiting = [one.record for one in self._entries.values() if one.record.waits]
        settings = self.settings
        if len(waiting) >= settings.most:
            raise InterlockError(TOO_BUSY, "Too many calls wait for an approval. Try again later.")
        if sum(map(size, waiting)) + size(record) > MOST_WAITING:
            raise InterlockError(TOO_BUSY, "What waits for an approval is too much. Try later.")
        own = [one for one in waiting if one.caller.name == record.caller.name]
        if (
            len(own) >= settings.most_per_caller
            or sum(map(size, own)) + size(record) > MOST_WAITING_OF_ONE
        ):
            raise InterlockError(
                TOO_BUSY,
                f"{len(own)} calls of {record.caller.name} wait for an approval already: wait "
                "until some are decided.",
            )
        entry = Entry(record, None)
        entry.session, entry.asker = session, asker
        entry.until = self._clock() + (record.expires - record.created)
        self._entries[record.id] = entry
        self.index(entry)
        faults.at("hold.begun")

        def then(kept: Kept) -> None:
            if kept is Kept.WRITTEN:
                faults.at("hold.written")
                self._arm(entry)
            else:
                self._drop(entry)
            told, entry.on_written = entry.on_written, []
            for tell in told:
                try:
                    tell(kept)
                except Exception:
                    _log.exception("who waited for approval %s could not be told", record.id)

        self.step(entry, record, then)
        return entry

    def step(
        self,
        entry: Entry,
        record: Approval,
        then: Callable[[Kept], None],
        *,
        token: tuple[str, str] | None = None,
    ) -> None:
        """Write a step, and take it once it is written. One at a time: see `Entry.writing`."""
        assert not entry.writing
        entry.writing = True
        before = entry.record
        new = entry.written is None

        def written(kept: Kept) -> None:
            entry.writing = False
            # An end that cannot be written is an end all the same: nothing of it is called again.
            if kept is Kept.WRITTEN or (kept is Kept.FAILED and record.over):
                entry.record = record
                if kept is Kept.WRITTEN:
                    entry.written = record.state
                if new or (record.state, record.below) != (before.state, before.below):
                    self._stepped(entry)
            then(kept)

        self._keeper.write(record, entry.written, written, token=token)

    def end(
        self,
        entry: Entry,
        state: str,
        then: Callable[[Kept], None] = lambda _: None,
        *,
        token: tuple[str, str] | None = None,
        **changes: Any,
    ) -> None:
        """Bring a record to its end without a call."""
        record = entry.record.step(state, ended=self.wall_clock(), **changes)

        def written(kept: Kept) -> None:
            if entry.record is record:
                try:
                    self.on_ended(entry)
                except Exception:
                    _log.exception("the end of approval %s could not be told", record.id)
            then(kept)

        self.step(entry, record, written, token=token)

    def collected(self, entry: Entry, then: Callable[[], None]) -> None:
        """Its caller is about to be told: once."""
        self.unindex(entry)
        entry.told = True
        if entry.writing or entry.record.collected:
            then()
            return
        faults.at("collect.begun")
        record = entry.record.step(entry.record.state, collected=True)

        def written(kept: Kept) -> None:
            faults.at("collect.written")
            then()

        self.step(entry, record, written)

    def expired(self, entry: Entry) -> bool:
        """Whether its time is over, by either clock."""
        now = self.wall_clock()
        record = entry.record
        return (
            now >= record.expires or self._clock() >= entry.until or now < record.created - FUTURE
        )

    def unindex(self, entry: Entry) -> None:
        """The next identical call is a new one."""
        key = whose(entry.record.caller, entry.record.digest, entry.asker)
        if self._by_call.get(key) is entry:
            del self._by_call[key]

    def note(self, record: Approval, word: str, detail: str = "") -> None:
        """Write an entry of the journal about it."""
        if self._recorder is None:
            return
        about = f"approval:{record.id}"
        self._recorder.record(
            (
                int(self.wall_clock() * 1e9),
                record.caller.name,
                record.face,
                VERB,
                record.tool,
                record.upstream,
                record.effect,
                word,
                0,
                f"{about} {detail}"[:500] if detail else about,
            )
        )

    # -- inside

    def _stepped(self, entry: Entry) -> None:
        record = entry.record
        word = "held" if record.state == PENDING else record.state
        detail = record.note
        if record.state == PENDING:
            detail = f"{record.action} by {record.rule}"
            if self._journals_digests:
                detail = f"args_sha256:{record.digest} {detail}"
        elif record.state == APPROVED:
            detail = f"by {record.by} ({record.proof})"
        elif record.over and record.outcome:
            detail = f"{record.outcome} {record.note}".rstrip()
        if record.over:
            if entry.timer is not None:
                entry.timer.cancel()
            self._keep(entry, self.settings.keep)
            self._make_room(record)
        if record.by and record.state != APPROVED:
            detail = f"{detail} (by {record.by})".lstrip()
        try:
            self.note(record, word, detail)
        except Exception:
            _log.exception("a step of approval %s could not be recorded", record.id)
        self.tell_watchers(record)

    def tell_watchers(self, record: Approval) -> None:
        for callback in list(self._watchers):
            try:
                callback(record)
            except Exception:
                _log.exception("somebody who watches approvals failed")

    def index(self, entry: Entry) -> None:
        entry.told = False
        self._by_call[whose(entry.record.caller, entry.record.digest, entry.asker)] = entry

    def _arm(self, entry: Entry) -> None:
        left = min(entry.until - self._clock(), entry.record.expires - self.wall_clock())
        entry.timer = self._call_later(max(0.0, left), lambda: self._time_is_up(entry))

    def _time_is_up(self, entry: Entry) -> None:
        entry.timer = None
        if entry.record.state not in (PENDING, APPROVED) or entry.call is not None:
            return
        if entry.writing:
            # Somebody decides this very moment: who was in time is in time.
            entry.timer = self._call_later(1.0, lambda: self._time_is_up(entry))
        elif self.expired(entry):
            self.expire(entry)
        else:
            self._arm(entry)

    def expire(self, entry: Entry) -> None:
        """Nobody answered in time."""
        waited = entry.record.state == PENDING
        note = "Nobody decided in time." if waited else "It was not made in time."
        self.end(entry, EXPIRED, note=f"{note} It was not executed.")

    def _keep(self, entry: Entry, seconds: float) -> None:
        entry.timer = self._call_later(max(0.0, seconds), lambda: self._forget(entry))

    def _make_room(self, newest: Approval | None = None) -> None:
        """Results are kept as long as there is room for them: who is over its share, or all
        together, loses the oldest first, and what was told before that. That it was executed is
        kept. `newest`: the one that just came to its end, which keeps its own."""
        over = [
            one
            for one in self._entries.values()
            if one.record.over and not one.record.below and not one.writing
        ]
        whose_are: dict[str, list[Entry]] = {}
        for one in over:
            if newest is None or one.record.caller.name == newest.caller.name:
                whose_are.setdefault(one.record.caller.name, []).append(one)
        for some in whose_are.values():
            _trim(some, MOST_KEPT_OF_ONE, newest)
        _trim(over, MOST_KEPT, newest)

    def _forget(self, entry: Entry) -> None:
        entry.timer = None
        if entry.writing or entry.call is not None:
            self._keep(entry, 1.0)
            return
        self._drop(entry)
        self._keeper.forget([entry.record.id])

    def _drop(self, entry: Entry) -> None:
        self._entries.pop(entry.record.id, None)
        for id in [below for below, own in self._below.items() if own == entry.record.id]:
            del self._below[id]
        self.unindex(entry)
