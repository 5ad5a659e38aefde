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


def head(
    id: str,
    kind: str = "chat",
    sender: str = "a",
    to: tuple[str, ...] = (),
    correlation_id: str | None = None,
) -> EnvelopeHeader:
    return EnvelopeHeader(id, kind, sender, to, correlation_id)


def saw(threads: MessageThreads, head: EnvelopeHeader, content: Content) -> str:
    return threads.record(Envelope(head, Raw(b"{}")), content)


def asked(threads: MessageThreads, to: tuple[str, ...] = ("b",), **more: str | None) -> None:
    assert not saw(
        threads,
        head("ask", CALL, to=to, **more),  # type: ignore[arg-type]
        Request(Raw(b"42"), "tools/call", "write"),
    )


def response(id: bytes = b"42", method: str = "tools/call", context: str = "write") -> Response:
    return Response(Raw(id), method, context, Raw(b"{}"))


def test_response_matches_request() -> None:
    threads = MessageThreads()
    asked(threads)
    assert threads.matches_request(head("r", ANSWER, "b", correlation_id="ask"), response()) is True


@pytest.mark.spec("MX-3.1.2-5")
@pytest.mark.parametrize(
    ("sender", "answer"),
    [
        ("b", response(context="read")),
        ("b", response(context="")),
        ("b", response(method="tools/list")),
        ("b", response(b"43")),
        ("b", response(b'"42"')),
        ("c", response()),
    ],
    ids=["context", "no-context", "method", "id", "id-as-text", "somebody-else"],
)
def test_mismatched_response_does_not_match(sender: str, answer: Response) -> None:
    threads = MessageThreads()
    asked(threads)
    assert threads.matches_request(head("r", ANSWER, sender, correlation_id="ask"), answer) is False


@pytest.mark.spec("MX-3.1.2-5", "MX-4.3-6")
def test_response_to_unknown_request_is_undecided() -> None:
    threads = MessageThreads()
    assert threads.matches_request(head("r", ANSWER, "b", correlation_id="ask"), response()) is None


def test_response_to_other_message_does_not_match() -> None:
    threads = MessageThreads()
    saw(threads, head("words"), Chat("hello"))
    assert (
        threads.matches_request(head("r", ANSWER, "b", correlation_id="words"), response()) is False
    )
    assert threads.matches_request(head("r", ANSWER, "b"), response()) is False


def test_every_participant_may_respond_to_broadcast() -> None:
    threads = MessageThreads()
    asked(threads, to=())
    for sender in ("b", "c"):
        assert threads.matches_request(head("r", ANSWER, sender, correlation_id="ask"), response())


def test_response_may_omit_context_of_request() -> None:
    threads = MessageThreads()
    saw(threads, head("ask", "mcp/request:tools/call"), Request(Raw(b"42"), "tools/call", "write"))
    for context in ("", "write"):
        answer = response(context=context)
        assert threads.matches_request(head("r", ANSWER, "b", correlation_id="ask"), answer)
    assert not threads.matches_request(
        head("r", ANSWER, "b", correlation_id="ask"), response(context="x")
    )


def test_compares_ids_by_value() -> None:
    assert decode_id(b'"a"') == decode_id(b'"\\u0061"')
    assert decode_id(b"1") != decode_id(b'"1"')
    assert decode_id(b"9" * 5000) == b"9" * 5000


def test_rejects_reused_id() -> None:
    threads = MessageThreads()
    asked(threads)
    why = saw(threads, head("ask", sender="thief"), Chat("mine now"))
    assert "used before" in why
    assert "'a'" in why
    assert threads.find_request("ask") is not None
    # A gateway is not accused of anything.
    assert not saw(threads, head("ask", "system/error", GATEWAY), Problem("x"))


@pytest.mark.spec("MX-3-8", "MX-3.2.1-4")
def test_finds_request_and_proposal_of_thread() -> None:
    threads = MessageThreads()
    saw(threads, head("other"), Chat("hello"))
    saw(
        threads,
        head("proposal", "mcp/proposal:tools/call:write"),
        ProposalPayload("tools/call", "write"),
    )
    saw(
        threads,
        head("fulfilment", CALL, "human", ("b",), "proposal"),
        Request(Raw(b"44"), "tools/call", "write"),
    )
    saw(threads, head("error", "system/error", GATEWAY, (), "fulfilment"), Problem("x"))
    saw(threads, head("response", ANSWER, "b", (), "fulfilment"), response(b"44"))
    saw(threads, head("thanks", "chat", "a", (), "response"), Chat("Thanks."))
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
    saw(threads, head("one", correlation_id="two"), Chat("?"))
    saw(threads, head("two", correlation_id="one"), Chat("!"))
    saw(threads, head("self", correlation_id="self"), Chat("I"))
    assert set(threads.find_thread("one")) == {"one", "two"}
    assert threads.find_thread("self") == ("self",)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 400)), max_size=80))
def test_limits_memory(messages: list[tuple[int, int]]) -> None:
    threads = MessageThreads(max_messages=10, max_bytes=5_000)
    kept: list[str] = []
    for number, size in messages:
        one = head(f"e{number}", to=("x" * size,))
        why = saw(threads, one, Chat(""))
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
        (head("{}", kind="k" * 1_000), Chat("")),
        (head("{}", sender="s" * 1_000), Chat("")),
        (head("{}", to=("t" * 100,) * 10), Chat("")),
        (head("{}", correlation_id="c" * 1_000), Chat("")),
        (head("{}"), Request(Raw(b'"%b"' % (b"i" * 1_000)), "tools/call", "write")),
        (head("{}"), Request(Raw(b"1"), "tools/call", "w" * 1_000)),
        (head("{}"), ProposalPayload("tools/call", "w" * 1_000)),
    ],
    ids=["kind", "sender", "to", "correlation", "request id", "context", "proposed context"],
)
def test_evicts_long_messages_sooner(long: tuple[EnvelopeHeader, Content]) -> None:
    threads = MessageThreads(max_messages=1_000, max_bytes=20_000)
    named, content = long
    for number in range(200):
        assert not saw(threads, replace(named, id=f"{number}"), content)
    assert 10 <= len(threads) <= 20
    # The room that they took is there for others again.
    for number in range(200, 300):
        assert not saw(threads, head(f"{number}"), Chat(""))
    assert 80 <= len(threads) <= 100
