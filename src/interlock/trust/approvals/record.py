"""The record of an approval: one held call and everything that happened to it (MCP-AX §11.3).

A record is immutable. Each step makes a new record, and `TRANSITIONS` lists the allowed steps.
People see the arguments in full, except for values that are declared secret. The exact arguments
are stored for the call itself, and only while the call can still be made.
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
"""A proof was accepted, and the call is not sent yet."""
DISPATCHING: Final = "dispatching"
"""The call may have been sent."""
DONE: Final = "done"
REFUSED: Final = "refused"
EXPIRED: Final = "expired"
VOID: Final = "void"
"""The call was not executed and never will be: something changed, or it could not be sent."""
LOST: Final = "lost"
"""The call was approved, and its outcome is unknown."""

TRANSITIONS: Final[dict[str, frozenset[str]]] = {
    PENDING: frozenset({APPROVED, REFUSED, EXPIRED, VOID}),
    APPROVED: frozenset({DISPATCHING, EXPIRED, VOID}),
    DISPATCHING: frozenset({DONE, VOID, LOST}),
    # Only for a call that a child gate held: the call asks that gate again.
    DONE: frozenset({DONE, DISPATCHING}),
    REFUSED: frozenset({REFUSED}),
    EXPIRED: frozenset({EXPIRED}),
    VOID: frozenset({VOID}),
    LOST: frozenset({LOST}),
}
"""Maps each state to the states that may follow. A final state follows itself when its outcome is
collected."""
FINAL_STATES: Final = frozenset({DONE, REFUSED, EXPIRED, VOID, LOST})
STATES: Final = frozenset(TRANSITIONS)

CONFIRM: Final = "confirm"
VERIFY: Final = "verify"
"""Only a person's own key or passkey can approve."""

MAX_RESULT_BYTES: Final = 1024 * 1024
"""A longer result is returned to whoever approves, and not stored."""
MAX_ARGUMENT_BYTES: Final = 64 * 1024
"""The most that an operator can be expected to read."""
ARGUMENTS_REMOVED: Final = b"null"
"""Replaces displayed arguments that are no longer stored."""
_RESULT_REMOVED: Final = (
    b'{"content":[{"type":"text","text":"The call was executed. Its result is no longer stored, '
    b'because the space was needed."}]}'
)
_MAX_DESCRIPTION_LENGTH: Final = 4_000
_MAX_DIGITS: Final = 400
_MAX_SAFE_INTEGER: Final = 2**53
"""Integers up to here are the same for every reader of JSON (RFC 8259 §6)."""


