"""Builds without a feature: they start, serve and pass their tests.

`make test-without` tests all features.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOME_TESTS = [
    "tests/behaviour/test_aggregation.py",
    "tests/behaviour/test_node_reload.py",
    "tests/cli/test_app.py",
    "tests/cli/test_call.py",
]


@pytest.mark.parametrize("feature", ["topics", "tree"])
def test_node_serves_without_feature(feature: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout is copied")
    done = subprocess.run(
        [sys.executable, "-m", "tools.test_without", feature, "--", "-p", "no:xdist", *SOME_TESTS],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert f"absent without {feature}" in done.stdout


def test_rejects_unknown_feature() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.test_without", "telepathy"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "there is no feature telepathy: choose one of " in done.stderr
