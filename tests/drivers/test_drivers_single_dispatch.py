"""A call that may have run is never repeated, by a retry or by another driver."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from interlock.errors import InterlockError
from tests.drivers.driver_workspace import ANY, Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")

NOTE_IN = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "file": {"type": "string"}},
    "required": ["text", "file"],
}
ALLOWED = "policy: {default: allow}\n"

AFTER_THE_ANSWER = """
def parse_tool_result(args):
    return HookResult(ok=False, code="{code}", message="so it says", retryable=True)

driver = define_driver(parse_tool_result=parse_tool_result)
"""
RAISED_AFTER_THE_ANSWER = """
from interlock.core.call import UpstreamLostError
from interlock.errors import UPSTREAM_UNAVAILABLE

def parse_tool_result(args):
    raise UpstreamLostError(UPSTREAM_UNAVAILABLE, "it never got there", sent=False)

driver = define_driver(parse_tool_result=parse_tool_result)
"""
ITS_OWN_CODE = """
def serve(args):
    with open(args.input["file"], "a") as file:
        file.write(args.input["text"] + "\\n")
    return HookResult(ok=False, code="{code}", message="so it says", retryable=True)

driver = define_driver(execute={{"note.write": serve}})
"""


@pytest.mark.parametrize(
    "code",
    [
        AFTER_THE_ANSWER.format(code="auth_required"),
        AFTER_THE_ANSWER.format(code="tool_unavailable"),
        RAISED_AFTER_THE_ANSWER,
        ITS_OWN_CODE.format(code="auth_required"),
    ],
    ids=["auth_required", "tool_unavailable", "raised", "execute"],
)
async def test_error_code_never_allows_repeating_dispatched_call(tmp_path: Path, code: str) -> None:
    workspace = Workspace(tmp_path)
    retry = {"max_attempts": 3, "initial_ms": 1}
    contract = workspace.contract(
        "note.write", inputs=NOTE_IN, outputs=ANY, risk_level=3, retry=retry
    )
    served = workspace.serves(contract, "note")
    if "execute" in code:
        served = {name: value for name, value in served.items() if name != "metadata"}
    file = workspace.driver("a-mcp", served)
    workspace.driver("b-mcp", workspace.serves(contract, "note"))
    whole = "from interlock.drivers.sdk import *\n" + textwrap.dedent(code)
    (file.parent / "driver.py").write_text(whole, encoding="utf-8")
    notes = tmp_path / "notes"

    config = workspace.config(more=ALLOWED, allow_code=["a-mcp"])
    async with running(workspace, config) as node:
        error = await node.refused("note.write", text="once", file=str(notes))
        assert error.message
        assert notes.read_text() == "once\n"
        assert node.status("b-mcp").calls == 0


async def test_undispatched_call_goes_to_next_driver(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract("note.write", inputs=NOTE_IN, outputs=ANY, risk_level=3)
    # Its server does not have the tool, which is seen when it is started for the call.
    workspace.driver("a-mcp", workspace.serves(contract, "nothing"))
    workspace.driver("b-mcp", workspace.serves(contract, "note"))
    notes = tmp_path / "notes"

    async with running(workspace, workspace.config(more=ALLOWED)) as node:
        await node.call("note.write", text="once", file=str(notes))
        assert notes.read_text() == "once\n"


@pytest.mark.parametrize("tool", ["note", "nothing"])
async def test_contract_call_is_dispatched_with_driver_request(tmp_path: Path, tool: str) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract("note.write", inputs=NOTE_IN, outputs=ANY, risk_level=3)
    workspace.driver("a-mcp", workspace.serves(contract, tool))
    notes = tmp_path / "notes"

    async with running(workspace, workspace.config(more=ALLOWED)) as node:
        call = node.request("tools/call", "note.write", {"text": "once", "file": str(notes)})
        if tool == "note":
            await node.run(call)
        else:
            with pytest.raises(InterlockError):
                await node.run(call)
        assert call.is_dispatched is notes.exists() is (tool == "note")


async def test_failed_contract_call_stays_dispatched(tmp_path: Path) -> None:
    """What may have been done at the first driver is not undone by an error of its code."""
    workspace = Workspace(tmp_path)
    contract = workspace.contract("note.write", inputs=NOTE_IN, outputs=ANY, risk_level=3)
    file = workspace.driver("a-mcp", workspace.serves(contract, "note"))
    whole = "from interlock.drivers.sdk import *\n" + textwrap.dedent(RAISED_AFTER_THE_ANSWER)
    (file.parent / "driver.py").write_text(whole, encoding="utf-8")
    notes = tmp_path / "notes"

    config = workspace.config(more=ALLOWED, allow_code=["a-mcp"])
    async with running(workspace, config) as node:
        call = node.request("tools/call", "note.write", {"text": "once", "file": str(notes)})
        with pytest.raises(InterlockError):
            await node.run(call)
        assert call.is_dispatched
