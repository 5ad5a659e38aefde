"""Routes client requests (sampling, elicitation, roots) of upstreams, by protocol generation.

    client      server      the client request
    session     session     goes to the client, the response to the server (`ClientRequestRelay`)
    session     stateless   goes to the client; the call is sent again with it (`InputRounds`)
    stateless   session     is the response to the call, which is suspended (`SuspendedCalls`), or
                            becomes a task if the client supports tasks (`tasks`)
    stateless   stateless   passes through, its state sealed and bound to the caller

The classes are in `client_requests.py`.

The protocol generation of each side decides. The node never repeats a call that may have been
executed: only a server that requested input gets the same request again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from interlock.core.call import (
    Call,
    Client,
    ClientRequest,
    ClientSession,
    Outcome,
    UpstreamResponseError,
)
from interlock.core.pipeline.client_requests import (
    ClientInputWait,
    ClientRequestFilter,
    ClientRequestRelay,
    InputRound,
    InputRounds,
    SuspendedCall,
    SuspendedCalls,
    input_required_outcome,
    probe_request,
)
from interlock.core.pipeline.internal_error import internal_error
from interlock.core.pipeline.request_state import StateSealer, stale_state_error
from interlock.core.pipeline.tasks import Tasks
from interlock.core.ports import CallHost, Clock
from interlock.errors import INTERNAL_ERROR_TEXT, UPSTREAM_PROTOCOL, InterlockError, ProtocolError
from interlock.protocol.input_required import (
    INPUT_RESPONSES,
    REQUEST_STATE,
    read_input_request,
    read_input_responses,
    replace_params,
    replace_state,
    write_input_request,
)
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import (
    ELICITATION,
    INPUT_METHODS,
    INPUT_REQUIRED,
    TASK,
    TASK_METHODS,
    TOOLS_CALL,
    Era,
)

INPUT_SECONDS: Final = 600.0
"""The time that a client response may take, and how long a suspended call waits for its client."""
_BATCH_SECONDS: Final = 0.03
"""The time to wait for more client requests of a call, to send them to the client together."""
_URL_ELICITATION_REQUIRED: Final = -32042
"""The error of a session server whose user must visit a URL before the call can start."""

_log = logging.getLogger("interlock.pipeline")


class ClientInput:
    """Routes client requests to clients, and their responses to upstreams."""

    def __init__(
        self,
        host: CallHost,
        *,
        request_filter: ClientRequestFilter,
        seals: StateSealer,
        clock: Clock,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        self._host = host
        self._filter = request_filter
        self._seals = seals
        self._clock = clock
        self._call_later = call_later
        self._seconds = seconds
        self._suspended = SuspendedCalls(clock=clock, call_later=call_later, seconds=seconds)
        self.tasks = Tasks(
            host,
            request_filter=request_filter,
            key=seals.key_for(b"ids of tasks"),
            clock=clock,
            wall_clock=wall_clock,
            call_later=call_later,
            seconds=seconds,
        )
        self._relay = ClientRequestRelay(
            request_filter=request_filter,
            pause=lambda call: host.pause_deadline(call, seconds),
            resume=host.resume_deadline,
            fail=self._fail,
            call_later=call_later,
            seconds=seconds,
        )
        self._rounds = InputRounds(
            request_filter=request_filter,
            send=self._send_again,
            fail=self._fail,
            call_later=call_later,
        )

    def _fail(self, call: Call, error: InterlockError) -> None:
        self._host.finish(call, None, error)

    @property
    def suspended_count(self) -> int:
        """The number of calls that wait for their clients."""
        return len(self._suspended)

    def is_waiting_for_client(self, call: Call) -> bool:
        """Return whether a call waits for its client, and not for its server."""
        return isinstance(call.upstream_request, ClientInputWait | InputRound)

    def cancel_all(self, reason: str) -> None:
        self._suspended.cancel_all(reason)
        self.tasks.cancel_all(reason)

    # -- client requests of a session server

    def on_request(
        self, client_request: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        """Send a client request of a session server to its client."""
        client = call.client if call is not None else session.client if session else None
        if client is None:
            client_request.reject(-32601, f"No client is connected for {client_request.method}.")
            return
        self._filter.track(client_request, call, session)
        if not self._check(client_request, client):
            return
        if client.era is Era.SESSION:
            self._relay.send(client_request, call, session)
        elif call is not None:
            self._suspend(client_request, call)
        else:
            client_request.reject(
                -32601, "The client has no running request for this client request."
            )

    def _check(self, client_request: ClientRequest, client: Client) -> bool:
        """Reject a request that is not allowed. Return whether it is allowed."""
        rejection = self._filter.check(client_request, client, client_request.upstream)
        if rejection is not None:
            client_request.reject(rejection.code, rejection.message)
        return rejection is None

    def _suspend(self, client_request: ClientRequest, call: Call) -> None:
        """Suspend a call of a stateless client, to respond with the client request."""
        if call.method not in INPUT_METHODS:
            client_request.reject(
                -32602, f"A stateless client cannot get a client request during {call.method}."
            )
            return
        request = call.upstream_request
        if request is None or self._suspended.is_full:
            client_request.reject(-32603, "Too many calls already wait for their clients.")
            return

        def check(other: ClientRequest) -> bool:
            self._filter.track(other, call, None)
            return self._check(other, call.client)

        suspended = SuspendedCall(call, self._host, check)
        suspended.add(client_request)
        self._suspended.add(suspended)
        request.reassign(call, suspended)
        # Client requests that arrive together are sent together, also if they use two streams.
        self._call_later(_BATCH_SECONDS, lambda: self._send_client_requests(suspended, call))

    def _send_client_requests(self, suspended: SuspendedCall, call: Call) -> None:
        """Respond to the client with the open client requests of a suspended call."""
        waiting, suspended.waiting_call = suspended.waiting_call, None
        if waiting is None:
            # The server has responded meanwhile.
            self._suspended.pop(suspended.handle)
        elif not self._host.is_pending(call):
            self._suspended.pop(suspended.handle)
            suspended.cancel("The call was cancelled.")
        elif suspended.open_requests():
            self._answer_with(suspended, call)
        else:
            # The server has withdrawn its requests.
            self._suspended.pop(suspended.handle)
            self._host.attach_request(call, suspended.upstream_request)

    def _answer_with(self, suspended: SuspendedCall, call: Call) -> None:
        """Respond to a call with the client requests of its server. Never raises."""
        try:
            outcome = self.tasks.adopt(suspended, call)
            if outcome is not None:
                self._suspended.pop(suspended.handle)
            else:
                state = self._seals.seal(call, self._suspended.seconds, handle=suspended.handle)
                outcome = input_required_outcome(suspended, state)
        except Exception as bug:
            self._suspended.pop(suspended.handle)
            suspended.cancel("The request to the client failed.")
            self._fail(call, internal_error(call, bug))
            return
        call.upstream_request = None
        self._host.finish(call, outcome, None, INPUT_REQUIRED)

    # -- client requests of a stateless server

    def convert_result(self, call: Call, outcome: Outcome) -> Outcome | None:
        """Handle an `input_required` result, or a result about a task.

        Return the outcome for the client. None: the call continues. Raises InterlockError.
        """
        result_type = "" if outcome.summary is None else outcome.summary.result_type
        if result_type != INPUT_REQUIRED:
            if call.method in TASK_METHODS:
                return self.tasks.convert_status(call, outcome)
            return self.tasks.convert_created(call, outcome) if result_type == TASK else outcome
        if call.method not in INPUT_METHODS:
            raise InterlockError(
                UPSTREAM_PROTOCOL,
                f"The upstream {call.upstream} requested input for {call.method}, which MCP does "
                "not allow.",
            )
        if call.client.era is Era.SESSION:
            self._host.pause_deadline(call, self._seconds)
            self._rounds.start_round(call, outcome.result)
            return None
        needed = read_input_request(outcome.result)
        capped = self._pass_on(call, needed.requests)
        result = outcome.result if not capped else replace_params(outcome.result, capped)
        if needed.state is not None:
            sealed = self._seals.seal(call, self._seconds, upstream_state=needed.state)
            result = replace_state(result, sealed)
        return Outcome(result, outcome.era, outcome.summary)

    def _pass_on(self, call: Call, questions: dict[str, tuple[str, bytes]]) -> dict[str, bytes]:
        """Check client requests that are sent to the client in a result. Raises InterlockError.

        Return the new params of requests that the policy limits, by key.
        """
        client_requests = {
            key: probe_request(method, params, call.upstream)
            for key, (method, params) in questions.items()
        }
        for client_request in client_requests.values():
            rejection = self._filter.check(client_request, call.client, call.upstream)
            if rejection is not None:
                self._filter.track(client_request, call, None)
                client_request.reject(rejection.code, rejection.message)
                raise rejection.to_error()
        for client_request in client_requests.values():
            self._filter.record_relayed(client_request, call)
        return {
            key: client_request.params
            for key, client_request in client_requests.items()
            if client_request.params != questions[key][1]
        }

    def _send_again(self, call: Call) -> None:
        limit = call.deadline if call.has_caller_timeout else 0.0
        try:
            self._host.send(call, self._clock())
        except InterlockError as error:
            self._host.on_result(call, None, error)
        except Exception as bug:
            self._fail(call, internal_error(call, bug))
        if limit:
            # The timeout of the caller is for all input rounds together.
            call.deadline = call.hard_deadline = limit

    def convert_url_error(self, call: Call, error: UpstreamResponseError) -> Outcome | None:
        """Convert the error of a session server that requires URL elicitation first. None: another
        error."""
        if (
            error.code != _URL_ELICITATION_REQUIRED
            or call.client.era is not Era.STATELESS
            or call.method not in INPUT_METHODS
        ):
            return None
        try:
            data = decode_value(error.raw_data) if error.raw_data is not None else None
        except ProtocolError:
            data = None
        listed = data.get("elicitations") if isinstance(data, dict) else None
        if not isinstance(listed, list) or not all(
            isinstance(elicitation, dict) for elicitation in listed
        ):
            return None
        questions = {
            f"input-{number}": (ELICITATION, encode_value({**elicitation, "mode": "url"}))
            for number, elicitation in enumerate(listed, 1)
        }
        if not questions:
            return None
        self._pass_on(call, questions)
        state = self._seals.seal(call, self._seconds, is_restart=True)
        return Outcome(write_input_request(questions, state), Era.STATELESS)

    # -- responses of a stateless client

    def resume_suspended(self, call: Call) -> bool:
        """Read the client responses in a request.

        Return True if the request continues a suspended call. Raises InterlockError for forged or
        expired state.
        """
        extra = call.extra_params
        if extra is not None and "task" in extra and call.method == TOOLS_CALL:
            # Tasks of the session generation are not supported: the member is ignored.
            extra = {key: value for key, value in extra.items() if key != "task"}
            call.extra_params = extra or None
        if extra is None or (INPUT_RESPONSES not in extra and REQUEST_STATE not in extra):
            return False
        responses = read_input_responses(extra.get(INPUT_RESPONSES))
        state = extra.get(REQUEST_STATE)
        if state is None:
            return False
        text = decode_value(state)
        if not isinstance(text, str):
            raise stale_state_error()
        content = self._seals.open(text, call)
        call.extra_params = remaining = {
            key: value for key, value in extra.items() if key != REQUEST_STATE
        }
        if content.upstream_state is not None:
            remaining[REQUEST_STATE] = Raw(encode_value(content.upstream_state))
            return False
        remaining.pop(INPUT_RESPONSES, None)
        if not remaining:
            call.extra_params = None
        if content.is_restart:
            return False
        # Errors of this request are found before the suspended call is changed.
        self._host.resume_deadline(call)
        suspended = self._suspended.pop(content.handle)
        if suspended is None:
            raise stale_state_error()
        try:
            self._resume(call, suspended, responses)
        except Exception:
            suspended.cancel(INTERNAL_ERROR_TEXT)
            raise
        return True

    def _resume(self, call: Call, suspended: SuspendedCall, responses: dict[str, Raw]) -> None:
        suspended.respond(responses)
        # A stateless client declares its capabilities with every request.
        suspended.check_again(lambda client_request: self._check(client_request, call.client))
        if suspended.result is not None:
            self._host.on_result(call, *suspended.result)
        elif suspended.open_requests():
            # Some requests are new or have no response: send them to the client again.
            self._suspended.add(suspended)
            self._answer_with(suspended, call)
        else:
            self._host.attach_request(call, suspended.upstream_request)
