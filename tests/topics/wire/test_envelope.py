"""Tests of MCPx envelopes."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.errors import INVALID_REQUEST, PARSE_ERROR, PROTOCOL_MISMATCH, Failure
from interlock.protocol.lookalike_members import fold_name
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES, PROTOCOL
from interlock.topics.wire.envelope import (
    EnvelopeError,
    EnvelopeHeader,
    is_timestamp,
    read_envelope,
    read_head,
    write_envelope,
)
from tests.protocol.json_values import objects, text, values

NAMES = ("protocol", "id", "ts", "from", "to", "kind", "correlation_id", "payload")
SAMPLE: dict[str, Any] = {
    "protocol": "mcpx/v0.1",
    "id": "2f6b6e70-7b36-4b8b-9ad8-7c4f7d0e2d0b",
    "ts": "2025-08-26T14:00:00Z",
    "from": "robot-alpha",
    "to": ["coordinator"],
    "kind": "mcp/request:tools/call",
    "correlation_id": "env-1",
    "payload": {},
}
TARGET = {"name": "dangerous_operation", "arguments": {"target": "production"}}
DONE = {"content": [{"type": "text", "text": "Operation completed"}]}
CALL = {"jsonrpc": "2.0", "id": 42, "method": "tools/call", "params": TARGET}


def envelope(id: str, sender: str, kind: str, payload: Any, **more: Any) -> dict[str, Any]:
    return {
        "protocol": PROTOCOL, "id": id, "from": sender, "kind": kind, **more, "payload": payload,
    }  # fmt: skip


NEW = {"id": "new-agent", "capabilities": ["mcp/proposal:*", "chat"]}
EXAMPLES = [
    SAMPLE,
    envelope("env-call-1", "trusted-agent", "mcp/request:tools/call:dangerous_operation", CALL,
             to=["target-agent"]),
    envelope("env-resp-1", "target-agent", "mcp/response:tools/call:dangerous_operation",
             {"jsonrpc": "2.0", "id": 42, "result": DONE},
             to=["trusted-agent"], correlation_id="env-call-1"),
    envelope("env-req-1", "untrusted-agent", "mcp/proposal:tools/call:dangerous_operation",
             {"method": "tools/call", "params": TARGET}, to=["target-agent"]),
    envelope("env-fulfill-1", "human-user", "mcp/request:tools/call:dangerous_operation", CALL,
             to=["target-agent"], correlation_id="env-req-1"),
    envelope("env-fulfill-resp-1", "target-agent",
             "mcp/response:tools/call:dangerous_operation",
             {"jsonrpc": "2.0", "id": 44, "result": DONE},
             to=["human-user", "untrusted-agent"], correlation_id="env-fulfill-1"),
    envelope("env-chat-1", "user-one", "chat", {"text": "Hello!", "format": "plain"}),
    envelope("env-presence-1", "system:gateway", "system/presence",
             {"event": "join", "participant": NEW}),
    envelope("env-welcome-1", "system:gateway", "system/welcome",
             {"you": NEW, "participants": [{"id": "agent-1", "capabilities": ["mcp/*", "chat"]}]},
             to=["new-agent"]),
    envelope("env-violation-1", "system:gateway", "system/error",
             {"error": "capability_violation", "message": "You lack capability for 'x'",
              "attempted_kind": "x", "your_capabilities": ["chat"]},
             to=["violator"], correlation_id="env-bad-call"),
]  # fmt: skip


def encode_document(value: Any, **how: Any) -> bytes:
    return json.dumps(value, **how).encode()


def encode_compact(value: Any) -> bytes:
    return encode_document(value, separators=(",", ":"), ensure_ascii=False)


def get_error(text: bytes) -> EnvelopeError:
    with pytest.raises(EnvelopeError) as caught:
        read_head(text)
    return caught.value


# --- what is read ---


@pytest.mark.spec("MX-0-1")
def test_protocol_name() -> None:
    assert PROTOCOL == "mcpx/v0.1"


@pytest.mark.spec("MX-3-16")
@pytest.mark.parametrize("sample", EXAMPLES, ids=lambda one: one["id"])
def test_reads_every_draft_example(sample: dict[str, Any]) -> None:
    expected = EnvelopeHeader(
        sample["id"], sample["kind"], sample["from"], tuple(sample.get("to", ())),
        sample.get("correlation_id"),
    )  # fmt: skip
    for text_ in (
        encode_compact(sample),
        encode_document(sample),
        encode_document(sample, indent=2),
    ):
        assert read_head(text_) == expected
        read = read_envelope(text_)
        assert (read.head, json.loads(bytes(read.payload))) == (expected, sample["payload"])
        assert read.ts == sample.get("ts", "")
        assert read.text == text_


@pytest.mark.spec("MX-3-14")
@pytest.mark.parametrize("sample", EXAMPLES, ids=lambda one: one["id"])
def test_writes_what_it_reads(sample: dict[str, Any]) -> None:
    read = read_envelope(encode_document(sample))
    again = write_envelope(
        id=read.head.id, sender=read.head.sender, kind=read.head.kind, payload=read.payload,
        to=read.head.to, correlation_id=read.head.correlation_id, ts=read.ts,
    )  # fmt: skip
    assert json.loads(again) == sample


@pytest.mark.spec("MX-3-6")
def test_reads_empty_recipients_as_broadcast() -> None:
    without = {name: value for name, value in SAMPLE.items() if name != "to"}
    assert read_head(encode_compact(without)).to == ()
    nobodies: list[list[str] | None] = [[], None]
    for nobody in nobodies:
        assert read_head(encode_compact({**SAMPLE, "to": nobody})).to == ()
    assert get_error(encode_compact({**SAMPLE, "to": "x"})).failure is INVALID_REQUEST


def test_reads_null_correlation_as_missing() -> None:
    assert read_head(encode_compact({**SAMPLE, "correlation_id": None})).correlation_id is None


def test_ignores_unknown_members() -> None:
    head = read_head(encode_compact({"priority": 7, **SAMPLE, "x": [{"kind": "y"}]}))
    assert head == read_head(encode_compact(SAMPLE))


# --- what is refused ---


@pytest.mark.spec("MX-3-1")
@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (b"", PARSE_ERROR),
        (b"nonsense", PARSE_ERROR),
        (b'{"protocol":', PARSE_ERROR),
        (encode_compact(SAMPLE) + b"x", PARSE_ERROR),
        (encode_compact(SAMPLE) * 2, PARSE_ERROR),
        (encode_compact(SAMPLE).replace(b"robot", b"\xff\xfe"), PARSE_ERROR),
        (encode_compact({**SAMPLE, "payload": {"x": "y"}}).replace(b'"y"', b'"\xff"'), PARSE_ERROR),
        (encode_compact([SAMPLE]), INVALID_REQUEST),
        (b'"text"', INVALID_REQUEST),
        (b"null", INVALID_REQUEST),
        (b"{}", INVALID_REQUEST),
    ],
)
def test_rejects_invalid_envelopes(text: bytes, failure: Failure) -> None:
    error = get_error(text)
    assert (error.failure, error.failure.mcpx) == (failure, "malformed_envelope")
    assert error.id == ""


@pytest.mark.parametrize(
    "name",
    [pytest.param("protocol", marks=pytest.mark.spec("MX-3-2")), "id", "from", "kind", "payload"],
)
def test_rejects_missing_members(name: str) -> None:
    error = get_error(encode_compact({key: value for key, value in SAMPLE.items() if key != name}))
    assert error.failure is INVALID_REQUEST
    assert f"`{name}`" in error.message
    assert error.id == ("" if name == "id" else SAMPLE["id"])
    assert error.kind == ("" if name == "kind" else SAMPLE["kind"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("protocol", 1), ("protocol", None), ("id", 1), ("id", ""), ("id", "x" * 257),
        ("from", None), ("from", ["a"]), ("kind", ""), ("kind", "k" * 4_097), ("kind", {}),
        ("to", "x"), ("to", [1]), ("to", {}), ("to", ["x"] * 1_001), ("correlation_id", 5),
        pytest.param("payload", "text", marks=pytest.mark.spec("MX-3-13")),
        ("payload", None), ("payload", [{}]), ("payload", 0),
    ],
)  # fmt: skip
def test_rejects_wrong_types(name: str, value: Any) -> None:
    for text_ in (
        encode_compact({**SAMPLE, name: value}),
        encode_document({**SAMPLE, name: value}),
    ):
        error = get_error(text_)
        assert error.failure is INVALID_REQUEST
        assert f"`{name}`" in error.message
        assert error.id == (SAMPLE["id"] if name != "id" else "")


@pytest.mark.spec("MX-3-2", "MX-6.1b-2")
@pytest.mark.parametrize(
    "version",
    ["mcpx/v0.2", "MCPX/v0.1", "", pytest.param("mcp-x/v0", marks=pytest.mark.spec("MX-6.2b-1"))],
)
def test_rejects_other_protocol_version(version: str) -> None:
    for text_ in (
        encode_compact({**SAMPLE, "protocol": version}),
        encode_document({**SAMPLE, "protocol": version}),
    ):
        error = get_error(text_)
        assert error.failure is PROTOCOL_MISMATCH
        assert PROTOCOL in error.message
        assert error.id == SAMPLE["id"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_rejects_duplicate_members(name: str, separators: tuple[str, str]) -> None:
    whole = json.dumps(SAMPLE, separators=separators)
    for spelled in (f'"{name}"', f'"\\u{ord(name[0]):04x}{name[1:]}"'):
        values: list[Any] = [SAMPLE[name], {}, "other"]
        for value in values:
            again = f"{spelled}{separators[1]}{json.dumps(value, separators=separators)}"
            for doubled in (f"{whole[:-1]},{again}}}", f"{{{again},{whole[1:]}"):
                refused = get_error(doubled.encode())
                assert refused.failure is INVALID_REQUEST
                # Which of two ids is meant, nobody can say.
                assert refused.id == ("" if name == "id" else SAMPLE["id"])


@pytest.mark.parametrize(
    "name",
    ["Kind", "FROM", "correlationId", "correlation-id", "iD", "\u212aind", "_to ", "Payload"],
)
def test_rejects_confusable_member_names(name: str) -> None:
    beside = encode_compact({**SAMPLE, name: SAMPLE["payload"]})
    if fold_name(name) in map(fold_name, NAMES):
        assert name[:20] in get_error(beside).message
    else:
        read_head(beside)


def test_limits_size_depth_and_members() -> None:
    room = MAX_ENVELOPE_BYTES - len(encode_compact({**SAMPLE, "payload": {"x": ""}}))
    longest = encode_compact({**SAMPLE, "payload": {"x": "y" * room}})
    assert len(longest) == MAX_ENVELOPE_BYTES
    assert read_head(longest).id == SAMPLE["id"]
    assert str(MAX_ENVELOPE_BYTES) in get_error(longest[:-1] + b" }").message
    deep = encode_compact(SAMPLE).replace(b"{}", b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}")
    assert get_error(deep).failure is INVALID_REQUEST
    many = {**SAMPLE, **{f"x{number}": number for number in range(100)}}
    assert "members" in get_error(encode_compact(many)).message


def test_reads_hostile_envelopes_fast() -> None:
    hostile = [
        encode_compact({**SAMPLE, "x": "\\" * 500_000}),
        encode_compact({**SAMPLE, "x": ["y"] * 200_000}),
        b"{" + b'"' * 1_000_000,
        b'{"' + b"\\u0041" * 170_000 + b'":1,' + encode_compact(SAMPLE)[1:],
        b'{"x":' + b" " * 1_000_000 + b"1," + encode_compact(SAMPLE)[1:],
    ]
    began = time.process_time()
    for text_ in hostile:
        try:
            read_head(text_)
        except EnvelopeError:
            continue
    assert time.process_time() - began < 20.0


# --- whatever comes ---


class Pairs(list[tuple[str, Any]]):
    """A JSON object with duplicate members."""


def read_by_reference(text_: bytes) -> EnvelopeHeader | None:
    """Read an envelope with a simple reference reader. Return None if it is invalid."""
    pairs = json.loads(text_, object_pairs_hook=Pairs)
    if not isinstance(pairs, Pairs):
        return None
    names = [name for name, _ in pairs]
    known = {fold_name(name): name for name in NAMES}
    if len(set(names)) != len(names) or any(known.get(fold_name(one), one) != one for one in names):
        return None
    members = dict(pairs)
    to, correlation = members.get("to") or (), members.get("correlation_id")
    if isinstance(members.get("to"), Pairs | str | int | float):
        return None
    lawful = (
        members.get("protocol") == PROTOCOL
        and all(isinstance(members.get(one), str) for one in ("id", "from", "kind"))
        and 0 < len(members["id"]) <= 256
        and 0 < len(members["kind"]) <= 4_096
        and all(isinstance(one, str) for one in to)
        and (correlation is None or isinstance(correlation, str))
        and isinstance(members.get("payload"), Pairs)
    )
    if not lawful:
        return None
    return EnvelopeHeader(members["id"], members["kind"], members["from"], tuple(to), correlation)


spaces = st.sampled_from(["", "", " ", "\n\t "])
lawful_values = {
    "protocol": st.just(PROTOCOL),
    "id": st.sampled_from(["a", "{}", '"kind"', "\\", "é\u2028", '","kind":"x']),
    "ts": st.sampled_from(["2025-08-26T14:00:00Z", {"kind": 1}, {}]),
    "from": st.sampled_from(["a", "kind", "{"]),
    "to": st.none() | st.lists(st.sampled_from(["to", "b"]), max_size=3),
    "kind": st.sampled_from(["chat", "from", "mcp/request:tools/call:x"]),
    "correlation_id": st.none() | st.sampled_from(["id", ""]),
    "payload": objects | st.just({}) | st.just({"kind": 1}),
}


@st.composite
def envelopes(draw: st.DrawFn) -> bytes:
    """Return mostly valid envelopes, some with missing, duplicate and unknown members."""
    names = [name for name in NAMES if draw(st.integers(0, 19))]
    names += draw(st.lists(st.sampled_from([*NAMES, "Kind", "x", "to_", "ID"]), max_size=1))
    if draw(st.booleans()):
        names = draw(st.permutations(names))
    parts: list[str] = []
    for name in names:
        usual = lawful_values.get(name, values)
        value = draw(usual if draw(st.integers(0, 19)) else values)
        spelled = json.dumps(name)
        if not draw(st.integers(0, 9)):
            spelled = f'"\\u{ord(name[0]):04x}{name[1:]}"'
        tight = draw(st.booleans())
        body = json.dumps(
            value, separators=(",", ":") if tight else None, ensure_ascii=draw(st.booleans())
        )
        gaps = [draw(spaces) for _ in range(4)] if not tight else [""] * 4
        parts.append(f"{gaps[0]}{spelled}{gaps[1]}:{gaps[2]}{body}{gaps[3]}")
    return ("{" + ",".join(parts) + "}").encode()


@given(envelopes())
@example(encode_compact({**SAMPLE, "id": '{","to":["b"]}'}))
def test_fast_reader_matches_reference(text_: bytes) -> None:
    expected = read_by_reference(text_)
    if expected is None:
        get_error(text_)
    else:
        assert read_head(text_) == expected
        # Whoever takes the first of two members reads the same as who takes the last.
        assert len({name for name, _ in json.loads(text_, object_pairs_hook=Pairs)}) == len(
            json.loads(text_, object_pairs_hook=Pairs)
        )


@given(
    st.builds(
        dict, id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
        sender=text, kind=st.just("chat") | text.filter(lambda one: 0 < len(one) < 4_000),
        to=st.lists(text, max_size=3), correlation_id=st.none() | text,
    ),
    objects,
)  # fmt: skip
def test_reads_what_it_writes(parts: dict[str, Any], payload: dict[str, Any]) -> None:
    body = msgspec.json.encode(payload)
    text_ = write_envelope(payload=body, ts="2025-08-26T14:00:00.5+02:00", **parts)
    read = read_envelope(text_)
    assert read.head == EnvelopeHeader(
        parts["id"], parts["kind"], parts["sender"], tuple(parts["to"]), parts["correlation_id"]
    )
    assert (bytes(read.payload), read.ts) == (body, "2025-08-26T14:00:00.5+02:00")
    assert read_head(text_) == read.head


@given(st.binary(max_size=60))
def test_raises_only_envelope_errors(data: bytes) -> None:
    for text_ in (data, encode_compact(SAMPLE)[:-1] + data, b'{"payload":{},' + data):
        try:
            read = read_envelope(text_)
        except EnvelopeError:
            continue
        assert read.head.kind


def test_writes_only_object_payloads() -> None:
    for payload in (b"", b"[]", b"1", msgspec.Raw(b"null")):
        with pytest.raises(ValueError, match="object"):
            write_envelope(id="a", sender="b", kind="chat", payload=payload)


# --- time stamps ---


@pytest.mark.spec("MX-3-16")
@pytest.mark.parametrize(
    "stamp", ["yesterday", "", 5, "2025-08-26", "2025-02-30T00:00:00Z", "2025-08-26T14:00:00"]
)
def test_invalid_timestamp_is_rejected_by_participants_only(stamp: Any) -> None:
    text_ = encode_compact({**SAMPLE, "ts": stamp})
    assert read_head(text_).id == SAMPLE["id"]
    with pytest.raises(EnvelopeError, match="3339") as caught:
        read_envelope(text_)
    assert caught.value.id == SAMPLE["id"]


def test_reads_null_timestamp_as_missing() -> None:
    assert read_envelope(encode_compact({**SAMPLE, "ts": None})).ts == ""


@pytest.mark.parametrize(
    ("stamp", "lawful"),
    [
        ("2025-08-26T14:00:00Z", True), ("2024-02-29t23:59:60.123456789z", True),
        ("2025-08-26T14:00:00-23:59", True), ("0000-02-29T00:00:00Z", True),
        ("2025-02-29T00:00:00Z", False), ("2025-13-01T00:00:00Z", False),
        ("2025-00-01T00:00:00Z", False), ("2025-01-00T00:00:00Z", False),
        ("2025-08-26T24:00:00Z", False), ("2025-08-26T23:60:00Z", False),
        ("2025-08-26T23:00:61Z", False), ("2025-08-26T14:00:00+24:00", False),
        ("2025-08-26T14:00:00.Z", False), ("2025-08-26 14:00:00Z", False),
        ("2025-08-26T14:00:00Z\n", False), ("٢٠٢٥-08-26T14:00:00Z", False),
    ],
)  # fmt: skip
def test_recognizes_timestamps(stamp: str, lawful: bool) -> None:
    assert is_timestamp(stamp) is lawful
