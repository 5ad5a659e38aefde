"""Log handlers of a node: lines on stderr, or a buffer of the newest lines for the live view.

A log line can quote an upstream, so secrets and terminal control characters are removed from every
line.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import deque
from typing import Final

from interlock.core.config import redact, redact_about
from interlock.terminal import output

KEPT_LINES: Final = 8
REPEAT_INTERVAL_SECONDS: Final = 300.0
_SUBJECT: Final = re.compile(r"(?P<kind>(?:upstream|driver) )%s(?P<label>: (?:failed: )?)")
"""The beginning of the format of records about an upstream or a driver."""


class _Redacted(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        subject = _subject_of(record)
        if subject is None:
            return output.sanitize(redact(text))
        # The name comes from the config. The rest can be text of the upstream.
        name, beginning = subject
        before, beginning, message = text.partition(beginning)
        return output.sanitize(before + beginning + redact_about(name, message))


def upstream_of(record: logging.LogRecord) -> str | None:
    """Return the upstream or the driver that a record is about, or None."""
    subject = _subject_of(record)
    return None if subject is None else subject[0]


def _subject_of(record: logging.LogRecord) -> tuple[str, str] | None:
    """Return the name of the upstream or the driver that a record is about, and the beginning of
    its message, such as `upstream jira: `."""
    match = _SUBJECT.match(record.msg) if isinstance(record.msg, str) else None
    if match is None or not record.args or not isinstance(record.args, tuple):
        return None
    name = str(record.args[0])
    return name, f"{match['kind']}{name}{match['label']}"


class RepeatFilter(logging.Filter):
    """A filter for upstreams that fail repeatedly with the same message.

    The message is shown once, and then every five minutes while the failure lasts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, tuple[str, float, int]] = {}
        """By upstream: the message, when it was last shown, and how often it was logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        name = upstream_of(record)
        if name is None or record.levelno < logging.WARNING:
            return True
        message = record.getMessage()
        previous, shown_at, count = self._last.get(name, ("", 0.0, 0))
        if message != previous:
            self._last[name] = (message, record.created, 1)
            return True
        if record.created - shown_at < REPEAT_INTERVAL_SECONDS:
            self._last[name] = (message, shown_at, count + 1)
            return False
        self._last[name] = (message, record.created, count + 1)
        arguments = record.args if isinstance(record.args, tuple) else ()
        record.msg = f"{record.msg} (still, tried %d times)"
        record.args = (*arguments, count + 1)
        return True


class LineBuffer(logging.Handler):
    """A buffer of the newest lines: time, level, text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[tuple[str, int, str]] = deque(maxlen=KEPT_LINES)
        self.count = 0
        self.setFormatter(_Redacted("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        timestamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = self.format(record)
        # Repeated lines are shown once, with the time of the newest one.
        repeated = next((line for line in self.lines if line[2] == text), None)
        if repeated is not None:
            self.lines.remove(repeated)
        self.lines.append((timestamp, record.levelno, text))
        self.count += 1


def log_to_stderr(level: int = logging.INFO) -> None:
    """Write the log to stderr, one line per record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Redacted("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    _install(handler, level)


def log_to_buffer(level: int = logging.INFO) -> LineBuffer:
    """Keep the newest lines in a buffer and print nothing."""
    handler = LineBuffer()
    _install(handler, level)
    return handler


def _install(handler: logging.Handler, level: int) -> None:
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("interlock").setLevel(level)
    # uvicorn logs a line on every stop.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
