"""Rules, callers and calls for tests of the policy."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw

from interlock.core.call import Call, Caller
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import Offering, Tool
from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.core.pipeline.resolution import resolve_tool
from interlock.trust.policy import Policy
from tests.support.calls import LOCAL, SESSION, tool_call
from tests.support.offerings import definition, offer

OWNER = Caller("owner", roles=("dev",), scopes=("read:*", "write:github.*"))
HINTS: dict[str, dict[str, Any]] = {
    "list_repos": {"readOnlyHint": True},
    "create_issue": {"destructiveHint": False},
    "update_issue": {},
    "delete_issue": {"destructiveHint": True},
    "delete_repo": {"destructiveHint": True, "openWorldHint": True},
}


def github(**members: Any) -> Offering:
    tools = [definition(name, annotations=hints, **members) for name, hints in HINTS.items()]
    return offer("github", tools)


def catalog_of(*offerings: Offering) -> Catalog:
    catalog = Catalog(server_info=b"{}")
    for offering in offerings:
        catalog.publish(offering)
    return catalog


CATALOG = catalog_of(github(), offer("bank", ["pay", "balance"], unannotated="allow"))


def rule(name: str, then: Any, **selectors: Any) -> RuleConfig:
    return RuleConfig(name=name, then=then, **selectors)


def policy(*rules: RuleConfig, default: Any = "safe", catalog: Catalog | None = CATALOG) -> Policy:
    return Policy(PolicyConfig(default=default, rules=list(rules)), catalog)


def make_call(
    name: str = "github.list_repos",
    arguments: Any = None,
    *,
    caller: Caller = OWNER,
    catalog: Catalog = CATALOG,
) -> Call:
    """A call that has come as far as the policy: known, resolved, its arguments not yet decoded."""
    call = tool_call(name, arguments)
    call.caller = caller
    resolve_tool(call, catalog)
    return call


def make_request(verb: str, name: str = "", *, caller: Caller = OWNER, **extra: Any) -> Call:
    members = {key: Raw(json.dumps(value).encode()) for key, value in extra.items()}
    call = Call(verb, "test", LOCAL, SESSION, name=name, extra_params=members or None)
    call.caller = caller
    return call


def tool(name: str, catalog: Catalog = CATALOG) -> Tool:
    result = catalog.find(name)
    assert result is not None
    return result


def decide(policy: Policy, call: Call) -> tuple[str, str]:
    """What is decided, and by which rule."""
    decision = policy.judge(call)
    return decision.action.label, decision.rule
