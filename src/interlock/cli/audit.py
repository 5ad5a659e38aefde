"""`interlock audit`: verify the journal, search it, export it.

The commands read the journal file of a node, which may be stopped. They change nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO, get_args

import typer

from interlock.cli.journal import CountOption, LinesOption, print_rows, tail
from interlock.core.config.trust import EffectName
from interlock.primitives.text import format_count
from interlock.terminal import config_source, node_discovery, options, output
from interlock.terminal.node_discovery import NodeOption
from interlock.terminal.options import read_moment_ns

if TYPE_CHECKING:
    from interlock.core.journal.reader import JournalQuery, JournalReader, JournalRow
    from interlock.core.journal.verification import Progress, VerificationReport

audit = typer.Typer(no_args_is_help=True)

_PROGRESS_BAR_MIN_ENTRIES: Final = 100_000
"""A verification of more entries than this shows a progress bar on a terminal."""
_ID_LENGTH: Final = 32
_FORMULA_PREFIXES: Final = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet executes text that begins with one of these as a formula."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
NameArgument = Annotated[
    str,
    typer.Argument(
        help="Only entries with a matching name. A glob, such as 'jira.*' or '*.delete_*'.",
        metavar="NAME",
    ),
]
CallerOption = Annotated[str | None, typer.Option("--caller", help="Only entries of this caller.")]
OutcomeOption = Annotated[
    str | None,
    typer.Option("--outcome", help="Only entries with this outcome: ok, denied_by_policy, …"),
]
UpstreamOption = Annotated[
    str | None, typer.Option("--upstream", help="Only entries of this upstream.")
]
EffectOption = Annotated[
    str | None,
    typer.Option(
        "--effect",
        metavar="EFFECT",
        parser=options.choice_reader(*get_args(EffectName)),
        help="Only calls of tools with this effect: irreversible, …",
    ),
]
ApprovalOption = Annotated[
    str | None,
    typer.Option(
        "--approval",
        metavar="ID",
        help="Only entries about this approval. The beginning of its id is sufficient.",
    ),
]
SinceOption = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="WHEN",
        help="Only entries after this time: 2h, 7d, 2026-01-31 or 2026-01-31T12:00.",
    ),
]
UntilOption = Annotated[
    str,
    typer.Option(
        "--until", metavar="WHEN", help="Only entries before this time. Format as for --since."
    ),
]


@audit.callback()
def _audit() -> None:
    """Verify, search and export the journal."""


@audit.command()
def verify(
    head: Annotated[
        str,
        typer.Option(
            "--head", metavar="HEAD", help="Check this head too, an earlier output of `audit head`."
        ),
    ] = "",
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Verify that no entry of the journal was changed, removed, inserted or moved.

    The file alone cannot show that its newest entries are missing, or that all of it was rewritten.
    To detect that, store the output of `audit head` elsewhere and pass it with --head.

    \b
    Examples:
      interlock audit verify
      interlock audit verify --head "$(cat head-of-last-week)"
    """
    from interlock.core.journal import verification as journal_verify

    path = _journal_path(config, node)
    with _create_progress(path) as progress:
        report = journal_verify.verify(path, head, progress)
    if json:
        output.print_json(_report_as_dict(path, report))
    else:
        _print_report(path, report)
    if not report.is_intact:
        raise typer.Exit(output.FAILED)


@audit.command()
def head(config: config_source.ConfigOption = None, node: NodeOption = None) -> None:
    """Print the head of the hash chain, which identifies all present entries.

    Store it on another machine, and pass it to `audit verify --head` later.

    \b
    Example:
      interlock audit head | ssh vault 'cat >> journal-heads'
    """
    from interlock.core.journal.verification import read_chain_head

    print(read_chain_head(_journal_path(config, node)))


audit.command("tail")(tail)


@audit.command()
def search(
    name: NameArgument = "*",
    caller: CallerOption = None,
    outcome: OutcomeOption = None,
    upstream: UpstreamOption = None,
    effect: EffectOption = None,
    approval: ApprovalOption = None,
    since: SinceOption = "",
    until: UntilOption = "",
    unfinished: Annotated[
        bool,
        typer.Option(
            "--unfinished",
            help="Only calls that were sent and have no recorded end: running or interrupted.",
        ),
    ] = False,
    count: CountOption = 100,
    config: config_source.ConfigOption = None,
    json: LinesOption = False,
    node: NodeOption = None,
) -> None:
    """Show the newest matching entries, in chronological order.

    \b
    Examples:
      interlock audit search 'github.*' --caller ci --since 2h
      interlock audit search --effect irreversible --outcome ok --since 7d
      interlock audit search --unfinished
    """
    from interlock.core.journal.reader import JournalReader

    reader = JournalReader(_journal_path(config, node))
    query = _build_query(name, caller, outcome, upstream, effect, since, until)
    query = _filter_by_approval(reader, query, approval)
    read_rows = reader.unfinished if unfinished else reader.newest
    rows = read_rows(query, count)[::-1]
    print_rows(rows, json=json)
    if not rows:
        output.print_note("No matching entries in the journal.")
        raise typer.Exit(output.FAILED)


