"""Tasks of stateless servers, which are relayed, and tasks that the node makes of calls.

Longer than 500 lines, because both kinds have the same failures.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.core.call import Call, Client
from interlock.core.pipeline import tasks as own_tasks
from interlock.core.pipeline.client_requests import ClientRequestPolicy
from interlock.core.pipeline.tasks import TaskIds, TaskReference
from interlock.errors import UPSTREAM_LOST, UPSTREAM_PROTOCOL, InterlockError
from interlock.protocol.mcp import ELICITATION, SAMPLING, Era
from tests.core.pipeline.client_request_harness import (
    AUDITOR,
    BREATH,
    EVERYTHING,
    FORM,
    OPERATOR,
    SAMPLE,
    YES,
    AskingRig,
    call_of,
    stateless,
)
from tests.support.calls import SESSION
from tests.support.offerings import offer, resource

EXTENSION = "io.modelcontextprotocol/tasks"
TASKS = stateless({**EVERYTHING, "extensions": {EXTENSION: {}}})
PLAIN = stateless()
VERBS = ("tasks/get", "tasks/update", "tasks/cancel")
CREATED: dict[str, Any] = {
    "resultType": "task",
    "taskId": "own-1",
    "status": "working",
    "createdAt": "2026-08-01T00:00:00Z",
    "lastUpdatedAt": "2026-08-01T00:00:00Z",
    "ttlMs": None,
}


class TaskRig(AskingRig):
    """A pipeline with one upstream `s`, and a client that speaks tasks."""

    def __init__(self, *offerings: Any, **settings: Any) -> None:
        super().__init__(*offerings, **settings)
        self.tasks = self.pipeline._input.tasks
        self.tasks.local_tasks.wall_clock = lambda: self.wall

    def about(self, verb: str, id: str, **fields: Any) -> Any:
        """What a request about a task is answered with, where the node answers it."""
        self.begin(request(verb, id, **fields))
        return self.done[-1][1]

    def get(self, id: str, **fields: Any) -> Any:
        return self.about("tasks/get", id, **fields)

    def own(self, **fields: Any) -> str:
        """A task of the node's own that has asked one question."""
        self.hold(call_of(TASKS, **fields))
        id: str = self.last_result["taskId"]
        return id

    def relayed(self, **fields: Any) -> str:
        """A task of the upstream's."""
        self.begin(call_of(TASKS, **fields))
        self.s.last.need(**CREATED)
        id: str = self.last_result["taskId"]
        return id


def request(verb: str, id: str, client: Client = TASKS, **fields: Any) -> Call:
    return call_of(client, id, verb=verb, **fields)


def failure(answer: Any) -> str:
    assert isinstance(answer, InterlockError), answer
    return answer.failure.name


# -- ids

ids = TaskIds(b"k" * 32)
NAME = TaskReference("s", "own-1")


@given(st.text(max_size=50), st.text(max_size=50), st.booleans(), st.text(max_size=20))
def test_task_id_is_deterministic_and_opaque(
    upstream: str, own: str, is_own: bool, caller: str
) -> None:
    name = TaskReference(upstream, own, is_own)
    id = ids.seal(name, caller)
    assert id is not None
    assert id == TaskIds(b"k" * 32).seal(name, caller)
    assert ids.open(id, caller) == name
    assert ids.open(id, caller + "x") is None
    assert TaskIds(b"l" * 32).open(id, caller) is None
    assert len(own) < 4 or own not in id


@given(st.text(max_size=100))
def test_rejects_other_text_as_task_id(said: str) -> None:
    assert ids.open(said, "operator") is None
    assert ids.open("t1." + said, "operator") is None


def test_rejects_changed_task_id() -> None:
    id = ids.seal(NAME, "operator")
    assert id is not None
    for other in (id[:-1], id + "A", id + "=", id[:5] + "\n" + id[5:], id[:9] + "!" + id[9:]):
        assert ids.open(other, "operator") is None
    for place in range(3, len(id)):
        changed = id[:place] + ("A" if id[place] != "A" else "B") + id[place + 1 :]
        assert ids.open(changed, "operator") is None


def test_task_id_fits_into_header() -> None:
    assert ids.seal(TaskReference("s", "x" * 5000), "operator") is not None
    assert ids.seal(TaskReference("s", "x" * 9000), "operator") is None
    assert ids.open("t1." + "A" * 9000, "operator") is None


# -- tasks of a stateless server


def test_task_id_depends_on_caller() -> None:
    rig = TaskRig()
    id = rig.relayed(credentials=OPERATOR)
    assert rig.last_result == {**CREATED, "taskId": id}
    assert "own-1" not in id
    assert rig.relayed(credentials=OPERATOR) == id
    assert rig.relayed(credentials=AUDITOR) != id


def test_sends_task_requests_to_upstream() -> None:
    rig = TaskRig()
    id = rig.relayed()
    rig.begin(request("tasks/get", id))
    assert rig.s.last_sent == {"taskId": "own-1"}
    assert rig.s.last.call.is_retryable
    rig.s.last.need(**{**CREATED, "resultType": "complete"})
    assert rig.last_result == {**CREATED, "resultType": "complete", "taskId": id}
    for verb, answers in (("tasks/update", {"a": YES}), ("tasks/cancel", None)):
        rig.begin(request(verb, id, answers=answers))
        given = {} if answers is None else {"inputResponses": answers}
        assert rig.s.last_sent == {"taskId": "own-1", **given}
        assert not rig.s.last.call.is_retryable
        rig.s.last.need(resultType="complete")
        assert rig.last_result == {"resultType": "complete"}
    # Even where a server says too much, its own id stays here.
    rig.begin(request("tasks/cancel", id))
    rig.s.last.need(resultType="complete", taskId="own-1")
    assert rig.last_result["taskId"] == id
    verbs = ["tools/call", "tasks/get", "tasks/update", "tasks/cancel", "tasks/cancel"]
    assert [entry["verb"] for entry in rig.journal.entries] == verbs
    assert {entry["upstream"] for entry in rig.journal.entries} == {"s"}


@pytest.mark.parametrize("verb", VERBS)
def test_rejects_task_of_other_caller(verb: str) -> None:
    rig = TaskRig()
    relayed, own = rig.relayed(credentials=OPERATOR), rig.own(credentials=OPERATOR)
    before = len(rig.s.started)
    for id in (relayed, own, "t1.x", "own-1", relayed[:-2] + "AA"):
        error = rig.about(verb, id, credentials=AUDITOR)
        assert failure(error) == "unknown_task"
        assert error.failure.code == error.failure.stateless_code == -32602
    assert len(rig.s.started) == before
    assert rig.get(own, credentials=OPERATOR)["status"] == "input_required"


@pytest.mark.parametrize("verb", VERBS)
def test_task_methods_require_extension(verb: str) -> None:
    rig = TaskRig()
    for id in (rig.relayed(), rig.own(), "unknown"):
        error = rig.about(verb, id, client=PLAIN)
        assert failure(error) == "missing_client_capability"
        assert error.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.mark.parametrize("verb", [*VERBS, "tasks/result", "tasks/list"])
def test_session_tasks_are_not_served(verb: str) -> None:
    rig = TaskRig()
    rig.pipeline.transparent_upstream = "s"
    rig.s.capabilities = {"tasks": {"list": {}}}
    assert failure(rig.about(verb, rig.relayed(), client=SESSION)) == "method_not_found"


def test_unknown_task_methods_are_not_passed_on() -> None:
    rig = TaskRig()
    rig.pipeline.transparent_upstream = "s"
    rig.s.capabilities = {"extensions": {EXTENSION: {}, "org.example/more": {}}}
    assert failure(rig.about("tasks/other", "x")) == "method_not_found"
    rig.begin(request("more/other", "", client=stateless({"extensions": {"org.example/more": {}}})))
    assert rig.s.last.call.method == "more/other"


@pytest.mark.parametrize(
    "client",
    [PLAIN, SESSION, Client(Era.SESSION, "2025-11-25", "tests", TASKS.capabilities)],
)
def test_task_without_client_support_is_protocol_error(client: Client) -> None:
    rig = TaskRig()
    rig.begin(call_of(client))
    rig.s.last.need(**CREATED)
    assert failure(rig.last_error) == "upstream_protocol_error"


