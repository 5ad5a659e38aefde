"""Which scopes to ask for. Pure; a scope is text without a blank, their order is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

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
