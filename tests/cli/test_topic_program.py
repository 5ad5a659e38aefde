"""`interlock topic` as a program, at a terminal and in pipes, with a real gateway."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.topics.client import Chat, Event, Participant
from tests.cli.topic_room import TopicRoom, at_terminal, room
from tests.support.command_line import INTERLOCK, CommandLine
from tests.support.ports import free_port
from tests.support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.feature("topics")

__all__ = ["room"]

OFFICIAL = Path(__file__).parents[1] / "behaviour" / "servers" / "official.py"


class MessageRecorder:
    """What a participant heard, and who wrote files."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.written: list[str] = []

    def listens(self, one: Participant) -> None:
        one.on(Chat, lambda event: self.events.append(event))

    def works(self, one: Participant) -> None:
        @one.tool()
        def write_file(path: str) -> str:
            self.written.append(path)
            return f"wrote {path}"

    @property
    def chats(self) -> list[str]:
        return [event.content.text for event in self.events]


def args(room: TopicRoom, command: str, *more: str) -> list[str]:
    return ["topic", command, "ops", "--gateway", room.url, *more]


class Running:
    """A program in a pipe, line by line."""

    def __init__(self, world: CommandLine, *arguments: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [*INTERLOCK, *arguments],
            cwd=world.cwd,
            env={**world.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, words: str) -> str:
        def found() -> str | None:
            assert (
                self.process.poll() is None
                or self._reader.is_alive()
                or any(words in line for line in self.lines)
            ), self.process.stderr and self.process.stderr.read()
            return next((line for line in self.lines if words in line), None)

        return wait_until(f"{words} in {self.lines}", found)

    def type(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=HANG_TIMEOUT)
        return self.process.returncode, errors

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(world: CommandLine) -> Iterator[Any]:
    running: list[Running] = []

    def begin(*arguments: str, **environ: str) -> Running:
        running.append(Running(world, *arguments, **environ))
        return running[-1]

    yield begin
    for process in running:
        process.close()


# -- at a terminal


def test_participant_chats_and_fulfils_with_keys(world: CommandLine, room: TopicRoom) -> None:
    heard = MessageRecorder()
    agent = room.join("agent", heard.listens)
    room.join("worker", heard.works)
    world.environ["INTERLOCK_TOKEN"] = "t-human"
    with at_terminal(world, *args(room, "join"), columns=160) as terminal:
        terminal.wait_for("ops · you are human · 3 here")
        terminal.wait_for("proposal_only")
        terminal.type("good morning\r")
        terminal.wait_for("human: good morning")
        wait_until("the agent heard it", lambda: "good morning" in heard.chats)
        # What an agent says can neither clear the screen nor look like another line.
        room.do(agent.chat("\x1b[2J\x1b[Hhi\n12:00:00 worker: fake"))
        terminal.wait_for("agent: \ufffd[2J\ufffd[Hhi 12:00:00 worker: fake")
        assert "\x1b[2J" not in terminal.written
        proposal = room.do(agent.propose("worker", "tools/call", call("/tmp/report")))
        terminal.wait_for('1 agent → worker: write_file {"path":"/tmp/report"}')
        terminal.type("\ta")
        terminal.wait_for("with these exact params:")
        terminal.wait_for('"path": "/tmp/report"')
        assert heard.written == []
        terminal.type("y")
        outcome = room.do(proposal.outcome(HANG_TIMEOUT))
        assert outcome["content"][0]["text"] == "wrote /tmp/report"
        assert heard.written == ["/tmp/report"]
        terminal.wait_for("responds to human, agent: tools/call write_file: wrote /tmp/report")
        # And one that is not wanted.
        room.do(agent.propose("worker", "tools/call", call("/etc/passwd")))
        terminal.wait_for("── proposals: 1 ──")
        terminal.type("\tr")
        wait_until("the agent is told", lambda: "It was rejected." in heard.chats)
        terminal.type("\x03")
        assert terminal.end() == 0
        assert heard.written == ["/tmp/report"]
        # The terminal is as it was.
        assert terminal.settings == terminal.before
        wait_until("the last words", lambda: "Left ops" in terminal.written)
        assert terminal.written.index("\x1b[?1049l") < terminal.written.index("Left ops")
    assert "t-human" not in terminal.written


def call(path: str) -> dict[str, Any]:
    return {"name": "write_file", "arguments": {"path": path}}


def test_unpermitted_participant_cannot_fulfil(world: CommandLine, room: TopicRoom) -> None:
    heard = MessageRecorder()
    agent = room.join("agent")
    room.join("worker", heard.works)
    world.environ["INTERLOCK_TOKEN"] = "t-boss"
    with at_terminal(world, *args(room, "join")) as terminal:
        terminal.wait_for("you are boss")
        room.do(agent.propose("worker", "tools/call", call("/a")))
        terminal.wait_for("── proposals: 1 ──")
        terminal.type("\ta")
        terminal.wait_for("boss may not send mcp/request:tools/call:write_file")
        assert not any("y fulfil" in row for row in terminal.screen)
        terminal.type("y")
        terminal.type("\x03")
        assert terminal.end() == 0
    assert heard.written == []


def test_terminal_is_restored_after_disconnect(world: CommandLine, room: TopicRoom) -> None:
    world.environ["INTERLOCK_TOKEN"] = "t-human"
    with at_terminal(world, *args(room, "join")) as terminal:
        terminal.wait_for("you are human")
        # The same participant comes in by another connection.
        room.join("human")
        assert terminal.end() == 1
        terminal.wait_for_words("and join again.")
        assert terminal.settings == terminal.before
        changed_record = terminal.written[terminal.written.rindex("\x1b[?1049l") :].replace(
            "\r\n", " "
        )
        assert (
            "Disconnected from ops: another program joined as the same participant"
            in changed_record
        )
        assert "(join, watch, send, call and bridge each have one)" in changed_record
        assert (
            "Give each program its own token, with $INTERLOCK_TOKEN or --token-file"
            in changed_record
        )


def test_message_flood_hides_and_decides_nothing(world: CommandLine, room: TopicRoom) -> None:
    heard = MessageRecorder()
    agent = room.join("agent", heard.listens)
    room.join("worker", heard.works)
    world.environ["INTERLOCK_TOKEN"] = "t-human"

    async def flood() -> None:
        for number in range(1500):
            await agent.chat(f"spam {number} " + "x" * 500)
        await agent.chat("the last")

    with at_terminal(world, *args(room, "join")) as terminal:
        terminal.wait_for("you are human")
        proposal = room.do(agent.propose("worker", "tools/call", call("/a")))
        terminal.wait_for("── proposals: 1 ──")
        terminal.type("\ta")
        terminal.wait_for("with these exact params:")
        room.do(flood())
        # The question stays where it is, and is answered by whoever was asked.
        terminal.wait_for('"path": "/a"')
        terminal.type("y")
        assert room.do(proposal.outcome(HANG_TIMEOUT))["content"]
        terminal.wait_for("agent: the last")
        terminal.type("still here\r")
        wait_until("it was heard", lambda: "still here" in heard.chats)
        terminal.type("\x03")
        assert terminal.end() == 0
    assert heard.written == ["/a"]


# -- in pipes


def test_sends_one_message(world: CommandLine, room: TopicRoom) -> None:
    heard = MessageRecorder()
    room.join("human", heard.listens)
    environ = {"INTERLOCK_TOKEN": "t-agent"}
    result = world.run(*args(room, "send"), "The build is green.", **environ)
    assert (result.returncode, result.stderr) == (0, "")
    [event] = wait_until("it was heard", lambda: heard.events)
    assert (event.content.text, event.sender) == ("The build is green.", "agent")
    assert event.id == result.stdout.strip()
    result = world.run(*args(room, "send"), "-", stdin="from a pipe\n", **environ)
    assert result.returncode == 0
    wait_until("it was heard", lambda: heard.chats[-1] == "from a pipe")


def test_script_sends_proposal_but_no_unpermitted_call(world: CommandLine, room: TopicRoom) -> None:
    human = room.join("human")
    token = world.cwd / "token"
    token.write_text("t-agent\n")
    token.chmod(0o600)
    kind = "mcp/proposal:tools/call:write_file"
    proposal = json.dumps({"method": "tools/call", "params": call("/a")})
    more = ("--kind", kind, "--token-file", str(token))
    result = world.run(*args(room, "send", *more), proposal)
    assert (result.returncode, result.stderr) == (0, "")
    wait_until("it is tracked", lambda: result.stdout.strip() in human.proposals)
    lie = json.dumps({"method": "tools/call", "params": {**call("/a"), "name": "rm"}})
    result = world.run(*args(room, "send", *more), lie)
    assert result.returncode == 1
    assert "Receivers would reject this message" in result.stderr
    result = world.run(*args(room, "send", *more[:1], "mcp/request:tools/call", *more[2:]), "{}")
    assert result.returncode == 1
    assert "agent may not send mcp/request:tools/call" in result.stderr
    assert len(human.proposals) == 1


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "message"),
    [
        (["ops", "hi"], {"INTERLOCK_TOKEN": "t-nobody"}, 1, "401"),
        (["other", "hi"], {"INTERLOCK_TOKEN": "t-human"}, 1, "403"),
        (["no topic", "hi"], {}, 2, "nvalid topic"),
        (["ops", " "], {}, 2, "TEXT is empty"),
        (["ops", "--kind", "vote", "hi"], {}, 2, "JSON object"),
        (["ops", "hi", "--token-file", "nowhere"], {}, 3, "cannot read the token file"),
        (["ops", "hi", "--to", "nobody", "--kind", "system/welcome", "{}"], {}, 2, "Got"),
    ],
)
def test_send_reports_mistakes(
    world: CommandLine,
    room: TopicRoom,
    arguments: list[str],
    environ: dict[str, str],
    code: int,
    message: str,
) -> None:
    result = world.run_here("topic", "send", *arguments, "--gateway", room.url, **environ)
    assert result.returncode == code, result.stderr
    assert message in result.stderr.replace("\n", " ")
    assert "t-" not in result.stderr.replace("nowhere", "")


