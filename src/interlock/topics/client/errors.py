"""Errors of a participant before anything is sent."""

from __future__ import annotations

from interlock.errors import CAPABILITY_VIOLATION, Failure, InterlockError


class SendError(InterlockError):
    """The message was not sent: it is not allowed here, or receivers would reject it."""

    def __init__(self, message: str, failure: Failure = CAPABILITY_VIOLATION) -> None:
        super().__init__(failure, message)