@pytest.mark.parametrize("verb", ["prompts/get", "resources/read"])
def test_only_tool_calls_become_tasks(verb: str) -> None:
    rig = TaskRig()
    rig.begin(call_of(TASKS, "s.p" if verb == "prompts/get" else "test://r", verb=verb))
    rig.s.last.need(**CREATED)
    assert failure(rig.last_error) == "upstream_protocol_error"


@pytest.mark.parametrize("id", [None, "", 7, "x" * 9000])
def test_rejects_task_without_valid_id(id: Any) -> None:
    rig = TaskRig()
    rig.begin(call_of(TASKS))
    given = {key: value for key, value in CREATED.items() if key != "taskId"}
    rig.s.last.need(**given, **({} if id is None else {"taskId": id}))
    assert failure(rig.last_error) == "upstream_protocol_error"


def test_policy_applies_to_input_requests_of_tasks() -> None:
    rig = TaskRig(policy=ClientRequestPolicy(elicitation=False, max_tokens=10))
    id = rig.relayed()
    state = {**CREATED, "resultType": "complete", "status": "input_required"}
    rig.begin(request("tasks/get", id))
    rig.s.last.need({"a": (SAMPLING, SAMPLE)}, **state)
    assert rig.last_result["inputRequests"]["a"]["params"]["maxTokens"] == 10
    assert rig.last_result["taskId"] == id
    rig.begin(request("tasks/get", id))
    rig.s.last.need({"a": (ELICITATION, FORM)}, **state)
    assert failure(rig.last_error) == "forbidden"
    rig.begin(request("tasks/get", id, client=stateless({"extensions": {EXTENSION: {}}})))
    rig.s.last.need({"a": (SAMPLING, SAMPLE)}, **state)
    assert failure(rig.last_error) == "missing_client_capability"
    # A question in place of an answer is for calls, not for what is asked about tasks.
    rig.begin(request("tasks/get", id))
    rig.s.last.need({"a": (SAMPLING, SAMPLE)})
    assert failure(rig.last_error) == "upstream_protocol_error"


def test_removes_hop_meta_from_task_result() -> None:
    rig = TaskRig()
    id = rig.relayed()
    meta = {"io.modelcontextprotocol/serverInfo": {"name": "x"}}
    for kept in ({}, {"mine": 1}):
        rig.begin(request("tasks/get", id))
        result = {"content": [], "_meta": {**meta, **kept}}
        rig.s.last.need(**{**CREATED, "resultType": "complete", "result": result})
        assert rig.last_result["result"] == {"content": [], **({"_meta": kept} if kept else {})}


def test_relabels_uris_in_task_result() -> None:
    rig = TaskRig(
        offer("s", ["t"], resources=[resource("test://r")]),
        offer("other", ["t"], resources=[resource("test://r")]),
    )
    shown = rig.catalog.current.shown_uri("s", "test://r")
    assert shown != "test://r"
    result = {"content": [{"type": "resource_link", "uri": "test://r", "name": "r"}]}
    rig.begin(request("tasks/get", rig.relayed()))
    rig.s.last.need(**{**CREATED, "resultType": "complete", "result": result})
    assert rig.last_result["result"]["content"][0]["uri"] == shown
    own = rig.own()
    rig.s.last.answer(**result)
    assert rig.get(own)["result"]["content"][0]["uri"] == shown


@pytest.mark.parametrize("client", [TASKS, SESSION])
def test_ignores_task_member_of_session_protocol(client: Client) -> None:
    rig = TaskRig()
    call = call_of(client)
    call.extra_params = {"task": Raw(b'{"ttl":1}')}
    rig.begin(call)
    assert rig.s.last.given("task") is None
    call = call_of(client)
    call.extra_params = {"task": Raw(b"{}"), "more": Raw(b"1")}
    rig.begin(call)
    assert rig.s.last_sent == {"more": 1}


# -- tasks of the node's own


