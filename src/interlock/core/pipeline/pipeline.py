"""The pipeline: the fixed order of the stages that every call passes.

    audit( authenticate → aql → route check → resolve
           → check_tool( scopes → what is always denied ) → validate
           → authorize( pins → policy → danger → safety loop → budget )
           → approval → journal → deadline → breaker → dispatch → measure → charge budget → aql )

Listing, reading and subscribing pass the same authentication, policy and audit as tool calls. A
call that changes something is written to disk before it is sent.

`begin` sends a call and `on_result` handles its response. Both run without waiting: the time
between them belongs to the upstream. So a call needs no task and no pass of the event loop.
`finish` is the audit: every call passes it exactly once. Notifications and client requests of an
upstream arrive in `on_notification` and `on_request`; `client_input.py` bridges the protocol
generations.
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
    META_APPROVAL_ONLY,
    META_TIMEOUT,
    TASK_CHANGED,
    TASK_METHODS,
    TOOLS_CALL,
)
from interlock.protocol.mcpax import CONFIRM

READ_ONLY: Final = EffectLevel.READ_ONLY.label

# -- Awaiting a call: a future connects the pipeline with a coroutine.


async def run_call(
    call: Call, start_call: Callable[[Call], None], cancel: Callable[[Call], None]
) -> Outcome:
    """Begin the call and wait for its outcome. Raises InterlockError, and nothing else."""
    outcome_future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def on_done(call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        if outcome_future.done():
            return
        if error is not None:
            outcome_future.set_exception(error)
        elif outcome is not None:
            outcome_future.set_result(outcome)

    call.on_done = on_done
    start_call(call)
    try:
        return await outcome_future
    except asyncio.CancelledError:
        cancel(call)
        raise


# -- Retry, if the connection to the upstream was lost and a second execution does no harm.

RECONNECT_WAIT_SECONDS: Final = 5.0
"""The time for which a call waits for a lost upstream to reconnect before the call fails."""

_log = logging.getLogger("interlock.pipeline")


class Dispatcher:
    """Retries calls after the upstream has reconnected."""

    def __init__(self, clock: Clock, on_dispatched: Callable[[Call], None]) -> None:
        """
        Args:
            on_dispatched: called before a call is sent again.
        """
        self._clock = clock
        self._on_dispatched = on_dispatched
        self._tasks: set[asyncio.Task[None]] = set()

    def may_send_again(self, call: Call, error: UpstreamLostError) -> bool:
        """Return whether a call may be sent again after its upstream was lost.

        It may be sent again, once, if it never left the node or is safe to execute twice.
        """
        if call.is_retry or (error.was_sent and not call.is_retryable):
            return False
        call.is_retry = True
        return True

    def send_again(
        self, call: Call, upstream: Upstream, error: UpstreamLostError, handler: ResponseHandler
    ) -> None:
        """Wait until the upstream is connected again and send the call. Otherwise the call fails
        with `error`."""
        request = DeferredRequest(
            call, handler, error, partial(self._wait_and_send, upstream, error)
        )
        call.upstream_request = request
        task = request.task
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_and_send(
        self, upstream: Upstream, error: UpstreamLostError, call: Call, handler: ResponseHandler
    ) -> UpstreamRequest:
        try:
            seconds = min(RECONNECT_WAIT_SECONDS, call.deadline - self._clock())
            if seconds <= 0 or not await upstream.wait_until_ready(seconds):
                raise error
            self._on_dispatched(call)
            return upstream.start(call, handler)
        except InterlockError:
            raise
        except Exception:
            _log.exception("upstream %s: cannot retry a call", call.upstream)
            raise error from None


class Pipeline:
    """Takes calls from servers, and passes the end of each call to its `on_done`."""

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
        client_request_policy: Callable[[str], ClientRequestPolicy] = lambda _: ALLOW_ALL,
        seals: StateSealer | None = None,
        input_seconds: float = INPUT_SECONDS,
        wall_clock: Callable[[], float] = time.time,
        route_check: RouteCheck | None = None,
        observers: Iterable[CallObserver] = (),
        latency_in_results: bool = False,
        read_tools: Callable[[str, Callable[[], None]], bool] = lambda *_: False,
    ) -> None:
        """
        Args:
            recall: returns the caller of an approved call with its current rights. None: the caller
                has no rights any more.
            authorizer: decides about every call.
            route_check: checks the route of calls that a parent sent. None: there is no tree.
            observers: get the events of every call, after the journal.
            call_soon: set if the node may poll for the response of a single call.
            latency_in_results: True if results contain their latency.
            read_tools: lists the tools of an upstream again; see `ListReader.read_tools`.
        """
        self._catalog = catalog
        self._breakers = breakers
        self._failing = breakers.failing
        self._upstreams = upstreams
        self._dispatcher = Dispatcher(clock, self._notify_dispatch)
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
        self._observers = ObserverMethods((audit, *observers))
        self._running_calls: dict[Call, None] = {}
        self._busy_poll = (
            None if call_soon is None else BusyPoll(self._running_calls, clock, call_soon)
        )
        self.operations: OperationsStage | None = None
        """The stage that translates operations to calls. None: no client uses operations."""
        self.admission = Admission(
            authenticate=authenticate,
            audit=audit,
            running_calls=self._running_calls,
            concurrent_calls=concurrent_calls,
            recall=recall,
        )
        self.admit, self.record_rejection = self.admission.admit, self.admission.record_rejection
        self._drained: asyncio.Future[None] | None = None
        self._deadlines = DeadlineWatch(self.running_calls, clock, call_later)
        self.subscriptions = ResourceSubscriptions(
            catalog, upstreams, permitted=authorizer.authorize_method
        )
        self._input = ClientInput(
            self,
            request_filter=ClientRequestFilter(client_request_policy, audit, clock),
            seals=seals or StateSealer(os.urandom(KEY_BYTES), wall_clock),
            clock=clock,
            wall_clock=wall_clock,
            call_later=call_later,
            seconds=input_seconds,
        )
        self.tasks = self._input.tasks
        self._local_methods = LocalMethods(
            catalog=catalog,
            upstreams=upstreams,
            subscriptions=self.subscriptions,
            finish=self.finish,
            names=names,
            view_of=lambda call: authorizer.view_of(call),
        )
        self.transparent_upstream: str | None = None
        """The upstream that a transparent node shows as itself. None: it is not transparent."""

    def install_gate(self, gate: Gate, confirm: Callable[[Call], None]) -> None:
        """Install the approval gate. Called once, at the start.

        Args:
            gate: sends approved calls through this pipeline again, so it is created later.
            confirm: handles the proof that an operator approved a call.
        """
        self._gate = gate
        gate.host = self
        self._local_methods.handlers[CONFIRM] = confirm

    def install_operations(self, stage: OperationsStage) -> None:
        """Install the stage for calls in a view. Called once, before the first call."""
        self.operations = stage

    # -- requests

    def begin(self, call: Call, is_retry: bool = False, is_relisted: bool = False) -> None:
        """Start a call at the first stage. The call may have ended when this returns. Never raises.

        Args:
            is_retry: True for the second attempt, after the identity of the caller was looked up.
            is_relisted: True for the second attempt, after the tools were listed again, because
                the tool was unknown.
        """
        self._running_calls[call] = None
        clock = self._clock
        call.started_at = now = clock()
        if self._observers.on_start and not (is_retry or is_relisted):
            notify(self._observers.on_start, call)
        try:
            # A direct `__call__` is faster than calling the object.
            self.admission.__call__(call)
            # In a view the stage often knows the tool, and has validated the arguments.
            checked: OperationMatch = False
            if call.view is not None and self.operations is not None:
                checked = self.operations.resolve_operation(call)
                if checked is None:
                    return
            method = call.method
            if method == TOOLS_CALL:
                if call.hop is not None and self.route_check is not None:
                    self.route_check.check(call, call.hop)
                authorizer = self.authorizer
                if self.transparent_upstream is not None:
                    resolve_transparently(
                        call, self.transparent_upstream, self._catalog, authorizer
                    )
                elif checked:
                    authorizer.check_tool(call)
                else:
                    tool = resolve_tool(call, self._catalog, authorizer.view_of)
                    authorizer.check_tool(call)
                    validate_arguments(call, tool)
                decision = authorizer.authorize(call)
                if self._observers.on_decision:
                    notify(self._observers.on_decision, call, decision)
                meta = call.meta
                if (
                    decision.needs_approval
                    or call.approval_id
                    or (meta is not None and META_APPROVAL_ONLY in meta)
                ):
                    gate = self._gate
                    if gate is None:
                        raise InterlockError(
                            CONFIRMATION_REQUIRED,
                            "This call needs an approval, and this node has no approvals. Enable "
                            "approvals in the config.",
                        )
                    gate.request_approval(call, authorizer.explain(call, decision))
                elif call.effect == READ_ONLY:
                    if call.extra_params is None:
                        self.send(call, now)
                    else:
                        self.continue_or_send(call, now)
                else:
                    self.record_and_send(call)
            else:
                local_handler = self._local_methods.handlers.get(method)
                self._local_methods.check_offered(method)
                if method in TASK_METHODS:
                    local_handler = self._input.tasks.find(call)
                elif not resolve_method(call, self._catalog) and local_handler is None:
                    key = self.transparent_upstream
                    route_transparently(
                        call, key, None if key is None else self._upstreams.get(key)
                    )
                self.authorizer.authorize_method(call)
                if self._observers.on_decision:
                    notify(self._observers.on_decision, call, None)
                if local_handler is not None:
                    local_handler(call)
                elif is_passed_on(call):
                    self.record_and_send(call)
                else:
                    self.continue_or_send(call, now)
        except PendingIdentity as pending:
            rejection = (
                pending if is_retry else self.admission.resolve_identity(call, pending, self.begin)
            )
            if rejection is not None:
                self.finish(call, None, rejection)
        except InterlockError as error:
            if (
                error.failure is not UNKNOWN_TOOL
                or is_relisted
                or self.transparent_upstream is None
                or not self._list_again(call, self.transparent_upstream)
            ):
                self.on_result(call, None, error)
        except Exception as bug:
            self.finish(call, None, internal_error(call, bug))

    def _list_again(self, call: Call, upstream: str) -> bool:
        """Begin the call again after the server has listed its tools. Return False if there is no
        reason to list them, or if they were listed a moment ago."""

        def begin_again() -> None:
            if call in self._running_calls:
                self.begin(call, is_relisted=True)

        if call.view is not None or not is_listing_outdated(call, upstream, self._catalog):
            return False
        return self._read_tools(upstream, begin_again)

    def record_and_send(self, call: Call) -> None:
        """Send a call after the journal has written it to disk."""
        self._audit.record_intent(call, partial(self._on_recorded, call))

    def _on_recorded(self, call: Call, on_disk: bool) -> None:
        if call not in self._running_calls:
            return
        try:
            if not on_disk:
                raise InterlockError(
                    UNRECORDABLE,
                    "The call was not made: the journal cannot be written, and a call that changes "
                    "something must be recorded first. `interlock status` shows the problem.",
                )
            if faults.ARMED:
                faults.reach("dispatch.recorded")
            now = self._clock()
            if call.extra_params is None:
                self.send(call, now)
            else:
                self.continue_or_send(call, now)
            if faults.ARMED:
                faults.reach("dispatch.sent")
        except InterlockError as error:
            self.on_result(call, None, error)
        except Exception as bug:
            self.finish(call, None, internal_error(call, bug))

    def continue_or_send(self, call: Call, now: float) -> None:
        """Send a call to its upstream, or continue a suspended call. Raises InterlockError."""
        if call.extra_params is None or not self._input.resume_suspended(call):
            self.send(call, now)

    def send(self, call: Call, now: float) -> None:
        """Send a call to its upstream. Raises InterlockError."""
        upstream = self._upstreams.get(call.upstream)
        if upstream is None:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"The upstream {call.upstream} was removed from this node. List the tools again.",
            )
        upstream_timeout, default_timeout = upstream.timeout, self._timeout
        limit = upstream_timeout or default_timeout
        route, meta = call.route, call.meta
        if route is not None and (route.route_members or route.declared_timeout is not None):
            last_route, last_upstream_timeout, last_default_timeout, limit = self._last_limit
            if (
                route is not last_route
                or upstream_timeout != last_upstream_timeout
                or default_timeout != last_default_timeout
            ):
                limit = timeout_of(call, upstream_timeout, default_timeout)
                self._last_limit = route, upstream_timeout, default_timeout, limit
        if meta is None:
            # Without a progress token, nothing will extend its deadline.
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
        if self._observers.on_dispatch:
            notify(self._observers.on_dispatch, call)
        call.upstream_request = upstream.start(call, self)
        busy_poll = self._busy_poll
        if busy_poll is not None:
            if len(self._running_calls) == 1:
                busy_poll.start(now)
            else:
                busy_poll.single_calls = 0

    # -- responses

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """Handle the result of the upstream, or the error that it will not respond. Called by the
        reader of the response."""
        if error is None:
            if self._failing:
                self._breakers.record_success(call.upstream)
            if outcome is not None:
                glance = outcome.summary
                if glance is not None and (
                    (glance.result_type and glance.result_type != COMPLETE)
                    or (call.method != TOOLS_CALL and call.method in TASK_METHODS)
                ):
                    try:
                        outcome = self._input.convert_result(call, outcome)
                        if outcome is None:
                            return
                        if glance.result_type == INPUT_REQUIRED:
                            self.finish(call, outcome, None, INPUT_REQUIRED)
                            return
                    except InterlockError as rejection:
                        outcome, error = None, rejection
                    except Exception as bug:
                        outcome, error = None, internal_error(call, bug)
                if outcome is not None and self._catalog.has_uri_collisions:
                    outcome = rewrite_uris(call, outcome, self._catalog.current)
                if self._latency_in_results and outcome is not None and call.method == TOOLS_CALL:
                    outcome = add_latency(outcome, self._clock() - call.started_at)
        elif call.upstream:
            try:
                if isinstance(error, UpstreamResponseError):
                    outcome = self._input.convert_url_error(call, error)
                    if outcome is not None:
                        self._breakers.record_success(call.upstream)
                        self.finish(call, outcome, None, INPUT_REQUIRED)
                        return
                if isinstance(error, UpstreamLostError) and self._try_again(call, error):
                    return
                self._breakers.record_error(call, error)
            except InterlockError as rejection:
                error = rejection
            except Exception as bug:
                # The reader of the response serves other calls too: it must not fail.
                error = internal_error(call, bug)
        self.finish(call, outcome, error)

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        """Handle a notification of the upstream, which also proves that it is alive."""
        if call not in self._running_calls:
            return
        if call.timeout:
            # The timeout starts again, up to the hard deadline. It never gets shorter, because an
            # open client request may have extended it.
            extended = min(self._clock() + call.timeout, call.hard_deadline)
            call.deadline = max(call.deadline, extended)
        if call.on_notification is not None and is_wanted(call, method, params):
            call.on_notification(call, method, params)

    def on_request(
        self, request: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        """Pass a client request of the upstream to the client."""
        self._input.on_request(request, call, session)

    def finish_task(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> Outcome | None:
        """End a call that continued as a task. Return the outcome as the client sees it."""
        if error is None:
            if self._failing:
                self._breakers.record_success(call.upstream)
            if outcome is not None and self._catalog.has_uri_collisions:
                outcome = rewrite_uris(call, outcome, self._catalog.current)
        else:
            self._breakers.record_error(call, error)
        call.method, call.on_done = TASK_CHANGED, None
        self._running_calls[call] = None
        self.finish(call, outcome, error)
        return outcome

    def is_pending(self, call: Call) -> bool:
        """Return whether the call is still running."""
        return call in self._running_calls

    def pause_deadline(self, call: Call, seconds: float) -> None:
        """Extend the deadline while a person may be asked, unless the caller set a timeout."""
        if not call.has_caller_timeout:
            call.deadline = call.hard_deadline = self._clock() + seconds
        self._deadlines.start()

    def resume_deadline(self, call: Call) -> None:
        """Set the normal deadline again, after the upstream got its input."""
        if call.has_caller_timeout:
            return
        upstream = self._upstreams.get(call.upstream)
        upstream_timeout = None if upstream is None else upstream.timeout
        set_deadline(call, self._clock(), timeout_of(call, upstream_timeout, self._timeout))

    def attach_request(self, call: Call, request: UpstreamRequest) -> None:
        """Make a call wait for a request that was sent for an earlier call."""
        request.reassign(call, self)
        call.is_dispatched = True
        call.upstream_request = request
        self.resume_deadline(call)
        self._deadlines.start()

    def _try_again(self, call: Call, error: UpstreamLostError) -> bool:
        upstream = self._upstreams.get(call.upstream)
        if upstream is None or call not in self._running_calls:
            return False
        if not self._dispatcher.may_send_again(call, error):
            return False
        self._dispatcher.send_again(call, upstream, error, self)
        return True

    def _notify_dispatch(self, call: Call) -> None:
        if self._observers.on_dispatch:
            notify(self._observers.on_dispatch, call)

    def finish(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        outcome_name: str = OK,
    ) -> None:
        """End a call: notify the observers, such as the journal, and pass the end to its server."""
        if self._running_calls.pop(call, call) is not None:
            return
        if self._drained is not None and not self._running_calls and not self._drained.done():
            self._drained.set_result(None)
        clock, detail = self._clock, ""
        took = clock() - call.started_at
        if error is not None:
            recorded_error = error.reason if isinstance(error, HiddenToolError) else error
            detail = recorded_error.message
            if outcome_name != COLLECTED:
                outcome_name = recorded_error.failure.name
            if error.failure is DEADLINE_EXCEEDED and not isinstance(error, RelayedError):
                hop = "" if self.route_check is None else self.route_check.describe_position(call)
                error.data = {"upstream": call.upstream, **(error.data or {}), "hop": hop}
        elif outcome is not None and outcome.summary is not None and outcome.summary.is_error:
            outcome_name = outcome_name if outcome_name == COLLECTED else TOOL_ERROR
        duration_us, route = trunc(took * 1e6), call.route
        for on_end in self._observers.on_end:
            try:
                on_end(call, outcome_name, duration_us, detail, outcome, error)
            except Exception:
                _log.exception("call %.100r %.100r: a call observer failed", call.method, call.name)
        if route is not None and route.declared_timeout is not None and self._observers.on_latency:
            notify(
                self._observers.on_latency, call, outcome_name, duration_us, detail, outcome, error
            )
        if call.reservations is not None:
            self.authorizer.charge_budget(call)
        if (call.approval_id or outcome_name == TOOL_ERROR) and self._gate is not None:
            self._gate.on_result(call, outcome, error)
        # Break the reference cycle of call, request and server, so that they are freed at once.
        call.upstream_request = None
        on_done = call.on_done
        if on_done is not None:
            try:
                if call.view is not None and self.operations is not None:
                    outcome, error = self.operations.write_response(call, outcome, error, took)
                on_done(call, outcome, error)
            except Exception:
                _log.exception(
                    "call %.100r %.100r: cannot write the response", call.method, call.name
                )
            call.context = None

    # -- running calls

    def cancel(self, call: Call, reason: str = "The caller cancelled the call.") -> None:
        """Cancel a running call. Its upstream and its caller are notified."""
        if call not in self._running_calls and not self.admission.make_running(call):
            return
        try:
            if call.upstream_request is not None:
                call.upstream_request.abandon(reason)
        except Exception:
            # The connection is broken: the upstream may not know, but the call of the caller ends.
            _log.exception("upstream %s: cannot send a cancellation", call.upstream)
        self.finish(call, None, InterlockError(CANCELLED, reason))

    async def drain(self, seconds: float) -> None:
        """Accept no more calls, wait for running calls for this long, and end the others."""
        self.admission.is_closed = True
        # No client will respond in the remaining time.
        self._input.cancel_all("The node is shutting down.")
        gate = self._gate
        waiting = [
            call
            for call in self._running_calls
            if self._input.is_waiting_for_client(call)
            or (gate is not None and gate.is_waiting_for_other_call(call))
        ]
        self._shut_down([*waiting, *self.admission.make_all_running()])
        if self._running_calls and seconds > 0:
            self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._drained], timeout=seconds)
        self._input.cancel_all("The node is shutting down.")
        self._shut_down(list(self._running_calls))

    def _shut_down(self, calls: list[Call]) -> None:
        for call in calls:
            request = call.upstream_request
            self.finish(call, None, InterlockError(SHUTTING_DOWN, "The node is shutting down."))
            if request is not None:
                request.abandon("The node is shutting down.")

    def running_calls(self) -> Iterable[Call]:
        """Return the running calls, the oldest first."""
        return self._running_calls

    async def run(self, call: Call) -> Outcome:
        """Begin a call and wait for its outcome. Raises InterlockError, and nothing else."""
        return await run_call(call, self.begin, self.cancel)

    def observe(self, observer: CallObserver) -> None:
        """Add an observer of every call. Called before the node accepts callers."""
        self._observers.add(observer)

    def configure(
        self,
        *,
        authenticate: Authenticator,
        names: str,
        timeout: float,
        concurrent_calls: int,
        latency_in_results: bool,
    ) -> None:
        """Apply settings that can change while the node runs."""
        self._latency_in_results = latency_in_results
        self.admission.authenticate = authenticate
        self.admission.concurrent_calls = concurrent_calls
        self._local_methods.names = names
        self._timeout = timeout
