"""Finding the running node by config or address, and its error messages."""

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
def test_finds_node_by_address(world: CommandLine, form: str) -> None:
    world.up("--demo", "--listen", str(world.port)).pids()
    address = form.format(port=world.port)
    status = world.run_here("status", "--node", address)
    assert status.returncode == 0, status.stderr
    assert f":{world.port}/mcp" in status.stdout
    data = json.loads(world.run_here("tools", "--node", address, "--json").stdout)
    assert len(data["tools"]) == 9
    called = world.run_here("call", "demo.roll_dice", "--node", address, "--json-output")
    assert json.loads(called.stdout)["total"] >= 1
    wait_until(
        "the entry",
        lambda: "demo.roll_dice" in world.run_here("journal", "tail", "--node", address).stdout,
    )


def test_stdio_attaches_to_node_by_address(world: CommandLine) -> None:
    node = world.up("--demo", "--listen", str(world.port))
    node.pids()
    ping = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"})
    result = world.run("stdio", "--node", str(world.port), stdin=f"{ping}\n")
    assert json.loads(result.stdout) == {"jsonrpc": "2.0", "id": 7, "result": {}}


@pytest.mark.parametrize("command", [["tools"], ["status"], ["call", "demo.roll_dice"], ["stdio"]])
def test_reports_node_at_other_address(world: CommandLine, command: list[str]) -> None:
    world.up("--demo", "--listen", str(world.port)).pids()
    # No config here, and nobody of this user at the default address.
    result = world.run(*command)
    assert result.returncode == 4
    assert result.stdout == ""
    here = f"127.0.0.1:{world.port}"
    assert result.stderr == (
        f"interlock: No node is running at 127.0.0.1:8420, but a node runs at {here}; "
        f"use --node {here}\n"
    )


def test_config_without_node_starts_own_servers(world: CommandLine) -> None:
    world.up("--demo", "--listen", str(world.port)).pids()
    elsewhere = free_port()
    world.config({"mine": DEMO}, listen=f"127.0.0.1:{elsewhere}")
    result = world.run_here("tools")
    assert result.returncode == 0
    assert "mine.roll_dice" in result.stdout
    here = f"127.0.0.1:{world.port}"
    assert f"Note: a node runs at {here}; use --node {here}\n" in result.stderr
    for command in (["keys", "list"], ["keys", "approve", "ffffff"], ["keys", "reject", "ffffff"]):
        assert f"but a node runs at {here}; use --node {here}\n" in world.run_here(*command).stderr
    status = world.run_here("status")
    assert status.returncode == 4
    assert (
        f"No node is running at 127.0.0.1:{elsewhere}, but a node runs at {here}" in status.stderr
    )


def test_finds_node_on_system_chosen_port(world: CommandLine) -> None:
    node = world.up("--demo", "--listen", "0")
    node.pids()
    address = node.url.removeprefix("http://").removesuffix("/mcp")
    assert f"use --node {address}\n" in world.run_here("tools").stderr
    assert world.run_here("tools", "--node", address).returncode == 0


def test_address_without_node_fails(world: CommandLine) -> None:
    for command in (["tools"], ["call", "x.y"], ["stdio"]):
        result = world.run_here(*command, "--node", str(world.port))
        assert result.returncode == 4
        here = f"127.0.0.1:{world.port}"
        assert f"No node of this user is running at {here}. " in result.stderr
        assert f"Start one there: `interlock up --listen {here}`\n" in result.stderr
    outcome = world.run_here("tools", "--node", "nonsense")
    assert outcome.returncode == 2


