"""The contract of a tool: how its upstream defines it, and a digest that changes with it.

Only the upstream's own definition counts. Texts that the operator overrides, metadata that the node
adds, measured latency and availability are not part of it, nor are the order of members and
whitespace. Everything by which a model or a person could judge the tool is part of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from interlock.errors import ProtocolError
from interlock.protocol.capabilities import CAPABILITY_FIELDS, DERIVED_KEY
from interlock.protocol.jsonrpc import decode_members, decode_value
from interlock.protocol.mcpax import CAPABILITY

if TYPE_CHECKING:
    from interlock.core.catalog.offering import Tool


CONTRACT_MEMBERS: Final = ("title", "description", "inputSchema", "outputSchema", "annotations")
"""Members of a definition that belong to the contract, in addition to its name."""
CONTRACT_CAPABILITY_NAMES: Final = (
    "mutable",
    "reversible",
    "idempotent",
    "auth_scope",
    "cost_class",
)
"""Declared values of a capability that belong to the contract: they decide what the tool may do and
its price. The others change with the route to the tool."""
_REWRITABLE: Final = ("description", "annotations", "_meta")
"""Members that the node may rewrite."""


def rewritable_members(members: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the original members of a definition that the node may rewrite."""
    return {name: members[name] for name in _REWRITABLE if name in members}


def find_rewritten_members(
    original: Mapping[str, Raw], members: Mapping[str, Raw]
) -> dict[str, bytes] | None:
    """Return the original values of members that the node rewrote. Empty value: there was none.
    None: nothing was rewritten."""
    result: dict[str, bytes] = {}
    for name in ("description", "annotations"):
        value = original.get(name)
        if members.get(name) is not value:
            result[name] = b"" if value is None else bytes(value)
    meta = original.get("_meta")
    if meta is not None and CAPABILITY.encode() in bytes(meta):
        result["_meta"] = bytes(meta)
    return result or None


def contract_digest(tool: Tool) -> str:
    """Return the SHA-256 of a tool's contract, in hex. Computed once for each Tool."""
    digest = tool.digest
    if not digest:
        digest = tool.digest = hashlib.sha256(encode_contract(tool)).hexdigest()
    return digest


def approved_digest(tool: Tool) -> str:
    """Return the digest that an approval of a call covers.

    It covers the contract and, for a contract that drivers serve, its file and exactly these
    drivers. Drivers are not part of the contract itself: a pin stays valid when a driver is added.
    """
    digest = contract_digest(tool)
    if not tool.served_by:
        return digest
    text = "\n".join((digest, tool.file_digest, *tool.served_by))
    return hashlib.sha256(text.encode()).hexdigest()


def encode_contract(tool: Tool) -> bytes:
    """Return a tool's contract as canonical JSON: sorted members, no whitespace."""
    listed = decode_members(b"{" + tool.listed[1:])
    upstream_members = tool.upstream_members or {}
    members: dict[str, bytes] = {"name": bytes(tool.upstream_name_json)}
    for name in CONTRACT_MEMBERS:
        raw = upstream_members.get(name)
        if raw is None:
            raw = bytes(listed.get(name, b""))
        if raw:
            members[name] = canonicalize(raw)
    capability = _declared(upstream_members.get("_meta"))
    if capability:
        members["capability"] = canonicalize(json.dumps(capability).encode())
    return b"{%b}" % b",".join(
        b'"%b":%b' % (name.encode(), members[name]) for name in sorted(members)
    )


def canonicalize(raw: bytes) -> bytes:
    """Return JSON with sorted members and no whitespace, in ASCII.

    Duplicate members are kept in their order: readers differ in which of them counts, so neither
    may change unnoticed.
    """
    try:
        text = raw.decode()
        try:
            return _encode(_decode(text)).encode()
        except ValueError:
            # Duplicate members, or a number that is too large for any type.
            parts: list[str] = []
            _write_json(_decode_all(text), parts)
            return "".join(parts).encode()
    except (ValueError, RecursionError):
        # Nested too deeply to be processed: use the bytes as they are.
        return json.dumps(raw.decode(errors="backslashreplace")).encode()


def read_json(raw: bytes) -> Any:
    """Decode JSON without loss: objects are ObjectMembers, numbers NumberText. None: invalid."""
    try:
        return _decode_all(raw.decode())
    except (ValueError, RecursionError):
        return None


def _declared(meta: bytes | None) -> dict[str, Any]:
    """Return the capability values that the tool declares and no subnode derived."""
    if meta is None:
        return {}
    try:
        members = decode_members(meta)
        capability = decode_members(members[CAPABILITY])
        derived = decode_value(members[DERIVED_KEY]) if DERIVED_KEY in members else None
    except (KeyError, ProtocolError):
        return {}
    if derived is True:
        return {}
    derived_names = derived if isinstance(derived, list) else ()
    declared: dict[str, Any] = {}
    for name in CONTRACT_CAPABILITY_NAMES:
        if name in capability and name in CAPABILITY_FIELDS and name not in derived_names:
            try:
                declared[name] = decode_value(capability[name])
            except ProtocolError:
                declared[name] = bytes(capability[name]).decode(errors="backslashreplace")
    return declared


class NumberText(str):
    """A number as it was written."""

    __slots__ = ()


class ObjectMembers(list[tuple[str, Any]]):
    """The members of an object, in their order."""

    __slots__ = ()


