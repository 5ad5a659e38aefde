"""Real Git repositories for tests, without the config of the user."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from interlock.contracts.registry.git import ContractGit, GitChoice
from tests.support.timeouts import HANG_TIMEOUT

MEANS: tuple[GitChoice, ...] = ("git", "dulwich")


def git(folder: Path, *arguments: str, check: bool = True, **environ: str) -> str:
    """Run git in a folder without user config."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={
            **kept,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "a person",
            "GIT_AUTHOR_EMAIL": "person@example.org",
            "GIT_COMMITTER_NAME": "a person",
            "GIT_COMMITTER_EMAIL": "person@example.org",
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def is_clean(folder: Path) -> bool:
    """Return whether working tree and index equal the commit, and the repository is valid."""
    git(folder, "fsck", "--strict", "--no-dangling")
    return git(folder, "status", "--porcelain") == ""


def publish(
    store: ContractGit, files: dict[str, bytes], reason: str = "because", author: str = "operator"
) -> str:
    made = store.publish(lambda _: (files, f"{reason}\n"), author=author, seconds=1_800_000_000.0)
    assert made is not None
    return made
