"""Conversion of YAML scalars to typed values: text, choices, numbers, durations, sizes.

The functions take a node and the declared type of its field, and raise `InvalidValueError` with a
hint. A message quotes a value only if the field cannot contain a secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import inspect
from yaml.nodes import Node, ScalarNode

from interlock.core.config import quantities, yaml_text
from interlock.core.config.problems import InvalidValueError, join_alternatives, quote
from interlock.core.config.secrets import EnvReference, references
from interlock.protocol.mcpax import is_authority

DESCRIBED: Final = {
    yaml_text.TEXT: "text",
    yaml_text.INTEGER: "a number",
    yaml_text.NUMBER: "a number",
    yaml_text.BOOLEAN: "true or false",
    yaml_text.NULL: "nothing",
    yaml_text.MAPPING: "a mapping",
    yaml_text.LIST: "a list",
}
_SECRET_FORMS: Final = "write ${env:NAME} or ${file:path}"
_PATTERN_MESSAGES: Final = {
    "segment": ("is not a segment", "use 1 to 63 of a-z, 0-9, _ and -"),
    "server_key": ("cannot be the name of a server", "use up to 100 printable characters"),
    "tool_name": ("is not a tool name", "use 1 to 128 of letters, digits, _, - and ."),
    "origin": ("is not an origin", "write scheme://host, such as https://app.example.com"),
    "host": ("is not a host", "write a host name or address, and :port if needed"),
    "variable": ("is not the name of a variable", "use A-Z, 0-9 and _"),
    "header": ("is not the name of a header", "use letters, digits and -"),
    "path": ("is not a path", "write it with a slash in front, such as /mcp"),
    "view": ("cannot be the name of a view", "write small letters, digits, - and _"),
    "family": ("cannot be the name of an endpoint", "write small letters, digits and _"),
    "operation": ("cannot be the name of an operation", "write small letters, digits and _"),
    "prefix": ("cannot be a prefix", "write small letters, and _ as the last one"),
    "scope": ("is not a scope", "write read, write or admin, with :NAMES if it is for some tools"),
}


def unwrap(declared: inspect.Type) -> tuple[inspect.Type, str, bool]:
    """Return the bare type, its kind, and whether null is allowed."""
    kind, optional = "", False
    while True:
        if isinstance(declared, inspect.Metadata):
            kind = (declared.extra or {}).get("kind", kind)
            declared = declared.type
        elif isinstance(declared, inspect.UnionType):
            optional = optional or declared.includes_none
            (declared,) = (t for t in declared.types if not isinstance(t, inspect.NoneType))
        else:
            return declared, kind, optional


def as_text(node: Node) -> str:
    """Return the text of a scalar. JSON escapes of surrogate pairs are joined."""
    text: str = node.value
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise InvalidValueError(
                "this text has half a surrogate pair", "check its escapes"
            ) from None
    return text


def _as_number(node: Node) -> int | float:
    text: str = node.value
    if len(text) > 24:
        raise InvalidValueError("this number is too long", "write a smaller one")
    if node.tag == yaml_text.INTEGER:
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    # YAML writes infinity as .inf; a large exponent gets there too.
    number = math.inf if text.lstrip("+-").lower() in (".inf", ".nan") else float(text)
    if not math.isfinite(number):
        raise InvalidValueError("a finite number is needed here", "write a smaller one")
    return number


def _read_text(node: Node, declared: inspect.Type, kind: str) -> str:
    if not isinstance(node, ScalarNode):
        raise InvalidValueError(f"expected text, found {DESCRIBED[node.tag]}", "write one value")
    takes_number = kind == "scalar_reference" or (
        kind == "listen" and node.tag == yaml_text.INTEGER
    )
    if node.tag != yaml_text.TEXT and not takes_number:
        raise InvalidValueError(f"expected text, found {DESCRIBED[node.tag]}", "put it in quotes")
    text = as_text(node)
    if kind.endswith("reference"):
        _check_references(text, secret=kind == "secret_reference")
    elif kind == "listen":
        text = quantities.check_listen(text)
    elif kind == "url":
        references(text)
        quantities.check_url(text)
    elif kind == "parent_url":
        references(text)
        quantities.check_parent_url(text)
    elif kind == "authority" and not is_authority(text):
        raise InvalidValueError(
            f"{quote(text)} is not an authority",
            "write a DNS name behind dns:, such as dns:edge01.factory.example.com",
        )
    if isinstance(declared, inspect.StrType):
        if declared.min_length and len(text) < declared.min_length:
            raise InvalidValueError("the text is empty", "write a text, or remove the key")
        check_pattern(text, declared, kind)
    return text


def _check_references(text: str, *, secret: bool) -> None:
    try:
        text_references = references(text)
    except InvalidValueError as bad:
        # A default would be a secret in plain text.
        hint = _SECRET_FORMS if secret and ":-" in bad.hint else bad.hint
        raise InvalidValueError(bad.message, hint) from None
    if secret and not text_references:
        raise InvalidValueError(
            "the secret itself is not allowed here", "refer to it with ${env:NAME}"
        )
    for reference in text_references:
        if secret and isinstance(reference, EnvReference) and reference.default:
            name = reference.name
            raise InvalidValueError(
                "the secret itself is not allowed here, nor a default for it",
                f"write ${{env:{name}}}, and set {name} before the node starts",
            )


def check_pattern(text: str, declared: inspect.Type, kind: str) -> None:
    """Raise InvalidValueError for text that does not match the pattern of its type."""
    pattern = declared.pattern if isinstance(declared, inspect.StrType) else None
    if pattern and not re.fullmatch(pattern, text):
        message, hint = _PATTERN_MESSAGES[kind]
        raise InvalidValueError(f"{quote(text)} {message}", hint)


def _read_choice(node: Node, declared: inspect.Type, kind: str) -> str:
    assert isinstance(declared, inspect.LiteralType)
    choices = [str(value) for value in declared.values]
    if not isinstance(node, ScalarNode) or node.value not in choices:
        label = quote(as_text(node)) if isinstance(node, ScalarNode) else DESCRIBED[node.tag]
        raise InvalidValueError(
            f"{label} is not one of the choices", f"write {join_alternatives(choices)}"
        )
    return str(node.value)


def _read_bool(node: Node, declared: inspect.Type, kind: str) -> bool:
    if node.tag != yaml_text.BOOLEAN:
        raise InvalidValueError(
            f"expected true or false, found {DESCRIBED[node.tag]}", "write true or false"
        )
    return str(node.value).lower() == "true"


def _read_integer(node: Node, declared: inspect.Type, kind: str) -> int:
    if kind == "size":
        return quantities.parse_size(_text_or_number(node, size=True))
    number = _as_number(node) if node.tag in (yaml_text.INTEGER, yaml_text.NUMBER) else None
    if number is None or number != int(number):
        digits = str(node.value).replace("_", "") if isinstance(node, ScalarNode) else ""
        hint = f"write {digits}" if re.fullmatch("[0-9]{1,18}", digits) else "write digits only"
        raise InvalidValueError(f"expected a whole number, found {DESCRIBED[node.tag]}", hint)
    assert isinstance(declared, inspect.IntType)
    if declared.ge is not None and number < declared.ge:
        raise InvalidValueError(
            f"this must be at least {declared.ge}", f"write {declared.ge} or more"
        )
    if declared.le is not None and number > declared.le:
        raise InvalidValueError(
            f"this must be at most {declared.le}", f"write {declared.le} or less"
        )
    return int(number)


def _read_float(node: Node, declared: inspect.Type, kind: str) -> float:
    if kind.startswith("duration"):
        return quantities.read_duration(_text_or_number(node), zero=kind == "duration_or_zero")
    if node.tag not in (yaml_text.INTEGER, yaml_text.NUMBER):
        raise InvalidValueError(
            f"expected a number, found {DESCRIBED[node.tag]}", "write digits only"
        )
    number = float(_as_number(node))
    assert isinstance(declared, inspect.FloatType)
    if declared.gt is not None and number <= declared.gt:
        raise InvalidValueError(f"this must be more than {declared.gt:g}", "write a larger number")
    if declared.ge is not None and number < declared.ge:
        raise InvalidValueError(
            f"this must be at least {declared.ge:g}", f"write {declared.ge:g} or more"
        )
    if declared.le is not None and number > declared.le:
        share = number / 100
        is_percentage = declared.le == 1 and declared.ge is not None and declared.ge <= share <= 1
        hint = f"write {declared.le:g} or less"
        if is_percentage:
            hint = f"write {share:g} for {number:g} %"
        raise InvalidValueError(f"this must be at most {declared.le:g}", hint)
    return number


def _read_plain(node: Node, declared: inspect.Type, kind: str) -> bool | int | float | str:
    """Read a scalar of any type, as YAML defines it."""
    if not isinstance(node, ScalarNode):
        raise InvalidValueError(
            f"expected one value, found {DESCRIBED[node.tag]}", "write one value"
        )
    if node.tag == yaml_text.BOOLEAN:
        return _read_bool(node, declared, kind)
    if node.tag in (yaml_text.INTEGER, yaml_text.NUMBER):
        return _as_number(node)
    return as_text(node)


def _text_or_number(node: Node, *, size: bool = False) -> str | int | float:
    if node.tag in (yaml_text.INTEGER, yaml_text.NUMBER):
        return _as_number(node)
    if node.tag != yaml_text.TEXT:
        raise InvalidValueError(
            f"expected a number with a unit, found {DESCRIBED[node.tag]}",
            "write one such as 4MiB" if size else "write one such as 30s",
        )
    return as_text(node)


_READERS: Final[dict[type[inspect.Type], Callable[[Node, inspect.Type, str], Any]]] = {
    inspect.StrType: _read_text,
    inspect.LiteralType: _read_choice,
    inspect.BoolType: _read_bool,
    inspect.IntType: _read_integer,
    inspect.FloatType: _read_float,
    inspect.AnyType: _read_plain,
}


def read_scalar(node: Node, declared: inspect.Type, kind: str) -> Any:
    """Return the value of a node as its declared type. Raises InvalidValueError."""
    return _READERS[type(declared)](node, declared, kind)