class StoredError(msgspec.Struct, frozen=True):
    """An error that a call ended with, in a form that can be stored."""

    failure: str
    """The name of its row in the table of `errors.py`."""
    message: str
    code: int | None = None
    """The code of the upstream, if the upstream returned the error."""
    data: bytes = b""
    """Raw JSON. Empty: none."""


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for approval, or did."""

    id: str
    state: str = PENDING
    audience: str
    """The id of the node that holds the call. A proof must name it in `aud`."""
    nonce: str
    """The value that the proof of a policy engine must contain."""

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
    """The position of the call in the tree, if a parent node sent it."""
    arguments: bytes
    """The exact bytes that the caller sent. Empty once the call can no longer be made."""
    shown: bytes
    """The arguments as JSON for people, secrets masked. `ARGUMENTS_REMOVED`: no longer stored."""
    meta: bytes = b""
    """The members of `_meta` that are sent with the call, a JSON object. Empty: none, or no
    longer."""
    meta_shown: bytes = b""
    """The same for people."""
    masked: tuple[str, ...] = ()
    """JSON pointers to the masked values, in the form of `view`: `/arguments/…`, `/meta/…`."""
    capability: bytes
    """The capability annotation of the tool, raw JSON."""
    effect: str
    description: str

    digest: str
    """The digest that a proof signs, of tool, arguments, contract, caller and forwarded `_meta`."""
    contract: str
    """The digest of the definition of the tool."""
    policy: str
    """The version of the policy that held the call."""
    rule: str
    action: str
    reason: str

    created: float
    """In seconds on the wall clock, as the other times."""
    expires: float
    decided: float = 0.0
    ended: float = 0.0

    by: str = ""
    """The name of the trust anchor that decided, or of the caller that rejected."""
    proof: str = ""
    """The kind of proof (`operator`, `policy_engine`, `service`, `passkey`), or how it was
    rejected."""
    note: str = ""
    """Why it was rejected, void or lost."""
    outcome: str = ""
    """The outcome name of the call, as in the journal."""
    result: bytes = b""
    era: str = ""
    """The protocol generation of the result."""
    trouble: StoredError | None = None
    collected: bool = False
    """True if the caller received the outcome."""
    below: str = ""
    """The id of the approval of a child node that the call waits for now."""
    below_until: float = 0.0
    at: str = ""
    """The segment of the child node that reported the approval. Empty: an approval of this node."""
    proposal: ProposedCall | None = None
    """The proposal in a topic that the call was made for."""

    def __repr__(self) -> str:
        # Arguments may hold secrets, and a repr ends up in logs.
        return f"Approval({self.id}, {self.state}, {self.tool})"

    @property
    def is_pending(self) -> bool:
        return self.state == PENDING

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def caller_label(self) -> str:
        """The caller for people. For a call from a parent node, the caller of that node."""
        caller = self.caller
        return f"{caller.parent_caller} (by {caller.name})" if caller.parent_caller else caller.name

    @property
    def caller_name(self) -> str:
        return self.caller.name

    def with_state(self, state: str, **changes: Any) -> Approval:
        """Return the record in its next state. Raises ValueError for a transition that is not
        allowed."""
        is_executed = self.state == DONE and state == DISPATCHING and not self.below
        if state not in TRANSITIONS[self.state] or is_executed:
            raise ValueError(f"an approval cannot go from {self.state} to {state}")
        if state in FINAL_STATES:
            # The call cannot be made any more, and the arguments may hold secrets.
            changes["arguments"] = changes["meta"] = b""
        if state in (EXPIRED, VOID):
            # Nothing was executed, so nobody needs the arguments.
            changes |= {"shown": ARGUMENTS_REMOVED, "meta_shown": b"", "masked": ()}
        return replace(self, state=state, **changes)

    def without_bulk(self) -> Approval:
        """Return the record without result and displayed arguments. It still says that the call was
        executed."""
        brief = replace(self, shown=ARGUMENTS_REMOVED, meta_shown=b"", masked=())
        if not self.result:
            return brief
        return replace(brief, result=_RESULT_REMOVED, era=Era.SESSION.value)


def new_id() -> str:
    """Return a new approval id with 192 random bits. It begins with a letter, because a command
    line takes a leading dash for an option."""
    return secrets.choice(string.ascii_letters) + secrets.token_urlsafe(24)


def parse_exact(arguments: bytes | Raw) -> Any:
    """Parse arguments so that an operator sees what every JSON reader finds in them.

    Raises InterlockError for arguments that two readers may parse differently.
    """
    size = len(bytes(arguments))
    if size > MAX_ARGUMENT_BYTES:
        raise InterlockError(
            INVALID_ARGUMENTS,
            f"An operator must read this call, and its arguments are {size} bytes long. The limit "
            f"is {MAX_ARGUMENT_BYTES} bytes. Split the call, or pass a file name.",
            {"size": size, "most": MAX_ARGUMENT_BYTES},
        )
    try:
        return json.loads(
            bytes(arguments),
            object_pairs_hook=reject_duplicate_members,
            parse_float=_parse_number,
            parse_int=_parse_integer,
            parse_constant=_reject_constant,
        )
    except (ValueError, RecursionError) as error:
        raise InterlockError(
            INVALID_ARGUMENTS,
            f"This call needs an approval, and its arguments are ambiguous: {error}.",
        ) from None


def encode_canonical(value: Any) -> bytes:
    """Encode a value as canonical JSON: each value has one encoding. Raises InterlockError."""
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    except (ValueError, RecursionError) as error:
        raise InterlockError(
            INVALID_ARGUMENTS, f"The arguments cannot be encoded as JSON: {error}."
        ) from None


def compute_digest(
    tool: str, arguments: Any, contract: str, caller: Caller, meta: Mapping[str, Any] | None = None
) -> str:
    """Return what a proof signs: the hex SHA-256 of canonical JSON.

    Args:
        meta: the members of `_meta` that are sent with the call.
    """
    owner = [caller.name, caller.parent_caller] if caller.parent_caller else caller.name
    signed = {"tool": tool, "arguments": arguments, "contract": contract, "caller": owner}
    if meta:
        signed["meta"] = meta
    return sha256(encode_canonical(signed)).hexdigest()


def view(approval: Approval, *, url: str | None = None) -> dict[str, Any]:
    """Return what people and other programs may see of an approval. `masked` points to the values
    that are not shown."""
    fields: dict[str, Any] = {
        "id": approval.id,
        "state": approval.state,
        "tool": approval.tool,
        "server": approval.upstream,
        "route": list(approval.route),
        "arguments": json.loads(approval.shown),
        "masked": list(approval.masked),
        "capability": json.loads(approval.capability),
        "effect": approval.effect,
        "description": approval.description[:_MAX_DESCRIPTION_LENGTH],
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
        fields["meta"] = json.loads(approval.meta_shown)
    if url is not None:
        fields["url"] = url
    if approval.at:
        fields["at"] = approval.at
    if approval.proposal is not None:
        proposed = approval.proposal
        fields["proposal"] = {
            "topic": proposed.topic,
            "id": proposed.id,
            "by": proposed.participant,
        }
    if approval.decided:
        fields |= {
            "decided_at": format_utc(approval.decided),
            "by": approval.by,
            "proof": approval.proof,
        }
    if approval.outcome:
        fields["outcome"] = approval.outcome
    return fields


def _parse_number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    # Some readers use more digits than are shown here, and would act on a value that nobody saw.
    if len(text) > _MAX_DIGITS or Decimal(text) != Decimal(repr(number)):
        raise ValueError(f"the number {text[:40]} has too many digits")
    return number


def _parse_integer(text: str) -> int:
    # A reader that stores numbers as doubles (JavaScript) would act on another value than is shown.
    number = int(text) if len(text) <= _MAX_DIGITS else _MAX_SAFE_INTEGER + 1
    if abs(number) > _MAX_SAFE_INTEGER:
        raise ValueError(
            f"the number {text[:40]} is beyond 2^53, and some readers round it: send it as a string"
        )
    return number


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not valid JSON")


# -- The record of a held call: everything that an operator must know, and all that is needed to
# make the call later.
#
# First, secret arguments are masked, and nothing else.
#
# Operators approve what they read, so arguments are shown in full. A value is masked only if the
# schema of the tool declares it secret (`format: password`, `writeOnly: true`) or if it equals a
# secret of the config. Only whole values are masked, never a part of a text, because a mask could
# hide a command. Redaction for logs (`core.redaction`) goes by names and patterns and must not be
# used for approvals.

_MAX_SCHEMA_VISITS: Final = 20_000
"""Schemas visited for one call. Beyond this limit nothing more is masked: the operator sees too
much rather than too little."""
_ALTERNATIVES: Final = ("allOf", "anyOf", "oneOf")
_CONDITIONAL: Final = ("if", "then", "else")

MaskedValue = tuple[Any, tuple[str, ...]]


def mask_secrets(
    value: Any, schema: Any, *, secrets: frozenset[bytes] = frozenset(), pointer: str = ""
) -> MaskedValue:
    """Return a copy of `value` with secrets masked, and JSON pointers (RFC 6901) to the masked
    values.

    Args:
        value: decoded JSON.
        schema: the JSON Schema of `value`. Anything else declares nothing secret.
        secrets: digests of texts that are secret where they are the complete value.
        pointer: the pointer of `value` itself.
    """
    masker = _Masker(schema, secrets)
    masked_value = masker.mask(value, [schema], pointer, False)
    return masked_value, tuple(masker.pointers)


class _Masker(msgspec.Struct, eq=False):
    root: Any
    secrets: frozenset[bytes]
    remaining: int = _MAX_SCHEMA_VISITS
    pointers: list[str] = []

    def mask(self, value: Any, schemas: list[Any], pointer: str, secret: bool) -> Any:
        expanded = self._expand(schemas)
        for schema in expanded:
            if schema.get("writeOnly") is True or schema.get("format") == "password":
                secret = True
        if isinstance(value, dict):
            return {
                name: self.mask(
                    member,
                    _member_schemas(expanded, name),
                    f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}",
                    secret,
                )
                for name, member in value.items()
            }
        if isinstance(value, list):
            return [
                self.mask(item, _item_schemas(expanded, index), f"{pointer}/{index}", secret)
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
        """Return the schemas and all that they refer to for the same value, each once."""
        expanded: dict[int, dict[str, Any]] = {}
        queue = list(schemas)
        while queue and self.remaining > 0:
            schema = queue.pop()
            if not isinstance(schema, dict) or id(schema) in expanded:
                continue
            self.remaining -= 1
            expanded[id(schema)] = schema
            reference = schema.get("$ref")
            if isinstance(reference, str):
                queue.append(self._resolve(reference))
            for keyword in _ALTERNATIVES:
                parts = schema.get(keyword)
                if isinstance(parts, list):
                    queue += parts
            queue += [schema[keyword] for keyword in _CONDITIONAL if keyword in schema]
        return list(expanded.values())

    def _resolve(self, reference: str) -> Any:
        """Return the target of a reference within the schema. None: it has no target."""
        if reference == "#":
            return self.root
        if not reference.startswith("#/"):
            return None
        target = self.root
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isascii() and name.isdigit():
                target = target[int(name)] if int(name) < len(target) else None
            else:
                target = target.get(name) if isinstance(target, dict) else None
        return target


def _member_schemas(schemas: list[dict[str, Any]], name: str) -> list[Any]:
    members: list[Any] = []
    for schema in schemas:
        properties = schema.get("properties")
        if isinstance(properties, dict) and name in properties:
            members.append(properties[name])
        else:
            members.append(schema.get("additionalProperties"))
    return members


def _item_schemas(schemas: list[dict[str, Any]], index: int) -> list[Any]:
    items: list[Any] = []
    for schema in schemas:
        prefix = schema.get("prefixItems")
        if isinstance(prefix, list) and index < len(prefix):
            items.append(prefix[index])
        else:
            items.append(schema.get("items"))
    return items


DIGEST_PREFIX: Final = "args_sha256:"
RAW_DIGEST_PREFIX: Final = "args_raw_sha256:"

_log = logging.getLogger("interlock.approvals")

_FORWARDED_META: Final = (META_CONTEXT, META_DRIVER)
"""Members of `_meta` that decide what a call does, because drivers read them. All other members
belong to the request that was held, not to the call that is made after approval."""


class ReviewedCall(NamedTuple):
    """The complete data of a call that an operator approves, read unambiguously."""

    arguments: Any
    meta: dict[str, Any] | None
    """The members of `_meta` that are sent with the call. None: none."""
    raw_meta: bytes
    tool: str
    """The canonical name of the tool."""
    contract: str
    """The digest of the tool's contract and of who serves it."""
    digest: str
    """The digest that a proof signs."""


