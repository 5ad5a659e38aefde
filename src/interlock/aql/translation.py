"""The translation of an operation's parameters to the arguments of its tool, and to options of the
node.

Most requests need no translation: their parameters are the tool's own, and the bytes pass
unchanged. Other names, `input` of an UPDATE, and options take the general path. Equal requests
always produce equal bytes: digests and seals depend on it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.aql import argument_errors
from interlock.aql.language import collections, errors
from interlock.aql.language import fields as field_selection
from interlock.aql.language import request as request_syntax
from interlock.aql.language.collections import DEFAULT_PAGE, ITEMS, MAX_PAGE, SHAPING_NAMES
from interlock.aql.language.errors import AqlError
from interlock.aql.language.limits import MAX_SAFE_INTEGER, has_unsafe_integers
from interlock.aql.language.request import SingleRequest, kind_of
from interlock.aql.operations import Operation, Parameter
from interlock.aql.request import AqlRequest, AqlWarning
from interlock.core.call import Call
from interlock.protocol.aql_terms import Category
from interlock.protocol.jsonrpc import encode_members
from interlock.protocol.mcp import META_PROGRESS_TOKEN

CallMode = Literal["call", "preview", "execution"]
"""The handling of a request: it is called, described by a dry run, or run in the background."""

INPUT: Final = "input"
FIELDS: Final = "fields"
PRESET: Final = "preset"
DRY_RUN: Final = "dry_run"
TOKEN: Final = "confirmation_token"
_MAX_ID_CHARACTERS: Final = 200
_MAX_TOKEN_CHARACTERS: Final = 200
_decode: Final = msgspec.json.Decoder().decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NO_MEMBERS: Final[dict[str, Raw]] = {}


def translate(call: Call, request: AqlRequest, single: SingleRequest) -> CallMode:
    """Set the arguments of a call to those of the operation's tool. Raises AqlError."""
    operation = request.operation
    signature = operation.signature
    params = single.params
    if (
        single.raw_params is not None
        and signature.is_unchanged
        and not single.meta
        and not single.long_numbers
        and params.keys() <= signature.names
        and signature.required <= params.keys()
    ):
        call.arguments = single.raw_params
        return "call"
    return _translate_fully(call, request, single)


def _translate_fully(call: Call, request: AqlRequest, single: SingleRequest) -> CallMode:
    operation = request.operation
    features: dict[str, Raw] = {}
    arguments = _read_arguments(operation, single, features)
    if single.long_numbers:
        _check_numbers(operation, arguments)
    if single.duplicates:
        request.warnings = [*(request.warnings or ()), _duplicates_warning(single.duplicates)]
    call.arguments = encode_members(arguments)
    return _apply_options(call, request, single.meta, features)


# -- parameters


def _read_arguments(
    operation: Operation, single: SingleRequest, features: dict[str, Raw]
) -> dict[str, Raw]:
    """Return the arguments by upstream name, in the order of the tool. Raises AqlError."""
    signature = operation.signature
    arguments: dict[str, Raw] = {}
    unknown_params: dict[str, Raw] = {}
    for name, value in single.params.items():
        parameter_name = name if name in signature.names else signature.aliases.get(name)
        if parameter_name in signature.names:
            assert parameter_name is not None
            if parameter_name in arguments and not _is_equal(arguments[parameter_name], value):
                raise _ambiguous_error(parameter_name, signature.by_name.get(parameter_name))
            arguments[parameter_name] = value
        elif name in signature.features:
            features[name] = value
        else:
            unknown_params[name] = value
    for parameter in signature.parameters:
        if parameter.required and not parameter.in_input and parameter.name not in arguments:
            raise argument_errors.missing_parameter(operation, parameter, unknown_params)
    input_values = _read_input(operation, arguments, unknown_params)
    tool_arguments: dict[str, Raw] = {}
    for parameter in signature.parameters:
        argument = (input_values if parameter.in_input else arguments).get(parameter.name)
        if argument is not None:
            tool_arguments[parameter.upstream_name] = argument
    if unknown_params:
        if not signature.open or any(name in tool_arguments for name in unknown_params):
            type_error = argument_errors.wrong_type_error(operation, _decode_values(tool_arguments))
            raise type_error or argument_errors.unknown_parameters(operation, list(unknown_params))
        tool_arguments |= unknown_params
    return tool_arguments


