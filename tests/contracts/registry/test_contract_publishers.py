"""Tests of concurrent and killed publishers."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interlock.contracts.registry.git import GitChoice
from tests.contracts.registry.contract_publisher import POINTS
from tests.contracts.registry.git_repositories import MEANS, git, is_clean
from tests.contracts.registry.registry_contracts import RegistryBench, contract

ROOT = Path(__file__).parents[3]
HANG_TIMEOUT = 120.0


def start_publisher(folder: Path, means: str, name: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.contracts.registry.contract_publisher",
            str(folder),
            means,
            name,
            *more,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for_publisher(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Return the exit code and the reported publications of a publisher."""
    said, _ = process.communicate(timeout=HANG_TIMEOUT)
    return process.returncode, [line for line in said.splitlines() if line.startswith("done")]


def test_processes_publish_concurrently(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    processes = [
        start_publisher(folder, means, name, "0", "6")
        for means, name in (("git", "A"), ("dulwich", "B"), ("git", "C"))
    ]
    for process in processes:
        assert wait_for_publisher(process) == (0, [f"done {n}" for n in range(6)])
    shelf = RegistryBench(folder)
    for name in "ABC":
        assert shelf.registry.versions(name) == [f"1.{n}.0" for n in range(6)]
    assert len(shelf.registry.history(limit=100)) == 18
    assert is_clean(folder)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["registry"]
    shelf.close()


def test_same_version_is_published_once(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    processes = [start_publisher(folder, means, "A", "0", "4") for means in MEANS]
    for process in processes:
        assert wait_for_publisher(process)[0] == 0
    shelf = RegistryBench(folder)
    assert len(shelf.registry.history(limit=100)) == 4
    shelf.close()


@pytest.mark.parametrize("means", MEANS)
@pytest.mark.parametrize("point", POINTS)
def test_killed_publication_is_repaired(tmp_path: Path, means: GitChoice, point: str) -> None:
    folder = tmp_path / "registry"
    code, done = wait_for_publisher(start_publisher(folder, means, "A", "0", "2", point))
    assert (code, done) == (-9, ["done 0"])
    git(folder, "fsck", "--strict")
    shelf = RegistryBench(folder, means)
    versions = shelf.registry.versions("A")
    # What was told as published is there; what was not may be, whole.
    assert versions in (["1.0.0"], ["1.0.0", "1.1.0"])
    assert all(shelf.registry.find("A", version).schema() for version in versions)
    shelf.put(contract("B"))
    shelf.put(contract("A", "1.1.0"))
    assert shelf.registry.versions("A") == ["1.0.0", "1.1.0"]
    assert is_clean(folder)
    shelf.close()


@pytest.mark.parametrize("means", MEANS)
def test_registry_survives_kill_at_any_moment(tmp_path: Path, means: GitChoice) -> None:
    folder = tmp_path / "registry"
    chance = random.Random(8)
    done = 0
    for _ in range(5):
        process = start_publisher(folder, means, "A", str(done), "1000")
        assert process.stdout is not None
        begun = 0
        for line in process.stdout:
            if line.startswith("done"):
                done = int(line.split()[1]) + 1
                begun += 1
            elif begun:
                # Not waiting, but choosing the moment: somewhere inside of a publication.
                at = time.monotonic() + chance.uniform(0.0, 0.12)
                while time.monotonic() < at:
                    pass
                break
        process.kill()
        rest, _ = process.communicate(timeout=HANG_TIMEOUT)
        done = max(
            [done, *(int(line.split()[1]) + 1 for line in rest.splitlines() if "done" in line)]
        )
        git(folder, "fsck", "--strict")
    shelf = RegistryBench(folder, means)
    versions = shelf.registry.versions("A")
    assert versions[:done] == [f"1.{n}.0" for n in range(done)]
    assert len(versions) in (done, done + 1)
    shelf.put(contract("B"))
    assert is_clean(folder)
    shelf.close()
