"""Tests of delays that servers request by their rate limits."""

from __future__ import annotations

from typing import Any

import pytest

from interlock import errors
from interlock.aql.language.errors import AqlError
from interlock.aql.quotas import QuotaApproval, wait_of
from interlock.core.call import Outcome, RelayedError, UpstreamLostError, UpstreamResponseError
from interlock.errors import InterlockError
from interlock.protocol.mcp import Era
from tests.aql.test_quotas import CLERK, GUARD, HOURLY, REQUIRED, QuotaBench, operation
from tests.support.calls import tool_call

RATE_LIMITED = b'{"isError":true,"content":[{"type":"text","text":"429 Too Many Requests: %b"}]}'


@pytest.mark.spec("AQ-RL-4.2-1")
@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (b"Retry-After: 30", 30), (b"please retry after 45 seconds", 45),
        (b"try again in 2 minutes", 120), (b"retry_after_ms: 1500", 2), (b"wait 10s", 10),
        (b"Retry-After: 999999", 3600),
    ],
)  # fmt: skip
def test_waits_as_long_as_server_requests(words: bytes, seconds: int) -> None:
    desk = QuotaBench(api_limits=[{"limit": 100}])
    desk.call()
    desk.ended(RATE_LIMITED % words)
    error = desk.refused("forge_create_issue")
    assert error.code == "RATE_LIMIT_EXCEEDED"
    assert error.data is not None
    assert error.data["retry_after_seconds"] == seconds
    desk.call("mail_send_mail")
    desk.advance(seconds)
    desk.call()


def test_reads_no_wait_from_unclear_errors() -> None:
    assert wait_of(Outcome(RATE_LIMITED % b"later", Era.SESSION), None) == 0
    assert wait_of(Outcome(b'{"isError":true,"content":[]}', Era.SESSION), None) == 0
    prose = b'{"content":[{"type":"text","text":"retry after 5"}]}'
    assert wait_of(Outcome(prose, Era.SESSION), None) == 0
    assert wait_of(None, None) == 0
    # What this node refuses, or one below, is not what a server said.
    own = InterlockError(errors.BUDGET_EXCEEDED, "retry after 5", {"retry_after_ms": 1500})
    assert wait_of(None, own) == 0
    below = RelayedError(errors.BUDGET_EXCEEDED, "retry after 5", {"retry_after_ms": 1500})
    assert wait_of(None, below) == 0
    assert wait_of(None, AqlError("RATE_LIMIT_EXCEEDED", "Try again in 3600 s.")) == 0
    answered = UpstreamResponseError(-32000, "rate limit exceeded, retry after 9 s", None)
    assert wait_of(None, answered) == 9
    assert wait_of(None, UpstreamResponseError(-32000, "wait 9 s", None)) == 0
    gone = UpstreamLostError(
        errors.UPSTREAM_UNAVAILABLE, "429, Retry-After: 7", was_sent=True, status=429
    )
    assert wait_of(None, gone) == 7
    other = InterlockError(errors.CIRCUIT_OPEN, "m", {"retry_after_ms": 1500})
    assert wait_of(None, other) == 0


def test_respects_rate_limit_of_server_without_quotas() -> None:
    desk = QuotaBench()
    desk.call()
    desk.ended(RATE_LIMITED % b"Retry-After: 30")
    assert desk.quotas.active
    assert desk.refused().code == "RATE_LIMIT_EXCEEDED"


@pytest.mark.parametrize(
    "settings",
    [
        {"operations": {"forge.delete_*": {"cooldown": 3600.0}}},
        {"api_limits": [{"scope": "endpoint", "endpoint": "forge_delete_repo", "limit": 1}]},
    ],
)
def test_own_rejection_delays_no_other_call(settings: dict[str, Any]) -> None:
    desk = QuotaBench(**settings)
    desk.call("forge_delete_repo")
    desk.ended()
    error = desk.refused("forge_delete_repo")
    desk.ended(error=error)
    assert desk.call("forge_get_issue", GUARD) == []
    assert desk.call("forge_get_issue") == []


@pytest.mark.parametrize(("cooldown", "window"), [(1, "second"), (5, "minute"), (3600, "hour")])
def test_cooldown_rejection_has_its_own_details(cooldown: float, window: str) -> None:
    desk = QuotaBench(operations={"forge.delete_*": {"cooldown": float(cooldown)}})
    desk.call("forge_delete_repo")
    data = desk.refused("forge_delete_repo").data
    assert data is not None
    assert (data["limit"], data["window"], data["retry_after_seconds"]) == (1, window, cooldown)


def test_retry_after_in_result_delays_only_its_caller() -> None:
    desk = QuotaBench()
    desk.call()
    desk.ended(RATE_LIMITED % b"Retry-After: 30")
    assert desk.refused().code == "RATE_LIMIT_EXCEEDED"
    assert desk.call(caller=GUARD) == []
    [shown] = desk.status()["api_limits"]
    assert (shown["server"], shown["limit"], shown["window"]) == ("forge", 0, "minute")
    assert desk.status(GUARD)["api_limits"] == []


@pytest.mark.parametrize("sent", [True, False])
def test_status_429_delays_every_caller(sent: bool) -> None:
    desk = QuotaBench()
    desk.call()
    words = "429 Too Many Requests, Retry-After: 30"
    desk.ended(
        error=UpstreamLostError(errors.UPSTREAM_UNAVAILABLE, words, was_sent=sent, status=429)
    )
    for caller in (CLERK, GUARD):
        assert desk.refused(caller=caller).data["retry_after_seconds"] == 30  # type: ignore[index]
    desk.advance(30)
    assert desk.call(caller=GUARD) == []
    assert desk.call() == []
    assert not desk.quotas.active


def test_unexecuted_call_releases_cooldown() -> None:
    desk = QuotaBench(operations={"forge.delete_*": {"cooldown": 5.0}})
    desk.call("forge_delete_repo")
    desk.ended(REQUIRED)
    assert desk.call("forge_delete_repo") == []
    desk.ended()
    assert desk.refused("forge_delete_repo").code == "RATE_LIMIT_EXCEEDED"


def test_limits_count_plain_calls() -> None:
    desk = QuotaBench(
        quotas=[HOURLY], api_limits=[{"limit": 1, "scope": "category", "category": "READ"}]
    )

    def plain(name: str, approval: str = "") -> bool:
        call = tool_call(operation(name).canonical)
        call.caller, call.approval_id = CLERK, approval
        return desk.quotas.admit_plain(call, operation(name))

    assert desk.quotas.configured
    assert plain("forge_get_issue")
    with pytest.raises(AqlError, match="1 per minute"):
        plain("forge_get_issue")
    for _ in range(8):
        assert plain("forge_create_issue")
    assert not plain("forge_create_issue")
    assert isinstance(desk.call("forge_create_issue"), QuotaApproval)
    assert plain("forge_create_issue", "a1")
    with pytest.raises(AqlError, match="used up"):
        plain("forge_create_issue", "a2")
