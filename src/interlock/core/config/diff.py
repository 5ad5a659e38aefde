"""The difference between two configs, so that a reload only affects what changed. Pure."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, field

from interlock.core.config.model import Config
from interlock.core.config.section import FeatureSection, Section

RESTART_FIELDS: Final = (
    "listen", "path", "state_dir", "journal", "input_timeout", "tls", "busy_poll",
)  # fmt: skip
"""Fields of the node that only change with a restart."""

CATALOG_FIELDS: Final = frozenset(
    {
        "segment", "description", "expose", "allow", "deny", "rename", "descriptions", "effects",
        "trust_annotations", "unannotated", "timeout", "grace", "start_timeout", "ask",
        "min_latency_class",
    }
)  # fmt: skip
"""Fields of a server that change how it is shown or how long it may take, but not its connection.
"""


class ConfigChange(Struct, frozen=True, kw_only=True):
    """The difference. Servers in the order of the new file, fields in the order of the model."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The changed fields of servers that both configs have."""
    live: tuple[str, ...] = ()
    """Fields of the node that are applied while it runs."""
    restart: tuple[str, ...] = ()
    """Fields of the node that need a restart."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.live or self.restart)

    @property
    def reconnect(self) -> tuple[str, ...]:
        """The changed servers that must be reconnected. The others keep their connection."""
        return tuple(key for key, names in self.changed.items() if not {*names} <= CATALOG_FIELDS)


def diff(old: Config, new: Config) -> ConfigChange:
    """Return what a node with config `old` has to do to apply `new`."""
    parts: list[tuple[str, Any, Any]] = [
        (name, getattr(old, name), getattr(new, name))
        for name in Config.__struct_fields__
        if name not in ("servers", "sections")
    ]
    parts += [
        (struct.KEY, old.optional_section(struct), new.optional_section(struct))
        for struct in _section_types(old, new)
    ]
    live: list[str] = []
    restart: list[str] = []
    for name, before, after in parts:
        if before == after:
            continue
        if name in RESTART_FIELDS:
            restart.append(name)
            continue
        names = _changed_in_section(before, after)
        restart_fields = [field_name for field_name in names if field_name in after.RESTART]
        if not names or len(restart_fields) < len(names):
            live.append(name)
        restart += [f"{name}.{field_name}" for field_name in restart_fields]
    changed = {}
    for key, server in new.servers.items():
        if key in old.servers and (names := _changed_fields(old.servers[key], server)):
            changed[key] = names
    return ConfigChange(
        added=tuple(key for key in new.servers if key not in old.servers),
        removed=tuple(key for key in old.servers if key not in new.servers),
        changed=changed,
        live=tuple(live),
        restart=tuple(restart),
    )


def _section_types(old: Config, new: Config) -> list[type[FeatureSection]]:
    """Return the sections that differ, sorted by key."""
    types = {type(struct) for struct in (*old.sections, *new.sections)}
    changed = [
        struct for struct in types if old.optional_section(struct) != new.optional_section(struct)
    ]
    return sorted(changed, key=lambda struct: struct.KEY)


def _changed_in_section(before: object, after: object) -> tuple[str, ...]:
    """Return the changed fields. Empty: the value is no section, or was added or removed."""
    if not (isinstance(before, Section) and isinstance(after, Section)):
        return ()
    return _changed_fields(before, after)


def _changed_fields(old: Section, new: Section) -> tuple[str, ...]:
    return tuple(name for name in old.__struct_fields__ if getattr(old, name) != getattr(new, name))
