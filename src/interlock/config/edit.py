"""Adding a server to the text of a config: comments, order and layout of the rest stay.

Text in, text out. The place is found in the tree of the parsed text, and the result is parsed
again: it must say exactly what the old text said, and the new server.
"""

from __future__ import annotations

import re

from msgspec.structs import replace
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from interlock.config.load import DEFAULT_NAME, parse_config
from interlock.config.model import Config, ServerConfig
from interlock.config.problems import ConfigError, quoted
from interlock.config.render import dump, dump_flow, plain_server
from interlock.config.yaml_text import compose


def add_server(text: str, key: str, server: ServerConfig, filename: str = DEFAULT_NAME) -> str:
    """The text with one server more. Raises ConfigError when the text, the key or the result is
    not a good config."""
    before = parse_config(text, filename)
    if key in before.servers:
        raise ConfigError.of(
            f"there is already a server {quoted(key)}", "choose another name", file=filename
        )
    edited = _inserted(text, key, server, filename)
    by_hand = ConfigError.of(
        "the layout of this file is too unusual to be edited safely",
        f"add the server {quoted(key)} below servers: yourself",
        file=filename,
    )
    try:
        compose(edited, filename)
    except ConfigError:
        raise by_hand from None
    after = parse_config(edited, filename)
    expected = Config(servers={**before.servers, key: server}).servers
    if after != replace(before, servers=expected):
        raise by_hand
    return edited


def _inserted(text: str, key: str, server: ServerConfig, filename: str) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    plain = plain_server(key, server)
    entry = dump({key: plain})
    root = compose(text, filename)
    if not isinstance(root, MappingNode):
        return _with_lines(text, len(text), "servers:\n" + _indented(entry, 2), newline)
    found = next((pair for pair in root.value if pair[0].value == "servers"), None)
    if root.flow_style:
        if found is None:
            return _with_flow_entry(text, root, "servers", {key: plain})
        if isinstance(found[1], MappingNode):
            return _with_flow_entry(text, found[1], key, plain)
        return _replaced(text, found[1], dump_flow({key: plain}))
    if found is None:
        block = _indented("servers:\n" + _indented(entry, 2), root.start_mark.column)
        return _with_lines(text, len(text), block, newline)
    name, servers = found
    if isinstance(servers, MappingNode) and servers.value:
        if servers.flow_style:
            return _with_flow_entry(text, servers, key, plain)
        column = servers.value[0][0].start_mark.column
        at = _after_comments(text, _after(text, *servers.value[-1]), column)
        return _with_lines(text, at, _indented(entry, column), newline)
    # `servers:`, `servers: {}` or `servers: null`: the value gives way to a block.
    if servers.end_mark.index > servers.start_mark.index:
        text = _replaced(text, servers, "")
    at = _line_end(text, name.end_mark.index)
    return _with_lines(text, at, _indented(entry, name.start_mark.column + 2), newline)


def _with_flow_entry(text: str, mapping: MappingNode, key: str, plain: object) -> str:
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


def _replaced(text: str, node: Node, new: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    before = text[:start] if new else text[:start].rstrip(" ")
    return before + new + text[end:]


def _after(text: str, key: Node, value: Node) -> int:
    """Where the line after an entry begins."""
    if value.start_mark.index < key.end_mark.index:
        # An alias: the node stands where its anchor is, the entry ends on the key's line.
        return _line_end(text, key.end_mark.index)
    if isinstance(value, ScalarNode) and value.style in ("|", ">"):
        end = value.end_mark.index
        return end if end and text[end - 1] == "\n" else _line_end(text, end)
    if isinstance(value, CollectionNode) and value.value and not value.flow_style:
        last = value.value[-1]
        return _after(text, *last) if isinstance(last, tuple) else _after(text, key, last)
    return _line_end(text, value.end_mark.index)


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def _after_comments(text: str, index: int, column: int) -> int:
    """Past the comments that are indented like the entries: they belong to what is above."""
    while index < len(text):
        end = _line_end(text, index)
        line = text[index:end]
        stripped = line.lstrip(" ")
        if not stripped.startswith("#") or len(line) - len(stripped) < column:
            break
        index = end
    return index


def _with_lines(text: str, index: int, lines: str, newline: str) -> str:
    before, after = text[:index], text[index:]
    if before and not before.endswith("\n"):
        before += newline
    return before + lines.replace("\n", newline) + after


def _indented(lines: str, column: int) -> str:
    return "".join(f"{' ' * column}{line}" for line in re.findall(r"[^\n]*\n", lines))
