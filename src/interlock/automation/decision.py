"""Decisions of humans about calls, as they are stored: without secrets, and of limited size.

What stands for something that is not kept has the mask in it: no condition is made of it, and no
condition about it is judged. `DecisionRecorder` hears of every approval that was decided, and has
the decisions of humans kept. Only those: what a policy engine or a service let through says nothing
about what a human would, and neither does what nobody decided in time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any, Final, Protocol

import msgspec

from interlock.automation.prose import is_prose
from interlock.core.call import Caller
from interlock.core.pipeline.authentication import PARENT_KIND
from interlock.core.redaction import MASK, redact, redact_args, redact_value
from interlock.protocol.aql_terms import BUILTIN_KEY
from interlock.protocol.mcpx_terms import GUEST
from interlock.trust.approvals.proofs import APPROVE, OPERATOR, PASSKEY, REFUSE
from interlock.trust.approvals.record import (
    APPROVED,
    CONFIRM,
    NOT_SHOWN,
    REFUSED,
    Approval,
    canonical,
)

LOCAL: Final = "local"
"""How the machine's own user refuses: nobody needs a key for that."""
APPROVAL, PROPOSAL = "approval", "proposal"
MOST_TEXT: Final = 1_024
"""Characters of one text that are kept."""
MOST_KEPT: Final = 8 * 1_024
"""Bytes of all arguments of one call."""
_BEGUN: Final = ("${", "eyJ")
_MOST_BEGUN: Final = 100
_VERDICTS: Final = {APPROVED: APPROVE, REFUSED: REFUSE}
_HUMAN: Final = {APPROVED: (OPERATOR, PASSKEY), REFUSED: (OPERATOR, PASSKEY, LOCAL)}
_OTHER_GATES: Final = ("danger:", "safety:", "aql:", "contract:")
"""Rules of gates that a learned rule never answers for."""


class HumanDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decision of one human."""

    time: float
    """Seconds on the wall clock."""
    source: str
    """`approval`; `proposal` where it was proposed in a topic."""
    caller: str
    tool: str
    """Its canonical name."""
    effect: str
    arguments: bytes
    """Canonical JSON, secrets masked, long texts left out."""
    verdict: str
    """`approve` or `refuse`."""
    by: str
    proof: str
    """What kind of proof it was: operator or passkey; `local` for some refusals."""
    approval: str
    """The approval that was decided. Each is decided once."""
    rule: str
    """The rule that stopped the call."""


def is_known_by_name(caller: Caller) -> bool:
    """Whether a name always means the same caller. Of callers of other nodes we have those nodes'
    word only, and to one that does not say who calls there all have one name; the names of guests
    are given by chance."""
    return not caller.parent_caller and caller.kind not in (PARENT_KIND, GUEST)


def is_decision(approval: Approval) -> bool:
    """Whether this step of an approval is a human's decision, and one that a learned rule could
    take over."""
    if approval.proof not in _HUMAN.get(approval.state, ()):
        return False
    if approval.at or not is_known_by_name(approval.caller):
        # Of calls at other nodes we have their word only.
        return False
    if approval.action != CONFIRM or approval.rule.startswith(_OTHER_GATES):
        return False
    # What was decided by more than its arguments is no rule's: a rule knows nothing else.
    return (
        approval.upstream != BUILTIN_KEY and approval.shown != NOT_SHOWN and not approval.meta_shown
    )


def decided(approval: Approval, now: float) -> HumanDecision:
    """The decision that this step of an approval is: see `is_decision`."""
    return HumanDecision(
        time=approval.decided or now,
        source=APPROVAL if approval.proposal is None else PROPOSAL,
        caller=approval.caller.name,
        tool=approval.tool,
        effect=approval.effect,
        arguments=kept(approval.shown),
        verdict=_VERDICTS[approval.state],
        by=approval.by,
        proof=approval.proof,
        approval=approval.id,
        rule=approval.rule,
    )


def without_secrets(value: Any) -> Any:
    """A copy in which nothing has the form of a secret, wherever it stands: `password=…` within a
    text, `--token …`, keys of known forms. What is one by its name is masked by `redact_value`."""
    if isinstance(value, str):
        # A text that looks like what stands for others tells nobody what it was; and one with so
        # many beginnings of secrets would be read to its end at each of them.
        if _LONG_TEXT.search(value) or any(value.count(one) > _MOST_BEGUN for one in _BEGUN):
            return MASK
        return redact(value)
    if isinstance(value, dict):
        return {_name_without(name): without_secrets(one) for name, one in value.items()}
    if isinstance(value, list):
        if all(isinstance(one, str) for one in value):
            value = redact_args(value)
        return [without_secrets(one) for one in value]
    return value


def _name_without(name: str) -> str:
    # Two that are masked stay two.
    return name if redact(name) == name else _left_out(name.encode())


def kept(shown: bytes) -> bytes:
    """Arguments as they are remembered. People saw them in full; what looks like a secret is not
    written down for good."""
    value = _shortened(without_secrets(redact_value(json.loads(shown))))
    whole = canonical(value)
    if len(whole) <= MOST_KEPT or not isinstance(value, dict):
        return whole if len(whole) <= MOST_KEPT else canonical(_left_out(whole))
    # What is long goes first: a path is short, and what is written there is not.
    sizes = {name: len(canonical(one)) for name, one in value.items()}
    total = len(whole)
    for name in sorted(sizes, key=lambda one: -sizes[one]):
        if total <= MOST_KEPT:
            break
        instead = _left_out(canonical(value[name]))
        total -= sizes[name] - len(canonical(instead))
        value[name] = instead
    whole = canonical(value)
    return whole if len(whole) <= MOST_KEPT else canonical(_left_out(whole))


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MOST_TEXT:
        whole = value.encode()
        if MASK in value:
            # It may hold a secret, and then it is more than a long text.
            return _left_out(whole)
        prose = f" of prose in {len(value.split())} words" if is_prose(value) else ""
        return _left_out(whole, f"{len(value)} characters{prose}")
    if isinstance(value, dict):
        return {name: _shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_shortened(one) for one in value]
    return value


def _left_out(whole: bytes, size: str = "") -> str:
    """What stands for something long: whether two of them are the same can be seen."""
    return f"{MASK} (left out: {size or f'{len(whole)} bytes'}, {sha256(whole).hexdigest()[:16]})"


_LONG_TEXT: Final = re.compile(
    re.escape(MASK)
    + r" \(left out: \d+ characters(?P<prose> of prose in \d+ words)?, [0-9a-f]{16}\)"
)


def is_long_text(value: Any) -> bool:
    """Whether it stands for a text that is not kept for its length alone."""
    return isinstance(value, str) and _LONG_TEXT.fullmatch(value) is not None


def is_long_prose(value: str) -> bool:
    """The same, and it was prose."""
    match = _LONG_TEXT.fullmatch(value)
    return match is not None and match["prose"] is not None


def is_hidden(value: Any) -> bool:
    """Whether something of it is not kept."""
    if isinstance(value, str):
        return MASK in value
    if isinstance(value, dict):
        return any(MASK in name or is_hidden(one) for name, one in value.items())
    return isinstance(value, list) and any(is_hidden(one) for one in value)


# -- What watching decisions asks of whoever keeps them. Only shapes here.


class DecisionSink(Protocol):
    """A durable store of decisions."""

    def write(self, make: Callable[[], HumanDecision]) -> None:
        """Keep the decision that `make` returns. It is called on whatever thread: to mask secrets
        takes a while. Returns at once, and never raises: a decision counts whether it is remembered
        or not."""

    def history(self) -> list[HumanDecision]:
        """All that are kept, the oldest first. Waits. Raises InterlockError."""
        ...

    def close(self) -> None:
        """Write what is left, and stop."""


class DecisionRecorder:
    """Records the decisions of humans: a callback of `approvals.watch`."""

    def __init__(self, store: DecisionSink, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self.kept = 0

    def heard(self, approval: Approval) -> None:
        """One step of one approval."""
        if is_decision(approval):
            self._store.write(partial(decided, approval, self._wall_clock()))
            self.kept += 1
