"""Claims of a token as a caller: validity, audience, name, roles and scopes.

Pure: it takes claims and returns a caller, or an error. It serves signed tokens and the responses
of introspection servers. An error says what is wrong, and never repeats text of the token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.core.call import Caller
from interlock.core.config.checks import is_reserved_name
from interlock.core.config.trust import SCOPE_PATTERN
from interlock.errors import UNAUTHENTICATED, InterlockError

LEEWAY_SECONDS: Final = 60.0
"""The maximum difference between two clocks."""
MAX_NAME_LENGTH: Final = 256
_MAX_ITEMS: Final = 256
"""The largest number of roles or scopes of a caller."""
_SCOPE: Final = re.compile(SCOPE_PATTERN)

Claims = dict[str, Any]


class ClaimMapping(msgspec.Struct, frozen=True):
    """The mapping from the claims of one issuer to a caller."""

    kind: str
    names: tuple[str, ...] = ("sub",)
    """The claims that may name the caller. The first non-empty one counts."""
    roles: str = "roles"
    prefix: str = ""
    scopes: Mapping[str, Sequence[str]] = {}
    """The scopes of this node for each scope of the issuer."""
    may: Collection[str] = ("call",)


def token_error(reason: str) -> InterlockError:
    """Return the error for an invalid token."""
    return InterlockError(UNAUTHENTICATED, f"Invalid or expired credentials: {reason}.")


def check_times(claims: Claims, now: float, *, must_end: bool = True) -> float | None:
    """Return when the token expires. Raises InterlockError for an expired token, or one that is not
    valid yet.

    Args:
        must_end: whether the token must have an `exp`.
    """
    expires_at = _read_time(claims, "exp")
    if expires_at is None and must_end:
        raise token_error("the token has no `exp`, so it would never expire")
    if expires_at is not None and now >= expires_at + LEEWAY_SECONDS:
        raise token_error("the token has expired")
    for name in ("nbf", "iat"):
        begins = _read_time(claims, name)
        if begins is not None and begins > now + LEEWAY_SECONDS:
            raise token_error(f"the token is not valid yet (`{name}`)")
    return expires_at


def issued_at(claims: Claims) -> float | None:
    """Return when the token was issued. None: the token does not say."""
    return _read_time(claims, "iat")


def check_audience(claims: Claims, accepted_audiences: Collection[str]) -> None:
    """Raise InterlockError unless the token was issued for this node."""
    claim = claims.get("aud")
    audiences = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    own_audiences = {audience.rstrip("/") for audience in accepted_audiences}
    if not any(isinstance(item, str) and item.rstrip("/") in own_audiences for item in audiences):
        raise token_error("the token was issued for another receiver (`aud`)")


def read_caller(
    claims: Claims,
    mapping: ClaimMapping,
    *,
    expires_at: float | None,
    reserved_names: Container[str],
) -> Caller:
    """Return the caller of a token. Raises InterlockError.

    Args:
        expires_at: when the token expires.
        reserved_names: names of callers with other credentials, which no token may claim.
    """
    claimed = next((claims[name] for name in mapping.names if claims.get(name)), None)
    if not isinstance(claimed, str) or not claimed.isprintable() or len(claimed) > MAX_NAME_LENGTH:
        raise token_error(f"the token names no caller (`{mapping.names[0]}`)")
    name = mapping.prefix + claimed
    if is_reserved_name(name) or name in reserved_names:
        raise token_error("the token names a caller that has other credentials here")
    jti = claims.get("jti")
    return Caller(
        name,
        can_call="call" in mapping.may,
        can_register="register" in mapping.may,
        can_join="join" in mapping.may,
        can_view_approvals="approve" in mapping.may,
        kind=mapping.kind,
        roles=_read_texts(_find_claim(claims, mapping.roles)),
        scopes=_read_scopes(claims, mapping.scopes),
        expires_at=expires_at,
        id=jti if isinstance(jti, str) and jti else name,
    )


def _read_scopes(claims: Claims, meanings: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the scopes of this node. Unknown scopes are dropped, so a token with unknown scopes
    only grants nothing."""
    claim = claims.get("scope", claims.get("scp"))
    scopes: dict[str, None] = {}
    for text in _read_texts(claim, split=True):
        if text in meanings:
            scopes.update(dict.fromkeys(meanings[text]))
        elif _SCOPE.fullmatch(text):
            scopes[text] = None
    return tuple(sorted(scopes))


def _read_texts(value: object, *, split: bool = False) -> tuple[str, ...]:
    """Return a list of strings, or one string, as a tuple.

    Args:
        split: whether one string is split at spaces.
    """
    if isinstance(value, str):
        value = value.split() if split else [value]
    if not isinstance(value, list):
        return ()
    return tuple(
        item for item in value[:_MAX_ITEMS] if isinstance(item, str) and item and item.isprintable()
    )


def _find_claim(claims: Claims, name: str) -> object:
    """Return a claim by its name or, if there is none with that name, by a path with dots."""
    if name in claims:
        return claims[name]
    value: object = claims
    for step in name.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _read_time(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise token_error(f"`{name}` is not a valid time")
    return float(value)
