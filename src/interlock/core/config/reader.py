"""Conversion of YAML nodes to structs, guided by the types of `model.py`.

All problems are collected with their positions, so that a person sees them at once. Checks between
fields are in `checks.py`.
"""

from __future__ import annotations

import difflib
from typing import Any, Final

from msgspec import Struct, inspect
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from interlock.core.config import quantities, yaml_text
from interlock.core.config.feature_sections import fields_of, removed_key
from interlock.core.config.model import ServerConfig
from interlock.core.config.problems import (
    ConfigError,
    InvalidValueError,
    KeyPath,
    Problem,
    format_path,
)
from interlock.core.config.scalars import DESCRIBED, as_text, check_pattern, read_scalar, unwrap
from interlock.core.config.secrets import references
from interlock.core.config.section import Section

MAX_VALUES: Final = 200_000
"""More values than any config has. Aliases of aliases can expand a short text without a limit."""

INVALID: Final = object()
"""The result of reading an invalid value."""

# Keys of other formats and renamed keys, which spelling alone would not lead to ours.
_KEY_ALIASES: Final = {
    "wakeful": "busy_poll",
    "mcpServers": "servers", "mcp_servers": "servers", "upstreams": "servers", "type": "transport",
    "disabled": "enabled", "environment": "env", "workdir": "cwd", "working_dir": "cwd",
    "host": "listen", "port": "listen", "bind": "listen", "endpoint": "url", "prefix": "segment",
    "startup_timeout_sec": "start_timeout", "tool_timeout_sec": "timeout", "auth": "tokens",
    "enabled_tools": "allow", "disabled_tools": "deny", "http_headers": "headers",
    "oauth2": "oauth", "client_key": "private_key",
    "seats": "participants", "most": "max_participants", "guests": "max_guests",
    "include": "allow", "exclude": "deny", "hosts": "allowed_hosts", "origins": "allowed_origins",
}  # fmt: skip


