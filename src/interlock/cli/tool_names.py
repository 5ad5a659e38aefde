"""Tool names in the config that match no tool of their server. Pure functions.

Most of them are typing errors. A rule with such a name has no effect, so a call that should need an
approval runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from interlock.cli.config_warnings import split_glob
from interlock.core.catalog.definitions import is_tool_included
from interlock.core.catalog.effects import EffectLevel, classify
from interlock.core.catalog.names import LeafNames
from interlock.core.catalog.offering import Offering
from interlock.core.config import Config, ServerConfig
from interlock.terminal.config_source import ConfigWarning

_SIMILARITY_CUTOFF: Final = 0.6
_WILDCARDS: Final = "*?["


class KnownTool(NamedTuple):
    """A tool of a server."""

    upstream_name: str
    """The name of the tool at its server."""
    leaf: str
    """The last part of the canonical name."""
    irreversible: bool


def list_known_tools(offering: Offering) -> list[KnownTool]:
    """Return the tools of a server, including hidden ones: names of hidden tools are valid, too."""
    tools = [
        KnownTool(
            tool.upstream_name,
            tool.canonical.rpartition(".")[2],
            tool.effect.level is EffectLevel.IRREVERSIBLE,
        )
        for tool in offering.tools
    ]
    return tools + [
        KnownTool(tool.name, LeafNames().assign_name(tool.name), irreversible=True)
        for tool in offering.rejected
    ]


def find_unmatched_names(
    config: Config, tools_by_server: Iterable[tuple[str, Sequence[KnownTool]]]
) -> list[ConfigWarning]:
    """Find names in `effects` of servers and in `tools` of rules that match no tool.

    Args:
        tools_by_server: the key and the tools of each server that has listed its tools.
    """
    warnings: list[ConfigWarning] = []
    for key, tools in tools_by_server:
        server = config.enabled_servers.get(key)
        if server is None or not tools:
            # The server registered by itself, or has listed no tools yet.
            continue
        warnings += _check_effects(key, server, tools)
        if server.expose != "transparent":
            warnings += _check_rules(config, key, server, tools)
    return warnings


def _check_effects(
    key: str, server: ServerConfig, tools: Sequence[KnownTool]
) -> Iterator[ConfigWarning]:
    filtered = bool(server.allow or server.deny)
    for name in server.effects:
        has_wildcard = any(char in name for char in _WILDCARDS)
        if filtered and (has_wildcard or not is_tool_included(name, server)):
            # The name can be about tools that `allow` or `deny` removes.
            continue
        if not any(_matches(tool, name) for tool in tools):
            suggestion = _suggest_name(name, {tool.upstream_name: tool for tool in tools})
            yield ("servers", key, "effects", name), *_describe_unmatched(key, name, suggestion)


def _check_rules(
    config: Config, key: str, server: ServerConfig, tools: Sequence[KnownTool]
) -> Iterator[ConfigWarning]:
    for number, rule in enumerate(config.policy.rules):
        for index, glob in enumerate(rule.tools):
            segment, leaf = split_glob(glob, config.root_segment)
            if segment != server.segment:
                continue
            has_wildcard = any(char in leaf for char in _WILDCARDS)
            filtered = bool(server.allow or server.deny)
            if "." in leaf or (filtered and (has_wildcard or not is_tool_included(leaf, server))):
                # The glob is about a server of a child node, or about tools that `allow` or `deny`
                # removes.
                continue
            if not any(fnmatchcase(tool.leaf, leaf) for tool in tools):
                path = ("policy", "rules", number, "tools", index)
                suggestion = _suggest_name(leaf, {tool.leaf: tool for tool in tools})
                yield (
                    path,
                    *_describe_unmatched(
                        key, glob, suggestion and glob.removesuffix(leaf) + suggestion
                    ),
                )


def _matches(tool: KnownTool, name: str) -> bool:
    return fnmatchcase(tool.upstream_name, name) or fnmatchcase(tool.leaf, name.lower())


def _describe_unmatched(key: str, config_name: str, suggestion: str) -> tuple[str, str]:
    hint = f'did you mean "{suggestion}"?' if suggestion else "correct it, or remove it"
    return f"{config_name} matches no tool of {key}", hint


def _suggest_name(name: str, by_name: Mapping[str, KnownTool]) -> str:
    """Suggest the most similar tool name. Empty: there is none.

    An irreversible tool is suggested only for a name that looks irreversible, so that no suggestion
    leads from a harmless name to a destructive tool.
    """
    by_lower = {upstream_name.lower(): upstream_name for upstream_name in by_name}
    matches = get_close_matches(name.lower(), by_lower, n=1, cutoff=_SIMILARITY_CUTOFF)
    if not matches:
        return ""
    suggestion = by_lower[matches[0]]
    if (
        by_name[suggestion].irreversible
        and classify(name, None, {}).level is not EffectLevel.IRREVERSIBLE
    ):
        return ""
    return suggestion
