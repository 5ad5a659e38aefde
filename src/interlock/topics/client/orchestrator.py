"""An orchestrator: it fulfils proposals by rules, for decisions that a person has made before.

A learned rule covers exactly one decision: the same tool of the same participant, the same
proposer, the same arguments. A wider rule must be written, with a condition. Proposals that no rule
covers wait for a person, and so do proposals that cannot be evaluated or that parsers could read in
different ways.
"""

from __future__ import annotations

import asyncio
import glob
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from interlock.core.config.conditions import Condition, UndecidableError, compile_condition
from interlock.errors import InterlockError
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.lookalike_members import reject_lookalikes
from interlock.topics.client.errors import SendError
from interlock.topics.client.events import Event
from interlock.topics.client.participant import Participant
from interlock.topics.client.proposals import Proposal
from interlock.topics.wire.proposals import TrackedProposal, is_same_call

MAX_RESULTS: Final = 1_000
_RULE_MEMBERS: Final = frozenset({"name", "arguments"})
"""The members of `params` that rules evaluate. A `_meta` may change what a call does, so proposals
with a `_meta` wait for a person."""
_log = logging.getLogger("interlock.topics")


class ProposalRule(msgspec.Struct, frozen=True):
    """Proposals to fulfil.

    `when` is a CEL expression over `args`, `tool`, `caller` and `server` (the recipient).
    `arguments` are compared exactly. `proposers` are names or globs; an empty tuple matches nobody.
    `to` are exactly the recipients; empty: any single recipient.
    """

    tool: str
    proposers: tuple[str, ...]
    when: str | None = None
    arguments: Mapping[str, Any] | None = None
    to: tuple[str, ...] = ()


class RuleResult(msgspec.Struct, frozen=True):
    """A proposal that a rule fulfilled."""

    proposal: str
    rule: ProposalRule
    error: str = ""
    """Why the fulfilment failed."""


