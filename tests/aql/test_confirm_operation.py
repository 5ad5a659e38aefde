"""Tests of `confirm_operation`: an operator decides about a call by a request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import Call, Caller, Credentials
from tests.aql.test_confirmation_tokens import REPO, ConfirmationNode
from tests.aql.view_pipeline import text_result
from tests.trust.approvals.gated import a_session_client


async def decide(desk: ConfirmationNode, by: str = "b", **params: Any) -> dict[str, Any]:
    return await desk.ask(params, by=by, operation="confirm_operation")


@pytest.mark.spec("AQ-8.7.3-5")
async def test_operator_approves_with_proof(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    approval = desk.gate.approvals.find(token[5:])
    assert approval is not None
    without = await decide(desk, confirmation_token=token, approve=True)
    assert without["error"]["code"] == "PERMISSION_DENIED"
    forged = await decide(desk, confirmation_token=token, approve=True, proof="x.y.z")
    assert forged["error"]["code"] == "TOKEN_INVALID"
    assert desk.node.sent_calls == []
    task = asyncio.ensure_future(
        decide(desk, approval_id=approval.id, approve=True, proof=desk.gate.proof(approval))
    )
    (await desk.node.wait_for_call(1)).answer(**text_result('{"gone":true}'))
    answer = await task
    assert answer["data"]["status"] == "executed"
    assert answer["data"]["result"] == {"gone": True}
    assert token not in json.dumps(answer)
    mine = await desk.ask({**REPO, "confirmation_token": token})
    assert mine["data"] == {"gone": True}
    desk.gate.close()


@pytest.mark.spec("AQ-8.7.3-5")
async def test_rejects_self_approval(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    approval = desk.gate.approvals.find(token[5:])
    assert approval is not None
    for params in (
        {"approve": True},
        {"approve": False},
        {"approve": True, "proof": desk.gate.proof(approval)},
    ):
        answer = await decide(desk, by="a", confirmation_token=token, **params)
        assert answer["error"]["code"] == "PERMISSION_DENIED"
        assert answer["error"]["details"]["reason"] == "self_approval"
    assert desk.node.sent_calls == []
    assert desk.gate.approvals.find(token[5:]) is approval
    desk.gate.close()


async def test_reject_needs_permission(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    answer = await decide(desk, confirmation_token=token, approve=False)
    assert answer["error"]["code"] == "PERMISSION_DENIED"
    callers = {"a": Caller("agent"), "b": Caller("guard", can_view_approvals=True)}
    desk.node.pipeline.admission.authenticate = type(desk.node.pipeline.admission.authenticate)(
        callers
    )
    answer = await decide(desk, confirmation_token=token, approve=False, reason="no")
    assert answer["data"]["status"] == "refused"
    assert desk.node.sent_calls == []
    desk.gate.close()


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"approve": True}, "VALIDATION_MISSING_PARAM"),
        ({"confirmation_token": "conf_x"}, "VALIDATION_MISSING_PARAM"),
        ({"approve": "yes", "approval_id": "x"}, "VALIDATION_INVALID_TYPE"),
        ({"approve": True, "approval_id": "x"}, "TOKEN_INVALID"),
        ({"approve": True, "confirmation_token": "x"}, "TOKEN_INVALID"),
        ({"approve": True, "approval_id": "x", "caller": "root"}, "VALIDATION_UNKNOWN_PARAM"),
    ],
)
async def test_rejects_invalid_decision(tmp_path: Path, params: Any, code: str) -> None:
    desk = ConfirmationNode(tmp_path)
    assert (await decide(desk, **params))["error"]["code"] == code
    desk.gate.close()


async def test_approval_call_cannot_reach_internal_operation(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    call = Call("tools/call", "x", Credentials("10.0.0.1", "a"), a_session_client(), "aql.batch")
    over = await desk.gate.start(call)
    assert over.failure.name == "unknown_tool"
    desk.gate.close()
