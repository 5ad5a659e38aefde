"""MCP-AX messages: registration, heartbeat, deregistration, hops and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from interlock.errors import (
    DEADLINE_EXCEEDED,
    INVALID_PARAMS,
    INVALID_SEGMENT,
    TOO_BUSY,
    UNSUPPORTED_VERSION,
    InterlockError,
    ProtocolError,
)
from interlock.protocol import mcpax as ax

ID = "550e8400-e29b-41d4-a716-446655440000"
# As section 6.1 of the draft has it.
EXAMPLE: dict[str, Any] = {
    "subserver_id": ID,
    "segment": "stm32h7",
    "authority": "dns:edge01.factory.example.com",
    "capabilities": {"tools": True, "resources": False, "notifications": True},
    "heartbeat_interval_ms": 5000,
    "transport_class": "uart_cbor",
    "version": "2026-05-01",
}
NOTHING = object()


def read(**changes: Any) -> ax.Registration:
    members = {**EXAMPLE, **changes}
    supplied = {key: value for key, value in members.items() if value is not NOTHING}
    return ax.read_registration(Raw(json.dumps(supplied).encode()))


def reject(**changes: Any) -> InterlockError:
    with pytest.raises(InterlockError) as caught:
        read(**changes)
    return caught.value


# -- registrations


@pytest.mark.spec("AX-6.1-3", "AX-6.1-5", "AX-6.1-7", "AX-6.1-8")
def test_reads_registration_example() -> None:
    assert read() == ax.Registration(
        subserver_id=ID,
        segment="stm32h7",
        capabilities=ax.SubserverCapabilities(tools=True, resources=False, notifications=True),
        heartbeat_interval_ms=5000,
        transport_class="uart_cbor",
        version="2026-05-01",
        authority="dns:edge01.factory.example.com",
    )


@pytest.mark.spec("AX-6.1-4")
def test_optional_members_may_be_absent() -> None:
    for nothing in (NOTHING, None):
        result = read(authority=nothing, authority_proof=nothing)
        assert result.authority is None
        assert result.authority_proof is None
        assert read(**{"x-mcpax-subtree-ids": nothing}).subtree_ids is None
    assert read(capabilities={}).capabilities == ax.SubserverCapabilities()
    # What a later revision may add is no reason to refuse.
    assert read(mood="good", capabilities={"tools": True, "prompts": True}) == read(
        capabilities={"tools": True}
    )


@pytest.mark.parametrize(
    "field",
    [
        "subserver_id",
        "segment",
        "capabilities",
        "heartbeat_interval_ms",
        "transport_class",
        "version",
    ],
)
@pytest.mark.spec("AX-6.1-3")
def test_requires_mandatory_members(field: str) -> None:
    error = reject(**{field: NOTHING})
    assert error.failure is INVALID_PARAMS
    assert error.data == {"field": field}
    assert field in error.message
    assert reject(**{field: None}).data == {"field": field}


BAD: dict[str, list[Any]] = {
    "subserver_id": [
        5, True, [], {}, "", "x", "550e8400e29b41d4a716446655440000", f"{{{ID}}}", f"urn:uuid:{ID}",
        f" {ID}", f"{ID}\n", ID[:-1], ID + "0", "g" + ID[1:], "x" * 100_000,
    ],
    "capabilities": [
        5, "tools", [], ["tools"], True, {"tools": "yes"}, {"tools": 1}, {"resources": None},
        {"notifications": []},
    ],
    "heartbeat_interval_ms": [
        -1, 1.5, "5000", True, [], {}, 86_400_001, 10**30, -(10**30), 1e300,
    ],
    "transport_class": [5, [], {}, "", "foo", "NATIVE", "uart-cbor", "x" * 100_000],
    "version": [5, 20260501, [], {}],
    "segment": [5, True, [], {}],
    "authority": [
        5, [], {}, "", "edge01", "dns:", "dns:bad host", "dns:-x", "dns:x-", "dns:a..b", "dns:.a",
        "dns:a_b", "dns:ünicode.example.com", "DNS:edge", "dns:" + "a" * 64, "dns:" + "a." * 130,
        "dns:*.example.com", "dns:a/b", "dns:a\n", "https:a", "x" * 100_000,
    ],
    "authority_proof": [
        5, "token", [], {}, {"type": "jwt"}, {"token": "x"}, {"type": 5, "token": "x"},
        {"type": "jwt", "token": 5}, {"type": "jwt", "token": None},
    ],
    "x-mcpax-subtree-ids": [
        5, ID, {}, [5], ["x"], [ID, None], [ID] * 10_001, {"ids": [ID]}, [[ID]],
    ],
}  # fmt: skip


@pytest.mark.spec("AX-6.1-2", "AX-6.1-6", "AX-6.1-7", "AX-4.2-4")
@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in BAD.items() for value in values],
    ids=lambda item: repr(item)[:40],
)
def test_rejects_invalid_member(field: str, value: Any) -> None:
    error = reject(**{field: value})
    assert error.failure is INVALID_PARAMS
    assert error.data == {"field": field}
    # A person can read it, whatever was sent.
    assert f"`{field}`" in error.message
    assert len(error.message) < 400


@pytest.mark.spec("AX-6.1-7")
def test_unknown_transport_class_lists_known_classes() -> None:
    message = reject(transport_class="foo").message
    assert all(item in message for item in ("native", "uart_cbor", "mqtt_json"))


@pytest.mark.spec("AX-6.1-11")
@pytest.mark.parametrize("version", ["2030-01-01", "", "1", "2026-05-01 ", "x" * 100_000])
def test_other_version_lists_supported_versions(version: str) -> None:
    error = reject(version=version)
    assert error.failure is UNSUPPORTED_VERSION
    assert (error.failure.ax_code, error.failure.ax_name) == (-31009, "unsupported_version")
    assert error.data == {"supported": ["2026-05-01"]}
    assert len(error.message) < 200


@pytest.mark.spec("AX-4.1-2", "AX-4.2-12")
@pytest.mark.parametrize(
    "segment",
    ["", "A", "a.b", "a b", "ä", "a/b", "a" * 64, "x" * 100_000, "a\n", "notifications_dropped"],
    ids=lambda item: repr(item)[:20],
)
def test_rejects_invalid_segment(segment: str) -> None:
    error = reject(segment=segment)
    assert error.failure is INVALID_SEGMENT
    assert (error.failure.ax_code, error.failure.ax_name) == (-31005, "invalid_segment")
    assert len(error.message) < 400


@pytest.mark.parametrize("segment", ["a", "0", "_", "-", "a" * 63, "stm32h7", "us-east_1"])
def test_accepts_valid_segment(segment: str) -> None:
    assert read(segment=segment).segment == segment


@pytest.mark.spec("AX-6.1-11")
@pytest.mark.parametrize("transport", ax.TRANSPORT_CLASSES)
def test_accepts_known_transport_classes(transport: str) -> None:
    assert read(transport_class=transport).transport_class == transport


@pytest.mark.spec("AX-4.2-4")
@pytest.mark.parametrize(
    "authority",
    [
        "dns:edge01.factory.example.com",
        "dns:localhost",
        "dns:A.example.com.",
        "dns:1.2",
        "dns:a-b.c",
    ],
)
def test_accepts_valid_authority(authority: str) -> None:
    assert read(authority=authority).authority == authority


def test_normalizes_names_and_ids() -> None:
    assert ax.dns_name("dns:A.Example.com.") == ax.dns_name("a.example.COM") == "a.example.com"
    assert read(subserver_id=ID.upper()).subserver_id == ID
    assert read(**{"x-mcpax-subtree-ids": [ID.upper()]}).subtree_ids == (ID,)


@pytest.mark.spec("AX-6.1-6")
@pytest.mark.parametrize("interval", [0, 1, 5000, 86_400_000])
def test_accepts_valid_heartbeat_interval(interval: int) -> None:
    assert read(heartbeat_interval_ms=interval).heartbeat_interval_ms == interval
    assert ax.heartbeat_deadline_ms(interval) == 3 * interval


@pytest.mark.spec("AX-5.3-7")
def test_registration_survives_round_trip() -> None:
    full = ax.Registration(
        subserver_id=ID,
        segment="edge",
        capabilities=ax.SubserverCapabilities(),
        heartbeat_interval_ms=1,
        authority="dns:a",
        authority_proof=ax.AuthorityProof("jwt", "secret"),
        subtree_ids=(ID,),
    )
    assert ax.read_registration(full.encode_params()) == full
    assert full.is_aggregator
    assert json.loads(full.encode_params())["x-mcpax-subtree-ids"] == [ID]
    assert ax.read_registration(read().encode_params()) == read()
    assert not read().is_aggregator
    # What proves something is not shown.
    assert "secret" not in repr(full)


NO_OBJECTS = [UNSET, Raw(b"[]"), Raw(b"5"), Raw(b'"x"'), Raw(b"null"), b"", b"{", b"\xff"]


@pytest.mark.parametrize(
    "reader", [ax.read_registration, ax.read_heartbeat, ax.read_deregistration]
)
@pytest.mark.parametrize(
    "params", NO_OBJECTS, ids=lambda item: repr(item if item is UNSET else bytes(item))
)
def test_rejects_params_that_are_not_object(reader: Any, params: Any) -> None:
    with pytest.raises(InterlockError) as caught:
        reader(params)
    assert caught.value.failure is INVALID_PARAMS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(field=st.sampled_from([*BAD, "segment"]), value=JSON)
def test_reads_or_rejects_any_member_value(field: str, value: Any) -> None:
    failure, result = None, None
    try:
        result = read(**{field: value})
    except InterlockError as error:
        failure = error.failure
    if result is None:
        assert failure in (INVALID_PARAMS, INVALID_SEGMENT, UNSUPPORTED_VERSION)
    else:
        assert ax.read_registration(result.encode_params()) == result


@given(st.binary(max_size=60))
def test_reads_or_rejects_any_bytes(data: bytes) -> None:
    for reader in (
        ax.read_registration,
        ax.read_heartbeat,
        ax.read_deregistration,
        lambda said: ax.read_registration_result(said, "edge"),
        ax.read_heartbeat_result,
        ax.read_identity,
    ):
        try:
            reader(data)
        except InterlockError:
            continue


# -- heartbeats and farewells


@pytest.mark.spec("AX-6.3-5")
def test_reads_heartbeat() -> None:
    assert ax.read_heartbeat(b'{"session_id":"s"}') == ax.HeartbeatParams("s")
    beat = ax.HeartbeatParams("s", (ID,))
    assert ax.read_heartbeat(beat.encode_params()) == beat
    assert ax.HeartbeatParams("s").encode_params() == b'{"session_id":"s"}'
    for invalid in (b"{}", b'{"session_id":5}', b'{"session_id":null}'):
        with pytest.raises(InterlockError):
            ax.read_heartbeat(invalid)
    with pytest.raises(InterlockError):
        ax.read_heartbeat(b'{"session_id":"s","x-mcpax-subtree-ids":["x"]}')


def test_reads_deregistration() -> None:
    assert ax.read_deregistration(b'{"session_id":"s"}') == ax.DeregistrationParams("s")
    assert ax.read_deregistration(b'{"session_id":"s","reason":"bye"}') == ax.DeregistrationParams(
        "s", "bye"
    )
    long = ax.read_deregistration(json.dumps({"session_id": "s", "reason": "x" * 10_000}).encode())
    assert len(long.reason) == 500
    for invalid in (b"{}", b'{"reason":"x"}', b'{"session_id":"s","reason":5}'):
        with pytest.raises(InterlockError):
            ax.read_deregistration(invalid)


# -- what an aggregator answers


@pytest.mark.spec("AX-6.2-1", "AX-6.2-4")
def test_reads_registration_result_example() -> None:
    granted = ax.read_registration_result(
        b'{"status":"registered","assigned_segment":"stm32h7","session_id":"a3f7c",'
        b'"heartbeat_deadline_ms":15000,"budget":{"max_calls_per_minute":60,'
        b'"max_mutable_calls_per_session":10}}',
        "stm32h7",
    )
    assert granted.budget == ax.SubserverBudget(60, 10)
    assert granted.budget.max_cost_units_per_session == ax.UNLIMITED
    assert (granted.aggregator_id, granted.tree_id) == ("", "")
    assert ax.read_heartbeat_result(b'{"status":"ok","heartbeat_deadline_ms":5}').budget is None
    assert (
        ax.read_identity(b'{"subserver_id":"x","parent_id":null,"role":"leaf"}').parent_id is None
    )


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, ""),
        ({"tree_id": ""}, ""),
        ({"tree_id": ID}, ""),
        ({"assigned_segment": "other"}, "registered the segment 'other'"),
        ({"assigned_segment": ""}, "registered the segment ''"),
        ({"assigned_segment": "edge.x"}, "registered the segment"),
        ({"tree_id": "the tree"}, "tree_id"),
        ({"heartbeat_deadline_ms": -1}, "heartbeat_deadline_ms"),
        ({"budget": {"max_calls_per_minute": -1}}, "max_calls_per_minute"),
        ({"budget": {"max_mutable_calls_per_session": -5}}, "max_mutable_calls_per_session"),
        ({"budget": {"max_cost_units_per_session": -5}}, "max_cost_units_per_session"),
        ({"budget": {"max_calls_per_minute": 0}}, ""),
    ],
    ids=str,
)
def test_checks_registration_result(more: dict[str, Any], reason: str) -> None:
    params = {"assigned_segment": "edge", "session_id": "s", "heartbeat_deadline_ms": 5, **more}
    if not reason:
        assert ax.read_registration_result(json.dumps(params).encode(), "edge").session_id == "s"
        return
    with pytest.raises(ProtocolError, match=reason):
        ax.read_registration_result(json.dumps(params).encode(), "edge")
    if "assigned_segment" not in more:
        # With a heartbeat's answer too.
        with pytest.raises(ProtocolError, match=reason):
            ax.read_heartbeat_result(json.dumps(params).encode())


@pytest.mark.parametrize(
    "text", ["", ID[:-1], ID + "0", ID.replace("-", ""), "{" + ID[1:], ID[:-1] + "g", ID + "\n", 5]
)
def test_recognizes_uuid(text: object) -> None:
    assert ax.is_uuid(ID)
    assert ax.is_uuid(ID.upper())
    assert not ax.is_uuid(text)


@pytest.mark.spec("AX-11.4-4")
def test_limits_budget_by_other_budget() -> None:
    assert ax.SubserverBudget(60, 10, 5).limited_by(
        ax.SubserverBudget(30, 20)
    ) == ax.SubserverBudget(30, 10, 5)
    assert ax.SubserverBudget().limited_by(
        ax.SubserverBudget(max_calls_per_minute=3)
    ) == ax.SubserverBudget(3)


# -- hops


def hop(route: Any, cursor: Any) -> ax.Hop | None:
    meta = {"x-mcpax-route": route, "x-mcpax-cursor": cursor}
    raw = {key: Raw(json.dumps(value).encode()) for key, value in meta.items() if value is not None}
    return ax.read_hop(raw)


@pytest.mark.spec("AX-5.3-7")
def test_reads_hop() -> None:
    assert ax.read_hop(None) is None
    assert ax.read_hop({}) is None
    for cursor in (0, 1):
        read = hop(["infra", "edge", "t"], cursor)
        assert read is not None
        assert (read.route, read.cursor) == (("infra", "edge", "t"), cursor)
        assert read.remaining_name == ("edge.t", "t")[cursor]
        assert read.next_hop_members == (
            b',"x-mcpax-route":["infra","edge","t"],"x-mcpax-cursor":%d' % (cursor + 1)
        )
    assert hop(["s"] * 64, 62) is not None
    invalid: list[tuple[Any, Any]] = [
        (["a", "t"], None), (None, 0), (["a", "t"], 1), (["a", "t"], -1), (["a", "t"], 2),
        (["t"], 0), ([], 0), (["a", ""], 0), ("a.t", 0), (["a", 5], 0), (["a", "t"], "0"),
        (["a", "t"], 0.5), (["s"] * 65, 0), (["a", "t"], 10**30),
    ]  # fmt: skip
    for route, cursor in invalid:
        with pytest.raises(InterlockError) as caught:
            hop(route, cursor)
        assert caught.value.failure is INVALID_PARAMS


# -- errors


@pytest.mark.spec("AX-13.2-3")
def test_encodes_errors() -> None:
    late = InterlockError(DEADLINE_EXCEEDED, "Too late.", {"hop": "edge"})
    assert ax.encode_error(late) == (
        -31010, "downstream_timeout", {"hop": "edge", "detail": "Too late."},
    )  # fmt: skip
    busy = InterlockError(TOO_BUSY, "Not now.")
    assert ax.encode_error(busy) == (
        -31026, "Not now.", {"error": "too_busy", "retryable": True},
    )  # fmt: skip
