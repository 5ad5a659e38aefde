"""Parsing of `WWW-Authenticate` (RFC 9110 §11.6.1). Pure; unknown parts are ignored."""

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
_MAX_HEADER_LENGTH: Final = 16 * 1024

INSUFFICIENT_SCOPE: Final = "insufficient_scope"


class AuthChallenge(msgspec.Struct, frozen=True):
    """A challenge of a server: a scheme and its parameters, with names in lower case."""

    scheme: str
    parameters: dict[str, str]


class BearerChallenge(msgspec.Struct, frozen=True):
    """A challenge for a bearer token (RFC 6750 §3, RFC 9728 §5.1)."""

    scope: str | None = None
    resource_metadata: str | None = None
    error: str = ""


def read_challenges(header: str) -> list[AuthChallenge]:
    """Return all challenges of the header in their order. Invalid parts are skipped."""
    challenges: list[AuthChallenge] = []
    text = header[:_MAX_HEADER_LENGTH]
    position = 0
    while position < len(text):
        if text[position] in " \t,":
            position += 1
            continue
        parameter = _PARAMETER.match(text, position)
        if parameter is not None:
            if challenges:
                # The first parameter of a name counts: a later one could have been injected.
                challenges[-1].parameters.setdefault(parameter["name"].lower(), _value(parameter))
            position = parameter.end()
            continue
        scheme = _SCHEME.match(text, position)
        if scheme is None:
            position += 1
            continue
        challenges.append(AuthChallenge(scheme[0], {}))
        position = scheme.end()
    return challenges


def _value(parameter: re.Match[str]) -> str:
    quoted = parameter["quoted"]
    return parameter["plain"] if quoted is None else _ESCAPED.sub(r"\1", quoted)


def bearer_challenge(header: str) -> BearerChallenge | None:
    """Return the bearer challenge of a header, if it has one."""
    bearers = [
        challenge for challenge in read_challenges(header) if challenge.scheme.lower() == "bearer"
    ]
    if not bearers:
        return None
    # A server may send a plain challenge for old clients and one that names its metadata.
    preferred = next(
        (challenge for challenge in bearers if "resource_metadata" in challenge.parameters),
        bearers[0],
    )
    return BearerChallenge(
        scope=preferred.parameters.get("scope"),
        resource_metadata=preferred.parameters.get("resource_metadata"),
        error=preferred.parameters.get("error", ""),
    )


# -- The scopes to request. Pure. A scope is text without blanks; the order is kept.

OFFLINE_ACCESS: Final = "offline_access"


def split_scopes(scope: str | None) -> list[str]:
    """Split a scope list, without duplicates."""
    return list(dict.fromkeys((scope or "").split()))


def join_scopes(*scopes: str | None) -> str:
    """Join scope lists into one, without duplicates."""
    return " ".join(dict.fromkeys(name for scope in scopes for name in split_scopes(scope)))


def includes_scopes(granted: str | None, requested: str | None) -> bool:
    """Return whether `granted` includes all scopes of `requested`."""
    return set(split_scopes(requested)) <= set(split_scopes(granted))


def choose_scopes(
    *,
    configured: Sequence[str],
    challenged: str | None,
    resource: Iterable[str] | None,
    server: Iterable[str] | None,
    can_refresh: bool,
) -> str | None:
    """Return the scopes of a first sign-in. None: omit the parameter.

    Configured scopes have priority, then those of the server's challenge, then those of its
    metadata.

    Args:
        server: the scopes of the authorization server. Some issue refresh tokens only for the scope
            `offline_access`, which is then added.
        can_refresh: refresh tokens are useful for this grant.
    """
    if configured:
        chosen = join_scopes(" ".join(configured))
    elif challenged is not None:
        chosen = join_scopes(challenged)
    elif resource is not None:
        chosen = join_scopes(" ".join(resource))
    else:
        return None
    if chosen and can_refresh and OFFLINE_ACCESS in (server or ()):
        chosen = join_scopes(chosen, OFFLINE_ACCESS)
    return chosen or None