def _read_input(
    operation: Operation, arguments: dict[str, Raw], unknown_params: dict[str, Raw]
) -> dict[str, Raw]:
    """Return the changes of an UPDATE: the members of `input`, and for tools also members beside
    it.

    Members beside `input` are removed from `unknown_params`. Raises AqlError.
    """
    signature = operation.signature
    input_parameters = {
        parameter.name: parameter for parameter in signature.parameters if parameter.in_input
    }
    if not input_parameters:
        return _NO_MEMBERS
    raw = arguments.pop(INPUT, None)
    flat_names = [
        name for name in unknown_params if (signature.aliases.get(name) or name) in input_parameters
    ]
    flat_values: dict[str, Raw] = {}
    if operation.builtin is None:
        flat_values = {name: unknown_params.pop(name) for name in flat_names}
        if raw is not None and INPUT in input_parameters and kind_of(raw) != "object":
            # The tool itself has a parameter named `input`.
            flat_values[INPUT], raw = raw, None
    elif flat_names and raw is not None:
        raise argument_errors.input_member_outside(operation, flat_names)
    if raw is None and not flat_values:
        raise argument_errors.missing_input(operation, list(input_parameters), flat_names)
    try:
        members = _NO_MEMBERS if raw is None else _decode_members(raw)
    except _DECODE_ERRORS:
        assert raw is not None
        raise errors.wrong_type(INPUT, "object", kind_of(raw)) from None
    input_values: dict[str, Raw] = {}
    unknown: dict[str, Raw] = {}
    for name, value in (*members.items(), *flat_values.items()):
        parameter_name = name if name in input_parameters else signature.aliases.get(name)
        if parameter_name is None or parameter_name not in input_parameters:
            unknown[name] = value
        elif parameter_name in input_values and not _is_equal(input_values[parameter_name], value):
            raise _ambiguous_error(parameter_name, input_parameters[parameter_name])
        else:
            input_values[parameter_name] = value
    for parameter in input_parameters.values():
        if parameter.required and parameter.name not in input_values:
            raise argument_errors.missing_parameter(operation, parameter, unknown)
    if unknown:
        raise argument_errors.unknown_input_members(
            operation, list(unknown), list(input_parameters)
        )
    return input_values


def _check_numbers(operation: Operation, arguments: dict[str, Raw]) -> None:
    """Check for integers that JSON readers may not represent exactly. Raises AqlError."""
    for parameter in operation.signature.parameters:
        raw = arguments.get(parameter.upstream_name)
        if raw is not None and has_unsafe_integers(_decode_value(raw, parameter.name)):
            as_text = _accepts_text(parameter)
            raise errors.out_of_range(
                parameter.name, -MAX_SAFE_INTEGER, MAX_SAFE_INTEGER, as_text=as_text
            )


def _accepts_text(parameter: Parameter) -> bool:
    declared = parameter.schema.get("type")
    return (
        declared is None
        or declared == "string"
        or (isinstance(declared, list) and "string" in declared)
    )


def _ambiguous_error(name: str, parameter: Parameter | None) -> AqlError:
    expected = "value" if parameter is None else parameter.type
    error = errors.wrong_type(name, expected, "two values", "ambiguous")
    error.message = f"Parameter '{name}' has two spellings with different values in this request."
    return error


def _duplicates_warning(names: tuple[str, ...]) -> AqlWarning:
    names_text = ", ".join(f"'{errors.quotable(name)}'" for name in names[:20])
    return AqlWarning(
        "VALIDATION_DUPLICATE_PARAM_WARNING",
        f"Sent beside 'params' with another value, which was ignored: {names_text}.",
        {"params": [errors.shorten(name) for name in names[:20]]},
    )


def _is_equal(left: Raw, right: Raw) -> bool:
    return bytes(left) == bytes(right) or bool(_decode_value(left, "") == _decode_value(right, ""))


def _decode_value(raw: Raw, name: str) -> Any:
    try:
        return _decode(raw)
    except _DECODE_ERRORS:
        raise errors.wrong_type(name, "value", "unreadable") from None


def _decode_values(arguments: dict[str, Raw]) -> dict[str, Any]:
    return {name: _decode_value(raw, name) for name, raw in arguments.items()}


# -- options


