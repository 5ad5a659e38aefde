"""An approval is bound to the drivers that were shown, and to their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import Call
from interlock.core.catalog.offering import Tool
from interlock.core.catalog.tool_contracts import approved_digest, contract_digest
from interlock.errors import InterlockError
from tests.drivers.driver_workspace import ANY, SERVER, Running, Workspace, running
from tests.drivers.test_drivers_approvals import ALLOWED, NOTE_IN, Approver, assert_pending
from tests.drivers.test_drivers_code import write

pytestmark = pytest.mark.usefixtures("no_leaks")


def notes_workspace(folder: Path) -> tuple[Workspace, str]:
    workspace = Workspace(folder)
    contract = workspace.contract(
        "note.add", inputs=NOTE_IN, outputs=ANY, approval="always", mutates=["fs:notes"]
    )
    workspace.driver("good-mcp", workspace.serves(contract, "note"))
    return workspace, contract


async def approve_and_read_error(node: Running, human: Approver, waiting: dict[str, Any]) -> str:
    try:
        return json.dumps(await human.confirms(node, waiting))
    except InterlockError as error:
        return error.message


@pytest.mark.parametrize("addition", ["another driver", "another server"])
async def test_driver_added_after_approval_serves_no_approved_call(
    tmp_path: Path, addition: str
) -> None:
    workspace, contract = notes_workspace(tmp_path)
    human = Approver(tmp_path)
    notes, heard = tmp_path / "notes", tmp_path / "other.jsonl"
    arguments = {"text": "x", "file": str(notes)}

    async with running(workspace, workspace.config(more=ALLOWED + human.config)) as node:
        waiting = assert_pending(await node.result("note.add", arguments))
        assert waiting["reason"].endswith(" It would be served by good-mcp@1.0.0.")
        known = node.node.catalog.current.by_name["note.add"].served_by
        workspace.driver(
            "aaa-mcp" if addition == "another driver" else "good-mcp",
            workspace.serves(contract, "note"),
            cost={"class": "trivial", "units_per_call": 0},
            server=workspace.server("--heard", heard),
        )
        await node.until(lambda: node.node.catalog.current.by_name["note.add"].served_by != known)
        response = await approve_and_read_error(node, human, waiting)
        assert "the tool's definition" in response
        assert not notes.exists()
        assert not heard.exists() or "tools/call" not in heard.read_text()
        # Asked anew, a human sees who would serve it now.
        again = assert_pending(await node.result("note.add", arguments))
        assert again["confirmation_id"] != waiting["confirmation_id"]
        await human.confirms(node, again)
        assert notes.read_text() == "x\n"


async def test_added_drivers_do_not_change_contract(tmp_path: Path) -> None:
    workspace, contract = notes_workspace(tmp_path)

    async with running(workspace) as node:
        before = node.node.catalog.current.by_name["note.add"]
        workspace.driver("more-mcp", workspace.serves(contract, "note"))
        await node.until(lambda: len(node.node.catalog.current.by_name["note.add"].served_by) == 2)
        after = node.node.catalog.current.by_name["note.add"]
        assert contract_digest(after) == contract_digest(before)
        assert approved_digest(after) != approved_digest(before)
        assert after.listed == before.listed


# -- files that change


CODE = """
def build_arguments(args):
    return {{"text": {text}, "file": args.input["file"]}}

