"""MCP-AX on the wire (draft-abbott-mcp-ax-00): registration, heartbeats, and the names of its keys.

A subserver and its aggregator speak JSON-RPC both ways on one channel. The subserver introduces
itself with `initialize` and registers with `mcpax/register`; from then on the aggregator is its MCP
client on the same channel. Pure: bytes in, typed messages or a ProtocolError out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from interlock.errors import (
    INVALID_PARAMS,
    INVALID_SEGMENT,
    UNSUPPORTED_VERSION,
    InterlockError,
    ProtocolError,
)
from interlock.protocol.jsonrpc import decode_members, encode_value
from interlock.protocol.scopes import LEVELS

DRAFT: Final = "draft-abbott-mcp-ax-00"
VERSIONS: Final = ("2026-05-01",)
"""Revisions of MCP-AX that are spoken here, the newest last."""
EXPERIMENT: Final = "mcpax"
"""The key under `capabilities.experimental` by which both sides say that they speak MCP-AX."""

REGISTER: Final = "mcpax/register"
HEARTBEAT: Final = "mcpax/heartbeat"
DEREGISTER: Final = "mcpax/deregister"
IDENTIFY: Final = "mcpax/identify"
CONFIRM: Final = "mcpax/confirm"
"""A proof for a call that waits for a human."""
TREE: Final = "mcpax/tree"
"""Not in the draft: asks a node for its part of the tree, for people who look at it."""
METHODS: Final = frozenset({REGISTER, HEARTBEAT, DEREGISTER, IDENTIFY, TREE})

SUBSERVER_LOST: Final = "notifications/mcpax/subserver_lost"
NOTIFICATION_OVERFLOW: Final = "notifications/mcpax/notification_overflow"
SESSION_ENDED: Final = "notifications/mcpax/session_ended"
"""Not in the draft: an aggregator says why it ends a registration, before it closes the channel."""
KEYS_CHANGED: Final = "notifications/mcpax/keys_changed"
"""Not in the draft: an aggregator signs its tokens with other keys (`jwks`) from now on."""

SEGMENT_VARIABLE: Final = "INTERLOCK_SEGMENT"
"""The environment variable by which a parent tells a child that it starts what to register as."""
ID_VARIABLE: Final = "INTERLOCK_SUBSERVER_ID"
"""The same for the id by which that parent knows the child again."""

PREFIX: Final = "x-mcpax-"
"""What every key of MCP-AX in a `_meta` begins with."""
ROUTE: Final = "x-mcpax-route"
CURSOR: Final = "x-mcpax-cursor"
LATENCY_MS: Final = "x-mcpax-latency-ms"
HOPS: Final = "x-mcpax-hops"
SAFETY: Final = "x-mcpax-safety"
IRREVERSIBLE_MUTABLE: Final = "irreversible_mutable"
SUBTREE_IDS: Final = "x-mcpax-subtree-ids"
DESCENDANT_IDS: Final = "x-mcpax-descendant-ids"
"""Not in the draft (§13.4): the subserver_ids of all below an aggregator, leaves included."""
DUPLICATE_IDS: Final = "x-mcpax-duplicate-ids"
"""Not in the draft: those of them that are registered elsewhere in the tree and have to go."""
EVENT_ID: Final = "x-mcpax-event-id"
CAUSAL_PARENT: Final = "x-mcpax-causal-parent"
STATUS: Final = "x-mcpax-status"
"""On a result that is none yet: what it waits for."""
# Beyond the draft, each described in docs/tree.md.
CAPABILITY: Final = "x-mcpax-capability"
SOURCE: Final = "x-mcpax-source"
REQUEST: Final = "x-mcpax-request"
"""On a notification: the id, on this channel, of the request that it is about."""
APPROVAL: Final = "x-mcpax-approval"
"""On a result that was kept: the approval of the earlier call that it is the result of."""
EXECUTED_AT: Final = "x-mcpax-executed-at"
"""The same: when that call was answered."""
AUTHORIZATION: Final = "x-mcpax-authorization"
"""On a call: the token that the sender made for this hop. Described in docs/trust-hops.md."""
EVENT_META_KEYS: Final = frozenset({EVENT_ID, CAUSAL_PARENT})
"""The keys that mean the same to everybody on the way."""

NATIVE: Final = "native"
BRIDGED: Final = ("uart_cbor", "ble_cbor", "spi_cbor", "can_cbor", "mqtt_json")
"""The MCP-AX Transport Classes beside `native`."""
TRANSPORT_CLASSES: Final = (NATIVE, *BRIDGED)

DROPPED_TOOL: Final = "notifications_dropped"
"""The aggregator's own tool. No subserver may take its name for a segment."""
RESERVED_SEGMENTS: Final = frozenset({DROPPED_TOOL})

