"""`interlock join`: put an MCP server, as it is, into the tree of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interlock.cli.server_options import CommandArgument, EnvOption, HeaderOption, UrlOption


def join(
    parent: Annotated[
        str,
        typer.Argument(
            metavar="PARENT",
            help="The node: wss://host/ax, ws://127.0.0.1:8420/ax or unix:/path/to/ax.sock.",
            show_default=False,
        ),
    ],
    command: CommandArgument = None,
    url: UrlOption = None,
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
    env: EnvOption = None,
    header: HeaderOption = None,
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
    from interlock.cli.join_parent import parent_of
    from interlock.cli.join_target import guessed_segment, server_of

    server = server_of(command or [], url, env or [], header or [])
    called = segment or guessed_segment(server)
    if not called:
        raise typer.BadParameter("no segment can be made from this: give one with --segment.")
    settings = parent_of(
        parent,
        segment=called,
        backup=list(backup or []),
        token_env=token_env,
        authority=authority,
        heartbeat=heartbeat,
        files={"ca": ca, "certificate": certificate, "key": key, "authority_key": authority_key},
    )
    # A mistake on the command line is told before anything slow is imported.
    from interlock.cli.event_loop import run
    from interlock.cli.joined import stay_joined

    run(stay_joined(name or called, server, settings))
