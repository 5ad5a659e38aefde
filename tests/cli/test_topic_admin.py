"""`interlock topic list` and `topic grant`, with a real node that has tokens and administrators."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from bench.certificates import Authority
from interlock.topics.client import Participant
from interlock.topics.commands.admin import format_topics
from interlock.topics.overview import TopicDetails, TopicMember
from tests.support.command_line import CommandLine
from tests.support.ports import free_port
from tests.support.waiting import HANG_TIMEOUT

pytestmark = pytest.mark.feature("topics")

NAMES = ("agent", "worker", "boss")
SECRETS = {name: f"{name}-0123456789abcdef0123456789abcdef" for name in NAMES}
ROOMS = {
    "ops": {
        "node": "node",
        "participants": [
            {"callers": ["boss"], "profile": "full_access"},
            {"callers": ["agent"], "profile": "proposal_only"},
        ],
    },
    "quiet": {"access": "public", "profile": "none", "record": "heads"},
    "team-*": {"access": "private"},
}


def begin(world: CommandLine, **topics: Any) -> str:
    """A node with these topics; where its WebSocket is."""
    world.environ |= {name.upper(): secret for name, secret in SECRETS.items()}
    tokens = [{"name": name, "token": f"${{env:{name.upper()}}}"} for name in NAMES]
    world.config(tokens=tokens, topics={"admins": ["boss"], "rooms": ROOMS, **topics})
    return socket_of(world.up().url)


def socket_of(url: str) -> str:
    return url.replace("http://", "ws://").rpartition("/")[0] + "/ws"


class Inside:
    """Participants in topics of the node, and a terminal beside them."""

    def __init__(self, world: CommandLine, url: str, stack: AsyncExitStack) -> None:
        self._world = world
        self._url = url
        self._stack = stack

    async def join(self, name: str, topic: str, routing: Any = "all") -> Participant:
        one = Participant(self._url, topic=topic, token=SECRETS[name], routing=routing)
        await self._stack.enter_async_context(one.connected())
        return one

    async def run(
        self, *arguments: str, token: str | None = "boss"
    ) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(run, self._world, *arguments, token=token)


def run(world: CommandLine, *arguments: str, token: str | None) -> subprocess.CompletedProcess[str]:
    world.environ.pop("INTERLOCK_TOKEN", None)
    if token is not None:
        world.environ["INTERLOCK_TOKEN"] = SECRETS.get(token, token)
    return world.run("topic", *arguments)


@asynccontextmanager
async def open_admin_api(world: CommandLine, url: str) -> AsyncIterator[Inside]:
    async with asyncio.timeout(HANG_TIMEOUT), AsyncExitStack() as stack:
        yield Inside(world, url, stack)


async def test_all_topics_and_who_is_in_them(world: CommandLine) -> None:
    async with open_admin_api(world, begin(world)) as there:
        await there.join("agent", "ops", "directed")
        await there.join("agent", "team-a")
        await there.join("worker", "team-a")
        done = await there.run("list")
        assert (done.returncode, done.stderr) == (0, "")
        lines = [line.split() for line in done.stdout.splitlines()]
        assert lines[0] == ["topic", "access", "profile", "node", "record", "members", "rejected"]
        assert lines[1] == ["ops", "restricted", "initial", "node", "-", "2", "0"]
        assert lines[2][0] == "node"
        assert done.stdout.splitlines()[2].endswith("the node itself")
        assert lines[3][:4] == ["agent", "proposal_only", "directed", "since"]
        assert lines[4] == ["quiet", "public", "none", "-", "heads", "1", "0"]
        assert lines[5][0] == "recorder"
        assert lines[6] == ["team-*", "private", "initial", "-", "-", "-", "-"]
        assert lines[7] == ["team-a", "private", "initial", "-", "-", "2", "0"]
        assert [line[:3] for line in lines[8:]] == [
            ["agent", "initial", "all"],
            ["worker", "initial", "all"],
        ]
        told = json.loads((await there.run("list", "--json")).stdout)
        assert [one["name"] for one in told["topics"]] == ["ops", "quiet", "team-*", "team-a"]


async def test_one_topic_in_detail(world: CommandLine) -> None:
    async with open_admin_api(world, begin(world)) as there:
        await there.join("agent", "team-a")
        done = await there.run("list", "team-a")
        assert (done.returncode, done.stderr) == (0, "")
        assert (
            "access    private, 0 configured participants, by team-* in the config" in done.stdout
        )
        assert "members   1, at most 1000" in done.stdout
        assert "may send (initial):\n    mcp/proposal:*\n    chat\n" in done.stdout
        (one,) = json.loads((await there.run("list", "team-a", "--json")).stdout)["topics"]
        assert [member["participantId"] for member in one["members"]] == ["agent"]
        closed = await there.run("list", "team-b")
        assert "members   none," in closed.stdout
        missing = await there.run("list", "quite")
        assert (missing.returncode, missing.stdout) == (1, "")
        assert 'there is no topic quite; did you mean "quiet"?' in missing.stderr


async def test_what_somebody_may_say_is_changed(world: CommandLine) -> None:
    async with open_admin_api(world, begin(world)) as there:
        await there.join("agent", "team-a")
        await there.join("agent", "team-b")
        unclear = await there.run("grant", "agent", "mcp/request:tools/*")
        assert (unclear.returncode, unclear.stdout) == (1, "")
        assert "'agent' is in several topics: team-a, team-b." in unclear.stderr
        assert "Use --topic NAME." in unclear.stderr
        given = await there.run("grant", "agent", "mcp/request:tools/*", "--topic", "team-a")
        assert (given.returncode, given.stderr) == (0, "")
        assert given.stdout == (
            "agent\n"
            "  before  mcp/proposal:*, chat\n"
            "  now     mcp/proposal:*, chat, mcp/request:tools/*\n"
        )
        listed = await there.run("list", "team-a")
        assert "may send:\n    mcp/proposal:*\n    chat\n    mcp/request:tools/*\n" in listed.stdout
        taken = await there.run(
            "grant", "agent", "--topic", "team-a", "--json",
            "--take", "chat", "--take", "mcp/request:tools/call", "--take", "x/y",
        )  # fmt: skip
        assert json.loads(taken.stdout)["newCapabilities"] == [
            "mcp/proposal:*", "mcp/request:tools/*",
        ]  # fmt: skip
        assert taken.stderr.splitlines() == [
            "Note: it did not have mcp/request:tools/call before.",
            "Note: it did not have x/y before.",
            "Note: mcp/request:tools/* still grants mcp/request:tools/call.",
        ]
        same = await there.run("grant", "agent", "mcp/proposal:*", "--topic", "team-a")
        assert (same.returncode, same.stderr) == (0, "Note: nothing changed.\n")


async def test_a_pattern_that_looks_like_a_typo(world: CommandLine) -> None:
    async with open_admin_api(world, begin(world)) as there:
        await there.join("agent", "ops")
        done = await there.run("grant", "agent", "mcp/requests:tools/*", "vote")
        assert done.returncode == 0
        assert done.stderr == (
            "Warning: no message has the kind mcp/requests:tools/*: use mcp/request:tools/*.\n"
        )
        # And one that the node refuses.
        refused = await there.run("grant", "agent", "system/*")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "The capability 'system/*' grants nothing" in refused.stderr


async def test_it_is_for_administrators_alone(world: CommandLine) -> None:
    async with open_admin_api(world, begin(world)) as there:
        await there.join("worker", "team-a")
        for arguments in (("list",), ("list", "ops"), ("grant", "worker", "mcp/*")):
            for token, says in (
                ("agent", "agent is not an administrator of topics"),
                ("wrong-0123456789abcdef", "token"),
                (None, "Set a token with $INTERLOCK_TOKEN or --token-file."),
            ):
                done = await there.run(*arguments, token=token)
                assert (done.returncode, done.stdout) == (1, ""), done
                assert says in done.stderr
                assert "team" not in done.stderr
        await there.join("boss", "ops")
        own = await there.run("grant", "boss", "x/*")
        assert own.returncode == 1
        assert "You cannot change your own capabilities." in own.stderr


def test_nobody_administers(world: CommandLine) -> None:
    begin(world, admins=[])
    for arguments in (("list",), ("grant", "agent", "chat")):
        done = run(world, *arguments, token="boss")
        assert (done.returncode, done.stdout) == (1, "")
        assert (
            "has no administrators of topics (HTTP 404). Add them to topics.admins" in done.stderr
        )


def test_the_user_of_this_machine_administers_where_the_node_says_so(world: CommandLine) -> None:
    # An id that a URL would read otherwise.
    seats = [{"callers": ["local"], "id": "a/b?ü", "profile": "initial"}]
    world.config(topics={"admins": ["local"], "rooms": {"ops": {"participants": seats}}})
    node = world.up()
    listed = run(world, "list", token=None)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines()[1].split()[:2] == ["ops", "restricted"]
    address = node.url.rpartition("/")[0].removeprefix("http://")
    nobody = run(world, "grant", "a/b?ü", "chat", token=None)
    assert nobody.returncode == 1
    assert "There is no participant 'a/b?ü' in any topic now." in nobody.stderr
    # Also from where there is no config.
    (world.cwd / "interlock.yaml").rename(world.cwd / "away.yaml")
    assert run(world, "list", "--node", address, token=None).stdout == listed.stdout


def test_a_node_that_does_not_run(world: CommandLine) -> None:
    world.config(topics={"admins": ["local"], "rooms": {"ops": {}}})
    done = run(world, "list", token=None)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"cannot reach a node at 127.0.0.1:{world.port}. Start one with" in done.stderr
    nowhere = f"127.0.0.1:{free_port()}"
    gateway = f"ws://{nowhere}/ws"
    done = run(world, "grant", "a", "chat", "--gateway", gateway, token=None)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"cannot reach a node at {nowhere}: Connection refused." in done.stderr


def test_over_tls_by_the_certificate_of_the_config_or_by_a_ca(world: CommandLine) -> None:
    for name in ("ours", "theirs"):
        (world.folder / name).mkdir()
    authority, stranger = (Authority(world.folder / name) for name in ("ours", "theirs"))
    certificate, key = authority.certificate("node", ["127.0.0.1"])
    topics = {"admins": ["local"], "rooms": {"ops": {"access": "private"}}}
    world.config(topics=topics, tls={"certificate": str(certificate), "key": str(key)})
    world.up()
    done = run(world, "list", token=None)
    assert (done.returncode, done.stderr) == (0, "")
    named = ("list", "--gateway", f"wss://127.0.0.1:{world.port}/ws", "--ca")
    assert run(world, *named, str(authority.file), token=None).stdout == done.stdout
    refused = run(world, *named, str(stranger.file), token=None)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "its certificate is not trusted (" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(("grant", "agent"), "name a PATTERN to add", id="nothing"),
        pytest.param(("grant", " ", "chat"), "ID is empty", id="nobody"),
        pytest.param(("grant", "a", "x", "--topic", "a b"), "nvalid topic", id="topic"),
        pytest.param(("list", "a b"), "nvalid topic", id="list"),
    ],
)
def test_wrong_usage(world: CommandLine, arguments: tuple[str, ...], says: str) -> None:
    done = world.run_here("topic", *arguments)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("list", "[OPTIONS] [TOPIC]"),
        ("grant", "[OPTIONS] ID [PATTERN]..."),
        ("join", "[OPTIONS] TOPIC"),
        ("call", "[OPTIONS] TOPIC ID TOOL [KEY=VALUE]..."),
    ],
)
def test_how_they_are_called_is_shown(world: CommandLine, command: str, usage: str) -> None:
    shown = " ".join(world.run_here("topic", command, "--help").stdout.split())
    assert f"Usage: interlock topic {command} {usage} " in shown


def test_many_are_counted_and_nobody_writes_a_line_of_ours() -> None:
    members = tuple(
        TopicMember(f"m{number}\n\x1b[2J", ("chat",), "all", "never", 0, False)
        for number in range(12)
    )
    topic = TopicDetails(
        name="ops", entry="ops", access="private", profile="none", anonymous="none", seats=0,
        node=None, record="off", most=20, open=True, refused=3, members=members,
    )  # fmt: skip
    lines = list(format_topics([topic]))
    assert len(lines) == 2 + 10 + 1
    assert lines[-1] == "  … and 2 more: interlock topic list ops"
    assert all(line.isprintable() for line in lines)
