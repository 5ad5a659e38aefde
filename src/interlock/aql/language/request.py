"""Parsing of AQL requests: operation, parameters, and options beside them.

Values stay raw, as they were sent. Of duplicate members the last one counts, as in every other
reader of the node. `operation` and `params` themselves are never passed on.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.aql.language import errors
from interlock.aql.language.errors import AqlError
from interlock.aql.language.limits import RequestLimits, check_request, find_broken_escapes
from interlock.errors import ProtocolError
from interlock.protocol import jsonrpc
from interlock.protocol.mcp import TOOLS_CALL

OPERATION: Final = "operation"
PARAMS: Final = "params"
OPERATIONS: Final = "operations"
BATCH: Final = "batch"
"""The `operation` of a batch, for clients that must send one because the schema requires it."""

REQUEST_ID: Final = "_request_id"
META: Final = "_meta"
FIELDS: Final = "_fields"
PRESET: Final = "_preset"
DRY_RUN: Final = "_dry_run"
ASYNC: Final = "_async"
CONFIRMATION: Final = "_confirmation"
QUOTA_CONTINUE: Final = "_quota_continue"

COMMON_OPTIONS: Final = (REQUEST_ID, META, DRY_RUN, ASYNC, CONFIRMATION, QUOTA_CONTINUE)
"""Options of every operation. Others are rejected: an ignored option would change the meaning of
the request."""
READ_OPTIONS: Final = (FIELDS, PRESET)
"""Further options of read operations."""
BATCH_OPTIONS: Final = (REQUEST_ID, META, DRY_RUN, ASYNC)
"""Options of batches."""

MAX_NAME_CHARACTERS: Final = 256
"""No operation has a longer name, so similar names are not searched for longer ones."""

_NO_MEMBERS: Final[dict[str, Raw]] = {}


class SingleRequest(msgspec.Struct, frozen=True, gc=False):
    """A request of one operation."""

    operation: str
    params: dict[str, Raw]
    """The parameters from both levels; `params` wins. Must not be changed."""
    raw_params: Raw | None
    """`params` as it was sent, if it contains all parameters and nothing else."""
    meta: dict[str, Raw] = _NO_MEMBERS
    """Members with a leading underscore, from both levels. Must not be changed."""
    top: dict[str, Raw] = _NO_MEMBERS
    """The parameters beside `operation`. Must not be changed."""
    duplicates: tuple[str, ...] = ()
    """Parameters that were sent at both levels with different values."""
    long_numbers: bool = False
    """True if there may be integers that JSON readers do not represent exactly."""


class BatchRequest(msgspec.Struct, frozen=True, gc=False):
    """A request of several operations, in their order."""

    items: list[Raw]
    """The items for `item`, so that a malformed one fails alone."""
    meta: dict[str, Raw] = _NO_MEMBERS


class _PlainRequest(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The form of nearly all requests."""

    operation: str
    params: Raw | UnsetType = UNSET


_decode_plain: Final = msgspec.json.Decoder(_PlainRequest).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_any: Final = msgspec.json.Decoder().decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_request(arguments: bytes | Raw, limits: RequestLimits) -> SingleRequest | BatchRequest:
    """Parse the arguments of an endpoint. Raises only AqlError."""
    raw = bytes(arguments)
    long_numbers = check_request(raw, limits)
    try:
        plain_request = _decode_plain(raw)
        raw_params = plain_request.params
        # Escapes could hide an underscore.
        if raw_params is UNSET or b'"_' in raw or b"\\u" in raw:
            return _read_fully(raw, limits, long_numbers)
        params = _decode_members(raw_params)
    except _DECODE_ERRORS:
        return _read_fully(raw, limits, long_numbers)
    operation = plain_request.operation
    if not 0 < len(operation) <= MAX_NAME_CHARACTERS:
        raise _missing_name_error(operation)
    return SingleRequest(operation, params, raw_params, long_numbers=long_numbers)


def read_item(raw: bytes | Raw, limits: RequestLimits) -> SingleRequest:
    """Parse an item of a batch. The limits were checked for the whole batch. Raises AqlError."""
    raw = bytes(raw)
    parsed = _read_fully(raw, limits, long_numbers=True, name=OPERATIONS)
    if isinstance(parsed, BatchRequest):
        raise AqlError(
            "BATCH_VALIDATION_ERROR",
            "A batch cannot contain another batch. Send its operations individually.",
            {"reason": "nested"},
        )
    return parsed


