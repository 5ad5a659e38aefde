"""The contracts component of a node: the watch of upstream tools, the registry, and the hold on
tools with breaking changes.

A tool is held in the same way as a tool with a changed pin (`trust/pins.py`): it is in no list and
cannot be called until an operator accepts its new contract.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from interlock.contracts.change_review import find_dependents
from interlock.contracts.changed_tools import (
    ACCEPTED,
    BREAKING,
    COMPATIBLE,
    REMOVED,
    RESTORED,
    ContractEvent,
    ContractsStatus,
    Dependents,
    ToolChange,
    breaking_reasons,
    make_change_records,
    make_tool_change,
)
from interlock.contracts.config import ContractsConfig
from interlock.contracts.http_api import BASE, ContractsApp
from interlock.contracts.paths import registry_path, tool_records_path
from interlock.contracts.registry.records import Deprecation, parse_timestamp
from interlock.contracts.registry_service import RegistryService
from interlock.contracts.tool_records import ChangeRecord, ToolRecordStore, ToolState
from interlock.contracts.watch import BrokenTool, ContractWatch, DeclaredContract, WatchReport
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import CONTRACTS, Offering, Tool
from interlock.core.catalog.tool_contracts import contract_digest, encode_contract
from interlock.core.config import Config
from interlock.core.feature import FeatureComponent
from interlock.core.journal.audit import Audit
from interlock.core.paths import journal_path
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.resource_metadata import Challenges
from interlock.core.server.http.router import AppRoute, Route
from interlock.errors import InterlockError
from interlock.primitives.timestamps import format_utc
from interlock.protocol.aql_terms import BUILTIN_KEY
from interlock.trust.node_context import NodeContext
from interlock.trust.pins import HeldTool, Pins

if TYPE_CHECKING:
    from interlock.contracts.registry.registry import ContractRegistry

_LOCK_TIMEOUT_SECONDS: Final = 2.0
"""The time to wait for other processes that use the registry. What cannot be published now is
published later."""
_JOURNAL_METHOD: Final = "contracts"
"""The method of journal entries about contracts."""
_MAX_CHANGES: Final = 200
_MAX_LOG_LINES: Final = 10
"""The number of broken tools that get a log line each, when several break at once."""
_COMPATIBLE_CHANGE_SECONDS: Final = 86_400.0
"""The time for which the status shows a compatible change."""
_MAX_INLINE_BYTES: Final = 128 * 1024
"""Contracts up to this size are compared at once. A larger one is held until the watch has
compared it."""
_log = logging.getLogger("interlock.node")


class _AcceptAnything:
    """The validator of a held tool: it accepts all arguments, because the call is rejected
    anyway."""

    def is_valid(self, instance: Any) -> bool:
        return True


_ACCEPT_ANYTHING: Final = _AcceptAnything()


class HeldContract(HeldTool):
    """A tool that is held because its contract has a breaking change."""

    __slots__ = ("_classes",)

    def __init__(
        self, tool: str, accepted_digest: str, digest: str, changes: list[ChangeRecord]
    ) -> None:
        super().__init__(tool, accepted_digest, digest, b"", lambda: None)
        self._classes = breaking_reasons(changes)

    @property
    def changed_members(self) -> tuple[str, ...]:
        """The reasons of the breaking changes. They contain no text of the server, because a
        model may read them."""
        return self._classes

    @property
    def message(self) -> str:
        reasons = f" ({', '.join(self._classes)})" if self._classes else ""
        return (
            f"{self.tool} is held: its contract has a breaking change{reasons}. It cannot be "
            "called until an operator accepts the change. Show it: `interlock contracts status "
            f"{self.tool}`. Accept it: `interlock contracts accept {self.tool}`."
        )


class Contracts(FeatureComponent):
    """The contracts feature of a node."""

    def __init__(
        self,
        config: Config,
        *,
        base_dir: Path,
        environ: Mapping[str, str],
        catalog: Catalog,
        audit: Audit,
        pins: Pins,
        pipeline: Pipeline,
        guard: Guard,
        challenges: Challenges,
        find_drivers: Callable[[str], list[str]] = lambda _: [],
        unwatched_upstreams: Container[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the component.

        Args:
            find_drivers: returns the drivers whose contracts are bound to a tool; called in a
                thread.
            unwatched_upstreams: keys of upstreams whose tools declare their own versions
                (see `declare`).

        Raises:
            InterlockError: The store cannot be read.
        """
        self._config = config
        self._base_dir = base_dir
        self._environ = environ
        self._catalog = catalog
        self._audit = audit
        self._pins = pins
        self._pipeline = pipeline
        self._guard = guard
        self._challenges = challenges
        self._find_drivers = find_drivers
        self._unwatched_upstreams = unwatched_upstreams
        self._clock = clock
        self._is_started = False
        self._watch: ContractWatch | None = None
        self._states: dict[str, ToolState] = {}
        self._broken_tools: dict[str, BrokenTool] = {}
        self._compatible_changes: deque[ToolChange] = deque(maxlen=_MAX_CHANGES)
        self._deprecations: dict[str, Deprecation] = {}
        """Deprecated majors, by `name@major`."""
        self.on_deprecations: Callable[[], None] = lambda: None
        """Called when the deprecated majors of the registry changed."""
        self.extra_changes: Callable[[], list[ToolChange]] = list
        """Returns changes that another component detected. The status shows them first."""
        self._held_tools: dict[str, list[Tool]] = {}
        self._registry_service = RegistryService()
        pins.additional_review = self._review

    # -- lifecycle

    def start(self) -> None:
        """Start to watch, before upstreams offer tools. A second call does nothing. Raises
        InterlockError."""
        if not self._is_started:
            self._is_started = True
            self._registry_service.use_registry(self._registry_opener(self._config))
            if self._config.section(ContractsConfig).watch:
                self._start_watch(self._config)
                self._review_all()

    async def stop(self) -> None:
        watch, self._watch = self._watch, None
        loop = asyncio.get_running_loop()
        if watch is not None:
            await loop.run_in_executor(None, watch.close)
        await loop.run_in_executor(None, self._registry_service.close)

    async def apply(self, old: Config, new: Config) -> None:
        config = new
        previous, self._config = self._config, new
        settings, old_settings = config.section(ContractsConfig), previous.section(ContractsConfig)
        if settings == old_settings or not self._is_started:
            return
        if settings.registry != old_settings.registry:
            self._registry_service.use_registry(self._registry_opener(config))
            if self._watch is not None:
                self._watch.use_registry(self._registry_opener(config))
        if self._watch is None and settings.watch:
            self._start_watch(config)
        elif settings.watch and not old_settings.watch:
            self._watch_all()
        self._review_all()

    def _start_watch(self, config: Config) -> None:
        """Start the watch. Raises InterlockError for an existing store that cannot be read: its
        content must not be guessed."""
        path = tool_records_path(config, self._environ, self._base_dir)
        try:
            store = ToolRecordStore(path)
        except InterlockError as error:
            if path.exists() and path.stat().st_size:
                raise
            _log.warning(
                "contracts: %s The records of tools are in memory until the node stops.",
                error.message,
            )
            store = ToolRecordStore(None)
        self._watch = watch = ContractWatch(
            store,
            asyncio.get_running_loop().call_soon_threadsafe,
            on_report=self._on_report,
            find_dependents=self._find_dependents,
            clock=self._clock,
        )
        self._states = watch.states()
        watch.use_registry(self._registry_opener(config))
        watch.start()
        self._watch_all()

    def _watch_all(self) -> None:
        for offering in self._catalog.offerings:
            self._watch_offering(offering)

    def _registry_opener(self, config: Config) -> Callable[[], ContractRegistry] | None:
        path = registry_path(config, self._base_dir)
        if path is None:
            return None

        def open() -> ContractRegistry:
            from interlock.contracts.registry.registry import ContractRegistry

            return ContractRegistry(path, lock_timeout=_LOCK_TIMEOUT_SECONDS, clock=self._clock)

        return open

    # -- what upstreams offer

    def review(self, offering: Offering) -> frozenset[str]:
        """Review what an upstream is about to offer. Return the names of its held tools: their pin
        or their contract has changed.
        """
        return self._pins.review(offering) | self._review(offering)

    def _review(self, offering: Offering) -> frozenset[str]:
        """Return the tools that are held for a breaking change."""
        for tool in self._held_tools.pop(offering.upstream, ()):
            tool.validator = None
            if isinstance(self._pins.held_tools.get(tool), HeldContract):
                del self._pins.held_tools[tool]
        if offering is not self._catalog.offering(offering.upstream):
            self._watch_offering(offering)
        if not self._can_hold(offering):
            return frozenset()
        held_tools = [tool for tool in offering.tools if self._hold_tool(tool)]
        if held_tools:
            self._held_tools[offering.upstream] = held_tools
        return frozenset(tool.canonical for tool in held_tools)

    def _watch_offering(self, offering: Offering) -> None:
        if (
            self._watch is not None
            and self._config.section(ContractsConfig).watch
            and self._is_watched(offering)
        ):
            self._watch.observe(offering)

    def _is_watched(self, offering: Offering) -> bool:
        # Ignore the node's own tools, which change with the node, and the contracts of drivers,
        # which declare their versions.
        key = offering.upstream
        is_own = key in ("", BUILTIN_KEY) or key.startswith(CONTRACTS)
        return not is_own and key not in self._unwatched_upstreams

    def _can_hold(self, offering: Offering) -> bool:
        settings = self._config.section(ContractsConfig)
        return (
            self._watch is not None
            and settings.watch
            and settings.on_break == "hold"
            and self._is_watched(offering)
        )

    def _hold_tool(self, tool: Tool) -> bool:
        """Hold a tool if its contract differs from the accepted one and breaks callers."""
        state = self._states.get(tool.canonical)
        if state is None:
            return False
        digest = contract_digest(tool)
        if digest == state.accepted_digest:
            return False
        changes: list[ChangeRecord] = []
        broken_tool = self._broken_tools.get(tool.canonical)
        if broken_tool is not None and broken_tool.record.digest == digest:
            changes = broken_tool.record.changes
        elif digest != state.digest:
            breaking_changes = self._compare_now(tool)
            if breaking_changes is not None and not breaking_changes:
                return False
            changes = breaking_changes or []
        held_contract = HeldContract(tool.canonical, state.accepted_digest, digest, changes)
        # A tool that is already held for its pin stays held for the pin: one message is enough.
        self._pins.held_tools.setdefault(tool, held_contract)
        # A caller with the old arguments must learn that the tool is held, not that they are
        # invalid.
        tool.validator = _ACCEPT_ANYTHING
        return True

    def _compare_now(self, tool: Tool) -> list[ChangeRecord] | None:
        """Return the breaking changes of a definition that is not in the store yet.

        None: the definition is too large to compare here. The tool is held until the watch has
        compared it.
        """
        assert self._watch is not None
        definition = encode_contract(tool)
        accepted_body = (
            self._watch.accepted_definition(tool.canonical)
            if len(definition) <= _MAX_INLINE_BYTES
            else None
        )
        if accepted_body is None or len(accepted_body) > _MAX_INLINE_BYTES:
            return None
        from interlock.contracts.change_review import find_breaking_changes

        return make_change_records(find_breaking_changes(accepted_body, definition))

    def _review_all(self) -> None:
        for offering in self._catalog.offerings:
            if self._is_watched(offering):
                self._catalog.hide_tools(offering.upstream, self.review(offering))

    def declare(self, name: str, version: str, document: bytes, source: str) -> None:
        """Publish a contract that declares its own version.

        Args:
            document: the definition of a tool, as JSON.
            source: the file of the definition.
        """
        if self._watch is not None:
            self._watch.declare(DeclaredContract(name, version, document, source))

    @property
    def deprecations(self) -> Mapping[str, Deprecation]:
        """The deprecated majors of the registry, by `name@major`."""
        return self._deprecations

    # -- reports of the watch

    def _on_report(self, report: WatchReport) -> None:
        for tool, state in report.states.items():
            if state is None:
                self._states.pop(tool, None)
            else:
                self._states[tool] = state
        for tool, broken_tool in report.broken_tools.items():
            if broken_tool is None:
                self._broken_tools.pop(tool, None)
            else:
                self._broken_tools[tool] = broken_tool
        self._record_events(report.events)
        for deprecations in report.deprecations:
            self._deprecations = {f"{end.name}@{end.major}": end for end in deprecations}
            self.on_deprecations()
        if self._config.section(ContractsConfig).on_break == "hold":
            concerned = {state.upstream for state in report.states.values() if state is not None}
            concerned |= {
                broken_tool.record.upstream
                for broken_tool in report.broken_tools.values()
                if broken_tool is not None
            }
            has_deleted_tools = None in report.states.values()
            for offering in self._catalog.offerings:
                if has_deleted_tools or offering.upstream in concerned:
                    self._catalog.hide_tools(offering.upstream, self.review(offering))
            for event in report.events:
                if event.kind == BREAKING:
                    self._record_held(event.record.tool)

    def _record_events(self, events: list[ContractEvent]) -> None:
        breaking_events = [event for event in events if event.kind in (BREAKING, REMOVED)]
        for event in events:
            self._record_event(event)
        for event in breaking_events[:_MAX_LOG_LINES]:
            _log.warning(
                "contract of %s: breaking change: %s. Run `interlock contracts status` for "
                "details.",
                event.record.tool,
                event.detail,
            )
        if len(breaking_events) > _MAX_LOG_LINES:
            _log.warning(
                "contracts: %d more tools have breaking changes",
                len(breaking_events) - _MAX_LOG_LINES,
            )

    def _record_event(self, event: ContractEvent) -> None:
        record = event.record
        detail = record.accepted_by if event.kind == ACCEPTED else event.detail
        self._audit.record_change(_JOURNAL_METHOD, record.tool, event.kind, detail)
        if event.kind not in (BREAKING, REMOVED):
            _log.info("contract of %s: %s, %s", record.tool, event.kind, detail)
        if event.kind in (COMPATIBLE, RESTORED):
            changed_at = format_utc(record.at)
            self._compatible_changes.append(
                ToolChange(
                    record.tool, record.upstream, changed_at, event.old_version, record.version,
                    False, False, event.changes,
                )
            )  # fmt: skip

    def _record_held(self, tool: str) -> None:
        for held_tool in self._pins.held_tools.values():
            if held_tool.tool == tool and isinstance(held_tool, HeldContract):
                self._audit.record_held_tool(tool, held_tool.message)
                return

    def _find_dependents(self, tool: str) -> Dependents:
        """Return who depends on a tool. Called in the thread of the watch."""
        path = journal_path(self._config, self._environ, self._base_dir)
        return find_dependents(tool, self._config, path, self._find_drivers, self._clock())

    # -- status

    def status(self) -> ContractsStatus:
        return ContractsStatus([*self.extra_changes(), *self.changes()])

    def changes(self) -> list[ToolChange]:
        """Return changed tools: first unaccepted breaking changes, then recent
        compatible changes."""
        held = {
            held.tool for held in self._pins.held_tools.values() if isinstance(held, HeldContract)
        }
        broken = [
            make_tool_change(
                broken_tool.record, is_held=tool in held, dependents=broken_tool.dependents
            )
            for tool, broken_tool in sorted(self._broken_tools.items())
        ]
        earliest = self._clock() - _COMPATIBLE_CHANGE_SECONDS
        compatible = [
            change
            for change in self._compatible_changes
            if parse_timestamp(change.since) >= earliest
        ]
        return [*broken, *reversed(compatible)][:_MAX_CHANGES]

    def problems(self) -> list[str]:
        """Return current problems for the status of the node."""
        problem = None if self._watch is None else self._watch.problem
        return [] if problem is None else [problem]

    # -- routes

    def routes(self) -> Sequence[Route]:
        app = ContractsApp(
            self._registry_service,
            guard=self._guard,
            challenges=self._challenges,
            authenticate=lambda credentials: self._pipeline.admission.authenticate(credentials),
            on_rejection=self._pipeline.record_rejection,
            audit=self._audit,
            max_payload_bytes=lambda: self._config.limits.body_bytes,
        )
        return (AppRoute(BASE, app, is_available=self._is_served),)

    def _is_served(self) -> bool:
        return self._config.section(ContractsConfig).serve and self._registry_service.is_available


def create(context: NodeContext) -> Contracts:
    return Contracts(
        context.config,
        base_dir=context.base_dir,
        environ=context.environ,
        catalog=context.catalog,
        audit=context.audit,
        pins=context.pins,
        pipeline=context.pipeline,
        guard=context.guard,
        challenges=context.challenges,
        unwatched_upstreams=(CONTRACTS,),
    )