@audit.command()
def export(
    name: NameArgument = "*",
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="[jsonl|csv|events]",
            parser=options.choice_reader("jsonl", "csv", "events"),
            help="One JSON object per line, a CSV table, or only the denied calls and approvals.",
        ),
    ] = "jsonl",
    output_file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file. Default: stdout."),
    ] = None,
    caller: CallerOption = None,
    outcome: OutcomeOption = None,
    upstream: UpstreamOption = None,
    effect: EffectOption = None,
    approval: ApprovalOption = None,
    since: SinceOption = "",
    until: UntilOption = "",
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
) -> None:
    """Export entries in chronological order, with times in UTC.

    In CSV, text that a spreadsheet would execute as a formula gets a leading apostrophe.

    \b
    Examples:
      interlock audit export --since 2026-01-01 --until 2026-02-01 -o january.jsonl
      interlock audit export --format csv --effect irreversible > irreversible.csv
    """
    from interlock.core.journal.reader import JournalReader

    reader = JournalReader(_journal_path(config, node))
    query = _build_query(name, caller, outcome, upstream, effect, since, until)
    query = _filter_by_approval(reader, query, approval)
    with closing(reader.iterate(query)) as rows:
        # Read one row before the file is created: an unreadable journal must not empty the file.
        first = list(islice(rows, 1))
        with _open_output(output_file) as file:
            count = _write_rows(file, format, chain(first, rows))
    output.print_note(f"{format_count(count, 'entry', 'entries')}.")


def _journal_path(config: Path | None, node: str | None) -> Path:
    from interlock.core.paths import journal_path

    target = node_discovery.find_local_node(config, node)
    return journal_path(target.config, os.environ, target.base_dir)


def _build_query(
    name: str,
    caller: str | None,
    outcome: str | None,
    upstream: str | None,
    effect: str | None,
    since: str,
    until: str,
) -> JournalQuery:
    from interlock.core.journal.reader import JournalQuery

    now = time.time_ns()
    return JournalQuery(
        name=name,
        caller=caller,
        outcome=outcome,
        upstream=upstream,
        effect=effect,
        since_ns=read_moment_ns(since, now) if since else 0,
        until_ns=read_moment_ns(until, now) if until else None,
    )


def _filter_by_approval(
    reader: JournalReader, query: JournalQuery, approval_id: str | None
) -> JournalQuery:
    """Limit a query to one approval, by its id or by a unique beginning of its id."""
    if approval_id is None:
        return query
    filter_word = f"approval:{approval_id}"
    if approval_id and len(approval_id) < _ID_LENGTH:
        with closing(reader.iterate(query)) as rows:
            matches = {
                word
                for row in rows
                for word in row.detail.split(" ")
                if word.startswith(filter_word)
            }
        if filter_word not in matches and len(matches) == 1:
            filter_word = matches.pop()
        elif filter_word not in matches and matches:
            raise typer.BadParameter(
                f"{len(matches)} approvals have an id that begins with {approval_id}. "
                "Enter more characters."
            )
    return query._replace(detail_word=filter_word)


@contextmanager
def _open_output(output_file: Path | None) -> Iterator[TextIO]:
    if output_file is None:
        yield sys.stdout
        return
    # Only the owner can read the file, like the journal itself.
    with open(
        output_file,
        "w",
        encoding="utf-8",
        newline="",
        opener=lambda p, flags: os.open(p, flags, 0o600),
    ) as file:
        yield file


def _write_rows(file: TextIO, format: str, rows: Iterable[JournalRow]) -> int:
    import csv

    import msgspec

    from interlock.core.journal.events import format_utc_time, to_audit_event
    from interlock.core.journal.reader import JournalRow

    table = csv.writer(file) if format == "csv" else None
    if table is not None:
        table.writerow(["seq", "time", *JournalRow._fields[2:]])
    count = 0
    for row in rows:
        if table is not None:
            table.writerow([row.seq, format_utc_time(row.time_ns), *map(_escape_formula, row[2:])])
        else:
            line = to_audit_event(row) if format == "events" else _row_as_dict(row)
            if line is None:
                continue
            file.write(msgspec.json.encode(line).decode() + "\n")
        count += 1
    return count


def _row_as_dict(row: JournalRow) -> dict[str, object]:
    from interlock.core.journal.events import format_utc_time

    return {"seq": row.seq, "time": format_utc_time(row.time_ns), **row._asdict(), **row.digests}


def _escape_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_PREFIXES) else value


def _create_progress(path: Path) -> nullcontext[None] | _ProgressBar:
    from interlock.core.journal.reader import JournalReader

    if sys.stderr.isatty():
        newest = JournalReader(path).tail(1)
        if newest and newest[0].seq > _PROGRESS_BAR_MIN_ENTRIES:
            return _ProgressBar()
    return nullcontext()


class _ProgressBar:
    """A progress bar on a terminal."""

    def __enter__(self) -> Progress:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

        self._bar = Progress(
            "verifying the journal",
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=output.create_console(stderr=True),
            transient=True,
        )
        self._bar.start()
        task = self._bar.add_task("")
        return lambda done, total: self._bar.update(task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _report_as_dict(path: Path, report: VerificationReport) -> dict[str, object]:
    return {
        "journal": str(path),
        "whole": report.is_intact,
        "entries": report.entries,
        "first_seq": report.first_seq,
        "archived": report.archived,
        "head": str(report.head),
        "findings": [finding._asdict() for finding in report.findings],
        "more_findings": report.more_findings,
        "notes": report.notes,
    }


def _print_report(path: Path, report: VerificationReport) -> None:
    for finding in report.findings:
        print(f"✗ {finding.sentence}")
    if report.more_findings:
        print(f"✗ … and {report.more_findings} more.")
    for note in report.notes:
        output.print_note(f"· {note}")
    archived = f", and {report.archived} in archives" if report.archived else ""
    if report.is_intact:
        print(f"✓ {path}: {report.entries} entries{archived}, all unchanged.")
        print(f"  head {report.head}")
    else:
        output.print_problem(
            f"{path} was changed after it was written. Keep the file unchanged for an "
            "investigation. To begin a new journal, move the file and its -wal and -shm files "
            "to another folder, and restart the node."
        )
