"""An approval as people and approval services see it, and what this face asks of the node.

Numbers stand as they came: the page shows text that the node wrote, since a browser that parsed
the arguments could round them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.call import Caller, Outcome
from interlock.config.redaction import MASK
from interlock.errors import ALREADY_DECIDED, PROOF_INVALID, UNKNOWN_APPROVAL, InterlockError
from interlock.pipeline.approval.record import NOT_SHOWN, REFUSED, Approval, view

PASSED_ON: Final = "passed_on"
_MOST_LISTED: Final = 1_000
"""Bytes of arguments, and characters of a description, that a list shows of one approval."""
_UNDECIDED: Final = (ALREADY_DECIDED, PROOF_INVALID, UNKNOWN_APPROVAL)
"""What is wrong with a proof. Other errors may be what the call itself came to."""


class Approvals(Protocol):
    """What the node knows of approvals."""

    def pending(self) -> Sequence[Approval]: ...

    def pending_below(self) -> Sequence[Approval]: ...

    def find(self, id: str) -> Approval | None: ...

    async def confirm(self, id: str, proof: str, presented_by: Caller | None) -> Outcome:
        """Raises InterlockError: the proof was no good, or what the call came to."""
        ...

    async def refuse(
        self,
        id: str,
        *,
        proof: str | None = None,
        reason: str = "",
        presented_by: Caller | None = None,
        local: bool = False,
    ) -> Approval: ...

    def watch(self, callback: Callable[[Approval], None]) -> Callable[[], None]: ...


class Desk(Protocol):
    """Where operators enrol, and show who they are."""

    def question(self) -> dict[str, str]:
        """What an operator signs to be let in: `nonce` and `aud`."""
        ...

    async def admit(self, nonce: str, proof: str) -> str:
        """A session for whoever answered. Raises InterlockError."""
        ...

    def known(self, session: str) -> str:
        """Whose session it is. Raises InterlockError."""
        ...

    def left(self, session: str) -> float:
        """For how many seconds a session is still good."""
        ...

    async def enrol(self, asked: bytes) -> str:
        """Enrol what a browser sent with a code; returns the operator's name. Raises
        InterlockError."""
        ...


def seen(approval: Approval, now: float, outcome: Outcome | None = None) -> dict[str, Any]:
    """One approval. `outcome`: what its call came to, for the one who confirmed it."""
    shown = view(approval)
    kept = approval.shown != NOT_SHOWN
    shown |= {
        "arguments_text": msgspec.json.format(approval.shown, indent=2).decode() if kept else "",
        **_times(approval, now),
        "contract": approval.contract,
        "policy": approval.policy,
    }
    if approval.meta_shown:
        shown["meta_text"] = msgspec.json.format(approval.meta_shown, indent=2).decode()
    if outcome is not None:
        shown["result"] = Raw(outcome.result)
        shown["result_text"] = msgspec.json.format(bytes(outcome.result), indent=2).decode()
    return shown


def _times(approval: Approval, now: float) -> dict[str, Any]:
    return {
        "mask": MASK,
        "now": now,
        "created": approval.created,
        "expires": approval.expires,
        "decided": approval.decided,
        "seconds_left": max(0.0, approval.expires - now) if approval.waits else 0.0,
        "seconds_whole": approval.expires - approval.created,
    }


def summed_up(approval: Approval, now: float) -> dict[str, Any]:
    """One of many: long arguments are cut, as `arguments_cut` says. Nobody decides by this."""
    long = len(approval.shown) + len(approval.meta_shown)
    if long <= _MOST_LISTED and len(approval.description) <= _MOST_LISTED:
        return {**seen(approval, now), "arguments_cut": False}
    cut = long > _MOST_LISTED
    brief = msgspec.structs.replace(
        approval,
        shown=NOT_SHOWN if cut else approval.shown,
        meta_shown=b"" if cut else approval.meta_shown,
        description=approval.description[:_MOST_LISTED],
    )
    shown = {**seen(brief, now), "arguments_cut": cut}
    if cut:
        text = approval.shown[:_MOST_LISTED].decode("utf-8", "ignore")
        shown["arguments_text"] = f"{text}…"
    return shown


def waiting(approvals: Approvals) -> list[Approval]:
    """All that wait, here and as far as is known below, the oldest first."""
    found = [*approvals.pending(), *approvals.pending_below()]
    return sorted(found, key=lambda one: one.created)


def listed(found: Sequence[Approval], now: float) -> dict[str, Any]:
    """The same as people see them."""
    return {"approvals": [summed_up(one, now) for one in found]}


async def decided(
    approvals: Approvals, id: str, proof: str, wall_clock: Callable[[], float]
) -> dict[str, Any]:
    """What became of an approval by this proof. Raises InterlockError when it decided nothing."""
    outcome, trouble = None, None
    before = approvals.find(id)
    try:
        outcome = await approvals.confirm(id, proof, None)
    except InterlockError as error:
        if error.failure in _UNDECIDED:
            raise
        trouble = error
    approval = approvals.find(id)
    if approval is None and outcome is not None:
        # A node below holds it, and was given the proof.
        if before is not None:
            return {**seen(before, wall_clock(), outcome), "state": PASSED_ON, "seconds_left": 0.0}
        return {"id": id, "state": PASSED_ON, "result": Raw(outcome.result)}
    if approval is None or not approval.decided:
        raise trouble or InterlockError(UNKNOWN_APPROVAL, "The approval is not known any more.")
    if approval.state == REFUSED:
        return seen(approval, wall_clock())
    shown = seen(approval, wall_clock(), outcome)
    if trouble is not None:
        shown["error"] = {"name": trouble.failure.name, "message": trouble.message}
    return shown
