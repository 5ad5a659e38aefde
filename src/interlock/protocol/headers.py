"""The header rules of MCP 2026-07-28: HTTP headers that mirror values of the request body.

Both directions: what a client sends (`encode_header_value`, `write_param_headers`), and what a
server checks (`check_request_headers`, `check_param_headers`). The checks return a sentence about
the first problem, or None. The response to such a request is `errors.HEADER_MISMATCH`.
Pure. Header names are lowercase bytes, header values are raw bytes, values of the body are str.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.errors import HEADER_MISMATCH, INVALID_PARAMS, UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol.mcp import METHODS

PROTOCOL_VERSION: Final = b"mcp-protocol-version"
METHOD: Final = b"mcp-method"
NAME: Final = b"mcp-name"
SESSION_ID: Final = b"mcp-session-id"
LAST_EVENT_ID: Final = b"last-event-id"
PARAM_PREFIX: Final = b"mcp-param-"

NAME_FIELDS: Final[Mapping[str, str]] = {
    name: method.name_field for name, method in METHODS.items() if method.name_header
}
"""The methods that require `Mcp-Name`, and the field of `params` that it mirrors."""

ANNOTATION: Final = "x-mcp-header"

_BEARER: Final = b"bearer "

_SENTINEL_START: Final = "=?base64?"
_SENTINEL_END: Final = "?="
_WHITESPACE: Final = b" \t"
_MAX_SAFE_INTEGER: Final = 2**53 - 1
_TOKEN: Final = frozenset(
    "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
_TYPES: Final = frozenset({"string", "integer", "boolean"})
# The JSON Schema keywords, of 2020-12 and before, that contain another schema. An annotation below
# them cannot be found in the arguments by a path. Other keywords (`default`, `const`, `enum`,
# `examples` ...) contain data and no schema.
# fmt: off
_SCHEMA_KEYWORDS: Final = frozenset({
    "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema",
    "else", "if", "items", "not", "oneOf", "prefixItems", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
})
_SCHEMA_MAP_KEYWORDS: Final = frozenset({
    "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties",
})
# fmt: on


class InvalidHeaderAnnotation(ProtocolError):
    """An invalid `x-mcp-header` in the schema of a tool: the tool must not be offered."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, UPSTREAM_PROTOCOL)
        self.reason = reason


class HeaderParam(msgspec.Struct, frozen=True):
    """An argument of a tool that is also sent in a header.

    `path` is its path in the arguments, `header` the complete header name (`Mcp-Param-Region`),
    `key` the header name in lower case.
    """

    path: tuple[str, ...]
    header: str
    type: str
    key: bytes = b""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "key", self.header.lower().encode("ascii"))


def read_bearer(value: bytes | None) -> str | None:
    """Return the bearer token of an `Authorization` header. None: it has none."""
    if value is None or value[: len(_BEARER)].lower() != _BEARER:
        return None
    return value[len(_BEARER) :].strip().decode("latin-1")


def encode_header_value(value: str) -> str:
    """Encode a value for a header: unchanged where that is safe, else in base64."""
    if value.isascii() and value.isprintable():
        if not value:
            return value
        edges_are_plain = value[0] != " " and value[-1] != " "
        looks_encoded = value.startswith(_SENTINEL_START) and value.endswith(_SENTINEL_END)
        if edges_are_plain and not looks_encoded:
            return value
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise ProtocolError(
            "A value for a header is not valid text: it contains an unpaired surrogate.",
            INVALID_PARAMS,
        ) from None
    return _encode_base64(raw)


def decode_header_value(value: str) -> str | None:
    """Decode the value of a header. None: it is malformed."""
    if not value.isascii():
        return None
    # Prefix and suffix must not share their question mark: `=?base64?=` is a plain value.
    if (
        value.startswith(_SENTINEL_START)
        and value.endswith(_SENTINEL_END)
        and len(value) >= len(_SENTINEL_START) + len(_SENTINEL_END)
    ):
        try:
            raw = binascii.a2b_base64(value[len(_SENTINEL_START) : -len(_SENTINEL_END)])
            # Only the canonical encoding: for a router, two encodings are two values.
            return raw.decode() if _encode_base64(raw) == value else None
        except ValueError:
            return None
    if value.isprintable() or value.replace("\t", "").isprintable():
        return value
    return None


def read_header_params(input_schema: object) -> tuple[HeaderParam, ...]:
    """Return the arguments that the schema of a tool mirrors into headers, in its order.

    Raises InvalidHeaderAnnotation if an annotation is invalid.
    """
    params: dict[str, HeaderParam] = {}
    for path, schema in _walk_schemas(input_schema):
        if ANNOTATION not in schema:
            continue
        if not path:
            raise InvalidHeaderAnnotation(
                f"{ANNOTATION} is at a place that no path of arguments reaches: "
                "it is only allowed on a property that is reached by `properties` alone"
            )
        name = ".".join(path)
        token = schema[ANNOTATION]
        if not isinstance(token, str):
            raise InvalidHeaderAnnotation(f"{ANNOTATION} of {name!r} must be a string")
        if not token or not _TOKEN.issuperset(token):
            raise InvalidHeaderAnnotation(
                f"{ANNOTATION} of {name!r} is {_truncate(token)}, which is not a header name: "
                "use letters, digits and !#$%&'*+-.^_`|~ only"
            )
        kind = schema.get("type")
        if not isinstance(kind, str) or kind not in _TYPES:
            raise InvalidHeaderAnnotation(
                f"{ANNOTATION} of {name!r} needs a property whose type is "
                "string, integer or boolean"
            )
        param = HeaderParam(path, f"Mcp-Param-{token}", kind)
        first = params.setdefault(token.lower(), param)
        if first is not param:
            raise InvalidHeaderAnnotation(
                f"{ANNOTATION} {_truncate(token)} is on both {'.'.join(first.path)!r} and {name!r}"
            )
    return tuple(params.values())


