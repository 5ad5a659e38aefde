"""Approval of a contract's call over every route to a tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw, convert

from interlock.app.node import Node
from interlock.aql.config import AqlConfig
from interlock.core.call import Call, Credentials
from interlock.core.config import LearnedRule, ServerConfig
from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.drivers.config import DriversConfig
from interlock.protocol.mcp import TOOLS_CALL
from interlock.topics.config import TopicsConfig
from interlock.tree.config import ParentConfig
from tests.aql.server.aql_client import FIVE, AqlClient
from tests.drivers.driver_workspace import CLIENT, Workspace, running
from tests.drivers.test_drivers_approvals import NOTE_IN, Approver, assert_pending
from tests.support.http_client import message
from tests.support.node import NodeThread
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.tool_server import ToolServer
from tests.topics.peers import join_topic
from tests.tree.node_tree import NodeTree, ax_url, has_tool, wait_until

pytestmark = pytest.mark.usefixtures("no_leaks")

ALLOW = PolicyConfig(default="allow")
DRIVERS = DriversConfig(verify="first_use", local_egress=True)
TOOL = "note.write"


def notes_workspace(folder: Path) -> Workspace:
    """A contract that asks for approval, and the driver of a tool that leaves a trace."""
    workspace = Workspace(folder)
    contract = workspace.contract(
        TOOL, inputs=NOTE_IN, approval="always", mutates=["fs:notes"], risk_level=1
    )
    workspace.driver("note-mcp", workspace.serves(contract, "note"))
    return workspace


class ApprovalNode:
    """A node that would let everything through, were it not for the contract."""

    def __init__(self, node: NodeThread, workspace: Workspace) -> None:
        self.node = node
        self.workspace = workspace
        self.file = workspace.folder / "written"
        self.given = {"text": "milk", "file": str(self.file)}
        node.until(lambda: TOOL in node.node.catalog.current.by_name, "the contract")

    def nothing_was_done(self, told: Any) -> None:
        """Somebody is asked, and nobody was told to do anything."""
        text = json.dumps(told)
        assert "confirm" in text.lower(), told
        assert not self.file.exists()
        assert self.workspace.heard("tools/call") == []

    def waiting(self) -> list[str]:
        approving = self.node.node.trust.approving
        assert approving is not None
        result: list[str] = self.node.do(
            lambda: [approval.tool for approval in approving.approvals.pending()]
        )
        return result


@contextmanager
def approval_node(folder: Path, **config: Any) -> Iterator[ApprovalNode]:
    workspace = notes_workspace(folder)
    state = str(folder / "state")
    settings = {"policy": ALLOW, "drivers": DRIVERS, "workshops": {}, "state_dir": state, **config}
    node = NodeThread(folder, **settings)
    try:
        yield ApprovalNode(node, workspace)
    finally:
        node.stop()


# -- the wires


@pytest.mark.parametrize("name", [TOOL, "note__write"], ids=["id", "safe"])
def test_every_name_and_protocol_requires_approval(tmp_path: Path, name: str) -> None:
    with approval_node(tmp_path) as one:
        node, params = one.node, {"name": name, "arguments": one.given}
        answers = [
            node.once(node.stateless("tools/call", params, name=name)),
            node.once(node.session().request("tools/call", params)),
        ]
        with node.local() as wire:
            wire.send(message("initialize", _hello(), 0) + b"\n")
            wire.send(message("tools/call", params, 7) + b"\n")
            answers += [wire.line(), wire.line()]
        for answer in (*answers[:2], answers[-1]):
            one.nothing_was_done(getattr(answer, "result", answer))
        assert set(one.waiting()) == {TOOL}


def _hello() -> dict[str, Any]:
    return {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "tests", "version": "1"},
    }


def test_transparent_server_does_not_bypass_approval(tmp_path: Path) -> None:
    shop = ToolServer()
    with approval_node(tmp_path, workshops={"shop": shop}) as one:
        node = one.node
        open_shop = ServerConfig(url=shop.url, expose="transparent")
        node.wait(node.node.apply(node.config(servers={"shop": open_shop})))
        assert node.do(lambda: node.node.pipeline.transparent_upstream) == "shop"
        for name in (TOOL, "note__write", "note"):
            params = {"name": name, "arguments": one.given}
            node.once(node.stateless("tools/call", params, name=name))
        assert not one.file.exists()
        assert one.workspace.heard("tools/call") == []
        assert one.waiting() == [TOOL]


# -- operations


@pytest.mark.parametrize("era", ["session", "stateless"])
@pytest.mark.parametrize("view", ["aql", "aql-single"])
def test_aql_operation_requires_approval(tmp_path: Path, view: str, era: str) -> None:
    with approval_node(tmp_path, aql=AqlConfig()) as one:
        client = AqlClient(one.node, f"?view={view}", era)
        single = "single" in view
        operations = client.introspect()["operations"]
        (operation,) = [
            tool for tool in operations if "note" in tool["name"] and "write" in tool["name"]
        ]
        name = operation["name"]
        family = operation["semantic_category"].lower()
        endpoint = "mcp_aql" if single else f"mcp_aql_{family}"

        def given(text: str, **more: Any) -> dict[str, Any]:
            # `file` is a word of the language: a parameter of that name goes into `input`.
            return {"text": text, "input": {"file": str(one.file)}, **more}

        one.nothing_was_done(client.ask(name, given("a"), endpoint))
        batch = {"operations": [{"operation": name, "params": given("b")}]}
        one.nothing_was_done(client.call(endpoint, batch))
        begun = client.ask(name, given("c", _async=True), endpoint)
        assert begun["data"]["execution_id"], begun
        one.node.until(lambda: _pending(one.node.node) == 3, "an execution that waits")
        dry = client.ask(name, given("d", _dry_run=True), endpoint)
        assert dry["data"]["requires_confirmation"] is True, dry
        for other in FIVE if not single else ():
            client.ask(name, given("e"), other)
        assert one.workspace.heard("tools/call") == []
        assert set(one.waiting()) == {TOOL}


# -- rooms


@pytest.mark.parametrize("kind", ["mcp/request", "mcp/proposal"])
def test_topic_call_requires_approval(tmp_path: Path, kind: str) -> None:
    seats = [{"callers": ["ada"], "capabilities": [f"{kind}:*", "chat"]}]
    topics = convert({"rooms": {"ops": {"node": "interlock", "participants": seats}}}, TopicsConfig)
    token = "token-of-ada-0123456789"
    with approval_node(tmp_path, topics=topics, tokens={"ada": token}) as one:
        params = {"name": TOOL, "arguments": one.given}
        payload: dict[str, Any] = {"method": "tools/call", "params": params}
        if kind == "mcp/request":
            payload = {"jsonrpc": "2.0", "id": 1, **payload}

        async def body() -> Any:
            url = f"ws://127.0.0.1:{one.node.port}/ws?topic=ops"
            async with join_topic(url, token) as peer:
                id = await peer.say(f"{kind}:tools/call:{TOOL}", payload, to=["interlock"])
                if kind == "mcp/request":
                    return await peer.until(lambda said: said.get("correlation_id") == id)
                await asyncio.to_thread(
                    one.node.until, lambda: _pending(one.node.node), "a proposal that waits"
                )
                return {"kind": "confirm"}

        result = asyncio.run(body())
        assert one.waiting() == [TOOL], result
        assert one.workspace.heard("tools/call") == []
        assert not one.file.exists()


def _pending(node: Node) -> int:
    approving = node.trust.approving
    assert approving is not None
    return len(list(approving.approvals.pending()))


# -- a tree


async def test_call_from_parent_requires_approval(tmp_path: Path) -> None:
    workspace = notes_workspace(tmp_path)
    human = Approver(tmp_path)
    file = tmp_path / "written"

    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root", policy=ALLOW)
        # Both nodes share an event loop. A machine that stops it must not end the registration.
        parent = ParentConfig(url=ax_url(root), segment="edge", heartbeat=3600.0)
        config = workspace.config(more="policy: {default: allow}\n" + human.config)
        async with running(workspace, config.with_sections(parent)) as child:
            child.node.on_settled()
            await wait_until(root, lambda: has_tool(root, f"edge.{TOOL}"))
            given = Raw(json.dumps({"text": "milk", "file": str(file)}).encode())
            call = Call(
                TOOLS_CALL, "test", Credentials("local"), CLIENT, f"edge.{TOOL}",
                arguments=given,
            )  # fmt: skip
            async with asyncio.timeout(HANG_TIMEOUT):
                data = json.loads((await root.pipeline.run(call)).result)
            waiting = assert_pending(data)
            assert waiting["reason"].startswith("The contract requires approval")
            assert not file.exists()
            assert workspace.heard("tools/call") == []
            await human.confirms(child, waiting)
            assert file.read_text() == "milk\n"


# -- rules


@pytest.mark.parametrize("policy", ["allow", "confirm"], ids=["allowed", "confirmed"])
def test_learned_rule_does_not_approve_contract(tmp_path: Path, policy: str) -> None:
    """Neither alone nor where the rules would have somebody asked, too."""
    rule = LearnedRule(name="notes", then="allow", tools=[TOOL], open=["text", "file"])
    asks = [RuleConfig("ask", "confirm", tools=["note.*"])] if policy == "confirm" else []
    rules = PolicyConfig(default="allow", rules=asks, learned=[rule])
    with approval_node(tmp_path, policy=rules) as one:
        params = {"name": TOOL, "arguments": one.given}
        response = one.node.once(one.node.stateless("tools/call", params, name=TOOL))
        one.nothing_was_done(response.result)
        assert one.waiting() == [TOOL]
