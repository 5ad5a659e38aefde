"""The release check: may a version be released with these changes?

A breaking change requires a new major version. A new major version in turn requires a migration
guide from the old version to the new one, and an announcement early enough for users to react.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from semantic_version import Version

from interlock.contracts.diff.changes import SchemaChange, breaking
from interlock.contracts.diff.compatibility import Bump, next_version, read_version, required_bump

BREAKS: Final = "Breaking changes detected without major version bump"
MAJOR_BREAKS: Final = "Breaking changes in major version bump — ensure migration guide exists"
NOTICE_CYCLES: Final = 2
"""The number of release cycles between the announcement of a break and the break."""
_MAX_GUIDE_BYTES: Final = 1_000_000


class ReleaseVerdict(Struct, frozen=True):
    """The result of a release check."""

    passed: bool
    headline: str
    problems: tuple[str, ...]
    """The reasons against the release."""
    warnings: tuple[str, ...]
    old_version: str
    new_version: str
    bump: Bump
    """The part of the version that the changes must raise."""
    lowest: str
    """The lowest version that may carry the changes."""
    changes: tuple[SchemaChange, ...]


def check_release(
    old_version: str,
    new_version: str,
    changes: Iterable[SchemaChange],
    *,
    guide: Path | None = None,
    notice: str | None = None,
    releases: Sequence[str] = (),
    cycles: int = NOTICE_CYCLES,
) -> ReleaseVerdict:
    """Check whether a new version may carry these changes.

    Args:
        guide: the migration guide.
        notice: the version that announced the break.
        releases: the versions published so far. They count as release cycles; patches do not.

    Raises:
        InterlockError: A version is invalid.
    """
    old, new = read_version(old_version), read_version(new_version)
    all_changes = tuple(changes)
    breaking_changes = breaking(all_changes)
    problems: list[str] = []
    warnings: list[str] = []
    headline = "Compatible" if all_changes else "Unchanged"
    if new < old:
        problems.append(f"{new} is older than {old}. Use a newer version.")
    elif breaking_changes and new.major == old.major:
        headline = BREAKS
        problems.append(_format_changes(breaking_changes))
    elif breaking_changes:
        headline = MAJOR_BREAKS
        warnings.append(_format_changes(breaking_changes))
        problems += _check_guide(guide, old, new)
        published = [read_version(release) for release in releases]
        problems += _check_notice(notice, old, new, published, cycles)
    else:
        _check_additions(all_changes, old, new, problems, warnings)
    return ReleaseVerdict(
        not problems,
        headline,
        tuple(problems),
        tuple(warnings),
        str(old),
        str(new),
        required_bump(all_changes),
        next_version(str(old), all_changes),
        all_changes,
    )


def _format_changes(changes: Sequence[SchemaChange]) -> str:
    return "; ".join(f"{change.path or '/'}: {change.reason}" for change in changes) + "."


def _check_additions(
    changes: Sequence[SchemaChange],
    old: Version,
    new: Version,
    problems: list[str],
    warnings: list[str],
) -> None:
    """Check that the version number reflects the additions."""
    if not changes:
        return
    next_allowed = next_version(str(old), changes)
    if new == old:
        message = (
            f"{old} is already used for the previous contract. Publish this as {next_allowed}."
        )
        (problems if required_bump(changes) is Bump.MINOR else warnings).append(message)
    elif required_bump(changes) is Bump.MINOR and (new.major, new.minor) == (old.major, old.minor):
        warnings.append(f"An addition requires a new minor version. Use {next_allowed}.")


# -- the migration guide


def _check_guide(guide: Path | None, old: Version, new: Version) -> list[str]:
    versions = f"{old} → {new}"
    if guide is None:
        return [f"There is no migration guide for {versions}. Write one and name it with --guide."]
    try:
        with guide.open("rb") as file:
            text = file.read(_MAX_GUIDE_BYTES).decode(errors="replace")
    except OSError as exc:
        return [f"Cannot read the migration guide {guide}: {exc.strerror}."]
    if not text.strip():
        return [f"The migration guide {guide} is empty."]
    missing = [
        str(version) for version in (old, new) if not _mentions(f"{guide.name}\n{text}", version)
    ]
    if missing:
        return [
            f"The migration guide {guide} does not cover {versions}: it does not mention "
            f"{missing[0]}."
        ]
    return []


def _mentions(text: str, version: Version) -> bool:
    """Return whether a text names a version or its major: 1.4.0, 1.4, 1.x, v1."""
    major, minor, patch = version.major, version.minor, version.patch
    forms = (rf"v?{major}\.{minor}(\.({patch}|x))?", rf"v?{major}\.x(\.x)?", rf"v{major}")
    return re.search(rf"(?<![\w.])({'|'.join(forms)})(?![\w]|\.\d)", text) is not None


# -- the announcement


def _check_notice(
    notice: str | None, old: Version, new: Version, releases: Sequence[Version], cycles: int
) -> list[str]:
    if notice is None:
        return [
            f"There is no deprecation notice. Announce a breaking change {cycles} releases ahead."
        ]
    announced = read_version(notice)
    if announced > old:
        return [f"The deprecation notice is in {announced}, which is newer than {old}."]
    # Patch releases do not give users time to migrate.
    later_releases = {
        (release.major, release.minor)
        for release in (*releases, old, new)
        if announced < release <= new
        and (release.major, release.minor) != (announced.major, announced.minor)
    }
    if len(later_releases) < cycles:
        return [
            f"The deprecation notice is in {announced}, {len(later_releases)} release"
            f"{'' if len(later_releases) == 1 else 's'} before {new}. {cycles} are required."
        ]
    return []
