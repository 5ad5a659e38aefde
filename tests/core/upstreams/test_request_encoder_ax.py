"""Encoded calls on tree links: the route stays, and its cursor moves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.core.call import Call, Client
from interlock.core.catalog.offering import Tool
from interlock.core.upstreams.client import RequestEncoder
from interlock.protocol.mcp import META_CLIENT_CAPABILITIES, META_CLIENT_INFO, META_VERSION, Era
from interlock.protocol.mcpax import Hop, read_hop
from tests.support.calls import SESSION, STATELESS, tool_call
from tests.support.offerings import definition, offer

OWN = b'{"name":"interlock","version":"1"}'
REVISIONS = {Era.SESSION: "2025-11-25", Era.STATELESS: "2026-07-28"}
PARTS = ("infra", "edge", "stm32h7", "dma2d_status")


def make_encoder(era: Era, *, ax: bool) -> RequestEncoder:
    return RequestEncoder(era, REVISIONS[era], OWN, http=False, ax=ax)


def tool(name: str = "stm32h7.dma2d_status", way: bytes = b"") -> Tool:
    [encoder] = offer("edge", [definition(name)], registered="aggregator").tools
    encoder.route_members = way
    return encoder


def call_of(route: Tool | None, client: Client = SESSION, **fields: Any) -> Call:
    call = tool_call("edge.t", {"x": 1}, client=client, **fields)
    call.route = route
    return call


def meta_of(payload: bytes) -> dict[str, Any]:
    return dict(json.loads(payload)["params"].get("_meta", {}))


def stateless_meta() -> dict[str, Any]:
    return {
        META_VERSION: "2026-07-28",
        META_CLIENT_INFO: {"name": "tests", "version": "1"},
        META_CLIENT_CAPABILITIES: {},
    }


WAY = b',"x-mcpax-route":["edge","stm32h7","dma2d_status"],"x-mcpax-cursor":0'


@pytest.mark.spec("AX-7.2-1", "AX-7.2-9", "AX-7.2-8")
def test_first_node_adds_route() -> None:
    payload = make_encoder(Era.SESSION, ax=True).encode_call(7, call_of(tool(way=WAY)), None)
    assert payload == (
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"stm32h7.dma2d_status",'
        b'"arguments":{"x": 1},"_meta":{"x-mcpax-route":["edge","stm32h7","dma2d_status"],'
        b'"x-mcpax-cursor":0}}}'
    )


@pytest.mark.spec("AX-7.2-2")
def test_next_node_moves_cursor() -> None:
    call = call_of(tool(way=WAY), hop=Hop(PARTS, 1))
    meta = meta_of(make_encoder(Era.SESSION, ax=True).encode_call(7, call, None))
    assert meta == {"x-mcpax-route": list(PARTS), "x-mcpax-cursor": 2}


FORGED = {"x-mcpax-route": ["elsewhere", "rm"], "x-mcpax-cursor": 0, "x-mcpax-other": 1}


@pytest.mark.spec("AX-7.2-8", "AX-7.2-9")
@pytest.mark.parametrize("era", list(Era))
@pytest.mark.parametrize("client", [SESSION, STATELESS])
@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize("hop", [None, Hop(PARTS, 1)])
@pytest.mark.parametrize("supplied", [None, {}, {"own": 1}, FORGED, {**FORGED, "own": 1}])
@pytest.mark.parametrize("extra", [False, True])
def test_adds_route_on_every_tree_link(
    era: Era, client: Client, progress: bool, hop: Hop | None, supplied: Any, extra: bool
) -> None:
    """The same as on a plain link, and the way. Nothing that a caller says of ways gets through."""
    meta = supplied
    if client is STATELESS:
        meta = {**stateless_meta(), **(supplied or {})}
    token = Raw(b'"mine"') if progress else None

    def write_call(ax: bool, route: Tool | None) -> dict[str, Any]:
        call = call_of(route, client, meta=meta, hop=hop)
        if extra:
            call.extra_params = {"name": Raw(b'"t"')} if route is None else {"task": Raw(b"{}")}
        return dict(json.loads(make_encoder(era, ax=ax).encode_call(7, call, token))["params"])

    plain = write_call(False, tool(way=WAY))
    assert not [key for key in plain.get("_meta", {}) if key.startswith("x-mcpax-")]
    led = write_call(True, tool(way=WAY))
    way = {"x-mcpax-route": ["edge", "stm32h7", "dma2d_status"], "x-mcpax-cursor": 0}
    if hop is not None:
        way = {"x-mcpax-route": list(PARTS), "x-mcpax-cursor": 2}
    assert led == {**plain, "_meta": {**plain.get("_meta", {}), **way}}
    assert list(led)[-1] == "_meta"
    # What is about no tool, and what has no way, is as on any link.
    assert write_call(True, None) == write_call(False, None)
    if hop is None:
        assert write_call(True, tool()) == write_call(False, tool())


@pytest.mark.spec("AX-7.2-3", "AX-7.2-2")
@pytest.mark.parametrize("era", list(Era))
def test_follows_worked_example(era: Era) -> None:
    """The root matches infra at 0, hands on 1; edge hands on 2; the gateway is the last."""
    [entry] = offer(
        "edge", [definition("stm32h7.dma2d_status")], registered="aggregator", root="infra"
    ).tools
    assert entry.canonical == ".".join(PARTS)
    cursors, names = [], []
    call = call_of(entry)
    for name in (entry.upstream_name, "dma2d_status"):
        payload = make_encoder(era, ax=True).encode_call(1, call, None)
        params = json.loads(payload)["params"]
        meta = {key: Raw(json.dumps(value).encode()) for key, value in params["_meta"].items()}
        hop = read_hop(meta)
        assert hop is not None
        assert hop.route == PARTS
        cursors.append(hop.cursor)
        names.append(params["name"])
        assert params["name"] == name == ".".join(hop.route[hop.cursor + 1 :])
        [below] = offer("stm32h7", [definition("dma2d_status")], registered="leaf").tools
        call = call_of(below, hop=hop)
    assert cursors == [1, 2]
    assert names == ["stm32h7.dma2d_status", "dma2d_status"]


SEGMENT = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1, max_size=12)


@pytest.mark.spec("AX-7.2-2", "AX-7.2-3")
@given(
    segments=st.lists(SEGMENT, min_size=1, max_size=12),
    leaf=SEGMENT,
    generations=st.lists(st.sampled_from(list(Era)), min_size=12, max_size=12),
    root=st.none() | SEGMENT,
)
def test_routes_through_any_number_of_nodes(
    segments: list[str], leaf: str, generations: list[Era], root: str | None
) -> None:
    """Each link carries the whole route; what stands at the cursor is the receiver, and what is
    behind it the name that it is asked for."""
    whole = [*([] if root is None else [root]), *segments, leaf]
    behind = [*segments[1:], leaf]
    role: Any = "aggregator" if len(segments) > 1 else "leaf"
    offering = offer(segments[0], [definition(".".join(behind))], registered=role, root=root)
    if not offering.tools:
        return  # a name that a subserver may not give
    call = call_of(offering.tools[0])
    for depth, segment in enumerate(segments):
        params = json.loads(make_encoder(generations[depth], ax=True).encode_call(1, call, None))[
            "params"
        ]
        meta = params["_meta"]
        assert meta["x-mcpax-route"] == whole
        cursor = meta["x-mcpax-cursor"]
        assert cursor == depth + (root is not None)
        assert whole[cursor] == segment
        assert params["name"] == ".".join(whole[cursor + 1 :])
        if depth + 1 < len(segments):
            further = [*segments[depth + 2 :], leaf]
            role = "aggregator" if depth + 2 < len(segments) else "leaf"
            [below] = offer(
                segments[depth + 1], [definition(".".join(further))], registered=role
            ).tools
            call = call_of(below, hop=Hop(tuple(meta["x-mcpax-route"]), cursor))


def test_caches_route_for_each_tool() -> None:
    encoder = make_encoder(Era.STATELESS, ax=True)
    calls = [
        call_of(tool("a", b',"x-mcpax-route":["edge","a"],"x-mcpax-cursor":0'), STATELESS),
        call_of(tool("b", b',"x-mcpax-route":["edge","b"],"x-mcpax-cursor":0'), STATELESS),
    ]
    for _ in range(3):
        for call, name in zip(calls, "ab", strict=True):
            call.meta = {
                key: Raw(json.dumps(value).encode()) for key, value in stateless_meta().items()
            }
            assert meta_of(encoder.encode_call(1, call, None))["x-mcpax-route"] == ["edge", name]


def test_caches_meta_for_each_client() -> None:
    """By the very objects: another client, or another `_meta`, is worded by its own."""
    encoder = make_encoder(Era.STATELESS, ax=True)
    able = Client(Era.STATELESS, "2026-07-28", "tests", b'{"sampling":{}}')
    route, hop = tool(way=WAY), Hop(PARTS, 1)
    plain = call_of(route, STATELESS, meta=stateless_meta(), hop=hop)
    others = [
        call_of(route, able, meta=stateless_meta(), hop=hop),
        call_of(route, STATELESS, meta={**stateless_meta(), "traceparent": "00-1-2-01"}, hop=hop),
        call_of(route, STATELESS, meta=stateless_meta()),
    ]
    alone = [
        make_encoder(Era.STATELESS, ax=True).encode_call(7, call, None) for call in (plain, *others)
    ]
    # The same `_meta` with another client, too.
    shared = call_of(route, able, hop=hop)
    shared.meta = plain.meta
    for _ in range(2):
        for call, expected in zip((plain, *others), alone, strict=True):
            assert (
                encoder.encode_call(7, plain, None)
                == encoder.encode_call(7, plain, None)
                == alone[0]
            )
            assert encoder.encode_call(7, call, None) == expected
        assert encoder.encode_call(7, shared, None) == alone[1]


def test_caches_headers_for_each_tool() -> None:
    encoder = RequestEncoder(Era.STATELESS, REVISIONS[Era.STATELESS], OWN, http=True)
    for _ in range(2):
        for name in ("a", "b", "b", "a"):
            lines = encoder.encode_header_lines("tools/call", call_of(tool(name), STATELESS))
            assert lines == b"Mcp-Method: tools/call\r\nMcp-Name: %b\r\n" % name.encode()
            assert encoder.last_route is not None
            assert (encoder.last_route.upstream_name, encoder.last_lines) == (name, lines)
