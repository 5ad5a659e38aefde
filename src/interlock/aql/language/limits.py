"""Limits of a request, and characters that no text may hold.

Nearly every request is small and flat: counting a few bytes says so, and it is not looked at any
closer. Only what might be over a limit is taken apart, and even that without recursion before its
depth is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Protocol

from interlock.aql.language import errors
from interlock.aql.language.errors import AqlError

MOST_SAFE: Final = 2**53 - 1
"""The largest integer that every reader of JSON reads as it was written."""

_COUNTED_BEYOND: Final = 100
"""So many levels over the limit are still counted: an exact number helps nobody any further."""
_SAFE_DIGITS: Final = len(str(MOST_SAFE))
_LONG: Final = b"0" * _SAFE_DIGITS
_DIGITS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
"""Makes every digit a zero: then a long number is found as fast as any other bytes."""
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SHOWN: Final = 60


class RequestLimits(Protocol):
    """What a request is held against. The config's section has these, and more."""

    @property
    def request_bytes(self) -> int: ...
    @property
    def response_bytes(self) -> int: ...
    @property
    def string_bytes(self) -> int: ...
    @property
    def array_elements(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def batch(self) -> int: ...


def check(raw: bytes, limits: RequestLimits, where: str = "arguments") -> bool:
    """Hold JSON that somebody sent against the limits. True: it may have integers that not
    everybody reads as they were written. Raises AqlError, and nothing else."""
    size = len(raw)
    if size > limits.request_bytes:
        raise errors.too_large("request_size", limits.request_bytes, size, "bytes")
    if not raw.isascii():
        _check_utf8(raw, where)
    if raw.count(b"[") + raw.count(b"{") > limits.depth:
        _check_depth(raw, limits.depth)
    if (
        size > limits.string_bytes
        or (size > limits.array_elements and raw.count(b",") >= limits.array_elements)
        or (b"\\u" in raw and (b"\\u0000" in raw or b"\\ud" in raw or b"\\uD" in raw))
    ):
        _check_inside(raw, limits, where)
    return has_long_number(raw)


def has_long_number(raw: bytes) -> bool:
    """Whether so many digits stand together that it may be an integer that is not safe."""
    return bool(raw.translate(_DIGITS).partition(_LONG)[1])


def check_response(size: int, limits: RequestLimits) -> None:
    """Raises AqlError for a result that is too large to be passed on: nothing is cut off unsaid."""
    if size > limits.response_bytes:
        error = errors.too_large("response_size", limits.response_bytes, size, "bytes")
        error.message += " Ask for fewer fields or a smaller page."
        raise error


def published(limits: RequestLimits) -> dict[str, int]:
    """As `_protocol.limits` shows them, for clients that look before they send."""
    return {
        "max_request_size": limits.request_bytes,
        "max_response_size": limits.response_bytes,
        "max_string_length": limits.string_bytes,
        "max_array_elements": limits.array_elements,
        "max_nesting_depth": limits.depth,
    }


def depth_of(raw: bytes, most: int = 1_000) -> int:
    """How many levels of objects and arrays JSON has, counted as far as `most`."""
    brackets = _STRING.sub(b"", raw).translate(_TO_SQUARE, _NO_BRACKET)
    depth = 0
    # Every turn takes the innermost pairs away, all at once: the tree loses one level.
    while brackets and depth < most:
        rest = brackets.replace(b"[]", b"")
        if rest == brackets:
            # What opens does not close: it is not JSON, and whoever reads it next says so.
            break
        brackets = rest
        depth += 1
    return depth


def unsafe_integers(value: Any) -> bool:
    """Whether there is an integer in a value that not everybody reads as it was written."""
    if type(value) is int:
        return not -MOST_SAFE <= value <= MOST_SAFE
    if type(value) is list:
        return any(map(unsafe_integers, value))
    if type(value) is dict:
        return any(map(unsafe_integers, value.values()))
    return False


def broken_escapes(raw: bytes) -> Iterator[tuple[int, int]]:
    """Where escapes stand, from and to, that write half of a surrogate pair."""
    high: tuple[int, int] | None = None
    for found in _ESCAPE.finditer(raw):
        start, end = found.span()
        code = int(found[1], 16) if found[1] else 0
        if high is not None:
            if high[1] == start and 0xDC00 <= code <= 0xDFFF:
                high = None
                continue
            yield high
            high = None
        if 0xD800 <= code <= 0xDBFF:
            high = (start, end)
        elif 0xDC00 <= code <= 0xDFFF:
            yield start, end
    if high is not None:
        yield high


def _check_utf8(raw: bytes, where: str) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError as exc:
        raise errors.encoding(where, exc.start) from None


def _check_depth(raw: bytes, limit: int) -> None:
    depth = depth_of(raw, limit + _COUNTED_BEYOND)
    if depth > limit:
        raise errors.too_large("nesting_depth", limit, depth, "levels")


def _check_inside(raw: bytes, limits: RequestLimits, where: str) -> None:
    """The close look. The depth is known by now."""
    try:
        value = json.loads(raw.decode(), parse_int=_no_number, parse_float=_no_number)
    except (ValueError, RecursionError):
        # No JSON: whoever reads it next says so. Unless what is wrong are half pairs.
        for start, _ in broken_escapes(raw):
            raise errors.encoding(where, start) from None
        return
    _walk(value, "", limits, where)


def _no_number(_: str) -> None:
    """A number is of no interest here, however long it is."""


def _walk(value: Any, path: str, limits: RequestLimits, where: str) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value, path or where, limits)
    elif kind is list:
        if len(value) > limits.array_elements:
            raise _at(
                errors.too_large("array_elements", limits.array_elements, len(value), "elements"),
                path,
            )
        for index, one in enumerate(value):
            if one is not None and type(one) is not bool:
                _walk(one, f"{path}.{index}" if path else str(index), limits, where)
    elif kind is dict:
        for key, one in value.items():
            _check_text(key, path or where, limits)
            step = key[:_SHOWN]
            _walk(one, f"{path}.{step}" if path else step, limits, where)


def _check_text(text: str, path: str, limits: RequestLimits) -> None:
    if "\0" in text:
        raise errors.encoding(path)
    size = len(text)
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise errors.encoding(path) from None
    if size > limits.string_bytes:
        raise _at(errors.too_large("string_length", limits.string_bytes, size, "bytes"), path)


def _at(error: AqlError, path: str) -> AqlError:
    if path and error.data is not None:
        error.data["param_name"] = path
    return error


def unsafe(param: str, *, as_text: bool) -> AqlError:
    """For an integer parameter that got such a number. `as_text`: it may also be a string."""
    return errors.out_of_range(param, -MOST_SAFE, MOST_SAFE, as_text=as_text)
