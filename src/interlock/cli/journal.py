"""`interlock journal tail`: the newest entries of a journal. The node may be stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from interlock.primitives.timestamps import format_local
from interlock.terminal import config_source, node_discovery, options, output
from interlock.terminal.node_discovery import NodeOption

if TYPE_CHECKING:
    from interlock.core.journal.reader import JournalRow

_CALLER_WIDTH: Final = 10
_OUTCOME_WIDTH: Final = 12
_DIGEST_WIDTH: Final = 12
"""The number of characters of a digest that people see."""

journal = typer.Typer(no_args_is_help=True)


@journal.callback()
def _journal() -> None:
    """Read the journal of the node: its calls with their callers and outcomes."""


CountOption = Annotated[
    int,
    typer.Option(
        "--count", "-n", metavar="N", parser=options.read_count, help="Show at most N entries."
    ),
]
LinesOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@journal.command()
def tail(
    count: CountOption = 20,
    config: config_source.ConfigOption = None,
    json: LinesOption = False,
    node: NodeOption = None,
) -> None:
    """Show the newest entries, in chronological order.

    `interlock journal tail` and `interlock audit tail` are the same command.

    \b
    Examples:
      interlock audit tail -n 50
      interlock audit tail --json | jq 'select(.outcome != "ok")'
    """
    print_newest(node_discovery.find_local_node(config, node), count, json=json)


def print_newest(target: node_discovery.TargetNode, count: int, *, json: bool) -> None:
    """Print the newest entries of a node's journal. Raises InterlockError."""
    from interlock.core.journal.reader import JournalReader
    from interlock.core.paths import journal_path

    rows = JournalReader(journal_path(target.config, os.environ, target.base_dir)).tail(count)
    print_rows(rows, json=json)
    if not rows:
        output.print_note("The journal is empty.")


def print_rows(rows: list[JournalRow], *, json: bool) -> None:
    """Print entries, one per line, as JSON or in aligned columns."""
    caller = max((len(row.caller) for row in rows), default=0)
    outcome = max((len(row.outcome) for row in rows), default=0)
    widths = (max(caller, _CALLER_WIDTH), max(outcome, _OUTCOME_WIDTH))
    for row in rows:
        print(format_json_row(row) if json else format_row(row, widths))


def format_json_row(row: JournalRow) -> str:
    """Format an entry for a program, on one line."""
    import msgspec

    return msgspec.json.encode(row._asdict() | row.digests).decode()


def format_row(row: JournalRow, widths: tuple[int, int] = (_CALLER_WIDTH, _OUTCOME_WIDTH)) -> str:
    """Format an entry for a person, on one line.

    Args:
        widths: of the columns caller and outcome.
    """
    caller, outcome = widths
    timestamp = format_local(row.time_ns / 1e9, "seconds")
    call_text = f"{row.verb} {row.name}".strip()
    detail = f"  {row.detail}" if row.detail else ""
    for digest in row.digests.values():
        detail = detail.replace(digest, f"{digest[:_DIGEST_WIDTH]}…")
    duration = f"{row.duration_us / 1000:.1f} ms"
    caller_text = f"{row.caller or '-':<{caller}}"
    line = (
        f"{timestamp}  {caller_text}  {row.outcome:<{outcome}}  {duration:>10}  {call_text}{detail}"
    )
    # Untrusted text must not look like another line.
    return output.sanitize(line.replace("\n", " "))
