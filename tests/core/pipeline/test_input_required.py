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
    BREATH,
    FORM,
    OPERATOR,
    SAMPLE,
    URL,
    YES,
    AskingRig,
    ScriptedSession,
    call_of,
    stateless,
)

CLIENT = stateless()
QUESTION = {"q": (ELICITATION, FORM)}


def begin(rig: AskingRig, session: ScriptedSession, **fields: Any) -> Call:
    return rig.begin(call_of(session.client, session=session, **fields))


# --- stateless client, stateless server: passed through ---


def test_passes_input_requests_with_sealed_state() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION, state="theirs")
    asked = rig.last_result
    assert asked["inputRequests"] == {"q": {"method": ELICITATION, "params": FORM}}
    assert "theirs" not in asked["requestState"]
    rig.begin(call_of(CLIENT, answers={"q": YES}, state=asked["requestState"]))
    assert rig.s.last_sent == {"inputResponses": {"q": YES}, "requestState": "theirs"}
    rig.s.last.answer(resultType="complete", content=[])
    assert rig.journalled() == [
        (ELICITATION, "asked"),
        ("tools/call", "input_required"),
        ("tools/call", "ok"),
    ]
    assert rig.held == 0


def test_input_required_is_not_counted_as_failure() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION)
    assert (rig.audit.total.calls, rig.audit.total.failed) == (1, 0)


def test_omits_state_when_server_has_no_state() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION)
    assert "requestState" not in rig.last_result
    rig.begin(call_of(CLIENT, answers={"q": YES}))
    assert rig.s.last_sent == {"inputResponses": {"q": YES}}


def test_passes_state_without_input_requests() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(state="elsewhere")
    asked = rig.last_result
    assert set(asked) == {"resultType", "requestState"}
    rig.begin(call_of(CLIENT, state=asked["requestState"]))
    assert rig.s.last_sent == {"requestState": "elsewhere"}


def test_accepts_server_state_twice() -> None:
    """Whether it was used already is for the server to know: the state is its own."""
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION, state="theirs")
    state = rig.last_result["requestState"]
    for _ in range(2):
        rig.begin(call_of(CLIENT, answers={"q": YES}, state=state))
        assert rig.s.last_sent["requestState"] == "theirs"


@pytest.mark.parametrize(
    "other",
    [
        {"credentials": AUDITOR},
        {"credentials": OPERATOR, "arguments": {"n": 1}},
        {"credentials": OPERATOR, "name": "s.look"},
        {"credentials": OPERATOR, "name": "test://r", "verb": RESOURCES_READ},
    ],
    ids=["caller", "arguments", "tool", "verb"],
)
def test_rejects_state_of_other_caller_or_request(other: dict[str, Any]) -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT, credentials=OPERATOR))
    rig.s.last.need(QUESTION, state="theirs")
    state = rig.last_result["requestState"]
    error = rig.refused(call_of(CLIENT, answers={"q": YES}, state=state, **other))
    assert error.failure is INVALID_STATE
    assert error.data == {"reason": "invalid_request_state"}
    assert len(rig.s.started) == 1, "nothing leaves with a state that is not its own"


def test_rejects_expired_state() -> None:
    rig = AskingRig(seconds=600)
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION, state="theirs")
    state = rig.last_result["requestState"]
    rig.wall += 599
    rig.begin(call_of(CLIENT, state=state))
    assert len(rig.s.started) == 2
    rig.wall += 2
    assert rig.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_state_survives_restart_with_same_key() -> None:
    before = AskingRig()
    before.begin(call_of(CLIENT))
    before.s.last.need(QUESTION, state="theirs")
    state = before.last_result["requestState"]
    after = AskingRig()
    after.begin(call_of(CLIENT, answers={"q": YES}, state=state))
    assert after.s.last_sent["requestState"] == "theirs"
    stranger = AskingRig(key=b"x" * 32)
    assert stranger.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_accepts_reordered_arguments() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT, arguments=b'{"a":1,"b":{"x":1,"y":2}}'))
    rig.s.last.need(QUESTION, state="theirs")
    state = rig.last_result["requestState"]
    rig.begin(call_of(CLIENT, arguments=b'{"b":{"y":2,"x":1}, "a":1}', state=state))
    assert len(rig.s.started) == 2


def test_rejects_unsealed_server_state() -> None:
    """A client cannot speak to the server past the seal."""
    rig = AskingRig()
    assert rig.refused(call_of(CLIENT, state="theirs")).failure is INVALID_STATE
    assert rig.s.started == []


def test_limits_sampling_tokens() -> None:
    rig = AskingRig(policy=ClientRequestPolicy(max_tokens=10))
    rig.begin(call_of(CLIENT))
    rig.s.last.need({"a": (SAMPLING, SAMPLE), "b": (ELICITATION, FORM)}, state="theirs")
    asked = rig.last_result["inputRequests"]
    assert asked["a"]["params"] == {**SAMPLE, "maxTokens": 10}
    assert asked["b"]["params"] == FORM


