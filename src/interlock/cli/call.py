"""`interlock call`: call one tool, from a shell or a script."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from interlock.cli.completion import complete_tool
from interlock.terminal import config_source, node_discovery, output
from interlock.terminal.call_arguments import (
    JsonOption,
    JsonOutputOption,
    WordsArgument,
    check_argument_form,
    read_timeout,
)
from interlock.terminal.node_discovery import NodeOption
from interlock.terminal.results import print_result

if TYPE_CHECKING:
    from msgspec import Raw

    from interlock.core.call import Call, UpstreamResponseError
    from interlock.core.config import Config
    from interlock.terminal.node_client import NodeClient

_HERE: Final = node_discovery.NodeSelector()
_UNREACHABLE_NAMES: Final = ("upstream_unavailable", "upstream_lost", "circuit_open")
_FOR_CLIENTS: Final = "`tools/list` has the names."
_FOR_PEOPLE: Final = "`{}` shows them all."


def call(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The tool, such as demo.roll_dice or demo__roll_dice.",
            autocompletion=complete_tool,
            show_default=False,
        ),
    ],
    arguments: WordsArgument = None,
    json: JsonOption = None,
    json_output: JsonOutputOption = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="TIME",
            help="How long to wait, such as 30s. The node's own limit holds as well.",
            show_default=False,
        ),
    ] = None,
    approval: Annotated[
        str | None,
        typer.Option(
            "--approval",
            metavar="ID",
            help="Get the result of the same call, held earlier under this approval.",
            show_default=False,
        ),
    ] = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Call a tool and print what it answers.

    Values are typed by the tool's schema. Progress goes to stderr. A tool that reports an error
    ends with exit code 1.

    \b
    Examples:
      interlock call demo.roll_dice sides=20 count=2
      interlock call demo.text_stats text=@README.md --json-output
      interlock call jira.search filter:='{"open": true}' labels=bug labels=urgent
    """
    from interlock.terminal.event_loop import run

    check_argument_form(arguments, json)
    seconds = read_timeout(timeout)
    code = run(
        _call(
            config,
            node,
            name,
            arguments or [],
            json,
            json_output=json_output,
            seconds=seconds,
            approval=approval,
        )
    )
    if code:
        raise typer.Exit(code)


async def _call(
    config: Path | None,
    address: str | None,
    name: str,
    words: list[str],
    json: str | None,
    *,
    json_output: bool,
    seconds: float | None,
    approval: str | None,
) -> int:
    from interlock.core.call import UpstreamResponseError
    from interlock.terminal.call_arguments import ArgumentError, read_arguments, read_json_object
    from interlock.terminal.node_client import connect_to_node

    try:
        arguments = {} if json is None else read_json_object(json)
        narrow = partial(_narrowed, name=name)
        async with connect_to_node(config, node=address, narrow=narrow) as node:
            if words:
                schema = _schema(await node.list_tools(), node.config, name)
                arguments = read_arguments(words, schema)
            outcome = await node.call_tool(
                name, arguments, hear=_progress, timeout=seconds, approval=approval
            )
    except ArgumentError as bad:
        raise typer.BadParameter(str(bad)) from None
    except TimeoutError:
        output.print_problem(f"no answer within {seconds:g} s; the call was cancelled.")
        return output.FAILED
    except UpstreamResponseError as error:
        if node.unready:
            # What is wrong with the server was told already; that its tools are unknown follows.
            return output.UNREACHABLE
        code = _error_code(error)
        down = None if code == output.UNREACHABLE else _not_ready(node, name)
        tools = node_discovery.NodeSelector(config, address).command("tools")
        output.print_problem(down or error.message.replace(_FOR_CLIENTS, _FOR_PEOPLE.format(tools)))
        return output.UNREACHABLE if down else code
    at = node_discovery.NodeSelector(config, address)
    raw = bytes(outcome.result)
    return print_result(raw, json_output=json_output, at=at, stopped=node.temporary)


def _not_ready(node: NodeClient, name: str) -> str | None:
    """Why the server in the tool's name has no such tool: it is not there at all."""
    from interlock.terminal.tool_table import describe_unready, has_segment

    for one in node.trouble():
        if has_segment(name, one.segment, node.config.root_segment):
            return describe_unready(one)
    return None


def _narrowed(config: Config, name: str) -> Config:
    """Only the server that the call needs."""
    from msgspec.structs import replace

    from interlock.terminal.tool_table import find_servers_by_tool

    needed = find_servers_by_tool(config, name)
    return replace(config, servers={key: config.servers[key] for key in needed})


def _schema(definitions: list[Raw], config: Config, name: str) -> dict[str, Any]:
    from interlock.terminal.tool_table import is_same_name, read_listing

    listed = read_listing(definitions, config)
    # An unknown tool is the node's to refuse: it knows what was target.
    return next((tool.schema for tool in listed if is_same_name(tool.name, name)), {})


def _progress(call: Call, method: str, params: bytes | Raw) -> None:
    """One line on stderr for each sign of life; on a terminal the newest replaces the last."""
    import msgspec

    from interlock.protocol.mcp import PROGRESS

    if method != PROGRESS:
        return
    said = msgspec.json.decode(params)
    done, total, message = said.get("progress"), said.get("total"), said.get("message") or ""
    line = f"{done:g}" if isinstance(done, int | float) else "?"
    if isinstance(total, int | float):
        line += f"/{total:g}"
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line} {message}", end="", file=sys.stderr, flush=True)
    else:
        print(f"{line} {message}".rstrip(), file=sys.stderr, flush=True)


def _error_code(error: UpstreamResponseError) -> int:
    from interlock.errors import failure_by_name

    rows = [failure_by_name(name) for name in _UNREACHABLE_NAMES]
    unreachable = {row.code for row in rows} | {row.stateless_code for row in rows}
    return output.UNREACHABLE if error.code in unreachable else output.FAILED
