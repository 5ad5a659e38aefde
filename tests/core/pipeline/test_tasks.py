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
    EVERYTHING,
    FORM,
    GROUPING_SECONDS,
    OPERATOR,
    SAMPLE,
    YES,
    ClientRequestHarness,
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


class TaskHarness(ClientRequestHarness):
    """A pipeline with one upstream, and a client that supports tasks."""

    def __init__(self, *offerings: Any, **settings: Any) -> None:
        super().__init__(*offerings, **settings)
        self.tasks = self.pipeline._input.tasks
        self.tasks.local_tasks.wall_clock = lambda: self.wall

    def request_task(self, verb: str, id: str, **fields: Any) -> Any:
        """Return the node's response to a request about a task."""
        self.begin(request(verb, id, **fields))
        return self.done[-1][1]

    def get(self, id: str, **fields: Any) -> Any:
        return self.request_task("tasks/get", id, **fields)

    def create_task(self, **fields: Any) -> str:
        """Create a task of the node with one client request, and return its id."""
        self.hold(call_of(TASKS, **fields))
        id: str = self.last_result["taskId"]
        return id

    def relay_task(self, **fields: Any) -> str:
        """Create a task of the upstream, and return its id."""
        self.begin(call_of(TASKS, **fields))
        self.s.last.require_input(**CREATED)
        id: str = self.last_result["taskId"]
        return id


def request(verb: str, id: str, client: Client = TASKS, **fields: Any) -> Call:
    return call_of(client, id, verb=verb, **fields)


def error_name(answer: Any) -> str:
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
    harness = TaskHarness()
    id = harness.relay_task(credentials=OPERATOR)
    assert harness.last_result == {**CREATED, "taskId": id}
    assert "own-1" not in id
    assert harness.relay_task(credentials=OPERATOR) == id
    assert harness.relay_task(credentials=AUDITOR) != id


def test_sends_task_requests_to_upstream() -> None:
    harness = TaskHarness()
    id = harness.relay_task()
    harness.begin(request("tasks/get", id))
    assert harness.s.last_sent == {"taskId": "own-1"}
    assert harness.s.last.call.is_retryable
    harness.s.last.require_input(**{**CREATED, "resultType": "complete"})
    assert harness.last_result == {**CREATED, "resultType": "complete", "taskId": id}
    for verb, responses in (("tasks/update", {"a": YES}), ("tasks/cancel", None)):
        harness.begin(request(verb, id, answers=responses))
        supplied = {} if responses is None else {"inputResponses": responses}
        assert harness.s.last_sent == {"taskId": "own-1", **supplied}
        assert not harness.s.last.call.is_retryable
        harness.s.last.require_input(resultType="complete")
        assert harness.last_result == {"resultType": "complete"}
    # Even where a server says too much, its own id stays here.
    harness.begin(request("tasks/cancel", id))
    harness.s.last.require_input(resultType="complete", taskId="own-1")
    assert harness.last_result["taskId"] == id
    verbs = ["tools/call", "tasks/get", "tasks/update", "tasks/cancel", "tasks/cancel"]
    assert [entry["verb"] for entry in harness.journal.entries] == verbs
    assert {entry["upstream"] for entry in harness.journal.entries} == {"s"}


@pytest.mark.parametrize("verb", VERBS)
def test_rejects_task_of_other_caller(verb: str) -> None:
    harness = TaskHarness()
    relayed, own = (
        harness.relay_task(credentials=OPERATOR),
        harness.create_task(credentials=OPERATOR),
    )
    before = len(harness.s.started)
    for id in (relayed, own, "t1.x", "own-1", relayed[:-2] + "AA"):
        error = harness.request_task(verb, id, credentials=AUDITOR)
        assert error_name(error) == "unknown_task"
        assert error.failure.code == error.failure.stateless_code == -32602
    assert len(harness.s.started) == before
    assert harness.get(own, credentials=OPERATOR)["status"] == "input_required"


@pytest.mark.parametrize("verb", VERBS)
def test_task_methods_require_extension(verb: str) -> None:
    harness = TaskHarness()
    for id in (harness.relay_task(), harness.create_task(), "unknown"):
        error = harness.request_task(verb, id, client=PLAIN)
        assert error_name(error) == "missing_client_capability"
        assert error.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.mark.parametrize("verb", [*VERBS, "tasks/result", "tasks/list"])
def test_session_tasks_are_not_served(verb: str) -> None:
    harness = TaskHarness()
    harness.pipeline.transparent_upstream = "s"
    harness.s.capabilities = {"tasks": {"list": {}}}
    assert (
        error_name(harness.request_task(verb, harness.relay_task(), client=SESSION))
        == "method_not_found"
    )


