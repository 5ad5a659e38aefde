"""Tools as the command line shows them: which server they are of, what they do, what they cost.

Works on what a node lists and on its config. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.core.catalog import names
from interlock.core.catalog.effects import (
    BOILERPLATE_FROM,
    UNKNOWN,
    Annotations,
    Effect,
    classify,
    is_boilerplate,
)
from interlock.core.catalog.token_costs import definition_tokens
from interlock.core.config import Config, ServerConfig
from interlock.protocol.mcpax import CAPABILITY
from interlock.terminal import output
from interlock.terminal.feature_reports import collect_other_servers
from interlock.terminal.node_discovery import UpstreamSummary


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
    classified: Effect = UNKNOWN
    """Its whole effect: who said so, and why it was assumed."""
    own: str = ""
    """Its name at its server, as far as the listing tells."""


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
    everybody = {**config.enabled_servers, **collect_other_servers(config).servers}
    prefixes = _prefixes(everybody, config.root_segment)
    read = [(raw, msgspec.json.decode(raw, type=_Definition)) for raw in definitions]
    owners = [_owner(definition.name, prefixes) for _, definition in read]
    alike = Counter(
        key
        for (_, definition), (key, _, _) in zip(read, owners, strict=True)
        if is_boilerplate(definition.annotations)
    )
    listed = []
    for (raw, definition), (key, server, own) in zip(read, owners, strict=True):
        effect = classify(
            own,
            definition.annotations,
            server.effects,
            trusted=server.trust_annotations,
            unannotated=server.unannotated or config.unannotated,
            description=definition.description or "",
            schema=definition.input_schema,
            boilerplate=alike[key] >= BOILERPLATE_FROM,
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
                classified=effect,
                own=own,
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


def is_same_name(listed: str, asked: str) -> bool:
    """Whether two names mean one tool: both forms of a name are accepted on a call."""
    return listed == asked or _dotted(listed) == _dotted(asked)


def find_servers_by_tool(config: Config, tool: str) -> list[str]:
    """The servers that a tool of this name can be of; all of them when its name does not tell."""
    by_prefix = [
        key
        for prefix, key, _ in _prefixes(config.enabled_servers, config.root_segment)
        if prefix and _dotted(tool).startswith(_dotted(prefix))
    ]
    return list(dict.fromkeys(by_prefix)) or list(config.servers)


def has_segment(tool: str, segment: str, root_segment: str | None) -> bool:
    """Whether a tool of this name is one of the upstream with this segment."""
    whole = f"{root_segment}.{segment}." if root_segment else f"{segment}."
    return _dotted(tool).startswith((_dotted(whole), _dotted(f"{segment}.")))


def _dotted(name: str) -> str:
    return name.replace("__", ".").lower()


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
                if names.LeafNames().take(renamed) == names.LeafNames().take(shown):
                    return key, server, own
            return key, server, shown
    # A node may run by another config than the one that was read.
    return name.partition(".")[0], ServerConfig(), name


def describe_unready(one: UpstreamSummary) -> str:
    """Why the tools of an upstream are missing, or may not answer."""
    from interlock.core.config import redact_about

    problem = redact_about(one.key, one.problem) if one.problem else f"it is {one.state}"
    return output.sanitize(f"{one.key} is not ready: {problem}")
