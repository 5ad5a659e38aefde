"""Errors and exit codes of `interlock topic`."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import InterlockError
from interlock.topics.client import Chat, Event
from interlock.topics.commands.gateway_target import read_token
from tests.cli.topic_room import TopicRoom, at_terminal, room
from tests.support.command_line import INTERLOCK, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.feature("topics")

__all__ = ["room"]

SEATS = [{"callers": ["local"], "id": "operator", "profile": "full_access"}]


def send(
    world: CommandLine, room: TopicRoom, *more: str, token: str = "t-human", **also: Any
) -> Any:
    """Bytes in and out: what is piped need not be text."""
    return subprocess.run(
        [*INTERLOCK, "topic", "send", "ops", "--gateway", room.url, *more],
        cwd=world.cwd,
        env={**world.environ, "INTERLOCK_TOKEN": token},
        capture_output=True,
        timeout=HANG_TIMEOUT,
        check=False,
        **also,
    )


# -- what is not UTF-8


def test_sends_bytes_that_are_not_utf8(world: CommandLine, room: TopicRoom) -> None:
    messages: list[Event] = []
    room.join("agent", lambda one: one.on(Chat, messages.append))
    response = send(world, room, "-", input=b"err\xefur: 1 \xff\xfe\n")
    assert (response.returncode, response.stderr) == (0, b"")
    [event] = wait_until("it was heard", lambda: messages)
    assert event.content.text == "err\ufffdur: 1 \ufffd\ufffd"


def test_rejects_payload_that_is_not_utf8(world: CommandLine, room: TopicRoom) -> None:
    for more in (("--kind", "vote", "-"), ("--about", b"\xff", "hi"), ("--to", b"\xff", "hi")):
        response = send(world, room, *more, input=b'{"a": "\xff"}')
        assert response.returncode == 2, response.stderr
        assert b"Traceback" not in response.stderr
        assert b"UTF-8" in response.stderr


def test_invalid_stdin_line_is_replaced(world: CommandLine, room: TopicRoom) -> None:
    messages: list[Event] = []
    room.join("agent", lambda one: one.on(Chat, messages.append))
    joined = subprocess.Popen(
        [*INTERLOCK, "topic", "join", "ops", "--gateway", room.url],
        cwd=world.cwd,
        env={**world.environ, "INTERLOCK_TOKEN": "t-human"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert joined.stdin is not None
        joined.stdin.write(b"\xff\ngood\n")
        joined.stdin.flush()
        wait_until("both were heard", lambda: len(messages) == 2)
    finally:
        joined.send_signal(signal.SIGINT)
        _, errors = joined.communicate(timeout=HANG_TIMEOUT)
    assert [message.content.text for message in messages] == ["\ufffd", "good"]
    assert (joined.returncode, errors) == (0, b"")


# -- wrong usage


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:7400/ws", "wss://host/ws"),
        ("nonsense", "wss://host/ws"),
        ("unix:/tmp/ax.sock", "wss://host/ws"),
        ("wss://me:secret@host/ws", "INTERLOCK_TOKEN"),
        ("ws://example.com/ws", "wss://example.com/ws"),
        ("ws://127.0.0.1:7400/ws?token=secret", "no query"),
        ("wss://a..b/ws", "wss://host/ws"),
        (f"wss://{'a' * 70}.example.com/ws", "wss://host/ws"),
        ("ws://example.com/${x}", "wss://example.com/"),
    ],
)
def test_rejects_invalid_gateway_url_first(world: CommandLine, url: str, message: str) -> None:
    commands = (["send", "ops", "hi"], ["watch", "ops"], ["join", "ops"], ["list"],
                ["call", "ops", "worker", "w"])  # fmt: skip
    for command in commands:
        result = world.run_here("topic", *command, "--gateway", url)
        assert result.returncode == 2, result.stderr
        output = " ".join(result.stderr.replace("│", " ").split())
        assert message in output
        assert "/ax" not in output
        assert "secret" not in output


@pytest.mark.parametrize("command", [["send", "no topic", "hi"], ["watch", "no topic"]])
def test_rejects_invalid_topic_name(world: CommandLine, command: list[str]) -> None:
    result = world.run_here("topic", *command, "--gateway", "ws://127.0.0.1:1/ws")
    assert result.returncode == 2
    assert "nvalid topic" in result.stderr.replace("\n", " ")


def test_reports_path_without_topics(world: CommandLine) -> None:
    world.config(topics={"rooms": {"ops": {"participants": SEATS}}})
    node = world.up()
    elsewhere = node.url.replace("http://", "ws://").removesuffix("/mcp") + "/nothing"
    for command in (["send", "ops", "hi"], ["watch", "ops"]):
        result = world.run_here("topic", *command, "--gateway", elsewhere)
        assert result.returncode == 1, result.stderr
        assert "404" in result.stderr
        assert "/ws" in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"\nreal-token\n", "first line"), (b"two words\n", "characters")],
)
def test_rejects_unusable_token_file(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(InterlockError, match=message):
        read_token(file)


def test_notes_absent_recipient(world: CommandLine, room: TopicRoom) -> None:
    room.join("agent")
    response = send(world, room, "--to", "agent", "--to", "nobody", "hi")
    assert response.returncode == 0
    assert b"Note: nobody is not in ops now. Other participants: agent." in response.stderr
    response = send(world, room, "--to", "agent", "hi")
    assert (response.returncode, response.stderr) == (0, b"")


# -- at the screen


def test_failed_send_is_not_shown_as_sent(world: CommandLine, room: TopicRoom) -> None:
    agent, worker = room.join("agent"), room.join("worker")
    world.environ["INTERLOCK_TOKEN"] = "t-human"
    with at_terminal(world, "topic", "join", "ops", "--gateway", room.url) as terminal:
        terminal.wait_for("you are human")
        params = {"name": "write_file", "arguments": {}}
        room.do(agent.propose("worker", "tools/call", params))
        terminal.wait_for("── proposals: 1 ──")
        room.leave(worker)
        terminal.wait_for("worker left")
        terminal.type("\ta")
        terminal.wait_for("with these exact params:")
        terminal.type("y")
        terminal.wait_for("'worker' is not in the topic")
        assert not any("fulfils [" in row for row in terminal.screen)
        room.leave(agent)
        terminal.wait_for("agent left")
        terminal.type("r")
        terminal.wait_for("agent has disconnected, so no reason was sent.")
        terminal.type("\x03")
        assert terminal.end() == 0


# -- without a token


def test_nonparticipant_learns_its_name(world: CommandLine) -> None:
    world.config(topics={"rooms": {"ops": {"participants": [{"callers": ["agent"]}]}}})
    world.up()
    for command in (["send", "ops", "hi"], ["watch", "ops"]):
        result = world.run("topic", *command)
        assert result.returncode == 1
        assert "Without a token you are the caller local" in result.stderr
        assert "{callers: [local]" in result.stderr


def test_reports_node_without_topics(world: CommandLine) -> None:
    world.config()
    world.up()
    result = world.run("topic", "send", "ops", "hi")
    assert result.returncode == 1
    assert "no topics" in result.stderr
    assert "topics.rooms" in result.stderr


def test_second_program_without_token_is_rejected(world: CommandLine) -> None:
    world.config(topics={"rooms": {"ops": {"participants": SEATS}}})
    world.up()
    with at_terminal(world, "topic", "join", "ops") as terminal:
        terminal.wait_for("ops · you are operator")
        assert world.run("topic", "send", "ops", "hi").returncode == 0
        assert terminal.end() == 1
        terminal.wait_for_words("All programs without a token are one participant,")
        assert "(join, watch, send, call and bridge each have one)" in terminal.written


# -- a bridge that comes back


def test_bridge_reports_reconnection(world: CommandLine) -> None:
    import sys

    server = Path(__file__).parents[1] / "behaviour" / "servers" / "official.py"
    seats = [{"callers": ["local"], "id": "worker", "profile": "response_only"}]
    world.config(topics={"rooms": {"ops": {"participants": seats}}})
    node = world.up()
    command = ["topic", "bridge", "ops", "--", sys.executable, str(server), "stdio", "both"]
    with at_terminal(world, *command) as bridge:
        bridge.wait_for_words("in ops as worker; 6 tools")
        node.send(signal.SIGKILL)
        bridge.wait_for_words("Retrying")
        world.up()
        bridge.wait_for_words("in ops again as worker; 6 tools")
        bridge.process.send_signal(signal.SIGINT)
        assert bridge.end() == 0
