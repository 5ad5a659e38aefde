"""How a participant stands with its gateway, for its author: waited for, logged, and raised."""

from __future__ import annotations

import logging

from interlock.errors import InterlockError
from interlock.subserver.waited import Waited

_log = logging.getLogger("interlock.topics")


class Standing(Waited):
    """Told of every move. Nothing that it says holds a token."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._told = ""
        self.welcomes = 0
        """How often it was let in."""

    def welcomed(self, as_whom: str, label: str) -> None:
        """A gateway has let it in."""
        again = " again" if self.welcomes else ""
        self.welcomes += 1
        # Who was told that it is outside, however little is logged, is told that it is back.
        level = logging.WARNING if self._told else logging.INFO
        self._told = ""
        _log.log(level, "in the topic %s%s as %.128s, at %s", self._topic, again, as_whom, label)
        self.settle()

    def lost(self, why: str) -> None:
        """It is outside, and tries again."""
        still = "still " if self._told else ""
        reason = why.rstrip(".")
        if reason != self._told:
            _log.warning("%snot in the topic %s: %s. Trying again.", still, self._topic, reason)
        self._told = reason

    def over(self, error: InterlockError) -> None:
        """It is refused for good."""
        self.end(error)

    async def until_welcomed(self) -> None:
        """Raises InterlockError when that will not be."""
        await self.until_settled()
