"""Which gateway is meant, and with which token one goes there."""

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
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
def test_the_node_of_the_config_is_the_gateway(
    tmp_path: Path, document: dict[str, object], url: str
) -> None:
    path = tmp_path / "interlock.yaml"
    path.write_text(json.dumps(document))
    assert find_gateway(path, None, None, None).url == url


def test_another_gateway_may_be_named() -> None:
    assert (
        find_gateway(None, None, "wss://node.example.com/ws", None).url
        == "wss://node.example.com/ws"
    )


def test_a_token_comes_from_a_file_or_the_environment(
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
    told = capsys.readouterr().err
    assert "other users of this machine can read" in told
    assert "from-a-file" not in told


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_a_file_without_a_token_is_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InterlockError) as wrong:
        read_token(file)
    assert wrong.value.failure is CONFIG
    assert str(file) in wrong.value.message


def test_no_token_is_ever_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-secret")
    file.chmod(0o600)
    there = find_gateway(None, None, "wss://node.example.com/ws", file)
    assert "a-secret" not in repr(there)
    assert "a-secret" not in repr(vars(there)["url"])
    assert there.settings(retry=True)["token"] == "a-secret"


def test_what_a_gateway_says_is_no_line_of_its_own() -> None:
    there = find_gateway(None, None, "wss://node.example.com/ws", None)
    told = there.explain(InterlockError(FORBIDDEN, "it closed: \x1b[2J\nNote: you are promoted"))
    assert told.message == "it closed: \ufffd[2J Note: you are promoted"
    there.error = InterlockError(UPSTREAM_LOST, "it is\ngone")
    assert there.explain(InterlockError(INTERNAL, "?")).message == "it is gone"


def test_the_user_of_this_machine_needs_no_token(world: CommandLine) -> None:
    seats = [{"callers": ["local"], "id": "operator", "profile": "full_access"}]
    world.config(topics={"rooms": {"ops": {"participants": seats}}})
    world.up()
    done = world.run("topic", "send", "ops", "hello")
    assert (done.returncode, done.stderr) == (0, "")
    refused = world.run("topic", "send", "elsewhere", "hello")
    assert refused.returncode == 1
    assert "not a participant of a topic elsewhere" in refused.stderr
    with at_terminal(world, "topic", "join", "ops") as terminal:
        terminal.wait_for("ops · you are operator · 1 here")
        terminal.type("\x04")
        assert terminal.end() == 0


@pytest.mark.parametrize("command", ["join", "watch"])
def test_nobody_is_waited_for_who_was_never_there(world: CommandLine, command: str) -> None:
    nowhere = f"ws://127.0.0.1:{free_port()}/ws"
    with at_terminal(world, "topic", command, "ops", "--gateway", nowhere) as terminal:
        assert terminal.end() == 4
        terminal.wait_for_words("--node a node of this machine.")
    told = terminal.written.replace("\r\n", " ")
    assert f"interlock: Cannot connect to {nowhere}: Connection refused." in told
    assert "`interlock up` starts a node. --gateway selects another" in told
    assert "Retrying" not in told
    assert "\x1b[?1049h" not in told


@pytest.mark.parametrize(
    "command", [["send", "ops", "hi"], ["watch", "ops"], ["call", "ops", "a", "b"]]
)
def test_a_node_that_does_not_run_is_to_be_started(world: CommandLine, command: list[str]) -> None:
    world.config(topics={"rooms": {"ops": {"participants": SEATS}}})
    done = world.run("topic", *command)
    assert done.returncode == 4
    assert done.stderr == (
        f"interlock: Cannot connect to ws://127.0.0.1:{world.port}/ws: Connection refused. Start "
        "the node with: interlock up. Or select a node at another address with --node, or "
        "any other gateway with --gateway.\n"
    )
    # One that runs elsewhere is named.
    other = free_port()
    world.up("--listen", f"127.0.0.1:{other}")
    done = world.run("topic", *command)
    assert done.returncode == 4
    assert f"But a node runs at 127.0.0.1:{other}; use --node 127.0.0.1:{other}." in done.stderr


def test_who_answers_at_first_with_no_is_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_lost_gateway_is_shown_and_found_again(world: CommandLine) -> None:
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


def test_over_tls_the_certificate_of_the_config_is_enough(world: CommandLine) -> None:
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
    done = world.run("topic", "send", "ops", "hello")
    assert (done.returncode, done.stderr) == (0, "")
    world.config(topics=topics, tls={"certificate": str(theirs), "key": str(key)})
    refused = world.run("topic", "send", "ops", "hello")
    assert refused.returncode == 4
    assert "certificate" in refused.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("OPS", 'Its config has no topic OPS; did you mean "ops"?'),
        ("other", "Topics of its config: ops, team-*."),
    ],
)
def test_a_topic_that_is_not_in_the_config_is_told(
    world: CommandLine, name: str, words: str
) -> None:
    seats = [{"callers": ["local"], "profile": "full_access"}]
    world.config(
        topics={"rooms": {"ops": {"participants": seats}, "team-*": {"participants": seats}}}
    )
    world.up()
    done = world.run_here("topic", "send", name, "hi")
    assert done.returncode == 1
    assert done.stderr.endswith(f" {words}\n")
    assert world.run_here("topic", "send", "team-x", "hi").returncode == 0


# -- options that are about something else


