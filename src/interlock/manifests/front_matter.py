"""The text between the two `---` lines at the start of a manifest, and where it stands.

What follows the second line is for people and is not looked at. Files are read once, never more
than 1 MiB of them, and never through a symbolic link that the caller did not ask for.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Final

from msgspec import Struct

from interlock.core.config.load import decode_text
from interlock.core.config.problems import ConfigError, Problem

MOST_BYTES: Final = 1024 * 1024
"""No manifest that people write is this long."""

_BOM: Final = "\ufeff"
_START: Final = re.compile(r"---[ \t]*(?:\n|$)")
_ADD_START: Final = "put the fields between two lines --- at the start of the file"


class Source(Struct, frozen=True):
    """A file as it was read."""

    text: str
    digest: str
    """SHA-256 of its bytes, in hex."""


class FrontMatter(Struct, frozen=True):
    """`text` starts with the first `---` line, so that its lines are the lines of the file."""

    text: str
    body: str


def read_source(path: Path, *, follow: bool = True) -> Source:
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
    return Source(decode_text(content, file), hashlib.sha256(content).hexdigest())


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
