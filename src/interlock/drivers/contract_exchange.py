"""One call of a contract: the driver that serves it now, and the drivers that are tried if it
fails."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from interlock.core.call import (
    Call,
    ClientRequest,
    ClientSession,
    Outcome,
    UpstreamLostError,
    UpstreamResponseError,
)
from interlock.core.catalog.effects import LEVELS
from interlock.core.deferred_request import PendingRequestBase
from interlock.core.ports import ResponseHandler, UpstreamRequest
from interlock.drivers.driver import Driver
from interlock.drivers.errors import aip_code
from interlock.drivers.limits import CallAttempts, is_repeatable
from interlock.drivers.resolver import Candidate
from interlock.drivers.resource_uris import check_uris
from interlock.errors import (
    AUTH_FAILED,
    AUTH_REQUIRED,
    CANCELLED,
    CIRCUIT_OPEN,
    DEADLINE_EXCEEDED,
    INSTALL_FAILED,
    INTERNAL,
    INVALID_STATE,
    SANDBOX_UNAVAILABLE,
    TOO_BUSY,
    TOOL_UNAVAILABLE,
    UPSTREAM_ERROR,
    UPSTREAM_UNAVAILABLE,
    VERSION_MISMATCH,
    InterlockError,
    ProtocolError,
)
from interlock.protocol.headers import HeaderParam
from interlock.protocol.input_required import REQUEST_STATE, read_input_request, replace_state
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import COMPLETE, INPUT_REQUIRED, Era, summarize_result, write_tool_error

if TYPE_CHECKING:
    from interlock.drivers.contract_upstream import ContractUpstream, ServedContract
    from interlock.drivers.driver import DriverBinding

META_DEPRECATION: Final = "deprecation"
"""Key in `_meta` of a result whose contract is deprecated."""
_DRIVER_FAILURES: Final = frozenset(
    failure.name
    for failure in (
        AUTH_REQUIRED, AUTH_FAILED, INSTALL_FAILED, VERSION_MISMATCH, TOOL_UNAVAILABLE,
        SANDBOX_UNAVAILABLE, TOO_BUSY, CIRCUIT_OPEN,
    )
)  # fmt: skip
"""Errors of a single driver, after which another driver may serve a call that was not dispatched.
For a dispatched call these codes prove nothing, because a hook can return any code."""
_UNAUTHORIZED: Final = 401
_log = logging.getLogger("interlock.drivers")
_RETRYABLE_ERROR: Final = InterlockError(UPSTREAM_UNAVAILABLE, "")
"""Stands for the loss of a server, which is worth a retry."""


class DriverRoute(msgspec.Struct):
    """The route of a contract call: one tool of a driver's server."""

    canonical: str
    upstream: str
    upstream_name: str
    upstream_name_json: bytes
    header_params: tuple[HeaderParam, ...] = ()
    declared_timeout: float | None = None
    route_members: bytes = b""


