"""An approval: one stopped call, written down whole, and everything that became of it.

A record never changes: each step makes another one, and `TRANSITIONS` says which steps there are.
People see the arguments in full, except for values that are declared secret (`masking`). The exact
arguments are kept for the call itself, and only for as long as it may still be made.
"""

from __future__ import annotations

import json
import math
import secrets
import string
from collections.abc import Mapping
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.core.call import Caller, Client, Proposed
from interlock.errors import INVALID_ARGUMENTS, InterlockError
from interlock.primitives.timestamps import format_utc
from interlock.protocol.lookalike_members import members_once
from interlock.protocol.mcp import Era
from interlock.protocol.mcpax import Hop

PENDING: Final = "pending"
APPROVED: Final = "approved"
"""A proof was given, and the call is not sent yet."""
DISPATCHING: Final = "dispatching"
"""It may have been sent."""
DONE: Final = "done"
REFUSED: Final = "refused"
EXPIRED: Final = "expired"
VOID: Final = "void"
"""It was not executed, and never will be: something changed, or it could not be sent."""
LOST: Final = "lost"
"""It was let through, and whether it was executed is not known."""

TRANSITIONS: Final[dict[str, frozenset[str]]] = {
    PENDING: frozenset({APPROVED, REFUSED, EXPIRED, VOID}),
    APPROVED: frozenset({DISPATCHING, EXPIRED, VOID}),
    DISPATCHING: frozenset({DONE, VOID, LOST}),
    # Only of a call that a gate below stopped: it asks there again.
    DONE: frozenset({DONE, DISPATCHING}),
    REFUSED: frozenset({REFUSED}),
    EXPIRED: frozenset({EXPIRED}),
    VOID: frozenset({VOID}),
    LOST: frozenset({LOST}),
}
"""From a state to those that may follow. An end follows itself when it is collected."""
ENDS: Final = frozenset({DONE, REFUSED, EXPIRED, VOID, LOST})

CONFIRM: Final = "confirm"
VERIFY: Final = "verify"
"""Only a human's own key or passkey will do."""

MOST_RESULT: Final = 1024 * 1024
"""A longer result is given to whoever confirms, and not kept."""
MOST_ARGUMENTS: Final = 64 * 1024
"""No human looks at more."""
NOT_SHOWN: Final = b"null"
"""What stands for arguments that are not kept any more."""
_NOT_KEPT: Final = (
    b'{"content":[{"type":"text","text":"It was executed. Its result was not kept: there was no '
    b'room for it any more."}]}'
)
_MOST_SHOWN: Final = 4_000
_MOST_DIGITS: Final = 400
_EXACT: Final = 2**53
"""Integers up to here are the same for every reader of JSON (RFC 8259 §6)."""


class Trouble(msgspec.Struct, frozen=True):
    """An error that a call came to, as it can be told again."""

    failure: str
    """The name of its row in the table."""
    message: str
    code: int | None = None
    """The upstream's own code, where it was the upstream that answered so."""
    data: bytes = b""
    """Raw JSON, or nothing."""


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """One call that waits for a proof, or did."""

    id: str
    state: str = PENDING
    audience: str
    """The id of the node that holds it: whose proofs must say so in `aud`."""
    nonce: str
    """What a policy engine signs."""

    caller: Caller
    client: Client
    face: str
    name: str
    """The tool as the client named it."""
    tool: str
    """Its canonical name."""
    upstream: str
    route: tuple[str, ...]
    hop: Hop | None = None
    """Where it was on its way down the tree, when a parent sent it."""
    arguments: bytes
    """Exactly as they came. Empty once the call can no longer be made."""
    shown: bytes
    """The same as JSON for people, declared secrets masked. `NOT_SHOWN`: not kept any more."""
    meta: bytes = b""
    """What of its `_meta` is sent with it, a JSON object. Empty: nothing, or no longer."""
    meta_shown: bytes = b""
    """The same for people."""
    masked: tuple[str, ...] = ()
    """JSON pointers to what is masked, as `view` has it: `/arguments/…`, `/meta/…`."""
    capability: bytes
    """The tool's capability annotation, raw JSON."""
    effect: str
    description: str

    digest: str
    """What a proof is about: tool, arguments, contract and caller, and what is sent with it."""
    contract: str
    """The digest of the tool's definition."""
    policy: str
    """The version of the policy that stopped it."""
    rule: str
    action: str
    reason: str

    created: float
    """Seconds on the wall clock, as the others."""
    expires: float
    decided: float = 0.0
    ended: float = 0.0

    by: str = ""
    """Whose proof decided it."""
    proof: str = ""
    """Of which kind that was: operator, policy_engine, service, passkey; or how it was refused."""
    note: str = ""
    """Why it was refused, void or lost."""
    outcome: str = ""
    """What became of the call, in the word of the journal."""
    result: bytes = b""
    era: str = ""
    """In which era's words the result is."""
    trouble: Trouble | None = None
    collected: bool = False
    """Whether the one who asked has been told."""
    below: str = ""
    """The approval of a node below that its call waits for now."""
    below_until: float = 0.0
    at: str = ""
    """The node below that said all this, by its segment. Empty: it is an approval of this node."""
    proposal: Proposed | None = None
    """The proposal in a topic that it was held for."""

    def __repr__(self) -> str:
        # Arguments may hold secrets, and whatever can be printed is printed one day.
        return f"Approval({self.id}, {self.state}, {self.tool})"

    @property
    def waits(self) -> bool:
        return self.state == PENDING

    @property
    def over(self) -> bool:
        return self.state in ENDS

    @property
    def who(self) -> str:
        """Who asked: on a call that came from above, the one who called there."""
        return f"{self.caller.above} (by {self.caller.name})" if self.caller.above else self.whose

    @property
    def whose(self) -> str:
        return self.caller.name

    def step(self, state: str, **changes: Any) -> Approval:
        """The record in its next state. Raises ValueError for a step that there is not."""
        executed = self.state == DONE and state == DISPATCHING and not self.below
        if state not in TRANSITIONS[self.state] or executed:
            raise ValueError(f"an approval cannot go from {self.state} to {state}")
        if state in ENDS:
            # Nothing can be called with them any more, and they may hold secrets.
            changes["arguments"] = changes["meta"] = b""
        if state in (EXPIRED, VOID):
            # Nothing happened, and nobody has to know with what.
            changes |= {"shown": NOT_SHOWN, "meta_shown": b"", "masked": ()}
        return replace(self, state=state, **changes)

    def without_bulk(self) -> Approval:
        """The same, without what takes room: that it was executed can still be told."""
        brief = replace(self, shown=NOT_SHOWN, meta_shown=b"", masked=())
        return replace(brief, result=_NOT_KEPT, era=Era.SESSION.value) if self.result else brief


