"""The component of AQL in a node: builds the stage, the built-in operations, quotas, executions,
search and the safety loop, and connects them. It is stopped after the last call has ended."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from interlock.aql import view
from interlock.aql.batch import BatchRunner
from interlock.aql.builtin_operations import BuiltinUpstream, hidden
from interlock.aql.code_channels import channels_of
from interlock.aql.config import AqlConfig
from interlock.aql.confirmation_tokens import ConfirmationTokens, confirming_natives
from interlock.aql.decision_steps import FIRM_FLOORS, FLOORS, CallLimitStep, DangerStep, journalled
from interlock.aql.execution_operations import execution_natives
from interlock.aql.execution_store import ExecutionStore
from interlock.aql.execution_tasks import ExecutionTasks
from interlock.aql.executions import Executions
from interlock.aql.introspection import natives as introspection_natives
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.limits import published
from interlock.aql.list_requests import ListResponder
from interlock.aql.notes import Notes, NoteStore, note_natives
from interlock.aql.operations import BuiltinOperation, OperationCatalogBuilder, ServerTrust
from interlock.aql.preview import Preview
from interlock.aql.progress import ProgressStage
from interlock.aql.quotas import CONTINUE, TOKEN_PREFIX, Quotas, quota_natives
from interlock.aql.read_modify_write import ReadModifyWrite
from interlock.aql.relations import Relations, relation_natives
from interlock.aql.request import AqlRequest, AqlWarning
from interlock.aql.resource_operations import ResourceReader, reach_natives
from interlock.aql.response_writer import ResponseWriter
from interlock.aql.safety.approval_requests import UNBLOCK
from interlock.aql.safety.codes import VerificationCodes
from interlock.aql.safety.loop import SafetyLoop
from interlock.aql.safety.operations import autonomy_config, internal_natives, safety_natives
from interlock.aql.safety.operator_api import OperatorApi
from interlock.aql.safety.store import SafetyStore
from interlock.aql.search.embeddings import EmbeddingSearcher, searcher_for
from interlock.aql.search.store import SearchStore
from interlock.aql.search.usage import Usage
from interlock.aql.stage import BATCH, MERGE, PREVIEW, START, AqlStage, UsageEvent
from interlock.aql.usage_counters import CounterStore
from interlock.core.call import Call, principal
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import CONTRACTS, Tool
from interlock.core.config import Config
from interlock.core.feature import FeatureComponent
from interlock.core.journal.audit import Audit
from interlock.core.paths import make_private, state_dir
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.pipeline.request_state import StateSealer
from interlock.core.ports import Upstream
from interlock.core.upstreams.supervisor import Supervisor
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import BUILTIN_KEY, RESERVED_OPERATIONS, Danger, OperationView
from interlock.trust.approvals.component import ApprovalsComponent
from interlock.trust.authorization import HELD, IN_VIEW, PLAIN, Authorizer, DecisionStep
from interlock.trust.node_context import NodeContext

_log = logging.getLogger("interlock.aql")

_CHORES: Final = 1.0
_KEPT_EVERY: Final = 60.0
_MOST_USED: Final = 10_000
"""So many calls are remembered until they are counted."""
_BRIEFLY: Final = 120.0
"""So long a human is asked about what is forbidden otherwise."""


class Aql(FeatureComponent):
    """The operations of one node."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        server_info: bytes,
        catalog: Catalog,
        pipeline: Pipeline,
        authorizer: Authorizer,
        upstreams: dict[str, Upstream],
        approving: ApprovalsComponent,
        audit: Audit,
        seals: StateSealer,
        registered: Callable[[str], bool],
    ) -> None:
        """`registered`: whether a server came by itself, and not by the config."""
        loop = asyncio.get_running_loop()
        settings = config.section(AqlConfig)
        self._settings = settings
        self._concurrent_calls = config.limits.concurrent_calls
        self._started = False
        self._closing: set[asyncio.Future[None]] = set()
        self._pipeline = pipeline
        self._catalog = catalog
        self._audit = audit
        self._seals = seals
        folder = state_dir(config, environ, base_dir)
        make_private(folder)
        self._cursors = CursorCodec(seals.key_for(b"aql cursors"))
        self._session_key = seals.key_for(b"aql sessions")
        self._authorizer = authorizer
        self._catalog_builder = OperationCatalogBuilder(settings, on_break=self._broke)
        self._memory = SearchStore.at(folder / "aql-search.db")
        self.usage = Usage(self._memory.tallies(), clock=time.time)
        self.server_trust = ServerTrust(
            settings.trust,
            registered=registered,
            wall_clock=time.time,
            # Danger is decided with the trust in a server, and depends on it: made below.
            on_change=lambda: self._risk.forget(),
        )
        self.tokens = ConfirmationTokens(
            approving.approvals,
            audit,
            settings=self._catalog_builder.settings,
            clock=time.monotonic,
            wall_clock=time.time,
        )
        self._counters = CounterStore(folder / "aql-counters.db", deliver=loop.call_soon_threadsafe)
        self.quotas = Quotas(
            settings,
            self._counters,
            time.monotonic,
            time.time,
            hidden=lambda: self.own.hidden.get(CONTINUE),
            let_through=lambda token: _is_ours(approving, token),
        )
        self._response_writer = ResponseWriter(
            settings,
            clock=time.monotonic,
            cursors=self._cursors,
            settings=self._catalog_builder.settings,
            tokens=self.tokens,
            quotas=self.quotas,
        )
        self._executions_kept = ExecutionStore(
            folder / "aql-executions.db", deliver=loop.call_soon_threadsafe
        )
        self._notes_kept = NoteStore(folder / "aql-notes.db", deliver=loop.call_soon_threadsafe)
        self.searcher = searcher_for(
            lambda: self.stage.operation_catalog(),
            self.usage,
            settings.search.embeddings,
            self._memory,
        )
        self.executions = Executions(
            pipeline,
            self._executions_kept,
            operation_catalog=lambda: self.stage.operation_catalog(),
            wall_clock=time.time,
            settings=settings.executions,
            concurrent=settings.limits.concurrent,
            approval_state=_state_in(approving),
            again=lambda call: self.stage.again(call),
        )
        self._batches = BatchRunner(
            pipeline, settings, lambda name, face: self.stage.find(name, face)
        )
        self.codes = VerificationCodes()
        self.safety = SafetyLoop(
            settings.safety,
            store=SafetyStore(folder / "aql-safety.db"),
            codes=self.codes,
            approvals=approving.approvals,
            proofs=approving.proofs,
            audit=audit,
            find_tool=catalog.find,
            operation_catalog=lambda: self.stage.operation_catalog(),
            trust=self.server_trust,
            clock=time.monotonic,
            wall_clock=time.time,
        )
        approving.serve_codes(OperatorApi(self.safety))
        self._environ, self._base_dir = environ, base_dir
        self._channels = channels_of(settings.channels, self.codes, environ, base_dir)
        self.own = BuiltinUpstream(
            self._natives(config),
            [
                hidden(BATCH, self._batches.run, "Makes several calls."),
                hidden(PREVIEW, Preview(authorizer), "Looks at a call that is not made."),
                hidden(START, self._start, "Makes a call that goes on by itself."),
                hidden(MERGE, self._merge, "Reads, merges and writes."),
                *internal_natives(self.safety),
                *quota_natives(self.quotas),
            ],
            find=lambda name: self.stage.operation_catalog().own(name),
        )
        self._catalog_builder.configure(settings, self.own.natives.values())
        self._used: deque[UsageEvent] = deque(maxlen=_MOST_USED)
        self.stage = AqlStage(
            settings,
            host=pipeline,
            catalog_builder=self._catalog_builder,
            catalog=catalog,
            own=self.own,
            authorizer=authorizer,
            listing=view.ViewListBuilder(server_info),
            response_writer=self._response_writer,
            choose=view.choose,
            tokens=self.tokens,
            quotas=self.quotas,
            absent=lambda: {
                one.server.segment: one.state.value
                for key, one in upstreams.items()
                if isinstance(one, Supervisor) and catalog.offering(key) is None
            },
            used=self._used.append,
        )
        self._chores: asyncio.Task[None] | None = None
        self._risk = DangerStep(
            self.stage.operation_catalog,
            self.server_trust,
            journalled(audit),
            self.server_trust.is_declared,
        )
        self._read_modify_write = ReadModifyWrite(pipeline, self.stage.find, self.tokens.check)
        tasks = pipeline.tasks
        tasks.install_finder(ExecutionTasks(self.executions, tasks.seal_id).find)
        upstreams[BUILTIN_KEY] = self.own
        authorizer.judge_own_operations(free=self.own.free, floors=FLOORS, firm_floors=FIRM_FLOORS)
        self._danger = DecisionStep("danger", self._risk.__call__, previewed=True)
        authorizer.install(self._danger, self.safety.step)
        approving.approvals.set_wait_times(self._waits)
        pipeline.install_operations(
            ProgressStage(self.stage, clock=time.monotonic, call_later=loop.call_later)
        )
        catalog.publish(self.own.offering())
        self._use(config)

    def _natives(self, config: Config) -> list[BuiltinOperation]:
        def listing() -> ListResponder:
            limits = self._settings.limits
            return ListResponder(self._cursors, limits.page, limits.most_page)

        relations = Relations(
            lambda: self.stage.operation_catalog(), self._authorizer, self.executions
        )
        found = [
            *introspection_natives(
                self._catalog_builder,
                lambda: self.stage.operation_catalog(),
                self.searcher,
                view_of=lambda call: self._authorizer.view_of(call),
                protocol_info=self._about,
                reports={
                    "safety_policy": lambda _: autonomy_config(self._settings.safety),
                    "quota_status": self.quotas.status,
                },
                cursors=self._cursors,
                response_bytes=lambda: self._settings.limits.response_bytes,
                trust=self.server_trust,
                warn=_warn,
            ),
            *confirming_natives(self.tokens),
            *execution_natives(self.executions, listing, time.time),
            *reach_natives(ResourceReader(self._pipeline), listing),
            *relation_natives(relations, listing),
            *safety_natives(self.safety),
        ]
        if config.section(AqlConfig).notes:
            found += note_natives(Notes(self._notes_kept, time.time), listing, time.time)
        if config.section(AqlConfig).safety_only:
            return [one for one in found if one.name in RESERVED_OPERATIONS]
        return found

    def _about(self, asked: AqlRequest) -> dict[str, Any]:
        return {
            "limits": published(self._settings.limits),
            "session_id": self._session_of(asked.call),
            "profile": asked.face.profile,
            "execution_safety_loop": self._settings.safety.mode,
            "concurrency": "fully-concurrent",
            "supports_etag": True,
            "max_concurrent_requests": self._concurrent_calls,
        }

    def _session_of(self, call: Call | None) -> str:
        """By what a session is known. It opens nothing: who calls is asked every time."""
        if call is None:
            return ""
        id = getattr(call.session, "id", "")
        if id:
            said = f"{id}".encode()
        else:
            said = repr(principal(call.caller)).encode() if call.caller is not None else b""
        return "aql_" + hmac.new(self._session_key, said, "sha256").hexdigest()[:24]

    def _waits(self, call: Call) -> float | None:
        """For how long a human is asked about something that is out of the ordinary."""
        route = call.route
        if call.upstream == BUILTIN_KEY:
            unblocks = route is not None and route.upstream_name == UNBLOCK
            return self._settings.safety.challenge if unblocks else None
        if call.view is None or not isinstance(route, Tool):
            return None
        return (
            _BRIEFLY
            if self.stage.operation_catalog().of(route).danger is Danger.FORBIDDEN
            else None
        )

    def _broke(self, _: str, canonical: str, what: str) -> None:
        """A tool no longer takes what it took: its server is trusted less."""
        tool = self._catalog.find(canonical)
        if tool is None:
            return
        server = tool.upstream
        before = self.server_trust(server)
        self.server_trust.broke(server, canonical, what)
        if self.server_trust(server) != before:
            detail = f"{canonical}: {what}"
            self._audit.record_change("trust", server, self.server_trust(server), detail)
            _log.warning("'%s' is no longer %s: %s", server, before, detail)

    async def _start(self, asked: AqlRequest) -> Any:
        child = (asked.params or {})["child"]
        return await self.executions.start(child, asked)

    async def _merge(self, asked: AqlRequest) -> Any:
        return await self._read_modify_write.run(asked)

    def instructions(self, face: OperationView) -> str | None:
        """The instructions of a view that shows operations. None: it shows tools."""
        if face.mode == "auto" and self.stage.shows_tools(face):
            return None
        return view.instructions(face)

    # -- life

    def restore_state(self) -> None:
        """Take up what an earlier process left, once the approvals are loaded. Once, whoever
        begins."""
        if not self._started:
            self._started = True
            # Who is blocked or has used up a quota must not be guessed, where it matters.
            safety = self._settings.safety.mode == "enforcing"
            _taken_up("executions", self.executions.load, needed=False)
            _taken_up("quotas", self.quotas.start, needed=self.quotas.active)
            _taken_up("the safety loop", self.safety.load, needed=safety)
            self._chores = asyncio.get_running_loop().create_task(self._keep_up(), name="aql")

    async def apply(self, old: Config, new: Config) -> None:
        config, settings = new, new.section(AqlConfig)
        self._settings = settings
        self._concurrent_calls = config.limits.concurrent_calls
        previous = self._channels
        self._channels = channels_of(settings.channels, self.codes, self._environ, self._base_dir)
        for channel in previous:
            self._closing.add(task := asyncio.ensure_future(channel.close()))
            task.add_done_callback(self._closing.discard)
        self._use(config)
        self._catalog_builder.configure(settings)
        self.stage.configure(settings)
        self._response_writer.configure(settings)
        self._batches.configure(settings)
        self.executions.configure(settings.executions, settings.limits.concurrent)
        self.safety.configure(settings.safety)

    def _use(self, config: Config) -> None:
        """What the authorizer and the stage ask only where there is something to be asked."""
        settings = config.section(AqlConfig)
        self._risk.forget()
        for problem in self.server_trust.configure(settings.trust):
            _log.warning("%s", problem)
        self.quotas.configure(settings)
        # By their methods: to call an object costs more than to call a method of it.
        weigh = self._risk.__call__
        limit_step = CallLimitStep(
            self.stage.operation_catalog,
            self.quotas,
            weigh,
            danger_everywhere=bool(settings.trust)
            or any(one.danger is not None for one in settings.operations.values()),
        )
        self._danger.decide = limit_step.__call__ if limit_step.everywhere else weigh
        self._danger.applies_to = PLAIN if limit_step.everywhere else HELD | IN_VIEW

    async def _keep_up(self) -> None:
        """What need not be done while somebody waits: what was used is counted, and the index for
        searching is made before somebody searches."""
        number, kept = -1, time.monotonic()
        while True:
            await asyncio.sleep(_CHORES)
            try:
                self._count_used()
                if len(self.safety.blocks):
                    self.safety.block_sync.soon()
                if self._expected or self.stage.in_use or self._has_vectors:
                    operation_catalog = self.stage.operation_catalog()
                    if operation_catalog.number != number:
                        number = operation_catalog.number
                        await asyncio.to_thread(self.searcher.prepare, operation_catalog)
                if self.usage.changed and time.monotonic() - kept > _KEPT_EVERY:
                    kept = time.monotonic()
                    await asyncio.to_thread(self._memory.keep_usage, self.usage)
            except Exception:
                _log.exception("what is known about operations could not be brought up to date")

    @property
    def _expected(self) -> bool:
        """Whether the config has somebody see operations."""
        settings = self._settings
        return settings.view != "plain" or bool(settings.clients) or settings.plain == "deny"

    @property
    def _has_vectors(self) -> bool:
        """Whether vectors are made: they take minutes, and the first search should have them."""
        return isinstance(self.searcher, EmbeddingSearcher)

    def _count_used(self) -> None:
        # Most are of a few tools: alike ones are added up first, which costs a tenth.
        counted = Counter(self._used)
        self._used.clear()
        for (tool, caller, good), times in counted.items():
            self.usage.called(tool, caller, good, times)

    async def stop(self) -> None:
        """Write what is left, once no call is under way any more."""
        if self._chores is not None:
            self._chores.cancel()
            await asyncio.gather(self._chores, return_exceptions=True)
        self._count_used()
        for channel in self._channels:
            await channel.close()
        await self.safety.block_sync.close()
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)

        def close() -> None:
            self._executions_kept.close()
            self._notes_kept.close()
            self._counters.close()
            self._memory.keep_usage(self.usage)
            self.searcher.close()
            self._memory.close()
            self.safety.close()

        await asyncio.get_running_loop().run_in_executor(None, close)


