"""Tests of cycles and of the limit of nodes in a subtree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.protocol import mcpax as ax
from tests.tree.registrar_hub import PARENT, numbered_uuid, open_hub, run_pending_tasks
from tests.tree.test_registration import read_error

pytestmark = pytest.mark.usefixtures("no_leaks")

CYCLE = (-31002, "cycle_detected")


@pytest.mark.spec("AX-5.3-3", "AX-5.3-5")
@pytest.mark.parametrize(
    "wanted",
    [
        {"x-mcpax-subtree-ids": [numbered_uuid(1), PARENT]},
        {"x-mcpax-subtree-ids": [numbered_uuid(1), PARENT.upper()]},
        {"subserver_id": PARENT},
        {"subserver_id": PARENT, "x-mcpax-subtree-ids": []},
    ],
    ids=str,
)
async def test_rejects_registration_that_closes_cycle(
    tmp_path: Path, wanted: dict[str, Any]
) -> None:
    async with open_hub(tmp_path) as hub:
        assert read_error(hub.child().register(**wanted)) == CYCLE
        assert hub.registrar.subservers() == []
        assert hub.registrar.subtree_ids() == (PARENT,)
        assert hub.store.find_leases(numbered_uuid(1)) == []


@pytest.mark.spec("AX-5.3-7")
async def test_cycle_in_heartbeat_ends_session(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(**{"x-mcpax-subtree-ids": [numbered_uuid(1)]})
        await run_pending_tasks()
        assert (
            child.send_heartbeat(**{"x-mcpax-subtree-ids": [numbered_uuid(1), numbered_uuid(2)]})[
                "result"
            ]["status"]
            == "ok"
        )
        answer = child.send_heartbeat(
            **{"x-mcpax-subtree-ids": [numbered_uuid(1), numbered_uuid(2), PARENT]}
        )
        assert read_error(answer) == CYCLE
        assert child.session_end()["message"] == "cycle_detected"
        assert child.ours.closed_with == (4000, "cycle_detected")
        assert hub.listed == {}
        assert hub.supervisors == {}


ROOT, ABOVE = numbered_uuid(90), numbered_uuid(91)


@pytest.mark.parametrize("one", [ROOT, ABOVE])
@pytest.mark.parametrize("when", ["registering", "beating", "before"])
async def test_rejects_ancestors_in_subtree(tmp_path: Path, one: str, when: str) -> None:
    async with open_hub(tmp_path) as hub:

        def be_below() -> None:
            hub.registrar.tree_id, hub.registrar.parent_id = ROOT, ABOVE

        good = hub.child().registered(1, "good", **{"x-mcpax-subtree-ids": [numbered_uuid(1)]})
        await run_pending_tasks()
        child = hub.child()
        if when != "before":
            be_below()
        if when == "registering":
            answer = child.register(2, "bad", **{"x-mcpax-subtree-ids": [numbered_uuid(2), one]})
            assert read_error(answer) == CYCLE
            assert answer["error"]["data"]["aggregator_id"] == one
            # It may even be that one itself.
            own: dict[str, Any] = {"subserver_id": one, "x-mcpax-subtree-ids": []}
            assert read_error(child.register(segment="bad", **own)) == CYCLE
        elif when == "beating":
            child.registered(2, "bad", **{"x-mcpax-subtree-ids": [numbered_uuid(2)]})
            assert (
                read_error(child.send_heartbeat(**{"x-mcpax-subtree-ids": [numbered_uuid(2), one]}))
                == CYCLE
            )
            assert child.session_end()["message"] == "cycle_detected"
        else:
            child.registered(2, "bad", **{"x-mcpax-subtree-ids": [numbered_uuid(2), one]})
            be_below()
            assert child.session_end()["message"] == "cycle_detected"
        assert good.open
        assert hub.registrar.subtree_ids() == (PARENT, numbered_uuid(1))
        # A leaf has nobody below: its id is its own affair.
        hub.child().registered(segment="leaf", subserver_id=one)
        # And without a parent nobody is above.
        hub.registrar.tree_id, hub.registrar.parent_id = PARENT, None
        hub.child().registered(2, "bad", **{"x-mcpax-subtree-ids": [numbered_uuid(2), one]})


async def test_limits_subtree_ids(tmp_path: Path) -> None:
    many = [numbered_uuid(n) for n in range(1000, 1000 + ax.MAX_SUBTREE_IDS - 2)]

    async with open_hub(tmp_path) as hub:
        first = hub.child().registered(
            1, "first", **{"x-mcpax-subtree-ids": [numbered_uuid(1), *many[1:]]}
        )
        answer = hub.child().register(
            2, "second", **{"x-mcpax-subtree-ids": [numbered_uuid(2), numbered_uuid(3), many[5]]}
        )
        assert read_error(answer)[0] == -32602
        assert "Too many nodes in the tree below" in answer["error"]["message"]
        assert answer["error"]["data"]["field"] == "x-mcpax-subtree-ids"
        second = hub.child().registered(2, "second", **{"x-mcpax-subtree-ids": [numbered_uuid(2)]})
        assert len(hub.registrar.subtree_ids()) == ax.MAX_SUBTREE_IDS
        # Its news are refused; itself it may stay.
        answer = second.send_heartbeat(
            **{"x-mcpax-subtree-ids": [numbered_uuid(2), numbered_uuid(3)]}
        )
        assert "Too many nodes in the tree below" in answer["error"]["message"]
        assert second.send_heartbeat()["result"]["status"] == "ok"
        assert len(hub.registrar.subtree_ids()) == ax.MAX_SUBTREE_IDS
        # The same subserver in its own place counts once.
        hub.child().registered(1, "first", **{"x-mcpax-subtree-ids": [numbered_uuid(1), *many[1:]]})
        assert not first.open
        # The parent bears even less: who brings the most has to go.
        hub.registrar.dismiss_subtrees(None)
        assert hub.registrar.subtree_ids() == (PARENT, numbered_uuid(2))


async def test_removes_child_with_rejected_subtree(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        good = hub.child().registered(1, "good", **{"x-mcpax-subtree-ids": [numbered_uuid(1)]})
        leaf = hub.child().registered(4, "leaf")
        bad = hub.child().registered(
            2, "bad", **{"x-mcpax-subtree-ids": [numbered_uuid(2), numbered_uuid(3)]}
        )
        hub.registrar.dismiss_subtrees([numbered_uuid(4), numbered_uuid(5)])
        assert bad.open
        hub.registrar.dismiss_subtrees([numbered_uuid(3), numbered_uuid(5)])
        assert bad.session_end()["message"] == "cycle_detected"
        assert good.open
        assert leaf.open
        hub.registrar.dismiss_subtrees(None)
        assert not good.open
        hub.registrar.dismiss_subtrees(None)
        assert leaf.open


@pytest.mark.spec("AX-5.3-4")
async def test_tracks_subtree_changes(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        ids = hub.registrar.subtree_ids
        leaf = hub.child().registered(1, "leaf")
        assert (ids(), hub.changes) == ((PARENT,), 1)
        node = hub.child().registered(
            2, "node", **{"x-mcpax-subtree-ids": [numbered_uuid(2), numbered_uuid(3)]}
        )
        await run_pending_tasks()
        assert (ids(), hub.changes) == ((PARENT, numbered_uuid(2), numbered_uuid(3)), 2)
        assert hub.info("node").role == "aggregator"
        node.send_heartbeat()
        node.send_heartbeat(**{"x-mcpax-subtree-ids": [numbered_uuid(2), numbered_uuid(3)]})
        assert hub.changes == 2
        # One that forgets itself is counted all the same.
        node.send_heartbeat(**{"x-mcpax-subtree-ids": [numbered_uuid(4)]})
        assert (ids(), hub.changes) == ((PARENT, numbered_uuid(2), numbered_uuid(4)), 3)
        # A leaf does not become a node by saying so.
        leaf.send_heartbeat(**{"x-mcpax-subtree-ids": [numbered_uuid(5)]})
        assert hub.changes == 3
        assert read_error(leaf.send_heartbeat(**{"x-mcpax-subtree-ids": ["x"]}))[0] == -32602
        node.end.close()
        assert (ids(), hub.changes) == ((PARENT,), 4)
        hub.child().registered(2, "node", **{"x-mcpax-subtree-ids": [numbered_uuid(2)]})
        assert (ids(), hub.changes) == ((PARENT, numbered_uuid(2)), 5)
