"""`interlock topic`: take part in topics, where agents and people work together."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from interlock.terminal import config_source, output
from interlock.terminal.call_arguments import (
    JsonOption,
    JsonOutputOption,
    KeyValueArgument,
    check_argument_form,
    read_timeout,
)
from interlock.terminal.node_discovery import NodeOption
from interlock.terminal.server_options import CommandArgument, EnvOption, HeaderOption, UrlOption
from interlock.topics.commands.gateway_target import CaOption, GatewayOption, TokenOption

topic = typer.Typer(no_args_is_help=True)


def _check_topic_name(name: str | None) -> str | None:
    import re

    from interlock.protocol.mcpx_terms import TOPIC_PATTERN

    if name is not None and not re.fullmatch(TOPIC_PATTERN, name):
        raise typer.BadParameter(f"invalid topic {name!a}: use 1 to 128 of A-Z, a-z, 0-9, . _ -")
    return name


Name = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="The topic.", show_default=False, callback=_check_topic_name
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one envelope per line, for programs.")]
JsonDocument = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@topic.callback()
def _topic() -> None:
    """Take part in topics: rooms where agents and people work together.

    The gateway decides who you are and what you may send, by your token from $INTERLOCK_TOKEN or
    --token-file. Without a token you are the user of this machine.
    """


@topic.command()
def join(
    name: Name,
    json: Json = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Chat, see the participants, and decide about proposals.

    On a terminal: Enter sends the text (to everybody, or to NAME if it begins with @NAME). Tab
    moves to the proposals: a shows the selected one and asks whether to fulfil it, r rejects it.
    Ctrl-C leaves. Without a terminal, and with --json, messages are printed as lines, and lines of
    stdin are sent.

    \b
    Examples:
      interlock topic join ops
      interlock topic join ops --gateway wss://node.example.com/ws --token-file ~/.ops-token
    """
    from interlock.terminal.event_loop import run
    from interlock.topics.commands import gateway_target as topic_where

    target = topic_where.find_gateway(config, node, gateway, token_file, ca)
    if json or not (sys.stdin.isatty() and sys.stdout.isatty()) or not _can_show_screen():
        from interlock.topics.commands.plain import print_messages

        run(print_messages(target, name, json=json, send_stdin=True))
        return
    from interlock.topics.commands.live import run_live

    run(run_live(target, name))


def _can_show_screen() -> bool:
    """Return whether the terminal can show a screen. Prints why not."""
    from interlock.topics.commands.screen_view import describe_screen_problem

    problem = describe_screen_problem(os.environ.get("TERM", ""), sys.stdout.encoding)
    if problem:
        output.print_note(
            f"Note: this terminal cannot show a screen ({problem}). Messages come as lines."
        )
    return not problem