def _taken_up(what: str, load: Callable[[], None], *, needed: bool) -> None:
    """Raises InterlockError where the node cannot do without."""
    try:
        load()
    except InterlockError as error:
        if needed:
            raise
        _log.error("what was kept of %s is not used: %s", what, error.message)


def _state_in(approving: ApprovalsComponent) -> Callable[[str], str]:
    """How an approval stands, by its id."""

    def state(id: str) -> str:
        found = approving.approvals.find(id)
        return "" if found is None else found.state

    return state


def _is_ours(approving: ApprovalsComponent, token: str) -> bool:
    """Whether a confirmation token is that of an approval which this node holds itself."""
    record = approving.approvals.find(token.removeprefix(TOKEN_PREFIX))
    return record is not None and not record.at


def _warn(asked: AqlRequest, code: str, message: str, details: dict[str, Any]) -> None:
    asked.warnings = [*(asked.warnings or ()), AqlWarning(code, message, details)]


def create(context: NodeContext) -> Aql:
    aql = Aql(
        context.config,
        environ=context.environ,
        base_dir=context.base_dir,
        server_info=context.node_info,
        catalog=context.catalog,
        pipeline=context.pipeline,
        authorizer=context.authorizer,
        upstreams=context.upstreams.upstreams,
        approving=context.approving,
        audit=context.audit,
        seals=context.seals,
        # Contracts of drivers are the operator's own files.
        registered=lambda key: key != CONTRACTS and key not in context.current_config().servers,
    )
    context.hello.about_operations = aql.instructions
    return aql
