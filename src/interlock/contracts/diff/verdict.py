"""May this version be released? Changes, held against the versions that they are published under.

A break needs a new major version. That in turn needs a guide that leads from the old version to the
new one, and an announcement early enough for everybody to have read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from semantic_version import Version

from interlock.contracts.diff.changes import SchemaChange, breaking
from interlock.contracts.diff.compatibility import Bump, bump, next_version, read_version

BREAKS: Final = "Breaking changes detected without major version bump"
MAJOR_BREAKS: Final = "Breaking changes in major version bump — ensure migration guide exists"
CYCLES: Final = 2
"""How many release cycles before a break it has to be announced."""
_MOST_BYTES: Final = 1_000_000


class ReleaseVerdict(Struct, frozen=True):
    """What is to be said about a release."""

    passed: bool
    headline: str
    problems: tuple[str, ...]
    """Why it may not be released."""
    warnings: tuple[str, ...]
    old_version: str
    new_version: str
    bump: Bump
    """What the changes ask for."""
    lowest: str
    """The lowest version that they may be released under."""
    changes: tuple[SchemaChange, ...]


def judge(
    old_version: str,
    new_version: str,
    changes: Iterable[SchemaChange],
    *,
    guide: Path | None = None,
    notice: str | None = None,
    releases: Sequence[str] = (),
    cycles: int = CYCLES,
) -> ReleaseVerdict:
    """Whether a new version may carry these changes.

    `guide` is the migration guide, `notice` the version that announced the break. `releases` are
    versions published so far, which count as release cycles; patches do not. Raises InterlockError
    for what is no version.
    """
    old, new = read_version(old_version), read_version(new_version)
    found = tuple(changes)
    broken = breaking(found)
    problems: list[str] = []
    warnings: list[str] = []
    headline = "Compatible" if found else "Unchanged"
    if new < old:
        problems.append(f"{new} is older than {old}.")
    elif broken and new.major == old.major:
        headline = BREAKS
        problems.append(_report(broken))
    elif broken:
        headline = MAJOR_BREAKS
        warnings.append(_report(broken))
        problems += _guide(guide, old, new)
        published = [read_version(one) for one in releases]
        problems += _notice(notice, old, new, published, cycles)
    else:
        _additions(found, old, new, problems, warnings)
    return ReleaseVerdict(
        not problems,
        headline,
        tuple(problems),
        tuple(warnings),
        str(old),
        str(new),
        bump(found),
        next_version(str(old), found),
        found,
    )


def _report(broken: Sequence[SchemaChange]) -> str:
    return "; ".join(f"{change.path or '/'}: {change.reason}" for change in broken) + "."


def _additions(
    changes: Sequence[SchemaChange],
    old: Version,
    new: Version,
    problems: list[str],
    warnings: list[str],
) -> None:
    """Whether the version says that something was added."""
    if not changes:
        return
    wanted = next_version(str(old), changes)
    if new == old:
        sentence = f"{old} stands for what was there before; publish this as {wanted}."
        (problems if bump(changes) is Bump.MINOR else warnings).append(sentence)
    elif bump(changes) is Bump.MINOR and (new.major, new.minor) == (old.major, old.minor):
        warnings.append(f"Something was added, and only the patch is another: {wanted} says so.")


# -- the migration guide


def _guide(guide: Path | None, old: Version, new: Version) -> list[str]:
    way = f"{old} → {new}"
    if guide is None:
        return [f"There is no migration guide for {way}: write one, and say where it is."]
    try:
        with guide.open("rb") as file:
            text = file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as exc:
        return [f"The migration guide {guide} cannot be read: {exc.strerror}."]
    if not text.strip():
        return [f"The migration guide {guide} is empty."]
    missing = [str(one) for one in (old, new) if not _mentions(f"{guide.name}\n{text}", one)]
    if missing:
        return [f"The migration guide {guide} is not for {way}: it never mentions {missing[0]}."]
    return []


def _mentions(text: str, version: Version) -> bool:
    """Whether a text names a version, or its major: 1.4.0, 1.4, 1.x, v1."""
    major, minor, patch = version.major, version.minor, version.patch
    forms = (rf"v?{major}\.{minor}(\.({patch}|x))?", rf"v?{major}\.x(\.x)?", rf"v{major}")
    return re.search(rf"(?<![\w.])({'|'.join(forms)})(?![\w]|\.\d)", text) is not None


# -- the announcement


def _notice(
    notice: str | None, old: Version, new: Version, releases: Sequence[Version], cycles: int
) -> list[str]:
    if notice is None:
        return [
            f"There is no deprecation notice: a break has to be announced {cycles} releases ahead."
        ]
    announced = read_version(notice)
    if announced > old:
        return [f"The deprecation notice is of {announced}, which is newer than {old}."]
    # Whoever only mends does not give anybody time to move.
    since = {
        (one.major, one.minor)
        for one in (*releases, old, new)
        if announced < one <= new and (one.major, one.minor) != (announced.major, announced.minor)
    }
    if len(since) < cycles:
        return [
            f"The deprecation notice is of {announced}, {len(since)} release"
            f"{'' if len(since) == 1 else 's'} before {new}: it has to be {cycles}."
        ]
    return []