driver = define_driver(build_arguments=build_arguments)
"""
AS_GIVEN = CODE.format(text='args.input["text"]')
SOMETHING_ELSE = CODE.format(text='"something else"')


class ChangingFile:
    """A file of the workspace that says something else once a call waits."""

    def __init__(self, workspace: Workspace, contract: str, what: str) -> None:
        self.what = what
        self._workspace = workspace
        self._contract = contract
        self._folder = workspace.folder / ".drivers" / "good-mcp"
        self._other_heard = workspace.folder / "other.jsonl"
        if what == "driver.py":
            write(self._folder, AS_GIVEN)
        elif what == "server.json":
            # What the server is may be said by another file.
            file = workspace.driver("good-mcp", workspace.serves(contract, "note"))
            text = file.read_text()
            block = next(line for line in text.splitlines() if line.startswith("server: "))
            file.write_text(text.replace(block, 'server_ref: "./server.json"'))
            self._write_server(workspace.heard_file)

    def _write_server(self, heard: Path) -> None:
        block = {**self._workspace.server(), "args": [str(SERVER), "--heard", str(heard)]}
        (self._folder / "server.json").write_text(json.dumps(block))

    def change(self) -> None:
        if self.what == "driver.py":
            write(self._folder, SOMETHING_ELSE)
        elif self.what == "server.json":
            self._write_server(self._other_heard)
            (self._folder / "DRIVER.md").touch()
        else:
            # Nothing of it is in the tool's definition.
            self._workspace.contract(
                "note.add", inputs=NOTE_IN, outputs=ANY, approval="always", mutates=["fs:notes"],
                timeout_ms=31_000,
            )  # fmt: skip


CHANGES = ["driver.py", "server.json", "TOOL.md"]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("restarted", [False, True], ids=["live", "restarted"])
async def test_approval_is_bound_to_driver_files(
    tmp_path: Path, change: str, restarted: bool
) -> None:
    workspace, contract = notes_workspace(tmp_path)
    human, changed = Approver(tmp_path), ChangingFile(workspace, contract, change)
    notes = tmp_path / "notes"
    arguments = {"text": "x", "file": str(notes)}
    config = workspace.config(more=ALLOWED + human.config, allow_code=["good-mcp"])

    async with running(workspace, config) as node:
        waiting = assert_pending(await node.result("note.add", arguments))
        before = approved_digest(node.node.catalog.current.by_name["note.add"])
        if not restarted:
            changed.change()
            await node.until(lambda: approved_digest(_tool(node)) != before, "what changed is live")
            assert "the tool's definition" in await approve_and_read_error(node, human, waiting)
    if restarted:
        changed.change()
        async with running(workspace, config) as node:
            assert "the tool's definition" in await approve_and_read_error(node, human, waiting)
    assert not notes.exists()


def _tool(node: Running) -> Tool:
    return node.node.catalog.current.by_name["note.add"]


@pytest.mark.parametrize("change", CHANGES)
async def test_file_changed_before_dispatch_voids_approval(tmp_path: Path, change: str) -> None:
    """The call is held against the approval first, and leaves when it is on disk: what is read in
    between is not what was approved."""
    workspace, contract = notes_workspace(tmp_path)
    human, changed = Approver(tmp_path), ChangingFile(workspace, contract, change)
    notes = tmp_path / "notes"
    config = workspace.config(more=ALLOWED + human.config, allow_code=["good-mcp"])

    async with running(workspace, config) as node:
        waiting = assert_pending(await node.result("note.add", {"text": "x", "file": str(notes)}))
        pipeline, drivers = node.node.pipeline, node.drivers
        write_first = pipeline.record_and_send

        def change_first(call: Call) -> None:
            changed.change()
            assert drivers._workspace is not None
            drivers._apply_workspace(drivers._workspace.reload())
            write_first(call)

        pipeline.record_and_send = change_first  # type: ignore[method-assign]
        response = await approve_and_read_error(node, human, waiting)
        assert "since the approval" in response or "while this call was processed" in response
        assert not notes.exists()


async def test_changed_contract_is_authorized_again(tmp_path: Path) -> None:
    """It was free when the rules looked at it, and is not when it would leave."""
    workspace = Workspace(tmp_path)
    fields: dict[str, Any] = {"inputs": NOTE_IN, "outputs": ANY, "risk_level": 3}
    contract = workspace.contract("note.add", **fields)
    workspace.driver("good-mcp", workspace.serves(contract, "note"))
    notes = tmp_path / "notes"

    async with running(workspace, workspace.config(more=ALLOWED)) as node:
        pipeline, drivers = node.node.pipeline, node.drivers
        write_first = pipeline.record_and_send

        def change_first(call: Call) -> None:
            workspace.contract("note.add", approval="always", **fields)
            assert drivers._workspace is not None
            drivers._apply_workspace(drivers._workspace.reload())
            write_first(call)

        pipeline.record_and_send = change_first  # type: ignore[method-assign]
        error = await node.refused("note.add", text="x", file=str(notes))
        assert error.failure.name == "tool_unavailable"
        assert "Repeat the call" in error.message
        assert not notes.exists()
        assert_pending(await node.result("note.add", {"text": "x", "file": str(notes)}))
