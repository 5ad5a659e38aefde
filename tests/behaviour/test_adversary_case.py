"""A vault that does not tell upper from lower case, and takes the last. It stays shut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.adversary import FACES, TOOL, Fortress, door, fresh, standing

pytestmark = pytest.mark.spec("AX-11.3-4")
doors = pytest.mark.parametrize("which", FACES)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    folder = tmp_path_factory.mktemp("case") / "node"
    yield from standing(folder, servers={"vault": Fortress.vault(folder, any_case=True)})


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
def test_no_second_name_opens_it(node: Fortress, which: str) -> None:
    with door(node, which) as face:
        assert "result" in face.ask("tools/call", LOOK)
        for more in BESIDE:
            answer = face.ask("tools/call", {**LOOK, **more})
            assert answer["error"]["code"] == -32602, answer
            # In front of the known ones they are no better.
            answer = face.ask("tools/call", {**more, **LOOK})
            assert answer["error"]["code"] == -32602, answer
        for verb, params, twin in (
            ("resources/read", {"uri": "vault://open"}, {"URI": "file:///etc/passwd"}),
            ("prompts/get", {"name": "vault.open"}, {"Name": "other"}),
        ):
            answer = face.ask(verb, {**params, **twin})
            assert answer["error"]["code"] == -32602, answer


@doors
def test_what_was_approved_is_what_is_read(node: Fortress, which: str) -> None:
    with door(node, which) as face:
        seen = fresh()
        told = face.hold(seen)
        answer = face.call(seen, Arguments=fresh())
        assert answer["error"]["code"] == -32602, answer
        node.approve(face, told, seen)


@doors
def test_no_second_method_opens_it(node: Fortress, which: str) -> None:
    with door(node, which) as face:
        listing = json.dumps(face.fit({})).encode()
        opening = json.dumps(face.fit({"name": TOOL, "arguments": fresh()})).encode()
        for twin in (b"Method", b"METHOD"):
            body = (
                b'{"jsonrpc":"2.0","id":"case","method":"tools/list","params":%b,"%b":"tools/call",'
                b'"Params":%b}' % (listing, twin, opening)
            )
            answers = [one for one in face.say(body, "case") if one.get("id") == "case"]
            # On the old wire the post itself is turned away.
            assert [one["error"]["code"] for one in answers] == [-32600] * (which != "sse")


def test_no_batch_opens_it(node: Fortress) -> None:
    with door(node, "http 2025-03-26") as face:
        calls = [
            {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {**LOOK, **more}}
            for number, more in enumerate(BESIDE)
        ]
        answers = face.say(json.dumps(calls).encode())
        assert [one["error"]["code"] for one in answers] == [-32602] * len(BESIDE)
