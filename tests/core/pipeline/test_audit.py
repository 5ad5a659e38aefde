"""Journal entries of calls: one entry for each outcome, with the right outcome name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from interlock.core.call import Call, Caller, Credentials
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.deadlines import TICK_SECONDS
from interlock.errors import UPSTREAM_PROTOCOL, InterlockError
from interlock.protocol.mcp import META_TIMEOUT, TOOLS_LIST
from tests.support.calls import LOCAL, SESSION, tool_call
from tests.support.offerings import definition, offer
from tests.support.pipeline import COLUMNS, MemoryJournal, PipelineHarness

UNAUTHENTICATED_CREDENTIALS = Credentials("192.0.2.1")


def make_node(**settings: Any) -> PipelineHarness:
    look = definition("look", annotations={"readOnlyHint": True})
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return PipelineHarness(offer("s", [look, definition("t", inputSchema=schema)]), **settings)


# --- one call, one entry ---


def complete_call(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.t"))
    harness.upstreams["s"].last.answer(content=[])


def complete_with_tool_error(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.t"))
    harness.upstreams["s"].last.answer(content=[], isError=True)


def fail_with_error(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.t"))
    harness.upstreams["s"].last.answer_error(-32000, "out of paper")


def fail_with_garbage(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.t"))
    harness.upstreams["s"].last.fail(InterlockError(UPSTREAM_PROTOCOL, "garbage"))


def lose(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.t"))
    harness.upstreams["s"].last.lose(sent=True)


def expire(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.t", meta={META_TIMEOUT: 100}))
    harness.clock.advance(0.1 + 2 * TICK_SECONDS)


def cancel(harness: PipelineHarness) -> None:
    harness.pipeline.cancel(harness.begin(tool_call("s.t")))


def call_unauthenticated(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.t", credentials=UNAUTHENTICATED_CREDENTIALS))


def call_in_session_of_other(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.t", session_owner="operator"))


def unknown_tool(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.nothing"))


def bad_arguments(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.t", {"n": "x"}))


def bad_timeout(harness: PipelineHarness) -> None:
    harness.begin(tool_call("s.t", meta={META_TIMEOUT: -1}))


def no_upstream(harness: PipelineHarness) -> None:
    del harness.upstreams["s"]
    harness.begin(tool_call("s.t"))


def raise_internal_error(harness: PipelineHarness) -> None:
    harness.upstreams["s"].refuse_with = RuntimeError("a fault of ours")
    harness.begin(tool_call("s.t"))


def list_tools(harness: PipelineHarness) -> None:
    harness.begin(Call(TOOLS_LIST, "test", LOCAL, SESSION))


def bad_cursor(harness: PipelineHarness) -> None:
    harness.begin(Call(TOOLS_LIST, "test", LOCAL, SESSION, cursor="made up"))


def other_method(harness: PipelineHarness) -> None:
    harness.begin(Call("prompts/list", "test", LOCAL, SESSION))


def initialize(harness: PipelineHarness) -> None:
    harness.pipeline.admit(Call("initialize", "test", LOCAL, SESSION))


def initialize_unauthenticated(harness: PipelineHarness) -> None:
    with pytest.raises(InterlockError):
        harness.pipeline.admit(Call("initialize", "test", UNAUTHENTICATED_CREDENTIALS, SESSION))


OUTCOMES: dict[Callable[[PipelineHarness], None], tuple[str, str]] = {
    complete_call: ("ok", ""),
    complete_with_tool_error: ("tool_error", ""),
    fail_with_error: ("upstream_error", "out of paper"),
    fail_with_garbage: ("upstream_protocol_error", "garbage"),
    lose: ("upstream_lost", "It went away."),
    expire: ("deadline_exceeded", "It did not answer in time."),
    cancel: ("cancelled", "The caller cancelled the call."),
    call_unauthenticated: ("unauthenticated", "A bearer token is required"),
    call_in_session_of_other: ("unknown_session", "Unknown or expired session"),
    unknown_tool: ("unknown_tool", "Unknown tool 's.nothing'."),
    bad_arguments: ("invalid_arguments", "n: the value is not of type"),
    bad_timeout: ("invalid_params", "milliseconds"),
    no_upstream: ("upstream_unavailable", "was removed from this node"),
    raise_internal_error: ("internal_error", "Internal error. See the log of the node."),
    list_tools: ("ok", ""),
    bad_cursor: ("invalid_cursor", "cursor"),
    other_method: ("method_not_found", "No upstream of this node supports 'prompts/list'."),
    initialize: ("ok", ""),
    initialize_unauthenticated: ("unauthenticated", "A bearer token is required"),
}


@pytest.mark.parametrize("end_call", OUTCOMES, ids=lambda item: item.__name__)
def test_records_each_outcome_once(
    end_call: Callable[[PipelineHarness], None],
) -> None:
    node = make_node()
    end_call(node)
    word, detail = OUTCOMES[end_call]
    [entry] = node.journal.entries
    assert entry["outcome"] == word
    assert detail in entry["detail"]
    assert node.under_way == 0


@pytest.mark.parametrize("end_call", [complete_call, fail_with_error, lose, expire, cancel])
@pytest.mark.parametrize("afterthought", ["answer", "lose", "expire", "cancel"])
def test_records_nothing_after_end_of_call(
    end_call: Callable[[PipelineHarness], None], afterthought: str
) -> None:
    node = make_node()
    end_call(node)
    exchange = node.upstreams["s"].last
    # An upstream that does not keep the rules: it settles what was settled before.
    exchange.is_open = True
    if afterthought == "answer":
        exchange.answer(content=[])
    elif afterthought == "lose":
        exchange.lose(sent=False)
    elif afterthought == "expire":
        exchange.expire()
    else:
        node.pipeline.cancel(exchange.call)
    assert len(node.journal.entries) == 1
    assert len(node.done) == 1
    assert len(node.upstreams["s"].started) == 1


def test_records_entry_with_every_column() -> None:
    node = make_node()
    node.begin(tool_call("s__look", {"n": 1}))
    node.clock.advance(0.25)
    node.upstreams["s"].last.answer(content=[])
    [entry] = node.journal.entries
    assert entry == {
        "time_ns": 1_700_000_000_000_000_000,
        "caller": "local",
        "face": "test",
        "verb": "tools/call",
        # The canonical name, whichever form was used.
        "name": "s.look",
        "upstream": "s",
        "effect": "read_only",
        "outcome": "ok",
        "duration_us": 250_000,
        "detail": "",
    }
    assert tuple(entry) == COLUMNS


def test_entry_of_unauthenticated_caller_contains_only_requested_name() -> None:
    node = make_node(tokens={"t0ken": "operator"})
    node.begin(tool_call("s.look", credentials=Credentials("loopback", "wr0ng")))
    [entry] = node.journal.entries
    assert (entry["caller"], entry["name"], entry["upstream"], entry["effect"]) == (
        "", "s.look", "", ""
    )  # fmt: skip
    assert "wr0ng" not in json.dumps(entry)


def test_records_caller_without_token() -> None:
    node = make_node(tokens={"t0ken": "operator"})
    node.begin(tool_call("s.look", credentials=Credentials("192.0.2.1", "t0ken")))
    node.upstreams["s"].last.answer(content=[])
    [entry] = node.journal.entries
    assert entry["caller"] == "operator"
    assert "t0ken" not in json.dumps(entry)


def test_omits_arguments_and_results() -> None:
    node = make_node()
    node.begin(tool_call("s.look", {"password": "hunter2"}))
    node.upstreams["s"].last.answer(content=[{"type": "text", "text": "hunter2"}])
    node.begin(tool_call("s.t", {"n": "hunter2"}))
    assert node.journal.outcomes == ["ok", "invalid_arguments"]
    assert "hunter2" not in json.dumps(node.journal.entries)


def test_limits_entry_length() -> None:
    node = make_node()
    long = "x" * 1_000_000
    node.begin(tool_call(long, credentials=UNAUTHENTICATED_CREDENTIALS))
    node.begin(tool_call(long))
    node.begin(Call(long, "test", UNAUTHENTICATED_CREDENTIALS, SESSION))
    node.begin(Call(long, "test", LOCAL, SESSION))
    node.begin(tool_call("s.t"))
    node.upstreams["s"].last.answer_error(1, long)
    assert len(node.journal.entries) == 5
    assert all(len(json.dumps(entry)) < 2_000 for entry in node.journal.entries)


def test_records_cancelled_task() -> None:
    async def body() -> PipelineHarness:
        node = make_node()
        task = asyncio.create_task(node.pipeline.run(tool_call("s.t")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return node

    node = asyncio.run(body())
    assert node.journal.outcomes == ["cancelled"]
    assert node.upstreams["s"].last.abandoned == ["The caller cancelled the call."]


# --- tallies ---


def test_counts_calls_and_failures() -> None:
    node = make_node()
    complete_call(node)
    complete_with_tool_error(node)
    fail_with_error(node)
    bad_arguments(node)
    unknown_tool(node)
    call_unauthenticated(node)
    list_tools(node)
    initialize(node)
    assert (node.audit.total.calls, node.audit.total.failed) == (6, 5)
    # A call that reached no tool is nobody's.
    assert node.audit.by_upstream.keys() == {"", "s"}
    assert (node.audit.by_upstream["s"].calls, node.audit.by_upstream["s"].failed) == (4, 3)


def test_sums_call_durations() -> None:
    node = make_node()
    node.begin(tool_call("s.t"))
    node.begin(tool_call("s.t"))
    node.clock.advance(0.5)
    for exchange in node.upstreams["s"].started:
        exchange.answer(content=[])
    assert node.audit.total.busy_us == node.audit.by_upstream["s"].busy_us == 1_000_000


def test_counts_calls_without_journal() -> None:
    audit = Audit(None)
    audit.record(tool_call("s.t"), "ok", 5)
    assert audit.total.calls == 1


# --- before a call leaves ---


def record_intent(audit: Audit, call: Call) -> list[bool]:
    received: list[bool] = []
    audit.record_intent(call, received.append)
    return received


def test_entries_of_one_call_have_same_call_id() -> None:
    journal = MemoryJournal()
    audit = Audit(journal, wall_clock=lambda: 255)
    one, other = tool_call("s.t"), tool_call("s.t")
    assert record_intent(audit, one) == record_intent(audit, other) == [True]
    audit.record(other, "tool_error", 5)
    audit.record(one, "upstream_lost", 7, "It went away.")
    assert [(entry["outcome"], entry["detail"]) for entry in journal.entries] == [
        ("dispatching", "call:ff-1"),
        ("dispatching", "call:ff-2"),
        ("tool_error", "call:ff-2"),
        ("upstream_lost", "call:ff-1 It went away."),
    ]
    assert not audit._intents


def test_recording_intent_twice_keeps_call_id() -> None:
    journal = MemoryJournal()
    audit = Audit(journal, wall_clock=lambda: 255)
    call = tool_call("s.t")
    record_intent(audit, call)
    record_intent(audit, call)
    assert [entry["detail"] for entry in journal.entries] == ["call:ff-1", "call:ff-1"]


def test_entries_name_approval_of_call() -> None:
    journal = MemoryJournal()
    audit = Audit(journal, wall_clock=lambda: 255)
    call = tool_call("s.t")
    call.approval_id = "a1"
    record_intent(audit, call)
    audit.record(call, "ok", 5)
    plain = tool_call("s.t")
    plain.approval_id = "a2"
    audit.record(plain, "denied_by_policy", 5, "No.")
    assert [entry["detail"] for entry in journal.entries] == [
        "call:ff-1 approval:a1",
        "call:ff-1 approval:a1",
        "approval:a2 No.",
    ]


@pytest.mark.parametrize("durable", [True, False])
def test_irreversible_and_approved_calls_have_arguments_digest(durable: bool) -> None:
    journal = MemoryJournal()
    audit = Audit(
        journal, wall_clock=lambda: 255, durable=durable, digest=lambda call: f"of:{call.name}"
    )
    for name, effect, approval in (
        ("s.undo", "mutating", ""),
        ("s.drop", "irreversible", ""),
        ("s.held", "additive", "a1"),
    ):
        call = tool_call(name)
        call.effect, call.approval_id = effect, approval
        record_intent(audit, call)
        record_intent(audit, call)
        audit.record(call, "ok", 5)
    ends = [entry["detail"] for entry in journal.entries if entry["outcome"] == "ok"]
    if durable:
        assert ends == ["call:ff-1", "call:ff-2 of:s.drop", "call:ff-3 of:s.held approval:a1"]
        begun = [entry["detail"] for entry in journal.entries if entry["outcome"] != "ok"]
        assert begun == [detail for detail in ends for _ in range(2)]
    else:
        assert ends == ["", "of:s.drop", "of:s.held approval:a1"]
    assert not audit._intents


@pytest.mark.parametrize("audit", [Audit(None), Audit(MemoryJournal(), durable=False)])
def test_does_not_wait_without_durable_journal(audit: Audit) -> None:
    call = tool_call("s.t")
    assert not audit.records_intents
    assert record_intent(audit, call) == [True]
    audit.record(call, "ok", 1)
    if isinstance(audit._recorder, MemoryJournal):
        assert [entry["detail"] for entry in audit._recorder.entries] == [""]


# --- a journal in trouble ---


class BrokenJournal(MemoryJournal):
    def record(self, entry: Any) -> None:
        raise OSError("the disk is gone")


@pytest.mark.parametrize("end_call", [complete_call, bad_arguments, expire, cancel, list_tools])
def test_failing_journal_does_not_block_result(
    end_call: Callable[[PipelineHarness], None], caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node(recorder=BrokenJournal())
    end_call(node)
    assert len(node.done) == 1
    assert node.under_way == 0
    assert "a call observer failed" in caplog.text


def test_records_caller_of_parent() -> None:
    node = make_node()
    callers = {
        above: Caller("parent", kind="parent", parent_caller=above)
        for above in ("owner", "guest", "")
    }
    node.pipeline.admission.authenticate.verify_hop_token = lambda shown: callers[
        shown.hop_token or ""
    ]
    order = ["owner", "owner", "guest", "owner", "", "guest", "guest", "", "owner"]
    for above in order:
        shown = Credentials("local", assigned_name="parent", hop_token=above)
        node.begin(tool_call("s.look", credentials=shown))
        node.upstreams["s"].last.answer(content=[])
    written = [entry["caller"] for entry in node.journal.entries]
    assert written == [f"parent/{above}" if above else "parent" for above in order]