def test_client_request_turns_call_into_task() -> None:
    rig = TaskRig()
    question = rig.hold(call_of(TASKS))
    created = rig.last_result
    id = created.pop("taskId")
    moment = "2023-11-14T22:13:20.000Z"
    assert created == {
        "resultType": "task",
        "status": "input_required",
        "createdAt": moment,
        "lastUpdatedAt": moment,
        "ttlMs": 600_000,
        "pollIntervalMs": 1000,
    }
    assert rig.held == 0
    asked = {"input-1": {"method": ELICITATION, "params": FORM}}
    for _ in range(2):
        shown = rig.get(id)
        assert (shown["resultType"], shown["status"]) == ("complete", "input_required")
        assert shown["inputRequests"] == asked
    rig.wall += 5
    assert rig.about("tasks/update", id, answers={"input-1": YES, "other": YES}) == {}
    assert question.answer == YES
    shown = rig.get(id)
    assert shown["status"] == "working"
    assert "inputRequests" not in shown
    assert shown["lastUpdatedAt"] == "2023-11-14T22:13:25.000Z"
    rig.s.last.answer(content=[], isError=True, _meta={"io.modelcontextprotocol/related-task": {}})
    for _ in range(2):
        shown = rig.get(id)
        assert (shown["status"], shown["result"]) == ("completed", {"content": [], "isError": True})
    # Nothing moves it any more.
    rig.wall += 5
    assert rig.about("tasks/cancel", id) == {}
    assert rig.about("tasks/update", id, answers={"input-1": YES}) == {}
    assert rig.get(id) == shown
    assert sum(call.method == "notifications/tasks" for call, _ in rig.done) == 1
    journalled = rig.journalled()
    assert journalled[0] == ("tools/call", "input_required")
    assert ("notifications/tasks", "tool_error") in journalled
    assert ("tasks/update", "ok") in journalled
    [ended] = [one for one in rig.journal.entries if one["verb"] == "notifications/tasks"]
    assert (ended["name"], ended["upstream"], ended["caller"]) == ("s.t", "s", "local")
    assert rig.audit.by_upstream["s"].calls == 1


def test_client_without_tasks_gets_input_required() -> None:
    rig = TaskRig()
    rig.hold(call_of(PLAIN))
    assert rig.last_result["resultType"] == "input_required"
    assert len(rig.tasks.local_tasks) == 0


@pytest.mark.parametrize("verb", ["prompts/get", "resources/read"])
def test_other_requests_do_not_become_tasks(verb: str) -> None:
    rig = TaskRig()
    rig.hold(call_of(TASKS, "s.p" if verb == "prompts/get" else "test://r", verb=verb))
    assert rig.last_result["resultType"] == "input_required"


def test_task_input_requests_have_unique_keys() -> None:
    rig = TaskRig()
    rig.begin(call_of(TASKS))
    first, second = rig.s.last.ask(), rig.s.last.ask(SAMPLING)
    rig.clock.advance(BREATH)
    id = rig.last_result["taskId"]
    assert set(rig.get(id)["inputRequests"]) == {"input-1", "input-2"}
    rig.about("tasks/update", id, answers={"input-2": {"role": "assistant"}})
    assert second.answer == {"role": "assistant"}
    assert first.unanswered
    assert set(rig.get(id)["inputRequests"]) == {"input-1"}
    third = rig.s.last.ask()
    rig.about("tasks/update", id, answers={"input-1": YES, "input-2": YES})
    assert first.answer == YES
    assert set(rig.get(id)["inputRequests"]) == {"input-3"}
    # The server may also change its mind.
    third.ask.withdraw("Never mind.")
    assert rig.get(id)["status"] == "working"
    assert rig.s.last.is_open


def test_checks_further_requests_of_task() -> None:
    rig = TaskRig()
    client = stateless({"elicitation": {}, "extensions": {EXTENSION: {}}})
    rig.hold(call_of(client))
    id = rig.last_result["taskId"]
    assert rig.s.last.ask(SAMPLING).refusal[0] == -32601
    rig.policy = ClientRequestPolicy(elicitation=False)
    assert rig.s.last.ask().refusal[0] == -1
    assert set(rig.get(id)["inputRequests"]) == {"input-1"}


def test_completed_task_resets_breaker() -> None:
    rig = TaskRig()
    rig.own()
    rig.breakers.record_failure("s", UPSTREAM_PROTOCOL)
    assert "s" in rig.breakers.failing
    rig.s.last.answer(content=[])
    assert not rig.breakers.failing


def test_keeps_data_of_upstream_error() -> None:
    rig = TaskRig()
    id = rig.own()
    rig.s.last.go_there_first({"url": "https://example.org"})
    error = rig.get(id)["error"]
    # The number means nothing on this wire; what it was about may still help.
    assert error["code"] == -32603
    assert error["data"] == {"elicitations": [{"url": "https://example.org"}]}


