"""Covers stay where they are: nobody inside puts something else at the place of what is covered.

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
from tests.drivers.sandbox.cells import all_tried, cell, needs_confinement, tried

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
async def test_no_folder_above_a_cover_can_be_moved(tmp_path: Path, cover: str) -> None:
    home = Home(tmp_path)
    moves: list[tuple[object, ...]] = []
    for one in home.above:
        # Beside it: further away it would be another mount, and fail for that.
        other = one.with_name("other")
        other.mkdir()
        moves += [("renamed", one, f"{one}.old"), ("exchanged", one, other)]
        moves += [("removed", one), ("renamed", other, one)]
    covered = home.drivers if cover == "read_only" else home.state
    async with cell(**{cover: [covered]}) as inside:
        answers = await all_tried(inside, *moves)
        assert answers == ["EBUSY"] * len(moves)
        assert (
            await all_tried(inside, ("mount", other, home.top), ("unmount", home.top))
            == ["EPERM"] * 2
        )
    # Unconfined, the way is open.
    assert await tried(None, "renamed", home.top, f"{home.top}.old") == "done"


async def test_the_folder_is_as_writable_as_before(tmp_path: Path) -> None:
    home = Home(tmp_path)
    place = home.workspace
    async with cell(read_only=[home.drivers], hidden=[home.state]) as inside:
        assert await all_tried(
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


async def test_a_link_on_the_way_cannot_lead_elsewhere(tmp_path: Path) -> None:
    home = Home(tmp_path)
    alias, drivers = tmp_path / "alias", home.workspace / "linked"
    alias.symlink_to("home/projects/../projects/workspace")
    drivers.symlink_to(home.drivers)
    evil = tmp_path / "evil"
    evil.mkdir()
    async with cell(read_only=[alias / "linked"]) as inside:
        answers = await all_tried(
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


async def test_the_nodes_own_code_stays_in_its_place() -> None:
    """Not only Python's folder itself: also those around it."""

    prefix = Path(sys.prefix)
    async with cell() as inside:
        attempts = [("renamed", one, f"{one}.old") for one in (prefix, prefix.parent)]
        for answer in await all_tried(inside, *attempts):
            # Whoever may not rename it anyway may hear that first.
            assert answer in ("EBUSY", "EACCES", "EPERM", "EROFS"), answer


@pytest.mark.spec("DR-32.security-1")
@pytest.mark.parametrize("cover", ["hidden", "read_only"])
async def test_what_is_not_there_yet_cannot_be_made(tmp_path: Path, cover: str) -> None:
    home = Home(tmp_path)
    absent = [home.workspace / ".secrets", home.workspace / "deep" / "tools"]
    for place in absent:
        place.with_name("evil").mkdir(parents=True)
    async with cell(**{cover: absent}) as inside:
        assert not absent[0].exists(), "only a start makes it"
        for place in absent:
            evil = place.with_name("evil")
            assert await all_tried(
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


async def test_what_cannot_be_made_is_not_left_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    async with cell(read_only=[tmp_path / "file" / "tools"]) as inside:
        with pytest.raises(InterlockError, match="cannot be created") as caught:
            inside.argv(["true"])
        assert caught.value.failure is SANDBOX_UNAVAILABLE


async def test_a_start_after_a_change_holds_what_is_there_then(tmp_path: Path) -> None:
    """One confinement serves many starts."""

    home = Home(tmp_path)
    async with cell(read_only=[home.drivers]) as inside:
        assert isinstance(inside, Confinement)
        assert await tried(inside, "written", home.drivers / "new") == "EROFS"
        os.rename(home.drivers, home.workspace / "moved")
        home.drivers.symlink_to("moved")
        assert await all_tried(
            inside,
            ("removed", home.drivers),
            ("renamed", home.workspace, f"{home.workspace}.old"),
            ("written", home.workspace / "moved" / "new"),
        ) == ["EBUSY", "EBUSY", "EROFS"]
