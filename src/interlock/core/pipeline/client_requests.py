"""Client requests of upstreams: checks, relay to clients, suspended calls and input rounds.

An upstream may send client requests: sampling, elicitation and roots. The client must have declared
the capability, and the config must allow it. Requests and their results are journaled.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.call import (
    Call,
    Client,
    ClientRequest,
    ClientResponse,
    ClientSession,
    Outcome,
    UpstreamResponseError,
)
from interlock.core.deferred_request import PendingRequestBase
from interlock.core.journal.audit import ANSWERED, ASKED, REFUSED, WITHDRAWN, Audit
from interlock.core.ports import Clock, ResponseHandler, UpstreamRequest
from interlock.errors import (
    DEADLINE_EXCEEDED,
    FORBIDDEN,
    MISSING_CLIENT_CAPABILITY,
    UPSTREAM_PROTOCOL,
    InterlockError,
    ProtocolError,
)
from interlock.primitives.backoff import exponential_delay
from interlock.protocol.input_required import (
    INPUT_RESPONSES,
    REQUEST_STATE,
    InputRequest,
    read_input_request,
    to_session_params,
    write_input_request,
)
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import CLIENT_REQUESTS, ELICITATION, SAMPLING, TASKS_EXTENSION, Era

_METHOD_NOT_FOUND: Final = -32601
_INVALID_PARAMS: Final = -32602
_REJECTED: Final = -1
"""The error code of a client whose user rejected the request."""
_ACTIONS: Final = frozenset({"accept", "decline", "cancel"})

_log = logging.getLogger("interlock.pipeline")


class ClientRequestPolicy(msgspec.Struct, frozen=True):
    """The client requests that an upstream may send."""

    sampling: bool = True
    elicitation: bool = True
    roots: bool = True
    max_tokens: int | None = None
    """The maximum of `maxTokens` in a sampling request."""


ALLOW_ALL: Final = ClientRequestPolicy()


class ClientRequestRejection(msgspec.Struct, frozen=True):
    """The reason why a client request is rejected, as a JSON-RPC error."""

    code: int
    message: str
    missing: dict[str, Any] | None = None
    """The capability that the client would have to declare."""

    def to_error(self) -> InterlockError:
        """Return the error for the call that led to the client request."""
        if self.missing is not None:
            data = {"requiredCapabilities": self.missing}
            return InterlockError(MISSING_CLIENT_CAPABILITY, self.message, data)
        if self.code == _REJECTED:
            return InterlockError(FORBIDDEN, self.message)
        return InterlockError(
            UPSTREAM_PROTOCOL, f"The server sent an invalid client request: {self.message}"
        )


class ClientRequestFilter:
    """Checks client requests before they are sent, and journals their results."""

    def __init__(
        self, policy: Callable[[str], ClientRequestPolicy], audit: Audit, clock: Clock
    ) -> None:
        """
        Args:
            policy: returns the policy of an upstream, by its key.
        """
        self._policy = policy
        self._audit = audit
        self._clock = clock

    def track(
        self,
        client_request: ClientRequest,
        call: Call | None,
        session: ClientSession | None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Journal the end of a client request. `on_end` is called afterwards."""
        began = self._clock()

        def on_request_end(response: ClientResponse | str) -> None:
            if isinstance(response, str):
                outcome, detail = WITHDRAWN, response
            elif response.is_error:
                outcome, detail = REFUSED, response.message
            else:
                outcome, detail = ANSWERED, _action(client_request.method, response.result)
            self._write(client_request, call, session, outcome, began, detail)
            if on_end is not None:
                on_end()

        client_request.on_end = on_request_end

    def record_relayed(self, client_request: ClientRequest, call: Call) -> None:
        """Journal a client request whose response comes with a later request of the client."""
        self._write(client_request, call, None, ASKED, self._clock(), "")

    def _write(
        self,
        client_request: ClientRequest,
        call: Call | None,
        session: ClientSession | None,
        outcome: str,
        began: float,
        detail: str,
    ) -> None:
        caller = "" if session is None else session.owner
        server = subject = ""
        if call is not None:
            caller = caller if call.caller is None else call.caller.name
            server, subject = call.server, call.name if call.route is None else call.route.canonical
        try:
            self._audit.record_client_request(
                client_request.method,
                caller=caller,
                face=server,
                name=subject,
                upstream=client_request.upstream,
                outcome=outcome,
                duration_us=int((self._clock() - began) * 1e6),
                detail=detail,
            )
        except Exception:
            # The response must reach the server, even if the journal fails.
            _log.exception(
                "client request %.100r: cannot write the journal entry", client_request.method
            )

    def check(
        self, client_request: ClientRequest, client: Client, upstream: str
    ) -> ClientRequestRejection | None:
        """Check a client request, and limit its params. Return the rejection. None: allowed."""
        capability = CLIENT_REQUESTS.get(client_request.method)
        if capability is None:
            return ClientRequestRejection(
                _METHOD_NOT_FOUND, f"{client_request.method} is not a client request."
            )
        policy = self._policy(upstream)
        if not getattr(policy, capability):
            return ClientRequestRejection(
                _REJECTED, f"This node does not allow {capability} requests of this server."
            )
        try:
            params = decode_members(client_request.params) if client_request.params else {}
        except ProtocolError:
            return ClientRequestRejection(_INVALID_PARAMS, "`params` must be an object.")
        rejection = _find_missing(
            client_request.method, params, capabilities_of(client.capabilities)
        )
        if rejection is not None:
            return rejection
        if client_request.method == SAMPLING and policy.max_tokens is not None:
            _limit_tokens(client_request, params, policy.max_tokens)
        return None


