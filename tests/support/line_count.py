"""The work of a function, in lines of Python that were run: the same on every machine.

Work of C code is not seen, so a test that wants to see growth gives it to Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_lines_run(work: Callable[[], object]) -> int:
    """By this thread. Whoever looked before (a debugger, a measure of coverage) does so again
    afterwards."""
    lines = 0

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines
