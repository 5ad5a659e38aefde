"""Enrolment of operators at a live node: a program of the same user cannot enrol itself by writing
to the file."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from interlock.trust.operators.operators import enrol_key
from interlock.trust.operators.store import Invitation, OperatorStore
from tests.cli.test_approvals import PHRASE, at_terminal, hold_call, new_key, pending_approvals
from tests.support.command_line import DEMO, CommandLine
from tests.support.waiting import wait_until


@pytest.fixture
def office(world: CommandLine) -> CommandLine:
    """A node with an operator whose key has a passphrase."""
    world.config({"demo": DEMO})
    (world.cwd / "phrase").write_text(f"{PHRASE}\n", encoding="utf-8")
    world.up().wait_for_line("upstream demo: ready")
    new_key(world)
    return world


def database(world: CommandLine) -> Path:
    return world.state / "interlock" / f"127.0.0.1-{world.port}" / "operators.db"


def list_keys(world: CommandLine) -> dict[str, str]:
    """Name and kind of everybody whom `keys list` shows."""
    rows = json.loads(world.run_here("keys", "list", "--json").stdout)
    return {row["name"]: row["kind"] for row in rows}


def pending(world: CommandLine) -> str:
    (one,) = [
        row
        for row in json.loads(world.run_here("keys", "list", "--json").stdout)
        if row["kind"].endswith(("(pending)", "(recovery)"))
    ]
    return str(one["id"])


def approve(world: CommandLine, id: str, key: str) -> subprocess.CompletedProcess[str]:
    return world.run_here("approve", "--yes", "--key", key, "--", id)


def assert_pending(world: CommandLine, id: str) -> None:
    assert [approval["id"] for approval in pending_approvals(world)] == [id]


def test_program_of_same_user_cannot_enrol_itself(office: CommandLine) -> None:
    id = hold_call(office)
    result = office.run_here("keys", "new", "x", "--no-passphrase")
    assert result.returncode == 0, result.stderr
    assert "interlock keys approve" in result.stderr
    refused = approve(office, id, "x")
    assert refused.returncode == 1
    assert_pending(office, id)
    assert list_keys(office) == {"chief": "key", "x": "key (pending)"}
    assert f"keys approve {pending(office)}" in office.run_here("approvals").stderr
    # Nor by admitting itself, nor by a code for a browser.
    assert (
        office.run_here("keys", "approve", pending(office), "--yes", "--key", "x").returncode != 0
    )
    assert office.run_here("keys", "approve", pending(office), "--yes").returncode != 0
    assert office.run_here("keys", "remove", "chief", "--key", "x").returncode != 0
    assert approve(office, id, "x").returncode == 1
    assert_pending(office, id)
    status = json.loads(office.run_here("status", "--json").stdout)
    address = f"--node {urlsplit(status['url']).netloc}"
    assert any("keys approve" in problem and address in problem for problem in status["problems"])
    unknown = office.run_here("keys", "reject", "ffffff", *address.split())
    assert (unknown.returncode, f"keys list {address}" in unknown.stderr) == (1, True)


def test_operator_approves_enrolment(office: CommandLine) -> None:
    id = hold_call(office)
    office.run_here("keys", "new", "x", "--no-passphrase")
    asked = pending(office)
    result = office.run_here(
        "keys", "approve", asked[:6], "--yes", "--key", "chief", "--passphrase-file", "phrase"
    )
    assert result.returncode == 0, result.stderr
    assert list_keys(office) == {"chief": "key", "x": "key"}
    assert approve(office, id, "x").returncode == 0
    # At once, with a key that is named; or at a terminal.
    result = office.run_here(
        *("keys", "new", "y", "--no-passphrase", "--by", "chief"),
        *("--by-passphrase-file", "phrase"),
    )
    assert result.returncode == 0, result.stderr
    assert list_keys(office)["y"] == "key"
    (office.home / ".config/interlock/keys/x.pem").unlink()
    (office.home / ".config/interlock/keys/y.pem").unlink()
    seen, code = at_terminal(
        office,
        ["keys", "new", "z", "--no-passphrase"],
        {"Passphrase of chief": f"{PHRASE}\n"},
    )
    assert code == 0, seen
    assert list_keys(office)["z"] == "key"
    # A refused one is gone.
    office.run_here("keys", "new", "w", "--no-passphrase")
    assert office.run_here("keys", "reject", pending(office)).returncode == 0
    assert "w" not in list_keys(office)
    # And removal is signed as well.
    gone = office.run_here("keys", "remove", "z", "--key", "chief", "--passphrase-file", "phrase")
    assert gone.returncode == 0, gone.stderr
    assert "z" not in list_keys(office)


def test_row_written_into_file_is_ignored(office: CommandLine) -> None:
    office.run_here("keys", "new", "x", "--no-passphrase", "--no-enrol")
    public = (office.home / ".config/interlock/keys/x.pub").read_bytes()
    store = OperatorStore(database(office))
    draft = store.draft(enrol=[enrol_key(public, Invitation("x"))])
    (node,) = office._nodes
    with sqlite3.connect(database(office)) as file:
        file.execute("INSERT INTO chain VALUES (2, ?, '')", (draft.entry,))
    node.wait_for_line("does not count")
    id = hold_call(office)
    assert approve(office, id, "x").returncode == 1
    assert_pending(office, id)
    # Nor does a node that starts anew take it.
    node.end(signal.SIGTERM)
    again = office.up()
    assert "does not count" in "".join(again.seen)
    again.wait_for_line("upstream demo: ready")
    assert wait_until(
        "it waits still", lambda: [approval["id"] for approval in pending_approvals(office)]
    ) == [id]
    assert approve(office, id, "x").returncode == 1
    assert_pending(office, id)
    status = json.loads(office.run_here("status", "--json").stdout)
    assert any("does not count" in problem for problem in status["problems"])


def test_replaced_file_is_detected(office: CommandLine) -> None:
    office.run_here("keys", "new", "x", "--no-passphrase", "--no-enrol")
    public = (office.home / ".config/interlock/keys/x.pub").read_bytes()
    id = hold_call(office)
    wait_until("the node has seen chief", database(office).with_suffix(".head").exists)
    other = OperatorStore(database(office).with_name("other.db"))
    other.add(enrol_key(public, Invitation("x")))
    other.path.rename(database(office))
    (node,) = office._nodes
    node.wait_for_line("cut or replaced")
    assert approve(office, id, "x").returncode == 1
    node.end(signal.SIGTERM)
    again = office.up()
    assert "cut or replaced" in "".join(again.seen)
    again.wait_for_line("upstream demo: ready")
    wait_until("it waits still", lambda: [approval["id"] for approval in pending_approvals(office)])
    assert approve(office, id, "x").returncode == 1
    assert_pending(office, id)


def test_config_operator_confirms_first_key(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    world.run_here("keys", "new", "duty", "--no-passphrase", "--no-enrol")
    public = str(world.home / ".config/interlock/keys/duty.pub")
    anchors = {"anchors": [{"name": "duty", "key": public}]}
    world.config({"demo": DEMO}, approvals=anchors)
    world.up().wait_for_line("upstream demo: ready")
    id = hold_call(world)
    assert world.run_here("keys", "new", "x", "--no-passphrase").returncode == 0
    assert list_keys(world)["x"] == "key (pending)"
    assert approve(world, id, "x").returncode == 1
    assert_pending(world, id)
    result = world.run_here("keys", "approve", pending(world), "--yes", "--key", "duty")
    assert result.returncode == 0, result.stderr
    assert approve(world, id, "x").returncode == 0


def test_recovery_is_announced_and_takes_effect_after_delay(world: CommandLine) -> None:
    world.config({"demo": DEMO}, approvals={"recovery_delay": "100ms"})
    (world.cwd / "phrase").write_text(f"{PHRASE}\n", encoding="utf-8")
    nothing = world.run_here("keys", "recover", "x", "--public", "phrase")
    assert nothing.returncode != 0
    new_key(world)
    world.run_here("keys", "new", "x", "--no-passphrase", "--no-enrol")
    public = str(world.home / ".config/interlock/keys/x.pub")
    result = world.run_here("keys", "recover", "x", "--public", public)
    assert result.returncode == 0, result.stderr
    # Without a node nobody waited.
    assert list_keys(world) == {"chief": "key", "x": "key (recovery)"}
    node = world.up()
    assert "recovery requested" in "".join(node.seen)
    node.wait_for_line("upstream demo: ready")
    wait_until("it is recovered", lambda: list_keys(world) == {"chief": "key", "x": "key"})
    id = hold_call(world)
    assert approve(world, id, "x").returncode == 0
    journal = world.run_here("journal", "tail", "--json").stdout
    assert "recovery requested" in journal


@pytest.mark.feature("aql")
def test_operator_command_finds_locally_enrolled_key(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    world.up().wait_for_line("upstream demo: ready")
    assert world.run_here("keys", "new", "me", "--no-passphrase").returncode == 0
    world.run_here("keys", "new", "elsewhere", "--no-passphrase", "--no-enrol")
    result = world.run_here("operator")
    assert result.returncode == 0, result.stderr
