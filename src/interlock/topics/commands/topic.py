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


def _checked_name(name: str | None) -> str | None:
    import re

    from interlock.protocol.mcpx_terms import TOPIC_PATTERN

    if name is not None and not re.fullmatch(TOPIC_PATTERN, name):
        raise typer.BadParameter(
            f"{name!a} cannot be a topic: use 1 to 128 of A-Z, a-z, 0-9, . _ -"
        )
    return name


Name = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The topic.", show_default=False, callback=_checked_name),
]
Json = Annotated[bool, typer.Option("--json", help="One envelope per line, for programs.")]
AsAnswered = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]


@topic.callback()
def _topic() -> None:
    """Take part in topics: rooms where agents and people work together.

    Who one is there, and what one may say, is for the gateway to decide, by the token: it comes
    from $INTERLOCK_TOKEN or --token-file. Without one, one is the user of this machine.
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
    """Talk, see who is there, and decide about proposals.

    On a terminal: Enter says what is written (to everybody, or for NAME if it begins with @NAME),
    Tab goes to the proposals, where a fulfils one (it is shown whole, and asked for once) and r
    rejects it; Ctrl-C leaves. Elsewhere, and with --json, what is said comes as lines, and lines
    of stdin are said.

    \b
    Examples:
      interlock topic join ops
      interlock topic join ops --gateway wss://node.example.com/ws --token-file ~/.ops-token
    """
    from interlock.terminal.event_loop import run
    from interlock.topics.commands import gateway_target as topic_where

    there = topic_where.gateway(config, node, gateway, token_file, ca)
    if json or not (sys.stdin.isatty() and sys.stdout.isatty()) or not _has_screen():
        from interlock.topics.commands.plain import read_along

        run(read_along(there, name, json=json, talk=True))
        return
    from interlock.topics.commands.live import stay

    run(stay(there, name))


def _has_screen() -> bool:
    """Whether the terminal can show one; if not, whoever sits there is told why."""
    from interlock.topics.commands.screen_view import undrawable

    why = undrawable(os.environ.get("TERM", ""), sys.stdout.encoding)
    if why:
        output.print_note(
            f"Note: this terminal cannot show a screen ({why}). What is said comes as lines."
        )
    return not why


@topic.command()
def watch(
    name: Name,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="PATTERN",
            help="Only messages of these kinds, such as mcp/proposal:* or system/*.",
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
    """Print what is said, one message per line, until Ctrl-C.

    \b
    Examples:
      interlock topic watch ops
      interlock topic watch ops --kind 'mcp/proposal:*' --json | jq .payload
    """
    from interlock.errors import ProtocolError
    from interlock.terminal.event_loop import run
    from interlock.topics.client.events import wanted
    from interlock.topics.commands import gateway_target as topic_where
    from interlock.topics.commands.plain import read_along

    try:
        meant = wanted(object if kind is None else kind)
    except ProtocolError as error:
        raise typer.BadParameter(f"--kind: {error.message}") from None
    there = topic_where.gateway(config, node, gateway, token_file, ca)
    run(read_along(there, name, json=json, wanted=meant))


@topic.command()
def send(
    name: Name,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="What to say; - reads it from stdin.")
    ],
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="ID", help="To whom. May be repeated.", show_default=False),
    ] = None,
    kind: Annotated[
        str,
        typer.Option("--kind", metavar="KIND", help="Another kind: then TEXT is its payload."),
    ] = "chat",
    about: Annotated[
        str | None,
        typer.Option(
            "--about", metavar="ID", help="The message that it is about.", show_default=False
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="TEXT is Markdown.")] = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Say one thing and leave. Prints the id of the message.

    Everybody in the topic can hear it, whomever it is for.

    \b
    Examples:
      interlock topic send ops 'The build is green.'
      make 2>&1 | tail -1 | interlock topic send ops -
      interlock topic send ops --to worker --kind mcp/proposal:tools/call:write_file \\
        '{"method": "tools/call", "params": {"name": "write_file", "arguments": {}}}'
    """
    from interlock.terminal.event_loop import run
    from interlock.topics.commands import gateway_target as topic_where
    from interlock.topics.commands.plain import say_once

    for option, given in (("--kind", kind), ("--about", about or ""), ("--to", "".join(to or []))):
        _check_text(given, option)
    there = topic_where.gateway(config, node, gateway, token_file, ca)
    payload = _payload(_given(text), kind, markdown=markdown)
    print(output.sanitize(run(say_once(there, name, kind, payload, list(to or []), about))))


def _given(text: str) -> bytes:
    """What stands on the command line, or on stdin: no more than fits into an envelope."""
    if text != "-":
        return os.fsencode(text)
    from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES

    read = sys.stdin.buffer.read(MAX_ENVELOPE_BYTES + 1)
    if len(read) > MAX_ENVELOPE_BYTES:
        raise typer.BadParameter(f"stdin has more than {MAX_ENVELOPE_BYTES} bytes.")
    return read


