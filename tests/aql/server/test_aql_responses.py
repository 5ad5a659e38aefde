"""Tests of the codes, limits, times and presets of a running node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from interlock.aql.config import AqlConfig, AqlLimits, OperationConfig, QuotaConfig
from interlock.aql.language.errors import is_safe_message
from interlock.core.config.trust import PolicyConfig, RuleConfig
from tests.aql.language.schemas import OPERATION_RESULT, matches_schema
from tests.aql.server.aql_client import AqlClient
from tests.support.http_client import message
from tests.support.node import NodeThread
from tests.support.tool_server import ToolServer

MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T[0-9:.]+\S*")
DEEP: Any = {}
for _ in range(20):
    DEEP = {"a": DEEP}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    running = NodeThread(
        tmp_path_factory.mktemp("aql"),
        workshops={"shop": ToolServer()},
        policy=PolicyConfig(
            default="allow", rules=[RuleConfig(name="no", tools=["shop.report"], then="deny")]
        ),
        aql=AqlConfig(
            limits=AqlLimits(depth=16),
            operations={"shop.*": OperationConfig(danger="safe")},
            quotas=[QuotaConfig("requests_per_day", 900, 1_000)],
        ),
    )
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(node: NodeThread) -> AqlClient:
    return AqlClient(node, "?view=aql-single")


@pytest.mark.spec("AQ-ERR-4.1-1", "AQ-5.1-1", "AQ-5.1-2")
@pytest.mark.parametrize(
    ("code", "operation", "params"),
    [
        ("VALIDATION_MISSING_PARAM", "get_note", {}),
        ("VALIDATION_INVALID_TYPE", "shop_echo", {"text": 7}),
        ("VALIDATION_UNKNOWN_PARAM", "shop_echo", {"text": "x", "txt": "y"}),
        ("VALIDATION_INVALID_ENCODING", "shop_echo", {"text": "a\0b"}),
        ("VALIDATION_PAYLOAD_TOO_LARGE", "shop_echo", {"text": DEEP}),
        ("NOT_FOUND_OPERATION", "shop_ecko", {}),
        ("NOT_FOUND_RESOURCE", "get_note", {"id": "nobody"}),
        ("PERMISSION_DENIED", "shop_report", {}),
        ("INTERNAL_ERROR", "shop_fail", {"code": -32050}),
    ],
)
def test_returns_each_base_error_code(
    client: AqlClient, code: str, operation: str, params: Any
) -> None:
    answer = client.ask(operation, params)
    assert matches_schema(OPERATION_RESULT, answer)
    assert answer["error"]["code"] == code, answer
    assert is_safe_message(answer["error"]["message"])


@pytest.mark.spec("AQ-4.7.1-1")
def test_answers_invalid_text_with_aql_error(client: AqlClient) -> None:
    body = message(
        "tools/call",
        {"name": "mcp_aql", "arguments": {"operation": "shop_echo", "params": {"text": "@@"}}},
    )
    for broken in (b"\xc0\x80", b"\\ud800"):
        answer = client.send(body.replace(b"@@", broken), name="mcp_aql")
        assert answer.status == 200, answer
        error = answer.result["structuredContent"]["error"]
        assert error["code"] == "VALIDATION_INVALID_ENCODING"
        assert error["details"]["location"]


@pytest.mark.spec("AQ-4.7.5-4", "AQ-4.7.5-5")
def test_enforces_described_limits(client: AqlClient) -> None:
    assert client.introspect()["_protocol"]["limits"] == {
        "max_request_size": 1_048_576,
        "max_response_size": 10_485_760,
        "max_string_length": 1_048_576,
        "max_array_elements": 10_000,
        "max_nesting_depth": 16,
    }
    refused = client.ask("shop_echo", {"text": DEEP})["error"]["details"]
    assert (refused["limit_type"], refused["limit_value"]) == ("nesting_depth", 16)


@pytest.mark.spec("AQ-4.7.6-1")
def test_introspection_says_what_null_does_in_an_update(client: AqlClient) -> None:
    operation = client.introspect(name="update_note")["operation"]
    assert "null removes a field" in operation["description"]


@pytest.mark.spec("AQ-8.6.1-2")
def test_safety_loop_is_off_by_default(client: AqlClient) -> None:
    assert client.introspect()["_protocol"]["execution_safety_loop"] == "disabled"


def find_timestamps(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [one for each in value.values() for one in find_timestamps(each)]
    if isinstance(value, list):
        return [one for each in value for one in find_timestamps(each)]
    return [value] if isinstance(value, str) and MOMENT.fullmatch(value) else []


@pytest.mark.spec("AQ-4.7.2-2", "AQ-4.7.2-1")
def test_node_times_are_utc(client: AqlClient) -> None:
    note = client.ask("create_note", {"title": "times", "body": "b"})
    started = client.ask("shop_echo", {"text": "x"}, _async=True)
    answers = [
        note,
        started,
        client.ask("list_notes", {}),
        client.ask("list_executions", {"preset": "full"}),
        client.ask("introspect", {"query": "quota_status"}),
    ]
    found = find_timestamps(answers)
    assert len(found) >= 5
    assert [one for one in found if not one.endswith("Z")] == []


@pytest.mark.spec("AQ-FS-3.2-1")
def test_presets_and_fields_of_notes(client: AqlClient) -> None:
    made = client.ask("create_note", {"title": "Shown", "body": "word " * 200})["data"]
    whole = client.ask("get_note", {"id": made["id"]})["data"]
    [listed] = client.ask("list_notes", {"filter": {"title": "Shown"}})["data"]["items"]
    [found] = client.ask("search_notes", {"query": "Shown"})["data"]["items"]
    assert set(whole) > set(listed) > set(found)
    assert whole["body"] == "word " * 200
    shown = client.introspect(name="list_notes")["operation"]["parameters"]
    [preset] = [one for one in shown if one["name"] == "preset"]
    assert preset["enum"] == ["minimal", "standard", "full"]


@pytest.mark.spec("AQ-RL-6.1-1")
def test_introspects_quota_status(client: AqlClient) -> None:
    def status() -> Any:
        return client.ask("introspect", {"query": "quota_status"})["data"]["quota_status"]

    before = status()
    client.ask("shop_echo", {"text": "x"})
    after = status()
    assert set(before) == {"adapter", "api_limits", "quotas", "next_reset"}
    [quota] = after["quotas"]
    assert quota["status"] == "ok"
    assert quota["current"] == before["quotas"][0]["current"] + 1
    assert set(quota) >= {"metric", "current", "warn", "pause", "hard_stop", "status"}


@pytest.mark.spec("AQ-TRU-6.4-1")
def test_introspects_trust_level(client: AqlClient) -> None:
    told = client.ask("introspect", {"query": "adapter_info"})["data"]["adapter_info"]
    [shop] = [one for one in told["namespaces"] if one["namespace"] == "shop"]
    assert shop["trust_level"] == "validated"