class Orchestrator:
    """Watches the proposals of a topic for a participant that may make the calls."""

    def __init__(
        self,
        participant: Participant,
        rules: Iterable[ProposalRule] = (),
        *,
        on_result: Callable[[RuleResult], None] | None = None,
    ) -> None:
        """Raises InvalidValueError for an invalid condition."""
        self._participant = participant
        self._on_result = on_result
        self._rules: list[tuple[ProposalRule, Condition | None]] = []
        self._fulfilled_ids: deque[str] = deque(maxlen=MAX_RESULTS)
        self.results: deque[RuleResult] = deque(maxlen=MAX_RESULTS)
        """The last results, for monitoring."""
        for rule in rules:
            self.add(rule)
        participant.on(Proposal, self._on_proposal)

    @property
    def rules(self) -> tuple[ProposalRule, ...]:
        return tuple(rule for rule, _ in self._rules)

    def add(self, rule: ProposalRule) -> None:
        """Add a rule.

        Raises:
            InvalidValueError: the condition is invalid.
            ValueError: the rule matches nothing.
        """
        if not rule.tool or not rule.proposers:
            raise ValueError("A rule needs `tool` and `proposers`.")
        condition = None if rule.when is None else compile_condition(rule.when)
        self._rules.append((rule, condition))

    def remove(self, rule: ProposalRule) -> None:
        """Remove a rule. Raises ValueError if it is not there."""
        del self._rules[self.rules.index(rule)]

    def learn(self, decision: TrackedProposal | Proposal) -> ProposalRule:
        """Add a rule for a decision that a person has made.

        Raises ValueError if the proposal is not a tool call, is ambiguous, has no recipient, was
        not fulfilled unchanged, or was fulfilled by a rule.
        """
        self._check_decided(decision)
        if decision.method != mcp.TOOLS_CALL or not decision.context:
            raise ValueError(f"Only tool calls can be learned, not {decision.method[:100]}.")
        arguments = _read_arguments(decision)
        if arguments is None:
            raise ValueError("The arguments of the proposal are not an object or are ambiguous.")
        if not decision.to:
            raise ValueError("A proposal without recipients cannot be learned.")
        proposers = (glob.escape(decision.proposer),)
        rule = ProposalRule(decision.context, proposers, arguments=arguments, to=tuple(decision.to))
        if rule not in self.rules:
            self.add(rule)
        return rule

    def _check_decided(self, decision: TrackedProposal | Proposal) -> None:
        if isinstance(decision, TrackedProposal):
            id, tracked_proposal = decision.proposalId, decision
        else:
            id, tracked_proposal = decision.id, None
        tracked_proposal = self._participant.proposals.get(id, tracked_proposal)
        status = "unknown" if tracked_proposal is None else tracked_proposal.status
        if tracked_proposal is None or status != "fulfilled":
            raise ValueError(f"The proposal is {status}. Only fulfilled proposals can be learned.")
        if tracked_proposal.changed_fulfilments:
            raise ValueError("The proposal was fulfilled with other arguments.")
        if id in self._fulfilled_ids:
            raise ValueError("The proposal was fulfilled by a rule, not by a person.")

    def find_rule(self, proposal: TrackedProposal | Proposal) -> ProposalRule | None:
        """Return the first rule that covers a proposal. None: a person decides."""
        arguments = _read_arguments(proposal)
        if proposal.method != mcp.TOOLS_CALL or arguments is None:
            return None
        variables = {
            "args": arguments, "tool": proposal.context, "caller": proposal.proposer,
            "roles": [], "scopes": [], "effect": "", "server": "".join(proposal.to[:1]),
        }  # fmt: skip
        for rule, condition in self._rules:
            if _matches_rule(rule, condition, proposal, variables):
                return rule
        return None

    async def _on_proposal(self, event: Event) -> None:
        proposal: Proposal = event.content
        own_id = self._participant.id
        # The fulfilment of a proposal without recipients would go to everybody.
        if proposal.proposer == own_id or not proposal.to or proposal.id in self._fulfilled_ids:
            return
        rule = self.find_rule(proposal)
        if rule is None:
            return
        self._fulfilled_ids.append(proposal.id)
        error = ""
        try:
            await self._participant.fulfil(proposal)
        except SendError as refusal:
            error = refusal.message
        except InterlockError as failure:
            error = failure.message
        except asyncio.CancelledError:
            error = "The topic was left before the response arrived."
            raise
        finally:
            result = RuleResult(proposal.id, rule, error)
            self.results.append(result)
            outcome = f"failed: {error}" if error else "done"
            _log.info("proposal %.100s: fulfilled by rule, %s", proposal.context, outcome)
            if self._on_result is not None:
                self._on_result(result)


def _matches_rule(
    rule: ProposalRule,
    condition: Condition | None,
    proposal: TrackedProposal | Proposal,
    variables: dict[str, Any],
) -> bool:
    if rule.tool != proposal.context:
        return False
    if not any(fnmatchcase(proposal.proposer, pattern) for pattern in rule.proposers):
        return False
    if len(proposal.to) != 1 if not rule.to else set(proposal.to) != set(rule.to):
        # A condition sees only one recipient, so it cannot approve others.
        return False
    if rule.arguments is not None:
        try:
            if not is_same_call(encode_value(rule.arguments), encode_value(variables["args"])):
                return False
        except (TypeError, ValueError):
            return False
    if condition is None:
        return True
    try:
        return condition.matches(variables)
    except UndecidableError:
        return False


def _read_arguments(proposal: TrackedProposal | Proposal) -> dict[str, Any] | None:
    """Return the arguments of a proposal.

    None if there are none, if `params` has members that rules do not evaluate, or if parsers could
    read them in different ways: the fulfilment sends `params` unchanged.
    """
    try:
        params = decode_value(proposal.params)
        reject_lookalikes(bytes(proposal.params))
    except InterlockError:
        return None
    if not isinstance(params, dict) or not params.keys() <= _RULE_MEMBERS:
        return None
    arguments = params.get("arguments", {})
    return arguments if isinstance(arguments, dict) else None
