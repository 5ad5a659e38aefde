"""Why does the policy say that? Every rule is tried, slowly, and says what it makes of a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.core.call import Call, Caller
from interlock.core.config.conditions import UndecidableError
from interlock.trust.policy.attributes import read_arguments
from interlock.trust.policy.decision import Decision
from interlock.trust.policy.policy import Policy, about_call
from interlock.trust.policy.rules import CallCondition, PolicyRequest, Rule, same

MOST_NEARLY: Final = 10
_MOST_SHOWN: Final = 3


class RuleMatch(msgspec.Struct, frozen=True):
    """What one rule makes of a call."""

    rule: str
    action: str
    reason: str
    misses: tuple[str, ...] = ()
    """Why it does not fit, selector by selector. Empty: it fits."""
    note: str = ""
    """What else there is to say of it."""


class Explanation(msgspec.Struct, frozen=True):
    """A decision, and how it came about."""

    action: str
    rule: str
    reason: str
    policy: str
    """The version of the rules."""
    fitting: tuple[RuleMatch, ...]
    """Rules that fit, the most restrictive first; the first of them decided."""
    nearly: tuple[RuleMatch, ...]
    """Rules that would fit but for one thing."""


def explain(policy: Policy, call: Call, asked: PolicyRequest) -> Explanation:
    """What the policy says of this call, and why. Raises InterlockError as `Policy.judge` does."""
    caller = call.caller or Caller("")
    found = policy.judge_as(call, asked)
    about: Mapping[str, Any] | None = None
    if any(rule.conditions for rule in policy.rules):
        about = about_call(call, caller, read_arguments(call))
    opinions = [_opinion(rule, caller, asked, about) for rule in policy.rules]
    ranked = sorted(
        zip(policy.rules, opinions, strict=True), key=lambda pair: (-pair[0].action, pair[0].number)
    )
    # Of two that say the same, one without a condition is the one that is named.
    fitting = [one for _, one in ranked if not one.misses]
    fitting.sort(key=lambda one: one.rule != found.rule)
    nearly = [one for _, one in ranked if len(one.misses) == 1]
    return Explanation(
        action=found.action.word,
        rule=found.rule,
        reason=found.reason,
        policy=policy.version,
        fitting=tuple(fitting),
        nearly=tuple(nearly[:MOST_NEARLY]),
    )


def _opinion(
    rule: Rule, caller: Caller, asked: PolicyRequest, about: Mapping[str, Any] | None
) -> RuleMatch:
    misses = [*_misses_who(rule, caller), *_misses_what(rule, asked)]
    notes: list[str] = []
    if not misses:
        for condition in rule.conditions:
            holds, note = _judged(rule, condition, about)
            if not holds:
                misses.append(note or condition.why_not())
            elif note:
                notes.append(note)
    decided: Decision = rule.decision
    noted = "" if misses else "; ".join(notes)
    return RuleMatch(rule.name, rule.action.word, decided.reason, tuple(misses), noted)


def _judged(
    rule: Rule, condition: CallCondition, about: Mapping[str, Any] | None
) -> tuple[bool, str]:
    try:
        return condition.holds(about), ""
    except UndecidableError as cannot:
        so = "so it is taken to be true" if rule.restricts else "so it lets nothing through"
        return rule.restricts, f"{condition.text} cannot be judged ({cannot}), {so}"


def _misses_who(rule: Rule, caller: Caller) -> Iterator[str]:
    if rule.callers is not None and not rule.names(caller):
        yield f"callers: {_list(rule.callers.patterns)}, not {caller.name or 'nobody'}"
    if rule.roles is not None and rule.roles.isdisjoint(caller.roles):
        yield f"roles: {_list(sorted(rule.roles))}, not {_list(caller.roles) or 'none'}"
    if rule.scopes is not None and rule.scopes.isdisjoint(caller.scopes or ()):
        yield f"scopes: {_list(sorted(rule.scopes))}, not {_list(caller.scopes or ()) or 'none'}"


def _misses_what(rule: Rule, asked: PolicyRequest) -> Iterator[str]:
    if not rule.fits_kind(asked):
        if rule.kinds:
            kinds = _list([pattern.text for pattern in rule.kinds])
            yield f"kinds: {kinds}, not {asked.kinds[0][0]}"
        else:
            yield f"it is about tool calls, not {asked.kinds[0][0]}"
        if not _is_related(rule, asked):
            yield "it is about other requests"
    if rule.tools is not None and not (asked.tool and rule.tools.fit(asked.tool)):
        yield f"tools: {_list(rule.tools.patterns)}, not {asked.tool or 'a tool'}"
        if not any(_are_alike(pattern, asked.tool) for pattern in rule.tools.patterns):
            yield "it is about other tools"
    if rule.effects is not None and asked.effect not in rule.effects:
        yield f"effects: {_list(sorted(rule.effects))}, not {asked.effect or 'none'}"
    for member, value in rule.annotations:
        if member not in asked.annotations:
            yield f"annotations: {member} is not there"
        elif not same(asked.annotations[member], value):
            has = msgspec.json.encode(asked.annotations[member]).decode()
            yield f"annotations: {member} is {has}"


def _is_related(rule: Rule, asked: PolicyRequest) -> bool:
    """Whether the rule is about requests of this method at all."""
    method = ":".join(asked.kinds[0][0].split(":")[:2])
    return any(pattern.prefix.startswith(method) for pattern in rule.kinds)


def _are_alike(pattern: str, tool: str) -> bool:
    """Whether a glob and a tool have the server in common, or the last part of the name."""
    return (
        pattern.partition(".")[0] == tool.partition(".")[0]
        or pattern.rpartition(".")[2] == tool.rpartition(".")[2]
    )


def _list(words: Any) -> str:
    shown = [str(word) for word in words]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return ", ".join(shown[:_MOST_SHOWN]) + more
