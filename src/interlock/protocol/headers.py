"""The header rules of MCP 2026-07-28: what a request's body says, mirrored into HTTP headers.

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
"""The methods that need `Mcp-Name`, and the field of `params` that it mirrors."""

ANNOTATION: Final = "x-mcp-header"

_BEARER: Final = b"bearer "

_SENTINEL_START: Final = "=?base64?"
_SENTINEL_END: Final = "?="
_WHITE: Final = b" \t"
_MAX_SAFE_INTEGER: Final = 2**53 - 1
_TOKEN: Final = frozenset(
    "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
_TYPES: Final = frozenset({"string", "integer", "boolean"})
# The JSON Schema keywords, of 2020-12 and before, under which another schema stands. An
# annotation below any of them cannot be read off the arguments by a path. What stands under
# other keywords (`default`, `const`, `enum`, `examples` ...) is data, not schema.
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
    """A tool's schema has an `x-mcp-header` that breaks the rules: the tool must not be offered."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, UPSTREAM_PROTOCOL)
        self.reason = reason


class HeaderParam(msgspec.Struct, frozen=True):
    """A tool's argument that travels in a header too.

    `path` leads to it in the arguments, `header` is the whole header name (`Mcp-Param-Region`),
    `key` the same as a receiver sees it.
    """

    path: tuple[str, ...]
    header: str
    type: str
    key: bytes = b""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "key", self.header.lower().encode("ascii"))


def read_bearer(value: bytes | None) -> str | None:
    """The token in the value of an `Authorization` header; None when it has none."""
    if value is None or value[: len(_BEARER)].lower() != _BEARER:
        return None
    return value[len(_BEARER) :].strip().decode("latin-1")


def encode_header_value(value: str) -> str:
    """`value` as it may stand in a header: as it is where that is safe, else in base64."""
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
            "A value that a header must carry is not valid text: it holds half a character.",
            INVALID_PARAMS,
        ) from None
    return _wrap(raw)


def decode_header_value(value: str) -> str | None:
    """What `value`, read from a header, stands for. None if it is malformed."""
    if not value.isascii():
        return None
    # Start and end may not share their question mark: `=?base64?=` is a plain value.
    if (
        value.startswith(_SENTINEL_START)
        and value.endswith(_SENTINEL_END)
        and len(value) >= len(_SENTINEL_START) + len(_SENTINEL_END)
    ):
        try:
            raw = binascii.a2b_base64(value[len(_SENTINEL_START) : -len(_SENTINEL_END)])
            # Only the one canonical spelling: two spellings of a value are two values to a router.
            return raw.decode() if _wrap(raw) == value else None
        except ValueError:
            return None
    if value.isprintable() or value.replace("\t", "").isprintable():
        return value
    return None


def read_header_params(input_schema: object) -> tuple[HeaderParam, ...]:
    """The arguments that a tool's schema wants mirrored into headers, in the schema's order.

    Raises InvalidHeaderAnnotation if any annotation breaks the rules.
    """
    found: dict[str, HeaderParam] = {}
    for path, schema in _schemas(input_schema):
        if ANNOTATION not in schema:
            continue
        if not path:
            raise InvalidHeaderAnnotation(
                f"{ANNOTATION} stands where it cannot be read off the arguments: "
                "it may only be on a property reached through nothing but `properties`"
            )
        where = ".".join(path)
        token = schema[ANNOTATION]
        if not isinstance(token, str):
            raise InvalidHeaderAnnotation(f"{ANNOTATION} of {where!r} must be a string")
        if not token or not _TOKEN.issuperset(token):
            raise InvalidHeaderAnnotation(
                f"{ANNOTATION} of {where!r} is {_clip(token)}, which is not a header name: "
                "letters, digits and !#$%&'*+-.^_`|~ only"
            )
        kind = schema.get("type")
        if not isinstance(kind, str) or kind not in _TYPES:
            raise InvalidHeaderAnnotation(
                f"{ANNOTATION} of {where!r} needs a property whose type is "
                "string, integer or boolean"
            )
        param = HeaderParam(path, f"Mcp-Param-{token}", kind)
        same = found.setdefault(token.lower(), param)
        if same is not param:
            raise InvalidHeaderAnnotation(
                f"{ANNOTATION} {_clip(token)} is on both {'.'.join(same.path)!r} and {where!r}"
            )
    return tuple(found.values())


