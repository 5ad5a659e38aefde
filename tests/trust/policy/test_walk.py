"""The policy on the way of a call: what it denies never reaches an upstream, and is on record."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.call import Call
from interlock.errors import CONFIRMATION_REQUIRED, DENIED, INVALID_ARGUMENTS
from interlock.protocol.mcp import PROMPTS_GET, RESOURCES_READ, TOOLS_LIST
from tests.support.calls import LOCAL, SESSION, tool_call
from tests.support.offerings import offer
from tests.support.pipeline import PipelineHarness
from tests.trust.policy.asking import github, policy, rule


def rig(*rules: Any, **settings: Any) -> PipelineHarness:
    made = PipelineHarness(github(), offer("docs", prompts=["write"], resources=["file:///a"]))
    made.upstreams["docs"].capabilities = {"prompts": {}, "resources": {}}
    made.authorizer.set_policy(policy(*rules, catalog=made.catalog, **settings))
    return made


def request(verb: str, name: str = "") -> Call:
    return Call(verb, "test", LOCAL, SESSION, name=name)


def sent(made: PipelineHarness) -> int:
    return sum(len(one.started) for one in made.upstreams.values())


def test_what_is_denied_never_leaves() -> None:
    made = rig(rule("no", "deny", tools=["github.delete_*"], when="args.repo != 'mine'"))
    error = made.refused(tool_call("github__delete_repo", {"repo": "theirs"}))
    assert error.failure is DENIED
    assert sent(made) == 0
    assert made.journal.entries[-1]["outcome"] == "denied_by_policy"
    assert "rule no" in made.journal.entries[-1]["detail"]


def test_twins_are_no_way_round_a_condition() -> None:
    made = rig(rule("no", "deny", tools=["github.*"], when="args.repo != 'mine'"))
    twins = b'{"repo": "theirs", "repo": "mine"}'
    assert made.refused(tool_call("github.list_repos", twins)).failure is INVALID_ARGUMENTS
    assert sent(made) == 0


def test_what_is_allowed_leaves() -> None:
    made = rig(rule("no", "deny", tools=["github.*"], when="args.repo != 'mine'"))
    made.begin(tool_call("github.list_repos", {"repo": "mine"}))
    assert sent(made) == 1


def test_what_waits_for_a_human_does_not_leave_where_none_can_be_asked() -> None:
    made = rig()
    assert made.refused(tool_call("github.delete_repo")).failure is CONFIRMATION_REQUIRED
    assert sent(made) == 0


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
def test_other_requests_are_denied_by_their_kind(kind: str, verb: str, name: str) -> None:
    made = rig(rule("no", "deny", kinds=[kind]))
    assert made.refused(request(verb, name)).failure is DENIED
    assert sent(made) == 0


def test_new_rules_count_from_the_next_call_on() -> None:
    made = rig()
    made.begin(tool_call("github.list_repos"))
    assert sent(made) == 1
    made.authorizer.set_policy(policy(rule("none", "deny"), catalog=made.catalog))
    made.refused(tool_call("github.list_repos"))
    assert made.journal.outcomes[-1] == DENIED.name
    assert sent(made) == 1
