"""Tests of the rules that apply to plain tool calls: closed views, limits and quotas."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from interlock import errors
from interlock.aql.config import ApiLimit, AqlConfig, ClientView, OperationConfig, QuotaConfig
from interlock.trust.authorization import PLAIN
from tests.aql.server.aql_client import ERAS, FIVE, AqlClient
from tests.aql.server.test_aql_views import READ, list_tools_as
from tests.support.http_client import initialize, message
from tests.support.node import NodeThread

Start = Callable[..., NodeThread]
ECHO = {"text": "x"}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("client", ["anybody", "interlock", "interlock-cli"])
def test_denied_plain_view_cannot_be_named_over_http(
    start_node: Start, era: str, client: str
) -> None:
    node = start_node(aql=AqlConfig(plain="deny"))
    assert list_tools_as(node, client, era) == FIVE
    assert list_tools_as(node, client, era, "?view=auto") == FIVE
    # Nor can a tool be called there by its own name.
    asked = AqlClient(node, "", era).request(
        "tools/call", {"name": "shop.echo", "arguments": ECHO}, "shop.echo"
    )
    assert asked.error["code"] == errors.UNKNOWN_TOOL.code
    refused = node.once(
        node.http(message("initialize", initialize(client=client), 0), path="/mcp?view=plain")
    )
    assert refused.status == 400
    assert "not open here" in refused.error["message"]


def plain_call(node: NodeThread, era: str) -> Callable[[], str]:
    client = AqlClient(node, "?view=plain", era)

    def call() -> str:
        """`ok`, the word of what went wrong, or `isError`."""
        asked = client.request("tools/call", {"name": "shop.echo", "arguments": ECHO}, "shop.echo")
        found = asked.json
        if "error" in found:
            return str(found["error"]["message"])
        return "isError" if found["result"].get("isError") else "ok"

    return call


@pytest.mark.parametrize("era", ERAS)
def test_rate_limits_apply_to_plain_calls(start_node: Start, era: str) -> None:
    settings = AqlConfig(
        api_limits=[ApiLimit(limit=2, scope="endpoint", endpoint="shop_echo", window="day")],
        operations=READ,
    )
    node = start_node(aql=settings)
    call = plain_call(node, era)
    assert AqlClient(node, "?view=aql", era).ask("shop_echo", ECHO)["success"] is True
    assert call() == "ok"
    assert "2 per day" in call()
    told = AqlClient(node, "?view=aql", era).ask("shop_echo", ECHO)
    assert told["error"]["code"] == "RATE_LIMIT_EXCEEDED"


@pytest.mark.parametrize("era", ERAS)
def test_cooldown_applies_to_plain_calls(start_node: Start, era: str) -> None:
    call = plain_call(
        start_node(aql=AqlConfig(operations={"shop.echo": OperationConfig(cooldown=900)})), era
    )
    assert call() == "ok"
    assert "cooldown between calls" in call()


@pytest.mark.parametrize("era", ERAS)
def test_quota_pauses_and_ends_plain_calls(start_node: Start, era: str) -> None:
    waits = QuotaConfig(metric="requests_per_day", warn=1, pause=1, hard_stop=3)
    call = plain_call(start_node(aql=AqlConfig(quotas=[waits])), era)
    assert call() == "ok"
    assert call() != "ok"
    ends = QuotaConfig(metric="requests_per_day", warn=1, pause=2, hard_stop=2)
    call = plain_call(start_node(aql=AqlConfig(quotas=[ends])), era)
    assert [call(), call()] == ["ok", "ok"]
    assert "is used up" in call()


def test_plain_calls_skip_danger_check_without_settings(start_node: Start) -> None:
    view = ClientView(view="aql", clients=["someone"])
    node = start_node(aql=AqlConfig(clients=[view]))
    danger = node.node.trust.authorizer.installed["danger"]
    assert not danger.applies_to & PLAIN
