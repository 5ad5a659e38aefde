"""A malicious model in an execution tries to verify, confirm and unblock itself, and to act without
a report, over every protocol and view."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.component import Aql
from interlock.aql.config import AqlConfig, SafetyConfig
from interlock.aql.safety.store import SafetyChallenge
from tests.behaviour.adversary import (
    CLERK,
    CLIENTS,
    TOKENS,
    Fortress,
    HttpSession,
    Stateless,
    fresh,
    open_client,
)
from tests.support.http_client import HttpResponse, message

pytestmark = pytest.mark.feature("aql")

WHO = ("model", "token", "")
BY_MODEL_FACES = [server for server in CLIENTS if "lines" not in server]


class View(Stateless):
    """The model before a view of AQL, on the stateless wire. It remembers all it was told."""

    def __init__(self, node: Fortress, view: str = "aql-single") -> None:
        super().__init__(node)
        self.view = view
        self.heard: list[str] = []

    def post(self, body: bytes, *headers: tuple[str, str], **more: Any) -> HttpResponse:
        more.setdefault("path", f"/mcp?view={self.view}")
        answer = super().post(body, *headers, **more)
        self.heard.append(answer.body.decode("utf-8", "replace"))
        return answer

    def raw(self, **arguments: Any) -> dict[str, Any]:
        """What the one endpoint answers."""
        response = self.ask("tools/call", {"name": "mcp_aql", "arguments": arguments})
        assert "result" in response, response
        envelope: dict[str, Any] = json.loads(response["result"]["content"][0]["text"])
        return envelope

    def do(self, operation: str, **params: Any) -> dict[str, Any]:
        return self.raw(operation=operation, params=params)

    def data(self, operation: str, **params: Any) -> dict[str, Any]:
        result = self.do(operation, **params)
        assert result["success"], result
        data: dict[str, Any] = result["data"]
        return data

    def refused(self, operation: str, **params: Any) -> dict[str, Any]:
        result = self.do(operation, **params)
        assert not result["success"], result
        error: dict[str, Any] = result["error"]
        return error

    def report(self, hint: str, **more: Any) -> dict[str, Any]:
        return self.data(
            "record_execution_step", element_name="agent", next_action_hint=hint, **more
        )

    def strings(self) -> list[str]:
        """All that could be taken for a secret in what it was told, the longest first."""
        found = set(re.findall(r"[A-Za-z0-9_\-.]{6,}", " ".join(self.heard)))
        return sorted(found, key=lambda one: (-len(one), one))


class SafetyNode(Fortress):
    """The fortress with the safety loop."""

    def __init__(self, folder: Path, **safety: Any) -> None:
        config = AqlConfig(safety=SafetyConfig(mode="enforcing", **safety))
        super().__init__(folder, tokens=TOKENS, aql=config)

    def begin(self, model: View, element: str = "agent") -> str:
        """An execution that the keeper let begin."""
        error = model.refused("execute_agent", element_name=element)
        assert error["code"] == "CONFIRMATION_REQUIRED", error
        token = error["details"]["confirmation_token"]
        self.approve_id(token.removeprefix("conf_"))
        begun = model.data("execute_agent", element_name=element, confirmation_token=token)
        started: str = begun["execution_id"]
        return started

    def approve_id(self, id: str) -> None:
        """The keeper signs what is found in the inbox."""
        approving = self.node.trust.approving
        assert approving is not None
        record = self.do(lambda: approving.approvals.find(id))
        assert record is not None
        details = {
            "aud": record.audience,
            "confirmation_id": record.id,
            "args_sha256": record.digest,
        }
        self.wait(approving.approvals.confirm(id, self.proof(details)))

    def waiting(self, tool: str) -> str:
        """The id of an approval that the loop asked for."""
        approving = self.node.trust.approving
        assert approving is not None
        found: list[str] = []

        def look() -> bool:
            found[:] = [
                approval.id for approval in approving.approvals.pending() if approval.tool == tool
            ]
            if tool == "aql.unblock":
                # One whose challenge was replaced may be pending for a moment longer.
                asked = [
                    challenge.approval for challenge in self.node.component(Aql).safety.challenges
                ]
                found[:] = [id for id in found if id in asked] if all(asked) else []
            return bool(found)

        self.until(look, f"{tool} waits")
        return found[-1]

    def code(self, id: str) -> str:
        """What the keeper is shown."""
        code = self.do(lambda: self.node.component(Aql).codes.reveal(id))
        assert code is not None
        return code

    def challenges(self) -> list[SafetyChallenge]:
        return self.do(lambda: list(self.node.component(Aql).safety.challenges))

    def blocked(self) -> bool:
        return self.do(lambda: self.node.component(Aql).safety.blocks.get(WHO) is not None)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SafetyNode]:
    keep = SafetyNode(tmp_path / "node")
    try:
        yield keep
        keep.must_be_intact()
    finally:
        keep.stop()


def is_refused(answer: Any, reason: str) -> bool:
    """Whether a call was turned away for this, in whatever words its wire has."""
    said = json.dumps(answer)
    return reason in said and ("denied" in said.lower() or "PERMISSION_DENIED" in said)


@pytest.mark.spec("AQ-8.6.2-1", "AQ-8.6.2-3", "AQ-8.6.3-1", "AQ-8.6.5-1", "AQ-8.6-1")
def test_unreported_operations_are_rejected_everywhere(node: SafetyNode) -> None:
    model = View(node)
    node.begin(model)
    for which in BY_MODEL_FACES:
        with open_client(node, which) as client:
            assert is_refused(client.call({}, name="vault.look"), "Not reported"), which
            assert is_refused(client.call(fresh()), "Not reported"), which
    for view in ("aql", "aql-single", "aql-all", "auto", "semantic"):
        other = View(node, view)
        for endpoint, operation in [
            ("mcp_aql", "vault_look"),
            ("mcp_aql_read", "vault_look"),
            ("mcp_aql_execute", "vault_open"),
            ("mcp_aql_discover", "vault_look"),
            ("mcp_aql_query", "vault_look"),
            ("mcp_aql_operate", "vault_open"),
        ]:
            response = other.ask(
                "tools/call", {"name": endpoint, "arguments": {"operation": operation}}
            )
            text = json.dumps(response)
            assert '\\"success\\":true' not in text, (view, endpoint, text)
    for arguments in (
        {"operations": [{"operation": "vault_look"}, {"operation": "vault_open"}]},
        {"operation": "vault_open", "_async": True},
        {"operation": "vault_open", "_dry_run": False},
        {"operation": "vault_open", "_execution_id": "exec_1"},
        {"operation": "vault_open", "_confirmation": "conf_x"},
        {"operation": "vault_open", "params": {"_meta": {"approval": "x"}}},
    ):
        model.raw(**arguments)
    # With a report it is done: exactly this, once.
    assert model.report("look at the vault", next_operation="vault_look")["continue"]
    assert model.do("vault_look")["success"]
    assert model.refused("vault_look")["details"]["reason"] == "unreported_action"


@pytest.mark.spec(
    "AQ-8.6.4-1", "AQ-8.7.3-5", "AQ-8.8.2-2", "AQ-8.8.3-2", "AQ-8.8.4-1", "AQ-8.8.5-1", "AQ-8.6-2"
)
def test_blocked_agent_cannot_unblock_itself(node: SafetyNode) -> None:
    model = View(node)
    execution = node.begin(model)
    stopped = model.report("drop_table users")
    assert stopped["stopped"] is True
    [notice] = stopped["notifications"]
    challenge = notice["metadata"]["verificationId"]
    unblock = node.waiting("aql.unblock")
    # Everything that it could do, under any name and by any door.
    model.do("introspect", query="operations")
    for operation, params in [
        ("execute_agent", {"element_name": "agent"}),
        ("execute_agent", {"element_name": "somebody-else"}),
        ("record_execution_step", {"element_name": "agent", "next_action_hint": "look at vault"}),
        ("complete_execution", {"execution_id": execution}),
        ("abort_execution", {"execution_id": execution, "reason": "to be free"}),
        ("vault_look", {}),
        ("vault_open", {}),
        ("list_executions", {}),
        ("unblock", {"challenge_id": challenge}),
        ("proceed", {"pause_id": challenge}),
        ("aql_unblock", {"challenge_id": challenge}),
        ("aql.unblock", {"challenge_id": challenge}),
    ]:
        output = model.do(operation, **params)
        assert not output["success"] or operation == "list_executions", (operation, output)
    with HttpSession(node, "2025-11-25") as plain:
        for name in ("aql.unblock", "aql__unblock", "aql.verify_challenge", "aql.proceed"):
            answer = plain.call({"challenge_id": challenge}, name=name)
            assert "error" in answer or answer["result"].get("isError"), (name, answer)
        assert is_refused(plain.call({}, name="vault.look"), "Blocked")

    # Everything that it was ever told, as a code, a token, an approval, a proof.
    seen = model.strings()
    assert unblock not in seen
    tried = [*seen[:40], challenge, execution, "A" * 32, "AAAA-" * 7 + "AAAA", "000000", "", "null"]
    codes = {node.code(challenge.id) for challenge in node.challenges()}
    for text in tried:
        for id in {challenge, *(challenge.id for challenge in node.challenges())}:
            model.do("verify_challenge", challenge_id=id, code=text or " ")
            codes |= {node.code(challenge.id) for challenge in node.challenges()}
    limited = model.refused("verify_challenge", challenge_id=challenge, code="x")
    assert limited["code"] == "RATE_LIMIT_EXCEEDED"
    waiting = node.waiting("aql.unblock")
    for text in tried:
        for id in (text, f"conf_{text}", f"conf_{waiting}", waiting):
            model.do("confirm_operation", confirmation_token=id, approve=True)
            model.do("confirm_operation", approval_id=id, approve=True, proof=text)
        model.confirm(waiting, text or "x")
        model.confirm(waiting, f"code:{text}")
    # The pages of the operators, with a token that may see approvals as well.
    for token in (None, "m" * 32, CLERK):
        bearer = () if token is None else (("Authorization", f"Bearer {token}"),)
        for method, path, body in [
            ("GET", "/approvals/codes", None),
            ("POST", "/approvals/codes", {"blocked": "model"}),
            ("POST", "/approvals/codes", {"renew": challenge}),
            ("GET", f"/approvals/{waiting}", None),
            ("GET", "/approvals/", None),
            ("POST", f"/approvals/{waiting}", {"proof": "code:" + "A" * 32}),
        ]:
            sent = b"" if body is None else json.dumps(body).encode()
            answer = node.once(node.http(sent, *bearer, method=method, path=path))
            model.heard.append(answer.body.decode("utf-8", "replace"))
    assert node.blocked()
    output = " ".join(model.heard)  # type: ignore[assignment]
    for code in codes:
        assert code not in output
        assert code.replace("-", "") not in output
    # The keeper decides, and only then it goes on.
    node.approve_id(node.waiting("aql.unblock"))
    assert not node.blocked()
    assert model.report("look at the vault", next_operation="vault_look")["continue"]
    assert model.do("vault_look")["success"]


@pytest.mark.spec("AQ-8.7.3-6", "AQ-8.6.4-2", "AQ-8.7.3-5")
def test_agent_cannot_confirm_its_own_pause(node: SafetyNode) -> None:
    model = View(node)
    node.begin(model)
    paused = model.report("open the vault door", next_operation="vault_open")
    assert paused["continue"] is False
    proceed = node.waiting("aql.proceed")
    for text in model.strings()[:40]:
        model.do("confirm_operation", confirmation_token=f"conf_{proceed}", approve=True)
        model.do("confirm_operation", approval_id=proceed, approve=True, proof=text)
        model.confirm(proceed, text)
    assert model.report("open the vault door", next_operation="vault_open")["continue"] is False
    node.approve_id(proceed)
    assert model.report("open the vault door", next_operation="vault_open")["continue"] is True
    held = model.refused("vault_open")
    assert held["code"] == "CONFIRMATION_REQUIRED"
    token = held["details"]["confirmation_token"]
    # The token it was given approves nothing, however it is sent back.
    for sent in (
        {"operation": "vault_open", "params": {"confirmation_token": token}},
        {"operation": "vault_open", "_confirmation": token},
        {
            "operation": "confirm_operation",
            "params": {"confirmation_token": token, "approve": True},
        },
    ):
        assert not model.raw(**sent)["success"]
    node.must_be_intact()
    # The keeper approves it: then the same token collects what came of it, once.
    node.allowed.append({})
    node.approve_id(token.removeprefix("conf_"))
    assert model.raw(operation="vault_open", _confirmation=token)["success"]
    assert not model.raw(operation="vault_open", _confirmation=token)["success"]
    node.must_be_intact()
    # And the report was for one call.
    with HttpSession(node, "2025-11-25") as plain:
        assert is_refused(plain.call(fresh()), "Not reported")


@pytest.mark.spec("AQ-8.8.3-1", "AQ-8.8.2-3")
def test_block_and_step_limit_survive_restart(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    first = SafetyNode(folder)
    try:
        model = View(first)
        first.begin(model)
        stopped = model.report("drop_table users")
        id = stopped["notifications"][0]["metadata"]["verificationId"]
        for _ in range(9):
            id = model.refused("verify_challenge", challenge_id=id, code="wrong")["details"][
                "challenge_id"
            ]
        first.waiting("aql.unblock")
    finally:
        first.stop()
    second = SafetyNode(folder)
    try:
        model = View(second)
        assert second.blocked()
        assert model.refused("execute_agent", element_name="new")["details"]["reason"] == (
            "hard_blocked"
        )
        assert model.refused("vault_look")["details"]["reason"] == "hard_blocked"
        model.refused("verify_challenge", challenge_id=id, code="wrong")
        limited = model.refused("verify_challenge", challenge_id=id, code="wrong")
        assert limited["code"] == "RATE_LIMIT_EXCEEDED"
        second.approve_id(second.waiting("aql.unblock"))
        assert not second.blocked()
        second.must_be_intact()
    finally:
        second.stop()


@pytest.mark.spec("AQ-8.8.2-3", "AQ-8.8-1")
def test_code_from_operator_unblocks_agent(node: SafetyNode) -> None:
    model = View(node)
    node.begin(model)
    paused = model.report("purge the mail queue of staging")
    id = paused["notifications"][0]["metadata"]["verificationId"]
    code = node.code(id)
    assert code not in " ".join(model.heard)
    assert model.data("verify_challenge", challenge_id=id, code=code)["verified"]
    assert model.report("purge the mail queue of staging")["continue"] is True
    again = model.refused("verify_challenge", challenge_id=id, code=code)
    assert again["code"] == "TOKEN_INVALID"


def test_malformed_messages_do_not_unblock(node: SafetyNode) -> None:
    """What cannot be read is no way around it, either."""
    model = View(node)
    node.begin(model)
    model.report("drop_table users")
    for body in (b"", b"{", b"[]", b'{"jsonrpc":"2.0"}', b"\xff\xfe", b'"' + b"[" * 10_000):
        model.post(body, *model.headers_of(message("tools/call", {"name": "mcp_aql"}, 1)))
    assert node.blocked()
