"""`interlock tools`: what the node offers, as a tree, and what it costs a model to be told."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.cli import say, where
from interlock.cli.running import NodeOption

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.cli.listing import ListedTool
    from interlock.cli.running import UpstreamNow
    from interlock.config import Config

EFFECT_STYLES: Final = {
    "read_only": "green",
    "additive": "cyan",
    "mutating": "yellow",
    "irreversible": "bold red",
}

_AWAY: Final = ("degraded",)
"""Tools of which this is said cannot be called now."""


def tools(
    config: where.ConfigOption = None,
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
    from interlock.cli.event_loop import run

    listed, keys, trouble = run(_listed(config, node, server))
    if server is not None:
        if server not in keys:
            raise typer.BadParameter(f"there is no server {server!r}; there are {', '.join(keys)}")
        listed = [tool for tool in listed if tool.server == server]
        trouble = [one for one in trouble if one.key == server]
    if json:
        say.as_json({**_as_data(listed), "unready": trouble})
    else:
        _print_tree(listed)
    for one in trouble:
        say.problem(not_ready(one))


async def _listed(
    config: Path | None, node: str | None, server: str | None
) -> tuple[list[ListedTool], list[str], list[UpstreamNow]]:
    from msgspec.structs import replace

    from interlock.cli.listing import read_listing
    from interlock.cli.reach import reach

    def narrow(whole: Config) -> Config:
        if server not in whole.servers:
            return whole
        return replace(whole, servers={server: whole.servers[server]})

    async with reach(config, node=node, narrow=narrow, patient=server is not None) as reached:
        listed = read_listing(await reached.list_tools(), reached.config)
        trouble = reached.trouble()
    keys = [*reached.config.servers, *(tool.server for tool in listed), *(x.key for x in trouble)]
    return listed, list(dict.fromkeys(keys)), trouble


def not_ready(one: UpstreamNow) -> str:
    """Why the tools of an upstream are missing, or may not answer."""
    from interlock.config import redact_about

    problem = redact_about(one.key, one.problem) if one.problem else f"it is {one.state}"
    return say.printable(f"{one.key} is not ready: {problem}")


def _as_data(listed: list[ListedTool]) -> dict[str, Any]:
    servers = {key: _total(tools) for key, tools in _by_server(listed)}
    return {
        "tools": [
            {
                "server": tool.server,
                "name": tool.name,
                "effect": tool.effect,
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

    console = say.console()
    for key, tools in _by_server(listed):
        tree = Tree(
            Text.assemble(
                (key, "bold"), f"  {_counted(tools, 'tool')}  ", (f"≈{_total(tools)} tokens", "dim")
            ),
            guide_style="dim",
        )
        widest = max(len(tool.name) for tool in tools)
        for tool in tools:
            tree.add(
                Text.assemble(
                    f"{tool.name:<{widest}}  ",
                    (f"{tool.effect:<12}", EFFECT_STYLES.get(tool.effect, "")),
                    (f" ≈{tool.tokens:<5}", "dim"),
                    (f"{tool.availability} " if tool.availability in _AWAY else "", "yellow"),
                    say.printable(tool.description.strip().partition("\n")[0]),
                    no_wrap=True,
                    overflow="ellipsis",
                )
            )
        console.print(tree)
    servers = len({tool.server for tool in listed})
    console.print(
        f"{_counted(listed, 'tool')} of {servers} {'server' if servers == 1 else 'servers'}, "
        f"≈{_total(listed)} tokens in a model's context"
    )


def _by_server(listed: list[ListedTool]) -> list[tuple[str, list[ListedTool]]]:
    ordered = sorted(listed, key=lambda tool: tool.server)
    return [(key, list(group)) for key, group in groupby(ordered, key=lambda tool: tool.server)]


def _total(tools: list[ListedTool]) -> int:
    return sum(tool.tokens for tool in tools)


def _counted(tools: list[ListedTool], word: str) -> str:
    return f"{len(tools)} {word if len(tools) == 1 else word + 's'}"
