"""`interlock drivers`: commands for MCP servers that are declared as files."""

from __future__ import annotations

from typing import Annotated

import typer

from interlock.drivers.commands.access import install, login, logout
from interlock.drivers.commands.check import check
from interlock.drivers.commands.list import explain, list_drivers
from interlock.drivers.commands.new import new
from interlock.drivers.commands.show import show
from interlock.drivers.commands.test import run_tests
from interlock.drivers.commands.trust import sign, verify

drivers = typer.Typer(no_args_is_help=True)


@drivers.callback()
def _drivers() -> None:
    """Create, check and test drivers: MCP servers that are declared as files.

    A driver (.drivers/ID/DRIVER.md) declares where an MCP server is and which contracts it serves.
    A contract (TOOL.md) declares what a tool takes, returns and changes. Callers see contracts, and
    the node selects the driver.
    """


drivers.command()(new)
drivers.command()(check)
drivers.command("list")(list_drivers)
drivers.command()(show)
drivers.command()(explain)
drivers.command("test")(run_tests)
drivers.command()(install)
drivers.command()(login)
drivers.command()(logout)
drivers.command()(sign)
drivers.command()(verify)


@drivers.command()
def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="driver, mcp, tool, io or secrets.", show_default=False
        ),
    ],
) -> None:
    """Print the JSON Schema of a manifest's front matter, for editors.

    \b
    Example:
      interlock drivers schema tool > tool.schema.json
    """
    import json

    from interlock.manifests.schemas import MANIFEST_NAMES, manifest_schema

    kind = next((manifest_name for manifest_name in MANIFEST_NAMES if manifest_name == name), None)
    if kind is None:
        raise typer.BadParameter(
            f"there is no schema {name!r}. Use one of {', '.join(MANIFEST_NAMES)}"
        )
    print(json.dumps(manifest_schema(kind), indent=2, ensure_ascii=False))
