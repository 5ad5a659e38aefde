"""`${secrets.NAME}` in a manifest: where a secret is to stand. `$${` writes `${` itself.

Only names pass through here until `fill` is called with the values, at the moment a server is
started; nothing keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from interlock.core.config.problems import BadValue

_PIECE: Final = re.compile(r"\$\$\{|\$\{secrets\.(?P<name>[^}]*)(?P<end>\}?)")
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_HINT: Final = "write ${secrets.NAME} with capital letters, digits and _"


def names(text: str) -> tuple[str, ...]:
    """The secrets that a text speaks of, each once, in order. Raises BadValue."""
    if "${" not in text:
        return ()
    found: dict[str, None] = {}
    for piece in _PIECE.finditer(text):
        name = piece["name"]
        if name is not None:
            found[_checked(piece)] = None
    return tuple(found)


def mentions(text: str) -> bool:
    """Whether a text speaks of secrets at all, well formed or not."""
    return any(piece["name"] is not None for piece in _PIECE.finditer(text))


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with the secrets in it. Raises BadValue that names one that is not there."""
    if "${" not in text:
        return text

    def value(piece: re.Match[str]) -> str:
        if piece["name"] is None:
            return "${"
        name = _checked(piece)
        if name not in values:
            raise BadValue(f"there is no secret {name}", "list it under auth.state.env")
        return values[name]

    return _PIECE.sub(value, text)


def _checked(piece: re.Match[str]) -> str:
    name = piece["name"]
    if not piece["end"]:
        raise BadValue("${secrets. is opened and not closed", _HINT)
    if not _NAME.fullmatch(name):
        # It is not quoted: somebody may have put the secret itself there.
        raise BadValue("this is not the name of a secret", _HINT)
    return name
