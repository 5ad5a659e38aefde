"""How many connections there are to all topics together, and how many of them are one caller's.

Each takes a file descriptor, and a node needs some for others: who may open rooms by a glob must
not take all of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from interlock.core.call import Caller
from interlock.errors import TOO_BUSY, InterlockError
from interlock.protocol.mcpx_terms import GUEST
from interlock.topics.member import Member

DEFAULT_MOST: Final = 10_000
MOST_OF_ONE: Final = 100
"""So many topics one caller is in at the same time."""
_Who = tuple[str, str]


class ConnectionCounter:
    """Counts the connections of one gateway. The node's own members have none."""

    def __init__(self, most: int = DEFAULT_MOST) -> None:
        self.most = most
        self._who: dict[Member, _Who] = {}
        self._of: Counter[_Who] = Counter()

    def __len__(self) -> int:
        return len(self._who)

    def check(self, caller: Caller | None) -> None:
        """Raises InterlockError when no more can come, or no more of this caller. None: of those
        who come without a token."""
        if len(self._who) >= self.most:
            raise InterlockError(
                TOO_BUSY,
                f"The node has {self.most} connections to topics, as many as it may: try again "
                "when some have left.",
            )
        mine = self._of[_key(caller)]
        if caller is None and mine >= self.most // 2:
            raise InterlockError(
                TOO_BUSY, "The node takes no more guests in its topics now. Come with a token."
            )
        if caller is not None and mine >= MOST_OF_ONE:
            raise InterlockError(
                TOO_BUSY,
                f"{caller.name} is in {mine} topics, as many as one may be in at the same time: "
                "leave one of them.",
            )

    def came(self, member: Member) -> None:
        if not member.inside:
            who = _key(None if member.caller.kind == GUEST else member.caller)
            self._who[member] = who
            self._of[who] += 1

    def left(self, member: Member) -> None:
        """Once, or more often."""
        who = self._who.pop(member, None)
        if who is not None:
            self._of[who] -= 1
            if not self._of[who]:
                del self._of[who]


def _key(caller: Caller | None) -> _Who:
    return ("", GUEST) if caller is None else (caller.name, caller.kind)
