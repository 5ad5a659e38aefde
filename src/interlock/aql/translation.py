"""The translation of an operation with its parameters to the arguments of its tool and the options
that the node handles.

Nearly every request passes as it is: its parameters are the tool's own, and its bytes go on. Only
other names, UPDATE's `input`, and what is said beside the parameters take the long way. The same
request always makes the same bytes: digests and seals depend on it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.aql import argument_errors
from interlock.aql.language import collections, errors, request
from interlock.aql.language import fields as field_selection
from interlock.aql.language.collections import ITEMS, MOST_PAGE, PAGE, SHAPING
from interlock.aql.language.errors import AqlError
from interlock.aql.language.limits import MOST_SAFE, unsafe_integers
from interlock.aql.language.request import SingleRequest, kind_of
from interlock.aql.operations import Operation, Parameter
from interlock.aql.request import AqlRequest, AqlWarning
from interlock.core.call import Call
from interlock.protocol.aql_terms import Category
from interlock.protocol.jsonrpc import encode_members
from interlock.protocol.mcp import META_PROGRESS_TOKEN

CallMode = Literal["call", "preview", "execution"]
"""What is to become of the request: it is made, only described, or goes on behind its answer."""

INPUT: Final = "input"
FIELDS: Final = "fields"
PRESET: Final = "preset"
DRY_RUN: Final = "dry_run"
TOKEN: Final = "confirmation_token"
_LONGEST_ID: Final = 200
_LONGEST_TOKEN: Final = 200
_decode: Final = msgspec.json.Decoder().decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NOTHING: Final[dict[str, Raw]] = {}


def into(call: Call, asked: AqlRequest, single: SingleRequest) -> CallMode:
    """Give a call the arguments of the operation's tool. Raises AqlError."""
    operation = asked.operation
    signature = operation.signature
    params = single.params
    if (
        single.raw_params is not None
        and signature.same
        and not single.meta
        and not single.long_numbers
        and params.keys() <= signature.names
        and signature.required <= params.keys()
    ):
        call.arguments = single.raw_params
        return "call"
    return _long_way(call, asked, single)


def _long_way(call: Call, asked: AqlRequest, single: SingleRequest) -> CallMode:
    operation = asked.operation
    features: dict[str, Raw] = {}
    given = _given(operation, single, features)
    if single.long_numbers:
        _check_numbers(operation, given)
    if single.twins:
        asked.warnings = [*(asked.warnings or ()), _twins(single.twins)]
    call.arguments = encode_members(given)
    return _beside(call, asked, single.meta, features)


# -- parameters


def _given(operation: Operation, single: SingleRequest, features: dict[str, Raw]) -> dict[str, Raw]:
    """The arguments of the tool, by its own names and in its order. Raises AqlError."""
    signature = operation.signature
    given: dict[str, Raw] = {}
    strangers: dict[str, Raw] = {}
    for name, value in single.params.items():
        known = name if name in signature.names else signature.aliases.get(name)
        if known in signature.names:
            assert known is not None
            if known in given and not _same(given[known], value):
                raise _ambiguous(known, signature.by_name.get(known))
            given[known] = value
        elif name in signature.features:
            features[name] = value
        else:
            strangers[name] = value
    for parameter in signature.parameters:
        if parameter.required and not parameter.inside and parameter.name not in given:
            raise argument_errors.missing(operation, parameter, strangers)
    inside = _inside(operation, given, strangers)
    own: dict[str, Raw] = {}
    for parameter in signature.parameters:
        found = (inside if parameter.inside else given).get(parameter.name)
        if found is not None:
            own[parameter.own] = found
    if strangers:
        if not signature.open or any(name in own for name in strangers):
            wrong = argument_errors.wrong_type(operation, _decoded(own))
            raise wrong or argument_errors.unknown(operation, list(strangers))
        own |= strangers
    return own


def _inside(
    operation: Operation, given: dict[str, Raw], strangers: dict[str, Raw]
) -> dict[str, Raw]:
    """What an UPDATE changes: the members of `input`, and for tools of servers also those beside
    it, as in the tool's own arguments. Takes the latter out of `strangers`. Raises AqlError.
    """
    signature = operation.signature
    parts = {one.name: one for one in signature.parameters if one.inside}
    if not parts:
        return _NOTHING
    raw = given.pop(INPUT, None)
    flat = [name for name in strangers if (signature.aliases.get(name) or name) in parts]
    beside: dict[str, Raw] = {}
    if operation.native is None:
        beside = {name: strangers.pop(name) for name in flat}
        if raw is not None and INPUT in parts and kind_of(raw) != "object":
            # The tool has a parameter of that name.
            beside[INPUT], raw = raw, None
    elif flat and raw is not None:
        raise argument_errors.not_beside_input(operation, flat)
    if raw is None and not beside:
        raise argument_errors.no_input(operation, list(parts), flat)
    try:
        members = _NOTHING if raw is None else _decode_members(raw)
    except _UNREADABLE:
        assert raw is not None
        raise errors.wrong_type(INPUT, "object", kind_of(raw)) from None
    inside: dict[str, Raw] = {}
    unknown: dict[str, Raw] = {}
    for name, value in (*members.items(), *beside.items()):
        known = name if name in parts else signature.aliases.get(name)
        if known is None or known not in parts:
            unknown[name] = value
        elif known in inside and not _same(inside[known], value):
            raise _ambiguous(known, parts[known])
        else:
            inside[known] = value
    for parameter in parts.values():
        if parameter.required and parameter.name not in inside:
            raise argument_errors.missing(operation, parameter, unknown)
    if unknown:
        raise argument_errors.unknown_inside(operation, list(unknown), list(parts))
    return inside


