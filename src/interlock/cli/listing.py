"""Tools as the command line shows them: which server they are of, what they do, what they cost.

Works on what a node lists and on its config. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.catalog import names
from interlock.catalog.aql.costs import definition_tokens
from interlock.catalog.effects import Annotations, classify
from interlock.config import Config, ServerConfig
from interlock.protocol.ax import CAPABILITY


class ListedTool(msgspec.Struct, frozen=True):
    """One line of a listing."""

    server: str
    name: str
    effect: str
    description: str
    tokens: int
    schema: dict[str, Any] = {}
    availability: str = ""
    """What it says of itself, such as `degraded`; empty when it says nothing."""


class _Capability(msgspec.Struct):
    availability: str = ""


class _Meta(msgspec.Struct):
    capability: _Capability = msgspec.field(default_factory=_Capability, name=CAPABILITY)


class _Definition(msgspec.Struct, rename="camel"):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = {}
    annotations: Annotations | None = None
    meta: Raw | UnsetType = msgspec.field(default=UNSET, name="_meta")


def read_listing(definitions: Iterable[Raw], config: Config) -> list[ListedTool]:
    """The tools that a node listed, in its order."""
    everybody = {**config.enabled_servers, **participants_as_servers(config)}
    prefixes = _prefixes(everybody, config.root_segment)
    listed = []
    for raw in definitions:
        definition = msgspec.json.decode(raw, type=_Definition)
        key, server, own = _owner(definition.name, prefixes)
        effect = classify(
            own, definition.annotations, server.effects, trusted=server.trust_annotations
        )
        listed.append(
            ListedTool(
                server=key,
                name=definition.name,
                effect=effect.level.word,
                description=definition.description or "",
                tokens=definition_tokens(raw),
                schema=definition.input_schema,
                availability=_availability(definition.meta),
            )
        )
    return listed


def _availability(meta: Raw | UnsetType) -> str:
    if meta is UNSET:
        return ""
    try:
        return msgspec.json.decode(meta, type=_Meta).capability.availability
    except msgspec.DecodeError:
        # An upstream may write there what it likes.
        return ""


def same_name(listed: str, asked: str) -> bool:
    """Whether two names mean one tool: both forms of a name are accepted on a call."""
    return listed == asked or _dotted(listed) == _dotted(asked)


def servers_named(config: Config, tool: str) -> list[str]:
    """The servers that a tool of this name can be of; all of them when its name does not tell."""
    by_prefix = [
        key
        for prefix, key, _ in _prefixes(config.enabled_servers, config.root_segment)
        if prefix and _dotted(tool).startswith(_dotted(prefix))
    ]
    return list(dict.fromkeys(by_prefix)) or list(config.servers)


def begins_with_segment(tool: str, segment: str, root_segment: str | None) -> bool:
    """Whether a tool of this name is one of the upstream with this segment."""
    whole = f"{root_segment}.{segment}." if root_segment else f"{segment}."
    return _dotted(tool).startswith((_dotted(whole), _dotted(f"{segment}.")))


def _dotted(name: str) -> str:
    return name.replace("__", ".").lower()


def participants_as_servers(config: Config) -> dict[str, ServerConfig]:
    """Participants of topics whose tools the node has: what it takes them for, by their keys."""
    found: dict[str, ServerConfig] = {}
    for topic, room in config.topics.rooms.items():
        if room.upstreams:
            # Few have any.
            from interlock.upstreams.topics.participant_connector import key_of
            from interlock.upstreams.topics.room_upstreams import server_of

            for id, settings in room.upstreams.items():
                if settings.enabled:
                    found[key_of(topic, id)] = server_of(topic, id, settings)
    return found


def _prefixes(
    servers: Mapping[str, ServerConfig], root_segment: str | None
) -> list[tuple[str, str, ServerConfig]]:
    """(prefix, key, server), the longest prefix first; a transparent server has none."""
    found = []
    for key, server in servers.items():
        if server.expose == "transparent":
            found.append(("", key, server))
            continue
        segment = server.segment
        whole = f"{root_segment}.{segment}" if root_segment else segment
        found += [(f"{whole}.", key, server), (f"{whole.replace('.', '__')}__", key, server)]
    return sorted(found, key=lambda one: -len(one[0]))


def _owner(
    name: str, prefixes: list[tuple[str, str, ServerConfig]]
) -> tuple[str, ServerConfig, str]:
    """The server of a tool, and the tool's name there."""
    for prefix, key, server in prefixes:
        if name.startswith(prefix):
            shown = name[len(prefix) :]
            for own, renamed in server.rename.items():
                if names.Leaves().take(renamed) == names.Leaves().take(shown):
                    return key, server, own
            return key, server, shown
    # A node may run by another config than the one that was read.
    return name.partition(".")[0], ServerConfig(), name