def test_keeps_meta_of_input_required_result() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION, state="theirs", _meta={"org.example/x": 1})
    assert rig.last_result["_meta"] == {"org.example/x": 1}


@pytest.mark.parametrize(
    ("able", "question", "missing"),
    [
        ({}, (ROOTS, None), {"roots": {}}),
        ({"elicitation": {}}, (ELICITATION, URL), {"elicitation": {"url": {}}}),
        ({"elicitation": {"url": {}}}, (ELICITATION, FORM), {"elicitation": {"form": {}}}),
        ({"sampling": {}}, (SAMPLING, {**SAMPLE, "tools": []}), {"sampling": {"tools": {}}}),
    ],
)
def test_reports_missing_client_capability(able: Any, question: Any, missing: Any) -> None:
    rig = AskingRig()
    rig.begin(call_of(stateless(able)))
    rig.s.last.need({"q": question}, state="theirs")
    assert rig.last_error.failure is MISSING_CLIENT_CAPABILITY
    assert rig.last_error.data == {"requiredCapabilities": missing}
    assert rig.journal.outcomes == ["refused", "missing_client_capability"]


def test_rejects_requests_forbidden_by_config() -> None:
    rig = AskingRig(policy=ClientRequestPolicy(elicitation=False))
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION)
    assert rig.last_error.failure is FORBIDDEN


def test_rejects_unknown_input_request_method() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need({"q": ("tools/list", None)})
    assert rig.last_error.failure is UPSTREAM_PROTOCOL


def test_rejects_oversized_state() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION, state="x" * 1024 * 1024)
    assert rig.last_error.failure is UPSTREAM_PROTOCOL


@pytest.mark.parametrize("answers", [[], "x", 5, {"q": 5}, {"q": None}, {"q": [1]}])
def test_rejects_invalid_input_responses(answers: Any) -> None:
    rig = AskingRig()
    assert rig.refused(call_of(CLIENT, answers=answers)).failure is INVALID_PARAMS
    assert rig.s.started == []


# --- a session server that wants its user to go somewhere first ---

PLACE = {"mode": "url", "elicitationId": "e", "url": "https://example.org/go", "message": "Go."}


def test_url_elicitation_error_becomes_input_required() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.go_there_first(PLACE, {**PLACE, "mode": "form", "url": "https://example.org/b"})
    asked = rig.last_result
    assert asked["inputRequests"] == {
        f"input-{number}": {
            "method": ELICITATION,
            "params": {"mode": "url", "url": f"https://example.org/{where}", "message": "Go."},
        }
        for number, where in ((1, "go"), (2, "b"))
    }
    answers = {"input-1": {"action": "accept"}, "input-2": {"action": "accept"}}
    rig.begin(call_of(CLIENT, answers=answers, state=asked["requestState"]))
    assert rig.s.last_sent == {}, "the request is simply made again"
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}
    assert rig.journalled() == [
        (ELICITATION, "asked"),
        (ELICITATION, "asked"),
        ("tools/call", "input_required"),
        ("tools/call", "ok"),
    ]


@pytest.mark.parametrize("able", [{}, {"elicitation": {}}, {"elicitation": {"form": {}}}])
def test_reports_missing_url_elicitation_capability(able: Any) -> None:
    rig = AskingRig()
    rig.begin(call_of(stateless(able)))
    rig.s.last.go_there_first(PLACE)
    assert rig.last_error.failure is MISSING_CLIENT_CAPABILITY
    assert rig.last_error.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}


def test_config_forbids_url_elicitation() -> None:
    rig = AskingRig(policy=ClientRequestPolicy(elicitation=False))
    rig.begin(call_of(CLIENT))
    rig.s.last.go_there_first(PLACE)
    assert rig.last_error.failure is FORBIDDEN


@pytest.mark.parametrize("places", [(), (5,)])
def test_url_elicitation_error_without_url_is_upstream_error(places: Any) -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.go_there_first(*places)
    assert rig.last_error.failure is UPSTREAM_ERROR


def test_session_client_receives_url_elicitation_error() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.go_there_first(PLACE)
    assert getattr(rig.last_error, "code", None) == -32042


def test_url_elicitation_error_resets_breaker() -> None:
    rig = AskingRig(failures=2)
    rig.begin(call_of(CLIENT))
    rig.s.last.expire()
    assert rig.breakers.failing
    rig.begin(call_of(CLIENT))
    rig.s.last.go_there_first(PLACE)
    assert rig.breakers.failing == {}


def test_rejects_state_of_other_generation() -> None:
    """The seal says what was agreed; a held handle, a server's state and `again` do not mix."""
    rig = AskingRig()
    question = rig.hold(call_of(CLIENT))
    held = rig.last_result["requestState"]
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION, state="theirs")
    theirs = rig.last_result["requestState"]
    rig.begin(call_of(CLIENT, answers={"input-1": YES}, state=theirs))
    assert question.unanswered, "only its own handle continues a held call"
    rig.begin(call_of(CLIENT, answers={"input-1": YES}, state=held))
    assert question.answer == YES
    rig.clock.advance(BREATH)
    assert rig.held == 0
