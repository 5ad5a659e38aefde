"""Selection of the gateway and of its token."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from bench.certificates import Authority
from interlock.errors import (
    CONFIG,
    FORBIDDEN,
    INTERNAL,
    UPSTREAM_LOST,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.topics.commands.gateway_target import find_gateway, read_token
from tests.cli.topic_room import at_terminal
from tests.support.command_line import CommandLine
from tests.support.ports import free_port

pytestmark = pytest.mark.feature("topics")

SEATS = [{"callers": ["local"], "id": "operator", "profile": "full_access"}]


@pytest.fixture(autouse=True)
def _without_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("INTERLOCK_TOKEN", raising=False)
    monkeypatch.delenv("INTERLOCK_CONFIG", raising=False)


@pytest.mark.parametrize(
    ("document", "url"),
    [
        ({"listen": "127.0.0.1:9001"}, "ws://127.0.0.1:9001/ws"),
        ({"listen": "[::1]:9001"}, "ws://[::1]:9001/ws"),
        (
            {"listen": "127.0.0.1:9001", "topics": {"path": "/rooms", "rooms": {"a": {}}}},
            "ws://127.0.0.1:9001/rooms",
        ),
    ],
)
def test_gateway_derives_from_config(tmp_path: Path, document: dict[str, object], url: str) -> None:
    path = tmp_path / "interlock.yaml"
    path.write_text(json.dumps(document))
    assert find_gateway(path, None, None, None).url == url


def test_gateway_option_selects_gateway() -> None:
    assert (
        find_gateway(None, None, "wss://node.example.com/ws", None).url
        == "wss://node.example.com/ws"
    )


def test_reads_token_from_file_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_token(None) is None
    monkeypatch.setenv("INTERLOCK_TOKEN", "from-the-environment")
    assert read_token(None) == "from-the-environment"
    file = tmp_path / "token"
    file.write_text("from-a-file\nand more\n")
    file.chmod(0o600)
    assert read_token(file) == "from-a-file"
    assert capsys.readouterr().err == ""
    file.chmod(0o644)
    assert read_token(file) == "from-a-file"
    output = capsys.readouterr().err
    assert "other users of this machine can read" in output
    assert "from-a-file" not in output


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_rejects_file_without_token(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InterlockError) as error:
        read_token(file)
    assert error.value.failure is CONFIG
    assert str(file) in error.value.message


def test_repr_hides_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-secret")
    file.chmod(0o600)
    there = find_gateway(None, None, "wss://node.example.com/ws", file)
    assert "a-secret" not in repr(there)
    assert "a-secret" not in repr(vars(there)["url"])
    assert there.settings(retry=True)["token"] == "a-secret"


def test_gateway_text_is_put_on_one_line() -> None:
    there = find_gateway(None, None, "wss://node.example.com/ws", None)
    explanation = there.explain(
        InterlockError(FORBIDDEN, "it closed: \x1b[2J\nNote: you are promoted")
    )
    assert explanation.message == "it closed: \ufffd[2J Note: you are promoted"
    there.error = InterlockError(UPSTREAM_LOST, "it is\ngone")
    assert there.explain(InterlockError(INTERNAL, "?")).message == "it is gone"


def test_local_user_needs_no_token(world: CommandLine) -> None:
    seats = [{"callers": ["local"], "id": "operator", "profile": "full_access"}]
    world.config(topics={"rooms": {"ops": {"participants": seats}}})
    world.up()
    result = world.run("topic", "send", "ops", "hello")
    assert (result.returncode, result.stderr) == (0, "")
    outcome = world.run("topic", "send", "elsewhere", "hello")
    assert outcome.returncode == 1
    assert "not a participant of a topic elsewhere" in outcome.stderr
    with at_terminal(world, "topic", "join", "ops") as terminal:
        terminal.wait_for("ops · you are operator · 1 here")
        terminal.type("\x04")
        assert terminal.end() == 0


@pytest.mark.parametrize("command", ["join", "watch"])
def test_first_connection_is_not_retried(world: CommandLine, command: str) -> None:
    nowhere = f"ws://127.0.0.1:{free_port()}/ws"
    with at_terminal(world, "topic", command, "ops", "--gateway", nowhere) as terminal:
        assert terminal.end() == 4
        terminal.wait_for_words("--node a node of this machine.")
    changed_record = terminal.written.replace("\r\n", " ")
    assert f"interlock: Cannot connect to {nowhere}: Connection refused." in changed_record
    assert "`interlock up` starts a node. --gateway selects another" in changed_record
    assert "Retrying" not in changed_record
    assert "\x1b[?1049h" not in changed_record


@pytest.mark.parametrize(
    "command", [["send", "ops", "hi"], ["watch", "ops"], ["call", "ops", "a", "b"]]
)
def test_suggests_starting_node(world: CommandLine, command: list[str]) -> None:
    world.config(topics={"rooms": {"ops": {"participants": SEATS}}})
    result = world.run("topic", *command)
    assert result.returncode == 4
    assert result.stderr == (
        f"interlock: Cannot connect to ws://127.0.0.1:{world.port}/ws: Connection refused. Start "
        "the node: `interlock up`. Or select a node at another address with --node, or "
        "any other gateway with --gateway.\n"
    )
    # One that runs elsewhere is named.
    other = free_port()
    world.up("--listen", f"127.0.0.1:{other}")
    result = world.run("topic", *command)
    assert result.returncode == 4
    assert f"But a node runs at 127.0.0.1:{other}; use --node 127.0.0.1:{other}." in result.stderr


def test_temporary_rejection_is_retried(capsys: pytest.CaptureFixture[str]) -> None:
    full = InterlockError(UPSTREAM_UNAVAILABLE, "n refused: HTTP 503.", {"status": 503})

    async def main() -> None:
        there = find_gateway(None, None, "wss://n/ws", None)
        again = there.settings(retry=True)["sleep"]
        there.error = full
        for _ in range(2):
            await again(0)
        there.error = InterlockError(UPSTREAM_UNAVAILABLE, "Cannot connect to n: no.")
        with pytest.raises(InterlockError):
            await again(0)
        # Who was inside looks for it again, whatever became of it.
        there._was_connected = True
        await again(0)

    asyncio.run(main())
    assert capsys.readouterr().err == "n refused: HTTP 503. Retrying.\n"


def test_lost_gateway_is_shown_and_reconnected(world: CommandLine) -> None:
    seats = [{"callers": ["local"], "id": "operator", "profile": "full_access"}]
    world.config(topics={"rooms": {"ops": {"participants": seats}}})
    node = world.up()
    with at_terminal(world, "topic", "join", "ops") as terminal:
        terminal.wait_for("ops · you are operator · 1 here  ")
        node.send(signal.SIGKILL)
        terminal.wait_for("not connected, retrying")
        terminal.type("are you there?\r")
        terminal.wait_for("There is no connection to the topic. Try")
        # It is not lost: once the gateway is there, Enter says it.
        terminal.wait_for("> are you there?")
        world.up()
        terminal.wait_for("ops · you are operator · 1 here  ")
        terminal.type("\r")
        terminal.wait_for("operator: are you there?")
        terminal.type("\x03")
        assert terminal.end() == 0


def test_certificate_of_config_is_trusted(world: CommandLine) -> None:
    for name in ("ours", "theirs"):
        (world.folder / name).mkdir()
    # Whatever name is in it: it is the very one.
    ours, key = Authority(world.folder / "ours").certificate("node", ["192.0.2.1"])
    theirs, _ = Authority(world.folder / "theirs").certificate("node", ["127.0.0.1"])
    topics = {
        "rooms": {"ops": {"participants": [{"callers": ["local"], "profile": "full_access"}]}}
    }
    world.config(topics=topics, tls={"certificate": str(ours), "key": str(key)})
    world.up()
    result = world.run("topic", "send", "ops", "hello")
    assert (result.returncode, result.stderr) == (0, "")
    world.config(topics=topics, tls={"certificate": str(theirs), "key": str(key)})
    outcome = world.run("topic", "send", "ops", "hello")
    assert outcome.returncode == 4
    assert "certificate" in outcome.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OPS", 'Its config has no topic OPS; did you mean "ops"?'),
        ("other", "Topics of its config: ops, team-*."),
    ],
)
def test_reports_topic_missing_from_config(world: CommandLine, name: str, message: str) -> None:
    seats = [{"callers": ["local"], "profile": "full_access"}]
    world.config(
        topics={"rooms": {"ops": {"participants": seats}, "team-*": {"participants": seats}}}
    )
    world.up()
    result = world.run_here("topic", "send", name, "hi")
    assert result.returncode == 1
    assert result.stderr.endswith(f" {message}\n")
    assert world.run_here("topic", "send", "team-x", "hi").returncode == 0


# -- options that are about something else


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--gateway", "wss://n/ws", "--config", "none.yaml"],
            "--config cannot be combined with --gateway",
        ),
        (["--gateway", "wss://n/ws", "--node", "8420"], "--node cannot be combined with --gateway"),
        (["--gateway", "ws://127.0.0.1:1/ws", "--ca", "none.pem"], "--ca requires a"),
        (["--ca", "none.pem"], "--ca requires a"),
        (["--node", "8420", "--ca", "none.pem"], "--ca requires a"),
    ],
)
def test_rejects_options_without_effect(
    world: CommandLine, options: list[str], message: str
) -> None:
    world.config(topics={"rooms": {"ops": {}}})
    for command in (["send", "ops", "hi"], ["watch", "ops"], ["list"], ["call", "ops", "a", "b"]):
        result = world.run_here("topic", *command, *options)
        assert result.returncode == 2, result.stderr
        assert message in " ".join(result.stderr.replace("│", " ").split())


def test_rejects_ca_for_own_node(world: CommandLine) -> None:
    certificate, key = Authority(world.folder).certificate("node", ["127.0.0.1"])
    world.config(tls={"certificate": str(certificate), "key": str(key)})
    result = world.run_here("topic", "send", "ops", "hi", "--ca", str(certificate))
    assert result.returncode == 2
    assert "already has its certificate." in " ".join(result.stderr.replace("│", " ").split())


# -- a node by its address


def test_reports_topics_path_of_node(world: CommandLine) -> None:
    config = world.config(topics={"path": "/rooms", "rooms": {"ops": {"participants": SEATS}}})
    node = world.up()
    assert node.status()["topics_url"] == f"ws://127.0.0.1:{world.port}/rooms"
    config.unlink()
    result = world.run_here("topic", "send", "ops", "hi", "--node", str(world.port))
    assert (result.returncode, result.stderr) == (0, "")
    # One of somebody else cannot be asked.
    other = str(world.folder)
    result = world.run_here(
        "topic", "send", "ops", "hi", "--node", str(world.port), XDG_STATE_HOME=other
    )
    assert result.returncode == 1
    assert "no topics" not in result.stderr
    assert f"so ws://127.0.0.1:{world.port}/ws was tried. Set another" in result.stderr


def test_node_option_supports_tls(world: CommandLine) -> None:
    authority = Authority(world.folder)
    certificate, key = authority.certificate("node", ["127.0.0.1"])
    tls = {"certificate": str(certificate), "key": str(key)}
    config = world.config(
        topics={"rooms": {"ops": {"participants": SEATS}}, "admins": ["local"]}, tls=tls
    )
    world.up()
    config.unlink()
    there = ["--node", str(world.port)]
    result = world.run_here("topic", "send", "ops", "hi", *there)
    assert result.returncode == 4
    assert "certificate is not trusted" in result.stderr
    assert "--ca FILE" in result.stderr
    for command in (["send", "ops", "hi"], ["list"]):
        assert world.run_here("topic", *command, *there).returncode == 4
        result = world.run_here("topic", *command, *there, "--ca", str(authority.file))
        assert (result.returncode, result.stderr) == (0, "")


def test_reports_invalid_config_without_node(world: CommandLine) -> None:
    path = world.config(topics={"path": "/rooms", "rooms": {"ops": {"participants": SEATS}}})
    changed_record = path.read_text().replace('"servers"', '"severs": {}, "servers"')
    path.write_text(changed_record)
    result = world.run_here("topic", "send", "ops", "hi")
    assert result.returncode == 3
    assert "severs" in result.stderr
    assert "earlier version" not in result.stderr


def test_reports_invalid_config_without_address(world: CommandLine) -> None:
    path = world.config(topics={"rooms": {"ops": {"participants": SEATS}}})
    world.up()
    path.write_text(path.read_text() + "]")
    for more in ({}, {"XDG_STATE_HOME": str(world.folder)}):
        result = world.run_here("topic", "send", "ops", "hi", **more)
        assert result.returncode == 3
        assert "check the brackets" in result.stderr
        assert "8420" not in result.stderr
        assert ("use --node" in result.stderr) == (not more)
    assert world.run_here("topic", "send", "ops", "hi", "--node", str(world.port)).returncode == 0


def test_invalid_config_selects_no_other_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One runs where one would look without a config.
    told = b'{"url": "http://127.0.0.1:8420/mcp", "upstreams": [], "topics_url": "ws://n/ws"}'
    monkeypatch.setattr("interlock.terminal.node_discovery.fetch_status", lambda _: told)
    path = tmp_path / "interlock.yaml"
    path.write_text("listen: 127.0.0.1:9001\ntopics: [")
    with pytest.raises(InterlockError, match="this is not valid YAML"):
        find_gateway(path, None, None, None)


def test_running_node_is_used_with_invalid_config(world: CommandLine) -> None:
    path = world.config(topics={"path": "/rooms", "rooms": {"ops": {"participants": SEATS}}})
    world.up()
    path.write_text(path.read_text().replace('"servers"', '"severs": {}, "servers"'))
    result = world.run_here("topic", "send", "ops", "hi")
    assert result.returncode == 0, result.stderr
    assert "Note: the config file is invalid; the node uses an earlier version: " in result.stderr


@pytest.mark.parametrize("command", [["send", "ops", "hi"], ["list"]])
def test_rejects_unencrypted_remote_connection(world: CommandLine, command: list[str]) -> None:
    world.config()
    result = world.run_here("topic", *command, "--node", "192.0.2.7:9999")
    assert result.returncode == 2
    assert "over ws:// is not encrypted" in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    "command", [["send", "ops", "hi"], ["watch", "ops"], ["call", "ops", "a", "b"]]
)
def test_reports_remote_node_without_tls(world: CommandLine, command: list[str]) -> None:
    world.config(listen="192.0.2.7:9999", tokens=[{"name": "a", "token": "${env:T}"}])
    result = world.run_here("topic", *command)
    assert result.returncode == 3
    assert "write wss://192.0.2.7:9999/ws" in result.stderr
    assert "Traceback" not in result.stderr
