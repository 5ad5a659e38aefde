"""A token for the next hop: made here for one caller and one thing that it may do there, good for
one receiver and for a short time. What the caller showed itself never leaves the node.

A token is kept for as long as half of its life and made anew then: a call costs a look into a
table. Tokens are only ever in memory.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from interlock.call import Call, Caller
from interlock.catalog.offering import Tool
from interlock.pipeline.scopes import level_of, name_of
from interlock.ports import Clock
from interlock.protocol.mcp import TOOLS_CALL
from interlock.protocol.scopes import READ, WRITE, beneath, narrow

LONGEST_LIFE: Final = 900.0
"""No token that a node makes is good for longer."""
LEEWAY: Final = 30.0
"""By so much the clocks of two nodes may differ."""
CALLER_EXPIRES: Final = "sub_exp"
"""The claim that says until when the caller is who it says, however long the token is good."""
_WHOLE_SECONDS: Final = 5.0
"""Tokens that are good for longer than this end on a full second, as most readers expect."""
_MOST_KEPT: Final = 10_000

Sign = Callable[[dict[str, Any]], str]
"""Makes a token of claims, by the key of now."""
Shape = Callable[[str], bytes]
"""How a token stands in what is sent."""


class _Kept(msgspec.Struct, gc=False):
    """A token that may be sent again."""

    shown: bytes
    renew_at: float
    """On the clock that never goes back, as what follows."""
    ends: float
    caller: Caller | None = None
    what: object = None
    """Whose it is and what it is for: kept, so that nothing else can be taken for them."""

    def __repr__(self) -> str:
        return f"_Kept(…, {self.renew_at}, {self.ends})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("renew_at", self.renew_at), ("ends", self.ends)]


class Stamps(Protocol):
    """What puts a token on what is sent to one upstream."""

    def __call__(self, call: Call) -> bytes:
        """What to send along with a caller's call; empty for a caller without a name."""
        ...

    def own(self) -> bytes:
        """What to send along with a request of the node's own."""
        ...


class Minter:
    """Makes the tokens of one node."""

    def __init__(
        self,
        sign: Sign,
        *,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
    ) -> None:
        self._sign = sign
        self.clock = clock
        self._wall_clock = wall_clock

    def mint(self, call: Call, audience: str, issuer: str, prefix: str) -> tuple[str, float]:
        """A token for this call at the next hop, made anew, and how many seconds it is good for.

        `prefix`: what this node puts in front of the names of that hop.
        """
        caller = call.caller
        assert caller is not None
        left = call.deadline - self.clock() if call.deadline else math.inf
        claims: dict[str, Any] = {
            "iss": issuer,
            "sub": caller.above or caller.name,
            "client_id": caller.id or caller.name,
            "aud": audience,
            "scope": " ".join(_scope(call, caller, prefix)),
        }
        if caller.expires is not None:
            claims[CALLER_EXPIRES] = caller.expires
        return self._made(claims, left, caller.expires)

    def mint_own(self, audience: str, issuer: str) -> tuple[str, float]:
        """A token for what the node itself wants to know: which tools there are."""
        claims: dict[str, Any] = {
            "iss": issuer, "sub": issuer, "client_id": issuer, "aud": audience, "scope": READ,
        }  # fmt: skip
        return self._made(claims, math.inf, None)

    def _made(
        self, claims: dict[str, Any], left: float, expires: float | None
    ) -> tuple[str, float]:
        now = self._wall_clock()
        life = min(LONGEST_LIFE, max(left, 0.0))
        ends = now + life if expires is None else min(now + life, expires)
        begins: float = round(now, 3)
        if ends - now > _WHOLE_SECONDS:
            begins, ends = math.floor(now), math.floor(ends)
            ends = min(ends, begins + LONGEST_LIFE)
        else:
            ends = math.floor(ends * 1000) / 1000
        signed = self._sign(
            {**claims, "iat": begins, "exp": ends, "jti": secrets.token_urlsafe(12)}
        )
        return signed, ends - now


