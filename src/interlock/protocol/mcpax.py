"""The MCP-AX protocol (draft-abbott-mcp-ax-00): registration, heartbeats, and its keys.

A subserver and its aggregator use JSON-RPC in both directions on one channel. The subserver sends
`initialize` and registers with `mcpax/register`. Then the aggregator is its MCP client on the same
channel. Pure: decodes bytes to typed messages, or raises ProtocolError.
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
"""Supported revisions of MCP-AX, the newest last."""
EXPERIMENT: Final = "mcpax"
"""The key in `capabilities.experimental` with which both sides declare MCP-AX."""

REGISTER: Final = "mcpax/register"
HEARTBEAT: Final = "mcpax/heartbeat"
DEREGISTER: Final = "mcpax/deregister"
IDENTIFY: Final = "mcpax/identify"
CONFIRM: Final = "mcpax/confirm"
"""A proof for a pending approval."""
TREE: Final = "mcpax/tree"
"""Not in the draft: requests the subtree of a node, for display."""
METHODS: Final = frozenset({REGISTER, HEARTBEAT, DEREGISTER, IDENTIFY, TREE})

SUBSERVER_LOST: Final = "notifications/mcpax/subserver_lost"
NOTIFICATION_OVERFLOW: Final = "notifications/mcpax/notification_overflow"
SESSION_ENDED: Final = "notifications/mcpax/session_ended"
"""Not in the draft: an aggregator sends the reason before it ends a registration and closes the
channel."""
KEYS_CHANGED: Final = "notifications/mcpax/keys_changed"
"""Not in the draft: an aggregator has new keys (`jwks`) for its tokens."""

SEGMENT_VARIABLE: Final = "INTERLOCK_SEGMENT"
"""The environment variable with the segment of a child process, set by the parent."""
ID_VARIABLE: Final = "INTERLOCK_SUBSERVER_ID"
"""The environment variable with the id of a child process, set by the parent."""

PREFIX: Final = "x-mcpax-"
"""The prefix of all MCP-AX keys in `_meta`."""
ROUTE: Final = "x-mcpax-route"
CURSOR: Final = "x-mcpax-cursor"
LATENCY_MS: Final = "x-mcpax-latency-ms"
HOPS: Final = "x-mcpax-hops"
SAFETY: Final = "x-mcpax-safety"
IRREVERSIBLE_MUTABLE: Final = "irreversible_mutable"
SUBTREE_IDS: Final = "x-mcpax-subtree-ids"
DESCENDANT_IDS: Final = "x-mcpax-descendant-ids"
"""Not in the draft (§13.4): the ids of all subservers below an aggregator, including leaves."""
DUPLICATE_IDS: Final = "x-mcpax-duplicate-ids"
"""Not in the draft: ids that are registered elsewhere in the tree and must be removed here."""
EVENT_ID: Final = "x-mcpax-event-id"
CAUSAL_PARENT: Final = "x-mcpax-causal-parent"
STATUS: Final = "x-mcpax-status"
"""In a result without an outcome yet: what it waits for."""
# Beyond the draft, each described in docs/tree.md.
CAPABILITY: Final = "x-mcpax-capability"
SOURCE: Final = "x-mcpax-source"
REQUEST: Final = "x-mcpax-request"
"""In a notification: the id of its request on this channel."""
APPROVAL: Final = "x-mcpax-approval"
"""In a stored result: the approval of the earlier call."""
EXECUTED_AT: Final = "x-mcpax-executed-at"
"""In a stored result: when the call returned."""
AUTHORIZATION: Final = "x-mcpax-authorization"
"""In a call: the token that the sender minted for this hop. See docs/trust-hops.md."""
EVENT_META_KEYS: Final = frozenset({EVENT_ID, CAUSAL_PARENT})
"""Keys that are valid end to end."""

NATIVE: Final = "native"
BRIDGED: Final = ("uart_cbor", "ble_cbor", "spi_cbor", "can_cbor", "mqtt_json")
"""The MCP-AX transport classes other than `native`."""
TRANSPORT_CLASSES: Final = (NATIVE, *BRIDGED)

DROPPED_TOOL: Final = "notifications_dropped"
"""The tool of the aggregator itself. No subserver may use its name as a segment."""
RESERVED_SEGMENTS: Final = frozenset({DROPPED_TOOL})

MAX_MISSED_HEARTBEATS: Final = 3
"""Number of missed heartbeats in a row that ends a registration."""
MAX_INTERVAL_MS: Final = 24 * 3600 * 1000
MAX_SEGMENT: Final = 63
MAX_NAME: Final = 255
MAX_ROUTE: Final = 64
"""Maximum segments of a route. A longer route is an undetected loop."""
UNLIMITED: Final = 2**53 - 1
"""The largest integer that every JSON reader preserves: a budget without a limit."""
MAX_SUBTREE_IDS: Final = 10_000
"""Maximum number of ids of a subtree."""
_MAX_REASON_LENGTH: Final = 500

_SEGMENT: Final = re.compile(r"[a-z0-9_-]{1,63}")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_AUTHORITY: Final = re.compile(rf"dns:{_LABEL}(?:\.{_LABEL})*\.?", re.ASCII)
_MAX_AUTHORITY: Final = 4 + 253


def is_segment(text: str) -> bool:
    """Return whether a text is a valid segment of a name."""
    return _SEGMENT.fullmatch(text) is not None


def is_authority(text: str) -> bool:
    """Return whether a text is `dns:` with a DNS name."""
    return len(text) <= _MAX_AUTHORITY and _AUTHORITY.fullmatch(text) is not None


def dns_name(authority: str) -> str:
    """Return the DNS name of an authority, normalized for comparison."""
    return authority.removeprefix("dns:").removesuffix(".").lower()


def is_uuid(text: object) -> bool:
    """Return whether a text is a UUID in its usual form."""
    return isinstance(text, str) and _UUID.fullmatch(text) is not None


class SubserverCapabilities(msgspec.Struct, frozen=True, gc=False):
    """The `capabilities` of a registration."""

    tools: bool = True
    resources: bool = False
    notifications: bool = False


class AuthorityProof(msgspec.Struct, frozen=True, gc=False):
    """The proof of an authority."""

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
    """The ids of an aggregator and of all aggregators below it. None: this is a leaf."""
    descendant_ids: tuple[str, ...] = ()
    """The ids of all subservers below an aggregator, including leaves."""
    auth_scope: str | None = None
    """The highest level that it accepts: read, write or admin. None: not declared."""

    @property
    def is_aggregator(self) -> bool:
        return self.subtree_ids is not None

    def encode_params(self) -> bytes:
        """Encode the params as in the draft."""
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
    """The limits of calls to a subserver (`budget` of a registration result)."""

    max_calls_per_minute: _Amount = UNLIMITED
    max_mutable_calls_per_session: _Amount = UNLIMITED
    max_cost_units_per_session: _Amount = UNLIMITED

    def limited_by(self, limit: SubserverBudget) -> SubserverBudget:
        """Return the budget with the lower limits of both."""
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
    """The id of the root of the tree."""
    auth_scope: str | UnsetType = UNSET
    """Not in the draft: the highest level that the aggregator will use."""
    jwks: Raw | UnsetType = UNSET
    """Not in the draft: the keys that verify tokens of the aggregator."""
    duplicate_ids: tuple[str, ...] | UnsetType = msgspec.field(default=UNSET, name=DUPLICATE_IDS)


class HeartbeatParams(msgspec.Struct, frozen=True, gc=False):
    """The params of `mcpax/heartbeat`."""

    session_id: str
    subtree_ids: tuple[str, ...] | None = None
    """Set if the aggregators below have changed since the registration."""
    descendant_ids: tuple[str, ...] | None = None
    """Set if the subservers below have changed, including leaves."""

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
    """The position of a call on its route: all segments, and the index of the receiver."""

    route: tuple[str, ...]
    cursor: int
    next_hop_members: bytes = b""
    """The `_meta` members for the next child node, written to follow other members."""
    remaining_name: str = ""
    """The segments after the cursor as one name, if `read_hop` created this."""


class SubserverIdentity(msgspec.Struct, frozen=True, gc=False):
    """The result of `mcpax/identify`: the id of a subserver and of its parent."""

    subserver_id: str
    parent_id: str | None = None
    role: str = "leaf"
    """`leaf`, `aggregator` or `gateway`."""
    tree_id: str | None = None
    """The tree of the parent, if it is known."""


def read_hop(meta: dict[str, Raw] | None) -> Hop | None:
    """Read the route position of a call from a parent. None: it has none. Raises
    ProtocolError."""
    if meta is None or (ROUTE not in meta and CURSOR not in meta):
        return None
    route = _decode_member(meta, ROUTE, list[str])
    cursor = _decode_member(meta, CURSOR, int)
    if len(route) > MAX_ROUTE or not all(route):
        raise _invalid_member(ROUTE, f"must have at most {MAX_ROUTE} segments, none of them empty")
    if not 0 <= cursor < len(route) - 1:
        raise _invalid_member(CURSOR, "must point at a segment before the last")
    return Hop(
        tuple(route), cursor, encode_route_members(route, cursor + 1), ".".join(route[cursor + 1 :])
    )


def is_dropped_counter(name: str, meta: bytes | Raw) -> bool:
    """Return whether a listed tool is the counter of dropped notifications of an aggregator.

    Args:
        meta: the raw `_meta` of the tool. A tool of a plain server with this name has no MCP-AX
            keys.
    """
    return name.rpartition(".")[2] == DROPPED_TOOL and CAPABILITY.encode() in bytes(meta)


def encode_route_members(route: Sequence[str], cursor: int) -> bytes:
    """Return `,"x-mcpax-route":[…],"x-mcpax-cursor":n`."""
    return b',"%b":%b,"%b":%d' % (ROUTE.encode(), encode_value(route), CURSOR.encode(), cursor)


def encode_error(error: InterlockError) -> tuple[int, str, dict[str, Any]]:
    """Return code, message and data of an error for a channel. If the draft has a symbol for it,
    that is the message, and the sentence is in the data (`detail`)."""
    row = error.failure
    if row.ax_name:
        return row.ax_code, row.ax_name, {**(error.data or {}), "detail": error.message}
    data = {**(error.data or {}), "error": row.name, "retryable": error.retryable}
    return row.ax_code, error.message, data


def heartbeat_deadline_ms(interval_ms: int) -> int:
    """Return after how many milliseconds without a heartbeat a subserver is lost. 0: never."""
    return interval_ms * MAX_MISSED_HEARTBEATS


def read_registration(params: bytes | Raw | UnsetType) -> Registration:
    """Read and validate a registration. Raises ProtocolError with the name of the field."""
    members = _members(params)
    subserver_id = _decode_member(members, "subserver_id", str)
    if not is_uuid(subserver_id):
        raise _invalid_member(
            "subserver_id", "must be a UUID, such as 550e8400-e29b-41d4-a716-446655440000"
        )
    version = _decode_member(members, "version", str)
    if version not in VERSIONS:
        raise InterlockError(
            UNSUPPORTED_VERSION,
            f"MCP-AX revision {version[:40]!r} is not supported. Supported: {', '.join(VERSIONS)}.",
            {"supported": list(VERSIONS)},
        )
    segment = _decode_member(members, "segment", str)
    if not is_segment(segment) or segment in RESERVED_SEGMENTS:
        raise InterlockError(
            INVALID_SEGMENT,
            f"Invalid segment {segment[:80]!r}. Use 1 to {MAX_SEGMENT} of a-z, 0-9, _ and -. "
            f"Reserved: {', '.join(sorted(RESERVED_SEGMENTS))}.",
            {"segment": segment[:80]},
        )
    authority = _decode_member(members, "authority", str, None)
    if authority is not None and not is_authority(authority):
        raise _invalid_member(
            "authority", "must be `dns:` and a DNS name, such as dns:edge.example.com"
        )
    interval = _decode_member(members, "heartbeat_interval_ms", int)
    if not 0 <= interval <= MAX_INTERVAL_MS:
        raise _invalid_member("heartbeat_interval_ms", f"must be between 0 and {MAX_INTERVAL_MS}")
    transport = _decode_member(members, "transport_class", str)
    if transport not in TRANSPORT_CLASSES:
        raise _invalid_member("transport_class", f"must be one of {', '.join(TRANSPORT_CLASSES)}")
    auth_scope = _decode_member(members, "auth_scope", str, None)
    if auth_scope is not None and auth_scope not in LEVELS:
        raise _invalid_member("auth_scope", f"must be one of {', '.join(LEVELS)}")
    return Registration(
        subserver_id=subserver_id.lower(),
        segment=segment,
        capabilities=_decode_member(members, "capabilities", SubserverCapabilities),
        heartbeat_interval_ms=interval,
        transport_class=transport,
        version=version,
        authority=authority,
        authority_proof=_decode_member(members, "authority_proof", AuthorityProof, None),
        subtree_ids=_ids(members, SUBTREE_IDS),
        descendant_ids=_ids(members, DESCENDANT_IDS) or (),
        auth_scope=auth_scope,
    )


def read_heartbeat(params: bytes | Raw | UnsetType) -> HeartbeatParams:
    """Read the params of a heartbeat. Raises ProtocolError."""
    members = _members(params)
    return HeartbeatParams(
        _decode_member(members, "session_id", str),
        _ids(members, SUBTREE_IDS),
        _ids(members, DESCENDANT_IDS),
    )


def read_deregistration(params: bytes | Raw | UnsetType) -> DeregistrationParams:
    """Read the params of a deregistration. Raises ProtocolError."""
    members = _members(params)
    reason = _decode_member(members, "reason", str, "")
    return DeregistrationParams(
        _decode_member(members, "session_id", str), reason[:_MAX_REASON_LENGTH]
    )


def read_registration_result(result: bytes | Raw, segment: str) -> RegistrationResult:
    """Read the result of a registration for this segment. Raises ProtocolError."""
    registration_result = _read(result, RegistrationResult, REGISTER)
    if registration_result.assigned_segment != segment:
        raise ProtocolError(
            f"The parent registered the segment {registration_result.assigned_segment[:80]!r} "
            f"instead of {segment!r}, so all names would be invalid."
        )
    _check_tree(registration_result.tree_id, REGISTER)
    return registration_result


def read_heartbeat_result(result: bytes | Raw) -> HeartbeatResult:
    """Read the result of a heartbeat. Raises ProtocolError."""
    heartbeat = _read(result, HeartbeatResult, HEARTBEAT)
    _check_tree(heartbeat.tree_id, HEARTBEAT)
    return heartbeat


def _check_tree(tree_id: str, method: str) -> None:
    if tree_id and not is_uuid(tree_id):
        raise ProtocolError(f"Invalid result of {method}: `tree_id` is neither a UUID nor empty.")


def read_keys_changed(params: bytes | Raw | UnsetType) -> Raw:
    """Read the new keys of an aggregator. Raises ProtocolError."""
    return Raw(bytes(_decode_member(_members(params), "jwks", Raw)))


def read_identity(result: bytes | Raw) -> SubserverIdentity:
    """Read the result of `mcpax/identify`. Raises ProtocolError."""
    return _read(result, SubserverIdentity, IDENTIFY)


T = TypeVar("T")


def _read(result: bytes | Raw, shape: type[T], method: str) -> T:
    try:
        return msgspec.json.decode(result, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(f"Invalid result of {method}: {exc}.") from None


def _members(params: bytes | Raw | UnsetType) -> dict[str, Raw]:
    if params is UNSET:
        raise ProtocolError("`params` must be an object.", INVALID_PARAMS)
    try:
        return decode_members(params)
    except ProtocolError:
        raise ProtocolError("`params` must be an object.", INVALID_PARAMS) from None


_REQUIRED: Final = object()


def _decode_member(members: dict[str, Raw], key: str, shape: Any, default: Any = _REQUIRED) -> Any:
    """Decode one member. Raises ProtocolError."""
    raw = members.get(key)
    if raw is None or (default is None and bytes(raw) == b"null"):
        if default is _REQUIRED:
            raise _invalid_member(key, "is missing")
        return default
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _invalid_member(key, f"is invalid: {exc}") from None


def _ids(members: dict[str, Raw], key: str) -> tuple[str, ...] | None:
    ids = _decode_member(members, key, list[str], None)
    if ids is None:
        return None
    if len(ids) > MAX_SUBTREE_IDS or not all(is_uuid(id) for id in ids):
        raise _invalid_member(key, f"must be a list of at most {MAX_SUBTREE_IDS} UUIDs")
    return tuple(id.lower() for id in ids)


def _invalid_member(key: str, reason: str) -> ProtocolError:
    return ProtocolError(f"`{key}` {reason}.", INVALID_PARAMS, {"field": key})
