"""A world of its own for every test of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path)
    try:
        yield one
    finally:
        one.close()
