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


def works(one: Participant) -> None:
    @one.tool()
    def repeat(word: str, times: int) -> str:
        return " ".join([word] * times)

    @one.tool()
    def fail() -> str:
        raise ValueError("the disk is full")


def by(world: CommandLine, name: str) -> None:
    world.environ["INTERLOCK_TOKEN"] = f"t-{name}"


def test_who_may_calls_and_values_are_what_the_schema_says(
    world: CommandLine, room: TopicRoom
) -> None:
    room.join("worker", works)
    by(world, "human")
    done = world.run_here(*args(room, "worker", "repeat", "word=ha", "times=3"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "ha ha ha\n", "")
    whole = world.run_here(*args(room, "worker", "repeat", "--json", '{"word": "x", "times": 1}',
                                 "--json-output"))  # fmt: skip
    assert json.loads(whole.stdout)
    failed = world.run_here(*args(room, "worker", "fail"))
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "the disk is full" in failed.stderr


def test_who_may_not_proposes_and_gets_what_the_fulfilment_came_to(
    world: CommandLine, room: TopicRoom
) -> None:
    def fulfils(one: Participant) -> None:
        async def fulfil(event: Any) -> None:
            await one.chat("looks good", [event.sender], correlation_id=event.content.id)
            await one.fulfil(event.content)

        one.on(Proposal, fulfil)

    room.join("worker", works)
    room.join("human", fulfils)
    by(world, "agent")
    done = world.run_here(*args(room, "worker", "repeat", "word=ha", "times:=2"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ha ha\n"
    proposed, said = done.stderr.splitlines()
    assert proposed.startswith("proposed to worker as ")
    assert said.endswith(": looks good")


def test_who_may_call_can_propose_all_the_same(world: CommandLine, room: TopicRoom) -> None:
    worker = room.join("worker", works)
    by(world, "human")
    words = ("worker", "repeat", "--propose", "--timeout", "0.1s", "word=ha", "times=2")
    assert world.run_here(*args(room, *words)).returncode == 1
    # The schema was asked for: whoever sees it, sees a number.
    [seen] = worker.proposals.values()
    assert json.loads(bytes(seen.params))["arguments"] == {"word": "ha", "times": 2}


def test_nobody_fulfils_it(world: CommandLine, room: TopicRoom) -> None:
    worker = room.join("worker", works)
    by(world, "agent")
    done = world.run_here(*args(room, "worker", "repeat", "--timeout", "0.1s"))
    assert done.returncode == 1
    assert "interlock: The proposal was not fulfilled in time." in done.stderr
    assert [one.context for one in worker.proposals.values()] == ["repeat"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
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
def test_mistakes_get_a_sentence(
    world: CommandLine, room: TopicRoom, words: tuple[str, ...], code: int, told: str
) -> None:
    room.join("worker", works)
    by(world, "human")
    done = world.run_here(*args(room, *words))
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


ODD = [
    {}, {"content": "x"}, {"content": {"type": "text"}},
    {"content": [1, None, {"type": "text", "text": {"a": 1}}]},
    {"content": [{"type": "image", "data": 7, "mimeType": []}]},
    {"content": [{"type": "resource", "resource": 3}, {"type": ["text"]}]},
    {"isError": "yes", "_meta": 5, "structuredContent": [[]]},
]  # fmt: skip


@pytest.mark.parametrize("result", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("as_json", [True, False])
def test_whatever_a_participant_answers_is_shown(
    result: dict[str, Any], as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_result(json.dumps(result).encode(), json_output=as_json) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    if as_json:
        assert json.loads(shown.out) == result.get("structuredContent", result)


def test_ctrl_c_leaves_the_proposal_to_the_others(world: CommandLine, room: TopicRoom) -> None:
    worker = room.join("worker", works)
    by(world, "agent")
    running = Running(world, *args(room, "worker", "repeat", "word=a"))
    try:
        wait_until("the proposal", lambda: worker.proposals or None)
        code, errors = running.end()
        assert code == 130
        assert "Traceback" not in errors
        assert [one.status for one in worker.proposals.values()] == ["pending"]
    finally:
        running.close()


def test_a_rejection_of_another_does_not_end_it(world: CommandLine, room: TopicRoom) -> None:
    def wavers(one: Participant) -> None:
        async def reject(event: Any) -> None:
            payload = write_chat_payload("It was rejected.", end_reason="approval_refused")
            await one.send("chat", payload, [event.sender], event.content.id)
            await one.fulfil(event.content)

        one.on(Proposal, reject)

    room.join("worker", works)
    room.join("human", wavers)
    by(world, "agent")
    done = world.run_here(*args(room, "worker", "repeat", "word=ha", "times:=2"))
    assert (done.returncode, done.stdout) == (0, "ha ha\n")
    assert "human: It was rejected.\nOthers may still fulfil it. Ctrl-C stops" in done.stderr


def test_whom_it_was_proposed_to_ends_it_and_that_is_said_once(
    world: CommandLine, room: TopicRoom
) -> None:
    def refuses(one: Participant) -> None:
        async def refuse(event: Any) -> None:
            payload = write_chat_payload("Not today.", end_reason="approval_refused")
            await one.send("chat", payload, [event.sender], event.content.id)

        one.on(Proposal, refuse)

    room.join("worker", refuses)
    by(world, "agent")
    done = world.run_here(*args(room, "worker", "repeat"))
    assert done.returncode == 1
    assert done.stderr.count("Not today.") == 1
