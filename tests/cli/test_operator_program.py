"""A node with the safety loop as a program, its operator at a terminal, and an agent over HTTP."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from typing import Any

import pytest

from tests.support.command_line import DEMO, CommandLine
from tests.support.http_client import META, STATELESS, meta
from tests.support.waiting import HANG_TIMEOUT, wait_until


def ask(world: CommandLine, operation: str, **params: Any) -> dict[str, Any]:
    """What the agent is told, in the view of one endpoint."""
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "mcp_aql",
            "arguments": {"operation": operation, "params": params},
            "_meta": {**meta(), META + "clientCapabilities": {}},
        },
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{world.port}/mcp?view=aql-single",
        json.dumps(body).encode(),
        {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": STATELESS,
            "Mcp-Method": "tools/call",
            "Mcp-Name": "mcp_aql",
        },
    )
    with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as answer:
        records = json.load(answer)
    envelope: dict[str, Any] = json.loads(records["result"]["content"][0]["text"])
    return envelope


def run_command(world: CommandLine, *arguments: str) -> str:
    ran = world.run_here(*arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def begin(world: CommandLine) -> str:
    """An execution that the operator let begin."""
    held = ask(world, "execute_agent", element_name="agent")["error"]
    [one] = json.loads(run_command(world, "approvals", "--json"))["approvals"]
    run_command(world, "approve", one["id"], "--yes")
    token = held["details"]["confirmation_token"]
    response = ask(world, "execute_agent", element_name="agent", confirmation_token=token)
    started: str = response["data"]["execution_id"]
    return started


def report(world: CommandLine, hint: str) -> dict[str, Any]:
    return ask(world, "record_execution_step", element_name="agent", next_action_hint=hint)


@pytest.mark.spec("AQ-8.8.2-5", "AQ-8.8.3-1", "AQ-8.8.6-1")
@pytest.mark.feature("aql")
def test_agent_stays_blocked_after_restart_until_verified(world: CommandLine) -> None:
    mail = world.cwd / "mail"
    program = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"
    channels = [
        {"kind": "terminal"},
        {"kind": "command", "command": [sys.executable, "-c", program, str(mail)]},
    ]
    world.config({"demo": DEMO}, aql={"safety": {"mode": "enforcing"}, "channels": channels})
    node = world.up()
    node.wait_for_line("upstream demo: ready")
    run_command(world, "keys", "new", "chief", "--no-passphrase")
    id = begin(world)
    assert report(world, "drop_table users")["data"]["stopped"] is True
    # Who was told: the operator at the terminal, and the operator's mail.
    [shown] = json.loads(run_command(world, "operator", "--json"))["nodes"]
    [challenge] = shown["challenges"]
    code = challenge["code"]
    wait_until("the mail came", lambda: mail.exists() and code in mail.read_text())
    # Killed in the middle, it comes back as strict as it was; the code is not known any more.
    node.send(signal.SIGKILL)
    node.process.wait(HANG_TIMEOUT)
    first, node = node, world.up()
    node.wait_for_line("upstream demo: ready")
    error = ask(world, "demo_notes_list")["error"]
    assert error["details"]["reason"] == "hard_blocked"
    assert ask(world, "execute_agent", element_name="other")["error"]["details"]["reason"] == (
        "hard_blocked"
    )
    [shown] = json.loads(run_command(world, "operator", "--json"))["nodes"]
    [challenge] = shown["challenges"]
    assert challenge["code"] is None
    assert "renew" in run_command(world, "operator")
    renewed = json.loads(run_command(world, "operator", "renew", "--json", challenge["id"][:8]))
    response = ask(world, "verify_challenge", challenge_id=renewed["id"], code=renewed["code"])
    assert response["data"]["unblocked"] is True
    # The execution goes on, watched as before.
    unreported = ask(world, "demo_notes_list")["error"]
    assert unreported["details"]["reason"] == "unreported_action"
    assert report(world, "list the notes of the demo")["data"]["continue"] is True
    assert ask(world, "demo_notes_list")["success"]
    # What runs is shown.
    assert f"interlock operator end {id}" in run_command(world, "operator")
    # And by key, without a code.
    assert report(world, "drop_table users")["data"]["stopped"] is True
    assert "is unblocked." in run_command(world, "operator", "unblock", "local", "--yes")
    assert report(world, "list the notes of the demo")["data"]["continue"] is True
    # What an operator ended is watched no more.
    assert f"{id} of local is cancelled." in run_command(world, "operator", "end", id[:14])
    assert ask(world, "demo_notes_list")["success"]
    node.end()
    codes = {code, renewed["code"]}
    logged = ""
    for item in (first, node):
        assert item.process.stdout is not None
        logged += "".join(item.seen) + "".join(iter(lambda line=item: line._lines.get() or "", ""))
    kept = b"".join(path.read_bytes() for path in world.state.rglob("*") if path.is_file()).decode(
        "latin-1"
    )
    for element in codes:
        for text in (logged, kept):
            assert element not in text
            assert element.replace("-", "") not in text
