"""Version ranges in npm syntax: `^1.0.0`, `~1.2`, `1.x`, `>=1.2 <2`, `1.2 - 2.3`, `^1 || ^2`.

`semantic_version` parses the blocks of a range and orders versions. This module decides whether a
version is in the range, by npm's rule: all bounds hold, and a prerelease counts only if a bound of
the range names a prerelease of the same three numbers.
"""

from __future__ import annotations

import operator
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

from semantic_version import NpmSpec, Version

from interlock.core.config.problems import InvalidValueError, quote

_MAX_LENGTH: Final = 200
_AFTER_OPERATOR: Final = re.compile(r"(~>|[<>]=?|=|\^|~)\s+")
_LEADING_V: Final = re.compile(r"(?<![^\s<>=^~|])[vV](?=[0-9xX*])")
_BLOCK: Final = re.compile(r"(?P<prefix>[<>]=?|=|\^|~|)(?P<version>[0-9xX*].*)")
_FULL_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:[-+].*)?")
_HINT: Final = 'write it in npm syntax, such as "^1.0.0", ">=1.2 <2" or "1.x"'
_COMPARE: Final[dict[str, Any]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Bound(NamedTuple):
    compare: Any
    target: Version
    excludes_prereleases: bool
    """True for the upper end of a short form, which excludes prereleases of its target."""

    def holds(self, version: Version) -> bool:
        if self.excludes_prereleases:
            return bool(version.truncate() < self.target)
        return bool(self.compare(version, self.target))


def in_range(version: str, text: str) -> bool:
    """Return whether a version is in a range. Raises InvalidValueError for an invalid version or
    range."""
    return _in_range(version, text)


def check_range(text: str) -> None:
    """Raise InvalidValueError for an invalid range."""
    _parse_range(text)


def newest(versions: list[str]) -> str:
    """Return the highest version."""
    return max(versions, key=_parse_version)


@lru_cache(maxsize=4096)
def _in_range(version: str, text: str) -> bool:
    parsed = _parse_version(version)
    return any(_matches(parsed, group) for group in _parse_range(text))


def _matches(version: Version, bounds: tuple[_Bound, ...]) -> bool:
    if not all(bound.holds(version) for bound in bounds):
        return False
    return not version.prerelease or any(
        bound.target.prerelease and bound.target.truncate() == version.truncate()
        for bound in bounds
    )


@lru_cache(maxsize=1024)
def _parse_version(text: str) -> Version:
    try:
        if len(text) <= _MAX_LENGTH:
            # Build metadata does not order versions.
            return Version(text).truncate("prerelease")
    except ValueError:
        pass
    raise InvalidValueError(f"{quote(text)} is not a version", "write three numbers, such as 1.0.0")


@lru_cache(maxsize=1024)
def _parse_range(text: str) -> tuple[tuple[_Bound, ...], ...]:
    if len(text) > _MAX_LENGTH:
        raise InvalidValueError(f"a version range has at most {_MAX_LENGTH} characters", _HINT)
    plain = _LEADING_V.sub("", _AFTER_OPERATOR.sub(r"\1", text)).replace("~>", "~")
    try:
        return tuple(_parse_group(group) for group in plain.split("||"))
    except (ValueError, AttributeError, AssertionError, OverflowError):
        # The library raises unexpected exceptions for some invalid ranges.
        raise InvalidValueError(f"{quote(text)} is not a version range", _HINT) from None


def _parse_group(group: str) -> tuple[_Bound, ...]:
    low, hyphen, high = group.strip().partition(" - ")
    if hyphen:
        if " " in low.strip() or " " in high.strip():
            raise ValueError(group)
        return (*_parse_block(f">={low.strip()}"), *_parse_block(f"<={high.strip()}"))
    return tuple(bound for block in group.split() or ["*"] for bound in _parse_block(block))


def _parse_block(block: str) -> tuple[_Bound, ...]:
    parts = _BLOCK.fullmatch(block)
    if parts is None:
        raise ValueError(block)
    prefix, version = parts["prefix"], parts["version"].partition("+")[0]
    block = prefix + version
    if version[0] in "xX*" and prefix in ("^", "~", "<=", ""):
        block = "*"
    elif prefix == "~" and "-" in version and _FULL_VERSION.fullmatch(version):
        # The library ends ~1.2.0-beta at 1.2.0.
        target = Version(version)
        end = Version(major=target.major, minor=target.minor + 1, patch=0)
        return (_Bound(operator.ge, target, False), _Bound(operator.lt, end, True))
    is_short = prefix in ("^", "~") or not _FULL_VERSION.fullmatch(version)
    return tuple(
        _Bound(_COMPARE[clause.operator], clause.target, is_short and clause.operator == "<")
        for clause in NpmSpec.Parser.parse_simple(block)
    )
