"""Names of tools in the config that match no tool of their server: most of them are typing errors,
and what they should have held runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from interlock.cli.config_warnings import split_glob
from interlock.core.catalog.definitions import is_wanted
from interlock.core.catalog.effects import EffectLevel, classify
from interlock.core.catalog.names import LeafNames
from interlock.core.catalog.offering import Offering
from interlock.core.config import Config, ServerConfig
from interlock.terminal.config_source import ConfigWarning

_CLOSE: Final = 0.6
_WILD: Final = "*?["


class KnownTool(NamedTuple):
    """A tool that a server lists."""

    own: str
    """Its name at the server."""
    leaf: str
    """The last part of its canonical name."""
    irreversible: bool


def tools_of(offering: Offering) -> list[KnownTool]:
    """The tools of a server, with those that are set aside: their names are right, too."""
    found = [
        KnownTool(
            tool.upstream_name,
            tool.canonical.rpartition(".")[2],
            tool.effect.level is EffectLevel.IRREVERSIBLE,
        )
        for tool in offering.tools
    ]
    return found + [
        KnownTool(one.name, LeafNames().take(one.name), irreversible=True)
        for one in offering.set_aside
    ]


def unmatched_names(
    config: Config, known: Iterable[tuple[str, Sequence[KnownTool]]]
) -> list[ConfigWarning]:
    """Names in `effects` of servers and in `tools` of rules that match none of the tools.

    Args:
        known: the servers that listed their tools, by their keys.
    """
    found: list[ConfigWarning] = []
    for key, tools in known:
        server = config.enabled_servers.get(key)
        if server is None or not tools:
            # It registered by itself, or lists nothing so far.
            continue
        found += _in_effects(key, server, tools)
        if server.expose != "transparent":
            found += _in_rules(config, key, server, tools)
    return found


def _in_effects(
    key: str, server: ServerConfig, tools: Sequence[KnownTool]
) -> Iterator[ConfigWarning]:
    filtered = bool(server.allow or server.deny)
    for name in server.effects:
        wild = any(one in name for one in _WILD)
        if filtered and (wild or not is_wanted(name, server)):
            # It may be about tools that the config leaves out.
            continue
        if not any(_matches(tool, name) for tool in tools):
            near = _nearest(name, {tool.own: tool for tool in tools})
            yield ("servers", key, "effects", name), *_problem(key, name, near)


def _in_rules(
    config: Config, key: str, server: ServerConfig, tools: Sequence[KnownTool]
) -> Iterator[ConfigWarning]:
    for number, rule in enumerate(config.policy.rules):
        for index, glob in enumerate(rule.tools):
            first, leaf = split_glob(glob, config.root_segment)
            if first != server.segment:
                continue
            wild = any(one in leaf for one in _WILD)
            filtered = bool(server.allow or server.deny)
            if "." in leaf or (filtered and (wild or not is_wanted(leaf, server))):
                # It is about a server further down, or about tools that the config leaves out.
                continue
            if not any(fnmatchcase(tool.leaf, leaf) for tool in tools):
                path = ("policy", "rules", number, "tools", index)
                near = _nearest(leaf, {tool.leaf: tool for tool in tools})
                yield path, *_problem(key, glob, near and glob.removesuffix(leaf) + near)


def _matches(tool: KnownTool, name: str) -> bool:
    return fnmatchcase(tool.own, name) or fnmatchcase(tool.leaf, name.lower())


def _problem(key: str, written: str, near: str) -> tuple[str, str]:
    hint = f'did you mean "{near}"?' if near else "correct it, or remove it"
    return f"{written} matches no tool of {key}", hint


def _nearest(name: str, by_name: Mapping[str, KnownTool]) -> str:
    """The name that was meant. Empty: none is near, or the nearest is irreversible and the name
    does not look like that: nobody is led from a harmless name to a destructive tool."""
    by_lower = {own.lower(): own for own in by_name}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=_CLOSE)
    if not close:
        return ""
    near = by_lower[close[0]]
    if (
        by_name[near].irreversible
        and classify(name, None, {}).level is not EffectLevel.IRREVERSIBLE
    ):
        return ""
    return near
