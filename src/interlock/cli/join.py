"""`interlock join`: put an MCP server, as it is, into the tree of a node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from interlock.config import ParentConfig


def join(
    parent: Annotated[
        str,
        typer.Argument(
            metavar="PARENT",
            help="The node: wss://host/ax, ws://127.0.0.1:8420/ax or unix:/path/to/ax.sock.",
            show_default=False,
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            help="How the server is started. Everything behind -- belongs to it.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="A server that runs already, instead of a command.",
            show_default=False,
        ),
    ] = None,
    segment: Annotated[
        str | None,
        typer.Option(
            "--segment",
            "-s",
            metavar="NAME",
            help="What its tools' names begin with. Default: made from the command or URL.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="TEXT",
            help="What it is called here, in the log and in errors. Default: the segment.",
            show_default=False,
        ),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(
            "--token-env",
            metavar="VARIABLE",
            help="The variable that holds the token which the node wants to see.",
            show_default=False,
        ),
    ] = None,
    backup: Annotated[
        list[str] | None,
        typer.Option(
            "--backup",
            metavar="PARENT",
            help="Another node, for when the first is lost. May be repeated.",
            show_default=False,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="NAME[=VALUE]",
            help="A variable for the command; without a value, the one that is set here.",
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="'NAME: VALUE'",
            help="An HTTP header for --url. Secrets by reference: 'Bearer ${env:TOKEN}'.",
            show_default=False,
        ),
    ] = None,
    authority: Annotated[
        str | None,
        typer.Option(
            "--authority",
            metavar="dns:NAME",
            help="Who owns the segment: a DNS name. It keeps others from taking it.",
            show_default=False,
        ),
    ] = None,
    authority_key: Annotated[
        Path | None,
        typer.Option(
            "--authority-key",
            metavar="FILE",
            help="The private key (PEM) that proves the authority.",
            show_default=False,
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca", metavar="FILE", help="The CA of the node's certificate.", show_default=False
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate",
            metavar="FILE",
            help="A client certificate (PEM); its names prove the authority too.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="The certificate's private key.", show_default=False
        ),
    ] = None,
    heartbeat: Annotated[
        str,
        typer.Option("--heartbeat", metavar="TIME", help="How often it says that it is alive."),
    ] = "5s",
) -> None:
    """Put an MCP server into the tree of a node. The server need not know.

    It stays there until Ctrl-C. When the node is lost it is looked for again, for ever; a server
    that ends is started again. The node's clients see its tools behind the segment: jira.search.

    A node that listens beyond its own machine wants a token, and for tools that change something a
    proof of who owns the segment: see --token-env, --authority and --authority-key.

    \b
    Examples:
      interlock join ws://127.0.0.1:8420/ax -- npx -y @modelcontextprotocol/server-filesystem .
      interlock join unix:/run/interlock/ax.sock --segment jira --url http://127.0.0.1:9001/mcp
      interlock join wss://node.example.com/ax --token-env NODE_TOKEN \\
        --authority dns:edge01.example.com --authority-key edge01.pem -- ./my-server
    """
    from interlock.cli.join_target import guessed_segment, server_of

    server = server_of(command or [], url, env or [], header or [])
    called = segment or guessed_segment(server)
    if not called:
        raise typer.BadParameter("no segment can be made from this: give one with --segment.")
    settings = _parent(
        parent,
        segment=called,
        backup=list(backup or []),
        token=None if token_env is None else f"${{env:{token_env}}}",
        authority=authority,
        authority_key=None if authority_key is None else f"${{file:{authority_key}}}",
        heartbeat=_seconds(heartbeat),
        **{
            field: None if file is None else str(file)
            for field, file in (("ca", ca), ("certificate", certificate), ("key", key))
        },
    )
    # A mistake on the command line is told before anything slow is imported.
    from interlock.cli.event_loop import run
    from interlock.cli.joined import stay_joined

    run(stay_joined(name or called, server, settings))


def _parent(url: str, **settings: object) -> ParentConfig:
    """The parent, held to the same rules as one in a config. Raises BadParameter."""
    import msgspec

    from interlock.config import ConfigError, parse_config

    given = {name: value for name, value in settings.items() if value not in (None, [])}
    # It listens nowhere, so no parent can be itself.
    document = {"listen": "127.0.0.1:0", "parent": {"url": url, **given}}
    text = msgspec.json.encode(document).decode()
    try:
        parent = parse_config(text).parent
    except ConfigError as error:
        first = error.problems[0]
        where = first.path.removeprefix("parent.").partition("[")[0].replace("_", "-")
        option = "PARENT" if where == "url" else f"--{where}"
        raise typer.BadParameter(f"{option}: {first.message}; {first.hint}.") from None
    assert parent is not None
    return parent


def _seconds(text: str) -> float:
    from interlock.config.problems import BadValue
    from interlock.config.quantities import parse_duration

    try:
        return parse_duration(text if not text.isdigit() else float(text), zero=True)
    except BadValue as bad:
        raise typer.BadParameter(f"--heartbeat: {bad.message}; {bad.hint}.") from None
