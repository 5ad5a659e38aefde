"""Watches the contracts of upstreams' tools, in a thread of its own: what each is, what changed and
whom that breaks. What is new goes to the store of the node, and to the registry if there is one.

Only this thread writes what was seen. What somebody else wrote (`interlock contracts accept`) is
noticed within a second.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from interlock import __version__
from interlock.contracts.changed_tools import (
    ACCEPTED,
    ContractEvent,
    Dependents,
    change_records,
    in_words,
)
from interlock.contracts.registry.records import Contract, Deprecation, Provenance
from interlock.contracts.sightings import (
    ObservedTool,
    Sighting,
    SightingState,
    SightingStore,
    first_seen,
)
from interlock.core.catalog.offering import Offering, Tool
from interlock.core.catalog.tool_contracts import encode_contract
from interlock.errors import INVALID_PARAMS, PAYLOAD_TOO_LARGE, InterlockError, ProtocolError
from interlock.primitives.timestamps import format_utc
from interlock.protocol.jsonrpc import decode_members, decode_value

if TYPE_CHECKING:
    # Imported where something is to be compared or published, which is in the thread.
    from interlock.contracts.registry.changes import ContractSnapshot, SnapshotResult
    from interlock.contracts.registry.registry import ContractRegistry

LOOK_EVERY: Final = 1.0
GATHER: Final = 0.25
"""So long more upstreams are waited for: what comes up together is one commit."""
AUTHOR: Final = "interlock"
_AGAIN_AFTER: Final = 60.0
"""How long a registry that could not be written is left alone, unless something new comes."""
_MOST_AT_ONCE: Final = 2_000
_GENERATOR: Final = f"interlock {__version__}"
_log = logging.getLogger("interlock.node")


class DeclaredContract(Struct, frozen=True):
    """A contract that says its version itself, such as one of a TOOL.md."""

    name: str
    version: str
    document: bytes
    """A tool's definition, as JSON."""
    source: str


class BrokenTool(Struct, frozen=True):
    """A tool that broke, and whom that concerns."""

    sighting: Sighting
    breaks: Dependents


class WatchReport(Struct, frozen=True):
    """What was found out since the last one."""

    news: list[ContractEvent]
    states: dict[str, SightingState | None]
    """Tools that stand otherwise now. None: they are forgotten."""
    rows: dict[str, BrokenTool | None]
    """Tools that broke. None: they did not, or somebody accepted it."""
    ends: list[list[Deprecation]]
    """Which majors of contracts end, if that is other than before: the last one counts."""


WatchItem = Offering | DeclaredContract | threading.Event | Callable[[], None]


