"""What a person sees of drivers without asking for them: in `status`, in what `up` says, and on its
screen. And that a node is found where it is."""

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


def keyed(world: CommandLine) -> None:
    """A driver whose secret has no value."""
    contract(world, "keyed.read")
    driver(
        world, "keyed-mcp", server={**STARTED, "env": {"KEY": "${secrets.A_KEY}"}},
        auth={"ref": "./SECRETS.md", "state": {"env": ["A_KEY"]}},
        implements=[entry("keyed.read")],
    )  # fmt: skip
    secrets(world, "keyed-mcp", "a-key")


def absent(world: CommandLine) -> None:
    """A driver whose program nobody has installed."""
    contract(world, "absent.read")
    driver(
        world, "absent-mcp", server={"kind": "npm", "package": "absent"},
        install=[{"method": "npm", "package": "absent"}], implements=[entry("absent.read")],
    )  # fmt: skip


def settled(world: CommandLine, **states: str) -> None:
    """Wait until the running node says this of its drivers."""

    def told() -> bool:
        done = world.run_here("status", "--json")
        found = {one["id"]: one["state"] for one in json.loads(done.stdout)["drivers"]}
        return found == {f"{id}-mcp": state for id, state in states.items()}

    wait_until(f"drivers to be {states}", told)


def test_status_tells_of_drivers_and_why_some_cannot_be_used(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world)
    driver(world)
    keyed(world)
    absent(world)
    driver(world, "broken-mcp").write_text("nothing")
    world.up()
    settled(world, files="ready", keyed="unauthed", absent="failing", broken="refused")
    shown = " ".join(world.run_here("status").stdout.split())
    assert "4 drivers: 1 ready, 1 needs a sign-in or a secret, 1 failing, 1 refused" in shown
    assert f"driver keyed-mcp (unauthed): {LACKING}" in shown
    assert f"driver absent-mcp (failing): {ABSENT}" in shown
    assert "driver broken-mcp (refused): " in shown
    assert "DRIVER.md:1" in shown
    # Nothing but drivers: no table of nothing.
    assert "upstream state" not in shown


def test_a_contract_that_is_wrong_is_no_driver(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world, version="one")
    driver(world)
    world.up()
    shown = " ".join(world.run_here("status").stdout.split())
    assert "1 driver: 1 refused contract fs-read (refused): " in shown
    assert 'version: "one" is not a version' in shown
    assert "driver files-mcp (refused): " in shown
    listed = world.run_here("drivers", "list").stdout
    assert "Warning" not in listed
    assert [line.split("  ")[0] for line in listed.splitlines() if "refused" in line] == [
        "files-mcp",
        "fs-read (contract)",
    ]


def test_a_missing_secret_is_told_in_one_sentence(world: CommandLine) -> None:
    world.config(drivers={})
    keyed(world)

    def told() -> list[str]:
        explained = world.run_here("drivers", "explain", "keyed.read")
        assert explained.returncode == 1
        listed = json.loads(world.run_here("drivers", "list", "--json").stdout)["drivers"]
        login = world.run_here("drivers", "login", "keyed-mcp")
        assert login.returncode == 1
        assert explained.stdout.count(LACKING) == 1
        assert "auth_required: no driver can serve keyed.read now." in explained.stdout
        return [listed[0]["problem"], login.stderr.strip()]

    assert told() == [LACKING, LACKING]
    world.up()
    settled(world, keyed="unauthed")
    called = world.run_here("call", "keyed.read", "path=x")
    assert called.returncode != 0
    assert LACKING in called.stdout + called.stderr
    assert told() == [LACKING, LACKING]
    world.config(drivers={"env_secrets": ["A_KEY"]})
    there = world.run_here("drivers", "login", "keyed-mcp", A_KEY="hush-hush")
    assert there.returncode == 0
    assert "hush" not in there.stdout + there.stderr


def test_what_is_not_installed_is_told_in_one_sentence(world: CommandLine) -> None:
    world.config(drivers={})
    absent(world)
    world.up()
    settled(world, absent="failing")
    called = world.run_here("call", "absent.read", "path=x")
    assert ABSENT in called.stdout + called.stderr
    explained = world.run_here("drivers", "explain", "absent.read").stdout
    assert explained.count(ABSENT) == 1
    assert ".." not in called.stdout + called.stderr + explained


def test_the_log_tells_what_becomes_of_drivers(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world)
    driver(world)
    keyed(world)
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

        logged("2 drivers: files-mcp, keyed-mcp")
        logged(f"WARNING keyed-mcp: {LACKING}")
        logged("driver files-mcp is ready: it serves fs-read")
        contract(world, "fs-other")
        driver(world, "more-mcp", implements=[entry("fs-other")])
        logged("driver more-mcp was added: it serves fs-other")
        logged("driver more-mcp is ready: it serves fs-other")
        driver(world, "more-mcp", version="1.0.1", implements=[entry("fs-other")])
        logged("driver more-mcp changed: it serves fs-other")
        shutil.rmtree(world.cwd / ".drivers" / "more-mcp")
        logged("driver more-mcp was removed; it served fs-other")
        driver(world).write_text("nothing")
        logged("WARNING driver files-mcp: invalid DRIVER.md; keeping version 1.0.0")
        assert "DRIVER.md:1" in log.read_text()
        assert node.end() == 0
    finally:
        if node.process.poll() is None:
            node.process.kill()
        node.process.wait(HANG_TIMEOUT)


