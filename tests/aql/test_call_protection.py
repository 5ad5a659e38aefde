"""Tests of every rejection between an operation and its server, and of their order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.confirmation_tokens import to_token
from interlock.aql.decision_steps import DangerStep, journal_observer
from interlock.aql.operations import ServerTrust
from interlock.core.call import Credentials
from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.protocol.aql_terms import Danger, OperationView
from interlock.trust.approvals.record import Approval
from interlock.trust.policy.policy import Policy
from tests.aql.test_confirmation_tokens import REPO
from tests.aql.test_confirmation_tokens import ConfirmationNode as Tokens
from tests.aql.test_quota_approvals import QuotaNode as Limits
from tests.aql.view_pipeline import (
    CRUDE,
    FIVE,
    READS,
    gated_pipeline,
    hub_offering,
    read_result,
    text_result,
    view_pipeline,
)
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer
from tests.trust.decision_steps import danger_step


def code(answer: dict[str, Any]) -> str:
    return str(answer["error"]["code"])


@pytest.mark.spec("AQ-ERR-5.1-1")
async def test_every_protection_code_occurs(tmp_path: Path) -> None:
    met = set()
    # Tokens.
    desk = Tokens(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    met.add("CONFIRMATION_REQUIRED")
    met.add(code(await desk.ask({**REPO, "confirmation_token": "conf_x"})))
    other = {"owner": "x", "repo": "r", "confirmation_token": token}
    met.add(code(await desk.ask(other)))
    await desk.approve(token)
    brought = {**REPO, "confirmation_token": token}
    assert (await desk.ask(brought))["success"] is True
    met.add(code(await desk.ask(brought)))
    late = (await desk.create_pending_call(params={"owner": "late", "repo": "r"}))[
        "confirmation_token"
    ]
    desk.gate.pass_time(3_600)
    met.add(code(await desk.ask({"owner": "late", "repo": "r", "confirmation_token": late})))
    # Danger and trust.
    authorizer = desk.node.authorizer
    authorizer.set_policy(Policy(PolicyConfig(default="allow")))
    found = desk.node.stage.find("hub_delete_repo", FIVE)
    assert found is not None
    for trust, danger in (("untested", found.danger), ("generated", Danger.FORBIDDEN)):
        levels: dict[str, Any] = {"hub": trust}
        trusting = ServerTrust(levels, wall_clock=lambda: 0.0)
        risk = DangerStep(
            desk.node.stage.operation_catalog, trusting, journal_observer(desk.node.rig.audit)
        )
        authorizer.install(danger_step(risk))
        found.danger = danger
        met.add(code(await desk.ask()))
    desk.gate.close()
    # Quotas and limits.
    hourly = {"metric": "requests_per_hour", "warn": 1, "pause": 2, "hard_stop": 3}
    (tmp_path / "q").mkdir()
    limits = Limits(tmp_path / "q", quotas=[hourly])
    warned = [await limits.ask()]
    warned.append(await limits.ask())
    said = {one["code"] for answer in warned for one in answer.get("warnings", ())}
    assert "RATE_LIMIT_QUOTA_WARNING" in said
    assert all(answer["success"] for answer in warned if "warnings" in answer)
    paused = await limits.ask()
    while paused["success"]:
        paused = await limits.ask()
    met.add(code(paused))
    await limits.approve(paused["error"]["details"]["confirmation_token"])
    for _ in range(4):
        answer = await limits.ask()
        if not answer["success"]:
            met.add(code(answer))
    limits.gate.close()
    (tmp_path / "l").mkdir()
    few = Limits(tmp_path / "l", api_limits=[{"limit": 1, "window": "hour"}])
    await few.ask()
    met.add(code(await few.ask()))
    few.gate.close()
    assert met >= {
        "PERMISSION_TRUST_LEVEL_INSUFFICIENT", "PERMISSION_DANGER_LEVEL_DENIED",
        "CONFIRMATION_REQUIRED", "RATE_LIMIT_EXCEEDED", "RATE_LIMIT_QUOTA_PAUSE",
        "RATE_LIMIT_QUOTA_EXHAUSTED", "TOKEN_INVALID", "TOKEN_EXPIRED", "TOKEN_ALREADY_USED",
        "TOKEN_SCOPE_MISMATCH",
    }, met  # fmt: skip


@pytest.mark.spec("AQ-GK-2.1-1")
async def test_first_rejection_ends_request(tmp_path: Path) -> None:
    deny = RuleConfig(name="no", then="deny", tools=["hub.delete_repo"])
    node = gated_pipeline(tmp_path, rules=[deny], tokens={"a": "agent"})
    assert node.gated is not None

    async def ask(endpoint: str, operation: str, **params: Any) -> str:
        call = tool_call(
            endpoint,
            {"operation": operation, "params": params},
            view=FIVE,
            credentials=Credentials("10.0.0.1", "a"),
        )
        return code(node.read(read_result(await node.pipeline.run(call))))

    bad = {"force": 1}
    assert await ask("mcp_aql_read", "hub_no", **bad) == "NOT_FOUND_OPERATION"
    assert await ask("mcp_aql_read", "hub_delete_repo", **bad) == "VALIDATION_ENDPOINT_MISMATCH"
    assert await ask("mcp_aql_delete", "hub_delete_repo", **bad) == "VALIDATION_MISSING_PARAM"
    assert await ask("mcp_aql_delete", "hub_delete_repo", **REPO) == "PERMISSION_DENIED"
    node.authorizer.set_policy(Policy(PolicyConfig()))
    assert await ask("mcp_aql_delete", "hub_delete_repo", **REPO) == "CONFIRMATION_REQUIRED"
    assert node.sent_calls == []
    node.gated.close()


async def test_token_contains_no_call_data(tmp_path: Path) -> None:
    desk = Tokens(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    record = desk.gate.approvals.find(token.removeprefix("conf_"))
    assert record is not None
    assert to_token(record.id) == token
    assert record.tool == "hub.delete_repo"
    assert len(record.digest) == 64
    assert record.audience
    assert record.created < record.expires
    assert record.collected is False
    assert record.effect == "irreversible"
    # Nothing of it can be read from the token.
    for said in ("hub", "delete", record.digest[:8], record.caller.name):
        assert said not in token
    desk.gate.close()


def test_namespace_view_hides_other_servers() -> None:
    other = offer("other", [definition("look", annotations=READS)])
    node = view_pipeline(None, hub_offering(), other)
    view = OperationView("single", "crude", CRUDE, namespace="other")
    node.rig.upstreams["other"].start = node.hub.start  # type: ignore[method-assign]
    for name in ("look", "other_look"):
        node.begin("mcp_aql", {"operation": name}, view=view)
        node.last.answer(**text_result("{}"))
        assert node.last_envelope()["success"] is True
    error = node.ask("mcp_aql", {"operation": "hub_list_issues"}, view=view)["error"]
    assert error["code"] == "NOT_FOUND_OPERATION"
    assert "hub_list_issues" not in error["details"]["available"]


@pytest.mark.spec("AQ-TOK-5.5-1")
async def test_thousand_concurrent_tokens_expire(tmp_path: Path) -> None:
    callers = {f"t{number}": f"agent{number}" for number in range(20)}
    node = gated_pipeline(tmp_path, tokens=callers)
    assert node.gated is not None

    async def ask(by: str, repo: int, **also: Any) -> dict[str, Any]:
        params = {"owner": "o", "repo": str(repo)}
        call = tool_call(
            "mcp_aql_delete",
            {"operation": "hub_delete_repo", "params": params, **also},
            view=FIVE,
            credentials=Credentials("10.0.0.1", by),
        )
        answer = node.read(read_result(await node.pipeline.run(call)))
        details: dict[str, Any] = answer["error"]["details"]
        return details

    which = [(by, repo) for by in callers for repo in range(50)]
    tokens = []
    for start in range(0, len(which), 50):
        held = await asyncio.gather(*(ask(*one) for one in which[start : start + 50]))
        tokens += [details["confirmation_token"] for details in held]
    assert len(set(tokens)) == 1_000
    for (by, repo), token in zip(which, tokens, strict=True):
        again = await ask(by, repo, _confirmation=token)
        assert again["confirmation_token"] == token
    expiry, keep = 300.0, 3_600.0
    node.gated.pass_time(expiry + 1)
    left = {one.id for one in node.gated.approvals.recent(2_000) if not one.is_final}
    all_over = asyncio.Event()

    def ended(one: Approval) -> None:
        left.discard(one.id)
        if not left:
            all_over.set()

    node.gated.approvals.watch(ended)
    await all_over.wait()
    node.gated.pass_time(keep)
    node.gated.pass_time(2.0)
    assert node.gated.approvals.recent(2_000) == []
    node.gated.close()