def _reject_duplicates(members: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(members)
    if len(result) != len(members):
        raise ValueError
    return result


_decode = json.JSONDecoder(object_pairs_hook=_reject_duplicates).decode
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_decode_all = json.JSONDecoder(
    object_pairs_hook=ObjectMembers,
    parse_int=NumberText,
    parse_float=NumberText,
    parse_constant=NumberText,
).decode
_quote = json.encoder.encode_basestring_ascii


def _write_json(value: Any, out: list[str]) -> None:
    if isinstance(value, NumberText):
        out.append(value)
    elif isinstance(value, str):
        out.append(_quote(value))
    elif isinstance(value, ObjectMembers):
        separator = "{"
        for name, member in sorted(value, key=_member_name):
            out.append(separator)
            out.append(_quote(name))
            out.append(":")
            _write_json(member, out)
            separator = ","
        out.append("{}" if separator == "{" else "}")
    elif isinstance(value, list):
        separator = "["
        for item in value:
            out.append(separator)
            _write_json(item, out)
            separator = ","
        out.append("[]" if separator == "[" else "]")
    else:
        out.append("null" if value is None else "true" if value else "false")


def _member_name(member: tuple[str, Any]) -> str:
    return member[0]


def find_changed_members(accepted: bytes, current: bytes) -> tuple[str, ...]:
    """Return the members in which two contracts differ."""
    try:
        accepted_members, current_members = decode_members(accepted), decode_members(current)
    except ProtocolError:
        return ()
    return tuple(
        name
        for name in ("name", *CONTRACT_MEMBERS, "capability")
        if bytes(accepted_members.get(name, b"")) != bytes(current_members.get(name, b""))
    )


# -- A tool's contract as lines that a person can read and compare.
#
# Nothing can be hidden: invisible characters are written as escapes, blanks at the end of a line as
# dots, and two different contracts never look the same.

_SENTENCES: Final = re.compile(r"[^\n]*?(?:\n|[.!?][ \t]+|$)")
_TRAILING: Final = re.compile(r"[ \t]+$")


def format_contract(definition: bytes) -> list[str]:
    """Format a contract by member: texts sentence by sentence, the rest as indented JSON."""
    value = read_json(definition)
    if not isinstance(value, ObjectMembers):
        return [escape_invisible(definition.decode(errors="backslashreplace"))]
    order = {name: index for index, name in enumerate(("name", *CONTRACT_MEMBERS))}
    lines: list[str] = []
    for name, member in sorted(value, key=lambda one: (order.get(one[0], len(order)), one[0])):
        if isinstance(member, str) and not isinstance(member, NumberText) and name != "name":
            lines.append(f"{name}:")
            lines.extend(f"  {sentence}" for sentence in _split_sentences(member))
        else:
            first, *rest = _format_json(member)
            lines.append(f"{name}: {first}")
            lines.extend(rest)
    return lines


def diff_contracts(
    before: bytes, after: bytes, from_label: str = "accepted", to_label: str = "now"
) -> list[str]:
    """Return a unified diff of two contracts. Empty: they are the same."""
    if canonicalize(before) == canonicalize(after):
        return []
    old_lines, new_lines = format_contract(before), format_contract(after)
    if old_lines == new_lines:
        # They look the same but differ, so their bytes are shown.
        old_lines = [*old_lines, escape_invisible(before.decode(errors="backslashreplace"))]
        new_lines = [*new_lines, escape_invisible(after.decode(errors="backslashreplace"))]
    return list(unified_diff(old_lines, new_lines, from_label, to_label, lineterm="", n=3))


def escape_invisible(text: str) -> str:
    """Return text with all characters visible: those without a glyph, or that change the text
    direction, are written as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escape(character) for character in text
    )


def _escape(character: str) -> str:
    if character == "\t":
        return "\\t"
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _split_sentences(text: str) -> list[str]:
    """Split a text into sentences, one per line, so that a change shows where it is."""
    sentences = [sentence for sentence in _SENTENCES.findall(text) if sentence] or [""]
    lines = []
    for sentence in sentences:
        line = sentence[:-1] if sentence.endswith("\n") else sentence
        # One blank between two sentences is normal; any other whitespace is shown.
        if not sentence.endswith("\n") and sentence is not sentences[-1] and line.endswith(" "):
            line = line[:-1]
        elif not sentence.endswith("\n") and sentence is not sentences[-1]:
            line += "\\"
        blanks = _TRAILING.search(line)
        if blanks is not None:
            line = line[: blanks.start()] + "·" * len(blanks[0])
        lines.append(escape_invisible(line))
    if text.endswith("\n"):
        lines.append("")
    return lines


def _format_json(value: Any) -> list[str]:
    """Format JSON on several lines."""
    if isinstance(value, NumberText):
        return [escape_invisible(value)]
    if isinstance(value, ObjectMembers):
        if not value:
            return ["{}"]
        return [
            "{",
            *_format_items([(f"{_quote_visible(name)}: ", value) for name, value in value]),
            "}",
        ]
    if isinstance(value, list):
        if not value:
            return ["[]"]
        return ["[", *_format_items([("", item) for item in value]), "]"]
    if isinstance(value, str):
        return [_quote_visible(value)]
    return [json.dumps(value)]


def _format_items(items: list[tuple[str, Any]]) -> list[str]:
    lines: list[str] = []
    for index, (prefix, value) in enumerate(items):
        first, *rest = _format_json(value)
        item_lines = [prefix + first, *rest]
        if index < len(items) - 1:
            item_lines[-1] += ","
        lines.extend(f"  {line}" for line in item_lines)
    return lines


def _quote_visible(text: str) -> str:
    return escape_invisible(json.dumps(text, ensure_ascii=False))
