"""A yes is for the drivers that a human was shown: others that come meanwhile are not asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import InterlockError
from tests.node.driver_workspace import ANY, Running, Workspace, running
from tests.node.test_drivers_approvals import ALLOWED, NOTE_IN, Human, held
from tests.upstreams.harness import run


def asked(folder: Path) -> tuple[Workspace, str]:
    workspace = Workspace(folder)
    contract = workspace.contract(
        "note.add", inputs=NOTE_IN, outputs=ANY, approval="always", mutates=["fs:notes"]
    )
    workspace.driver("good-mcp", workspace.serves(contract, "note"))
    return workspace, contract


async def refused(node: Running, human: Human, waiting: dict[str, Any]) -> str:
    try:
        return json.dumps(await human.confirms(node, waiting))
    except InterlockError as error:
        return error.message


@pytest.mark.parametrize("how", ["another driver", "another server"])
def test_a_driver_that_came_since_does_not_serve_what_was_approved(
    tmp_path: Path, how: str
) -> None:
    workspace, contract = asked(tmp_path)
    human = Human(tmp_path)
    notes, heard = tmp_path / "notes", tmp_path / "other.jsonl"
    given = {"text": "x", "file": str(notes)}

    async def body() -> None:
        async with running(workspace, workspace.config(more=ALLOWED + human.config)) as node:
            waiting = held(await node.result("note.add", given))
            assert waiting["reason"].endswith(" It would be served by good-mcp@1.0.0.")
            known = node.node.catalog.current.by_name["note.add"].served_by
            workspace.driver(
                "aaa-mcp" if how == "another driver" else "good-mcp",
                workspace.serves(contract, "note"),
                cost={"class": "trivial", "units_per_call": 0},
                server=workspace.server("--heard", heard),
            )
            await node.until(
                lambda: node.node.catalog.current.by_name["note.add"].served_by != known
            )
            told = await refused(node, human, waiting)
            assert "the tool's definition" in told
            assert not notes.exists()
            assert not heard.exists() or "tools/call" not in heard.read_text()
            # Asked anew, a human sees who would serve it now.
            again = held(await node.result("note.add", given))
            assert again["confirmation_id"] != waiting["confirmation_id"]
            await human.confirms(node, again)
            assert notes.read_text() == "x\n"

    run(body)


def test_drivers_that_come_are_no_change_of_the_contract(tmp_path: Path) -> None:
    workspace, contract = asked(tmp_path)

    async def body() -> None:
        from interlock.catalog.pinning import approved_digest, contract_digest

        async with running(workspace) as node:
            before = node.node.catalog.current.by_name["note.add"]
            workspace.driver("more-mcp", workspace.serves(contract, "note"))
            await node.until(
                lambda: len(node.node.catalog.current.by_name["note.add"].served_by) == 2
            )
            after = node.node.catalog.current.by_name["note.add"]
            assert contract_digest(after) == contract_digest(before)
            assert approved_digest(after) != approved_digest(before)
            assert after.listed == before.listed

    run(body)
