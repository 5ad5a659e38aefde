"""What a feature contributes to a node, and the lifecycle that every component shares.

A feature is a package below `interlock` with a module `feature`, whose `FEATURE` says what it
contributes. `app/features.py` lists the features. Without its folder and its line there, a node
runs without the feature.

A node checks a new config with all components before it applies it to any. If one of them fails to
apply it, the node applies the previous config again to all that were reached.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence
    from pathlib import Path

    import msgspec

    from interlock.core.call import RevokedCallers
    from interlock.core.catalog.server_info import UpstreamIntroduction
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
    component: str = ""
    """What creates its component in a node, as `module:function` below `interlock`. The function
    gets a `NodeContext`."""
    sections: tuple[str, ...] = ()
    """Its sections of the config, each as `module:object` below `interlock`: a
    `core.config.feature_sections.SectionDefinition`."""
    requires: tuple[str, ...] = ()
    """Features without which it cannot be."""
    reports: str = ""
    """Its part in the commands that belong to no feature (`status`, `check`, `doctor`, `up`), as
    `module:object` below `interlock`: a `terminal.feature_reports.FeatureReports`."""


def load_object(reference: str) -> Any:
    """What a reference of a `Feature` names: `module:object` below `interlock`."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(f"interlock.{module}"), name)


class Component:
    """A part of a node that starts, follows the config, and stops. Every method is optional."""

    def check(self, config: Config) -> None:
        """Raise InterlockError if this component cannot run with `config`. Change nothing."""

    def routes(self) -> Sequence[Route]:
        """Its paths of the HTTP listener. Called once, when the node is made."""
        return ()

    def start(self) -> None:
        """Begin to work. Called once."""

    async def apply(self, old: Config, new: Config) -> None:
        """Switch from the config `old` to `new`, which was checked.

        When this or a later component fails, the node calls it again with both exchanged. So it has
        to undo its own changes, also after it failed half-way.
        """

    async def stop(self) -> None:
        """Release everything. Called once, when no call is under way any more."""


class FeatureComponent(Component):
    """The component of a feature. A node calls `restore`, `listening_at`, `start`,
    `listen_locally` and `settled` in this order, each once and only if it gets so far; then `apply`
    for every new config; at the end `leave`, `disconnect` and `stop`.
    """

    takes_config_before_upstreams = False
    """Whether `apply` is called before that of the upstreams: it frees names that they may take."""

    def restore_state(self) -> None:
        """Take up what an earlier run left. Called before the node accepts callers."""

    def on_listening(self, url: str) -> None:
        """The node accepts callers at this URL now."""

    async def open_local_sockets(self, socket: Path) -> None:
        """Open the Unix sockets for this user's programs beside the node's own. Raises OSError."""

    def on_upstreams_tried(self) -> None:
        """Every upstream of the config was tried once."""

    async def announce_shutdown(self) -> None:
        """The node is about to stop, and still accepts callers. Say so where somebody must know."""

    async def disconnect(self) -> None:
        """End the connections of its own: no call is under way. The listeners close next."""

    # -- what it adds to the node

    def introductions(self) -> Iterable[UpstreamIntroduction]:
        """What its servers say of themselves, beside the upstreams of the config."""
        return ()

    def on_introduction_change(self) -> None:
        """What the node says of itself may have changed."""

    def status(self) -> msgspec.Struct | None:
        """Its part of the node's status. The fields stand beside those of the node."""
        return None

    def problems(self) -> list[str]:
        """What is wrong now and needs a person, one sentence each."""
        return []

    def on_tokens_revoked(self, callers: RevokedCallers) -> None:
        """The tokens of these callers do not count any more: end everything of theirs now."""

    def on_tokens_expired(self, callers: Container[str]) -> None:
        """The tokens of these callers ran out: tell them nothing more until they have new ones."""


# -- Config sections of the features, by reference. Here, and not in the config package, so that a
# program can register them without reading a config.

_section_references: tuple[str, ...] = ()


def register_sections(references: Iterable[str]) -> None:
    """Add sections, each as `module:object` below `interlock`: a `SectionDefinition`."""
    global _section_references
    _section_references = tuple(dict.fromkeys((*_section_references, *references)))


def registered_sections() -> tuple[str, ...]:
    """The references, in the order in which they were added."""
    return _section_references
