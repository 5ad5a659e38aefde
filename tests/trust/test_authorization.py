"""Scopes, policy, budgets and the journal on the walk of a call."""

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


def rig(*rules: RuleConfig, default: Any = "safe", **settings: Any) -> PipelineHarness:
    made = PipelineHarness(offer("s", TOOLS), **settings)
    made.authorizer.set_policy(Policy(PolicyConfig(default=default, rules=list(rules))))
    return made


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


def listed(made: PipelineHarness, credentials: Credentials) -> list[str]:
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


def test_what_cannot_be_undone_waits_where_nobody_says_otherwise() -> None:
    made = rig()
    assert made.refused(tool_call("s.wipe")).failure is CONFIRMATION_REQUIRED
    assert not made.upstreams["s"].started
    for name in ("s.read", "s.write"):
        made.begin(tool_call(name))
    assert len(made.upstreams["s"].started) == 2


@pytest.mark.spec("ST-4.8.1-4")
def test_what_waits_is_for_the_rules_to_say() -> None:
    made = rig()
    assert made.refused(tool_call("s.wipe")).failure is CONFIRMATION_REQUIRED
    made.begin(tool_call("s.write"))
    assert len(made.upstreams["s"].started) == 1
    free = rig(default="allow")
    for name in ("s.wipe", "s.write"):
        free.begin(tool_call(name))
    assert len(free.upstreams["s"].started) == 2


def test_what_is_denied_is_neither_called_nor_seen() -> None:
    made = rig(RuleConfig(name="no wiping", tools=["*.wipe"], then="deny"))
    error = made.refused(tool_call("s.wipe"))
    unknown = made.refused(tool_call("s.wire"))
    # Whoever does not see it hears what is said of one that is not there.
    assert error.failure is unknown.failure is UNKNOWN_TOOL
    assert error.data == {"tool": "s.wipe", "near": ["s.write", "s.read"]}
    assert unknown.data == {"tool": "s.wire", "near": ["s.write", "s.read"]}
    # Whoever reads the journal learns the reason.
    assert made.journal.outcomes == ["denied_by_policy", "unknown_tool"]
    assert "no wiping" in made.journal.entries[0]["detail"]
    assert listed(made, Credentials("local")) == ["s__read", "s__write"]


def test_hidden_tool_tells_nothing_about_its_arguments() -> None:
    schema = {"properties": {"amount": {"enum": [1, 2]}}, "required": ["amount"]}
    payroll = definition("payroll", inputSchema={"type": "object", **schema})
    made = PipelineHarness(offer("s", [payroll, *TOOLS]))
    made.authorizer.set_policy(
        Policy(
            PolicyConfig(
                default="allow", rules=[RuleConfig(name="no", tools=["*.payroll"], then="deny")]
            )
        )
    )
    for arguments in ({}, {"amount": 3}, {"amount": 1}):
        error = made.refused(tool_call("s.payroll", arguments=arguments))
        assert error.failure is UNKNOWN_TOOL
        assert error.data is not None
        assert error.data["tool"] == "s.payroll"
    unknown = made.refused(tool_call("s.payrol"))
    assert "s.payroll" not in str(unknown.data)


def test_missing_scope_is_found_before_bad_arguments() -> None:
    schema = {"type": "object", "required": ["secret_name"]}
    made = PipelineHarness(offer("s", [definition("write", inputSchema=schema)]))
    credentials = limited_to(made, "read:s.*")
    error = made.refused(tool_call("s.write", arguments={}, credentials=credentials))
    assert error.failure is FORBIDDEN
    assert "secret_name" not in str(error)


def test_only_visible_tools_are_suggested() -> None:
    made = rig(default="allow")
    credentials = limited_to(made, "read:s.*")
    error = made.refused(tool_call("s.writ", credentials=credentials))
    assert error.data == {"tool": "s.writ", "near": ["s.read"]}
    seen_by_all = made.refused(tool_call("s.writ"))
    assert seen_by_all.data == {"tool": "s.writ", "near": ["s.write", "s.read"]}


def test_what_is_denied_with_some_arguments_only_is_seen() -> None:
    rule = RuleConfig(name="big", tools=["*.wipe"], then="deny", when="args.all == true")
    assert "s__wipe" in listed(rig(rule), Credentials("local"))


@pytest.mark.spec("ST-4.8.4-2")
def test_who_lacks_a_scope_is_told_which() -> None:
    made = rig(default="allow")
    credentials = limited_to(made, "read:s.*")
    error = made.refused(tool_call("s.write", credentials=credentials))
    assert error.failure is FORBIDDEN
    assert error.data == {"missing": ["write:s.write"]}
    assert listed(made, credentials) == ["s.read"]


