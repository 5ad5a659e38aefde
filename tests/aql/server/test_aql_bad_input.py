"""Tests of invalid AQL requests as bytes, in both protocol generations."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from interlock.aql.config import AqlConfig, OperationConfig
from interlock.aql.language.errors import is_safe_message
from tests.aql.server.aql_client import ERAS, AqlClient, read_code, read_envelope
from tests.support.http_client import meta
from tests.support.node import NodeThread

READ = {
    "shop.echo": OperationConfig(category="READ", danger="safe"),
    "shop.large": OperationConfig(category="READ", danger="safe"),
}
PATH = "mcp_aql_read"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    running = NodeThread(tmp_path_factory.mktemp("hostile"), aql=AqlConfig(operations=READ))
    yield running
    assert running.alive()
    running.stop()


@pytest.fixture(params=ERAS)
def client(node: NodeThread, request: pytest.FixtureRequest) -> AqlClient:
    return AqlClient(node, "?view=aql", request.param)


def call_body(client: AqlClient, arguments: bytes) -> bytes:
    """Return a call with these bytes as arguments."""
    about = b"" if client.session is not None else b',"_meta":' + json.dumps(meta()).encode()
    return (
        b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"mcp_aql_read",'
        b'"arguments":' + arguments + about + b"}}"
    )


def call_and_get_error(client: AqlClient, arguments: bytes) -> Any:
    """Call with invalid arguments and return the failure. No call may reach the server."""
    heard = len(client.node.shop.calls("echo"))
    answer = client.send(call_body(client, arguments), name=PATH)
    assert answer.status == 200, answer
    assert answer.json["id"] == 9
    failure = read_envelope(answer.result)
    assert failure["success"] is False
    assert is_safe_message(failure["error"]["message"]), failure
    assert len(client.node.shop.calls("echo")) == heard
    return failure


def echo_arguments(text: bytes) -> bytes:
    return b'{"operation":"shop_echo","params":{"text":' + text + b"}}"


@pytest.mark.spec("AQ-4.7-1")
@pytest.mark.parametrize(
    "text",
    [
        b'"\xff"',
        b'"\xc0\xaf"',
        b'"\xe0\x80\xaf"',
        b'"\xf0\x80\x80\xaf"',
        b'"\xed\xa0\x80"',
        b'"\xed\xbf\xbf"',
        b'"\xf4\x90\x80\x80"',
        b'"\xe2\x82"',
        b'"\x80"',
        b'"\xfe\xff"',
    ],
)
def test_rejects_invalid_utf8_with_aql_code(client: AqlClient, text: bytes) -> None:
    failure = call_and_get_error(client, echo_arguments(text))
    assert read_code(failure) == "VALIDATION_INVALID_ENCODING"


@pytest.mark.parametrize("text", [b'"a\\u0000b"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\udfffx"'])
def test_rejects_invalid_unicode_escapes(client: AqlClient, text: bytes) -> None:
    assert (
        read_code(call_and_get_error(client, echo_arguments(text))) == "VALIDATION_INVALID_ENCODING"
    )


def test_passes_text_of_every_unicode_plane(client: AqlClient) -> None:
    text = 'é ﷽ 𝕬 👩‍👩‍👧 \u202e \ufeff \U0010ffff \u007f \\ " \n'
    for written in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        answer = client.send(call_body(client, echo_arguments(written.encode())), name=PATH)
        assert read_envelope(answer.result)["data"]["content"][0]["text"] == text


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        (echo_arguments(b"[" * 31 + b"]" * 31), "nesting_depth"),
        (echo_arguments(b'{"a":' * 100 + b"1" + b"}" * 100), "nesting_depth"),
        (echo_arguments(b"[" + b",".join([b"1"] * 10_001) + b"]"), None),
        (echo_arguments(b'"' + b"x" * (1024 * 1024 + 1) + b'"'), None),
        (echo_arguments(b'"' + "é".encode() * (512 * 1024 + 1) + b'"'), None),
    ],
)
def test_rejects_oversized_values_with_limit(
    client: AqlClient, arguments: bytes, limit: str | None
) -> None:
    failure = call_and_get_error(client, arguments)
    assert read_code(failure) == "VALIDATION_PAYLOAD_TOO_LARGE"
    details = failure["error"]["details"]
    assert limit is None or details["limit_type"] == limit
    assert details["actual_value"] > details["limit_value"]


def test_rejects_too_deep_json_as_parse_error(client: AqlClient) -> None:
    answer = client.send(
        call_body(client, echo_arguments(b"[" * 50_000 + b"]" * 50_000)), name=PATH
    )
    assert (answer.status, answer.error["code"]) == (400, -32700)


def test_accepts_values_at_limits(client: AqlClient) -> None:
    # The arguments are the first level, `params` the second.
    answer = client.send(call_body(client, echo_arguments(b"[" * 30 + b"]" * 30)), name=PATH)
    assert read_code(read_envelope(answer.result)) == "VALIDATION_INVALID_TYPE"
    room = 1024 * 1024 - len(echo_arguments(b'""'))
    answer = client.send(call_body(client, echo_arguments(b'"' + b"x" * room + b'"')), name=PATH)
    assert read_envelope(answer.result)["success"] is True
    over = echo_arguments(b'"' + b"x" * (room + 1) + b'"')
    assert read_code(call_and_get_error(client, over)) == "VALIDATION_PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (b"{}", "VALIDATION_MISSING_PARAM"),
        (b'{"operation":null}', "VALIDATION_"),
        (b'{"operation":["shop_echo"]}', "VALIDATION_INVALID_TYPE"),
        (b'{"operation":""}', "VALIDATION_"),
        (b'{"operation":"shop_echo","params":[]}', "VALIDATION_INVALID_TYPE"),
        (b'{"operation":"' + b"x" * 100_000 + b'"}', "NOT_FOUND_OPERATION"),
        (b'{"operation":"__proto__"}', "NOT_FOUND_OPERATION"),
        (b'{"operation":"../../etc/passwd"}', "NOT_FOUND_OPERATION"),
        (b'{"operation":"shop_echo\\n"}', "NOT_FOUND_OPERATION"),
        (b'{"operation":"shop.echo"}', "NOT_FOUND_OPERATION"),
        (b'{"operation":"aql_introspect"}', "NOT_FOUND_OPERATION"),
        (b'{"operation":"aql.introspect"}', "NOT_FOUND_OPERATION"),
        (b'{"operation":"batch","params":{"operations":[]}}', "NOT_FOUND_OPERATION"),
        (b'{"operation":"unblock","params":{}}', "NOT_FOUND_OPERATION"),
        (b'{"operation":"shop_echo","params":{"":1}}', "VALIDATION_UNKNOWN_PARAM"),
        (b'{"operation":"shop_echo","admin_override":true}', "VALIDATION_UNKNOWN_PARAM"),
        (b'{"operation":"shop_echo","operations":[]}', "BATCH_VALIDATION_ERROR"),
        (b'{"operations":[]}', "BATCH_VALIDATION_ERROR"),
        (b'{"operations":{}}', "BATCH_VALIDATION_ERROR"),
        (b'{"operations":[' + b",".join([b'{"operation":"shop_echo"}'] * 51) + b"]}",
         "BATCH_VALIDATION_ERROR"),
    ],
)  # fmt: skip
def test_rejects_invalid_requests(client: AqlClient, arguments: bytes, expected: str) -> None:
    assert read_code(call_and_get_error(client, arguments)).startswith(expected)


def test_rejects_arguments_that_are_no_object(client: AqlClient) -> None:
    for arguments in (b"null", b"[]", b'"operation"', b"7", b"true"):
        answer = client.send(call_body(client, arguments), name=PATH)
        said = answer.json
        assert "error" in said or read_envelope(said["result"])["success"] is False


def test_nested_batch_fails_alone(client: AqlClient) -> None:
    items = [{"operation": "shop_echo", "params": {"text": "a"}}, {"operations": []}, 7]
    answer = read_envelope(client.call(PATH, {"operations": items}))
    assert answer["success"] is False or [r["result"]["success"] for r in answer["results"]] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("change", ["cut", "flip", "other", "long", "empty"])
def test_rejects_changed_cursor(client: AqlClient, change: str) -> None:
    for number in range(3):
        made = client.ask("create_note", {"title": f"n{number}"}, tool="mcp_aql_create")
        assert made["success"] is True, made
    page = client.ask("list_notes", {"first": 1})["data"]
    cursor = page["pageInfo"]["endCursor"]
    spoiled = {
        "cut": cursor[:-2],
        "flip": ("B" if cursor[0] != "B" else "C") + cursor[1:],
        "other": "eyJ4IjoxfQ",
        "long": cursor * 500,
        "empty": "",
    }[change]
    answer = client.ask("list_notes", {"first": 1, "after": spoiled})
    assert read_code(answer).startswith("VALIDATION_")
    assert client.ask("list_notes", {"first": 1, "after": cursor})["success"] is True


@pytest.mark.spec("AQ-4.7-1")
def test_large_result_names_limit_and_remedy(
    start_node: Callable[..., NodeThread],
) -> None:
    node = start_node(aql=AqlConfig(operations=READ))
    client = AqlClient(node)
    answer = client.ask("shop_large", {"size": 12 * 1024 * 1024})
    assert read_code(answer) == "VALIDATION_PAYLOAD_TOO_LARGE"
    assert answer["error"]["details"]["limit_type"] == "response_size"
    assert "fields" in answer["error"]["message"]


def test_node_works_after_hundred_invalid_requests(node: NodeThread) -> None:
    client = AqlClient(node, "?view=aql", "stateless")
    for number in range(100):
        garbage = bytes((number * 7 + step * 31) % 256 for step in range(50))
        answer = client.send(call_body(client, garbage), name=PATH)
        assert answer.status in (200, 400), answer
    assert client.ask("shop_echo", {"text": "still here"})["success"] is True


def test_long_filter_lists_cost_little_work(client: AqlClient) -> None:
    notes = 50
    for number in range(notes):
        client.ask("create_note", {"title": f"note {number}"}, "mcp_aql_create")
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    def work(values: int) -> int:
        """Functions that the node's loop enters for a list with a filter of so many values."""
        nonlocal calls
        wanted = {"nin": [f"v{number}" for number in range(values)]}
        spec = dict.fromkeys(("id", "title", "body", "updated_at"), wanted)
        calls = 0
        client.node.do(lambda: sys.setprofile(count))
        try:
            answer = client.ask("list_notes", {"filter": spec, "first": 5})
        finally:
            client.node.do(lambda: sys.setprofile(None))
        assert answer["success"], answer
        assert answer["data"]["pageInfo"]["totalCount"] >= notes
        return calls

    small, values = work(1), 500
    grown = work(values) - small
    assert grown < 4 * values * 10 < 4 * values * notes
