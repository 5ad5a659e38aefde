"""Arguments and options that several `interlock drivers` commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DriverArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The id of a driver.", show_default=False)
]
DriversArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Ids of drivers. Default: all.", show_default=False),
]
Pin = Annotated[
    str | None,
    typer.Option("--pin", metavar="ID", help="Assume that the call is pinned to this driver."),
]
Region = Annotated[
    str | None,
    typer.Option("--region", metavar="R", help="Assume that the node is in this region."),
]
