"""The app: every command, in the order in which `--help` shows them."""

from __future__ import annotations

from typing import Annotated

import typer

from interlock.cli import about, say
from interlock.cli.add import add
from interlock.cli.approvals import approvals, approve, refuse
from interlock.cli.audit import audit
from interlock.cli.automation import automation
from interlock.cli.call import call
from interlock.cli.check import check
from interlock.cli.claims import claims
from interlock.cli.contracts import contracts
from interlock.cli.doctor import doctor
from interlock.cli.drivers import drivers
from interlock.cli.import_clients import import_clients
from interlock.cli.join import join
from interlock.cli.journal import journal
from interlock.cli.keys import keys
from interlock.cli.login import login, logout
from interlock.cli.operations import operations
from interlock.cli.operator import operator
from interlock.cli.pins import pins
from interlock.cli.policy import policy
from interlock.cli.status import status
from interlock.cli.stdio import stdio
from interlock.cli.token import token
from interlock.cli.tools import tools
from interlock.cli.topic import topic
from interlock.cli.tree import tree
from interlock.cli.up import up

app = typer.Typer(
    epilog=say.EXIT_CODES_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        about.version()
        raise typer.Exit


@app.callback()
def interlock(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Interlock: many MCP servers behind one endpoint, and nothing irreversible without a human.

    \b
    Begin with:
      interlock up --demo             look around
      interlock import --write        take over the servers of your MCP clients
      interlock up                    run them behind one endpoint
    """


_RUN, _CONFIG, _USE, _TRUST, _LOOK = "Run", "Config", "Use", "Trust", "Look"
app.command(rich_help_panel=_RUN)(up)
app.command(rich_help_panel=_RUN)(stdio)
app.command(rich_help_panel=_RUN)(join)
app.command(rich_help_panel=_CONFIG)(check)
# Whatever follows KEY is read by the command itself: a server's options look like ours.
app.command(rich_help_panel=_CONFIG, context_settings={"allow_interspersed_args": False})(add)
app.command("import", rich_help_panel=_CONFIG)(import_clients)
app.command(rich_help_panel=_CONFIG)(login)
app.command(rich_help_panel=_CONFIG)(logout)
app.command(rich_help_panel=_CONFIG)(about.schema)
app.command(rich_help_panel=_USE)(tools)
app.command(rich_help_panel=_USE)(call)
app.add_typer(drivers, name="drivers", rich_help_panel=_USE)
app.add_typer(contracts, name="contracts", rich_help_panel=_USE)
app.add_typer(operations, name="operations", rich_help_panel=_USE)
app.add_typer(topic, name="topic", rich_help_panel=_USE)
app.command(rich_help_panel=_TRUST)(approvals)
app.command(rich_help_panel=_TRUST)(approve)
app.command(rich_help_panel=_TRUST)(refuse)
app.add_typer(operator, name="operator", rich_help_panel=_TRUST)
app.add_typer(keys, name="keys", rich_help_panel=_TRUST)
app.add_typer(token, name="token", rich_help_panel=_TRUST)
app.add_typer(policy, name="policy", rich_help_panel=_TRUST)
app.add_typer(pins, name="pins", rich_help_panel=_TRUST)
app.add_typer(automation, name="automation", rich_help_panel=_TRUST)
app.add_typer(audit, name="audit", rich_help_panel=_TRUST)
app.command(rich_help_panel=_LOOK)(doctor)
app.command(rich_help_panel=_LOOK)(status)
app.command(rich_help_panel=_LOOK)(tree)
app.add_typer(claims, name="claims", rich_help_panel=_LOOK)
app.add_typer(journal, name="journal", rich_help_panel=_LOOK)
app.command(rich_help_panel=_LOOK)(about.version)
