"""Adding a server to the text of a config: comments, order and layout of the rest stay.

Text in, text out. The place is found in the tree of the parsed text, and the result is parsed
again: it must say exactly what the old text said, and the new server.
"""

from __future__ import annotations

from msgspec.structs import replace
from yaml.nodes import MappingNode

from interlock.config.load import DEFAULT_NAME, parse_config
from interlock.config.model import Config, ServerConfig
from interlock.config.problems import ConfigError, quoted
from interlock.config.render import dump, dump_flow, plain_server
from interlock.config.yaml_edit import (
    after_comments,
    end_of,
    indented,
    line_end,
    replaced,
    with_flow_entry,
    with_lines,
)
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
        return with_lines(text, len(text), "servers:\n" + indented(entry, 2), newline)
    found = next((pair for pair in root.value if pair[0].value == "servers"), None)
    if root.flow_style:
        if found is None:
            return with_flow_entry(text, root, "servers", {key: plain})
        if isinstance(found[1], MappingNode):
            return with_flow_entry(text, found[1], key, plain)
        return replaced(text, found[1], dump_flow({key: plain}))
    if found is None:
        block = indented("servers:\n" + indented(entry, 2), root.start_mark.column)
        return with_lines(text, len(text), block, newline)
    name, servers = found
    if isinstance(servers, MappingNode) and servers.value:
        if servers.flow_style:
            return with_flow_entry(text, servers, key, plain)
        column = servers.value[0][0].start_mark.column
        at = after_comments(text, end_of(text, *servers.value[-1]), column)
        return with_lines(text, at, indented(entry, column), newline)
    # `servers:`, `servers: {}` or `servers: null`: the value gives way to a block.
    if servers.end_mark.index > servers.start_mark.index:
        text = replaced(text, servers, "")
    at = line_end(text, name.end_mark.index)
    return with_lines(text, at, indented(entry, name.start_mark.column + 2), newline)
