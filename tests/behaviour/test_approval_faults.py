"""kill -9 at every point of the way of an approved call: a real node, a real server, a real file.

Whatever the moment: nothing is executed twice, nothing that somebody was told of is forgotten, and
no approval can be used again.
"""

from __future__ import annotations

import http.client
import json
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OKPKey

from interlock.core.crash_points import POINTS
from interlock.protocol.mcpax import APPROVAL
from tests.support.command_line import CommandLine, NodeProcess
from tests.support.waiting import HANG_TIMEOUT
from tests.trust.approvals.gated import sign

LEDGER = Path(__file__).parent / "servers" / "ledger.py"
TOLD = ("pending", "approved", "dispatching", "done", "refused", "void", "lost")
NOT_EXECUTED = ("pending", "approved", "refused", "void")
COMMITS = 7
"""So many commits of the store there are on the whole way."""
CASES = [
    *[(point, 0) for point in POINTS if point != "store.committing"],
    *[("store.committing", after) for after in range(COMMITS)],
]


class CrashingNode:
    """One machine, its operator's key, and a client that speaks plain HTTP."""

    def __init__(self, folder: Path) -> None:
        self.world = CommandLine(folder)
        self.ledger = folder / "ledger"
        self.key = OKPKey.generate_key("Ed25519")
        (folder / "clerk.pem").write_bytes(self.key.as_pem(private=False))
        command = {"command": sys.executable, "args": [str(LEDGER), str(self.ledger)]}
        self.world.config(
            {"s": command},
            approvals={"anchors": [{"name": "clerk", "key": str(folder / "clerk.pem")}]},
        )

    def up(self, **environ: str) -> NodeProcess:
        node = self.world.up(**environ)
        node.pids()
        return node

    def ask(
        self,
        node: NodeProcess,
        method: str,
        name: str = "",
        more_meta: dict[str, Any] | None = None,
        **params: Any,
    ) -> Any:
        """The result, or the error. None: the node died of it."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            **(more_meta or {}),
        }
        params["_meta"] = meta
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
        }
        if name:
            params["name"] = headers["Mcp-Name"] = name
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        request = urllib.request.Request(node.url, body.encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as refused:
            answer = json.load(refused)
        except (OSError, http.client.HTTPException):
            return None
        return answer.get("result", answer.get("error"))

    def press(self, node: NodeProcess, button: str, approval: dict[str, Any] | None = None) -> Any:
        """`approval`: the one that its client was told of for the same call, and names."""
        meta = None if approval is None else {APPROVAL: approval["confirmation_id"]}
        return self.ask(node, "tools/call", "s.press", meta, arguments={"button": button})

    def proof(self, held: dict[str, Any], decision: str = "approve") -> str:
        now = int(time.time())
        return sign(
            self.key,
            {
                "aud": held["aud"],
                "jti": held["confirmation_id"],
                "args_sha256": held["args_sha256"],
                "iat": now,
                "exp": now + 600,
                "decision": decision,
            },
        )

    def confirm(self, node: NodeProcess, held: dict[str, Any], proof: str) -> Any:
        return self.ask(node, "mcpax/confirm", confirmation_id=held["confirmation_id"], proof=proof)

    def answer(self, node: NodeProcess, held: dict[str, Any], proof: str) -> Any:
        """Confirm as an approval service does: its caller is not told with this."""
        url = f"{node.url.rpartition('/')[0]}/approvals/{held['confirmation_id']}"
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        body = json.dumps({"proof": proof}).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, body, headers), timeout=HANG_TIMEOUT
            ) as response:
                return json.load(response)
        except (OSError, http.client.HTTPException):
            return None

    def seen(self, node: NodeProcess, id: str) -> dict[str, Any]:
        """What the node says of an approval."""
        url = f"{node.url.rpartition('/')[0]}/approvals/{id}"
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as response:
            records: dict[str, Any] = json.load(response)
        about: dict[str, Any] = records.get("approval", records)
        return about

    def executed(self, button: str) -> int:
        if not self.ledger.exists():
            return 0
        lines = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        return lines.count(["press", {"button": button}])


@pytest.fixture
def crashing_node(tmp_path: Path) -> Iterator[CrashingNode]:
    crashing_node = CrashingNode(tmp_path)
    yield crashing_node
    crashing_node.world.close()


def _is_pending(answer: Any) -> dict[str, Any] | None:
    """What a caller knows of its approval, if it was told."""
    content = answer.get("structuredContent") if isinstance(answer, dict) else None
    if isinstance(content, dict) and content.get("status") == "confirmation_required":
        return content
    return None


def _run_approval(crashing_node: CrashingNode, node: NodeProcess) -> dict[str, Any]:
    """Everything that can happen to approvals, for as long as the node lives."""
    details: dict[str, Any] = {}
    details["a"] = held = _is_pending(crashing_node.press(node, "a"))
    if held is None:
        return details
    details["proof"] = proof = crashing_node.proof(held)
    if (
        crashing_node.answer(node, held, proof) is None
        or crashing_node.press(node, "a", held) is None
    ):
        return details
    details["b"] = held = _is_pending(crashing_node.press(node, "b"))
    if held is not None:
        details["refusal"] = crashing_node.proof(held, "refuse")
        crashing_node.confirm(node, held, details["refusal"])
    return details


@pytest.mark.parametrize(("point", "after"), CASES)
def test_kill_at_any_point_executes_at_most_once(
    crashing_node: CrashingNode, point: str, after: int
) -> None:
    node = crashing_node.up(INTERLOCK_FAULT=point, INTERLOCK_FAULT_AFTER=str(after))
    response = _run_approval(crashing_node, node)
    assert node.process.wait(HANG_TIMEOUT) == -signal.SIGKILL, "the point was never reached"
    before = crashing_node.executed("a")
    assert before <= 1
    assert crashing_node.executed("b") == 0

    node = crashing_node.up()
    for button, proof in (("a", "proof"), ("b", "refusal")):
        held = response.get(button)
        if held is None:
            continue
        # Whoever was told of an approval can ask what became of it.
        state = crashing_node.seen(node, held["confirmation_id"])["state"]
        assert state in TOLD
        if state in NOT_EXECUTED:
            assert crashing_node.executed(button) == 0
        if proof in response and state != "pending":
            # What was used is used.
            again = crashing_node.confirm(node, held, response[proof])
            assert again["code"] in (-31035, -31008), again
        elif state == "pending":
            crashing_node.confirm(node, held, crashing_node.proof(held))
            assert crashing_node.executed(button) == 1
            again = crashing_node.confirm(node, held, crashing_node.proof(held))
            assert again["code"] == -31035
        # Its caller comes back: it is told, or it waits anew, or what was approved is made now.
        for _ in range(3):
            assert crashing_node.press(node, button, held) is not None
        assert crashing_node.executed(button) <= 1
    # And a new one goes all the way.
    held = _is_pending(crashing_node.press(node, "c"))
    assert held is not None
    assert crashing_node.confirm(node, held, crashing_node.proof(held))["content"]
    assert crashing_node.executed("c") == 1
    assert node.end() == 0
