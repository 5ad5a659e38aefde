"""Approval requests of the safety loop, in the common approval inbox.

Each request is a call of a hidden built-in tool. An approval lets the node make that call.
"""

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
from interlock.trust.policy.decision import Decision, PolicyAction, make_decision

UNBLOCK: Final = "unblock"
PROCEED: Final = "proceed"
UNBLOCK_TOOL: Final = f"{BUILTIN_SEGMENT}.{UNBLOCK}"
PROCEED_TOOL: Final = f"{BUILTIN_SEGMENT}.{PROCEED}"
SAFETY_TOOLS: Final = frozenset({UNBLOCK_TOOL, PROCEED_TOOL})
SERVER_NAME: Final = "safety"

_SAFETY_CALLER: Final = Caller("verification", can_view_approvals=True, kind="own")
_log = logging.getLogger("interlock.safety")
_CLIENT: Final = Client(Era.STATELESS, LATEST_STATELESS, "interlock")
_CREDENTIALS: Final = Credentials("safety")
"""The credentials of these calls. The owner is known, so they are never authenticated."""


class ApprovalGate(Protocol):
    def request_approval(self, call: Call, make_decision: Decision) -> None: ...


class ApprovalInbox(Protocol):
    """The parts of the approvals service that the safety loop uses."""

    @property
    def gate(self) -> ApprovalGate: ...

    def find(self, id: str) -> Approval | None: ...

    def approval_url(self, id: str) -> str | None: ...

    def watch(
        self, callback: Callable[[Approval], None], states: Collection[str] = ...
    ) -> Callable[[], None]: ...

    async def confirm(self, id: str, proof: str, presented_by: Caller | None = None) -> Outcome: ...

    async def reject(
        self,
        id: str,
        *,
        proof: str | None = None,
        reason: str = "",
        presented_by: Caller | None = None,
        local: bool = False,
    ) -> Approval: ...


class ApprovalRequests:
    """Creates and withdraws approval requests of the safety loop."""

    def __init__(self, approvals: ApprovalInbox, find: Callable[[str], Tool | None]) -> None:
        """
        Args:
            find: finds a tool of the catalog by its canonical name.
        """
        self._approvals = approvals
        self._find = find

    def approval_url(self, id: str) -> str | None:
        """Return the URL of an approval. None: there is no approval page."""
        return self._approvals.approval_url(id)

    async def withdraw(self, id: str, reason: str) -> None:
        """Withdraw a request that is no longer needed."""
        try:
            await self._approvals.reject(id, reason=reason, presented_by=_SAFETY_CALLER)
        except InterlockError as error:
            _log.debug("approval %s: cannot withdraw it: %s", id, error.message)

    def create(self, name: str, caller: Caller, arguments: dict[str, Any], reason: str) -> None:
        """Create a request. Watchers of approvals are notified. Raises InterlockError."""
        tool = self._find(f"{BUILTIN_SEGMENT}.{name}")
        if tool is None:
            raise InterlockError(INTERNAL, f"The built-in tool {name} for approvals is missing.")
        call = Call(TOOLS_CALL, SERVER_NAME, _CREDENTIALS, _CLIENT, tool.canonical)
        call.arguments = encode_value(arguments)
        call.caller, call.route, call.upstream = caller, tool, BUILTIN_KEY
        call.effect = tool.effect_name
        action = PolicyAction.VERIFY if name == UNBLOCK else PolicyAction.CONFIRM
        self._approvals.gate.request_approval(call, make_decision(action, f"safety:{name}", reason))
