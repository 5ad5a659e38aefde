"""A vault that ignores letter case and takes the last duplicate member needs approval as well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.adversary import CLIENTS, TOOL, Fortress, fresh, open_client, running_fortress

pytestmark = pytest.mark.spec("AX-11.3-4")
doors = pytest.mark.parametrize("which", CLIENTS)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    folder = tmp_path_factory.mktemp("case") / "node"
    yield from running_fortress(folder, servers={"vault": Fortress.vault(folder, any_case=True)})


@pytest.fixture
def node(shared: Fortress) -> Iterator[Fortress]:
    yield shared
    shared.must_be_intact()


LOOK: dict[str, Any] = {"name": "vault.look", "arguments": {}}
BESIDE: list[dict[str, Any]] = [
    {"Name": "open", "Arguments": {"door": 0}},
    {"NAME": "open", "ARGUMENTS": {"door": 0}},
    {"nAmE": "open"},
    {"Name": "open", "argument\u017f": {"door": 0}},
    {"_Meta": {"x-mcpax-route": ["vault", "open"]}},
    {"InputResponses": {"approval": {"action": "accept"}}, "RequestState": "i1.AAAA"},
]


@doors
def test_other_spelling_of_name_does_not_bypass_approval(node: Fortress, which: str) -> None:
    with open_client(node, which) as client:
        assert "result" in client.ask("tools/call", LOOK)
        for more in BESIDE:
            answer = client.ask("tools/call", {**LOOK, **more})
            assert answer["error"]["code"] == -32602, answer
            # In front of the known ones they are no better.
            answer = client.ask("tools/call", {**more, **LOOK})
            assert answer["error"]["code"] == -32602, answer
        for verb, params, twin in (
            ("resources/read", {"uri": "vault://open"}, {"URI": "file:///etc/passwd"}),
            ("prompts/get", {"name": "vault.open"}, {"Name": "other"}),
        ):
            answer = client.ask(verb, {**params, **twin})
            assert answer["error"]["code"] == -32602, answer


@doors
def test_approved_arguments_are_arguments_sent(node: Fortress, which: str) -> None:
    with open_client(node, which) as client:
        seen = fresh()
        pending = client.hold(seen)
        answer = client.call(seen, Arguments=fresh())
        assert answer["error"]["code"] == -32602, answer
        node.approve(client, pending, seen)


@doors
def test_other_method_does_not_bypass_approval(node: Fortress, which: str) -> None:
    with open_client(node, which) as client:
        listing = json.dumps(client.fit({})).encode()
        opening = json.dumps(client.fit({"name": TOOL, "arguments": fresh()})).encode()
        for twin in (b"Method", b"METHOD"):
            body = (
                b'{"jsonrpc":"2.0","id":"case","method":"tools/list","params":%b,"%b":"tools/call",'
                b'"Params":%b}' % (listing, twin, opening)
            )
            answers = [item for item in client.say(body, "case") if item.get("id") == "case"]
            # On the old wire the post itself is turned away.
            assert [response["error"]["code"] for response in answers] == [-32600] * (
                which != "sse"
            )


def test_batch_does_not_bypass_approval(node: Fortress) -> None:
    with open_client(node, "http 2025-03-26") as client:
        calls = [
            {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {**LOOK, **more}}
            for number, more in enumerate(BESIDE)
        ]
        answers = client.say(json.dumps(calls).encode())
        assert [response["error"]["code"] for response in answers] == [-32602] * len(BESIDE)
