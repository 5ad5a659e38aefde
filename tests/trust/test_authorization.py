"""Scopes, policy, budgets and the journal in the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from interlock.core.call import Call, Caller, Credentials
from interlock.core.config import BudgetConfig, BudgetsConfig, PolicyConfig, RuleConfig
from interlock.core.pipeline.authentication import Authenticator
from interlock.core.ports import JournalEntry
from interlock.errors import (
    BUDGET_EXCEEDED,
    CONFIRMATION_REQUIRED,
    DENIED,
    FORBIDDEN,
    UNKNOWN_TOOL,
    UNRECORDABLE,
)
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import LISTEN, TOOLS_LIST
from interlock.trust.policy import Policy
from tests.support.calls import SESSION, tool_call
from tests.support.offerings import definition, offer
from tests.support.pipeline import MemoryJournal, PipelineHarness

TOOLS = [
    definition("read", annotations={"readOnlyHint": True}),
    definition("write", annotations={"destructiveHint": False}),
    definition("wipe", annotations={"destructiveHint": True}),
]


def policy_harness(*rules: RuleConfig, default: Any = "safe", **settings: Any) -> PipelineHarness:
    harness = PipelineHarness(offer("s", TOOLS), **settings)
    harness.authorizer.set_policy(Policy(PolicyConfig(default=default, rules=list(rules))))
    return harness


def limited_to(made: PipelineHarness, *scopes: str) -> Credentials:
    """Somebody with these scopes comes with a token."""
    caller = Caller("agent", scopes=scopes, kind="token")
    made.pipeline.configure(
        authenticate=Authenticator({"t" * 20: caller}),
        names="dotted",
        timeout=60.0,
        concurrent_calls=100,
        latency_in_results=False,
    )
    return Credentials("192.0.2.1", "t" * 20)


def list_tools(made: PipelineHarness, credentials: Credentials) -> list[str]:
    made.begin(Call(TOOLS_LIST, "http", credentials, SESSION))
    return [tool["name"] for tool in made.done[-1][1]["tools"]]


class SlowJournal(MemoryJournal):
    """One that says when an entry is on disk only when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[bool], None]] = []

    def record_durably(self, entry: JournalEntry, then: Callable[[bool], None]) -> None:
        self.record(entry)
        self.waiting.append(then)


def test_irreversible_call_requires_confirmation_by_default() -> None:
    harness = policy_harness()
    assert harness.refused(tool_call("s.wipe")).failure is CONFIRMATION_REQUIRED
    assert not harness.upstreams["s"].started
    for name in ("s.read", "s.write"):
        harness.begin(tool_call(name))
    assert len(harness.upstreams["s"].started) == 2


@pytest.mark.spec("ST-4.8.1-4")
def test_default_action_decides_confirmation() -> None:
    harness = policy_harness()
    assert harness.refused(tool_call("s.wipe")).failure is CONFIRMATION_REQUIRED
    harness.begin(tool_call("s.write"))
    assert len(harness.upstreams["s"].started) == 1
    free = policy_harness(default="allow")
    for name in ("s.wipe", "s.write"):
        free.begin(tool_call(name))
    assert len(free.upstreams["s"].started) == 2


def test_denied_tool_is_hidden_and_rejected() -> None:
    harness = policy_harness(RuleConfig(name="no wiping", tools=["*.wipe"], then="deny"))
    error = harness.refused(tool_call("s.wipe"))
    unknown = harness.refused(tool_call("s.wire"))
    # Whoever does not see it hears what is said of one that is not there.
    assert error.failure is unknown.failure is UNKNOWN_TOOL
    assert error.data == {"tool": "s.wipe", "near": ["s.write", "s.read"]}
    assert unknown.data == {"tool": "s.wire", "near": ["s.write", "s.read"]}
    # Whoever reads the journal learns the reason.
    assert harness.journal.outcomes == ["denied_by_policy", "unknown_tool"]
    assert "no wiping" in harness.journal.entries[0]["detail"]
    assert list_tools(harness, Credentials("local")) == ["s__read", "s__write"]


def test_hidden_tool_reveals_nothing_about_arguments() -> None:
    schema = {"properties": {"amount": {"enum": [1, 2]}}, "required": ["amount"]}
    payroll = definition("payroll", inputSchema={"type": "object", **schema})
    harness = PipelineHarness(offer("s", [payroll, *TOOLS]))
    harness.authorizer.set_policy(
        Policy(
            PolicyConfig(
                default="allow", rules=[RuleConfig(name="no", tools=["*.payroll"], then="deny")]
            )
        )
    )
    for arguments in ({}, {"amount": 3}, {"amount": 1}):
        error = harness.refused(tool_call("s.payroll", arguments=arguments))
        assert error.failure is UNKNOWN_TOOL
        assert error.data is not None
        assert error.data["tool"] == "s.payroll"
    unknown = harness.refused(tool_call("s.payrol"))
    assert "s.payroll" not in str(unknown.data)


def test_scope_is_checked_before_arguments() -> None:
    schema = {"type": "object", "required": ["secret_name"]}
    harness = PipelineHarness(offer("s", [definition("write", inputSchema=schema)]))
    credentials = limited_to(harness, "read:s.*")
    error = harness.refused(tool_call("s.write", arguments={}, credentials=credentials))
    assert error.failure is FORBIDDEN
    assert "secret_name" not in str(error)


def test_only_visible_tools_are_suggested() -> None:
    harness = policy_harness(default="allow")
    credentials = limited_to(harness, "read:s.*")
    error = harness.refused(tool_call("s.writ", credentials=credentials))
    assert error.data == {"tool": "s.writ", "near": ["s.read"]}
    seen_by_all = harness.refused(tool_call("s.writ"))
    assert seen_by_all.data == {"tool": "s.writ", "near": ["s.write", "s.read"]}


