"""A process that publishes contracts until it ends or is killed.

    contract_publisher.py FOLDER MEANS NAME FROM COUNT [POINT]

It says `begin N` before and `done N` after each. With a POINT it kills itself there, as `kill -9`
does, when it comes to its last one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interlock.contracts.registry.git import ContractGit
from interlock.contracts.registry.git_dulwich import GitDulwich
from interlock.contracts.registry.git_folder import RepositoryFolder
from interlock.contracts.registry.git_program import GitProgram
from interlock.contracts.registry.registry import ContractRegistry
from tests.contracts.registry.registry_contracts import contract

POINTS: dict[str, tuple[Any, str, bool]] = {
    "before the objects": (None, "commit", False),
    "after the objects": (None, "commit", True),
    "before the note": (RepositoryFolder, "write_unfinished", False),
    "after the note": (RepositoryFolder, "write_unfinished", True),
    "after the branch": (None, "update_branch", True),
    "before the files": (RepositoryFolder, "write_files", False),
    "after the files": (RepositoryFolder, "write_files", True),
    "after the index": (None, "stage", True),
    "before the end": (RepositoryFolder, "clear_unfinished", False),
}


def kill_at(means: str, point: str) -> None:
    """Kill this process at the next call of this point."""
    owner, name, after = POINTS[point]
    owner = owner or (GitDulwich if means == "dulwich" else GitProgram)
    done: Callable[..., Any] = getattr(owner, name)

    def dying(*args: Any, **kwargs: Any) -> Any:
        if after:
            done(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dying)


def main() -> None:
    folder, means, name, first, count = sys.argv[1:6]
    registry = ContractRegistry(Path(folder), backend=means, lock_timeout=30.0)  # type: ignore[arg-type]
    assert isinstance(registry._git, ContractGit)
    for number in range(int(first), int(first) + int(count)):
        print(f"begin {number}", flush=True)
        if len(sys.argv) > 6 and number == int(first) + int(count) - 1:
            kill_at(means, sys.argv[6])
        registry.publish(contract(name, f"1.{number}.0"), author=name, reason=f"{name} {number}")
        print(f"done {number}", flush=True)


if __name__ == "__main__":
    main()
