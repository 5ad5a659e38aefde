"""Who comes in? Authentication, whose session it is, and whether the node takes calls at all.

A request that is answered by its face alone, such as `initialize`, passes here too: there is no
side door.
"""

from __future__ import annotations

from collections.abc import Sized

from interlock.call import Call, Caller
from interlock.errors import (
    FORBIDDEN,
    INTERNAL,
    SHUTTING_DOWN,
    TOO_BUSY,
    UNKNOWN_SESSION,
    InterlockError,
)
from interlock.pipeline.audit import OK, Audit
from interlock.pipeline.authenticate import Authenticator
from interlock.protocol.ax import REGISTER


class Entry:
    """The first stage of every request."""

    def __init__(
        self,
        *,
        authenticate: Authenticator,
        audit: Audit,
        under_way: Sized,
        concurrent_calls: int,
    ) -> None:
        self.authenticate = authenticate
        self.concurrent_calls = concurrent_calls
        self.closed = False
        """Whether the node stops, and takes nobody any more."""
        self._audit = audit
        self._under_way = under_way

    def __call__(self, call: Call) -> Caller:
        """Let the call in: it learns whose it is. Raises InterlockError."""
        caller = call.caller = self.authenticate(call.credentials)
        if not caller.calls and call.verb != REGISTER:
            raise InterlockError(
                FORBIDDEN,
                f"The token of {caller.name} is not for calling: `may: [call]` lets it.",
            )
        if call.owner and call.owner != caller.name:
            raise InterlockError(
                UNKNOWN_SESSION,
                "This session has ended or never was: send `initialize` to start a new one.",
            )
        if self.closed:
            raise InterlockError(SHUTTING_DOWN, "The node is shutting down.")
        if len(self._under_way) > self.concurrent_calls:
            raise InterlockError(
                TOO_BUSY, "The node has as many calls under way as it may; try again."
            )
        return caller

    def admit(self, call: Call) -> Caller:
        """The caller of a request that is answered by its face alone, such as `initialize`."""
        word, detail = INTERNAL.name, ""
        try:
            caller = self(call)
            word = OK
            return caller
        except InterlockError as error:
            word, detail = error.failure.name, error.message
            raise
        finally:
            self._audit.record(call, word, 0, detail)

    def refused(self, call: Call, error: InterlockError) -> None:
        """A face refused a request before it became a call: that is recorded too."""
        self._audit.record(call, error.failure.name, 0, error.message)