def forwarded_meta(call: Call, route: object) -> dict[str, Raw]:
    """Return the members of `_meta` that decide what a call does.

    Args:
        route: the target of the call.
    """
    if not isinstance(route, Tool) or route.upstream != CONTRACTS:
        return {}
    return select_forwarded_meta(call.meta) or {}


def select_forwarded_meta(meta: dict[str, Raw] | None) -> dict[str, Raw] | None:
    """Return the members of `meta` that could decide what a call does. None: there are none."""
    return {name: meta[name] for name in _FORWARDED_META if name in meta} or None if meta else None


def review_call(call: Call, route: Route | None) -> ReviewedCall:
    """Read everything of a call that an operator approves. Raises InterlockError.

    Args:
        route: the target of the call.
    """
    assert call.caller is not None
    arguments, meta, raw_meta = parse_exact(call.arguments), None, b""
    if isinstance(route, Tool) and route.upstream == CONTRACTS:
        forwarded = forwarded_meta(call, route)
        if forwarded:
            raw_meta = encode_members(forwarded)
            meta = parse_exact(raw_meta)
    tool, contract = identify_tool(call.name, route)
    digest = compute_digest(tool, arguments, contract, call.caller, meta)
    return ReviewedCall(arguments, meta, raw_meta, tool, contract, digest)


