"""A stateless client in front of a session server: calls that wait for the client to come back.

A session server asks in the middle of a call and waits for the answer. A stateless client cannot
be asked: its request is answered with the question, while the call to the server stays open, held
under a handle that the client brings back with its answer. Who brings it, and with which request,
is in the seal around the handle. What is not fetched in time is given up, and the server told so.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from interlock.call import Ask, Call, ClientSession, Outcome
from interlock.errors import InterlockError
from interlock.ports import Clock
from interlock.protocol.input_required import write_needed
from interlock.protocol.mcp import Era

MOST_HELD: Final = 10_000
_SWEEP: Final = 1.0
_GONE: Final = "The client did not come back with an answer in time."


class Held:
    """One call that waits. It is the way back for its server until somebody fetches it."""

    def __init__(
        self, handle: str, call: Call, until: float, may_be_put: Callable[[Ask], bool]
    ) -> None:
        """`may_be_put` looks at every further question, and refuses what may not be asked."""
        self.handle = handle
        self.may_be_put = may_be_put
        self.exchange = call.exchange
        self.upstream = call.upstream
        self.until = until
        self.asks: dict[str, Ask] = {}
        self.over: tuple[Outcome | None, InterlockError | None] | None = None
        """What became of it while nobody waited."""
        self._asked = 0
        self.announced = False
        """Whether the client knows of its questions."""
        self.on_over: Callable[[Held], None] | None = None

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

    def give_up(self, reason: str) -> None:
        for ask in self.asks.values():
            ask.refuse(-32603, reason)
        if self.over is None:
            self.exchange.abandon(reason)

    # -- Back

    def settled(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        self.over = (outcome, error)
        if self.on_over is not None:
            self.on_over(self)

    def heard(self, call: Call, method: str, params: bytes | Raw) -> None:
        """Nobody listens now."""

    def asked(self, ask: Ask, call: Call | None, session: ClientSession | None) -> None:
        if self.may_be_put(ask):
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

    def hold(self, call: Call, ask: Ask, may_be_put: Callable[[Ask], bool]) -> Held | None:
        """Hold a call that was asked something. None: too many are held already."""
        if len(self._held) >= MOST_HELD:
            return None
        held = Held(secrets.token_urlsafe(18), call, self._clock() + self.seconds, may_be_put)
        held.add(ask)
        self.keep(held)
        return held

    def keep(self, held: Held) -> None:
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
