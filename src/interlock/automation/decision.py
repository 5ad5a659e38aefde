"""Decisions of operators about calls, in their stored form: without secrets, and of limited size.

The mask stands for everything that is not stored: no condition is derived from it, and conditions
about it are not judged. `DecisionRecorder` receives every decided approval, and stores the
decisions of operators. Decisions of policy engines or services say nothing about what an operator
would decide, and neither do expired approvals.
"""

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
    ARGUMENTS_REMOVED,
    CONFIRM,
    REFUSED,
    Approval,
    encode_canonical,
)

LOCAL: Final = "local"
"""The proof of a rejection by the local user of the machine, which needs no key."""
APPROVAL, PROPOSAL = "approval", "proposal"
MAX_TEXT_LENGTH: Final = 1_024
"""The maximum number of stored characters of one text."""
MAX_ARGUMENT_BYTES: Final = 8 * 1_024
"""The maximum size of all stored arguments of one call, in bytes."""
_SECRET_PREFIXES: Final = ("${", "eyJ")
_MAX_SECRET_PREFIXES: Final = 100
_VERDICTS: Final = {APPROVED: APPROVE, REFUSED: REFUSE}
_OPERATOR_PROOFS: Final = {APPROVED: (OPERATOR, PASSKEY), REFUSED: (OPERATOR, PASSKEY, LOCAL)}
_OTHER_RULE_PREFIXES: Final = ("danger:", "safety:", "aql:", "contract:")
"""Prefixes of rules that a learned rule never replaces."""


class HumanDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decision of one operator."""

    time: float
    """Seconds since 1970."""
    source: str
    """`approval`, or `proposal` if the call was proposed in a topic."""
    caller: str
    tool: str
    """The canonical name of the tool."""
    effect: str
    arguments: bytes
    """Canonical JSON, with secrets masked and without long texts."""
    verdict: str
    """`approve` or `refuse`."""
    by: str
    proof: str
    """The kind of proof: operator or passkey; `local` for some rejections."""
    approval: str
    """The id of the approval. Each approval is decided once."""
    rule: str
    """The rule that required the approval."""


def is_known_by_name(caller: Caller) -> bool:
    """Return whether the name always identifies the same caller.

    Callers of other nodes are known only by the word of those nodes, which may give all callers one
    name. The names of guests are random.
    """
    return not caller.parent_caller and caller.kind not in (PARENT_KIND, GUEST)


def is_decision(approval: Approval) -> bool:
    """Return whether this step of an approval is a decision of an operator that a learned rule
    could replace."""
    if approval.proof not in _OPERATOR_PROOFS.get(approval.state, ()):
        return False
    if approval.at or not is_known_by_name(approval.caller):
        # Calls at other nodes are known only by the word of those nodes.
        return False
    if approval.action != CONFIRM or approval.rule.startswith(_OTHER_RULE_PREFIXES):
        return False
    # A rule knows only arguments, so it cannot replace a decision that depended on more.
    return (
        approval.upstream != BUILTIN_KEY
        and approval.shown != ARGUMENTS_REMOVED
        and not approval.meta_shown
    )


def make_decision(approval: Approval, now: float) -> HumanDecision:
    """Return the decision of this step of an approval: see `is_decision`."""
    return HumanDecision(
        time=approval.decided or now,
        source=APPROVAL if approval.proposal is None else PROPOSAL,
        caller=approval.caller.name,
        tool=approval.tool,
        effect=approval.effect,
        arguments=encode_arguments(approval.shown),
        verdict=_VERDICTS[approval.state],
        by=approval.by,
        proof=approval.proof,
        approval=approval.id,
        rule=approval.rule,
    )


def mask_secrets(value: Any) -> Any:
    """Return a copy in which everything that looks like a secret is masked, wherever it is:
    `password=…` inside a text, `--token …`, keys of known forms. Values with secret names are
    masked by `redact_value`.
    """
    if isinstance(value, str):
        # A text that looks like a placeholder is masked, so that it is not taken for one. A text
        # with very many prefixes of secrets is masked unread: the search would read it to its end
        # from each of them.
        has_many_prefixes = any(
            value.count(prefix) > _MAX_SECRET_PREFIXES for prefix in _SECRET_PREFIXES
        )
        if _LONG_TEXT_PLACEHOLDER.search(value) or has_many_prefixes:
            return MASK
        return redact(value)
    if isinstance(value, dict):
        return {_mask_name(name): mask_secrets(item) for name, item in value.items()}
    if isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            value = redact_args(value)
        return [mask_secrets(item) for item in value]
    return value


def _mask_name(name: str) -> str:
    # Two masked names must stay different.
    return name if redact(name) == name else _placeholder(name.encode())


def encode_arguments(shown_arguments: bytes) -> bytes:
    """Return the stored form of arguments. Operators saw them in full; what looks like a secret
    is not stored."""
    value = _shorten(mask_secrets(redact_value(json.loads(shown_arguments))))
    encoded = encode_canonical(value)
    if len(encoded) <= MAX_ARGUMENT_BYTES or not isinstance(value, dict):
        return (
            encoded
            if len(encoded) <= MAX_ARGUMENT_BYTES
            else encode_canonical(_placeholder(encoded))
        )
    # Remove the largest members first: paths are short, and file contents are long.
    sizes = {name: len(encode_canonical(member)) for name, member in value.items()}
    total = len(encoded)
    for name in sorted(sizes, key=lambda member: -sizes[member]):
        if total <= MAX_ARGUMENT_BYTES:
            break
        placeholder = _placeholder(encode_canonical(value[name]))
        total -= sizes[name] - len(encode_canonical(placeholder))
        value[name] = placeholder
    encoded = encode_canonical(value)
    return (
        encoded if len(encoded) <= MAX_ARGUMENT_BYTES else encode_canonical(_placeholder(encoded))
    )


def _shorten(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_TEXT_LENGTH:
        encoded = value.encode()
        if MASK in value:
            # The text may contain a secret, so it is not only a long text.
            return _placeholder(encoded)
        prose_note = f" of prose in {len(value.split())} words" if is_prose(value) else ""
        return _placeholder(encoded, f"{len(value)} characters{prose_note}")
    if isinstance(value, dict):
        return {name: _shorten(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shorten(item) for item in value]
    return value


def _placeholder(encoded: bytes, size: str = "") -> str:
    """Return the placeholder of a long value. Its digest shows whether two values are equal."""
    size = size or f"{len(encoded)} bytes"
    return f"{MASK} (left out: {size}, {sha256(encoded).hexdigest()[:16]})"


_LONG_TEXT_PLACEHOLDER: Final = re.compile(
    re.escape(MASK)
    + r" \(left out: \d+ characters(?P<prose> of prose in \d+ words)?, [0-9a-f]{16}\)"
)


def is_long_text(value: Any) -> bool:
    """Return whether a value is the placeholder of a text that is not stored only because of its
    length."""
    return isinstance(value, str) and _LONG_TEXT_PLACEHOLDER.fullmatch(value) is not None


def is_long_prose(value: str) -> bool:
    """Return whether a value is the placeholder of a long text that was prose."""
    match = _LONG_TEXT_PLACEHOLDER.fullmatch(value)
    return match is not None and match["prose"] is not None


def is_hidden(value: Any) -> bool:
    """Return whether a part of a value is not stored."""
    if isinstance(value, str):
        return MASK in value
    if isinstance(value, dict):
        return any(MASK in name or is_hidden(item) for name, item in value.items())
    return isinstance(value, list) and any(is_hidden(item) for item in value)


# -- Recording


class DecisionSink(Protocol):
    """A store of decisions."""

    def write(self, make: Callable[[], HumanDecision]) -> None:
        """Store the decision that `make` returns. Returns at once, and never raises: the decision
        counts even if it is not stored.

        Args:
            make: called in another thread, because masking secrets takes time.
        """

    def history(self) -> list[HumanDecision]:
        """Return all stored decisions, oldest first. Waits for the disk. Raises InterlockError."""
        ...

    def close(self) -> None:
        """Write everything that is queued, and stop."""


class DecisionRecorder:
    """Records the decisions of operators: a callback of `approvals.watch`."""

    def __init__(self, store: DecisionSink, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self.count = 0

    def on_approval(self, approval: Approval) -> None:
        """Record one step of an approval if it is a decision."""
        if is_decision(approval):
            self._store.write(partial(make_decision, approval, self._wall_clock()))
            self.count += 1