def identify_tool(name: str, route: Route | None) -> tuple[str, str]:
    """Return the canonical name of a tool, and a digest of its contract and of who serves it.

    Args:
        name: the name in the call, used if no tool was found.
    """
    if not isinstance(route, Tool):
        return (name if route is None else route.canonical), ""
    # The digest is made once for each tool. Only drivers add to it.
    is_cached = route.digest and not route.served_by
    return route.canonical, route.digest if is_cached else approved_digest(route)


def journal_digest(call: Call) -> str:
    """Return the digest of a call's arguments for the journal: `args_sha256`, as in its approval.

    Arguments that are ambiguous, or too long for an approval, have no such digest.
    They get `args_raw_sha256`, a digest of their bytes.
    """
    try:
        # For an approved call, the gate has computed the digest already.
        return f"{DIGEST_PREFIX}{call.approval_digest or review_call(call, call.route).digest}"
    except InterlockError:
        return f"{RAW_DIGEST_PREFIX}{sha256(call.arguments).hexdigest()}"


def create_record(
    call: Call,
    decision: Decision,
    reviewed: ReviewedCall,
    *,
    audience: str,
    policy: str,
    created: float,
    expires: float,
    secrets: frozenset[bytes] = frozenset(),
) -> Approval:
    """Create the record of a pending call.

    Args:
        reviewed: the call as the operator will see it.
        secrets: digests of the config's secrets.

    Raises InterlockError for arguments that an operator cannot read.
    """
    route, caller, client = call.route, call.caller, call.client
    assert caller is not None
    tool = route if isinstance(route, Tool) else None
    schema, capability = None, b"{}"
    if tool is not None:
        schema, capability = tool.schema_and_capability or tool.read_schema_and_capability()
    meta_shown = b""
    masked_meta: tuple[str, ...] = ()
    try:
        shown_arguments, masked = mask_secrets(
            reviewed.arguments, schema, secrets=secrets, pointer="/arguments"
        )
        arguments = encode_canonical(shown_arguments)
        if reviewed.meta:
            shown_arguments, masked_meta = mask_secrets(
                reviewed.meta, None, secrets=secrets, pointer="/meta"
            )
            meta_shown = encode_canonical(shown_arguments)
    except RecursionError:
        raise InterlockError(
            INVALID_ARGUMENTS,
            "An operator must read this call, and its arguments are nested too deeply. Use a "
            "flatter structure.",
        ) from None
    return Approval(
        id=new_id(),
        audience=audience,
        nonce=new_id(),
        caller=caller,
        # The capabilities belong to the request, which does not wait for the outcome.
        client=Client(client.era, client.revision, client.name),
        face=call.server,
        name=call.name,
        tool=reviewed.tool,
        upstream=call.upstream,
        route=tuple(reviewed.tool.split(".")) if call.hop is None else call.hop.route,
        hop=call.hop,
        arguments=bytes(call.arguments),
        shown=arguments,
        meta=reviewed.raw_meta,
        meta_shown=meta_shown,
        masked=masked + masked_meta,
        capability=capability,
        effect=call.effect,
        description="" if tool is None else tool.description,
        digest=reviewed.digest,
        contract=reviewed.contract,
        policy=policy,
        rule=decision.rule,
        action=decision.action.label,
        reason=decision.reason if tool is None else _format_reason(decision, tool),
        created=created,
        expires=expires,
        proposal=call.proposal,
    )


