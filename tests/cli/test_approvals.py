"""`interlock approvals`, `approve`, `refuse` and `keys`, as a person at a terminal uses them."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.cli.approvals import _print_details
from interlock.core.config import Config
from interlock.errors import InterlockError
from interlock.terminal import key_choice
from interlock.terminal.approvals_client import PendingApproval
from interlock.terminal.node_discovery import NodeSelector, TargetNode
from interlock.terminal.operator_key import choose_key
from tests.support.command_line import DEMO, INTERLOCK, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until

PHRASE = "open sesame"


@pytest.fixture
def office(world: CommandLine) -> CommandLine:
    """A node whose notes cannot be deleted without a human, and two notes."""
    world.config({"demo": DEMO})
    (world.cwd / "phrase").write_text(f"{PHRASE}\n", encoding="utf-8")
    world.up().wait_for_line("upstream demo: ready")
    for title in ("Milk", "Bread"):
        world.run_here("call", "demo.notes_add", f"title={title}", "text=x")
    return world


def new_key(
    world: CommandLine, name: str = "chief", *more: str
) -> subprocess.CompletedProcess[str]:
    result = world.run_here("keys", "new", name, "--passphrase-file", "phrase", *more)
    assert result.returncode == 0, result.stderr
    return result


def delete_note(world: CommandLine, id: int = 1) -> subprocess.CompletedProcess[str]:
    return world.run_here("call", "demo.notes_delete", f"id={id}")


def pending_approvals(world: CommandLine) -> list[dict[str, Any]]:
    result = world.run_here("approvals", "--json")
    assert result.returncode == 0, result.stderr
    approvals: list[dict[str, Any]] = json.loads(result.stdout)["approvals"]
    return approvals


def hold_call(world: CommandLine, id: int = 1) -> str:
    """Ask for something that waits; the id of the approval."""
    result = delete_note(world, id)
    assert result.returncode == 1
    actual = str(pending_approvals(world)[-1]["id"])
    # For a person: the next command, and not what a model is told.
    assert f"interlock approve {actual}" in result.stderr
    assert f"interlock call … --approval {actual}" in result.stderr
    assert "your user" not in result.stdout + result.stderr
    return actual


def at_terminal(
    world: CommandLine, arguments: list[str], answers: dict[str, str]
) -> tuple[str, int]:
    """Run a command on a terminal, and answer what it asks; what was to be seen, and its end."""
    here, there = pty.openpty()
    process = subprocess.Popen(
        [*INTERLOCK, *arguments],
        cwd=world.cwd,
        env={**world.environ, "TERM": "dumb"},
        stdin=there,
        stdout=there,
        stderr=there,
        start_new_session=True,
    )
    os.close(there)
    seen = ""
    left = dict(answers)
    try:
        while True:
            try:
                data = os.read(here, 4096)
            except OSError:
                break
            if not data:
                break
            seen += data.decode()
            for asked in [item for item in left if item in seen]:
                os.write(here, left.pop(asked).encode())
        code = process.wait(HANG_TIMEOUT)
    finally:
        process.kill()
        process.wait()
        os.close(here)
    return seen, code


@pytest.mark.spec("AX-11.3-5", "AQ-8.8.2-5")
def test_approves_with_key(office: CommandLine) -> None:
    new_key(office)
    id = hold_call(office)
    outcome = office.run_here("approvals")
    assert id in outcome.stdout
    assert "demo.notes_delete  (cannot be undone)" in outcome.stdout
    assert "called by local" in outcome.stdout
    assert '"id": 1' in outcome.stdout
    result = office.run_here(
        "approve", "--yes", "--key", "chief", "--passphrase-file", "phrase", "--", id[:8]
    )
    assert result.returncode == 0, result.stderr
    assert "Approved by chief: ok" in result.stderr
    # As `interlock call` prints it: the tool's words, and nothing of the protocol.
    assert result.stdout == "Deleted note 1: Welcome\n"
    # By the approval's id the same is told again, and nothing is done twice.
    again = office.run_here("call", "demo.notes_delete", "id=1", "--approval", id)
    assert (again.returncode, again.stdout) == (0, "Deleted note 1: Welcome\n")
    assert pending_approvals(office) == []
    assert "No pending approvals." in office.run_here("approvals").stderr
    late = office.run_here(
        "approve", "--yes", "--key", "chief", "--passphrase-file", "phrase", "--", id
    )
    assert late.returncode == 1
    assert "no longer pending. Its state is done." in late.stderr


def test_suggests_enrolment_without_operators(office: CommandLine) -> None:
    first = delete_note(office, 1)
    assert "interlock keys new NAME" in first.stdout + first.stderr
    new_key(office)
    wait_until(
        "the key counts",
        lambda: "keys new" not in (told := delete_note(office, 2)).stdout + told.stderr,
    )


def test_reject_requires_no_key_locally(office: CommandLine) -> None:
    id = hold_call(office)
    result = office.run_here("reject", "--reason", "not today", "--", id)
    assert (result.returncode, result.stdout) == (0, "Rejected by local.\n"), result.stderr
    outcome = office.run_here("call", "demo.notes_delete", "id=1", "--approval", id)
    assert outcome.returncode == 1
    assert "not today" in outcome.stdout + outcome.stderr
    new_key(office)
    id = hold_call(office)
    result = office.run_here(
        "reject", "--key", "chief", "--passphrase-file", "phrase", "--json", "--", id
    )
    assert json.loads(result.stdout)["by"] == "chief"


def test_rejects_key_that_is_not_enrolled(office: CommandLine) -> None:
    new_key(office, "visitor", "--no-enrol")
    id = hold_call(office)
    result = office.run_here("approve", "--yes", "--passphrase-file", "phrase", "--", id)
    assert result.returncode == 1
    public = office.home / ".config" / "interlock" / "keys" / "visitor.pub"
    assert (
        f"not enrolled with this node: interlock keys enrol visitor --public {public}"
        in result.stderr
    )
    named = ("approve", "--yes", "--key", "visitor", "--passphrase-file", "phrase", "--", id)
    result = office.run_here(*named)
    assert (result.returncode, "no trust anchor of this node signed it" in result.stderr) == (
        1,
        True,
    )
    (office.cwd / "phrase").write_text("fail  wrong\n", encoding="utf-8")
    result = office.run_here(*named)
    assert (result.returncode, "wrong passphrase" in result.stderr) == (3, True)
    assert [approval["id"] for approval in pending_approvals(office)] == [id]


def test_rejects_removed_key(office: CommandLine) -> None:
    new_key(office)
    id = hold_call(office)
    sign = ("--key", "chief", "--passphrase-file", "phrase")
    assert office.run_here("keys", "remove", "chief").returncode == 1
    result = office.run_here("keys", "remove", "chief", *sign)
    assert result.returncode == 0
    assert ": the key " in result.stdout
    assert " is removed." in result.stdout
    result = office.run_here(
        "approve", "--yes", "--key", "chief", "--passphrase-file", "phrase", "--", id
    )
    assert result.returncode == 1
    assert office.run_here("keys", "remove", "chief").returncode == 1


def test_approve_shows_call_and_asks_for_confirmation(office: CommandLine) -> None:
    new_key(office)
    id = hold_call(office)
    seen, code = at_terminal(office, ["approve", "--", id], {"Approve this call?": "n\n"})
    assert code == 1
    for words in (
        "demo.notes_delete",
        "cannot be undone",
        "caller:    local",
        "│ Deletes a note permanently",
        '"id": 1',
        "digest:",
    ):
        assert words in seen
    assert [approval["id"] for approval in pending_approvals(office)] == [id]
    answers = {"Approve this call?": "y\n", "Passphrase of chief": f"{PHRASE}\n"}
    seen, code = at_terminal(office, ["approve", "--", id], answers)
    assert (code, "Approved by chief: ok" in seen) == (0, True)
    assert PHRASE not in seen


def test_approving_masked_arguments_requires_acknowledgement(world: CommandLine) -> None:
    password = {"type": "object", "properties": {"password": {"format": "password"}}}
    tool = {"name": "enter", "inputSchema": password, "annotations": {"destructiveHint": True}}
    tools = world.folder / "tools.json"
    tools.write_text(json.dumps([tool]), encoding="utf-8")
    server = str(Path(__file__).with_name("changing_server.py"))
    world.config({"door": {"command": sys.executable, "args": [server, str(tools)]}})
    (world.cwd / "phrase").write_text(f"{PHRASE}\n", encoding="utf-8")
    world.up().wait_for_line("upstream door: ready")
    new_key(world)
    given = ["door.enter", "password=correct horse", "user=ada"]
    world.run_here("call", *given)
    [pending] = pending_approvals(world)
    id = pending["id"]
    assert pending["masked"] == ["/arguments/password"]
    seen = world.run_here("approvals", id)
    assert (seen.returncode, "correct horse" in seen.stderr) == (0, False)
    assert "/arguments/password" in seen.stderr
    outcome = world.run_here("approvals", "--reveal", "--json", id)
    assert json.loads(json.loads(outcome.stdout)["arguments_text"]) == {
        "password": "correct horse",
        "user": "ada",
    }
    assert world.run_here("approvals", "--reveal").returncode == 2
    approve = ["approve", "--passphrase-file", "phrase", "--yes"]
    blind = world.run_here(*approve, id)
    assert (blind.returncode, "--reveal" in blind.stderr) == (2, True)
    answers = {"without seeing them?": "n\n"}
    told, code = at_terminal(world, ["approve", id], answers)
    assert (code, "Approve this call?" in told, "correct horse" in told) == (1, False, False)
    assert not tools.with_suffix(".calls").exists()
    result = world.run_here(*approve, "--reveal", id)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    assert "correct horse" in result.stderr
    world.run_here("call", *given[:2])
    result = world.run_here(*approve, "--accept-masked", pending_approvals(world)[0]["id"])
    assert (result.returncode, "correct horse" in result.stderr) == (0, False), result.stderr
    journal = world.run_here("audit", "search", "--json", "--approval", id)
    words = [json.loads(line)["outcome"] for line in journal.stdout.splitlines()]
    assert words.count("revealed") == 2


def test_approve_without_terminal_requires_yes(office: CommandLine) -> None:
    new_key(office)
    result = office.run("approve", "--", hold_call(office))
    assert (result.returncode, "add --yes" in result.stderr) == (2, True)


@pytest.mark.parametrize("command", ["approve", "reject"])
def test_accepts_only_long_unambiguous_id_prefix(office: CommandLine, command: str) -> None:
    new_key(office)
    id = hold_call(office)
    more = ["--yes", "--passphrase-file", "phrase"] if command == "approve" else []
    for given, said in (("", "id is empty"), (" ", "id is empty"), (id[:5], "too short")):
        result = office.run_here(command, *more, "--", given)
        assert (result.returncode, said in result.stderr) == (2, True)
    result = office.run_here(command, *more, "--", "x" * 30)
    assert result.returncode == 1
    assert [approval["id"] for approval in pending_approvals(office)] == [id]
    # Any beginning that is long enough will do, also one that is nearly whole.
    result = office.run_here(command, *more, "--", id[:-1])
    assert result.returncode == 0, result.stderr


def test_approve_finds_enrolled_key(office: CommandLine) -> None:
    phrase = ("--passphrase-file", "phrase")
    id = hold_call(office)
    new_key(office, "visitor", "--no-enrol")
    by = ("--by", "caller", "--by-passphrase-file", "phrase")
    new_key(office, "caller", "--caller", "local")
    new_key(office, "github-only", "--tool", "github.*", *by)
    none = office.run_here("approve", "--yes", *phrase, "--", id)
    assert none.returncode == 1
    for words in (
        "caller is the key of the caller",
        "visitor is not enrolled with this node: interlock keys enrol visitor --public",
        "github-only is limited to other tools: github.*",
    ):
        assert words in none.stderr
    new_key(office, "chief", *by)
    new_key(office, "deputy", *by)
    several = office.run_here("approve", "--yes", *phrase, "--", id)
    assert several.returncode == 1
    assert (
        "Several of your keys can approve this call (chief, deputy). Choose one: --key NAME"
        in several.stderr
    )
    office.run_here("keys", "remove", "deputy", "--key", "caller", *phrase)
    result = office.run_here("approve", "--yes", *phrase, "--", id)
    assert (result.returncode, "Approved by chief: ok" in result.stderr) == (0, True)


def test_approve_reads_key_before_asking(office: CommandLine) -> None:
    id = hold_call(office)
    seen, code = at_terminal(office, ["approve", "--key", "nobody", "--", id], {})
    assert (code, "Cannot read the key" in seen, "Approve this call?" in seen) == (3, True, False)
    (office.cwd / "x.pem").write_text("no key", encoding="utf-8")
    seen, code = at_terminal(office, ["approve", "--key", "x.pem", "--", id], {})
    assert (code, "is not a private key" in seen, "Approve this call?" in seen) == (3, True, False)


def test_end_of_input_aborts_approval(office: CommandLine) -> None:
    new_key(office)
    id = hold_call(office)
    # What a terminal sends for Ctrl-D; Ctrl-C ends in the same way.
    seen, code = at_terminal(office, ["approve", "--", id], {"Approve this call?": "\x04"})
    assert (code, "Aborted" in seen) == (130, False)
    assert [approval["id"] for approval in pending_approvals(office)] == [id]


def test_failed_tool_sets_exit_code(office: CommandLine) -> None:
    new_key(office)
    id = hold_call(office, 999)
    phrase = ("--yes", "--passphrase-file", "phrase")
    result = office.run_here("approve", *phrase, "--", id)
    assert (result.returncode, result.stdout) == (1, "")
    assert "Approved by chief: tool_error" in result.stderr
    assert "999" in result.stderr
    id = hold_call(office, 998)
    result = office.run_here("approve", *phrase, "--json", "--", id)
    assert (result.returncode, json.loads(result.stdout)["outcome"]) == (1, "tool_error")


def test_approve_reports_pending_call_at_child_node(office: CommandLine) -> None:
    """A node above whose own gate was passed, and the node below holds the call in turn."""
    (office.folder / "above").mkdir()
    above = CommandLine(office.folder / "above")
    above.environ["HOME"] = str(office.home)
    try:
        (above.cwd / "phrase").write_text(f"{PHRASE}\n", encoding="utf-8")
        new_key(office)
        above.config({"low": f"http://127.0.0.1:{office.port}/mcp"})
        above.up().wait_for_line("upstream low: ready")
        public = str(office.home / ".config" / "interlock" / "keys" / "chief.pub")
        assert above.run_here("keys", "enrol", "chief", "--public", public).returncode == 0
        tools = json.loads(above.run_here("tools", "--json").stdout)["tools"]
        (tool,) = (tool["name"] for tool in tools if tool["name"].endswith("notes_delete"))
        held_above = above.run_here("call", tool, "id=1")
        assert held_above.returncode == 1
        (one,) = pending_approvals(above)
        result = above.run_here("approve", "--yes", "--passphrase-file", "phrase", "--", one["id"])
        assert result.returncode == 0, result.stderr
        (below,) = pending_approvals(office)
        (line,) = result.stdout.splitlines()
        assert "The child node requires its own approval" in line
        assert f"interlock approve {below['id']}" in line
    finally:
        above.close()


def test_watch_prints_new_approvals(office: CommandLine) -> None:
    process = subprocess.Popen(
        [*INTERLOCK, "approvals", "--watch"],
        cwd=office.cwd,
        env=office.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        id = hold_call(office)
        assert id in process.stdout.readline()
        assert "demo.notes_delete" in process.stdout.readline()
        other = hold_call(office, 2)
        lines = iter(process.stdout.readline, "")
        assert any(other in line for line in lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_TIMEOUT) == 130
    finally:
        process.kill()
        process.communicate()


def test_approval_commands_require_node(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    for command in (["approvals"], ["approve", "x" * 6, "--yes"], ["reject", "x" * 6]):
        result = world.run_here(*command)
        assert (result.returncode, "No node is running at" in result.stderr) == (4, True)


def test_creates_key(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    (world.cwd / "phrase").write_text(PHRASE, encoding="utf-8")
    result = new_key(world, "chief", "--tool", "demo.*", "--caller", "bot")
    private = world.home / ".config" / "interlock" / "keys" / "chief.pem"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert b"ENCRYPTED" in private.read_bytes()
    # What it prints is config for another node.
    import yaml

    printed = yaml.safe_load(result.stdout)
    (anchor,) = printed["approvals"]["anchors"]
    assert (anchor["name"], anchor["tools"], anchor["caller"]) == ("chief", ["demo.*"], "bot")
    world.config({"demo": DEMO}, **printed)
    assert world.run_here("check").returncode == 0
    data = json.loads(world.run_here("keys", "list", "--json").stdout)
    assert [(tool["name"], tool["kind"]) for tool in data] == [
        ("chief", "key"),
        ("chief", "operator (config)"),
    ]
    again = world.run_here("keys", "new", "chief", "--passphrase-file", "phrase")
    assert (again.returncode, " exists. " in again.stderr) == (3, True)
    bare = world.run_here("keys", "new", "deputy", "--no-passphrase")
    assert (bare.returncode, "Warning" in bare.stderr) == (0, True)
    assert world.run_here("keys", "new", "../x", "--no-passphrase").returncode == 2
    typed = {"key of cleo": f"{PHRASE}\n", "Repeat the passphrase": f"{PHRASE}\n"}
    assert at_terminal(world, ["keys", "new", "cleo", "--no-enrol"], typed)[1] == 0
    typed["Repeat the passphrase"] = "another\n"
    seen, code = at_terminal(world, ["keys", "new", "dora"], typed | {"key of dora": "some one\n"})
    assert (code, "The two passphrases differ" in seen) == (3, True)
    (world.cwd / "phrase").write_text("short", encoding="utf-8")
    short = world.run_here("keys", "new", "dora", "--passphrase-file", "phrase")
    assert (short.returncode, "at least 8" in short.stderr) == (3, True)
    lonely = world.run("keys", "new", "dora")
    assert (lonely.returncode, "--passphrase-file" in lonely.stderr) == (3, True)
    assert "--no-passphrase" in lonely.stderr


def test_warns_about_key_named_like_caller(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    result = world.run_here("keys", "new", "local", "--no-passphrase")
    assert result.returncode == 0
    assert "Warning: local is the caller name of the user of this machine" in result.stderr


def test_creates_key_for_running_node(world: CommandLine) -> None:
    world.up("--demo", "--listen", str(world.port)).wait_for_line("upstream demo: ready")
    here = f"127.0.0.1:{world.port}"
    elsewhere = world.run_here("keys", "new", "chief", "--no-passphrase")
    assert elsewhere.returncode == 4
    assert f"a node runs at {here}; use --node {here}" in elsewhere.stderr
    folder = world.home / ".config" / "interlock" / "keys"
    assert not folder.exists()
    for command in (["keys", "list"], ["token", "list"], ["pins", "list"], ["audit", "head"]):
        assert world.run_here(*command).returncode == 4
    nobody = world.run_here("keys", "new", "chief", "--no-passphrase", "--node", "1")
    assert (nobody.returncode, "but a node runs at" in nobody.stderr) == (4, True)
    result = world.run_here("keys", "new", "chief", "--no-passphrase", "--no-enrol")
    assert result.returncode == 0
    outcome = world.run_here("keys", "list", "--node", here)
    enrol = f"interlock keys enrol chief --public {folder / 'chief.pub'} --node {here}"
    for words in ("interlock keys new NAME", "interlock keys enrol NAME"):
        assert f"`{words} --node {here}`\n" in outcome.stderr
    assert enrol in outcome.stderr
    again = world.run_here("keys", "new", "chief", "--node", here)
    assert (again.returncode, enrol in again.stderr) == (3, True)
    assert world.run_here(*enrol.split()[1:]).returncode == 0
    again = world.run_here("keys", "new", "chief", "--node", here)
    assert (again.returncode, " exists. " in again.stderr) == (3, True)
    assert "not enrolled" not in again.stderr


def test_missing_key_names_command_for_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("INTERLOCK_KEY", raising=False)
    with pytest.raises(InterlockError) as missing:
        choose_key(None, NodeSelector(node="8561"))
    assert "`interlock keys new NAME --node 8561`\n" in missing.value.message


def test_lists_enrolled_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {Path(f"{name}.pem"): name for name in ("chief", "deputy", "removed")}
    active_keys = [("chief", None), ("deputy", None)]
    monkeypatch.delenv("INTERLOCK_KEY", raising=False)
    monkeypatch.setattr(key_choice, "list_user_keys", lambda: keys)
    monkeypatch.setattr(key_choice, "_active_keys", lambda _: active_keys)
    target = TargetNode(None, Config(), Path(), Path("socket"))
    with pytest.raises(InterlockError) as several:
        key_choice.choose_enrolled_key(None, target)
    assert "(chief, deputy)" in several.value.message
    del active_keys[1]
    assert key_choice.choose_enrolled_key(None, target) == Path("chief.pem")


def test_failed_key_creation_leaves_no_files(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    folder = world.home / ".config" / "interlock" / "keys"
    # The public part cannot be written where a folder is in the way.
    (folder / "chief.pub").mkdir(parents=True)
    result = world.run_here("keys", "new", "chief", "--no-passphrase")
    assert result.returncode == 1
    assert "Is a directory" in result.stderr
    assert not (folder / "chief.pem").exists()
    # Nor when the node's file cannot be.
    state = world.state / "interlock" / f"127.0.0.1-{world.port}"
    state.mkdir(parents=True, exist_ok=True)
    (state / "operators.db").write_text("no database", encoding="utf-8")
    result = world.run_here("keys", "new", "deputy", "--no-passphrase")
    assert result.returncode != 0
    assert not list(folder.glob("deputy.*"))


def test_enrol_prints_invitation(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    result = world.run_here("keys", "enrol", "chief", "--json")
    data = json.loads(result.stdout)
    assert data["address"] == f"http://localhost:{world.port}/approvals/enrol"
    assert data["seconds"] == 600
    result = world.run_here("keys", "enrol", "chief")
    assert result.stdout.startswith(f"http://localhost:{world.port}/approvals/enrol#")
    outcome = world.run_here("keys", "new", "deputy", "--no-passphrase", "--no-enrol")
    assert outcome.returncode == 0
    public = str(world.home / ".config" / "interlock" / "keys" / "deputy.pub")
    assert world.run_here("keys", "enrol", "deputy", "--public", public).returncode == 0
    again = world.run_here("keys", "enrol", "deputy", "--public", public)
    assert (again.returncode, "enrolled already" in again.stderr) == (3, True)
    assert "deputy" in world.run_here("keys", "list").stdout
    world.config({"demo": DEMO}, approvals={"url": "https://approve.example/x/"})
    data = json.loads(world.run_here("keys", "enrol", "chief", "--json").stdout)
    assert data["address"] == "https://approve.example/x/approvals/enrol"


def test_lists_approvals_over_http_with_token(world: CommandLine, tmp_path: Path) -> None:
    """Another machine of the operator's: no socket, but a token that may see approvals."""
    (world.cwd / "phrase").write_text(PHRASE, encoding="utf-8")
    tokens = [
        {"name": "bot", "token": "${env:BOT}"},
        {"name": "desk", "token": "${env:DESK}", "may": ["approve"]},
    ]
    secrets = {"BOT": "b" * 40, "DESK": "d" * 40}
    world.config({"demo": DEMO}, tokens=tokens)
    world.environ |= secrets
    world.up().wait_for_line("upstream demo: ready")
    new_key(world)
    id = hold_call(world)
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "elsewhere")}
    result = world.run_here("approvals", "--json", **elsewhere)
    assert [approval["id"] for approval in json.loads(result.stdout)["approvals"]] == [id], (
        result.stderr
    )
    result = world.run_here(
        "approve", "--yes", "--passphrase-file", "phrase", "--", id, **elsewhere
    )
    assert result.returncode == 0, result.stderr
    outcome = world.run_here("approvals", **elsewhere, DESK="x" * 40)
    assert outcome.returncode == 1