def test_unknown_task_methods_are_not_passed_on() -> None:
    harness = TaskHarness()
    harness.pipeline.transparent_upstream = "s"
    harness.s.capabilities = {"extensions": {EXTENSION: {}, "org.example/more": {}}}
    assert error_name(harness.request_task("tasks/other", "x")) == "method_not_found"
    harness.begin(
        request("more/other", "", client=stateless({"extensions": {"org.example/more": {}}}))
    )
    assert harness.s.last.call.method == "more/other"


@pytest.mark.parametrize(
    "client",
    [PLAIN, SESSION, Client(Era.SESSION, "2025-11-25", "tests", TASKS.capabilities)],
)
def test_task_without_client_support_is_protocol_error(client: Client) -> None:
    harness = TaskHarness()
    harness.begin(call_of(client))
    harness.s.last.require_input(**CREATED)
    assert error_name(harness.last_error) == "upstream_protocol_error"


@pytest.mark.parametrize("verb", ["prompts/get", "resources/read"])
def test_only_tool_calls_become_tasks(verb: str) -> None:
    harness = TaskHarness()
    harness.begin(call_of(TASKS, "s.p" if verb == "prompts/get" else "test://r", verb=verb))
    harness.s.last.require_input(**CREATED)
    assert error_name(harness.last_error) == "upstream_protocol_error"


@pytest.mark.parametrize("id", [None, "", 7, "x" * 9000])
def test_rejects_task_without_valid_id(id: Any) -> None:
    harness = TaskHarness()
    harness.begin(call_of(TASKS))
    supplied = {key: value for key, value in CREATED.items() if key != "taskId"}
    harness.s.last.require_input(**supplied, **({} if id is None else {"taskId": id}))
    assert error_name(harness.last_error) == "upstream_protocol_error"


def test_policy_applies_to_input_requests_of_tasks() -> None:
    harness = TaskHarness(policy=ClientRequestPolicy(elicitation=False, max_tokens=10))
    id = harness.relay_task()
    state = {**CREATED, "resultType": "complete", "status": "input_required"}
    harness.begin(request("tasks/get", id))
    harness.s.last.require_input({"a": (SAMPLING, SAMPLE)}, **state)
    assert harness.last_result["inputRequests"]["a"]["params"]["maxTokens"] == 10
    assert harness.last_result["taskId"] == id
    harness.begin(request("tasks/get", id))
    harness.s.last.require_input({"a": (ELICITATION, FORM)}, **state)
    assert error_name(harness.last_error) == "forbidden"
    harness.begin(request("tasks/get", id, client=stateless({"extensions": {EXTENSION: {}}})))
    harness.s.last.require_input({"a": (SAMPLING, SAMPLE)}, **state)
    assert error_name(harness.last_error) == "missing_client_capability"
    # A question in place of an answer is for calls, not for what is asked about tasks.
    harness.begin(request("tasks/get", id))
    harness.s.last.require_input({"a": (SAMPLING, SAMPLE)})
    assert error_name(harness.last_error) == "upstream_protocol_error"


def test_removes_hop_meta_from_task_result() -> None:
    harness = TaskHarness()
    id = harness.relay_task()
    meta = {"io.modelcontextprotocol/serverInfo": {"name": "x"}}
    for kept in ({}, {"mine": 1}):
        harness.begin(request("tasks/get", id))
        result = {"content": [], "_meta": {**meta, **kept}}
        harness.s.last.require_input(**{**CREATED, "resultType": "complete", "result": result})
        assert harness.last_result["result"] == {"content": [], **({"_meta": kept} if kept else {})}


def test_relabels_uris_in_task_result() -> None:
    harness = TaskHarness(
        offer("s", ["t"], resources=[resource("test://r")]),
        offer("other", ["t"], resources=[resource("test://r")]),
    )
    shown = harness.catalog.current.shown_uri("s", "test://r")
    assert shown != "test://r"
    result = {"content": [{"type": "resource_link", "uri": "test://r", "name": "r"}]}
    harness.begin(request("tasks/get", harness.relay_task()))
    harness.s.last.require_input(**{**CREATED, "resultType": "complete", "result": result})
    assert harness.last_result["result"]["content"][0]["uri"] == shown
    own = harness.create_task()
    harness.s.last.answer(**result)
    assert harness.get(own)["result"]["content"][0]["uri"] == shown


