"""`interlock call`: call a tool from a shell or a script."""

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
    KeyValueArgument,
    check_argument_form,
    read_timeout,
)
from interlock.terminal.node_discovery import NodeOption
from interlock.terminal.results import CLIENT_HINT, print_result

if TYPE_CHECKING:
    from msgspec import Raw

    from interlock.core.call import Call, UpstreamResponseError
    from interlock.core.config import Config
    from interlock.terminal.node_client import NodeClient

_DEFAULT_SELECTOR: Final = node_discovery.NodeSelector()
_UNREACHABLE_NAMES: Final = ("upstream_unavailable", "upstream_lost", "circuit_open")
_PERSON_HINT: Final = "List the names: `{}`"


def call(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the tool, such as demo.roll_dice or demo__roll_dice.",
            autocompletion=complete_tool,
            show_default=False,
        ),
    ],
    arguments: KeyValueArgument = None,
    json: JsonOption = None,
    json_output: JsonOutputOption = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="TIME",
            help="Cancel the call after this time, such as 30s. The node has its own limit, too.",
            show_default=False,
        ),
    ] = None,
    approval: Annotated[
        str | None,
        typer.Option(
            "--approval",
            metavar="ID",
            help="Get the result of the same call, which got this approval earlier.",
            show_default=False,
        ),
    ] = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Call a tool and print its result.

    Values are converted to the types of the tool's schema. Progress goes to stderr. The exit code
    is 1 if the tool reports an error.

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
    pairs: list[str],
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
        narrow = partial(_keep_needed_servers, name=name)
        async with connect_to_node(config, node=address, narrow=narrow) as node:
            if pairs:
                schema = _find_schema(await node.list_tools(), node.config, name)
                arguments = read_arguments(pairs, schema)
            outcome = await node.call_tool(
                name, arguments, on_notification=_print_progress, timeout=seconds, approval=approval
            )
    except ArgumentError as error:
        raise typer.BadParameter(str(error)) from None
    except TimeoutError:
        output.print_problem(
            f"No response within {seconds:g} s. The call was cancelled. Use a longer --timeout."
        )
        return output.FAILED
    except UpstreamResponseError as error:
        if node.unready_servers:
            # The problem of the server was reported before. The unknown tool is a consequence.
            return output.UNREACHABLE
        code = _error_code(error)
        unready_reason = (
            None if code == output.UNREACHABLE else _describe_unready_server(node, name)
        )
        tools = node_discovery.NodeSelector(config, address).format_command("tools")
        output.print_problem(
            unready_reason or error.message.replace(CLIENT_HINT, _PERSON_HINT.format(tools))
        )
        return output.UNREACHABLE if unready_reason else code
    selector = node_discovery.NodeSelector(config, address)
    raw = bytes(outcome.result)
    return print_result(
        raw, json_output=json_output, selector=selector, node_stopped=node.temporary
    )


def _describe_unready_server(node: NodeClient, name: str) -> str | None:
    """Describe why the server in the tool's name is not ready, or return None if it is."""
    from interlock.terminal.tool_table import describe_unready, has_segment

    for upstream in node.list_unready_upstreams():
        if has_segment(name, upstream.segment, node.config.root_segment):
            return describe_unready(upstream)
    return None


def _keep_needed_servers(config: Config, name: str) -> Config:
    """Keep only the servers that the call can need."""
    from msgspec.structs import replace

    from interlock.terminal.tool_table import find_servers_by_tool

    keys = find_servers_by_tool(config, name)
    return replace(config, servers={key: config.servers[key] for key in keys})


def _find_schema(definitions: list[Raw], config: Config, name: str) -> dict[str, Any]:
    from interlock.terminal.tool_table import is_same_name, read_listing

    listed_tools = read_listing(definitions, config)
    # The node itself rejects an unknown tool, with a suggestion.
    return next((tool.schema for tool in listed_tools if is_same_name(tool.name, name)), {})


def _print_progress(call: Call, method: str, params: bytes | Raw) -> None:
    """Print a line on stderr for each progress notification. On a terminal it replaces the last."""
    import msgspec

    from interlock.protocol.mcp import PROGRESS

    if method != PROGRESS:
        return
    progress = msgspec.json.decode(params)
    done, total, message = (
        progress.get("progress"),
        progress.get("total"),
        progress.get("message") or "",
    )
    line = f"{done:g}" if isinstance(done, int | float) else "?"
    if isinstance(total, int | float):
        line += f"/{total:g}"
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line} {message}", end="", file=sys.stderr, flush=True)
    else:
        print(f"{line} {message}".rstrip(), file=sys.stderr, flush=True)


def _error_code(error: UpstreamResponseError) -> int:
    from interlock.errors import failure_by_name

    failures = [failure_by_name(name) for name in _UNREACHABLE_NAMES]
    unreachable_codes = {failure.code for failure in failures} | {
        failure.stateless_code for failure in failures
    }
    return output.UNREACHABLE if error.code in unreachable_codes else output.FAILED