def probe_request(method: str, params: bytes, upstream: str) -> ClientRequest:
    """Return a client request that is only checked. Its response arrives in another request."""
    return ClientRequest(method, params, _ignore_response, upstream)


def _ignore_response(response: ClientResponse) -> None:
    """Ignore the response: it arrives in another request."""


@lru_cache(maxsize=4096)
def capabilities_of(raw: bytes) -> dict[str, Any]:
    """Decode the capabilities of a client. Empty if they are invalid."""
    try:
        capabilities = decode_value(raw)
    except ProtocolError:
        return {}
    return capabilities if isinstance(capabilities, dict) else {}


def supports_tasks(client: Client) -> bool:
    """Return whether the client accepts a task in place of a result."""
    extensions = capabilities_of(client.capabilities).get("extensions")
    return isinstance(extensions, dict) and TASKS_EXTENSION in extensions


def shared_capabilities(call: Call, offered: Mapping[str, Any]) -> bool:
    """Return whether client and server share an extension to which an unknown method may belong."""
    declared = capabilities_of(call.client.capabilities)
    client_extensions, server_extensions = declared.get("extensions"), offered.get("extensions")
    if not isinstance(client_extensions, dict) or not isinstance(server_extensions, dict):
        return False
    # The node knows all methods of tasks: an unknown method does not belong to them.
    return bool(client_extensions.keys() & server_extensions.keys() - {TASKS_EXTENSION})


def _find_missing(
    method: str, params: dict[str, Raw], declared: dict[str, Any]
) -> ClientRequestRejection | None:
    """Return the rejection if the client lacks the capability for a request."""
    capability = CLIENT_REQUESTS[method]
    supported = declared.get(capability)
    mode = _text(params.get("mode")) or "form"
    if not isinstance(supported, dict):
        by_url = method == ELICITATION and mode == "url"
        missing: dict[str, Any] = {capability: {"url": {}} if by_url else {}}
        return ClientRequestRejection(
            _METHOD_NOT_FOUND, f"The client does not support {capability}.", missing
        )
    if (
        method == SAMPLING
        and ("tools" in params or "toolChoice" in params)
        and "tools" not in supported
    ):
        missing = {"sampling": {"tools": {}}}
        return ClientRequestRejection(
            _INVALID_PARAMS, "The client does not support sampling with tools.", missing
        )
    # A capability without modes means `form`, as in older revisions.
    if (
        method == ELICITATION
        and mode not in supported
        and not (mode == "form" and "url" not in supported)
    ):
        if mode not in ("form", "url"):
            return ClientRequestRejection(
                _INVALID_PARAMS, f"Unknown elicitation mode {mode[:20]!r}."
            )
        missing = {"elicitation": {mode: {}}}
        return ClientRequestRejection(
            _INVALID_PARAMS, f"The client does not support elicitation mode {mode}.", missing
        )
    return None


def _limit_tokens(client_request: ClientRequest, params: dict[str, Raw], limit: int) -> None:
    try:
        tokens = decode_value(params["maxTokens"])
    except (KeyError, ProtocolError):
        tokens = None
    if not isinstance(tokens, int | float) or isinstance(tokens, bool) or tokens > limit:
        params["maxTokens"] = Raw(b"%d" % limit)
        client_request.params = encode_members(params)


