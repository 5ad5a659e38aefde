"""The node's log as a person reads it: lines on stderr, or the last few kept for the live view.

Whatever is logged may quote an upstream's own words, so every line passes through redaction, and
nothing in it can take over the terminal.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from typing import Final

from interlock.core.config import redact, redact_about
from interlock.terminal import output

KEPT_LINES: Final = 8
REPEAT_INTERVAL_SECONDS: Final = 300.0
_ABOUT: Final = ("%s: ", "%s failed: ")
"""How the records about an upstream begin."""


class _Redacted(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        whole = super().format(record)
        name = upstream_of(record)
        if name is None:
            return output.sanitize(redact(whole))
        # Whom it is about is our own word; what is said may be theirs.
        before, label, said = whole.partition(f"{name}{_label(record)}")
        return output.sanitize(before + label + redact_about(name, said))


def upstream_of(record: logging.LogRecord) -> str | None:
    """The upstream that a record is about: those begin with its name."""
    if isinstance(record.msg, str) and record.msg.startswith(_ABOUT) and record.args:
        return str(record.args[0]) if isinstance(record.args, tuple) else None
    return None


def _label(record: logging.LogRecord) -> str:
    """What is between the name of an upstream and what is said about it."""
    return next(one[2:] for one in reversed(_ABOUT) if str(record.msg).startswith(one))


class RepeatFilter(logging.Filter):
    """An upstream that is tried again and again says the same again and again: shown once, and
    then every five minutes for as long as it is so."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, tuple[str, float, int]] = {}
        """By upstream: the sentence, when it was shown, and how often it has been said."""

    def filter(self, record: logging.LogRecord) -> bool:
        name = upstream_of(record)
        if name is None or record.levelno < logging.WARNING:
            return True
        said = record.getMessage()
        before, shown, times = self._last.get(name, ("", 0.0, 0))
        if said != before:
            self._last[name] = (said, record.created, 1)
            return True
        if record.created - shown < REPEAT_INTERVAL_SECONDS:
            self._last[name] = (said, shown, times + 1)
            return False
        self._last[name] = (said, record.created, times + 1)
        arguments = record.args if isinstance(record.args, tuple) else ()
        record.msg = f"{record.msg} (still, tried %d times)"
        record.args = (*arguments, times + 1)
        return True


class LineBuffer(logging.Handler):
    """The newest lines: time, level, text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[tuple[str, int, str]] = deque(maxlen=KEPT_LINES)
        self.count = 0
        self.setFormatter(_Redacted("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = self.format(record)
        # What is tried again and again is one line, with the time of the newest.
        again = next((line for line in self.lines if line[2] == text), None)
        if again is not None:
            self.lines.remove(again)
        self.lines.append((moment, record.levelno, text))
        self.count += 1


def log_to_stderr(level: int = logging.INFO) -> None:
    """Plain lines, one a record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Redacted("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    _install(handler, level)


def log_to_buffer(level: int = logging.INFO) -> LineBuffer:
    """Nothing is printed; the newest lines are kept."""
    handler = LineBuffer()
    _install(handler, level)
    return handler


def _install(handler: logging.Handler, level: int) -> None:
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("interlock").setLevel(level)
    # It says on every stop that it was stopped.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
