"""Manifest files as plain values with their positions, and the results of reading.

The fields of a manifest are between the two `---` lines at its start. The text below them is for
people and is ignored. A file is read once, up to 1 MiB, and symbolic links are followed only if the
caller allows it.

Two composers make YAML nodes from text. libyaml is fast. The Python composer of PyYAML, which also
reads the config, is slow and reports better errors. It reads texts that libyaml rejects, and texts
in which the two are known to differ. Both use the core types of YAML 1.2, and duplicate keys are
rejected.

Problems reject a manifest, cautions do not. Problems have the same form as those of the config
(`config.problems`). No value of this module contains a secret.
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
    ConfigError,
    InvalidValueError,
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

# -- results of reading

T = TypeVar("T")


class Caution(Struct, frozen=True, order=True):
    """A warning about a valid manifest. Line 0 means the whole file."""

    file: str
    line: int
    code: str
    sentence: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.sentence}" if where else self.sentence


class ManifestError(ConfigError):
    """The problems of an invalid manifest, by part of the format (AIP-30 before AIP-32). Within a
    part, they are in the order of the file."""

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
    """The result of reading one file."""

    value: T | None = None
    """None: there are problems."""
    problems: list[Problem] = field(default_factory=list)
    cautions: list[Caution] = field(default_factory=list)

    def unwrap(self, cautions: list[Caution] | None = None) -> T:
        """Return the value. Raises ManifestError if there are problems.

        Args:
            cautions: receives the cautions.
        """
        if cautions is not None:
            cautions.extend(self.cautions)
        if self.value is None:
            raise ManifestError(self.problems)
        return self.value


def file_problem(file: str, message: str, hint: str = "") -> Problem:
    """Return a problem of the whole file."""
    return Problem(file, 0, 0, "", message, hint)


def sort_problems(*parts: list[Problem]) -> list[Problem]:
    """Return the problems of all parts, each part in the order of the file, without duplicates."""
    ordered: dict[tuple[int, int, str, str], Problem] = {}
    for part in parts:
        for problem in sorted(part):
            ordered.setdefault(
                (problem.line, problem.column, problem.path, problem.message), problem
            )
    return list(ordered.values())


# -- the file and its front matter

MAX_BYTES: Final = 1024 * 1024
"""More than any manifest needs."""

_BOM: Final = "\ufeff"
_START: Final = re.compile(r"---[ \t]*(?:\n|$)")
_ADD_START: Final = "put the fields between two lines --- at the start of the file"


class ManifestSource(Struct, frozen=True):
    """The content of a manifest file."""

    text: str
    digest: str
    """The SHA-256 of the bytes, in hexadecimal."""


class FrontMatter(Struct, frozen=True):
    """The front matter and the body of a manifest. `text` begins with the first `---` line, so its
    line numbers are those of the file."""

    text: str
    body: str


def read_source(path: Path, *, follow: bool = True) -> ManifestSource:
    """Read a file. Raises ConfigError.

    Args:
        follow: whether the file may be a symbolic link.
    """
    file = str(path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(file, flags)
        try:
            content = os.read(descriptor, MAX_BYTES + 1)
            # A read may return less than the whole file.
            while content and len(content) <= MAX_BYTES:
                more = os.read(descriptor, MAX_BYTES + 1 - len(content))
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
            "check the path and its permissions",
            file=file,
        ) from None
    if len(content) > MAX_BYTES:
        raise _length_error(file)
    return ManifestSource(decode_text(content, file), hashlib.sha256(content).hexdigest())


def split_front_matter(text: str, file: str) -> FrontMatter:
    """Split a manifest into front matter and body. Raises ConfigError."""
    # Limits text that did not come from a file. The limit counts characters, not bytes.
    if len(text) > MAX_BYTES:
        raise _length_error(file)
    if text.startswith(_BOM):
        text = text[1:]
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    start = _START.match(text)
    if start is None:
        raise ConfigError([_missing_start(text, file)])
    end, after = _find_end(text, start.end())
    if end < 0:
        raise ConfigError(
            [
                Problem(
                    file, 1, 1, "", "the front matter has no end",
                    "write a line --- below the last field",
                )
            ]
        )  # fmt: skip
    matter = text[:end]
    if not matter[start.end() :].strip():
        raise ConfigError([_missing_fields(file)])
    return FrontMatter(matter, text[after:].lstrip("\n"))


def _find_end(text: str, start: int) -> tuple[int, int]:
    """Return the offsets of the beginning and the end of the second `---` line. -1: there is
    none."""
    newline = text.find("\n---", start - 1)
    while newline >= 0:
        line_end = text.find("\n", newline + 1)
        line_end = len(text) if line_end < 0 else line_end
        if not text[newline + 4 : line_end].strip(" \t"):
            return newline + 1, line_end
        newline = text.find("\n---", line_end)
    return -1, -1


def _missing_start(text: str, file: str) -> Problem:
    if not text.strip():
        return Problem(file, 0, 0, "", "the file is empty", _ADD_START)
    if text.lstrip().startswith("---"):
        line = text[: text.index("---")].count("\n") + 1
        if line > 1 or text.startswith((" ", "\t")):
            return Problem(
                file, line, 1, "", "the first --- is not at the start of the file",
                "remove the text before it",
            )  # fmt: skip
        return Problem(
            file, 1, 4, "", "the first line has text after ---", "move it to the next line"
        )
    return Problem(file, 1, 1, "", "there is no front matter", _ADD_START)


def _missing_fields(file: str) -> Problem:
    return Problem(
        file, 2, 1, "", "the front matter has no fields", "write them above the second --- line"
    )


def _length_error(file: str) -> ConfigError:
    return ConfigError.of(
        f"the file is longer than {MAX_BYTES // 1024} KiB",
        "shorten its schemas and its text",
        file=file,
    )


# -- values and their positions

MAX_VALUES: Final = 200_000
"""More values than any manifest has. Aliases of aliases can make many values of a short text."""

_MAX_SLOW_LENGTH: Final = 64 * 1024
"""The longest text for the slow composer, which needs about half a second for it. Longer texts are
read by libyaml only."""

# The same types as `CORE_SCALARS`, in the form with the fastest lookup.
_KEYWORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), NULL),
    **dict.fromkeys(("true", "True", "TRUE", "false", "False", "FALSE"), BOOLEAN),
}
_NUMBERS: Final = tuple(
    (tag, pattern.match) for tag, pattern, _ in CORE_SCALARS if tag in (INTEGER, NUMBER)
)
_NUMBER_STARTS: Final = frozenset("-+.0123456789")

# Text in which the two composers are known to differ, or in which values must be counted:
# directives, document ends, possible anchors and tags, comments directly after the sign of a block,
# tabs, and characters that only one of the composers accepts.
_ANCHOR_OR_TAG: Final = re.compile(r"(?:^|[\s\[{,:?-])(?:&\S|!)", re.MULTILINE)
_TOUCHING_COMMENT: Final = re.compile(r"[|>][-+0-9]{0,3}#")
_DISPUTED_CHARACTERS: Final = re.compile(r"[\x7f-\x9f\ufeff\u2028\u2029]")
_MAX_UNCOUNTED_LEVELS: Final = 1000
"""With more brackets and dashes, the depth is counted: libyaml's composer recurses in C."""
_MAX_NUMBER_LENGTH: Final = 24


