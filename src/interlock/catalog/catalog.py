"""The board on which upstreams post what they offer, and from which callers read.

A change marks the snapshot stale; the next reader gets a new one, made whole. So fifty upstreams
that come up at once cost one merge, and a change in one upstream touches that one's part only.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from interlock.catalog.offering import Offering, Tool
from interlock.catalog.snapshot import Snapshot


class Catalog:
    """The merged namespace of all upstreams."""

    def __init__(self, *, server_info: bytes, page_size: int = 0) -> None:
        self._server_info = server_info
        self._page_size = page_size
        # Cursors are sealed with a key of this process: they need not outlive it.
        self._key = os.urandom(32)
        self._offerings: dict[str, Offering] = {}
        self._listeners: list[Callable[[], None]] = []
        self._number = 0
        self._snapshot: Snapshot | None = None

    @property
    def current(self) -> Snapshot:
        """The snapshot of now."""
        snapshot = self._snapshot
        if snapshot is None:
            snapshot = self._snapshot = Snapshot(
                self._number,
                self._offerings.values(),
                page_size=self._page_size,
                server_info=self._server_info,
                key=self._key,
            )
        return snapshot

    def find(self, name: str) -> Tool | None:
        """The tool that `name` means now, in any of the forms that are accepted."""
        snapshot = self._snapshot
        if snapshot is None:
            snapshot = self.current
        return snapshot.by_name.get(name)

    def offering(self, upstream: str) -> Offering | None:
        """What `upstream` offers now; None when it is not on the board."""
        return self._offerings.get(upstream)

    def post(self, offering: Offering) -> None:
        """An upstream offers something new in place of what it offered."""
        before = self._offerings.get(offering.upstream)
        self._offerings[offering.upstream] = offering
        if before is None and not offering.tools:
            return
        if before is not None and _reads_alike(before, offering):
            # The same list again, as after most reconnects: nobody needs to hear of it.
            self._snapshot = None
            return
        self._changed()

    def withdraw(self, upstream: str) -> None:
        """An upstream offers nothing any more."""
        gone = self._offerings.pop(upstream, None)
        if gone is not None and gone.tools:
            self._changed()

    def configure(self, *, page_size: int) -> None:
        """Apply node settings that may change while it runs."""
        if page_size != self._page_size:
            self._page_size = page_size
            self._snapshot = None

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change. Returns what ends that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def _changed(self) -> None:
        self._number += 1
        self._snapshot = None
        for listener in tuple(self._listeners):
            listener()


def _reads_alike(one: Offering, other: Offering) -> bool:
    """Whether every client, whatever it sees of the two, sees the same."""
    return len(one.tools) == len(other.tools) and all(
        a.canonical == b.canonical
        and a.safe_name == b.safe_name
        and a.transparent_name == b.transparent_name
        and a.listed == b.listed
        and a.effect == b.effect
        for a, b in zip(one.tools, other.tools, strict=True)
    )
