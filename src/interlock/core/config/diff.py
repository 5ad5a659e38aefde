"""What changed between two configs, so that a reload touches only that. Pure."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from interlock.core.config.model import Config, ServerConfig, SubserversConfig

RESTART_FIELDS: Final = (
    "listen", "path", "state_dir", "journal", "input_timeout", "tls", "wakeful",
)  # fmt: skip
"""Fields of the node that only a new start can change."""
RESTART_SUBSERVERS: Final = ("enabled", "path", "store")
"""The same, of `subservers`: they are shown as `subservers.path`."""
RESTART_TOPICS: Final = ("path",)

CATALOG_FIELDS: Final = frozenset(
    {
        "segment", "description", "expose", "allow", "deny", "rename", "descriptions", "effects",
        "trust_annotations", "unannotated", "timeout", "grace", "start_timeout", "ask",
        "min_latency_class",
    }
)  # fmt: skip
"""Fields of a server that change what is shown of it or how long it may take, not its link."""


class ConfigChange(Struct, frozen=True, kw_only=True):
    """The difference. Servers by key in the order of the new file, fields in that of the model."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The fields that changed, by the key of a server that both configs have."""
    live: tuple[str, ...] = ()
    """Fields of the node that can be applied while it runs."""
    restart: tuple[str, ...] = ()
    """Fields of the node that wait for a new start."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.live or self.restart)

    @property
    def relinked(self) -> tuple[str, ...]:
        """The changed servers that must be connected anew; the others keep their link."""
        return tuple(key for key, names in self.changed.items() if not {*names} <= CATALOG_FIELDS)


def diff(old: Config, new: Config) -> ConfigChange:
    """What a node that runs `old` has to do to run `new`."""
    node_fields = [
        name
        for name in Config.__struct_fields__
        if name != "servers" and getattr(old, name) != getattr(new, name)
    ]
    below = [
        name
        for name in SubserversConfig.__struct_fields__
        if getattr(old.subservers, name) != getattr(new.subservers, name)
    ]
    if below and all(name in RESTART_SUBSERVERS for name in below):
        node_fields.remove("subservers")
    ways = [f"topics.{name}" for name in RESTART_TOPICS if _differs(old, new, name)]
    if ways and replace(old.topics, path=new.topics.path) == new.topics:
        node_fields.remove("topics")
    changed = {}
    for key, server in new.servers.items():
        if key in old.servers and (names := _changed_fields(old.servers[key], server)):
            changed[key] = names
    return ConfigChange(
        added=tuple(key for key in new.servers if key not in old.servers),
        removed=tuple(key for key in old.servers if key not in new.servers),
        changed=changed,
        live=tuple(name for name in node_fields if name not in RESTART_FIELDS),
        restart=(
            *(name for name in node_fields if name in RESTART_FIELDS),
            *(f"subservers.{name}" for name in below if name in RESTART_SUBSERVERS),
            *ways,
        ),
    )


def _differs(old: Config, new: Config, name: str) -> bool:
    return bool(getattr(old.topics, name) != getattr(new.topics, name))


def _changed_fields(old: ServerConfig, new: ServerConfig) -> tuple[str, ...]:
    return tuple(
        name for name in ServerConfig.__struct_fields__ if getattr(old, name) != getattr(new, name)
    )