def test_a_driver_is_shown_in_the_state_that_it_has_at_the_node(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world)
    driver(world)
    shown = json.loads(world.run_here("drivers", "show", "files-mcp", "--json").stdout)
    assert shown["state"] == "unverified"
    world.up()

    def state() -> str:
        node = f"127.0.0.1:{world.port}"
        done = world.run_here("drivers", "show", "files-mcp", "--json", "--node", node)
        return str(json.loads(done.stdout)["state"])

    wait_until("what the node knows", lambda: state() in ("ready", "running"))


def test_the_screen_tells_of_drivers(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world)
    driver(world)
    keyed(world)
    with screen(world, COLUMNS="200") as one:
        counted = b"2 drivers: 1 ready, 1 needs a sign-in or a secret"
        waiting = b"driver keyed-mcp (unauthed): keyed-mcp is"
        wait_until("the view", lambda: one.sees(counted, waiting))
        assert one.interrupt() == 0
        assert b"Traceback" not in one.shown


def status(id: str, state: str, problem: str = "", *lost: str) -> DriverStatus:
    bindings = [BindingStatus("a@1", "a"), *(BindingStatus("b@1", "b", [one]) for one in lost)]
    return DriverStatus(id, "1.0.0", "mcp", state, "f", problem, bindings)


def test_trouble_is_told_worst_first_and_counted_where_there_is_no_room() -> None:
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
        "… and 3 more: interlock drivers list",
    ]
    assert driver_rows.summary([]) == ""
    assert driver_rows.problem_lines([]) == []


def test_what_an_operator_should_look_at_is_in_the_list(world: CommandLine) -> None:
    trusted = {"pii-safe": ["somebody-else"]}
    world.config(drivers={"policy": {"trusted_tags": trusted}})
    contract(world)
    driver(world, policy_tags=["pii-safe"])
    world.up()
    settled(world, files="ready")
    [warning] = [
        line for line in world.run_here("drivers", "list").stdout.splitlines() if "pii-safe" in line
    ]
    assert warning.startswith("    Warning: driver files-mcp: it claims the tag 'pii-safe'")


# -- which node is asked


@pytest.mark.parametrize("command", [["list"], ["explain", "fs-read"]], ids=["list", "explain"])
def test_a_node_at_another_address_is_found(world: CommandLine, command: list[str]) -> None:
    world.config(drivers={"env_secrets": ["A_KEY"]}, listen=f"127.0.0.1:{free_port()}")
    contract(world)
    driver(world, server={**STARTED, "env": {"KEY": "${secrets.A_KEY}"}},
           auth={"ref": "./SECRETS.md", "state": {"env": ["A_KEY"]}})  # fmt: skip
    secrets(world, "files-mcp", "a-key")
    nobody = world.run_here("drivers", *command)
    assert "showing the state of the files" in nobody.stderr
    assert "--node" not in nobody.stderr
    there = str(world.port)
    world.up("--listen", there, A_KEY="hush-hush")

    def ready() -> bool:
        told = json.loads(world.run_here("drivers", "list", "--json", "--node", there).stdout)
        return bool(told["running"] and told["drivers"][0]["state"] == "ready")

    wait_until("the driver to be ready", ready)
    hinted = world.run_here("drivers", *command)
    assert f"a node runs at 127.0.0.1:{there}; use --node 127.0.0.1:{there}" in hinted.stderr
    asked = world.run_here("drivers", *command, "--node", there)
    assert asked.returncode == 0, asked.stderr
    assert asked.stderr == ""
    # Only the node has the secret: it was asked, about what this config's files declare.
    assert ("ready" if command == ["list"] else "goes to files-mcp@1") in asked.stdout


def test_a_node_that_is_named_and_does_not_answer(world: CommandLine) -> None:
    world.config(drivers={})
    contract(world)
    driver(world)
    done = world.run_here("drivers", "list", "--node", str(free_port()))
    assert done.returncode == 4
    assert "No node of this user is running at 127.0.0.1:" in done.stderr
    assert done.stdout == ""


def test_a_node_without_drivers_is_not_taken_for_this_folder(world: CommandLine) -> None:
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
    done = world.run_here("drivers", "list", "-c", "other/interlock.yaml")
    assert done.returncode == 0
    assert f"the node at 127.0.0.1:{world.port} has no driver, but 1 is declared" in done.stderr
    assert "use --node" in done.stderr


def test_the_list_says_which_contract_is_not_offered_and_why(world: CommandLine) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/mcp"
    world.config(drivers={}, servers={"bank": {"url": nobody}})
    contract(world, "bank.read")
    driver(world, implements=[entry("bank.read")])
    world.up()
    why = "bank.read: the server bank is not connected, and may have a tool of this name."
    assert why in world.run_here("drivers", "list").stdout
    (told,) = json.loads(world.run_here("drivers", "list", "--json").stdout)["contracts"]
    assert (told["contract"], why in told["problem"]) == ("bank.read", True)


def test_a_folder_cannot_write_on_a_terminal_with_its_name() -> None:
    row = DriverStatus(
        id="evil\x1b]0;\a", version="", kind="", state="refused", file="DRIVER.md", problem="why"
    )
    (line,) = driver_rows.problem_lines([row])
    assert line == "driver evil\ufffd]0;\ufffd (refused): why"
