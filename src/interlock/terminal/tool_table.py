"""The tools of a node for display: server, effect and token cost of each.

Pure functions over the tool list of a node and its config.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.core.catalog import names
from interlock.core.catalog.effects import (
    MIN_BOILERPLATE_TOOLS,
    UNKNOWN_EFFECT,
    Annotations,
    Effect,
    classify,
    is_boilerplate,
)
from interlock.core.catalog.token_costs import count_definition_tokens
from interlock.core.config import Config, ServerConfig
from interlock.protocol.mcpax import CAPABILITY
from interlock.terminal import output
from interlock.terminal.feature_reports import collect_other_servers
from interlock.terminal.node_discovery import UpstreamSummary


class ListedTool(msgspec.Struct, frozen=True):
    """One tool of a list."""

    server: str
    name: str
    effect: str
    description: str
    tokens: int
    schema: dict[str, Any] = {}
    availability: str = ""
    """The availability that the tool declares, such as `degraded`. Empty: none."""
    effect_details: Effect = UNKNOWN_EFFECT
    """The effect with its source, and the reason if it was assumed."""
    upstream_name: str = ""
    """The name of the tool at its server, as far as it is known."""


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
    """Read the tool definitions of a node, in their order."""
    servers = {**config.enabled_servers, **collect_other_servers(config).servers}
    prefixes = _prefixes(servers, config.root_segment)
    decoded = [(raw, msgspec.json.decode(raw, type=_Definition)) for raw in definitions]
    owners = [_find_owner(definition.name, prefixes) for _, definition in decoded]
    boilerplate_counts = Counter(
        key
        for (_, definition), (key, _, _) in zip(decoded, owners, strict=True)
        if is_boilerplate(definition.annotations)
    )
    listed = []
    for (raw, definition), (key, server, upstream_name) in zip(decoded, owners, strict=True):
        effect = classify(
            upstream_name,
            definition.annotations,
            server.effects,
            trusted=server.trust_annotations,
            unannotated=server.unannotated or config.unannotated,
            description=definition.description or "",
            schema=definition.input_schema,
            boilerplate=boilerplate_counts[key] >= MIN_BOILERPLATE_TOOLS,
        )
        listed.append(
            ListedTool(
                server=key,
                name=definition.name,
                effect=effect.level.label,
                description=definition.description or "",
                tokens=count_definition_tokens(raw),
                schema=definition.input_schema,
                availability=_availability(definition.meta),
                effect_details=effect,
                upstream_name=upstream_name,
            )
        )
    return listed


def _availability(meta: Raw | UnsetType) -> str:
    if meta is UNSET:
        return ""
    try:
        return msgspec.json.decode(meta, type=_Meta).capability.availability
    except msgspec.DecodeError:
        # `_meta` is untrusted data of the upstream.
        return ""


def is_same_name(first_name: str, other_name: str) -> bool:
    """Return whether two names are forms of one tool name: `a.b` and `a__b`."""
    return first_name == other_name or _normalize_name(first_name) == _normalize_name(other_name)


def find_servers_by_tool(config: Config, tool: str) -> list[str]:
    """Return the servers that can have a tool with this name. Without a match: all servers."""
    by_prefix = [
        key
        for prefix, key, _ in _prefixes(config.enabled_servers, config.root_segment)
        if prefix and _normalize_name(tool).startswith(_normalize_name(prefix))
    ]
    return list(dict.fromkeys(by_prefix)) or list(config.servers)


def has_segment(tool: str, segment: str, root_segment: str | None) -> bool:
    """Return whether the name of a tool begins with this segment."""
    full_prefix = f"{root_segment}.{segment}." if root_segment else f"{segment}."
    return _normalize_name(tool).startswith(
        (_normalize_name(full_prefix), _normalize_name(f"{segment}."))
    )


def _normalize_name(name: str) -> str:
    return name.replace("__", ".").lower()


def _prefixes(
    servers: Mapping[str, ServerConfig], root_segment: str | None
) -> list[tuple[str, str, ServerConfig]]:
    """Return (prefix, key, server), the longest prefix first. A transparent server has none."""
    prefixes = []
    for key, server in servers.items():
        if server.expose == "transparent":
            prefixes.append(("", key, server))
            continue
        segment = server.segment
        full_prefix = f"{root_segment}.{segment}" if root_segment else segment
        prefixes += [
            (f"{full_prefix}.", key, server),
            (f"{full_prefix.replace('.', '__')}__", key, server),
        ]
    return sorted(prefixes, key=lambda entry: -len(entry[0]))


def _find_owner(
    name: str, prefixes: list[tuple[str, str, ServerConfig]]
) -> tuple[str, ServerConfig, str]:
    """Return the server of a tool, and the tool's name at the server."""
    for prefix, key, server in prefixes:
        if name.startswith(prefix):
            local_name = name[len(prefix) :]
            for upstream_name, renamed in server.rename.items():
                if names.LeafNames().assign_name(renamed) == names.LeafNames().assign_name(
                    local_name
                ):
                    return key, server, upstream_name
            return key, server, local_name
    # The node can use another config than the one that was read.
    return name.partition(".")[0], ServerConfig(), name


def describe_unready(upstream: UpstreamSummary) -> str:
    """Describe why an upstream is not ready, so that its tools are missing or do not respond."""
    from interlock.core.config import redact_about

    problem = (
        redact_about(upstream.key, upstream.problem)
        if upstream.problem
        else f"it is {upstream.state}"
    )
    return output.sanitize(f"{upstream.key} is not ready: {problem}")
