"""Covers cannot be moved or replaced from inside.

Each attempt is made unconfined as well, where it has to succeed.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from interlock.drivers.sandbox.confinement import Confinement
from interlock.errors import SANDBOX_UNAVAILABLE, InterlockError
from tests.drivers.sandbox.confinements import (
    attempt_all,
    needs_confinement,
    open_confinement,
    tried,
)

pytestmark = [needs_confinement, pytest.mark.usefixtures("no_leaks")]


class Home:
    """A workspace deep in folders that are all this user's."""

    def __init__(self, folder: Path) -> None:
        self.top = folder / "home"
        self.workspace = self.top / "projects" / "workspace"
        self.drivers = self.workspace / ".drivers"
        self.state = self.workspace / "state"
        self.drivers.mkdir(parents=True)
        self.state.mkdir()
        (self.drivers / "DRIVER.md").write_text("egress: []", encoding="utf-8")
        (self.state / "key").write_text("s3cret", encoding="utf-8")

    @property
    def above(self) -> list[Path]:
        return [self.workspace, self.workspace.parent, self.top]


@pytest.mark.spec("DR-32.security-1", "DR-30.security-1")
@pytest.mark.parametrize("cover", ["hidden", "read_only"])
async def test_folders_above_cover_cannot_be_moved(tmp_path: Path, cover: str) -> None:
    home = Home(tmp_path)
    moves: list[tuple[object, ...]] = []
    for item in home.above:
        # Beside it: further away it would be another mount, and fail for that.
        other = item.with_name("other")
        other.mkdir()
        moves += [("renamed", item, f"{item}.old"), ("exchanged", item, other)]
        moves += [("removed", item), ("renamed", other, item)]
    covered = home.drivers if cover == "read_only" else home.state
    async with open_confinement(**{cover: [covered]}) as inside:
        answers = await attempt_all(inside, *moves)
        assert answers == ["EBUSY"] * len(moves)
        assert (
            await attempt_all(inside, ("mount", other, home.top), ("unmount", home.top))
            == ["EPERM"] * 2
        )
    # Unconfined, the way is open.
    assert await tried(None, "renamed", home.top, f"{home.top}.old") == "done"


async def test_covered_folder_stays_writable_elsewhere(tmp_path: Path) -> None:
    home = Home(tmp_path)
    place = home.workspace
    async with open_confinement(read_only=[home.drivers], hidden=[home.state]) as inside:
        assert await attempt_all(
            inside,
            ("made", place / "data"),
            ("written", place / "data" / "one"),
            ("renamed", place / "data" / "one", place / "two"),
            ("read", place / "two"),
            ("removed", place / "data"),
            ("written", home.top / "three"),
            cwd=place,
        ) == ["done", "done", "done", "changed", "done", "done"]
    assert (place / "two").read_text(encoding="utf-8") == "changed"
    assert (home.top / "three").exists()


async def test_symlink_cannot_replace_cover(tmp_path: Path) -> None:
    home = Home(tmp_path)
    alias, drivers = tmp_path / "alias", home.workspace / "linked"
    alias.symlink_to("home/projects/../projects/workspace")
    drivers.symlink_to(home.drivers)
    evil = tmp_path / "evil"
    evil.mkdir()
    async with open_confinement(read_only=[alias / "linked"]) as inside:
        answers = await attempt_all(
            inside,
            ("removed", alias),
            ("removed", drivers),
            ("renamed", drivers, home.workspace / "gone"),
            ("linked", evil, home.workspace / "mine"),
            ("renamed", home.workspace / "mine", drivers),
            ("exchanged", home.workspace / "mine", drivers),
            ("written", alias / "linked" / "DRIVER.md"),
            ("read", alias / "linked" / "DRIVER.md"),
        )
    assert answers == ["EBUSY"] * 3 + ["done"] + ["EBUSY"] * 2 + ["EROFS", "egress: []"]
    assert await tried(None, "removed", drivers) == "done"


async def test_code_of_node_cannot_be_moved() -> None:
    """Not only Python's folder itself: also those around it."""

    prefix = Path(sys.prefix)
    async with open_confinement() as inside:
        attempts = [("renamed", item, f"{item}.old") for item in (prefix, prefix.parent)]
        for answer in await attempt_all(inside, *attempts):
            # Whoever may not rename it anyway may hear that first.
            assert answer in ("EBUSY", "EACCES", "EPERM", "EROFS"), answer


@pytest.mark.spec("DR-32.security-1")
@pytest.mark.parametrize("cover", ["hidden", "read_only"])
async def test_absent_covered_path_cannot_be_created(tmp_path: Path, cover: str) -> None:
    home = Home(tmp_path)
    absent = [home.workspace / ".secrets", home.workspace / "deep" / "tools"]
    for place in absent:
        place.with_name("evil").mkdir(parents=True)
    async with open_confinement(**{cover: absent}) as inside:
        assert not absent[0].exists(), "only a start makes it"
        for place in absent:
            evil = place.with_name("evil")
            assert await attempt_all(
                inside,
                ("made", place / "evil"),
                ("written", place / "SECRETS.md"),
                ("removed", place),
                ("linked", evil, place),
                ("renamed", evil, place),
            ) == ["EROFS", "EROFS", "EBUSY", "EEXIST", "EBUSY"]
    for place in absent:
        assert list(place.iterdir()) == []
        assert stat.S_IMODE(place.stat().st_mode) == 0o700


async def test_unenforceable_cover_prevents_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    async with open_confinement(read_only=[tmp_path / "file" / "tools"]) as inside:
        with pytest.raises(InterlockError, match="cannot be created") as error:
            inside.argv(["true"])
        assert error.value.failure is SANDBOX_UNAVAILABLE


async def test_next_start_covers_changed_files(tmp_path: Path) -> None:
    """One confinement serves many starts."""

    home = Home(tmp_path)
    async with open_confinement(read_only=[home.drivers]) as inside:
        assert isinstance(inside, Confinement)
        assert await tried(inside, "written", home.drivers / "new") == "EROFS"
        os.rename(home.drivers, home.workspace / "moved")
        home.drivers.symlink_to("moved")
        assert await attempt_all(
            inside,
            ("removed", home.drivers),
            ("renamed", home.workspace, f"{home.workspace}.old"),
            ("written", home.workspace / "moved" / "new"),
        ) == ["EBUSY", "EBUSY", "EROFS"]