@topic.command()
def watch(
    name: Name,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="PATTERN",
            help="Print only messages of these kinds, such as mcp/proposal:* or system/*.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Print messages, one per line, until Ctrl-C.

    \b
    Examples:
      interlock topic watch ops
      interlock topic watch ops --kind 'mcp/proposal:*' --json | jq .payload
    """
    from interlock.errors import ProtocolError
    from interlock.terminal.event_loop import run
    from interlock.topics.client.events import make_event_filter
    from interlock.topics.commands import gateway_target as topic_where
    from interlock.topics.commands.plain import print_messages

    try:
        event_filter = make_event_filter(object if kind is None else kind)
    except ProtocolError as error:
        raise typer.BadParameter(f"--kind: {error.message}") from None
    target = topic_where.find_gateway(config, node, gateway, token_file, ca)
    run(print_messages(target, name, json=json, event_filter=event_filter))


@topic.command()
def send(
    name: Name,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text to send; - reads it from stdin.")
    ],
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="ID", help="Recipient. May be repeated.", show_default=False),
    ] = None,
    kind: Annotated[
        str,
        typer.Option("--kind", metavar="KIND", help="Send another kind; TEXT is its payload."),
    ] = "chat",
    about: Annotated[
        str | None,
        typer.Option(
            "--about", metavar="ID", help="Id of the message that it refers to.", show_default=False
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="TEXT is Markdown.")] = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Send one message and leave. Prints the id of the message.

    Every participant of the topic can read it, also with --to.

    \b
    Examples:
      interlock topic send ops 'The build is green.'
      make 2>&1 | tail -1 | interlock topic send ops -
      interlock topic send ops --to worker --kind mcp/proposal:tools/call:write_file \\
        '{"method": "tools/call", "params": {"name": "write_file", "arguments": {}}}'
    """
    from interlock.terminal.event_loop import run
    from interlock.topics.commands import gateway_target as topic_where
    from interlock.topics.commands.plain import send_once

    for option, value in (("--kind", kind), ("--about", about or ""), ("--to", "".join(to or []))):
        _check_text(value, option)
    target = topic_where.find_gateway(config, node, gateway, token_file, ca)
    payload = _make_payload(_read_input(text), kind, markdown=markdown)
    print(output.sanitize(run(send_once(target, name, kind, payload, list(to or []), about))))


def _read_input(text: str) -> bytes:
    """Return the text from the command line or stdin, up to the size of an envelope."""
    if text != "-":
        return os.fsencode(text)
    from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES

    read = sys.stdin.buffer.read(MAX_ENVELOPE_BYTES + 1)
    if len(read) > MAX_ENVELOPE_BYTES:
        raise typer.BadParameter(f"the input is longer than {MAX_ENVELOPE_BYTES} bytes.")
    return read


def _check_text(text: str, option: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{option} is not UTF-8.") from None


def _make_payload(body: bytes, kind: str, *, markdown: bool) -> bytes:
    import msgspec

    from interlock.protocol.kinds import CHAT
    from interlock.topics.wire.payloads import write_chat_payload

    if kind == CHAT:
        # For people, so output of other programs in other encodings is sent too.
        text = body.decode(errors="replace")
        if not text.strip():
            raise typer.BadParameter("TEXT is empty.")
        return write_chat_payload(text.rstrip("\n"), "markdown" if markdown else "plain")
    if markdown:
        raise typer.BadParameter("--markdown works only with the kind chat.")
    try:
        # Parsed here for a better error message.
        body.decode()
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except UnicodeDecodeError:
        raise typer.BadParameter(f"the payload of {kind} is not UTF-8.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise typer.BadParameter(f"the payload of {kind} must be a JSON object: {error}.") from None
    return body.strip()


@topic.command()
def call(
    name: Name,
    to: Annotated[str, typer.Argument(metavar="ID", help="The participant.", show_default=False)],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool.", show_default=False)],
    arguments: KeyValueArgument = None,
    propose: Annotated[
        bool, typer.Option("--propose", help="Propose the call, even if you may make it.")
    ] = False,
    json: JsonOption = None,
    json_output: JsonOutputOption = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="TIME",
            help="Maximum time to wait, such as 30s. Default: 30s, 5m for a proposal.",
            show_default=False,
        ),
    ] = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Call a tool of a participant, or propose the call.

    If you may not call, the command proposes the call and waits for the result. Remarks about the
    proposal go to stderr, the result to stdout. Values get their types from the schema of the tool
    if it can be read. Otherwise they are strings, and key:=JSON sets other types.

    \b
    Examples:
      interlock topic call ops worker write_file path=/srv/report
      interlock topic call ops interlock demo.notes_delete id:=1 --propose
    """
    from interlock.terminal.event_loop import run
    from interlock.terminal.results import print_result
    from interlock.topics.commands import gateway_target as topic_where

    check_argument_form(arguments, json)
    for text in (to, tool, *(arguments or []), json or ""):
        _check_text(text, "an argument")
    if not to.strip():
        raise typer.BadParameter("ID is empty: name the participant that has the tool.")
    seconds = read_timeout(timeout)
    target = topic_where.find_gateway(config, node, gateway, token_file, ca)
    from interlock.topics.commands.call import make_call

    coroutine = make_call(
        target, name, to, tool, arguments or [], json, propose=propose, timeout=seconds
    )
    code = print_result(run(coroutine), json_output=json_output)
    if code:
        raise typer.Exit(code)


@topic.command()
def bridge(
    name: Name,
    command: CommandArgument = None,
    url: UrlOption = None,
    env: EnvOption = None,
    header: HeaderOption = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Run an MCP server as a participant of a topic, until Ctrl-C.

    The participant must be allowed to respond: profile response_only. The command reconnects to a
    lost gateway and restarts a server that ends.

    \b
    Examples:
      interlock topic bridge ops -- npx -y @modelcontextprotocol/server-filesystem .
      interlock topic bridge ops --token-file worker.token --url http://127.0.0.1:9001/mcp
    """
    from interlock.terminal.server_options import guess_segment, read_server
    from interlock.topics.commands import gateway_target as topic_where

    server = read_server(command or [], url, env or [], header or [])
    target = topic_where.find_gateway(config, node, gateway, token_file, ca)
    # Errors of the command line are reported before slow imports.
    from interlock.terminal.event_loop import run
    from interlock.topics.commands.plain import run_bridge

    run(run_bridge(target, name, server, guess_segment(server) or "the server"))


@topic.command("list")
def list_topics(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="Show only this topic, with all details.",
            show_default=False,
            callback=_check_topic_name,
        ),
    ] = None,
    json: JsonDocument = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """List the topics of a running node and their participants.

    Shows the topics of the config and the open topics that match its globs: access, profiles, the
    node's own participant, what is recorded, the participants, and the number of rejected messages.
    For administrators of topics (topics.admins in the node's config).

    \b
    Examples:
      interlock topic list
      interlock topic list ops
      interlock topic list --json | jq '.topics[] | select(.open) | .name'
    """
    from interlock.topics.commands import admin as topic_admin
    from interlock.topics.commands import gateway_target as topic_where

    topic_admin.print_topics(
        topic_where.find_gateway(config, node, gateway, token_file, ca), name, json=json
    )


@topic.command()
def grant(
    id: Annotated[str, typer.Argument(metavar="ID", help="The participant.", show_default=False)],
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATTERN]...",
            help="Kinds to allow, such as 'mcp/request:tools/*'.",
            show_default=False,
        ),
    ] = None,
    take: Annotated[
        list[str] | None,
        typer.Option(
            "--take",
            metavar="PATTERN",
            help="Remove this capability. May be repeated.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="NAME",
            help="The topic, if the participant is in several.",
            show_default=False,
            callback=_check_topic_name,
        ),
    ] = None,
    json: JsonDocument = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Change what a participant may send, at once.

    The change holds until the node restarts, or until its config for this participant changes. For
    administrators of topics (topics.admins in the node's config). Nobody can change their own
    capabilities.

    \b
    Examples:
      interlock topic grant agent 'mcp/request:tools/*'
      interlock topic grant agent --topic ops --take 'mcp/request:tools/*'
    """
    from interlock.topics.commands import admin as topic_admin
    from interlock.topics.commands import gateway_target as topic_where

    added_patterns, removed_patterns = list(patterns or []), list(take or [])
    for text in (id, *added_patterns, *removed_patterns):
        _check_text(text, "an argument")
    if not id.strip():
        raise typer.BadParameter("ID is empty: `interlock topic list` shows the participants.")
    if not added_patterns and not removed_patterns:
        raise typer.BadParameter("name a PATTERN to add, or one to remove with --take.")
    target = topic_where.find_gateway(config, node, gateway, token_file, ca)
    topic_admin.change_capabilities(
        target, id, added_patterns, removed_patterns, topic=name, json=json
    )
