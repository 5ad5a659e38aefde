"""Tests of the check of a release: version, migration guide and deprecation notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.contracts.diff.changes import ChangeReason, SchemaChange
from interlock.contracts.diff.compatibility import Bump
from interlock.contracts.diff.verdict import BREAKS, MAJOR_BREAKS, ReleaseVerdict, check_release
from interlock.errors import InterlockError

GONE = SchemaChange(ChangeReason.FIELD_REMOVED, "/properties/b", True, "b is gone.")
NEW = SchemaChange(ChangeReason.FIELD_ADDED_OPTIONAL, "/properties/c", False, "c is new.")
SAID = SchemaChange(ChangeReason.DESCRIPTION_CHANGED, "/description", False, "It is another.")


@pytest.fixture
def guide(tmp_path: Path) -> Path:
    path = tmp_path / "migration.md"
    path.write_text("# From 1.5.0 to 2.0.0\nLeave out b.\n", encoding="utf-8")
    return path


@pytest.mark.spec("ST-4.5.3-3")
@pytest.mark.parametrize("version", ["1.5.0", "1.6.0", "1.5.1"])
def test_breaking_change_needs_new_major(version: str) -> None:
    verdict = check_release("1.5.0", version, [NEW, GONE])
    assert not verdict.passed
    assert verdict.headline == BREAKS == "Breaking changes detected without major version bump"
    assert verdict.problems == ("/properties/b: FIELD_REMOVED.",)
    assert (verdict.bump, verdict.lowest) == (Bump.MAJOR, "2.0.0")


@pytest.mark.spec("ST-4.5.3-4")
def test_new_major_needs_guide_and_notice(guide: Path) -> None:
    verdict = check_release("1.5.0", "2.0.0", [GONE], guide=guide, notice="1.4.0")
    assert verdict.passed
    assert verdict.headline == MAJOR_BREAKS
    assert verdict.warnings == ("/properties/b: FIELD_REMOVED.",)
    without = check_release("1.5.0", "2.0.0", [GONE], notice="1.4.0")
    assert not without.passed
    assert "no migration guide for 1.5.0 → 2.0.0" in without.problems[0]
    silent = check_release("1.5.0", "2.0.0", [GONE], guide=guide)
    assert not silent.passed
    assert "no deprecation notice" in silent.problems[0]
    assert len(check_release("1.5.0", "2.0.0", [GONE]).problems) == 2


def check_announced_release(
    notice: str, *releases: str, guide: Path, old: str = "1.5.0"
) -> ReleaseVerdict:
    return check_release(old, "2.0.0", [GONE], guide=guide, notice=notice, releases=releases)


@pytest.mark.spec("ST-4.5.3-4")
def test_notice_must_be_two_releases_old(guide: Path) -> None:
    late = check_announced_release("1.5.0", guide=guide)
    assert "in 1.5.0, 1 release before 2.0.0. 2 are required" in late.problems[0]
    assert check_announced_release("1.4.0", guide=guide).passed
    # Patches give nobody time to move.
    patched = check_announced_release("1.5.0", "1.5.1", "1.5.2", guide=guide, old="1.5.2")
    assert not any("1.5.2 is" in problem for problem in patched.problems)
    assert "1 release before" in patched.problems[-1]
    assert check_announced_release("1.3.0", "1.3.0", "1.4.0", guide=guide).passed
    assert "newer than 1.5.0" in check_announced_release("1.6.0", guide=guide).problems[0]
    assert check_release("1.5.0", "2.0.0", [GONE], guide=guide, notice="1.5.0", cycles=1).passed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("From 1.5.0 on", "does not mention 2.0.0"),
        ("What 2.0.0 brings", "does not mention 1.5.0"),
        ("From 11.5.0 to 2.0.01", "does not mention 1.5.0"),
        ("From v1 to v2", None),
        ("1.x → 2.x", None),
        ("1.5 to 2.0, step by step", None),
    ],
)
def test_guide_must_match_versions(guide: Path, text: str, problem: str | None) -> None:
    guide.write_text(text, encoding="utf-8")
    problems = check_announced_release("1.4.0", guide=guide).problems
    assert (problem is None) == (problems == ())
    assert problem is None or problem in problems[0]


def test_reports_unreadable_guide(tmp_path: Path) -> None:
    missing = check_announced_release("1.4.0", guide=tmp_path / "nope.md")
    assert "Cannot read the migration guide" in missing.problems[0]
    assert "Cannot read" in check_announced_release("1.4.0", guide=tmp_path).problems[0]


def test_accepts_compatible_changes() -> None:
    assert check_release("1.5.0", "1.6.0", [NEW]).warnings == ()
    assert check_release("1.5.0", "1.5.1", [SAID]).passed
    small = check_release("1.5.0", "1.5.1", [NEW])
    assert small.passed
    assert "Use 1.6.0" in small.warnings[0]
    same = check_release("1.5.0", "1.5.0", [NEW])
    assert not same.passed
    assert "Publish this as 1.6.0" in same.problems[0]
    assert check_release("1.5.0", "1.5.0", [SAID]).passed
    assert check_release("1.5.0", "1.5.0", []).headline == "Unchanged"
    assert check_release("1.5.0", "2.0.0", [NEW]).passed


def test_rejects_older_version() -> None:
    assert check_release("1.5.0", "1.4.9", []).problems == (
        "1.4.9 is older than 1.5.0. Use a newer version.",
    )
    with pytest.raises(InterlockError):
        check_release("1.5", "2.0.0", [])
