"""Directives: the response to an agent that reported a step, in the terms of the draft, with
notifications.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec

from interlock.aql.safety.store import AgentExecution, PrincipalBlock, Tier
from interlock.core.call import Principal
from interlock.primitives.timestamps import format_utc

NotificationType = Literal["permission_pending", "autonomy_pause", "danger_zone", "status", "error"]

_MAX_NOTIFICATIONS: Final = 20
"""Maximum number of notifications in a directive."""

INSTRUCTIONS: Final = (
    "Before every action, in any tool or program, call record_execution_step: "
    "next_action_hint describes exactly one action in plain words, with its verb and its object, "
    "such as 'delete_issue 12 of the repository docs'. Vague hints wait for approval. "
    "next_operation may name the operation. Then follow the directive: "
    "continue true: do exactly this one action; continue false: do not do it, tell the user why, "
    "and report it again after a decision; stopped true: do nothing more. "
    "The code for verify_challenge comes from the user only; never guess a code. "
    "End with complete_execution, or with abort_execution."
)
"""A text for the system prompt of an agent."""

UNREPORTED: Final = (
    "This action was not reported. Call record_execution_step first, with a next_action_hint "
    "for exactly this operation."
)


def unreported_in_plain_view(execution: AgentExecution) -> str:
    """Return the same message for a client in the plain view, which may not know executions."""
    name = execution.owner[0]
    return (
        f"Not reported, so not executed: an agent is running as '{name}', the same name as yours. "
        "If you are this agent, call record_execution_step first, in the view ?view=aql. If not, "
        "use a token of your own, or ask an operator to end the execution: "
        f"`interlock operator end {execution.id}`."
    )


class NotificationMetadata(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The subject of a notification."""

    operation: str = ""
    reason: str = ""
    level: str = ""
    verification_id: str = ""
    approval_id: str = ""
    url: str = ""
    hint: str = ""


class AgentNotification(msgspec.Struct, frozen=True, omit_defaults=True):
    """A notification about an event or a pending decision.

    It is sent with the next directive only.
    """

    type: NotificationType
    message: str
    timestamp: str
    metadata: NotificationMetadata | None = None


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """The decision if an agent may continue."""

    may_continue: bool
    factors: list[str]
    stopped: bool = False
    reason: str = ""
    steps_remaining: int | None = None
    risk: Tier | None = None
    notifications: list[AgentNotification] = []

    def to_dict(self) -> dict[str, Any]:
        """Return the directive in the draft's form. `continue` and `factors` are always present."""
        fields: dict[str, Any] = {"continue": self.may_continue, "factors": self.factors}
        if self.stopped:
            fields["stopped"] = True
        if self.reason:
            fields["reason"] = self.reason
        if self.steps_remaining is not None:
            fields["stepsRemaining"] = self.steps_remaining
        if self.risk is not None:
            fields["nextStepRisk"] = self.risk
        if self.notifications:
            fields["notifications"] = msgspec.to_builtins(self.notifications)
        return fields


def create_notification(
    type: NotificationType,
    message: str,
    now: float,
    *,
    operation: str = "",
    reason: str = "",
    level: str = "",
    verification: str = "",
    approval: str = "",
    url: str = "",
    hint: str = "",
) -> AgentNotification:
    """Create a notification. `now` is wall clock time."""
    metadata = NotificationMetadata(operation, reason, level, verification, approval, url, hint)
    return AgentNotification(
        type, message, format_utc(now), None if metadata == NotificationMetadata() else metadata
    )


class AgentNotifications:
    """The notifications of all agents.

    Notifications about pending decisions are repeated until they are cleared. Notifications about
    events are sent once. Nothing is pushed.
    """

    def __init__(self, wall_clock: Callable[[], float], blocks: Iterable[PrincipalBlock]) -> None:
        """
        Args:
            blocks: the current blocks. Iterated for every directive.
        """
        self._wall_clock = wall_clock
        self._blocks = blocks
        self.repeated: dict[Principal, dict[str, AgentNotification]] = {}
        """Repeated notifications, by principal and key."""
        self._events: dict[Principal, list[AgentNotification]] = {}

    def repeat(self, owner: Principal, key: str, notification_to_repeat: AgentNotification) -> None:
        """Repeat a notification until it is cleared."""
        self.repeated.setdefault(owner, {})[key] = notification_to_repeat

    def clear(self, owner: Principal, key: str) -> bool:
        """Stop repeating a notification. Returns False if there is none."""
        repeated = self.repeated.get(owner)
        if repeated is None or repeated.pop(key, None) is None:
            return False
        if not repeated:
            del self.repeated[owner]
        return True

    def add_event(
        self, owner: Principal, type: NotificationType, message: str, **fields: str
    ) -> None:
        notification_list = self._events.setdefault(owner, [])
        notification_list.append(create_notification(type, message, self._wall_clock(), **fields))
        del notification_list[:-_MAX_NOTIFICATIONS]

    def pending(self, owner: Principal) -> list[AgentNotification]:
        """Return the pending approvals of a principal."""
        repeated = self.repeated.get(owner, {}).values()
        return [
            notification for notification in repeated if notification.type == "permission_pending"
        ]

    def take_pending(self, owner: Principal) -> list[AgentNotification]:
        """Return the notifications for the next directive."""
        notification_list = [*self.repeated.get(owner, {}).values(), *self._events.pop(owner, ())]
        return [
            *(self._block_notification(block, owner) for block in self._blocks),
            *notification_list,
        ][:_MAX_NOTIFICATIONS]

    def remove(self, owner: Principal) -> None:
        """Remove all notifications of a principal without executions."""
        self.repeated.pop(owner, None)
        self._events.pop(owner, None)

    @staticmethod
    def _block_notification(block: PrincipalBlock, owner: Principal) -> AgentNotification:
        # Text of another agent is not shown: it could contain instructions for this one.
        is_own = block.owner == owner
        message = (
            "You are blocked until an operator verifies. Stop all actions."
            if is_own
            else "Another agent of this node is blocked until an operator verifies."
        )
        return create_notification(
            "danger_zone",
            message,
            block.at,
            reason=block.reason if is_own else "",
            level="danger_zone",
            verification=block.challenge,
        )
