"""What the log says of how it stands with a parent: what is new, and not every try.

A parent that takes a subserver in and sends it away again, each time for the same reason, is told
of once: neither that it registers nor that it is sent away is news, until it stays.
"""

from __future__ import annotations

import logging

from interlock.errors import InterlockError

_log = logging.getLogger("interlock.faces.ax")


class Telling:
    """Writes to the log."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        """What went wrong last with each parent, as it was told."""
        self._refused = False
        """Whether that was a refusal which trying again will hardly change."""
        self._owed = ""

    def registered(self, segment: str, url: str) -> None:
        self._owed = f"registered as {segment} with {url}"
        if not self._refused:
            self.stayed()

    def stayed(self) -> None:
        """It has been registered for a while."""
        if self._owed:
            _log.info("%s", self._owed)
        self._owed, self._refused = "", False
        self._said.clear()

    def failed(self, url: str, error: InterlockError, *, refused: bool) -> None:
        """It did not come to a registration."""
        self._tell(url, f"not registered with {url}: {error.message}", refused)

    def lost(self, url: str, error: InterlockError, *, refused: bool) -> None:
        """A registration has ended."""
        self._tell(url, f"the parent is lost: {error.message}", refused)

    def _tell(self, url: str, sentence: str, refused: bool) -> None:
        if sentence != self._said.get(url):
            _log.warning("%s", sentence)
        self._said[url] = sentence
        self._refused, self._owed = refused, ""
