"""Manifest files as plain values that know where they stand, and what reading finds.

The fields of a manifest stand between the two `---` lines at its start. What follows is for people
and is not looked at. Files are read once, never more than 1 MiB of them, and never through a
symbolic link that the caller did not ask for.

There are two ways from text to nodes. libyaml is quick; the library's own composer, which the
config uses, is slow and says better what is wrong. A text that libyaml takes is read from its
nodes; one that it does not take, or in which the two are known to differ, goes the slow way. The
types are YAML 1.2's core types on both ways, and keys that come twice are refused.

Problems refuse a manifest, cautions do not. Problems are those of the config (`config.problems`),
so that a person reads one kind of sentence everywhere. Nothing here ever holds a secret.
"""

from __future__ import annotations

import hashlib
import math
import operator
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import yaml
from msgspec import Struct, field
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from interlock import errors
from interlock.core.config import yaml_text
from interlock.core.config.load import decode_text
from interlock.core.config.problems import (
    BadValue,
    ConfigError,
    KeyPath,
    Problem,
    format_path,
    problem_as_data,
)
from interlock.core.config.scalars import as_text
from interlock.core.config.yaml_text import (
    BOOLEAN,
    CORE_SCALARS,
    INTEGER,
    LIST,
    MAPPING,
    MAX_DEPTH,
    NULL,
    NUMBER,
    TEXT,
)
from interlock.errors import InterlockError

# -- what reading finds

T = TypeVar("T")


class Caution(Struct, frozen=True, order=True):
    """One thing that a person should look at. Line 0 means the file as a whole."""

    file: str
    line: int
    code: str
    sentence: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.sentence}" if where else self.sentence


