"""Approvals and effects of contracts in a live node."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OKPKey
from msgspec import Raw

from interlock.core.call import Call, Credentials, HiddenToolError
from tests.drivers.driver_workspace import CLIENT, Running, Workspace, running
from tests.trust.approvals.gated import sign

pytestmark = pytest.mark.usefixtures("no_leaks")

NOTE_IN = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "file": {"type": "string"}},
    "required": ["text", "file"],
}
ALLOWED = "policy: {default: allow}\n"


class Approver:
    """Somebody who may say yes."""

    def __init__(self, folder: Path) -> None:
        self._key = OKPKey.generate_key("Ed25519")
        (folder / "human.pem").write_bytes(self._key.as_pem(private=False))
        self.config = "approvals: {anchors: [{name: human, key: human.pem}]}\n"

    async def confirms(self, node: Running, pending: dict[str, Any]) -> Any:
        now = int(time.time())
        claims = {
            "aud": pending["aud"],
            "jti": pending["confirmation_id"],
            "args_sha256": pending["args_sha256"],
            "iat": now,
            "exp": now + 600,
            "decision": "approve",
        }
        fields = {
            "confirmation_id": pending["confirmation_id"],
            "proof": sign(self._key, claims),
        }
        extra = {key: Raw(json.dumps(value).encode()) for key, value in fields.items()}
        return await node.run(
            Call("mcpax/confirm", "test", Credentials("local"), CLIENT, extra_params=extra)
        )


def assert_pending(result: dict[str, Any]) -> dict[str, Any]:
    """What a call waits for."""
    assert result["_meta"]["x-mcpax-status"] == "confirmation_required", result
    content: dict[str, Any] = result["structuredContent"]
    return content


@pytest.mark.spec("DR-14.fields-9")
@pytest.mark.parametrize(
    "fields",
    [
        {"approval": "always"},
        {"approval": "on-mutate", "mutates": ["fs:notes"]},
        {"approval": "policy:./rules.md"},
    ],
    ids=["always", "on-mutate", "policy"],
)
async def test_call_waits_for_approval_and_runs_once(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    workspace, human = Workspace(tmp_path), Approver(tmp_path)
    contract = workspace.contract("note.write", inputs=NOTE_IN, **fields)
    workspace.driver("note-mcp", workspace.serves(contract, "note"))
    notes = tmp_path / "notes"
    arguments = {"text": "buy milk", "file": str(notes)}

    # The rules alone would let it through.
    config = workspace.config(more=ALLOWED + human.config)
    async with running(workspace, config) as node:
        waiting = assert_pending(await node.result("note.write", arguments))
        assert workspace.heard() == []
        response = await human.confirms(node, waiting)
        assert response["structuredContent"] == {"said": "noted"}
        assert notes.read_text() == "buy milk\n"
        # The same once more is another call, and waits again.
        assert_pending(await node.result("note.write", {**arguments, "text": "buy bread"}))
        assert notes.read_text() == "buy milk\n"
        assert len(workspace.heard("tools/call")) == 1


@pytest.mark.spec("DR-14.fields-9")
async def test_stricter_of_contract_and_rules_applies(tmp_path: Path) -> None:
    workspace, human = Workspace(tmp_path), Approver(tmp_path)
    asked = workspace.contract("note.asked", inputs=NOTE_IN, approval="always")
    free = workspace.contract("note.free", inputs=NOTE_IN)
    workspace.driver("note-mcp", workspace.serves(asked, "note"), workspace.serves(free, "note"))
    rules = (
        "policy:\n"
        "  default: allow\n"
        "  rules:\n"
        "    - {name: no notes, then: deny, tools: [note.asked]}\n"
        "    - {name: ask, then: confirm, tools: [note.free]}\n"
    )

    async with running(workspace, workspace.config(more=rules + human.config)) as node:
        error = await node.refused("note.asked", text="x", file="y")
        assert isinstance(error, HiddenToolError)
        assert error.reason.failure.name == "denied_by_policy"
        assert_pending(await node.result("note.free", {"text": "x", "file": "y"}))
        assert workspace.heard() == []


async def test_read_only_contract_needs_no_approval(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract(approval="on-mutate")
    workspace.driver("echo-mcp", workspace.echoes(contract))

    async with running(workspace) as node:
        assert (await node.call("text.echo", text="x"))["said"] == "x"


@pytest.mark.parametrize(
    ("fields", "effect", "hints"),
    [
        ({}, "read_only", (True, False)),
        ({"approval": "always"}, "read_only", (True, False)),
        ({"mutates": ["db:rows"], "approval": "on-mutate"}, "mutating", (False, False)),
        ({"risk_level": 3}, "irreversible", (False, True)),
    ],
    ids=["nothing", "asked", "mutates", "risk 3"],
)
async def test_effect_is_visible_to_rules_and_callers(
    tmp_path: Path, fields: dict[str, Any], effect: str, hints: tuple[bool, bool]
) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract(**fields)
    workspace.driver("echo-mcp", workspace.echoes(contract))
    rules = (
        "policy:\n"
        "  default: allow\n"
        "  rules:\n"
        f"    - {{name: none of it, then: deny, effects: [{effect}]}}\n"
    )

    async with running(workspace, workspace.config(more=rules)) as node:
        listed = node.listed("text.echo")["annotations"]
        assert (listed["readOnlyHint"], listed["destructiveHint"]) == hints
        error = await node.refused("text.echo", text="x")
        assert isinstance(error, HiddenToolError)
        assert error.reason.failure.name == "denied_by_policy"
        assert workspace.heard() == []
