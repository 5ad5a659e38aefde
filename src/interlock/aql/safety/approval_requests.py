"""Approval requests of the safety loop, in the same inbox as all approvals. Each is a call of
one of the node's own tools that no client can name; an approval lets the node make that call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

from interlock.core.call import Call, Caller, Client, Credentials, Outcome
from interlock.core.catalog.offering import Tool
from interlock.errors import INTERNAL, InterlockError
from interlock.protocol.aql_terms import BUILTIN_KEY, BUILTIN_SEGMENT
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import LATEST_STATELESS, TOOLS_CALL, Era
from interlock.trust.approvals.record import Approval
from interlock.trust.policy.decision import Decision, PolicyAction, decision

UNBLOCK: Final = "unblock"
PROCEED: Final = "proceed"
UNBLOCK_TOOL: Final = f"{BUILTIN_SEGMENT}.{UNBLOCK}"
PROCEED_TOOL: Final = f"{BUILTIN_SEGMENT}.{PROCEED}"
OWN_QUESTIONS: Final = frozenset({UNBLOCK_TOOL, PROCEED_TOOL})
FACE: Final = "safety"

_SELF: Final = Caller("verification", can_view_approvals=True, kind="own")
_log = logging.getLogger("interlock.safety")
_CLIENT: Final = Client(Era.STATELESS, LATEST_STATELESS, "interlock")
_NOBODY: Final = Credentials("safety")
"""What such a call comes with: whose it is, is known, and it is never authenticated."""


class ApprovalGate(Protocol):
    def request_approval(self, call: Call, decision: Decision) -> None: ...


class ApprovalInbox(Protocol):
    """The approvals, as far as the safety loop needs them."""

    @property
    def gate(self) -> ApprovalGate: ...

    def find(self, id: str) -> Approval | None: ...

    def url_of(self, id: str) -> str | None: ...

    def watch(
        self, callback: Callable[[Approval], None], states: Collection[str] = ...
    ) -> Callable[[], None]: ...

    async def confirm(self, id: str, proof: str, presented_by: Caller | None = None) -> Outcome: ...

    async def refuse(
        self,
        id: str,
        *,
        proof: str | None = None,
        reason: str = "",
        presented_by: Caller | None = None,
        local: bool = False,
    ) -> Approval: ...


class ApprovalRequests:
    """Requests approvals of the safety loop, and withdraws them."""

    def __init__(self, approvals: ApprovalInbox, find: Callable[[str], Tool | None]) -> None:
        """`find`: a tool of the catalog by its canonical name."""
        self._approvals = approvals
        self._find = find

    def url_of(self, id: str) -> str | None:
        """Where a human decides one of them. None: there is no page."""
        return self._approvals.url_of(id)

    async def withdraw(self, id: str, why: str) -> None:
        """Nobody need decide it any more."""
        try:
            await self._approvals.refuse(id, reason=why, presented_by=_SELF)
        except InterlockError as error:
            _log.debug("approval %s was over already: %s", id, error.message)

    def put(self, name: str, caller: Caller, arguments: dict[str, Any], why: str) -> None:
        """Write a question down. Whoever watches approvals hears of it. Raises InterlockError."""
        tool = self._find(f"{BUILTIN_SEGMENT}.{name}")
        if tool is None:
            raise InterlockError(INTERNAL, f"The node has no tool {name} to ask a human with.")
        call = Call(TOOLS_CALL, FACE, _NOBODY, _CLIENT, tool.canonical)
        call.arguments = encode_value(arguments)
        call.caller, call.route, call.upstream = caller, tool, BUILTIN_KEY
        call.effect = tool.effect_name
        action = PolicyAction.VERIFY if name == UNBLOCK else PolicyAction.CONFIRM
        self._approvals.gate.request_approval(call, decision(action, f"safety:{name}", why))
