"""Who comes in? Authentication, whose session it is, and whether the node takes calls at all.

A request that is answered by its face alone, such as `initialize`, passes here too: there is no
side door.
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
"""So many requests may wait until it is known who sent them. Anybody can send such, so they are
kept apart: they take no room from callers who are known."""


def pending_identities_error() -> InterlockError:
    """For one more than that."""
    return InterlockError(
        TOO_BUSY, "Too many requests wait until it is known who sent them; try again."
    )


class CallStarter(Protocol):
    """Sends a call on its way."""

    def __call__(self, call: Call, *, again: bool) -> None: ...


class Admission:
    """The first stage of every request."""

    def __init__(
        self,
        *,
        authenticate: Authenticator,
        audit: Audit,
        under_way: MutableMapping[Call, None],
        concurrent_calls: int,
        recall: Callable[[Caller], Caller | None] = lambda caller: caller,
    ) -> None:
        """Args:
        recall: the caller of an earlier call, with its rights of now. None: it has none any more.
        """
        self.authenticate = authenticate
        self.concurrent_calls = concurrent_calls
        self.closed = False
        """Whether the node stops, and takes nobody any more."""
        self.recall = recall
        self._audit = audit
        self._under_way = under_way
        self._asking: set[asyncio.Task[None]] = set()
        self.unsettled: dict[Call, None] = {}
        """Calls that came in, but nobody knows yet whose they are. They are not under way."""

    def __call__(self, call: Call) -> Caller:
        """Let the call in: it learns whose it is. Raises InterlockError."""
        if call.approval_id and call.caller is not None:
            # Made by the gate, for somebody who called earlier. No face can say this.
            known = self.recall(call.caller)
            if known is None:
                raise InterlockError(
                    UNAUTHENTICATED,
                    f"{call.caller.name} is not known here any more: the call is not made.",
                )
            caller = call.caller = known
        else:
            # By its method: to call an object costs more than to call a method of it.
            caller = call.caller = self.authenticate.__call__(call.credentials)
        if not caller.can_call and not _is_for(call, caller):
            only = "for topics alone" if caller.can_join else "not for calling"
            raise InterlockError(
                FORBIDDEN, f"The token of {caller.name} is {only}: `may: [call]` lets it call."
            )
        if call.session_owner and call.session_owner != caller.name:
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

    def settle(
        self, call: Call, unsettled: PendingIdentity, begin: CallStarter
    ) -> InterlockError | None:
        """Ask what has to be asked about its caller, and begin it again. What is returned says why
        not."""
        # Counted is who is asked about: hanging up makes no room for the next.
        if len(self._asking) >= MAX_PENDING_IDENTITIES:
            return pending_identities_error()

        async def ask() -> None:
            await unsettled.settle()
            if call in self.unsettled:
                del self.unsettled[call]
                begin(call, again=True)

        del self._under_way[call]
        self.unsettled[call] = None
        task = asyncio.get_running_loop().create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return None

    def give_up(self, call: Call) -> bool:
        """Let it be over though nobody knows whose it is. False: that is known, or it is over."""
        if call not in self.unsettled:
            return False
        del self.unsettled[call]
        self._under_way[call] = None
        return True

    def give_up_all(self) -> list[Call]:
        """The same for all of them."""
        return [call for call in list(self.unsettled) if self.give_up(call)]

    def admit(self, call: Call) -> Caller:
        """The caller of a request that is answered by its face alone, such as `initialize`.

        Raises InterlockError; PendingIdentity, when the face has to wait and ask again.
        """
        word, detail = INTERNAL.name, ""
        try:
            caller = self(call)
            word = OK
            return caller
        except PendingIdentity:
            # It is not refused yet, nor let in: the face asks again.
            word = ""
            raise
        except InterlockError as error:
            word, detail = error.failure.name, error.message
            raise
        finally:
            if word:
                self._audit.record(call, word, 0, detail)

    def refused(self, call: Call, error: InterlockError) -> None:
        """A face refused a request before it became a call: that is recorded too."""
        self._audit.record(call, error.failure.name, 0, error.message)


def _is_for(call: Call, caller: Caller) -> bool:
    """Whether somebody who may not call may do this all the same."""
    if call.server == TOPIC and caller.can_join:
        return True
    return call.method == REGISTER or (call.method == CONFIRM and caller.can_view_approvals)
