"""`interlock up`: run a node in the foreground until it is told to stop."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from interlock.terminal import config_source


def up(
    config: config_source.ConfigOption = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve the built-in demo server; reads no config.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="ADDR",
            help="host:port or a port, instead of the config's; port 0 takes a free one.",
            show_default=False,
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Log lines instead of the live view.")
    ] = False,
    safety_only: Annotated[
        bool,
        typer.Option(
            "--safety-only",
            help="Serve only the safety loop, to which agents report their steps.",
        ),
    ] = False,
    stdio_parent: Annotated[
        bool,
        typer.Option(
            "--stdio-parent",
            help="For a server with `transport: ax` in a parent's config: register with the node "
            "that started this one, over stdin and stdout.",
        ),
    ] = False,
) -> None:
    """Start a node: every server of the config behind one MCP endpoint.

    It runs until Ctrl-C, SIGTERM, or until its terminal is closed. A changed config is applied
    while it runs; without a terminal, SIGHUP makes it look at once.

    \b
    Examples:
      interlock up                            the config that is found
      interlock up --demo                     look around without a config
      interlock up -c team.yaml --listen 9000
      interlock up --safety-only              only watch what agents say they do
    """
    if demo and config is not None:
        raise typer.BadParameter("--demo reads no config: leave one of the two out.")
    if stdio_parent and listen is not None:
        raise typer.BadParameter("--stdio-parent listens nowhere: leave --listen out.")
    if safety_only and (demo or stdio_parent):
        raise typer.BadParameter("--safety-only stands alone: leave the other option out.")
    if safety_only:
        source = config_source.find_safety_source(config, config_source.read_listen_address(listen))
    else:
        source = config_source.find_source(
            config, demo=demo, listen=config_source.read_listen_address(listen)
        )
    if stdio_parent:
        source.load()
        from interlock.cli.child_node import run_as_child
        from interlock.terminal.event_loop import run

        run(run_as_child(source))
        return
    # A mistake in the config is told before anything slow is imported.
    source.load_to_listen()
    from interlock.cli.foreground import run_in_foreground
    from interlock.terminal.event_loop import run

    run(run_in_foreground(source, live=not plain and _has_terminal()))


def _has_terminal() -> bool:
    """Whether this program has the terminal for itself. In the background (`&`) another one has it,
    and a view would be drawn over what that one shows."""
    if not sys.stdout.isatty():
        return False
    try:
        return os.tcgetpgrp(sys.stdout.fileno()) == os.getpgrp()
    except OSError:
        # A terminal that controls no session: nobody else draws there.
        return True