@pytest.mark.parametrize(
    "command", [["tools"], ["status"], ["call", "demo.x"], ["approvals"], ["tree"], ["stdio"]]
)
@pytest.mark.feature("tree")
def test_reports_invalid_config_beside_running_node(world: CommandLine, command: list[str]) -> None:
    world.config({})
    node = world.up()
    bad = world.cwd / "bad.yaml"
    bad.write_text("severs: {}", encoding="utf-8")
    result = world.run_here(*command, "-c", "bad.yaml")
    assert result.returncode == 3, result.stderr
    assert "bad.yaml:1:1: severs: unknown key" in result.stderr
    assert f"a node runs at 127.0.0.1:{world.port}" in result.stderr
    node.end()


def test_invalidated_config_does_not_hide_node(world: CommandLine) -> None:
    path = world.config({"demo": DEMO})
    node = world.up()
    node.pids()
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"servers"', '"severs": {}, "servers"'), encoding="utf-8")
    for command in (["tools"], ["status"], ["call", "demo.roll_dice"]):
        result = world.run_here(*command)
        assert result.returncode == 0, result.stderr
        assert (
            "Note: the config file is invalid; the node uses an earlier version: interlock.yaml:3:"
            in result.stderr
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
def test_commands_work_with_invalidated_config(world: CommandLine, by_address: bool) -> None:
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
        result = world.run_here(*command, *named)
        assert result.returncode == 0, (command, result.stderr)
        assert (
            "Note: the config file is invalid; the node uses an earlier version: interlock.yaml:3:"
            in result.stderr
        )
    data = json.loads(world.run_here("token", "list", "--json").stdout)
    assert [token["state"] for token in data["tokens"]] == ["revoked"]
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
def test_reports_missing_named_config(world: CommandLine, command: list[str]) -> None:
    for more, environ in (
        (["-c", "nowhere.yaml"], {}),
        ([], {"INTERLOCK_CONFIG": "nowhere.yaml"}),
    ):
        result = world.run_here(*command, *more, **environ)
        assert result.returncode == 3
        assert "nowhere.yaml: there is no such file" in result.stderr


def test_status_of_own_user_needs_no_token(world: CommandLine) -> None:
    tokens = [{"name": "me", "token": "${env:NODE_TOKEN}"}]
    world.config({"demo": DEMO}, tokens=tokens)
    world.up(NODE_TOKEN="s3cret-s3cret-s3cret").wait_for_line("upstream demo: ready")
    assert world.run_here("status").returncode == 0
    # Without its socket it is a node like any other on the network.
    for path in world.state.rglob("status.sock"):
        path.unlink()
    missing = world.run_here("status")
    assert missing.returncode == 3
    assert "the token ${env:NODE_TOKEN}: the environment variable NODE_TOKEN" in missing.stderr
    result = world.run_here("status", NODE_TOKEN="something-else")
    assert result.returncode == 1
    assert "rejected the token (HTTP 401)" in result.stderr
    assert world.run_here("status", NODE_TOKEN="s3cret-s3cret-s3cret").returncode == 0


def test_unavailable_servers_are_named(world: CommandLine, tmp_path: Path) -> None:
    script = tmp_path / "crash.py"
    script.write_text(CRASHES, encoding="utf-8")
    world.config({"demo": DEMO, "crash": f"{sys.executable} {script}"})
    node = world.up()
    wait_until(
        "both tried",
        lambda: (
            {upstream["state"] for upstream in node.status()["upstreams"]} == {"ready", "failed"}
        ),
    )
    result = world.run("tools")
    assert result.returncode == 0
    assert "9 tools of 1 server" in result.stdout
    assert result.stderr.startswith("interlock: crash is not ready: ")
    assert "no LICENCE found" in result.stderr
    data = json.loads(world.run_here("tools", "--json").stdout)
    assert [item["key"] for item in data["unready"]] == ["crash"]
    for name in ("crash.foo", "crash__foo"):
        called = world.run_here("call", name)
        assert called.returncode == 4
        assert called.stderr.startswith("interlock: crash is not ready: ")
    outcome = world.run_here("call", "demo.nonsense")
    assert outcome.returncode == 1
    assert "crash" not in outcome.stderr
