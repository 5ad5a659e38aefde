"""The short way comes to what the long way comes to, or is not taken."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.call import Call, Caller, Outcome
from interlock.errors import InterlockError
from interlock.pipeline.aql import shortcut
from interlock.protocol.mcp import TOOLS_CALL, Era, glance_at
from tests.pipeline.aql.staged import FIVE, SINGLE, Staged, hub
from tests.pipeline.calls import LOCAL, SESSION
from tests.pipeline.rig import Rig

ORDINARY = b'{"operation":"hub_get_issue","params":{"owner":"me","number":5}}'


def call_of(arguments: bytes, endpoint: str = "mcp_aql_read", face: Any = FIVE) -> Call:
    made = Call(TOOLS_CALL, "test", LOCAL, SESSION, endpoint, arguments=Raw(arguments), view=face)
    made.caller = Caller("somebody")
    return made


def taken(staged: Staged, call: Call) -> tuple[str, Any, str] | str:
    """What a request becomes: the tool, its arguments, the operation. Or why not."""
    try:
        staged.stage.take(call)
    except InterlockError as error:
        return error.message
    return call.name, msgspec.json.decode(call.arguments), call.asked.operation.name


@pytest.fixture(scope="module")
def warm() -> Staged:
    """One that has seen every kind of ordinary request."""
    staged = Staged(Rig(hub()))
    for operation, endpoint in (("hub_get_issue", "read"), ("hub_run_report", "execute")):
        params = {"owner": "me", "number": 1} if operation == "hub_get_issue" else {}
        body = json.dumps({"operation": operation, "params": params}).encode()
        for face, name in ((FIVE, f"mcp_aql_{endpoint}"), (SINGLE, "mcp_aql")):
            staged.stage.take(call_of(body, name, face))
    return staged


def test_the_second_time_is_short(warm: Staged) -> None:
    call = call_of(ORDINARY)
    assert warm.stage._shortcut.take(call, FIVE)
    assert (call.name, bytes(call.arguments)) == ("hub.get_issue", b'{"owner":"me","number":5}')


@pytest.mark.parametrize(
    "body",
    [
        b'{"operation":"hub_get_issue","params":{"owner":"me","number":5,"number":6}}',
        b'{"operation":"hub_get_issue","operation":"hub_delete_repo","params":{"owner":"me"}}',
        b'{"operation":"hub_get_issue","params":{"owner":"me","number":5},"dry_run":true}',
        b'{"operation":"hub_get_issue","params":{"owner":"me","number":5,"_dry_run":true}}',
        b'{"operation":"hub_get_issue","params":{"owner":"\\u0000","number":5}}',
        b'{"operation":"hub_get_issue","params":{"owner":"me","number":9007199254740993}}',
        b'{"operation":"hub_get_issue","params":{"owner":"me"}}',
        b'{"operation":"hub_get_issue","params":{"owner":"me","number":5,"more":1}}',
        b'{"operation":"hub_get_issue","params":{"owner":{"a":{"b":1}},"number":5}}',
        b'{"operation":"hub_get_issue","params":{"owner":[[[[[[1]]]]]],"number":5}}',
        b'{"operation":"hub_get_issue","params":{"owner":[' + b"1," * 99 + b'1],"number":5}}',
        b'{"operation":"hub_get_issue","params":[]}',
        b'{"operation":"hub_get_issue","params":null}',
        b'{"operation":"hub_get_issue","params":{"owner":"\xff","number":5}}',
        b'{"operation":"hub_get_issue" , "params" : {"owner" : "me","number":5}}',
        b'{"operation":"hub_get_issue"',
        b"[]",
    ],
)
def test_what_is_out_of_the_ordinary_takes_the_long_way(warm: Staged, body: bytes) -> None:
    call = call_of(body)
    assert not warm.stage._shortcut.take(call, FIVE)
    assert (call.name, call.asked) == ("mcp_aql_read", None)


def test_another_endpoint_is_another_request(warm: Staged) -> None:
    assert not warm.stage._shortcut.take(call_of(ORDINARY, "mcp_aql_delete"), FIVE)
    with pytest.raises(InterlockError, match="mcp_aql_read"):
        warm.stage.take(call_of(ORDINARY, "mcp_aql_delete"))


VALUES = st.one_of(st.text(max_size=20), st.integers(), st.booleans(), st.none(), st.floats())
REQUESTS = st.fixed_dictionaries(
    {"operation": st.sampled_from(["hub_get_issue", "hub_run_report", "hub_list_issues", "none"])},
    optional={
        "params": st.dictionaries(
            st.sampled_from(["owner", "number", "_fields", "fields", "other", "Owner"]), VALUES
        ),
        "owner": VALUES,
        "number": st.integers(0, 9),
    },
)


@given(REQUESTS, st.sampled_from([(",", ":"), (", ", ": ")]), st.booleans(), st.booleans())
def test_both_ways_come_to_the_same(
    request: dict[str, Any], separators: tuple[str, str], escaped: bool, single: bool
) -> None:
    body = json.dumps(request, separators=separators, ensure_ascii=escaped)
    if "\ud800" <= max(body, default="") <= "\udfff" or "NaN" in body or "Infinity" in body:
        return
    endpoint, face = ("mcp_aql", SINGLE) if single else ("mcp_aql_read", FIVE)
    cold, warm = _PAIR
    cold.stage._shortcut.forget()
    longer = taken(cold, call_of(body.encode("utf-8", "replace"), endpoint, face))
    shorter = taken(warm, call_of(body.encode("utf-8", "replace"), endpoint, face))
    assert shorter == longer


_PAIR = (Staged(Rig(hub())), Staged(Rig(hub())))

BLOCKS = st.one_of(
    st.text(max_size=30).map(lambda text: {"type": "text", "text": text}),
    st.sampled_from(
        [
            {"type": "text", "text": '{"a": [1, 2]}'},
            {"type": "text", "text": " [1]"},
            {"type": "text", "text": "[no json"},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "text", "text": "a", "annotations": {"priority": 1}},
            {"type": "text", "text": "abc", "_meta": {"a": [{"b": "c"}]}},
            {"type": "text", "text": 'she said "}]" and left'},
        ]
    ),
)
RESULTS = st.fixed_dictionaries(
    {"content": st.lists(BLOCKS, max_size=2)},
    optional={
        "structuredContent": st.one_of(
            st.none(), st.dictionaries(st.text(max_size=5), st.integers(), max_size=3)
        ),
        "isError": st.booleans(),
        "_meta": st.just({"x": 1}),
    },
)


def ordinary_call() -> tuple[Staged, Call]:
    """A call that took the short way."""
    staged = _PAIR[1]
    staged.stage.take(call_of(ORDINARY))
    call = call_of(ORDINARY)
    staged.stage.take(call)
    assert call.asked.ordinary
    call.started = staged.rig.clock()
    return staged, call


@pytest.mark.parametrize(
    "raw",
    [
        b'{"content":[{"type":"text","text":"prose"}]}',
        b'{"content":[{"type":"text","text":"prose"}],"isError":false}',
        b'{"content":[],"structuredContent":{"a":1}}',
        b'{"content":[{"type":"text","text":"{}"}],"structuredContent":{"a":1}}',
    ],
)
def test_ordinary_results_are_told_the_short_way(raw: bytes) -> None:
    _, call = ordinary_call()
    outcome = Outcome(raw, Era.SESSION, glance_at(Raw(raw)))
    assert shortcut.told(call, outcome, True) is not None


@given(RESULTS, st.booleans())
def test_both_ways_tell_the_same(result: dict[str, Any], structured: bool) -> None:
    raw = msgspec.json.encode(result)
    outcome = Outcome(raw, Era.SESSION, glance_at(Raw(raw)))
    staged, call = ordinary_call()
    short = shortcut.told(call, outcome, structured)
    if short is None:
        return
    written, blocks = staged.teller._success(call, call.asked, raw)
    assert not blocks
    told = json.loads(short.result)
    assert json.loads(told["content"][0]["text"]) == json.loads(written)
    assert told.get("structuredContent", json.loads(written)) == json.loads(written)
    assert ("structuredContent" in told) is structured
