"""Limits on connections to all topics of a node together, and on those of one caller.

Each connection needs a file descriptor, and the node needs some for other purposes. A caller that
may open rooms by a glob must not use up all of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from interlock.core.call import Caller
from interlock.errors import TOO_BUSY, InterlockError
from interlock.protocol.mcpx_terms import GUEST
from interlock.topics.member import Member

DEFAULT_MAX_CONNECTIONS: Final = 10_000
MAX_CONNECTIONS_PER_CALLER: Final = 100
"""The maximum number of topics that one caller is in at the same time."""
_CallerKey = tuple[str, str]


class ConnectionCounter:
    """Counts the connections of one gateway. Members of the node itself have none."""

    def __init__(self, most: int = DEFAULT_MAX_CONNECTIONS) -> None:
        self.most = most
        self._who: dict[Member, _CallerKey] = {}
        self._of: Counter[_CallerKey] = Counter()

    def __len__(self) -> int:
        return len(self._who)

    def check(self, caller: Caller | None) -> None:
        """Raise InterlockError if no more connections are allowed, in total or for this caller.

        Args:
            caller: None for guests, which have no token.
        """
        if len(self._who) >= self.most:
            raise InterlockError(
                TOO_BUSY,
                f"The node has {self.most} connections to topics, which is the limit. Try again "
                "later.",
            )
        mine = self._of[_make_caller_key(caller)]
        if caller is None and mine >= self.most // 2:
            raise InterlockError(
                TOO_BUSY, "The topics of the node have too many guests. Join with a token."
            )
        if caller is not None and mine >= MAX_CONNECTIONS_PER_CALLER:
            raise InterlockError(
                TOO_BUSY,
                f"{caller.name} is in {mine} topics, which is the limit. Leave one of them.",
            )

    def came(self, member: Member) -> None:
        if not member.inside:
            who = _make_caller_key(None if member.caller.kind == GUEST else member.caller)
            self._who[member] = who
            self._of[who] += 1

    def left(self, member: Member) -> None:
        """Remove a connection. May be called more than once."""
        who = self._who.pop(member, None)
        if who is not None:
            self._of[who] -= 1
            if not self._of[who]:
                del self._of[who]


def _make_caller_key(caller: Caller | None) -> _CallerKey:
    return ("", GUEST) if caller is None else (caller.name, caller.kind)
