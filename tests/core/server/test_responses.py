"""Results and errors in the form of the client's protocol revision."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.call import Client, Outcome, RelayedError, UpstreamResponseError
from interlock.core.server.mcp.responses import write_error, write_result
from interlock.errors import InterlockError, all_failures
from interlock.protocol.mcp import META_SERVER_INFO, Era, summarize_result

SESSION_CLIENT = Client(Era.SESSION, "2025-11-25")
STATELESS_CLIENT = Client(Era.STATELESS, "2026-07-28")
INFO = b'{"name":"node","version":"1"}'
UPSTREAM_META = {META_SERVER_INFO: {"name": "theirs", "version": "9"}}
TEXT = [{"type": "text", "text": "[1]"}]


def write_response(
    result: Any, client: Client, era: Era, verb: str = "tools/call", *, glanced: bool = True
) -> Any:
    raw = result if isinstance(result, bytes) else json.dumps(result).encode()
    outcome = Outcome(raw, era, summarize_result(raw) if glanced else None)
    return json.loads(write_result(outcome, client, INFO, verb))


# -- to clients of the session wire


@pytest.mark.parametrize("content", [[1], 5, "text", None, True])
@pytest.mark.parametrize("blank", ["", " ", "\n  \t"])
def test_removes_unsupported_structured_content(content: Any, blank: str) -> None:
    head = json.dumps({"resultType": "complete", "content": TEXT})[:-1]
    raw = f'{head},"structuredContent":{blank}{json.dumps(content)}}}'
    assert write_response(raw.encode(), SESSION_CLIENT, Era.STATELESS) == {"content": TEXT}


@pytest.mark.parametrize("client", [SESSION_CLIENT, STATELESS_CLIENT])
def test_keeps_structured_content_object(client: Client) -> None:
    inner = {"a": [1], "structuredContent": [1], "b": '"structuredContent":['}
    result = {"resultType": "complete", "content": TEXT, "structuredContent": inner}
    assert write_response(result, client, Era.STATELESS)["structuredContent"] == inner


def test_keeps_any_structured_content_for_newer_clients() -> None:
    result = {"resultType": "complete", "content": TEXT, "structuredContent": [1]}
    assert write_response(result, STATELESS_CLIENT, Era.STATELESS) == result


@pytest.mark.parametrize("result", [{"resultType": "complete"}, {}, {"_meta": UPSTREAM_META}])
def test_empty_result_stays_empty(result: Any) -> None:
    assert write_response({"resultType": "complete", **result}, SESSION_CLIENT, Era.STATELESS) == {}
    assert write_response({}, SESSION_CLIENT, Era.SESSION) == {}


@pytest.mark.parametrize("kind", ["input_required", "task", "made_up"])
def test_rejects_result_types_unknown_to_sessions(kind: str) -> None:
    with pytest.raises(InterlockError, match=kind):
        write_response({"resultType": kind, "requestState": "x"}, SESSION_CLIENT, Era.STATELESS)


# -- to clients of the stateless wire


def test_empty_result_becomes_complete() -> None:
    assert write_response({}, STATELESS_CLIENT, Era.SESSION) == {"resultType": "complete"}
    assert write_response({}, STATELESS_CLIENT, Era.SESSION, glanced=False) == {
        "resultType": "complete"
    }


def test_replaces_server_info() -> None:
    own = {META_SERVER_INFO: json.loads(INFO)}
    for era in Era:
        result = {"resultType": "complete", "content": TEXT, "_meta": {**UPSTREAM_META, "mine": 1}}
        assert write_response(result, STATELESS_CLIENT, era)["_meta"] == {**own, "mine": 1}
    # Also when the same words stand in the content.
    content = [{**TEXT[0], "_meta": UPSTREAM_META}]
    result = {"resultType": "complete", "content": content, "_meta": UPSTREAM_META}
    changed = write_response(result, STATELESS_CLIENT, Era.STATELESS)
    assert changed == {**result, "_meta": own}


def test_adds_no_missing_members() -> None:
    result = {"resultType": "complete", "content": TEXT}
    assert write_response(result, STATELESS_CLIENT, Era.STATELESS) == result


@pytest.mark.parametrize("verb", ["resources/read", "prompts/list"])
def test_adds_cache_members(verb: str) -> None:
    changed = write_response({"contents": []}, STATELESS_CLIENT, Era.SESSION, verb)
    assert (changed["ttlMs"], changed["cacheScope"]) == (0, "private")
    asking = write_response(
        {"resultType": "input_required", "requestState": "x"}, STATELESS_CLIENT, Era.SESSION, verb
    )
    assert asking["resultType"] == "input_required"
    assert not {"ttlMs", "cacheScope"} & set(asking)
    assert "ttlMs" not in write_response({"content": []}, STATELESS_CLIENT, Era.SESSION)


def test_keeps_input_required_result() -> None:
    asking = {"resultType": "input_required", "inputRequests": {"k": {}}, "requestState": "s"}
    assert write_response(asking, STATELESS_CLIENT, Era.STATELESS) == asking


# -- errors


@pytest.mark.parametrize(
    ("theirs", "code", "status"),
    [(-32002, -32602, 400), (-32042, -32603, 200), (-32800, -32800, 200), (-32601, -32601, 404)],
)
def test_translates_error_codes_for_stateless_clients(theirs: int, code: int, status: int) -> None:
    error = UpstreamResponseError(theirs, "No.", b'{"uri":"x:y"}')
    answered, body = write_error(b"1", error, STATELESS_CLIENT)
    assert (answered, json.loads(body)["error"]["code"]) == (status, code)
    assert json.loads(body)["error"]["data"] == {"uri": "x:y"}
    assert json.loads(write_error(b"1", error, SESSION_CLIENT)[1])["error"]["code"] == theirs


@pytest.mark.parametrize("client", [SESSION_CLIENT, STATELESS_CLIENT, None])
@pytest.mark.parametrize("ax", [True, False])
def test_relayed_error_is_not_status_of_node(client: Client | None, ax: bool) -> None:
    """A session client would take 404 for the end of its session, and call again."""
    for failure in all_failures():
        error = RelayedError(failure, "No.", {"since": "x"})
        status, body = write_error(b"1", error, client, ax=ax)
        assert status == 200
        if "error" in (answered := json.loads(body)):
            assert answered["error"]["data"]["since"] == "x"
