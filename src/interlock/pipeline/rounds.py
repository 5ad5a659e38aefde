"""A session client in front of a stateless server: the server's questions, put one by one.

A stateless server that needs to know something answers with its questions, and expects the same
request again with the answers. A session client is asked them while its call stays open; then the
request is made again, and so on, up to a limit. A server that only hands out state ("try again
with this") gets its request again after a short wait.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from interlock.call import Answer, Ask, Call, UpstreamAnsweredError
from interlock.errors import DEADLINE_EXCEEDED, UPSTREAM_PROTOCOL, InterlockError
from interlock.pipeline.questions import Questions
from interlock.ports import Back
from interlock.protocol.input_required import (
    INPUT_RESPONSES,
    REQUEST_STATE,
    Needed,
    read_needed,
    session_question,
)
from interlock.protocol.jsonrpc import encode_members, encode_value

MOST_ROUNDS: Final = 10
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 0.25


class Rounds:
    """Takes calls whose server wants to know something, and sends them again with the answers."""

    def __init__(
        self,
        *,
        questions: Questions,
        send: Callable[[Call], None],
        fail: Callable[[Call, InterlockError], None],
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._questions = questions
        self._send = send
        self._fail = fail
        self._call_later = call_later

    def another(self, call: Call, result: bytes) -> None:
        """The server asks. Raises InterlockError when the call cannot go on."""
        call.rounds += 1
        if call.rounds > MOST_ROUNDS:
            raise InterlockError(
                UPSTREAM_PROTOCOL,
                f"{call.upstream} still wants to know more after {MOST_ROUNDS} rounds.",
            )
        needed = read_needed(result)
        call.exchange = exchange = Round(self, call, needed)
        if needed.questions:
            exchange.put(self._questions)
        else:
            wait = min(_FIRST_WAIT * 2 ** (call.rounds - 1), _LONGEST_WAIT)
            self._call_later(wait, exchange.go_on)

    def go_on(self, call: Call, needed: Needed, answers: dict[str, Raw]) -> None:
        """Everything is answered: make the request again."""
        given = dict(call.extra or {})
        given.pop(INPUT_RESPONSES, None)
        given.pop(REQUEST_STATE, None)
        if needed.questions:
            given[INPUT_RESPONSES] = Raw(encode_members(answers))
        if needed.state is not None:
            given[REQUEST_STATE] = Raw(encode_value(needed.state))
        call.extra = given or None
        self._send(call)

    def stop(self, call: Call, error: InterlockError) -> None:
        self._fail(call, error)


class Round:
    """One round: stands for the request while its caller is being asked."""

    def __init__(self, rounds: Rounds, call: Call, needed: Needed) -> None:
        self._rounds = rounds
        self._call = call
        self._needed = needed
        self._answers: dict[str, Raw] = {}
        self._asks: list[Ask] = []
        self.open = True

    def put(self, questions: Questions) -> None:
        call = self._call
        session = call.session
        for key, (method, params) in self._needed.questions.items():
            worded = session_question(
                method, params, call.client.revision, secrets.token_urlsafe(12)
            )
            ask = Ask(method, worded, self._taker(key), call.upstream)
            questions.follow(ask, call, session)
            refusal = questions.look_at(ask, call.client, call.upstream)
            if refusal is not None:
                self.open = False
                ask.refuse(refusal.code, refusal.message)
                raise UpstreamAnsweredError(refusal.code, refusal.message, None)
            self._asks.append(ask)
        for ask in self._asks:
            if not self.open:
                return
            if session is None or not session.ask(ask, call):
                self._end("There is no way to the client.")
                raise InterlockError(
                    UPSTREAM_PROTOCOL,
                    f"{call.upstream} asks its caller for input, and the client cannot be reached "
                    "for that.",
                )

    def _taker(self, key: str) -> Callable[[Answer], None]:
        def take(answer: Answer) -> None:
            if not self.open:
                return
            if answer.refused:
                # The server cannot be told of a refusal on its wire: the call ends with it.
                self._end("Another question was refused.")
                error = UpstreamAnsweredError(answer.code, answer.message, answer.data)
                self._rounds.stop(self._call, error)
                return
            if answer.result[:1] != b"{":
                self._end("Another question was not answered.")
                message = "The client's answer to the server's question is not an object."
                self._rounds.stop(self._call, UpstreamAnsweredError(-32602, message, None))
                return
            self._answers[key] = Raw(answer.result)
            if len(self._answers) == len(self._needed.questions):
                self.go_on()

        return take

    def go_on(self) -> None:
        if self.open:
            self.open = False
            self._rounds.go_on(self._call, self._needed, self._answers)

    def _end(self, reason: str) -> None:
        self.open = False
        for ask in self._asks:
            ask.withdraw(reason)

    def abandon(self, reason: str) -> None:
        if self.open:
            self._end(reason)

    def hand_over(self, call: Call, back: Back) -> None:
        """A round belongs to a session, whose calls are not held."""

    def expire(self) -> None:
        if self.open:
            self._end("The deadline has passed.")
            self._rounds.stop(
                self._call,
                InterlockError(
                    DEADLINE_EXCEEDED,
                    f"{self._call.upstream} asked for input that did not come in time.",
                    {"upstream": self._call.upstream},
                ),
            )
