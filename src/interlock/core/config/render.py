"""Formatting of structs as YAML: the shortest form that reads back as the same servers. Pure."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any, Final

import yaml

from interlock.core.config.model import ServerConfig
from interlock.core.config.problems import InvalidValueError
from interlock.core.config.quantities import default_segment, is_url, split_command
from interlock.core.config.section import Section
from interlock.core.config.yaml_text import CORE_SCALARS
from interlock.primitives.durations import format_duration

_DURATIONS: Final = frozenset({"timeout", "start_timeout", "grace"})
_DEFAULTS: Final = ServerConfig()


class PlainDumper(yaml.SafeDumper):
    """A dumper without anchors, with quotes wherever YAML 1.1 or 1.2 would not read text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in CORE_SCALARS:
    PlainDumper.add_implicit_resolver(_tag, _pattern, _first)


class _Dumper(PlainDumper):
    """A dumper that writes each list and text on one line."""

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # Characters that could break a line are escaped.
        style = None if data.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_list)


def to_yaml(servers: Mapping[str, ServerConfig]) -> str:
    """Return a config with these servers in their order. Literal values are written as they are."""
    if not servers:
        return "servers: {}\n"
    return dump({"servers": {key: plain_server(key, server) for key, server in servers.items()}})


def dump(value: dict[str, Any]) -> str:
    """Format plain values as block YAML, one line per value."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf, indent=2
    )
    return text


def dump_flow(value: Any) -> str:
    """Format plain values on one line that is both JSON and YAML."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def plain_server(key: str, server: ServerConfig) -> str | dict[str, Any]:
    """Return the short form if it is sufficient, else the long form without defaults."""
    fields: dict[str, Any] = {}
    for name in ServerConfig.__struct_fields__:
        value = getattr(server, name)
        if value == getattr(_DEFAULTS, name):
            continue
        if name == "segment" and value == default_segment(key):
            continue
        if isinstance(value, Section):
            value = {
                part: field_value
                for part in value.__struct_fields__
                if (field_value := getattr(value, part)) != getattr(getattr(_DEFAULTS, name), part)
            }
        fields[name] = format_duration(value) if name in _DURATIONS else value
    if set(fields) == {"url"} and is_url(fields["url"]):
        return str(fields["url"])
    if server.command is not None:
        if set(fields) <= {"command", "args"}:
            line = shlex.join([server.command, *server.args])
            if not is_url(line) and _reads_back(line, server.command, server.args):
                return line
        if not server.args and not _reads_back(server.command, server.command, []):
            # An explicit list of arguments, even an empty one, prevents a split of the command.
            index = list(fields).index("command") + 1
            items = list(fields.items())
            fields = dict([*items[:index], ("args", []), *items[index:]])
    return fields


def _reads_back(line: str, command: str, args: list[str]) -> bool:
    try:
        return split_command(line) == (command, args)
    except InvalidValueError:
        return False
