"""What a server was told in confidence must not come back in its own words.

A server gets secrets by reference, and some repeat them: on stderr, in an error, in their own
name. Whatever of a server's words is logged, shown or journalled goes through its mask.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from msgspec import Raw

from interlock.core.config import ConfigError, ServerConfig, resolve
from interlock.core.config.secrets import OAUTH_REFERENCES, references

SHORTEST: Final = 6
"""Shorter values are words, and masking them would blot out the text."""
_MASK: Final = "***"
_JSON_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class Mask:
    """Knows the secrets of one server."""

    def __init__(self) -> None:
        self._values: tuple[str, ...] = ()

    def learn(self, values: Iterable[str]) -> None:
        """These are secret, with what earlier attempts were given."""
        known = set(self._values)
        for value in values:
            for form in (value, value.strip(), quote(value), quote(value, safe="")):
                if len(form) >= SHORTEST:
                    known.add(form)
        # The longest first: a secret may contain another.
        self._values = tuple(sorted(known, key=len, reverse=True))

    def __call__(self, text: str) -> str:
        for value in self._values:
            if value in text:
                text = text.replace(value, _MASK)
        return text


def mask_json(mask: Callable[[str], str], data: Raw) -> Raw:
    """JSON whose strings are masked, names of members included. All other bytes stay as they are,
    and so does JSON with nothing to mask."""
    raw = bytes(data)
    if b"\\" not in raw:
        # Without escapes every string stands in the text as it is.
        text = raw.decode("utf-8", "replace")
        if mask(text) == text:
            return data

    def mask_string(found: re.Match[bytes]) -> bytes:
        written = found.group()
        try:
            text = json.loads(written, strict=False)
        except ValueError:
            text, shown = "", _MASK
        else:
            shown = mask(text)
        return written if shown == text else json.dumps(shown).encode()

    masked = _JSON_STRING.sub(mask_string, raw)
    return data if masked == raw else Raw(masked)


def secret_values(server: ServerConfig, *, environ: Mapping[str, str], base_dir: Path) -> list[str]:
    """What the references in a server's config stand for now."""
    texts = [
        server.url or "",
        server.command or "",
        *server.args,
        *server.env.values(),
        *server.headers.values(),
        *(getattr(server.oauth, name) or "" for name in OAUTH_REFERENCES),
    ]
    values: list[str] = []
    for text in texts:
        for reference in references(text) if "${" in text else ():
            try:
                values.append(resolve(str(reference), environ=environ, base_dir=base_dir))
            except ConfigError:
                # It leads nowhere: there is nothing to hide.
                continue
    return values
