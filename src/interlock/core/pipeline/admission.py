"""Admission of requests: authentication, session ownership, and limits of the node.

A request to which its server responds alone, such as `initialize`, passes admission too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Final, Protocol

from interlock.core.call import Call, Caller
from interlock.core.journal.audit import OK, Audit
from interlock.core.pipeline.authentication import Authenticator, PendingIdentity
from interlock.errors import (
    FORBIDDEN,
    INTERNAL,
    SHUTTING_DOWN,
    TOO_BUSY,
    UNAUTHENTICATED,
    UNKNOWN_SESSION,
    InterlockError,
)
from interlock.protocol.mcpax import CONFIRM, REGISTER
from interlock.protocol.mcpx_terms import TOPIC_SERVER as TOPIC

MAX_PENDING_IDENTITIES: Final = 100
"""Maximum number of requests that wait for the identity of their caller. Everybody can send such
requests, so they do not count against the limit of running calls."""


def pending_identities_error() -> InterlockError:
    """Return the error for a request beyond `MAX_PENDING_IDENTITIES`."""
    return InterlockError(
        TOO_BUSY, "Too many requests wait for the identity of their caller. Try again."
    )


class CallStarter(Protocol):
    """Begins a call."""

    def __call__(self, call: Call, *, is_retry: bool) -> None: ...


class Admission:
    """The first stage of every request."""

    def __init__(
        self,
        *,
        authenticate: Authenticator,
        audit: Audit,
        running_calls: MutableMapping[Call, None],
        concurrent_calls: int,
        recall: Callable[[Caller], Caller | None] = lambda caller: caller,
    ) -> None:
        """
        Args:
            recall: returns the caller of an earlier call with its current rights. None: the caller
                has no rights any more.
        """
        self.authenticate = authenticate
        self.concurrent_calls = concurrent_calls
        self.is_closed = False
        """True if the node shuts down and accepts no more calls."""
        self.recall = recall
        self._audit = audit
        self._running_calls = running_calls
        self._lookups: set[asyncio.Task[None]] = set()
        self.pending_identities: dict[Call, None] = {}
        """Calls whose caller is not identified yet. They do not count as running calls."""

    def __call__(self, call: Call) -> Caller:
        """Admit the call and set its caller. Raises InterlockError."""
        if call.approval_id and call.caller is not None:
            # A call that the gate made for an earlier caller. No server can create such a call.
            recalled = self.recall(call.caller)
            if recalled is None:
                raise InterlockError(
                    UNAUTHENTICATED,
                    f"The caller {call.caller.name} has no valid credentials any more, so its "
                    "approved call was not made.",
                )
            caller = call.caller = recalled
        else:
            # A direct `__call__` is faster than calling the object.
            caller = call.caller = self.authenticate.__call__(call.credentials)
        if not caller.can_call and not _is_allowed_without_call(call, caller):
            limit = "for topics only" if caller.can_join else "not for calls"
            raise InterlockError(
                FORBIDDEN,
                f"The token of {caller.name} is {limit}. Add `call` to its `may` to allow calls.",
            )
        if call.session_owner and call.session_owner != caller.name:
            raise InterlockError(
                UNKNOWN_SESSION,
                "Unknown or expired session. Send `initialize` to start a new session.",
            )
        if self.is_closed:
            raise InterlockError(SHUTTING_DOWN, "The node is shutting down.")
        if len(self._running_calls) > self.concurrent_calls:
            raise InterlockError(
                TOO_BUSY, "The node has reached its limit of concurrent calls. Try again."
            )
        return caller

    def resolve_identity(
        self, call: Call, pending: PendingIdentity, start_call: CallStarter
    ) -> InterlockError | None:
        """Look up the caller in a task, and begin the call again. Return an error if that is not
        possible now."""
        # Lookups are counted and not calls: a client that disconnects frees no slot.
        if len(self._lookups) >= MAX_PENDING_IDENTITIES:
            return pending_identities_error()

        async def look_up() -> None:
            await pending.resolve()
            if call in self.pending_identities:
                del self.pending_identities[call]
                start_call(call, is_retry=True)

        del self._running_calls[call]
        self.pending_identities[call] = None
        task = asyncio.get_running_loop().create_task(look_up())
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)
        return None

    def make_running(self, call: Call) -> bool:
        """Make a call with an unknown caller running, so that it can be ended. Return False if it
        does not wait for its identity."""
        if call not in self.pending_identities:
            return False
        del self.pending_identities[call]
        self._running_calls[call] = None
        return True

    def make_all_running(self) -> list[Call]:
        """Call `make_running` for all waiting calls, and return them."""
        return [call for call in list(self.pending_identities) if self.make_running(call)]

    def admit(self, call: Call) -> Caller:
        """Admit a request to which its server responds alone, such as `initialize`, and return its
        caller.

        Raises:
            PendingIdentity: the server has to wait and call this again.
            InterlockError: the request is rejected.
        """
        outcome_name, detail = INTERNAL.name, ""
        try:
            caller = self(call)
            outcome_name = OK
            return caller
        except PendingIdentity:
            # Neither rejected nor admitted: the server calls this again.
            outcome_name = ""
            raise
        except InterlockError as error:
            outcome_name, detail = error.failure.name, error.message
            raise
        finally:
            if outcome_name:
                self._audit.record(call, outcome_name, 0, detail)

    def record_rejection(self, call: Call, error: InterlockError) -> None:
        """Record a request that a server rejected before it became a call."""
        self._audit.record(call, error.failure.name, 0, error.message)


def _is_allowed_without_call(call: Call, caller: Caller) -> bool:
    """Return whether a caller without the right to call may make this request."""
    if call.server == TOPIC and caller.can_join:
        return True
    return call.method == REGISTER or (call.method == CONFIRM and caller.can_view_approvals)
