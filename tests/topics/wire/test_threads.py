"""Tests of message threads and of responses to requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from interlock.protocol.mcpx_terms import GATEWAY
from interlock.topics.wire.envelope import Envelope, EnvelopeHeader
from interlock.topics.wire.payloads import (
    Chat,
    Content,
    Problem,
    ProposalPayload,
    Request,
    Response,
)
from interlock.topics.wire.threads import MessageThreads, decode_id

CALL = "mcp/request:tools/call:write"
ANSWER = "mcp/response:tools/call:write"


def make_header(
    id: str,
    kind: str = "chat",
    sender: str = "a",
    to: tuple[str, ...] = (),
    correlation_id: str | None = None,
) -> EnvelopeHeader:
    return EnvelopeHeader(id, kind, sender, to, correlation_id)


def record_message(threads: MessageThreads, head: EnvelopeHeader, content: Content) -> str:
    return threads.record(Envelope(head, Raw(b"{}")), content)


def record_request(
    threads: MessageThreads, to: tuple[str, ...] = ("b",), **more: str | None
) -> None:
    assert not record_message(
        threads,
        make_header("ask", CALL, to=to, **more),  # type: ignore[arg-type]
        Request(Raw(b"42"), "tools/call", "write"),
    )


def make_response(
    id: bytes = b"42", method: str = "tools/call", context: str = "write"
) -> Response:
    return Response(Raw(id), method, context, Raw(b"{}"))


def test_response_matches_request() -> None:
    threads = MessageThreads()
    record_request(threads)
    assert (
        threads.matches_request(
            make_header("r", ANSWER, "b", correlation_id="ask"), make_response()
        )
        is True
    )


@pytest.mark.spec("MX-3.1.2-5")
@pytest.mark.parametrize(
    ("sender", "answer"),
    [
        ("b", make_response(context="read")),
        ("b", make_response(context="")),
        ("b", make_response(method="tools/list")),
        ("b", make_response(b"43")),
        ("b", make_response(b'"42"')),
        ("c", make_response()),
    ],
    ids=["context", "no-context", "method", "id", "id-as-text", "other-sender"],
)
def test_mismatched_response_does_not_match(sender: str, answer: Response) -> None:
    threads = MessageThreads()
    record_request(threads)
    assert (
        threads.matches_request(make_header("r", ANSWER, sender, correlation_id="ask"), answer)
        is False
    )


@pytest.mark.spec("MX-3.1.2-5", "MX-4.3-6")
def test_response_to_unknown_request_is_undecided() -> None:
    threads = MessageThreads()
    assert (
        threads.matches_request(
            make_header("r", ANSWER, "b", correlation_id="ask"), make_response()
        )
        is None
    )


def test_response_to_other_message_does_not_match() -> None:
    threads = MessageThreads()
    record_message(threads, make_header("words"), Chat("hello"))
    assert (
        threads.matches_request(
            make_header("r", ANSWER, "b", correlation_id="words"), make_response()
        )
        is False
    )
    assert threads.matches_request(make_header("r", ANSWER, "b"), make_response()) is False


def test_every_participant_may_respond_to_broadcast() -> None:
    threads = MessageThreads()
    record_request(threads, to=())
    for sender in ("b", "c"):
        assert threads.matches_request(
            make_header("r", ANSWER, sender, correlation_id="ask"), make_response()
        )


def test_response_may_omit_context_of_request() -> None:
    threads = MessageThreads()
    record_message(
        threads,
        make_header("ask", "mcp/request:tools/call"),
        Request(Raw(b"42"), "tools/call", "write"),
    )
    for context in ("", "write"):
        answer = make_response(context=context)
        assert threads.matches_request(make_header("r", ANSWER, "b", correlation_id="ask"), answer)
    assert not threads.matches_request(
        make_header("r", ANSWER, "b", correlation_id="ask"), make_response(context="x")
    )


def test_compares_ids_by_value() -> None:
    assert decode_id(b'"a"') == decode_id(b'"\\u0061"')
    assert decode_id(b"1") != decode_id(b'"1"')
    assert decode_id(b"9" * 5000) == b"9" * 5000


def test_rejects_reused_id() -> None:
    threads = MessageThreads()
    record_request(threads)
    why = record_message(threads, make_header("ask", sender="thief"), Chat("mine now"))
    assert "used before" in why
    assert "'a'" in why
    assert threads.find_request("ask") is not None
    # A gateway is not accused of anything.
    assert not record_message(threads, make_header("ask", "system/error", GATEWAY), Problem("x"))


@pytest.mark.spec("MX-3-8", "MX-3.2.1-4")
def test_finds_request_and_proposal_of_thread() -> None:
    threads = MessageThreads()
    record_message(threads, make_header("other"), Chat("hello"))
    record_message(
        threads,
        make_header("proposal", "mcp/proposal:tools/call:write"),
        ProposalPayload("tools/call", "write"),
    )
    record_message(
        threads,
        make_header("fulfilment", CALL, "human", ("b",), "proposal"),
        Request(Raw(b"44"), "tools/call", "write"),
    )
    record_message(
        threads, make_header("error", "system/error", GATEWAY, (), "fulfilment"), Problem("x")
    )
    record_message(
        threads, make_header("response", ANSWER, "b", (), "fulfilment"), make_response(b"44")
    )
    record_message(threads, make_header("thanks", "chat", "a", (), "response"), Chat("Thanks."))
    whole = ("proposal", "fulfilment", "error", "response", "thanks")
    for one in whole:
        assert threads.find_thread(one) == whole
    assert threads.find_thread("other") == ("other",)
    assert threads.find_thread("never") == ()
    found = threads.find_proposal("proposal")
    assert found is not None
    assert found.head.sender == "a"
    assert threads.find_proposal("fulfilment") is None
    assert threads.find_request("proposal") is None


def test_circular_references_end() -> None:
    threads = MessageThreads()
    record_message(threads, make_header("one", correlation_id="two"), Chat("?"))
    record_message(threads, make_header("two", correlation_id="one"), Chat("!"))
    record_message(threads, make_header("self", correlation_id="self"), Chat("I"))
    assert set(threads.find_thread("one")) == {"one", "two"}
    assert threads.find_thread("self") == ("self",)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 400)), max_size=80))
def test_limits_memory(messages: list[tuple[int, int]]) -> None:
    threads = MessageThreads(max_messages=10, max_bytes=5_000)
    kept: list[str] = []
    for number, size in messages:
        one = make_header(f"e{number}", to=("x" * size,))
        why = record_message(threads, one, Chat(""))
        assert bool(why) == (one.id in kept)
        if not why:
            kept.append(one.id)
        kept = [id for id in kept if threads.find_thread(id)]
        assert len(threads) == len(kept) <= 10
        if not why:
            # What came last stays, and everything that is gone is older than what is left.
            assert kept[-1] == one.id


@pytest.mark.parametrize(
    "long",
    [
        (make_header("{}", kind="k" * 1_000), Chat("")),
        (make_header("{}", sender="s" * 1_000), Chat("")),
        (make_header("{}", to=("t" * 100,) * 10), Chat("")),
        (make_header("{}", correlation_id="c" * 1_000), Chat("")),
        (make_header("{}"), Request(Raw(b'"%b"' % (b"i" * 1_000)), "tools/call", "write")),
        (make_header("{}"), Request(Raw(b"1"), "tools/call", "w" * 1_000)),
        (make_header("{}"), ProposalPayload("tools/call", "w" * 1_000)),
    ],
    ids=["kind", "sender", "to", "correlation", "request id", "context", "proposed context"],
)
def test_evicts_long_messages_sooner(long: tuple[EnvelopeHeader, Content]) -> None:
    threads = MessageThreads(max_messages=1_000, max_bytes=20_000)
    named, content = long
    for number in range(200):
        assert not record_message(threads, replace(named, id=f"{number}"), content)
    assert 10 <= len(threads) <= 20
    # The room that they took is there for others again.
    for number in range(200, 300):
        assert not record_message(threads, make_header(f"{number}"), Chat(""))
    assert 80 <= len(threads) <= 100
