"""A contract as a tool: its definition, its effect, its approval, and the limits of its calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import errors
from interlock.core.catalog.effects import EffectLevel
from interlock.drivers.contract_tool import approval_floor, definition, effect_level
from interlock.drivers.limits import (
    CallAttempts,
    effective_cost,
    effective_retry,
    effective_timeout_ms,
    is_repeatable,
    override_warnings,
)
from interlock.errors import InterlockError
from interlock.manifests.model import ConnectionOptions, Cost, Retry
from interlock.protocol.capabilities import read_capability
from tests.drivers.driver_decisions import contract, driver, entry, inputs


def tool_definition(name: str = "image.create", **said: Any) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(definition(contract(**said), name=name))
    return message


def test_contract_becomes_valid_tool() -> None:
    outputs = inputs("url", url="string")
    tool = tool_definition(
        inputs=inputs("prompt", prompt="string"), outputs=outputs, timeout_ms=30_000
    )
    assert tool["name"] == "image.create"
    assert tool["title"] == "A contract"
    assert tool["description"] == "Does something."
    assert tool["inputSchema"] == inputs("prompt", prompt="string")
    assert tool["outputSchema"] == outputs
    assert tool["annotations"] == {
        "readOnlyHint": True,
        "destructiveHint": False,
        "idempotentHint": True,
    }
    assert tool["_meta"] == {
        "x-mcpax-capability": {
            "latency_class": "standard",
            "mutable": False,
            "reversible": True,
            "idempotent": True,
            "cost_class": "free",
            "schema_version": "1.4.2",
        }
    }


def test_non_object_outputs_have_no_schema() -> None:
    assert "outputSchema" not in tool_definition(outputs={"type": "string"})
    assert "outputSchema" not in tool_definition(outputs={})
    assert tool_definition(inputs={"properties": {}})["inputSchema"]["type"] == "object"


@pytest.mark.parametrize(
    ("fields", "level", "capability"),
    [
        ({}, EffectLevel.READ_ONLY, (False, True, True)),
        ({"mutates": ("fs:*",), "risk_level": 2}, EffectLevel.MUTATING, (True, True, False)),
        ({"mutates": ("fs:*",), "idempotent": True}, EffectLevel.MUTATING, (True, True, True)),
        ({"mutates": ("fs:*",), "risk_level": 3}, EffectLevel.IRREVERSIBLE, (True, False, False)),
        # What contradicts itself is taken at its worst.
        ({"risk_level": 3}, EffectLevel.IRREVERSIBLE, (True, False, False)),
    ],
)
def test_effect_derives_from_contract(
    fields: dict[str, Any], level: EffectLevel, capability: tuple[bool, bool, bool]
) -> None:
    assert effect_level(contract(**fields)) is level
    tool = tool_definition(**fields)
    found, wrong = read_capability(json.dumps(tool["_meta"]["x-mcpax-capability"]).encode())
    assert wrong == []
    assert (found.mutable, found.reversible, found.idempotent) == capability
    assert tool["annotations"] == {
        "readOnlyHint": not capability[0],
        "destructiveHint": not capability[1],
        "idempotentHint": capability[2],
    }


@pytest.mark.parametrize(
    ("timeout_ms", "latency"),
    [
        (500, "realtime"),
        (5_000, "fast"),
        (30_000, "standard"),
        (120_000, "slow"),
        (120_001, "batch"),
    ],
)
def test_latency_class_derives_from_timeout(timeout_ms: int, latency: str) -> None:
    assert (
        tool_definition(timeout_ms=timeout_ms)["_meta"]["x-mcpax-capability"]["latency_class"]
        == latency
    )


@pytest.mark.parametrize(
    ("cost_class", "cost"),
    [("trivial", "free"), ("metered", "metered"), ("expensive", "expensive")],
)
def test_cost_class_is_mapped(cost_class: str, cost: str) -> None:
    assert (
        tool_definition(cost_class=cost_class)["_meta"]["x-mcpax-capability"]["cost_class"] == cost
    )


def test_deprecated_major_is_announced() -> None:
    notice = {"deprecated_at": "2026-01-01T00:00:00.000Z", "migration_uri": "https://example.com"}
    tool = json.loads(definition(contract(), name="v1.image.create", deprecation=notice))
    assert tool["_meta"]["deprecation"] == notice
    assert tool["name"] == "v1.image.create"


# --- approval ---


@pytest.mark.spec("DR-14.fields-9")
@pytest.mark.parametrize(
    ("approval", "mutates", "floor"),
    [
        ("auto", (), ""),
        ("always", (), "confirm"),
        ("always", ("fs:*",), "confirm"),
        ("on-mutate", (), ""),
        ("on-mutate", ("fs:*",), "confirm"),
        ("policy:finance", (), "confirm"),
    ],
)
def test_approval_floor_derives_from_contract(
    approval: str, mutates: tuple[str, ...], floor: str
) -> None:
    assert approval_floor(contract(approval=approval, mutates=mutates)) == floor


# --- limits ---


@pytest.mark.spec("DR-14.dispatch-2", "DR-14.fields-10", "DR-30.fields-6")
@pytest.mark.parametrize(
    ("of", "by_driver", "by_entry", "connection", "used"),
    [
        (30_000, 10_000, None, 5_000, 5_000),
        (30_000, 10_000, None, 30_000, 10_000),
        (30_000, 10_000, 2_000, 30_000, 2_000),
        (30_000, None, None, 30_000, 30_000),
        (1_000, 5_000, None, 30_000, 1_000),
        (1_000, None, 5_000, 30_000, 1_000),
    ],
)
def test_smallest_timeout_applies(
    of: int, by_driver: int | None, by_entry: int | None, connection: int, used: int
) -> None:
    asked = (
        contract(timeout_ms=of),
        driver(timeout_override_ms=by_driver, connection=ConnectionOptions(timeout_ms=connection)),
        entry(timeout_override_ms=by_entry),
    )
    assert effective_timeout_ms(*asked) == used
    widened = [said for said in (by_driver, by_entry) if said is not None and said > of]
    warnings = [
        warning for warning in override_warnings(*asked) if "timeout_override_ms" in warning
    ]
    assert len(warnings) == len(widened)
    if widened:
        assert "5000 exceeds timeout_ms of the contract; 1000 is used" in warnings[0]


def test_shorter_connection_timeout_is_warned() -> None:
    findings = override_warnings(contract(timeout_ms=120_000), driver(), entry())
    assert len(findings) == 1
    assert "ends its calls after 30000 ms" in findings[0]


@pytest.mark.spec("DR-30.fields-5")
def test_cost_prefers_entry_then_driver_then_contract() -> None:
    of = contract(cost_class="expensive")
    nine = driver(cost=Cost("metered", 9.0, "EUR"))
    assert effective_cost(of, nine, entry(cost=Cost(units_per_call=4.0))) == Cost("metered", 4.0)
    assert effective_cost(of, nine, entry(cost=Cost("trivial"))) == Cost("trivial", 9.0, "EUR")
    assert effective_cost(of, nine, entry()) == Cost("metered", 9.0, "EUR")
    assert effective_cost(of, driver(), entry()) == Cost("expensive")


@pytest.mark.spec("DR-14.dispatch-2")
def test_retry_prefers_entry_then_driver_then_contract() -> None:
    three, two, one = Retry(3), Retry(2), Retry(1)
    assert effective_retry(contract(retry=three), driver(retry=two), entry(retry=one)) is one
    assert effective_retry(contract(retry=three), driver(retry=two), entry()) is two
    assert effective_retry(contract(retry=three), driver(), entry()) is three
    assert effective_retry(contract(), driver(), entry()).max_attempts == 1


LATER = InterlockError(errors.CIRCUIT_OPEN, "Later.")
NO_DEPRECATIONS = InterlockError(errors.UPSTREAM_ERROR, "No.")


def count_dispatches(error: InterlockError, *, executed: bool = True, **said: Any) -> int:
    """How often a call is sent that always fails like this."""
    retry = said.pop("by_entry", None)
    attempts = CallAttempts(contract(**said), driver(), entry(retry=retry))
    sent = 1
    while attempts.next_delay(error, executed=executed) is not None:
        sent += 1
    assert attempts.count == sent
    return sent


@pytest.mark.spec("DR-14.dispatch-1", "DR-14.dispatch-2")
def test_only_safe_retryable_failures_are_retried() -> None:
    two, three = Retry(2), Retry(3)
    assert count_dispatches(LATER, retry=two) == 2
    assert count_dispatches(NO_DEPRECATIONS, retry=two) == 1
    assert count_dispatches(LATER) == 1
    assert count_dispatches(LATER, retry=three, by_entry=Retry(1)) == 1
    assert count_dispatches(LATER, retry=two, mutates=("fs:*",)) == 1
    assert count_dispatches(LATER, retry=two, mutates=("fs:*",), idempotent=True) == 2
    # What certainly was not executed cannot happen twice.
    assert count_dispatches(LATER, retry=two, mutates=("fs:*",), executed=False) == 2
    assert count_dispatches(LATER, retry=two, mutates=("fs:*",), idempotent=True, risk_level=3) == 1
    assert not is_repeatable(contract(risk_level=3))
    findings = override_warnings(contract(mutates=("fs:*",), retry=two), driver(), entry())
    assert "never tried again" in findings[0]


def test_backoff_follows_retry_policy() -> None:
    def pauses(retry: Retry) -> list[float]:
        attempts = CallAttempts(contract(retry=retry), driver(), entry())
        found = []
        while (pause := attempts.next_delay(LATER)) is not None:
            found.append(pause)
        return found

    assert pauses(Retry(4, "fixed", 250)) == [0.25, 0.25, 0.25]
    assert pauses(Retry(4, "exponential", 250)) == [0.25, 0.5, 1.0]
    assert pauses(Retry(20, "exponential", 1000))[-1] == 60.0


@given(
    st.integers(100, 10**6),
    st.none() | st.integers(100, 10**6),
    st.none() | st.integers(100, 10**6),
    st.integers(100, 10**6),
)
def test_overrides_never_extend_timeout(
    of: int, by_driver: int | None, by_entry: int | None, connection: int
) -> None:
    made = driver(
        timeout_override_ms=by_driver, connection=ConnectionOptions(timeout_ms=connection)
    )
    used = effective_timeout_ms(contract(timeout_ms=of), made, entry(timeout_override_ms=by_entry))
    actual = [item for item in (of, by_driver, by_entry, connection) if item is not None]
    assert used in actual
    assert all(used <= item for item in actual)