def test_conditionally_denied_tool_is_listed() -> None:
    rule = RuleConfig(name="big", tools=["*.wipe"], then="deny", when="args.all == true")
    assert "s__wipe" in list_tools(policy_harness(rule), Credentials("local"))


@pytest.mark.spec("ST-4.8.4-2")
def test_missing_scope_is_named() -> None:
    harness = policy_harness(default="allow")
    credentials = limited_to(harness, "read:s.*")
    error = harness.refused(tool_call("s.write", credentials=credentials))
    assert error.failure is FORBIDDEN
    assert error.data == {"missing": ["write:s.write"]}
    assert list_tools(harness, credentials) == ["s.read"]


def test_each_caller_lists_its_own_tools() -> None:
    harness = policy_harness(default="allow")
    everything = Credentials("local")
    little = limited_to(harness, "read")
    assert list_tools(harness, little) == ["s.read"]
    assert list_tools(harness, everything) == ["s.read", "s.wipe", "s.write"]


def test_default_deny_allows_empty_list() -> None:
    harness = policy_harness(default="deny")
    assert list_tools(harness, Credentials("local")) == []
    assert harness.refused(tool_call("s.read")).failure is UNKNOWN_TOOL
    assert harness.journal.outcomes[-1] == DENIED.name


def test_unsent_call_costs_no_budget() -> None:
    harness = policy_harness()
    harness.authorizer.budgets.configure(BudgetsConfig(session=BudgetConfig(calls_per_minute=1)))
    assert harness.refused(tool_call("s.wipe")).failure is CONFIRMATION_REQUIRED
    harness.begin(tool_call("s.read"))
    harness.upstreams["s"].last.answer(content=[])
    assert harness.refused(tool_call("s.read")).failure is BUDGET_EXCEEDED


def test_mutating_call_is_sent_after_durable_journal_entry() -> None:
    journal = SlowJournal()
    harness = policy_harness(recorder=journal, durable=True)
    harness.begin(tool_call("s.write"))
    assert journal.outcomes == ["dispatching"]
    assert not harness.upstreams["s"].started
    journal.waiting.pop()(True)
    harness.upstreams["s"].last.answer(content=[])
    assert journal.outcomes == ["dispatching", "ok"]
    [before, after] = journal.entries
    assert before["detail"] == after["detail"] != ""


def test_read_only_call_does_not_wait_for_journal() -> None:
    journal = SlowJournal()
    harness = policy_harness(recorder=journal, durable=True)
    harness.begin(tool_call("s.read"))
    assert harness.upstreams["s"].started
    assert not journal.waiting


def test_unrecordable_call_is_not_sent() -> None:
    journal = SlowJournal()
    harness = policy_harness(recorder=journal, durable=True)
    harness.begin(tool_call("s.write"))
    journal.waiting.pop()(False)
    [(_, error)] = harness.done
    assert error.failure is UNRECORDABLE
    assert not harness.upstreams["s"].started


def test_call_cancelled_while_journal_writes_is_not_sent() -> None:
    journal = SlowJournal()
    harness = policy_harness(recorder=journal, durable=True)
    call = harness.begin(tool_call("s.write"))
    harness.pipeline.cancel(call)
    journal.waiting.pop()(True)
    assert not harness.upstreams["s"].started
    assert journal.outcomes == ["dispatching", "cancelled"]


def test_unreadable_resource_is_left_out_of_subscriptions() -> None:
    rule = RuleConfig(name="x", kinds=["mcp/request:resources/subscribe:file:///b"], then="deny")
    resources = [encode_value({"uri": f"file:///{name}", "name": name}) for name in "ab"]
    harness = PipelineHarness(offer("s", [], resources=resources))
    harness.upstreams["s"].capabilities = {"resources": {"subscribe": True}}
    harness.authorizer.set_policy(Policy(PolicyConfig(rules=[rule]), harness.catalog))
    call = Call(LISTEN, "http", Credentials("local"), SESSION)
    harness.pipeline.admit(call)

    class Follower:
        def send_resource_update(self, uri: str) -> None: ...

    followed = asyncio.run(
        harness.pipeline.subscriptions.subscribe_all(Follower(), call, ["file:///a", "file:///b"])
    )
    assert followed == ["file:///a"]
    assert harness.upstreams["s"].subscribed_uris == ["file:///a"]


def test_cached_authorization_does_not_apply_to_other_callers() -> None:
    """Neither another caller, nor the same one somewhere else, nor when its subserver may less."""
    harness = policy_harness(default="allow")
    harness.pipeline.configure(
        authenticate=Authenticator(
            {
                "w" * 20: Caller("agent", scopes=("write:s.write",), kind="token"),
                "r" * 20: Caller("agent", scopes=("read",), kind="token"),
            }
        ),
        names="dotted",
        timeout=60.0,
        concurrent_calls=100,
        latency_in_results=False,
    )
    writes, reads = (Credentials("192.0.2.1", letter * 20) for letter in "wr")
    for _ in range(3):
        harness.begin(tool_call("s.write", credentials=writes))
        for name, credentials in (("s.write", reads), ("s.wipe", writes), ("s.read", writes)):
            assert harness.refused(tool_call(name, credentials=credentials)).failure is FORBIDDEN
        harness.begin(tool_call("s.read", credentials=reads))
    assert len(harness.upstreams["s"].started) == 6
    harness.authorizer.limit_scopes({"s": "read"})
    assert harness.refused(tool_call("s.write", credentials=writes)).failure is FORBIDDEN
    harness.authorizer.limit_scopes({})
    harness.begin(tool_call("s.write", credentials=writes))
    assert len(harness.upstreams["s"].started) == 7
