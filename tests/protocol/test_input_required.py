"""`input_required` results and input responses as data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.errors import INVALID_PARAMS, UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol.input_required import (
    InputRequest,
    read_input_request,
    read_input_responses,
    replace_params,
    replace_state,
    to_session_params,
    write_input_request,
)
from interlock.protocol.mcp import ELICITATION, ROOTS, SAMPLING
from tests.protocol.json_values import objects, text, values

FORM = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}
QUESTIONS = st.dictionaries(
    text,
    st.tuples(st.sampled_from([ELICITATION, SAMPLING, ROOTS]), objects | st.none()),
    min_size=1,
    max_size=4,
)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def result_of(client_requests: dict[str, tuple[str, Any]], **more: Any) -> bytes:
    input_requests = {
        key: {"method": method} if params is None else {"method": method, "params": params}
        for key, (method, params) in client_requests.items()
    }
    return as_json({"resultType": "input_required", "inputRequests": input_requests, **more})


# --- what a stateless server says ---


@given(QUESTIONS, text | st.none())
def test_reads_input_requests(questions: dict[str, tuple[str, Any]], state: str | None) -> None:
    more = {} if state is None else {"requestState": state}
    needed = read_input_request(result_of(questions, **more))
    assert needed.state == state
    assert list(needed.requests) == list(questions)
    for key, (method, params) in questions.items():
        read, raw = needed.requests[key]
        assert read == method
        assert (json.loads(raw) if raw else None) == params


def test_accepts_state_without_requests() -> None:
    assert read_input_request(b'{"requestState":""}') == InputRequest({}, "")


@pytest.mark.parametrize(
    "result",
    [
        b"",
        b"[]",
        b"{",
        b"{}",
        b'{"inputRequests":{}}',
        b'{"inputRequests":null}',
        b'{"inputRequests":[]}',
        b'{"inputRequests":{"a":5}}',
        b'{"inputRequests":{"a":{}}}',
        b'{"inputRequests":{"a":{"method":5}}}',
        b'{"inputRequests":{"a":{"method":"m","params":null}}}',
        b'{"inputRequests":{"a":{"method":"m","params":[]}}}',
        b'{"inputRequests":{"a":{"method":"m","params":"x"}}}',
        b'{"requestState":5}',
        b'{"requestState":null}',
        b'{"requestState":{}}',
        b'{"requestState":"\\ud800"}',
        b'{"inputRequests":{"a":{"method":"m"}},"requestState":5}',
    ],
)
def test_rejects_invalid_input_required_result(result: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_input_request(result)
    assert caught.value.failure is UPSTREAM_PROTOCOL


@given(st.binary(max_size=60) | values.map(as_json))
def test_reads_or_rejects_any_result(result: bytes) -> None:
    try:
        needed = read_input_request(result)
    except ProtocolError:
        return
    assert needed.requests or needed.state is not None


# --- what a stateless client is told ---


@given(QUESTIONS, text | st.none())
def test_written_result_can_be_read(
    questions: dict[str, tuple[str, Any]], state: str | None
) -> None:
    raw = {
        key: (method, b"" if params is None else as_json(params))
        for key, (method, params) in questions.items()
    }
    written = write_input_request(raw, state)
    assert json.loads(written)["resultType"] == "input_required"
    needed = read_input_request(written)
    assert needed.state == state
    for key, (method, params) in questions.items():
        kept = {
            name: value
            for name, value in (params or {}).items()
            if name not in ("_meta", "task", "elicitationId")
        }
        read, back = needed.requests[key]
        assert read == method
        assert (json.loads(back) if back else {}) == kept


def test_writes_only_method_and_params() -> None:
    params = {**FORM, "_meta": {"progressToken": 1}, "task": {"ttl": 1}, "elicitationId": "e"}
    input_requests = json.loads(
        write_input_request({"k": (ELICITATION, as_json(params)), "r": (ROOTS, b"")}, "s")
    )
    assert input_requests == {
        "resultType": "input_required",
        "inputRequests": {
            "k": {"method": ELICITATION, "params": FORM},
            "r": {"method": ROOTS},
        },
        "requestState": "s",
    }


def test_omits_empty_params() -> None:
    input_requests = json.loads(write_input_request({"r": (ROOTS, b'{"_meta":{}}')}, None))
    assert input_requests["inputRequests"] == {"r": {"method": ROOTS}}


@given(QUESTIONS, text, text)
def test_replacing_state_changes_nothing_else(
    questions: dict[str, tuple[str, Any]], theirs: str, ours: str
) -> None:
    result = result_of(questions, requestState=theirs, _meta={"x": 1})
    changed = json.loads(replace_state(result, ours))
    assert changed == {**json.loads(result), "requestState": ours}


@given(QUESTIONS, objects)
def test_replacing_params_changes_nothing_else(
    questions: dict[str, tuple[str, Any]], params: dict[str, Any]
) -> None:
    result = result_of(questions, requestState="s")
    key = next(iter(questions))
    before, after = json.loads(result), json.loads(replace_params(result, {key: as_json(params)}))
    assert after["inputRequests"][key] == {**before["inputRequests"][key], "params": params}
    before["inputRequests"].pop(key)
    after["inputRequests"].pop(key)
    assert after == before
    assert list(after) == list(before)


# --- what a client brings back ---


@given(st.dictionaries(text, objects, max_size=4))
def test_reads_input_responses(answers: dict[str, Any]) -> None:
    read = read_input_responses(Raw(as_json(answers)))
    assert {key: json.loads(bytes(raw)) for key, raw in read.items()} == answers


def test_accepts_absent_responses() -> None:
    assert read_input_responses(None) == {}
    assert read_input_responses(Raw(b"{}")) == {}


@pytest.mark.parametrize(
    "responses",
    [b"null", b"[]", b'"x"', b"5", b'{"a":null}', b'{"a":[]}', b'{"a":"x"}', b'{"a":1}'],
)
def test_rejects_invalid_responses(responses: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_input_responses(Raw(responses))
    assert caught.value.failure is INVALID_PARAMS


def test_error_shortens_long_key() -> None:
    with pytest.raises(ProtocolError) as caught:
        read_input_responses(Raw(as_json({"k" * 10_000: 5})))
    assert len(caught.value.message) < 200


# --- how a session client is asked ---


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
@pytest.mark.parametrize("params", [b"", b"{}", b'{"maxTokens":5,"mode":"form"}'])
def test_keeps_sampling_and_roots_params(revision: str, params: bytes) -> None:
    for method in (SAMPLING, ROOTS):
        assert to_session_params(method, params, revision, "id") == params


def test_adds_elicitation_id_to_url_request() -> None:
    url = {"mode": "url", "url": "https://example.org", "message": "m"}
    input_requests = json.loads(
        to_session_params(ELICITATION, as_json(url), "2025-11-25", "minted")
    )
    assert input_requests == {**url, "elicitationId": "minted"}
    had = {**url, "elicitationId": "theirs"}
    assert json.loads(to_session_params(ELICITATION, as_json(had), "2025-11-25", "minted")) == had


def test_recognizes_escaped_url_mode() -> None:
    input_requests = to_session_params(ELICITATION, b'{"mode":"\\u0075rl"}', "2025-11-25", "minted")
    assert json.loads(input_requests) == {"mode": "url", "elicitationId": "minted"}


def test_form_request_has_no_id() -> None:
    for params in (FORM, {"mode": "form", **FORM}):
        input_requests = json.loads(
            to_session_params(ELICITATION, as_json(params), "2025-11-25", "minted")
        )
        assert input_requests == params


def test_omits_mode_for_june_2025() -> None:
    input_requests = to_session_params(
        ELICITATION, as_json({"mode": "form", **FORM}), "2025-06-18", "x"
    )
    assert json.loads(input_requests) == FORM


@given(objects, st.sampled_from(["2025-06-18", "2025-11-25"]))
def test_keeps_other_elicitation_members(params: dict[str, Any], revision: str) -> None:
    input_requests = json.loads(to_session_params(ELICITATION, as_json(params), revision, "minted"))
    for key, value in params.items():
        if key not in ("mode", "elicitationId"):
            assert input_requests[key] == value