MAX_MISSED_HEARTBEATS: Final = 3
"""So many heartbeats in a row may not come; the last of them ends the registration."""
MAX_INTERVAL_MS: Final = 24 * 3600 * 1000
MAX_SEGMENT: Final = 63
MAX_NAME: Final = 255
MAX_ROUTE: Final = 64
"""A route with more segments than this is a loop that nobody noticed."""
UNLIMITED: Final = 2**53 - 1
"""The largest number that every JSON reader keeps: a budget that nobody exhausts."""
MAX_SUBTREE_IDS: Final = 10_000
"""So many nodes may be below one another; more are not passed on."""
_MOST_REASON: Final = 500

_SEGMENT: Final = re.compile(r"[a-z0-9_-]{1,63}")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_AUTHORITY: Final = re.compile(rf"dns:{_LABEL}(?:\.{_LABEL})*\.?", re.ASCII)
_MAX_AUTHORITY: Final = 4 + 253


def is_segment(text: str) -> bool:
    """Whether this can be one segment of a name."""
    return _SEGMENT.fullmatch(text) is not None


def is_authority(text: str) -> bool:
    """Whether this is a DNS name behind `dns:`."""
    return len(text) <= _MAX_AUTHORITY and _AUTHORITY.fullmatch(text) is not None


def dns_name(authority: str) -> str:
    """The DNS name of an authority, in the one form in which two can be compared."""
    return authority.removeprefix("dns:").removesuffix(".").lower()


def is_uuid(text: object) -> bool:
    """Whether this is a UUID in its usual form."""
    return isinstance(text, str) and _UUID.fullmatch(text) is not None


class SubserverCapabilities(msgspec.Struct, frozen=True, gc=False):
    """What a subserver says that it has (`capabilities` of a registration)."""

    tools: bool = True
    resources: bool = False
    notifications: bool = False


class AuthorityProof(msgspec.Struct, frozen=True, gc=False):
    """What an authority is proven with."""

    type: str
    token: str

    def __repr__(self) -> str:
        return f"AuthorityProof({self.type})"


class Registration(msgspec.Struct, frozen=True, omit_defaults=False):
    """The params of `mcpax/register`."""

    subserver_id: str
    segment: str
    capabilities: SubserverCapabilities
    heartbeat_interval_ms: int
    transport_class: str = NATIVE
    version: str = VERSIONS[-1]
    authority: str | None = None
    authority_proof: AuthorityProof | None = None
    subtree_ids: tuple[str, ...] | None = None
    """The ids of an aggregator and of all below it. None: this is a leaf."""
    descendant_ids: tuple[str, ...] = ()
    """The subserver_ids of all below an aggregator, leaves included."""
    auth_scope: str | None = None
    """The most it wants to be asked for: read, write or admin. None: it does not say."""

    @property
    def is_aggregator(self) -> bool:
        return self.subtree_ids is not None

    def encode_params(self) -> bytes:
        """As the draft writes it."""
        members: dict[str, Any] = {
            "subserver_id": self.subserver_id,
            "segment": self.segment,
            "capabilities": self.capabilities,
            "heartbeat_interval_ms": self.heartbeat_interval_ms,
            "transport_class": self.transport_class,
            "version": self.version,
        }
        if self.authority is not None:
            members["authority"] = self.authority
        if self.authority_proof is not None:
            members["authority_proof"] = self.authority_proof
        if self.subtree_ids is not None:
            members[SUBTREE_IDS] = self.subtree_ids
        if self.descendant_ids:
            members[DESCENDANT_IDS] = self.descendant_ids
        if self.auth_scope is not None:
            members["auth_scope"] = self.auth_scope
        return encode_value(members)


