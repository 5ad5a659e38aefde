"""Ranges of versions as npm has them: `^1.0.0`, `~1.2`, `1.x`, `>=1.2 <2`, `1.2 - 2.3`, `^1 || ^2`.

`semantic_version` takes the blocks of a range apart and orders versions. Whether a version is in
the range is decided here, by npm's rule: every bound holds, and a prerelease only counts where a
bound of the range names a prerelease of the very same three numbers.
"""

from __future__ import annotations

import operator
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

from semantic_version import NpmSpec, Version

from interlock.core.config.problems import BadValue, quoted

_MOST_CHARACTERS: Final = 200
_AFTER_OPERATOR: Final = re.compile(r"(~>|[<>]=?|=|\^|~)\s+")
_LEADING_V: Final = re.compile(r"(?<![^\s<>=^~|])[vV](?=[0-9xX*])")
_BLOCK: Final = re.compile(r"(?P<prefix>[<>]=?|=|\^|~|)(?P<version>[0-9xX*].*)")
_WHOLE: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:[-+].*)?")
_HINT: Final = 'write one as npm has them, such as "^1.0.0", ">=1.2 <2" or "1.x"'
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
    before: bool
    """An upper end that a short form stands for: prereleases of it are outside, too."""

    def holds(self, version: Version) -> bool:
        if self.before:
            return bool(version.truncate() < self.target)
        return bool(self.compare(version, self.target))


def in_range(version: str, text: str) -> bool:
    """Whether a version is in a range. Raises BadValue for what is none of either."""
    return _in_range(version, text)


def check_range(text: str) -> None:
    """Raise BadValue for a text that is no range."""
    _groups(text)


def newest(versions: list[str]) -> str:
    """The version that comes last in order."""
    return max(versions, key=_version)


@lru_cache(maxsize=4096)
def _in_range(version: str, text: str) -> bool:
    asked = _version(version)
    return any(_fits(asked, group) for group in _groups(text))


def _fits(version: Version, bounds: tuple[_Bound, ...]) -> bool:
    if not all(bound.holds(version) for bound in bounds):
        return False
    return not version.prerelease or any(
        bound.target.prerelease and bound.target.truncate() == version.truncate()
        for bound in bounds
    )


@lru_cache(maxsize=1024)
def _version(text: str) -> Version:
    try:
        if len(text) <= _MOST_CHARACTERS:
            # What was built of it does not order versions.
            return Version(text).truncate("prerelease")
    except ValueError:
        pass
    raise BadValue(f"{quoted(text)} is not a version", "write three numbers, such as 1.0.0")


@lru_cache(maxsize=1024)
def _groups(text: str) -> tuple[tuple[_Bound, ...], ...]:
    if len(text) > _MOST_CHARACTERS:
        raise BadValue("this is too long for a range of versions", _HINT)
    plain = _LEADING_V.sub("", _AFTER_OPERATOR.sub(r"\1", text)).replace("~>", "~")
    try:
        return tuple(_bounds(group) for group in plain.split("||"))
    except (ValueError, AttributeError, AssertionError, OverflowError):
        # The library answers some texts that are no range with an accident.
        raise BadValue(f"{quoted(text)} is not a range of versions", _HINT) from None


def _bounds(group: str) -> tuple[_Bound, ...]:
    low, hyphen, high = group.strip().partition(" - ")
    if hyphen:
        if " " in low.strip() or " " in high.strip():
            raise ValueError(group)
        return (*_block(f">={low.strip()}"), *_block(f"<={high.strip()}"))
    return tuple(bound for block in group.split() or ["*"] for bound in _block(block))


def _block(block: str) -> tuple[_Bound, ...]:
    parts = _BLOCK.fullmatch(block)
    if parts is None:
        raise ValueError(block)
    prefix, version = parts["prefix"], parts["version"].partition("+")[0]
    block = prefix + version
    if version[0] in "xX*" and prefix in ("^", "~", "<=", ""):
        block = "*"
    elif prefix == "~" and "-" in version and _WHOLE.fullmatch(version):
        # The library takes ~1.2.0-beta to end at 1.2.0.
        target = Version(version)
        ends = Version(major=target.major, minor=target.minor + 1, patch=0)
        return (_Bound(operator.ge, target, False), _Bound(operator.lt, ends, True))
    short = prefix in ("^", "~") or not _WHOLE.fullmatch(version)
    return tuple(
        _Bound(_COMPARE[one.operator], one.target, short and one.operator == "<")
        for one in NpmSpec.Parser.parse_simple(block)
    )
