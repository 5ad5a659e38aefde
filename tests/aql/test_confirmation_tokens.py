"""Tests of confirmation tokens for pending calls."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.config import AqlConfig
from interlock.aql.confirmation_tokens import (
    MAX_ATTEMPTS,
    WINDOW_SECONDS,
    mask_token,
    to_token,
)
from interlock.aql.language.errors import is_safe_message
from interlock.core.call import Credentials
from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.primitives.timestamps import format_utc
from interlock.protocol.aql_terms import OperationView
from interlock.protocol.mcpax import STATUS
from interlock.trust.approvals.record import VOID, new_id
from interlock.trust.policy.policy import Policy
from tests.aql.view_pipeline import (
    FIVE,
    READS,
    SINGLE,
    ViewPipeline,
    gated_pipeline,
    object_schema,
    read_result,
    text_result,
)
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import a_session_client, stateless_client

TOKENS = {"a": "agent", "b": "guard"}
REPO = {"owner": "o", "repo": "r"}


def run_test(test: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            await test()

    asyncio.run(within())


class ConfirmationNode:
    """A node whose deletions need approval."""

    def __init__(self, folder: Path, config: AqlConfig | None = None, **settings: Any) -> None:
        self.node: ViewPipeline = gated_pipeline(folder, config, tokens=TOKENS, **settings)
        assert self.node.gated is not None
        self.gate = self.node.gated

    async def ask(
        self, params: Any = None, by: str = "a", view: OperationView = FIVE, **also: Any
    ) -> dict[str, Any]:
        operation = also.pop("operation", "hub_delete_repo")
        endpoint = self.node.endpoint_of(operation, view)
        fields = {key: also.pop(key) for key in ("client", "extra") if key in also}
        call = tool_call(
            endpoint,
            {"operation": operation, "params": REPO if params is None else params, **also},
            view=view,
            credentials=Credentials("10.0.0.1", by),
            **fields,
        )
        outcome = await self.node.pipeline.run(call)
        return self.node.read(read_result(outcome))

    async def create_pending_call(self, **fields: Any) -> dict[str, Any]:
        answer = await self.ask(**fields)
        assert answer["error"]["code"] == "CONFIRMATION_REQUIRED"
        details: dict[str, Any] = answer["error"]["details"]
        return details

    async def approve(self, token: str) -> None:
        approval = self.gate.approvals.find(token.removeprefix("conf_"))
        assert approval is not None
        number = len(self.node.sent_calls)
        task = asyncio.ensure_future(
            self.gate.approvals.confirm(approval.id, self.gate.proof(approval))
        )
        (await self.node.wait_for_call(number + 1)).answer(**text_result('{"gone":true}'))
        await task

    def find_journal_detail(self, word: str) -> list[str]:
        """The detail of the last entry of this name, part by part."""
        entries = [
            one
            for one in self.node.journal.entries
            if one["verb"] == "aql" and one["outcome"] == word
        ]
        found: list[str] = entries[-1]["detail"].split()
        return found

    def list_outcomes(self) -> list[str]:
        return [one["outcome"] for one in self.node.journal.entries if one["verb"] == "aql"]


@pytest.mark.spec("AQ-ERR-5.4-1", "AQ-GK-6.1-1")
@pytest.mark.spec("AQ-TOK-2.2-1")
@pytest.mark.spec("AQ-EPM-6.4-1")
@pytest.mark.parametrize("view", [FIVE, SINGLE])
async def test_deletion_needs_approval(tmp_path: Path, view: OperationView) -> None:
    desk = ConfirmationNode(tmp_path, page="https://node/approvals")
    answer = await desk.ask(view=view)
    error = answer["error"]
    assert error["code"] == "CONFIRMATION_REQUIRED"
    details = error["details"]
    assert details["operation"] == "hub_delete_repo"
    assert details["danger_level"] in ("destructive", "dangerous")
    assert details["reasons"]
    assert 'repo "r"' in details["confirmation_message"]
    token = details["confirmation_token"]
    assert re.fullmatch(r"conf_[A-Za-z0-9_-]{1,64}", token)
    assert 8 <= len(token) <= 80
    assert re.fullmatch(r"20..-..-..T..:..:..Z", details["expires_at"])
    assert details["url"].startswith("https://node/approvals/")
    assert is_safe_message(error["message"])
    assert desk.node.sent_calls == []
    # To ask again is to be told the same.
    assert (await desk.create_pending_call(view=view))["confirmation_token"] == token
    desk.gate.close()


@pytest.mark.spec("AQ-TOK-1.2-1", "AQ-TOK-4.1-1")
@pytest.mark.spec("AQ-TOK-6.4-1")
@pytest.mark.spec("AQ-GK-5.1-1")
@pytest.mark.spec("AQ-TOK-4-1")
@pytest.mark.parametrize("spelled", ["confirmation_token", "_confirmation"])
async def test_token_works_once_after_approval(tmp_path: Path, spelled: str) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    also = {spelled: token}
    params = {**REPO, **also} if spelled[0] != "_" else REPO
    also = also if spelled[0] == "_" else {}
    # A token approves nothing.
    again = await desk.ask(params, **also)
    assert again["error"]["code"] == "CONFIRMATION_REQUIRED"
    assert again["error"]["details"]["confirmation_token"] == token
    assert desk.node.sent_calls == []
    await desk.approve(token)
    answer = await desk.ask(params, **also)
    assert answer["success"] is True
    assert answer["data"] == {"gone": True}
    assert len(desk.node.sent_calls) == 1
    used = await desk.ask(params, **also)
    assert used["error"]["code"] == "TOKEN_ALREADY_USED"
    assert set(used["error"]["details"]) == {"token", "consumed_at"}
    assert token not in json.dumps(used)
    assert len(desk.node.sent_calls) == 1
    assert desk.list_outcomes() == [
        "CONFIRMATION_REQUIRED",
        "TOKEN_ISSUED",
        "CONFIRMATION_REQUIRED",
        "CONFIRMATION_GRANTED",
        "TOKEN_VALIDATED",
        "TOKEN_REJECTED",
    ]
    entries = [one for one in desk.node.journal.entries if one["verb"] == "aql"]
    assert all(one["name"] == "hub_delete_repo" for one in entries)
    assert all(token not in one["detail"] for one in entries)
    issued, validated, rejected = (
        desk.find_journal_detail(word)
        for word in ("TOKEN_ISSUED", "TOKEN_VALIDATED", "TOKEN_REJECTED")
    )
    for one in (issued, validated, rejected, desk.find_journal_detail("CONFIRMATION_GRANTED")):
        assert one[:2] == [f"token:{mask_token(token)}", "tool:hub.delete_repo"]
    assert "caller:agent" in issued
    assert all(one["time_ns"] > 0 for one in entries)
    # Each failure has its reason, and what did not fail has none.
    assert rejected[-1] == "TOKEN_ALREADY_USED"
    assert issued == validated == rejected[:-1]
    desk.gate.close()


async def test_late_result_names_execution_time(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    await desk.approve(token)
    record = desk.gate.approvals.find(token.removeprefix("conf_"))
    assert record is not None
    executed = format_utc(record.ended)
    desk.gate.pass_time(60)
    answer = await desk.ask({**REPO, "confirmation_token": token})
    assert answer["data"] == {"gone": True}
    (warning,) = answer["warnings"]
    assert warning["code"] == "CONFIRMATION_EARLIER_RESULT_WARNING"
    assert warning["severity"] == "high"
    assert warning["details"] == {
        "approval_id": record.id,
        "executed_at": executed,
        "approved_by": record.by,
    }
    assert f"executed on {executed}" in warning["message"]
    assert "not executed again" in warning["message"]
    desk.gate.close()


async def test_late_failure_names_execution_time(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    record = desk.gate.approvals.find(token.removeprefix("conf_"))
    assert record is not None
    task = asyncio.ensure_future(desk.gate.approvals.confirm(record.id, desk.gate.proof(record)))
    (await desk.node.wait_for_call(1)).answer(**text_result("no such repo"), isError=True)
    await task
    error = (await desk.ask({**REPO, "confirmation_token": token}))["error"]
    assert error["code"] == "NOT_FOUND_RESOURCE"
    assert set(error["details"]["earlier_result"]) == {
        "approval_id", "executed_at", "approved_by",
    }  # fmt: skip
    assert "not executed again" in error["message"]
    desk.gate.close()


async def test_pending_call_says_if_no_operator_is_enrolled(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    answer = await desk.ask()
    assert "operators_enrolled" not in answer["error"]["details"]
    assert "keys new" not in answer["error"]["message"]
    desk.gate.approvals.gate.has_operators = False
    answer = await desk.ask()
    assert answer["error"]["details"]["operators_enrolled"] is False
    assert "No operator of this node is enrolled" in answer["error"]["message"]
    assert "`interlock keys new NAME`" in answer["error"]["message"]
    desk.gate.close()


@pytest.mark.spec("AQ-TOK-3.1-1")
@pytest.mark.spec("AQ-TOK-2.2-1")
def test_tokens_are_random_and_have_one_form() -> None:
    tokens = {to_token(new_id()) for _ in range(1_000)}
    assert len(tokens) == 1_000
    for token in tokens:
        assert re.fullmatch(r"conf_[A-Za-z0-9_-]{33}", token)
        assert mask_token(token) == token[:7] + "…"
    # The generator of `random` can be predicted. It is not used.
    drawn = set()
    for _ in range(2):
        random.seed(7)
        drawn.add(to_token(new_id()))
    assert len(drawn) == 2


@pytest.mark.spec("AQ-TOK-6.2-1", "AQ-2.3.5-1")
@pytest.mark.spec("AQ-TOK-6.3-1")
@pytest.mark.spec("AQ-TOK-4.1-1")
async def test_invalid_and_foreign_tokens_look_alike(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    answers = set()
    wrong = [
        token[:-1],
        token + "A",
        token[:20] + ("A" if token[20] != "A" else "B") + token[21:],
        token.swapcase(),
        "conf_" + token[5:].swapcase(),
        token[5:],
        to_token(new_id()),
        "conf_",
        "conf_" + "a" * 64,
        "quota_continue_" + token[5:],
        "\u0130",
        "conf_../../x",
    ]
    for one in wrong:
        answer = await desk.ask({**REPO, "confirmation_token": one})
        assert answer["error"]["code"] == "TOKEN_INVALID", one
        answers.add(json.dumps(answer))
    # Somebody else's right one is no better.
    answers.add(json.dumps(await desk.ask({**REPO, "confirmation_token": token}, by="b")))
    assert len(answers) == 1
    assert desk.node.sent_calls == []
    desk.gate.close()


@pytest.mark.spec("AQ-TOK-3.2-1")
@pytest.mark.spec("AQ-TOK-4.1-1")
@pytest.mark.spec("AQ-ERR-5.9-1")
async def test_token_is_bound_to_operation_and_parameters(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    await desk.approve(token)
    other = await desk.ask({"owner": "o", "repo": "other", "confirmation_token": token})
    error = other["error"]
    assert error["code"] == "TOKEN_SCOPE_MISMATCH"
    assert error["details"] == {
        "token": mask_token(token),
        "token_operation": "hub_delete_repo",
        "requested_operation": "hub_delete_repo",
    }
    create = {"owner": "o", "issue_title": "t", "confirmation_token": token}
    other = await desk.ask(create, operation="hub_create_issue")
    assert other["error"]["code"] == "TOKEN_SCOPE_MISMATCH"
    assert other["error"]["details"]["requested_operation"] == "hub_create_issue"
    record = desk.gate.approvals.find(token.removeprefix("conf_"))
    assert record is not None
    assert re.fullmatch(r"[0-9a-f]{64}", record.digest)
    # In another order it is the same request.
    answer = await desk.ask({"confirmation_token": token, "repo": "r", "owner": "o"})
    assert answer["success"] is True
    assert len(desk.node.sent_calls) == 1
    desk.gate.close()


@pytest.mark.spec("AQ-TOK-4.1-1", "AQ-TOK-5.1-1")
@pytest.mark.spec("AQ-ERR-5.9-1")
async def test_token_expires(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    desk.gate.pass_time(3_600)
    answer = await desk.ask({**REPO, "confirmation_token": token})
    error = answer["error"]
    assert error["code"] == "TOKEN_EXPIRED"
    assert set(error["details"]) == {"token", "expired_at", "current_time"}
    assert error["details"]["token"] == mask_token(token)
    assert "TOKEN_REVOKED" not in desk.list_outcomes()
    desk.gate.close()


@pytest.mark.spec("AQ-TOK-5.3-1")
@pytest.mark.spec("AQ-TOK-6.4-1")
async def test_policy_change_revokes_tokens(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    rule = RuleConfig(name="new", then="confirm", tools=["*"])
    desk.node.authorizer.set_policy(Policy(PolicyConfig(rules=[rule])))
    revoked = asyncio.Event()
    desk.gate.approvals.watch(lambda one: revoked.set() if one.state == VOID else None)
    desk.gate.approvals.on_policy_changed()
    await revoked.wait()
    about = [f"token:{mask_token(token)}", "tool:hub.delete_repo"]
    assert desk.find_journal_detail("TOKEN_REVOKED")[:2] == about
    assert len(desk.find_journal_detail("TOKEN_REVOKED")) > len(about), "it says why"
    answer = await desk.ask({**REPO, "confirmation_token": token})
    assert answer["error"]["code"] == "TOKEN_EXPIRED"
    desk.gate.close()


@pytest.mark.spec("AQ-TOK-5.2-1")
async def test_concurrent_uses_of_token_execute_once(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    await desk.approve(token)
    params = {**REPO, "confirmation_token": token}
    one, two = await asyncio.gather(desk.ask(params), desk.ask(params))
    assert len(desk.node.sent_calls) == 1
    given = [answer for answer in (one, two) if answer["success"]]
    assert len(given) == 1
    desk.gate.close()


@pytest.mark.spec("AQ-TOK-6.5-1")
async def test_limits_token_guesses(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    codes = []
    for _ in range(100):
        answer = await desk.ask({**REPO, "confirmation_token": to_token(new_id())})
        codes.append(answer["error"]["code"])
    assert codes[:MAX_ATTEMPTS] == ["TOKEN_INVALID"] * MAX_ATTEMPTS
    assert set(codes[MAX_ATTEMPTS:]) == {"RATE_LIMIT_EXCEEDED"}
    limited = await desk.ask({**REPO, "confirmation_token": token})
    assert limited["error"]["details"]["retry_after_seconds"] > 0
    # Others are not the worse for it, and it passes.
    fine = await desk.ask({**REPO, "confirmation_token": "conf_x"}, by="b")
    assert fine["error"]["code"] == "TOKEN_INVALID"
    desk.gate.pass_time(WINDOW_SECONDS + 1)
    answer = await desk.ask({**REPO, "confirmation_token": token})
    assert answer["error"]["code"] == "CONFIRMATION_REQUIRED"
    desk.gate.close()


async def test_rejected_call_is_reported(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    token = (await desk.create_pending_call())["confirmation_token"]
    await desk.gate.approvals.reject(token[5:], local=True, reason="no, not today")
    answer = await desk.ask({**REPO, "confirmation_token": token})
    assert answer["error"]["code"] == "PERMISSION_DENIED"
    assert "OPERATION_DENIED" in desk.list_outcomes()
    desk.gate.close()


async def test_clients_with_url_elicitation_get_approval_page(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path, page="https://node/approvals")
    for client in (a_session_client(), stateless_client()):
        call = tool_call(
            "mcp_aql_delete",
            {"operation": "hub_delete_repo", "params": REPO},
            view=FIVE,
            client=client,
            credentials=Credentials("10.0.0.1", "a"),
        )
        over = await desk.gate.start(call)
        if client is not None and isinstance(over, dict):
            assert over["resultType"] == "input_required"
        else:
            assert over.code == -32042
    desk.gate.close()


@pytest.mark.spec("AQ-GK-1.3-1", "AQ-EPM-6.4-1")
@pytest.mark.spec("AQ-EPM-5.3-1")
@pytest.mark.spec("AQ-GK-6.3-1")
async def test_rule_applies_to_every_spelling(tmp_path: Path) -> None:
    rules = [
        RuleConfig(name="no", then="deny", tools=["hub.delete_*"], callers=["agent"]),
        RuleConfig(
            name="secret",
            then="deny",
            tools=["hub.createissue"],
            callers=["agent"],
            when="args.owner == 'secret'",
        ),
    ]
    desk = ConfirmationNode(tmp_path, default="allow", rules=rules)
    desk.node.authorizer.set_policy(desk.gate.policy)
    for view in (FIVE, SINGLE):
        answer = await desk.ask(view=view)
        assert answer["error"]["code"] == "PERMISSION_DENIED", view
        # A rule about arguments is evaluated later than one about tools.
        secret = {"owner": "secret", "issue_title": "t"}
        answer = await desk.ask(secret, view=view, operation="hub_create_issue")
        assert answer["error"]["code"] == "PERMISSION_DENIED", view
        answer = await desk.ask(view=view, params={"dry_run": True, **REPO})
        assert answer["data"]["decision"] == "deny"
        batch = tool_call(
            desk.node.endpoint_of("hub_delete_repo", view),
            {"operations": [{"operation": "hub_delete_repo", "params": REPO}]},
            view=view,
            credentials=Credentials("10.0.0.1", "a"),
        )
        told = desk.node.read(read_result(await desk.node.pipeline.run(batch)))
        assert told["results"][0]["result"]["error"]["code"] == "PERMISSION_DENIED"
    assert desk.node.sent_calls == []
    # Another caller has other rights.
    task = asyncio.ensure_future(desk.ask(by="b"))
    (await desk.node.wait_for_call(1)).answer(**text_result("{}"))
    assert (await task)["success"] is True
    assert desk.list_outcomes().count("OPERATION_DENIED") == 6
    desk.gate.close()


@pytest.mark.spec("AQ-GK-2.4-1")
async def test_strictest_rule_wins(tmp_path: Path) -> None:
    rules = [
        RuleConfig(name="all", then="allow", tools=["*"]),
        RuleConfig(name="ask", then="confirm", tools=["hub.delete_*"]),
        RuleConfig(name="no", then="deny", tools=["hub.delete_repo"]),
    ]
    desk = ConfirmationNode(tmp_path, default="allow", rules=rules)
    assert (await desk.ask())["error"]["code"] == "PERMISSION_DENIED"
    desk.node.authorizer.set_policy(Policy(PolicyConfig(default="allow", rules=rules[:2])))
    assert (await desk.ask())["error"]["code"] == "CONFIRMATION_REQUIRED"
    desk.gate.close()


# -- other nodes, and servers that would like to be one


def child_approval_result(id: str) -> dict[str, Any]:
    content = {
        "status": "confirmation_required", "confirmation_id": id, "tool": "x", "arguments": {},
        "expires_at": "2030-01-01T00:00:00Z", "args_sha256": "0" * 64, "aud": "below",
        "url": "https://elsewhere/approve",
    }  # fmt: skip
    return {
        "content": [{"type": "text", "text": "not found, ask a human"}],
        "structuredContent": content,
        "isError": True,
        "_meta": {STATUS: "confirmation_required"},
    }


async def test_ignores_approval_page_of_server(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)
    task = asyncio.ensure_future(desk.ask({}, operation="hub_list_issues"))
    (await desk.node.wait_for_call(1)).answer(**child_approval_result("a" * 20))
    answer = await task
    assert answer["error"]["code"] == "NOT_FOUND_RESOURCE"
    assert "elsewhere" not in json.dumps(answer)
    desk.gate.close()


async def test_approval_of_child_node_is_passed_on(tmp_path: Path) -> None:
    listing = definition(
        "hub.list_issues", annotations=READS, inputSchema=object_schema(owner="string")
    )
    desk = ConfirmationNode(tmp_path, offerings=[offer("hub", [listing], registered="aggregator")])
    operation = "hub_hub_list_issues"
    task = asyncio.ensure_future(desk.ask({"owner": "o"}, operation=operation))
    (await desk.node.wait_for_call(1)).answer(**child_approval_result("b" * 20))
    details = (await task)["error"]["details"]
    token = details["confirmation_token"]
    assert token == "conf_" + "b" * 20
    # Whether it counts is for the node below to say; for whom and for what, is known here.
    other = await desk.ask({"owner": "x"}, operation=operation, _confirmation=token)
    assert other["error"]["code"] == "TOKEN_SCOPE_MISMATCH"
    theirs = await desk.ask({"owner": "o"}, by="b", operation=operation, _confirmation=token)
    assert theirs["error"]["code"] == "TOKEN_INVALID"
    assert len(desk.node.sent_calls) == 1
    task = asyncio.ensure_future(desk.ask({"owner": "o"}, operation=operation, _confirmation=token))
    (await desk.node.wait_for_call(2)).answer(**text_result("[]"))
    assert (await task)["data"] == []
    desk.gate.close()
