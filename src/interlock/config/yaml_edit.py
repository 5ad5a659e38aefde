"""Changes a YAML text in one place, so that all else in it stays: comments, order and layout."""

from __future__ import annotations

import re

from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from interlock.config.render import dump_flow


def with_flow_entry(text: str, mapping: MappingNode, key: str, plain: object) -> str:
    """Add `key: plain` to a { } mapping, on a line of its own if the others are."""
    entry = f"{dump_flow(key)}: {dump_flow(plain)}"
    if not mapping.value:
        at = mapping.start_mark.index + 1
        return text[:at] + entry + text[at:]
    last_key, last_value = mapping.value[-1]
    at = max(last_key.end_mark.index, last_value.end_mark.index)
    first = mapping.value[0][0]
    own_lines = first.start_mark.line > mapping.start_mark.line
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = f",{newline}{' ' * first.start_mark.column}" if own_lines else ", "
    return text[:at] + gap + entry + text[at:]


def replaced(text: str, node: Node, new: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    before = text[:start] if new else text[:start].rstrip(" ")
    return before + new + text[end:]


def end_of(text: str, key: Node, value: Node) -> int:
    """Where the line after an entry begins."""
    if value.start_mark.index < key.end_mark.index:
        # An alias: the node stands where its anchor is, the entry ends on the key's line.
        return line_end(text, key.end_mark.index)
    if isinstance(value, ScalarNode) and value.style in ("|", ">"):
        end = value.end_mark.index
        return end if end and text[end - 1] == "\n" else line_end(text, end)
    if isinstance(value, CollectionNode) and value.value and not value.flow_style:
        last = value.value[-1]
        return end_of(text, *last) if isinstance(last, tuple) else end_of(text, key, last)
    return line_end(text, value.end_mark.index)


def line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def after_comments(text: str, index: int, column: int) -> int:
    """Past the comments that are indented like the entries: they belong to what is above."""
    while index < len(text):
        end = line_end(text, index)
        line = text[index:end]
        stripped = line.lstrip(" ")
        if not stripped.startswith("#") or len(line) - len(stripped) < column:
            break
        index = end
    return index


def with_lines(text: str, index: int, lines: str, newline: str) -> str:
    before, after = text[:index], text[index:]
    if before and not before.endswith("\n"):
        before += newline
    return before + lines.replace("\n", newline) + after


def indented(lines: str, column: int) -> str:
    return "".join(f"{' ' * column}{line}" for line in re.findall(r"[^\n]*\n", lines))
