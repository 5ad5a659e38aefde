"""How a node introduces itself: what its upstreams say of themselves, as one. Whoever is shown as
itself is chosen here, and who has been introduced already hears when that would be said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from interlock import __version__
from interlock.catalog.introduction import merge
from interlock.faces.mcp.hello import Hello, Introduction
from interlock.faces.mcp.listeners import Listeners
from interlock.node.driver_folders import DriverFolders
from interlock.node.roster import Roster
from interlock.pipeline.pipeline import Pipeline
from interlock.upstreams.supervisor import Supervisor

OWN_INFO: Final = {"name": "interlock", "title": "Interlock", "version": __version__}


class Introducing:
    """What a node says of itself, to clients and to its parent."""

    def __init__(
        self,
        roster: Roster,
        driver_folders: DriverFolders,
        *,
        pipeline: Pipeline,
        listeners: Listeners,
        on_changed: Callable[[], None],
    ) -> None:
        """`on_changed`: the parent is told by somebody else."""
        self._roster = roster
        self._driver_folders = driver_folders
        self._pipeline = pipeline
        self._listeners = listeners
        self._on_changed = on_changed
        self.hello = Hello(self.introduce)

    def introduce(self) -> Introduction:
        merged = merge([*self._roster.voices(), *self._driver_folders.voices()])
        return Introduction(
            merged.server_info or OWN_INFO, merged.capabilities, merged.instructions
        )

    def refresh(self) -> None:
        """What the node can say of itself may be another now."""
        self.hello.refresh()
        self._on_changed()

    def choose_transparent(self) -> None:
        """By the config: which upstream is shown as itself, if one is."""
        shown_as_itself = [
            key
            for key, one in self._roster.supervisors.items()
            if one.server.expose == "transparent"
        ]
        self._pipeline.transparent = shown_as_itself[0] if shown_as_itself else None
        self.refresh()

    def shown(self, supervisor: Supervisor) -> None:
        """The lists of an upstream were read."""
        if supervisor.key == self._pipeline.transparent:
            # Whoever sees it as itself hears what it announces, even if its list reads as before.
            self._listeners.changed(supervisor.announced)