def _read_fully(
    raw: bytes, limits: RequestLimits, long_numbers: bool, name: str = "arguments"
) -> SingleRequest | BatchRequest:
    members = _read_object(raw, name)
    if OPERATIONS in members:
        return _read_batch(members, limits)
    operation = _read_name(members)
    raw_params: Raw | None = members.get(PARAMS)
    if raw_params is not None and bytes(raw_params) == b"null":
        # Some clients send null for no parameters.
        raw_params = None
    params = _NO_MEMBERS if raw_params is None else _read_object(raw_params, PARAMS)
    top: dict[str, Raw] = {}
    meta: dict[str, Raw] = {}
    for name, value in members.items():
        if name[:1] == "_":
            meta[name] = value
        elif name != OPERATION and name != PARAMS:
            top[name] = value
    options = {name: value for name, value in params.items() if name[:1] == "_"}
    if options:
        meta |= options
        params = {name: value for name, value in params.items() if name not in options}
        raw_params = None
    duplicates: tuple[str, ...] = ()
    if top:
        duplicates = tuple(
            name
            for name, value in top.items()
            if name in params and _is_different(value, params[name])
        )
        params = top | params
        raw_params = None
    if raw_params is None and not params:
        raw_params = Raw(b"{}")
    return SingleRequest(operation, params, raw_params, meta, top, duplicates, long_numbers)


def _read_batch(members: dict[str, Raw], limits: RequestLimits) -> BatchRequest:
    unexpected = [name for name in members if name != OPERATIONS and name[:1] != "_"]
    if OPERATION in unexpected and bytes(members[OPERATION]) == b'"batch"':
        unexpected.remove(OPERATION)
    if unexpected:
        unexpected_names = ", ".join(f"'{errors.quotable(name)}'" for name in unexpected[:5])
        raise AqlError(
            "BATCH_VALIDATION_ERROR",
            f"Remove {unexpected_names} beside 'operations', or send one operation.",
            {
                "reason": "not_alone",
                "unexpected": [errors.shorten(name) for name in unexpected[:5]],
            },
        )
    try:
        items = _decode_items(members[OPERATIONS])
    except _DECODE_ERRORS:
        raise _batch_error(
            "'operations' must be an array of operations.",
            "not_an_array",
            kind_of(members[OPERATIONS]),
        ) from None
    if not items:
        raise _batch_error("'operations' is empty: send one or more operations.", "empty", 0)
    if len(items) > limits.batch:
        raise _batch_error(
            f"A batch is limited to {limits.batch} operations, it has {len(items)}. Split it.",
            "too_many",
            len(items),
            limits.batch,
        )
    return BatchRequest(items, {name: value for name, value in members.items() if name[:1] == "_"})


def _batch_error(message: str, reason: str, actual: object, limit: int | None = None) -> AqlError:
    details: dict[str, Any] = {"reason": reason, "actual_value": actual}
    if limit is not None:
        details["limit_value"] = limit
    return AqlError("BATCH_VALIDATION_ERROR", message, details)


def _read_name(members: dict[str, Raw]) -> str:
    raw = members.get(OPERATION)
    if raw is None:
        raise _missing_name_error("")
    try:
        name = _decode_text(raw)
    except _DECODE_ERRORS:
        raise errors.wrong_type(OPERATION, "string", kind_of(raw)) from None
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise _missing_name_error(name)
    return name


def _missing_name_error(name: str) -> AqlError:
    if name:
        return errors.unknown_operation(name, ())
    return errors.missing_parameter(
        OPERATION, "", "string", "the name of an operation, from introspect"
    )


def _read_object(raw: bytes | Raw, name: str) -> dict[str, Raw]:
    try:
        return _decode_members(raw)
    except _DECODE_ERRORS:
        raise errors.wrong_type(name, "object", kind_of(raw)) from None


def _is_different(left: Raw, right: Raw) -> bool:
    if bytes(left) == bytes(right):
        return False
    try:
        return bool(_decode_any(left) != _decode_any(right))
    except _DECODE_ERRORS:
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
    """Return the JSON Schema type of a raw value."""
    start = bytes(raw).lstrip(b" \t\r\n")
    if not start:
        return "nothing"
    kind = _KINDS.get(start[0])
    if kind is None:
        if start[0] not in b"-0123456789":
            return "unreadable"
        return "number" if any(character in start for character in b".eE") else "integer"
    try:
        _decode_any(start)
    except _DECODE_ERRORS:
        return "unreadable"
    return kind


def find_unreadable_call(body: bytes) -> tuple[bytes, int] | None:
    """Return the id of a tool call with invalid text, and the offset of the invalid bytes.

    None: all bytes are valid text, or the body is no tool call that could be answered.
    """
    try:
        body.decode()
        offset = -1
    except UnicodeDecodeError as exc:
        offset = exc.start
        # Keep the length, so that later offsets stay valid.
        body = body.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?").encode()
    broken_escapes = list(find_broken_escapes(body))
    if broken_escapes:
        offset = broken_escapes[0][0] if offset < 0 else min(offset, broken_escapes[0][0])
        repaired = bytearray(body)
        for start, end in broken_escapes:
            repaired[start:end] = b"\\u003f"
        body = bytes(repaired)
    if offset < 0:
        return None
    try:
        message = jsonrpc.decode_single(body)
    except ProtocolError:
        return None
    if message.method != TOOLS_CALL or message.id is UNSET:
        return None
    return bytes(message.id), offset