def _action(method: str, result: bytes) -> str:
    """Return the action of an elicitation response. Only the action is not confidential."""
    if method != ELICITATION:
        return ""
    try:
        action = _text(decode_members(result).get("action"))
    except ProtocolError:
        return ""
    return action if action in _ACTIONS else ""


def _text(raw: Raw | None) -> str | None:
    if raw is None:
        return None
    try:
        value = decode_value(raw)
    except ProtocolError:
        return None
    return value if isinstance(value, str) else None


# -- A stateless client in front of a session server: suspended calls.
#
# A session server sends a client request during a call and waits for the response. A stateless
# client cannot receive it. So the node responds to the client with the client request, while the
# call to the server stays open. The client sends its response together with the handle of the
# suspended call. The handle is sealed with the caller and the request to which it belongs. A call
# that is not continued in time is ended, and the server is notified.

MAX_SUSPENDED_CALLS: Final = 10_000
_SWEEP_SECONDS: Final = 1.0
_NO_RESPONSE: Final = "The client did not respond in time."


class SuspendedCall:
    """A call that waits for its client. It is the response handler of its server meanwhile."""

    def __init__(
        self, call: Call, handler: ResponseHandler, check: Callable[[ClientRequest], bool]
    ) -> None:
        """
        Args:
            handler: gets the result if the server responds before the client was asked.
            check: checks further client requests, and rejects those that are not allowed.
        """
        self.handle = ""
        assert call.upstream_request is not None
        self.upstream_request: UpstreamRequest = call.upstream_request
        self.expires_at = 0.0
        self.waiting_call: Call | None = call
        """The call until its client gets the response. Until then results pass through."""
        self.client_requests: dict[str, ClientRequest] = {}
        self.result: tuple[Outcome | None, InterlockError | None] | None = None
        """The result of the server, if it arrived while the call was suspended."""
        self._handler = handler
        self._check = check
        self._request_count = 0

    def add(self, client_request: ClientRequest) -> None:
        self._request_count += 1
        self.client_requests[f"input-{self._request_count}"] = client_request

    def open_requests(self) -> dict[str, tuple[str, bytes]]:
        """Return the method and the params of the open client requests, by key."""
        return {
            key: (client_request.method, client_request.params)
            for key, client_request in self.client_requests.items()
            if client_request.is_open
        }

    def respond(self, responses: dict[str, Raw]) -> None:
        for key, response in responses.items():
            client_request = self.client_requests.get(key)
            if client_request is not None:
                client_request.respond(response)
        self.client_requests = {
            key: client_request
            for key, client_request in self.client_requests.items()
            if client_request.is_open
        }

    def check_again(self, check: Callable[[ClientRequest], bool]) -> None:
        """Check the open client requests again, for the client of the new call."""
        self._check = check
        for client_request in list(self.client_requests.values()):
            if client_request.is_open:
                check(client_request)

    def cancel(self, reason: str) -> None:
        """End the call: reject its client requests and cancel it at the server. Never raises."""
        try:
            for client_request in self.client_requests.values():
                client_request.reject(-32603, reason)
            if self.result is None:
                self.upstream_request.abandon(reason)
        except Exception:
            # A broken connection must not prevent the end of the other calls.
            _log.exception("client requests: cannot cancel a suspended call at its upstream")

    # -- ResponseHandler

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        waiting, self.waiting_call = self.waiting_call, None
        if waiting is None:
            self.result = (outcome, error)
        else:
            # The server responded before the client was asked.
            self._handler.on_result(waiting, outcome, error)

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        if self.waiting_call is not None:
            self._handler.on_notification(self.waiting_call, method, params)

    def on_request(
        self, request: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        if self._check(request):
            self.add(request)


class SuspendedCalls:
    """The suspended calls, by handle."""

    def __init__(
        self,
        *,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self.seconds = seconds
        """The time for which a call stays suspended."""
        self._calls: dict[str, SuspendedCall] = {}
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def is_full(self) -> bool:
        """True if no more calls can be suspended."""
        return len(self._calls) >= MAX_SUSPENDED_CALLS

    def add(self, call: SuspendedCall) -> None:
        """Add a call under a new handle. Every handle can be used once."""
        call.handle = secrets.token_urlsafe(18)
        call.expires_at = self._clock() + self.seconds
        self._calls[call.handle] = call
        if not self._sweeping:
            self._sweeping = True
            self._call_later(_SWEEP_SECONDS, self._sweep)

    def pop(self, handle: str) -> SuspendedCall | None:
        """Remove and return the call with this handle."""
        return self._calls.pop(handle, None)

    def cancel_all(self, reason: str) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.cancel(reason)

    def _sweep(self) -> None:
        now = self._clock()
        for handle in [handle for handle, call in self._calls.items() if call.expires_at <= now]:
            self._calls.pop(handle).cancel(_NO_RESPONSE)
        self._sweeping = bool(self._calls)
        if self._sweeping:
            self._call_later(_SWEEP_SECONDS, self._sweep)


def input_required_outcome(call: SuspendedCall, state: str) -> Outcome:
    """Return the result that sends the open client requests to the client."""
    return Outcome(write_input_request(call.open_requests(), state), Era.STATELESS)


# -- A session client in front of a session server: client requests are relayed.
#
# The call stays open during a client request. A person may have to respond, so the deadline of the
# call is extended meanwhile, and a missing response does not count as a failure of the server.

MAX_CLIENT_REQUESTS: Final = 100
"""Maximum number per call, so that a server cannot keep a call open without a limit."""
_DEADLINE_PASSED: Final = "The deadline has passed."
_GRACE_SECONDS: Final = 5.0
"""A client request expires this long after its call, so that the deadline of the call is first."""
_REQUEST_EXPIRED: Final = "The client did not respond in time."


class ClientRequestRelay:
    """Relays client requests to connected clients during a call."""

    def __init__(
        self,
        *,
        request_filter: ClientRequestFilter,
        pause: Callable[[Call], None],
        resume: Callable[[Call], None],
        fail: Callable[[Call, InterlockError], None],
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        self._filter = request_filter
        self._call_later = call_later
        self._seconds = seconds
        self._pause = pause
        self._resume = resume
        self._fail = fail

    def send(
        self, client_request: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        """Send a client request that was checked."""
        target = session
        if call is not None:
            call.input_rounds += 1
            if call.input_rounds > MAX_CLIENT_REQUESTS:
                client_request.reject(
                    -32603, f"More than {MAX_CLIENT_REQUESTS} client requests in one call."
                )
                return
        # The timer also runs after the end of the call: the server always gets a response.
        timer = self._call_later(
            self._seconds + _GRACE_SECONDS, lambda: client_request.fail(-32603, _REQUEST_EXPIRED)
        )
        if call is None or call.upstream_request is None:
            self._filter.track(client_request, call, session, timer.cancel)
        else:
            target = call.session or session
            on_end = self._input_wait(call).add()

            def then() -> None:
                # Withdrawn client requests must not fill the memory with timers.
                timer.cancel()
                on_end()

            self._filter.track(client_request, call, target, then)
            self._pause(call)
        if target is None or not target.send_request(client_request, call):
            client_request.reject(-32603, "The client cannot be reached now.")

    def _input_wait(self, call: Call) -> ClientInputWait:
        request = call.upstream_request
        if isinstance(request, ClientInputWait):
            return request
        assert request is not None
        call.upstream_request = wait = ClientInputWait(call, request, self._resume, self._fail)
        return wait


class ClientInputWait:
    """The upstream request of a call with open client requests."""

    def __init__(
        self,
        call: Call,
        request: UpstreamRequest,
        resume: Callable[[Call], None],
        fail: Callable[[Call, InterlockError], None],
    ) -> None:
        self._call = call
        self._request = request
        self._resume = resume
        self._fail = fail
        self._open_requests = 0

    def add(self) -> Callable[[], None]:
        """Count a client request. Return the callback for its end."""
        self._open_requests += 1
        return self._on_request_end

    def _on_request_end(self) -> None:
        self._open_requests -= 1
        if self._open_requests == 0 and self._call.upstream_request is self:
            self._call.upstream_request = self._request
            self._resume(self._call)

    @property
    def is_open(self) -> bool:
        return self._request.is_open

    def abandon(self, reason: str) -> None:
        self._request.abandon(reason)

    def reassign(self, call: Call, handler: ResponseHandler) -> None:
        self._request.reassign(call, handler)

    def expire(self) -> None:
        call = self._call
        self._request.abandon(_DEADLINE_PASSED)
        self._fail(
            call,
            InterlockError(
                DEADLINE_EXCEEDED,
                f"The client did not respond to {call.upstream} in time.",
                {"upstream": call.upstream},
            ),
        )


# -- A session client in front of a stateless server: input rounds.
#
# A stateless server that needs input returns its client requests as a result, and expects the same
# request again with the responses. The node sends the client requests to the session client while
# its call stays open, and then sends the request again, up to a limit of rounds. If a server only
# returns state, its request is sent again after a short wait.

MAX_INPUT_ROUNDS: Final = 10
_FIRST_WAIT_SECONDS: Final = 0.05
_MAX_WAIT_SECONDS: Final = 0.25


class InputRounds:
    """Sends calls again with the input that their server requested."""

    def __init__(
        self,
        *,
        request_filter: ClientRequestFilter,
        send: Callable[[Call], None],
        fail: Callable[[Call, InterlockError], None],
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._filter = request_filter
        self._send = send
        self._fail = fail
        self._call_later = call_later

    def start_round(self, call: Call, result: bytes) -> None:
        """Start another input round. Raises InterlockError if the call cannot continue."""
        call.input_rounds += 1
        if call.input_rounds > MAX_INPUT_ROUNDS:
            raise InterlockError(
                UPSTREAM_PROTOCOL,
                f"The upstream {call.upstream} requested more input after {MAX_INPUT_ROUNDS} "
                "rounds.",
            )
        needed = read_input_request(result)
        call.upstream_request = input_round = InputRound(self, call, needed)
        if needed.requests:
            input_round.send_requests(self._filter)
        else:
            wait = exponential_delay(call.input_rounds - 1, _FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS)
            self._call_later(wait, input_round.resume)

    def resume(self, call: Call, needed: InputRequest, responses: dict[str, Raw]) -> None:
        """Send the request again, with all client responses."""
        params = dict(call.extra_params or {})
        params.pop(INPUT_RESPONSES, None)
        params.pop(REQUEST_STATE, None)
        if needed.requests:
            params[INPUT_RESPONSES] = Raw(encode_members(responses))
        if needed.state is not None:
            params[REQUEST_STATE] = Raw(encode_value(needed.state))
        call.extra_params = params or None
        self._send(call)

    def fail(self, call: Call, error: InterlockError) -> None:
        self._fail(call, error)


class InputRound(PendingRequestBase):
    """One input round: the upstream request of a call while its client is asked."""

    def __init__(self, rounds: InputRounds, call: Call, needed: InputRequest) -> None:
        self._rounds = rounds
        self._call = call
        self._needed = needed
        self._responses: dict[str, Raw] = {}
        self._client_requests: list[ClientRequest] = []
        self.is_open = True

    def send_requests(self, request_filter: ClientRequestFilter) -> None:
        call = self._call
        session = call.session
        for key, (method, params) in self._needed.requests.items():
            session_params = to_session_params(
                method, params, call.client.revision, secrets.token_urlsafe(12)
            )
            client_request = ClientRequest(
                method, session_params, self._response_callback(key), call.upstream
            )
            request_filter.track(client_request, call, session)
            rejection = request_filter.check(client_request, call.client, call.upstream)
            if rejection is not None:
                self.is_open = False
                client_request.reject(rejection.code, rejection.message)
                raise UpstreamResponseError(rejection.code, rejection.message, None)
            self._client_requests.append(client_request)
        for client_request in self._client_requests:
            if not self.is_open:
                return
            if session is None or not session.send_request(client_request, call):
                self._end("The client cannot be reached.")
                raise InterlockError(
                    UPSTREAM_PROTOCOL,
                    f"The upstream {call.upstream} requested input, and the client cannot be "
                    "reached.",
                )

    def _response_callback(self, key: str) -> Callable[[ClientResponse], None]:
        def on_response(response: ClientResponse) -> None:
            if not self.is_open:
                return
            if response.is_error:
                # A stateless server cannot get an error response: the call ends with it.
                self._end("Another client request was rejected.")
                error = UpstreamResponseError(response.code, response.message, response.data)
                self._rounds.fail(self._call, error)
                return
            if response.result[:1] != b"{":
                self._end("Another client request got an invalid response.")
                message = "The response of the client to a client request is not an object."
                self._rounds.fail(self._call, UpstreamResponseError(-32602, message, None))
                return
            self._responses[key] = Raw(response.result)
            if len(self._responses) == len(self._needed.requests):
                self.resume()

        return on_response

    def resume(self) -> None:
        if self.is_open:
            self.is_open = False
            self._rounds.resume(self._call, self._needed, self._responses)

    def _end(self, reason: str) -> None:
        self.is_open = False
        for client_request in self._client_requests:
            client_request.withdraw(reason)

    def abandon(self, reason: str) -> None:
        if self.is_open:
            self._end(reason)

    def expire(self) -> None:
        if self.is_open:
            self._end("The deadline has passed.")
            self._rounds.fail(
                self._call,
                InterlockError(
                    DEADLINE_EXCEEDED,
                    f"The client did not respond to {self._call.upstream} in time.",
                    {"upstream": self._call.upstream},
                ),
            )