class NodeReader:
    """Reads one document.

    `problems` collects problems. `places` has the position of each value. `misspelt` has the paths
    of mappings with an unknown key, in which no key is also reported as missing.
    """

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.problems: list[Problem] = []
        self.places: dict[KeyPath, tuple[int, int]] = {}
        self.misspelt: set[KeyPath] = set()

    def report(self, path: KeyPath, message: str, hint: str = "") -> None:
        """Report a problem at the position of `path`, or of its nearest parent."""
        ancestor = path
        while ancestor and ancestor not in self.places:
            ancestor = ancestor[:-1]
        line, column = self.places.get(ancestor, (1, 1))
        self.problems.append(Problem(self.filename, line, column, format_path(path), message, hint))

    def read_struct(self, node: Node, struct: type[Struct], path: KeyPath) -> dict[str, Any] | None:
        """Return the valid fields of a mapping. None: the node is no mapping."""
        if not self._plain(node, path):
            return None
        if not isinstance(node, MappingNode):
            example = "write its keys below it" if path else "write lines such as servers:"
            self.report(path, f"expected keys and values, found {self._describe(node)}", example)
            return None
        fields = fields_of(struct)
        values: dict[str, Any] = {}
        for name, value_node in self._entries(node, path).items():
            if name not in fields:
                self._unknown_key(name, list(fields), (*path, name), struct)
                continue
            value = self.read(value_node, fields[name].type, (*path, name))
            if value is not INVALID:
                values[name] = value
        for name, field in fields.items():
            if field.required and (*path, name) not in self.places and path not in self.misspelt:
                self.report(path, f"{name} is missing", f"add {name}")
        return values

    def read(self, node: Node, declared: inspect.Type, path: KeyPath) -> Any:
        """Return the value of a node as its declared type. INVALID: a problem was reported."""
        declared, kind, optional = unwrap(declared)
        if not self._plain(node, path):
            return INVALID
        if node.tag == yaml_text.NULL:
            return self._read_null(declared, path, optional=optional)
        if kind == "server":
            return self._read_server(node, path)
        match declared:
            case inspect.StructType():
                values = self.read_struct(node, declared.cls, path)
                complete = values is not None and all(
                    f.name in values for f in declared.fields if f.required
                )
                return declared.cls(**values) if complete and values is not None else INVALID
            case inspect.DictType():
                return self._read_dict(node, declared, path)
            case inspect.ListType():
                return self._read_list(node, declared, path)
        return self._read_scalar(node, declared, kind, path)

    def _read_null(self, declared: inspect.Type, path: KeyPath, *, optional: bool) -> Any:
        """Return the value of an empty block, such as one with all lines commented out."""
        if isinstance(declared, inspect.DictType):
            return {}
        if isinstance(declared, inspect.ListType):
            return []
        if isinstance(declared, inspect.StructType) and declared.cls is not ServerConfig:
            if optional:
                return None
            if not any(f.required for f in declared.fields):
                return declared.cls()
        elif optional:
            return None
        if isinstance(declared, inspect.StructType):
            short = "a URL, a command line or " if declared.cls is ServerConfig else ""
            self.report(path, "the section is empty", f"write {short}its keys")
        else:
            self.report(path, "there is no value here", "write a value, or remove the key")
        return INVALID

    def _read_server(self, node: Node, path: KeyPath) -> Any:
        """Read a server in its short form (a URL or a command line) or in its long form."""
        if isinstance(node, ScalarNode):
            if node.tag != yaml_text.TEXT:
                self.report(
                    path,
                    f"expected a URL, a command line or keys, found {self._describe(node)}",
                    "put a command line in quotes",
                )
                return INVALID
            try:
                text = as_text(node)
                references(text)
                if quantities.is_url(text):
                    return ServerConfig(url=quantities.check_url(text))
                program, args = quantities.split_command(text)
                return ServerConfig(command=program, args=args)
            except InvalidValueError as bad:
                self.report(path, bad.message, bad.hint)
                return INVALID
        values = self.read_struct(node, ServerConfig, path)
        if values is None:
            return INVALID
        if "command" in values and (*path, "args") not in self.places:
            try:
                values["command"], values["args"] = quantities.split_command(values["command"])
            except InvalidValueError as bad:
                self.report((*path, "command"), bad.message, bad.hint)
        return ServerConfig(**values)

    def _read_dict(self, node: Node, declared: inspect.DictType, path: KeyPath) -> Any:
        if not isinstance(node, MappingNode):
            self.report(
                path,
                f"expected keys and values, found {self._describe(node)}",
                "write key: value lines",
            )
            return INVALID
        key_type, kind, _ = unwrap(declared.key_type)
        entries = {}
        for name, value_node in self._entries(node, path).items():
            value = self.read(value_node, declared.value_type, (*path, name))
            try:
                check_pattern(name, key_type, kind)
            except InvalidValueError as bad:
                self.report((*path, name), bad.message, bad.hint)
            if value is not INVALID:
                entries[name] = value
        return entries

    def _read_list(self, node: Node, declared: inspect.ListType, path: KeyPath) -> Any:
        if not isinstance(node, SequenceNode):
            self.report(
                path,
                f"expected a list, found {self._describe(node)}",
                "write [a, b], or one line with a dash for each",
            )
            return INVALID
        items = []
        for index, item in enumerate(node.value):
            self._place((*path, index), item)
            items.append(self.read(item, declared.item_type, (*path, index)))
        return INVALID if any(item is INVALID for item in items) else items

    def _read_scalar(self, node: Node, declared: inspect.Type, kind: str, path: KeyPath) -> Any:
        try:
            return read_scalar(node, declared, kind)
        except InvalidValueError as bad:
            self.report(path, bad.message, bad.hint)
            return INVALID

    def _entries(self, node: MappingNode, path: KeyPath) -> dict[str, Node]:
        """Return the values of a mapping by key. Reports duplicate and invalid keys."""
        entries: dict[str, Node] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            try:
                key = as_text(key_node) if isinstance(key_node, ScalarNode) else ""
            except InvalidValueError:
                key = ""
            if not key or not self._plain(key_node, path):
                place = Problem(
                    self.filename, line, key_node.start_mark.column + 1, format_path(path),
                    "this key is not text", "write a key and a colon",
                )  # fmt: skip
                self.problems.append(place)
                continue
            if key in entries:
                self.problems.append(
                    Problem(
                        self.filename,
                        line,
                        key_node.start_mark.column + 1,
                        format_path((*path, key)),
                        f"this key is already set on line {first_lines[key]}",
                        "keep one of the two",
                    )
                )
                continue
            first_lines[key] = line
            entries[key] = value_node
            self._place((*path, key), key_node)
        return entries

    def _place(self, path: KeyPath, node: Node) -> None:
        if len(self.places) >= MAX_VALUES:
            raise ConfigError.of(
                f"the file has more than {MAX_VALUES} values", "use fewer", file=self.filename
            )
        self.places[path] = (node.start_mark.line + 1, node.start_mark.column + 1)

    def _plain(self, node: Node, path: KeyPath) -> bool:
        if yaml_text.tag_fits(node):
            return True
        self.report(
            path, "! at the start of a value means a tag in YAML", "put the value in quotes"
        )
        return False

    def _describe(self, node: Node) -> str:
        return DESCRIBED.get(node.tag, "something else")

    def _unknown_key(self, key: str, valid: list[str], path: KeyPath, struct: type[Struct]) -> None:
        if issubclass(struct, Section) and key in struct.RENAMED:
            self.report(path, "this key was renamed", f"use {struct.RENAMED[key]}")
            self.misspelt.add(path[:-1])
            return
        removed = removed_key(path)
        if removed is not None:
            self.report(path, "this key was removed", removed)
            self.misspelt.add(path[:-1])
            return
        alias = _KEY_ALIASES.get(key, "")
        close = [alias] if alias in valid else difflib.get_close_matches(key, valid, n=1)
        close = close or [name for name in valid if len(key) > 2 and name.startswith(key)]
        if key in ("mcpServers", "mcp_servers") and len(path) == 1:
            hint = "read a config of an MCP client: `interlock import FILE`"
        elif close:
            hint = f'did you mean "{close[0]}"?'
        else:
            hint = f"the keys here are {', '.join(sorted(valid))}"
        self.report(path, "unknown key", hint)
        self.misspelt.add(path[:-1])
