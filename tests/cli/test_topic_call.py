"""`interlock topic call`: calls and proposals from a shell, with a real gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.terminal.results import print_result
from interlock.topics.client import Participant, Proposal
from interlock.topics.wire.payloads import write_chat_payload
from tests.cli.test_topic_program import Running
from tests.cli.topic_room import TopicRoom, room
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until

pytestmark = pytest.mark.feature("topics")

__all__ = ["room"]


def args(room: TopicRoom, *more: str) -> list[str]:
    return ["topic", "call", "ops", *more, "--gateway", room.url]


def add_tools(one: Participant) -> None:
    @one.tool()
    def repeat(word: str, times: int) -> str:
        return " ".join([word] * times)

    @one.tool()
    def fail() -> str:
        raise ValueError("the disk is full")


def set_token(world: CommandLine, name: str) -> None:
    world.environ["INTERLOCK_TOKEN"] = f"t-{name}"


def test_permitted_participant_calls_with_typed_values(world: CommandLine, room: TopicRoom) -> None:
    room.join("worker", add_tools)
    set_token(world, "human")
    result = world.run_here(*args(room, "worker", "repeat", "word=ha", "times=3"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "ha ha ha\n", "")
    whole = world.run_here(*args(room, "worker", "repeat", "--json", '{"word": "x", "times": 1}',
                                 "--json-output"))  # fmt: skip
    assert json.loads(whole.stdout)
    failed = world.run_here(*args(room, "worker", "fail"))
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "the disk is full" in failed.stderr


def test_unpermitted_participant_proposes_and_gets_result(
    world: CommandLine, room: TopicRoom
) -> None:
    def fulfils(one: Participant) -> None:
        async def fulfil(event: Any) -> None:
            await one.chat("looks good", [event.sender], correlation_id=event.content.id)
            await one.fulfil(event.content)

        one.on(Proposal, fulfil)

    room.join("worker", add_tools)
    room.join("human", fulfils)
    set_token(world, "agent")
    result = world.run_here(*args(room, "worker", "repeat", "word=ha", "times:=2"))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "ha ha\n"
    proposed, message = result.stderr.splitlines()
    assert proposed.startswith("Proposed to worker as ")
    assert message.endswith(": looks good")


def test_permitted_participant_can_propose(world: CommandLine, room: TopicRoom) -> None:
    worker = room.join("worker", add_tools)
    set_token(world, "human")
    words = ("worker", "repeat", "--propose", "--timeout", "0.1s", "word=ha", "times=2")
    assert world.run_here(*args(room, *words)).returncode == 1
    # The schema was asked for: whoever sees it, sees a number.
    [seen] = worker.proposals.values()
    assert json.loads(bytes(seen.params))["arguments"] == {"word": "ha", "times": 2}


def test_unfulfilled_proposal_times_out(world: CommandLine, room: TopicRoom) -> None:
    worker = room.join("worker", add_tools)
    set_token(world, "agent")
    result = world.run_here(*args(room, "worker", "repeat", "--timeout", "0.1s"))
    assert result.returncode == 1
    assert "interlock: The proposal was not fulfilled in time." in result.stderr
    assert [proposal.context for proposal in worker.proposals.values()] == ["repeat"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nobody", "repeat"), 1, "nobody"),
        (("", "repeat", "word=a", "times=1"), 2, "ID is empty"),
        (("worker", "repeat", "--json", '{"times": NaN}'), 2, "NaN"),
        (("worker", "repeat", "word"), 2, "'word' is not an argument"),
        (("worker", "repeat", "a=1", "--json", "{}"), 2, "not both"),
        (("worker", "repeat", "--json", "[]"), 2, "--json takes a JSON object"),
        (("worker", "repeat", "--timeout", "soon"), 2, "--timeout"),
        (("worker", "no-such"), 1, "no-such"),
        (("worker", "rep\udce4at"), 2, "not UTF-8"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(
    world: CommandLine, room: TopicRoom, arguments: tuple[str, ...], code: int, message: str
) -> None:
    room.join("worker", add_tools)
    set_token(world, "human")
    result = world.run_here(*args(room, *arguments))
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


ODD = [
    {}, {"content": "x"}, {"content": {"type": "text"}},
    {"content": [1, None, {"type": "text", "text": {"a": 1}}]},
    {"content": [{"type": "image", "data": 7, "mimeType": []}]},
    {"content": [{"type": "resource", "resource": 3}, {"type": ["text"]}]},
    {"isError": "yes", "_meta": 5, "structuredContent": [[]]},
]  # fmt: skip


@pytest.mark.parametrize("result", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("as_json", [True, False])
def test_prints_any_participant_result(
    result: dict[str, Any], as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_result(json.dumps(result).encode(), json_output=as_json) == 0
    output = capsys.readouterr()
    assert output.err == ""
    if as_json:
        assert json.loads(output.out) == result.get("structuredContent", result)


def test_interrupt_keeps_proposal_pending(world: CommandLine, room: TopicRoom) -> None:
    worker = room.join("worker", add_tools)
    set_token(world, "agent")
    running = Running(world, *args(room, "worker", "repeat", "word=a"))
    try:
        wait_until("the proposal", lambda: worker.proposals or None)
        code, errors = running.end()
        assert code == 130
        assert "Traceback" not in errors
        assert [proposal.status for proposal in worker.proposals.values()] == ["pending"]
    finally:
        running.close()


def test_rejection_by_other_participant_does_not_end_proposal(
    world: CommandLine, room: TopicRoom
) -> None:
    def wavers(one: Participant) -> None:
        async def reject(event: Any) -> None:
            payload = write_chat_payload("It was rejected.", end_reason="approval_refused")
            await one.send("chat", payload, [event.sender], event.content.id)
            await one.fulfil(event.content)

        one.on(Proposal, reject)

    room.join("worker", add_tools)
    room.join("human", wavers)
    set_token(world, "agent")
    result = world.run_here(*args(room, "worker", "repeat", "word=ha", "times:=2"))
    assert (result.returncode, result.stdout) == (0, "ha ha\n")
    assert "human: It was rejected.\nOthers may still fulfil it. Ctrl-C stops" in result.stderr


def test_rejection_by_target_ends_proposal_once(world: CommandLine, room: TopicRoom) -> None:
    def refuses(one: Participant) -> None:
        async def refuse(event: Any) -> None:
            payload = write_chat_payload("Not today.", end_reason="approval_refused")
            await one.send("chat", payload, [event.sender], event.content.id)

        one.on(Proposal, refuse)

    room.join("worker", refuses)
    set_token(world, "agent")
    result = world.run_here(*args(room, "worker", "repeat"))
    assert result.returncode == 1
    assert result.stderr.count("Not today.") == 1