class Stamp:
    """Puts tokens on what is sent to one receiver."""

    def __init__(
        self,
        minter: Minter,
        audience: str,
        *,
        issuer: Callable[[], str],
        shape: Shape,
        prefix: str = "",
    ) -> None:
        """`issuer`: as whom the receiver knows this node. `prefix`: what stands before its names
        in the catalog here."""
        self._minter = minter
        self._audience = audience
        self._issuer = issuer
        self._shape = shape
        self._prefix = prefix
        self._clock = minter.clock
        self._kept: dict[tuple[Caller, object], _Kept] = {}
        self._same: dict[tuple[int, int], _Kept] = {}
        """The same by the very objects: callers and tools are mostly those of a call before."""
        self._last: _Kept | None = None
        """The one that was sent last for a tool, for which not even a look-up is needed."""
        self._own: _Kept | None = None

    def __call__(self, call: Call) -> bytes:
        caller, kept, clock = call.caller, self._last, self._clock
        now, deadline = clock(), call.deadline
        if (
            kept is not None
            and kept.caller is caller
            and kept.what is call.route
            and call.verb == TOOLS_CALL
            and now < kept.renew_at
            and (kept.ends <= deadline or not deadline)
        ):
            return kept.shown
        if caller is None or not caller.name:
            return b""
        # Everything that is not about a tool takes the same scope.
        what = call.route or call.name if call.verb == TOOLS_CALL else None
        kept = self._same.get((id(caller), id(what)))
        if (
            kept is not None
            and kept.caller is caller
            and kept.what is what
            and now < kept.renew_at
            and (kept.ends <= deadline or not deadline)
        ):
            self._keep_last(kept)
            return kept.shown
        kept = self._kept.get((caller, what))
        if kept is None or now >= kept.renew_at or (call.deadline and kept.ends > call.deadline):
            kept = self._mint(call, caller, what, now)
        if kept.caller is caller and kept.what is what:
            if len(self._same) >= _MOST_KEPT:
                self._same.clear()
            self._same[id(caller), id(what)] = kept
            self._keep_last(kept)
        return kept.shown

    def _keep_last(self, kept: _Kept) -> None:
        # Only those for tools that a list names: what the others are for is no object of the call.
        self._last = kept if isinstance(kept.what, Tool) else None

    def _mint(self, call: Call, caller: Caller, what: object, now: float) -> _Kept:
        if len(self._kept) >= _MOST_KEPT:
            self._make_room()
        token, life = self._minter.mint(call, self._audience, self._issuer(), self._prefix)
        kept = _Kept(self._shape(token), now + life / 2, now + life, caller, what)
        self._kept[caller, what] = kept
        return kept

    def own(self) -> bytes:
        """The same object for as long as nothing changed."""
        kept, now = self._own, self._clock()
        if kept is None or now >= kept.renew_at:
            token, life = self._minter.mint_own(self._audience, self._issuer())
            kept = self._own = _Kept(self._shape(token), now + life / 2, now + life)
        return kept.shown

    def forget(self) -> None:
        """Make every token anew."""
        self._kept.clear()
        self._same.clear()
        self._last = self._own = None

    def _make_room(self) -> None:
        now = self._clock()
        good = {key: one for key, one in self._kept.items() if now < one.renew_at}
        self._kept = good if len(good) < _MOST_KEPT // 2 else {}


def _scope(call: Call, caller: Caller, prefix: str) -> tuple[str, ...]:
    """Exactly what the call takes, in the names of the next hop."""
    if call.verb != TOOLS_CALL:
        return beneath(caller.scopes, READ, prefix)
    route = call.route
    if route is None:
        return narrow(caller.scopes, WRITE, call.name)
    level = level_of(route) if isinstance(route, Tool) else WRITE
    return narrow(caller.scopes, level, name_of(call), route.upstream_name)