def _format_reason(decision: Decision, tool: Tool) -> str:
    """Return why a call is held, how its effect was inferred, and which drivers could serve it."""
    sentences = [decision.reason] if decision.reason else []
    effect = tool.effect
    if effect.reason and effect.is_assumed and effect.level is EffectLevel.IRREVERSIBLE:
        sentences.append(f"Its server declares no effect; assumed from: {effect.reason}.")
    if tool.served_by:
        drivers = " or ".join(driver.partition(" ")[0] for driver in tool.served_by)
        sentences.append(f"It would be served by {drivers}.")
    return " ".join(sentences)


def reveal_arguments(approval: Approval) -> Approval:
    """Return a pending approval with the real values instead of the masked ones."""
    meta = encode_canonical(parse_exact(approval.meta)) if approval.meta else b""
    arguments = encode_canonical(parse_exact(approval.arguments))
    return replace(approval, shown=arguments, meta_shown=meta)


# -- A record in a running node.

CallKey = tuple[str, str, str, str, int]
OutcomeCallback = Callable[["Outcome | None", "InterlockError | None"], None]


def call_key(caller: Caller, digest: str, session: ClientSession | None = None) -> CallKey:
    """Return the key of identical calls of one client.

    Args:
        session: the session of the client, in the session protocol. Several clients may be one
            caller.
    """
    session_id = 0 if session is None else id(session)
    return caller.name, caller.kind, caller.parent_caller, digest, session_id