def test_approval_survives_restart(office: CommandLine) -> None:
    new_key(office)
    id = hold_call(office)
    (node,) = office._nodes
    node.end(signal.SIGKILL)
    office.up().wait_for_line("upstream demo: ready")
    assert wait_until(
        "it waits still", lambda: [approval["id"] for approval in pending_approvals(office)]
    ) == [id]
    result = office.run_here("approve", "--yes", "--passphrase-file", "phrase", "--", id)
    assert "Approved by chief" in result.stderr, result


@pytest.mark.parametrize(
    "along", [None, {"dev.interlock/context": {"tenant": "blue"}}], ids=["nothing", "context"]
)
def test_approval_shows_context(
    capsys: pytest.CaptureFixture[str], along: dict[str, Any] | None
) -> None:
    fields = {
        "id": "a" * 20, "state": "pending", "tool": "who.asks", "server": "drivers:",
        "route": ["who", "asks"], "effect": "mutating", "description": "", "caller": {},
        "action": "confirm", "rule": "", "reason": "", "args_sha256": "d", "aud": "n",
        "arguments_text": "{}", "now": 0.0, "expires": 9.0, "seconds_left": 9.0,
        "created_at": "", "expires_at": "",
    }  # fmt: skip
    if along is not None:
        fields["meta_text"] = json.dumps(along, indent=2)
    _print_details(msgspec.convert(fields, PendingApproval))
    output = capsys.readouterr().err
    assert "arguments:\n  │ {}" in output
    assert ("_meta, sent with the arguments" in output) is (along is not None)
    assert ('"tenant": "blue"' in output) is (along is not None)