class _DepthError(yaml.YAMLError):
    pass


class _UnusualNodeError(Exception):
    """A node that the fast conversion does not support, so that `_StrictReader` must read it."""


_compose_fast: Callable[[str], Node | None] | None = None
"""The composer of libyaml. None: PyYAML was built without libyaml."""
try:
    from yaml._yaml import CParser
except ImportError:
    pass
else:

    class _FastComposer(CParser):
        """The parser of libyaml with the core types. It constructs no Python objects."""

        @staticmethod
        def resolve(kind: type[Node], value: str | None, implicit: tuple[bool, bool]) -> str:
            if value is None:
                return MAPPING if kind is MappingNode else LIST
            if implicit[0]:
                tag = _KEYWORDS.get(value)
                if tag is not None:
                    return tag
                if value[0] in _NUMBER_STARTS:
                    for tag, match in _NUMBERS:
                        if match(value):
                            return tag
            return TEXT

        # Called for every node: these are the cheapest callables with matching arguments.
        descend_resolver = staticmethod(operator.is_)
        ascend_resolver = staticmethod(tuple)

    class _CountingComposer(_FastComposer):
        """A composer with a limit on depth, for texts that could exhaust the C stack."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            self._depth = 0

        def descend_resolver(  # type: ignore[override]
            self, parent: Node | None, index: Any
        ) -> None:
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise _DepthError

        def ascend_resolver(self) -> None:  # type: ignore[override]
            self._depth -= 1

    def _compose_with_libyaml(text: str) -> Node | None:
        count = text.count
        levels = count("[") + count("{") + count("- ") + count("? ")
        composer = _FastComposer if levels < _MAX_UNCOUNTED_LEVELS else _CountingComposer
        node: Node | None = composer(text).get_single_node()
        return node

    _compose_fast = _compose_with_libyaml


class ManifestDocument:
    """A manifest: its fields as JSON values, and the positions of the fields."""

    __slots__ = ("_root", "file", "may_have_placeholders", "source_keys", "value")

    def __init__(self, file: str, value: dict[str, Any], root: Node | None = None) -> None:
        self.file = file
        self.value = value
        self.source_keys: dict[str | int, str] = {}
        """Maps a field that replaces a deprecated one to the deprecated key in the file."""
        self.may_have_placeholders = True
        """False if the text has no `${`."""
        self._root = root

    def position(self, path: KeyPath) -> tuple[int, int]:
        """Return the line and column of a value. If it is missing, those of the nearest parent."""
        if path and path[0] in self.source_keys:
            path = (self.source_keys[path[0]],)
        node, position = self._root, (1, 1) if self._root is not None else (0, 0)
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
            position = (mark.line + 1, mark.column + 1)
        return position

    def line(self, path: KeyPath) -> int:
        return self.position(path)[0]

    def problem(self, path: KeyPath, message: str, hint: str = "") -> Problem:
        """Return a problem with the position of a value."""
        line, column = self.position(path)
        return Problem(self.file, line, column, format_path(path), message, hint)


def read_document(text: str, file: str) -> ManifestDocument:
    """Read the front matter of a manifest. Raises ConfigError with all problems."""
    matter = split_front_matter(text, file).text
    document = read_yaml(matter, file)
    document.may_have_placeholders = "${" in matter
    return document


def read_yaml(text: str, file: str) -> ManifestDocument:
    """Read a YAML mapping. Raises ConfigError."""
    ambiguous = _is_ambiguous(text)
    root = _compose(text, file, ambiguous=ambiguous)
    is_short = len(text) <= _MAX_SLOW_LENGTH
    if "?" in text and not ambiguous and is_short and _has_flow_question_mark(root, 0):
        root = yaml_text.compose(text, file)
    if not ambiguous and isinstance(root, MappingNode):
        try:
            return ManifestDocument(file, _convert_mapping(root, 1), root)
        except _UnusualNodeError:
            pass
    if root is None or (root.tag == NULL and isinstance(root, ScalarNode) and not root.value):
        raise ConfigError([_missing_fields(file)])
    reader = _StrictReader(file)
    value = reader.read(root, (), 1)
    if not reader.problems and not isinstance(root, MappingNode):
        reader.report(root, (), "these are not fields", "write lines such as name: …")
    if reader.problems:
        raise ConfigError(reader.problems)
    return ManifestDocument(file, value, root)


def _is_ambiguous(text: str) -> bool:
    """Return whether the two composers may read a text differently."""
    if len(text) > 2 * _MAX_SLOW_LENGTH or "\t" in text or "\r" in text:
        return True
    if "\n%" in text or "\n." in text:
        return True
    if ("&" in text or "!" in text) and _ANCHOR_OR_TAG.search(text) is not None:
        return True
    if "#" in text and _TOUCHING_COMMENT.search(text) is not None:
        return True
    return not text.isascii() and _DISPUTED_CHARACTERS.search(text) is not None


def _has_flow_question_mark(node: Node | None, depth: int) -> bool:
    """Return whether an unquoted text between brackets has a `?`, which only libyaml accepts."""
    if depth > MAX_DEPTH:
        return True
    if isinstance(node, SequenceNode):
        children = node.value
    elif isinstance(node, MappingNode):
        children = [child for pair in node.value for child in pair]
    else:
        return False
    flow = node.flow_style
    return any(
        flow and not child.style and "?" in child.value
        if isinstance(child, ScalarNode)
        else _has_flow_question_mark(child, depth + 1)
        for child in children
    )


def _compose(text: str, file: str, *, ambiguous: bool) -> Node | None:
    if _compose_fast is None or (ambiguous and len(text) <= _MAX_SLOW_LENGTH):
        return yaml_text.compose(text, file)
    try:
        return _compose_fast(text)
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        if len(text) <= _MAX_SLOW_LENGTH:
            return yaml_text.compose(text, file)
        raise ConfigError([_composer_problem(error, file)]) from None


def _composer_problem(error: Exception, file: str) -> Problem:
    """Return the problem of a text that is too long for the slow composer."""
    mark = None
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
    if isinstance(error, _DepthError):
        return Problem(file, line, column, "", "this is nested too deeply", "use fewer levels")
    return Problem(file, line, column, "", "this is not valid YAML", "check this line")


def _convert_mapping(node: MappingNode, depth: int) -> dict[str, Any]:
    if node.tag is not MAPPING or depth >= MAX_DEPTH:
        raise _UnusualNodeError
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if key_node.__class__ is not ScalarNode or not key or key_node.tag is not TEXT:
            raise _UnusualNodeError
        if value_node.tag is TEXT:
            values[key] = value_node.value
        elif value_node.__class__ is MappingNode:
            values[key] = _convert_mapping(value_node, depth + 1)
        elif value_node.__class__ is SequenceNode:
            values[key] = _convert_list(value_node, depth + 1)
        else:
            values[key] = _convert_scalar(value_node)
    if len(values) != len(node.value):
        raise _UnusualNodeError
    return values


def _convert_list(node: SequenceNode, depth: int) -> list[Any]:
    if node.tag is not LIST or depth >= MAX_DEPTH:
        raise _UnusualNodeError
    items: list[Any] = []
    for item in node.value:
        if item.tag is TEXT:
            items.append(item.value)
        elif item.__class__ is MappingNode:
            items.append(_convert_mapping(item, depth + 1))
        elif item.__class__ is SequenceNode:
            items.append(_convert_list(item, depth + 1))
        else:
            items.append(_convert_scalar(item))
    return items


def _convert_scalar(node: ScalarNode) -> Any:
    tag, text = node.tag, node.value
    if tag is BOOLEAN:
        return text[0] in "tT"
    if tag is NULL:
        return None
    if len(text) > _MAX_NUMBER_LENGTH:
        raise _UnusualNodeError
    if tag is INTEGER:
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if tag is NUMBER:
        try:
            number = float(text)
        except ValueError:  # .inf and .nan
            raise _UnusualNodeError from None
        if math.isfinite(number):
            return number
    raise _UnusualNodeError


class _StrictReader:
    """Converts nodes to values, and reports all problems."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._values = 0

    def report(self, node: Node, path: KeyPath, message: str, hint: str) -> None:
        mark = node.start_mark
        self.problems.append(
            Problem(self.file, mark.line + 1, mark.column + 1, format_path(path), message, hint)
        )

    def read(self, node: Node, path: KeyPath, depth: int) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise ConfigError.of(
                f"the file has more than {MAX_VALUES} values", "use fewer", file=self.file
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
            return self._read_mapping(node, path, depth)
        if isinstance(node, SequenceNode):
            return [
                self.read(item, (*path, index), depth + 1) for index, item in enumerate(node.value)
            ]
        try:
            return _read_scalar(node)
        except InvalidValueError as bad:
            self.report(node, path, bad.message, bad.hint)
            return None

    def _read_mapping(self, node: MappingNode, path: KeyPath, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            try:
                fits = isinstance(key_node, ScalarNode) and yaml_text.tag_fits(key_node)
                key = as_text(key_node) if fits else ""
            except InvalidValueError:
                key = ""
            if not key:
                self.report(key_node, path, "this key is not text", "write a key and a colon")
            elif key in values:
                self.report(
                    key_node,
                    (*path, key),
                    f"this key is already set on line {first_lines[key]}",
                    "keep one of the two",
                )
            else:
                first_lines[key] = key_node.start_mark.line + 1
                values[key] = self.read(value_node, (*path, key), depth + 1)
        return values


def _read_scalar(node: Node) -> Any:
    """Return the value of a scalar by its tag. Raises InvalidValueError."""
    if node.tag == TEXT:
        return as_text(node)
    if node.tag == NULL:
        return None
    if node.tag == BOOLEAN:
        return node.value[0] in "tT"
    text: str = node.value
    if len(text) > _MAX_NUMBER_LENGTH:
        raise InvalidValueError(
            "this number is too long", "write a smaller number, or put it in quotes"
        )
    if node.tag == INTEGER:
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    number = math.inf if text.lstrip("+-").lower() in (".inf", ".nan") else float(text)
    if not math.isfinite(number):
        raise InvalidValueError("a finite number is needed here", "write a smaller one")
    return number
