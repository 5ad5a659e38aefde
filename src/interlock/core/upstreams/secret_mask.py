"""Masking of a server's secrets in its own texts.

A server receives secrets by reference, and some repeat them: on stderr, in an error, in their name.
All texts of a server pass its mask before they are logged, shown or written to the journal.
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

MIN_SECRET_LENGTH: Final = 6
"""Shorter values are common words: masking them would make texts unreadable."""
_MASK: Final = "***"
_JSON_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class Mask:
    """A function that masks the secrets of one server."""

    def __init__(self) -> None:
        self._values: tuple[str, ...] = ()

    def add(self, values: Iterable[str]) -> None:
        """Add secrets. Those of earlier attempts are kept."""
        forms = set(self._values)
        for value in values:
            for form in (value, value.strip(), quote(value), quote(value, safe="")):
                if len(form) >= MIN_SECRET_LENGTH:
                    forms.add(form)
        # The longest first, because a secret may contain another.
        self._values = tuple(sorted(forms, key=len, reverse=True))

    def __call__(self, text: str) -> str:
        for value in self._values:
            if value in text:
                text = text.replace(value, _MASK)
        return text


def mask_json(mask: Callable[[str], str], data: Raw) -> Raw:
    """Mask the strings and member names of JSON.

    All other bytes stay the same. JSON without secrets is returned unchanged.
    """
    raw = bytes(data)
    if b"\\" not in raw:
        # Without escapes every string stands in the text literally.
        text = raw.decode("utf-8", "replace")
        if mask(text) == text:
            return data

    def mask_string(match: re.Match[bytes]) -> bytes:
        literal = match.group()
        try:
            text = json.loads(literal, strict=False)
        except ValueError:
            text, masked_text = "", _MASK
        else:
            masked_text = mask(text)
        return literal if masked_text == text else json.dumps(masked_text).encode()

    masked = _JSON_STRING.sub(mask_string, raw)
    return data if masked == raw else Raw(masked)


def secret_values(server: ServerConfig, *, environ: Mapping[str, str], base_dir: Path) -> list[str]:
    """Return the current values of the references in a server's config."""
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
                # The reference cannot be resolved, so there is no secret.
                continue
    return values
