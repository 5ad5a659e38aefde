"""An approval: one stopped call, written down whole, and everything that became of it.

A record never changes: each step makes another one, and `TRANSITIONS` says which steps there are.
People see the arguments in full, except for values that are declared secret. The exact arguments
are kept for the call itself, and only for as long as it may still be made.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import string
from collections.abc import Callable, Mapping
from decimal import Decimal
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.core.call import (
    Call,
    Caller,
    Client,
    ClientSession,
    Outcome,
    ProposedCall,
    Route,
)
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import CONTRACTS, META_CONTEXT, META_DRIVER, Tool
from interlock.core.catalog.tool_contracts import approved_digest
from interlock.core.config.secrets import digest_of_secret
from interlock.core.redaction import hidden_text
from interlock.errors import INVALID_ARGUMENTS, InterlockError
from interlock.primitives.timestamps import format_utc
from interlock.protocol.jsonrpc import encode_members
from interlock.protocol.lookalike_members import reject_duplicate_members
from interlock.protocol.mcp import Era
from interlock.protocol.mcpax import Hop
from interlock.trust.policy.decision import Decision

if TYPE_CHECKING:
    from interlock.trust.approvals.store import WriteResult

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
STATES: Final = frozenset(TRANSITIONS)

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


class StoredError(msgspec.Struct, frozen=True):
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
    trouble: StoredError | None = None
    collected: bool = False
    """Whether the one who asked has been told."""
    below: str = ""
    """The approval of a node below that its call waits for now."""
    below_until: float = 0.0
    at: str = ""
    """The node below that said all this, by its segment. Empty: it is an approval of this node."""
    proposal: ProposedCall | None = None
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
        return (
            f"{self.caller.parent_caller} (by {self.caller.name})"
            if self.caller.parent_caller
            else self.whose
        )

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
            object_pairs_hook=reject_duplicate_members,
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
    whose = [caller.name, caller.parent_caller] if caller.parent_caller else caller.name
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
            "above": approval.caller.parent_caller,
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
        seen["proposal"] = {"topic": proposed.topic, "id": proposed.id, "by": proposed.participant}
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


# -- A call as it is written down when it is stopped: everything that a human must know of it, and
# all that it takes to make it later.
#
# First its secret arguments are masked, and nothing else.
#
# A person approves what they read, so arguments are shown in full. A value is masked only where
# the tool's schema declares it secret (`format: password`, `writeOnly: true`) or where it equals
# a secret of the config. Only whole values are masked, never a part of a text: a command could be
# hidden under the mask. Redaction for logs (`core.redaction`) goes by names and forms and must
# not be used for approvals.

_MOST_STEPS: Final = 20_000
"""Schemas visited for one call. Beyond that nothing more is masked: the person sees too much rather
than too little."""
_ALTERNATIVES: Final = ("allOf", "anyOf", "oneOf")
_CONDITIONAL: Final = ("if", "then", "else")

Masked = tuple[Any, tuple[str, ...]]


def mask_secrets(
    value: Any, schema: Any, *, secrets: frozenset[bytes] = frozenset(), pointer: str = ""
) -> Masked:
    """A copy of `value` with secrets masked, and JSON pointers (RFC 6901) to the masked values.

    Args:
        value: decoded JSON.
        schema: the JSON Schema of `value`; anything else declares nothing secret.
        secrets: digests of texts that are secret where they are the whole value.
        pointer: the pointer of `value` itself.
    """
    masker = _Masker(schema, secrets)
    shown = masker.copy(value, [schema], pointer, False)
    return shown, tuple(masker.pointers)


class _Masker(msgspec.Struct, eq=False):
    root: Any
    secrets: frozenset[bytes]
    left: int = _MOST_STEPS
    pointers: list[str] = []

    def copy(self, value: Any, schemas: list[Any], pointer: str, secret: bool) -> Any:
        found = self._expand(schemas)
        for schema in found:
            if schema.get("writeOnly") is True or schema.get("format") == "password":
                secret = True
        if isinstance(value, dict):
            return {
                name: self.copy(
                    member,
                    _of_member(found, name),
                    f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}",
                    secret,
                )
                for name, member in value.items()
            }
        if isinstance(value, list):
            return [
                self.copy(item, _of_item(found, index), f"{pointer}/{index}", secret)
                for index, item in enumerate(value)
            ]
        if value is None or isinstance(value, bool):
            return value
        if not secret and self.secrets and isinstance(value, str):
            secret = digest_of_secret(value) in self.secrets
        if secret:
            self.pointers.append(pointer)
            return hidden_text(len(value) if isinstance(value, str) else len(json.dumps(value)))
        return value

    def _expand(self, schemas: list[Any]) -> list[dict[str, Any]]:
        """These schemas and all that they refer to for the same value, each once."""
        found: dict[int, dict[str, Any]] = {}
        waiting = list(schemas)
        while waiting and self.left > 0:
            schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in found:
                continue
            self.left -= 1
            found[id(schema)] = schema
            reference = schema.get("$ref")
            if isinstance(reference, str):
                waiting.append(self._referred(reference))
            for keyword in _ALTERNATIVES:
                parts = schema.get(keyword)
                if isinstance(parts, list):
                    waiting += parts
            waiting += [schema[keyword] for keyword in _CONDITIONAL if keyword in schema]
        return list(found.values())

    def _referred(self, reference: str) -> Any:
        """What a reference within the schema points to. None: nothing here."""
        if reference == "#":
            return self.root
        if not reference.startswith("#/"):
            return None
        found = self.root
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isascii() and name.isdigit():
                found = found[int(name)] if int(name) < len(found) else None
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found


def _of_member(schemas: list[dict[str, Any]], name: str) -> list[Any]:
    found: list[Any] = []
    for schema in schemas:
        properties = schema.get("properties")
        if isinstance(properties, dict) and name in properties:
            found.append(properties[name])
        else:
            found.append(schema.get("additionalProperties"))
    return found


def _of_item(schemas: list[dict[str, Any]], index: int) -> list[Any]:
    found: list[Any] = []
    for schema in schemas:
        first = schema.get("prefixItems")
        if isinstance(first, list) and index < len(first):
            found.append(first[index])
        else:
            found.append(schema.get("items"))
    return found


DIGEST: Final = "args_sha256:"
RAW_DIGEST: Final = "args_raw_sha256:"

_log = logging.getLogger("interlock.approvals")

_SENT_ALONG: Final = (META_CONTEXT, META_DRIVER)
"""What of the `_meta` of a call decides what it does: drivers read it. Everything else is about the
request that was held, and not about the one that is made for it."""


class ReviewedCall(NamedTuple):
    """Everything of a call that an operator approves, in one unambiguous reading."""

    arguments: Any
    meta: dict[str, Any] | None
    """What of its `_meta` is sent with it. None: nothing."""
    raw_meta: bytes
    tool: str
    """The canonical name of the tool."""
    contract: str
    """The digest of the contract of the tool, and of who serves it."""
    digest: str
    """What a proof is about."""


def brought_along(call: Call, route: object) -> dict[str, Raw]:
    """What of its `_meta` decides what a call does. `route`: what is called."""
    if not isinstance(route, Tool) or route.upstream != CONTRACTS:
        return {}
    return only_sent_along(call.meta) or {}


def only_sent_along(meta: dict[str, Raw] | None) -> dict[str, Raw] | None:
    """What of a `_meta` could decide what a call does."""
    return {name: meta[name] for name in _SENT_ALONG if name in meta} or None if meta else None


def whole(call: Call, route: Route | None) -> ReviewedCall:
    """All of it. `route`: what is called. Raises InterlockError."""
    assert call.caller is not None
    arguments, meta, raw_meta = exact(call.arguments), None, b""
    if isinstance(route, Tool) and route.upstream == CONTRACTS:
        along = brought_along(call, route)
        if along:
            raw_meta = encode_members(along)
            meta = exact(raw_meta)
    tool, contract = about(call.name, route)
    digest = digest_of(tool, arguments, contract, call.caller, meta)
    return ReviewedCall(arguments, meta, raw_meta, tool, contract, digest)


def about(name: str, route: Route | None) -> tuple[str, str]:
    """The canonical name of the tool and the digest of its contract, and of who serves it. `name`:
    as the caller says, which counts where no tool was found."""
    if not isinstance(route, Tool):
        return (name if route is None else route.canonical), ""
    # It is made once for each tool; only drivers add to it.
    known = route.digest and not route.served_by
    return route.canonical, route.digest if known else approved_digest(route)


def journal_digest(call: Call) -> str:
    """What the journal says of a call's arguments: `args_sha256`, as an approval of it has.
    Arguments that can be read in two ways, or that are too long for an approval, have no such
    digest: then `args_raw_sha256`, of their bytes."""
    try:
        # The gate has read it, where the call is made for an approval.
        return f"{DIGEST}{call.approval_digest or whole(call, call.route).digest}"
    except InterlockError:
        return f"{RAW_DIGEST}{sha256(call.arguments).hexdigest()}"


def written_down(
    call: Call,
    decision: Decision,
    asked: ReviewedCall,
    *,
    audience: str,
    policy: str,
    created: float,
    expires: float,
    secrets: frozenset[bytes] = frozenset(),
) -> Approval:
    """The record of a call that waits from now on. `asked`: all of it, read. `secrets`: digests
    of the config's secrets. Raises InterlockError for what nobody could look through."""
    route, caller, client = call.route, call.caller, call.client
    assert caller is not None
    listed = route if isinstance(route, Tool) else None
    schema, capability = None, b"{}"
    if listed is not None:
        schema, capability = listed.schema_and_capability or listed.read_schema_and_capability()
    meta_shown = b""
    masked_meta: tuple[str, ...] = ()
    try:
        seen, masked = mask_secrets(asked.arguments, schema, secrets=secrets, pointer="/arguments")
        arguments = canonical(seen)
        if asked.meta:
            seen, masked_meta = mask_secrets(asked.meta, None, secrets=secrets, pointer="/meta")
            meta_shown = canonical(seen)
    except RecursionError:
        raise InterlockError(
            INVALID_ARGUMENTS,
            "A human must look at this call, and its arguments are nested too deeply for that: "
            "make them flatter.",
        ) from None
    return Approval(
        id=new_id(),
        audience=audience,
        nonce=new_id(),
        caller=caller,
        # What it promised is for whoever waits for an answer, and then nobody may.
        client=Client(client.era, client.revision, client.name),
        face=call.server,
        name=call.name,
        tool=asked.tool,
        upstream=call.upstream,
        route=tuple(asked.tool.split(".")) if call.hop is None else call.hop.route,
        hop=call.hop,
        arguments=bytes(call.arguments),
        shown=arguments,
        meta=asked.raw_meta,
        meta_shown=meta_shown,
        masked=masked + masked_meta,
        capability=capability,
        effect=call.effect,
        description="" if listed is None else listed.description,
        digest=asked.digest,
        contract=asked.contract,
        policy=policy,
        rule=decision.rule,
        action=decision.action.word,
        reason=decision.reason if listed is None else _reason(decision, listed),
        created=created,
        expires=expires,
        proposal=call.proposal,
    )


