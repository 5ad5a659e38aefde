"""Placeholders for secrets in manifests: `${secrets.NAME}`. `$${` is an escaped `${`.

Only names pass through this module until `fill_placeholders` gets the values, when a server starts.
No value is stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from interlock.core.config.problems import InvalidValueError

_PLACEHOLDER: Final = re.compile(r"\$\$\{|\$\{secrets\.(?P<name>[^}]*)(?P<end>\}?)")
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_HINT: Final = "write ${secrets.NAME} with capital letters, digits and _"


def find_secret_names(text: str) -> tuple[str, ...]:
    """Return the secrets in a text, each once, in order. Raises InvalidValueError for an invalid
    placeholder."""
    if "${" not in text:
        return ()
    names: dict[str, None] = {}
    for match in _PLACEHOLDER.finditer(text):
        if match["name"] is not None:
            names[_check_name(match)] = None
    return tuple(names)


def has_placeholders(text: str) -> bool:
    """Return whether a text has placeholders, valid or not."""
    return any(match["name"] is not None for match in _PLACEHOLDER.finditer(text))


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Return the text with the values of its secrets. Raises InvalidValueError for a secret
    without a value."""
    if "${" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        if match["name"] is None:
            return "${"
        name = _check_name(match)
        if name not in values:
            raise InvalidValueError(f"there is no secret {name}", "list it under auth.state.env")
        return values[name]

    return _PLACEHOLDER.sub(replace, text)


def _check_name(match: re.Match[str]) -> str:
    name = match["name"]
    if not match["end"]:
        raise InvalidValueError("${secrets. is not closed", _HINT)
    if not _NAME.fullmatch(name):
        # The name is not quoted: it may be the secret itself.
        raise InvalidValueError("this is not the name of a secret", _HINT)
    return name
