"""The small types that our schemas of manifests are made of.

`title` says what a value is ("a version"), `description` what to write. Both are for people: the
readers put them into their problems, editors show them. `writeOnly` marks what must not be shown
again: somebody could put a secret there by mistake.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

SEMVER_PATTERN: Final = (
    r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
    r"(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)
ISO_PATTERN: Final = (
    r"^P(?=[0-9T])([0-9]+Y)?([0-9]+M)?([0-9]+W)?([0-9]+D)?"
    r"(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?$"
)
EVERY_PATTERN: Final = (
    r"^(P(?=[0-9T])([0-9]+W)?([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?"
    r"|[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d|w))$"
)
RETENTION_PATTERN: Final = ISO_PATTERN[:-1] + r"$|^[0-9]+(y|m|w|d|h)$"
EGRESS_PATTERN: Final = (
    r"^(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"
    r"(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$"
)
SECRET_NAME_PATTERN: Final = r"^[A-Z][A-Z0-9_]*$"


def text(title: str = "", hint: str = "", **limits: Any) -> Schema:
    """Text, with what it is and what to write."""
    schema: Schema = {"type": "string", **limits}
    if title:
        schema["title"] = title
    if hint:
        schema["description"] = hint
    return schema


def choice(*words: str, title: str = "") -> Schema:
    return {"enum": list(words)} if not title else {"enum": list(words), "title": title}


def whole(least: int | None = None, most: int | None = None, **more: Any) -> Schema:
    schema: Schema = {"type": "integer", **more}
    if least is not None:
        schema["minimum"] = least
    if most is not None:
        schema["maximum"] = most
    return schema


def items(schema: Schema, **limits: Any) -> Schema:
    return {"type": "array", "items": schema, **limits}


def closed(properties: dict[str, Schema], *required: str, **more: Any) -> Schema:
    """An object that takes these keys and no others."""
    return {**opened(properties, *required, **more), "additionalProperties": False}


def opened(properties: dict[str, Schema], *required: str, **more: Any) -> Schema:
    """An object that takes any key, and checks these."""
    schema: Schema = {"type": "object", "properties": properties, **more}
    if required:
        schema["required"] = list(required)
    return schema


NAME: Final = text("a name", "write 1 to 80 characters", minLength=1, maxLength=80)
DESCRIPTION: Final = text(
    "a description", "write 1 to 2000 characters", minLength=1, maxLength=2000
)
VERSION: Final = text(
    "a version", "write three numbers, such as 1.0.0", pattern=SEMVER_PATTERN, maxLength=100
)
RANGE: Final = text(
    "a range of versions", 'write one as npm has them, such as "^1.0.0"', minLength=1, maxLength=200
)
DRIVER_ID: Final = text(
    "the id of a driver",
    "write 2 to 80 small letters, digits, dots and dashes, a letter or digit first",
    pattern=r"^[a-z0-9][a-z0-9.\-]{1,79}$",
)
TOOL_ID: Final = text(
    "the id of a contract",
    "write 2 to 80 small letters, digits, dots and dashes, with a letter or digit at both ends",
    pattern=r"^[a-z0-9][a-z0-9.\-]*[a-z0-9]$",
    minLength=2,
    maxLength=80,
)
TAG: Final = text(
    "a tag",
    "write 1 to 64 small letters, digits and dashes, a letter or digit first",
    pattern=r"^[a-z0-9][a-z0-9\-]{0,63}$",
)
TAGS: Final = items(TAG, uniqueItems=True)
PATH: Final = text("a path", "write the path of a file", minLength=1, maxLength=1000)
COMMAND: Final = text("a command line", "write the command", maxLength=4000)
SECRET_NAME: Final = text(
    "the name of a secret",
    "write capital letters, digits and _, such as ACME_API_KEY",
    pattern=SECRET_NAME_PATTERN,
    maxLength=100,
    writeOnly=True,
)
EVERY: Final = text(
    "a duration", "write it as PT5M, PT1H or P1D, or as 5m, 1h or 1d", pattern=EVERY_PATTERN
)
COST_CLASS: Final = choice("trivial", "metered", "expensive")
BACKOFF: Final = choice("fixed", "exponential")
FREE: Final[Schema] = {"type": "object"}


def retry(most: int) -> Schema:
    """How often something is tried again."""
    return closed(
        {"max_attempts": whole(1, most), "backoff": BACKOFF, "initial_ms": whole(0)},
        "max_attempts",
    )
