"""What a participant refuses by itself, before anything is sent."""

from __future__ import annotations

from interlock.errors import CAPABILITY_VIOLATION, Failure, InterlockError


class SendError(InterlockError):
    """It was not sent: it is not allowed here, or nobody would believe it."""

    def __init__(self, message: str, failure: Failure = CAPABILITY_VIOLATION) -> None:
        super().__init__(failure, message)
