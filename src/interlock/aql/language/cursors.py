"""Cursors: the position in a list as signed text.

A cursor contains everything that is needed to continue, so the node stores nothing. Because the key
is stored, cursors survive a restart.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, Final

import msgspec

from interlock.aql.language.errors import AqlError

_TAG_BYTES: Final = 9
_MAX_CHARACTERS: Final = 1_024
_MAX_TEXT_CHARACTERS: Final = 64
_KEY_BYTES: Final = 64
_encode: Final = msgspec.msgpack.Encoder().encode


class CursorPosition(msgspec.Struct, frozen=True, array_like=True):
    """The item after which, or before which, a page continues."""

    kind: str
    """The collection. A cursor is not valid for any other."""
    ordinal: int
    """The number of items before it."""
    id: Any
    """The id of the item, if items have ids."""
    values: list[Any]
    """The values of the sort keys."""
    order: bytes
    """A digest of the query, filter and sort."""


_decode: Final = msgspec.msgpack.Decoder(CursorPosition).decode


class CursorCodec:
    """Encodes and decodes cursors with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key[:_KEY_BYTES]

    def seal(self, position: CursorPosition) -> str:
        clipped = msgspec.structs.replace(
            position, id=_clip(position.id), values=[_clip(value) for value in position.values]
        )
        raw = _encode(clipped)
        return urlsafe_b64encode(raw + self._sign(raw)).rstrip(b"=").decode()

    def open(self, text: Any, kind: str, order: bytes, param: str = "after") -> CursorPosition:
        """Decode a cursor.

        Raises:
            AqlError: This node did not create it, or it belongs to another collection or query.
        """
        position = self._read(text)
        if position is None or position.kind != kind:
            raise _cursor_error(
                param, f"Parameter '{param}' is no valid cursor of this collection."
            )
        if position.order != order:
            raise _cursor_error(
                param, f"Parameter '{param}' is a cursor of another query, filter or sort order."
            )
        return position

    def _read(self, text: Any) -> CursorPosition | None:
        if not isinstance(text, str) or len(text) > _MAX_CHARACTERS or not text.isascii():
            return None
        try:
            sealed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            return None
        raw, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
        if not compare_digest(self._sign(raw), tag):
            return None
        # Base64 has more than one spelling for some bytes. Only ours is accepted.
        if urlsafe_b64encode(sealed).rstrip(b"=").decode() != text:
            return None
        try:
            return _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _sign(self, raw: bytes) -> bytes:
        return blake2b(raw, digest_size=_TAG_BYTES, key=self._key).digest()


def _clip(value: Any) -> Any:
    """Return the part of a value that fits into a cursor."""
    if isinstance(value, str):
        return value[:_MAX_TEXT_CHARACTERS]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return None
    return value if value is None or isinstance(value, bool | int | float) else None


def _cursor_error(param: str, message: str) -> AqlError:
    hint = "Start with the first page, and send cursors unchanged."
    return AqlError(
        "VALIDATION_INVALID_TYPE",
        f"{message} {hint}",
        {"param_name": param, "expected_type": "cursor", "actual_type": "string", "hint": hint},
    )