def write_param_headers(
    params: Sequence[HeaderParam], arguments: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    """Return the `Mcp-Param-*` headers that a client sends with these arguments."""
    headers: list[tuple[str, str]] = []
    for param in params:
        value = _get_argument(param.path, arguments)
        if _is_unsafe_integer(value):
            raise ProtocolError(f"{_unsafe_integer_problem(param)}.", INVALID_PARAMS)
        text = _header_text(value)
        if text is not None:
            headers.append((param.header, encode_header_value(text)))
    return headers


def check_param_headers(
    params: Sequence[HeaderParam],
    arguments: Mapping[str, Any] | None,
    headers: Iterable[tuple[bytes, bytes]],
) -> str | None:
    """Check the `Mcp-Param-*` headers of a call. Return the problem or None.

    The message has the names of header and argument, but no values, which may be confidential.
    """
    if not params:
        return None
    sent: dict[bytes, bytes] = {}
    repeated: set[bytes] = set()
    for name, raw in headers:
        if name.startswith(PARAM_PREFIX):
            if name in sent:
                repeated.add(name)
            sent[name] = raw
    for param in params:
        if param.key in repeated:
            return f"{param.header} header appears more than once"
        problem = _check_param(param, _get_argument(param.path, arguments), sent.get(param.key))
        if problem is not None:
            return problem
    return None


def pick_request_headers(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return the values of `Mcp-Protocol-Version`, `Mcp-Method` and `Mcp-Name`, in that order.

    Raises ProtocolError for a duplicate header, since readers differ in which one they use.
    """
    version: bytes | None = None
    method: bytes | None = None
    name: bytes | None = None
    for key, value in headers:
        if not key.startswith(b"mcp-"):
            continue
        if key == METHOD:
            if method is not None:
                raise _duplicate_header("Mcp-Method")
            method = value
        elif key == NAME:
            if name is not None:
                raise _duplicate_header("Mcp-Name")
            name = value
        elif key == PROTOCOL_VERSION:
            if version is not None:
                raise _duplicate_header("MCP-Protocol-Version")
            version = value
    return version, method, name


def check_request_headers(
    method: str,
    body_version: str | None,
    body_name: str | None,
    version_header: bytes | None,
    method_header: bytes | None,
    name_header: bytes | None,
) -> str | None:
    """Check the standard headers of a request. Return the problem or None.

    Args:
        body_name: the field of `params` in NAME_FIELDS for the method. If it is missing, the params
            are invalid, which another check reports.
    """
    if version_header is None:
        return "MCP-Protocol-Version header is missing"
    version = version_header.strip(_WHITESPACE).decode("latin-1")
    if version != body_version:
        if body_version is None:
            return "MCP-Protocol-Version header is present but the body's _meta has no version"
        return (
            f"MCP-Protocol-Version header value {_truncate(version)} does not match "
            f"body value {_truncate(body_version)}"
        )
    if method_header is None:
        return "Mcp-Method header is missing"
    header_method = method_header.strip(_WHITESPACE).decode("latin-1")
    if header_method != method:
        return (
            f"Mcp-Method header value {_truncate(header_method)} does not match "
            f"body value {_truncate(method)}"
        )
    field = NAME_FIELDS.get(method)
    if field is None or body_name is None:
        return None
    if name_header is None:
        return "Mcp-Name header is missing"
    name = decode_header_value(name_header.strip(_WHITESPACE).decode("latin-1"))
    if name == body_name:
        return None
    if name is None:
        return "Mcp-Name header is malformed: it contains invalid characters or invalid base64"
    if field != "name":
        # A URI can contain a credential, and a task id may be one: they are not repeated.
        return f"Mcp-Name header value does not match params.{field} in the body"
    return (
        f"Mcp-Name header value {_truncate(name)} does not match body value {_truncate(body_name)}"
    )


def _check_param(param: HeaderParam, value: object, raw: bytes | None) -> str | None:
    argument = ".".join(param.path)
    if value is None:
        if raw is None:
            return None
        return f"{param.header} header is present but argument {argument!r} is not in the body"
    if _is_unsafe_integer(value):
        return _unsafe_integer_problem(param)
    text = _header_text(value)
    if raw is None:
        # The schema rejects values that cannot be encoded in a header.
        if text is None:
            return None
        return f"{param.header} header is missing but argument {argument!r} is in the body"
    sent = decode_header_value(raw.strip(_WHITESPACE).decode("latin-1"))
    if sent is None:
        return (
            f"{param.header} header is malformed: it contains invalid characters or invalid base64"
        )
    if sent == text or (
        param.type == "integer" and _is_integer(value) and _parse_integer(sent) == value
    ):
        return None
    return f"{param.header} header does not match argument {argument!r} in the body"


def _walk_schemas(root: object) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every schema inside `root`, with its path of `properties` keys.

    The path is empty for the root and for schemas that are not reached by `properties` alone.
    """
    waiting: list[tuple[tuple[str, ...], bool, object]] = [((), True, root)]
    for path, reachable, schema in waiting:
        if not isinstance(schema, dict):
            continue
        yield path, schema
        for keyword, value in schema.items():
            if keyword == "properties":
                if isinstance(value, dict):
                    for name, inner in value.items():
                        waiting.append(((*path, name) if reachable else (), reachable, inner))
            elif keyword in _SCHEMA_KEYWORDS:
                for inner in value if isinstance(value, list) else (value,):
                    waiting.append(((), False, inner))
            elif keyword in _SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
                for inner in value.values():
                    waiting.append(((), False, inner))


def _get_argument(path: tuple[str, ...], arguments: object) -> object:
    for name in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(name)
    return arguments


def _header_text(value: object) -> str | None:
    """Return an argument as text for a header. None: it has no such text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return None


def _is_integer(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _is_unsafe_integer(value: object) -> bool:
    """Return whether a value is an integer that JavaScript, and so some reader, would round."""
    return (
        isinstance(value, int | float)
        and _is_integer(value)
        and not -_MAX_SAFE_INTEGER <= value <= _MAX_SAFE_INTEGER
    )


def _parse_integer(text: str) -> int | None:
    """Parse `42`, `-7` or `42.0`. None: any other text. `text` is ASCII."""
    whole, point, fraction = text.partition(".")
    if point and (not fraction or fraction.strip("0")):
        return None
    digits = whole[1:] if whole.startswith("-") else whole
    if len(digits) > 32 or not digits.isdigit():
        return None
    return int(whole)


def _encode_base64(raw: bytes) -> str:
    return (
        f"{_SENTINEL_START}{binascii.b2a_base64(raw, newline=False).decode('ascii')}{_SENTINEL_END}"
    )


def _unsafe_integer_problem(param: HeaderParam) -> str:
    return (
        f"Argument {'.'.join(param.path)!r} is an integer beyond 2^53-1, "
        f"which the {param.header} header cannot represent exactly"
    )


def _duplicate_header(header: str) -> ProtocolError:
    return ProtocolError(f"{header} header appears more than once", HEADER_MISMATCH)


def _truncate(value: str) -> str:
    return repr(value if len(value) <= 80 else f"{value[:80]}...")