def _check_numbers(operation: Operation, given: dict[str, Raw]) -> None:
    """Raises AqlError for an integer that another reader may read as another one."""
    for parameter in operation.signature.parameters:
        raw = given.get(parameter.own)
        if raw is not None and unsafe_integers(_value(raw, parameter.name)):
            as_text = _takes_text(parameter)
            raise errors.out_of_range(parameter.name, -MOST_SAFE, MOST_SAFE, as_text=as_text)


def _takes_text(parameter: Parameter) -> bool:
    said = parameter.schema.get("type")
    return said is None or said == "string" or (isinstance(said, list) and "string" in said)


def _ambiguous(name: str, parameter: Parameter | None) -> AqlError:
    expected = "value" if parameter is None else parameter.type
    error = errors.wrong_type(name, expected, "two values", "ambiguous")
    error.message = f"Parameter '{name}' was given twice, in two spellings and with two values."
    return error


def _twins(names: tuple[str, ...]) -> AqlWarning:
    shown = ", ".join(f"'{errors.shown(name)}'" for name in names[:20])
    return AqlWarning(
        "VALIDATION_DUPLICATE_PARAM_WARNING",
        f"Given beside 'params' with another value, which was ignored: {shown}.",
        {"params": [errors.short(name) for name in names[:20]]},
    )


def _same(one: Raw, other: Raw) -> bool:
    return bytes(one) == bytes(other) or bool(_value(one, "") == _value(other, ""))


def _value(raw: Raw, name: str) -> Any:
    try:
        return _decode(raw)
    except _UNREADABLE:
        raise errors.wrong_type(name, "value", "unreadable") from None


def _decoded(own: dict[str, Raw]) -> dict[str, Any]:
    return {name: _value(raw, name) for name, raw in own.items()}


# -- what stands beside them


def beside(call: Call, asked: AqlRequest, meta: dict[str, Raw]) -> CallMode:
    """What a batch says of itself. Raises AqlError."""
    if not meta:
        return "call"
    if any(name not in request.OF_BATCHES for name in meta):
        raise argument_errors.not_of_batches(meta)
    _say_who(call, asked, meta)
    later = _flag(meta.get(request.ASYNC), request.ASYNC)
    if _flag(meta.get(request.DRY_RUN), request.DRY_RUN):
        return "preview"
    return "execution" if later else "call"


def continued(meta: dict[str, Raw]) -> str:
    """The token of a quota that a human let go on. Empty: there is none. Raises AqlError."""
    raw = meta.get(request.QUOTA_CONTINUE) if meta else None
    return "" if raw is None else _text(raw, request.QUOTA_CONTINUE, _LONGEST_TOKEN)


def _beside(
    call: Call, asked: AqlRequest, meta: dict[str, Raw], features: dict[str, Raw]
) -> CallMode:
    """Take what the request says of itself. Raises AqlError."""
    way: CallMode = "call"
    reads = asked.operation.category is Category.READ
    if meta:
        known = argument_errors.beside(asked.operation)
        strangers = [name for name in meta if name not in known]
        if strangers:
            raise argument_errors.unknown_beside(asked.operation, strangers, known)
        _say_who(call, asked, meta)
        if _flag(meta.get(request.ASYNC), request.ASYNC):
            way = "execution"
    if reads:
        fields = features.get(FIELDS) or meta.get(request.FIELDS)
        preset = features.get(PRESET) or meta.get(request.PRESET)
        if fields is not None or preset is not None:
            # What cannot be asked for is refused before anything is done.
            asked.fields = field_selection.asked(
                None if fields is None else _value(fields, FIELDS),
                None if preset is None else _value(preset, PRESET),
            )
        if meta and asked.operation.native is None:
            shaping = {
                name[1:]: _value(raw, name)
                for name, raw in meta.items()
                if name[1:] in SHAPING or name[1:] == ITEMS
            }
            if shaping:
                if not isinstance(shaping.get(ITEMS, ""), str):
                    raise errors.wrong_type(f"_{ITEMS}", "string", kind_of(meta[f"_{ITEMS}"]))
                collections.read_page_request(shaping, PAGE, MOST_PAGE)
                asked.shaping = shaping
    # Whoever says it in either way means that nothing is to be done, whatever else they say.
    dry = _flag(features.get(DRY_RUN), DRY_RUN)
    if _flag(meta.get(request.DRY_RUN), request.DRY_RUN) or dry:
        way = "preview"
    token = features.get(TOKEN)
    if token is None:
        token = meta.get(request.CONFIRMATION)
    if token is not None:
        asked.confirmation = _text(token, TOKEN, _LONGEST_TOKEN)
    return way


def _say_who(call: Call, asked: AqlRequest, meta: dict[str, Raw]) -> None:
    raw = meta.get(request.REQUEST_ID)
    if raw is not None:
        asked.request_id = _text(raw, request.REQUEST_ID, _LONGEST_ID)
    raw = meta.get(request.META)
    if raw is not None and (call.meta is None or META_PROGRESS_TOKEN not in call.meta):
        try:
            token = _decode_members(raw).get(META_PROGRESS_TOKEN)
        except _UNREADABLE:
            raise errors.wrong_type(request.META, "object", kind_of(raw)) from None
        if token is not None and kind_of(token) in ("string", "integer"):
            call.meta = {**(call.meta or {}), META_PROGRESS_TOKEN: token}


def _text(raw: Raw, name: str, most: int) -> str:
    value = _value(raw, name)
    if not isinstance(value, str):
        raise errors.wrong_type(name, "string", kind_of(raw))
    return value[:most]


def _flag(raw: Raw | None, name: str) -> bool:
    if raw is None:
        return False
    value = _value(raw, name)
    if not isinstance(value, bool):
        raise errors.wrong_type(name, "boolean", kind_of(raw))
    return value
