"""`interlock audit`: is the journal still what was written, and what is in it.

Reads the file of a node, whether it runs or not. Changes nothing.
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

from interlock.cli.journal import CountOption, LinesOption, show, tail
from interlock.core.config.trust import EffectName
from interlock.primitives.text import format_count
from interlock.terminal import config_source, node_discovery, options, output
from interlock.terminal.node_discovery import NodeOption
from interlock.terminal.options import read_moment_ns

if TYPE_CHECKING:
    from interlock.core.journal.reader import JournalQuery, JournalReader, JournalRow
    from interlock.core.journal.verification import Progress, VerificationReport

audit = typer.Typer(no_args_is_help=True)

_MANY: Final = 100_000
"""With more entries than this, somebody who looks on sees how far it is."""
_WHOLE_ID: Final = 32
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes text that begins so for something to execute."""

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
NameArgument = Annotated[
    str, typer.Argument(help="A glob over names: jira.*, *.delete_*.", metavar="NAME")
]
CallerOption = Annotated[str | None, typer.Option("--caller", help="Only calls of this caller.")]
OutcomeOption = Annotated[
    str | None, typer.Option("--outcome", help="Only this outcome: ok, denied_by_policy, …")
]
UpstreamOption = Annotated[str | None, typer.Option("--upstream", help="Only this upstream.")]
EffectOption = Annotated[
    str | None,
    typer.Option(
        "--effect",
        metavar="EFFECT",
        parser=options.choice_reader(*get_args(EffectName)),
        help="Only tools with this effect: irreversible, …",
    ),
]
ApprovalOption = Annotated[
    str | None,
    typer.Option(
        "--approval",
        metavar="ID",
        help="Only what is about this approval; the beginning of its id will do.",
    ),
]
SinceOption = Annotated[
    str, typer.Option("--since", metavar="WHEN", help="2h, 7d, 2026-01-31 or 2026-01-31T12:00.")
]
UntilOption = Annotated[str, typer.Option("--until", metavar="WHEN", help="Until then, likewise.")]


@audit.callback()
def _audit() -> None:
    """Check that the journal is what was written, search it, export it."""


@audit.command()
def verify(
    head: Annotated[
        str,
        typer.Option(
            "--head", metavar="HEAD", help="What `audit head` printed once, and you kept elsewhere."
        ),
    ] = "",
    config: config_source.ConfigOption = None,
    json: Json = False,
    node: NodeOption = None,
) -> None:
    """Check that nothing in the journal was changed, removed, put in or moved.

    Alone the file cannot tell whether its newest entries are missing, or whether all of it was
    written anew: for that, keep the head of the journal elsewhere, and give it here.

    \b
    Examples:
      interlock audit verify
      interlock audit verify --head "$(cat head-of-last-week)"
    """
    from interlock.core.journal import verification as journal_verify

    path = _path(config, node)
    with _progress(path) as progress:
        verdict = journal_verify.verify(path, head, progress)
    if json:
        output.print_json(_as_dict(path, verdict))
    else:
        _tell(path, verdict)
    if not verdict.whole:
        raise typer.Exit(output.FAILED)


@audit.command()
def head(config: config_source.ConfigOption = None, node: NodeOption = None) -> None:
    """Print the end of the chain. Kept elsewhere, it proves all that is in the journal until now.

    \b
    Example:
      interlock audit head | ssh vault 'cat >> journal-heads'
    """
    from interlock.core.journal.verification import head_of

    print(head_of(_path(config, node)))


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
            help="Only calls that left and of which no end is known: under way, or cut short.",
        ),
    ] = False,
    count: CountOption = 100,
    config: config_source.ConfigOption = None,
    json: LinesOption = False,
    node: NodeOption = None,
) -> None:
    """Show the newest entries that fit, oldest of them first.

    \b
    Examples:
      interlock audit search 'github.*' --caller ci --since 2h
      interlock audit search --effect irreversible --outcome ok --since 7d
      interlock audit search --unfinished
    """
    from interlock.core.journal.reader import JournalReader

    reader = JournalReader(_path(config, node))
    question = _question(name, caller, outcome, upstream, effect, since, until)
    question = _about_approval(reader, question, approval)
    ask = reader.unfinished if unfinished else reader.newest
    rows = ask(question, count)[::-1]
    show(rows, json=json)
    if not rows:
        output.print_note("nothing in the journal fits.")
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
            help="An object a line, a table, or what was denied, held and confirmed.",
        ),
    ] = "jsonl",
    output_file: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: stdout.")
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
    """Write entries out, oldest first, with their times in UTC.

    In CSV, text that a spreadsheet would execute has an apostrophe before it.

    \b
    Examples:
      interlock audit export --since 2026-01-01 --until 2026-02-01 -o january.jsonl
      interlock audit export --format csv --effect irreversible > irreversible.csv
    """
    from interlock.core.journal.reader import JournalReader

    reader = JournalReader(_path(config, node))
    question = _question(name, caller, outcome, upstream, effect, since, until)
    question = _about_approval(reader, question, approval)
    with closing(reader.each(question)) as rows:
        # Asked before the file is made: a journal that cannot be read must not empty it.
        first = list(islice(rows, 1))
        with _opened(output_file) as file:
            written = _write(file, format, chain(first, rows))
    output_file.print_note(f"{format_count(written, 'entry', 'entries')}.")