_Amount = Annotated[int, Meta(ge=0)]


class SubserverBudget(msgspec.Struct, frozen=True, gc=False):
    """How much may be called of a subserver (`budget` of a registration's result)."""

    max_calls_per_minute: _Amount = UNLIMITED
    max_mutable_calls_per_session: _Amount = UNLIMITED
    max_cost_units_per_session: _Amount = UNLIMITED

    def limited_by(self, limit: SubserverBudget) -> SubserverBudget:
        """What is left of it under another one."""
        return SubserverBudget(
            min(self.max_calls_per_minute, limit.max_calls_per_minute),
            min(self.max_mutable_calls_per_session, limit.max_mutable_calls_per_session),
            min(self.max_cost_units_per_session, limit.max_cost_units_per_session),
        )


class RegistrationResult(msgspec.Struct, frozen=True, gc=False):
    """The result of `mcpax/register`."""

    assigned_segment: str
    session_id: str
    heartbeat_deadline_ms: _Amount
    status: str = "registered"
    budget: SubserverBudget = SubserverBudget()
    aggregator_id: str = ""
    tree_id: str = ""
    """Which tree this is: the id of its root."""
    auth_scope: str | UnsetType = UNSET
    """Not in the draft: the most that it will be asked for."""
    jwks: Raw | UnsetType = UNSET
    """Not in the draft: the keys by which tokens of the aggregator are checked."""
    duplicate_ids: tuple[str, ...] | UnsetType = msgspec.field(default=UNSET, name=DUPLICATE_IDS)


class HeartbeatParams(msgspec.Struct, frozen=True, gc=False):
    """The params of `mcpax/heartbeat`."""

    session_id: str
    subtree_ids: tuple[str, ...] | None = None
    """Other than at registration: somebody joined or left below."""
    descendant_ids: tuple[str, ...] | None = None
    """The same, of leaves too."""

    def encode_params(self) -> bytes:
        members: dict[str, Any] = {"session_id": self.session_id}
        if self.subtree_ids is not None:
            members[SUBTREE_IDS] = self.subtree_ids
        if self.descendant_ids is not None:
            members[DESCENDANT_IDS] = self.descendant_ids
        return encode_value(members)


class HeartbeatResult(msgspec.Struct, frozen=True, gc=False):
    """The result of `mcpax/heartbeat`."""

    heartbeat_deadline_ms: _Amount
    status: str = "ok"
    tree_id: str = ""
    budget: SubserverBudget | None = None
    jwks: Raw | UnsetType = UNSET
    duplicate_ids: tuple[str, ...] | UnsetType = msgspec.field(default=UNSET, name=DUPLICATE_IDS)


class DeregistrationParams(msgspec.Struct, frozen=True, gc=False):
    """The params of `mcpax/deregister`."""

    session_id: str
    reason: str = ""


class Hop(msgspec.Struct, frozen=True, gc=False):
    """Where a call is on its way: the names of all segments, and the place of the receiver."""

    route: tuple[str, ...]
    cursor: int
    next_hop_members: bytes = b""
    """What the next node down is told, as it stands behind other members of a `_meta`."""
    remaining_name: str = ""
    """The segments behind the cursor as one name, where whoever made it has put them together."""


class SubserverIdentity(msgspec.Struct, frozen=True, gc=False):
    """The result of `mcpax/identify`: who a subserver is, and with whom it is registered."""

    subserver_id: str
    parent_id: str | None = None
    role: str = "leaf"
    """`leaf`, `aggregator` or `gateway`."""
    tree_id: str | None = None
    """The tree of that parent, where it is known."""


