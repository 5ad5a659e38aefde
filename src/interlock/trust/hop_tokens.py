"""A token for the next hop: made here for one caller and one thing that it may do there, good for
one receiver and for a short time. What the caller showed itself never leaves the node.

A token is kept for as long as half of its life and made anew then: a call costs a look into a
table. Tokens are only ever in memory.
"""

from __future__ import annotations

import math
import re
import secrets
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from interlock.core.call import Call, Caller, Credentials
from interlock.core.catalog.offering import Tool
from interlock.core.pipeline.authentication import PARENT_KIND
from interlock.core.ports import Clock
from interlock.errors import UNAUTHENTICATED, InterlockError, ProtocolError
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.mcp import TOOLS_CALL
from interlock.protocol.scopes import READ, WRITE, covers_prefix, narrow_scopes, parse_scope
from interlock.trust.scopes import level_of, name_of

if TYPE_CHECKING:
    from joserfc.jwk import OKPKey


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


class HopTokenSource(Protocol):
    """What puts a token on what is sent to one upstream."""

    def __call__(self, call: Call) -> bytes:
        """What to send along with a caller's call; empty for a caller without a name."""
        ...

    def node_header_line(self) -> bytes:
        """What to send along with a request of the node's own."""
        ...


class HopTokenMinter:
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
            "sub": caller.parent_caller or caller.name,
            "client_id": caller.id or caller.name,
            "aud": audience,
            "scope": " ".join(_scope(call, caller, prefix)),
        }
        if caller.expires_at is not None:
            claims[CALLER_EXPIRES] = caller.expires_at
        return self._made(claims, left, caller.expires_at)

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


class HopTokens:
    """Puts tokens on what is sent to one receiver."""

    def __init__(
        self,
        minter: HopTokenMinter,
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
        self._same: BoundedDict[tuple[int, int], _Kept] = BoundedDict(_MOST_KEPT)
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
            and call.method == TOOLS_CALL
            and now < kept.renew_at
            and (kept.ends <= deadline or not deadline)
        ):
            return kept.shown
        if caller is None or not caller.name:
            return b""
        # Everything that is not about a tool takes the same scope.
        what = call.route or call.name if call.method == TOOLS_CALL else None
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

    def node_header_line(self) -> bytes:
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
    if call.method != TOOLS_CALL:
        return covers_prefix(caller.scopes, READ, prefix)
    route = call.route
    if route is None:
        return narrow_scopes(caller.scopes, WRITE, call.name)
    level = level_of(route) if isinstance(route, Tool) else WRITE
    return narrow_scopes(caller.scopes, level, name_of(call), route.upstream_name)


# -- Whose call is it that the node above sends? Its token for this hop says so, and is held
# against the keys that it showed when this node registered with it.
#
# Signed by it, for this node, not over, and with scopes that can be read: anything else is
# refused. Whether the scopes are enough for the call is for the stage behind to say.

ALGORITHM: Final = "EdDSA"
MOST_KEYS: Final = 32
_LONGEST_KEYS: Final = 32 * 1024
_LONGEST_TOKEN: Final = 8 * 1024
_LONGEST_NAME: Final = 2_000
_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class ParentIssuer(NamedTuple):
    """The node above, as far as its tokens are concerned. The same object until something is
    another than before."""

    issuer: str
    """Its id."""
    audience: str
    """This node's id there."""
    jwks: bytes | Raw
    """Its public keys. Empty: it showed none."""


class _MintedKept(msgspec.Struct, gc=False):
    """A token that was looked at already."""

    caller: Caller
    until: float


