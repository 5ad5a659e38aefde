"""Tests of approvals in a tree: each node has its own approvals and trust anchors."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OKPKey
from msgspec import Raw
from msgspec.structs import replace

from interlock.app.node import Node
from interlock.core.call import Call, Client, Credentials
from interlock.core.config import ServerConfig
from interlock.core.config.trust import AnchorConfig, ApprovalsConfig, PolicyConfig, RuleConfig
from interlock.errors import InterlockError
from interlock.protocol.mcp import TOOLS_CALL, Era
from interlock.protocol.mcpax import APPROVAL
from tests.support.timeouts import HANG_TIMEOUT
from tests.tree.node_tree import NodeTree, has_tool, wait_until
from tests.trust.approvals.gated import sign

LEDGER = Path(__file__).parent.parent / "behaviour" / "servers" / "ledger.py"
CLIENT = Client(Era.SESSION, "2025-11-25", "tests")
NAMES = ("root", "mid", "edge")
PRESS = "mid.edge.s.press"
OPEN = PolicyConfig(default="allow")
GATED = PolicyConfig(
    default="allow", rules=[RuleConfig("ask a human", "confirm", tools=["*press", "*note"])]
)


class ThreeNodes:
    """Three nodes in a chain, each with its own operator, and a server at the last node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self.keys = {name: OKPKey.generate_key("Ed25519") for name in NAMES}
        self.nodes: dict[str, Node] = {}
        self.told: dict[tuple[str, str], str] = {}

    async def grow(self, grove: NodeTree, **policies: PolicyConfig) -> None:
        server = ServerConfig(
            command=sys.executable, args=[str(LEDGER), str(self.ledger)], segment="s"
        )
        above = None
        for name in NAMES:
            key = self.folder / f"{name}.pem"
            key.write_bytes(self.keys[name].as_pem(private=False))
            node = await grove.start(
                name,
                below=above,
                policy=policies.get(name, OPEN),
                approvals=ApprovalsConfig(
                    anchors=[AnchorConfig(f"operator of {name}", key=str(key))]
                ),
                servers={"s": server} if name == NAMES[-1] else {},
            )
            self.nodes[name] = above = node
        await wait_until(self.root, lambda: has_tool(self.root, PRESS))

    @property
    def root(self) -> Node:
        return self.nodes["root"]

    async def gate(self, *gates: bool) -> None:
        """Put gates at these hops, and take them away at the others."""
        for name, gated in zip(NAMES, gates, strict=True):
            node = self.nodes[name]
            await node.apply(replace(node.config, policy=GATED if gated else OPEN))

    async def ask(self, call: Call) -> Any:
        async with asyncio.timeout(HANG_TIMEOUT):
            return json.loads((await self.root.pipeline.run(call)).result)

    async def press(self, button: str, tool: str = PRESS) -> Any:
        """As a client does that names the approval it was told of for the same call."""
        arguments = Raw(json.dumps({"button": button}).encode())
        call = Call(TOOLS_CALL, "test", Credentials("local"), CLIENT, tool, arguments=arguments)
        if (button, tool) in self.told:
            call.meta = {APPROVAL: Raw(json.dumps(self.told[button, tool]).encode())}
        answer = await self.ask(call)
        if (wanted := read_pending(answer)) is not None:
            self.told[button, tool] = wanted["confirmation_id"]
        return answer

    async def confirm(self, held: dict[str, Any], signer: str) -> Any:
        now = int(time.time())
        proof = sign(
            self.keys[signer],
            {
                "aud": held["aud"],
                "jti": held["confirmation_id"],
                "args_sha256": held["args_sha256"],
                "iat": now,
                "exp": now + 600,
                "decision": "approve",
            },
        )
        params = {"confirmation_id": held["confirmation_id"], "proof": proof}
        extra = {key: Raw(json.dumps(value).encode()) for key, value in params.items()}
        return await self.ask(
            Call("mcpax/confirm", "test", Credentials("local"), CLIENT, extra_params=extra)
        )

    def whose(self, held: dict[str, Any]) -> str:
        """Which hop wants a proof."""
        return next(name for name, node in self.nodes.items() if node.place.id == held["aud"])

    def executed(self, button: str) -> int:
        if not self.ledger.exists():
            return 0
        lines = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        return sum(arguments == {"button": button} for _, arguments in lines)


def read_pending(answer: Any) -> dict[str, Any] | None:
    if answer.get("_meta", {}).get("x-mcpax-status") != "confirmation_required":
        return None
    assert answer["isError"] is True
    content: dict[str, Any] = answer["structuredContent"]
    return content