def _check_text(text: str, option: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{option} is not UTF-8.") from None


def _payload(given: bytes, kind: str, *, markdown: bool) -> bytes:
    import msgspec

    from interlock.protocol.kinds import CHAT
    from interlock.topics.wire.payloads import chat_payload

    if kind == CHAT:
        # People read it: what other programs wrote in other encodings is worth saying, too.
        text = given.decode(errors="replace")
        if not text.strip():
            raise typer.BadParameter("there is nothing to say.")
        return chat_payload(text.rstrip("\n"), "markdown" if markdown else "plain")
    if markdown:
        raise typer.BadParameter("--markdown is for a chat.")
    try:
        # Read once, to be told here what is wrong with it.
        given.decode()
        msgspec.json.decode(given, type=dict[str, msgspec.Raw])
    except UnicodeDecodeError:
        raise typer.BadParameter(f"the payload of {kind} is not UTF-8.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise typer.BadParameter(f"the payload of {kind} is a JSON object: {error}.") from None
    return given.strip()


@topic.command()
def call(
    name: Name,
    to: Annotated[str, typer.Argument(metavar="ID", help="Whose tool.", show_default=False)],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool.", show_default=False)],
    arguments: KeyValueArgument = None,
    propose: Annotated[
        bool, typer.Option("--propose", help="Propose it, even if one may call.")
    ] = False,
    json: JsonOption = None,
    json_output: JsonOutputOption = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="TIME",
            help="How long to wait, such as 30s. Default: 30s, 5m for a proposal.",
            show_default=False,
        ),
    ] = None,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Call a tool of a participant, or propose that somebody does.

    Who may not call proposes, and waits for what comes of it: what is said about the proposal
    goes to stderr, the result of the call to stdout. Values are typed by the tool's schema where
    one may ask for it; otherwise they are texts, and key:=JSON says what they are.

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
        _check_text(text, "what is written there")
    if not to.strip():
        raise typer.BadParameter("there is no id: whose tool shall it be?")
    seconds = read_timeout(timeout)
    there = topic_where.gateway(config, node, gateway, token_file, ca)
    from interlock.topics.commands.call import make

    work = make(there, name, to, tool, arguments or [], json, propose=propose, timeout=seconds)
    code = print_result(run(work), json_output=json_output)
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
    """Put an MCP server into a topic, as it is. It stays there until Ctrl-C.

    It needs a seat that may answer: the profile response_only. When the gateway is lost it is
    looked for again; a server that ends is started again.

    \b
    Examples:
      interlock topic bridge ops -- npx -y @modelcontextprotocol/server-filesystem .
      interlock topic bridge ops --token-file worker.token --url http://127.0.0.1:9001/mcp
    """
    from interlock.terminal.server_options import guess_segment, read_server
    from interlock.topics.commands import gateway_target as topic_where

    server = read_server(command or [], url, env or [], header or [])
    there = topic_where.gateway(config, node, gateway, token_file, ca)
    # A mistake on the command line is told before anything slow is imported.
    from interlock.terminal.event_loop import run
    from interlock.topics.commands.plain import serve

    run(serve(there, name, server, guess_segment(server) or "the server"))


@topic.command("list")
def list_topics(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="Only this one, with all there is to know.",
            show_default=False,
            callback=_checked_name,
        ),
    ] = None,
    json: AsAnswered = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Show the topics of a running node, and who is in them.

    Those of its config, and those that are open by a glob of it: who may come in, what newcomers
    may say, the node's own seat, what is recorded, who is there, and how many messages were
    refused. For administrators of topics (topics.admins in the node's config).

    \b
    Examples:
      interlock topic list
      interlock topic list ops
      interlock topic list --json | jq '.topics[] | select(.open) | .name'
    """
    from interlock.topics.commands import admin as topic_admin
    from interlock.topics.commands import gateway_target as topic_where

    topic_admin.show(topic_where.gateway(config, node, gateway, token_file, ca), name, json=json)


@topic.command()
def grant(
    id: Annotated[str, typer.Argument(metavar="ID", help="The participant.", show_default=False)],
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATTERN]...",
            help="Kinds that it may send from now on, such as 'mcp/request:tools/*'.",
            show_default=False,
        ),
    ] = None,
    take: Annotated[
        list[str] | None,
        typer.Option(
            "--take",
            metavar="PATTERN",
            help="One that it has no longer. May be repeated.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="NAME",
            help="The topic, where it is in several.",
            show_default=False,
            callback=_checked_name,
        ),
    ] = None,
    json: AsAnswered = False,
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    gateway: GatewayOption = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
) -> None:
    """Change what a participant may say, at once.

    It holds until the node restarts, or its config gives that seat something else. For
    administrators of topics (topics.admins in the node's config); nobody changes its own.

    \b
    Examples:
      interlock topic grant agent 'mcp/request:tools/*'
      interlock topic grant agent --topic ops --take 'mcp/request:tools/*'
    """
    from interlock.topics.commands import admin as topic_admin
    from interlock.topics.commands import gateway_target as topic_where

    given, taken = list(patterns or []), list(take or [])
    for text in (id, *given, *taken):
        _check_text(text, "what is written there")
    if not id.strip():
        raise typer.BadParameter("there is no id: `interlock topic list` shows who is there.")
    if not given and not taken:
        raise typer.BadParameter("say what it may send from now on, or what to --take.")
    there = topic_where.gateway(config, node, gateway, token_file, ca)
    topic_admin.change(there, id, given, taken, topic=name, json=json)
