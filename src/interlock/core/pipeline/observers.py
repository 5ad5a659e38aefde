"""Observers of calls: the interface through which the journal and metrics follow every call.

A class overrides the events that it needs. An event without observers costs nothing: the pipeline
prepares a tuple of methods for each event (`ObserverMethods`), and most tuples are empty.
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
    """Gets the events of every call, in the order of these methods. It must be fast and not block.

    Only the journal may delay a call: see `Audit.record_intent`.
    """

    declared_latency_only = False
    """True if `on_end` is only called for tools that declare their latency."""

    def on_start(self, call: Call) -> None:
        """Called for a new call. Its caller and its tool are not known yet."""

    def on_decision(self, call: Call, decision: Decision | None) -> None:
        """Called when a call is allowed or needs an approval. A rejected call ends at once instead.

        Args:
            decision: None for a request that is not a tool call.
        """

    def on_dispatch(self, call: Call) -> None:
        """Called before a call is sent to its upstream, and before it is sent again.

        `Call.is_dispatched` says at the end whether a request left the node.
        """

    def on_end(
        self,
        call: Call,
        outcome_name: str,
        duration_us: int,
        detail: str = "",
        outcome: Outcome | None = None,
        error: InterlockError | None = None,
    ) -> None:
        """Called once when a call is over.

        Args:
            outcome_name: as in the journal: `ok`, `tool_error`, the name of a failure, …
            duration_us: since its start.
            detail: the reason of a failure.
        """


ObserverCallbacks = tuple[Callable[..., None], ...]


class ObserverMethods:
    """The observer methods of each event, in the order of the observers."""

    __slots__ = ("_observers", "on_decision", "on_dispatch", "on_end", "on_latency", "on_start")

    def __init__(self, observers: tuple[CallObserver, ...]) -> None:
        self._observers: tuple[CallObserver, ...] = ()
        self.add(*observers)

    def add(self, *added: CallObserver) -> None:
        """Add observers after the present ones. They get the events of later calls."""
        observers = self._observers = (*self._observers, *added)
        self.on_start = _find_methods(observers, "on_start")
        self.on_decision = _find_methods(observers, "on_decision")
        self.on_dispatch = _find_methods(observers, "on_dispatch")
        latency_observers = [observer for observer in observers if observer.declared_latency_only]
        others = [observer for observer in observers if observer not in latency_observers]
        self.on_end = _find_methods(others, "on_end")
        self.on_latency = _find_methods(latency_observers, "on_end")


def _find_methods(observers: Iterable[CallObserver], event: str) -> ObserverCallbacks:
    default = getattr(CallObserver, event)
    return tuple(
        [
            getattr(observer, event)
            for observer in observers
            if getattr(type(observer), event) is not default
        ]
    )


def notify(callbacks: ObserverCallbacks, call: Call, *event: Any) -> None:
    """Call the observers of an event. A failing observer affects neither the call nor others."""
    for callback in callbacks:
        try:
            callback(call, *event)
        except Exception:
            _log.exception("call %.100r %.100r: a call observer failed", call.method, call.name)