def test_send_does_not_retry_connection(world: CommandLine) -> None:
    nowhere = f"ws://127.0.0.1:{free_port()}/ws"
    result = world.run("topic", "send", "ops", "hi", "--gateway", nowhere)
    assert result.returncode == 4
    # Once, and not that somebody tries again.
    assert result.stderr == (
        f"interlock: Cannot connect to {nowhere}: Connection refused. Is a gateway running there? "
        "`interlock up` starts a node. --gateway selects another gateway, --node a node of this "
        "machine.\n"
    )


def test_watch_prints_lines(world: CommandLine, room: TopicRoom, start: Any) -> None:
    watching = start(*args(room, "watch"), INTERLOCK_TOKEN="t-boss")
    watching.wait_for("* you are boss and may send")
    agent = room.join("agent")
    watching.wait_for("* agent joined and may send mcp/proposal:*, mcp/response:*, chat")
    room.do(agent.chat("hello\n\x1b[31mworld"))
    assert watching.wait_for("agent: hello").endswith("agent: hello \ufffd[31mworld")
    assert watching.end() == (0, "")


def test_watch_prints_json_envelopes(world: CommandLine, room: TopicRoom, start: Any) -> None:
    agent = room.join("agent")
    room.join("worker")
    more = ("--json", "--kind", "mcp/proposal:*")
    watching = start(*args(room, "watch", *more), INTERLOCK_TOKEN="t-boss")
    room.until_there("boss")
    room.do(agent.chat("not this"))
    room.do(agent.propose("worker", "tools/call", call("/a")))
    line = json.loads(watching.wait_for("mcp/proposal"))
    assert line["payload"]["params"] == call("/a")
    assert watching.end()[0] == 0
    assert len(watching.lines) == 1