def read_hop(meta: dict[str, Raw] | None) -> Hop | None:
    """Where a call that came down a channel is. None: it does not say. Raises ProtocolError."""
    if meta is None or (ROUTE not in meta and CURSOR not in meta):
        return None
    route = _take(meta, ROUTE, list[str])
    cursor = _take(meta, CURSOR, int)
    if len(route) > MAX_ROUTE or not all(route):
        raise _bad(ROUTE, f"must have at most {MAX_ROUTE} segments, none of them empty")
    if not 0 <= cursor < len(route) - 1:
        raise _bad(CURSOR, "must point at a segment before the last")
    return Hop(
        tuple(route), cursor, encode_route_members(route, cursor + 1), ".".join(route[cursor + 1 :])
    )


def is_dropped_counter(name: str, meta: bytes | Raw) -> bool:
    """Whether a tool that a node below lists is an aggregator's count of dropped notifications.
    `meta`: its raw `_meta`. A plain server's tool of this name has nothing of MCP-AX in it."""
    return name.rpartition(".")[2] == DROPPED_TOOL and CAPABILITY.encode() in bytes(meta)


def encode_route_members(route: Sequence[str], cursor: int) -> bytes:
    """`,"x-mcpax-route":[…],"x-mcpax-cursor":n`."""
    return b',"%b":%b,"%b":%d' % (ROUTE.encode(), encode_value(route), CURSOR.encode(), cursor)


def encode_error(error: InterlockError) -> tuple[int, str, dict[str, Any]]:
    """The code, the message and the data of an error on a channel: a symbol where the draft has
    one, with the sentence as a detail."""
    row = error.failure
    if row.ax_name:
        return row.ax_code, row.ax_name, {**(error.data or {}), "detail": error.message}
    about = {**(error.data or {}), "error": row.name, "retryable": error.retryable}
    return row.ax_code, error.message, about


def heartbeat_deadline_ms(interval_ms: int) -> int:
    """When a subserver that beats this often counts as lost. 0: never by its heartbeats."""
    return interval_ms * MAX_MISSED_HEARTBEATS


def read_registration(params: bytes | Raw | UnsetType) -> Registration:
    """Every field held against its rule. Raises ProtocolError, which names the field."""
    members = _members(params)
    subserver_id = _take(members, "subserver_id", str)
    if not is_uuid(subserver_id):
        raise _bad("subserver_id", "must be a UUID, such as 550e8400-e29b-41d4-a716-446655440000")
    version = _take(members, "version", str)
    if version not in VERSIONS:
        raise InterlockError(
            UNSUPPORTED_VERSION,
            f"MCP-AX {version[:40]!r} is not spoken here.",
            {"supported": list(VERSIONS)},
        )
    segment = _take(members, "segment", str)
    if not is_segment(segment) or segment in RESERVED_SEGMENTS:
        raise InterlockError(
            INVALID_SEGMENT,
            f"{segment[:80]!r} cannot be a segment: it takes 1 to {MAX_SEGMENT} of a-z, 0-9, _ and "
            f"-, and not {', '.join(sorted(RESERVED_SEGMENTS))}.",
            {"segment": segment[:80]},
        )
    authority = _take(members, "authority", str, None)
    if authority is not None and not is_authority(authority):
        raise _bad("authority", "must be a DNS name behind `dns:`, such as dns:edge.example.com")
    interval = _take(members, "heartbeat_interval_ms", int)
    if not 0 <= interval <= MAX_INTERVAL_MS:
        raise _bad("heartbeat_interval_ms", f"must be between 0 and {MAX_INTERVAL_MS}")
    transport = _take(members, "transport_class", str)
    if transport not in TRANSPORT_CLASSES:
        raise _bad("transport_class", f"must be one of {', '.join(TRANSPORT_CLASSES)}")
    auth_scope = _take(members, "auth_scope", str, None)
    if auth_scope is not None and auth_scope not in LEVELS:
        raise _bad("auth_scope", f"must be one of {', '.join(LEVELS)}")
    return Registration(
        subserver_id=subserver_id.lower(),
        segment=segment,
        capabilities=_take(members, "capabilities", SubserverCapabilities),
        heartbeat_interval_ms=interval,
        transport_class=transport,
        version=version,
        authority=authority,
        authority_proof=_take(members, "authority_proof", AuthorityProof, None),
        subtree_ids=_ids(members, SUBTREE_IDS),
        descendant_ids=_ids(members, DESCENDANT_IDS) or (),
        auth_scope=auth_scope,
    )


