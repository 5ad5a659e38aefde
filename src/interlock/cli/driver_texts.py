"""Manifests as text: front matter that people can read and change, and words below it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from interlock.config.yaml_text import CORE_SCALARS

_WIDTH: Final = 96
_SHORT_LIST: Final = 72
_TEXT: Final = "tag:yaml.org,2002:str"


class _Dumper(yaml.SafeDumper):
    """Block style, short lists on one line, no anchors, quotes wherever either YAML needs them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        # Lists stand below their key, not beside it.
        super().increase_indent(flow, False)

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        plain = all(isinstance(one, str | int | float | bool) or one is None for one in data)
        short = plain and sum(len(str(one)) + 2 for one in data) <= _SHORT_LIST
        flat = short and all("\n" not in str(one) for one in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)

    def represent_text(self, data: str) -> yaml.ScalarNode:
        lines = data.split("\n")
        if not all(line.isprintable() for line in lines):
            # Whatever cannot be seen is written as an escape.
            return self.represent_scalar(_TEXT, data, style='"')
        if len(lines) > 1 and not any(line != line.rstrip() for line in lines):
            return self.represent_scalar(_TEXT, data, style="|")
        return self.represent_scalar(_TEXT, data)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, _Dumper.represent_list)
for _tag, _pattern, _first in CORE_SCALARS:
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def manifest_text(fields: Mapping[str, Any], body: str) -> str:
    """A whole manifest: the fields between two lines, in their order, and the words below."""
    text: str = yaml.dump(
        dict(fields), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH, indent=2
    )
    return f"---\n{text}---\n\n{body.strip()}\n"


def one_line(text: str, most: int) -> str:
    """A stranger's words on one line, without what cannot be seen, cut where they are too long."""
    words = " ".join(text.split())
    seen = "".join(one if one.isprintable() else "\ufffd" for one in words)
    return seen if len(seen) <= most else seen[: most - 1].rstrip() + "…"


def paragraphs(text: str, most: int) -> str:
    """The same with its lines kept apart."""
    lines = ["".join(one if one.isprintable() else "\ufffd" for one in line.expandtabs(4)).rstrip()
             for line in text.splitlines()]  # fmt: skip
    whole = "\n".join(lines).strip()
    return whole if len(whole) <= most else whole[: most - 1].rstrip() + "…"
