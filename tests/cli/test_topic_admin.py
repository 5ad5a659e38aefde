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


def start_with_topics(world: CommandLine, **topics: Any) -> str:
    """A node with these topics; where its WebSocket is."""
    world.environ |= {name.upper(): secret for name, secret in SECRETS.items()}
    tokens = [{"name": name, "token": f"${{env:{name.upper()}}}"} for name in NAMES]
    world.config(tokens=tokens, topics={"admins": ["boss"], "rooms": ROOMS, **topics})
    return socket_of(world.up().url)


def socket_of(url: str) -> str:
    return url.replace("http://", "ws://").rpartition("/")[0] + "/ws"


class AdminWorld:
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
async def open_admin_api(world: CommandLine, url: str) -> AsyncIterator[AdminWorld]:
    async with asyncio.timeout(HANG_TIMEOUT), AsyncExitStack() as stack:
        yield AdminWorld(world, url, stack)


async def test_lists_topics_and_participants(world: CommandLine) -> None:
    async with open_admin_api(world, start_with_topics(world)) as there:
        await there.join("agent", "ops", "directed")
        await there.join("agent", "team-a")
        await there.join("worker", "team-a")
        result = await there.run("list")
        assert (result.returncode, result.stderr) == (0, "")
        lines = [line.split() for line in result.stdout.splitlines()]
        assert lines[0] == ["topic", "access", "profile", "node", "record", "members", "rejected"]
        assert lines[1] == ["ops", "restricted", "initial", "node", "-", "2", "0"]
        assert lines[2][0] == "node"
        assert result.stdout.splitlines()[2].endswith("the node itself")
        assert lines[3][:4] == ["agent", "proposal_only", "directed", "since"]
        assert lines[4] == ["quiet", "public", "none", "-", "heads", "1", "0"]
        assert lines[5][0] == "recorder"
        assert lines[6] == ["team-*", "private", "initial", "-", "-", "-", "-"]
        assert lines[7] == ["team-a", "private", "initial", "-", "-", "2", "0"]
        assert [line[:3] for line in lines[8:]] == [
            ["agent", "initial", "all"],
            ["worker", "initial", "all"],
        ]
        data = json.loads((await there.run("list", "--json")).stdout)
        assert [topic["name"] for topic in data["topics"]] == ["ops", "quiet", "team-*", "team-a"]


async def test_prints_topic_in_detail(world: CommandLine) -> None:
    async with open_admin_api(world, start_with_topics(world)) as there:
        await there.join("agent", "team-a")
        result = await there.run("list", "team-a")
        assert (result.returncode, result.stderr) == (0, "")
        assert (
            "access    private, 0 configured participants, by team-* in the config" in result.stdout
        )
        assert "members   1, at most 1000" in result.stdout
        assert "may send (initial):\n    mcp/proposal:*\n    chat\n" in result.stdout
        (one,) = json.loads((await there.run("list", "team-a", "--json")).stdout)["topics"]
        assert [member["participantId"] for member in one["members"]] == ["agent"]
        closed = await there.run("list", "team-b")
        assert "members   none," in closed.stdout
        missing = await there.run("list", "quite")
        assert (missing.returncode, missing.stdout) == (1, "")
        assert 'there is no topic quite; did you mean "quiet"?' in missing.stderr


async def test_grant_changes_capabilities(world: CommandLine) -> None:
    async with open_admin_api(world, start_with_topics(world)) as there:
        await there.join("agent", "team-a")
        await there.join("agent", "team-b")
        unclear = await there.run("grant", "agent", "mcp/request:tools/*")
        assert (unclear.returncode, unclear.stdout) == (1, "")
        assert "'agent' is in several topics: team-a, team-b." in unclear.stderr
        assert "Use --topic NAME." in unclear.stderr
        outcome = await there.run("grant", "agent", "mcp/request:tools/*", "--topic", "team-a")
        assert (outcome.returncode, outcome.stderr) == (0, "")
        assert outcome.stdout == (
            "agent\n"
            "  before  mcp/proposal:*, chat\n"
            "  now     mcp/proposal:*, chat, mcp/request:tools/*\n"
        )
        result = await there.run("list", "team-a")
        assert "may send:\n    mcp/proposal:*\n    chat\n    mcp/request:tools/*\n" in result.stdout
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


async def test_grant_warns_about_unusual_pattern(world: CommandLine) -> None:
    async with open_admin_api(world, start_with_topics(world)) as there:
        await there.join("agent", "ops")
        result = await there.run("grant", "agent", "mcp/requests:tools/*", "vote")
        assert result.returncode == 0
        assert result.stderr == (
            "Warning: no message has the kind mcp/requests:tools/*: use mcp/request:tools/*.\n"
        )
        # And one that the node refuses.
        outcome = await there.run("grant", "agent", "system/*")
        assert (outcome.returncode, outcome.stdout) == (1, "")
        assert "The capability 'system/*' grants nothing" in outcome.stderr


