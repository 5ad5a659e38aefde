"""The AQL component of a node.

It builds the stage, the built-in operations, quotas, executions, search and the safety loop, and
connects them. The node stops it after the last call has ended.
"""

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
from interlock.aql.builtin_operations import BuiltinUpstream, hidden_operation
from interlock.aql.code_channels import install_channels
from interlock.aql.config import AqlConfig
from interlock.aql.confirmation_tokens import (
    MAX_APPROVAL_SECONDS,
    MAX_QUOTA_APPROVAL_SECONDS,
    ConfirmationTokens,
    confirmation_operations,
)
from interlock.aql.decision_steps import (
    FIRM_FLOORS,
    FLOORS,
    CallLimitStep,
    DangerStep,
    journal_observer,
)
from interlock.aql.execution_operations import execution_operations
from interlock.aql.execution_store import ExecutionStore
from interlock.aql.execution_tasks import ExecutionTasks
from interlock.aql.executions import Executions
from interlock.aql.introspection import introspection_operations
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.limits import describe_limits
from interlock.aql.list_requests import ListResponder
from interlock.aql.notes import NOTES, Notes, note_operations
from interlock.aql.operations import BuiltinOperation, OperationCatalogBuilder, ServerTrust
from interlock.aql.preview import Preview
from interlock.aql.progress import ProgressStage
from interlock.aql.quotas import CONTINUE, TOKEN_PREFIX, Quotas, quota_operations
from interlock.aql.read_modify_write import ReadModifyWrite
from interlock.aql.relations import Relations, relation_operations
from interlock.aql.request import AqlRequest, AqlWarning
from interlock.aql.resource_operations import ResourceReader, resource_operations
from interlock.aql.response_writer import ResponseWriter
from interlock.aql.safety.approval_requests import UNBLOCK
from interlock.aql.safety.codes import VerificationCodes
from interlock.aql.safety.loop import SafetyLoop
from interlock.aql.safety.operations import autonomy_config, internal_operations, safety_operations
from interlock.aql.safety.operator_api import OperatorApi
from interlock.aql.safety.store import SafetyStore
from interlock.aql.search.embeddings import EmbeddingSearcher, create_searcher
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
from interlock.core.state.store import StateStore
from interlock.core.upstreams.supervisor import Supervisor
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import BUILTIN_KEY, RESERVED_OPERATIONS, OperationView
from interlock.trust.approvals.component import ApprovalsComponent
from interlock.trust.authorization import HELD, IN_VIEW, PLAIN, Authorizer, DecisionStep
from interlock.trust.node_context import NodeContext

_log = logging.getLogger("interlock.aql")

_MAINTENANCE_SECONDS: Final = 1.0
_SAVE_USAGE_SECONDS: Final = 60.0
_MAX_USAGE_EVENTS: Final = 10_000
"""Usage events that are buffered between two counts."""


