"""Explains a decision of the policy: tries every rule, and says why it matches or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.core.call import Call, Caller
from interlock.core.config.conditions import UndecidableError
from interlock.trust.policy.attributes import read_arguments
from interlock.trust.policy.decision import Decision
from interlock.trust.policy.policy import Policy, condition_attributes
from interlock.trust.policy.rules import CallCondition, PolicyRequest, Rule, is_same_value

MAX_NEAR_MATCHES: Final = 10
_MAX_LISTED: Final = 3


class RuleMatch(msgspec.Struct, frozen=True):
    """The result of one rule for a call."""

    rule: str
    action: str
    reason: str
    misses: tuple[str, ...] = ()
    """Why it does not match, selector by selector. Empty: it matches."""
    note: str = ""
    """A remark about a condition that could not be evaluated."""


class Explanation(msgspec.Struct, frozen=True):
    """A decision, and the rules that led to it."""

    action: str
    rule: str
    reason: str
    policy: str
    """The version of the policy."""
    fitting: tuple[RuleMatch, ...]
    """Rules that match, the most restrictive first. The first of them decided."""
    nearly: tuple[RuleMatch, ...]
    """Rules that miss in one selector."""


def explain(policy: Policy, call: Call, request: PolicyRequest) -> Explanation:
    """Explain the decision about a call. Raises InterlockError as `Policy.judge` does."""
    caller = call.caller or Caller("")
    decision = policy.judge_as(call, request)
    attributes: Mapping[str, Any] | None = None
    if any(rule.conditions for rule in policy.rules):
        attributes = condition_attributes(call, caller, read_arguments(call))
    matches = [_match(rule, caller, request, attributes) for rule in policy.rules]
    ranked = sorted(
        zip(policy.rules, matches, strict=True), key=lambda pair: (-pair[0].action, pair[0].number)
    )
    # Of two rules with the same action, the policy names one without a condition.
    fitting = [match for _, match in ranked if not match.misses]
    fitting.sort(key=lambda match: match.rule != decision.rule)
    near_matches = [match for _, match in ranked if len(match.misses) == 1]
    return Explanation(
        action=decision.action.label,
        rule=decision.rule,
        reason=decision.reason,
        policy=policy.version,
        fitting=tuple(fitting),
        nearly=tuple(near_matches[:MAX_NEAR_MATCHES]),
    )


def _match(
    rule: Rule, caller: Caller, request: PolicyRequest, attributes: Mapping[str, Any] | None
) -> RuleMatch:
    misses = [*_caller_misses(rule, caller), *_request_misses(rule, request)]
    notes: list[str] = []
    if not misses:
        for condition in rule.conditions:
            is_satisfied, note = _evaluate(rule, condition, attributes)
            if not is_satisfied:
                misses.append(note or condition.explain_miss())
            elif note:
                notes.append(note)
    decision: Decision = rule.decision
    text = "" if misses else "; ".join(notes)
    return RuleMatch(rule.name, rule.action.label, decision.reason, tuple(misses), text)


def _evaluate(
    rule: Rule, condition: CallCondition, attributes: Mapping[str, Any] | None
) -> tuple[bool, str]:
    try:
        return condition.is_satisfied(attributes), ""
    except UndecidableError as error:
        effect = "so it counts as true" if rule.restricts else "so the rule allows nothing"
        return rule.restricts, f"{condition.text} cannot be evaluated ({error}), {effect}"


def _caller_misses(rule: Rule, caller: Caller) -> Iterator[str]:
    if rule.callers is not None and not rule.matches_name(caller):
        yield f"callers: {_list(rule.callers.patterns)}, not {caller.name or 'nobody'}"
    if rule.roles is not None and rule.roles.isdisjoint(caller.roles):
        needed, actual = _list(sorted(rule.roles)), _list(caller.roles) or "none"
        yield f"roles: needs one of {needed}; this caller has {actual}"
    if rule.scopes is not None and rule.scopes.isdisjoint(caller.scopes or ()):
        needed, actual = _list(sorted(rule.scopes)), _list(caller.scopes or ()) or "none"
        yield f"scopes: needs one of {needed}; this caller has {actual}"


def _request_misses(rule: Rule, request: PolicyRequest) -> Iterator[str]:
    if not rule.fits_kind(request):
        if rule.kinds:
            kinds = _list([pattern.text for pattern in rule.kinds])
            yield f"kinds: {kinds}, not {request.kinds[0][0]}"
        else:
            yield f"it is about tool calls, not {request.kinds[0][0]}"
        if not _is_related(rule, request):
            yield "it is about other requests"
    if rule.tools is not None and not (request.tool and rule.tools.matches(request.tool)):
        yield f"tools: {_list(rule.tools.patterns)}, not {request.tool or 'a tool'}"
        if not any(_are_similar(pattern, request.tool) for pattern in rule.tools.patterns):
            yield "it is about other tools"
    if rule.effects is not None and request.effect not in rule.effects:
        yield f"effects: {_list(sorted(rule.effects))}, not {request.effect or 'none'}"
    for member, value in rule.annotations:
        if member not in request.annotations:
            yield f"annotations: {member} is not there"
        elif not is_same_value(request.annotations[member], value):
            actual = msgspec.json.encode(request.annotations[member]).decode()
            yield f"annotations: {member} is {actual}"


def _is_related(rule: Rule, request: PolicyRequest) -> bool:
    """Return whether the rule is about requests of this method."""
    method = ":".join(request.kinds[0][0].split(":")[:2])
    return any(pattern.prefix.startswith(method) for pattern in rule.kinds)


def _are_similar(pattern: str, tool: str) -> bool:
    """Return whether a glob and a tool share the server, or the last part of the name."""
    return (
        pattern.partition(".")[0] == tool.partition(".")[0]
        or pattern.rpartition(".")[2] == tool.rpartition(".")[2]
    )


def _list(items: Any) -> str:
    texts = [str(item) for item in items]
    remainder = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    return ", ".join(texts[:_MAX_LISTED]) + remainder
