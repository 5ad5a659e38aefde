"""One call of a contract on its way: the driver that has it now, and who is next if that fails."""

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
"""In the `_meta` of a result whose contract is on its way out."""
_DRIVER_FAILURES: Final = frozenset(
    failure.name
    for failure in (
        AUTH_REQUIRED, AUTH_FAILED, INSTALL_FAILED, VERSION_MISMATCH, TOOL_UNAVAILABLE,
        SANDBOX_UNAVAILABLE, TOO_BUSY, CIRCUIT_OPEN,
    )
)  # fmt: skip
"""What is wrong with one driver, so that another may serve a call that was not dispatched. Of one
that was, these names say nothing: a hook may say of an answer whatever it likes."""
_UNAUTHORIZED: Final = 401
_log = logging.getLogger("interlock.drivers")
_RETRYABLE_ERROR: Final = InterlockError(UPSTREAM_UNAVAILABLE, "")
"""What it is worth trying again after: a server that went away may be back."""


class DriverRoute(msgspec.Struct):
    """Where a contract's call leads: one tool of a driver's server."""

    canonical: str
    upstream: str
    upstream_name: str
    upstream_name_json: bytes
    header_params: tuple[HeaderParam, ...] = ()
    declared_timeout: float | None = None
    route_members: bytes = b""