class ContractExchange:
    """The request of a contract call. It is open until a result, a cancellation, or the failure of
    all drivers."""

    def __init__(
        self,
        upstream: ContractUpstream,
        call: Call,
        handler: ResponseHandler,
        served_contract: ServedContract,
        inputs: Mapping[str, Any],
        context: Any,
        order: tuple[Candidate, ...],
        request_state: InputRequestState | None = None,
    ) -> None:
        """Args:
        order: the drivers to try, best first.
        request_state: the state of the input request that the call responds to.
        """
        self._upstream = upstream
        self._call = call
        self._handler = handler
        self._served_contract = served_contract
        self._inputs = inputs
        self._context = context
        self._order = order
        self._extra = extra_params(call, request_state)
        self._position = 0
        self._attempts: CallAttempts | None = None
        """Attempts at the current driver."""
        self._retries = 0
        self._driver: Driver | None = None
        self._driver_call: Call | None = None
        self._request: UpstreamRequest | None = None
        self._retry_timer: Any = None
        self._sent_at = 0.0
        self._dispatched = False
        """True if the request to the current driver was sent."""
        self._dispatched_before = False
        """True if a request to an earlier driver was sent."""
        self._may_be_executed = False
        """True if the server responded or driver code started: the call may have been executed,
        whatever the error says."""
        self._signed_in = False
        """True if the call was repeated after a new sign-in. This happens at most once."""
        self.is_open = True

    # -- request

    def start(self) -> None:
        """Send the call to the current driver."""
        candidate = self._order[self._position]
        served_contract = self._served_contract
        self._dispatched = self._may_be_executed = False
        self._dispatched_before = self._call.is_dispatched
        driver = self._driver = self._upstream.driver_of(served_contract, candidate)
        binding = driver.bindings[served_contract.contract.key]
        call = self._call
        if self._attempts is None:
            self._attempts = CallAttempts(
                served_contract.contract, candidate.driver, candidate.entry, served_contract.level
            )
        self._sent_at = now = self._upstream.clock()
        self._limit_deadline(now + self._upstream.call_timeout(served_contract, candidate))
        if binding.executes:
            self._execute_code(driver, binding)
            return
        try:
            _require_allowed_level(call, binding)
            check_uris(
                served_contract.contract, self._inputs, driver.roots, resolve=os.path.realpath
            )
            if driver.hooks is None or not driver.hooks.makes_arguments(binding):
                self._dispatch(driver, binding, binding.bound.arguments(self._inputs))
                return
        except InterlockError as error:
            self._on_failure(error)
            return

        def on_arguments(arguments: Any, error: InterlockError | None) -> None:
            if not self.is_open:
                return
            self._request = None
            try:
                if error is not None:
                    raise error
                # The server's tool list may have changed meanwhile.
                _require_allowed_level(self._call, binding)
                self._dispatch(driver, binding, arguments)
            except InterlockError as failure:
                self._on_failure(failure)

        self._request = CodeRequest(
            driver.hooks.arguments(binding, self._inputs, self._context, call.caller), on_arguments
        )

    def _dispatch(
        self, driver: Driver, binding: DriverBinding, arguments: Mapping[str, Any]
    ) -> None:
        """Call the tool of the driver's server. Raises InterlockError."""
        call, served_contract = self._call, self._served_contract
        assert binding.entry.mcp is not None
        name = binding.entry.mcp.tool_name
        self._driver_call = Call(
            method=call.method,
            server=call.server,
            credentials=call.credentials,
            client=call.client,
            name=name,
            session_owner=call.session_owner,
            arguments=encode_value(arguments),
            meta=call.meta,
            extra_params=self._extra,
            on_notification=call.on_notification,
            session=call.session,
            started_at=call.started_at,
            caller=call.caller,
            route=DriverRoute(served_contract.contract.id, driver.key, name, encode_value(name)),
            upstream=driver.key,
            effect=call.effect,
            deadline=call.deadline,
            hard_deadline=call.hard_deadline,
            timeout=call.timeout,
        )
        driver.calls += 1
        child = self._driver_call
        self._request = driver.start(child, self, partial(self._before_send, binding))
        if child.is_dispatched:
            self._dispatched = call.is_dispatched = True

    def _before_send(self, binding: DriverBinding) -> None:
        """Check the binding again when the server is ready, before the request is sent. Raises
        InterlockError."""
        _require_usable(binding)
        _require_allowed_level(self._call, binding)
        self._dispatched = self._call.is_dispatched = True

    def _limit_deadline(self, end: float) -> None:
        """Limit the deadline of the call. Progress does not extend the contract's timeout."""
        call = self._call
        call.deadline = min(call.deadline, end)
        if call.timeout:
            call.hard_deadline = min(call.hard_deadline, end)

    def _execute_code(self, driver: Driver, binding: DriverBinding) -> None:
        """Let driver.py serve the call."""
        driver.calls += 1
        self._may_be_executed = self._call.is_dispatched = True

        def on_value(value: Any, error: InterlockError | None) -> None:
            if not self.is_open:
                return
            if error is not None:
                self._on_failure(error)
            else:
                result = self._result({}, value)
                self._finish(Outcome(result, Era.SESSION, summarize_result(result)), None)

        self._request = CodeRequest(
            driver.hooks.execute(binding, self._inputs, self._context, self._call.caller), on_value
        )

    # -- response of the driver's server

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        driver = self._driver
        if call is not self._driver_call or driver is None or not self.is_open:
            return
        self._driver_call = None
        self._dispatched = call.is_dispatched
        if error is not None:
            if isinstance(error, UpstreamLostError):
                if driver.needs_sign_in(error):
                    self._sign_in(driver, error)
                    return
                driver.on_unreachable(error.message)
            self._on_failure(error)
            return
        assert outcome is not None
        self._may_be_executed = self._call.is_dispatched = True
        driver.on_response()
        glance = outcome.summary
        if glance is not None and glance.result_type and glance.result_type != COMPLETE:
            # An input request is passed to the caller. The caller's response is another call of the
            # contract, which goes to the same driver and no other.
            self._record_attempt(None)
            self.is_open = False
            self._request = None
            self._handler.on_result(self._call, with_request_state(driver, outcome), None)
            return
        binding = driver.bindings[self._served_contract.contract.key]
        try:
            result = decode_value(outcome.result)
            if driver.hooks is not None and driver.hooks.parses_results:
                self._parse_with_code(driver, binding, result)
                return
            value = binding.bound.extract_value(result).value
        except InterlockError as failure:
            self._on_failure(failure)
            return
        encoded = self._result(result, value)
        self._finish(Outcome(encoded, Era.SESSION, summarize_result(encoded)), None)

    def _parse_with_code(self, driver: Driver, binding: DriverBinding, result: Any) -> None:
        """Let driver.py extract the contract's value."""

        def on_value(value: Any, error: InterlockError | None) -> None:
            if not self.is_open:
                return
            if error is not None:
                self._on_failure(error)
                return
            encoded = self._result(result, value, parsed=True)
            self._finish(Outcome(encoded, Era.SESSION, summarize_result(encoded)), None)

        self._request = CodeRequest(
            driver.hooks.extract_value(binding, result, self._context), on_value
        )

    def _sign_in(self, driver: Driver, rejection: UpstreamLostError) -> None:
        """Repeat the call once after a new sign-in, because the server rejected the credentials."""
        self._dispatched = self._dispatched and rejection.status != _UNAUTHORIZED

        def on_sign_in(_: Any, error: InterlockError | None) -> None:
            if not self.is_open:
                return
            if error is not None:
                self._on_failure(error)
            elif self._signed_in or self._dispatched:
                self._on_failure(rejection)
            else:
                self._signed_in = True
                self._retries += 1
                self._record_attempt(rejection)
                self.start()

        self._request = CodeRequest(driver.ensure_signed_in(), on_sign_in)

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        if self.is_open and call is self._driver_call:
            self._handler.on_notification(self._call, method, params)

    def on_request(
        self, client_request: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        self._handler.on_request(
            client_request, self._call if call is self._driver_call else call, session
        )

    def _result(self, result: Any, value: Any, *, parsed: bool = False) -> bytes:
        """Encode the contract's value as a tool result.

        Args:
            parsed: driver.py extracted the value and has seen the whole response.
        """
        encoded: dict[str, Any] = {}
        blocks = result.get("content")
        is_content = isinstance(value, dict) and value.keys() == {"content"} and "content" in result
        if is_content and (not parsed or value["content"] == blocks):
            # Keep images and other content blocks.
            encoded["content"] = blocks
        else:
            text = value if isinstance(value, str) else encode_value(value).decode()
            other_blocks = () if parsed or not isinstance(blocks, list) else blocks
            # Content blocks that are not text cannot be part of the value, so they are added to it.
            encoded["content"] = [
                {"type": "text", "text": text},
                *filter(_is_no_text, other_blocks),
            ]
        if isinstance(value, dict):
            encoded["structuredContent"] = value
        encoded["isError"] = False
        deprecation = self._served_contract.deprecation
        if deprecation is not None:
            encoded["_meta"] = {META_DEPRECATION: deprecation.notice()}
        return encode_value(encoded)

    # -- failure

    def _on_failure(self, error: InterlockError) -> None:
        self._record_attempt(error)
        assert self._driver is not None
        child = self._driver_call
        if child is not None:
            # Sending failed immediately.
            self._dispatched = child.is_dispatched
        dispatched = self._may_be_executed or self._dispatched
        self._call.is_dispatched = dispatched or self._dispatched_before
        self._driver_call, self._request = None, None
        if error.failure is DEADLINE_EXCEEDED:
            self._fail(error)
            return
        assert self._attempts is not None
        is_lost = isinstance(error, UpstreamLostError)
        # An error in the call itself occurs with every driver.
        not_executed = not dispatched and (is_lost or error.failure.name in _DRIVER_FAILURES)
        delay = self._attempts.next_delay(
            _RETRYABLE_ERROR if is_lost else error, executed=not not_executed
        )
        if delay is not None:
            self._retries += 1
            self._retry_timer = self._upstream.call_later(delay, self._retry)
        elif self._can_try_next(error, not_executed=not_executed):
            self._position += 1
            self._attempts = None
            self._retries += 1
            self.start()
        else:
            self._fail(error)

    def _can_try_next(self, error: InterlockError, *, not_executed: bool) -> bool:
        """Return whether the next driver may be tried: the call must not be executed twice, and a
        response of a server is final."""
        if self._position + 1 >= len(self._order):
            return False
        if not_executed:
            return True
        served_contract = self._served_contract
        return isinstance(error, UpstreamLostError) and is_repeatable(
            served_contract.contract, served_contract.level
        )

    def _retry(self) -> None:
        self._retry_timer = None
        if self.is_open:
            self.start()

    def _fail(self, error: InterlockError) -> None:
        if self.is_open:
            self.is_open = False
            self._set_call_upstream()
            self._record_call(ok=False)
            # Retries were decided here. A retry of the pipeline would send the contract's arguments
            # to a driver's server.
            self._call.is_retry = True
            outcome = self._tool_error(error)
            self._handler.on_result(self._call, outcome, error if outcome is None else None)

    def _tool_error(self, error: InterlockError) -> Outcome | None:
        """Encode an error of the tool itself as a result for the model. None: the tool did not
        fail."""
        if error.failure is not UPSTREAM_ERROR or isinstance(error, UpstreamResponseError):
            return None
        details = {**(error.data or {}), "retryable": error.retryable}
        encoded = write_tool_error(error.message, aip_code(error), details)
        return Outcome(encoded, Era.SESSION, summarize_result(encoded))

    def _finish(self, outcome: Outcome, error: InterlockError | None) -> None:
        self._record_attempt(None)
        self.is_open = False
        # Break the reference cycle, so that both objects are freed at once.
        self._request = None
        self._set_call_upstream()
        self._record_call(ok=True)
        self._handler.on_result(self._call, outcome, error)

    def _record_attempt(self, error: InterlockError | None) -> None:
        assert self._driver is not None
        duration = self._upstream.clock() - self._sent_at
        self._upstream.journal.record_attempt(
            self._call, self._served_contract.contract, self._driver,
            self._order[self._position].entry,
            self._inputs, duration, error,
        )  # fmt: skip

    def _record_call(self, *, ok: bool) -> None:
        duration = self._upstream.clock() - self._call.started_at
        self._upstream.journal.record_call(
            self._call, self._served_contract.contract, self._driver, self._inputs, duration,
            self._retries,
            ok=ok,
        )  # fmt: skip

    # -- request interface of the pipeline

    def abandon(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            if self._request is not None:
                self._record_attempt(InterlockError(CANCELLED, reason))
            self._set_call_upstream()
            self._record_call(ok=False)
        self._stop_waiting()
        if self._request is not None:
            self._request.abandon(reason)

    def expire(self) -> None:
        self._stop_waiting()
        if self._request is not None:
            self._request.expire()
        else:
            name = self._served_contract.contract.id
            self._fail(
                InterlockError(DEADLINE_EXCEEDED, f"{name} was not served within its timeout.")
            )

    def _stop_waiting(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

    def reassign(self, call: Call, handler: ResponseHandler) -> None:
        self._call, self._handler = call, handler
        self._dispatched_before = True

    def _set_call_upstream(self) -> None:
        """Set the driver as the upstream of the finished call. Not earlier: client requests of the
        server belong to a call of the contract."""
        if self._driver is not None:
            self._call.upstream = self._driver.key


class CodeRequest(PendingRequestBase):
    """A call that a driver's own code serves."""

    def __init__(
        self,
        body: Coroutine[Any, Any, Any],
        over: Callable[[Any, InterlockError | None], None],
    ) -> None:
        """Args:
        over: called once, with the value or the error.
        """
        self._finish = over
        self.is_open = True
        self._task = asyncio.get_running_loop().create_task(body)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._finish(task.result(), None)
        elif isinstance(error, InterlockError):
            self._finish(None, error)
        else:
            _log.error("drivers: unexpected exception in the code of a driver", exc_info=error)
            self._finish(
                None, InterlockError(INTERNAL, f"The driver failed ({type(error).__name__}).")
            )

    def abandon(self, reason: str) -> None:
        self.is_open = False
        self._task.cancel()

    def expire(self) -> None:
        if self.is_open:
            self.is_open = False
            self._task.cancel()
            self._finish(
                None,
                InterlockError(DEADLINE_EXCEEDED, "The driver did not finish within the timeout."),
            )


def _is_no_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") != "text"


def _require_usable(binding: DriverBinding) -> None:
    """Check the binding after the server has listed its tools. Raises InterlockError."""
    if not binding.is_usable:
        raise InterlockError(
            TOOL_UNAVAILABLE,
            " ".join((*binding.file_problems, *binding.problems)),
            {"contract": binding.contract.id},
        )


def _require_allowed_level(call: Call, binding: DriverBinding) -> None:
    """Check that the tool's effect is not higher than the effect that was authorized. The tool's
    annotations may have changed. Raises InterlockError."""
    authorized = LEVELS.get(call.effect)
    if authorized is not None and binding.level > authorized:
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"The tool that serves {binding.contract.id} now declares that it is "
            f"{binding.level.label}. This was not known when the call was authorized. Repeat the "
            "call; it is authorized by the new effect.",
            {"contract": binding.contract.id},
        )


# -- Input requests: the state that identifies the driver that sent the request.
#
# The caller repeats the call with its responses. By then another driver may be selected, or the
# driver may have changed. The request state names the driver. It is sealed on the way to the
# caller, so nobody else can create one.


class InputRequestState(msgspec.Struct, frozen=True):
    """The driver that sent an input request, and the request state of its server."""

    driver: str
    """Key of the driver's manifest."""
    digest: str
    state: str | None = None

    def matches(self, driver: Driver) -> bool:
        return self.driver == driver.manifest.key and self.digest == driver.digest


def with_request_state(driver: Driver, outcome: Outcome) -> Outcome:
    """Add the driver to the request state of an input request. An unreadable result stays
    unchanged: the next stage reports it."""
    glance = outcome.summary
    if glance is None or glance.result_type != INPUT_REQUIRED:
        return outcome
    try:
        input_request = read_input_request(outcome.result)
    except ProtocolError:
        return outcome
    request_state = InputRequestState(driver.manifest.key, driver.digest, input_request.state)
    state = msgspec.json.encode(request_state).decode()
    return Outcome(replace_state(outcome.result, state), outcome.era, glance)


def read_request_state(call: Call) -> InputRequestState | None:
    """Read the request state of a call. None: the call has none. Raises InterlockError if the state
    is not valid."""
    raw = None if call.extra_params is None else call.extra_params.get(REQUEST_STATE)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(decode_value(raw), type=InputRequestState)
    except (msgspec.DecodeError, ProtocolError, TypeError):
        raise stale_request_state_error() from None


def extra_params(call: Call, request_state: InputRequestState | None) -> dict[str, Raw] | None:
    """Return the parameters beside the arguments: the server gets its own request state back."""
    if request_state is None or call.extra_params is None:
        return call.extra_params
    params = {name: value for name, value in call.extra_params.items() if name != REQUEST_STATE}
    if request_state.state is not None:
        params[REQUEST_STATE] = Raw(encode_value(request_state.state))
    return params or None


def stale_request_state_error() -> InterlockError:
    """Return the error for a request state whose driver was removed or changed. No other driver
    gets the responses."""
    return InterlockError(
        INVALID_STATE,
        "The driver that requested this input was removed or changed. Make the call again without "
        "`requestState`.",
        {"reason": "invalid_request_state"},
    )