@pytest.mark.parametrize(
    ("code", "told"), [(-32001, -32603), (-32602, -32602), (7, 7), (-32002, -32602)]
)
def test_upstream_error_fails_task(code: int, told: int) -> None:
    rig = TaskRig()
    id = rig.own()
    rig.s.last.answer_error(code, "No.")
    shown = rig.get(id)
    assert (shown["status"], shown["statusMessage"]) == ("failed", "No.")
    assert shown["error"] == {"code": told, "message": "No."}
    assert "result" not in shown


def test_lost_upstream_fails_task_without_retry() -> None:
    rig = TaskRig()
    id = rig.own(name="s.look")
    rig.s.last.lose(sent=True)
    shown = rig.get(id)
    assert shown["status"] == "failed"
    assert shown["error"]["data"] == {"error": "upstream_lost", "retryable": False}
    assert len(rig.s.started) == 1
    assert ("notifications/tasks", "upstream_lost") in rig.journalled()


def test_cancellation_reaches_upstream() -> None:
    rig = TaskRig()
    rig.hold(call_of(TASKS))
    id = rig.last_result["taskId"]
    question, exchange = rig.s.last.questions[0], rig.s.last
    for _ in range(2):
        assert rig.about("tasks/cancel", id) == {}
        shown = rig.get(id)
        assert shown["status"] == "cancelled"
        assert not {"result", "error", "inputRequests"} & shown.keys()
    assert exchange.abandoned == ["The client cancelled the task."]
    assert question.refusal[0] == -32603
    assert rig.journalled().count(("notifications/tasks", "cancelled")) == 1
    exchange.answer(content=[])
    exchange.back.on_result(exchange.call, None, InterlockError(UPSTREAM_LOST, "Too late."))
    assert rig.get(id)["status"] == "cancelled"
    assert rig.journalled().count(("notifications/tasks", "upstream_lost")) == 0


def test_update_requires_input_responses() -> None:
    rig = TaskRig()
    id = rig.own()
    assert failure(rig.about("tasks/update", id)) == "invalid_params"
    assert failure(rig.about("tasks/update", id, answers={"input-1": 1})) == "invalid_params"
    assert failure(rig.about("tasks/update", id, answers=[])) == "invalid_params"
    assert rig.s.last.questions[0].unanswered


# -- time


def test_abandons_task_without_response() -> None:
    rig = TaskRig(seconds=100.0)
    id = rig.own()
    rig.clock.advance(98)
    assert rig.get(id)["status"] == "input_required"
    rig.clock.advance(3)
    assert rig.s.last.abandoned == ["The client did not come back with an answer in time."]
    assert rig.s.last.questions[0].refusal[0] == -32603
    assert failure(rig.get(id)) == "unknown_task"
    assert len(rig.tasks.local_tasks) == 0
    rig.clock.advance(5)
    assert rig.clock.timers == 0


def test_task_exists_until_announced_expiry() -> None:
    rig = TaskRig(seconds=100.0, timeout=30.0)
    id = rig.own()
    began = rig.clock.now
    for number in (1, 2, 3):
        rig.clock.advance(90)
        rig.about("tasks/update", id, answers={f"input-{number}": YES})
        shown = rig.get(id)
        assert shown["status"] == "working"
        # The server has 30 s; what it brings then must still be there to be fetched.
        assert shown["ttlMs"] == pytest.approx((rig.clock.now - began + 130) * 1000, abs=50)
        rig.s.last.ask()
    rig.about("tasks/update", id, answers={"input-4": YES})
    promised = rig.get(id)["ttlMs"]
    rig.s.last.answer(content=[])
    assert rig.get(id)["ttlMs"] == promised
    ends = began + rig.get(id)["ttlMs"] / 1000
    rig.clock.advance(ends - rig.clock.now - 0.5)
    assert rig.get(id)["status"] == "completed"
    rig.clock.advance(2.5)
    assert failure(rig.get(id)) == "unknown_task"