def apply_batch_options(call: Call, request: AqlRequest, meta: dict[str, Raw]) -> CallMode:
    """Apply the options of a batch. Raises AqlError."""
    if not meta:
        return "call"
    if any(name not in request_syntax.BATCH_OPTIONS for name in meta):
        raise argument_errors.unsupported_batch_options(meta)
    _read_request_meta(call, request, meta)
    is_background = _read_flag(meta.get(request_syntax.ASYNC), request_syntax.ASYNC)
    if _read_flag(meta.get(request_syntax.DRY_RUN), request_syntax.DRY_RUN):
        return "preview"
    return "execution" if is_background else "call"


def read_quota_token(meta: dict[str, Raw]) -> str:
    """Return the quota token of a request. Empty: there is none. Raises AqlError."""
    raw = meta.get(request_syntax.QUOTA_CONTINUE) if meta else None
    return (
        "" if raw is None else _read_text(raw, request_syntax.QUOTA_CONTINUE, _MAX_TOKEN_CHARACTERS)
    )


def _apply_options(
    call: Call, request: AqlRequest, meta: dict[str, Raw], features: dict[str, Raw]
) -> CallMode:
    """Apply the options of a single request. Raises AqlError."""
    call_mode: CallMode = "call"
    is_read = request.operation.category is Category.READ
    if meta:
        options = argument_errors.accepted_options(request.operation)
        unknown_options = [name for name in meta if name not in options]
        if unknown_options:
            raise argument_errors.unknown_options(request.operation, unknown_options, options)
        _read_request_meta(call, request, meta)
        if _read_flag(meta.get(request_syntax.ASYNC), request_syntax.ASYNC):
            call_mode = "execution"
    if is_read:
        fields = features.get(FIELDS) or meta.get(request_syntax.FIELDS)
        preset = features.get(PRESET) or meta.get(request_syntax.PRESET)
        if fields is not None or preset is not None:
            # Invalid selections are rejected before anything is executed.
            request.fields = field_selection.parse_selection(
                None if fields is None else _decode_value(fields, FIELDS),
                None if preset is None else _decode_value(preset, PRESET),
            )
        if meta and request.operation.builtin is None:
            shaping = {
                name[1:]: _decode_value(raw, name)
                for name, raw in meta.items()
                if name[1:] in SHAPING_NAMES or name[1:] == ITEMS
            }
            if shaping:
                if not isinstance(shaping.get(ITEMS, ""), str):
                    raise errors.wrong_type(f"_{ITEMS}", "string", kind_of(meta[f"_{ITEMS}"]))
                collections.read_page_request(shaping, DEFAULT_PAGE, MAX_PAGE)
                request.shaping = shaping
    # A dry run in either spelling takes precedence over all other options.
    is_dry_run = _read_flag(features.get(DRY_RUN), DRY_RUN)
    if _read_flag(meta.get(request_syntax.DRY_RUN), request_syntax.DRY_RUN) or is_dry_run:
        call_mode = "preview"
    token = features.get(TOKEN)
    if token is None:
        token = meta.get(request_syntax.CONFIRMATION)
    if token is not None:
        request.confirmation = _read_text(token, TOKEN, _MAX_TOKEN_CHARACTERS)
    return call_mode


def _read_request_meta(call: Call, request: AqlRequest, meta: dict[str, Raw]) -> None:
    raw = meta.get(request_syntax.REQUEST_ID)
    if raw is not None:
        request.request_id = _read_text(raw, request_syntax.REQUEST_ID, _MAX_ID_CHARACTERS)
    raw = meta.get(request_syntax.META)
    if raw is not None and (call.meta is None or META_PROGRESS_TOKEN not in call.meta):
        try:
            token = _decode_members(raw).get(META_PROGRESS_TOKEN)
        except _DECODE_ERRORS:
            raise errors.wrong_type(request_syntax.META, "object", kind_of(raw)) from None
        if token is not None and kind_of(token) in ("string", "integer"):
            call.meta = {**(call.meta or {}), META_PROGRESS_TOKEN: token}


def _read_text(raw: Raw, name: str, max_characters: int) -> str:
    value = _decode_value(raw, name)
    if not isinstance(value, str):
        raise errors.wrong_type(name, "string", kind_of(raw))
    return value[:max_characters]


def _read_flag(raw: Raw | None, name: str) -> bool:
    if raw is None:
        return False
    value = _decode_value(raw, name)
    if not isinstance(value, bool):
        raise errors.wrong_type(name, "boolean", kind_of(raw))
    return value
