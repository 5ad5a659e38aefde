"""How a server is named on the command line by those who bring one along: a command or a URL, and
what it is given. `join_target.server_of` reads them."""

from __future__ import annotations

from typing import Annotated

import typer

CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND",
        help="How the server is started. Everything behind -- belongs to it.",
        show_default=False,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="A server that runs already, instead of a command.",
        show_default=False,
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="A variable for the command; without a value, the one that is set here.",
        show_default=False,
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="'NAME: VALUE'",
        help="An HTTP header for --url. Secrets by reference: 'Bearer ${env:TOKEN}'.",
        show_default=False,
    ),
]