def test_hints_repeat_node_option(world: CommandLine) -> None:
    world.up("--demo", "--listen", str(world.port)).wait_for_line("upstream demo: ready")
    here = f"127.0.0.1:{world.port}"
    result_of_call = world.run_here("call", "demo.notes_delete", "id=1", "--node", here)
    assert f"Enrol one: `interlock keys new NAME --node {here}`\n" in result_of_call.stderr
    listed = world.run_here("approvals", "--node", here)
    assert f"`interlock approve ID --node {here}`, or" in listed.stderr
    assert f"`interlock reject ID --reason WHY --node {here}`\n" in listed.stderr
    for name in ("chief", "deputy"):
        outcome = world.run_here("keys", "new", name, "--no-passphrase", "--node", here)
        assert outcome.returncode == 0, outcome.stderr
    pending = world.run_here("keys", "list", "--node", here).stdout
    admit = pending.partition("not active yet: `")[2].partition("`")[0]
    assert admit.endswith(f" --node {here}")
    assert f"`{admit}`\n" in world.run_here("approvals", "--node", here).stderr
    # As printed, it runs.
    result = world.run_here(*admit.split()[1:], "--yes", "--key", "chief")
    assert result.returncode == 0, result.stderr
    status = world.run_here("status", "--node", here).stdout
    assert f"pending approval: `interlock approvals --node {here}`\n" in status
    tokens = world.run_here("token", "list", "--node", here).stderr
    assert f"Create one: `interlock token create NAME --node {here}`\n" in tokens


