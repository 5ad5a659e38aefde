"""`interlock tools`: what the node offers, as a tree, and what it costs a model to be told."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.primitives.text import format_count
from interlock.terminal import config_source, output
from interlock.terminal.node_discovery import NodeOption

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.core.config import Config, Problem
    from interlock.terminal.node_discovery import UpstreamSummary
    from interlock.terminal.tool_table import ListedTool

EFFECT_STYLES: Final = {
    "read_only": "green",
    "additive": "cyan",
    "mutating": "yellow",
    "irreversible": "bold red",
}

_AWAY: Final = ("degraded",)
"""Tools of which this is said cannot be called now."""


def tools(
    config: config_source.ConfigOption = None,
    server: Annotated[
        str | None,
        typer.Option("--server", "-s", metavar="KEY", help="Only this server's tools."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    node: NodeOption = None,
) -> None:
    """Show every tool: its server, what it does to the world, and what it costs.

    Asks the running node; without one, starts the servers for the moment, and does not wait for
    one that hangs unless --server names it. Servers that are not ready are named on stderr.

    Tokens are an estimate: one for every four characters of a tool's name, description and input
    schema. That is what a model reads of it before it has done anything.

    \b
    Examples:
      interlock tools
      interlock tools --server jira
      interlock tools --json | jq '.tools[] | select(.effect == "irreversible") | .name'
    """
    from interlock.terminal.event_loop import run
    from interlock.terminal.tool_table import describe_unready

    listed, keys, trouble, whole = run(_listed(config, node, server))
    if server is not None:
        if server not in keys:
            raise typer.BadParameter(f"there is no server {server!r}; there are {', '.join(keys)}")
        listed = [tool for tool in listed if tool.server == server]
        trouble = [one for one in trouble if one.key == server]
    if json:
        output.print_json({**_as_data(listed), "unready": trouble})
    else:
        _print_tree(listed)
    for one in trouble:
        output.print_problem(describe_unready(one))
    for warning in _unmatched(whole, listed, config, {one.key for one in trouble}):
        output.print_note(f"Warning: {warning}")


def _unmatched(
    whole: Config, listed: list[ListedTool], given: Path | None, unready: set[str]
) -> list[Problem]:
    """Names in the config that match no tool. A rule that denies hides tools from this list, so
    that nothing can be said then: `doctor` can."""
    from interlock.cli.tool_names import KnownTool, unmatched_names
    from interlock.core.catalog.effects import EffectLevel
    from interlock.core.catalog.names import LeafNames
    from interlock.core.config import ConfigError
    from interlock.terminal.config_source import locate_problems

    source = config_source.find_source_or_none(given)
    policy = whole.policy
    if (
        source is None
        or policy.default == "deny"
        or any(one.then == "deny" for one in policy.rules)
    ):
        return []
    known = [
        (
            key,
            [
                KnownTool(
                    tool.own,
                    LeafNames().take(tool.name.rpartition(".")[2]),
                    tool.classified.level is EffectLevel.IRREVERSIBLE,
                )
                for tool in tools
            ],
        )
        for key, tools in _by_server(listed)
        if key not in unready
    ]
    try:
        return list(locate_problems(unmatched_names(whole, known), source))
    except ConfigError:
        return []


async def _listed(
    config: Path | None, node: str | None, server: str | None
) -> tuple[list[ListedTool], list[str], list[UpstreamSummary], Config]:
    from msgspec.structs import replace

    from interlock.terminal.node_client import connect_to_node
    from interlock.terminal.tool_table import read_listing

    def narrow(whole: Config) -> Config:
        if server not in whole.servers:
            return whole
        return replace(whole, servers={server: whole.servers[server]})

    async with connect_to_node(
        config, node=node, narrow=narrow, patient=server is not None
    ) as reached:
        listed = read_listing(await reached.list_tools(), reached.config)
        trouble = reached.trouble()
    keys = [*reached.config.servers, *(tool.server for tool in listed), *(x.key for x in trouble)]
    return listed, list(dict.fromkeys(keys)), trouble, reached.config


def _as_data(listed: list[ListedTool]) -> dict[str, Any]:
    servers = {key: _total(tools) for key, tools in _by_server(listed)}
    return {
        "tools": [
            {
                "server": tool.server,
                "name": tool.name,
                "effect": tool.effect,
                "effect_source": tool.classified.source,
                "effect_reason": tool.classified.reason,
                "description": tool.description,
                "tokens": tool.tokens,
                "availability": tool.availability,
            }
            for tool in listed
        ],
        "tokens": {"servers": servers, "total": _total(listed)},
    }


def _print_tree(listed: list[ListedTool]) -> None:
    from rich.text import Text
    from rich.tree import Tree

    from interlock.core.catalog.effects import EffectLevel
    from interlock.terminal.assumed_effects import describe_assumed

    console = output.create_console()
    for key, tools in _by_server(listed):
        tree = Tree(
            Text.assemble(
                (key, "bold"),
                f"  {format_count(len(tools), 'tool')}  ",
                (f"≈{_total(tools)} tokens", "dim"),
            ),
            guide_style="dim",
        )
        widest = max(len(tool.name) for tool in tools)
        for tool in tools:
            tree.add(
                Text.assemble(
                    f"{tool.name:<{widest}}  ",
                    (
                        f"{tool.effect + ('?' if tool.classified.assumed else ''):<13}",
                        EFFECT_STYLES.get(tool.effect, ""),
                    ),
                    (f" ≈{tool.tokens:<5}", "dim"),
                    (f"{tool.availability} " if tool.availability in _AWAY else "", "yellow"),
                    output.sanitize(tool.description.strip().partition("\n")[0]),
                    no_wrap=True,
                    overflow="ellipsis",
                )
            )
        console.print(tree)
    servers = len({tool.server for tool in listed})
    console.print(
        f"{format_count(len(listed), 'tool')} of {format_count(servers, 'server')}, "
        f"≈{_total(listed)} tokens in a model's context"
    )
    assumed = describe_assumed((tool.server, tool.classified) for tool in listed)
    if assumed:
        console.print(
            Text("\n".join(["effect?: assumed, no annotation says it.", *assumed]), "dim")
        )
        for tool in listed:
            effect = tool.classified
            if effect.source == "inferred" and effect.level is EffectLevel.IRREVERSIBLE:
                console.print(Text(output.sanitize(f"  held: {tool.name}: {effect.reason}"), "dim"))


def _by_server(listed: list[ListedTool]) -> list[tuple[str, list[ListedTool]]]:
    ordered = sorted(listed, key=lambda tool: tool.server)
    return [(key, list(group)) for key, group in groupby(ordered, key=lambda tool: tool.server)]


def _total(tools: list[ListedTool]) -> int:
    return sum(tool.tokens for tool in tools)
