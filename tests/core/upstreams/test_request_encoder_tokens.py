"""Encoded calls with a token."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import Call, Client
from interlock.core.catalog.offering import Tool
from interlock.core.upstreams.client import RequestEncoder
from interlock.core.upstreams.transports.http import format_bearer_header
from interlock.protocol.mcp import RESOURCES_READ, Era
from interlock.protocol.mcpax import Hop
from interlock.tree.caller_tokens import format_member
from tests.core.upstreams.test_request_encoder_ax import (
    OWN,
    PARTS,
    REVISIONS,
    WAY,
    call_of,
    make_encoder,
    stateless_meta,
    tool,
)
from tests.support.calls import LOCAL, SESSION, STATELESS

TOKEN = "eyJhIjoxfQ.eyJiIjoyfQ.c2ln-_"


def token_encoder(era: Era, *, ax: bool = True) -> RequestEncoder:
    return RequestEncoder(
        era, REVISIONS[era], OWN, http=False, ax=ax, encode_token=lambda _: format_member(TOKEN)
    )


@pytest.mark.parametrize("era", list(Era))
@pytest.mark.parametrize("client", [SESSION, STATELESS])
@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize("hop", [None, Hop(PARTS, 1)])
@pytest.mark.parametrize(
    "supplied", [None, {}, {"traceparent": "00"}, {"x-mcpax-authorization": "x"}]
)
@pytest.mark.parametrize("way", [b"", WAY])
@pytest.mark.parametrize("extra", [False, True])
def test_adds_token_to_every_call(
    era: Era,
    client: Client,
    progress: bool,
    hop: Hop | None,
    supplied: Any,
    way: bytes,
    extra: bool,
) -> None:
    meta = {**stateless_meta(), **(supplied or {})} if client is STATELESS else supplied
    token = Raw(b'"mine"') if progress else None

    def write_call(by: RequestEncoder, route: Tool | None) -> dict[str, Any]:
        call = call_of(route, client, meta=meta, hop=hop)
        if extra:
            call.extra_params = {"name": Raw(b'"t"')} if route is None else {"task": Raw(b"{}")}
        return dict(json.loads(by.encode_call(7, call, token))["params"])

    for route in (tool(way=way), None):
        plain = write_call(make_encoder(era, ax=True), route)
        received = write_call(token_encoder(era), route)
        meta_with = {**plain.get("_meta", {}), "x-mcpax-authorization": TOKEN}
        assert received == {**plain, "_meta": meta_with}


@pytest.mark.parametrize("era", list(Era))
def test_adds_nothing_without_token(era: Era) -> None:
    nobody = RequestEncoder(
        era, REVISIONS[era], OWN, http=False, ax=True, encode_token=lambda _: b""
    )
    for route in (tool(way=WAY), tool(), None):
        call = call_of(route)
        assert nobody.encode_call(1, call, None) == make_encoder(era, ax=True).encode_call(
            1, call, None
        )


def test_adds_token_to_resource_read() -> None:
    call = Call(RESOURCES_READ, "test", LOCAL, SESSION, name="x://1")
    call.extra_params = {"uri": Raw(b'"x://1"')}
    payload = token_encoder(Era.SESSION).encode_call(3, call, None)
    assert json.loads(payload)["params"] == {
        "uri": "x://1",
        "_meta": {"x-mcpax-authorization": TOKEN},
    }


def test_node_requests_have_no_token() -> None:
    assert TOKEN.encode() not in token_encoder(Era.STATELESS).encode_node_request(
        1, "tools/list", b"{}"
    )


def test_formats_token_header_and_member() -> None:
    assert format_bearer_header(TOKEN) == f"Authorization: Bearer {TOKEN}\r\n".encode()
    assert format_member(TOKEN) == f',"x-mcpax-authorization":"{TOKEN}"'.encode()