async def test_topic_admin_requires_administrator(world: CommandLine) -> None:
    async with open_admin_api(world, start_with_topics(world)) as there:
        await there.join("worker", "team-a")
        for arguments in (("list",), ("list", "ops"), ("grant", "worker", "mcp/*")):
            for token, says in (
                ("agent", "agent is not an administrator of topics"),
                ("wrong-0123456789abcdef", "token"),
                (None, "Set a token with $INTERLOCK_TOKEN or --token-file."),
            ):
                result = await there.run(*arguments, token=token)
                assert (result.returncode, result.stdout) == (1, ""), result
                assert says in result.stderr
                assert "team" not in result.stderr
        await there.join("boss", "ops")
        own = await there.run("grant", "boss", "x/*")
        assert own.returncode == 1
        assert "You cannot change your own capabilities." in own.stderr


def test_reports_missing_administrators(world: CommandLine) -> None:
    start_with_topics(world, admins=[])
    for arguments in (("list",), ("grant", "agent", "chat")):
        result = run(world, *arguments, token="boss")
        assert (result.returncode, result.stdout) == (1, "")
        assert (
            "has no administrators of topics (HTTP 404). Add them to topics.admins" in result.stderr
        )


def test_local_user_may_be_administrator(world: CommandLine) -> None:
    # An id that a URL would read otherwise.
    seats = [{"callers": ["local"], "id": "a/b?ü", "profile": "initial"}]
    world.config(topics={"admins": ["local"], "rooms": {"ops": {"participants": seats}}})
    node = world.up()
    result = run(world, "list", token=None)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1].split()[:2] == ["ops", "restricted"]
    address = node.url.rpartition("/")[0].removeprefix("http://")
    nobody = run(world, "grant", "a/b?ü", "chat", token=None)
    assert nobody.returncode == 1
    assert "There is no participant 'a/b?ü' in any topic now." in nobody.stderr
    # Also from where there is no config.
    (world.cwd / "interlock.yaml").rename(world.cwd / "away.yaml")
    assert run(world, "list", "--node", address, token=None).stdout == result.stdout


def test_admin_commands_report_missing_node(world: CommandLine) -> None:
    world.config(topics={"admins": ["local"], "rooms": {"ops": {}}})
    result = run(world, "list", token=None)
    assert (result.returncode, result.stdout) == (4, "")
    assert (
        f"cannot reach a node at 127.0.0.1:{world.port}. Start one: `interlock up`" in result.stderr
    )
    nowhere = f"127.0.0.1:{free_port()}"
    gateway = f"ws://{nowhere}/ws"
    result = run(world, "grant", "a", "chat", "--gateway", gateway, token=None)
    assert (result.returncode, result.stdout) == (4, "")
    assert f"cannot reach a node at {nowhere}: Connection refused." in result.stderr


def test_verifies_node_certificate_by_config_or_ca(world: CommandLine) -> None:
    for name in ("ours", "theirs"):
        (world.folder / name).mkdir()
    authority, stranger = (Authority(world.folder / name) for name in ("ours", "theirs"))
    certificate, key = authority.certificate("node", ["127.0.0.1"])
    topics = {"admins": ["local"], "rooms": {"ops": {"access": "private"}}}
    world.config(topics=topics, tls={"certificate": str(certificate), "key": str(key)})
    world.up()
    result = run(world, "list", token=None)
    assert (result.returncode, result.stderr) == (0, "")
    named = ("list", "--gateway", f"wss://127.0.0.1:{world.port}/ws", "--ca")
    assert run(world, *named, str(authority.file), token=None).stdout == result.stdout
    outcome = run(world, *named, str(stranger.file), token=None)
    assert (outcome.returncode, outcome.stdout) == (4, "")
    assert "its certificate is not trusted (" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(("grant", "agent"), "name a PATTERN to add", id="nothing"),
        pytest.param(("grant", " ", "chat"), "ID is empty", id="nobody"),
        pytest.param(("grant", "a", "x", "--topic", "a b"), "nvalid topic", id="topic"),
        pytest.param(("list", "a b"), "nvalid topic", id="list"),
    ],
)
def test_rejects_invalid_options(world: CommandLine, arguments: tuple[str, ...], says: str) -> None:
    result = world.run_here("topic", *arguments)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("list", "[OPTIONS] [TOPIC]"),
        ("grant", "[OPTIONS] ID [PATTERN]..."),
        ("join", "[OPTIONS] TOPIC"),
        ("call", "[OPTIONS] TOPIC ID TOOL [KEY=VALUE]..."),
    ],
)
def test_help_shows_usage(world: CommandLine, command: str, usage: str) -> None:
    output = " ".join(world.run_here("topic", command, "--help").stdout.split())
    assert f"Usage: interlock topic {command} {usage} " in output


def test_long_lists_are_cut_and_sanitized() -> None:
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
    assert lines[-1] == "  … and 2 more: `interlock topic list ops`"
    assert all(line.isprintable() for line in lines)
