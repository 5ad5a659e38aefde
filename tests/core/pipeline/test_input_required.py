"""Input requests of stateless servers for stateless clients, with sealed state."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.call import Call
from interlock.core.pipeline.client_requests import ClientRequestPolicy
from interlock.errors import (
    FORBIDDEN,
    INVALID_PARAMS,
    INVALID_STATE,
    MISSING_CLIENT_CAPABILITY,
    UPSTREAM_ERROR,
    UPSTREAM_PROTOCOL,
)
from interlock.protocol.mcp import ELICITATION, RESOURCES_READ, ROOTS, SAMPLING
from tests.core.pipeline.client_request_harness import (
    AUDITOR,
    FORM,
    GROUPING_SECONDS,
    OPERATOR,
    SAMPLE,
    URL,
    YES,
    ClientRequestHarness,
    ScriptedSession,
    call_of,
    stateless,
)

CLIENT = stateless()
QUESTION = {"q": (ELICITATION, FORM)}


def begin(harness: ClientRequestHarness, session: ScriptedSession, **fields: Any) -> Call:
    return harness.begin(call_of(session.client, session=session, **fields))


# --- stateless client, stateless server: passed through ---


def test_passes_input_requests_with_sealed_state() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(QUESTION, state="theirs")
    input_result = harness.last_result
    assert input_result["inputRequests"] == {"q": {"method": ELICITATION, "params": FORM}}
    assert "theirs" not in input_result["requestState"]
    harness.begin(call_of(CLIENT, answers={"q": YES}, state=input_result["requestState"]))
    assert harness.s.last_sent == {"inputResponses": {"q": YES}, "requestState": "theirs"}
    harness.s.last.answer(resultType="complete", content=[])
    assert harness.list_outcomes() == [
        (ELICITATION, "asked"),
        ("tools/call", "input_required"),
        ("tools/call", "ok"),
    ]
    assert harness.held == 0


def test_input_required_is_not_counted_as_failure() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(QUESTION)
    assert (harness.audit.total.calls, harness.audit.total.failed) == (1, 0)


def test_omits_state_when_server_has_no_state() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(QUESTION)
    assert "requestState" not in harness.last_result
    harness.begin(call_of(CLIENT, answers={"q": YES}))
    assert harness.s.last_sent == {"inputResponses": {"q": YES}}


def test_passes_state_without_input_requests() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(state="elsewhere")
    input_result = harness.last_result
    assert set(input_result) == {"resultType", "requestState"}
    harness.begin(call_of(CLIENT, state=input_result["requestState"]))
    assert harness.s.last_sent == {"requestState": "elsewhere"}


def test_accepts_server_state_twice() -> None:
    """Whether it was used already is for the server to know: the state is its own."""
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(QUESTION, state="theirs")
    state = harness.last_result["requestState"]
    for _ in range(2):
        harness.begin(call_of(CLIENT, answers={"q": YES}, state=state))
        assert harness.s.last_sent["requestState"] == "theirs"


@pytest.mark.parametrize(
    "other",
    [
        {"credentials": AUDITOR},
        {"credentials": OPERATOR, "arguments": {"n": 1}},
        {"credentials": OPERATOR, "name": "s.look"},
        {"credentials": OPERATOR, "name": "test://r", "verb": RESOURCES_READ},
    ],
    ids=["caller", "arguments", "tool", "method"],
)
def test_rejects_state_of_other_caller_or_request(other: dict[str, Any]) -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT, credentials=OPERATOR))
    harness.s.last.require_input(QUESTION, state="theirs")
    state = harness.last_result["requestState"]
    error = harness.refused(call_of(CLIENT, answers={"q": YES}, state=state, **other))
    assert error.failure is INVALID_STATE
    assert error.data == {"reason": "invalid_request_state"}
    assert len(harness.s.started) == 1, "nothing leaves with a state that is not its own"


def test_rejects_expired_state() -> None:
    harness = ClientRequestHarness(seconds=600)
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(QUESTION, state="theirs")
    state = harness.last_result["requestState"]
    harness.wall += 599
    harness.begin(call_of(CLIENT, state=state))
    assert len(harness.s.started) == 2
    harness.wall += 2
    assert harness.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_state_survives_restart_with_same_key() -> None:
    before = ClientRequestHarness()
    before.begin(call_of(CLIENT))
    before.s.last.require_input(QUESTION, state="theirs")
    state = before.last_result["requestState"]
    after = ClientRequestHarness()
    after.begin(call_of(CLIENT, answers={"q": YES}, state=state))
    assert after.s.last_sent["requestState"] == "theirs"
    unauthenticated = ClientRequestHarness(key=b"x" * 32)
    assert unauthenticated.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_accepts_reordered_arguments() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT, arguments=b'{"a":1,"b":{"x":1,"y":2}}'))
    harness.s.last.require_input(QUESTION, state="theirs")
    state = harness.last_result["requestState"]
    harness.begin(call_of(CLIENT, arguments=b'{"b":{"y":2,"x":1}, "a":1}', state=state))
    assert len(harness.s.started) == 2


def test_rejects_unsealed_server_state() -> None:
    """A client cannot speak to the server past the seal."""
    harness = ClientRequestHarness()
    assert harness.refused(call_of(CLIENT, state="theirs")).failure is INVALID_STATE
    assert harness.s.started == []


def test_limits_sampling_tokens() -> None:
    harness = ClientRequestHarness(policy=ClientRequestPolicy(max_tokens=10))
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(
        {"a": (SAMPLING, SAMPLE), "b": (ELICITATION, FORM)}, state="theirs"
    )
    input_result = harness.last_result["inputRequests"]
    assert input_result["a"]["params"] == {**SAMPLE, "maxTokens": 10}
    assert input_result["b"]["params"] == FORM


def test_keeps_meta_of_input_required_result() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(QUESTION, state="theirs", _meta={"org.example/x": 1})
    assert harness.last_result["_meta"] == {"org.example/x": 1}


@pytest.mark.parametrize(
    ("able", "client_request", "missing"),
    [
        ({}, (ROOTS, None), {"roots": {}}),
        ({"elicitation": {}}, (ELICITATION, URL), {"elicitation": {"url": {}}}),
        ({"elicitation": {"url": {}}}, (ELICITATION, FORM), {"elicitation": {"form": {}}}),
        ({"sampling": {}}, (SAMPLING, {**SAMPLE, "tools": []}), {"sampling": {"tools": {}}}),
    ],
)
def test_reports_missing_client_capability(able: Any, client_request: Any, missing: Any) -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(stateless(able)))
    harness.s.last.require_input({"q": client_request}, state="theirs")
    assert harness.last_error.failure is MISSING_CLIENT_CAPABILITY
    assert harness.last_error.data == {"requiredCapabilities": missing}
    assert harness.journal.outcomes == ["refused", "missing_client_capability"]


def test_rejects_requests_forbidden_by_config() -> None:
    harness = ClientRequestHarness(policy=ClientRequestPolicy(elicitation=False))
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(QUESTION)
    assert harness.last_error.failure is FORBIDDEN


def test_rejects_unknown_input_request_method() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input({"q": ("tools/list", None)})
    assert harness.last_error.failure is UPSTREAM_PROTOCOL


def test_rejects_oversized_state() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(QUESTION, state="x" * 1024 * 1024)
    assert harness.last_error.failure is UPSTREAM_PROTOCOL


@pytest.mark.parametrize("responses", [[], "x", 5, {"q": 5}, {"q": None}, {"q": [1]}])
def test_rejects_invalid_input_responses(responses: Any) -> None:
    harness = ClientRequestHarness()
    assert harness.refused(call_of(CLIENT, answers=responses)).failure is INVALID_PARAMS
    assert harness.s.started == []


# --- a session server that wants its user to go somewhere first ---

PLACE = {"mode": "url", "elicitationId": "e", "url": "https://example.org/go", "message": "Go."}


def test_url_elicitation_error_becomes_input_required() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.require_url(PLACE, {**PLACE, "mode": "form", "url": "https://example.org/b"})
    input_result = harness.last_result
    assert input_result["inputRequests"] == {
        f"input-{number}": {
            "method": ELICITATION,
            "params": {"mode": "url", "url": f"https://example.org/{where}", "message": "Go."},
        }
        for number, where in ((1, "go"), (2, "b"))
    }
    responses = {"input-1": {"action": "accept"}, "input-2": {"action": "accept"}}
    harness.begin(call_of(CLIENT, answers=responses, state=input_result["requestState"]))
    assert harness.s.last_sent == {}, "the request is simply made again"
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}
    assert harness.list_outcomes() == [
        (ELICITATION, "asked"),
        (ELICITATION, "asked"),
        ("tools/call", "input_required"),
        ("tools/call", "ok"),
    ]


@pytest.mark.parametrize("able", [{}, {"elicitation": {}}, {"elicitation": {"form": {}}}])
def test_reports_missing_url_elicitation_capability(able: Any) -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(stateless(able)))
    harness.s.last.require_url(PLACE)
    assert harness.last_error.failure is MISSING_CLIENT_CAPABILITY
    assert harness.last_error.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}


def test_config_forbids_url_elicitation() -> None:
    harness = ClientRequestHarness(policy=ClientRequestPolicy(elicitation=False))
    harness.begin(call_of(CLIENT))
    harness.s.last.require_url(PLACE)
    assert harness.last_error.failure is FORBIDDEN


@pytest.mark.parametrize("places", [(), (5,)])
def test_url_elicitation_error_without_url_is_upstream_error(places: Any) -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.require_url(*places)
    assert harness.last_error.failure is UPSTREAM_ERROR


def test_session_client_receives_url_elicitation_error() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_url(PLACE)
    assert getattr(harness.last_error, "code", None) == -32042


def test_url_elicitation_error_resets_breaker() -> None:
    harness = ClientRequestHarness(failures=2)
    harness.begin(call_of(CLIENT))
    harness.s.last.expire()
    assert harness.breakers.failing
    harness.begin(call_of(CLIENT))
    harness.s.last.require_url(PLACE)
    assert harness.breakers.failing == {}


def test_rejects_state_of_other_generation() -> None:
    """The seal says what was agreed; a held handle, a server's state and `again` do not mix."""
    harness = ClientRequestHarness()
    client_request = harness.hold(call_of(CLIENT))
    pending_call = harness.last_result["requestState"]
    harness.begin(call_of(CLIENT))
    harness.s.last.require_input(QUESTION, state="theirs")
    theirs = harness.last_result["requestState"]
    harness.begin(call_of(CLIENT, answers={"input-1": YES}, state=theirs))
    assert client_request.is_pending, "only its own handle continues a held call"
    harness.begin(call_of(CLIENT, answers={"input-1": YES}, state=pending_call))
    assert client_request.result == YES
    harness.clock.advance(GROUPING_SECONDS)
    assert harness.held == 0
