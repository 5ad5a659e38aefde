"""The lifecycle that every component of a node shares.

A node checks a new config with all components before it applies it to any. If one of them fails to
apply it, the node applies the previous config again to all that were reached.
"""

from __future__ import annotations

from interlock.core.config import Config


class Component:
    """A part of a node that starts, follows the config, and stops. Every method is optional."""

    def check(self, config: Config) -> None:
        """Raise InterlockError if this component cannot run with `config`. Change nothing."""

    def start(self) -> None:
        """Begin to work. Called once, before the node accepts callers."""

    async def apply(self, old: Config, new: Config) -> None:
        """Switch from the config `old` to `new`, which was checked.

        When this or a later component fails, the node calls it again with both exchanged. So it has
        to undo its own changes, also after it failed half-way.
        """

    async def stop(self) -> None:
        """Release everything. Called once, when no call is under way any more."""
