"""A response handler for calls that are awaited outside of a node."""

from __future__ import annotations

import asyncio

from msgspec import Raw

from interlock.core.call import Call, ClientRequest, ClientSession, Outcome
from interlock.errors import INTERNAL, METHOD_NOT_FOUND, InterlockError


class OutcomeFuture:
    """Completes a future with the outcome of a call. The future is optional."""

    def __init__(self, location: str, future: asyncio.Future[Outcome] | None = None) -> None:
        """
        Args:
            location: where client requests cannot be answered, for the error message, such as
                `on the command line`.
            future: receives the outcome.
        """
        self._location = location
        self._future = future

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        if self._future is None or self._future.done():
            return
        if outcome is None:
            self._future.set_exception(error or InterlockError(INTERNAL, "The call has no result."))
        else:
            self._future.set_result(outcome)

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        if call.on_notification is not None:
            call.on_notification(call, method, params)

    def on_request(
        self, client_request: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        client_request.reject(
            METHOD_NOT_FOUND.code, f"{client_request.method} is not supported {self._location}."
        )
