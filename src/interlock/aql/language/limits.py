"""Limits of requests, and characters that text must not contain.

Nearly all requests are small and flat. Counting a few bytes proves that, without parsing. Only
requests that may exceed a limit are parsed, and without recursion until their depth is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Protocol

from interlock.aql.language import errors
from interlock.aql.language.errors import AqlError

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""

_MAX_EXCESS_DEPTH: Final = 100
"""Levels above the limit that are still counted. A more exact number is not useful."""
_SAFE_DIGITS: Final = len(str(MAX_SAFE_INTEGER))
_LONG_NUMBER: Final = b"0" * _SAFE_DIGITS
_DIGITS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
"""Maps every digit to zero: then a long number is found as fast as any other bytes."""
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_TO_SQUARE_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NON_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_MAX_KEY_CHARACTERS: Final = 60


class RequestLimits(Protocol):
    """The limits of requests. The config section implements them."""

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


def check_request(raw: bytes, limits: RequestLimits, location: str = "arguments") -> bool:
    """Check JSON of a client against the limits. Raises only AqlError.

    Returns:
        True if it may contain integers that JSON readers do not represent exactly.
    """
    size = len(raw)
    if size > limits.request_bytes:
        raise errors.too_large("request_size", limits.request_bytes, size, "bytes")
    if not raw.isascii():
        _check_utf8(raw, location)
    if raw.count(b"[") + raw.count(b"{") > limits.depth:
        _check_depth(raw, limits.depth)
    if (
        size > limits.string_bytes
        or (size > limits.array_elements and raw.count(b",") >= limits.array_elements)
        or (b"\\u" in raw and (b"\\u0000" in raw or b"\\ud" in raw or b"\\uD" in raw))
    ):
        _check_values(raw, limits, location)
    return has_long_number(raw)


def has_long_number(raw: bytes) -> bool:
    """Return whether there are enough consecutive digits for an unsafe integer."""
    return bool(raw.translate(_DIGITS).partition(_LONG_NUMBER)[1])


def check_response(size: int, limits: RequestLimits) -> None:
    """Check the size of a result. Raises AqlError: results are never cut off silently."""
    if size > limits.response_bytes:
        error = errors.too_large("response_size", limits.response_bytes, size, "bytes")
        error.message += " Request fewer fields or a smaller page."
        raise error


def describe_limits(limits: RequestLimits) -> dict[str, int]:
    """Return the limits for `_protocol.limits`."""
    return {
        "max_request_size": limits.request_bytes,
        "max_response_size": limits.response_bytes,
        "max_string_length": limits.string_bytes,
        "max_array_elements": limits.array_elements,
        "max_nesting_depth": limits.depth,
    }


def depth_of(raw: bytes, limit: int = 1_000) -> int:
    """Return the nesting depth of JSON, counted up to `most`."""
    brackets = _STRING.sub(b"", raw).translate(_TO_SQUARE_BRACKETS, _NON_BRACKETS)
    depth = 0
    # Each iteration removes the innermost pairs, all at once, so the tree loses one level.
    while brackets and depth < limit:
        remaining = brackets.replace(b"[]", b"")
        if remaining == brackets:
            # Unbalanced brackets: this is no JSON, and the parser reports it.
            break
        brackets = remaining
        depth += 1
    return depth


def has_unsafe_integers(value: Any) -> bool:
    """Return whether a value contains an integer that JSON readers may not represent exactly."""
    if type(value) is int:
        return not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER
    if type(value) is list:
        return any(map(has_unsafe_integers, value))
    if type(value) is dict:
        return any(map(has_unsafe_integers, value.values()))
    return False


def find_broken_escapes(raw: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of escapes that are half of a surrogate pair."""
    high_surrogate: tuple[int, int] | None = None
    for match in _ESCAPE.finditer(raw):
        start, end = match.span()
        code = int(match[1], 16) if match[1] else 0
        if high_surrogate is not None:
            if high_surrogate[1] == start and 0xDC00 <= code <= 0xDFFF:
                high_surrogate = None
                continue
            yield high_surrogate
            high_surrogate = None
        if 0xD800 <= code <= 0xDBFF:
            high_surrogate = (start, end)
        elif 0xDC00 <= code <= 0xDFFF:
            yield start, end
    if high_surrogate is not None:
        yield high_surrogate


def _check_utf8(raw: bytes, location: str) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError as exc:
        raise errors.invalid_encoding(location, exc.start) from None


def _check_depth(raw: bytes, limit: int) -> None:
    depth = depth_of(raw, limit + _MAX_EXCESS_DEPTH)
    if depth > limit:
        raise errors.too_large("nesting_depth", limit, depth, "levels")


def _check_values(raw: bytes, limits: RequestLimits, location: str) -> None:
    """Parse and check the values. The depth has been checked."""
    try:
        value = json.loads(raw.decode(), parse_int=_ignore_number, parse_float=_ignore_number)
    except (ValueError, RecursionError):
        # Invalid JSON is reported by the parser, except for incomplete surrogate pairs.
        for start, _ in find_broken_escapes(raw):
            raise errors.invalid_encoding(location, start) from None
        return
    _check_value(value, "", limits, location)


def _ignore_number(_: str) -> None:
    """Ignore numbers: they need no check, and may be very long."""


def _check_value(value: Any, path: str, limits: RequestLimits, location: str) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value, path or location, limits)
    elif kind is list:
        if len(value) > limits.array_elements:
            raise _with_path(
                errors.too_large("array_elements", limits.array_elements, len(value), "elements"),
                path,
            )
        for index, item in enumerate(value):
            if item is not None and type(item) is not bool:
                _check_value(item, f"{path}.{index}" if path else str(index), limits, location)
    elif kind is dict:
        for key, item in value.items():
            _check_text(key, path or location, limits)
            step = key[:_MAX_KEY_CHARACTERS]
            _check_value(item, f"{path}.{step}" if path else step, limits, location)


def _check_text(text: str, path: str, limits: RequestLimits) -> None:
    if "\0" in text:
        raise errors.invalid_encoding(path)
    size = len(text)
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise errors.invalid_encoding(path) from None
    if size > limits.string_bytes:
        raise _with_path(
            errors.too_large("string_length", limits.string_bytes, size, "bytes"), path
        )


def _with_path(error: AqlError, path: str) -> AqlError:
    if path and error.data is not None:
        error.data["param_name"] = path
    return error


def unsafe_integer_error(param: str, *, as_text: bool) -> AqlError:
    """Return the error for an unsafe integer in an integer parameter.

    Args:
        as_text: True if the parameter also accepts a string.
    """
    return errors.out_of_range(param, -MAX_SAFE_INTEGER, MAX_SAFE_INTEGER, as_text=as_text)
