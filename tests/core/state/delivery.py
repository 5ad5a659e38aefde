"""Delivery of callbacks without an event loop, and a wait for their results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tests.support.timeouts import HANG_TIMEOUT

T = TypeVar("T")


class Told(Generic[T]):
    """A recorder of the results that a store delivers."""

    def __init__(self) -> None:
        self.became: list[T] = []
        self._told = threading.Condition()

    def deliver(self, run: Callable[[], None]) -> None:
        with self._told:
            run()
            self._told.notify_all()

    def then(self, became: T) -> None:
        self.became.append(became)

    def wait(self, number: int) -> list[T]:
        with self._told:
            assert self._told.wait_for(lambda: len(self.became) >= number, HANG_TIMEOUT)
        return self.became
