"""Arguments that an operator approves mean the same to every JSON reader."""

from __future__ import annotations

import pytest

from interlock.errors import INVALID_ARGUMENTS, InterlockError
from interlock.trust.approvals.record import parse_exact


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0.1", 0.1),
        (b"1.50", 1.5),
        (b"1e3", 1000.0),
        (b"-0.0", -0.0),
        (b"9007199254740991", 9007199254740991),
        (b"0." + b"5" + b"0" * 397, 0.5),
    ],
)
def test_parses_exact_numbers(text: bytes, value: float) -> None:
    assert parse_exact(b'{"a":%b}' % text) == {"a": value}


@pytest.mark.parametrize(
    "text",
    [
        # Rounded by readers that use doubles.
        b"0.12345678901234567890123",
        b"9007199254740993",
        # Exact, but with more digits than an operator can compare.
        b"0.5" + b"0" * 400,
        b"1" + b"0" * 400,
        b"1e400",
        b"NaN",
        b"-Infinity",
    ],
)
def test_rejects_numbers_that_readers_disagree_about(text: bytes) -> None:
    with pytest.raises(InterlockError) as raised:
        parse_exact(b'{"a":%b}' % text)
    assert raised.value.failure is INVALID_ARGUMENTS


@pytest.mark.parametrize("text", [b'{"a":1,"a":2}', b'{"a":[{"b":1,"b":1}]}', b"{", b"\xff"])
def test_rejects_arguments_that_readers_disagree_about(text: bytes) -> None:
    with pytest.raises(InterlockError) as raised:
        parse_exact(text)
    assert raised.value.failure is INVALID_ARGUMENTS
