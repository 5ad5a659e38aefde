"""`interlock tools`: the tools of a node as a tree, with their effects and token costs."""

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

_UNAVAILABLE: Final = ("degraded",)
"""Tools with these availabilities cannot be called now."""


def tools(
    config: config_source.ConfigOption = None,
    server: Annotated[
        str | None,
        typer.Option("--server", "-s", metavar="KEY", help="Only the tools of this server."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    node: NodeOption = None,
) -> None:
    """List the tools that a caller can see, with server, effect and token cost.

    The list comes from the running node. If no node is running, the servers are started for this
    command. A server that hangs is not waited for, unless --server names it. Servers that are not
    ready are reported on stderr. The exit code is 4 if no server is ready, or not the one of
    --server.

    The token cost is an estimate: one token per four characters of the tool's name, description and
    input schema. A model reads these before it calls the tool.

    \b
    Examples:
      interlock tools
      interlock tools --server jira
      interlock tools --json | jq '.tools[] | select(.effect == "irreversible") | .name'
    """
    from interlock.terminal.event_loop import run
    from interlock.terminal.tool_table import describe_unready

    listed_tools, server_keys, unready_upstreams, failed_keys, full_config = run(
        _fetch_tools(config, node, server)
    )
    if server is not None:
        if server not in server_keys:
            raise typer.BadParameter(
                f"There is no server {server!r}. The servers are {', '.join(server_keys)}."
            )
        listed_tools = [tool for tool in listed_tools if tool.server == server]
        unready_upstreams = [upstream for upstream in unready_upstreams if upstream.key == server]
    if json:
        output.print_json({**_tools_as_data(listed_tools), "unready": unready_upstreams})
    else:
        _print_tree(listed_tools)
    for upstream in unready_upstreams:
        output.print_problem(describe_unready(upstream))
    for warning in _unmatched_names(
        full_config, listed_tools, config, {upstream.key for upstream in unready_upstreams}
    ):
        output.print_note(f"Warning: {warning}")
    if server in failed_keys or (failed_keys and not listed_tools):
        raise typer.Exit(output.UNREACHABLE)


def _unmatched_names(
    full_config: Config,
    listed_tools: list[ListedTool],
    config_path: Path | None,
    unready_keys: set[str],
) -> list[Problem]:
    """Find names in the config that match no tool.

    A rule with `deny` hides tools from the list, so nothing can be reported then. `doctor` reports
    them.
    """
    from interlock.cli.tool_names import KnownTool, find_unmatched_names
    from interlock.core.catalog.effects import EffectLevel
    from interlock.core.catalog.names import LeafNames
    from interlock.core.config import ConfigError
    from interlock.terminal.config_source import locate_problems

    source = config_source.find_source_or_none(config_path)
    policy = full_config.policy
    if (
        source is None
        or policy.default == "deny"
        or any(rule.then == "deny" for rule in policy.rules)
    ):
        return []
    tools_by_server = [
        (
            key,
            [
                KnownTool(
                    tool.upstream_name,
                    LeafNames().assign_name(tool.name.rpartition(".")[2]),
                    tool.effect_details.level is EffectLevel.IRREVERSIBLE,
                )
                for tool in tools
            ],
        )
        for key, tools in _group_by_server(listed_tools)
        if key not in unready_keys
    ]
    try:
        return list(locate_problems(find_unmatched_names(full_config, tools_by_server), source))
    except ConfigError:
        return []


async def _fetch_tools(
    config: Path | None, node: str | None, server: str | None
) -> tuple[list[ListedTool], list[str], list[UpstreamSummary], set[str], Config]:
    """Return the tools, the servers, and those that are not ready.

    The servers that a temporary node could not start were reported already, so they are only in the
    set of failed servers.
    """
    from msgspec.structs import replace

    from interlock.terminal.node_client import connect_to_node
    from interlock.terminal.tool_table import read_listing

    def narrow(full_config: Config) -> Config:
        if server not in full_config.servers:
            return full_config
        return replace(full_config, servers={server: full_config.servers[server]})

    async with connect_to_node(
        config, node=node, narrow=narrow, wait_for_all=server is not None
    ) as node_client:
        listed_tools = read_listing(await node_client.list_tools(), node_client.config)
        unready_upstreams = node_client.list_unready_upstreams()
    server_keys = [
        *node_client.config.servers,
        *(tool.server for tool in listed_tools),
        *(upstream.key for upstream in unready_upstreams),
    ]
    failed_keys = {
        *node_client.unready_servers,
        *(upstream.key for upstream in unready_upstreams),
    }
    return (
        listed_tools,
        list(dict.fromkeys(server_keys)),
        unready_upstreams,
        failed_keys,
        node_client.config,
    )


def _tools_as_data(listed_tools: list[ListedTool]) -> dict[str, Any]:
    servers = {key: _total_tokens(tools) for key, tools in _group_by_server(listed_tools)}
    return {
        "tools": [
            {
                "server": tool.server,
                "name": tool.name,
                "effect": tool.effect,
                "effect_source": tool.effect_details.source,
                "effect_reason": tool.effect_details.reason,
                "description": tool.description,
                "tokens": tool.tokens,
                "availability": tool.availability,
            }
            for tool in listed_tools
        ],
        "tokens": {"servers": servers, "total": _total_tokens(listed_tools)},
    }


def _print_tree(listed_tools: list[ListedTool]) -> None:
    from rich.text import Text
    from rich.tree import Tree

    from interlock.core.catalog.effects import EffectLevel
    from interlock.terminal.assumed_effects import describe_assumed

    console = output.create_console()
    for key, tools in _group_by_server(listed_tools):
        tree = Tree(
            Text.assemble(
                (key, "bold"),
                f"  {format_count(len(tools), 'tool')}  ",
                (f"≈{_total_tokens(tools)} tokens", "dim"),
            ),
            guide_style="dim",
        )
        name_width = max(len(tool.name) for tool in tools)
        for tool in tools:
            tree.add(
                Text.assemble(
                    f"{tool.name:<{name_width}}  ",
                    (
                        f"{tool.effect + ('?' if tool.effect_details.is_assumed else ''):<13}",
                        EFFECT_STYLES.get(tool.effect, ""),
                    ),
                    (f" ≈{tool.tokens:<5}", "dim"),
                    (
                        f"{tool.availability} " if tool.availability in _UNAVAILABLE else "",
                        "yellow",
                    ),
                    output.sanitize(tool.description.strip().partition("\n")[0]),
                    no_wrap=True,
                    overflow="ellipsis",
                )
            )
        console.print(tree)
    servers = len({tool.server for tool in listed_tools})
    console.print(
        f"{format_count(len(listed_tools), 'tool')} of {format_count(servers, 'server')}, "
        f"≈{_total_tokens(listed_tools)} tokens in a model's context"
    )
    assumed_lines = describe_assumed((tool.server, tool.effect_details) for tool in listed_tools)
    if assumed_lines:
        console.print(
            Text(
                "\n".join(["effect?: assumed, the tool has no annotation.", *assumed_lines]), "dim"
            )
        )
        for tool in listed_tools:
            effect = tool.effect_details
            if effect.source == "inferred" and effect.level is EffectLevel.IRREVERSIBLE:
                console.print(
                    Text(output.sanitize(f"  needs approval: {tool.name}: {effect.reason}"), "dim")
                )


def _group_by_server(listed_tools: list[ListedTool]) -> list[tuple[str, list[ListedTool]]]:
    ordered = sorted(listed_tools, key=lambda tool: tool.server)
    return [(key, list(group)) for key, group in groupby(ordered, key=lambda tool: tool.server)]


def _total_tokens(tools: list[ListedTool]) -> int:
    return sum(tool.tokens for tool in tools)
