"""Observers of calls: the journal, measures and counters hear of every call through these.

A class overrides the events that it wants to hear. An event that nobody wants costs nothing: the
pipeline prepares a tuple of methods for each (`Listeners`), and most tuples are empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from interlock.core.call import Call, Outcome
from interlock.core.ports import Decision
from interlock.errors import InterlockError

_log = logging.getLogger("interlock.pipeline")


class CallObserver:
    """Hears of every call, in the order of these methods. It must be quick and must not wait.

    Only the journal may hold a call back: see `Audit.intend`.
    """

    declared_latency_only = False
    """Whether `settled` is only about calls of tools that declare how long they take."""

    def on_start(self, call: Call) -> None:
        """A call has come in. Nothing is known of its caller or its tool yet."""

    def on_decision(self, call: Call, decision: Decision | None) -> None:
        """A call may go on, or waits for an operator. None: it calls no tool. What is rejected is
        settled at once."""

    def on_dispatch(self, call: Call) -> None:
        """A call is about to be handed to its upstream; again, when it is sent again. Whether a
        request left is known when it is settled (`Call.dispatched`)."""

    def on_end(
        self,
        call: Call,
        outcome_name: str,
        duration_us: int,
        detail: str = "",
        outcome: Outcome | None = None,
        error: InterlockError | None = None,
    ) -> None:
        """A call is over. Told once.

        Args:
            word: how it ended, as the journal has it: `ok`, `tool_error`, the name of a failure, …
            duration_us: since it started.
            detail: why it failed.
        """


ObserverCallbacks = tuple[Callable[..., None], ...]


class ObserverMethods:
    """The methods that hear of each event, in the order of the observers."""

    __slots__ = ("_observers", "on_decision", "on_dispatch", "on_end", "on_latency", "on_start")

    def __init__(self, observers: tuple[CallObserver, ...]) -> None:
        self._observers: tuple[CallObserver, ...] = ()
        self.add(*observers)

    def add(self, *more: CallObserver) -> None:
        """Let these hear of every later call, after those that do already."""
        observers = self._observers = (*self._observers, *more)
        self.on_start = _overridden(observers, "on_start")
        self.on_decision = _overridden(observers, "on_decision")
        self.on_dispatch = _overridden(observers, "on_dispatch")
        some = tuple([one for one in observers if one.declared_latency_only])
        self.on_end = _overridden([one for one in observers if one not in some], "on_end")
        self.on_latency = _overridden(some, "on_end")


def _overridden(observers: Iterable[CallObserver], event: str) -> ObserverCallbacks:
    ignored = getattr(CallObserver, event)
    return tuple(
        [getattr(one, event) for one in observers if getattr(type(one), event) is not ignored]
    )


def notify(heard: ObserverCallbacks, call: Call, *more: Any) -> None:
    """Tell each of them. A failing observer harms neither the call nor the others."""
    for tell in heard:
        try:
            tell(call, *more)
        except Exception:
            _log.exception("%.100r %.100r could not be observed", call.method, call.name)
