"""Hop tokens: a token for the next hop, made for one caller, one permission and one receiver, and
valid for a short time (MCP-AX §10.1). The credentials of the caller never leave the node.

A token is reused for half of its lifetime, so a call usually costs one lookup. Tokens are in memory
only.
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
from interlock.trust.scopes import required_level, scope_name

if TYPE_CHECKING:
    from joserfc.jwk import OKPKey


MAX_TOKEN_SECONDS: Final = 900.0
"""The longest lifetime of a token."""
LEEWAY_SECONDS: Final = 30.0
"""The maximum difference between the clocks of two nodes."""
CALLER_EXPIRES: Final = "sub_exp"
"""The claim that says when the credentials of the caller expire, independent of the token."""
_MIN_WHOLE_SECONDS: Final = 5.0
"""Tokens with a longer lifetime end on a full second, as most readers expect."""
_MAX_CACHED_TOKENS: Final = 10_000

Sign = Callable[[dict[str, Any]], str]
"""Signs claims with the current key and returns the token."""
Encode = Callable[[str], bytes]
"""Encodes a token for the request, for example as a header."""


class _CachedToken(msgspec.Struct, gc=False):
    """A token that can be sent again."""

    encoded: bytes
    renew_at: float
    """In seconds on the monotonic clock, as `expires_at`."""
    expires_at: float
    caller: Caller | None = None
    target: object = None
    """The receiver of the token. Stored here, as the caller is, so that no other object can get its
    id."""

    def __repr__(self) -> str:
        return f"_CachedToken(…, {self.renew_at}, {self.expires_at})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("renew_at", self.renew_at), ("ends", self.expires_at)]


class HopTokenSource(Protocol):
    """Makes the tokens for requests to one upstream."""

    def __call__(self, call: Call) -> bytes:
        """Return what to send with a call. Empty for a caller without a name."""
        ...

    def node_header_line(self) -> bytes:
        """Return what to send with a request of the node itself."""
        ...


class HopTokenMinter:
    """Makes the hop tokens of one node."""

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
        """Return a new token for a call at the next hop, and its lifetime in seconds.

        Args:
            prefix: the prefix that this node adds to the names of that hop.
        """
        caller = call.caller
        assert caller is not None
        remaining = call.deadline - self.clock() if call.deadline else math.inf
        claims: dict[str, Any] = {
            "iss": issuer,
            "sub": caller.parent_caller or caller.name,
            "client_id": caller.id or caller.name,
            "aud": audience,
            "scope": " ".join(_scope(call, caller, prefix)),
        }
        if caller.expires_at is not None:
            claims[CALLER_EXPIRES] = caller.expires_at
        return self._sign_claims(claims, remaining, caller.expires_at)

    def mint_own(self, audience: str, issuer: str) -> tuple[str, float]:
        """Return a token for requests of the node itself, such as lists of tools."""
        claims: dict[str, Any] = {
            "iss": issuer, "sub": issuer, "client_id": issuer, "aud": audience, "scope": READ,
        }  # fmt: skip
        return self._sign_claims(claims, math.inf, None)

    def _sign_claims(
        self, claims: dict[str, Any], remaining: float, expires: float | None
    ) -> tuple[str, float]:
        now = self._wall_clock()
        life = min(MAX_TOKEN_SECONDS, max(remaining, 0.0))
        expires_at = now + life if expires is None else min(now + life, expires)
        issued_at: float = round(now, 3)
        if expires_at - now > _MIN_WHOLE_SECONDS:
            issued_at, expires_at = math.floor(now), math.floor(expires_at)
            expires_at = min(expires_at, issued_at + MAX_TOKEN_SECONDS)
        else:
            expires_at = math.floor(expires_at * 1000) / 1000
        signed = self._sign(
            {**claims, "iat": issued_at, "exp": expires_at, "jti": secrets.token_urlsafe(12)}
        )
        return signed, expires_at - now


class HopTokens:
    """The tokens for one receiver."""

    def __init__(
        self,
        minter: HopTokenMinter,
        audience: str,
        *,
        issuer: Callable[[], str],
        encode: Encode,
        prefix: str = "",
    ) -> None:
        """Args:
        issuer: returns the name of this node at the receiver.
        prefix: the prefix of the receiver's names in the catalog here.
        """
        self._minter = minter
        self._audience = audience
        self._issuer = issuer
        self._encode = encode
        self._prefix = prefix
        self._clock = minter.clock
        self._tokens: dict[tuple[Caller, object], _CachedToken] = {}
        self._by_identity: BoundedDict[tuple[int, int], _CachedToken] = BoundedDict(
            _MAX_CACHED_TOKENS
        )
        """The same tokens by object identity: callers and tools are usually those of an earlier
        call."""
        self._last_token: _CachedToken | None = None
        """The token that was last sent for a tool, found without a lookup."""
        self._own_token: _CachedToken | None = None

    def __call__(self, call: Call) -> bytes:
        caller, token, clock = call.caller, self._last_token, self._clock
        now, deadline = clock(), call.deadline
        if (
            token is not None
            and token.caller is caller
            and token.target is call.route
            and call.method == TOOLS_CALL
            and now < token.renew_at
            and (token.expires_at <= deadline or not deadline)
        ):
            return token.encoded
        if caller is None or not caller.name:
            return b""
        # All requests that call no tool need the same scope.
        target = call.route or call.name if call.method == TOOLS_CALL else None
        token = self._by_identity.get((id(caller), id(target)))
        if (
            token is not None
            and token.caller is caller
            and token.target is target
            and now < token.renew_at
            and (token.expires_at <= deadline or not deadline)
        ):
            self._store_last_token(token)
            return token.encoded
        token = self._tokens.get((caller, target))
        if (
            token is None
            or now >= token.renew_at
            or (call.deadline and token.expires_at > call.deadline)
        ):
            token = self._mint(call, caller, target, now)
        if token.caller is caller and token.target is target:
            self._by_identity[id(caller), id(target)] = token
            self._store_last_token(token)
        return token.encoded

    def _store_last_token(self, token: _CachedToken) -> None:
        # Only for listed tools: other targets are not an object of the call.
        self._last_token = token if isinstance(token.target, Tool) else None

    def _mint(self, call: Call, caller: Caller, target: object, now: float) -> _CachedToken:
        if len(self._tokens) >= _MAX_CACHED_TOKENS:
            self._remove_old()
        signed, life = self._minter.mint(call, self._audience, self._issuer(), self._prefix)
        token = _CachedToken(self._encode(signed), now + life / 2, now + life, caller, target)
        self._tokens[caller, target] = token
        return token

    def node_header_line(self) -> bytes:
        """Return the token of the node itself. The same object until the token is renewed."""
        token, now = self._own_token, self._clock()
        if token is None or now >= token.renew_at:
            signed, life = self._minter.mint_own(self._audience, self._issuer())
            token = self._own_token = _CachedToken(self._encode(signed), now + life / 2, now + life)
        return token.encoded

    def clear(self) -> None:
        """Remove all cached tokens."""
        self._tokens.clear()
        self._by_identity.clear()
        self._last_token = self._own_token = None

    def _remove_old(self) -> None:
        now = self._clock()
        valid = {key: token for key, token in self._tokens.items() if now < token.renew_at}
        self._tokens = valid if len(valid) < _MAX_CACHED_TOKENS // 2 else {}


def _scope(call: Call, caller: Caller, prefix: str) -> tuple[str, ...]:
    """Return the scopes that the call needs, in the names of the next hop."""
    if call.method != TOOLS_CALL:
        return covers_prefix(caller.scopes, READ, prefix)
    route = call.route
    if route is None:
        return narrow_scopes(caller.scopes, WRITE, call.name)
    level = required_level(route) if isinstance(route, Tool) else WRITE
    return narrow_scopes(caller.scopes, level, scope_name(call), route.upstream_name)


# -- Reads the hop tokens of the parent node. They are verified with the keys that the parent
# published when this node registered.
#
# A token must be signed by the parent, be made for this node, be valid now, and have readable
# scopes. The authorization stage decides whether the scopes are enough for the call.

ALGORITHM: Final = "EdDSA"
MAX_PARENT_KEYS: Final = 32
_MAX_KEYS_BYTES: Final = 32 * 1024
_MAX_TOKEN_BYTES: Final = 8 * 1024
_MAX_NAME_LENGTH: Final = 2_000
_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class ParentIssuer(NamedTuple):
    """The parent node as an issuer of tokens. The same object until a value changes."""

    issuer: str
    """The id of the parent."""
    audience: str
    """The id of this node at the parent."""
    jwks: bytes | Raw
    """The public keys of the parent. Empty: it published none."""


class _VerifiedToken(msgspec.Struct, gc=False):
    """A token that was verified before."""

    caller: Caller
    until: float


class HopTokenReader:
    """Reads the tokens of the parent node. Assign it to `Authenticator.minted`."""

    def __init__(
        self,
        find_parent: Callable[[], ParentIssuer | None],
        *,
        wall_clock: Clock = time.time,
        is_required: bool = False,
    ) -> None:
        """Args:
        find_parent: returns the parent node. None: there is none.
        is_required: whether to reject calls without a token.
        """
        self._find_parent = find_parent
        self._wall_clock = wall_clock
        self._is_required = is_required
        self._parent: ParentIssuer | None = None
        self._keys: dict[str, OKPKey] = {}
        self._verified: BoundedDict[str, _VerifiedToken] = BoundedDict(_MAX_CACHED_TOKENS)

    def __call__(self, credentials: Credentials) -> Caller | None:
        """Return the caller of a call. None: the parent sent no token. Raises InterlockError."""
        token = credentials.hop_token
        if token is None:
            if self._is_required:
                raise _token_error("the call has none")
            return None
        find_parent, wall_clock = self._find_parent, self._wall_clock
        parent = find_parent()
        if parent is not self._parent:
            self._parent = parent
            self._keys = {} if parent is None else _read_keys(parent.jwks)
            self._verified.clear()
        verified = self._verified.get(token)
        if verified is not None and wall_clock() < verified.until:
            return verified.caller
        if parent is None:
            raise _token_error("this node has no parent")
        caller, expires_at = self._read(token, parent, credentials.assigned_name)
        self._verified[token] = _VerifiedToken(caller, expires_at + LEEWAY_SECONDS)
        return caller

    def _read(self, token: str, parent: ParentIssuer, name: str) -> tuple[Caller, float]:
        claims = self._verify(token)
        if claims.get("iss") != parent.issuer:
            raise _token_error("another node issued it")
        if claims.get("aud") != parent.audience:
            raise _token_error("it is for another node")
        expires_at, issued, now = (
            _read_time(claims, "exp"),
            _read_time(claims, "iat"),
            self._wall_clock(),
        )
        if expires_at + LEEWAY_SECONDS <= now:
            raise _token_error("it has expired")
        if issued > now + LEEWAY_SECONDS:
            raise _token_error("it is not valid yet")
        if expires_at - issued > MAX_TOKEN_SECONDS:
            raise _token_error(f"it is valid for more than {MAX_TOKEN_SECONDS / 60:g} minutes")
        sub, client = _read_text(claims, "sub"), _read_text(claims, "client_id")
        scope = claims.get("scope")
        if not isinstance(scope, str):
            raise _token_error("it has no `scope`")
        scopes = tuple(scope.split())
        try:
            for item in scopes:
                parse_scope(item)
        except ProtocolError:
            raise _token_error("its `scope` cannot be parsed") from None
        caller = Caller(
            name,
            can_register=False,
            kind=PARENT_KIND,
            scopes=scopes,
            # Not the end of the token: the call may wait longer than that for an operator.
            expires_at=_read_time(claims, CALLER_EXPIRES) if CALLER_EXPIRES in claims else None,
            id=client,
            parent_caller=sub,
        )
        return caller, expires_at

    def _verify(self, token: str) -> dict[str, Any]:
        from joserfc import jws
        from joserfc.errors import JoseError

        if len(token) > _MAX_TOKEN_BYTES or _COMPACT.fullmatch(token) is None:
            raise _token_error("it is not a hop token")
        try:
            header = jws.extract_compact(token.encode()).headers()
        except (JoseError, ValueError):
            raise _token_error("it is not a hop token") from None
        if header.get("alg") != ALGORITHM or "crit" in header or "b64" in header:
            raise _token_error(f"its signature is not plain {ALGORITHM}")
        kid = header.get("kid")
        key = self._keys.get(kid) if isinstance(kid, str) else None
        if key is None:
            raise _token_error("it is signed with a key that the parent node has not published")
        try:
            with warnings.catch_warnings():
                # joserfc prefers a newer name of `EdDSA`, which some readers do not know.
                warnings.simplefilter("ignore", category=UserWarning)
                payload = jws.deserialize_compact(token, key, algorithms=[ALGORITHM]).payload
            claims = msgspec.json.decode(payload)
        except (JoseError, ValueError, TypeError, RecursionError):
            raise _token_error("its signature is not of the parent node") from None
        if not isinstance(claims, dict):
            raise _token_error("its claims are no JSON object")
        return claims


def _read_keys(jwks: bytes | Raw) -> dict[str, OKPKey]:
    """Return the usable keys by their ids. Other keys are ignored."""
    from joserfc.errors import JoseError
    from joserfc.jwk import OKPKey

    raw = bytes(jwks)
    if not raw or len(raw) > _MAX_KEYS_BYTES:
        return {}
    try:
        published = msgspec.json.decode(raw, type=_Jwks).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    keys: dict[str, OKPKey] = {}
    for jwk in published[:MAX_PARENT_KEYS]:
        if jwk.kty != "OKP" or jwk.crv != "Ed25519" or not jwk.kid or jwk.kid in keys:
            continue
        try:
            keys[jwk.kid] = OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": jwk.x})
        except (JoseError, ValueError, TypeError):
            continue
    return keys


class _Jwk(msgspec.Struct, gc=False):
    kty: str = ""
    crv: str = ""
    kid: str = ""
    x: str = ""


class _Jwks(msgspec.Struct, gc=False):
    keys: list[_Jwk] = msgspec.field(default_factory=list)


def _read_time(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e12:
        raise _token_error(f"it has no valid `{name}`")
    return float(value)


def _read_text(claims: dict[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME_LENGTH:
        raise _token_error(f"it has no valid `{name}`")
    return value


def _token_error(reason: str) -> InterlockError:
    return InterlockError(
        UNAUTHENTICATED, f"The hop token that the parent node sent is not valid: {reason}."
    )
