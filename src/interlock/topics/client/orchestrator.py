"""Fulfils proposals by rule, in place of a human who has decided the same before.

What is learned from a decision is that decision and no more: the same tool of the same participant,
the same proposer, the same arguments. Whoever wants a wider rule writes one, with a condition. What
no rule covers waits for a human, and so does everything that cannot be judged, or that two readers
may read differently.
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
from interlock.topics.wire.proposals import TrackedProposal, same

MOST_REMEMBERED: Final = 1_000
_LOOKED_AT: Final = frozenset({"name", "arguments"})
"""Members of `params` that a rule speaks of. What stands in a `_meta` may decide what a call does:
what has one waits for a human."""
_log = logging.getLogger("interlock.topics")


class ProposalRule(msgspec.Struct, frozen=True):
    """Which proposals are fulfilled. `when` is a CEL expression over `args`, `tool`, `caller` and
    `server`, who is asked; `arguments` are exactly these; `proposers` are names or globs, none:
    nobody's; `to` is exactly who is asked, none: anybody, but only one."""

    tool: str
    proposers: tuple[str, ...]
    when: str | None = None
    arguments: Mapping[str, Any] | None = None
    to: tuple[str, ...] = ()


class RuleResult(msgspec.Struct, frozen=True):
    """What was done by a rule."""

    proposal: str
    rule: ProposalRule
    error: str = ""
    """Why it came to nothing."""


class Orchestrator:
    """Watches the proposals of a topic for a participant that may make the calls."""

    def __init__(
        self,
        participant: Participant,
        rules: Iterable[ProposalRule] = (),
        *,
        on_done: Callable[[RuleResult], None] | None = None,
    ) -> None:
        """Raises BadValue for a condition that can never be used."""
        self._participant = participant
        self._on_done = on_done
        self._rules: list[tuple[ProposalRule, Condition | None]] = []
        self._taken: deque[str] = deque(maxlen=MOST_REMEMBERED)
        self.done: deque[RuleResult] = deque(maxlen=MOST_REMEMBERED)
        """The last of what was done here, for whoever looks after it."""
        for rule in rules:
            self.add(rule)
        participant.on(Proposal, self._heard)

    @property
    def rules(self) -> tuple[ProposalRule, ...]:
        return tuple(rule for rule, _ in self._rules)

    def add(self, rule: ProposalRule) -> None:
        """From now on. Raises BadValue, and ValueError for a rule that would cover nobody."""
        if not rule.tool or not rule.proposers:
            raise ValueError("A rule names a tool, and whose proposals it is about.")
        condition = None if rule.when is None else compile_condition(rule.when)
        self._rules.append((rule, condition))

    def remove(self, rule: ProposalRule) -> None:
        """Not any more. Raises ValueError for one that is not there."""
        del self._rules[self.rules.index(rule)]

    def learn(self, decision: TrackedProposal | Proposal) -> ProposalRule:
        """A human has decided so, and the next one like it is not asked about. Raises ValueError
        for what is no call of a tool, can be read in two ways, or was proposed to nobody; and for
        what nobody fulfilled as it was proposed, but a rule."""
        self._check_decided(decision)
        if decision.method != mcp.TOOLS_CALL or not decision.context:
            raise ValueError(f"Only calls of tools can be learned, not {decision.method[:100]}.")
        arguments = _arguments(decision)
        if arguments is None:
            raise ValueError("The arguments of the proposal are no object, or ambiguous.")
        if not decision.to:
            raise ValueError("What was proposed to nobody in particular cannot be learned.")
        who = (glob.escape(decision.proposer),)
        rule = ProposalRule(decision.context, who, arguments=arguments, to=tuple(decision.to))
        if rule not in self.rules:
            self.add(rule)
        return rule

    def _check_decided(self, decision: TrackedProposal | Proposal) -> None:
        if isinstance(decision, TrackedProposal):
            id, given = decision.proposalId, decision
        else:
            id, given = decision.id, None
        tracked = self._participant.tracked.get(id, given)
        status = "not known here" if tracked is None else tracked.status
        if tracked is None or status != "fulfilled":
            raise ValueError(f"The proposal is {status}: only what was fulfilled can be learned.")
        if tracked.changed:
            raise ValueError("It was fulfilled with other arguments than were proposed.")
        if id in self._taken:
            raise ValueError("A rule fulfilled it, and no human.")

    def covering(self, proposal: TrackedProposal | Proposal) -> ProposalRule | None:
        """The first rule that covers it. None: a human decides."""
        arguments = _arguments(proposal)
        if proposal.method != mcp.TOOLS_CALL or arguments is None:
            return None
        about = {
            "args": arguments, "tool": proposal.context, "caller": proposal.proposer,
            "roles": [], "scopes": [], "effect": "", "server": "".join(proposal.to[:1]),
        }  # fmt: skip
        for rule, condition in self._rules:
            if _covers(rule, condition, proposal, about):
                return rule
        return None

    async def _heard(self, event: Event) -> None:
        proposal: Proposal = event.content
        me = self._participant.id
        # What is proposed to nobody in particular would be made to everybody.
        if proposal.proposer == me or not proposal.to or proposal.id in self._taken:
            return
        rule = self.covering(proposal)
        if rule is None:
            return
        self._taken.append(proposal.id)
        error = ""
        try:
            await self._participant.fulfil(proposal)
        except SendError as refused:
            error = refused.message
        except InterlockError as failed:
            error = failed.message
        except asyncio.CancelledError:
            error = "It was left before the answer came."
            raise
        finally:
            done = RuleResult(proposal.id, rule, error)
            self.done.append(done)
            _log.info("fulfilled %.100s by rule%s", proposal.context, f": {error}" if error else "")
            if self._on_done is not None:
                self._on_done(done)


def _covers(
    rule: ProposalRule,
    condition: Condition | None,
    proposal: TrackedProposal | Proposal,
    about: dict[str, Any],
) -> bool:
    if rule.tool != proposal.context:
        return False
    if not any(fnmatchcase(proposal.proposer, one) for one in rule.proposers):
        return False
    if len(proposal.to) != 1 if not rule.to else set(proposal.to) != set(rule.to):
        # Whom a condition does not see it says nothing about.
        return False
    if rule.arguments is not None:
        try:
            if not same(encode_value(rule.arguments), encode_value(about["args"])):
                return False
        except (TypeError, ValueError):
            return False
    if condition is None:
        return True
    try:
        return condition.matches(about)
    except UndecidableError:
        return False


def _arguments(proposal: TrackedProposal | Proposal) -> dict[str, Any] | None:
    """None: there are none, or beside them what no rule looks at, or others might read them
    differently. What is sent is what was proposed, to the letter."""
    try:
        params = decode_value(proposal.params)
        reject_lookalikes(bytes(proposal.params))
    except InterlockError:
        return None
    if not isinstance(params, dict) or not params.keys() <= _LOOKED_AT:
        return None
    found = params.get("arguments", {})
    return found if isinstance(found, dict) else None
