"""Decisions by learned rules: those under `policy.learned`, which a human accepted.

Asked only about what the policy makes wait for a confirmation; whatever else stands between a call
and its way out has its say afterwards. Where nobody can say whether a rule fits, a human is asked
as before. Every answer is in the journal, with the name of its rule.
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
from interlock.trust.approvals.record import brought_along, exact
from interlock.trust.policy.attributes import read_arguments
from interlock.trust.policy.decision import Decision, PolicyAction, decision
from interlock.trust.policy.policy import about_call

VERB: Final = "learned"
"""What its entries in the journal are about."""
PREFIX: Final = "learned:"
"""Put before a rule's name where a decision says which rule made it."""
_CONFIRM: Final = PolicyAction.CONFIRM


class ChangeJournal(Protocol):
    """The journal, as far as it is needed here."""

    def record_change(self, what: str, name: str, word: str, detail: str = "") -> None: ...


class _Answer:
    """A rule, and what it answers."""

    __slots__ = ("compiled", "decision", "denies")

    def __init__(self, rule: LearnedRule) -> None:
        self.compiled = CompiledRule(rule)
        self.denies = rule.then == "deny"
        action = PolicyAction.DENY if self.denies else PolicyAction.ALLOW
        self.decision: Decision = decision(action, f"{PREFIX}{rule.name}", rule.reason)


class LearnedRules:
    """All accepted rules, by their tools."""

    def __init__(self, rules: Iterable[LearnedRule], *, audit: ChangeJournal | None) -> None:
        """Raises BadValue for a condition that the config itself would have refused."""
        self._audit = audit
        self._by_tool: dict[str, list[_Answer]] = {}
        for answer in sorted(map(_Answer, rules), key=lambda one: not one.denies):
            for tool in answer.compiled.rule.tools:
                self._by_tool.setdefault(tool, []).append(answer)

    def __call__(self, call: Call, decision: Decision) -> Decision:
        """What happens to a call that would wait. Raises InterlockError where a rule denies it."""
        if decision.action is not _CONFIRM or call.method != TOOLS_CALL or call.approval_id:
            # What a human let through by itself needs no rule.
            return decision
        route, caller = call.route, call.caller
        if route is None or caller is None or not is_known_by_name(caller):
            # A name that no list has may be anything.
            return decision
        answers = self._by_tool.get(route.canonical)
        if answers is None:
            return decision
        about: Any = None
        read = False
        for answer in answers:
            compiled = answer.compiled
            if not compiled.fits(route.canonical, caller.name, call.effect):
                continue
            if not read:
                about, read = _about(call), True
            holds = None if about is None else compiled.holds(about)
            # Who said yes to arguments has not seen what this call brings beside them.
            if holds and (answer.denies or not brought_along(call, route)):
                return self._answered(call, answer)
            if holds is None and answer.denies:
                # It may be what humans refuse: no other rule says yes to it.
                return decision
        return decision

    def _answered(self, call: Call, answer: _Answer) -> Decision:
        rule = answer.compiled.rule
        assert call.route is not None
        assert call.caller is not None
        tool = call.route.canonical
        if self._audit is not None:
            asked = f"{tool} of {call.caller.name}"
            if call.proposal is not None:
                asked += f", proposed in {call.proposal.topic} by {call.proposal.participant}"
            self._audit.record_change(VERB, rule.name, rule.then, asked)
        if answer.denies:
            why = f" {rule.reason}" if rule.reason else ""
            raise InterlockError(
                DENIED,
                f"{tool} is not allowed: a human refused such calls so often that it became a rule "
                f"(learned rule {rule.name}).{why}",
                {"rule": answer.decision.rule, "reason": rule.reason, "subject": tool},
            )
        return answer.decision


def _about(call: Call) -> dict[str, Any] | None:
    """What conditions can speak of. None: the call is beyond judgement."""
    assert call.caller is not None
    try:
        # What no human can be shown was in no call that anybody let through.
        exact(call.arguments)
        return about_call(call, call.caller, read_arguments(call))
    except InterlockError:
        # Arguments that two readers read differently. Whoever holds the call says so.
        return None