class ContractExchange:
    """Stands for the call until it is answered, given up, or every driver has failed."""

    def __init__(
        self,
        upstream: ContractUpstream,
        call: Call,
        back: ResponseHandler,
        served: ServedContract,
        inputs: Mapping[str, Any],
        context: Any,
        order: tuple[Candidate, ...],
        request_state: InputRequestState | None = None,
    ) -> None:
        """`request_state`: whose question the call brings the answers to."""
        self._upstream = upstream
        self._call = call
        self._back = back
        self._served = served
        self._inputs = inputs
        self._context = context
        self._order = order
        self._extra = extra_params(call, request_state)
        self._place = 0
        self._attempts: CallAttempts | None = None
        """Those of the driver of now."""
        self._retries = 0
        self._driver: Driver | None = None
        self._child: Call | None = None
        self._exchange: UpstreamRequest | None = None
        self._pause: Any = None
        self._sent_at = 0.0
        self._dispatched = False
        """Whether the request to the driver of now has left."""
        self._dispatched_before = False
        """Whether a request to a driver before it had."""
        self._begun = False
        """Whether it answered, or its code began: then it may be done, whatever is said of it."""
        self._signed_in = False
        """Whether it was tried again with a new sign-in: once is enough."""
        self.is_open = True

    # -- out

    def begin(self) -> None:
        """Ask the best driver."""
        candidate = self._order[self._place]
        served = self._served
        self._dispatched = self._begun = False
        self._dispatched_before = self._call.is_dispatched
        driver = self._driver = self._upstream.driver_of(served, candidate)
        binding = driver.bindings[served.contract.key]
        call = self._call
        if self._attempts is None:
            self._attempts = CallAttempts(
                served.contract, candidate.driver, candidate.entry, served.level
            )
        self._sent_at = now = self._upstream.clock()
        self._limit(now + self._upstream.limit(served, candidate))
        if binding.executes:
            self._execute(driver, binding)
            return
        try:
            _require_allowed_level(call, binding)
            check_uris(served.contract, self._inputs, driver.roots, resolve=os.path.realpath)
            if driver.hooks is None or not driver.hooks.makes_arguments(binding):
                self._dispatch(driver, binding, binding.bound.arguments(self._inputs))
                return
        except InterlockError as error:
            self._failed(error)
            return

        def over(arguments: Any, error: InterlockError | None) -> None:
            if not self.is_open:
                return
            self._exchange = None
            try:
                if error is not None:
                    raise error
                # What its server listed meanwhile may say something else.
                _require_allowed_level(self._call, binding)
                self._dispatch(driver, binding, arguments)
            except InterlockError as failed:
                self._failed(failed)

        self._exchange = CodeRequest(
            driver.hooks.arguments(binding, self._inputs, self._context, call.caller), over
        )

    def _dispatch(
        self, driver: Driver, binding: DriverBinding, arguments: Mapping[str, Any]
    ) -> None:
        """Call the tool of the driver's server. Raises InterlockError."""
        call, served = self._call, self._served
        assert binding.entry.mcp is not None
        name = binding.entry.mcp.tool_name
        self._child = Call(
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
            route=DriverRoute(served.contract.id, driver.key, name, encode_value(name)),
            upstream=driver.key,
            effect=call.effect,
            deadline=call.deadline,
            hard_deadline=call.hard_deadline,
            timeout=call.timeout,
        )
        driver.calls += 1
        child = self._child
        self._exchange = driver.start(child, self, partial(self._hand_over, binding))
        if child.is_dispatched:
            self._dispatched = call.is_dispatched = True

    def _hand_over(self, binding: DriverBinding) -> None:
        """The server is there, and is about to hear of the call. Raises InterlockError."""
        _require_usable(binding)
        _require_allowed_level(self._call, binding)
        self._dispatched = self._call.dispatched = True

    def _limit(self, end: float) -> None:
        """However much progress there is: the contract's time is a ceiling."""
        call = self._call
        call.deadline = min(call.deadline, end)
        if call.timeout:
            call.hard_deadline = min(call.hard_deadline, end)

    def _execute(self, driver: Driver, binding: DriverBinding) -> None:
        """Have driver.py serve it."""
        driver.calls += 1
        self._begun = self._call.is_dispatched = True

        def over(value: Any, error: InterlockError | None) -> None:
            if not self.is_open:
                return
            if error is not None:
                self._failed(error)
            else:
                made = self._result({}, value)
                self._over(Outcome(made, Era.SESSION, summarize_result(made)), None)

        self._exchange = CodeRequest(
            driver.hooks.execute(binding, self._inputs, self._context, self._call.caller), over
        )

    # -- back: what the driver's server says

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        driver = self._driver
        if call is not self._child or driver is None or not self.is_open:
            return
        self._child = None
        self._dispatched = call.is_dispatched
        if error is not None:
            if isinstance(error, UpstreamGoneError):
                if driver.needs_sign_in(error):
                    self._sign_in(driver, error)
                    return
                driver.on_unreachable(error.message)
            self._failed(error)
            return
        assert outcome is not None
        self._begun = self._call.dispatched = True
        driver.on_response()
        glance = outcome.glance
        if glance is not None and glance.result_type and glance.result_type != COMPLETE:
            # It wants to know something first: that is between it and the caller, and what comes
            # then is a call of the contract again, which goes to it and to nobody else.
            self._record(None)
            self.is_open = False
            self._exchange = None
            self._back.settled(self._call, with_request_state(driver, outcome), None)
            return
        binding = driver.bindings[self._served.contract.key]
        try:
            result = decode_value(outcome.result)
            if driver.hooks is not None and driver.hooks.parses_results:
                self._parse(driver, binding, result)
                return
            value = binding.bound.value(result).value
        except InterlockError as unusable:
            self._failed(unusable)
            return
        made = self._result(result, value)
        self._over(Outcome(made, Era.SESSION, summarize_result(made)), None)

    def _parse(self, driver: Driver, binding: DriverBinding, result: Any) -> None:
        """Have driver.py find the contract's value."""

        def over(value: Any, error: InterlockError | None) -> None:
            if not self.is_open:
                return
            if error is not None:
                self._failed(error)
                return
            made = self._result(result, value, parsed=True)
            self._over(Outcome(made, Era.SESSION, summarize_result(made)), None)

        self._exchange = CodeRequest(driver.hooks.value(binding, result, self._context), over)

    def _sign_in(self, driver: Driver, refused: UpstreamLostError) -> None:
        """The driver was refused: with a new sign-in, if that is to be had, it may go on."""
        self._dispatched = self._dispatched and refused.status != _UNAUTHORIZED

        def over(_: Any, error: InterlockError | None) -> None:
            if not self.is_open:
                return
            if error is not None:
                self._failed(error)
            elif self._signed_in or self._dispatched:
                self._failed(refused)
            else:
                self._signed_in = True
                self._retries += 1
                self._record(refused)
                self.begin()

        self._exchange = CodeRequest(driver.ensure_signed_in(), over)

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        if self.is_open and call is self._child:
            self._back.on_notification(self._call, method, params)

    def on_request(
        self, ask: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        self._back.on_request(ask, self._call if call is self._child else call, session)

    def _result(self, result: Any, value: Any, *, parsed: bool = False) -> bytes:
        """The contract's output as the result of a tool. `parsed`: driver.py made it, which has
        seen all of the answer and chosen."""
        told: dict[str, Any] = {}
        blocks = result.get("content")
        whole = isinstance(value, dict) and value.keys() == {"content"} and "content" in result
        if whole and (not parsed or value["content"] == blocks):
            # Pictures and the like stay what they are.
            told["content"] = blocks
        else:
            text = value if isinstance(value, str) else encode_value(value).decode()
            others = () if parsed or not isinstance(blocks, list) else blocks
            # What is no text is in no contract's value, and is no less of the answer for that.
            told["content"] = [{"type": "text", "text": text}, *filter(_is_no_text, others)]
        if isinstance(value, dict):
            told["structuredContent"] = value
        told["isError"] = False
        deprecation = self._served.deprecation
        if deprecation is not None:
            told["_meta"] = {META_DEPRECATION: deprecation.notice()}
        return encode_value(told)

    # -- when it fails

    def _failed(self, error: InterlockError) -> None:
        self._record(error)
        assert self._driver is not None
        child = self._child
        if child is not None:
            # It could not be sent, and the driver said so at once.
            self._dispatched = child.is_dispatched
        dispatched = self._begun or self._dispatched
        self._call.is_dispatched = dispatched or self._dispatched_before
        self._child, self._exchange = None, None
        if error.failure is DEADLINE_EXCEEDED:
            self._end(error)
            return
        assert self._attempts is not None
        gone = isinstance(error, UpstreamLostError)
        # What is wrong with the call itself is wrong for every driver.
        untouched = not dispatched and (gone or error.failure.name in _DRIVER_FAILURES)
        pause = self._attempts.again(_RETRYABLE_ERROR if gone else error, executed=not untouched)
        if pause is not None:
            self._retries += 1
            self._pause = self._upstream.call_later(pause, self._again)
        elif self._can_try_next(error, untouched=untouched):
            self._place += 1
            self._attempts = None
            self._retries += 1
            self.begin()
        else:
            self._end(error)

    def _can_try_next(self, error: InterlockError, *, untouched: bool) -> bool:
        """Whether the next driver is asked: it must not be done twice, and a server that answered
        has answered."""
        if self._place + 1 >= len(self._order):
            return False
        if untouched:
            return True
        served = self._served
        return isinstance(error, UpstreamGoneError) and is_repeatable(served.contract, served.level)

    def _again(self) -> None:
        self._pause = None
        if self.is_open:
            self.begin()

    def _end(self, error: InterlockError) -> None:
        if self.open:
            self.open = False
            self._set_call_upstream()
            self._record_call(ok=False)
            # Where it may go once more was decided here; the pipeline would send the contract's own
            # words to the server of a driver.
            self._call.is_retry = True
            told = self._told(error)
            self._back.on_result(self._call, told, error if told is None else None)

    def _told(self, error: InterlockError) -> Outcome | None:
        """What the tool itself says that went wrong, as the result that a model reads. None: it is
        not the tool that failed."""
        if error.failure is not UPSTREAM_ERROR or isinstance(error, UpstreamResponseError):
            return None
        about = {**(error.data or {}), "retryable": error.retryable}
        made = write_tool_error(error.message, aip_code(error), about)
        return Outcome(made, Era.SESSION, summarize_result(made))

    def _over(self, outcome: Outcome, error: InterlockError | None) -> None:
        self._record(None)
        self.is_open = False
        # It and its request point at each other: taken apart, they are freed at once.
        self._exchange = None
        self._set_call_upstream()
        self._record_call(ok=True)
        self._back.settled(self._call, outcome, error)

    def _record(self, error: InterlockError | None) -> None:
        assert self._driver is not None
        took = self._upstream.clock() - self._sent_at
        self._upstream.journal.invoked(
            self._call, self._served.contract, self._driver, self._order[self._place].entry,
            self._inputs, took, error,
        )  # fmt: skip

    def _record_call(self, *, ok: bool) -> None:
        took = self._upstream.clock() - self._call.started
        self._upstream.journal.tool(
            self._call, self._served.contract, self._driver, self._inputs, took, self._retries,
            ok=ok,
        )  # fmt: skip

    # -- what the pipeline wants of it

    def abandon(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            if self._exchange is not None:
                self._record(InterlockError(CANCELLED, reason))
            self._set_call_upstream()
            self._record_call(ok=False)
        self._stop_waiting()
        if self._exchange is not None:
            self._exchange.abandon(reason)

    def expire(self) -> None:
        self._stop_waiting()
        if self._exchange is not None:
            self._exchange.expire()
        else:
            name = self._served.contract.id
            self._end(InterlockError(DEADLINE_EXCEEDED, f"{name} was not served in time."))

    def _stop_waiting(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def reassign(self, call: Call, back: ResponseHandler) -> None:
        self._call, self._back = call, back
        self._dispatched_before = True

    def _set_call_upstream(self) -> None:
        """The call is over: it was this driver's. Not before: what its server asks on the way is
        asked in a call of the contract."""
        if self._driver is not None:
            self._call.upstream = self._driver.key


class CodeRequest(PendingRequestBase):
    """A call that a driver's own code serves."""

    def __init__(
        self,
        body: Coroutine[Any, Any, Any],
        over: Callable[[Any, InterlockError | None], None],
    ) -> None:
        """`over` is told once: the value, or the error."""
        self._over = over
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
            self._over(task.result(), None)
        elif isinstance(error, InterlockError):
            self._over(None, error)
        else:
            _log.error("a driver's code failed", exc_info=error)
            self._over(
                None, InterlockError(INTERNAL, f"The driver failed ({type(error).__name__}).")
            )

    def abandon(self, reason: str) -> None:
        self.is_open = False
        self._task.cancel()

    def expire(self) -> None:
        if self.is_open:
            self.is_open = False
            self._task.cancel()
            self._over(None, InterlockError(DEADLINE_EXCEEDED, "The driver was not done in time."))


def _is_no_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") != "text"


def _require_usable(binding: DriverBinding) -> None:
    """The server is there, and may have listed something else than is needed. Raises
    InterlockError."""
    if not binding.is_usable:
        raise InterlockError(
            TOOL_UNAVAILABLE,
            " ".join((*binding.file_problems, *binding.problems)),
            {"contract": binding.contract.id},
        )


def _require_allowed_level(call: Call, binding: DriverBinding) -> None:
    """The rules let the call through as what it was known to be; what its tool says of itself since
    it was listed may be worse. Raises InterlockError."""
    judged = LEVELS.get(call.effect)
    if judged is not None and binding.level > judged:
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"The tool that serves {binding.contract.id} says of itself that it is "
            f"{binding.level.label}, which was not known when this call was allowed. Call again: "
            "it is judged by that now.",
            {"contract": binding.contract.id},
        )


# -- Which driver asked: a server that wants to know something first gets the answers itself.
#
# Its call is made again with what its caller answered, and by then another driver might be the
# better one, or the same one might have other files. So the state that comes back says who asked.
# On the way to a caller it is sealed, as every state is: nobody else can write it.


class InputRequestState(msgspec.Struct, frozen=True):
    """The driver that asked, as it was, and the state of its server."""

    driver: str
    """The key of its manifest."""
    digest: str
    state: str | None = None

    def matches(self, driver: Driver) -> bool:
        return self.driver == driver.manifest.key and self.digest == driver.digest


def with_request_state(driver: Driver, outcome: Outcome) -> Outcome:
    """A result that asks for input, with a state that says who asks. What cannot be read is left as
    it is: whoever passes it on says so."""
    glance = outcome.summary
    if glance is None or glance.result_type != INPUT_REQUIRED:
        return outcome
    try:
        needed = read_input_request(outcome.result)
    except ProtocolError:
        return outcome
    request_state = InputRequestState(driver.manifest.key, driver.digest, needed.state)
    state = msgspec.json.encode(request_state).decode()
    return Outcome(replace_state(outcome.result, state), outcome.era, glance)


def read_request_state(call: Call) -> InputRequestState | None:
    """Who asked, when a call brings answers. Raises InterlockError for a state that is none of
    ours."""
    raw = None if call.extra_params is None else call.extra_params.get(REQUEST_STATE)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(decode_value(raw), type=InputRequestState)
    except (msgspec.DecodeError, ProtocolError, TypeError):
        raise gone() from None


def extra_params(call: Call, request_state: InputRequestState | None) -> dict[str, Raw] | None:
    """What beside the arguments is passed on to the server: its own state, as it gave it."""
    if request_state is None or call.extra is None:
        return call.extra
    given = {name: value for name, value in call.extra.items() if name != REQUEST_STATE}
    if request_state.state is not None:
        given[REQUEST_STATE] = Raw(encode_value(request_state.state))
    return given or None


def gone() -> InterlockError:
    """Whoever asked is not there any more as it was: nobody else gets the answers."""
    return InterlockError(
        INVALID_STATE,
        "The driver that asked for this is no longer there, or is another by now: make the call "
        "again without `requestState`.",
        {"reason": "invalid_request_state"},
    )
