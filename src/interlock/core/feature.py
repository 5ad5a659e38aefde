"""The contributions of a feature to a node, and the lifecycle of all components.

A feature is a package below `interlock` with a module `feature`. Its `FEATURE` describes what it
contributes. `app/features.py` lists the features. If the folder of a feature and its line there are
removed, a node runs without the feature.

A node checks a new config with all components before it applies it to any of them. If a component
fails to apply it, the node applies the previous config again to all components that it reached.
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
    """A command of the program, or a group of commands, and the module that implements it."""

    name: str
    module: str
    """The module below `interlock`. It is imported when the command is needed."""
    panel: str
    """The heading in `--help`."""
    attribute: str = ""
    """The name in the module. Default: the name of the command."""
    settings: dict[str, Any] | None = None
    """Context settings of `click`."""


class Feature(NamedTuple):
    """The contributions of a feature that are known without running a node."""

    name: str
    summary: str
    """The capability that a node without the feature lacks, for messages."""
    commands: tuple[Command, ...] = ()
    component: str = ""
    """The function that creates its component in a node, as `module:function` below `interlock`.
    The function gets a `NodeContext`."""
    sections: tuple[str, ...] = ()
    """Its sections of the config, each as `module:object` below `interlock`. The object is a
    `core.config.feature_sections.SectionDefinition`."""
    requires: tuple[str, ...] = ()
    """The features that it needs."""
    reports: str = ""
    """Its part of the commands that belong to no feature (`status`, `check`, `doctor`, `up`), as
    `module:object` below `interlock`. The object is a `terminal.feature_reports.FeatureReports`."""


def load_object(reference: str) -> Any:
    """Import the object of a reference such as `module:object`, below `interlock`."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(f"interlock.{module}"), name)


class Component:
    """A part of a node with a lifecycle: start, apply a config, stop. All methods are optional."""

    def check(self, config: Config) -> None:
        """Check that this component can run with `config`. Change nothing. Raises
        InterlockError."""

    def routes(self) -> Sequence[Route]:
        """Return its routes of the HTTP listener. Called once, when the node is created."""
        return ()

    def start(self) -> None:
        """Start. Called once."""

    async def apply(self, old: Config, new: Config) -> None:
        """Switch from the config `old` to `new`, which was checked.

        If this or a later component fails, the node calls it again with `old` and `new` exchanged.
        So it must be able to undo its changes, also after it failed half-way.
        """

    async def stop(self) -> None:
        """Release all resources. Called once, when no call is running."""


class FeatureComponent(Component):
    """The component of a feature.

    A node calls `restore_state`, `on_listening`, `start`, `open_local_sockets` and
    `on_upstreams_tried` in this order, each once and only if the node gets that far. Then it calls
    `apply` for every new config. At the end it calls `announce_shutdown`, `disconnect` and `stop`.
    """

    takes_config_before_upstreams = False
    """True if `apply` is called before that of the upstreams, to free names that they may take."""

    def restore_state(self) -> None:
        """Load the state of an earlier run. Called before the node accepts callers."""

    def on_listening(self, url: str) -> None:
        """Called when the node accepts callers at this URL."""

    async def open_local_sockets(self, socket: Path) -> None:
        """Open Unix sockets for programs of this user, next to the socket of the node. Raises
        OSError."""

    def on_upstreams_tried(self) -> None:
        """Called when the node has tried to connect to every upstream of the config once."""

    async def announce_shutdown(self) -> None:
        """Announce that the node is about to stop. The node still accepts callers."""

    async def disconnect(self) -> None:
        """Close the connections of the feature. No call is running. The listeners close next."""

    # -- what it adds to the node

    def introductions(self) -> Iterable[UpstreamIntroduction]:
        """Return the introductions of its servers, in addition to those of the config."""
        return ()

    def on_introduction_change(self) -> None:
        """Called when the introduction of the node may have changed."""

    def status(self) -> msgspec.Struct | None:
        """Return its part of the node status. Its fields are written next to those of the node."""
        return None

    def problems(self) -> list[str]:
        """Return the current problems that need a person, one sentence each."""
        return []

    def on_tokens_revoked(self, callers: RevokedCallers) -> None:
        """Called when tokens were revoked: disconnect these callers now."""

    def on_tokens_expired(self, callers: Container[str]) -> None:
        """Called when tokens expired: send nothing to these callers until they have new tokens."""


# -- Config sections of the features, by reference. They are here, and not in the config package, so
# that a program can register them without reading a config.

_section_references: tuple[str, ...] = ()


def register_sections(references: Iterable[str]) -> None:
    """Add sections, each as `module:object` below `interlock`: a `SectionDefinition`."""
    global _section_references
    _section_references = tuple(dict.fromkeys((*_section_references, *references)))


def registered_sections() -> tuple[str, ...]:
    """Return the references, in the order in which they were added."""
    return _section_references
