"""Progress of an execution in percent, and progress notifications for running calls."""

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
    """Return the progress in percent. None: the status has no progress.

    Args:
        done: completed steps within the status.
        total: all steps within the status.
    """
    span = _SPANS.get(status)
    if span is None:
        return None
    low, high = span
    fraction = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    return low + (high - low) * fraction


# Periodic progress notifications for operations whose servers send none.
#
# The stage wraps the AQL stage, and watches only EXECUTE operations whose callers sent a progress
# token. Progress of the server passes unchanged and stops the node's own notifications. These count
# in thousandths, below nearly every value that a server may send later: progress must never
# decrease.

INTERVAL_SECONDS: Final = 1.0
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
        self._notifiers: dict[Call, _ProgressNotifier] = {}
        self._ticking = False
        self._bypass()

    def _bypass(self) -> None:
        """Bypass this class while no call is watched."""
        self.write_response = self._stage.write_response  # type: ignore[method-assign]

    def resolve_operation(self, call: Call) -> OperationMatch:
        match = self._stage.resolve_operation(call)
        if call.meta is not None and match is not ANSWERED and META_PROGRESS_TOKEN in call.meta:
            self._watch(call)
        return match

    def write_response(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        duration: float = 0.0,
    ) -> CallResult:
        if self._notifiers:
            self._notifiers.pop(call, None)
        return self._stage.write_response(call, outcome, error, duration)

    def check_encoding(self, body: bytes) -> tuple[bytes, InterlockError] | None:
        return self._stage.check_encoding(body)

    def _watch(self, call: Call) -> None:
        request, send_notification, meta = call.operation_request, call.on_notification, call.meta
        if (
            send_notification is None
            or meta is None
            or type(request) is not AqlRequest
            or request.operation.category is not Category.EXECUTE
        ):
            return
        notifier = _ProgressNotifier(send_notification, meta[META_PROGRESS_TOKEN], self._clock())
        call.on_notification = notifier.on_notification
        self._notifiers[call] = notifier
        # Use this class's method again, which also ends the watch.
        self.__dict__.pop("write_response", None)
        if not self._ticking:
            self._ticking = True
            self._call_later(INTERVAL_SECONDS, self._tick)

    def _tick(self) -> None:
        now = self._clock()
        for call, notifier in list(self._notifiers.items()):
            try:
                notifier.send(call, now)
            except Exception:
                # A failing client must not affect the others.
                _log.exception("aql: cannot send a progress notification")
        if self._notifiers:
            self._call_later(INTERVAL_SECONDS, self._tick)
        else:
            self._ticking = False
            self._bypass()


class _ProgressNotifier:
    """The progress that one client has received."""

    __slots__ = ("_last_progress", "_send_notification", "_server_reports", "_start_time", "_token")

    def __init__(self, send_notification: NotificationHandler, token: Raw, now: float) -> None:
        self._send_notification = send_notification
        self._token = token
        self._start_time = now
        self._last_progress = 0.0
        """The last progress value that the node itself sent."""
        self._server_reports = False
        """True if the server sends progress itself."""

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        if method == PROGRESS:
            self._server_reports = True
            if self._last_progress and not self._is_ahead(params):
                return
        self._send_notification(call, method, params)

    def _is_ahead(self, params: bytes | Raw) -> bool:
        try:
            progress = decode_value(decode_members(params)["progress"])
        except (KeyError, ProtocolError):
            return True
        if not isinstance(progress, int | float) or progress <= self._last_progress:
            return False
        # From now on the server's progress counts.
        self._last_progress = 0.0
        return True

    def send(self, call: Call, now: float) -> None:
        seconds = now - self._start_time
        if self._server_reports or seconds < INTERVAL_SECONDS:
            return
        self._last_progress += _STEP
        params = {
            "progressToken": self._token,
            "progress": round(self._last_progress, 3),
            "message": f"Running for {seconds:.0f} s.",
        }
        self._send_notification(call, PROGRESS, encode_value(params))
