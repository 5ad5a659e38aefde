"""`interlock journal tail`: the newest entries of a node's journal, whether it runs or not."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli import running, say, where
from interlock.cli.running import NodeOption

if TYPE_CHECKING:
    from interlock.stores.journal_reader import Row

journal = typer.Typer(help="Read the node's journal: who called what, and how it ended.")


@journal.callback()
def _journal() -> None:
    """Read the node's journal: who called what, and how it ended."""


@journal.command()
def tail(
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, help="How many entries.")
    ] = 20,
    config: where.ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    node: NodeOption = None,
) -> None:
    """Show the newest entries, oldest of them first.

    \b
    Examples:
      interlock journal tail -n 50
      interlock journal tail --json | jq 'select(.outcome != "ok")'
    """
    from interlock.node.places import journal_path
    from interlock.stores.journal_reader import JournalReader

    meant = running.with_files(config, node)
    rows = JournalReader(journal_path(meant.config, os.environ, meant.base_dir)).tail(count)
    for row in rows:
        print(as_json(row) if json else as_line(row))
    if not rows:
        say.note("the journal is empty.")


def as_json(row: Row) -> str:
    """An entry for a program, on one line."""
    import msgspec

    return msgspec.json.encode(row._asdict()).decode()


def as_line(row: Row) -> str:
    """An entry for a person, on one line."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.time_ns / 1e9))
    what = f"{row.verb} {row.name}".strip()
    detail = f"  {row.detail}" if row.detail else ""
    took = f"{row.duration_us / 1000:.1f} ms"
    line = f"{moment}  {row.caller or '-':<10}  {row.outcome:<12}  {took:>10}  {what}{detail}"
    # What others wrote must not look like another line.
    return say.printable(line.replace("\n", " "))
