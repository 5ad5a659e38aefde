"""The pipeline: the fixed order in which every call is treated, on one screen.

    audit( authenticate → aql → route check → resolve
           → screen( scopes → what is always denied ) → validate
           → authorize( pins → policy → danger → safety loop → budget )
           → approval → journal → deadline → breaker → dispatch → measure → settle budget → aql )

Listing, reading and subscribing go through the same authentication, policy and audit as calling:
there is no side door. A call that changes something is on disk before it leaves.

A call goes out in `begin` and comes back in `settled`, each one straight line without a wait: what
lies between them is the upstream's time. So a call costs no task and no trip through the event
loop. `over` is the audit: it is passed exactly once, on every way out. What an upstream says or
asks on the way comes in by `heard` and `asked`; `client_input.py` bridges the two eras there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import trunc
from typing import Any, Final

from msgspec import Raw

from interlock.core import crash_points as faults
from interlock.core.call import (
    Call,
    Caller,
    ClientRequest,
    ClientSession,
    HiddenToolError,
    Outcome,
    RelayedError,
    Route,
    UpstreamLostError,
    UpstreamResponseError,
)
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.effects import EffectLevel
from interlock.core.deferred_request import DeferredRequest
from interlock.core.journal.audit import COLLECTED, OK, TOOL_ERROR, Audit
from interlock.core.pipeline.admission import Admission
from interlock.core.pipeline.authentication import Authenticator, PendingIdentity
from interlock.core.pipeline.breaker import Breakers
from interlock.core.pipeline.busy_poll import BusyPoll
from interlock.core.pipeline.client_input import INPUT_SECONDS, ClientInput
from interlock.core.pipeline.client_requests import (
    ALLOW_ALL,
    ClientRequestFilter,
    ClientRequestPolicy,
)
from interlock.core.pipeline.deadlines import (
    PROGRESS_EXTENSION_FACTOR,
    DeadlineWatch,
    set_deadline,
    timeout_of,
)
from interlock.core.pipeline.internal_error import internal_error
from interlock.core.pipeline.latency import add_latency
from interlock.core.pipeline.local_methods import LocalMethods
from interlock.core.pipeline.notification_filter import is_wanted
from interlock.core.pipeline.observers import CallObserver, ObserverMethods, notify
from interlock.core.pipeline.request_state import KEY_BYTES, StateSealer
from interlock.core.pipeline.resolution import is_passed_on, resolve_method, resolve_tool
from interlock.core.pipeline.result_uris import rewrite_uris
from interlock.core.pipeline.subscriptions import ResourceSubscriptions
from interlock.core.pipeline.transparent_mode import (
    is_listing_outdated,
    resolve_transparently,
    route_transparently,
)
from interlock.core.pipeline.validation import validate_arguments
from interlock.core.ports import (
    Authorizer,
    Clock,
    Gate,
    OperationMatch,
    OperationsStage,
    ResponseHandler,
    RouteCheck,
    Upstream,
    UpstreamRequest,
)
from interlock.errors import (
    CANCELLED,
    CONFIRMATION_REQUIRED,
    DEADLINE_EXCEEDED,
    SHUTTING_DOWN,
    UNKNOWN_TOOL,
    UNRECORDABLE,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.protocol.mcp import (
    COMPLETE,
    INPUT_REQUIRED,
    META_TIMEOUT,
    TASK_CHANGED,
    TASK_METHODS,
    TOOLS_CALL,
)
from interlock.protocol.mcpax import CONFIRM

READ_ONLY: Final = EffectLevel.READ_ONLY.word

# -- A call for those who can wait for it: a future stands between the pipeline and them.


async def run_call(
    call: Call, begin: Callable[[Call], None], cancel: Callable[[Call], None]
) -> Outcome:
    """Begin the call and wait until it is over. Raises InterlockError, and nothing else."""
    over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        if over.done():
            return
        if error is not None:
            over.set_exception(error)
        elif outcome is not None:
            over.set_result(outcome)

    call.on_done = done
    begin(call)
    try:
        return await over
    except asyncio.CancelledError:
        cancel(call)
        raise


# -- Send it once more, when its upstream went away and that does no harm.

RECONNECT_WAIT_SECONDS: Final = 5.0
"""How long a call waits for a lost upstream to come back before it is failed."""

_log = logging.getLogger("interlock.pipeline")


class Dispatcher:
    """Hands calls to upstreams that come back."""

    def __init__(self, clock: Clock, on_dispatched: Callable[[Call], None]) -> None:
        """`on_dispatched`: told of a call that is about to be sent again."""
        self._clock = clock
        self._on_dispatched = on_dispatched
        self._waiting: set[asyncio.Task[None]] = set()

    def may_send_again(self, call: Call, gone: UpstreamLostError) -> bool:
        """Whether a call whose upstream went away may be sent once more.

        It may when it never left, or when doing it twice is doing it once; and then only once.
        """
        if call.is_retry or (gone.was_sent and not call.is_retryable):
            return False
        call.is_retry = True
        return True

    def send_again(
        self, call: Call, upstream: Upstream, gone: UpstreamLostError, back: ResponseHandler
    ) -> None:
        """Wait for the upstream to come back, and send the call then; else it failed as it did."""
        waiting = DeferredRequest(call, back, gone, partial(self._wait_and_send, upstream, gone))
        call.upstream_request = waiting
        task = waiting.task
        assert task is not None
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _wait_and_send(
        self, upstream: Upstream, gone: UpstreamLostError, call: Call, back: ResponseHandler
    ) -> UpstreamRequest:
        try:
            patience = min(RECONNECT_WAIT_SECONDS, call.deadline - self._clock())
            if patience <= 0 or not await upstream.wait_until_ready(patience):
                raise gone
            self._on_dispatched(call)
            return upstream.start(call, back)
        except InterlockError:
            raise
        except Exception:
            _log.exception("%s could not be sent again", call.upstream)
            raise gone from None


class Pipeline:
    """Takes calls from faces, and tells `call.on_done` what became of each."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        authenticate: Authenticator,
        recall: Callable[[Caller], Caller | None] = lambda caller: caller,
        authorizer: Authorizer,
        breakers: Breakers,
        upstreams: Mapping[str, Upstream],
        audit: Audit,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
        call_soon: Callable[[Callable[[], None]], Any] | None = None,
        names: str,
        timeout: float,
        concurrent_calls: int,
        ask_policy: Callable[[str], ClientRequestPolicy] = lambda _: ALLOW_ALL,
        seals: StateSealer | None = None,
        input_seconds: float = INPUT_SECONDS,
        wall_clock: Callable[[], float] = time.time,
        route_check: RouteCheck | None = None,
        observers: Iterable[CallObserver] = (),
        latency_in_results: bool = False,
        read_tools: Callable[[str, Callable[[], None]], bool] = lambda *_: False,
    ) -> None:
        """Args:
        recall: the caller of an approved call, with its rights of now. None: it has none any more.
        authorizer: decides about every call.
        route_check: checks the way of calls that a parent sent. None: there is no tree.
        observers: hear of every call, after the journal.
        call_soon: given where the node may poll for the response of a single call.
        latency_in_results: whether results say how long they took.
        read_tools: lists the tools of an upstream again; see `ListReader.read_tools`.
        """
        self._catalog = catalog
        self._breakers = breakers
        self._failing = breakers.failing
        self._upstreams = upstreams
        self._dispatcher = Dispatcher(clock, self._again_dispatched)
        self._audit = audit
        self._clock = clock
        self._timeout = timeout
        self._last_limit: tuple[Route | None, float | None, float, float] = (None, None, 0.0, 0.0)
        self.route_check = route_check
        """Set by the tree, before the node accepts callers."""
        self.authorizer = authorizer
        self._gate: Gate | None = None
        self._latency_in_results = latency_in_results
        self._read_tools = read_tools
        self._on = ObserverMethods((audit, *observers))
        self._under_way: dict[Call, None] = {}
        self._wakeful = None if call_soon is None else BusyPoll(self._under_way, clock, call_soon)
        self.operations: OperationsStage | None = None
        """What makes calls of operations, for clients that see those. None: no client does."""
        self.enter = Admission(
            authenticate=authenticate,
            audit=audit,
            under_way=self._under_way,
            concurrent_calls=concurrent_calls,
            recall=recall,
        )
        self.admit, self.refused = self.enter.admit, self.enter.refused
        self._empty: asyncio.Future[None] | None = None
        self._deadlines = DeadlineWatch(self.under_way, clock, call_later)
        self.subscriptions = ResourceSubscriptions(
            catalog, upstreams, permitted=authorizer.authorize_method
        )
        self._input = ClientInput(
            self,
            questions=ClientRequestFilter(ask_policy, audit, clock),
            seals=seals or StateSealer(os.urandom(KEY_BYTES), wall_clock),
            clock=clock,
            wall_clock=wall_clock,
            call_later=call_later,
            seconds=input_seconds,
        )
        self.tasks = self._input.tasks
        self._here = LocalMethods(
            catalog=catalog,
            upstreams=upstreams,
            subscriptions=self.subscriptions,
            over=self.finish,
            names=names,
            view_of=lambda call: authorizer.view_of(call),
        )
        self.transparent: str | None = None
        """The one upstream that is shown as itself, when there is one."""

    def install_gate(self, gate: Gate, confirm: Callable[[Call], None]) -> None:
        """Install the stage in which calls wait for an operator. Called once, at the start.

        Args:
            gate: sends approved calls through this pipeline again, so it is made after it.
            confirm: takes the proof that an operator approved a call.
        """
        self._gate = gate
        gate.host = self
        self._here.verbs[CONFIRM] = confirm

    def install_operations(self, stage: OperationsStage) -> None:
        """Install the stage of calls in a view. Called once, before the first call."""
        self.operations = stage

    # -- out

    def begin(self, call: Call, again: bool = False, listed_again: bool = False) -> None:
        """Send a call on its way. It may be over when this returns. Never raises.

        Args:
            again: who calls was not known the first time, and had to be asked for.
            listed_again: its tool was not known the first time, and the tools were listed again.
        """
        self._under_way[call] = None
        clock = self._clock
        call.started_at = now = clock()
        if self._on.on_start and not (again or listed_again):
            notify(self._on.on_start, call)
        try:
            # By their methods: to call an object costs more than to call a method of it.
            self.enter.__call__(call)
            # In a view the stage often knows the tool already, and has held the arguments to it.
            checked: OperationMatch = False
            if call.view is not None and self.operations is not None:
                checked = self.operations.resolve_operation(call)
                if checked is None:
                    return
            verb = call.method
            if verb == TOOLS_CALL:
                if call.hop is not None and self.route_check is not None:
                    self.route_check.check(call, call.hop)
                authorizer = self.authorizer
                if self.transparent is not None:
                    resolve_transparently(call, self.transparent, self._catalog, authorizer)
                elif checked:
                    authorizer.check_tool(call)
                else:
                    tool = resolve_tool(call, self._catalog, authorizer.view_of)
                    authorizer.check_tool(call)
                    validate_arguments(call, tool)
                decision = authorizer.authorize(call)
                if self._on.on_decision:
                    notify(self._on.on_decision, call, decision)
                if decision.needs_approval or call.approval_id:
                    gate = self._gate
                    if gate is None:
                        raise InterlockError(
                            CONFIRMATION_REQUIRED,
                            "A human has to confirm this call, and none can be asked.",
                        )
                    gate.request_approval(call, authorizer.explain(call, decision))
                elif call.effect == READ_ONLY:
                    if call.extra_params is None:
                        self.send(call, now)
                    else:
                        self.depart(call, now)
                else:
                    self.record_and_send(call)
            else:
                here = self._here.verbs.get(verb)
                self._here.must_be_offered(verb)
                if verb in TASK_METHODS:
                    here = self._input.tasks.find(call)
                elif not resolve_method(call, self._catalog) and here is None:
                    key = self.transparent
                    route_transparently(
                        call, key, None if key is None else self._upstreams.get(key)
                    )
                self.authorizer.authorize_method(call)
                if self._on.on_decision:
                    notify(self._on.on_decision, call, None)
                if here is not None:
                    here(call)
                elif is_passed_on(call):
                    self.record_and_send(call)
                else:
                    self.depart(call, now)
        except PendingIdentity as unsettled:
            refused = unsettled if again else self.enter.settle(call, unsettled, self.begin)
            if refused is not None:
                self.finish(call, None, refused)
        except InterlockError as error:
            if (
                error.failure is not UNKNOWN_TOOL
                or listed_again
                or self.transparent is None
                or not self._list_again(call, self.transparent)
            ):
                self.on_result(call, None, error)
        except Exception as bug:
            self.finish(call, None, internal_error(call, bug))

    def _list_again(self, call: Call, upstream: str) -> bool:
        """Begin the call again when the server has listed its tools once more. False: there is no
        reason to list them, or they were listed a moment ago."""

        def then() -> None:
            if call in self._under_way:
                self.begin(call, listed_again=True)

        if call.view is not None or not is_listing_outdated(call, upstream, self._catalog):
            return False
        return self._read_tools(upstream, then)

    def record_and_send(self, call: Call) -> None:
        """Let it leave once the journal has it on disk."""
        self._audit.intend(call, partial(self._written, call))

    def _written(self, call: Call, on_disk: bool) -> None:
        if call not in self._under_way:
            return
        try:
            if not on_disk:
                raise InterlockError(
                    UNRECORDABLE,
                    "The call was not made: the journal cannot be written, and what changes "
                    "something must be on record first. `interlock status` says what is wrong.",
                )
            if faults.ARMED:
                faults.reach("dispatch.recorded")
            now = self._clock()
            if call.extra_params is None:
                self.send(call, now)
            else:
                self.depart(call, now)
            if faults.ARMED:
                faults.reach("dispatch.sent")
        except InterlockError as error:
            self.on_result(call, None, error)
        except Exception as bug:
            self.finish(call, None, internal_error(call, bug))

    def depart(self, call: Call, now: float) -> None:
        """Everything is settled: it goes to its upstream. Raises InterlockError."""
        if call.extra_params is None or not self._input.brought(call):
            self.send(call, now)

    def send(self, call: Call, now: float) -> None:
        """Send it to its upstream, now. Raises InterlockError."""
        upstream = self._upstreams.get(call.upstream)
        if upstream is None:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"{call.upstream} is no longer served by this node."
            )
        own, others = upstream.timeout, self._timeout
        limit = own or others
        route, meta = call.route, call.meta
        if route is not None and (route.route_members or route.declared_timeout is not None):
            what, by_own, by_others, limit = self._last_limit
            if route is not what or own != by_own or others != by_others:
                limit = timeout_of(call, own, others)
                self._last_limit = route, own, others, limit
        if meta is None:
            # It asks for no progress, so nothing will ever renew its deadline.
            call.deadline = now + limit
        elif META_TIMEOUT in meta:
            set_deadline(call, now, limit)
        else:
            call.timeout = limit
            call.deadline = now + limit
            call.hard_deadline = now + limit * PROGRESS_EXTENSION_FACTOR
        if self._failing:
            self._breakers.admit(call.upstream)
        if not self._deadlines.ticking:
            self._deadlines.start()
        if self._on.on_dispatch:
            notify(self._on.on_dispatch, call)
        call.upstream_request = upstream.start(call, self)
        wakeful = self._wakeful
        if wakeful is not None:
            if len(self._under_way) == 1:
                wakeful.sent(now)
            else:
                wakeful.alone = 0

    # -- back

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """The upstream has answered, or will not. Called by whatever read the answer."""
        if error is None:
            if self._failing:
                self._breakers.succeeded(call.upstream)
            if outcome is not None:
                glance = outcome.glance
                if glance is not None and (
                    (glance.result_type and glance.result_type != COMPLETE)
                    or (call.method != TOOLS_CALL and call.method in TASK_METHODS)
                ):
                    try:
                        outcome = self._input.needed(call, outcome)
                        if outcome is None:
                            return
                        if glance.result_type == INPUT_REQUIRED:
                            self.finish(call, outcome, None, INPUT_REQUIRED)
                            return
                    except InterlockError as refused:
                        outcome, error = None, refused
                    except Exception as bug:
                        outcome, error = None, internal_error(call, bug)
                if outcome is not None and self._catalog.collides:
                    outcome = rewrite_uris(call, outcome, self._catalog.current)
                if self._latency_in_results and outcome is not None and call.method == TOOLS_CALL:
                    outcome = add_latency(outcome, self._clock() - call.started_at)
        elif call.upstream:
            try:
                if isinstance(error, UpstreamResponseError):
                    outcome = self._input.needed_first(call, error)
                    if outcome is not None:
                        self._breakers.succeeded(call.upstream)
                        self.finish(call, outcome, None, INPUT_REQUIRED)
                        return
                if isinstance(error, UpstreamLostError) and self._sends_again(call, error):
                    return
                self._breakers.blame(call, error)
            except InterlockError as refused:
                error = refused
            except Exception as bug:
                # Whoever read the answer serves others too: our faults are not theirs.
                error = internal_error(call, bug)
        self.finish(call, outcome, error)

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        """The upstream says something on the way: a sign of life at least."""
        if call not in self._under_way:
            return
        if call.timeout:
            # The wait starts again, up to the hard deadline. It never gets shorter: somebody may
            # be asked meanwhile, who has longer.
            renewed = min(self._clock() + call.timeout, call.hard_deadline)
            call.deadline = max(call.deadline, renewed)
        if call.on_notification is not None and is_wanted(call, method, params):
            call.on_notification(call, method, params)

    def on_request(
        self, ask: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        """The upstream wants to know something of the caller."""
        self._input.asked(ask, call, session)

    def finish_task(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> Outcome | None:
        """What became of a call that was answered long ago, as its caller is to see it."""
        if error is None:
            if self._failing:
                self._breakers.succeeded(call.upstream)
            if outcome is not None and self._catalog.collides:
                outcome = rewrite_uris(call, outcome, self._catalog.current)
        else:
            self._breakers.blame(call, error)
        call.method, call.on_done = TASK_CHANGED, None
        self._under_way[call] = None
        self.finish(call, outcome, error)
        return outcome

    def is_pending(self, call: Call) -> bool:
        """Whether somebody still waits for the call."""
        return call in self._under_way

    def pause_deadline(self, call: Call, seconds: float) -> None:
        """A human may be asked: that takes as long as it takes, or as the caller said itself."""
        if not call.has_caller_timeout:
            call.deadline = call.hard_deadline = self._clock() + seconds
        self._deadlines.start()

    def resume_deadline(self, call: Call) -> None:
        """The upstream has what it wanted to know: now it is its time that passes."""
        if call.has_caller_timeout:
            return
        upstream = self._upstreams.get(call.upstream)
        own = None if upstream is None else upstream.timeout
        set_deadline(call, self._clock(), timeout_of(call, own, self._timeout))

    def attach_request(self, call: Call, exchange: UpstreamRequest) -> None:
        """Wait, from now on, for a request that was made for an earlier call."""
        exchange.reassign(call, self)
        call.is_dispatched = True
        call.upstream_request = exchange
        self.resume_deadline(call)
        self._deadlines.start()

    def _sends_again(self, call: Call, gone: UpstreamLostError) -> bool:
        upstream = self._upstreams.get(call.upstream)
        if upstream is None or call not in self._under_way:
            return False
        if not self._dispatcher.may_send_again(call, gone):
            return False
        self._dispatcher.send_again(call, upstream, gone, self)
        return True

    def _again_dispatched(self, call: Call) -> None:
        if self._on.on_dispatch:
            notify(self._on.on_dispatch, call)

    def finish(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        outcome_name: str = OK,
    ) -> None:
        """The one exit: into the journal, and back to the face."""
        if self._under_way.pop(call, call) is not None:
            return
        if self._empty is not None and not self._under_way and not self._empty.done():
            self._empty.set_result(None)
        clock, detail = self._clock, ""
        took = clock() - call.started_at
        if error is not None:
            told = error.reason if isinstance(error, HiddenToolError) else error
            detail = told.message
            if outcome_name != COLLECTED:
                outcome_name = told.failure.name
            if error.failure is DEADLINE_EXCEEDED and not isinstance(error, RelayedError):
                hop = "" if self.route_check is None else self.route_check.describe_position(call)
                error.data = {"upstream": call.upstream, **(error.data or {}), "hop": hop}
        elif outcome is not None and outcome.glance is not None and outcome.glance.is_error:
            outcome_name = outcome_name if outcome_name == COLLECTED else TOOL_ERROR
        duration_us, route = trunc(took * 1e6), call.route
        for settled in self._on.on_end:
            try:
                settled(call, outcome_name, duration_us, detail, outcome, error)
            except Exception:
                _log.exception("%.100r %.100r could not be recorded", call.method, call.name)
        if route is not None and route.declared_timeout is not None and self._on.on_latency:
            notify(self._on.on_latency, call, outcome_name, duration_us, detail, outcome, error)
        if call.reservations is not None:
            self.authorizer.charge_budget(call)
        if (call.approval_id or outcome_name == TOOL_ERROR) and self._gate is not None:
            self._gate.on_result(call, outcome, error)
        # It, its exchange and its face point at each other: taken apart, they are freed at once.
        call.upstream_request = None
        tell = call.on_done
        if tell is not None:
            try:
                if call.view is not None and self.operations is not None:
                    outcome, error = self.operations.write_response(call, outcome, error, took)
                tell(call, outcome, error)
            except Exception:
                _log.exception(
                    "the answer of %.100r %.100r could not be given", call.method, call.name
                )
            call.context = None

    # -- on the way

    def cancel(self, call: Call, reason: str = "The caller cancelled the call.") -> None:
        """Stop a call that is under way. Its upstream is told, its caller too."""
        if call not in self._under_way and not self.enter.give_up(call):
            return
        try:
            if call.upstream_request is not None:
                call.upstream_request.abandon(reason)
        except Exception:
            # A link in a bad way: the upstream may not know, but for the caller it is over.
            _log.exception("%s could not be told of a cancelled call", call.upstream)
        self.finish(call, None, InterlockError(CANCELLED, reason))

    async def drain(self, seconds: float) -> None:
        """Take no more calls, give those under way this long, and tell the rest that it is over."""
        self.enter.closed = True
        # Nobody will answer in the time that is left.
        self._input.drop_all("The node is shutting down.")
        gate = self._gate
        waiting = [
            call
            for call in self._under_way
            if self._input.asks_for(call)
            or (gate is not None and gate.is_waiting_for_other_call(call))
        ]
        self._shut_down([*waiting, *self.enter.give_up_all()])
        if self._under_way and seconds > 0:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty], timeout=seconds)
        self._input.drop_all("The node is shutting down.")
        self._shut_down(list(self._under_way))

    def _shut_down(self, calls: list[Call]) -> None:
        for call in calls:
            exchange = call.upstream_request
            self.finish(call, None, InterlockError(SHUTTING_DOWN, "The node is shutting down."))
            if exchange is not None:
                exchange.abandon("The node is shutting down.")

    def under_way(self) -> Iterable[Call]:
        """Every call that is not over, the oldest first."""
        return self._under_way

    async def run(self, call: Call) -> Outcome:
        """`begin`, for those who can wait. Raises InterlockError, and nothing else."""
        return await run_call(call, self.begin, self.cancel)

    def observe(self, observer: CallObserver) -> None:
        """Let a feature hear of every call. Before the node accepts callers."""
        self._on.add(observer)

    def configure(
        self,
        *,
        authenticate: Authenticator,
        names: str,
        timeout: float,
        concurrent_calls: int,
        latency_in_results: bool,
    ) -> None:
        """Apply node settings that may change while it runs."""
        self._latency_in_results = latency_in_results
        self.enter.authenticate = authenticate
        self.enter.concurrent_calls = concurrent_calls
        self._here.names = names
        self._timeout = timeout
