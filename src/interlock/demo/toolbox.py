"""The tools of the demo: their arguments, results and effects.

Arguments and results are msgspec Structs. The JSON Schemas of the tool list are generated from
them, so that the listed and the checked schema cannot differ. The notes are stored in memory only.
This module uses the clock and random numbers, and no files.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Raw

from interlock.sdk.tool import Report, ToolError, ToolResult, build_schema, read_arguments

_MAX_NOTES: Final = 1000


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """Base class of the arguments of all tools: members outside the schema are rejected."""


class NoArguments(Arguments):
    pass


class TimeArguments(Arguments):
    timezone: Annotated[
        str,
        Meta(description="An IANA time zone name, such as Europe/Zurich or UTC.", max_length=64),
    ] = "UTC"


class CurrentTime(msgspec.Struct):
    time: Annotated[str, Meta(description="Date and time in ISO 8601, with the offset from UTC.")]
    timezone: str
    weekday: str


class DiceArguments(Arguments):
    sides: Annotated[int, Meta(description="Sides of each die.", ge=2, le=1000)] = 6
    count: Annotated[int, Meta(description="How many dice are rolled.", ge=1, le=100)] = 1


class Dice(msgspec.Struct):
    rolls: list[int]
    total: int


class TextArguments(Arguments):
    text: Annotated[str, Meta(description="The text to measure.", max_length=100_000)]


class TextStats(msgspec.Struct):
    characters: int
    words: int
    lines: int
    longest_word: str


class NoteArguments(Arguments):
    id: Annotated[int, Meta(description="The number of the note, as notes_list shows it.", ge=1)]


class NewNote(Arguments):
    title: Annotated[str, Meta(description="A short title.", min_length=1, max_length=100)]
    text: Annotated[str, Meta(description="The note itself.", max_length=10_000)] = ""


class NoteLine(msgspec.Struct):
    id: int
    title: str


class NoteList(msgspec.Struct):
    notes: list[NoteLine]


class Note(msgspec.Struct):
    id: int
    title: str
    text: str


class CountArguments(Arguments):
    to: Annotated[int, Meta(description="The number to count to.", ge=1, le=1000)] = 5
    delay_ms: Annotated[
        int, Meta(description="Pause before each number, in milliseconds.", ge=0, le=10_000)
    ] = 500


class Counted(msgspec.Struct):
    counted_to: int


class FailArguments(Arguments):
    reason: Annotated[
        str, Meta(description="What the failure should say.", min_length=1, max_length=500)
    ] = "you asked for it"


class Tool(NamedTuple):
    """The list entry of a tool, and its function. A slow tool has `slow` instead of `run`."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    result: type[msgspec.Struct] | None
    hints: dict[str, bool]
    run: Callable[[Any], ToolResult] | None = None
    slow: Callable[[Any, Report], Awaitable[ToolResult]] | None = None

    def listed(self) -> dict[str, Any]:
        """Return the entry of the tool in `tools/list`."""
        listed: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": build_schema(self.arguments),
        }
        if self.result is not None:
            listed["outputSchema"] = build_schema(self.result)
        listed["annotations"] = {"title": self.title, **self.hints}
        return listed

    def start(self, arguments: Raw, report: Report) -> ToolResult | Awaitable[ToolResult]:
        """Call the tool. Raises ToolError, also for invalid arguments."""
        decoded = read_arguments(self.name, self.arguments, arguments)
        if self.run is not None:
            return self.run(decoded)
        assert self.slow is not None
        return self.slow(decoded, report)


# No tool has effects outside this process.
_READ_HINTS: Final = {"readOnlyHint": True, "openWorldHint": False}
_ADD_HINTS: Final = {
    "readOnlyHint": False,
    "destructiveHint": False,
    "idempotentHint": False,
    "openWorldHint": False,
}
# Not idempotent: the notes start again with each process, so a number may be another note.
_DELETE_HINTS: Final = {**_ADD_HINTS, "destructiveHint": True}