@pytest.mark.parametrize("client", [TASKS, SESSION])
def test_ignores_task_member_of_session_protocol(client: Client) -> None:
    harness = TaskHarness()
    call = call_of(client)
    call.extra_params = {"task": Raw(b'{"ttl":1}')}
    harness.begin(call)
    assert harness.s.last.read_param("task") is None
    call = call_of(client)
    call.extra_params = {"task": Raw(b"{}"), "more": Raw(b"1")}
    harness.begin(call)
    assert harness.s.last_sent == {"more": 1}


# -- tasks of the node's own


def test_client_request_turns_call_into_task() -> None:
    harness = TaskHarness()
    client_request = harness.hold(call_of(TASKS))
    created = harness.last_result
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
    assert harness.held == 0
    input_requests = {"input-1": {"method": ELICITATION, "params": FORM}}
    for _ in range(2):
        shown = harness.get(id)
        assert (shown["resultType"], shown["status"]) == ("complete", "input_required")
        assert shown["inputRequests"] == input_requests
    harness.wall += 5
    assert harness.request_task("tasks/update", id, answers={"input-1": YES, "other": YES}) == {}
    assert client_request.result == YES
    shown = harness.get(id)
    assert shown["status"] == "working"
    assert "inputRequests" not in shown
    assert shown["lastUpdatedAt"] == "2023-11-14T22:13:25.000Z"
    harness.s.last.answer(
        content=[], isError=True, _meta={"io.modelcontextprotocol/related-task": {}}
    )
    for _ in range(2):
        shown = harness.get(id)
        assert (shown["status"], shown["result"]) == ("completed", {"content": [], "isError": True})
    # Nothing moves it any more.
    harness.wall += 5
    assert harness.request_task("tasks/cancel", id) == {}
    assert harness.request_task("tasks/update", id, answers={"input-1": YES}) == {}
    assert harness.get(id) == shown
    assert sum(call.method == "notifications/tasks" for call, _ in harness.done) == 1
    journalled = harness.list_outcomes()
    assert journalled[0] == ("tools/call", "input_required")
    assert ("notifications/tasks", "tool_error") in journalled
    assert ("tasks/update", "ok") in journalled
    [ended] = [entry for entry in harness.journal.entries if entry["verb"] == "notifications/tasks"]
    assert (ended["name"], ended["upstream"], ended["caller"]) == ("s.t", "s", "local")
    assert harness.audit.by_upstream["s"].calls == 1


def test_client_without_tasks_gets_input_required() -> None:
    harness = TaskHarness()
    harness.hold(call_of(PLAIN))
    assert harness.last_result["resultType"] == "input_required"
    assert len(harness.tasks.local_tasks) == 0


@pytest.mark.parametrize("verb", ["prompts/get", "resources/read"])
def test_other_requests_do_not_become_tasks(verb: str) -> None:
    harness = TaskHarness()
    harness.hold(call_of(TASKS, "s.p" if verb == "prompts/get" else "test://r", verb=verb))
    assert harness.last_result["resultType"] == "input_required"


def test_task_input_requests_have_unique_keys() -> None:
    harness = TaskHarness()
    harness.begin(call_of(TASKS))
    first, second = harness.s.last.ask(), harness.s.last.ask(SAMPLING)
    harness.clock.advance(GROUPING_SECONDS)
    id = harness.last_result["taskId"]
    assert set(harness.get(id)["inputRequests"]) == {"input-1", "input-2"}
    harness.request_task("tasks/update", id, answers={"input-2": {"role": "assistant"}})
    assert second.result == {"role": "assistant"}
    assert first.is_pending
    assert set(harness.get(id)["inputRequests"]) == {"input-1"}
    third = harness.s.last.ask()
    harness.request_task("tasks/update", id, answers={"input-1": YES, "input-2": YES})
    assert first.result == YES
    assert set(harness.get(id)["inputRequests"]) == {"input-3"}
    # The server may also change its mind.
    third.ask.withdraw("Never mind.")
    assert harness.get(id)["status"] == "working"
    assert harness.s.last.is_open


def test_checks_further_requests_of_task() -> None:
    harness = TaskHarness()
    client = stateless({"elicitation": {}, "extensions": {EXTENSION: {}}})
    harness.hold(call_of(client))
    id = harness.last_result["taskId"]
    assert harness.s.last.ask(SAMPLING).rejection[0] == -32601
    harness.policy = ClientRequestPolicy(elicitation=False)
    assert harness.s.last.ask().rejection[0] == -1
    assert set(harness.get(id)["inputRequests"]) == {"input-1"}


