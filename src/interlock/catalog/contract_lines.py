"""A tool's contract as lines that a human can read and compare.

Nothing may hide here: a character that cannot be seen is written as its number, blanks at the end
of a line are dots, and two contracts that differ never read alike.
"""

from __future__ import annotations

import json
import re
from difflib import unified_diff
from typing import Any, Final

from interlock.catalog.pinning import MEMBERS, Members, Number, canonical, read_json

_SENTENCES: Final = re.compile(r"[^\n]*?(?:\n|[.!?][ \t]+|$)")
_TRAILING: Final = re.compile(r"[ \t]+$")


def contract_lines(definition: bytes) -> list[str]:
    """A contract, member by member: texts sentence by sentence, the rest as indented JSON."""
    value = read_json(definition)
    if not isinstance(value, Members):
        return [visible(definition.decode(errors="backslashreplace"))]
    order = {name: place for place, name in enumerate(("name", *MEMBERS))}
    lines: list[str] = []
    for name, member in sorted(value, key=lambda one: (order.get(one[0], len(order)), one[0])):
        if isinstance(member, str) and not isinstance(member, Number) and name != "name":
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
    if isinstance(value, Number):
        return [visible(value)]
    if isinstance(value, Members):
        if not value:
            return ["{}"]
        return ["{", *_items([(f"{_quoted(name)}: ", one) for name, one in value]), "}"]
    if isinstance(value, list):
        if not value:
            return ["[]"]
        return ["[", *_items([("", one) for one in value]), "]"]
    if isinstance(value, str):
        return [_quoted(value)]
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


def _quoted(text: str) -> str:
    return visible(json.dumps(text, ensure_ascii=False))
