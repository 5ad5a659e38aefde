"""Drivers in `status`, in the log and on the screen of `up`, and finding their node."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from interlock.drivers.commands import status_lines as driver_rows
from interlock.drivers.status import BindingStatus, DriverStatus
from tests.cli.drivers_workspace import STARTED, contract, driver, entry, secrets
from tests.cli.screen import screen
from tests.support.command_line import INTERLOCK, CommandLine, NodeProcess
from tests.support.ports import free_port
from tests.support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.feature("drivers")

LACKING = (
    "keyed-mcp is not signed in: missing: A_KEY. Set its secrets in interlock.yaml: by "
    "slug under drivers.secrets, or, to take A_KEY from the node's environment, in the list "
    "drivers.env_secrets. Then repeat the call."
)
ABSENT = (
    "absent-mcp is not installed on this machine. Run `interlock drivers install absent-mcp`, or "
    "let the node install it: add `drivers: {allow_install: true}` to interlock.yaml."
)


def add_keyed_driver(world: CommandLine) -> None:
    """A driver whose secret has no value."""
    contract(world, "keyed.read")
    driver(
        world, "keyed-mcp", server={**STARTED, "env": {"KEY": "${secrets.A_KEY}"}},
        auth={"ref": "./SECRETS.md", "state": {"env": ["A_KEY"]}},
        implements=[entry("keyed.read")],
    )  # fmt: skip
    secrets(world, "keyed-mcp", "a-key")


def add_uninstalled_driver(world: CommandLine) -> None:
    """A driver whose program nobody has installed."""
    contract(world, "absent.read")
    driver(
        world, "absent-mcp", server={"kind": "npm", "package": "absent"},
        install=[{"method": "npm", "package": "absent"}], implements=[entry("absent.read")],
    )  # fmt: skip


def wait_for_states(world: CommandLine, **states: str) -> None:
    """Wait until the running node says this of its drivers."""

    def told() -> bool:
        result = world.run_here("status", "--json")
        actual = {driver["id"]: driver["state"] for driver in json.loads(result.stdout)["drivers"]}
        return actual == {f"{id}-mcp": state for id, state in states.items()}

    wait_until(f"drivers to be {states}", told)


def test_status_reports_drivers_and_problems(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world)
    driver(world)
    add_keyed_driver(world)
    add_uninstalled_driver(world)
    driver(world, "broken-mcp").write_text("nothing")
    world.up()
    wait_for_states(world, files="ready", keyed="unauthed", absent="failing", broken="refused")
    output = " ".join(world.run_here("status").stdout.split())
    assert "4 drivers: 1 ready, 1 needs a sign-in or a secret, 1 failing, 1 refused" in output
    assert f"driver keyed-mcp (unauthed): {LACKING}" in output
    assert f"driver absent-mcp (failing): {ABSENT}" in output
    assert "driver broken-mcp (refused): " in output
    assert "DRIVER.md:1" in output
    # Nothing but drivers: no table of nothing.
    assert "upstream state" not in output


def test_invalid_contract_is_listed_as_contract(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world, version="one")
    driver(world)
    world.up()
    output = " ".join(world.run_here("status").stdout.split())
    assert "1 driver: 1 refused contract fs-read (refused): " in output
    assert 'version: "one" is not a version' in output
    assert "driver files-mcp (refused): " in output
    error_output = world.run_here("drivers", "list").stdout
    assert "Warning" not in error_output
    assert [line.split("  ")[0] for line in error_output.splitlines() if "refused" in line] == [
        "files-mcp",
        "fs-read (contract)",
    ]


def test_missing_secret_is_reported_once(world: CommandLine) -> None:
    world.config(drivers={})
    add_keyed_driver(world)

    def told() -> list[str]:
        explained = world.run_here("drivers", "explain", "keyed.read")
        assert explained.returncode == 1
        drivers = json.loads(world.run_here("drivers", "list", "--json").stdout)["drivers"]
        login = world.run_here("drivers", "login", "keyed-mcp")
        assert login.returncode == 1
        assert explained.stdout.count(LACKING) == 1
        assert "auth_required: no driver can serve keyed.read now." in explained.stdout
        return [drivers[0]["problem"], login.stderr.strip()]

    assert told() == [LACKING, LACKING]
    world.up()
    wait_for_states(world, keyed="unauthed")
    called = world.run_here("call", "keyed.read", "path=x")
    assert called.returncode != 0
    assert LACKING in called.stdout + called.stderr
    assert told() == [LACKING, LACKING]
    world.config(drivers={"env_secrets": ["A_KEY"]})
    there = world.run_here("drivers", "login", "keyed-mcp", A_KEY="hush-hush")
    assert there.returncode == 0
    assert "hush" not in there.stdout + there.stderr


def test_missing_installation_is_reported_once(world: CommandLine) -> None:
    world.config(drivers={})
    add_uninstalled_driver(world)
    world.up()
    wait_for_states(world, absent="failing")
    called = world.run_here("call", "absent.read", "path=x")
    assert ABSENT in called.stdout + called.stderr
    explained = world.run_here("drivers", "explain", "absent.read").stdout
    assert explained.count(ABSENT) == 1
    assert ".." not in called.stdout + called.stderr + explained


def test_log_reports_driver_states(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world)
    driver(world)
    add_keyed_driver(world)
    log = world.cwd / "log"
    with log.open("w") as said:
        node = NodeProcess(
            subprocess.Popen(
                [*INTERLOCK, "up", "--plain"], cwd=world.cwd, env=world.environ,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True,
            )
        )  # fmt: skip
    try:

        def logged(line: str) -> None:
            wait_until(line, lambda: f" {line}\n" in log.read_text())

        logged("drivers: 2 drivers: files-mcp, keyed-mcp")
        logged(f"WARNING driver keyed-mcp: {LACKING}")
        logged("driver files-mcp: ready: it serves fs-read")
        contract(world, "fs-other")
        driver(world, "more-mcp", implements=[entry("fs-other")])
        logged("driver more-mcp: added: it serves fs-other")
        logged("driver more-mcp: ready: it serves fs-other")
        driver(world, "more-mcp", version="1.0.1", implements=[entry("fs-other")])
        logged("driver more-mcp: changed: it serves fs-other")
        shutil.rmtree(world.cwd / ".drivers" / "more-mcp")
        logged("driver more-mcp: removed; it served fs-other")
        driver(world).write_text("nothing")
        logged("WARNING driver files-mcp: invalid DRIVER.md, version 1.0.0 stays in use")
        assert "DRIVER.md:1" in log.read_text()
        assert node.end() == 0
    finally:
        if node.process.poll() is None:
            node.process.kill()
        node.process.wait(HANG_TIMEOUT)


def test_show_prints_driver_state_of_node(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world)
    driver(world)
    data = json.loads(world.run_here("drivers", "show", "files-mcp", "--json").stdout)
    assert data["state"] == "unverified"
    world.up()

    def state() -> str:
        node = f"127.0.0.1:{world.port}"
        result = world.run_here("drivers", "show", "files-mcp", "--json", "--node", node)
        return str(json.loads(result.stdout)["state"])

    wait_until("what the node knows", lambda: state() in ("ready", "running"))


def test_up_screen_counts_drivers(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world)
    driver(world)
    add_keyed_driver(world)
    with screen(world, COLUMNS="200") as one:
        counted = b"2 drivers: 1 ready, 1 needs a sign-in or a secret"
        waiting = b"driver keyed-mcp (unauthed): keyed-mcp is"
        wait_until("the view", lambda: one.sees(counted, waiting))
        assert one.interrupt() == 0
        assert b"Traceback" not in one.shown


def status(id: str, state: str, problem: str = "", *lost: str) -> DriverStatus:
    bindings = [BindingStatus("a@1", "a"), *(BindingStatus("b@1", "b", [error]) for error in lost)]
    return DriverStatus(id, "1.0.0", "mcp", state, "f", problem, bindings)


def test_worst_driver_problems_come_first() -> None:
    drivers = [
        status("a", "running"),
        status("b", "unauthed", "b needs a key."),
        status("c", "ready", "", "b: no such tool."),
        status("d", "refused", "one\ntwo\nthree"),
        status("e", "unverified"),
        status("f", "failing", "\x1b[2Jgone"),
    ]
    assert driver_rows.summary(drivers) == (
        "6 drivers: 1 running, 1 ready, 1 not verified, 1 needs a sign-in or a secret, "
        "1 failing, 1 refused"
    )
    lines = [
        "driver d (refused): one (and 2 more)",
        "driver f (failing): \ufffd[2Jgone",
        "driver b (unauthed): b needs a key.",
        "driver c (serves 1 of 2 contracts): b: no such tool.",
    ]
    assert driver_rows.problem_lines(drivers) == lines
    assert driver_rows.problem_lines(drivers, 4) == lines
    assert driver_rows.problem_lines(drivers, 1) == [
        lines[0],
        "… and 3 more: `interlock drivers list`",
    ]
    assert driver_rows.summary([]) == ""
    assert driver_rows.problem_lines([]) == []


def test_list_shows_operator_warnings(world: CommandLine) -> None:
    trusted = {"pii-safe": ["somebody-else"]}
    world.config(drivers={"policy": {"trusted_tags": trusted}})
    contract(world)
    driver(world, policy_tags=["pii-safe"])
    world.up()
    wait_for_states(world, files="ready")
    [warning] = [
        line for line in world.run_here("drivers", "list").stdout.splitlines() if "pii-safe" in line
    ]
    assert warning.startswith("    Warning: driver files-mcp: it claims the tag 'pii-safe'")


# -- which node is asked


@pytest.mark.parametrize("command", [["list"], ["explain", "fs-read"]], ids=["list", "explain"])
def test_finds_node_at_configured_address(world: CommandLine, command: list[str]) -> None:
    world.config(drivers={"env_secrets": ["A_KEY"]}, listen=f"127.0.0.1:{free_port()}")
    contract(world)
    driver(world, server={**STARTED, "env": {"KEY": "${secrets.A_KEY}"}},
           auth={"ref": "./SECRETS.md", "state": {"env": ["A_KEY"]}})  # fmt: skip
    secrets(world, "files-mcp", "a-key")
    nobody = world.run_here("drivers", *command)
    assert "read from its files" in nobody.stderr
    assert "--node" not in nobody.stderr
    there = str(world.port)
    world.up("--listen", there, A_KEY="hush-hush")

    def ready() -> bool:
        data = json.loads(world.run_here("drivers", "list", "--json", "--node", there).stdout)
        return bool(data["running"] and data["drivers"][0]["state"] == "ready")

    wait_until("the driver to be ready", ready)
    hinted = world.run_here("drivers", *command)
    assert f"a node runs at 127.0.0.1:{there}; use --node 127.0.0.1:{there}" in hinted.stderr
    result = world.run_here("drivers", *command, "--node", there)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    # Only the node has the secret: it was asked, about what this config's files declare.
    assert ("ready" if command == ["list"] else "goes to files-mcp@1") in result.stdout


def test_named_node_that_is_down_is_an_error(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world)
    driver(world)
    result = world.run_here("drivers", "list", "--node", str(free_port()))
    assert result.returncode == 4
    assert "No node of this user is running at 127.0.0.1:" in result.stderr
    assert result.stdout == ""


def test_other_node_without_drivers_is_reported(world: CommandLine) -> None:
    other = world.cwd / "other"
    other.mkdir()
    world.config(drivers={}).rename(other / "interlock.yaml")
    contract(world)
    driver(world)
    for name in (".drivers", "tools"):
        (world.cwd / name).rename(other / name)
    # Another config at the same address, as after `interlock up --demo`.
    world.config({})
    world.up()
    none = world.run_here("drivers", "list")
    assert (
        f"the node at 127.0.0.1:{world.port} has no driver. Create one: `interlock drivers"
        in none.stderr
    )
    result = world.run_here("drivers", "list", "-c", "other/interlock.yaml")
    assert result.returncode == 0
    assert f"the node at 127.0.0.1:{world.port} has no driver, but 1 is declared" in result.stderr
    assert "use --node" in result.stderr


def test_list_reports_contract_that_is_not_offered(world: CommandLine) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/mcp"
    world.config(drivers={}, servers={"bank": {"url": nobody}})
    contract(world, "bank.read")
    driver(world, implements=[entry("bank.read")])
    world.up()
    why = "bank.read: the server bank is not connected, and may have a tool of this name."
    assert why in world.run_here("drivers", "list").stdout
    (told,) = json.loads(world.run_here("drivers", "list", "--json").stdout)["contracts"]
    assert (told["contract"], why in told["problem"]) == ("bank.read", True)


def test_driver_name_cannot_control_terminal() -> None:
    row = DriverStatus(
        id="evil\x1b]0;\a", version="", kind="", state="refused", file="DRIVER.md", problem="why"
    )
    (line,) = driver_rows.problem_lines([row])
    assert line == "driver evil\ufffd]0;\ufffd (refused): why"