def _path(config: Path | None, node: str | None) -> Path:
    from interlock.core.paths import journal_path

    target = node_discovery.find_local_node(config, node)
    return journal_path(target.config, os.environ, target.base_dir)


def _question(
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


def _about_approval(
    reader: JournalReader, question: JournalQuery, given: str | None
) -> JournalQuery:
    """The question, about one approval: by its id, or by a beginning that no other has."""
    if given is None:
        return question
    wanted = f"approval:{given}"
    if given and len(given) < _WHOLE_ID:
        with closing(reader.each(question)) as rows:
            words = {one for row in rows for one in row.detail.split(" ") if one.startswith(wanted)}
        if wanted not in words and len(words) == 1:
            wanted = words.pop()
        elif wanted not in words and words:
            raise typer.BadParameter(f"{len(words)} approvals begin with {given}: give more of it.")
    return question._replace(word=wanted)


@contextmanager
def _opened(output_file: Path | None) -> Iterator[TextIO]:
    if output_file is None:
        yield sys.stdout
        return
    # Only its owner may read it, as the journal itself.
    with open(
        output_file,
        "w",
        encoding="utf-8",
        newline="",
        opener=lambda p, flags: os.open(p, flags, 0o600),
    ) as file:
        yield file


def _write(file: TextIO, format: str, rows: Iterable[JournalRow]) -> int:
    import csv

    import msgspec

    from interlock.core.journal.events import event_of, utc
    from interlock.core.journal.reader import JournalRow

    table = csv.writer(file) if format == "csv" else None
    if table is not None:
        table.writerow(["seq", "time", *JournalRow._fields[2:]])
    written = 0
    for row in rows:
        if table is not None:
            table.writerow([row.seq, utc(row.time_ns), *map(_harmless, row[2:])])
        else:
            line = event_of(row) if format == "events" else _described(row)
            if line is None:
                continue
            file.write(msgspec.json.encode(line).decode() + "\n")
        written += 1
    return written


def _described(row: JournalRow) -> dict[str, object]:
    from interlock.core.journal.events import utc

    return {"seq": row.seq, "time": utc(row.time_ns), **row._asdict(), **row.digests}


def _harmless(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _progress(path: Path) -> nullcontext[None] | _Bar:
    from interlock.core.journal.reader import JournalReader

    if sys.stderr.isatty():
        newest = JournalReader(path).tail(1)
        if newest and newest[0].seq > _MANY:
            return _Bar()
    return nullcontext()


class _Bar:
    """How far it is, on a terminal."""

    def __enter__(self) -> Progress:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

        self._shown = Progress(
            "checking the journal",
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=output.create_console(stderr=True),
            transient=True,
        )
        self._shown.start()
        task = self._shown.add_task("")
        return lambda done, total: self._shown.update(task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._shown.stop()


def _as_dict(path: Path, verdict: VerificationReport) -> dict[str, object]:
    return {
        "journal": str(path),
        "whole": verdict.whole,
        "entries": verdict.entries,
        "first_seq": verdict.first_seq,
        "archived": verdict.archived,
        "head": str(verdict.head),
        "findings": [finding._asdict() for finding in verdict.findings],
        "more_findings": verdict.more_findings,
        "notes": verdict.notes,
    }


def _tell(path: Path, verdict: VerificationReport) -> None:
    for finding in verdict.findings:
        print(f"✗ {finding.sentence}")
    if verdict.more_findings:
        print(f"✗ … and {verdict.more_findings} more.")
    for one in verdict.notes:
        output.print_note(f"· {one}")
    archived = f", and {verdict.archived} in archives" if verdict.archived else ""
    if verdict.whole:
        print(f"✓ {path}: {verdict.entries} entries{archived}, all as they were written.")
        print(f"  head {verdict.head}")
    else:
        output.print_problem(
            f"{path} is not what was written. Keep it as it is for whoever looks into it; a node "
            "begins a new journal when this one, with its -wal and -shm files, is moved aside."
        )
