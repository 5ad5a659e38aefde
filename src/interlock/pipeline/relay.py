"""A session client in front of a session server: questions are put as they come.

The call stays open while its client is asked. People are asked there, so the deadline is theirs for
that long, and a server is not to blame when nobody answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from interlock.call import Ask, Call, ClientSession
from interlock.errors import DEADLINE_EXCEEDED, InterlockError
from interlock.pipeline.questions import Questions
from interlock.ports import Back, Exchange

MOST_QUESTIONS: Final = 100
"""In one call: a server that asks and asks must not keep it open for ever."""
_LATE: Final = "The deadline has passed."
_AFTER_ITS_CALL: Final = 5.0
"""A call that waits for an answer ends by its own deadline first."""
_NOT_ANSWERED: Final = "The question was not answered in time."


class Relay:
    """Puts questions to clients that can be asked while they wait."""

    def __init__(
        self,
        *,
        questions: Questions,
        wait: Callable[[Call], None],
        go_on: Callable[[Call], None],
        fail: Callable[[Call, InterlockError], None],
        call_later: Callable[[float, Callable[[], None]], Any],
        seconds: float,
    ) -> None:
        self._questions = questions
        self._call_later = call_later
        self._seconds = seconds
        self._wait = wait
        self._go_on = go_on
        self._fail = fail

    def put(self, ask: Ask, call: Call | None, session: ClientSession | None) -> None:
        """Put a question that may be put."""
        asked = session
        if call is not None:
            call.rounds += 1
            if call.rounds > MOST_QUESTIONS:
                ask.refuse(-32603, f"More than {MOST_QUESTIONS} questions in one call.")
                return
        # Also when its call is long over: a client that never answers holds nobody up.
        end = self._call_later(
            self._seconds + _AFTER_ITS_CALL, lambda: ask.give_up(-32603, _NOT_ANSWERED)
        )
        if call is None or call.exchange is None:
            self._questions.follow(ask, call, session, end.cancel)
        else:
            asked = call.session or session
            over = self._asking(call).add()

            def then() -> None:
                # A server that asks and takes back must not fill the memory with timers.
                end.cancel()
                over()

            self._questions.follow(ask, call, asked, then)
            self._wait(call)
        if asked is None or not asked.ask(ask, call):
            ask.refuse(-32603, "There is no way to the client now.")

    def _asking(self, call: Call) -> Asking:
        exchange = call.exchange
        if isinstance(exchange, Asking):
            return exchange
        call.exchange = asking = Asking(call, exchange, self._go_on, self._fail)
        return asking


class Asking:
    """Stands for the request of a call whose client is being asked."""

    def __init__(
        self,
        call: Call,
        exchange: Exchange,
        go_on: Callable[[Call], None],
        fail: Callable[[Call, InterlockError], None],
    ) -> None:
        self._call = call
        self._exchange = exchange
        self._go_on = go_on
        self._fail = fail
        self._questions = 0

    def add(self) -> Callable[[], None]:
        """Another question. Returns what tells that it is over."""
        self._questions += 1
        return self._over

    def _over(self) -> None:
        self._questions -= 1
        if self._questions == 0 and self._call.exchange is self:
            self._call.exchange = self._exchange
            self._go_on(self._call)

    @property
    def open(self) -> bool:
        return self._exchange.open

    def abandon(self, reason: str) -> None:
        self._exchange.abandon(reason)

    def hand_over(self, call: Call, back: Back) -> None:
        self._exchange.hand_over(call, back)

    def expire(self) -> None:
        call = self._call
        self._exchange.abandon(_LATE)
        self._fail(
            call,
            InterlockError(
                DEADLINE_EXCEEDED,
                f"{call.upstream} asked for input that did not come in time.",
                {"upstream": call.upstream},
            ),
        )
