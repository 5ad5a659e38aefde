"""Hop tokens: each hop has its own, each node checks it, and credentials of callers never reach a
child."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from interlock.app.node import Node
from interlock.core.call import Caller
from interlock.core.config import ServerConfig, TokenConfig
from interlock.core.paths import signing_keys_path
from interlock.tree.component import Tree
from interlock.trust.hop_tokens import HopTokens
from interlock.trust.signing_keys import SigningKeys
from interlock.trust.token_issuer import KEYS_PATH
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.tree.node_tree import has_tool, wait_until
from tests.tree.registrar_hub import tool
from tests.trust.hop_grove import SECRETS, TOKENS, HopGrove, Leaf, call, claims, header, post

OWNER, DEPUTY = SECRETS["OWNER"], SECRETS["DEPUTY"]
ADDS = {"annotations": {"readOnlyHint": False, "destructiveHint": False}}
LEAF_TOOLS = [tool("read"), tool("add", mutable=None, **ADDS)]
KEY = "x-mcpax-authorization"

Scene = Callable[[HopGrove], Coroutine[Any, Any, None]]


def play(scene: Scene, folder: Path) -> None:
    async def run() -> None:
        grove = HopGrove(folder)
        async with grove:
            await scene(grove)

    uvloop.run(run())


@asynccontextmanager
async def open_node(folder: Path) -> AsyncIterator[Any]:
    grove = HopGrove(folder)
    async with grove:
        yield grove


async def start_row(grove: HopGrove, **registration: Any) -> tuple[Node, Node, Leaf]:
    """A root with callers, a node below it, and a leaf below that."""
    root = await grove.plant("root", tokens=TOKENS)
    edge = await grove.plant("edge", below=root)
    leaf = Leaf(edge)
    leaf.tools = LEAF_TOOLS
    leaf.registered(segment="leaf", **registration)
    await wait_until(root, lambda: has_tool(root, "edge.leaf.read"))
    return root, edge, leaf


@pytest.mark.spec("ST-4.8.2-1", "AX-10.1-2", "ST-4.8.4-5")
async def test_each_hop_has_own_token_for_same_caller(tmp_path: Path) -> None:
    async with open_node(tmp_path) as grove:
        root, edge, leaf = await start_row(grove)
        assert "content" in await call(root, OWNER, "edge.leaf.read")
        assert "content" in await call(root, OWNER, "edge.leaf.add")
        assert "content" in await call(root, DEPUTY, "edge.leaf.add")
        reads, adds, bobs = grove.callers(edge)
        assert reads == Caller(
            "parent", can_register=False, kind="parent", scopes=("read:leaf.read",), id="owner",
            parent_caller="owner",
        )  # fmt: skip
        assert adds is not None
        assert bobs is not None
        assert (adds.scopes, adds.parent_caller) == (("write:leaf.add",), "owner")
        assert (bobs.scopes, bobs.parent_caller) == (("write:leaf.add",), "deputy")
        tokens = [call["_meta"][KEY] for call in leaf.calls]
        actual = [claims(token) for token in tokens]
        assert [item["sub"] for item in actual] == ["owner", "owner", "deputy"]
        assert [item["scope"] for item in actual] == ["read:read", "write:add", "write:add"]
        assert {item["aud"] for item in actual} == {leaf_id(edge)}
        assert {item["iss"] for item in actual} == {edge.place.id}
        assert all(0 < item["exp"] - item["iat"] <= 60 for item in actual)


def leaf_id(edge: Node) -> str:
    info = edge.component(Tree).registrar.subserver("ax:leaf")
    assert info is not None
    return info.subserver_id


@pytest.mark.spec("AX-10.1-1", "AX-10.1-3", "ST-4.8.5-1")
def test_caller_credentials_reach_no_child_or_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a bearer, as a cookie and in the `_meta`: not a byte of it. And nothing that was made for
    a hop is in a file or in a log."""
    events: list[str] = []

    async def scene(grove: HopGrove) -> None:
        root, _, leaf = await start_row(grove)
        extras = {
            "com.acme/token": OWNER,
            "authorization": f"Bearer {OWNER}",
            KEY: OWNER,
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "x-mcpax-event-id": "7d1f0f0e-0000-4000-8000-000000000002",
        }
        assert "content" in await call(root, OWNER, "edge.leaf.read", **extras)
        everything = b"".join(leaf.came)
        assert OWNER.encode() not in everything
        [params] = leaf.calls
        kept = {
            "traceparent": extras["traceparent"],
            "x-mcpax-event-id": extras["x-mcpax-event-id"],
        }
        assert {key: params["_meta"].get(key) for key in extras if key != KEY} == {
            "com.acme/token": None, "authorization": None, **kept,
        }  # fmt: skip
        events.append(params["_meta"][KEY])
        edges = [item.credentials.hop_token for item in grove.begun[grove._nodes[1]]]
        events.extend(edge for edge in edges if edge)

    with caplog.at_level(logging.DEBUG):
        play(scene, tmp_path)
    assert len(events) >= 2
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(file.name == "signing_keys.json" for file in files)
    for token in (*events, OWNER):
        parts = [token, *token.split(".")[1:]]
        assert not any(part in caplog.text for part in parts)
        for element in files:
            content = element.read_bytes()
            assert not any(part.encode() in content for part in parts), element


