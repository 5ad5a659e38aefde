"""Tests of quotas and API limits: warn, pause, reject, release, reset and restart."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from interlock import errors
from interlock.aql.builtin_operations import BuiltinUpstream
from interlock.aql.config import AqlConfig
from interlock.aql.error_mapping import ErrorReport
from interlock.aql.language import errors as aql_errors
from interlock.aql.language.errors import AqlError
from interlock.aql.operations import Operation
from interlock.aql.quotas import CONTINUE, QuotaApproval, Quotas, quota_operations
from interlock.aql.request import AqlRequest, AqlWarning
from interlock.aql.usage_counters import CounterStore
from interlock.core.call import (
    Call,
    Caller,
    Outcome,
    RelayedError,
    UpstreamLostError,
    UpstreamResponseError,
)
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import PLAIN_VIEW
from interlock.protocol.mcp import Era
from interlock.protocol.mcpax import STATUS
from tests.aql.operation_catalogs import config, operation_catalog
from tests.support.calls import tool_call
from tests.support.clock import ManualClock
from tests.support.offerings import offer

# The tenth of a minute, at half past: no period ends within a few seconds.
NOON = datetime(2026, 2, 4, 12, 30, 6, tzinfo=UTC).timestamp()
CLERK = Caller("clerk", kind="token")
GUARD = Caller("guard", kind="token")
BOOK = operation_catalog(
    offer("forge", ["get_issue", "create_issue", "delete_repo"]), offer("mail", ["send_mail"])
)
HOURLY = {"metric": "requests_per_hour", "warn": 8, "pause": 9, "hard_stop": 10}


def operation(name: str = "forge_get_issue") -> Operation:
    found = BOOK.find(name)
    assert found is not None
    return found


class QuotaBench:
    """Quotas with manual clocks."""

    def __init__(self, store: Any = None, *, asks: bool = True, **settings: Any) -> None:
        """`asks`: whether a human can be asked."""
        self.clock = ManualClock(100.0)
        self.wall = ManualClock(NOON)
        self.config: AqlConfig = config(**settings)
        self.quotas = Quotas(
            self.config,
            store,
            self.clock,
            self.wall,
            hidden=lambda: own.hidden[CONTINUE] if asks else None,
        )
        own = BuiltinUpstream([], quota_operations(self.quotas))
        own.offering()
        self.made: list[Call] = []

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall.now += seconds

    def call(
        self, name: str = "forge_get_issue", caller: Caller = CLERK, continued: str = ""
    ) -> QuotaApproval | list[AqlWarning]:
        """What is held, or the warnings of a call that goes on."""
        call = tool_call(operation(name).canonical)
        call.caller = caller
        call.operation_request = asked = AqlRequest(operation(name), PLAIN_VIEW, None, call=call)
        self.made.append(call)
        return self.quotas.admit(call, asked, continued) or asked.warnings or []

    def refused(self, *arguments: Any, **more: Any) -> AqlError:
        with pytest.raises(AqlError) as caught:
            self.call(*arguments, **more)
        assert aql_errors.is_safe_message(caught.value.message)
        return caught.value

    def ended(
        self,
        outcome: bytes | None = b"{}",
        error: InterlockError | None = None,
        *,
        dispatched: bool = True,
    ) -> None:
        known = None if error is not None or outcome is None else Outcome(outcome, Era.SESSION)
        self.made[-1].is_dispatched = dispatched
        self.quotas.on_result(self.made[-1], known, error)

    def let_go_on(self, pause: QuotaApproval, approval: str) -> Any:
        """As the gate does it, once a human gave a proof."""
        call = tool_call("aql.continue_quota")
        call.approval_id = approval
        asked = AqlRequest(operation(), PLAIN_VIEW, None, json.loads(pause.arguments), call)
        [native] = quota_operations(self.quotas)
        return native.answer(asked)

    def status(self, caller: Caller = CLERK) -> dict[str, Any]:
        call = tool_call("aql.introspect")
        call.caller = caller
        return self.quotas.status(AqlRequest(operation(), PLAIN_VIEW, None, call=call))


def test_inactive_without_settings() -> None:
    desk = QuotaBench()
    assert not desk.quotas.active
    assert desk.call() == []
    assert desk.status() == {
        "adapter": "interlock", "api_limits": [], "quotas": [], "next_reset": None,
    }  # fmt: skip


@pytest.mark.spec("AQ-RL-3.2-1", "AQ-ERR-5.5-1", "AQ-RL-6.1-1", "AQ-RL-4.4-1")
def test_quota_warns_then_pauses_then_rejects() -> None:
    desk = QuotaBench(quotas=[HOURLY])
    states = []
    for _ in range(7):
        assert desk.call() == []
    states.append(desk.status()["quotas"][0]["status"])
    for _ in range(2):
        [warning] = desk.call()
        assert isinstance(warning, AqlWarning)
        assert warning.code == "RATE_LIMIT_QUOTA_WARNING"
        states.append(desk.status()["quotas"][0]["status"])
    held = desk.call()
    assert isinstance(held, QuotaApproval)
    again = desk.call()
    assert again == held
    assert desk.quotas.pause_details(json.loads(held.arguments)) == {
        "metric": "requests_per_hour",
        "current": 9.0,
        "pause_threshold": 9.0,
        "hard_stop_threshold": 10.0,
    }
    waits = desk.made[-1]
    assert (waits.name, waits.arguments) == ("aql.continue_quota", held.arguments)
    waits.decoded_arguments = json.loads(held.arguments)
    required = ErrorReport(
        "CONFIRMATION_REQUIRED", "m",
        {"operation": "x", "confirmation_token": "conf_abc", "expires_at": "2026-02-04T12:40:00Z"},
    )  # fmt: skip
    shown = desk.quotas.report_pause(waits, required)
    assert shown.code == "RATE_LIMIT_QUOTA_PAUSE"
    assert aql_errors.is_safe_message(shown.message)
    assert set(shown.details) == {
        "metric", "current", "pause_threshold", "hard_stop_threshold", "confirmation_token",
        "expires_at",
    }  # fmt: skip
    # The token approves nothing by itself.
    assert isinstance(desk.call(continued="conf_abc"), QuotaApproval)
    done = desk.let_go_on(held, "abc")
    assert done["status"] == "continued"
    assert isinstance(desk.call(continued="conf_abc"), list)
    states.append(desk.status()["quotas"][0]["status"])
    exhausted = desk.refused()
    assert exhausted.code == "RATE_LIMIT_QUOTA_EXHAUSTED"
    assert exhausted.data == {
        "metric": "requests_per_hour",
        "current": 10.0,
        "hard_stop_threshold": 10.0,
        "resets_at": "2026-02-04T13:00:00Z",
    }
    assert states == ["ok", "warn", "paused", "exhausted"]
    assert desk.call(caller=GUARD) == []


@pytest.mark.spec("AQ-RL-4.4-1")
def test_token_counts_once_for_its_caller() -> None:
    desk = QuotaBench(quotas=[{"metric": "requests_per_hour", "warn": 1, "pause": 1}])
    desk.call()
    held = desk.call()
    assert isinstance(held, QuotaApproval)
    desk.let_go_on(held, "abc")
    desk.call(continued="conf_abc")
    assert desk.refused(continued="conf_abc").code == "TOKEN_ALREADY_USED"
    assert isinstance(desk.call(), list)
    assert desk.refused(continued="conf_other").code == "TOKEN_INVALID"
    assert desk.refused(caller=GUARD, continued="conf_abc").code == "TOKEN_INVALID"


def test_pause_rejects_without_approvals() -> None:
    desk = QuotaBench(asks=False, quotas=[{"metric": "requests_per_hour", "warn": 1, "pause": 1}])
    desk.call()
    error = desk.refused()
    assert error.code == "RATE_LIMIT_QUOTA_PAUSE"
    assert error.data == {"metric": "requests_per_hour", "current": 1.0, "pause_threshold": 1.0}


def test_lifted_pause_ends_with_quota_period() -> None:
    desk = QuotaBench(quotas=[{"metric": "requests_per_minute", "warn": 1, "pause": 1}])
    desk.call()
    held = desk.call()
    assert isinstance(held, QuotaApproval)
    desk.advance(60)
    with pytest.raises(AqlError) as caught:
        desk.let_go_on(held, "abc")
    assert caught.value.code == "CONFLICT_INVALID_STATE"
    assert isinstance(desk.call(), list)
    assert isinstance(desk.call(), QuotaApproval)


@pytest.mark.parametrize(
    ("metric", "length"),
    [
        ("requests_per_minute", 60), ("requests_per_hour", 3600), ("requests_per_day", 86_400),
        ("cost_per_hour", 3600), ("cost_per_day", 86_400), ("cost_per_month", 28 * 86_400),
    ],
)  # fmt: skip
def test_counts_each_metric_per_period(metric: str, length: int) -> None:
    desk = QuotaBench(
        quotas=[{"metric": metric, "warn": 1, "pause": 1, "hard_stop": 2}],
        api_limits=[{"limit": 1_000, "window": "day", "cost": 1.0}],
    )
    desk.call()
    assert isinstance(desk.call(), QuotaApproval)
    assert desk.status()["quotas"][0]["current"] == 1
    desk.advance(length)
    assert isinstance(desk.call(), list)
    assert desk.status()["quotas"][0]["current"] == 1


@pytest.mark.spec("AQ-RL-7.4-1")
def test_sums_costs_exactly() -> None:
    desk = QuotaBench(
        quotas=[{"metric": "cost_per_day", "warn": 50, "pause": 60}],
        api_limits=[{"limit": 1_000, "server": "forge", "window": "day", "cost": 0.01}],
    )
    for _ in range(100):
        desk.call()
    desk.call("mail_send_mail")
    assert desk.status()["quotas"][0]["current"] == 1.0


@pytest.mark.spec("AQ-RL-2.2-1", "AQ-RL-4.2-1", "AQ-ERR-5.5-1")
def test_counts_each_scope_separately() -> None:
    desk = QuotaBench(
        api_limits=[
            {"limit": 4, "scope": "global", "server": "forge", "window": "minute"},
            {"limit": 2, "scope": "endpoint", "endpoint": "forge_get_*", "window": "minute"},
            {"limit": 1, "scope": "category", "category": "DELETE", "window": "hour"},
        ]
    )
    desk.call("forge_get_issue")
    desk.call("forge_get_issue")
    error = desk.refused("forge_get_issue")
    assert error.code == "RATE_LIMIT_EXCEEDED"
    assert error.data is not None
    assert set(error.data) == {
        "limit", "remaining", "window", "resets_at", "retry_after_seconds",
    }  # fmt: skip
    assert (error.data["limit"], error.data["window"], error.data["remaining"]) == (2, "minute", 0)
    assert 60 <= error.data["retry_after_seconds"] <= 61
    desk.call("forge_delete_repo")
    assert desk.refused("forge_delete_repo").data["window"] == "hour"  # type: ignore[index]
    desk.call("forge_create_issue")
    assert desk.refused("forge_create_issue").data["limit"] == 4  # type: ignore[index]
    desk.call("mail_send_mail")
    shown = desk.status()["api_limits"]
    assert [one["remaining"] for one in shown] == [0, 0, 0]
    assert shown[0]["resets_at"].endswith("Z")
    desk.advance(61)
    desk.call("forge_get_issue")


REQUIRED = json.dumps(
    {
        "content": [],
        "isError": True,
        "structuredContent": {"confirmation_id": "x", "expires_at": "2026-02-04T13:00:00Z"},
        "_meta": {STATUS: errors.CONFIRMATION_REQUIRED.name},
    }
).encode()


@pytest.mark.parametrize("dispatched", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        AqlError("VALIDATION_UNKNOWN_PARAM", "m"),
        InterlockError(errors.DENIED, "m"),
        InterlockError(errors.DEADLINE_EXCEEDED, "m"),
        InterlockError(errors.SHUTTING_DOWN, "m"),
        RelayedError(errors.DENIED, "m"),
        UpstreamResponseError(-1, "m", None),
        UpstreamLostError(errors.UPSTREAM_LOST, "m", was_sent=False),
        None,
    ],
)
def test_releases_calls_that_were_not_dispatched(
    error: InterlockError | None, dispatched: bool
) -> None:
    desk = QuotaBench(
        quotas=[HOURLY], api_limits=[{"limit": 5, "window": "hour"}, {"limit": 5, "cost": 1.0}]
    )
    desk.call()
    desk.ended(error=error, dispatched=dispatched)
    desk.ended(error=error, dispatched=dispatched)
    status = desk.status()
    assert status["quotas"][0]["current"] == int(dispatched)
    assert [one["remaining"] for one in status["api_limits"]] == [5 - dispatched] * 2


def test_pending_call_uses_no_quota() -> None:
    desk = QuotaBench(quotas=[HOURLY])
    desk.call()
    desk.ended(REQUIRED)
    assert desk.status()["quotas"][0]["current"] == 0


def test_cooldown_delays_next_call() -> None:
    desk = QuotaBench(operations={"forge.delete_*": {"cooldown": 5.0}})
    assert desk.quotas.active
    desk.call("forge_delete_repo")
    desk.advance(2)
    error = desk.refused("forge_delete_repo")
    assert error.code == "RATE_LIMIT_EXCEEDED"
    assert error.data is not None
    assert error.data["retry_after_seconds"] == 3
    desk.call("forge_get_issue")
    desk.call("forge_delete_repo", GUARD)
    desk.advance(3)
    desk.call("forge_delete_repo")


def test_config_change_keeps_counts() -> None:
    desk = QuotaBench(api_limits=[{"limit": 5}], quotas=[HOURLY])
    desk.call()
    desk.quotas.configure(
        config(api_limits=[{"limit": 1}, {"limit": 9, "window": "day"}], quotas=[HOURLY])
    )
    assert desk.refused().data["limit"] == 1  # type: ignore[index]
    assert desk.status()["quotas"][0]["current"] == 1


# -- through a restart


async def use_and_restart(path: Path) -> list[Any]:
    """Use quotas, restart, and return the counts."""
    loop = asyncio.get_running_loop()
    settings: dict[str, Any] = {
        "quotas": [{"metric": "requests_per_hour", "warn": 2, "pause": 3}],
        "api_limits": [{"limit": 5, "window": "hour"}],
    }
    seen: list[Any] = []
    for run in range(3):
        store = CounterStore(path, deliver=loop.call_soon_threadsafe)
        desk = QuotaBench(store, **settings)
        desk.quotas.start()
        if run == 0:
            for _ in range(3):
                desk.call()
            held = desk.call()
            assert isinstance(held, QuotaApproval)
            desk.call(caller=GUARD)
            desk.ended(error=InterlockError(errors.DENIED, "m"), dispatched=False)
        elif run == 1:
            held = desk.call()
            assert isinstance(held, QuotaApproval)
            desk.let_go_on(held, "abc")
        else:
            seen.append(desk.call())
        seen.append(desk.status()["quotas"][0]["current"])
        seen.append(desk.status()["api_limits"][0]["remaining"])
        store.close()
        await asyncio.sleep(0)
    return seen


@pytest.mark.spec("AQ-RL-7.2-1")
def test_counts_and_lifted_pauses_survive_restart(tmp_path: Path) -> None:
    seen = asyncio.run(use_and_restart(tmp_path / "state" / "counters.db"))
    assert seen[:4] == [3, 2, 3, 2]
    warnings = seen[4]
    assert [one.code for one in warnings] == ["RATE_LIMIT_QUOTA_WARNING"]
    assert seen[5:] == [4, 1]


async def test_counts_without_writable_store(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    folder = tmp_path / "taken"
    folder.write_bytes(b"a file where a folder should be")
    store = CounterStore(folder / "counters.db", deliver=loop.call_soon_threadsafe)
    desk = QuotaBench(store, quotas=[HOURLY])
    for _ in range(9):
        desk.call()
    assert isinstance(desk.call(), QuotaApproval)
    store.close()
