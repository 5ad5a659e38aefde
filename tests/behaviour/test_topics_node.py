"""The node in a topic: real processes, sockets and tools, and an operator who decides."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OKPKey

from tests.behaviour.topic_office import (
    NODE,
    PRESS,
    TOPIC,
    Office,
    propose_press,
    receive_fulfilment,
    rpc,
    token,
)
from tests.behaviour.topic_rooms import is_now
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("topics")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def office(world: CommandLine) -> Office:
    return Office(world)


@pytest.mark.spec("MX-9.4-1", "MX-7.1-3")
def test_approval_at_terminal_fulfils_proposal(office: Office) -> None:
    phrase = office.world.cwd / "phrase"
    phrase.write_text("open sesame\n", encoding="utf-8")
    # The config names an operator, so that one confirms who enrols.
    clerk = office.world.cwd / "clerk-private.pem"
    clerk.write_bytes(office.key.as_pem(private=True))
    clerk.chmod(0o600)
    outcome = office.world.run(
        "keys", "new", "chief", "--passphrase-file", "phrase", "--by", str(clerk)
    )
    assert outcome.returncode == 0, outcome.stderr

    async def run() -> None:
        async with office.everybody() as peers:
            proposal, shown = await propose_press(office, peers)
            words = f"in the topic {TOPIC} by proposer. All participants see the outcome"
            listed = await asyncio.to_thread(office.world.run, "approvals")
            assert f"called by proposer, proposed {words}" in listed.stdout
            approve = ("approve", "--yes", "--key", "chief", "--passphrase-file", "phrase")
            result = await asyncio.to_thread(office.world.run, *approve, "--", shown["id"])
            assert result.returncode == 0, result.stderr
            fulfilment, response = await receive_fulfilment(peers, proposal)
            assert (fulfilment["from"], fulfilment["to"]) == (NODE, [NODE])
            params = fulfilment["payload"]["params"]
            assert (params["name"], params["arguments"]) == (PRESS["name"], PRESS["arguments"])
            assert params["_meta"]["interlock/approval"]["by"] == "chief"
            assert response["to"] == [NODE, "proposer"]
            assert response["payload"]["id"] == fulfilment["payload"]["id"]
            assert response["payload"]["result"]["content"][0]["text"] == "press: done"
            assert office.pressed() == [["press", {"button": "red"}]]
            assert office.waiting() == []

    asyncio.run(run())
    rows = [row for row in office.journal() if row["verb"] == "proposal"]
    assert [row["outcome"] for row in rows] == ["proposed", "fulfilled", "done"]
    assert "by chief" in rows[1]["detail"]


async def test_approval_page_fulfils_proposal(
    office: Office,
) -> None:
    async with office.everybody() as peers:
        proposal, shown = await propose_press(office, peers)
        path = f"/approvals/{shown['id']}"
        own = OKPKey.generate_key("Ed25519")
        # Whoever proposed it has a token, and may say what it likes.
        for body in (
            {"proof": office.proof(shown, own)},
            {"proof": token("proposer")},
            {"decision": "approve"},
            {"decision": "refuse"},
        ):
            code, _ = await asyncio.to_thread(office.ask, path, body, token("proposer"))
            assert code >= 400
        assert office.pressed() == []
        code, _ = await asyncio.to_thread(office.ask, path, {"proof": office.proof(shown)})
        assert code == 200
        fulfilment, response = await receive_fulfilment(peers, proposal)
        approved = fulfilment["payload"]["params"]["_meta"]["interlock/approval"]
        assert approved == {"by": "clerk", "proof": "operator"}
        assert response["correlation_id"] == fulfilment["id"]
        assert office.pressed() == [["press", {"button": "red"}]]


def test_proposal_survives_restart(office: Office) -> None:
    async def before() -> tuple[str, dict[str, Any]]:
        async with office.everybody() as peers:
            return await propose_press(office, peers)

    async def after() -> None:
        async with office.everybody() as peers:
            [same] = await asyncio.to_thread(office.waiting)
            assert same["proposal"]["id"] == proposal
            path = f"/approvals/{shown['id']}"
            code, _ = await asyncio.to_thread(office.ask, path, {"proof": office.proof(shown)})
            assert code == 200
            fulfilment, response = await receive_fulfilment(peers, proposal)
            assert fulfilment["payload"]["params"]["arguments"] == PRESS["arguments"]
            assert response["payload"]["result"]["content"][0]["text"] == "press: done"

    proposal, shown = asyncio.run(before())
    office.node.end(signal.SIGKILL)
    office.start()
    asyncio.run(after())
    assert office.pressed() == [["press", {"button": "red"}]]


def test_result_survives_reconnect_of_node(world: CommandLine, tmp_path: Path) -> None:
    """The config changes while what a human let through is under way."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    office = Office(world, pipe=pipe)

    async def run() -> None:
        async with office.everybody() as peers:
            proposal, shown = await propose_press(office, peers)
            path = f"/approvals/{shown['id']}"
            approving = asyncio.create_task(
                asyncio.to_thread(office.ask, path, {"proof": office.proof(shown)})
            )
            human = peers["human"]
            request = await human.until(lambda one: one.get("correlation_id") == proposal)
            while request["kind"] == "chat":
                request = await human.until(lambda one: one.get("correlation_id") == proposal)
            office.configure(record="heads")
            for event in ("leave", "join"):
                await human.until(
                    lambda one, event=event: (
                        one["payload"].get("event") == event
                        and one["payload"]["participant"]["id"] == NODE
                    )
                )
            await asyncio.to_thread(pipe.write_bytes, b"")
            response = await human.until(lambda one: one.get("correlation_id") == request["id"])
            assert response["payload"]["result"]["content"][0]["text"] == "press: done"
            assert (await approving)[0] == 200

    asyncio.run(run())
    assert office.pressed() == [["press", {"button": "red"}]]


