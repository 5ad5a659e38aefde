"""Threads for tools that are plain functions. They never keep a program from ending.

The threads of asyncio's own executor are waited for when a program ends, for as long as it takes.
These are not: whoever is told to stop stops, and what still runs ends with the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Final

MOST: Final = 32
"""So many functions run at the same time; the others wait for their turn."""

Work = Callable[[], None]


class Threads:
    """Makes threads as they are needed, and keeps them for the next ones."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._waiting: SimpleQueue[Work] = SimpleQueue()
        self._guard = threading.Lock()
        self._made = 0
        self._under_way = 0
        """Functions that run, or wait for a thread."""

    async def run(self, function: Callable[[], Any]) -> Any:
        """What the function gives back, or raises, whatever that is; called in the context of
        whoever asks. Who no longer waits for it does not stop it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = copy_context()

        def work() -> None:
            found, raised = None, None
            try:
                found = context.run(function)
            except BaseException as error:
                raised = error
            try:
                loop.call_soon_threadsafe(_tell, answer, (found, raised))
            except RuntimeError:
                # The loop is closed: nobody is there any more to be told.
                return

        self._take(work)
        found, raised = await answer
        if raised is None:
            return found
        if isinstance(raised, asyncio.CancelledError | GeneratorExit):
            # As it stands it would look as though nobody waited for the answer any more.
            raise RuntimeError("what it waited for was cancelled") from raised
        raise raised

    def _take(self, work: Work) -> None:
        with self._guard:
            self._under_way += 1
            if self._made < min(self._under_way, self._most):
                self._made += 1
                name = f"tool-{self._made}"
                threading.Thread(target=self._work_on, name=name, daemon=True).start()
        self._waiting.put(work)

    def _work_on(self) -> None:
        while True:
            work = self._waiting.get()
            work()
            with self._guard:
                self._under_way -= 1
            # Nothing of a call is kept until the next one.
            del work


def _tell(
    answer: asyncio.Future[tuple[Any, BaseException | None]],
    outcome: tuple[Any, BaseException | None],
) -> None:
    if not answer.done():
        answer.set_result(outcome)


threads: Final = Threads()
"""Those of this process."""
