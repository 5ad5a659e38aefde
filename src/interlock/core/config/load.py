"""Loading of `interlock.yaml`: the entry point of this package.

It reads one file strictly and reports all problems at once: file, line, column, what is wrong, what
to do. References to secrets stay references.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from interlock.core.config.checks import check_document
from interlock.core.config.feature_sections import make_config
from interlock.core.config.model import Config
from interlock.core.config.problems import ConfigError, KeyPath, Problem
from interlock.core.config.reader import NodeReader
from interlock.core.config.yaml_text import NULL, compose

DEFAULT_NAME = "interlock.yaml"


def load_config(path: str | PathLike[str]) -> Config:
    """Return the config in a file. Raises ConfigError."""
    return parse_config(read_text(path), str(path))


def parse_config(text: str, filename: str = DEFAULT_NAME) -> Config:
    """Return the config in a text (YAML or JSON). Raises ConfigError."""
    node = compose(text, filename)
    if node is None or (node.tag == NULL and not node.value):
        return Config()
    reader = NodeReader(filename)
    values = reader.read_struct(node, Config, ())
    if values is not None:
        check_document(reader, values)
    if reader.problems or values is None:
        raise ConfigError(reader.problems)
    return make_config(values)


def places_in(path: str | PathLike[str]) -> dict[KeyPath, tuple[int, int]]:
    """Return the line and column of every value in a readable config."""
    node = compose(read_text(path), str(path))
    reader = NodeReader(str(path))
    if node is not None:
        reader.read_struct(node, Config, ())
    return reader.places


def peek_config(path: str | PathLike[str]) -> Config:
    """Return the readable parts of a config with problems. Use it only to find a running node."""
    try:
        node = compose(read_text(path), str(path))
        values = None if node is None else NodeReader(str(path)).read_struct(node, Config, ())
    except ConfigError:
        return Config()
    return make_config(values or {})


def read_text(
    path: str | PathLike[str],
    when_missing: str = "check the path, or create the file: `interlock add`",
) -> str:
    """Read the text of a file. Raises ConfigError.

    Args:
        when_missing: the hint if the file does not exist.
    """
    label = str(path)
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise ConfigError.of("there is no such file", when_missing, file=label) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "bad path"
        raise ConfigError.of(
            f"the file cannot be read ({reason.lower()})", "check the path", file=label
        ) from None
    return decode_text(content, label, "utf-8-sig")


def decode_text(content: bytes, file: str, encoding: str = "utf-8") -> str:
    """Decode the bytes of a file. Raises ConfigError with the position of an invalid byte."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problem = Problem(file, line, column, "", "this is not UTF-8 text", "save it as UTF-8")
        raise ConfigError([problem]) from None
