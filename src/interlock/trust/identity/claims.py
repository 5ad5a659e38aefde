"""What the claims of a token say about a caller: until when, for whom, who, and what it may do.

Pure: claims in, a caller or a refusal out. The same for signed tokens and for what a server says
about opaque ones. A refusal says what is wrong, and never repeats what the token says.
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

LEEWAY: Final = 60.0
"""By so much two clocks may differ."""
LONGEST_NAME: Final = 256
_MOST: Final = 256
"""No caller has more roles or scopes than this."""
_SCOPE: Final = re.compile(SCOPE_PATTERN)

Claims = dict[str, Any]


class ClaimMapping(msgspec.Struct, frozen=True):
    """What is made of the tokens of one issuer."""

    kind: str
    names: tuple[str, ...] = ("sub",)
    """The claims that may name the caller; the first that does counts."""
    roles: str = "roles"
    prefix: str = ""
    scopes: Mapping[str, Sequence[str]] = {}
    """What the issuer's own scopes mean here."""
    may: Collection[str] = ("call",)


def refused(why: str) -> InterlockError:
    """A token that does not count, and why."""
    return InterlockError(UNAUTHENTICATED, f"Invalid or expired credentials: {why}.")


def check_times(claims: Claims, now: float, *, must_end: bool = True) -> float | None:
    """When the token is over. Raises InterlockError when it is already, or not good yet."""
    ends = _time(claims, "exp")
    if ends is None and must_end:
        raise refused("the token has no `exp`, so it would be good for ever")
    if ends is not None and now >= ends + LEEWAY:
        raise refused("the token has expired")
    for name in ("nbf", "iat"):
        begins = _time(claims, name)
        if begins is not None and begins > now + LEEWAY:
            raise refused(f"the token is not good yet (`{name}`)")
    return ends


def issued(claims: Claims) -> float | None:
    """When the token was made."""
    return _time(claims, "iat")


def check_audience(claims: Claims, accepted: Collection[str]) -> None:
    """Raises InterlockError unless the token was made for this node."""
    said = claims.get("aud")
    meant = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    wanted = {one.rstrip("/") for one in accepted}
    if not any(isinstance(one, str) and one.rstrip("/") in wanted for one in meant):
        raise refused("the token was made for somebody else (`aud`)")


def caller_of(
    claims: Claims, terms: ClaimMapping, *, ends: float | None, taken: Container[str]
) -> Caller:
    """The caller that a token speaks of. `taken`: names of callers who are known otherwise, whom
    nobody may pass for."""
    own = next((claims[name] for name in terms.names if claims.get(name)), None)
    if not isinstance(own, str) or not own.isprintable() or len(own) > LONGEST_NAME:
        raise refused(f"the token names nobody (`{terms.names[0]}`)")
    name = terms.prefix + own
    if is_reserved_name(name) or name in taken:
        raise refused("the token names somebody who is known here in another way")
    jti = claims.get("jti")
    return Caller(
        name,
        can_call="call" in terms.may,
        can_register="register" in terms.may,
        can_join="join" in terms.may,
        can_view_approvals="approve" in terms.may,
        kind=terms.kind,
        roles=_words(_at(claims, terms.roles)),
        scopes=_scopes(claims, terms.scopes),
        expires_at=ends,
        id=jti if isinstance(jti, str) and jti else name,
    )


def _scopes(claims: Claims, meaning: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """What it may do at most, in this node's words. What means nothing here is dropped, so a token
    that says nothing of use may do nothing."""
    said = claims.get("scope", claims.get("scp"))
    found: dict[str, None] = {}
    for one in _words(said, split=True):
        if one in meaning:
            found.update(dict.fromkeys(meaning[one]))
        elif _SCOPE.fullmatch(one):
            found[one] = None
    return tuple(sorted(found))


def _words(value: object, *, split: bool = False) -> tuple[str, ...]:
    """A list of strings, or one string (of several words where it is `split`), as a tuple."""
    if isinstance(value, str):
        value = value.split() if split else [value]
    if not isinstance(value, list):
        return ()
    return tuple(one for one in value[:_MOST] if isinstance(one, str) and one and one.isprintable())


def _at(claims: Claims, name: str) -> object:
    """A claim by its name; where none is called so, by the path that the dots in it are."""
    if name in claims:
        return claims[name]
    found: object = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _time(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise refused(f"`{name}` is no time")
    return float(value)
