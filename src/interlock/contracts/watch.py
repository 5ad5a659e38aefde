"""The watch of the contracts of upstream tools. In its own thread it compares each listed tool with
its record, stores changes, and publishes them in the registry if there is one.

Only this thread writes the records of observed tools. Changes by other processes
(`interlock contracts accept`) are noticed within a second.
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
    format_changes,
    make_change_records,
)
from interlock.contracts.registry.records import Contract, Deprecation, Provenance
from interlock.contracts.tool_records import (
    ObservedTool,
    ToolRecord,
    ToolRecordStore,
    ToolState,
    create_record,
)
from interlock.core.catalog.offering import Offering, Tool
from interlock.core.catalog.tool_contracts import encode_contract
from interlock.errors import INVALID_PARAMS, PAYLOAD_TOO_LARGE, InterlockError, ProtocolError
from interlock.primitives.timestamps import format_utc
from interlock.protocol.jsonrpc import decode_members, decode_value

if TYPE_CHECKING:
    # Imported only when something is compared or published, which happens in the thread.
    from interlock.contracts.registry.changes import ContractSnapshot, SnapshotResult
    from interlock.contracts.registry.registry import ContractRegistry

CHECK_INTERVAL_SECONDS: Final = 1.0
GATHER_SECONDS: Final = 0.25
"""The time to wait for more upstreams: upstreams that start together share one commit."""
AUTHOR: Final = "interlock"
_RETRY_SECONDS: Final = 60.0
"""The time to wait before a failed publication is retried, unless something new comes."""
_MAX_TOOLS_PER_COMMIT: Final = 2_000
_GENERATOR: Final = f"interlock {__version__}"
_log = logging.getLogger("interlock.node")


class DeclaredContract(Struct, frozen=True):
    """A contract that declares its own version, such as a contract of a TOOL.md."""

    name: str
    version: str
    document: bytes
    """The definition of a tool, as JSON."""
    source: str


class BrokenTool(Struct, frozen=True):
    """A tool with a breaking change, and who depends on it."""

    record: ToolRecord
    dependents: Dependents


class WatchReport(Struct, frozen=True):
    """The events and state changes since the previous report."""

    events: list[ContractEvent]
    states: dict[str, ToolState | None]
    """Tools whose state changed. None: the tool was deleted."""
    broken_tools: dict[str, BrokenTool | None]
    """Tools with a breaking change. None: the tool is not broken, or the change was accepted."""
    deprecations: list[list[Deprecation]]
    """The deprecated majors of the registry, if they changed: the last list counts."""


WatchItem = Offering | DeclaredContract | threading.Event | Callable[[], None]


class ContractWatch:
    """A thread that watches contracts, and its interface for other threads."""

    def __init__(
        self,
        store: ToolRecordStore,
        deliver: Callable[[Callable[[], None]], object],
        *,
        on_report: Callable[[WatchReport], None],
        find_dependents: Callable[[str], Dependents],
        check_interval: float = CHECK_INTERVAL_SECONDS,
        gather_seconds: float = GATHER_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the watch; `start` runs it.

        Args:
            deliver: runs a function on the event loop.
            on_report: receives each report, on the event loop.
            find_dependents: returns who depends on a tool; called in the thread.
        """
        self._store = store
        self._deliver = deliver
        self._on_report = on_report
        self._find_dependents = find_dependents
        self._check_interval = check_interval
        self._gather_seconds = gather_seconds
        self._clock = clock
        self._queue: SimpleQueue[WatchItem] = SimpleQueue()
        self._states = store.states()
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        for tool, state in self._states.items():
            self._names[state.upstream].add(tool)
        self._pending_offerings: dict[str, Offering] = {}
        self._previous_offerings: dict[str, Offering] = {}
        self._declared: dict[str, DeclaredContract] = {}
        self._registry: ContractRegistry | None = None
        self._retry_at = 0.0
        self._head: str | None = None
        """The newest commit of the registry whose deprecations were read."""
        self._done_events: list[threading.Event] = []
        self._is_first_run = True
        self._closing = False
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        """Why contracts cannot be stored or published now."""

    # -- on the event loop

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="interlock-contracts", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Process everything that is queued, and stop. Waits for the disk."""
        self._closing = True
        self.process_now()
        if self._thread is not None:
            self._thread.join()
        else:
            self._run_once()
        if self._registry is not None:
            self._registry.close()
        self._store.close()

    def observe(self, offering: Offering) -> None:
        """Queue what an upstream offers now."""
        self._queue.put(offering)

    def declare(self, declared: DeclaredContract) -> None:
        """Queue a contract that declares its own version."""
        self._queue.put(declared)

    def use_registry(self, open: Callable[[], ContractRegistry] | None) -> None:
        """Publish in this registry from now on. None: publish nowhere."""
        self._queue.put(lambda: self._open_registry(open))

    def states(self) -> dict[str, ToolState]:
        """Return the state of each tool at the creation of the watch. Call it before `start`."""
        return dict(self._states)

    def accepted_definition(self, tool: str) -> bytes | None:
        """Return the accepted definition of a tool. None: the tool is unknown, or its record
        cannot be read now."""
        try:
            record = self._store.peek(tool)
        except InterlockError as error:
            _log.debug("contracts: %s", error.message)
            return None
        return None if record is None else record.accepted_definition

    def process_now(self) -> threading.Event:
        """Process the queue now. The returned event is set when it is done."""
        done = threading.Event()
        self._queue.put(done)
        return done

    # -- in the thread of the watch

    def _run(self) -> None:
        while not self._closing:
            with suppress(Empty):
                item = self._queue.get(timeout=self._check_interval)
                self._handle_item(item)
                until = time.monotonic() + self._gather_seconds
                while not self._done_events and (remaining := until - time.monotonic()) > 0:
                    self._handle_item(self._queue.get(timeout=remaining))
            self._run_once()
        self._run_once()

    def _handle_item(self, item: WatchItem) -> None:
        if isinstance(item, Offering):
            self._pending_offerings[item.upstream] = item
        elif isinstance(item, DeclaredContract):
            self._declared[item.name] = item
        elif isinstance(item, threading.Event):
            self._done_events.append(item)
        else:
            item()

    def _run_once(self) -> None:
        while not self._queue.empty():
            self._handle_item(self._queue.get())
        report = WatchReport([], {}, {}, [])
        try:
            self._report_broken_tools(report)
            self._read_external_changes(report)
            self._review_offerings(report)
            self._publish_pending(report)
            self._read_deprecations(report)
            self.problem = None
        except InterlockError as error:
            if self.problem != error.message:
                _log.error("contracts: cannot store or publish changes: %s", error.message)
            self.problem = error.message
        except Exception:
            # Keep the thread alive after any error: without it, no change is ever reported.
            _log.exception("contracts: internal error of the watch")
        if report.events or report.states or report.broken_tools or report.deprecations:
            with suppress(RuntimeError):
                # The loop of a stopped node is closed.
                self._deliver(lambda: self._on_report(report))
        for done in self._done_events:
            done.set()
        self._done_events.clear()

    def _report_broken_tools(self, report: WatchReport) -> None:
        if self._is_first_run:
            for record in self._store.find_broken():
                report.broken_tools[record.tool] = BrokenTool(
                    record, self._find_dependents(record.tool)
                )
            self._is_first_run = False

    def _read_external_changes(self, report: WatchReport) -> None:
        """Read what another process accepted."""
        if not self._store.was_changed_externally():
            return
        states = self._store.states()
        for tool in [*self._states.keys() | states.keys()]:
            old_state, new_state = self._states.get(tool), states.get(tool)
            if old_state == new_state:
                continue
            record = self._store.get(tool)
            report.states[tool] = new_state
            report.broken_tools[tool] = None
            if record is None:
                continue
            if record.is_broken:
                report.broken_tools[tool] = BrokenTool(record, self._find_dependents(tool))
            elif old_state is not None and (old_state.digest, old_state.removed) == (
                record.digest,
                record.removed,
            ):
                report.events.append(ContractEvent(ACCEPTED, record, record.version))
        self._states = states
        for tool in report.states:
            if tool not in states:
                for names in self._names.values():
                    names.discard(tool)

    # -- offerings

    def _review_offerings(self, report: WatchReport) -> None:
        offerings, self._pending_offerings = self._pending_offerings, {}
        records: list[ToolRecord] = []
        now = self._clock()
        for offering in offerings.values():
            for observed in self._find_changed_tools(offering):
                record = self._store.get(observed.tool)
                if record is None:
                    records.append(create_record(observed, now))
                    continue
                from interlock.contracts.change_review import review_tool

                updated, event = review_tool(record, observed, now)
                records.append(updated)
                self._add_event(report, event)
            for record in self._find_removed_tools(offering):
                from interlock.contracts.change_review import record_removal

                updated, event = record_removal(record, now)
                records.append(updated)
                self._add_event(report, event)
            self._previous_offerings[offering.upstream] = offering
        self._store_records(records, report)

    def _find_changed_tools(self, offering: Offering) -> Iterable[ObservedTool]:
        """Yield the tools that are new or changed."""
        previous_offering = self._previous_offerings.get(offering.upstream)
        previous_tools = (
            {}
            if previous_offering is None
            else {tool.canonical: tool for tool in previous_offering.tools}
        )
        for tool in offering.tools:
            definition = b""
            if not tool.digest:
                previous = previous_tools.get(tool.canonical)
                if previous is not None and _are_equal_listings(previous, tool):
                    tool.digest = previous.digest
                else:
                    definition = encode_contract(tool)
                    tool.digest = hashlib.sha256(definition).hexdigest()
            state = self._states.get(tool.canonical)
            if state is None or state.removed or state.digest != tool.digest:
                yield ObservedTool(
                    tool.canonical,
                    offering.upstream,
                    tool.digest,
                    definition or encode_contract(tool),
                )

    def _find_removed_tools(self, offering: Offering) -> Iterable[ToolRecord]:
        """Yield the tools that an upstream no longer lists. Tools that the config hides or
        renames are not removed."""
        listed = {tool.canonical for tool in offering.tools}
        missing = [
            tool
            for tool in self._names[offering.upstream] - listed
            if tool in self._states and not self._states[tool].removed
        ]
        listed_names = {tool.upstream_name for tool in offering.tools} if missing else set()
        for tool in missing:
            record = self._store.get(tool)
            if record is None or record.upstream != offering.upstream:
                continue
            upstream_name = _upstream_tool_name(record)
            if upstream_name not in listed_names and offering.allows_name(upstream_name):
                yield record

    def _add_event(self, report: WatchReport, event: ContractEvent | None) -> None:
        if event is not None:
            report.events.append(event)

    def _store_records(self, records: Sequence[ToolRecord], report: WatchReport) -> None:
        if not records:
            return
        self._store.write(records)
        for record in records:
            self._states[record.tool] = report.states[record.tool] = record.state
            self._names[record.upstream].add(record.tool)
            report.broken_tools[record.tool] = (
                BrokenTool(record, self._find_dependents(record.tool)) if record.is_broken else None
            )

    # -- the registry

    def _open_registry(self, open: Callable[[], ContractRegistry] | None) -> None:
        if self._registry is not None:
            self._registry.close()
            self._registry = None
        self._retry_at = 0.0
        self._head = None
        if open is not None:
            try:
                registry = open()
                is_new = registry.metrics().head is None
                self._store.set_registry(str(registry.folder), is_new=is_new)
                self._registry = registry
            except InterlockError as error:
                self.problem = error.message
                _log.error("contracts: cannot use the registry: %s", error.message)

    def _publish_pending(self, report: WatchReport) -> None:
        registry = self._registry
        has_news = bool(report.states or self._declared)
        if registry is None or not (has_news or self._clock() >= self._retry_at) or self._closing:
            # Remaining contracts are published after the next start.
            return
        self._retry_at = self._clock() + _RETRY_SECONDS
        from interlock.contracts.change_review import record_publication

        while unpublished := self._store.find_unpublished()[:_MAX_TOOLS_PER_COMMIT]:
            records: list[ToolRecord] = []
            now = self._clock()
            for record, result in self._snapshot(registry, unpublished):
                if result is None:
                    # The registry rejects this contract: do not retry it.
                    records.append(msgspec.structs.replace(record, published=record.digest))
                    continue
                updated, event = record_publication(record, result, now)
                records.append(updated)
                self._add_event(report, event)
            self._store_records(records, report)
        self._publish_declared(registry)
        self._retry_at = float("inf")

    def _read_deprecations(self, report: WatchReport) -> None:
        """Read the deprecated majors of the registry if it has new commits."""
        registry = self._registry
        if registry is None or self._closing:
            return
        head = registry.head()
        if head != self._head:
            self._head = head
            report.deprecations.append(registry.deprecations())

    def _snapshot(
        self, registry: ContractRegistry, records: Sequence[ToolRecord]
    ) -> list[tuple[ToolRecord, SnapshotResult | None]]:
        """Publish the records in one commit. The result is None for a contract that cannot be
        published."""
        try:
            snapshots = [_snapshot(record) for record in records]
            return list(
                zip(
                    records,
                    registry.snapshot(snapshots, author=AUTHOR, reason=_reason),
                    strict=True,
                )
            )
        except InterlockError as error:
            if error.failure not in (INVALID_PARAMS, PAYLOAD_TOO_LARGE):
                raise
            if len(records) == 1:
                _log.warning("contract of %s: not published: %s", records[0].tool, error.message)
                return [(records[0], None)]
        return [pair for record in records for pair in self._snapshot(registry, [record])]

    def _publish_declared(self, registry: ContractRegistry) -> None:
        contracts = [_contract(declared, self._clock()) for declared in self._declared.values()]
        if not contracts:
            return
        declared_names = ", ".join(f"{contract.name} {contract.version}" for contract in contracts)
        reason = f"Declared: {declared_names}"
        self._declared.clear()
        try:
            registry.publish_all(contracts, author=AUTHOR, reason=reason[:200])
        except InterlockError:
            for contract in contracts:
                label = f"{contract.name} {contract.version}"
                try:
                    registry.publish(contract, author=AUTHOR, reason=label)
                except InterlockError as error:
                    _log.error("contract %s: not published: %s", label, error.message)


def _are_equal_listings(tool: Tool, other: Tool) -> bool:
    return (
        bool(tool.digest)
        and tool.listed == other.listed
        and tool.upstream_members == other.upstream_members
        and tool.upstream_name == other.upstream_name
    )


def _upstream_tool_name(record: ToolRecord) -> str:
    """Return the name that the upstream gives the tool."""
    try:
        return str(decode_value(decode_members(record.definition)["name"]))
    except (KeyError, ProtocolError):
        return ""


def _snapshot(record: ToolRecord) -> ContractSnapshot:
    from interlock.contracts.registry.changes import ContractSnapshot

    provenance = Provenance(f"upstream:{record.upstream}", _GENERATOR, format_utc(record.at))
    return ContractSnapshot(
        record.tool, f"upstream.{record.upstream}", "mcp-tool", record.definition, provenance
    )


def _contract(declared: DeclaredContract, now: float) -> Contract:
    provenance = Provenance(declared.source, _GENERATOR, format_utc(now))
    return Contract(
        declared.name, declared.version, "contract", "mcp-tool", declared.document, provenance
    )


def _reason(results: Sequence[SnapshotResult]) -> str:
    """Return the subject of a commit: what changed in its tools."""
    results_with_previous = [result for result in results if result.previous_version is not None]
    parts = [
        f"{result.contract.name}: "
        f"{format_changes(make_change_records(result.changes)) or 'no breaking part'}"
        for result in results_with_previous
    ]
    new = [result.contract for result in results if result.previous_version is None]
    if new:
        sources = sorted({contract.domain.removeprefix("upstream.") for contract in new})
        upstreams = ", ".join(sources[:3]) + (" and others" if len(sources) > 3 else "")
        count = new[0].name if len(new) == 1 else f"{len(new)} tools of {upstreams}"
        parts.append(f"First seen: {count}")
    reason = "; ".join(parts)
    return reason if len(reason) <= 200 else f"{reason[:199]}…"
