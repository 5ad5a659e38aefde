"""Readers of a head that comes in pieces, such as HTTP's: what they say must not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from interlock.errors import ProtocolError

Head = TypeVar("Head", covariant=True)


class HeadReader(Protocol[Head]):
    @property
    def rest(self) -> bytes: ...

    def feed(self, data: bytes, /) -> Head | None: ...


def head_in_pieces(make: Callable[[], HeadReader[Head]], data: bytes) -> tuple[Head, bytes] | None:
    """The head and what follows it; None when it is refused, or never whole.

    The first byte of the data is the size of a read; read at once it must come to the same.
    """
    if not data:
        return None
    step, stream = 1 + data[0], data[1:]
    expected = _read(make(), stream, len(stream) or 1)
    assert _read(make(), stream, step) == expected
    return expected


def _read(reader: HeadReader[Head], stream: bytes, step: int) -> tuple[Head, bytes] | None:
    for start in range(0, len(stream), step):
        try:
            head = reader.feed(stream[start : start + step])
        except ProtocolError:
            return None
        if head is not None:
            return head, reader.rest + stream[start + step :]
    return None