@pytest.mark.parametrize(
    ("options", "words"),
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
def test_an_option_that_would_change_nothing_is_told(
    world: CommandLine, options: list[str], words: str
) -> None:
    world.config(topics={"rooms": {"ops": {}}})
    for command in (["send", "ops", "hi"], ["watch", "ops"], ["list"], ["call", "ops", "a", "b"]):
        done = world.run_here("topic", *command, *options)
        assert done.returncode == 2, done.stderr
        assert words in " ".join(done.stderr.replace("│", " ").split())


def test_a_ca_is_not_for_a_node_whose_certificate_is_known(world: CommandLine) -> None:
    certificate, key = Authority(world.folder).certificate("node", ["127.0.0.1"])
    world.config(tls={"certificate": str(certificate), "key": str(key)})
    done = world.run_here("topic", "send", "ops", "hi", "--ca", str(certificate))
    assert done.returncode == 2
    assert "already has its certificate." in " ".join(done.stderr.replace("│", " ").split())


# -- a node by its address


def test_a_node_says_where_its_topics_are(world: CommandLine) -> None:
    config = world.config(topics={"path": "/rooms", "rooms": {"ops": {"participants": SEATS}}})
    node = world.up()
    assert node.status()["topics_url"] == f"ws://127.0.0.1:{world.port}/rooms"
    config.unlink()
    done = world.run_here("topic", "send", "ops", "hi", "--node", str(world.port))
    assert (done.returncode, done.stderr) == (0, "")
    # One of somebody else cannot be asked.
    other = str(world.folder)
    done = world.run_here(
        "topic", "send", "ops", "hi", "--node", str(world.port), XDG_STATE_HOME=other
    )
    assert done.returncode == 1
    assert "no topics" not in done.stderr
    assert f"so ws://127.0.0.1:{world.port}/ws was tried. Set another" in done.stderr


def test_a_node_by_its_address_may_speak_tls(world: CommandLine) -> None:
    authority = Authority(world.folder)
    certificate, key = authority.certificate("node", ["127.0.0.1"])
    tls = {"certificate": str(certificate), "key": str(key)}
    config = world.config(
        topics={"rooms": {"ops": {"participants": SEATS}}, "admins": ["local"]}, tls=tls
    )
    world.up()
    config.unlink()
    there = ["--node", str(world.port)]
    done = world.run_here("topic", "send", "ops", "hi", *there)
    assert done.returncode == 4
    assert "certificate is not trusted" in done.stderr
    assert "--ca FILE" in done.stderr
    for command in (["send", "ops", "hi"], ["list"]):
        assert world.run_here("topic", *command, *there).returncode == 4
        done = world.run_here("topic", *command, *there, "--ca", str(authority.file))
        assert (done.returncode, done.stderr) == (0, "")


def test_a_wrong_config_without_a_node_is_what_is_wrong(world: CommandLine) -> None:
    path = world.config(topics={"path": "/rooms", "rooms": {"ops": {"participants": SEATS}}})
    wrong = path.read_text().replace('"servers"', '"severs": {}, "servers"')
    path.write_text(wrong)
    done = world.run_here("topic", "send", "ops", "hi")
    assert done.returncode == 3
    assert "severs" in done.stderr
    assert "earlier version" not in done.stderr


def test_a_config_that_names_no_node_is_what_is_wrong(world: CommandLine) -> None:
    path = world.config(topics={"rooms": {"ops": {"participants": SEATS}}})
    world.up()
    path.write_text(path.read_text() + "]")
    for more in ({}, {"XDG_STATE_HOME": str(world.folder)}):
        done = world.run_here("topic", "send", "ops", "hi", **more)
        assert done.returncode == 3
        assert "check the brackets" in done.stderr
        assert "8420" not in done.stderr
        assert ("use --node" in done.stderr) == (not more)
    assert world.run_here("topic", "send", "ops", "hi", "--node", str(world.port)).returncode == 0


def test_a_config_that_names_no_node_means_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One runs where one would look without a config.
    told = b'{"url": "http://127.0.0.1:8420/mcp", "upstreams": [], "topics_url": "ws://n/ws"}'
    monkeypatch.setattr("interlock.terminal.node_discovery.fetch_status", lambda _: told)
    path = tmp_path / "interlock.yaml"
    path.write_text("listen: 127.0.0.1:9001\ntopics: [")
    with pytest.raises(InterlockError, match="this is not valid YAML"):
        find_gateway(path, None, None, None)


def test_a_node_that_runs_by_an_earlier_config_is_asked(world: CommandLine) -> None:
    path = world.config(topics={"path": "/rooms", "rooms": {"ops": {"participants": SEATS}}})
    world.up()
    path.write_text(path.read_text().replace('"servers"', '"severs": {}, "servers"'))
    done = world.run_here("topic", "send", "ops", "hi")
    assert done.returncode == 0, done.stderr
    assert "Note: the config file is invalid; the node uses an earlier version: " in done.stderr


@pytest.mark.parametrize("command", [["send", "ops", "hi"], ["list"]])
def test_nothing_goes_to_another_machine_in_the_clear(
    world: CommandLine, command: list[str]
) -> None:
    world.config()
    done = world.run_here("topic", *command, "--node", "192.0.2.7:9999")
    assert done.returncode == 2
    assert "over ws:// is not encrypted" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    "command", [["send", "ops", "hi"], ["watch", "ops"], ["call", "ops", "a", "b"]]
)
def test_a_node_that_listens_for_others_without_tls_is_told(
    world: CommandLine, command: list[str]
) -> None:
    world.config(listen="192.0.2.7:9999", tokens=[{"name": "a", "token": "${env:T}"}])
    done = world.run_here("topic", *command)
    assert done.returncode == 3
    assert "write wss://192.0.2.7:9999/ws" in done.stderr
    assert "Traceback" not in done.stderr