def write_param_headers(
    params: Sequence[HeaderParam], arguments: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    """The `Mcp-Param-*` headers a client sends with `arguments`, names and values."""
    headers: list[tuple[str, str]] = []
    for param in params:
        value = _value_at(param.path, arguments)
        if _is_unsafe_integer(value):
            raise ProtocolError(f"{_unsafe(param)}.", INVALID_PARAMS)
        text = _text(value)
        if text is not None:
            headers.append((param.header, encode_header_value(text)))
    return headers


def check_param_headers(
    params: Sequence[HeaderParam],
    arguments: Mapping[str, Any] | None,
    headers: Iterable[tuple[bytes, bytes]],
) -> str | None:
    """What is wrong with the `Mcp-Param-*` headers of a call with `arguments`, or None.

    The sentence names header and argument, never their values: a value may be private.
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
        problem = _check_param(param, _value_at(param.path, arguments), sent.get(param.key))
        if problem is not None:
            return problem
    return None


def pick_request_headers(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[bytes | None, bytes | None, bytes | None]:
    """The values of `Mcp-Protocol-Version`, `Mcp-Method` and `Mcp-Name`, in that order.

    Raises ProtocolError for one that is there twice: the first reader and the last would differ.
    """
    version: bytes | None = None
    method: bytes | None = None
    name: bytes | None = None
    for key, value in headers:
        if not key.startswith(b"mcp-"):
            continue
        if key == METHOD:
            if method is not None:
                raise _appears_twice("Mcp-Method")
            method = value
        elif key == NAME:
            if name is not None:
                raise _appears_twice("Mcp-Name")
            name = value
        elif key == PROTOCOL_VERSION:
            if version is not None:
                raise _appears_twice("MCP-Protocol-Version")
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
    """What is wrong with the standard headers of a request, or None.

    `body_name` is the field of `params` that NAME_FIELD gives for the method. Where it is absent
    from the body the params are invalid, and that is for another check to say.
    """
    if version_header is None:
        return "MCP-Protocol-Version header is missing"
    version = version_header.strip(_WHITE).decode("latin-1")
    if version != body_version:
        if body_version is None:
            return "MCP-Protocol-Version header is there but the body's _meta has no version"
        return (
            f"MCP-Protocol-Version header value {_clip(version)} does not match "
            f"body value {_clip(body_version)}"
        )
    if method_header is None:
        return "Mcp-Method header is missing"
    named = method_header.strip(_WHITE).decode("latin-1")
    if named != method:
        return f"Mcp-Method header value {_clip(named)} does not match body value {_clip(method)}"
    field = NAME_FIELDS.get(method)
    if field is None or body_name is None:
        return None
    if name_header is None:
        return "Mcp-Name header is missing"
    name = decode_header_value(name_header.strip(_WHITE).decode("latin-1"))
    if name == body_name:
        return None
    if name is None:
        return "Mcp-Name header is malformed: it holds characters or base64 that are not allowed"
    if field != "name":
        # An address can hold a credential, and a task's id may be one: neither is repeated.
        return f"Mcp-Name header value does not match params.{field} in the body"
    return f"Mcp-Name header value {_clip(name)} does not match body value {_clip(body_name)}"


def _check_param(param: HeaderParam, value: object, raw: bytes | None) -> str | None:
    argument = ".".join(param.path)
    if value is None:
        if raw is None:
            return None
        return f"{param.header} header is there but argument {argument!r} is not in the body"
    if _is_unsafe_integer(value):
        return _unsafe(param)
    text = _text(value)
    if raw is None:
        # A value that no header can carry is one that the schema refuses.
        if text is None:
            return None
        return f"{param.header} header is missing but argument {argument!r} is in the body"
    sent = decode_header_value(raw.strip(_WHITE).decode("latin-1"))
    if sent is None:
        return (
            f"{param.header} header is malformed: it holds characters or base64 "
            "that are not allowed"
        )
    if sent == text or (
        param.type == "integer" and _is_whole(value) and _whole_number(sent) == value
    ):
        return None
    return f"{param.header} header does not match argument {argument!r} in the body"


def _schemas(root: object) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every schema inside `root`, with its chain of `properties` keys.

    The chain is empty for the root and for whatever is not reached by `properties` alone.
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


def _value_at(path: tuple[str, ...], arguments: object) -> object:
    for name in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(name)
    return arguments


def _text(value: object) -> str | None:
    """How an argument is written in a header; None for what cannot be."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return None


def _is_whole(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _is_unsafe_integer(value: object) -> bool:
    """Whether it is a whole number that JavaScript, and so some reader on the way, would round."""
    return (
        isinstance(value, int | float)
        and _is_whole(value)
        and not -_MAX_SAFE_INTEGER <= value <= _MAX_SAFE_INTEGER
    )


def _whole_number(text: str) -> int | None:
    """`42`, `-7`, `42.0` as a number; None for any other text. `text` is ASCII."""
    whole, point, fraction = text.partition(".")
    if point and (not fraction or fraction.strip("0")):
        return None
    digits = whole[1:] if whole.startswith("-") else whole
    if len(digits) > 32 or not digits.isdigit():
        return None
    return int(whole)


def _wrap(raw: bytes) -> str:
    return (
        f"{_SENTINEL_START}{binascii.b2a_base64(raw, newline=False).decode('ascii')}{_SENTINEL_END}"
    )


def _unsafe(param: HeaderParam) -> str:
    return (
        f"Argument {'.'.join(param.path)!r} is a whole number beyond 2^53-1, "
        f"which {param.header} header cannot carry exactly"
    )


def _appears_twice(header: str) -> ProtocolError:
    return ProtocolError(f"{header} header appears more than once", HEADER_MISMATCH)


def _clip(value: str) -> str:
    return repr(value if len(value) <= 80 else f"{value[:80]}...")
