"""Questions that pass between stateless peers, and what a client brings back."""

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
from tests.core.pipeline.asking import (
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


def test_questions_pass_and_their_state_is_sealed() -> None:
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


def test_what_was_asked_is_no_failure() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION)
    assert (rig.audit.total.calls, rig.audit.total.failed) == (1, 0)


def test_without_state_there_is_nothing_to_bring_back() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION)
    assert "requestState" not in rig.last_result
    rig.begin(call_of(CLIENT, answers={"q": YES}))
    assert rig.s.last_sent == {"inputResponses": {"q": YES}}


def test_state_alone_passes_too() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(state="elsewhere")
    asked = rig.last_result
    assert set(asked) == {"resultType", "requestState"}
    rig.begin(call_of(CLIENT, state=asked["requestState"]))
    assert rig.s.last_sent == {"requestState": "elsewhere"}


def test_a_state_may_come_back_twice_where_the_server_judges() -> None:
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
def test_a_state_is_bound_to_its_caller_and_request(other: dict[str, Any]) -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT, credentials=OPERATOR))
    rig.s.last.need(QUESTION, state="theirs")
    state = rig.last_result["requestState"]
    error = rig.refused(call_of(CLIENT, answers={"q": YES}, state=state, **other))
    assert error.failure is INVALID_STATE
    assert error.data == {"reason": "invalid_request_state"}
    assert len(rig.s.started) == 1, "nothing leaves with a state that is not its own"


def test_a_state_grows_old() -> None:
    rig = AskingRig(seconds=600)
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION, state="theirs")
    state = rig.last_result["requestState"]
    rig.wall += 599
    rig.begin(call_of(CLIENT, state=state))
    assert len(rig.s.started) == 2
    rig.wall += 2
    assert rig.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_a_state_outlives_a_restart_with_the_same_key() -> None:
    before = AskingRig()
    before.begin(call_of(CLIENT))
    before.s.last.need(QUESTION, state="theirs")
    state = before.last_result["requestState"]
    after = AskingRig()
    after.begin(call_of(CLIENT, answers={"q": YES}, state=state))
    assert after.s.last_sent["requestState"] == "theirs"
    stranger = AskingRig(key=b"x" * 32)
    assert stranger.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_arguments_may_come_back_in_another_order() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT, arguments=b'{"a":1,"b":{"x":1,"y":2}}'))
    rig.s.last.need(QUESTION, state="theirs")
    state = rig.last_result["requestState"]
    rig.begin(call_of(CLIENT, arguments=b'{"b":{"y":2,"x":1}, "a":1}', state=state))
    assert len(rig.s.started) == 2


def test_a_servers_own_state_in_the_open_is_refused() -> None:
    """A client cannot speak to the server past the seal."""
    rig = AskingRig()
    assert rig.refused(call_of(CLIENT, state="theirs")).failure is INVALID_STATE
    assert rig.s.started == []


def test_samples_are_capped_here_too() -> None:
    rig = AskingRig(policy=ClientRequestPolicy(max_tokens=10))
    rig.begin(call_of(CLIENT))
    rig.s.last.need({"a": (SAMPLING, SAMPLE), "b": (ELICITATION, FORM)}, state="theirs")
    asked = rig.last_result["inputRequests"]
    assert asked["a"]["params"] == {**SAMPLE, "maxTokens": 10}
    assert asked["b"]["params"] == FORM


def test_what_else_the_server_says_stays() -> None:
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
def test_what_the_client_cannot_is_said_to_it(able: Any, question: Any, missing: Any) -> None:
    rig = AskingRig()
    rig.begin(call_of(stateless(able)))
    rig.s.last.need({"q": question}, state="theirs")
    assert rig.last_error.failure is MISSING_CLIENT_CAPABILITY
    assert rig.last_error.data == {"requiredCapabilities": missing}
    assert rig.journal.outcomes == ["refused", "missing_client_capability"]


def test_what_the_config_forbids_is_not_asked() -> None:
    rig = AskingRig(policy=ClientRequestPolicy(elicitation=False))
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION)
    assert rig.last_error.failure is FORBIDDEN


def test_what_cannot_be_asked_at_all_is_the_servers_fault() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need({"q": ("tools/list", None)})
    assert rig.last_error.failure is UPSTREAM_PROTOCOL


def test_state_that_is_too_long_to_come_back() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.need(QUESTION, state="x" * 1024 * 1024)
    assert rig.last_error.failure is UPSTREAM_PROTOCOL


@pytest.mark.parametrize("answers", [[], "x", 5, {"q": 5}, {"q": None}, {"q": [1]}])
def test_answers_that_are_none(answers: Any) -> None:
    rig = AskingRig()
    assert rig.refused(call_of(CLIENT, answers=answers)).failure is INVALID_PARAMS
    assert rig.s.started == []


# --- a session server that wants its user to go somewhere first ---

PLACE = {"mode": "url", "elicitationId": "e", "url": "https://example.org/go", "message": "Go."}


def test_go_there_first_becomes_a_question() -> None:
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
def test_a_client_that_knows_no_urls_is_told_what_it_lacks(able: Any) -> None:
    rig = AskingRig()
    rig.begin(call_of(stateless(able)))
    rig.s.last.go_there_first(PLACE)
    assert rig.last_error.failure is MISSING_CLIENT_CAPABILITY
    assert rig.last_error.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}


def test_where_the_config_forbids_it_nobody_is_sent_anywhere() -> None:
    rig = AskingRig(policy=ClientRequestPolicy(elicitation=False))
    rig.begin(call_of(CLIENT))
    rig.s.last.go_there_first(PLACE)
    assert rig.last_error.failure is FORBIDDEN


@pytest.mark.parametrize("places", [(), (5,)])
def test_go_there_first_without_a_place_is_an_error(places: Any) -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.go_there_first(*places)
    assert rig.last_error.failure is UPSTREAM_ERROR


def test_a_session_client_is_told_as_it_is() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.go_there_first(PLACE)
    assert getattr(rig.last_error, "code", None) == -32042


def test_a_server_that_sends_users_somewhere_is_well() -> None:
    rig = AskingRig(failures=2)
    rig.begin(call_of(CLIENT))
    rig.s.last.expire()
    assert rig.breakers.failing
    rig.begin(call_of(CLIENT))
    rig.s.last.go_there_first(PLACE)
    assert rig.breakers.failing == {}


def test_the_state_of_one_cell_is_not_good_in_another() -> None:
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
