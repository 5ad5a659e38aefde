"""What a parent says when it does not want a subserver, and what can be done about it. Pure."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from interlock.errors import (
    AUTHORITY_REJECTED,
    CONFIG,
    CYCLE_DETECTED,
    FORBIDDEN,
    INVALID_SEGMENT,
    NAMESPACE_CONFLICT,
    SPLIT_BRAIN,
    UNAUTHENTICATED,
    UNSUPPORTED_VERSION,
    UPSTREAM_ERROR,
    Failure,
    InterlockError,
    ProtocolError,
    by_ax,
)
from interlock.protocol.jsonrpc import ErrorObject, decode_value

PERMANENT: Final = frozenset(
    {
        AUTHORITY_REJECTED, CONFIG, CYCLE_DETECTED, FORBIDDEN, INVALID_SEGMENT, NAMESPACE_CONFLICT,
        UNAUTHENTICATED, UNSUPPORTED_VERSION,
    }
)  # fmt: skip
"""What trying again will hardly change."""
_LONGEST: Final = 500

_ADVICE: Final = {
    AUTHORITY_REJECTED: "Prove the authority with a key or a certificate that the parent trusts.",
    CYCLE_DETECTED: "Name a parent that is not below this node.",
    FORBIDDEN: "Ask whoever runs the parent for leave to register.",
    INVALID_SEGMENT: "Choose a segment of a-z, 0-9, _ and -.",
    NAMESPACE_CONFLICT: "Choose another segment, or end the one that has it.",
    SPLIT_BRAIN: "It is registered elsewhere in the same tree: end it there, or wait.",
    UNAUTHENTICATED: "Present a token that the parent knows.",
    UNSUPPORTED_VERSION: "Run versions of Interlock that have a revision in common.",
}


_BY_STATUS: Final = {401: UNAUTHENTICATED, 403: FORBIDDEN}


class RefusedError(InterlockError):
    """The parent answered with an error."""

    def __init__(self, code: int, symbol: str, data: Any = None) -> None:
        row = by_ax(code, symbol) or _BY_CODE.get(code)
        detail = data.pop("detail", None) if isinstance(data, dict) else None
        said = detail if isinstance(detail, str) and detail else symbol
        super().__init__(
            row or UPSTREAM_ERROR, said[:_LONGEST], data if isinstance(data, dict) else None
        )
        self.code = code
        self.symbol = symbol[:_LONGEST] if row is None else row.ax_name or row.name

    @property
    def permanent(self) -> bool:
        return self.failure in PERMANENT


_BY_CODE: Final[dict[int, Failure]] = {
    row.ax_code: row for row in (*PERMANENT, SPLIT_BRAIN) if row.ax_code <= -31000
}


def read_refusal(error: ErrorObject) -> RefusedError:
    """The error that a parent answered with."""
    data: Any = None
    if error.data is not UNSET:
        try:
            data = decode_value(error.data)
        except ProtocolError:
            # What it adds cannot be read; the code says enough.
            data = None
    return RefusedError(error.code, error.message, data)


def refusal_by_symbol(symbol: str, detail: str = "") -> RefusedError | None:
    """What a parent means that closes a channel with this word. None: nothing that is known."""
    for row in (*PERMANENT, SPLIT_BRAIN):
        if symbol and row.ax_name == symbol:
            return RefusedError(row.ax_code, symbol, {"detail": detail} if detail else None)
    return None


def refusal_at_the_door(error: InterlockError) -> InterlockError:
    """What a parent means that does not even open a channel."""
    row = _BY_STATUS.get((error.data or {}).get("status", 0))
    return error if row is None else InterlockError(row, error.message, error.data)


def advice(error: InterlockError) -> str:
    """What to do about it, as a sentence; empty when nothing is known."""
    return _ADVICE.get(error.failure, "")


def advice_on(symbol: str) -> str:
    """The same, for what a status shows of an error."""
    return next(
        (said for row, said in _ADVICE.items() if symbol in (row.ax_name or row.name, row.name)), ""
    )