@pytest.mark.spec("AX-11.3-8", "AX-11.3-9", "AX-11.3-10", "AX-11.3-11", "AX-11.3-14", "AX-11.1-1")
async def test_every_node_on_route_needs_its_approval(tmp_path: Path) -> None:
    tree = ThreeNodes(tmp_path)
    async with NodeTree(tmp_path) as grove:
        await tree.grow(grove)
        for gates in itertools.product((False, True), repeat=3):
            await tree.gate(*gates)
            button = "".join("x" if one else "o" for one in gates)
            answer = await tree.press(button)
            asked = []
            while (wanted := read_pending(answer)) is not None:
                assert tree.executed(button) == 0
                hop = tree.whose(wanted)
                asked.append(hop)
                assert wanted["route"][-2:] == ["s", "press"]
                for other in NAMES:
                    # Whoever opens another gate does not open this one.
                    if other != hop:
                        with pytest.raises(InterlockError) as error:
                            await tree.confirm(wanted, other)
                        assert error.value.failure.name == "proof_invalid"
                answer = await tree.confirm(wanted, hop)
            gated = [name for name, gate in zip(NAMES, gates, strict=True) if gate]
            assert asked == gated
            assert answer["content"][0]["text"] == "press: done"
            assert tree.executed(button) == 1


async def test_caller_collects_result_after_all_approvals(tmp_path: Path) -> None:
    """Through three gates: the same call, made again at the top, is answered with what it waits
    for now, and at last with what it came to, once."""

    tree = ThreeNodes(tmp_path)
    async with NodeTree(tmp_path) as grove:
        await tree.grow(grove, root=GATED, mid=GATED, edge=GATED)
        answer = await tree.press("a")
        for hop in NAMES:
            wanted = read_pending(answer)
            assert wanted is not None
            assert tree.whose(wanted) == hop
            # Asked again: the same, and no second approval anywhere.
            assert read_pending(await tree.press("a")) == wanted
            # By somebody who is not the caller.
            outcome = await tree.root.trust.approving.approvals.confirm(  # type: ignore[union-attr]
                wanted["confirmation_id"], _proof(tree, wanted, hop)
            )
            answer = json.loads(outcome.result)
        assert answer["content"][0]["text"] == "press: done"
        assert tree.executed("a") == 1
        assert (await tree.press("a"))["content"][0]["text"] == "press: done"
        assert tree.executed("a") == 1
        again = read_pending(await tree.press("a"))
        assert again is not None
        assert tree.whose(again) == "root"


def _proof(tree: ThreeNodes, wanted: dict[str, Any], signer: str) -> str:
    now = int(time.time())
    return sign(
        tree.keys[signer],
        {
            "aud": wanted["aud"],
            "jti": wanted["confirmation_id"],
            "args_sha256": wanted["args_sha256"],
            "iat": now,
            "exp": now + 600,
            "decision": "approve",
        },
    )


@pytest.mark.spec("AX-11.3-9", "AX-11.2-1")
async def test_parent_cannot_lift_approval_of_child(tmp_path: Path) -> None:
    tree = ThreeNodes(tmp_path)
    never = PolicyConfig(default="allow", rules=[RuleConfig("never gate it", "allow", tools=["*"])])
    async with NodeTree(tmp_path) as grove:
        await tree.grow(grove, root=never, mid=never, edge=PolicyConfig())
        wanted = read_pending(await tree.press("a"))
        assert wanted is not None
        assert tree.whose(wanted) == "edge"
        assert wanted["capability"]["reversible"] is False
        [page] = [json.loads(tree.root.catalog.current.page("tools/list", Era.SESSION, "ax"))]
        flags = {one["name"]: one.get("_meta", {}).get("x-mcpax-safety") for one in page["tools"]}
        assert flags[PRESS] == "irreversible_mutable"
        assert flags["mid.edge.s.note"] is None
        assert flags["mid.edge.s.look"] is None
        # An unknown id is looked for below, and found by nobody.
        with pytest.raises(InterlockError) as error:
            await tree.confirm({**wanted, "confirmation_id": "x" * 32}, "edge")
        assert error.value.failure.name == "unknown_approval"
        assert tree.executed("a") == 0


async def _approve_at(tree: ThreeNodes, answer: Any, *hops: str) -> dict[str, Any]:
    """Approve at these nodes through the root and return the next response."""
    for hop in hops:
        wanted = read_pending(answer)
        assert wanted is not None
        assert tree.whose(wanted) == hop
        approving = tree.root.trust.approving
        assert approving is not None
        # By somebody who is not the caller.
        outcome = await approving.approvals.confirm(
            wanted["confirmation_id"], _proof(tree, wanted, hop)
        )
        answer = json.loads(outcome.result)
    wanted = read_pending(answer)
    assert wanted is not None
    return wanted


