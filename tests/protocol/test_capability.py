"""Capability annotations: valid values, values derived from hints, and classes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.protocol.capabilities import (
    CAPABILITY_FIELDS,
    DEFAULT_CAPABILITY,
    LATENCY_CLASSES,
    Capability,
    advice_for,
    derive_capability,
    is_semver,
    latency_class_for,
    read_capability,
    slower_class,
    timeout_for,
    with_defaults,
)
from tests.protocol import json_values

SENSOR = Capability(
    latency_class="fast",
    consistency="strong",
    mutable=True,
    reversible=True,
    idempotent=True,
    transport="uart_cbor",
    auth_scope="admin",
    cost_class="metered",
    availability="scheduled",
    schema_version="1.2.0",
)


def read(**values: Any) -> tuple[Capability, list[str]]:
    return read_capability(json.dumps(values).encode(), SENSOR)


LAWFUL: dict[str, list[Any]] = {
    "latency_class": ["realtime", "fast", "standard", "slow", "batch"],
    "consistency": ["strong", "eventual", "best_effort"],
    "mutable": [True, False],
    "reversible": [True, False],
    "idempotent": [True, False],
    "transport": ["native", "uart_cbor", "ble_cbor", "spi_cbor", "can_cbor", "mqtt_json"],
    "auth_scope": ["read", "write", "admin"],
    "cost_class": ["free", "metered", "expensive"],
    "availability": ["always", "scheduled", "best_effort", "degraded"],
    "schema_version": ["1.2.0", "0.0.0", "10.20.30", "1.0.0-alpha.1", "1.0.0+build.5", "1.0.0-0a"],
}
UNLAWFUL: dict[str, list[Any]] = {
    "latency_class": ["quick", "Fast", "", 1, None, ["fast"]],
    "consistency": ["weak", "STRONG", True, None],
    "mutable": ["true", 1, 0, None, []],
    "reversible": ["false", 1, None, {}],
    "idempotent": ["yes", 0, None, 1.0],
    "transport": ["http", "stdio", "", None, 5],
    "auth_scope": ["root", "Read", None, True],
    "cost_class": ["cheap", "", None, 0],
    "availability": ["never", "down", None, False],
    "schema_version": ["v1", "1", "1.2", "01.2.0", "1.2.0-", "1.2.0-01", "1.2.0+", " 1.2.0",
                       "1.2.0\n", "١.٢.٠", "1.2.0." + "9" * 300, 1.2, None],
}  # fmt: skip


@pytest.mark.spec(
    "AX-9.1-1", "AX-9.1-2", "AX-9.1-3", "AX-9.1-4", "AX-9.1-5", "AX-9.1-6", "AX-9.1-7", "AX-9.1-8"
)  # fmt: skip
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in LAWFUL.items() for value in values]
)
def test_accepts_valid_value(name: str, value: Any) -> None:
    capability, problems = read(**{name: value})
    assert problems == []
    assert msgspec.to_builtins(capability) == {**msgspec.to_builtins(SENSOR), name: value}


@pytest.mark.spec(
    "AX-9.1-1", "AX-9.1-2", "AX-9.1-3", "AX-9.1-4", "AX-9.1-5", "AX-9.1-6", "AX-9.1-7", "AX-9.1-8"
)  # fmt: skip
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in UNLAWFUL.items() for value in values]
)
def test_replaces_invalid_value_and_reports_problem(name: str, value: Any) -> None:
    capability, problems = read(**{name: value}, other="x")
    assert capability == SENSOR
    assert len(problems) == 1
    assert f"`{name}`" in problems[0]


def test_invalid_value_does_not_affect_others() -> None:
    capability, problems = read(latency_class="quick", mutable=False, cost_class="expensive")
    assert len(problems) == 1
    assert (capability.latency_class, capability.mutable) == ("fast", False)
    assert capability.cost_units == 10


@pytest.mark.parametrize("raw", [b"[]", b"5", b"null", b'"fast"', b"{", b""])
def test_rejects_capability_that_is_not_object(raw: bytes) -> None:
    assert read_capability(raw) == (
        DEFAULT_CAPABILITY,
        ["The capability annotation is not an object."],
    )


@given(
    st.dictionaries(
        st.sampled_from(sorted(CAPABILITY_FIELDS)) | json_values.text, json_values.values
    )
)
def test_reads_any_capability_to_valid_values(said: dict[str, Any]) -> None:
    capability, problems = read_capability(json.dumps(said).encode())
    for name in CAPABILITY_FIELDS:
        value = getattr(capability, name)
        assert is_semver(value) if name == "schema_version" else value in LAWFUL[name]
    assert len(problems) <= len(CAPABILITY_FIELDS & said.keys())


@given(st.binary(max_size=200))
def test_reads_or_rejects_any_bytes(raw: bytes) -> None:
    capability, problems = read_capability(raw)
    assert isinstance(capability, Capability)
    assert all(problems)


def test_writes_members_in_specified_order() -> None:
    assert list(json.loads(DEFAULT_CAPABILITY.encode())) == [
        "latency_class", "consistency", "mutable", "reversible", "idempotent", "transport",
        "auth_scope", "cost_class", "availability", "schema_version",
    ]  # fmt: skip
    assert read_capability(SENSOR.encode()) == (SENSOR, [])
    assert with_defaults({}, SENSOR) is SENSOR


# --- what follows from hints ---


@pytest.mark.spec("AX-9.1-11")
def test_unannotated_tool_gets_worst_values() -> None:
    assert msgspec.to_builtins(derive_capability()) == {
        "latency_class": "standard",
        "consistency": "best_effort",
        "mutable": True,
        "reversible": False,
        "idempotent": False,
        "transport": "native",
        "auth_scope": "write",
        "cost_class": "free",
        "availability": "best_effort",
        "schema_version": "0.0.0",
    }
    assert derive_capability() == DEFAULT_CAPABILITY
    assert derive_capability().irreversible_mutable


@pytest.mark.spec("AX-9.1-11")
@pytest.mark.parametrize(
    ("hints", "mutable", "reversible", "idempotent"),
    [
        ({"read_only": True}, False, True, True),
        ({"read_only": True, "destructive": True}, False, True, True),
        ({"read_only": False}, True, False, False),
        ({"destructive": True}, True, False, False),
        ({"destructive": False}, True, True, False),
        ({"idempotent": True}, True, False, True),
        ({"destructive": False, "idempotent": True}, True, True, True),
    ],
)
def test_derives_capability_from_hints(
    hints: dict[str, bool], mutable: bool, reversible: bool, idempotent: bool
) -> None:
    capability = derive_capability(**hints)  # type: ignore[arg-type]
    assert capability.mutable is mutable
    assert capability.reversible is reversible
    assert capability.idempotent is idempotent
    assert capability.auth_scope == ("write" if mutable else "read")
    assert capability.irreversible_mutable is (mutable and not reversible)


# --- latency classes ---


@pytest.mark.spec("AX-7.3-2", "AX-7.3-3", "AX-7.3-4", "AX-7.3-5", "AX-7.3-6")
@pytest.mark.parametrize(
    ("latency_class", "seconds"),
    [("realtime", 0.5), ("fast", 5.0), ("standard", 30.0), ("slow", 120.0), ("batch", None)],
)
def test_latency_class_sets_timeout(latency_class: str, seconds: float | None) -> None:
    assert timeout_for(latency_class) == seconds


@pytest.mark.spec("AX-9.2-4")
def test_slower_class_wins() -> None:
    for place, item in enumerate(LATENCY_CLASSES):
        for other_place, other in enumerate(LATENCY_CLASSES):
            assert slower_class(item, other) == LATENCY_CLASSES[max(place, other_place)]


@pytest.mark.parametrize(
    ("seconds", "latency_class"),
    [
        (0.0, "realtime"),
        (0.5, "realtime"),
        (0.9, "fast"),
        (5.0, "fast"),
        (5.1, "standard"),
        (31, "slow"),
        (120.0, "slow"),
        (121, "batch"),
        (1e9, "batch"),
    ],
)
def test_duration_selects_latency_class(seconds: float, latency_class: str) -> None:
    assert latency_class_for(seconds) == latency_class


# --- advice, cost ---


@pytest.mark.spec("AX-9.1-9")
@pytest.mark.parametrize(
    ("consistency", "careful"), [("strong", False), ("eventual", True), ("best_effort", True)]
)
def test_consistency_sets_advice(consistency: str, careful: bool) -> None:
    advice = advice_for(Capability(consistency=consistency))
    assert advice.read_before_retry is careful
    assert advice.stale_reads is careful


@pytest.mark.parametrize(("cost_class", "units"), [("free", 0), ("metered", 1), ("expensive", 10)])
def test_cost_class_sets_cost_units(cost_class: str, units: int) -> None:
    assert Capability(cost_class=cost_class).cost_units == units
