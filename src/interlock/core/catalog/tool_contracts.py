"""The contract of a tool: what its upstream says it is, and a digest that changes when that does.

What counts are the words of the upstream, not what a client sees of them: what the operator writes
over a description, what the node adds to every tool, how slow a tool was measured or whether it can
be reached now are no changes of the contract. The order of members and the blanks between them are
none either. Everything that a model or a human could have judged the tool by is one.
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


MEMBERS: Final = ("title", "description", "inputSchema", "outputSchema", "annotations")
"""Members of a definition that belong to the contract, beside its name."""
DECLARED: Final = ("mutable", "reversible", "idempotent", "auth_scope", "cost_class")
"""Values of a capability that do, if the tool declares them: they decide what it may do, and at
what price. The others change with the way to it."""
_REWRITTEN: Final = ("description", "annotations", "_meta")
"""What the node writes into."""


def before_rewriting(members: Mapping[str, Raw]) -> dict[str, Raw]:
    """What of a definition the node may write into, as it came."""
    return {name: members[name] for name in _REWRITTEN if name in members}


def own_words(came: Mapping[str, Raw], members: Mapping[str, Raw]) -> dict[str, bytes] | None:
    """What of that it did write into, as it came; empty where there was nothing. None: nothing."""
    own: dict[str, bytes] = {}
    for name in ("description", "annotations"):
        before = came.get(name)
        if members.get(name) is not before:
            own[name] = b"" if before is None else bytes(before)
    meta = came.get("_meta")
    if meta is not None and CAPABILITY.encode() in bytes(meta):
        own["_meta"] = bytes(meta)
    return own or None


def contract_digest(tool: Tool) -> str:
    """The SHA-256, in hex, of a tool's contract. Made once for each Tool."""
    digest = tool.digest
    if not digest:
        digest = tool.digest = hashlib.sha256(contract(tool)).hexdigest()
    return digest


def approved_digest(tool: Tool) -> str:
    """What somebody says yes to who approves a call of a tool: its contract, and, where drivers
    serve that, its file and none but these drivers, as they are. They are no part of the contract
    itself: who pinned it need not look at it again when a driver comes."""
    digest = contract_digest(tool)
    if not tool.served_by:
        return digest
    whole = "\n".join((digest, tool.file_digest, *tool.served_by))
    return hashlib.sha256(whole.encode()).hexdigest()


def contract(tool: Tool) -> bytes:
    """A tool's contract as canonical JSON: members sorted, no blanks."""
    listed = decode_members(b"{" + tool.listed[1:])
    own = tool.own_words or {}
    said: dict[str, bytes] = {"name": bytes(tool.upstream_name_json)}
    for name in MEMBERS:
        raw = own.get(name)
        if raw is None:
            raw = bytes(listed.get(name, b""))
        if raw:
            said[name] = canonical(raw)
    declared = _declared(own.get("_meta"))
    if declared:
        said["capability"] = canonical(json.dumps(declared).encode())
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), said[name]) for name in sorted(said))


def canonical(raw: bytes) -> bytes:
    """JSON with its members sorted and no blanks between them, in ASCII.

    Members that stand twice stay twice, in their order: which of them counts is for each reader to
    say, so neither may change unseen.
    """
    try:
        text = raw.decode()
        try:
            return _encode(_decode(text)).encode()
        except ValueError:
            # Twice the same member, or a number that is too large for any type.
            written: list[str] = []
            _write(_decode_all(text), written)
            return "".join(written).encode()
    except (ValueError, RecursionError):
        # Nested beyond what can be walked: then its very bytes count.
        return json.dumps(raw.decode(errors="backslashreplace")).encode()


def read_json(raw: bytes) -> Any:
    """JSON with nothing lost: objects are Members, numbers are Number. None: it cannot be read."""
    try:
        return _decode_all(raw.decode())
    except (ValueError, RecursionError):
        return None


def _declared(meta: bytes | None) -> dict[str, Any]:
    """What a tool's capability declares of itself, and no node below derived for it."""
    if meta is None:
        return {}
    try:
        members = decode_members(meta)
        said = decode_members(members[CAPABILITY])
        derived = decode_value(members[DERIVED_KEY]) if DERIVED_KEY in members else None
    except (KeyError, ProtocolError):
        return {}
    if derived is True:
        return {}
    left_out = derived if isinstance(derived, list) else ()
    found: dict[str, Any] = {}
    for name in DECLARED:
        if name in said and name in CAPABILITY_FIELDS and name not in left_out:
            try:
                found[name] = decode_value(said[name])
            except ProtocolError:
                found[name] = bytes(said[name]).decode(errors="backslashreplace")
    return found


class NumberText(str):
    """A number as it is written."""

    __slots__ = ()


class ObjectMembers(list[tuple[str, Any]]):
    """The members of an object, in their order."""

    __slots__ = ()


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise ValueError
    return found