class ManifestError(ConfigError):
    """A manifest that cannot be used. `problems` are in the order in which the parts of the format
    are checked (AIP-30 before AIP-32), and in the order of the file within a part."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        ordered = list(problems)
        super().__init__(ordered)
        self.problems = ordered
        InterlockError.__init__(
            self,
            errors.CONFIG,
            "\n".join(str(problem) for problem in ordered),
            {"problems": [problem_as_data(problem) for problem in ordered]},
        )


class ReadResult(Struct, Generic[T]):
    """What came of reading one file."""

    value: T | None = None
    """None when there are problems."""
    problems: list[Problem] = field(default_factory=list)
    cautions: list[Caution] = field(default_factory=list)

    def unwrap(self, cautions: list[Caution] | None = None) -> T:
        """The value. Raises ManifestError; cautions are added to the list that is given."""
        if cautions is not None:
            cautions.extend(self.cautions)
        if self.value is None:
            raise ManifestError(self.problems)
        return self.value


def whole_file(file: str, message: str, hint: str = "") -> Problem:
    """A problem of the file as a whole."""
    return Problem(file, 0, 0, "", message, hint)


def in_order(*parts: list[Problem]) -> list[Problem]:
    """The problems part by part, each part in the order of the file, none twice."""
    ordered: dict[tuple[int, int, str, str], Problem] = {}
    for part in parts:
        for problem in sorted(part):
            ordered.setdefault(
                (problem.line, problem.column, problem.path, problem.message), problem
            )
    return list(ordered.values())


# -- the file and its front matter

MOST_BYTES: Final = 1024 * 1024
"""No manifest that people write is this long."""

_BOM: Final = "\ufeff"
_START: Final = re.compile(r"---[ \t]*(?:\n|$)")
_ADD_START: Final = "put the fields between two lines --- at the start of the file"


class ManifestSource(Struct, frozen=True):
    """A file as it was read."""

    text: str
    digest: str
    """SHA-256 of its bytes, in hex."""


class FrontMatter(Struct, frozen=True):
    """`text` starts with the first `---` line, so that its lines are the lines of the file."""

    text: str
    body: str


def read_source(path: Path, *, follow: bool = True) -> ManifestSource:
    """The text of a file. Raises ConfigError that names it."""
    file = str(path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(file, flags)
        try:
            content = os.read(descriptor, MOST_BYTES + 1)
            # A read may return less than there is.
            while content and len(content) <= MOST_BYTES:
                more = os.read(descriptor, MOST_BYTES + 1 - len(content))
                if not more:
                    break
                content += more
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise ConfigError.of("there is no such file", "check the path", file=file) from None
    except IsADirectoryError:
        raise ConfigError.of("this is a folder", "write the path of a file", file=file) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "bad path"
        raise ConfigError.of(
            f"the file cannot be read ({reason.lower()})",
            "check the path and its rights",
            file=file,
        ) from None
    if len(content) > MOST_BYTES:
        raise _too_long(file)
    return ManifestSource(decode_text(content, file), hashlib.sha256(content).hexdigest())


def split(text: str, file: str) -> FrontMatter:
    """The front matter of a manifest. Raises ConfigError."""
    # A text that did not come from a file is measured here; nobody writes four bytes a character.
    if len(text) > MOST_BYTES:
        raise _too_long(file)
    if text.startswith(_BOM):
        text = text[1:]
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    start = _START.match(text)
    if start is None:
        raise ConfigError([_no_start(text, file)])
    end, after = _end_of(text, start.end())
    if end < 0:
        raise ConfigError(
            [
                Problem(
                    file, 1, 1, "", "the front matter that begins here has no end",
                    "write a line --- below the last field",
                )
            ]
        )  # fmt: skip
    matter = text[:end]
    if not matter[start.end() :].strip():
        raise ConfigError(
            [Problem(file, 2, 1, "", "there is nothing between the --- lines", "write the fields")]
        )
    return FrontMatter(matter, text[after:].lstrip("\n"))


def _end_of(text: str, start: int) -> tuple[int, int]:
    """Where the second `---` line begins and ends; -1 when there is none."""
    found = text.find("\n---", start - 1)
    while found >= 0:
        line_end = text.find("\n", found + 1)
        line_end = len(text) if line_end < 0 else line_end
        if not text[found + 4 : line_end].strip(" \t"):
            return found + 1, line_end
        found = text.find("\n---", line_end)
    return -1, -1


def _no_start(text: str, file: str) -> Problem:
    if not text.strip():
        return Problem(file, 0, 0, "", "the file is empty", _ADD_START)
    if text.lstrip().startswith("---"):
        line = text[: text.index("---")].count("\n") + 1
        if line > 1 or text.startswith((" ", "\t")):
            return Problem(
                file, line, 1, "", "something stands above the first --- line",
                "let the file begin with ---",
            )  # fmt: skip
        return Problem(
            file, 1, 4, "", "something follows --- on the first line", "put it on the next line"
        )
    return Problem(file, 1, 1, "", "there is no front matter", _ADD_START)


def _too_long(file: str) -> ConfigError:
    return ConfigError.of(
        f"the file is longer than {MOST_BYTES // 1024} KiB, which no manifest needs",
        "shorten its schemas and its text",
        file=file,
    )


# -- values and their places

MOST_VALUES: Final = 200_000
"""More values than any manifest has; aliases of aliases can make a short text endless."""

_SLOW_WAY_MOST: Final = 64 * 1024
"""The slow composer reads about this much in half a second. Of longer texts libyaml's word
holds."""

# The same types as `CORE_SCALARS`, in the form that is quickest to look up.
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), NULL),
    **dict.fromkeys(("true", "True", "TRUE", "false", "False", "FALSE"), BOOLEAN),
}
_NUMBERS: Final = tuple(
    (tag, pattern.match) for tag, pattern, _ in CORE_SCALARS if tag in (INTEGER, NUMBER)
)
_NUMBER_STARTS: Final = frozenset("-+.0123456789")

# Where the two ways are known to differ, or where counting is needed: directives, document ends,
# anchors and tags (and what may be one), comments that touch a block's sign, tabs, and characters
# that only one of them takes.
_ODD: Final = re.compile(r"(?:^|[\s\[{,:?-])(?:&\S|!)", re.MULTILINE)
_ODD_COMMENT: Final = re.compile(r"[|>][-+0-9]{0,3}#")
_ODD_CHARACTERS: Final = re.compile(r"[\x7f-\x9f\ufeff\u2028\u2029]")
_MANY_LEVELS: Final = 1000
"""So many brackets and dashes could nest too deeply for libyaml's composer, which recurses."""
_LONG_NUMBER: Final = 24


class _TooDeep(yaml.YAMLError):
    pass


class _Odd(Exception):
    """The quick walk met something that only the careful one can judge."""


_quick: Callable[[str], Node | None] | None = None
"""The quick way; None where the library was built without libyaml."""
try:
    from yaml._yaml import CParser
except ImportError:
    pass
