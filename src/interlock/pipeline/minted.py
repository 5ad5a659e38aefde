"""Whose call is it that the node above sends? Its token for this hop says so, and is held against
the keys that it showed when this node registered with it.

Signed by it, for this node, not over, and with scopes that can be read: anything else is refused.
Whether the scopes are enough for the call is for the stage behind to say.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from interlock.call import Caller, Credentials
from interlock.errors import UNAUTHENTICATED, InterlockError, ProtocolError
from interlock.pipeline.authenticate import PARENT_KIND
from interlock.pipeline.minting import CALLER_EXPIRES, LEEWAY, LONGEST_LIFE
from interlock.ports import Clock
from interlock.protocol.scopes import parse

if TYPE_CHECKING:
    from joserfc.jwk import OKPKey

ALGORITHM: Final = "EdDSA"
MOST_KEYS: Final = 32
_LONGEST_KEYS: Final = 32 * 1024
_LONGEST_TOKEN: Final = 8 * 1024
_LONGEST_NAME: Final = 2_000
_MOST_KEPT: Final = 10_000
_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class Above(NamedTuple):
    """The node above, as far as its tokens are concerned. The same object until something is
    another than before."""

    issuer: str
    """Its id."""
    audience: str
    """This node's id there."""
    jwks: bytes | Raw
    """Its public keys. Empty: it showed none."""


class _Kept(msgspec.Struct, gc=False):
    """A token that was looked at already."""

    caller: Caller
    until: float


class MintedTokens:
    """Reads the tokens of the node above. Give it to the authenticator as `minted`."""

    def __init__(
        self,
        above: Callable[[], Above | None],
        *,
        wall_clock: Clock = time.time,
        demanded: bool = False,
    ) -> None:
        """`demanded`: a call without a token is refused, also of a node that sends none."""
        self._above = above
        self._wall_clock = wall_clock
        self._demanded = demanded
        self._by: Above | None = None
        self._keys: dict[str, OKPKey] = {}
        self._kept: dict[str, _Kept] = {}

    def __call__(self, credentials: Credentials) -> Caller | None:
        """Who calls. None: the node above does not say. Raises InterlockError."""
        token = credentials.minted
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
        caller, ends = self._look(token, above, credentials.known_as)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[token] = _Kept(caller, ends + LEEWAY)
        return caller

    def _look(self, token: str, above: Above, name: str) -> tuple[Caller, float]:
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
                parse(one)
        except ProtocolError:
            raise _refused("its `scope` cannot be read") from None
        caller = Caller(
            name,
            registers=False,
            kind=PARENT_KIND,
            scopes=scopes,
            # Not the end of the token: the call may wait here for a human for longer than that.
            expires=_time(claims, CALLER_EXPIRES) if CALLER_EXPIRES in claims else None,
            id=client,
            above=sub,
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