_decode = json.JSONDecoder(object_pairs_hook=_once).decode
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_decode_all = json.JSONDecoder(
    object_pairs_hook=ObjectMembers,
    parse_int=NumberText,
    parse_float=NumberText,
    parse_constant=NumberText,
).decode
_quoted = json.encoder.encode_basestring_ascii


def _write(value: Any, out: list[str]) -> None:
    if isinstance(value, NumberText):
        out.append(value)
    elif isinstance(value, str):
        out.append(_quoted(value))
    elif isinstance(value, ObjectMembers):
        between = "{"
        for name, member in sorted(value, key=_by_name):
            out.append(between)
            out.append(_quoted(name))
            out.append(":")
            _write(member, out)
            between = ","
        out.append("{}" if between == "{" else "}")
    elif isinstance(value, list):
        between = "["
        for item in value:
            out.append(between)
            _write(item, out)
            between = ","
        out.append("[]" if between == "[" else "]")
    else:
        out.append("null" if value is None else "true" if value else "false")


def _by_name(member: tuple[str, Any]) -> str:
    return member[0]


def changed_members(accepted: bytes, now: bytes) -> tuple[str, ...]:
    """The members in which two contracts differ."""
    try:
        one, other = decode_members(accepted), decode_members(now)
    except ProtocolError:
        return ()
    return tuple(
        name
        for name in ("name", *MEMBERS, "capability")
        if bytes(one.get(name, b"")) != bytes(other.get(name, b""))
    )


# -- A tool's contract as lines that a human can read and compare.
#
# Nothing may hide here: a character that cannot be seen is written as its number, blanks at the
# end of a line are dots, and two contracts that differ never read alike.

_SENTENCES: Final = re.compile(r"[^\n]*?(?:\n|[.!?][ \t]+|$)")
_TRAILING: Final = re.compile(r"[ \t]+$")


def contract_lines(definition: bytes) -> list[str]:
    """A contract, member by member: texts sentence by sentence, the rest as indented JSON."""
    value = read_json(definition)
    if not isinstance(value, ObjectMembers):
        return [visible(definition.decode(errors="backslashreplace"))]
    order = {name: place for place, name in enumerate(("name", *MEMBERS))}
    lines: list[str] = []
    for name, member in sorted(value, key=lambda one: (order.get(one[0], len(order)), one[0])):
        if isinstance(member, str) and not isinstance(member, NumberText) and name != "name":
            lines.append(f"{name}:")
            lines.extend(f"  {sentence}" for sentence in _sentences(member))
        else:
            first, *rest = _written(member)
            lines.append(f"{name}: {first}")
            lines.extend(rest)
    return lines


def difference(before: bytes, after: bytes, then: str = "accepted", now: str = "now") -> list[str]:
    """A unified diff of two contracts; empty when they are the same."""
    if canonical(before) == canonical(after):
        return []
    one, other = contract_lines(before), contract_lines(after)
    if one == other:
        # They read alike, and are not: then their bytes are shown.
        one = [*one, visible(before.decode(errors="backslashreplace"))]
        other = [*other, visible(after.decode(errors="backslashreplace"))]
    return list(unified_diff(one, other, then, now, lineterm="", n=3))


def visible(text: str) -> str:
    """Text in which everything can be seen: what has no glyph, or changes the direction of others,
    is written as its number."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _numbered(one) for one in text)


def _numbered(character: str) -> str:
    if character == "\t":
        return "\\t"
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _sentences(text: str) -> list[str]:
    """One line each, so that a change shows where it is."""
    found = [one for one in _SENTENCES.findall(text) if one] or [""]
    lines = []
    for one in found:
        line = one[:-1] if one.endswith("\n") else one
        # A blank between two sentences is what everybody expects; any other is shown.
        if not one.endswith("\n") and one is not found[-1] and line.endswith(" "):
            line = line[:-1]
        elif not one.endswith("\n") and one is not found[-1]:
            line += "\\"
        blanks = _TRAILING.search(line)
        if blanks is not None:
            line = line[: blanks.start()] + "·" * len(blanks[0])
        lines.append(visible(line))
    if text.endswith("\n"):
        lines.append("")
    return lines


def _written(value: Any) -> list[str]:
    """JSON over several lines."""
    if isinstance(value, NumberText):
        return [visible(value)]
    if isinstance(value, ObjectMembers):
        if not value:
            return ["{}"]
        return [
            "{",
            *_items([(f"{_contract_lines_quoted(name)}: ", one) for name, one in value]),
            "}",
        ]
    if isinstance(value, list):
        if not value:
            return ["[]"]
        return ["[", *_items([("", one) for one in value]), "]"]
    if isinstance(value, str):
        return [_contract_lines_quoted(value)]
    return [json.dumps(value)]


def _items(items: list[tuple[str, Any]]) -> list[str]:
    lines: list[str] = []
    for place, (before, value) in enumerate(items):
        first, *rest = _written(value)
        written = [before + first, *rest]
        if place < len(items) - 1:
            written[-1] += ","
        lines.extend(f"  {line}" for line in written)
    return lines


def _contract_lines_quoted(text: str) -> str:
    return visible(json.dumps(text, ensure_ascii=False))