def _reason(decision: Decision, tool: Tool) -> str:
    """Why it waits, what that was inferred from, and which drivers could serve the call."""
    said = [decision.reason] if decision.reason else []
    effect = tool.effect
    if effect.reason and effect.is_assumed and effect.level is EffectLevel.IRREVERSIBLE:
        said.append(f"Its server does not say what it does; assumed from: {effect.reason}.")
    if tool.served_by:
        drivers = " or ".join(one.partition(" ")[0] for one in tool.served_by)
        said.append(f"It would be served by {drivers}.")
    return " ".join(said)


def revealed(approval: Approval) -> Approval:
    """The same with the real values in place of the masked ones. Only while it is pending."""
    meta = canonical(exact(approval.meta)) if approval.meta else b""
    return replace(approval, shown=canonical(exact(approval.arguments)), meta_shown=meta)


# -- A record while its node runs.

Whose = tuple[str, str, str, str, int]
Told = Callable[["Outcome | None", "InterlockError | None"], None]


def whose(caller: Caller, digest: str, session: ClientSession | None = None) -> Whose:
    """By what the identical call of the same client is known. `session`: the client's, on the
    session protocol; several clients may be one caller."""
    asker = 0 if session is None else id(session)
    return caller.name, caller.kind, caller.parent_caller, digest, asker


