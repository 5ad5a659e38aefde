"""Tests of pending requests to one or to all participants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Raw

from interlock.topics.client.pending_requests import TopicRequest, TopicRequests
from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import Request, Response
from interlock.topics.wire.threads import summarize_message
from tests.topics.client.offline_membership import OfflineMembership
from tests.topics.client.test_responder import wait_until_idle

LIST = "mcp/request:tools/list"


def add_request(pending: TopicRequests, *of: str, all: bool) -> TopicRequest:
    head = EnvelopeHeader("ask", LIST, "me", () if all else of)
    return pending.add(
        summarize_message(head, Request(Raw(b"1"), "tools/list")), of, wait_for_all=all
    )


def answer(pending: TopicRequests, sender: str, result: str, number: bytes = b"1") -> bool:
    head = EnvelopeHeader(f"by-{sender}", "mcp/response:tools/list", sender, ("me",), "ask")
    return pending.handle_response(
        head, Response(Raw(number), "tools/list", "", Raw(result.encode()))
    )


def run(test: Callable[[TopicRequests], None]) -> None:
    async def main() -> None:
        test(TopicRequests())

    asyncio.run(main())


def test_request_to_all_waits_for_every_response() -> None:
    def test(pending: TopicRequests) -> None:
        asked = add_request(pending, "a", "b", "c", all=True)
        assert answer(pending, "a", "1")
        assert answer(pending, "b", "2")
        assert not asked.done.done()
        # It has left, and nobody else is missing.
        pending.on_leave("c")
        assert asked.done.done()
        assert (asked.responses, asked.error) == ({"a": 1, "b": 2}, None)

    run(test)


def test_ignores_second_response() -> None:
    def test(pending: TopicRequests) -> None:
        asked = add_request(pending, "a", "b", all=True)
        assert answer(pending, "a", "1")
        assert not answer(pending, "a", "99")
        assert not answer(pending, "b", "2", number=b"7")
        assert asked.responses == {"a": 1}
        assert not asked.done.done()

    run(test)


def test_request_to_one_takes_first_response() -> None:
    def test(pending: TopicRequests) -> None:
        asked = add_request(pending, "a", "b", all=False)
        assert not answer(pending, "stranger", "0")
        assert not asked.done.done()
        assert answer(pending, "b", "2")
        assert asked.done.done()
        assert asked.responses == {"b": 2}

    run(test)


def test_requesting_proposer_gets_one_response() -> None:
    alone = OfflineMembership()

    async def work() -> str:
        return "done"

    alone.tools.add_tool(work, "work", None, None, {})

    async def main() -> None:
        proposal = alone.propose("a", "work", to=["me"])
        alone.request("a", "tools/call", {"name": "work"}, correlation_id=proposal)
        await wait_until_idle(alone)

    asyncio.run(main())
    assert [said["to"] for said in alone.said] == [["a"]]


def test_first_response_wins() -> None:
    def test(pending: TopicRequests) -> None:
        asked = add_request(pending, "a", "b", all=False)
        assert answer(pending, "a", "1")
        # Before whoever waits has had its turn.
        assert not answer(pending, "b", "2")
        assert asked.responses == {"a": 1}

    run(test)
