"""What a node below holds, on the command line of the node above it."""

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
from interlock.trust.approvals.web import PASSED_ON, to_json
from tests.trust.approvals.gated import NOW
from tests.trust.approvals.test_shown_below import read_child_report

pytestmark = pytest.mark.feature("tree")


def answer(result: dict[str, Any]) -> bytes:
    shown = read_child_report()
    assert shown is not None
    outcome = Outcome(json.dumps(result).encode(), Era.SESSION)
    return encode_value({**to_json(shown, NOW, outcome), "state": PASSED_ON})


def test_the_list_says_who_holds_it() -> None:
    shown = read_child_report()
    assert shown is not None
    one = msgspec.json.decode(encode_value(to_json(shown, NOW)), type=PendingApproval)
    assert "pending at the child node mid, which reports:" in _format_row(one)


def test_what_came_of_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _print_decision(answer({"content": [{"type": "text", "text": "wiped"}]}), json=False)
    out, err = capsys.readouterr()
    assert out.strip() == "wiped"
    assert "Sent to the child node mid, where the call is pending." in err


def test_a_refusal_is_said_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    _print_decision(answer({"status": "refused", "confirmation_id": "x"}), json=False)
    assert capsys.readouterr().out.strip() == "Rejected."


def test_a_call_that_failed_below_failed() -> None:
    with pytest.raises(typer.Exit):
        _print_decision(answer({"content": [], "isError": True}), json=False)


def test_a_paused_step_is_shown_by_what_the_agent_wants() -> None:
    shown = read_child_report()
    assert shown is not None
    asked = {"element_name": "helper", "execution_id": "exec_" + "0" * 90, "hint": "delete docs"}
    one = msgspec.structs.replace(
        msgspec.json.decode(encode_value(to_json(shown, NOW)), type=PendingApproval),
        tool="aql.proceed",
        arguments_text=json.dumps(asked),
    )
    assert "  delete docs · reported by the agent helper" in _format_row(one)
    # Whoever else has such arguments is shown as anything else.
    assert '{"element_name"' in _format_row(msgspec.structs.replace(one, tool="shop.proceed"))
    assert "[1]" in _format_row(msgspec.structs.replace(one, arguments_text="[1]"))