def test_two_callers_see_each_their_own() -> None:
    made = rig(default="allow")
    everything = Credentials("local")
    little = limited_to(made, "read")
    assert listed(made, little) == ["s.read"]
    assert listed(made, everything) == ["s.read", "s.wipe", "s.write"]


def test_a_list_is_denied_to_nobody_whom_a_rule_does_not_name() -> None:
    made = rig(default="deny")
    assert listed(made, Credentials("local")) == []
    assert made.refused(tool_call("s.read")).failure is UNKNOWN_TOOL
    assert made.journal.outcomes[-1] == DENIED.name


def test_a_call_that_was_never_sent_costs_nothing() -> None:
    made = rig()
    made.authorizer.budgets.configure(BudgetsConfig(session=BudgetConfig(calls_per_minute=1)))
    assert made.refused(tool_call("s.wipe")).failure is CONFIRMATION_REQUIRED
    made.begin(tool_call("s.read"))
    made.upstreams["s"].last.answer(content=[])
    assert made.refused(tool_call("s.read")).failure is BUDGET_EXCEEDED


def test_what_changes_something_leaves_once_it_is_on_disk() -> None:
    journal = SlowJournal()
    made = rig(recorder=journal, durable=True)
    made.begin(tool_call("s.write"))
    assert journal.outcomes == ["dispatching"]
    assert not made.upstreams["s"].started
    journal.waiting.pop()(True)
    made.upstreams["s"].last.answer(content=[])
    assert journal.outcomes == ["dispatching", "ok"]
    [before, after] = journal.entries
    assert before["detail"] == after["detail"] != ""


def test_what_only_reads_does_not_wait_for_the_disk() -> None:
    journal = SlowJournal()
    made = rig(recorder=journal, durable=True)
    made.begin(tool_call("s.read"))
    assert made.upstreams["s"].started
    assert not journal.waiting


def test_what_cannot_be_recorded_is_not_done() -> None:
    journal = SlowJournal()
    made = rig(recorder=journal, durable=True)
    made.begin(tool_call("s.write"))
    journal.waiting.pop()(False)
    [(_, error)] = made.done
    assert error.failure is UNRECORDABLE
    assert not made.upstreams["s"].started


def test_who_hangs_up_while_the_disk_is_awaited_is_not_served() -> None:
    journal = SlowJournal()
    made = rig(recorder=journal, durable=True)
    call = made.begin(tool_call("s.write"))
    made.pipeline.cancel(call)
    journal.waiting.pop()(True)
    assert not made.upstreams["s"].started
    assert journal.outcomes == ["dispatching", "cancelled"]


def test_what_may_not_be_read_cannot_be_followed_among_others() -> None:
    rule = RuleConfig(name="x", kinds=["mcp/request:resources/subscribe:file:///b"], then="deny")
    resources = [encode_value({"uri": f"file:///{name}", "name": name}) for name in "ab"]
    made = PipelineHarness(offer("s", [], resources=resources))
    made.upstreams["s"].capabilities = {"resources": {"subscribe": True}}
    made.authorizer.set_policy(Policy(PolicyConfig(rules=[rule]), made.catalog))
    call = Call(LISTEN, "http", Credentials("local"), SESSION)
    made.pipeline.admit(call)

    class Follower:
        def send_resource_update(self, uri: str) -> None: ...

    followed = asyncio.run(
        made.pipeline.subscriptions.subscribe_all(Follower(), call, ["file:///a", "file:///b"])
    )
    assert followed == ["file:///a"]
    assert made.upstreams["s"].watches == ["file:///a"]


def test_who_was_let_through_last_lets_nobody_else_through() -> None:
    """Neither another caller, nor the same one somewhere else, nor when its subserver may less."""
    made = rig(default="allow")
    made.pipeline.configure(
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
        made.begin(tool_call("s.write", credentials=writes))
        for name, credentials in (("s.write", reads), ("s.wipe", writes), ("s.read", writes)):
            assert made.refused(tool_call(name, credentials=credentials)).failure is FORBIDDEN
        made.begin(tool_call("s.read", credentials=reads))
    assert len(made.upstreams["s"].started) == 6
    made.authorizer.limit_scopes({"s": "read"})
    assert made.refused(tool_call("s.write", credentials=writes)).failure is FORBIDDEN
    made.authorizer.limit_scopes({})
    made.begin(tool_call("s.write", credentials=writes))
    assert len(made.upstreams["s"].started) == 7
