"""Tests of the states of proposals, of fulfilments and of limits."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import ProposalPayload, Request
from interlock.topics.wire.proposals import (
    LIFETIME_SECONDS,
    Proposals,
    Status,
    TrackedProposal,
    Transition,
    _estimate_bytes,
    is_proposal_outcome,
    is_same_call,
)

PARAMS = Raw(b'{"name":"write","arguments":{"path":"a"}}')


def stamp(seconds: float) -> str:
    return f"T+{seconds:g}"


def proposals(**more: Any) -> Proposals:
    return Proposals(stamp=stamp, **more)


def record_proposal(
    kept: Proposals,
    id: str = "p",
    by: str = "agent",
    to: tuple[str, ...] = ("target",),
    now: float = 0.0,
) -> TrackedProposal:
    head = EnvelopeHeader(id, "mcp/proposal:tools/call:write", by, to)
    return kept.record(head, ProposalPayload("tools/call", "write", PARAMS), now)


def record_fulfilment(
    kept: Proposals,
    by: str = "human",
    *,
    id: str = "f",
    to: tuple[str, ...] = ("target",),
    context: str = "write",
    params: Raw = PARAMS,
) -> TrackedProposal | None:
    head = EnvelopeHeader(id, "mcp/request:tools/call:" + context, by, to, "p")
    return kept.add_fulfilment(head, Request(Raw(b"44"), "tools/call", context, params))


@pytest.mark.spec("MX-10.2-1", "MX-10.2-2")
def test_records_proposal() -> None:
    tracked = record_proposal(proposals(), now=100.0)
    shown = json.loads(msgspec.json.encode(tracked))
    sample = {
        "proposalId": "p",
        "proposer": "agent",
        "target": "target",
        "method": "tools/call",
        "params": {"name": "write", "arguments": {"path": "a"}},
        "status": "pending",
        "createdAt": "T+100",
        "expiresAt": "T+400",
    }
    assert {name: shown[name] for name in sample} == sample
    assert LIFETIME_SECONDS == 300.0


@pytest.mark.spec("MX-10.2-3")
def test_follows_state_table() -> None:
    def in_state(status: Status) -> Proposals:
        kept = proposals()
        record_proposal(kept)
        if status == "fulfilled":
            record_fulfilment(kept, "first", id="f0")
        elif status == "rejected":
            kept.reject("p", "no")
        elif status == "expired":
            kept.expire(1_000.0)
        assert kept.all["p"].status == status
        return kept

    def make(kept: Proposals, move: Transition) -> None:
        if move == "fulfil":
            record_fulfilment(kept)
        elif move == "reject":
            kept.reject("p", "no")
        elif move == "withdraw":
            kept.withdraw_fulfilment("p", "f0")
        else:
            kept.expire(1_000.0)

    table: dict[tuple[Status, Transition], Status] = {
        ("pending", "fulfil"): "fulfilled",
        ("pending", "reject"): "rejected",
        ("pending", "expire"): "expired",
        # A fulfilment that was seen was seen, whatever was thought of the proposal.
        ("rejected", "fulfil"): "fulfilled",
        ("expired", "fulfil"): "fulfilled",
        # Unless whoever was asked says that it was not made.
        ("fulfilled", "withdraw"): "pending",
        # And everything else stays as it is.
        ("pending", "withdraw"): "pending",
        ("rejected", "withdraw"): "rejected",
        ("expired", "withdraw"): "expired",
        ("fulfilled", "fulfil"): "fulfilled",
        ("fulfilled", "reject"): "fulfilled",
        ("fulfilled", "expire"): "fulfilled",
        ("rejected", "reject"): "rejected",
        ("rejected", "expire"): "rejected",
        ("expired", "reject"): "expired",
        ("expired", "expire"): "expired",
    }
    assert set(table) == set(product(get_args(Status), get_args(Transition)))
    for (status, move), becomes in table.items():
        kept = in_state(status)
        make(kept, move)
        assert kept.all["p"].status == becomes, (status, move)


@pytest.mark.spec("MX-3.2.1-10")
def test_second_fulfilment_is_noted() -> None:
    kept = proposals()
    record_proposal(kept)
    first = record_fulfilment(kept, "human", id="f1")
    assert first is not None
    assert (first.fulfilled_by, first.note) == ("human", "")
    second = record_fulfilment(kept, "robot", id="f2")
    assert second is not None
    assert second.fulfilled_by == "human"
    assert second.fulfilments == ("f1", "f2")
    assert "robot fulfilled it again" in second.note


@pytest.mark.spec("MX-3.2.1-10")
def test_withdrawn_fulfilment_is_pending_again() -> None:
    kept = proposals()
    record_proposal(kept)
    record_fulfilment(kept, "first", id="f1")
    record_fulfilment(kept, "second", id="f2", params=Raw(b'{"name":"write","arguments":{}}'))
    kept.withdraw_fulfilment("p", "other")
    kept.withdraw_fulfilment("nothing", "f1")
    assert kept.all["p"].fulfilments == ("f1", "f2")
    kept.withdraw_fulfilment("p", "f2")
    assert (kept.all["p"].status, kept.all["p"].changed_fulfilments) == ("fulfilled", ())
    kept.withdraw_fulfilment("p", "f1")
    again = kept.all["p"]
    assert (again.status, again.fulfilled_by, again.fulfilments) == ("pending", "", ())


def test_changed_arguments_are_noted() -> None:
    kept = proposals()
    record_proposal(kept)
    changed = record_fulfilment(kept, params=Raw(b'{"name":"write","arguments":{"path":"b"}}'))
    assert changed is not None
    assert changed.status == "fulfilled"
    assert "human changed the arguments" in changed.note
    assert changed.changed_fulfilments == ("f",)
    again = record_fulfilment(kept, id="f2")
    assert again is not None
    assert (again.fulfilments, again.changed_fulfilments) == (("f", "f2"), ("f",))


def test_equal_arguments_in_other_spelling_are_unchanged() -> None:
    kept = proposals()
    record_proposal(kept)
    respelt = b'{ "arguments": {"p\\u0061th": "a"}, "name": "write", "_meta": {"by": "x"} }'
    tracked = record_fulfilment(kept, params=Raw(respelt))
    assert tracked is not None
    assert tracked.note == ""


def test_different_call_does_not_fulfil() -> None:
    kept = proposals()
    record_proposal(kept)
    assert record_fulfilment(kept, context="read", params=Raw(b'{"name":"read"}')) is None
    assert kept.all["p"].status == "pending"
    assert "another call" in kept.all["p"].note


@pytest.mark.parametrize(
    ("proposed_to", "by", "asked", "counts"),
    [
        (("target",), "human", ("target",), True),
        (("target",), "human", ("elsewhere",), False),
        (("target",), "human", (), False),
        (("boss",), "boss", ("worker",), True),
        ((), "human", ("anybody",), True),
        (("a", "b"), "human", ("b",), True),
    ],
)
def test_only_recipients_can_fulfil(
    proposed_to: tuple[str, ...], by: str, asked: tuple[str, ...], counts: bool
) -> None:
    kept = proposals()
    record_proposal(kept, to=proposed_to)
    assert (record_fulfilment(kept, by, to=asked) is not None) == counts
    assert (kept.all["p"].status == "fulfilled") == counts


@pytest.mark.parametrize(
    ("to", "asked_by", "answered_by", "settles"),
    [
        (("worker",), "human", "worker", True),
        (("worker",), "mallory", "mallory", False),
        (("a", "worker"), "human", "worker", True),
        (("boss",), "boss", "worker", True),
        (("boss",), "mallory", "worker", False),
        ((), "human", "anybody", True),
    ],
)
def test_is_proposal_outcome(
    to: tuple[str, ...], asked_by: str, answered_by: str, settles: bool
) -> None:
    assert is_proposal_outcome(to, asked_by, answered_by) == settles


def test_only_pending_proposals_expire() -> None:
    kept = proposals(seconds=10)
    record_proposal(kept, "p", now=0)
    record_proposal(kept, "q", now=5)
    assert kept.expire(9.9) == []
    assert [one.proposalId for one in kept.expire(10)] == ["p"]
    assert [one.proposalId for one in kept.expire(100)] == ["q"]
    assert kept.expire(100) == []


def test_ignores_unknown_proposals() -> None:
    kept = proposals()
    assert kept.get(None) is None
    assert kept.reject("nothing") is None
    assert record_fulfilment(kept) is None
    kept.add_note("nothing", "words")
    assert not kept.all


def test_notes_text_about_proposal() -> None:
    kept = proposals()
    record_proposal(kept)
    kept.add_note("p", "node: refused")
    assert kept.all["p"].note == "node: refused"
    assert kept.all["p"].status == "pending"


@given(st.lists(st.sampled_from(["quiet", "loud", "loud", "loud"]), min_size=1, max_size=60))
def test_sender_at_limit_evicts_own_proposals(senders: list[str]) -> None:
    kept = proposals(max_proposals=10)
    for number, by in enumerate(senders):
        record_proposal(kept, f"{by}-{number}", by=by)
        assert len(kept.all) <= 10
    made = {by: [one for one in senders if one == by] for by in ("quiet", "loud")}
    left = {by: sum(one.proposer == by for one in kept.all.values()) for by in made}
    for by, all_of_it in made.items():
        # Half of the room is safe for either of two.
        assert left[by] >= min(len(all_of_it), 5) - 1


def test_limits_bytes() -> None:
    kept = proposals(max_bytes=10_000)
    for number in range(100):
        head = EnvelopeHeader(f"p{number}", "mcp/proposal:tools/call:write", "loud", ())
        kept.record(
            head, ProposalPayload("tools/call", "write", Raw(b'{"a":"%b"}' % (b"x" * 1000))), 0.0
        )
        assert f"p{number}" in kept.all
    assert len(kept.all) < 10


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4)), min_size=1, max_size=60))
def test_counts_bytes_per_proposer(said: list[tuple[str, int]]) -> None:
    kept = proposals(max_proposals=4)
    for by, number in said:
        record_proposal(kept, f"p-{number}", by=by)
        weights = Counter[str]()
        for one in kept.all.values():
            weights[one.proposer] += _estimate_bytes(one)
        assert kept._bytes_by_proposer == weights


def test_keeps_note_about_changed_arguments() -> None:
    kept = proposals()
    record_proposal(kept)
    record_fulfilment(kept, params=Raw(b'{"name":"write","arguments":{"path":"other"}}'))
    assert "changed the arguments" in kept.all["p"].note
    kept.add_note("p", "b: all is well")
    assert "changed the arguments" in kept.all["p"].note


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=3), values), st.dictionaries(st.text(max_size=3), values))
def test_same_call_is_json_equality(one: dict[str, Any], other: dict[str, Any]) -> None:
    for params in (one, other):
        params.pop("_meta", None)
    texts = [json.dumps(params).encode() for params in (one, other)]
    alike = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    if alike:
        assert is_same_call(*texts)
    assert is_same_call(texts[0], json.dumps(one, indent=1).encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [(b'{"a":1}', b'{"a":1.0}'), (b'{"a":1}', b'{"a":true}'), (b'{"a":[1]}', b'{"a":[1,1]}'),
     (b'{"a":0}', b'{"a":false}'), (b'{"a":null}', b"{}"), (b'{"a":1}', b"nonsense")],
)  # fmt: skip
def test_detects_different_calls(one: bytes, other: bytes) -> None:
    assert not is_same_call(one, other)


def test_compares_deep_calls() -> None:
    deep = b'{"a":%b%b}' % (b"[" * 900, b"]" * 900)
    assert is_same_call(deep, deep.replace(b"{", b"{ "))
