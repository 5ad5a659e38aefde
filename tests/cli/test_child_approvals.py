"""Pending calls of child nodes on the command line of the parent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import typer

from interlock.cli.approvals import _format_row, _print_decision
from interlock.core.call import Outcome
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import Era
from interlock.terminal.approvals_client import PendingApproval
from interlock.terminal.node_discovery import NodeSelector
from interlock.terminal.results import CLIENT_HINT
from interlock.trust.approvals.web import PASSED_ON, to_json
from tests.trust.approvals.gated import NOW
from tests.trust.approvals.test_child_approvals import read_child_report

pytestmark = pytest.mark.feature("tree")


def encode_decision(result: dict[str, Any]) -> bytes:
    shown = read_child_report()
    assert shown is not None
    outcome = Outcome(json.dumps(result).encode(), Era.SESSION)
    return encode_value({**to_json(shown, NOW, outcome), "state": PASSED_ON})


def test_list_names_child_node_of_approval() -> None:
    shown = read_child_report()
    assert shown is not None
    one = msgspec.json.decode(encode_value(to_json(shown, NOW)), type=PendingApproval)
    assert "pending at the child node mid, which reports:" in _format_row(one)


def test_decision_prints_result_of_child_node(capsys: pytest.CaptureFixture[str]) -> None:
    _print_decision(encode_decision({"content": [{"type": "text", "text": "wiped"}]}), json=False)
    out, err = capsys.readouterr()
    assert out.strip() == "wiped"
    assert "Sent to the child node mid, where the call is pending." in err


def test_decision_prints_rejection(capsys: pytest.CaptureFixture[str]) -> None:
    _print_decision(encode_decision({"status": "refused", "confirmation_id": "x"}), json=False)
    assert capsys.readouterr().out.strip() == "Rejected."


def test_failed_call_at_child_node_sets_exit_code() -> None:
    with pytest.raises(typer.Exit):
        _print_decision(encode_decision({"content": [], "isError": True}), json=False)


def test_void_approval_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    shown = read_child_report()
    assert shown is not None
    fields = json.loads(encode_value(to_json(shown, NOW)))
    error = {"error": "unknown_tool", "message": f"Unknown tool 'mid.s.wipe'. {CLIENT_HINT}"}
    body = json.dumps(fields | {"state": "void", "outcome": "unknown_tool", "error": error})
    with pytest.raises(typer.Exit):
        _print_decision(body.encode(), json=False, selector=NodeSelector(node="8561"))
    printed = capsys.readouterr().err
    assert "interlock tools --node 8561" in printed
    assert "tools/list" not in printed
    assert "the approval is void" in printed


def test_paused_step_shows_action_of_agent() -> None:
    shown = read_child_report()
    assert shown is not None
    request = {"element_name": "helper", "execution_id": "exec_" + "0" * 90, "hint": "delete docs"}
    one = msgspec.structs.replace(
        msgspec.json.decode(encode_value(to_json(shown, NOW)), type=PendingApproval),
        tool="aql.proceed",
        arguments_text=json.dumps(request),
    )
    assert "  delete docs · reported by the agent helper" in _format_row(one)
    # Whoever else has such arguments is shown as anything else.
    assert '{"element_name"' in _format_row(msgspec.structs.replace(one, tool="shop.proceed"))
    assert "[1]" in _format_row(msgspec.structs.replace(one, arguments_text="[1]"))
