"""JSON as editors write it, with comments and trailing commas, and TOML: text to plain values.

For the config files of MCP clients. An error says where, and never quotes the text: such files
hold secrets.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, Final

from interlock.config.problems import ConfigError, Problem

_STRING_OR_COMMENT: Final = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_LAST_COMMA: Final = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', re.DOTALL)
_TOML_PLACE: Final = re.compile(r"\(at line (\d+), column (\d+)\)")
_NOT_NEWLINE: Final = re.compile(r"[^\n]")


def parse_jsonc(text: str, filename: str) -> Any:
    """The value of a JSON text. Raises ConfigError. An empty text is an empty object."""

    def blank(match: re.Match[str]) -> str:
        # Spaces instead of what goes, so that lines and columns stay true.
        found = match[0]
        return found if found.startswith('"') else _NOT_NEWLINE.sub(" ", found)

    stripped = _STRING_OR_COMMENT.sub(blank, text)
    stripped = _STRING_OR_LAST_COMMA.sub(blank, stripped)
    if not stripped.strip():
        return {}
    try:
        return json.loads(stripped)
    except json.JSONDecodeError as error:
        problem = Problem(
            filename, error.lineno, error.colno, "", "this is not valid JSON", "check this line"
        )
    except (RecursionError, ValueError):
        problem = Problem(filename, 0, 0, "", "this is not usable JSON", "check the file")
    raise ConfigError([problem])


def parse_toml(text: str, filename: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises ConfigError."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        place = _TOML_PLACE.search(str(error))
        line, column = (int(place[1]), int(place[2])) if place else (0, 0)
    raise ConfigError(
        [Problem(filename, line, column, "", "this is not valid TOML", "check this line")]
    )
