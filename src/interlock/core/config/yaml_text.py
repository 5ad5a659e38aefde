"""Parsing of text to YAML nodes with positions, and problems in plain words.

Only the core types of YAML 1.2 are supported (text, numbers, true/false, null), as in JSON and in
editors: `yes`, `on` and `12:30` are text. Nothing is constructed from a tag. Messages of the YAML
library can quote the input, which may contain a secret, so none is passed on.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from interlock.core.config.problems import ConfigError, Problem

MAX_DEPTH: Final = 32

TEXT: Final = "tag:yaml.org,2002:str"
INTEGER: Final = "tag:yaml.org,2002:int"
NUMBER: Final = "tag:yaml.org,2002:float"
BOOLEAN: Final = "tag:yaml.org,2002:bool"
NULL: Final = "tag:yaml.org,2002:null"
MAPPING: Final = "tag:yaml.org,2002:map"
LIST: Final = "tag:yaml.org,2002:seq"

CORE_SCALARS: Final = (
    (NULL, re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    (BOOLEAN, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    (INTEGER, re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (
        NUMBER,
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
)

# Messages of the library (context and problem, as one text) → messages for people.
_IN_QUOTES: Final = "put the value in quotes"
_TRANSLATIONS: Final = (
    (r"'\\t'", "a tab stands where YAML needs spaces", "use spaces"),
    (r"alias", "* at the start of a value means an alias in YAML, and there is none", _IN_QUOTES),
    (r"anchor", "& at the start of a value means an anchor in YAML", _IN_QUOTES),
    (r"\btag\b", "! at the start of a value means a tag in YAML", _IN_QUOTES),
    (r"cannot start any token", "text cannot start with this character", _IN_QUOTES),
    (r"escape|hexadecimal", "this is not an escape that YAML knows", r"write a backslash as \\"),
    (
        r"quoted scalar",
        "a quote is opened and not closed",
        "close it where the value ends",
    ),
    (
        r"mapping values are not allowed",
        "there is one colon too many here, or the line above is not finished",
        "put a value that contains a colon and a space in quotes, and line keys up",
    ),
    (
        r"expected ':'|simple key",
        'this line is not of the form "key: value"',
        "add the colon and a space after the key",
    ),
    (r"single document", "the file holds more than one document", "remove the line ---"),
    (
        r"document start",
        "this does not belong to what stands above",
        "check the brackets and the indentation above",
    ),
    (r"directive", "a line that starts with % is a YAML directive", "remove it"),
    (r"flow (mapping|sequence)", "a { or [ is opened and not closed", "close it with } or ]"),
    (
        r"block (mapping|collection|end|sequence)",
        "this line does not line up with the ones above",
        "indent all keys of one block by the same number of spaces",
    ),
)


class _TooDeep(yaml.YAMLError):
    def __init__(self, line: int, column: int) -> None:
        super().__init__()
        self.line, self.column = line, column


class _CoreResolver(BaseResolver):
    pass


for _tag, _pattern, _first in CORE_SCALARS:
    _CoreResolver.add_implicit_resolver(_tag, _pattern, _first)


class _Loader(Reader, Scanner, Parser, Composer, _CoreResolver):
    """A loader that composes nodes and constructs nothing."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        _CoreResolver.__init__(self)
        self._depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _TooDeep(mark.line + 1, mark.column + 1)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def compose(text: str, filename: str) -> Node | None:
    """Return the tree of a document. None: the file is empty. Raises ConfigError."""
    if filename.lower().endswith(".json"):
        # A tab can only be layout in JSON, but YAML does not allow it there.
        text = text.replace("\t", " ")
    try:
        node: Node | None = _Loader(text).get_single_node()
    except _TooDeep as error:
        problem = Problem(
            filename, error.line, error.column, "", "this is nested too deeply", "use fewer levels"
        )
    except yaml.MarkedYAMLError as error:
        problem = _syntax_problem(error, filename)
    except ReaderError as error:
        problem = _character_problem(error, text, filename)
    except (ValueError, OverflowError):
        # The library converts numbers of escapes and directives to characters without checks.
        problem = Problem(
            filename, 0, 0, "", "the file contains an invalid escape or number", "remove it"
        )
    else:
        return node
    raise ConfigError([problem])


def tag_fits(node: Node) -> bool:
    """Return whether the node is what its tag says. An explicit tag can say anything."""
    if isinstance(node, MappingNode):
        return bool(node.tag == MAPPING)
    if isinstance(node, SequenceNode):
        return bool(node.tag == LIST)
    if node.tag == TEXT:
        return True
    return any(node.tag == tag and pattern.match(node.value) for tag, pattern, _ in CORE_SCALARS)


def _syntax_problem(error: yaml.MarkedYAMLError, filename: str) -> Problem:
    message_text = f"{error.context or ''} {error.problem or ''}"
    mark = error.problem_mark or error.context_mark
    is_unterminated = (
        re.search("quoted|flow|simple key|alias|anchor", message_text)
        and "escape" not in message_text
    )
    if is_unterminated and error.context_mark is not None:
        mark = error.context_mark  # where it began helps more than where the text ran out
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
    for pattern, message, hint in _TRANSLATIONS:
        if re.search(pattern, message_text):
            return Problem(filename, line, column, "", message, hint)
    return Problem(filename, line, column, "", "this is not valid YAML", "check this line")


def _character_problem(error: ReaderError, text: str, filename: str) -> Problem:
    before = text[: error.position]
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML text"
    return Problem(filename, line, column, "", message, "remove it, or write it as an escape")