def test_completed_task_resets_breaker() -> None:
    harness = TaskHarness()
    harness.create_task()
    harness.breakers.record_failure("s", UPSTREAM_PROTOCOL)
    assert "s" in harness.breakers.failing
    harness.s.last.answer(content=[])
    assert not harness.breakers.failing


def test_keeps_data_of_upstream_error() -> None:
    harness = TaskHarness()
    id = harness.create_task()
    harness.s.last.require_url({"url": "https://example.org"})
    error = harness.get(id)["error"]
    # The number means nothing on this wire; what it was about may still help.
    assert error["code"] == -32603
    assert error["data"] == {"elicitations": [{"url": "https://example.org"}]}


@pytest.mark.parametrize(
    ("code", "shown_code"), [(-32001, -32603), (-32602, -32602), (7, 7), (-32002, -32602)]
)
def test_upstream_error_fails_task(code: int, shown_code: int) -> None:
    harness = TaskHarness()
    id = harness.create_task()
    harness.s.last.answer_error(code, "No.")
    shown = harness.get(id)
    assert (shown["status"], shown["statusMessage"]) == ("failed", "No.")
    assert shown["error"] == {"code": shown_code, "message": "No."}
    assert "result" not in shown


def test_lost_upstream_fails_task_without_retry() -> None:
    harness = TaskHarness()
    id = harness.create_task(name="s.look")
    harness.s.last.lose(sent=True)
    shown = harness.get(id)
    assert shown["status"] == "failed"
    assert shown["error"]["data"] == {"error": "upstream_lost", "retryable": False}
    assert len(harness.s.started) == 1
    assert ("notifications/tasks", "upstream_lost") in harness.list_outcomes()


def test_cancellation_reaches_upstream() -> None:
    harness = TaskHarness()
    harness.hold(call_of(TASKS))
    id = harness.last_result["taskId"]
    client_request, exchange = harness.s.last.questions[0], harness.s.last
    for _ in range(2):
        assert harness.request_task("tasks/cancel", id) == {}
        shown = harness.get(id)
        assert shown["status"] == "cancelled"
        assert not {"result", "error", "inputRequests"} & shown.keys()
    assert exchange.abandoned == ["The client cancelled the task."]
    assert client_request.rejection[0] == -32603
    assert harness.list_outcomes().count(("notifications/tasks", "cancelled")) == 1
    exchange.answer(content=[])
    exchange.back.on_result(exchange.call, None, InterlockError(UPSTREAM_LOST, "Too late."))
    assert harness.get(id)["status"] == "cancelled"
    assert harness.list_outcomes().count(("notifications/tasks", "upstream_lost")) == 0


def test_update_requires_input_responses() -> None:
    harness = TaskHarness()
    id = harness.create_task()
    assert error_name(harness.request_task("tasks/update", id)) == "invalid_params"
    assert (
        error_name(harness.request_task("tasks/update", id, answers={"input-1": 1}))
        == "invalid_params"
    )
    assert error_name(harness.request_task("tasks/update", id, answers=[])) == "invalid_params"
    assert harness.s.last.questions[0].is_pending


# -- time


def test_abandons_task_without_response() -> None:
    harness = TaskHarness(seconds=100.0)
    id = harness.create_task()
    harness.clock.advance(98)
    assert harness.get(id)["status"] == "input_required"
    harness.clock.advance(3)
    assert harness.s.last.abandoned == ["The client did not send its response in time."]
    assert harness.s.last.questions[0].rejection[0] == -32603
    assert error_name(harness.get(id)) == "unknown_task"
    assert len(harness.tasks.local_tasks) == 0
    harness.clock.advance(5)
    assert harness.clock.timers == 0


def test_task_exists_until_announced_expiry() -> None:
    harness = TaskHarness(seconds=100.0, timeout=30.0)
    id = harness.create_task()
    began = harness.clock.now
    for number in (1, 2, 3):
        harness.clock.advance(90)
        harness.request_task("tasks/update", id, answers={f"input-{number}": YES})
        shown = harness.get(id)
        assert shown["status"] == "working"
        # The server has 30 s; what it brings then must still be there to be fetched.
        assert shown["ttlMs"] == pytest.approx((harness.clock.now - began + 130) * 1000, abs=50)
        harness.s.last.ask()
    harness.request_task("tasks/update", id, answers={"input-4": YES})
    promised = harness.get(id)["ttlMs"]
    harness.s.last.answer(content=[])
    assert harness.get(id)["ttlMs"] == promised
    ends = began + harness.get(id)["ttlMs"] / 1000
    harness.clock.advance(ends - harness.clock.now - 0.5)
    assert harness.get(id)["status"] == "completed"
    harness.clock.advance(2.5)
    assert error_name(harness.get(id)) == "unknown_task"


