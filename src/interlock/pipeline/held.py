"""A stateless client in front of a session server: calls that wait for the client to come back.

A session server asks in the middle of a call and waits for the answer. A stateless client cannot
be asked: its request is answered with the question, while the call to the server stays open, held
under a handle that the client brings back with its answer. Who brings it, and with which request,
is in the seal around the handle. What is not fetched in time is given up, and the server told so.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from interlock.call import Ask, Call, ClientSession, Outcome
from interlock.errors import InterlockError
from interlock.ports import Back, Clock
from interlock.protocol.input_required import write_needed
from interlock.protocol.mcp import Era

MOST_HELD: Final = 10_000
_SWEEP: Final = 1.0
_GONE: Final = "The client did not come back with an answer in time."

_log = logging.getLogger("interlock.pipeline")


class Held:
    """One call that waits. It is the way back for its server until somebody fetches it."""

    def __init__(self, call: Call, back: Back, may_be_put: Callable[[Ask], bool]) -> None:
        """`may_be_put` looks at every further question, and refuses what may not be asked."""
        self.handle = ""
        self.exchange = call.exchange
        self.until = 0.0
        self.waiting: Call | None = call
        """The call for as long as its client has not been told: until then nothing is held back."""
        self.asks: dict[str, Ask] = {}
        self.over: tuple[Outcome | None, InterlockError | None] | None = None
        """What became of it while nobody waited."""
        self._back = back
        self._may_be_put = may_be_put
        self._asked = 0

    def add(self, ask: Ask) -> None:
        self._asked += 1
        self.asks[f"input-{self._asked}"] = ask

    def open_questions(self) -> dict[str, tuple[str, bytes]]:
        """What nobody has answered, and the server still wants to know."""
        return {key: (ask.method, ask.params) for key, ask in self.asks.items() if ask.open}

    def answer(self, answers: dict[str, Raw]) -> None:
        for key, answer in answers.items():
            ask = self.asks.get(key)
            if ask is not None:
                ask.reply(answer)
        self.asks = {key: ask for key, ask in self.asks.items() if ask.open}

    def look_again(self, may_be_put: Callable[[Ask], bool]) -> None:
        """Somebody else waits now: what it may not be asked is refused."""
        self._may_be_put = may_be_put
        for ask in list(self.asks.values()):
            if ask.open:
                may_be_put(ask)

    def give_up(self, reason: str) -> None:
        """Nobody will answer, and nobody waits: the server is told both. Never raises."""
        try:
            for ask in self.asks.values():
                ask.refuse(-32603, reason)
            if self.over is None:
                self.exchange.abandon(reason)
        except Exception:
            # A link in a bad way must not keep the others from being given up.
            _log.exception("a server could not be told that a call is given up")

    # -- Back

    def settled(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is None:
            self.over = (outcome, error)
        else:
            # It has answered after all, before anybody was asked.
            self._back.settled(waiting, outcome, error)

    def heard(self, call: Call, method: str, params: bytes | Raw) -> None:
        if self.waiting is not None:
            self._back.heard(self.waiting, method, params)

    def asked(self, ask: Ask, call: Call | None, session: ClientSession | None) -> None:
        if self._may_be_put(ask):
            self.add(ask)


class HeldCalls:
    """Every call that waits for its client."""

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
        """How long a client may take to come back."""
        self._held: dict[str, Held] = {}
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether no more calls can be held."""
        return len(self._held) >= MOST_HELD

    def keep(self, held: Held) -> None:
        """Keep it under a new handle: one that was used is never good again."""
        held.handle = secrets.token_urlsafe(18)
        held.until = self._clock() + self.seconds
        self._held[held.handle] = held
        if not self._sweeping:
            self._sweeping = True
            self._call_later(_SWEEP, self._sweep)

    def fetch(self, handle: str) -> Held | None:
        """The call with this handle, which is nobody else's to fetch from then on."""
        return self._held.pop(handle, None)

    def drop_all(self, reason: str) -> None:
        held, self._held = self._held, {}
        for one in held.values():
            one.give_up(reason)

    def _sweep(self) -> None:
        now = self._clock()
        for handle in [handle for handle, one in self._held.items() if one.until <= now]:
            self._held.pop(handle).give_up(_GONE)
        self._sweeping = bool(self._held)
        if self._sweeping:
            self._call_later(_SWEEP, self._sweep)


def questions_of(held: Held, state: str) -> Outcome:
    """The answer that asks the client."""
    return Outcome(write_needed(held.open_questions(), state), Era.STATELESS)