class Aql(FeatureComponent):
    """The AQL component of a node."""

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
        state: StateStore,
        registered: Callable[[str], bool],
    ) -> None:
        """
        Args:
            registered: returns True for a server that registered itself and is not in the config.
        """
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
        self._catalog_builder = OperationCatalogBuilder(settings, on_break=self._on_breaking_change)
        self._search_store = SearchStore.open(folder / "aql-search.db")
        self.usage = Usage(self._search_store.tallies(), clock=time.time)
        self.server_trust = ServerTrust(
            settings.trust,
            registered=registered,
            wall_clock=time.time,
            # Danger depends on the trust in the server. The danger step is created below.
            on_change=lambda: self._risk.clear_cache(),
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
            hidden=lambda: self.builtin_upstream.hidden.get(CONTINUE),
            runs_when_approved=lambda token: _is_local_token(approving, token),
        )
        self._response_writer = ResponseWriter(
            settings,
            clock=time.monotonic,
            cursors=self._cursors,
            settings=self._catalog_builder.settings,
            tokens=self.tokens,
            quotas=self.quotas,
        )
        self._execution_store = ExecutionStore(
            folder / "aql-executions.db", deliver=loop.call_soon_threadsafe
        )
        self._notes = Notes(state.bucket(NOTES), time.time)
        self.searcher = create_searcher(
            lambda: self.stage.operation_catalog(),
            self.usage,
            settings.search.embeddings,
            self._search_store,
        )
        self.executions = Executions(
            pipeline,
            self._execution_store,
            operation_catalog=lambda: self.stage.operation_catalog(),
            wall_clock=time.time,
            settings=settings.executions,
            concurrent=settings.limits.concurrent,
            approval_state=_approval_state_reader(approving),
            prepare_retry=lambda call: self.stage.prepare_retry(call),
        )
        self._batches = BatchRunner(
            pipeline, settings, lambda name, operation_view: self.stage.find(name, operation_view)
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
        self._channels = install_channels(settings.channels, self.codes, environ, base_dir)
        self.builtin_upstream = BuiltinUpstream(
            self._builtin_operations(config),
            [
                hidden_operation(BATCH, self._batches.run, "Makes several calls."),
                hidden_operation(
                    PREVIEW, Preview(authorizer), "Describes a call without making it."
                ),
                hidden_operation(START, self._start, "Runs a call in the background."),
                hidden_operation(
                    MERGE, self._merge, "Reads a resource, merges a change, and writes it."
                ),
                *internal_operations(self.safety),
                *quota_operations(self.quotas),
            ],
            find=lambda name: self.stage.operation_catalog().find_builtin(name),
        )
        self._catalog_builder.configure(settings, self.builtin_upstream.builtin_operations.values())
        self._usage_events: deque[UsageEvent] = deque(maxlen=_MAX_USAGE_EVENTS)
        self.stage = AqlStage(
            settings,
            host=pipeline,
            catalog_builder=self._catalog_builder,
            catalog=catalog,
            builtin_upstream=self.builtin_upstream,
            authorizer=authorizer,
            listing=view.ViewListBuilder(server_info),
            response_writer=self._response_writer,
            choose_view=view.choose_view,
            tokens=self.tokens,
            quotas=self.quotas,
            get_absent_servers=lambda: {
                upstream.server.segment: upstream.state.value
                for key, upstream in upstreams.items()
                if isinstance(upstream, Supervisor) and catalog.offering(key) is None
            },
            on_used=self._usage_events.append,
        )
        self._maintenance_task: asyncio.Task[None] | None = None
        self._risk = DangerStep(
            self.stage.operation_catalog,
            self.server_trust,
            journal_observer(audit),
            self.server_trust.is_declared,
        )
        self._read_modify_write = ReadModifyWrite(pipeline, self.stage.find, self.tokens.check)
        tasks = pipeline.tasks
        tasks.install_finder(ExecutionTasks(self.executions, tasks.seal_id).find)
        upstreams[BUILTIN_KEY] = self.builtin_upstream
        authorizer.set_operation_rules(
            exempt=self.builtin_upstream.free, minimums=FLOORS, fixed=FIRM_FLOORS
        )
        self._danger = DecisionStep("danger", self._risk.__call__, previewed=True)
        authorizer.install(self._danger, self.safety.decision_step)
        approving.approvals.set_timeouts(self._approval_timeout)
        pipeline.install_operations(
            ProgressStage(self.stage, clock=time.monotonic, call_later=loop.call_later)
        )
        catalog.publish(self.builtin_upstream.offering())
        self._configure_steps(config)

    def _builtin_operations(self, config: Config) -> list[BuiltinOperation]:
        def listing() -> ListResponder:
            limits = self._settings.limits
            return ListResponder(self._cursors, limits.page, limits.max_page)

        relations = Relations(
            lambda: self.stage.operation_catalog(), self._authorizer, self.executions
        )
        operations = [
            *introspection_operations(
                self._catalog_builder,
                lambda: self.stage.operation_catalog(),
                self.searcher,
                view_of=lambda call: self._authorizer.view_of(call),
                protocol_info=self._protocol_info,
                reports={
                    "safety_policy": lambda _: autonomy_config(self._settings.safety),
                    "quota_status": self.quotas.status,
                },
                cursors=self._cursors,
                response_bytes=lambda: self._settings.limits.response_bytes,
                trust=self.server_trust,
                warn=_warn,
            ),
            *confirmation_operations(self.tokens),
            *execution_operations(self.executions, listing, time.time),
            *resource_operations(ResourceReader(self._pipeline), listing),
            *relation_operations(relations, listing),
            *safety_operations(self.safety),
        ]
        if config.section(AqlConfig).notes:
            operations += note_operations(self._notes, listing, time.time)
        if config.section(AqlConfig).safety_only:
            return [operation for operation in operations if operation.name in RESERVED_OPERATIONS]
        return operations

    def _protocol_info(self, request: AqlRequest) -> dict[str, Any]:
        return {
            "limits": describe_limits(self._settings.limits),
            "session_id": self._session_id(request.call),
            "profile": request.operation_view.profile,
            "execution_safety_loop": self._settings.safety.mode,
            "concurrency": "fully-concurrent",
            "supports_etag": True,
            "max_concurrent_requests": self._concurrent_calls,
        }

    def _session_id(self, call: Call | None) -> str:
        """Return the id of the session of a call. The id grants nothing: every call is
        authenticated.
        """
        if call is None:
            return ""
        id = getattr(call.session, "id", "")
        if id:
            session_key = f"{id}".encode()
        else:
            session_key = repr(principal(call.caller)).encode() if call.caller is not None else b""
        return "aql_" + hmac.new(self._session_key, session_key, "sha256").hexdigest()[:24]

    def _approval_timeout(self, call: Call, expiry: float) -> float:
        """Return how long an approval of the call may take.

        Args:
            expiry: the configured expiry of approvals.
        """
        route = call.route
        if call.upstream == BUILTIN_KEY:
            name = "" if route is None else route.upstream_name
            if name == UNBLOCK:
                return self._settings.safety.challenge
            return min(expiry, MAX_QUOTA_APPROVAL_SECONDS) if name == CONTINUE else expiry
        if call.view is None or not isinstance(route, Tool):
            return expiry
        danger = self.stage.operation_catalog().for_tool(route).danger
        return min(expiry, MAX_APPROVAL_SECONDS.get(danger, expiry))

    def _on_breaking_change(self, _: str, canonical: str, change: str) -> None:
        """Lower the trust in a server after an incompatible change of a tool."""
        tool = self._catalog.find(canonical)
        if tool is None:
            return
        server = tool.upstream
        previous_trust = self.server_trust(server)
        self.server_trust.demote(server, canonical, change)
        if self.server_trust(server) != previous_trust:
            detail = f"{canonical}: {change}"
            self._audit.record_change("trust", server, self.server_trust(server), detail)
            _log.warning("upstream %s: trust lowered from %s: %s", server, previous_trust, detail)

    async def _start(self, request: AqlRequest) -> Any:
        child = (request.params or {})["child"]
        return await self.executions.start(child, request)

    async def _merge(self, request: AqlRequest) -> Any:
        return await self._read_modify_write.run(request)

    def instructions(self, operation_view: OperationView) -> str | None:
        """Return the instructions of a view with operations. None: the view shows tools."""
        if operation_view.mode == "auto" and self.stage.shows_tools(operation_view):
            return None
        return view.instructions(operation_view)

    # -- lifecycle

    def restore_state(self) -> None:
        """Load the state of an earlier process, once, after the approvals are loaded."""
        if not self._started:
            self._started = True
            # In enforcing mode, blocks and used quotas must not be lost silently.
            safety = self._settings.safety.mode == "enforcing"
            _load_state("executions", self.executions.load, required=False)
            _load_state("quotas", self.quotas.start, required=self.quotas.active)
            _load_state("the safety loop", self.safety.load, required=safety)
            self._maintenance_task = asyncio.get_running_loop().create_task(
                self._maintain(), name="aql"
            )

    async def apply(self, old: Config, new: Config) -> None:
        config, settings = new, new.section(AqlConfig)
        self._settings = settings
        self._concurrent_calls = config.limits.concurrent_calls
        previous_channels = self._channels
        self._channels = install_channels(
            settings.channels, self.codes, self._environ, self._base_dir
        )
        for channel in previous_channels:
            self._closing.add(task := asyncio.ensure_future(channel.close()))
            task.add_done_callback(self._closing.discard)
        self._configure_steps(config)
        self._catalog_builder.configure(settings)
        self.stage.configure(settings)
        self._response_writer.configure(settings)
        self._batches.configure(settings)
        self.executions.configure(settings.executions, settings.limits.concurrent)
        self.safety.configure(settings.safety)

    def _configure_steps(self, config: Config) -> None:
        """Configure the decision steps, so that they run only for calls that they apply to."""
        settings = config.section(AqlConfig)
        self._risk.clear_cache()
        for problem in self.server_trust.configure(settings.trust):
            _log.warning("aql: %s", problem)
        self.quotas.configure(settings)
        # Pass the methods: calling an object costs more than calling its method.
        decide_danger = self._risk.__call__
        limit_step = CallLimitStep(
            self.stage.operation_catalog,
            self.quotas,
            decide_danger,
            danger_everywhere=bool(settings.trust)
            or any(
                settings_of_operation.danger is not None
                for settings_of_operation in settings.operations.values()
            ),
        )
        self._danger.decide = (
            limit_step.__call__ if limit_step.applies_everywhere else decide_danger
        )
        self._danger.applies_to = PLAIN if limit_step.applies_everywhere else HELD | IN_VIEW

    async def _maintain(self) -> None:
        """Do maintenance in the background: count usage, and build the search index before the
        first search.
        """
        number, last_save = -1, time.monotonic()
        while True:
            await asyncio.sleep(_MAINTENANCE_SECONDS)
            try:
                self._count_used()
                if len(self.safety.blocks):
                    self.safety.block_sync.start_if_due()
                if self._serves_operations or self.stage.in_use or self._has_vectors:
                    operation_catalog = self.stage.operation_catalog()
                    if operation_catalog.number != number:
                        number = operation_catalog.number
                        await asyncio.to_thread(self.searcher.prepare, operation_catalog)
                if self.usage.changed_keys and time.monotonic() - last_save > _SAVE_USAGE_SECONDS:
                    last_save = time.monotonic()
                    await asyncio.to_thread(self._search_store.save_usage, self.usage)
            except Exception:
                _log.exception("aql: maintenance of operation data failed")

    @property
    def _serves_operations(self) -> bool:
        """True if the config shows operations to any client."""
        settings = self._settings
        return settings.view != "plain" or bool(settings.clients) or settings.plain == "deny"

    @property
    def _has_vectors(self) -> bool:
        """True if embeddings are used. They take minutes to compute, and the first search should
        have them.
        """
        return isinstance(self.searcher, EmbeddingSearcher)

    def _count_used(self) -> None:
        # Most events are about a few tools. Adding up equal events first is ten times faster.
        counted = Counter(self._usage_events)
        self._usage_events.clear()
        for (tool, caller, succeeded), count in counted.items():
            self.usage.record(tool, caller, succeeded, count)

    async def stop(self) -> None:
        """Stop, and write the remaining state. No call is running any more."""
        if self._maintenance_task is not None:
            self._maintenance_task.cancel()
            await asyncio.gather(self._maintenance_task, return_exceptions=True)
        self._count_used()
        for channel in self._channels:
            await channel.close()
        await self.safety.block_sync.close()
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)

        def close() -> None:
            self._execution_store.close()
            self._counters.close()
            self._search_store.save_usage(self.usage)
            self.searcher.close()
            self._search_store.close()
            self.safety.close()

        await asyncio.get_running_loop().run_in_executor(None, close)


def _load_state(name: str, load: Callable[[], None], *, required: bool) -> None:
    """Load stored state. Raises InterlockError if the node cannot run without the state."""
    try:
        load()
    except InterlockError as error:
        if required:
            raise
        _log.error("aql: stored state of %s ignored: %s", name, error.message)


def _approval_state_reader(approving: ApprovalsComponent) -> Callable[[str], str]:
    """Return a function that returns the state of an approval by its id."""

    def state(id: str) -> str:
        record = approving.approvals.find(id)
        return "" if record is None else record.state

    return state


def _is_local_token(approving: ApprovalsComponent, token: str) -> bool:
    """Return whether a confirmation token belongs to an approval of this node."""
    record = approving.approvals.find(token.removeprefix(TOKEN_PREFIX))
    return record is not None and not record.at


def _warn(request: AqlRequest, code: str, message: str, details: dict[str, Any]) -> None:
    request.warnings = [*(request.warnings or ()), AqlWarning(code, message, details)]


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
        state=context.state,
        # Contracts of drivers are files of the operator.
        registered=lambda key: key != CONTRACTS and key not in context.current_config().servers,
    )
    context.server_info.about_operations = aql.instructions
    return aql
