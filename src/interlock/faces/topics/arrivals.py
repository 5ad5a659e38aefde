"""What waits for the node in a room until it is taken: a line for each participant, and one of each
line in turn, so that nobody waits behind what another has said.

How much may wait is bounded, for one and for all together. What the gateway says about somebody
stands in the line of that one: it leaves after what it said, and not before.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from interlock.pipeline.topics.seat import Member
from interlock.protocol.mcpx.envelope import Head

MOST_BEHIND: Final = 1_000
"""So many messages of one participant wait to be taken."""
MOST_BYTES_BEHIND: Final = 16 * 1024 * 1024
MOST_BYTES_OF_ALL: Final = 64 * 1024 * 1024
_EACH: Final = 500
"""What a message costs beside its text, roughly."""


class Arrived(NamedTuple):
    """A message for the node."""

    member: Member | None
    """Who said it. None: the gateway."""
    head: Head
    text: bytes
    is_new: bool = True
    """Whether no message had its id before."""

    @property
    def is_counted(self) -> bool:
        """What the gateway says, and the node's own members, is not theirs to answer for."""
        return self.member is not None and not self.member.inside

    @property
    def weight(self) -> int:
        return len(self.text) + _EACH


class _Line:
    """Of one participant."""

    __slots__ = ("bytes", "messages", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Arrived] = deque()
        self.messages = 0
        self.bytes = 0

    def count(self, one: Arrived, sign: int) -> int:
        """How many bytes that makes more, or less."""
        if not one.is_counted:
            return 0
        self.messages += sign
        self.bytes += sign * one.weight
        return sign * one.weight


class Arrivals:
    """Those of one room."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        """By participant, whose turn it is next first."""
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def messages(self) -> int:
        """How many wait that participants said."""
        return sum(line.messages for line in self._lines.values())

    def add(self, whose: str, one: Arrived) -> None:
        line = self._lines.get(whose)
        if line is None:
            line = self._lines[whose] = _Line()
        line.waiting.append(one)
        self.bytes += line.count(one, 1)

    def take(self) -> Arrived:
        """The next one, of whose turn it is."""
        whose = next(iter(self._lines))
        line = self._lines.pop(whose)
        one = line.waiting.popleft()
        self.bytes += line.count(one, -1)
        if line.waiting:
            self._lines[whose] = line
        return one

    def too_much_of(self) -> str | None:
        """Whose messages are the most of all, where there are too many of all."""
        if self.bytes <= MOST_BYTES_OF_ALL:
            return None
        return max(self._lines, key=lambda whose: self._lines[whose].bytes)

    def is_too_much(self, whose: str) -> bool:
        """Whether more of one participant waits than may."""
        line = self._lines.get(whose)
        return line is not None and (line.messages > MOST_BEHIND or line.bytes > MOST_BYTES_BEHIND)

    def drop(self, whose: str) -> list[Arrived]:
        """What a participant said is not taken any more; what was said about it is."""
        line = self._lines.pop(whose, None)
        if line is None:
            return []
        self.bytes -= line.bytes
        for one in line.waiting:
            if not one.is_counted:
                self.add(whose, one)
        return [one for one in line.waiting if one.is_counted]
