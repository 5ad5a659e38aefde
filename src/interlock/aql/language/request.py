"""Parsing of an AQL request: operation, parameters, and options beside them.

Values stay raw, as they were sent. Of two members with one name the last one counts, here as with
every other reader in the node; `operation` and `params` themselves are never passed on.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.aql.language import errors
from interlock.aql.language.errors import AqlError
from interlock.aql.language.limits import RequestLimits, broken_escapes, check
from interlock.errors import ProtocolError
from interlock.protocol import jsonrpc
from interlock.protocol.mcp import TOOLS_CALL

OPERATION: Final = "operation"
PARAMS: Final = "params"
OPERATIONS: Final = "operations"
BATCH: Final = "batch"
"""The `operation` of a batch, for clients that must send one: the schema requires it."""

REQUEST_ID: Final = "_request_id"
META: Final = "_meta"
FIELDS: Final = "_fields"
PRESET: Final = "_preset"
DRY_RUN: Final = "_dry_run"
ASYNC: Final = "_async"
CONFIRMATION: Final = "_confirmation"
QUOTA_CONTINUE: Final = "_quota_continue"

OF_ALL: Final = (REQUEST_ID, META, DRY_RUN, ASYNC, CONFIRMATION, QUOTA_CONTINUE)
"""What may be said beside the parameters of any operation. Anything else is refused: who asks for
something that the node does not know must not get something else."""
OF_READERS: Final = (FIELDS, PRESET)
"""What may be said besides of one that reads."""
OF_BATCHES: Final = (REQUEST_ID, META, DRY_RUN, ASYNC)
"""What may be said of several together."""

LONGEST_NAME: Final = 256
"""No operation has a longer name, so nobody looks for a similar one."""

_NONE: Final[dict[str, Raw]] = {}


class SingleRequest(msgspec.Struct, frozen=True, gc=False):
    """A request of one operation."""

    operation: str
    params: dict[str, Raw]
    """Its parameters from both places; `params` wins. Not to be changed."""
    raw_params: Raw | None
    """`params` as it was sent, where that holds every parameter and nothing else."""
    meta: dict[str, Raw] = _NONE
    """What begins with an underscore, from both places. Not to be changed."""
    top: dict[str, Raw] = _NONE
    """The parameters that stood beside `operation`. Not to be changed."""
    twins: tuple[str, ...] = ()
    """Parameters that were given at both levels, with different values."""
    long_numbers: bool = False
    """Whether there may be integers in it that not everybody reads as they were written."""


class BatchRequest(msgspec.Struct, frozen=True, gc=False):
    """A request of several operations, in their order."""

    items: list[Raw]
    """Each is for `item`, so that a malformed one fails alone."""
    meta: dict[str, Raw] = _NONE


class _Usual(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """What nearly every request is."""

    operation: str
    params: Raw | UnsetType = UNSET


_decode_usual: Final = msgspec.json.Decoder(_Usual).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_any: Final = msgspec.json.Decoder().decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read(arguments: bytes | Raw, limits: RequestLimits) -> SingleRequest | BatchRequest:
    """What the arguments of an endpoint ask for. Raises AqlError, and nothing else."""
    raw = bytes(arguments)
    long_numbers = check(raw, limits)
    try:
        usual = _decode_usual(raw)
        inner = usual.params
        # A name may also be written with an escape.
        if inner is UNSET or b'"_' in raw or b"\\u" in raw:
            return _read_all(raw, limits, long_numbers)
        params = _decode_members(inner)
    except _UNREADABLE:
        return _read_all(raw, limits, long_numbers)
    operation = usual.operation
    if not 0 < len(operation) <= LONGEST_NAME:
        raise _no_name(operation)
    return SingleRequest(operation, params, inner, long_numbers=long_numbers)


def item(raw: bytes | Raw, limits: RequestLimits) -> SingleRequest:
    """One of a batch, whose limits were looked at with the whole of it. Raises AqlError."""
    raw = bytes(raw)
    found = _read_all(raw, limits, long_numbers=True, what=OPERATIONS)
    if isinstance(found, BatchRequest):
        raise AqlError(
            "BATCH_VALIDATION_ERROR",
            "A batch cannot hold another batch. List its operations one by one.",
            {"reason": "nested"},
        )
    return found


def _read_all(
    raw: bytes, limits: RequestLimits, long_numbers: bool, what: str = "arguments"
) -> SingleRequest | BatchRequest:
    members = _members(raw, what)
    if OPERATIONS in members:
        return _read_batch(members, limits)
    operation = _name_of(members)
    inner: Raw | None = members.get(PARAMS)
    if inner is not None and bytes(inner) == b"null":
        # Some clients write out that they have none.
        inner = None
    params = _NONE if inner is None else _members(inner, PARAMS)
    top: dict[str, Raw] = {}
    meta: dict[str, Raw] = {}
    for name, value in members.items():
        if name[:1] == "_":
            meta[name] = value
        elif name != OPERATION and name != PARAMS:
            top[name] = value
    inside = {name: value for name, value in params.items() if name[:1] == "_"}
    if inside:
        meta |= inside
        params = {name: value for name, value in params.items() if name not in inside}
        inner = None
    twins: tuple[str, ...] = ()
    if top:
        twins = tuple(
            name for name, value in top.items() if name in params and _differ(value, params[name])
        )
        params = top | params
        inner = None
    if inner is None and not params:
        inner = Raw(b"{}")
    return SingleRequest(operation, params, inner, meta, top, twins, long_numbers)


def _read_batch(members: dict[str, Raw], limits: RequestLimits) -> BatchRequest:
    also = [name for name in members if name != OPERATIONS and name[:1] != "_"]
    if OPERATION in also and bytes(members[OPERATION]) == b'"batch"':
        also.remove(OPERATION)
    if also:
        shown = ", ".join(f"'{errors.shown(name)}'" for name in also[:5])
        raise AqlError(
            "BATCH_VALIDATION_ERROR",
            f"'operations' stands alone: leave out {shown}, or send a single operation.",
            {"reason": "not_alone", "unexpected": [errors.short(name) for name in also[:5]]},
        )
    try:
        items = _decode_items(members[OPERATIONS])
    except _UNREADABLE:
        raise _batch_fault(
            "'operations' must be an array of operations.",
            "not_an_array",
            kind_of(members[OPERATIONS]),
        ) from None
    if not items:
        raise _batch_fault("'operations' is empty: send one operation or more.", "empty", 0)
    if len(items) > limits.batch:
        raise _batch_fault(
            f"A batch may hold {limits.batch} operations, this one has {len(items)}. Split it.",
            "too_many",
            len(items),
            limits.batch,
        )
    return BatchRequest(items, {name: value for name, value in members.items() if name[:1] == "_"})


def _batch_fault(message: str, reason: str, actual: object, limit: int | None = None) -> AqlError:
    details: dict[str, Any] = {"reason": reason, "actual_value": actual}
    if limit is not None:
        details["limit_value"] = limit
    return AqlError("BATCH_VALIDATION_ERROR", message, details)


def _name_of(members: dict[str, Raw]) -> str:
    raw = members.get(OPERATION)
    if raw is None:
        raise _no_name("")
    try:
        name = _decode_text(raw)
    except _UNREADABLE:
        raise errors.wrong_type(OPERATION, "string", kind_of(raw)) from None
    if not 0 < len(name) <= LONGEST_NAME:
        raise _no_name(name)
    return name


def _no_name(name: str) -> AqlError:
    if name:
        return errors.no_operation(name, ())
    return errors.missing(OPERATION, "", "string", "the name of an operation, as introspect has it")


def _members(raw: bytes | Raw, what: str) -> dict[str, Raw]:
    try:
        return _decode_members(raw)
    except _UNREADABLE:
        raise errors.wrong_type(what, "object", kind_of(raw)) from None


def _differ(one: Raw, other: Raw) -> bool:
    if bytes(one) == bytes(other):
        return False
    try:
        return bool(_decode_any(one) != _decode_any(other))
    except _UNREADABLE:
        return True


_KINDS: Final = {
    ord("{"): "object",
    ord("["): "array",
    ord('"'): "string",
    ord("t"): "boolean",
    ord("f"): "boolean",
    ord("n"): "null",
}


def kind_of(raw: bytes | Raw) -> str:
    """What a raw value is, in the words of JSON Schema."""
    start = bytes(raw).lstrip(b" \t\r\n")
    if not start:
        return "nothing"
    kind = _KINDS.get(start[0])
    if kind is None:
        if start[0] not in b"-0123456789":
            return "unreadable"
        return "number" if any(mark in start for mark in b".eE") else "integer"
    try:
        _decode_any(start)
    except _UNREADABLE:
        return "unreadable"
    return kind


def unreadable(body: bytes) -> tuple[bytes, int] | None:
    """The id of a call of a tool whose bytes are not the text they should be, and where.

    None: every byte is text, or it is not even then a call that could be answered.
    """
    try:
        body.decode()
        offset = -1
    except UnicodeDecodeError as exc:
        offset = exc.start
        # As long as before, so that what is found next stands where it stood.
        body = body.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?").encode()
    broken = list(broken_escapes(body))
    if broken:
        offset = broken[0][0] if offset < 0 else min(offset, broken[0][0])
        mended = bytearray(body)
        for start, end in broken:
            mended[start:end] = b"\\u003f"
        body = bytes(mended)
    if offset < 0:
        return None
    try:
        message = jsonrpc.decode_single(body)
    except ProtocolError:
        return None
    if message.method != TOOLS_CALL or message.id is UNSET:
        return None
    return bytes(message.id), offset