def test_further_request_extends_task_but_progress_does_not() -> None:
    rig = TaskRig(seconds=100.0)
    id = rig.own(meta={"progressToken": 1})
    rig.clock.advance(90)
    rig.s.last.say("notifications/progress", b"{}")
    assert rig.get(id)["ttlMs"] == 100_000
    rig.s.last.ask()
    assert rig.get(id)["ttlMs"] == pytest.approx(190_000, abs=50)


def test_withdrawn_request_resumes_call_timeout() -> None:
    rig = TaskRig(seconds=100.0, timeout=30.0)
    id = rig.own()
    rig.s.last.questions[0].ask.withdraw("Never mind.")
    rig.clock.advance(25)
    assert rig.s.last.is_open
    rig.clock.advance(10)
    assert rig.s.last.expired
    assert rig.get(id)["status"] == "failed"


def test_progress_does_not_extend_hard_deadline() -> None:
    rig = TaskRig(timeout=30.0)
    id = rig.own(meta={"progressToken": 1})
    rig.about("tasks/update", id, answers={"input-1": YES})
    for _ in range(31):
        rig.clock.advance(10)
        rig.s.last.say("notifications/progress", b"{}")
    assert rig.get(id)["error"]["data"]["error"] == "deadline_exceeded"


def test_limits_call_timeout_of_task() -> None:
    rig = TaskRig(timeout=30.0, failures=1)
    id = rig.own(meta={"progressToken": 1})
    rig.clock.advance(100)  # the client's time
    rig.about("tasks/update", id, answers={"input-1": YES})
    for _ in range(3):
        rig.clock.advance(20)
        rig.s.last.say("notifications/progress", b"{}")
    assert rig.get(id)["status"] == "working"
    rig.clock.advance(32)
    shown = rig.get(id)
    assert shown["status"] == "failed"
    assert shown["error"]["data"]["error"] == "deadline_exceeded"
    assert rig.s.last.expired
    assert "s" in rig.breakers.failing


def test_expires_closed_upstream_request() -> None:
    rig = TaskRig(timeout=30.0)
    id = rig.own()
    rig.about("tasks/update", id, answers={"input-1": YES})
    rig.s.last.is_open = False
    rig.clock.advance(32)
    assert rig.get(id)["error"]["data"]["error"] == "upstream_lost"


# -- limits


def test_task_limit_falls_back_to_input_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_tasks, "MAX_TASKS", 1)
    rig = TaskRig()
    rig.own()
    rig.hold(call_of(TASKS))
    assert rig.last_result["resultType"] == "input_required"
    assert rig.held == 1


def test_removes_oldest_results_above_size_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_tasks, "MAX_TASK_BYTES", 250)
    rig = TaskRig()
    asking = rig.own()
    done = []
    for _ in range(3):
        done.append(rig.own())
        rig.s.last.answer(content=[{"type": "text", "text": "x" * 60}])
    assert failure(rig.get(done[0])) == "unknown_task"
    assert [rig.get(id)["status"] for id in done[1:]] == ["completed", "completed"]
    assert rig.get(asking)["status"] == "input_required"
    # One that is too large by itself is kept all the same: somebody waits for it.
    large = rig.own()
    rig.s.last.answer(content=[{"type": "text", "text": "x" * 1000}])
    assert rig.get(large)["status"] == "completed"
    assert failure(rig.get(done[2])) == "unknown_task"


def test_cancellation_before_request_creates_no_task() -> None:
    rig = TaskRig()
    call = rig.begin(call_of(TASKS))
    rig.s.last.ask()
    rig.pipeline.cancel(call)
    rig.clock.advance(BREATH)
    assert len(rig.tasks.local_tasks) == 0
    assert rig.s.last.abandoned


def test_drain_abandons_tasks() -> None:
    rig = TaskRig()
    rig.own()
    done = rig.own()
    rig.s.last.answer(content=[])
    asyncio.run(rig.pipeline.drain(0))
    assert rig.s.started[0].abandoned == ["The node is shutting down."]
    assert len(rig.tasks.local_tasks) == 0
    assert failure(rig.get(done)) == "shutting_down"


def test_task_result_is_valid_json() -> None:
    rig = TaskRig()
    id = rig.own()
    rig.s.last.answer(content=[{"type": "text", "text": 'Grüezi "\n'}])
    shown = rig.get(id)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["result"]["content"][0]["text"] == 'Grüezi "\n'
