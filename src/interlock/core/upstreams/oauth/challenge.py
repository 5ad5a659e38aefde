"""`WWW-Authenticate`, read. Pure; whatever a server sends there is understood or passed over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER: Final = re.compile(
    rf'(?P<name>{_TOKEN})[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s,"]+))'
)
_SCHEME: Final = re.compile(_TOKEN)
_ESCAPED: Final = re.compile(r"\\(.)")
_LONGEST: Final = 16 * 1024

INSUFFICIENT_SCOPE: Final = "insufficient_scope"


class AuthChallenge(msgspec.Struct, frozen=True):
    """What a server wants to see: a scheme and its parameters, names in lower case."""

    scheme: str
    parameters: dict[str, str]


class BearerChallenge(msgspec.Struct, frozen=True):
    """A server's wish for a bearer token (RFC 6750, RFC 9728)."""

    scope: str | None = None
    resource_metadata: str | None = None
    error: str = ""


def read_challenges(header: str) -> list[AuthChallenge]:
    """Every challenge of the header, in order. What makes no sense is left out."""
    found: list[AuthChallenge] = []
    text = header[:_LONGEST]
    position = 0
    while position < len(text):
        if text[position] in " \t,":
            position += 1
            continue
        parameter = _PARAMETER.match(text, position)
        if parameter is not None:
            if found:
                # The first of a name counts: a later one could have been slipped in.
                found[-1].parameters.setdefault(parameter["name"].lower(), _value(parameter))
            position = parameter.end()
            continue
        scheme = _SCHEME.match(text, position)
        if scheme is None:
            position += 1
            continue
        found.append(AuthChallenge(scheme[0], {}))
        position = scheme.end()
    return found


def _value(parameter: re.Match[str]) -> str:
    quoted = parameter["quoted"]
    return parameter["plain"] if quoted is None else _ESCAPED.sub(r"\1", quoted)


def bearer_challenge(header: str) -> BearerChallenge | None:
    """The header's wish for a bearer token; None when it has none."""
    bearers = [one for one in read_challenges(header) if one.scheme.lower() == "bearer"]
    if not bearers:
        return None
    # A server may send a plain one for old clients beside one that says where to go.
    best = next((one for one in bearers if "resource_metadata" in one.parameters), bearers[0])
    return BearerChallenge(
        scope=best.parameters.get("scope"),
        resource_metadata=best.parameters.get("resource_metadata"),
        error=best.parameters.get("error", ""),
    )


# -- Which scopes to ask for. Pure; a scope is text without a blank, their order is kept.

OFFLINE_ACCESS: Final = "offline_access"


def split(scope: str | None) -> list[str]:
    """The scopes of a written list, each once."""
    return list(dict.fromkeys((scope or "").split()))


def union(*scopes: str | None) -> str:
    """Everything that is in any of them, as one written list."""
    return " ".join(dict.fromkeys(one for scope in scopes for one in split(scope)))


def covers(wide: str | None, narrow: str | None) -> bool:
    """Whether every scope of `narrow` is in `wide`."""
    return set(split(narrow)) <= set(split(wide))


def choose(
    *,
    configured: Sequence[str],
    challenged: str | None,
    resource: Iterable[str] | None,
    server: Iterable[str] | None,
    refreshable: bool,
) -> str | None:
    """The scopes of a first sign-in; None leaves the parameter out.

    What the config says wins. Else what the server's challenge asked for, else everything that its
    metadata list. `server` is what the authorization server knows: `offline_access` among it is how
    some hand out refresh tokens, and is added to whatever else is asked for.
    """
    if configured:
        chosen = union(" ".join(configured))
    elif challenged is not None:
        chosen = union(challenged)
    elif resource is not None:
        chosen = union(" ".join(resource))
    else:
        return None
    if chosen and refreshable and OFFLINE_ACCESS in (server or ()):
        chosen = union(chosen, OFFLINE_ACCESS)
    return chosen or None
