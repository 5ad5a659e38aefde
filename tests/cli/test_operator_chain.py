"""Who becomes an operator of a live node, and who does not: a program with a shell of the same user
is no operator, and what it writes into the node's file makes it none."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from interlock.trust.operators.operators import enrol_key
from interlock.trust.operators.store import Invitation, OperatorStore
from tests.cli.test_approvals import PHRASE, at_terminal, held, new_key, waiting
from tests.support.command_line import DEMO, CommandLine
from tests.support.waiting import wait_until


@pytest.fixture
def office(world: CommandLine) -> CommandLine:
    """A node with an operator whose key has a passphrase."""
    world.config({"demo": DEMO})
    (world.cwd / "phrase").write_text(f"{PHRASE}\n", encoding="utf-8")
    world.up().wait_for_line("demo is ready")
    new_key(world)
    return world


def database(world: CommandLine) -> Path:
    return world.state / "interlock" / f"127.0.0.1-{world.port}" / "operators.db"


def listed(world: CommandLine) -> dict[str, str]:
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


def must_still_wait(world: CommandLine, id: str) -> None:
    assert [one["id"] for one in waiting(world)] == [id]


def test_a_shell_of_the_same_user_does_not_enrol_itself(office: CommandLine) -> None:
    id = held(office)
    made = office.run_here("keys", "new", "x", "--no-passphrase")
    assert made.returncode == 0, made.stderr
    assert "interlock keys approve" in made.stderr
    refused = approve(office, id, "x")
    assert refused.returncode == 1
    must_still_wait(office, id)
    assert listed(office) == {"chief": "key", "x": "key (pending)"}
    assert f"keys approve {pending(office)}" in office.run_here("approvals").stderr
    # Nor by admitting itself, nor by a code for a browser.
    assert (
        office.run_here("keys", "approve", pending(office), "--yes", "--key", "x").returncode != 0
    )
    assert office.run_here("keys", "approve", pending(office), "--yes").returncode != 0
    assert office.run_here("keys", "remove", "chief", "--key", "x").returncode != 0
    assert approve(office, id, "x").returncode == 1
    must_still_wait(office, id)
    status = json.loads(office.run_here("status", "--json").stdout)
    assert any("keys approve" in one for one in status["problems"])


def test_an_operator_admits_another(office: CommandLine) -> None:
    id = held(office)
    office.run_here("keys", "new", "x", "--no-passphrase")
    asked = pending(office)
    done = office.run_here(
        "keys", "approve", asked[:6], "--yes", "--key", "chief", "--passphrase-file", "phrase"
    )
    assert done.returncode == 0, done.stderr
    assert listed(office) == {"chief": "key", "x": "key"}
    assert approve(office, id, "x").returncode == 0
    # At once, with a key that is named; or at a terminal.
    done = office.run_here(
        *("keys", "new", "y", "--no-passphrase", "--by", "chief"),
        *("--by-passphrase-file", "phrase"),
    )
    assert done.returncode == 0, done.stderr
    assert listed(office)["y"] == "key"
    (office.home / ".config/interlock/keys/x.pem").unlink()
    (office.home / ".config/interlock/keys/y.pem").unlink()
    seen, code = at_terminal(
        office,
        ["keys", "new", "z", "--no-passphrase"],
        {"Passphrase of chief": f"{PHRASE}\n"},
    )
    assert code == 0, seen
    assert listed(office)["z"] == "key"
    # A refused one is gone.
    office.run_here("keys", "new", "w", "--no-passphrase")
    assert office.run_here("keys", "reject", pending(office)).returncode == 0
    assert "w" not in listed(office)
    # And removal is signed as well.
    gone = office.run_here("keys", "remove", "z", "--key", "chief", "--passphrase-file", "phrase")
    assert gone.returncode == 0, gone.stderr
    assert "z" not in listed(office)


def test_a_record_that_is_written_into_the_file_is_ignored(office: CommandLine) -> None:
    office.run_here("keys", "new", "x", "--no-passphrase", "--no-enrol")
    public = (office.home / ".config/interlock/keys/x.pub").read_bytes()
    store = OperatorStore(database(office))
    draft = store.draft(enrol=[enrol_key(public, Invitation("x"))])
    (node,) = office._nodes
    with sqlite3.connect(database(office)) as file:
        file.execute("INSERT INTO chain VALUES (2, ?, '')", (draft.entry,))
    node.wait_for_line("does not count")
    id = held(office)
    assert approve(office, id, "x").returncode == 1
    must_still_wait(office, id)
    # Nor does a node that starts anew take it.
    node.end(signal.SIGTERM)
    again = office.up()
    assert "does not count" in "".join(again.seen)
    again.wait_for_line("demo is ready")
    assert wait_until("it waits still", lambda: [one["id"] for one in waiting(office)]) == [id]
    assert approve(office, id, "x").returncode == 1
    must_still_wait(office, id)
    status = json.loads(office.run_here("status", "--json").stdout)
    assert any("does not count" in one for one in status["problems"])


def test_another_file_in_its_place_is_noticed(office: CommandLine) -> None:
    office.run_here("keys", "new", "x", "--no-passphrase", "--no-enrol")
    public = (office.home / ".config/interlock/keys/x.pub").read_bytes()
    id = held(office)
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
    again.wait_for_line("demo is ready")
    wait_until("it waits still", lambda: [one["id"] for one in waiting(office)])
    assert approve(office, id, "x").returncode == 1
    must_still_wait(office, id)


def test_an_operator_of_the_config_confirms_the_first_key(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    world.run_here("keys", "new", "duty", "--no-passphrase", "--no-enrol")
    public = str(world.home / ".config/interlock/keys/duty.pub")
    anchors = {"anchors": [{"name": "duty", "key": public}]}
    world.config({"demo": DEMO}, approvals=anchors)
    world.up().wait_for_line("demo is ready")
    id = held(world)
    assert world.run_here("keys", "new", "x", "--no-passphrase").returncode == 0
    assert listed(world)["x"] == "key (pending)"
    assert approve(world, id, "x").returncode == 1
    must_still_wait(world, id)
    done = world.run_here("keys", "approve", pending(world), "--yes", "--key", "duty")
    assert done.returncode == 0, done.stderr
    assert approve(world, id, "x").returncode == 0


def test_a_recovery_is_shown_and_counts_after_its_delay(world: CommandLine) -> None:
    world.config({"demo": DEMO}, approvals={"recovery_delay": "100ms"})
    (world.cwd / "phrase").write_text(f"{PHRASE}\n", encoding="utf-8")
    nothing = world.run_here("keys", "recover", "x", "--public", "phrase")
    assert nothing.returncode != 0
    new_key(world)
    world.run_here("keys", "new", "x", "--no-passphrase", "--no-enrol")
    public = str(world.home / ".config/interlock/keys/x.pub")
    done = world.run_here("keys", "recover", "x", "--public", public)
    assert done.returncode == 0, done.stderr
    # Without a node nobody waited.
    assert listed(world) == {"chief": "key", "x": "key (recovery)"}
    node = world.up()
    assert "recovery requested" in "".join(node.seen)
    node.wait_for_line("demo is ready")
    wait_until("it is recovered", lambda: listed(world) == {"chief": "key", "x": "key"})
    id = held(world)
    assert approve(world, id, "x").returncode == 0
    journal = world.run_here("journal", "tail", "--json").stdout
    assert "recovery requested" in journal


@pytest.mark.feature("aql")
def test_the_codes_are_shown_with_the_key_that_is_enrolled_here(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    world.up().wait_for_line("demo is ready")
    assert world.run_here("keys", "new", "me", "--no-passphrase").returncode == 0
    world.run_here("keys", "new", "elsewhere", "--no-passphrase", "--no-enrol")
    shown = world.run_here("operator")
    assert shown.returncode == 0, shown.stderr