def test_further_request_extends_task_but_progress_does_not() -> None:
    harness = TaskHarness(seconds=100.0)
    id = harness.create_task(meta={"progressToken": 1})
    harness.clock.advance(90)
    harness.s.last.say("notifications/progress", b"{}")
    assert harness.get(id)["ttlMs"] == 100_000
    harness.s.last.ask()
    assert harness.get(id)["ttlMs"] == pytest.approx(190_000, abs=50)


def test_withdrawn_request_resumes_call_timeout() -> None:
    harness = TaskHarness(seconds=100.0, timeout=30.0)
    id = harness.create_task()
    harness.s.last.questions[0].ask.withdraw("Never mind.")
    harness.clock.advance(25)
    assert harness.s.last.is_open
    harness.clock.advance(10)
    assert harness.s.last.expired
    assert harness.get(id)["status"] == "failed"


def test_progress_does_not_extend_hard_deadline() -> None:
    harness = TaskHarness(timeout=30.0)
    id = harness.create_task(meta={"progressToken": 1})
    harness.request_task("tasks/update", id, answers={"input-1": YES})
    for _ in range(31):
        harness.clock.advance(10)
        harness.s.last.say("notifications/progress", b"{}")
    assert harness.get(id)["error"]["data"]["error"] == "deadline_exceeded"


def test_limits_call_timeout_of_task() -> None:
    harness = TaskHarness(timeout=30.0, failures=1)
    id = harness.create_task(meta={"progressToken": 1})
    harness.clock.advance(100)  # the client's time
    harness.request_task("tasks/update", id, answers={"input-1": YES})
    for _ in range(3):
        harness.clock.advance(20)
        harness.s.last.say("notifications/progress", b"{}")
    assert harness.get(id)["status"] == "working"
    harness.clock.advance(32)
    shown = harness.get(id)
    assert shown["status"] == "failed"
    assert shown["error"]["data"]["error"] == "deadline_exceeded"
    assert harness.s.last.expired
    assert "s" in harness.breakers.failing


def test_expires_closed_upstream_request() -> None:
    harness = TaskHarness(timeout=30.0)
    id = harness.create_task()
    harness.request_task("tasks/update", id, answers={"input-1": YES})
    harness.s.last.is_open = False
    harness.clock.advance(32)
    assert harness.get(id)["error"]["data"]["error"] == "upstream_lost"


# -- limits


def test_task_limit_falls_back_to_input_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_tasks, "MAX_TASKS", 1)
    harness = TaskHarness()
    harness.create_task()
    harness.hold(call_of(TASKS))
    assert harness.last_result["resultType"] == "input_required"
    assert harness.held == 1


def test_removes_oldest_results_above_size_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_tasks, "MAX_TASK_BYTES", 250)
    harness = TaskHarness()
    asking = harness.create_task()
    done = []
    for _ in range(3):
        done.append(harness.create_task())
        harness.s.last.answer(content=[{"type": "text", "text": "x" * 60}])
    assert error_name(harness.get(done[0])) == "unknown_task"
    assert [harness.get(id)["status"] for id in done[1:]] == ["completed", "completed"]
    assert harness.get(asking)["status"] == "input_required"
    # One that is too large by itself is kept all the same: somebody waits for it.
    large = harness.create_task()
    harness.s.last.answer(content=[{"type": "text", "text": "x" * 1000}])
    assert harness.get(large)["status"] == "completed"
    assert error_name(harness.get(done[2])) == "unknown_task"


def test_cancellation_before_request_creates_no_task() -> None:
    harness = TaskHarness()
    call = harness.begin(call_of(TASKS))
    harness.s.last.ask()
    harness.pipeline.cancel(call)
    harness.clock.advance(GROUPING_SECONDS)
    assert len(harness.tasks.local_tasks) == 0
    assert harness.s.last.abandoned


def test_drain_abandons_tasks() -> None:
    harness = TaskHarness()
    harness.create_task()
    done = harness.create_task()
    harness.s.last.answer(content=[])
    asyncio.run(harness.pipeline.drain(0))
    assert harness.s.started[0].abandoned == ["The node is shutting down."]
    assert len(harness.tasks.local_tasks) == 0
    assert error_name(harness.get(done)) == "shutting_down"


def test_task_result_is_valid_json() -> None:
    harness = TaskHarness()
    id = harness.create_task()
    harness.s.last.answer(content=[{"type": "text", "text": 'Grüezi "\n'}])
    shown = harness.get(id)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["result"]["content"][0]["text"] == 'Grüezi "\n'
