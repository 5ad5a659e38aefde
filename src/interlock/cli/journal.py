"""`interlock journal tail`: the newest entries of a node's journal, whether it runs or not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from interlock.primitives.timestamps import format_local
from interlock.terminal import config_source, node_discovery, options, output
from interlock.terminal.node_discovery import NodeOption

if TYPE_CHECKING:
    from interlock.core.journal.reader import JournalRow

_CALLER: Final = 10
_OUTCOME: Final = 12
_DIGEST: Final = 12
"""Characters of a digest that a person is shown."""

journal = typer.Typer(no_args_is_help=True)


@journal.callback()
def _journal() -> None:
    """Read the node's journal: who called what, and how it ended."""


CountOption = Annotated[
    int,
    typer.Option("--count", "-n", metavar="N", parser=options.read_count, help="How many entries."),
]
LinesOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@journal.command()
def tail(
    count: CountOption = 20,
    config: config_source.ConfigOption = None,
    json: LinesOption = False,
    node: NodeOption = None,
) -> None:
    """Show the newest entries, oldest of them first.

    `interlock journal tail` is an alias of `interlock audit tail`.

    \b
    Examples:
      interlock audit tail -n 50
      interlock audit tail --json | jq 'select(.outcome != "ok")'
    """
    show_newest(node_discovery.find_local_node(config, node), count, json=json)


def show_newest(target: node_discovery.TargetNode, count: int, *, json: bool) -> None:
    """Print the newest entries of a node's journal. Raises InterlockError."""
    from interlock.core.journal.reader import JournalReader
    from interlock.core.paths import journal_path

    rows = JournalReader(journal_path(target.config, os.environ, target.base_dir)).tail(count)
    show(rows, json=json)
    if not rows:
        output.print_note("the journal is empty.")


def show(rows: list[JournalRow], *, json: bool) -> None:
    """Print entries, one on a line; for people in columns that are wide enough for each."""
    caller = max((len(row.caller) for row in rows), default=0)
    outcome = max((len(row.outcome) for row in rows), default=0)
    widths = (max(caller, _CALLER), max(outcome, _OUTCOME))
    for row in rows:
        print(as_json(row) if json else as_line(row, widths))


def as_json(row: JournalRow) -> str:
    """An entry for a program, on one line."""
    import msgspec

    return msgspec.json.encode(row._asdict() | row.digests).decode()


def as_line(row: JournalRow, widths: tuple[int, int] = (_CALLER, _OUTCOME)) -> str:
    """An entry for a person, on one line. `widths`: of the caller, and of the outcome."""
    caller, outcome = widths
    moment = format_local(row.time_ns / 1e9, "seconds")
    what = f"{row.verb} {row.name}".strip()
    detail = f"  {row.detail}" if row.detail else ""
    for digest in row.digests.values():
        detail = detail.replace(digest, f"{digest[:_DIGEST]}…")
    took = f"{row.duration_us / 1000:.1f} ms"
    who = f"{row.caller or '-':<{caller}}"
    line = f"{moment}  {who}  {row.outcome:<{outcome}}  {took:>10}  {what}{detail}"
    # What others wrote must not look like another line.
    return output.sanitize(line.replace("\n", " "))