def read_heartbeat(params: bytes | Raw | UnsetType) -> HeartbeatParams:
    """Raises ProtocolError."""
    members = _members(params)
    return HeartbeatParams(
        _take(members, "session_id", str),
        _ids(members, SUBTREE_IDS),
        _ids(members, DESCENDANT_IDS),
    )


def read_deregistration(params: bytes | Raw | UnsetType) -> DeregistrationParams:
    """Raises ProtocolError."""
    members = _members(params)
    reason = _take(members, "reason", str, "")
    return DeregistrationParams(_take(members, "session_id", str), reason[:_MOST_REASON])


def read_registration_result(result: bytes | Raw, segment: str) -> RegistrationResult:
    """What an aggregator granted to whoever asked for this segment. Raises ProtocolError."""
    granted = _read(result, RegistrationResult, REGISTER)
    if granted.assigned_segment != segment:
        raise ProtocolError(
            f"The parent registered it as {granted.assigned_segment[:80]!r}, not as {segment!r}, "
            "as it asked: no name of it would be right."
        )
    _check_tree(granted.tree_id, REGISTER)
    return granted


def read_heartbeat_result(result: bytes | Raw) -> HeartbeatResult:
    """Raises ProtocolError."""
    beaten = _read(result, HeartbeatResult, HEARTBEAT)
    _check_tree(beaten.tree_id, HEARTBEAT)
    return beaten


def _check_tree(tree_id: str, method: str) -> None:
    if tree_id and not is_uuid(tree_id):
        raise ProtocolError(
            f"The answer to {method} cannot be read: `tree_id` is neither a UUID nor empty."
        )


def read_keys_changed(params: bytes | Raw | UnsetType) -> Raw:
    """The keys that an aggregator shows from now on. Raises ProtocolError."""
    return Raw(bytes(_take(_members(params), "jwks", Raw)))


def read_identity(result: bytes | Raw) -> SubserverIdentity:
    """Raises ProtocolError."""
    return _read(result, SubserverIdentity, IDENTIFY)


T = TypeVar("T")


def _read(result: bytes | Raw, shape: type[T], method: str) -> T:
    try:
        return msgspec.json.decode(result, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(f"The answer to {method} cannot be read: {exc}.") from None


def _members(params: bytes | Raw | UnsetType) -> dict[str, Raw]:
    if params is UNSET:
        raise ProtocolError("`params` must be an object.", INVALID_PARAMS)
    try:
        return decode_members(params)
    except ProtocolError:
        raise ProtocolError("`params` must be an object.", INVALID_PARAMS) from None


_REQUIRED: Final = object()


def _take(members: dict[str, Raw], key: str, shape: Any, default: Any = _REQUIRED) -> Any:
    """One member, in its shape. Raises ProtocolError."""
    raw = members.get(key)
    if raw is None or (default is None and bytes(raw) == b"null"):
        if default is _REQUIRED:
            raise _bad(key, "is missing")
        return default
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _bad(key, f"cannot be read: {exc}") from None


def _ids(members: dict[str, Raw], key: str) -> tuple[str, ...] | None:
    ids = _take(members, key, list[str], None)
    if ids is None:
        return None
    if len(ids) > MAX_SUBTREE_IDS or not all(is_uuid(one) for one in ids):
        raise _bad(key, f"must be a list of at most {MAX_SUBTREE_IDS} UUIDs")
    return tuple(one.lower() for one in ids)


def _bad(key: str, why: str) -> ProtocolError:
    return ProtocolError(f"`{key}` {why}.", INVALID_PARAMS, {"field": key})
