"""What must hold for the rules of the policy: a rule that can never fit protects nobody.

Runs with `checks.py`, on whatever could be read.
"""

from __future__ import annotations

from typing import Any, Final

from interlock.core.config.conditions import compile_condition
from interlock.core.config.problems import BadValue, KeyPath, quoted
from interlock.core.config.reader import NodeReader
from interlock.core.config.trust import ApprovalsConfig, PolicyConfig, RuleConfig
from interlock.protocol.kinds import REQUEST, compiled, problem_of, request_kind
from interlock.protocol.mcp import TOOLS_CALL

RESERVED_NAMES: Final = "default:"
"""How the node calls what happens when no rule fits."""
_REQUESTS: Final = f"{REQUEST}:"
_TOOL_CALLS: Final = request_kind(TOOLS_CALL)
_METHODS: Final = ("tools/", "resources/", "prompts/")
_GLOB: Final = frozenset("*?[")
_OF_TOOLS: Final = ("tools", "effects", "annotations")


def check_policy(reader: NodeReader, values: dict[str, Any]) -> None:
    """Write down every problem with the rules."""
    _check_gates(reader, values)
    policy: PolicyConfig | None = values.get("policy")
    if policy is None:
        return
    names: set[str] = set()
    for number, rule in enumerate(policy.rules):
        path: KeyPath = ("policy", "rules", number)
        if rule.name in names:
            reader.report(
                (*path, "name"),
                f"another rule is called {quoted(rule.name)}",
                "give each its own name",
            )
        elif rule.name.startswith(RESERVED_NAMES):
            reader.report(
                (*path, "name"),
                f"names with {RESERVED_NAMES} are the node's own",
                "choose another name",
            )
        names.add(rule.name)
        _check_kinds(reader, path, rule)
        if rule.when is not None:
            try:
                compile_condition(rule.when)
            except BadValue as bad:
                reader.report((*path, "when"), bad.message, bad.hint)
    _check_learned(reader, policy)


def _check_gates(reader: NodeReader, values: dict[str, Any]) -> None:
    """Calls must not wait for somebody who cannot be there."""
    approvals: ApprovalsConfig | None = values.get("approvals")
    if approvals is None or approvals.enrolled or approvals.anchors:
        return
    unread = "policy" not in values and ("policy",) in reader.places
    if not unread and can_hold(values.get("policy") or PolicyConfig()):
        reader.report(
            ("approvals", "enrolled"),
            "the policy makes calls wait for a human, and nobody's proof counts",
            "name somebody under approvals.anchors, or leave this out and run: interlock keys new",
        )


def can_hold(policy: PolicyConfig) -> bool:
    """Whether a call can come to wait for a human by these rules."""
    if any(rule.then in ("confirm", "verify") for rule in policy.rules):
        return True
    frees_all = any(rule.then == "allow" and not rule.selectors() for rule in policy.rules)
    return policy.default == "safe" and not frees_all


def _check_learned(reader: NodeReader, policy: PolicyConfig) -> None:
    names = {rule.name for rule in policy.rules}
    for number, rule in enumerate(policy.learned):
        path: KeyPath = ("policy", "learned", number)
        if rule.name in names:
            reader.report(
                (*path, "name"),
                f"another rule is called {quoted(rule.name)}",
                "give each its own name",
            )
        names.add(rule.name)
        if not rule.tools:
            reader.report((*path, "tools"), "it is about no tool", "name at least one")
        for at, tool in enumerate(rule.tools):
            if _GLOB & {*tool}:
                reader.report(
                    (*path, "tools", at),
                    "a rule that was learned is about tools that were decided about",
                    "name each of them; for globs write a rule under policy.rules",
                )
        if rule.when is not None:
            try:
                compile_condition(rule.when)
            except BadValue as bad:
                reader.report((*path, "when"), bad.message, bad.hint)


def _check_kinds(reader: NodeReader, path: KeyPath, rule: RuleConfig) -> None:
    calls_a_tool = not rule.kinds
    for number, text in enumerate(rule.kinds):
        place: KeyPath = (*path, "kinds", number)
        problem = problem_of(text)
        if problem:
            reader.report(place, problem, "write one such as mcp/request:resources/*")
            return
        fixed = compiled(text).fixed
        if not _may_begin_with(fixed, _REQUESTS):
            reader.report(
                place,
                "this can never fit: what callers send is called mcp/request:METHOD",
                f"write {_REQUESTS}{text if text.startswith(_METHODS) else '*'}",
            )
            return
        if rule.then in ("confirm", "verify") and not fixed.startswith(_TOOL_CALLS):
            reader.report(
                place,
                f"only tool calls can wait for a human, and this is {rule.then} for others, too",
                f"write {_TOOL_CALLS}, or then: deny",
            )
            return
        calls_a_tool = calls_a_tool or _may_begin_with(fixed, _TOOL_CALLS)
    if not calls_a_tool:
        for name in _OF_TOOLS:
            if getattr(rule, name):
                reader.report(
                    (*path, name),
                    f"{name} is about tool calls, and kinds leaves them out",
                    "remove one of the two",
                )


def _may_begin_with(fixed: str, wanted: str) -> bool:
    """Whether something can begin with both."""
    return fixed.startswith(wanted) or wanted.startswith(fixed)