@pytest.mark.spec("ST-4.8.4-2", "ST-4.8.1-3")
async def test_unpermitted_call_is_rejected_before_sending(tmp_path: Path) -> None:
    async with open_node(tmp_path) as grove:
        root, edge, leaf = await start_row(grove)
        other = Leaf(edge)
        other.tools = LEAF_TOOLS
        other.registered(2, "other")
        await wait_until(root, lambda: has_tool(root, "edge.other.add"))
        response = await call(root, OWNER, "edge.other.add")
        assert response["code"] == -31031
        assert response["data"]["missing"] == ["write:edge.other.add"]
        assert not leaf.calls
        assert not other.calls
        assert grove.callers(edge) == []


def member(token: str) -> bytes:
    return b',"%b":"%b"' % (KEY.encode(), token.encode())


@pytest.mark.spec("ST-4.8.2-1", "AX-10.1-2")
async def test_child_checks_scopes_itself(tmp_path: Path) -> None:
    """A root that is careless, or that somebody has got hold of, sends what it should not."""

    async with open_node(tmp_path) as grove:
        root, edge, leaf = await start_row(grove)
        peer = root.upstreams.supervisors["ax:edge"].upstream_client
        assert peer is not None
        honest = peer.hop_token_encoder
        assert isinstance(honest, HopTokens)
        sent: list[bytes] = []

        def stamped(one: Any) -> bytes:
            sent.append(honest(one))
            return sent[-1]

        peer.hop_token_encoder = stamped
        assert "content" in await call(root, OWNER, "edge.leaf.read")
        for_read = sent[-1]
        made = SigningKeys(signing_keys_path(root.config, {}, root.base_dir))
        good = claims(for_read.split(b'"')[3].decode())
        stranger = SigningKeys(None)
        for stamp, code in {
            # Good, and for another tool.
            for_read: -31006,
            # Signed by nobody that the edge knows.
            member(stranger.sign(good)): -31030,
            # By the root, for somebody else.
            member(made.sign({**good, "aud": root.place.id})): -31030,
            member(made.sign({**good, "exp": good["iat"] - 100, "iat": good["iat"] - 160})): -31030,
            member(made.sign({**good, "exp": good["iat"] + 901})): -31030,
            member(for_read.split(b'"')[3].decode()[:-9]): -31030,
            b',"%b":7' % KEY.encode(): -31030,
            b',"%b":null' % KEY.encode(): -31030,
        }.items():
            peer.hop_token_encoder = lambda _, stamp=stamp: stamp
            response = await call(root, DEPUTY, "edge.leaf.add")
            assert response["code"] == code, (stamp, response)
        assert len(leaf.calls) == 1
        # A parent that sends none is as it was before there were tokens.
        peer.hop_token_encoder = None
        assert "content" in await call(root, DEPUTY, "edge.leaf.add")
        last = grove.callers(edge)[-1]
        assert last is not None
        assert (last.name, last.scopes, last.parent_caller) == ("parent", None, "")


@pytest.mark.spec("ST-4.8.5-3")
async def test_key_rotation_rejects_no_call(tmp_path: Path) -> None:
    async with open_node(tmp_path) as grove:
        root, edge, leaf = await start_row(grove)
        assert "content" in await call(root, OWNER, "edge.leaf.read")
        before = published_key_ids(edge)
        # By hand, in another process as it were.
        new = SigningKeys(signing_keys_path(root.config, {}, root.base_dir)).rotate()
        await root.tokens.refresh()
        for secret in (DEPUTY, OWNER):
            assert "content" in await call(root, secret, "edge.leaf.read")
        kids = [
            header(item.credentials.hop_token)["kid"]
            for item in grove.begun[edge]
            if item.credentials.hop_token
        ]
        # Deputy's token is a new one; Owner's is good still.
        assert kids == [before[0], new, before[0]]
        assert published_key_ids(edge) == [new, *before]
        _, document = await post((root.url or "").replace("/mcp", KEYS_PATH), None, method="GET")
        assert [key["kid"] for key in document["keys"]] == [new, *before]
        assert not any("d" in key for key in document["keys"])
        # The leaf hears of its own parent's keys.
        edge.tokens.keys.rotate()
        edge.component(Tree).registrar.keys_changed()
        [told] = [
            message for message in leaf.heard if str(message.get("method")).endswith("keys_changed")
        ]
        assert len(told["params"]["jwks"]["keys"]) == 2
        assert len(leaf.send_heartbeat()["result"]["jwks"]["keys"]) == 2
        assert "jwks" not in leaf.send_heartbeat()["result"]


