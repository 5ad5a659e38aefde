"""What happens when an upstream wants to know something before it answers, in all four cells.

    client      server      the server's question
    session     session     is put to the client; its answer goes back to the server
    session     stateless   is put to the client; then the request is made again (`rounds`)
    stateless   session     becomes the answer to the request; the call is held (`held`)
    stateless   stateless   passes through, its state sealed and bound to the caller

The decision is made from what each side speaks. A call that may have been executed is never made
again by the node: only a server that asked for it gets the same request once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.call import (
    Answer,
    Ask,
    Call,
    Client,
    ClientSession,
    Outcome,
    UpstreamAnsweredError,
)
from interlock.errors import (
    FORBIDDEN,
    MISSING_CLIENT_CAPABILITY,
    UPSTREAM_PROTOCOL,
    InterlockError,
    ProtocolError,
)
from interlock.pipeline.held import Held, HeldCalls, questions_of
from interlock.pipeline.questions import Questions, capabilities_of
from interlock.pipeline.rounds import Rounds
from interlock.pipeline.sealing import Seals, stale
from interlock.ports import Clock, Exchange
from interlock.protocol.input_required import (
    INPUT_RESPONSES,
    REQUEST_STATE,
    read_answers,
    read_needed,
    with_state,
    write_needed,
)
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import ELICITATION, INPUT_REQUIRED, MAY_NEED_INPUT, Era

INPUT_SECONDS: Final = 600.0
"""How long the answer to a question may take, and how long a held call waits for its client."""
_ONE_BREATH: Final = 0.03
"""How long after a question others may follow that are put to the client together with it."""
_URL_FIRST: Final = -32042
"""A session server that cannot even begin before its user has been somewhere."""


class Host(Protocol):
    """What the pipeline does for this stage."""

    def send(self, call: Call, now: float) -> None: ...
    def settled(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> None: ...
    def over(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None: ...
    def wait_for_input(self, call: Call, seconds: float) -> None: ...
    def go_on(self, call: Call) -> None: ...
    def take_over(self, call: Call, exchange: Exchange) -> None: ...


class Input:
    """Brings questions to callers, and their answers back."""

    def __init__(
        self,
        host: Host,
        *,
        questions: Questions,
        seals: Seals,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        self._host = host
        self._questions = questions
        self._seals = seals
        self._clock = clock
        self._call_later = call_later
        self._seconds = seconds
        self._held = HeldCalls(clock=clock, call_later=call_later, seconds=seconds)
        self._rounds = Rounds(
            questions=questions,
            send=self._make_again,
            fail=lambda call, error: host.over(call, None, error),
            call_later=call_later,
        )

    def drop_all(self, reason: str) -> None:
        self._held.drop_all(reason)

    # -- a session server asks

    def asked(self, ask: Ask, call: Call | None, session: ClientSession | None) -> None:
        """Put a session server's question to whom it is for."""
        client = call.client if call is not None else session.client if session else None
        if client is None:
            ask.refuse(-32601, f"Nobody is here who could answer {ask.method}.")
            return
        if not self._may_be_put(ask, client, ask.upstream):
            return
        if client.era is Era.SESSION:
            self._relay(ask, call, session)
        elif call is not None:
            self._hold(ask, call)
        else:
            ask.refuse(-32601, "The client has no request under way that this could be about.")

    def _may_be_put(self, ask: Ask, client: Client, upstream: str) -> bool:
        refusal = self._questions.look_at(ask, client, upstream)
        if refusal is not None:
            ask.refuse(refusal.code, refusal.message)
        return refusal is None

    def _relay(self, ask: Ask, call: Call | None, session: ClientSession | None) -> None:
        asked = session if call is None else call.session or session
        if call is not None:
            self._host.wait_for_input(call, self._seconds)
            answer = ask.on_answer

            def answered(given: Answer) -> None:
                self._host.go_on(call)
                answer(given)

            ask.on_answer = answered
        if asked is None or not asked.ask(ask, call):
            ask.refuse(-32603, "There is no way to the client now.")

    def _hold(self, ask: Ask, call: Call) -> None:
        if call.verb not in MAY_NEED_INPUT:
            ask.refuse(-32602, f"The answer to {call.verb} cannot be a question on this wire.")
            return
        exchange = call.exchange

        def may_be_put(other: Ask) -> bool:
            return self._may_be_put(other, call.client, call.upstream)

        held = None if exchange is None else self._held.hold(call, ask, may_be_put)
        if held is None:
            ask.refuse(-32603, "Too many calls wait for their clients already.")
            return
        exchange.hand_over(call, held)
        # What is asked in one breath is answered in one, also when it comes on two streams.
        self._call_later(_ONE_BREATH, lambda: self._ask_client(held, call))

    def _ask_client(self, held: Held, call: Call) -> None:
        if held.over is not None:
            # It has answered after all, before anybody was asked.
            self._held.fetch(held.handle)
            self._host.settled(call, *held.over)
            return
        state = self._seals.seal(call, self._held.seconds, held=held.handle)
        call.exchange = None
        self._host.over(call, questions_of(held, state), None)

    # -- a stateless server asks

    def needed(self, call: Call, outcome: Outcome) -> Outcome | None:
        """A result that is none yet. None: the call goes on. Raises InterlockError."""
        if outcome.glance is None or outcome.glance.result_type != INPUT_REQUIRED:
            return outcome
        if call.verb not in MAY_NEED_INPUT:
            raise InterlockError(
                UPSTREAM_PROTOCOL, f"{call.upstream} answered {call.verb} with a question."
            )
        if call.client.era is Era.SESSION:
            self._host.wait_for_input(call, self._seconds)
            self._rounds.another(call, outcome.result)
            return None
        needed = read_needed(outcome.result)
        for method, params in needed.questions.values():
            refusal = self._questions.look_at(
                Ask(method, params, _nowhere), call.client, call.upstream
            )
            if refusal is not None:
                failure = FORBIDDEN if refusal.missing is None else MISSING_CLIENT_CAPABILITY
                data = refusal.missing and {"requiredCapabilities": refusal.missing}
                raise InterlockError(failure, refusal.message, data)
        if needed.state is None:
            return outcome
        sealed = self._seals.seal(call, self._seconds, upstream=needed.state)
        return Outcome(with_state(outcome.result, sealed), outcome.era)

    def _make_again(self, call: Call) -> None:
        try:
            self._host.send(call, self._clock())
        except InterlockError as error:
            self._host.settled(call, None, error)

    def needed_first(self, call: Call, error: UpstreamAnsweredError) -> Outcome | None:
        """A session server wants its user to go somewhere before it begins. None: it does not."""
        if error.code != _URL_FIRST or call.client.era is not Era.STATELESS:
            return None
        able = capabilities_of(call.client.capabilities).get("elicitation")
        if not isinstance(able, dict) or "url" not in able:
            raise InterlockError(
                MISSING_CLIENT_CAPABILITY,
                error.message,
                {"requiredCapabilities": {"elicitation": {"url": {}}}},
            )
        try:
            data = decode_value(error.raw_data) if error.raw_data is not None else None
        except ProtocolError:
            data = None
        listed = data.get("elicitations") if isinstance(data, dict) else None
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            return None
        questions = {
            f"input-{number}": (ELICITATION, encode_value({"mode": "url", **one}))
            for number, one in enumerate(listed, 1)
        }
        if not questions:
            return None
        state = self._seals.seal(call, self._seconds, again=True)
        return Outcome(write_needed(questions, state), Era.STATELESS)

    # -- a client comes back

    def brought(self, call: Call) -> bool:
        """Take what a client brought back with its request.

        True: it continues a call that was held. Raises InterlockError for forged or stale state.
        """
        extra = call.extra
        if extra is None or (INPUT_RESPONSES not in extra and REQUEST_STATE not in extra):
            return False
        answers = read_answers(extra.get(INPUT_RESPONSES))
        state = extra.get(REQUEST_STATE)
        if state is None:
            return False
        text = decode_value(state)
        if not isinstance(text, str):
            raise stale()
        inside = self._seals.open(text, call)
        call.extra = given = {key: one for key, one in extra.items() if key != REQUEST_STATE}
        if inside.upstream is not None:
            given[REQUEST_STATE] = Raw(encode_value(inside.upstream))
            return False
        given.pop(INPUT_RESPONSES, None)
        if not given:
            call.extra = None
        if inside.again:
            return False
        held = self._held.fetch(inside.held)
        if held is None:
            raise stale()
        self._resume(call, held, answers)
        return True

    def _resume(self, call: Call, held: Held, answers: dict[str, Raw]) -> None:
        held.answer(answers)
        if held.over is not None:
            self._host.settled(call, *held.over)
        elif held.open_questions():
            # Something is still unanswered, or new: it is asked for once more.
            self._held.keep(held)
            state = self._seals.seal(call, self._held.seconds, held=held.handle)
            self._host.over(call, questions_of(held, state), None)
        else:
            self._host.take_over(call, held.exchange)


def _nowhere(answer: Answer) -> None:
    """The question is only looked at here."""
