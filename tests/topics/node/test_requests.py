"""Tests of requests of participants to the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.call import Caller, Credentials
from interlock.core.config.trust import RuleConfig
from interlock.core.pipeline.authentication import Authenticator, KnownToken, PendingIdentity
from interlock.errors import METHOD_NOT_FOUND, PAYLOAD_TOO_LARGE, TOO_BUSY, UNAUTHENTICATED
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES
from interlock.topics.requests import MAX_PENDING_REQUESTS
from tests.topics.node.node_topic import NODE_ID, TOPIC, NodeTopic

SEEN = {"content": [{"type": "text", "text": "seen"}]}


@pytest.mark.spec("MX-3-9", "MX-3.1.2-1")
async def test_call_uses_identity_of_sender(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada"), table.add_participant("bob")
    asked = ada.call("s.look", {"where": "there"}, rpc="a")
    exchange = await table.gated.reached()
    assert exchange.call.caller == Caller("ada")
    assert json.loads(bytes(exchange.call.arguments)) == {"where": "there"}
    exchange.answer(**SEEN)
    answer = await ada.answer(asked)
    assert answer["from"] == NODE_ID
    assert answer["to"] == ["ada"]
    assert answer["correlation_id"] == asked
    assert answer["kind"] == "mcp/response:tools/call:s.look"
    assert answer["payload"] == {"jsonrpc": "2.0", "id": "a", "result": SEEN}
    # Everybody sees what is done.
    await bob.until(lambda: bool(bob.list_responses(asked)))
    [row] = table.list_entries("tools/call")
    assert (row["caller"], row["face"], row["outcome"]) == ("ada", "topic", "ok")
    table.close()


async def test_rejects_unknown_caller(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada")
    table.gated.pipeline.admission.authenticate = Authenticator({"another": Caller("bob")})
    payload = await ada.read_payload(ada.call("s.look"))
    assert payload["error"]["code"] == UNAUTHENTICATED.code
    # The token of ada is that of another now: nobody speaks for whom it did not come in as.
    table.gated.pipeline.admission.authenticate = Authenticator({"token-of-ada": Caller("bob")})
    for method in ("tools/list", "initialize"):
        payload = await ada.read_payload(ada.request(method))
        assert payload["error"]["data"]["error"] == "unauthenticated"
        assert "Join the topic again" in payload["error"]["message"]
    assert table.gated.upstream.started == []
    table.close()


async def test_guest_cannot_call(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    guest = table.add_participant("guest-abcd", bearer=None)
    for asked in (guest.call("s.look", rpc=1), guest.request("tools/list", rpc=2)):
        assert (await guest.read_payload(asked))["error"]["code"] == UNAUTHENTICATED.code
    # Not even where everybody on this machine is its user.
    table.gated.pipeline.admission.authenticate = Authenticator({})
    guest.member.credentials = Credentials("local")
    payload = await guest.read_payload(guest.call("s.look", rpc=3))
    assert payload["error"]["code"] == UNAUTHENTICATED.code
    assert table.gated.upstream.started == []
    table.close()


async def test_node_members_cannot_call(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    inside, ada = (
        table.add_participant("recorder", name="ada", inside=True),
        table.add_participant("ada"),
    )
    said = [
        inside.call("s.look"),
        inside.request("tools/list", rpc=2),
        inside.propose("s.write_file", {"by": "the node itself"}),
    ]
    # What comes later is written down later.
    await ada.chat(ada.propose("s.write_file"))
    [approval] = table.gated.approvals.pending()
    assert approval.caller == Caller("ada")
    assert approval.arguments == b"{}"
    assert [inside.list_responses(one) for one in said] == [[], [], []]
    assert table.gated.upstream.started == []
    table.close()


async def test_node_describes_itself(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada")
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "ada", "version": "1"},
    }
    result = (await ada.read_payload(ada.request("initialize", params)))["result"]
    assert result["protocolVersion"] == "2025-06-18"
    assert result["serverInfo"]["name"] == "interlock"
    assert (await ada.read_payload(ada.request("ping")))["result"] == {}
    tools = (await ada.read_payload(ada.request("tools/list")))["result"]["tools"]
    assert len(tools) == 2
    assert [row["verb"] for row in table.journal.entries] == ["initialize", "tools/list"]
    table.close()


async def test_initialize_waits_for_authentication(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada")
    known = Authenticator({"token-of-ada": Caller("ada")})

    class Asks:
        """Knows nothing before it has asked somebody."""

        requires_token = True

        def find(self, bearer: str) -> KnownToken | None:
            async def settle() -> None:
                table.gated.pipeline.admission.authenticate = known

            raise PendingIdentity(settle)

    table.gated.pipeline.admission.authenticate = Authenticator({}, sources=[Asks()])
    payload = await ada.read_payload(ada.request("initialize"))
    assert payload["result"]["serverInfo"]["name"] == "interlock"
    table.close()


@pytest.mark.parametrize(
    "method",
    [
        "mcpax/confirm", "mcpax/tree", "mcpax/register", "tasks/get", "tasks/result",
        "completion/complete", "logging/setLevel", "resources/subscribe", "server/discover",
        "subscriptions/listen", "elicitation/create", "sampling/createMessage", "roots/list",
        "tools/List", "no/such",
    ],
)  # fmt: skip
async def test_rejects_other_methods(method: str, tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada")
    params = {"uri": "file:///notes.txt"} if method == "resources/subscribe" else None
    payload = await ada.read_payload(ada.request(method, params))
    assert payload["error"]["code"] == METHOD_NOT_FOUND.code
    assert table.journal.entries == []
    table.close()


@pytest.mark.parametrize("member", ["inputResponses", "requestState", "task", "other"])
async def test_rejects_extra_params_members(member: str, tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada")
    params = {"name": "s.look", "arguments": {}, member: {}}
    payload = await ada.read_payload(ada.request("tools/call", params))
    assert f"`{member}`" in payload["error"]["message"]
    assert table.gated.upstream.started == []
    table.close()


async def test_responds_to_broadcast_only_if_supported(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada")
    others = [
        ada.call("their_tool", to=(), rpc=1),
        ada.request("prompts/get", {"name": "theirs"}, to=(), rpc=2),
        ada.request("resources/read", {"uri": "file:///theirs"}, to=(), rpc=3),
        ada.request("tasks/get", to=(), rpc=4),
    ]
    failing = ada.call("s.look", to=(), rpc=5)
    (await table.gated.reached()).answer_error(-32000, "No.")
    seen = ada.call("s.look", to=(), rpc=6)
    (await table.gated.reached(2)).answer(**SEEN)
    listed = ada.request("tools/list", to=(), rpc=7)
    assert (await ada.read_payload(seen))["result"] == SEEN
    assert "tools" in (await ada.read_payload(listed))["result"]
    await table.run_until_idle()
    assert [ada.list_responses(one) for one in [*others, failing]] == [[], [], [], [], []]
    # What was for others did not become a failed call of this node.
    assert [row["name"] for row in table.list_entries("tools/call")] == ["s.look", "s.look"]
    table.close()


def false_kinds() -> list[tuple[str, Any]]:
    """Return kinds with payloads that do not match."""
    write = {"name": "s.write_file", "arguments": {}}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    raw = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}'
    look = "mcp/request:tools/call:s.look"
    return [
        (look, {**rpc, "params": write}),
        ("mcp/request:tools/list", {**rpc, "params": write}),
        ("mcp/request:tools/call:s__write_file", {**rpc, "params": write}),
        (look, {**rpc, "params": {"name": "s.look", "Name": "s.write_file"}}),
        (look, raw % b'{"name":"s.write_file","name":"s.look"}'),
        (look, raw % b'{"name":"s.look","arguments":{"a":1,"a":2}}'),
        (look, {**rpc, "Method": "tools/call", "params": {"name": "s.look"}}),
        (look, {**rpc, "params": {"name": ["s.look"]}}),
        (look, {**rpc, "params": ["s.look"]}),
        (look, {**rpc, "jsonrpc": "1.0", "params": {"name": "s.look"}}),
        (look, {"method": "tools/call", "params": {"name": "s.look"}}),
        (look, {"jsonrpc": "2.0", "id": 1, "result": {}}),
        (look, {}),
    ]


@pytest.mark.spec("MX-4.3-2", "MX-4.3-5", "MX-7-1")
@pytest.mark.parametrize(("kind", "payload"), false_kinds())
async def test_rejects_false_kind(kind: str, payload: Any, tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada")
    asked = ada.say(kind, payload)
    said = await ada.read_payload(asked)
    assert "error" in said
    # That it lied, and no call.
    assert {row["verb"] for row in table.journal.entries} == {"topics/say"}
    assert table.gated.upstream.started == []
    assert ada.member.rejected == 1
    ada.say(kind, payload, ())
    await ada.read_payload(ada.request("ping"))
    assert ada.member.rejected == 2
    table.close()


async def test_accepts_kind_without_context(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada")
    asked = ada.call("s.look", kind="mcp/request:tools/call")
    (await table.gated.reached()).answer(**SEEN)
    assert (await ada.answer(asked))["kind"] == "mcp/response:tools/call:s.look"
    table.close()


async def test_rejects_reused_id(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, eve = table.add_participant("ada"), table.add_participant("eve")
    asked = ada.request("ping", id="the-one")
    answer = await ada.answer(asked)
    for taken in ("the-one", answer["id"]):
        eve.call("s.look", id=taken)
        eve.propose("s.write_file", id=taken)
    await eve.read_payload(eve.request("ping"))
    assert eve.member.rejected == 4
    assert {row["verb"] for row in table.journal.entries} == {"topics/say"}
    assert len(ada.list_responses("the-one")) == 1
    # It is told, but not by anything that could be taken for an answer to ada.
    words = [one["payload"]["text"] for one in eve.list_messages("chat")]
    assert len(words) == 4
    assert all("needs a new id" in text for text in words)
    table.close()


async def test_only_sender_can_cancel(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, eve = table.add_participant("ada"), table.add_participant("eve")
    asked = ada.call("s.look", rpc=7)
    exchange = await table.gated.reached()
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
    for guest, id in ((eve, 7), (ada, 8), (ada, "7")):
        payload = {**cancelled, "params": {"requestId": id}}
        guest.say("mcp/request:notifications/cancelled", payload)
    await eve.read_payload(eve.request("ping"))
    assert exchange.is_open
    ada.say("mcp/request:notifications/cancelled", {**cancelled, "params": {"requestId": 7}})
    await ada.read_payload(ada.request("ping"))
    assert exchange.abandoned == ["ada cancelled the request."]
    assert ada.list_responses(asked) == []
    table.close()


async def test_disconnect_cancels_requests(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada"), table.add_participant("bob")
    ada.call("s.look")
    of_ada = await table.gated.reached(1)
    bob.call("s.look")
    of_bob = await table.gated.reached(2)
    table.gateway.leave(ada.member)
    await bob.read_payload(bob.request("ping", rpc=2))
    assert of_ada.abandoned == ["ada left the topic."]
    assert of_bob.is_open
    table.seat.close()
    assert of_bob.abandoned == ["The node left the topic."]
    assert table.gateway.find_member(TOPIC, NODE_ID) is None
    assert table.gated.rig.under_way == 0
    table.close()


async def test_new_connection_receives_response(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    older = table.add_participant("ada")
    asked = older.call("s.look")
    exchange = await table.gated.reached()
    newer = table.add_participant("ada")
    # A program that was started anew counts from the beginning.
    again = newer.call("s.look")
    second = await table.gated.reached(2)
    exchange.answer(**SEEN)
    assert (await newer.read_payload(asked))["result"] == SEEN
    second.answer(content=[])
    assert (await newer.read_payload(again))["result"] == {"content": []}
    table.close()


async def test_limits_requests_per_participant(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada"), table.add_participant("bob")
    table.gated.pipeline.admission.concurrent_calls = 1_000
    for number in range(MAX_PENDING_REQUESTS):
        ada.call("s.look", rpc=number)
    more = await ada.read_payload(ada.call("s.look", rpc=MAX_PENDING_REQUESTS))
    assert more["error"]["code"] == TOO_BUSY.code
    assert len(table.gated.upstream.started) == MAX_PENDING_REQUESTS
    bob.call("s.look")
    await table.gated.reached(MAX_PENDING_REQUESTS + 1)
    table.close()


async def test_progress_reaches_requester(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada")
    params = {"name": "s.look", "arguments": {}, "_meta": {"progressToken": "p"}}
    asked = ada.request("tools/call", params)
    exchange = await table.gated.reached()
    exchange.say("notifications/progress", b'{"progressToken":"p","progress":1}')
    exchange.say("notifications/message", b'{"level":"info","data":"x"}')
    exchange.answer(**SEEN)
    told = await ada.answer(asked)
    assert (told["kind"], told["to"]) == ("mcp/request:notifications/progress", ["ada"])
    assert told["payload"]["params"] == {"progressToken": "p", "progress": 1}
    assert (await ada.answer(asked, 2))["kind"].startswith("mcp/response:")
    table.close()


async def test_too_long_response_becomes_error(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada")
    asked = ada.call("s.look")
    text = "x" * MAX_ENVELOPE_BYTES
    (await table.gated.reached()).answer(content=[{"type": "text", "text": text}])
    payload = await ada.read_payload(asked)
    assert payload["error"]["code"] == PAYLOAD_TOO_LARGE.code
    assert "it was executed" in payload["error"]["message"]
    table.close()


async def test_pending_request_can_be_collected_after_approval(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, rules=[RuleConfig("look first", "confirm", tools=["s.write_file"])])
    ada = table.add_participant("ada")
    held = (await ada.read_payload(ada.call("s.write_file", {"path": "a"})))["result"]
    assert held["structuredContent"]["status"] == "confirmation_required"
    approval = table.gated.approvals.find(held["structuredContent"]["confirmation_id"])
    assert approval is not None
    assert approval.proposal is None
    await table.gated.confirm(approval)
    collected = await ada.read_payload(ada.call("s.write_file", {"path": "a"}, rpc=2))
    assert collected["result"]["content"][0] == {"type": "text", "text": "wiped"}
    assert len(table.gated.upstream.started) == 1
    table.close()


@given(
    rpc=st.one_of(st.integers(-(10**40), 10**40), st.text(max_size=20)),
    arguments=st.dictionaries(
        st.text(max_size=8), st.one_of(st.text(max_size=8), st.integers(-9, 9), st.none())
    ),
    text=st.text(max_size=20),
)
@settings(max_examples=40, deadline=None)
async def test_keeps_ids_arguments_and_results(
    rpc: int | str, arguments: dict[str, Any], text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = NodeTopic(tmp_path_factory.mktemp("table"))
    ada = table.add_participant("ada")
    asked = ada.call("s.look", arguments, rpc=rpc)
    exchange = await table.gated.reached()
    assert json.loads(bytes(exchange.call.arguments)) == arguments
    exchange.answer(content=[{"type": "text", "text": text}])
    answer = await ada.read_payload(asked)
    assert answer["id"] == rpc
    assert type(answer["id"]) is type(rpc)
    assert answer["result"] == {"content": [{"type": "text", "text": text}]}
    table.close()
