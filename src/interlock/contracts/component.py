"""The contracts of a node's tools, put together: what its upstreams list is watched, versioned,
published in the registry, and told or held when it breaks whoever relies on it.

A tool that is held is held as a pinned one is (`trust/pins.py`): in no list, and not to be
called, until somebody accepts what it is now.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from interlock.contracts.change_review import breaks_of
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
    change_records,
    classes,
    shown,
)
from interlock.contracts.config import ContractsConfig
from interlock.contracts.http_api import BASE, ContractsApp
from interlock.contracts.paths import registry_path, sightings_path
from interlock.contracts.registry.records import Deprecation, moment_of
from interlock.contracts.registry_service import RegistryService
from interlock.contracts.sightings import ChangeRecord, SightingState, SightingStore
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

_PATIENCE: Final = 2.0
"""How long others who use the registry are waited for: what is not published now is later."""
_WHAT: Final = "contracts"
"""The verb of journal entries about contracts."""
_MOST_ROWS: Final = 200
_MOST_LINES: Final = 10
"""So many tools that broke at once have a line of the log each."""
_SHOWN_FOR: Final = 86_400.0
"""How long a change that breaks nobody is shown."""
_SMALL: Final = 128 * 1024
"""A contract up to this size is compared at once; a larger one is held meanwhile."""
_log = logging.getLogger("interlock.node")


class _Unchecked:
    """Stands in for the schema of a tool that is held: it is not called whatever is sent."""

    def is_valid(self, instance: Any) -> bool:
        return True


_UNCHECKED: Final = _Unchecked()


class HeldContract(HeldTool):
    """A tool that is held because it would break its callers."""

    __slots__ = ("_classes",)

    def __init__(self, tool: str, accepted: str, digest: str, changes: list[ChangeRecord]) -> None:
        super().__init__(tool, accepted, digest, b"", lambda: None)
        self._classes = classes(changes)

    @property
    def changed(self) -> tuple[str, ...]:
        """The classes of what breaks, in no words of its server."""
        return self._classes

    @property
    def message(self) -> str:
        how = f" ({', '.join(self._classes)})" if self._classes else ""
        return (
            f"{self.tool} is held: its contract changed so that callers would break{how}. Nobody "
            f"can call it until somebody accepts the change: `interlock contracts status "
            f"{self.tool}` shows it, `interlock contracts accept {self.tool}` accepts it."
        )


class Contracts(FeatureComponent):
    """What a node does about contracts."""

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
        bound: Callable[[str], list[str]] = lambda _: [],
        unwatched: Container[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`bound`: which drivers' contracts lead to a tool; asked in a thread. `unwatched`: keys of
        upstreams whose tools say their versions themselves (see `declare`). Raises InterlockError
        for a store that cannot be read."""
        self._config = config
        self._base_dir = base_dir
        self._environ = environ
        self._catalog = catalog
        self._audit = audit
        self._pins = pins
        self._pipeline = pipeline
        self._guard = guard
        self._challenges = challenges
        self._bound = bound
        self._unwatched = unwatched
        self._clock = clock
        self._started = False
        self._watch: ContractWatch | None = None
        self._states: dict[str, SightingState] = {}
        self._rows: dict[str, BrokenTool] = {}
        self._recent: deque[ToolChange] = deque(maxlen=_MOST_ROWS)
        self._ends: dict[str, Deprecation] = {}
        """Majors that end, by `name@major`."""
        self.on_ends: Callable[[], None] = lambda: None
        """Told when somebody deprecated a major, or thought better of it."""
        self.also_changed: Callable[[], list[ToolChange]] = list
        """Changes that another component found out; shown first."""
        self._held_of: dict[str, list[Tool]] = {}
        self._registry_service = RegistryService()
        pins.beside = self._review

    # -- life

    def start(self) -> None:
        """Begin to watch, before upstreams offer anything. Once, whoever begins. Raises
        InterlockError."""
        if not self._started:
            self._started = True
            self._registry_service.look_into(self._opener(self._config))
            if self._config.section(ContractsConfig).watch:
                self._begin(self._config)
                self._review_all()

    async def stop(self) -> None:
        watch, self._watch = self._watch, None
        loop = asyncio.get_running_loop()
        if watch is not None:
            await loop.run_in_executor(None, watch.close)
        await loop.run_in_executor(None, self._registry_service.close)

    async def apply(self, old: Config, new: Config) -> None:
        config = new
        before, self._config = self._config, new
        now, then = config.section(ContractsConfig), before.section(ContractsConfig)
        if now == then or not self._started:
            return
        if now.registry != then.registry:
            self._registry_service.look_into(self._opener(config))
            if self._watch is not None:
                self._watch.publish_in(self._opener(config))
        if self._watch is None and now.watch:
            self._begin(config)
        elif now.watch and not then.watch:
            self._see_all()
        self._review_all()

    def _begin(self, config: Config) -> None:
        """Raises InterlockError for a store that cannot be read: what it says must not be
        guessed."""
        path = sightings_path(config, self._environ, self._base_dir)
        try:
            store = SightingStore(path)
        except InterlockError as error:
            if path.exists() and path.stat().st_size:
                raise
            _log.warning("%s What tools were is known until the node stops.", error.message)
            store = SightingStore(None)
        self._watch = watch = ContractWatch(
            store,
            asyncio.get_running_loop().call_soon_threadsafe,
            on_report=self._heard,
            breaks=self._breaks,
            clock=self._clock,
        )
        self._states = watch.states()
        watch.publish_in(self._opener(config))
        watch.start()
        self._see_all()

    def _see_all(self) -> None:
        for offering in self._catalog.offerings:
            self._saw(offering)

    def _opener(self, config: Config) -> Callable[[], ContractRegistry] | None:
        path = registry_path(config, self._base_dir)
        if path is None:
            return None

        def open() -> ContractRegistry:
            from interlock.contracts.registry.registry import ContractRegistry

            return ContractRegistry(path, patience=_PATIENCE, clock=self._clock)

        return open

    # -- what upstreams offer

    def review(self, offering: Offering) -> frozenset[str]:
        """Judge what an upstream is about to offer. The names of its tools that are held, for what
        they were pinned as, or for what they break."""
        return self._pins.review(offering) | self._review(offering)

    def _review(self, offering: Offering) -> frozenset[str]:
        """Those that are held for what they break."""
        for tool in self._held_of.pop(offering.upstream, ()):
            tool.validator = None
            if isinstance(self._pins.held.get(tool), HeldContract):
                del self._pins.held[tool]
        if offering is not self._catalog.offering(offering.upstream):
            self._saw(offering)
        if not self._holds(offering):
            return frozenset()
        held = [tool for tool in offering.tools if self._hold(tool)]
        if held:
            self._held_of[offering.upstream] = held
        return frozenset(tool.canonical for tool in held)

    def _saw(self, offering: Offering) -> None:
        if (
            self._watch is not None
            and self._config.section(ContractsConfig).watch
            and self._is_watched(offering)
        ):
            self._watch.saw(offering)

    def _is_watched(self, offering: Offering) -> bool:
        # The node's own tools change with the node, and contracts that drivers serve say their
        # versions themselves.
        key = offering.upstream
        own = key in ("", BUILTIN_KEY) or key.startswith(CONTRACTS)
        return not own and key not in self._unwatched

    def _holds(self, offering: Offering) -> bool:
        settings = self._config.section(ContractsConfig)
        return (
            self._watch is not None
            and settings.watch
            and settings.on_break == "hold"
            and self._is_watched(offering)
        )

    def _hold(self, tool: Tool) -> bool:
        """Hold it if it is not what was accepted, and breaks callers of that."""
        state = self._states.get(tool.canonical)
        if state is None:
            return False
        digest = contract_digest(tool)
        if digest == state.accepted_digest:
            return False
        changes: list[ChangeRecord] = []
        row = self._rows.get(tool.canonical)
        if row is not None and row.sighting.digest == digest:
            changes = row.sighting.changes
        elif digest != state.digest:
            found = self._broken_now(tool)
            if found is not None and not found:
                return False
            changes = found or []
        held = HeldContract(tool.canonical, state.accepted_digest, digest, changes)
        # One that is pinned besides is held for that, and it is said once.
        self._pins.held.setdefault(tool, held)
        # Who calls it as it was is to hear that it is held, not what it asks for now.
        tool.validator = _UNCHECKED
        return True

    def _broken_now(self, tool: Tool) -> list[ChangeRecord] | None:
        """What breaks in a contract that nobody has seen yet. None: that is looked at elsewhere,
        and until then it is held."""
        assert self._watch is not None
        now = encode_contract(tool)
        accepted = self._watch.accepted(tool.canonical) if len(now) <= _SMALL else None
        if accepted is None or len(accepted) > _SMALL:
            return None
        from interlock.contracts.change_review import broken_in

        return change_records(broken_in(accepted, now))

    def _review_all(self) -> None:
        for offering in self._catalog.offerings:
            if self._is_watched(offering):
                self._catalog.hide_tools(offering.upstream, self.review(offering))

    def declare(self, name: str, version: str, document: bytes, source: str) -> None:
        """A contract that says its version itself is published as it is: a tool's definition, as
        JSON, and where that was written."""
        if self._watch is not None:
            self._watch.declare(DeclaredContract(name, version, document, source))

    @property
    def deprecations(self) -> Mapping[str, Deprecation]:
        """The deprecated majors of the registry, by `name@major`."""
        return self._ends

    # -- what was found out

    def _heard(self, report: WatchReport) -> None:
        for tool, state in report.states.items():
            if state is None:
                self._states.pop(tool, None)
            else:
                self._states[tool] = state
        for tool, row in report.rows.items():
            if row is None:
                self._rows.pop(tool, None)
            else:
                self._rows[tool] = row
        self._tell_all(report.news)
        for ends in report.ends:
            self._ends = {f"{one.name}@{one.major}": one for one in ends}
            self.on_ends()
        if self._config.section(ContractsConfig).on_break == "hold":
            concerned = {one.upstream for one in report.states.values() if one is not None}
            concerned |= {row.sighting.upstream for row in report.rows.values() if row is not None}
            forgotten = None in report.states.values()
            for offering in self._catalog.offerings:
                if forgotten or offering.upstream in concerned:
                    self._catalog.hide_tools(offering.upstream, self.review(offering))
            for news in report.news:
                if news.word == BREAKING:
                    self._tell_held(news.sighting.tool)

    def _tell_all(self, news: list[ContractEvent]) -> None:
        broken = [one for one in news if one.word in (BREAKING, REMOVED)]
        for one in news:
            self._tell(one)
        for one in broken[:_MOST_LINES]:
            _log.warning(
                "%s changed so that its callers break: %s; `interlock contracts status` says more",
                one.sighting.tool,
                one.detail,
            )
        if len(broken) > _MOST_LINES:
            _log.warning("and %d more tools broke", len(broken) - _MOST_LINES)

    def _tell(self, news: ContractEvent) -> None:
        one = news.sighting
        detail = one.accepted_by if news.word == ACCEPTED else news.detail
        self._audit.record_change(_WHAT, one.tool, news.word, detail)
        if news.word not in (BREAKING, REMOVED):
            _log.info("the contract of %s: %s, %s", one.tool, news.word, detail)
        if news.word in (COMPATIBLE, RESTORED):
            since = format_utc(one.at)
            self._recent.append(
                ToolChange(
                    one.tool, one.upstream, since, news.before, one.version, False, False,
                    news.changes,
                )
            )  # fmt: skip

    def _tell_held(self, tool: str) -> None:
        for held in self._pins.held.values():
            if held.tool == tool and isinstance(held, HeldContract):
                self._audit.record_held(tool, held.message)
                return

    def _breaks(self, tool: str) -> Dependents:
        """In the thread of the watch."""
        path = journal_path(self._config, self._environ, self._base_dir)
        return breaks_of(tool, self._config, path, self._bound, self._clock())

    # -- how it fares

    def status(self) -> ContractsStatus:
        return ContractsStatus([*self.also_changed(), *self.changes()])

    def changes(self) -> list[ToolChange]:
        """Tools that are not what they were: first what breaks, until somebody accepts it, then
        what changed lately and breaks nobody."""
        held = {held.tool for held in self._pins.held.values() if isinstance(held, HeldContract)}
        rows = [
            shown(row.sighting, held=tool in held, breaks=row.breaks)
            for tool, row in sorted(self._rows.items())
        ]
        fresh = self._clock() - _SHOWN_FOR
        others = [one for one in self._recent if moment_of(one.since) >= fresh]
        return [*rows, *reversed(others)][:_MOST_ROWS]

    def problems(self) -> list[str]:
        """What is wrong now, for whoever asks how the node fares."""
        problem = None if self._watch is None else self._watch.problem
        return [] if problem is None else [problem]

    # -- its paths

    def routes(self) -> Sequence[Route]:
        app = ContractsApp(
            self._registry_service,
            guard=self._guard,
            challenges=self._challenges,
            authenticate=lambda credentials: self._pipeline.admission.authenticate(credentials),
            refused=self._pipeline.record_rejection,
            audit=self._audit,
            most_bytes=lambda: self._config.limits.body_bytes,
        )
        return (AppRoute(BASE, app, is_there=self._is_served),)

    def _is_served(self) -> bool:
        return self._config.section(ContractsConfig).serve and self._registry_service.is_there


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
        unwatched=(CONTRACTS,),
    )