def new_id() -> str:
    """Nobody guesses it: 192 random bits. It begins with a letter: on a command line a dash would
    make an option of it."""
    return secrets.choice(string.ascii_letters) + secrets.token_urlsafe(24)


def exact(arguments: bytes | Raw) -> Any:
    """The arguments as a human is to see them: all that any reader could find in them.

    Raises InterlockError for what two readers may read in two ways.
    """
    size = len(bytes(arguments))
    if size > MOST_ARGUMENTS:
        raise InterlockError(
            INVALID_ARGUMENTS,
            f"A human must look at this call, and nobody looks at {size} bytes of arguments: "
            f"{MOST_ARGUMENTS} bytes are the most. Make several calls of it, or name a file.",
            {"size": size, "most": MOST_ARGUMENTS},
        )
    try:
        return json.loads(
            bytes(arguments),
            object_pairs_hook=members_once,
            parse_float=_number,
            parse_int=_integer,
            parse_constant=_no_number,
        )
    except (ValueError, RecursionError) as wrong:
        raise InterlockError(
            INVALID_ARGUMENTS,
            f"A call that a human must look at needs arguments that can be read in one way only: "
            f"{wrong}.",
        ) from None


def canonical(value: Any) -> bytes:
    """One spelling for each value. Raises InterlockError."""
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    except (ValueError, RecursionError) as wrong:
        raise InterlockError(
            INVALID_ARGUMENTS, f"The arguments cannot be written down: {wrong}."
        ) from None


def digest_of(
    tool: str, arguments: Any, contract: str, caller: Caller, meta: Mapping[str, Any] | None = None
) -> str:
    """What a proof is about, as hex SHA-256 over canonical JSON. `meta`: what of the call's `_meta`
    is sent with it."""
    whose = [caller.name, caller.above] if caller.above else caller.name
    whole = {"tool": tool, "arguments": arguments, "contract": contract, "caller": whose}
    if meta:
        whole["meta"] = meta
    return sha256(canonical(whole)).hexdigest()


def view(approval: Approval, *, url: str | None = None) -> dict[str, Any]:
    """All that people and programs beside the node may see of it. `masked` points to the values
    that are not shown."""
    seen: dict[str, Any] = {
        "id": approval.id,
        "state": approval.state,
        "tool": approval.tool,
        "server": approval.upstream,
        "route": list(approval.route),
        "arguments": json.loads(approval.shown),
        "masked": list(approval.masked),
        "capability": json.loads(approval.capability),
        "effect": approval.effect,
        "description": approval.description[:_MOST_SHOWN],
        "caller": {
            "name": approval.caller.name,
            "kind": approval.caller.kind,
            "above": approval.caller.above,
        },
        "action": approval.action,
        "rule": approval.rule,
        "reason": approval.reason,
        "created_at": format_utc(approval.created),
        "expires_at": format_utc(approval.expires),
        "args_sha256": approval.digest,
        "nonce": approval.nonce,
        "aud": approval.audience,
        "note": approval.note,
    }
    if approval.meta_shown:
        seen["meta"] = json.loads(approval.meta_shown)
    if url is not None:
        seen["url"] = url
    if approval.at:
        seen["at"] = approval.at
    if approval.proposal is not None:
        proposed = approval.proposal
        seen["proposal"] = {"topic": proposed.topic, "id": proposed.id, "by": proposed.by}
    if approval.decided:
        seen |= {
            "decided_at": format_utc(approval.decided),
            "by": approval.by,
            "proof": approval.proof,
        }
    if approval.outcome:
        seen["outcome"] = approval.outcome
    return seen


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    # Some read more digits than are shown here: then they would do what nobody saw.
    if len(text) > _MOST_DIGITS or Decimal(text) != Decimal(repr(number)):
        raise ValueError(f"the number {text[:40]} has too many digits")
    return number


def _integer(text: str) -> int:
    # A reader that keeps numbers as doubles (JavaScript) would act on another one than is shown.
    number = int(text) if len(text) <= _MOST_DIGITS else _EXACT + 1
    if abs(number) > _EXACT:
        raise ValueError(
            f"the number {text[:40]} is beyond 2^53, and some readers round it: send it as a text"
        )
    return number


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")