async def test_decision_at_inner_node_reaches_root(tmp_path: Path) -> None:
    tree = ThreeNodes(tmp_path)
    async with NodeTree(tmp_path) as grove:
        await tree.grow(grove, root=GATED, mid=GATED, edge=GATED)
        edge = tree.nodes["edge"].trust.approving
        assert edge is not None
        wanted = await _approve_at(tree, await tree.press("a"), "root", "mid")
        assert tree.whose(wanted) == "edge"
        assert read_pending(await tree.press("a")) == wanted
        await edge.approvals.confirm(wanted["confirmation_id"], _proof(tree, wanted, "edge"))
        assert tree.executed("a") == 1
        assert (await tree.press("a"))["content"][0]["text"] == "press: done"
        # Told once: then it is a new call.
        assert tree.whose(read_pending(await tree.press("a")) or {}) == "root"
        assert tree.executed("a") == 1

        wanted = await _approve_at(tree, await tree.press("b"), "root", "mid")
        await edge.approvals.reject(wanted["confirmation_id"], reason="not now", local=True)
        with pytest.raises(InterlockError) as error:
            await tree.press("b")
        assert error.value.failure.name == "approval_refused"
        assert "not now" in error.value.message
        assert tree.executed("b") == 0


async def test_removed_approval_of_child_lets_call_through_once(tmp_path: Path) -> None:
    tree = ThreeNodes(tmp_path)
    async with NodeTree(tmp_path) as grove:
        await tree.grow(grove, root=GATED, edge=GATED)
        wanted = await _approve_at(tree, await tree.press("a"), "root")
        assert tree.whose(wanted) == "edge"
        await tree.gate(True, False, False)
        # Under the approval of the top, which let exactly one call through.
        assert (await tree.press("a"))["content"][0]["text"] == "press: done"
        assert tree.executed("a") == 1
        assert tree.whose(read_pending(await tree.press("a")) or {}) == "root"
        assert tree.executed("a") == 1


def _http(url: str, sent: Any = None) -> tuple[int, Any]:
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    body = None if sent is None else json.dumps(sent).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body, headers), timeout=HANG_TIMEOUT
        ) as got:
            return got.status, json.load(got)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


async def test_root_shows_and_confirms_approval_of_child(tmp_path: Path) -> None:
    tree = ThreeNodes(tmp_path)
    async with NodeTree(tmp_path) as grove:
        await tree.grow(grove, root=GATED, edge=GATED)
        approving = tree.root.trust.approving
        assert approving is not None
        base = (tree.root.url or "").replace("/mcp", "/approvals")
        wanted = await _approve_at(tree, await tree.press("a"), "root")
        id = wanted["confirmation_id"]
        [shown] = approving.approvals.pending_at_children()
        assert (shown.id, shown.at, shown.state) == (id, "mid", "pending")
        # It is none of the node itself.
        assert approving.approvals.pending() == []
        status, seen = await asyncio.to_thread(_http, f"{base}/{id}")
        assert status == 200
        assert seen["at"] == "mid"
        assert seen["aud"] == tree.nodes["edge"].place.id
        assert seen["args_sha256"] == wanted["args_sha256"]
        assert seen["arguments"] == {"button": "a"}
        assert seen["route"] == wanted["route"]
        status, said = await asyncio.to_thread(_http, f"{base}/{id}", {"refuse": True})
        assert status in (401, 403), said
        # The key of the top does not open it, and it goes on being shown.
        wrong = _proof(tree, wanted, "root")
        status, said = await asyncio.to_thread(_http, f"{base}/{id}", {"proof": wrong})
        assert (status, said["error"]) == (403, "proof_invalid")
        proof = _proof(tree, wanted, "edge")
        status, told = await asyncio.to_thread(_http, f"{base}/{id}", {"proof": proof})
        assert status == 200
        assert (told["state"], told["at"]) == ("passed_on", "mid")
        assert told["result"]["content"][0]["text"] == "press: done"
        assert tree.executed("a") == 1
        assert approving.approvals.pending_at_children() == []
        assert (await tree.press("a"))["content"][0]["text"] == "press: done"

        # What is answered there itself is not shown above any more once that is known.
        wanted = await _approve_at(tree, await tree.press("b"), "root")
        edge = tree.nodes["edge"].trust.approving
        assert edge is not None
        await edge.approvals.reject(wanted["confirmation_id"], local=True)
        with pytest.raises(InterlockError):
            await tree.press("b")
        assert approving.approvals.pending_at_children() == []


async def test_policy_change_cancels_pending_approval(tmp_path: Path) -> None:
    tree = ThreeNodes(tmp_path)
    async with NodeTree(tmp_path) as grove:
        await tree.grow(grove, root=GATED)
        wanted = read_pending(await tree.press("a"))
        assert wanted is not None
        approving = tree.root.trust.approving
        assert approving is not None
        over = asyncio.Event()
        approving.approvals.watch(lambda one: over.set() if one.state == "void" else None)
        await tree.gate(False, False, False)
        async with asyncio.timeout(HANG_TIMEOUT):
            await over.wait()
        assert approving.approvals.pending() == []
        with pytest.raises(InterlockError) as error:
            await tree.confirm(wanted, "root")
        assert "The policy changed after the call was made" in error.value.message
        assert tree.executed("a") == 0
