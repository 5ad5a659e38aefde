"""The policy in the pipeline: denied calls reach no upstream and are journaled."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.call import Call
from interlock.errors import CONFIRMATION_REQUIRED, DENIED, INVALID_ARGUMENTS
from interlock.protocol.mcp import PROMPTS_GET, RESOURCES_READ, TOOLS_LIST
from tests.support.calls import LOCAL, SESSION, tool_call
from tests.support.offerings import offer
from tests.support.pipeline import PipelineHarness
from tests.trust.policy.policy_calls import github, policy, rule


def policy_harness(*rules: Any, **settings: Any) -> PipelineHarness:
    harness = PipelineHarness(github(), offer("docs", prompts=["write"], resources=["file:///a"]))
    harness.upstreams["docs"].capabilities = {"prompts": {}, "resources": {}}
    harness.authorizer.set_policy(policy(*rules, catalog=harness.catalog, **settings))
    return harness


def request(verb: str, name: str = "") -> Call:
    return Call(verb, "test", LOCAL, SESSION, name=name)


def count_sent(made: PipelineHarness) -> int:
    return sum(len(upstream.started) for upstream in made.upstreams.values())


def test_denied_call_is_not_sent() -> None:
    harness = policy_harness(
        rule("no", "deny", tools=["github.delete_*"], when="args.repo != 'mine'")
    )
    error = harness.refused(tool_call("github__delete_repo", {"repo": "theirs"}))
    assert error.failure is DENIED
    assert count_sent(harness) == 0
    assert harness.journal.entries[-1]["outcome"] == "denied_by_policy"
    assert "rule no" in harness.journal.entries[-1]["detail"]


def test_duplicate_members_do_not_bypass_condition() -> None:
    harness = policy_harness(rule("no", "deny", tools=["github.*"], when="args.repo != 'mine'"))
    twins = b'{"repo": "theirs", "repo": "mine"}'
    assert harness.refused(tool_call("github.list_repos", twins)).failure is INVALID_ARGUMENTS
    assert count_sent(harness) == 0


def test_allowed_call_is_sent() -> None:
    harness = policy_harness(rule("no", "deny", tools=["github.*"], when="args.repo != 'mine'"))
    harness.begin(tool_call("github.list_repos", {"repo": "mine"}))
    assert count_sent(harness) == 1


def test_confirmed_call_is_rejected_without_approval_gate() -> None:
    harness = policy_harness()
    assert harness.refused(tool_call("github.delete_repo")).failure is CONFIRMATION_REQUIRED
    assert count_sent(harness) == 0


@pytest.mark.parametrize(
    ("kind", "verb", "name"),
    [
        ("mcp/request:resources/read:file:///a", RESOURCES_READ, "file:///a"),
        ("mcp/request:resources/*", RESOURCES_READ, "interlock:docs:file:///a"),
        ("mcp/request:prompts/get:docs.write", PROMPTS_GET, "docs__write"),
        ("mcp/request:tools/list", TOOLS_LIST, ""),
        ("mcp/*", TOOLS_LIST, ""),
    ],
)
def test_denies_requests_by_kind(kind: str, verb: str, name: str) -> None:
    harness = policy_harness(rule("no", "deny", kinds=[kind]))
    assert harness.refused(request(verb, name)).failure is DENIED
    assert count_sent(harness) == 0


def test_reloaded_rules_apply_to_next_call() -> None:
    harness = policy_harness()
    harness.begin(tool_call("github.list_repos"))
    assert count_sent(harness) == 1
    harness.authorizer.set_policy(policy(rule("none", "deny"), catalog=harness.catalog))
    harness.refused(tool_call("github.list_repos"))
    assert harness.journal.outcomes[-1] == DENIED.name
    assert count_sent(harness) == 1