class ApprovalEntry(msgspec.Struct, eq=False):
    """A record, and its state in this process."""

    record: Approval
    written: str | None = None
    """The state that is on disk. None: no state is on disk yet."""
    writing: bool = False
    """True while a step is being written."""
    deadline: float = 0.0
    """The end of its validity, on the monotonic clock."""
    timer: Any = None
    session: ClientSession | None = None
    bound_session: ClientSession | None = None
    """The session that may repeat the call. None: the call has no session."""
    url_offered: bool = False
    has_plain_caller: bool = False
    """True if a caller outside of a topic was told of the approval and may fetch its outcome.
    Always true for a record from before a restart, where this is unknown."""
    is_delivered: bool = False
    """True if the caller received the outcome. `Approval.collected` says so once that is
    written."""
    is_dispatching: bool = False
    """True between the approval and the dispatch of the call."""
    call: Call | None = None
    """The call that uses the approval."""
    early_outcome: tuple[Outcome | None, InterlockError | None] | None = None
    """The end of a call that ended while its start was being written."""
    child_outcome: tuple[str, Outcome] | None = None
    """The id of an approval of a child gate, and its outcome, which arrived while that gate was
    being asked."""
    on_written: list[Callable[[ApprovalEntry, WriteResult], None]] = []
    waiters: list[OutcomeCallback] = []
    """Identical calls of the caller that wait for the outcome."""
    on_outcome: list[OutcomeCallback] = []
    """Callbacks of whoever approved the call."""
    is_confirmed_by_caller: bool = False
    """True if the caller itself presented the proof, and receives the outcome as its response."""
    invalid_proofs: int = 0
    """The number of invalid proofs."""


# -- A call that was approved here and held by a child gate: may it be sent there again, to fetch
# its outcome? Pure.
#
# The call cannot be executed twice:
#
# - The child gate held the first call and did not execute it. The child gate said so, and no other
#   response sets `below`.
# - The child gate knows the identical call of the same caller. It responds with the pending
# approval,   with the rejection, or with the outcome. It makes the call once, and only for a proof
# of its own.
#   It holds a call again that it no longer knows.
# - If the child has no gate any more, the call is executed now, under the approval of this node:
# for
#   the first time, and the last, because its response sets no `below`.
# - As with the first call, `dispatching` is on disk before the call leaves. A node that is killed
# after
#   that restarts with the state `lost`, and does not ask again.


def may_retry_below(record: Approval, changes: list[str], now: float, keep: float) -> bool:
    """Return whether an approved call may be sent again to the child gate that held it.

    An approval is valid for as long as the child gate waits, and never longer than outcomes are
    stored.

    Args:
        changes: what changed since the approval.
        keep: how long outcomes are stored, in seconds.
    """
    return not changes and now < min(record.below_until, record.decided + keep)
