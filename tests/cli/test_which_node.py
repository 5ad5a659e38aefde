"""Finding the running node: by its config, by its address, and in words when it is elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.command_line import DEMO, CommandLine
from tests.support.ports import free_port
from tests.support.waiting import wait_until

CRASHES = "import sys; print('no LICENCE found', file=sys.stderr); sys.exit(3)"


@pytest.mark.parametrize("form", ["{port}", "127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}"])
def test_a_node_is_reached_by_its_address(world: CommandLine, form: str) -> None:
    world.up("--demo", "--listen", str(world.port)).pids()
    address = form.format(port=world.port)
    status = world.run_here("status", "--node", address)
    assert status.returncode == 0, status.stderr
    assert f":{world.port}/mcp" in status.stdout
    told = json.loads(world.run_here("tools", "--node", address, "--json").stdout)
    assert len(told["tools"]) == 9
    called = world.run_here("call", "demo.roll_dice", "--node", address, "--json-output")
    assert json.loads(called.stdout)["total"] >= 1
    wait_until(
        "the entry",
        lambda: "demo.roll_dice" in world.run_here("journal", "tail", "--node", address).stdout,
    )


def test_stdio_attaches_to_a_node_by_its_address(world: CommandLine) -> None:
    node = world.up("--demo", "--listen", str(world.port))
    node.pids()
    ping = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"})
    done = world.run("stdio", "--node", str(world.port), stdin=f"{ping}\n")
    assert json.loads(done.stdout) == {"jsonrpc": "2.0", "id": 7, "result": {}}


@pytest.mark.parametrize("command", [["tools"], ["status"], ["call", "demo.roll_dice"], ["stdio"]])
def test_a_node_elsewhere_is_told_in_words(world: CommandLine, command: list[str]) -> None:
    world.up("--demo", "--listen", str(world.port)).pids()
    # No config here, and nobody of this user at the default address.
    done = world.run(*command)
    assert done.returncode == 4
    assert done.stdout == ""
    here = f"127.0.0.1:{world.port}"
    assert done.stderr == (
        f"interlock: No node is running at 127.0.0.1:8420, but a node runs at {here}; "
        f"use --node {here}\n"
    )


def test_a_config_without_its_node_still_starts_its_own_servers(world: CommandLine) -> None:
    world.up("--demo", "--listen", str(world.port)).pids()
    elsewhere = free_port()
    world.config({"mine": DEMO}, listen=f"127.0.0.1:{elsewhere}")
    done = world.run_here("tools")
    assert done.returncode == 0
    assert "mine.roll_dice" in done.stdout
    here = f"127.0.0.1:{world.port}"
    assert f"Note: a node runs at {here}; use --node {here}\n" in done.stderr
    status = world.run_here("status")
    assert status.returncode == 4
    assert (
        f"No node is running at 127.0.0.1:{elsewhere}, but a node runs at {here}" in status.stderr
    )


def test_a_port_that_the_system_chose_is_found(world: CommandLine) -> None:
    node = world.up("--demo", "--listen", "0")
    node.pids()
    address = node.url.removeprefix("http://").removesuffix("/mcp")
    assert f"use --node {address}\n" in world.run_here("tools").stderr
    assert world.run_here("tools", "--node", address).returncode == 0


def test_an_address_without_a_node(world: CommandLine) -> None:
    for command in (["tools"], ["call", "x.y"], ["stdio"]):
        done = world.run_here(*command, "--node", str(world.port))
        assert done.returncode == 4
        here = f"127.0.0.1:{world.port}"
        assert f"No node of this user is running at {here}. " in done.stderr
        assert f"Start one there: interlock up --listen {here}\n" in done.stderr
    wrong = world.run_here("tools", "--node", "nonsense")
    assert wrong.returncode == 2


@pytest.mark.parametrize(
    "command", [["tools"], ["status"], ["call", "demo.x"], ["approvals"], ["tree"], ["stdio"]]
)
@pytest.mark.feature("tree")
def test_reports_a_wrong_config_though_another_node_runs(
    world: CommandLine, command: list[str]
) -> None:
    world.config({})
    node = world.up()
    bad = world.cwd / "bad.yaml"
    bad.write_text("severs: {}", encoding="utf-8")
    done = world.run_here(*command, "-c", "bad.yaml")
    assert done.returncode == 3, done.stderr
    assert "bad.yaml:1:1: severs: unknown key" in done.stderr
    assert f"a node runs at 127.0.0.1:{world.port}" in done.stderr
    node.end()


def test_a_config_that_has_become_wrong_does_not_hide_the_node(world: CommandLine) -> None:
    path = world.config({"demo": DEMO})
    node = world.up()
    node.pids()
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"servers"', '"severs": {}, "servers"'), encoding="utf-8")
    for command in (["tools"], ["status"], ["call", "demo.roll_dice"]):
        done = world.run_here(*command)
        assert done.returncode == 0, done.stderr
        assert (
            "Note: the config file is invalid; the node uses an earlier version: interlock.yaml:3:"
            in done.stderr
        )
    path.write_text("servers: [", encoding="utf-8")
    assert world.run_here("tools", "--node", str(world.port)).returncode == 0
    lost = world.run_here("tools")
    assert lost.returncode == 3
    assert "interlock.yaml:1:11:" in lost.stderr
    assert f"use --node 127.0.0.1:{world.port}" in lost.stderr
    node.end()
    assert world.run_here("tools").returncode == 3


EMERGENCY = [
    ["token", "list"],
    ["token", "show", "ci"],
    ["token", "revoke", "ci"],
    ["keys", "list"],
    ["keys", "new", "chief", "--no-passphrase"],
    ["keys", "remove", "chief", "--key", "chief"],
    ["keys", "node", "list"],
    ["pins", "list"],
    ["audit", "head"],
    ["audit", "verify"],
    ["audit", "tail"],
    ["audit", "export"],
]


@pytest.mark.parametrize("by_address", [False, True])
def test_a_wrong_config_does_not_stand_in_the_way(world: CommandLine, by_address: bool) -> None:
    path = world.config({"demo": DEMO})
    node = world.up()
    node.pids()
    assert world.run_here("token", "create", "ci").returncode == 0
    assert world.run_here("call", "demo.roll_dice").returncode == 0
    wait_until("an entry", lambda: world.run_here("audit", "head").returncode == 0)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"servers"', '"severs": {}, "servers"'), encoding="utf-8")
    named = ["--node", str(world.port)] if by_address else []
    for command in EMERGENCY:
        done = world.run_here(*command, *named)
        assert done.returncode == 0, (command, done.stderr)
        assert (
            "Note: the config file is invalid; the node uses an earlier version: interlock.yaml:3:"
            in done.stderr
        )
    told = json.loads(world.run_here("token", "list", "--json").stdout)
    assert [one["state"] for one in told["tokens"]] == ["revoked"]
    # Once nothing says where the node is, only its address does: nothing is changed elsewhere.
    path.write_text("servers: [", encoding="utf-8")
    lost = world.run_here("token", "list")
    assert lost.returncode == 3
    assert f"use --node 127.0.0.1:{world.port}" in lost.stderr
    assert world.run_here("token", "list", "--node", str(world.port)).returncode == 0
    path.write_text(text.replace('"listen"', '"lisen"'), encoding="utf-8")
    assert world.run_here("token", "list").returncode == 3
    # Without the node there is no reason to go on.
    path.write_text(text.replace('"servers"', '"severs": {}, "servers"'), encoding="utf-8")
    node.end()
    assert world.run_here("token", "list").returncode == 3


@pytest.mark.parametrize(
    "command",
    [["approvals"], ["status"], ["tools"], ["token", "list"], ["policy", "explain", "x.y"]],
)
def test_a_config_that_is_named_and_is_not_there(world: CommandLine, command: list[str]) -> None:
    for more, environ in (
        (["-c", "nowhere.yaml"], {}),
        ([], {"INTERLOCK_CONFIG": "nowhere.yaml"}),
    ):
        done = world.run_here(*command, *more, **environ)
        assert done.returncode == 3
        assert "nowhere.yaml: there is no such file" in done.stderr


def test_status_needs_no_token_of_its_own_user(world: CommandLine) -> None:
    tokens = [{"name": "me", "token": "${env:NODE_TOKEN}"}]
    world.config({"demo": DEMO}, tokens=tokens)
    world.up(NODE_TOKEN="s3cret-s3cret-s3cret").wait_for_line("demo is ready")
    assert world.run_here("status").returncode == 0
    # Without its socket it is a node like any other on the network.
    for path in world.state.rglob("status.sock"):
        path.unlink()
    missing = world.run_here("status")
    assert missing.returncode == 3
    assert "the token ${env:NODE_TOKEN}: the environment variable NODE_TOKEN" in missing.stderr
    wrong = world.run_here("status", NODE_TOKEN="something-else")
    assert wrong.returncode == 1
    assert "rejected the token (HTTP 401)" in wrong.stderr
    assert world.run_here("status", NODE_TOKEN="s3cret-s3cret-s3cret").returncode == 0


def test_servers_that_are_down_are_named(world: CommandLine, tmp_path: Path) -> None:
    script = tmp_path / "crash.py"
    script.write_text(CRASHES, encoding="utf-8")
    world.config({"demo": DEMO, "crash": f"{sys.executable} {script}"})
    node = world.up()
    wait_until(
        "both tried",
        lambda: {one["state"] for one in node.status()["upstreams"]} == {"ready", "failed"},
    )
    done = world.run("tools")
    assert done.returncode == 0
    assert "9 tools of 1 server" in done.stdout
    assert done.stderr.startswith("interlock: crash is not ready: ")
    assert "no LICENCE found" in done.stderr
    told = json.loads(world.run_here("tools", "--json").stdout)
    assert [one["key"] for one in told["unready"]] == ["crash"]
    for name in ("crash.foo", "crash__foo"):
        called = world.run_here("call", name)
        assert called.returncode == 4
        assert called.stderr.startswith("interlock: crash is not ready: ")
    wrong = world.run_here("call", "demo.nonsense")
    assert wrong.returncode == 1
    assert "crash" not in wrong.stderr
