"""`interlock up`: run a node in the foreground until it is stopped."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from interlock.terminal import config_source


def up(
    config: config_source.ConfigOption = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Run the built-in demo server, without a config file.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="ADDR",
            help="Listen on host:port or on a port, instead of the config's address. "
            "Port 0 selects a free port.",
            show_default=False,
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print log lines instead of the live view.")
    ] = False,
    safety_only: Annotated[
        bool,
        typer.Option(
            "--safety-only",
            help="Run only the safety loop, to which agents report their steps. No servers.",
        ),
    ] = False,
    stdio_parent: Annotated[
        bool,
        typer.Option(
            "--stdio-parent",
            help="Register with the parent node over stdin and stdout. For a server with "
            "`transport: ax` in the parent's config.",
        ),
    ] = False,
) -> None:
    """Start a node: all servers of the config behind one MCP endpoint.

    The node runs until Ctrl-C, SIGTERM, or the end of its terminal. It applies a changed config
    while it runs. Without a terminal, SIGHUP makes it check the config at once.

    \b
    Examples:
      interlock up                            use the default config file
      interlock up --demo                     run the demo server, without a config
      interlock up -c team.yaml --listen 9000
      interlock up --safety-only              run only the safety loop for agents
    """
    if demo and config is not None:
        raise typer.BadParameter("--demo reads no config file. Remove --demo or --config.")
    if stdio_parent and listen is not None:
        raise typer.BadParameter("A node with --stdio-parent does not listen. Remove --listen.")
    if safety_only and (demo or stdio_parent):
        raise typer.BadParameter(
            "--safety-only cannot be combined with --demo or --stdio-parent. Remove one of them."
        )
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
    # Report config errors before slow imports.
    source.load_to_listen()
    from interlock.cli.foreground import run_in_foreground
    from interlock.terminal.event_loop import run

    run(run_in_foreground(source, live=not plain and _owns_terminal()))


def _owns_terminal() -> bool:
    """Return whether this program is in the foreground of its terminal.

    In the background (`&`), a live view would overwrite the output of the foreground program.
    """
    if not sys.stdout.isatty():
        return False
    try:
        return os.tcgetpgrp(sys.stdout.fileno()) == os.getpgrp()
    except OSError:
        # The terminal controls no session, so no other program draws on it.
        return True
