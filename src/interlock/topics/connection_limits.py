"""Limits on connections to all topics of a node together, and on those of one caller.

Each connection needs a file descriptor, and the node needs some for other purposes. A caller
whose topics are a glob must not use up all of them.
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

    def __init__(self, limit: int = DEFAULT_MAX_CONNECTIONS) -> None:
        self.limit = limit
        self._caller_keys: dict[Member, _CallerKey] = {}
        self._counts: Counter[_CallerKey] = Counter()

    def __len__(self) -> int:
        return len(self._caller_keys)

    def check(self, caller: Caller | None) -> None:
        """Raise InterlockError if no more connections are allowed, in total or for this caller.

        Args:
            caller: None for guests, which have no token.
        """
        if len(self._caller_keys) >= self.limit:
            raise InterlockError(
                TOO_BUSY,
                f"The node has {self.limit} connections to topics, which is the limit. Try again "
                "later.",
            )
        caller_connections = self._counts[_make_caller_key(caller)]
        if caller is None and caller_connections >= self.limit // 2:
            raise InterlockError(
                TOO_BUSY, "The topics of the node have too many guests. Join with a token."
            )
        if caller is not None and caller_connections >= MAX_CONNECTIONS_PER_CALLER:
            raise InterlockError(
                TOO_BUSY,
                f"{caller.name} is in {caller_connections} topics, which is the limit. "
                "Disconnect from one of them.",
            )

    def on_join(self, member: Member) -> None:
        if not member.internal:
            key = _make_caller_key(None if member.caller.kind == GUEST else member.caller)
            self._caller_keys[member] = key
            self._counts[key] += 1

    def on_leave(self, member: Member) -> None:
        """Remove a connection. May be called more than once."""
        key = self._caller_keys.pop(member, None)
        if key is not None:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]


def _make_caller_key(caller: Caller | None) -> _CallerKey:
    return ("", GUEST) if caller is None else (caller.name, caller.kind)
