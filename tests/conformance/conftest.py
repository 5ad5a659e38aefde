"""What the tests of this folder share: the suite's findings, and when it cannot be had."""

from __future__ import annotations

import os

import pytest

from tests.conformance import external_packages
from tests.conformance.cells import Results


@pytest.fixture(scope="session")
def suite() -> None:
    """Skips where the suite is not wanted or cannot be had."""
    if os.environ.get("INTERLOCK_CONFORMANCE") == "0":
        pytest.skip("INTERLOCK_CONFORMANCE is 0")
    try:
        external_packages.node()
        external_packages.suite()
        external_packages.everything_folder()
    except external_packages.CannotRun as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def results(suite: None, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("cells"))