class ApprovalEntry(msgspec.Struct, eq=False):
    """A record, and what there is beside it for as long as the process lives."""

    record: Approval
    written: str | None = None
    """The state that is on disk. None: none is yet."""
    writing: bool = False
    """A step is on its way to the disk."""
    until: float = 0.0
    """When it expires, on the clock that never goes back."""
    timer: Any = None
    session: ClientSession | None = None
    asker: ClientSession | None = None
    """The session whose repeated call is this one. None: calls without a session."""
    url_offered: bool = False
    asked_plainly: bool = False
    """Whether its caller was told of it outside of a room, too, and comes for what it came to. Of
    one from before a restart nobody knows: it may."""
    told: bool = False
    """Whether its caller was told the outcome. The record says so once that is written."""
    live: bool = False
    """Whether somebody has just approved it, and it is about to be dispatched."""
    call: Call | None = None
    """The call that it is used for."""
    early: tuple[Outcome | None, InterlockError | None] | None = None
    heard_below: tuple[str, Outcome] | None = None
    """What a gate below (its approval's id) let through while it was being asked about."""
    on_written: list[Callable[[ApprovalEntry, WriteResult], None]] = []
    waiters: list[Told] = []
    """The identical calls of its caller that wait for what becomes of it."""
    on_over: list[Told] = []
    """Those who confirmed it."""
    own: bool = False
    """Whether its own caller brought the proof, and is told so."""
    wrong: int = 0
    """How many proofs of it did not count."""


# -- A call that was let through here and stopped at a gate below: whether it may be sent there
# again, to hear what became of it. Pure.
#
# It cannot be executed twice by that:
#
# - The call that was sent before was held below and not executed: the gate there said so, and no
#   other answer sets `below`.
# - That gate knows the identical call of the same caller. It answers with the pending approval,
#   with the rejection, or with the outcome. It makes the call once, for a proof of its own only.
#   A call that it has forgotten is held again.
# - If there is no gate any more the call is made now, under the approval of here: for the first
#   time, and the last, since its answer sets no `below`.
# - Like the first time, `dispatching` is on disk before it leaves. A node that is killed after that
#   comes back to `lost`, and asks no more.


def may_ask_below(record: Approval, changed: list[str], now: float, keep: float) -> bool:
    """`changed`: what is not as it was when a human said yes. What was said is good for as long as
    the gate below waits, and never for longer than outcomes are kept (`keep`)."""
    return not changed and now < min(record.below_until, record.decided + keep)