class Toolbox:
    """The tools by name, and the notes of some of them."""

    def __init__(self) -> None:
        self._notes = {
            1: Note(
                1, "Welcome", "These notes are in the memory of the demo. Add one, delete one."
            ),
            2: Note(2, "Try this", "Ask for count_slowly and watch its progress arrive."),
        }
        self._last_id = 2
        self.tools: dict[str, Tool] = {tool.name: tool for tool in self._all()}

    def _all(self) -> list[Tool]:
        return [
            Tool(
                "time_now",
                "Current time",
                "Returns the current date and time in a time zone.",
                TimeArguments,
                CurrentTime,
                _READ_HINTS,
                _time_now,
            ),
            Tool(
                "roll_dice",
                "Roll dice",
                "Rolls dice and adds them up. Every call rolls again, so results differ.",
                DiceArguments,
                Dice,
                _READ_HINTS,
                _roll_dice,
            ),
            Tool(
                "text_stats",
                "Measure a text",
                "Counts the characters, words and lines of a text and finds its longest word.",
                TextArguments,
                TextStats,
                _READ_HINTS,
                _text_stats,
            ),
            Tool(
                "notes_list",
                "List notes",
                "Lists the number and title of every note. Read one with notes_read.",
                NoArguments,
                NoteList,
                _READ_HINTS,
                self._list_notes,
            ),
            Tool(
                "notes_read",
                "Read a note",
                "Returns the whole text of one note.",
                NoteArguments,
                Note,
                _READ_HINTS,
                self._read_note,
            ),
            Tool(
                "notes_add",
                "Add a note",
                "Adds a note and returns its number. Notes are kept until the demo server ends.",
                NewNote,
                Note,
                _ADD_HINTS,
                self._add_note,
            ),
            Tool(
                "notes_delete",
                "Delete a note",
                "Deletes a note permanently. There is no copy: it cannot be undone.",
                NoteArguments,
                Note,
                _DELETE_HINTS,
                self._delete_note,
            ),
            Tool(
                "count_slowly",
                "Count slowly",
                "Counts to a number, pausing before each, and reports progress. Can be cancelled.",
                CountArguments,
                Counted,
                _READ_HINTS,
                slow=_count_slowly,
            ),
            Tool(
                "fail",
                "Fail on purpose",
                "Always fails with the given reason, to show what a tool error looks like.",
                FailArguments,
                None,
                _READ_HINTS,
                _fail,
            ),
        ]

    def _list_notes(self, _: NoArguments) -> ToolResult:
        lines = [NoteLine(note.id, note.title) for note in self._notes.values()]
        text = "\n".join(f"{line.id}: {line.title}" for line in lines) or "There are no notes."
        return ToolResult(text, NoteList(lines))

    def _read_note(self, arguments: NoteArguments) -> ToolResult:
        note = self._note(arguments.id)
        return ToolResult(f"{note.title}\n\n{note.text}", note)

    def _add_note(self, arguments: NewNote) -> ToolResult:
        if len(self._notes) >= _MAX_NOTES:
            raise ToolError(f"There are {_MAX_NOTES} notes already. Delete one first.")
        self._last_id += 1
        note = Note(self._last_id, arguments.title, arguments.text)
        self._notes[note.id] = note
        return ToolResult(f"Added note {note.id}: {note.title}", note)

    def _delete_note(self, arguments: NoteArguments) -> ToolResult:
        note = self._note(arguments.id)
        del self._notes[note.id]
        return ToolResult(f"Deleted note {note.id}: {note.title}", note)

    def _note(self, number: int) -> Note:
        note = self._notes.get(number)
        if note is None:
            numbers = ", ".join(map(str, self._notes)) or "none"
            raise ToolError(f"There is no note {number}. Existing notes: {numbers}.")
        return note


def _time_now(arguments: TimeArguments) -> ToolResult:
    # Imported here, because it would delay the start of the server.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    zone: tzinfo
    try:
        # UTC needs no time zone database. Not every machine has one.
        zone = UTC if arguments.timezone == "UTC" else ZoneInfo(arguments.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError(
            f"Unknown time zone {arguments.timezone!r}. "
            "Use an IANA name, such as Europe/Zurich, America/New_York or UTC."
        ) from None
    now = datetime.now(zone)
    moment = CurrentTime(now.isoformat(timespec="seconds"), arguments.timezone, now.strftime("%A"))
    return ToolResult(f"{moment.weekday}, {moment.time} ({moment.timezone})", moment)


def _roll_dice(arguments: DiceArguments) -> ToolResult:
    rolls = [random.randint(1, arguments.sides) for _ in range(arguments.count)]
    text = " + ".join(map(str, rolls))
    return ToolResult(
        text if len(rolls) == 1 else f"{text} = {sum(rolls)}", Dice(rolls, sum(rolls))
    )


def _text_stats(arguments: TextArguments) -> ToolResult:
    text = arguments.text
    words = text.split()
    stats = TextStats(
        len(text), len(words), len(text.splitlines()), max(words, key=len, default="")
    )
    return ToolResult(
        f"{stats.characters} characters, {stats.words} words, {stats.lines} lines, "
        f"longest word: {stats.longest_word or 'none'}",
        stats,
    )


async def _count_slowly(arguments: CountArguments, report: Report) -> ToolResult:
    for number in range(1, arguments.to + 1):
        await asyncio.sleep(arguments.delay_ms / 1000)
        report(number, arguments.to, f"Counted to {number} of {arguments.to}")
    return ToolResult(f"Counted to {arguments.to}.", Counted(arguments.to))


def _fail(arguments: FailArguments) -> ToolResult:
    raise ToolError(f"This tool fails on purpose: {arguments.reason}. Nothing was done.")
