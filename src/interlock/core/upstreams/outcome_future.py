"""The way back of a call whose outcome one awaits, outside of a node."""

from __future__ import annotations

import asyncio

from msgspec import Raw

from interlock.core.call import Call, ClientRequest, ClientSession, Outcome
from interlock.errors import INTERNAL, METHOD_NOT_FOUND, InterlockError


class OutcomeFuture:
    """Settles a future; without one, it is the way back of what is about no call."""

    def __init__(self, where: str, answer: asyncio.Future[Outcome] | None = None) -> None:
        """`where` nobody answers what a server asks: `on the command line`."""
        self._where = where
        self._answer = answer

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        if self._answer is None or self._answer.done():
            return
        if outcome is None:
            self._answer.set_exception(error or InterlockError(INTERNAL, "There was no answer."))
        else:
            self._answer.set_result(outcome)

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        if call.on_notification is not None:
            call.on_notification(call, method, params)

    def on_request(
        self, ask: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        ask.reject(METHOD_NOT_FOUND.code, f"{ask.method} cannot be answered {self._where}.")