async def test_rejection_reaches_proposer(office: Office) -> None:
    async with office.everybody() as peers:
        proposal, shown = await propose_press(office, peers)
        refuse = ("reject", "--reason", "not on a Friday", "--", shown["id"])
        result = await asyncio.to_thread(office.world.run, *refuse)
        assert result.returncode == 0, result.stderr
        word = await peers["proposer"].until(lambda one: one.get("correlation_id") == proposal)
        assert (word["kind"], word["to"]) == ("chat", ["proposer"])
        assert "not on a Friday" in word["payload"]["text"]
        assert office.pressed() == []


async def test_request_to_node_uses_permissions_of_sender(office: Office) -> None:
    async with office.everybody() as peers:
        human, orchestrator = peers["human"], peers["orchestrator"]
        request = await human.say("mcp/request:tools/list", rpc("tools/list", {}), to=[NODE])
        answer = await human.until(lambda one: one.get("correlation_id") == request)
        assert answer["kind"] == "mcp/response:tools/list"
        listing = {tool["name"] for tool in answer["payload"]["result"]["tools"]}
        assert listing == {"ledger.look", "ledger.note", "ledger.press"}
        look = rpc("tools/call", {"name": "ledger.look", "arguments": {}}, 7)
        request = await orchestrator.say("mcp/request:tools/call:ledger.look", look, to=[NODE])
        answer = await orchestrator.until(lambda one: one.get("correlation_id") == request)
        assert answer["payload"]["result"]["content"][0]["text"] == "look: done"
        # What cannot be undone waits for a human on this face as on every other.
        request = await orchestrator.say(
            "mcp/request:tools/call:ledger.press", rpc("tools/call", PRESS, 8), to=[NODE]
        )
        answer = await orchestrator.until(lambda one: one.get("correlation_id") == request)
        held = answer["payload"]["result"]["structuredContent"]
        assert held["status"] == "confirmation_required"
        # And a message is no proof.
        confirm = {"confirmation_id": held["confirmation_id"], "proof": "yes"}
        request = await orchestrator.say(
            "mcp/request:mcpax/confirm", rpc("mcpax/confirm", confirm, 9), to=[NODE]
        )
        answer = await orchestrator.until(lambda one: one.get("correlation_id") == request)
        assert answer["payload"]["error"]["code"] == -32601
        assert office.pressed() == []


@pytest.mark.spec("MX-3-16")
async def test_node_messages_have_timestamp(office: Office) -> None:
    async with office.everybody() as peers:
        request = await peers["human"].say(
            "mcp/request:tools/list", rpc("tools/list", {}), to=[NODE]
        )
        proposal, shown = await propose_press(office, peers)
        answer = await peers["worker"].until(lambda one: one.get("correlation_id") == request)
        word = await peers["worker"].until(lambda one: one.get("correlation_id") == proposal)
        path = f"/approvals/{shown['id']}"
        await asyncio.to_thread(office.ask, path, {"proof": office.proof(shown)})
        fulfilment, response = await receive_fulfilment(peers, proposal)
        assert (answer["kind"], word["kind"]) == ("mcp/response:tools/list", "chat")
        for said in (answer, word, fulfilment, response):
            assert said["from"] == NODE
            assert is_now(said["ts"])


def test_topic_is_journaled_only_if_configured(world: CommandLine) -> None:
    office = Office(world, record="heads")

    async def run() -> None:
        async with office.everybody() as peers:
            others = [
                participant["id"]
                for participant in peers["human"].welcome["payload"]["participants"]
            ]
            assert {NODE, "recorder"} <= set(others)
            await peers["human"].chat("the words are not kept", to=["worker"])
            await peers["worker"].until("chat")

    asyncio.run(run())

    rows = [row for row in office.journal() if row["outcome"] == "sent"]
    assert ("human", "chat", TOPIC) in [(row["caller"], row["verb"], row["name"]) for row in rows]
    assert "join human" in " ".join(row["detail"] for row in rows)
    assert "the words are not kept" not in json.dumps(rows)
