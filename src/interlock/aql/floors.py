"""The least that operations of the node itself need before they run, whatever the rules allow."""

from __future__ import annotations

from typing import Final

from interlock.aql.quotas import CONTINUE
from interlock.aql.safety.pending_questions import PROCEED, UNBLOCK
from interlock.trust.policy.decision import Action, Decision, decision

FLOORS: Final[dict[str, Decision]] = {
    "execute_agent": decision(
        Action.CONFIRM, "default:aql", "An agent that is started acts by itself."
    ),
    UNBLOCK: decision(Action.VERIFY, "aql:unblock", "A human has to let it act again."),
    CONTINUE: decision(Action.CONFIRM, "aql:quota", "A quota is used up so far."),
    PROCEED: decision(Action.CONFIRM, "aql:proceed", "A human has to let this step be done."),
}
FIRM_FLOORS: Final = frozenset({UNBLOCK, PROCEED, CONTINUE})
"""Operations that no rule of the config frees."""
