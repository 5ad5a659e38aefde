"""Run tests on a copy of the tree in which a line of the product was changed.

A mutation is *killed* if a test fails. It *survives* if all tests pass.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from tools.tree_copy import copy_tree, create_environment

RUN_TIMEOUT_SECONDS = 1800
COLLECTION = "collection"
"""The failure of a run whose tests cannot be imported."""
NO_END = "the run did not end"
NO_TESTS = "no test was run"
INVALID = (NO_END, NO_TESTS)
"""Failures that prove nothing. A test that waits too long for an event fails by itself."""

TEST_TIMEOUT_SECONDS = 30
"""How long a test of a mutated tree waits for an event (`tests/support/timeouts.py`)."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_mtimes = itertools.count(1)

T = TypeVar("T")
R = TypeVar("R")


class MutationError(Exception):
    """A mutation that cannot be applied, or whose tests fail without it. The message says which."""


class Change(NamedTuple):
    """The replacement of a text in a file. The text occurs exactly once."""

    file: str
    find: str
    replace: str

    def apply(self, text: str) -> str:
        count = text.count(self.find)
        if count != 1:
            raise MutationError(f"{self.file}: {self.find!r} occurs {count} times instead of once")
        return text.replace(self.find, self.replace)


class TestRun(NamedTuple):
    """The result of a test run: the first failure, or None if all tests passed."""

    failure: str | None
    output: str


class MutationTree:
    """A copy of the working tree with a separate environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Some tests run as another user.
        folder.chmod(0o755)
        copy_tree(folder)
        self._python = create_environment(folder)

    def test(self, tests: Sequence[str], *options: str) -> TestRun:
        """Run tests until the first failure."""
        environ = {
            **os.environ,
            "PYTHONHASHSEED": "0",
            "VIRTUAL_ENV": str(self._python.parent.parent),
            "TEST_HANG_TIMEOUT": str(TEST_TIMEOUT_SECONDS),
        }
        environ.pop("PYTHONPATH", None)
        command = [
            str(self._python), "-m", "pytest", "--quiet", "--exitfirst", "--tb=line", "-rfE",
            "--hypothesis-profile=ci", "-p", "no:cacheprovider", *options, *tests,
        ]  # fmt: skip
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(RUN_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                # A mutated program may not end by itself.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            text = output.read()
        if code == 0:
            return TestRun(None, text)
        if code is None:
            return TestRun(NO_END, text)
        if code != 1:
            is_import = code == pytest.ExitCode.INTERRUPTED or "ImportError while loading" in text
            return TestRun(COLLECTION if is_import else NO_TESTS, text)
        match = _FAILED.search(text)
        return TestRun(match[1] if match else "an unnamed test", text)

    @contextlib.contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Apply a change, and restore the file afterwards."""
        path = self.folder / change.file
        original = path.read_bytes()
        try:
            _write(path, change.apply(original.decode()).encode())
            yield
        finally:
            _write(path, original)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    # Python recompiles a module if its time or size differs, so each version has another time.
    time = 1_000_000_000 + next(_mtimes)
    os.utime(path, (time, time))


def run_in_trees(
    work: Sequence[T], run: Callable[[MutationTree, T], R], *, jobs: int
) -> Iterator[tuple[T, R]]:
    """Run the work items in several trees. Yield the results in the order of the items."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        free: list[MutationTree] = []
        for _ in range(min(jobs, max(len(work), 1))):
            folder = Path(tempfile.mkdtemp(prefix="interlock-mutation-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            free.append(MutationTree(folder))
        lock = threading.Lock()

        def one(item: T) -> R:
            with lock:
                tree = free.pop()
            try:
                return run(tree, item)
            finally:
                with lock:
                    free.append(tree)

        yield from zip(work, pool.map(one, work), strict=True)


def print_progress(text: str) -> None:
    print(text, flush=True, file=sys.stderr)
