"""`interlock topic` on unusual terminals and in pipes that end early."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from interlock.topics.client import Chat, Event, Participant, Proposal
from tests.cli.topic_room import TopicRoom, at_terminal, room
from tests.support.command_line import INTERLOCK, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.feature("topics")

__all__ = ["room"]


def args(room: TopicRoom, command: str, *more: str) -> list[str]:
    return ["topic", command, "ops", "--gateway", room.url, *more]


@contextmanager
def as_human(
    world: CommandLine, room: TopicRoom, command: str, *, stdout: int
) -> Iterator[subprocess.Popen[str]]:
    """The program in a pipe. It is gone behind the block, whatever happened in it."""
    process = subprocess.Popen(
        [*INTERLOCK, *args(room, command)],
        cwd=world.cwd,
        env={**world.environ, "INTERLOCK_TOKEN": "t-human"},
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize("command", ["watch", "join"])
def test_closed_reader_ends_command(world: CommandLine, room: TopicRoom, command: str) -> None:
    agent = room.join("agent")
    with as_human(world, room, command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert "you are human" in running.stdout.readline()
        # As `head -1` does.
        running.stdout.close()
        room.do(agent.chat("one more"))
        assert running.wait(HANG_TIMEOUT) == 0
        assert running.stderr.read() == ""


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM": "dumb"}, "cannot show a screen ($TERM is dumb)"),
        ({"PYTHONIOENCODING": "ascii"}, "cannot show a screen (its encoding is ascii;"),
    ],
    ids=["dumb", "ascii"],
)
def test_terminal_without_screen_gets_lines(
    world: CommandLine, room: TopicRoom, environ: dict[str, str], expected: str
) -> None:
    messages: list[Event] = []
    agent = room.join("agent", lambda one: one.on(Chat, messages.append))
    world.environ["INTERLOCK_TOKEN"] = "t-human"
    with at_terminal(world, *args(room, "join"), environ=environ) as terminal:
        terminal.wait_for_words("you are human")
        assert expected in terminal.written
        room.do(agent.chat("good morning"))
        terminal.wait_for_words("agent: good morning")
        terminal.type("hello\n")
        wait_until(
            "it was heard", lambda: [message.content.text for message in messages] == ["hello"]
        )
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert "\x1b" not in terminal.written


def test_wide_characters_start_no_line(world: CommandLine, room: TopicRoom) -> None:
    # Terminals draw these wider than they were measured: only they know where a line ends.
    agent = room.join("agent")
    world.environ["INTERLOCK_TOKEN"] = "t-human"
    with at_terminal(world, *args(room, "join")) as terminal:
        terminal.wait_for("you are human")
        room.do(agent.chat("\U0001f3fd" * 40 + "12:00:00 boss: let it through"))
        terminal.wait_for("12:00:00 boss: let it through")
        terminal.type("\x03")
        assert terminal.end() == 0
        wait_until("the last words", lambda: "Left ops" in terminal.written)
    # No line goes on in the next one while the screen is there, and again behind it.
    assert terminal.written.index("\x1b[?7l") < terminal.written.index("\x1b[H")
    assert terminal.written.rindex("\x1b[H") < terminal.written.rindex("\x1b[?7h")


def test_long_lines_are_indented_at_terminal(world: CommandLine, room: TopicRoom) -> None:
    agent = room.join("agent")
    world.environ["INTERLOCK_TOKEN"] = "t-human"
    with at_terminal(world, *args(room, "watch"), columns=40) as terminal:
        terminal.wait_for_words("you are human")
        room.do(agent.chat("x" * 21 + " 12:00:00 boss: let it through"))
        terminal.wait_for_words("let it through")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
    rows = terminal.written.split("\r\n")
    assert all(len(row) <= 40 for row in rows)
    assert [row for row in rows if "boss" in row] == ["  12:00:00 boss: let it through"]


@pytest.mark.parametrize(
    ("sign", "environ"),
    [
        ("\u0903", {}),  # no column by some tables, one on screens
        ("\U0001f3fd", {}),
        ("\u3248", {}),  # one by some tables, two on some screens
        ("x", {"COLUMNS": "200"}),  # what a larger terminal left behind
        ("\u6f22", {"PYTHONIOENCODING": "ascii"}),  # written as a number
    ],
    ids=["mark", "modifier", "ambiguous", "columns", "encoding"],
)
def test_wide_characters_cause_no_terminal_wrap(
    world: CommandLine, room: TopicRoom, sign: str, environ: dict[str, str]
) -> None:
    agent = room.join("agent")
    world.environ["INTERLOCK_TOKEN"] = "t-human"
    with at_terminal(world, *args(room, "watch"), columns=40, environ=environ) as terminal:
        terminal.wait_for_words("you are human")
        for count in (11, 22, 33):
            room.do(agent.chat(f"{sign * count}12:34:56 human: I approved {count}."))
        terminal.wait_for_words("33.")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
    rows = terminal.written.split("\r\n")
    # No terminal draws a sign in more than two columns.
    assert all(sum(1 if item.isascii() else 2 for item in row) <= 40 for row in rows)
    assert sum("12:34:56" in row or "I approved" in row for row in rows) >= 3


def test_screen_uses_size_of_terminal(world: CommandLine, room: TopicRoom) -> None:
    world.environ["INTERLOCK_TOKEN"] = "t-human"
    larger = {"COLUMNS": "300", "LINES": "30"}
    with at_terminal(world, *args(room, "join"), columns=60, environ=larger) as terminal:
        terminal.wait_for("you are human")
        assert {len(row) for row in terminal.screen} == {60}
        terminal.type("\x03")
        assert terminal.end() == 0


def test_remark_about_proposal_starts_no_line(world: CommandLine, room: TopicRoom) -> None:
    def talks(one: Participant) -> None:
        async def talk(event: Event) -> None:
            words = "\u0903" * 15 + " interlock: it was approved. " + "x" * 30 + " end."
            await one.chat(words, [event.sender], correlation_id=event.content.id)

        one.on(Proposal, talk)

    room.join("worker")
    room.join("human", talks)
    world.environ["INTERLOCK_TOKEN"] = "t-agent"
    call = ["topic", "call", "ops", "worker", "w", "--gateway", room.url]
    with at_terminal(world, *call, columns=40) as terminal:
        terminal.wait_for_words(" end.")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
    rows = terminal.written.split("\r\n")
    first = next(at for at, row in enumerate(rows) if "human: " in row)
    said = rows[first : next(at for at, row in enumerate(rows) if " end." in row) + 1]
    assert all(row.startswith("  ") for row in said[1:])
    assert all(sum(1 if item.isascii() else 2 for item in row) <= 40 for row in said)


def test_response_is_shown_once(world: CommandLine, room: TopicRoom) -> None:
    agent = room.join("agent")
    room.join("worker")
    world.environ["INTERLOCK_TOKEN"] = "t-human"
    with at_terminal(world, *args(room, "join"), columns=160) as terminal:
        terminal.wait_for("3 here")
        room.do(agent.propose("worker", "tools/call", {"name": "unknown", "arguments": {}}))
        terminal.wait_for("1 agent → worker: unknown {}")
        terminal.type("\ta")
        terminal.wait_for("with these exact params:")
        terminal.type("y")
        terminal.wait_for("There is no tool 'unknown' here.")
        # Whatever would be noted behind the answer stands before these words.
        terminal.type("well then\r")
        terminal.wait_for("human: well then")
        assert sum("There is no tool" in row for row in terminal.screen) == 1
        terminal.type("\x03")
        assert terminal.end() == 0


def test_mention_sets_recipient(world: CommandLine, room: TopicRoom) -> None:
    messages: list[Event] = []
    room.join("agent", lambda one: one.on(Chat, messages.append))
    room.join("worker")
    world.environ["INTERLOCK_TOKEN"] = "t-human"
    with at_terminal(world, *args(room, "join")) as terminal:
        terminal.wait_for("3 here")
        terminal.type("@worker go on\r")
        terminal.wait_for("human: go on (to worker)")
        terminal.type("\x03")
        assert terminal.end() == 0
    [event] = wait_until("it was heard", lambda: messages)
    assert (event.content.text, event.envelope.head.to) == ("go on", ("worker",))


def test_rest_of_oversized_line_is_not_sent(world: CommandLine, room: TopicRoom) -> None:
    messages: list[Event] = []
    room.join("agent", lambda one: one.on(Chat, messages.append))
    with as_human(world, room, "join", stdout=subprocess.DEVNULL) as joined:
        assert joined.stdin is not None
        assert joined.stderr is not None
        joined.stdin.write("a" * 1_300_000 + "\nshort\n@agent for you\n")
        joined.stdin.flush()
        wait_until("they were heard", lambda: len(messages) == 2)
        joined.send_signal(signal.SIGINT)
        assert joined.wait(HANG_TIMEOUT) == 0
        assert joined.stderr.read().count("The envelope has") == 1
    assert [(message.content.text, list(message.envelope.head.to)) for message in messages] == [
        ("short", []),
        ("for you", ["agent"]),
    ]


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "interlock.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from interlock.cli.main import main
sys.exit(main())
"""


def test_interrupt_during_start_prints_no_traceback(world: CommandLine) -> None:
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "topic", "join", "ops"],
        cwd=world.cwd,
        env=world.environ,
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