class ContractWatch:
    """The thread, and what others may ask of it."""

    def __init__(
        self,
        store: SightingStore,
        deliver: Callable[[Callable[[], None]], object],
        *,
        on_report: Callable[[WatchReport], None],
        breaks: Callable[[str], Dependents],
        every: float = LOOK_EVERY,
        gather: float = GATHER,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`deliver` runs something on the event loop, where `on_report` is told. `breaks` says who
        relies on a tool; it is asked in the thread."""
        self._store = store
        self._deliver = deliver
        self._on_report = on_report
        self._breaks = breaks
        self._every = every
        self._gather = gather
        self._clock = clock
        self._queue: SimpleQueue[WatchItem] = SimpleQueue()
        self._known = store.states()
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        for tool, state in self._known.items():
            self._names[state.upstream].add(tool)
        self._offered: dict[str, Offering] = {}
        self._last: dict[str, Offering] = {}
        self._declared: dict[str, DeclaredContract] = {}
        self._registry: ContractRegistry | None = None
        self._try_again = 0.0
        self._head: str | None = None
        """The commit of the registry that was looked at last."""
        self._looked: list[threading.Event] = []
        self._first = True
        self._closing = False
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """Why contracts cannot be written down now."""

    # -- on the event loop

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="interlock-contracts", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Write what is left, and stop. Waits for the disk."""
        self._closing = True
        self.look()
        if self._thread is not None:
            self._thread.join()
        else:
            self._turn()
        if self._registry is not None:
            self._registry.close()
        self._store.close()

    def saw(self, offering: Offering) -> None:
        """An upstream offers this now."""
        self._queue.put(offering)

    def declare(self, one: DeclaredContract) -> None:
        """Somebody wrote a contract with a version of its own."""
        self._queue.put(one)

    def publish_in(self, open: Callable[[], ContractRegistry] | None) -> None:
        """Where what is seen is published from now on. None: nowhere."""
        self._queue.put(lambda: self._open(open))

    def states(self) -> dict[str, SightingState]:
        """What was known when it was made, before it runs."""
        return dict(self._known)

    def accepted(self, tool: str) -> bytes | None:
        """What was accepted of a tool. None: nobody knows it, or it cannot be read now."""
        try:
            sighting = self._store.peek(tool)
        except InterlockError as error:
            _log.debug("%s", error.message)
            return None
        return None if sighting is None else sighting.accepted_definition

    def look(self) -> threading.Event:
        """Do what there is to do now. Set when it is done."""
        looked = threading.Event()
        self._queue.put(looked)
        return looked

    # -- in its own thread

    def _work(self) -> None:
        while not self._closing:
            with suppress(Empty):
                item = self._queue.get(timeout=self._every)
                self._take(item)
                until = time.monotonic() + self._gather
                while not self._looked and (left := until - time.monotonic()) > 0:
                    self._take(self._queue.get(timeout=left))
            self._turn()
        self._turn()

    def _take(self, item: WatchItem) -> None:
        if isinstance(item, Offering):
            self._offered[item.upstream] = item
        elif isinstance(item, DeclaredContract):
            self._declared[item.name] = item
        elif isinstance(item, threading.Event):
            self._looked.append(item)
        else:
            item()

    def _turn(self) -> None:
        while not self._queue.empty():
            self._take(self._queue.get())
        report = WatchReport([], {}, {}, [])
        try:
            self._begin(report)
            self._notice(report)
            self._judge_all(report)
            self._publish(report)
            self._look_for_ends(report)
            self.problem = None
        except InterlockError as error:
            if self.problem != error.message:
                _log.error("contracts are not written down now: %s", error.message)
            self.problem = error.message
        except Exception:
            # Whatever it is: the thread outlives it, or nobody would be told anything any more.
            _log.exception("watching the contracts of tools failed inside the node")
        if report.news or report.states or report.rows or report.ends:
            with suppress(RuntimeError):
                # A closed loop belongs to a node that has stopped.
                self._deliver(lambda: self._on_report(report))
        for looked in self._looked:
            looked.set()
        self._looked.clear()

    def _begin(self, report: WatchReport) -> None:
        if self._first:
            for one in self._store.open_ones():
                report.rows[one.tool] = BrokenTool(one, self._breaks(one.tool))
            self._first = False

    def _notice(self, report: WatchReport) -> None:
        """What somebody else accepted."""
        if not self._store.changed_elsewhere():
            return
        now = self._store.states()
        for tool in [*self._known.keys() | now.keys()]:
            before, after = self._known.get(tool), now.get(tool)
            if before == after:
                continue
            one = self._store.get(tool)
            report.states[tool] = after
            report.rows[tool] = None
            if one is None:
                continue
            if one.is_open:
                report.rows[tool] = BrokenTool(one, self._breaks(tool))
            elif before is not None and (before.digest, before.gone) == (one.digest, one.gone):
                report.news.append(ContractEvent(ACCEPTED, one, one.version))
        self._known = now
        for tool in report.states:
            if tool not in now:
                for names in self._names.values():
                    names.discard(tool)

    # -- what upstreams offer

    def _judge_all(self, report: WatchReport) -> None:
        offered, self._offered = self._offered, {}
        written: list[Sighting] = []
        now = self._clock()
        for offering in offered.values():
            for seen in self._seen(offering):
                before = self._store.get(seen.tool)
                if before is None:
                    written.append(first_seen(seen, now))
                    continue
                from interlock.contracts.change_review import judge

                after, news = judge(before, seen, now)
                written.append(after)
                self._tell(report, news)
            for before in self._missing(offering):
                from interlock.contracts.change_review import removed

                after, news = removed(before, now)
                written.append(after)
                self._tell(report, news)
            self._last[offering.upstream] = offering
        self._write(written, report)

    def _seen(self, offering: Offering) -> Iterable[ObservedTool]:
        """Tools that are not what they were."""
        last = self._last.get(offering.upstream)
        known = {} if last is None else {tool.canonical: tool for tool in last.tools}
        for tool in offering.tools:
            definition = b""
            if not tool.digest:
                old = known.get(tool.canonical)
                if old is not None and _reads_alike(old, tool):
                    tool.digest = old.digest
                else:
                    definition = encode_contract(tool)
                    tool.digest = hashlib.sha256(definition).hexdigest()
            state = self._known.get(tool.canonical)
            if state is None or state.gone or state.digest != tool.digest:
                yield ObservedTool(
                    tool.canonical,
                    offering.upstream,
                    tool.digest,
                    definition or encode_contract(tool),
                )

    def _missing(self, offering: Offering) -> Iterable[Sighting]:
        """Tools that an upstream offered, and does not any more; not those that the config hides or
        calls otherwise."""
        listed = {tool.canonical for tool in offering.tools}
        gone = [
            tool
            for tool in self._names[offering.upstream] - listed
            if tool in self._known and not self._known[tool].gone
        ]
        own_names = {tool.upstream_name for tool in offering.tools} if gone else set()
        for tool in gone:
            sighting = self._store.get(tool)
            if sighting is None or sighting.upstream != offering.upstream:
                continue
            own = _own_name(sighting)
            if own not in own_names and offering.allows_name(own):
                yield sighting

    def _tell(self, report: WatchReport, news: ContractEvent | None) -> None:
        if news is not None:
            report.news.append(news)

    def _write(self, written: Sequence[Sighting], report: WatchReport) -> None:
        if not written:
            return
        self._store.write(written)
        for one in written:
            self._known[one.tool] = report.states[one.tool] = one.state
            self._names[one.upstream].add(one.tool)
            report.rows[one.tool] = BrokenTool(one, self._breaks(one.tool)) if one.is_open else None

    # -- the registry

    def _open(self, open: Callable[[], ContractRegistry] | None) -> None:
        if self._registry is not None:
            self._registry.close()
            self._registry = None
        self._try_again = 0.0
        self._head = None
        if open is not None:
            try:
                registry = open()
                is_new = registry.metrics().head is None
                self._store.publishes_in(str(registry.folder), is_new=is_new)
                self._registry = registry
            except InterlockError as error:
                self.problem = error.message
                _log.error("contracts are not published: %s", error.message)

    def _publish(self, report: WatchReport) -> None:
        registry = self._registry
        fresh = bool(report.states or self._declared)
        if registry is None or not (fresh or self._clock() >= self._try_again) or self._closing:
            # What is left when the node stops is published when it starts again.
            return
        self._try_again = self._clock() + _AGAIN_AFTER
        from interlock.contracts.change_review import published

        while waiting := self._store.unpublished()[:_MOST_AT_ONCE]:
            written: list[Sighting] = []
            now = self._clock()
            for one, taken in self._snapshot(registry, waiting):
                if taken is None:
                    # Nobody could read it there either: it is not tried again.
                    written.append(msgspec.structs.replace(one, published=one.digest))
                    continue
                after, news = published(one, taken, now)
                written.append(after)
                self._tell(report, news)
            self._write(written, report)
        self._publish_declared(registry)
        self._try_again = float("inf")

    def _look_for_ends(self, report: WatchReport) -> None:
        """Which majors end: whoever deprecates one does it in the registry."""
        registry = self._registry
        if registry is None or self._closing:
            return
        head = registry.head()
        if head != self._head:
            self._head = head
            report.ends.append(registry.deprecations())

    def _snapshot(
        self, registry: ContractRegistry, waiting: Sequence[Sighting]
    ) -> list[tuple[Sighting, SnapshotResult | None]]:
        """All of them with one commit; None for one that cannot be published at all."""
        try:
            seen = [_snapshot(one) for one in waiting]
            return list(
                zip(waiting, registry.snapshot(seen, author=AUTHOR, reason=_reason), strict=True)
            )
        except InterlockError as error:
            if error.failure not in (INVALID_PARAMS, PAYLOAD_TOO_LARGE):
                raise
            if len(waiting) == 1:
                _log.warning("%s is not published: %s", waiting[0].tool, error.message)
                return [(waiting[0], None)]
        return [pair for one in waiting for pair in self._snapshot(registry, [one])]

    def _publish_declared(self, registry: ContractRegistry) -> None:
        contracts = [_contract(one, self._clock()) for one in self._declared.values()]
        if not contracts:
            return
        reason = f"Declared: {', '.join(f'{one.name} {one.version}' for one in contracts)}"
        self._declared.clear()
        try:
            registry.publish_all(contracts, author=AUTHOR, reason=reason[:200])
        except InterlockError:
            for one in contracts:
                try:
                    registry.publish(one, author=AUTHOR, reason=f"{one.name} {one.version}")
                except InterlockError as error:
                    _log.error("%s %s is not published: %s", one.name, one.version, error.message)


def _reads_alike(one: Tool, other: Tool) -> bool:
    return (
        bool(one.digest)
        and one.listed == other.listed
        and one.upstream_members == other.upstream_members
        and one.upstream_name == other.upstream_name
    )


def _own_name(one: Sighting) -> str:
    """What its upstream calls it."""
    try:
        return str(decode_value(decode_members(one.definition)["name"]))
    except (KeyError, ProtocolError):
        return ""


def _snapshot(one: Sighting) -> ContractSnapshot:
    from interlock.contracts.registry.changes import ContractSnapshot

    provenance = Provenance(f"upstream:{one.upstream}", _GENERATOR, format_utc(one.at))
    return ContractSnapshot(
        one.tool, f"upstream.{one.upstream}", "mcp-tool", one.definition, provenance
    )


def _contract(one: DeclaredContract, now: float) -> Contract:
    provenance = Provenance(one.source, _GENERATOR, format_utc(now))
    return Contract(one.name, one.version, "contract", "mcp-tool", one.document, provenance)


def _reason(taken: Sequence[SnapshotResult]) -> str:
    """Why there is a commit: what changed in the tools that it brings."""
    changed = [one for one in taken if one.before is not None]
    told = [
        f"{one.contract.name}: "
        f"{in_words(change_records(one.changes)) or 'no part of it that breaks'}"
        for one in changed
    ]
    new = [one.contract for one in taken if one.before is None]
    if new:
        sources = sorted({one.domain.removeprefix("upstream.") for one in new})
        whose = ", ".join(sources[:3]) + (" and others" if len(sources) > 3 else "")
        count = new[0].name if len(new) == 1 else f"{len(new)} tools of {whose}"
        told.append(f"First seen: {count}")
    reason = "; ".join(told)
    return reason if len(reason) <= 200 else f"{reason[:199]}…"