def test_hints_repeat_config_option(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    named = world.cwd / "my team.yaml"
    (world.cwd / "interlock.yaml").rename(named)
    given = ("--config", str(named))
    outcome = world.run_here("keys", "list", *given)
    assert f"`interlock keys new NAME --config '{named}'`\n" in outcome.stderr
    result = world.run_here("approvals", *given)
    assert result.returncode == 4
    assert f"Start it: `interlock up --config '{named}'`\n" in result.stderr


def test_confirmed_call_without_node_suggests_starting_it(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    result = world.run_here("call", "demo.notes_delete", "id=1")
    assert result.returncode == 1
    assert "Start one first: `interlock up`\n" in result.stderr
    approve = result.stderr.partition("Approve: `")[2].partition("`")[0]
    # What is printed is true: with a node the approval can be given, and the call is made.
    world.up().wait_for_line("upstream demo: ready")
    assert [approval["id"] for approval in pending_approvals(world)] == [approve.split()[-1]]
    outcome = world.run_here("keys", "new", "chief", "--no-passphrase")
    assert outcome.returncode == 0, outcome.stderr
    wait_until(
        "the call is made once it is approved",
        lambda: "Deleted note 1" in world.run_here(*approve.split()[1:], "--yes").stdout,
    )
    assert "Start one first" not in delete_note(world, 2).stderr


def test_approval_option_never_makes_new_call(office: CommandLine) -> None:
    new_key(office)
    id = hold_call(office)
    named = ("call", "demo.notes_delete", "id=1", "--approval")
    # While the call is pending, the option gets the same approval.
    assert office.run_here(*named, id).returncode == 1
    assert [approval["id"] for approval in pending_approvals(office)] == [id]
    unknown = office.run_here(*named, "x" * 22)
    assert (unknown.returncode, "is unknown" in unknown.stderr) == (1, True), unknown.stderr
    other = office.run_here("call", "demo.notes_delete", "id=2", "--approval", id)
    assert (other.returncode, "belongs to another call" in other.stderr) == (1, True)
    free = office.run_here("call", "demo.notes_add", "title=x", "text=x", "--approval", id)
    assert (free.returncode, "belongs to another call" in free.stderr) == (1, True)
    approved = office.run_here(
        "approve", "--yes", "--key", "chief", "--passphrase-file", "phrase", "--", id
    )
    assert approved.returncode == 0, approved.stderr
    assert office.run_here(*named, id).returncode == 0
    again = office.run_here(*named, id)
    assert (again.returncode, "already returned" in again.stderr) == (1, True), again.stderr
    assert pending_approvals(office) == []
