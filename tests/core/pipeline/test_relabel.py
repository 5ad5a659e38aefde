"""URIs in results: replaced by the URIs that clients know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.call import Call, Client, Credentials, Outcome
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import read_offering
from interlock.core.config import ServerConfig
from interlock.core.pipeline.result_uris import rewrite_uris
from interlock.protocol.mcp import Era, summarize_result

SERVER = ServerConfig(command="server")


def make_catalog(**resources: list[str]) -> Catalog:
    catalog = Catalog(server_info=b"{}")
    for key, uris in resources.items():
        listed = [json.dumps({"uri": uri, "name": uri}).encode() for uri in uris]
        catalog.publish(read_offering(key, SERVER, [], resources=listed, serves_resources=True))
    return catalog


CATALOG = make_catalog(one=["a:shared", "a:one"], two=["a:shared"], three=["a:three"])


def relabel(verb: str, result: bytes, upstream: str = "one") -> bytes:
    call = Call(verb, "test", Credentials("local"), Client(Era.SESSION, "2025-11-25"))
    call.upstream = upstream
    outcome = Outcome(result, Era.SESSION, summarize_result(result))
    after = rewrite_uris(call, outcome, CATALOG.current)
    assert (after.era, after.summary) == (outcome.era, outcome.summary)
    if after.result == result:
        assert after is outcome
    return after.result


def test_detects_uri_collisions() -> None:
    assert CATALOG.current.has_uri_collisions
    assert CATALOG.has_uri_collisions
    catalog = make_catalog(one=["a:1"], two=["a:2"])
    assert not catalog.current.has_uri_collisions
    assert not catalog.has_uri_collisions
    catalog.publish(
        read_offering(
            "three", SERVER, [], resources=[b'{"uri":"a:1","name":"x"}'], serves_resources=True
        )
    )
    assert catalog.current.has_uri_collisions
    assert catalog.has_uri_collisions
    catalog.withdraw("three")
    assert not catalog.current.has_uri_collisions
    assert not catalog.has_uri_collisions


LINK = {"type": "resource_link", "uri": "a:shared", "name": "n", "_meta": {"k": [1.50]}}
EMBEDDED = {"type": "resource", "resource": {"uri": "a:shared", "text": "a:shared"}}
OTHERS = [
    {"type": "text", "text": "a:shared", "uri": "a:shared"},
    {"type": "resource_link", "uri": "a:one"},
    {"type": "resource_link", "uri": 5},
    {"type": "resource"},
    {"type": "new"},
    {"uri": "a:shared"},
    7,
]


@pytest.mark.parametrize(
    ("verb", "wrap"),
    [
        ("tools/call", lambda blocks: {"content": blocks}),
        ("prompts/get", lambda blocks: {"messages": [{"role": "user", "content": blocks}]}),
        (
            "prompts/get",
            lambda blocks: {"messages": [{"role": "user", "content": block} for block in blocks]},
        ),
    ],
)
def test_relabels_links_and_embedded_resources(verb: str, wrap: Any) -> None:
    blocks = [LINK, EMBEDDED]
    if verb == "tools/call" or isinstance(wrap([1])["messages"][0]["content"], list):
        blocks += OTHERS  # type: ignore[arg-type]
    more = {"_meta": {"x": 1}, "structuredContent": {"uri": "a:shared"}}
    before = {**wrap(blocks), **more}
    after = json.loads(relabel(verb, json.dumps(before).encode()))
    blocks[0] = {**LINK, "uri": "interlock:one:a:shared"}
    blocks[1] = {
        "type": "resource",
        "resource": {"uri": "interlock:one:a:shared", "text": "a:shared"},
    }
    assert after == {**wrap(blocks), **more}


def test_relabels_contents_of_resource() -> None:
    before = b'{"contents":[{"uri":"a:shared","text":"x"},{"uri":"a:one"}],"n":1.50,"big":1e400}'
    after = relabel("resources/read", before)
    assert json.loads(after)["contents"] == [
        {"uri": "interlock:one:a:shared", "text": "x"},
        {"uri": "a:one"},
    ]
    # What is not about URIs is not even read.
    assert b"1.50" in after
    assert b"1e400" in after


@pytest.mark.parametrize(
    ("verb", "result"),
    [
        ("resources/read", b'{"contents":[{"uri":"a:one"}]}'),
        ("resources/read", b'{"contents":[]}'),
        ("resources/read", b'{"contents":{"uri":"a:shared"}}'),
        ("resources/read", b'{"contents":null,"uri":"a:shared"}'),
        ("tools/call", b'{"content":[{"type":"resource","resource":["uri"]}]}'),
        ("prompts/get", b'{"messages":[{"content":null},{"role":"uri"}],"x":"uri"}'),
        ("prompts/get", b'{"messages":[{"content":"uri"}],"uri":1}'),
        ("completion/complete", b'{"contents":[{"uri":"a:shared"}]}'),
        ("tools/call", b'{"contents":[{"uri":"a:shared"}]}'),
    ],
)
def test_keeps_result_without_shown_uris(verb: str, result: bytes) -> None:
    assert relabel(verb, result) is result


def test_keeps_uris_without_collision() -> None:
    result = b'{"contents":[{"uri":"a:three"}]}'
    assert relabel("resources/read", result, "three") is result