class HopTokenReader:
    """Reads the tokens of the node above. Give it to the authenticator as `minted`."""

    def __init__(
        self,
        above: Callable[[], ParentIssuer | None],
        *,
        wall_clock: Clock = time.time,
        demanded: bool = False,
    ) -> None:
        """`demanded`: a call without a token is refused, also of a node that sends none."""
        self._above = above
        self._wall_clock = wall_clock
        self._demanded = demanded
        self._by: ParentIssuer | None = None
        self._keys: dict[str, OKPKey] = {}
        self._kept: BoundedDict[str, _MintedKept] = BoundedDict(_MOST_KEPT)

    def __call__(self, credentials: Credentials) -> Caller | None:
        """Who calls. None: the node above does not say. Raises InterlockError."""
        token = credentials.hop_token
        if token is None:
            if self._demanded:
                raise _refused("it came without one")
            return None
        find_above, wall_clock = self._above, self._wall_clock
        above = find_above()
        if above is not self._by:
            self._by = above
            self._keys = {} if above is None else _read_keys(above.jwks)
            self._kept.clear()
        kept = self._kept.get(token)
        if kept is not None and wall_clock() < kept.until:
            return kept.caller
        if above is None:
            raise _refused("nobody is above this node")
        caller, ends = self._look(token, above, credentials.assigned_name)
        self._kept[token] = _MintedKept(caller, ends + LEEWAY)
        return caller

    def _look(self, token: str, above: ParentIssuer, name: str) -> tuple[Caller, float]:
        claims = self._signed_claims(token)
        if claims.get("iss") != above.issuer:
            raise _refused("another node made it")
        if claims.get("aud") != above.audience:
            raise _refused("it is for another node")
        ends, began, now = _time(claims, "exp"), _time(claims, "iat"), self._wall_clock()
        if ends + LEEWAY <= now:
            raise _refused("it has expired")
        if began > now + LEEWAY:
            raise _refused("it is not good yet")
        if ends - began > LONGEST_LIFE:
            raise _refused(f"it is good for more than {LONGEST_LIFE / 60:g} minutes")
        sub, client = _text(claims, "sub"), _text(claims, "client_id")
        scope = claims.get("scope")
        if not isinstance(scope, str):
            raise _refused("it has no `scope`")
        scopes = tuple(scope.split())
        try:
            for one in scopes:
                parse_scope(one)
        except ProtocolError:
            raise _refused("its `scope` cannot be read") from None
        caller = Caller(
            name,
            can_register=False,
            kind=PARENT_KIND,
            scopes=scopes,
            # Not the end of the token: the call may wait here for a human for longer than that.
            expires_at=_time(claims, CALLER_EXPIRES) if CALLER_EXPIRES in claims else None,
            id=client,
            parent_caller=sub,
        )
        return caller, ends

    def _signed_claims(self, token: str) -> dict[str, Any]:
        from joserfc import jws
        from joserfc.errors import JoseError

        if len(token) > _LONGEST_TOKEN or _COMPACT.fullmatch(token) is None:
            raise _refused("it is no token of a node")
        try:
            header = jws.extract_compact(token.encode()).headers()
        except (JoseError, ValueError):
            raise _refused("it is no token of a node") from None
        if header.get("alg") != ALGORITHM or "crit" in header or "b64" in header:
            raise _refused(f"it is not signed as a node does ({ALGORITHM})")
        kid = header.get("kid")
        key = self._keys.get(kid) if isinstance(kid, str) else None
        if key is None:
            raise _refused("it is signed with a key that the node above has not shown")
        try:
            with warnings.catch_warnings():
                # `EdDSA` has a newer name by now, which not everybody knows.
                warnings.simplefilter("ignore", category=UserWarning)
                payload = jws.deserialize_compact(token, key, algorithms=[ALGORITHM]).payload
            claims = msgspec.json.decode(payload)
        except (JoseError, ValueError, TypeError, RecursionError):
            raise _refused("its signature is not that of the node above") from None
        if not isinstance(claims, dict):
            raise _refused("it says nothing")
        return claims


def _read_keys(jwks: bytes | Raw) -> dict[str, OKPKey]:
    """The keys that can be used, by their ids. What is no key of ours is nobody's."""
    from joserfc.errors import JoseError
    from joserfc.jwk import OKPKey

    raw = bytes(jwks)
    if not raw or len(raw) > _LONGEST_KEYS:
        return {}
    try:
        shown = msgspec.json.decode(raw, type=_Jwks).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    found: dict[str, OKPKey] = {}
    for one in shown[:MOST_KEYS]:
        if one.kty != "OKP" or one.crv != "Ed25519" or not one.kid or one.kid in found:
            continue
        try:
            found[one.kid] = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": one.x})
        except (JoseError, ValueError, TypeError):
            continue
    return found


class _Jwk(msgspec.Struct, gc=False):
    kty: str = ""
    crv: str = ""
    kid: str = ""
    x: str = ""


class _Jwks(msgspec.Struct, gc=False):
    keys: list[_Jwk] = msgspec.field(default_factory=list)


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e12:
        raise _refused(f"it has no `{name}`")
    return float(value)


def _text(claims: dict[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        raise _refused(f"it has no `{name}`")
    return value


def _refused(why: str) -> InterlockError:
    return InterlockError(
        UNAUTHENTICATED, f"The token that the node above sent with this call is not good: {why}."
    )
