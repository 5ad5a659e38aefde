"""Tests that the fast path and the slow path give equal results."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.aql import fast_path
from interlock.aql.config import AqlConfig
from interlock.aql.stage import CHECKED, GOES_ON
from interlock.core.call import Call, Caller, Outcome
from interlock.core.catalog.offering import Offering
from interlock.core.config.trust import PolicyConfig
from interlock.core.pipeline.resolution import resolve_tool
from interlock.core.pipeline.validation import validate_arguments
from interlock.errors import InterlockError
from interlock.protocol.mcp import TOOLS_CALL, Era, summarize_result
from interlock.trust.policy import Policy
from tests.aql.view_pipeline import (
    ALL,
    FIVE,
    READS,
    SINGLE,
    ViewPipeline,
    hub_offering,
    text_result,
    view_pipeline,
)
from tests.support.calls import LOCAL, SESSION, STATELESS
from tests.support.offerings import definition, offer
from tests.support.pipeline import PipelineHarness

ORDINARY = b'{"operation":"hub_get_issue","params":{"owner":"me","number":5}}'


def make_call(arguments: bytes, endpoint: str = "mcp_aql_read", face: Any = FIVE) -> Call:
    made = Call(TOOLS_CALL, "test", LOCAL, SESSION, endpoint, arguments=Raw(arguments), view=face)
    made.caller = Caller("somebody")
    return made


def resolve_call(staged: ViewPipeline, call: Call) -> tuple[Any, ...] | str:
    """Return the tool, arguments and operation of a request, or the error message."""
    catalog = staged.rig.catalog
    try:
        if not staged.stage.resolve_operation(call):
            validate_arguments(call, resolve_tool(call, catalog))
    except InterlockError as error:
        return error.message
    assert call.route is catalog.find(call.name)
    found = (call.name, msgspec.json.decode(call.arguments), call.operation_request.operation.name)  # type: ignore[union-attr]
    return (
        *found,
        call.decoded_arguments,
        call.upstream,
        call.effect,
        call.is_retryable,
        call.header_params,
    )


@pytest.fixture(scope="module")
def warm() -> ViewPipeline:
    """Return a pipeline that has cached every kind of common request."""
    staged = ViewPipeline(PipelineHarness(hub_offering()))
    for operation, endpoint in (("hub_get_issue", "read"), ("hub_run_report", "execute")):
        params = {"owner": "me", "number": 1} if operation == "hub_get_issue" else {}
        body = json.dumps({"operation": operation, "params": params}).encode()
        for face, name in ((FIVE, f"mcp_aql_{endpoint}"), (SINGLE, "mcp_aql")):
            staged.stage.resolve_operation(make_call(body, name, face))
    return staged


def test_second_request_takes_fast_path(warm: ViewPipeline) -> None:
    call = make_call(ORDINARY)
    assert warm.stage._fast_path.resolve_operation(call, FIVE)
    assert (call.name, bytes(call.arguments)) == ("hub.get_issue", b'{"owner":"me","number":5}')


@pytest.mark.parametrize(
    "body",
    [
        b'{"operation":"hub_get_issue","params":{"owner":"me","number":90071992547409931,"number":6}}',
        b'{"operation":"hub_get_issue","params":{"owner":"me","number":5}}}',
        b'{"operation":"hub_get_issue","params":{"owner":"me","number":5}]',
        b'{"operation":"hub_get_issue","params":{"owner":"me","number":5.5}}',
        b'{"operation":"hub_get_issue","params":{"owner":"me","number":"5"}}',
        b'{"operation":"hub_get_issue","params":{"owner":"me","_number":5}}',
        b'{"operation":"hub_get_issue","params":{}}',
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
def test_unusual_requests_take_slow_path(warm: ViewPipeline, body: bytes) -> None:
    call = make_call(body)
    assert not warm.stage._fast_path.resolve_operation(call, FIVE)
    assert (call.name, call.operation_request) == ("mcp_aql_read", None)


@pytest.mark.parametrize(
    "params",
    [
        b'{"owner":"me","number":5,"number":6}',
        b'{"owner":"[a] {b} _c \\n","number":-5}',
        b'{"number":5,"owner":"\xc3\xa4"}',
    ],
)
def test_fast_path_keeps_argument_bytes(warm: ViewPipeline, params: bytes) -> None:
    body = b'{"operation":"hub_get_issue","params":%b}' % params
    short, long = make_call(body), make_call(body)
    assert warm.stage._fast_path.resolve_operation(short, FIVE)
    cold = ViewPipeline(PipelineHarness(hub_offering()))
    assert cold.stage.resolve_operation(long) is GOES_ON
    assert bytes(short.arguments) == bytes(long.arguments) == params


@pytest.mark.spec("AQ-6.2-1")
def test_wrong_endpoint_takes_slow_path(warm: ViewPipeline) -> None:
    assert not warm.stage._fast_path.resolve_operation(make_call(ORDINARY, "mcp_aql_delete"), FIVE)
    with pytest.raises(InterlockError, match="mcp_aql_read"):
        warm.stage.resolve_operation(make_call(ORDINARY, "mcp_aql_delete"))


def odds_call(params: bytes) -> Call:
    return make_call(b'{"operation":"hub_get_odds","params":%b}' % params)


@pytest.mark.parametrize(
    ("params", "short"),
    [
        (b'{"ratio":0.5}', True),
        (b'{"ratio":5,"owner":"a"}', True),
        (b'{"ratio":0.5,"tags":"a"}', True),
        (b'{"ratio":0.5,"tags":["a"]}', False),
        (b'{"ratio":0.1234567890123456}', False),
        (b'{"ratio":0.5,"tags":9007199254740993}', False),
        (b'{"ratio":0.5,"other":1}', False),
        (b'{"other":1}', False),
        (b'{"owner":"a"}', False),
    ],
)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"required": ["ratio", "unheard_of"]},
        {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/any",
         "definitions": {"any": {}}},
        {"type": "no type", "required": ["ratio"]},
    ],
    ids=["common", "extra options", "empty", "invalid"],
)  # fmt: skip
def test_open_schema_still_checks_names_and_numbers(
    params: bytes, short: bool, more: dict[str, Any]
) -> None:
    one, other = (
        ViewPipeline(PipelineHarness(odds_offering(**more))),
        ViewPipeline(PipelineHarness(odds_offering(**more))),
    )
    first = resolve_call(one, odds_call(b'{"ratio":1}'))
    resolve_call(one, odds_call(b'{"ratio":1,"unheard_of":1}'))
    call = odds_call(params)
    if isinstance(first, tuple):
        assert one.stage._fast_path.resolve_operation(odds_call(params), FIVE) is short
    assert resolve_call(one, call) == resolve_call(other, odds_call(params))


def test_catalog_change_clears_cache() -> None:
    node = ViewPipeline(PipelineHarness(hub_offering()))
    assert node.stage.resolve_operation(make_call(ORDINARY)) is GOES_ON
    before = make_call(ORDINARY)
    assert node.stage.resolve_operation(before) is CHECKED
    schema = {"type": "object", "properties": {"owner": {"type": "string"}}}
    changed = offer("hub", [definition("get_issue", inputSchema=schema)])
    node.rig.catalog.publish(changed)
    after = resolve_call(node, make_call(ORDINARY, "mcp_aql_execute"))
    assert isinstance(after, str), "it is a READ no more, and there is no number"
    fits = make_call(b'{"operation":"hub_get_issue","params":{"owner":"me"}}')
    assert node.stage.resolve_operation(fits) is GOES_ON
    assert fits.operation_request.operation.tool is not before.route  # type: ignore[union-attr]
    again = make_call(b'{"operation":"hub_get_issue","params":{"owner":"me"}}')
    assert node.stage.resolve_operation(again) is CHECKED
    assert again.route is node.rig.catalog.find("hub.get_issue") is not before.route
    node.rig.catalog.withdraw("hub")
    assert "Unknown operation" in resolve_call(node, make_call(ORDINARY))


def test_config_change_clears_cache() -> None:
    node = ViewPipeline(PipelineHarness(hub_offering()))
    node.stage.resolve_operation(make_call(ORDINARY))
    assert node.stage.resolve_operation(make_call(ORDINARY)) is CHECKED
    node.stage.configure(AqlConfig())
    assert node.stage.resolve_operation(make_call(ORDINARY)) is GOES_ON
    assert node.stage.resolve_operation(make_call(ORDINARY)) is CHECKED


class CountingQuotas:
    """Quotas that count admitted calls."""

    def __init__(self) -> None:
        self.active = True
        self.admitted = 0

    def admit(self, call: Call, asked: Any, continued: str = "") -> None:
        self.admitted += 1

    def settled(self, call: Call, outcome: Any, error: Any) -> None: ...


def test_quotas_count_every_request() -> None:
    node = ViewPipeline(PipelineHarness(hub_offering()))
    for _ in range(2):
        node.stage.resolve_operation(make_call(ORDINARY))
    node.stage.quotas = counting = CountingQuotas()  # type: ignore[assignment]
    for _ in range(2):
        assert node.stage.resolve_operation(make_call(ORDINARY)) is GOES_ON
    assert counting.admitted == 2
    counting.active = False
    assert node.stage.resolve_operation(make_call(ORDINARY)) is CHECKED


def test_callers_share_no_state(warm: ViewPipeline) -> None:
    one, other = make_call(ORDINARY), make_call(ORDINARY)
    other.caller = Caller("somebody else")
    assert warm.stage.resolve_operation(one) is CHECKED
    assert warm.stage.resolve_operation(other) is CHECKED
    assert one.operation_request is not other.operation_request
    assert one.decoded_arguments == other.decoded_arguments
    assert one.decoded_arguments is not other.decoded_arguments


def test_views_alternate() -> None:
    node = ViewPipeline(PipelineHarness(hub_offering()))
    for expected in (GOES_ON, CHECKED, CHECKED):
        for face, endpoint in (
            (FIVE, "mcp_aql_read"),
            (ALL, "mcp_aql"),
            (SINGLE, "mcp_aql"),
            (ALL, "mcp_aql_read"),
        ):
            call = make_call(ORDINARY, endpoint, face)
            assert node.stage.resolve_operation(call) is expected
            assert call.operation_request.operation_view is face  # type: ignore[union-attr]
            assert call.operation_request.family is face.tools[endpoint]  # type: ignore[union-attr]
            if face is not ALL:
                wrong = make_call(ORDINARY, "mcp_aql_create", face)
                assert isinstance(resolve_call(node, wrong), str)


def test_rejects_invalid_arguments_every_time() -> None:
    node = view_pipeline()
    good = {"operation": "hub_get_issue", "params": {"owner": "me", "number": 5}}
    bad = {"operation": "hub_get_issue", "params": {"owner": "me", "number": "five"}}
    before = node.ask("mcp_aql_read", bad)
    assert before["success"] is False
    for _ in range(2):
        node.begin("mcp_aql_read", good)
        node.last.answer(**text_result("so be it"))
        assert node.last_envelope()["success"] is True
        assert node.ask("mcp_aql_read", bad) == before
    assert node.sent_calls == [("get_issue", good["params"])] * 2


def test_new_policy_applies_to_cached_requests() -> None:
    node = view_pipeline()
    good = {"operation": "hub_get_issue", "params": {"owner": "me", "number": 5}}
    for _ in range(2):
        node.begin("mcp_aql_read", good)
        node.last.answer(**text_result("so be it"))
    rules = PolicyConfig(default="deny")
    node.authorizer.set_policy(Policy(rules))
    assert node.ask("mcp_aql_read", good)["success"] is False
    assert len(node.sent_calls) == 2


VALUES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["[a]", "{}", "_a", "%b", '":', "0123456789012345", "a\\b"]),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(),
)
OPERATIONS = ["hub_get_issue", "hub_run_report", "hub_list_issues", "hub_get_odds", "none"]
REQUESTS = st.fixed_dictionaries(
    {"operation": st.sampled_from(OPERATIONS)},
    optional={
        "params": st.dictionaries(
            st.sampled_from(
                ["owner", "number", "ratio", "tags", "_fields", "fields", "other", "Owner"]
            ),
            VALUES,
        ),
        "owner": VALUES,
        "number": st.integers(0, 9),
    },
)


@given(REQUESTS, st.sampled_from([(",", ":"), (", ", ": ")]), st.booleans(), st.booleans())
def test_fast_and_slow_path_return_same_result(
    request: dict[str, Any], separators: tuple[str, str], escaped: bool, single: bool
) -> None:
    body = json.dumps(request, separators=separators, ensure_ascii=escaped)
    if "\ud800" <= max(body, default="") <= "\udfff" or "NaN" in body or "Infinity" in body:
        return
    endpoint, face = ("mcp_aql", SINGLE) if single else ("mcp_aql_read", FIVE)
    cold, warm = _PAIR
    cold.stage._fast_path.clear()
    longer = resolve_call(cold, make_call(body.encode("utf-8", "replace"), endpoint, face))
    shorter = resolve_call(warm, make_call(body.encode("utf-8", "replace"), endpoint, face))
    assert shorter == longer


def odds_offering(**more: Any) -> Offering:
    """Return the hub with an operation that has an open schema."""
    schema = {
        "type": "object",
        "properties": {"owner": {"type": "string"}, "ratio": {"type": "number"}, "tags": {}},
        "required": ["ratio"],
        **more,
    }
    return offer(
        "hub",
        [
            definition("get_odds", inputSchema=schema, annotations=READS),
            *(
                Raw(b'{"name":%b%b' % (tool.upstream_name_json, tool.listed))
                for tool in hub_offering().tools
            ),
        ],
    )


_PAIR = (
    ViewPipeline(PipelineHarness(odds_offering())),
    ViewPipeline(PipelineHarness(odds_offering())),
)

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
            {"type": "text", "text": "100 %b %s %%"},
            {"type": "text", "text": "a\\b\n"},
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


def fast_path_call() -> tuple[ViewPipeline, Call]:
    """Return a call that took the fast path."""
    staged = _PAIR[1]
    staged.stage.resolve_operation(make_call(ORDINARY))
    call = make_call(ORDINARY)
    staged.stage.resolve_operation(call)
    assert call.operation_request.ordinary  # type: ignore[union-attr]
    call.started_at = staged.rig.clock()
    return staged, call


@pytest.mark.parametrize(
    "raw",
    [
        b'{"content":[{"type":"text","text":"prose"}]}',
        b'{"content":[{"type":"text","text":"prose"}],"isError":false}',
        b'{"content":[{"type":"text","text":"two\\nlines"}]}',
        b'{"content":[{"type":"text","text":"100 %b \xc3\xa4 \x7f"}]}',
        b'{"content":[],"structuredContent":{"a":1}}',
        b'{"content":[{"type":"text","text":"{}"}],"structuredContent":{"a":1}}',
    ],
)
def test_common_results_take_fast_path(raw: bytes) -> None:
    _, call = fast_path_call()
    glance = summarize_result(Raw(raw))
    outcome = Outcome(raw, Era.SESSION, glance)
    assert fast_path.write_fast_response(call, outcome, glance, True) is not None


@pytest.mark.spec("AQ-5.1-1", "AQ-5.1-2")
@given(RESULTS, st.booleans(), st.booleans(), st.booleans())
def test_fast_and_slow_path_write_same_response(
    result: dict[str, Any], structured: bool, from_stateless: bool, to_stateless: bool
) -> None:
    if from_stateless:
        result = {"resultType": "complete", **result}
    raw = msgspec.json.encode(result)
    glance = summarize_result(Raw(raw))
    outcome = Outcome(raw, Era.STATELESS if from_stateless else Era.SESSION, glance)
    staged, call = fast_path_call()
    if to_stateless:
        call.client = STATELESS
    short = fast_path.write_fast_response(call, outcome, glance, structured)
    if short is None:
        return
    written, blocks = staged.teller._write_success(call, call.operation_request, raw)  # type: ignore[arg-type]
    assert not blocks
    told = json.loads(short.result)
    assert short.era is call.client.era
    assert ("resultType" in told) is to_stateless
    assert json.loads(told["content"][0]["text"]) == json.loads(written)
    assert told.get("structuredContent", json.loads(written)) == json.loads(written)
    assert ("structuredContent" in told) is structured
