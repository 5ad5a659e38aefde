"""Cursors: the end of a page as text that nobody can read or change.

One holds everything that is needed to go on, so the node keeps nothing; with its key kept, a cursor
outlives a restart.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, Final

import msgspec

from interlock.aql.language.errors import AqlError

_TAG: Final = 9
_LONGEST: Final = 1_024
_LONGEST_TEXT: Final = 64
_KEY_BYTES: Final = 64
_encode: Final = msgspec.msgpack.Encoder().encode


class CursorPosition(msgspec.Struct, frozen=True, array_like=True):
    """The item after which, or before which, a page continues."""

    kind: str
    """Of which collection: a cursor is good for no other."""
    ordinal: int
    """How many items were before it."""
    id: Any
    """What it is called, where items are called something."""
    values: list[Any]
    """What it was sorted by."""
    order: bytes
    """Of the query, filter and sort that it was found with."""


_decode: Final = msgspec.msgpack.Decoder(CursorPosition).decode


class CursorCodec:
    """Encodes and decodes cursors with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key[:_KEY_BYTES]

    def seal(self, position: CursorPosition) -> str:
        clipped = msgspec.structs.replace(
            position, id=_clip(position.id), values=[_clip(one) for one in position.values]
        )
        raw = _encode(clipped)
        return urlsafe_b64encode(raw + self._tag(raw)).rstrip(b"=").decode()

    def open(self, text: Any, kind: str, order: bytes, param: str = "after") -> CursorPosition:
        """Raises AqlError for one that was not made here, for this collection, asked for so."""
        found = self._read(text)
        if found is None or found.kind != kind:
            raise _refused(param, f"Parameter '{param}' is no cursor of this collection.")
        if found.order != order:
            raise _refused(
                param, f"Parameter '{param}' is a cursor of another query, filter or sort."
            )
        return found

    def _read(self, text: Any) -> CursorPosition | None:
        if not isinstance(text, str) or len(text) > _LONGEST or not text.isascii():
            return None
        try:
            sealed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:
            return None
        raw, tag = sealed[:-_TAG], sealed[-_TAG:]
        if not compare_digest(self._tag(raw), tag):
            return None
        # Base64 has more than one spelling for some bytes. Only ours is good.
        if urlsafe_b64encode(sealed).rstrip(b"=").decode() != text:
            return None
        try:
            return _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _tag(self, raw: bytes) -> bytes:
        return blake2b(raw, digest_size=_TAG, key=self._key).digest()


def _clip(value: Any) -> Any:
    """What still fits into a cursor."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return None
    return value if value is None or isinstance(value, bool | int | float) else None


def _refused(param: str, message: str) -> AqlError:
    hint = "Begin with the first page, and pass cursors on as they were given."
    return AqlError(
        "VALIDATION_INVALID_TYPE",
        f"{message} {hint}",
        {"param_name": param, "expected_type": "cursor", "actual_type": "string", "hint": hint},
    )
