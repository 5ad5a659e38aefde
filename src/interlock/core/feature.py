"""What a feature contributes to a node, and the lifecycle that every component shares.

A feature is a package below `interlock` with a module `feature`, whose `FEATURE` says what it
contributes. `app/features.py` lists the features. Without its folder and its line there, a node
runs without the feature.

A node checks a new config with all components before it applies it to any. If one of them fails to
apply it, the node applies the previous config again to all that were reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock.core.config import Config
    from interlock.core.server.http.router import Route


class Command(NamedTuple):
    """A command of the program, or a group of them, and where it is."""

    name: str
    module: str
    """The module below `interlock`; imported when the command is needed."""
    panel: str
    """The heading in `--help`."""
    attribute: str = ""
    """The name in the module. Default: the name of the command."""
    settings: dict[str, Any] | None = None
    """Context settings of `click`."""


class Feature(NamedTuple):
    """What a feature contributes that is known without running a node."""

    name: str
    summary: str
    """What a node without it lacks, for messages."""
    commands: tuple[Command, ...] = ()


class Component:
    """A part of a node that starts, follows the config, and stops. Every method is optional."""

    def check(self, config: Config) -> None:
        """Raise InterlockError if this component cannot run with `config`. Change nothing."""

    def routes(self) -> Sequence[Route]:
        """Its paths of the HTTP listener. Called once, when the node is made."""
        return ()

    def start(self) -> None:
        """Begin to work. Called once, before the node accepts callers."""

    async def apply(self, old: Config, new: Config) -> None:
        """Switch from the config `old` to `new`, which was checked.

        When this or a later component fails, the node calls it again with both exchanged. So it has
        to undo its own changes, also after it failed half-way.
        """

    async def stop(self) -> None:
        """Release everything. Called once, when no call is under way any more."""
