"""Routes client requests (sampling, elicitation, roots) of upstreams, by protocol generation.

    client      server      the client request
    session     session     goes to the client, the response to the server (`ClientRequestRelay`)
    session     stateless   goes to the client; the call is sent again with it (`InputRounds`)
    stateless   session     is the response to the call, which is suspended (`SuspendedCalls`), or
                            becomes a task if the client supports tasks (`tasks`)
    stateless   stateless   passes through, its state sealed and bound to the caller

The classes are in `client_requests.py`.

The decision is made from what each side speaks. A call that may have been executed is never made
again by the node: only a server that asked for it gets the same request once more.
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
from interlock.errors import UPSTREAM_PROTOCOL, InterlockError, ProtocolError
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
"""How long the answer to a question may take, and how long a held call waits for its client."""
_ONE_BREATH: Final = 0.03
"""How long after a question others may follow that are put to the client together with it."""
_URL_FIRST: Final = -32042
"""A session server that cannot even begin before its user has been somewhere."""

_log = logging.getLogger("interlock.pipeline")


class ClientInput:
    """Brings questions to callers, and their answers back."""

    def __init__(
        self,
        host: CallHost,
        *,
        questions: ClientRequestFilter,
        seals: StateSealer,
        clock: Clock,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        self._host = host
        self._questions = questions
        self._seals = seals
        self._clock = clock
        self._call_later = call_later
        self._seconds = seconds
        self._held = SuspendedCalls(clock=clock, call_later=call_later, seconds=seconds)
        self.tasks = Tasks(
            host,
            questions=questions,
            key=seals.key_for(b"ids of tasks"),
            clock=clock,
            wall_clock=wall_clock,
            call_later=call_later,
            seconds=seconds,
        )
        self._relay = ClientRequestRelay(
            questions=questions,
            wait=lambda call: host.pause_deadline(call, seconds),
            go_on=host.resume_deadline,
            fail=self._fail,
            call_later=call_later,
            seconds=seconds,
        )
        self._rounds = InputRounds(
            questions=questions, send=self._make_again, fail=self._fail, call_later=call_later
        )

    def _fail(self, call: Call, error: InterlockError) -> None:
        self._host.finish(call, None, error)

    @property
    def held(self) -> int:
        """How many calls wait for their clients to come back."""
        return len(self._held)

    def asks_for(self, call: Call) -> bool:
        """Whether a call waits for its client, and not for its server."""
        return isinstance(call.upstream_request, ClientInputWait | InputRound)

    def drop_all(self, reason: str) -> None:
        self._held.drop_all(reason)
        self.tasks.drop_all(reason)

    # -- a session server asks

    def asked(self, ask: ClientRequest, call: Call | None, session: ClientSession | None) -> None:
        """Put a session server's question to whom it is for."""
        client = call.client if call is not None else session.client if session else None
        if client is None:
            ask.reject(-32601, f"Nobody is here who could answer {ask.method}.")
            return
        self._questions.follow(ask, call, session)
        if not self._may_be_put(ask, client):
            return
        if client.era is Era.SESSION:
            self._relay.put(ask, call, session)
        elif call is not None:
            self._hold(ask, call)
        else:
            ask.reject(-32601, "The client has no request under way that this could be about.")

    def _may_be_put(self, ask: ClientRequest, client: Client) -> bool:
        refusal = self._questions.look_at(ask, client, ask.upstream)
        if refusal is not None:
            ask.reject(refusal.code, refusal.message)
        return refusal is None

    def _hold(self, ask: ClientRequest, call: Call) -> None:
        if call.method not in INPUT_METHODS:
            ask.reject(-32602, f"The answer to {call.method} cannot be a question on this wire.")
            return
        exchange = call.upstream_request
        if exchange is None or self._held.full:
            ask.reject(-32603, "Too many calls wait for their clients already.")
            return

        def may_be_put(other: ClientRequest) -> bool:
            self._questions.follow(other, call, None)
            return self._may_be_put(other, call.client)

        held = SuspendedCall(call, self._host, may_be_put)
        held.add(ask)
        self._held.keep(held)
        exchange.reassign(call, held)
        # What is asked in one breath is answered in one, also when it comes on two streams.
        self._call_later(_ONE_BREATH, lambda: self._ask_client(held, call))

    def _ask_client(self, held: SuspendedCall, call: Call) -> None:
        """The breath is over: the client is told what its server wants to know."""
        waiting, held.waiting = held.waiting, None
        if waiting is None:
            # It has answered meanwhile.
            self._held.fetch(held.handle)
        elif not self._host.is_pending(call):
            self._held.fetch(held.handle)
            held.give_up("The caller waits no longer.")
        elif held.open_questions():
            self._answer_with(held, call)
        else:
            # It does not want to know any more.
            self._held.fetch(held.handle)
            self._host.attach_request(call, held.exchange)

    def _answer_with(self, held: SuspendedCall, call: Call) -> None:
        """Answer a call with the questions of its server. Never raises."""
        try:
            outcome = self.tasks.adopt(held, call)
            if outcome is not None:
                self._held.fetch(held.handle)
            else:
                state = self._seals.seal(call, self._held.seconds, held=held.handle)
                outcome = input_required_outcome(held, state)
        except Exception as bug:
            self._held.fetch(held.handle)
            held.give_up("The client could not be asked.")
            self._fail(call, internal_error(call, bug))
            return
        call.upstream_request = None
        self._host.finish(call, outcome, None, INPUT_REQUIRED)

    # -- a stateless server asks

    def needed(self, call: Call, outcome: Outcome) -> Outcome | None:
        """A result that is none yet, or about a task. None: the call goes on.

        Raises InterlockError.
        """
        result_type = "" if outcome.glance is None else outcome.glance.result_type
        if result_type != INPUT_REQUIRED:
            if call.method in TASK_METHODS:
                return self.tasks.told(call, outcome)
            return self.tasks.created(call, outcome) if result_type == TASK else outcome
        if call.method not in INPUT_METHODS:
            raise InterlockError(
                UPSTREAM_PROTOCOL, f"{call.upstream} answered {call.method} with a question."
            )
        if call.client.era is Era.SESSION:
            self._host.pause_deadline(call, self._seconds)
            self._rounds.another(call, outcome.result)
            return None
        needed = read_input_request(outcome.result)
        capped = self._pass_on(call, needed.questions)
        result = outcome.result if not capped else replace_params(outcome.result, capped)
        if needed.state is not None:
            sealed = self._seals.seal(call, self._seconds, upstream=needed.state)
            result = replace_state(result, sealed)
        return Outcome(result, outcome.era, outcome.glance)

    def _pass_on(self, call: Call, questions: dict[str, tuple[str, bytes]]) -> dict[str, bytes]:
        """Look at questions that go to the client in an answer. Raises InterlockError.

        Returns the params of those that may be asked only within limits, by key.
        """
        asks = {
            key: probe_request(method, params, call.upstream)
            for key, (method, params) in questions.items()
        }
        for ask in asks.values():
            refusal = self._questions.look_at(ask, call.client, call.upstream)
            if refusal is not None:
                self._questions.follow(ask, call, None)
                ask.reject(refusal.code, refusal.message)
                raise refusal.as_error()
        for ask in asks.values():
            self._questions.passed_on(ask, call)
        return {key: ask.params for key, ask in asks.items() if ask.params != questions[key][1]}

    def _make_again(self, call: Call) -> None:
        limit = call.deadline if call.has_caller_timeout else 0.0
        try:
            self._host.send(call, self._clock())
        except InterlockError as error:
            self._host.on_result(call, None, error)
        except Exception as bug:
            self._fail(call, internal_error(call, bug))
        if limit:
            # The time that a caller gives is for all the rounds together.
            call.deadline = call.hard_deadline = limit

    def needed_first(self, call: Call, error: UpstreamResponseError) -> Outcome | None:
        """A session server wants its user to go somewhere before it begins. None: it does not."""
        if (
            error.code != _URL_FIRST
            or call.client.era is not Era.STATELESS
            or call.method not in INPUT_METHODS
        ):
            return None
        try:
            data = decode_value(error.raw_data) if error.raw_data is not None else None
        except ProtocolError:
            data = None
        listed = data.get("elicitations") if isinstance(data, dict) else None
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            return None
        questions = {
            f"input-{number}": (ELICITATION, encode_value({**one, "mode": "url"}))
            for number, one in enumerate(listed, 1)
        }
        if not questions:
            return None
        self._pass_on(call, questions)
        state = self._seals.seal(call, self._seconds, again=True)
        return Outcome(write_input_request(questions, state), Era.STATELESS)

    # -- a client comes back

    def brought(self, call: Call) -> bool:
        """Take what a client brought back with its request.

        True: it continues a call that was held. Raises InterlockError for forged or stale state.
        """
        extra = call.extra_params
        if extra is not None and "task" in extra and call.method == TOOLS_CALL:
            # The session wire's own way to ask for a task, which no node offers: it is ignored.
            extra = {key: one for key, one in extra.items() if key != "task"}
            call.extra_params = extra or None
        if extra is None or (INPUT_RESPONSES not in extra and REQUEST_STATE not in extra):
            return False
        answers = read_input_responses(extra.get(INPUT_RESPONSES))
        state = extra.get(REQUEST_STATE)
        if state is None:
            return False
        text = decode_value(state)
        if not isinstance(text, str):
            raise stale_state_error()
        inside = self._seals.open(text, call)
        call.extra_params = given = {key: one for key, one in extra.items() if key != REQUEST_STATE}
        if inside.upstream is not None:
            given[REQUEST_STATE] = Raw(encode_value(inside.upstream))
            return False
        given.pop(INPUT_RESPONSES, None)
        if not given:
            call.extra_params = None
        if inside.again:
            return False
        # Anything wrong with this request is found before the held call is touched.
        self._host.resume_deadline(call)
        held = self._held.fetch(inside.held)
        if held is None:
            raise stale_state_error()
        try:
            self._resume(call, held, answers)
        except Exception:
            held.give_up("The node failed to pass the answers on.")
            raise
        return True

    def _resume(self, call: Call, held: SuspendedCall, answers: dict[str, Raw]) -> None:
        held.answer(answers)
        # What a client can do is said anew with every request.
        held.look_again(lambda ask: self._may_be_put(ask, call.client))
        if held.over is not None:
            self._host.on_result(call, *held.over)
        elif held.open_questions():
            # Something is still unanswered, or new: it is asked for once more.
            self._held.keep(held)
            self._answer_with(held, call)
        else:
            self._host.attach_request(call, held.exchange)
