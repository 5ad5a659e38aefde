"""What an agent is told with its next directive: what waits is told until it waits no more, what
happened is told once. Nothing is pushed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from interlock.aql.safety.directives import Notification, NotificationType, notification
from interlock.aql.safety.store import Block
from interlock.core.call import Principal

_MOST: Final = 20


class Notices:
    """Of everybody."""

    def __init__(self, wall_clock: Callable[[], float], blocks: Iterable[Block]) -> None:
        """`blocks`: looked at anew each time."""
        self._now = wall_clock
        self._blocks = blocks
        self.standing: dict[Principal, dict[str, Notification]] = {}
        """What is told until it is cleared: by key, of everybody."""
        self._once: dict[Principal, list[Notification]] = {}

    def stand(self, who: Principal, key: str, told: Notification) -> None:
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

    def pending(self, who: Principal) -> list[Notification]:
        """The permissions that it waits for."""
        standing = self.standing.get(who, {}).values()
        return [one for one in standing if one.type == "permission_pending"]

    def take(self, who: Principal) -> list[Notification]:
        """All that is to be told to it now."""
        told = [*self.standing.get(who, {}).values(), *self._once.pop(who, ())]
        return [*(self._danger(one, who) for one in self._blocks), *told][:_MOST]

    def forget(self, who: Principal) -> None:
        """It has no execution any more."""
        self.standing.pop(who, None)
        self._once.pop(who, None)

    @staticmethod
    def _danger(block: Block, who: Principal) -> Notification:
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
