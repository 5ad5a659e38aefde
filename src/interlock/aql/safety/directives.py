"""Directives: what an agent is told after it reported a step, in the words of the draft, and the
notifications that come with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec

from interlock.aql.safety.store import AgentExecution, PrincipalBlock, Tier
from interlock.core.call import Principal
from interlock.primitives.timestamps import format_utc

NotificationType = Literal["permission_pending", "autonomy_pause", "danger_zone", "status", "error"]

_MOST: Final = 20
"""Notifications of one directive."""

INSTRUCTIONS: Final = (
    "Before every action, in any tool or program, call record_execution_step: "
    "next_action_hint says in plain words exactly one action, its verb and its object, such as "
    "'delete_issue 12 of the repository docs'. Vague hints wait for a human. "
    "next_operation may name the operation itself. Then read the directive: "
    "continue true, do exactly this one action; continue false, do not do it, tell the human why, "
    "and report again once they decided; stopped true, do nothing more. "
    "A code for verify_challenge comes from the human only; never guess one. "
    "End with complete_execution, or with abort_execution."
)
"""A ready text for whoever writes the instructions of an agent."""

UNREPORTED: Final = (
    "This action was not reported: call record_execution_step first, with a next_action_hint "
    "about exactly this operation."
)


def unreported_in_plain_view(execution: AgentExecution) -> str:
    """The same to somebody who sees tools, and may never have heard of an execution."""
    name = execution.who[0]
    return (
        f"This was not reported, and not done: an agent runs as '{name}', the same name as yours. "
        "If you are this agent, call record_execution_step first, in the view ?view=aql. If not, "
        "use a token of your own, or have an operator end it: "
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
    """Something that happened, or waits. Told with the next directive, and never pushed."""

    type: NotificationType
    message: str
    timestamp: str
    metadata: NotificationMetadata | None = None


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an agent may go on."""

    go_on: bool
    factors: list[str]
    stopped: bool = False
    reason: str = ""
    steps_remaining: int | None = None
    risk: Tier | None = None
    notifications: list[AgentNotification] = []

    def told(self) -> dict[str, Any]:
        """As the draft prints it. `continue` and `factors` are always there."""
        said: dict[str, Any] = {"continue": self.go_on, "factors": self.factors}
        if self.stopped:
            said["stopped"] = True
        if self.reason:
            said["reason"] = self.reason
        if self.steps_remaining is not None:
            said["stepsRemaining"] = self.steps_remaining
        if self.risk is not None:
            said["nextStepRisk"] = self.risk
        if self.notifications:
            said["notifications"] = msgspec.to_builtins(self.notifications)
        return said


def notification(
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
    """`now`: on the wall clock."""
    about = NotificationMetadata(operation, reason, level, verification, approval, url, hint)
    return AgentNotification(
        type, message, format_utc(now), None if about == NotificationMetadata() else about
    )


class AgentNotifications:
    """The notifications of all agents. One about something that waits is repeated until that is
    over; one about something that happened is given once. Nothing is pushed."""

    def __init__(self, wall_clock: Callable[[], float], blocks: Iterable[PrincipalBlock]) -> None:
        """`blocks`: looked at anew each time."""
        self._now = wall_clock
        self._blocks = blocks
        self.standing: dict[Principal, dict[str, AgentNotification]] = {}
        """What is told until it is cleared: by key, of everybody."""
        self._once: dict[Principal, list[AgentNotification]] = {}

    def stand(self, who: Principal, key: str, told: AgentNotification) -> None:
        """Told until it is cleared."""
        self.standing.setdefault(who, {})[key] = told

    def clear(self, who: Principal, key: str) -> bool:
        """Whether there was something to clear."""
        standing = self.standing.get(who)
        if standing is None or standing.pop(key, None) is None:
            return False
        if not standing:
            del self.standing[who]
        return True

    def once(self, who: Principal, type: NotificationType, message: str, **about: str) -> None:
        told = self._once.setdefault(who, [])
        told.append(notification(type, message, self._now(), **about))
        del told[:-_MOST]

    def pending(self, who: Principal) -> list[AgentNotification]:
        """The permissions that it waits for."""
        standing = self.standing.get(who, {}).values()
        return [one for one in standing if one.type == "permission_pending"]

    def take(self, who: Principal) -> list[AgentNotification]:
        """All that is to be told to it now."""
        told = [*self.standing.get(who, {}).values(), *self._once.pop(who, ())]
        return [*(self._danger(one, who) for one in self._blocks), *told][:_MOST]

    def forget(self, who: Principal) -> None:
        """It has no execution any more."""
        self.standing.pop(who, None)
        self._once.pop(who, None)

    @staticmethod
    def _danger(block: PrincipalBlock, who: Principal) -> AgentNotification:
        # What another agent wrote is none of this one's business: it could be meant for it.
        own = block.who == who
        message = (
            "You are blocked until a human verifies. Stop all actions."
            if own
            else "Another agent of this node is blocked until a human verifies."
        )
        return notification(
            "danger_zone",
            message,
            block.at,
            reason=block.reason if own else "",
            level="danger_zone",
            verification=block.challenge,
        )
