"""Decisions by learned rules: the rules under `policy.learned`, which an operator accepted.

Learned rules are consulted only for calls that the policy would hold for confirmation; all later
checks still apply. If it is undecidable whether a rule matches, an operator decides as before.
Every decision is in the journal with the name of its rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from interlock.automation.decision import is_known_by_name
from interlock.automation.rule import CompiledRule
from interlock.core.call import Call
from interlock.core.config import LearnedRule
from interlock.errors import DENIED, InterlockError
from interlock.protocol.mcp import TOOLS_CALL
from interlock.trust.approvals.record import forwarded_meta, parse_exact
from interlock.trust.policy.attributes import read_arguments
from interlock.trust.policy.decision import Decision, PolicyAction, make_decision
from interlock.trust.policy.policy import condition_attributes

JOURNAL_METHOD: Final = "learned"
"""The method of its entries in the journal."""
RULE_PREFIX: Final = "learned:"
"""The prefix of the rule name in decisions of learned rules."""
_CONFIRM: Final = PolicyAction.CONFIRM


class ChangeJournal(Protocol):
    """The journal, as far as learned rules use it."""

    def record_change(self, kind: str, name: str, word: str, detail: str = "") -> None: ...


class _RuleDecision:
    """A compiled rule with its decision."""

    __slots__ = ("compiled", "decision", "denies")

    def __init__(self, rule: LearnedRule) -> None:
        self.compiled = CompiledRule(rule)
        self.denies = rule.then == "deny"
        action = PolicyAction.DENY if self.denies else PolicyAction.ALLOW
        self.decision: Decision = make_decision(action, f"{RULE_PREFIX}{rule.name}", rule.reason)


class LearnedRules:
    """All accepted rules, by tool."""

    def __init__(self, rules: Iterable[LearnedRule], *, audit: ChangeJournal | None) -> None:
        """Compile the rules. Raises InvalidValueError for a condition that the config would
        reject, too."""
        self._audit = audit
        self._by_tool: dict[str, list[_RuleDecision]] = {}
        rule_decisions = sorted(map(_RuleDecision, rules), key=lambda one: not one.denies)
        for rule_decision in rule_decisions:
            for tool in rule_decision.compiled.rule.tools:
                self._by_tool.setdefault(tool, []).append(rule_decision)

    def __call__(self, call: Call, make_decision: Decision) -> Decision:
        """Return the decision about a call that would wait for confirmation. Raises
        InterlockError if a rule denies it."""
        if make_decision.action is not _CONFIRM or call.method != TOOLS_CALL or call.approval_id:
            # A call that an operator already approved needs no rule.
            return make_decision
        route, caller = call.route, call.caller
        if route is None or caller is None or not is_known_by_name(caller):
            # A name that is not in any list does not identify a caller.
            return make_decision
        rule_decisions = self._by_tool.get(route.canonical)
        if rule_decisions is None:
            return make_decision
        context: Any = None
        is_context_read = False
        for rule_decision in rule_decisions:
            compiled = rule_decision.compiled
            if not compiled.matches_call(route.canonical, caller.name, call.effect):
                continue
            if not is_context_read:
                context, is_context_read = _make_context(call), True
            result = None if context is None else compiled.is_true_for(context)
            # An operator who accepted arguments has not seen additional content of this call.
            if result and (rule_decision.denies or not forwarded_meta(call, route)):
                return self._apply(call, rule_decision)
            if result is None and rule_decision.denies:
                # An operator may have rejected such a call: no other rule may allow it.
                return make_decision
        return make_decision

    def _apply(self, call: Call, rule_decision: _RuleDecision) -> Decision:
        rule = rule_decision.compiled.rule
        assert call.route is not None
        assert call.caller is not None
        tool = call.route.canonical
        if self._audit is not None:
            detail = f"{tool} of {call.caller.name}"
            if call.proposal is not None:
                detail += f", proposed in {call.proposal.topic} by {call.proposal.participant}"
            self._audit.record_change(JOURNAL_METHOD, rule.name, rule.then, detail)
        if rule_decision.denies:
            reason = f" {rule.reason}" if rule.reason else ""
            raise InterlockError(
                DENIED,
                f"{tool} is denied by the learned rule {rule.name}, because operators have "
                f"repeatedly rejected such calls.{reason}",
                {"rule": rule_decision.decision.rule, "reason": rule.reason, "subject": tool},
            )
        return rule_decision.decision


def _make_context(call: Call) -> dict[str, Any] | None:
    """Return the values that conditions can refer to. None: the call cannot be judged."""
    assert call.caller is not None
    try:
        # Content that cannot be displayed was never approved by an operator.
        parse_exact(call.arguments)
        return condition_attributes(call, call.caller, read_arguments(call))
    except InterlockError:
        # Ambiguous arguments: the approval gate reports the error.
        return None
