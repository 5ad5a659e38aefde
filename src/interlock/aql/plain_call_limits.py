"""What holds for a call whether it is made in a view or by its tool's plain name: danger, and every
limit and quota.

In a view the stage has counted a call before it gets here. One that a human let through comes here
by its plain name, and is counted then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from interlock.aql.operations import Book
from interlock.aql.quotas import Quotas
from interlock.core.call import Call
from interlock.core.catalog.offering import Tool
from interlock.trust.policy.decision import Action, Decision, decision

Weigh = Callable[[Call, Decision], Decision]
"""Makes a decision stricter. Raises InterlockError."""

PAUSED: Final = decision(
    Action.CONFIRM, "aql:quota", "A quota is used up so far: a human lets each call go on."
)


class Plainly:
    """Asked about every call of a server's tool, while there is something to be asked."""

    def __init__(self, book: Callable[[], Book], quotas: Quotas, weigh: Weigh) -> None:
        """`weigh`: what danger says."""
        self._book = book
        self._quotas = quotas
        self._weigh = weigh
        self.danger_everywhere = False
        """Whether the config has something to say about the danger of calls that do not wait."""

    @property
    def everywhere(self) -> bool:
        """Whether calls outside of views have to be asked about at all."""
        return self.danger_everywhere or self._quotas.configured

    def __call__(self, call: Call, decided: Decision) -> Decision:
        if decided.gated or call.view is not None or self.danger_everywhere:
            decided = self._weigh(call, decided)
        if call.asked is not None or call.route is None or not self._quotas.configured:
            return decided
        if decided.action is Action.DENY or (decided.gated and not call.approval):
            # It does not go out now.
            return decided
        operation = self._book().of(cast("Tool", call.route))
        return decided if self._quotas.admit_plain(call, operation) else PAUSED