else:

    class _QuickComposer(CParser):
        """libyaml's parser with the core types. Constructs nothing."""

        @staticmethod
        def resolve(kind: type[Node], value: str | None, implicit: tuple[bool, bool]) -> str:
            if value is None:
                return MAPPING if kind is MappingNode else LIST
            if implicit[0]:
                tag = _WORDS.get(value)
                if tag is not None:
                    return tag
                if value[0] in _NUMBER_STARTS:
                    for tag, match in _NUMBERS:
                        if match(value):
                            return tag
            return TEXT

        # Called for every node; these are the cheapest things that take as many arguments.
        descend_resolver = staticmethod(operator.is_)
        ascend_resolver = staticmethod(tuple)

    class _CountingComposer(_QuickComposer):
        """The same with a limit on depth, for texts that might exceed what can be recursed."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            self._depth = 0

        def descend_resolver(  # type: ignore[override]
            self, parent: Node | None, index: Any
        ) -> None:
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise _TooDeep

        def ascend_resolver(self) -> None:  # type: ignore[override]
            self._depth -= 1

    def _compose_quickly(text: str) -> Node | None:
        count = text.count
        levels = count("[") + count("{") + count("- ") + count("? ")
        composer = _QuickComposer if levels < _MANY_LEVELS else _CountingComposer
        node: Node | None = composer(text).get_single_node()
        return node

    _quick = _compose_quickly


class ManifestDocument:
    """One manifest: its fields as JSON values, and the place of each."""

    __slots__ = ("_root", "file", "moved", "value", "with_placeholders")

    def __init__(self, file: str, value: dict[str, Any], root: Node | None = None) -> None:
        self.file = file
        self.value = value
        self.moved: dict[str | int, str] = {}
        """Fields that were made of others: which one stands in the file instead."""
        self.with_placeholders = True
        """False when it is known that no `${` stands in it."""
        self._root = root

    def place(self, path: KeyPath) -> tuple[int, int]:
        """Line and column of a value, or of the nearest one above it that is there."""
        if path and path[0] in self.moved:
            path = (self.moved[path[0]],)
        node, found = self._root, (1, 1) if self._root is not None else (0, 0)
        for step in path:
            mark = None
            if isinstance(node, MappingNode):
                for key_node, value_node in node.value:
                    if key_node.value == step:
                        node, mark = value_node, key_node.start_mark
                        break
            elif (
                isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value)
            ):
                node = node.value[step]
                mark = node.start_mark
            if mark is None:
                break
            found = (mark.line + 1, mark.column + 1)
        return found

    def line(self, path: KeyPath) -> int:
        return self.place(path)[0]

    def problem(self, path: KeyPath, message: str, hint: str = "") -> Problem:
        """A problem at the place of a value."""
        line, column = self.place(path)
        return Problem(self.file, line, column, format_path(path), message, hint)


def read_document(text: str, file: str) -> ManifestDocument:
    """The front matter of a manifest. Raises ConfigError with everything that is wrong with it."""
    matter = split(text, file).text
    document = read_yaml(matter, file)
    document.with_placeholders = "${" in matter
    return document


def read_yaml(text: str, file: str) -> ManifestDocument:
    """A YAML mapping. Raises ConfigError."""
    odd = _is_odd(text)
    root = _compose(text, file, odd=odd)
    if "?" in text and not odd and len(text) <= _SLOW_WAY_MOST and _asks_in_flow(root, 0):
        root = yaml_text.compose(text, file)
    if not odd and isinstance(root, MappingNode):
        try:
            return ManifestDocument(file, _quick_mapping(root, 1), root)
        except _Odd:
            pass
    if root is None or (root.tag == NULL and isinstance(root, ScalarNode) and not root.value):
        raise ConfigError(
            [Problem(file, 2, 1, "", "there is nothing between the --- lines", "write the fields")]
        )
    walk = _CarefulWalk(file)
    value = walk.value(root, (), 1)
    if not walk.problems and not isinstance(root, MappingNode):
        walk.report(root, (), "these are not fields", "write lines such as name: …")
    if walk.problems:
        raise ConfigError(walk.problems)
    return ManifestDocument(file, value, root)


def _is_odd(text: str) -> bool:
    if len(text) > 2 * _SLOW_WAY_MOST or "\t" in text or "\r" in text:
        return True
    if "\n%" in text or "\n." in text:
        return True
    if ("&" in text or "!" in text) and _ODD.search(text) is not None:
        return True
    if "#" in text and _ODD_COMMENT.search(text) is not None:
        return True
    return not text.isascii() and _ODD_CHARACTERS.search(text) is not None


def _asks_in_flow(node: Node | None, depth: int) -> bool:
    """Whether a text without quotes between brackets has a question mark: only libyaml takes it."""
    if depth > MAX_DEPTH:
        return True
    if isinstance(node, SequenceNode):
        inside = node.value
    elif isinstance(node, MappingNode):
        inside = [one for pair in node.value for one in pair]
    else:
        return False
    flow = node.flow_style
    return any(
        flow and not one.style and "?" in one.value
        if isinstance(one, ScalarNode)
        else _asks_in_flow(one, depth + 1)
        for one in inside
    )


def _compose(text: str, file: str, *, odd: bool) -> Node | None:
    if _quick is None or (odd and len(text) <= _SLOW_WAY_MOST):
        return yaml_text.compose(text, file)
    try:
        return _quick(text)
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        if len(text) <= _SLOW_WAY_MOST:
            return yaml_text.compose(text, file)
        raise ConfigError([_briefly(error, file)]) from None


def _briefly(error: Exception, file: str) -> Problem:
    """What is wrong with a text that is too long for the slow way."""
    mark = None
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
    if isinstance(error, _TooDeep):
        return Problem(file, line, column, "", "this is nested too deeply", "use fewer levels")
    return Problem(file, line, column, "", "this is not valid YAML", "check this line")


def _quick_mapping(node: MappingNode, depth: int) -> dict[str, Any]:
    if node.tag is not MAPPING or depth >= MAX_DEPTH:
        raise _Odd
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if key_node.__class__ is not ScalarNode or not key or key_node.tag is not TEXT:
            raise _Odd
        if value_node.tag is TEXT:
            values[key] = value_node.value
        elif value_node.__class__ is MappingNode:
            values[key] = _quick_mapping(value_node, depth + 1)
        elif value_node.__class__ is SequenceNode:
            values[key] = _quick_list(value_node, depth + 1)
        else:
            values[key] = _quick_scalar(value_node)
    if len(values) != len(node.value):
        raise _Odd
    return values


def _quick_list(node: SequenceNode, depth: int) -> list[Any]:
    if node.tag is not LIST or depth >= MAX_DEPTH:
        raise _Odd
    items: list[Any] = []
    for item in node.value:
        if item.tag is TEXT:
            items.append(item.value)
        elif item.__class__ is MappingNode:
            items.append(_quick_mapping(item, depth + 1))
        elif item.__class__ is SequenceNode:
            items.append(_quick_list(item, depth + 1))
        else:
            items.append(_quick_scalar(item))
    return items


def _quick_scalar(node: ScalarNode) -> Any:
    tag, text = node.tag, node.value
    if tag is BOOLEAN:
        return text[0] in "tT"
    if tag is NULL:
        return None
    if len(text) > _LONG_NUMBER:
        raise _Odd
    if tag is INTEGER:
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if tag is NUMBER:
        try:
            number = float(text)
        except ValueError:  # .inf and .nan
            raise _Odd from None
        if math.isfinite(number):
            return number
    raise _Odd


class _CarefulWalk:
    """Nodes to values, with a problem for everything that is odd."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._values = 0

    def report(self, node: Node, path: KeyPath, message: str, hint: str) -> None:
        mark = node.start_mark
        self.problems.append(
            Problem(self.file, mark.line + 1, mark.column + 1, format_path(path), message, hint)
        )

    def value(self, node: Node, path: KeyPath, depth: int) -> Any:
        self._values += 1
        if self._values > MOST_VALUES:
            raise ConfigError.of(
                f"the file has more than {MOST_VALUES} values", "use fewer", file=self.file
            )
        if depth > MAX_DEPTH:
            self.report(node, path, "this is nested too deeply", "use fewer levels")
            return None
        if not yaml_text.tag_fits(node):
            self.report(
                node, path, "! at the start of a value means a tag in YAML", "put it in quotes"
            )
            return None
        if isinstance(node, MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, SequenceNode):
            return [
                self.value(item, (*path, index), depth + 1) for index, item in enumerate(node.value)
            ]
        try:
            return _scalar(node)
        except BadValue as bad:
            self.report(node, path, bad.message, bad.hint)
            return None

    def _mapping(self, node: MappingNode, path: KeyPath, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            try:
                fits = isinstance(key_node, ScalarNode) and yaml_text.tag_fits(key_node)
                key = as_text(key_node) if fits else ""
            except BadValue:
                key = ""
            if not key:
                self.report(key_node, path, "this key is not text", "write a word and a colon")
            elif key in values:
                self.report(
                    key_node,
                    (*path, key),
                    f"this key is already set on line {first_lines[key]}",
                    "keep one of the two",
                )
            else:
                first_lines[key] = key_node.start_mark.line + 1
                values[key] = self.value(value_node, (*path, key), depth + 1)
        return values


def _scalar(node: Node) -> Any:
    """A scalar's value by its tag, which fits. Raises BadValue."""
    if node.tag == TEXT:
        return as_text(node)
    if node.tag == NULL:
        return None
    if node.tag == BOOLEAN:
        return node.value[0] in "tT"
    text: str = node.value
    if len(text) > _LONG_NUMBER:
        raise BadValue("this number is too long", "write a smaller one, or put it in quotes")
    if node.tag == INTEGER:
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    number = math.inf if text.lstrip("+-").lower() in (".inf", ".nan") else float(text)
    if not math.isfinite(number):
        raise BadValue("a finite number is needed here", "write a smaller one")
    return number
