"""Progress of an execution in percent, as MCP progress notifications."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec import Raw

from interlock.aql.request import AqlRequest
from interlock.aql.stage import ANSWERED
from interlock.core.call import Call, NotificationHandler, Outcome
from interlock.core.ports import CallResult, Clock, OperationMatch, OperationsStage
from interlock.errors import InterlockError, ProtocolError
from interlock.protocol.aql_terms import Category
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_value
from interlock.protocol.mcp import META_PROGRESS_TOKEN, PROGRESS

_SPANS: Final[dict[str, tuple[float, float]]] = {
    "pending": (0.0, 0.0),
    "initializing": (0.0, 10.0),
    "running": (10.0, 90.0),
    "completing": (90.0, 100.0),
    "completed": (100.0, 100.0),
}
TOTAL: Final = 100.0


def percent(status: str, done: float = 0, total: float = 0) -> float | None:
    """`done` of `total`: steps of what the status is about. None: it goes no further in this
    status, and never says how far it came."""
    span = _SPANS.get(status)
    if span is None:
        return None
    low, high = span
    share = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    return low + (high - low) * share


# -- A sign of life for whoever asked for progress, from operations whose servers give none.
#
# Stands before the AQL stage, and looks only at EXECUTE operations whose callers sent a progress
# token. What a server itself reports goes on as it is, and ends the node's own signs. These count
# in thousandths, so that they leave room below nearly everything that a server may say after
# them: progress never goes back.

EVERY: Final = 1.0
_STEP: Final = 0.001

_log = logging.getLogger("interlock.aql")


class ProgressStage:
    """An AQL stage that also sends progress notifications while a call runs."""

    def __init__(
        self,
        stage: OperationsStage,
        *,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._stage = stage
        self._clock = clock
        self._call_later = call_later
        self._watched: dict[Call, _Pulse] = {}
        self._ticking = False
        self._rest()

    def _rest(self) -> None:
        """While nobody is watched, nobody need ask."""
        self.write_response = self._stage.write_response  # type: ignore[method-assign]

    def resolve_operation(self, call: Call) -> OperationMatch:
        taken = self._stage.resolve_operation(call)
        if call.meta is not None and taken is not ANSWERED and META_PROGRESS_TOKEN in call.meta:
            self._watch(call)
        return taken

    def write_response(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        duration: float = 0.0,
    ) -> CallResult:
        if self._watched:
            self._watched.pop(call, None)
        return self._stage.write_response(call, outcome, error, duration)

    def check_encoding(self, body: bytes) -> tuple[bytes, InterlockError] | None:
        return self._stage.check_encoding(body)

    def _watch(self, call: Call) -> None:
        asked, hear, meta = call.operation_request, call.on_notification, call.meta
        if (
            hear is None
            or meta is None
            or type(asked) is not AqlRequest
            or asked.operation.category is not Category.EXECUTE
        ):
            return
        pulse = _Pulse(hear, meta[META_PROGRESS_TOKEN], self._clock())
        call.on_notification = pulse.on_notification
        self._watched[call] = pulse
        # Its own again, which also ends the watch.
        self.__dict__.pop("told", None)
        if not self._ticking:
            self._ticking = True
            self._call_later(EVERY, self._tick)

    def _tick(self) -> None:
        now = self._clock()
        for call, pulse in list(self._watched.items()):
            try:
                pulse.beat(call, now)
            except Exception:
                # One client that cannot be told must not silence the others.
                _log.exception("a client could not be told that its operation runs")
        if self._watched:
            self._call_later(EVERY, self._tick)
        else:
            self._ticking = False
            self._rest()


class _Pulse:
    """What one client has heard so far."""

    __slots__ = ("_began", "_hear", "_said", "_spoke", "_token")

    def __init__(self, hear: NotificationHandler, token: Raw, now: float) -> None:
        self._hear = hear
        self._token = token
        self._began = now
        self._said = 0.0
        """The progress that was told last by the node itself."""
        self._spoke = False
        """Whether its server says something itself."""

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        if method == PROGRESS:
            self._spoke = True
            if self._said and not self._is_ahead(params):
                return
        self._hear(call, method, params)

    def _is_ahead(self, params: bytes | Raw) -> bool:
        try:
            progress = decode_value(decode_members(params)["progress"])
        except (KeyError, ProtocolError):
            return True
        if not isinstance(progress, int | float) or progress <= self._said:
            return False
        # From here on it is the server that counts.
        self._said = 0.0
        return True

    def beat(self, call: Call, now: float) -> None:
        seconds = now - self._began
        if self._spoke or seconds < EVERY:
            return
        self._said += _STEP
        params = {
            "progressToken": self._token,
            "progress": round(self._said, 3),
            "message": f"Running for {seconds:.0f} s.",
        }
        self._hear(call, PROGRESS, encode_value(params))