def test_watch_filters_gateway_messages(world: CommandLine, room: TopicRoom, start: Any) -> None:
    watching = start(*args(room, "watch", "--kind", "system/*"), INTERLOCK_TOKEN="t-boss")
    watching.wait_for("* you are boss and may send")
    agent = room.join("agent")
    room.do(agent.chat("not this"))
    room.leave(agent)
    watching.wait_for("* agent left")
    assert watching.end() == (0, "")
    assert not any("not this" in line for line in watching.lines)
    result = world.run_here(*args(room, "watch", "--kind", "system/p*"))
    assert result.returncode == 2
    assert "or system/* for all of them" in " ".join(result.stderr.replace("│", " ").split())


def test_join_in_pipe_reads_and_prints_lines(
    world: CommandLine, room: TopicRoom, start: Any
) -> None:
    heard = MessageRecorder()
    agent = room.join("agent", heard.listens)
    joined = start(*args(room, "join"), INTERLOCK_TOKEN="t-human")
    joined.wait_for("you are human")
    joined.type("one\ntwo\n")
    wait_until("both were heard", lambda: heard.chats == ["one", "two"])
    joined.type("@nobody four\n@agent five\n")
    wait_until("they were heard", lambda: heard.chats[2:] == ["@nobody four", "five"])
    room.do(agent.chat("three"))
    joined.wait_for("agent: three")
    note = (
        "nobody is not in ops now, so it was sent to all participants. Other participants: agent."
    )
    assert joined.end() == (0, f"Note: {note}\n")


# -- a server


def test_bridged_server_is_called_in_topic(world: CommandLine, room: TopicRoom, start: Any) -> None:
    server = [sys.executable, str(OFFICIAL), "stdio", "both"]
    bridge = start(*args(room, "bridge"), "--", *server, INTERLOCK_TOKEN="t-worker")
    bridge.wait_for("in ops as worker; 6 tools")
    human = room.join("human")
    result = room.do(human.call("worker", "echo", {"text": "hé"}))
    assert result["content"][0]["text"] == "hé"
    outcome = room.do(human.request("worker", "tools/list"))
    assert "echo" in {tool["name"] for tool in outcome["tools"]}
    # To everybody: only who has it answers.
    answers = room.do(human.request_all("tools/call", {"name": "add", "arguments": {"a": 2}}, 20))
    assert {item: result["structuredContent"] for item, result in answers.items()} == {
        "worker": {"sum": 3}
    }
    code, errors = bridge.end()
    assert (code, errors) == (0, "Left ops\n")
    wait_until("it is gone", lambda: "worker" not in room.rooms.present)


def test_bridge_reports_failed_start_before_joining(world: CommandLine, room: TopicRoom) -> None:
    result = world.run(*args(room, "bridge"), "--", "/no/such/program", INTERLOCK_TOKEN="t-worker")
    assert result.returncode == 4
    assert result.stderr.startswith("interlock: Cannot start program: '/no/such/program'")
    assert result.stderr.count("\n") == 1
    assert room.rooms.present == []


def test_bridge_requires_one_server(world: CommandLine, room: TopicRoom) -> None:
    for more in ((), ("--url", "http://127.0.0.1:1/mcp", "--", "prog")):
        result = world.run_here(*args(room, "bridge"), *more)
        assert result.returncode == 2
        assert "Name one server" in result.stderr.replace("\n", " ")