def published_key_ids(node: Node) -> list[str]:
    registrant = node.component(Tree).registrant
    assert registrant is not None
    above = node.component(Tree).tokens.parent_issuer()
    assert above is not None
    return [key["kid"] for key in json.loads(bytes(above.jwks))["keys"]]


@pytest.mark.spec("AX-10.2-1", "AX-10.2-2")
async def test_subserver_registered_for_reading_gets_no_writes(tmp_path: Path) -> None:
    async with open_node(tmp_path) as grove:
        root, edge, leaf = await start_row(grove, auth_scope="read")
        assert leaf.answers["mcpax-2"][0]["result"]["auth_scope"] == "read"
        other = Leaf(edge)
        other.tools = LEAF_TOOLS
        other.registered(2, "other", auth_scope="write")
        await wait_until(root, lambda: has_tool(root, "edge.other.add"))
        response = await call(root, DEPUTY, "edge.leaf.add")
        assert (response["code"], response["message"]) == (-31006, "scope_denied")
        assert response["data"]["auth_scope"] == "read"
        assert not leaf.calls
        assert "content" in await call(root, DEPUTY, "edge.leaf.read")
        assert "content" in await call(root, DEPUTY, "edge.other.add")
        assert [call["name"] for call in leaf.calls] == ["read"]


# -- servers of the config


class Checks(Streamable):
    """A server that believes the tokens of one node, and nothing else."""

    def __init__(self, eras: str) -> None:
        super().__init__(eras)
        self.toolbox.tools = [tool("echo"), tool("cancelled", mutable=None, **ADDS)]
        self.refuses = 0
        self.override = self._check

    async def _check(self, request: Request, answer: ResponseWriter) -> bool:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        scope = claims(token)["scope"] if token.count(".") == 2 else ""
        if request.tool and scope.partition(":")[2] != request.tool:
            self.refuses += 1
            answer.empty("403 Forbidden")
            return True
        if not token:
            self.refuses += 1
            answer.empty("401 Unauthorized")
            return True
        return False


@pytest.mark.spec("AX-10.1-1", "AX-10.1-2", "ST-4.8.4-5")
@pytest.mark.parametrize("eras", ["stateless", "session"])
async def test_server_receives_tokens_of_each_caller(tmp_path: Path, eras: str) -> None:
    async with open_node(tmp_path) as grove:
        async with Checks(eras) as server:
            tokens = [
                *TOKENS[1:],
                TokenConfig(name="owner", token="${env:OWNER}", scopes=["read:shop.*"]),
            ]
            shop = ServerConfig(url=server.url(), segment="shop", minted_tokens=True)
            root = await grove.plant("root", tokens=tokens, servers={"shop": shop})
            await wait_until(root, lambda: has_tool(root, "shop.echo"))
            assert "content" in await call(root, OWNER, "shop.echo")
            assert "content" in await call(root, DEPUTY, "shop.cancelled")
            assert (await call(root, OWNER, "shop.cancelled"))["code"] == -31031
            assert server.refuses == 0
            calls = [request for request in server.requests if request.tool]
            actual = [claims(call.headers["authorization"][7:]) for call in calls]
            assert [(item["sub"], item["scope"]) for item in actual] == [
                ("owner", "read:echo"), ("deputy", "write:cancelled"),
            ]  # fmt: skip
            assert {item["aud"] for item in actual} == {server.url()}
            own = [request for request in server.requests if not request.tool]
            assert own
            for element in server.requests:
                token = element.headers["authorization"].removeprefix("Bearer ")
                assert claims(token)["iss"] == root.url
                whole = repr(element.headers) + element.body.decode()
                assert OWNER not in whole
                assert DEPUTY not in whole
            assert {claims(item.headers["authorization"][7:])["scope"] for item in own} == {"read"}
            # What it refuses all the same is told, and not tried again.
            server.toolbox.tools = []
            before = len(server.requests)

            async def refuse(request: Request, answer: ResponseWriter) -> bool:
                answer.empty("403 Forbidden")
                return True

            server.override = refuse
            response = await call(root, DEPUTY, "shop.cancelled")
            assert response["code"] == -31020
            assert "rejected the hop token of this node (HTTP 403)" in response["message"]
            assert len(server.requests) == before + 1
