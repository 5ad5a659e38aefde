"""The suite's scenarios of the tasks extension, with our own server for them.

The suite does not score them, and the reference server has none of their tools. What passes
directly passes through a node, and through two in a row.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.cells import in_front_of, server, tasks_server
from tests.conformance.suite import Findings, requirements, run_scenarios

pytestmark = pytest.mark.timeout(120)

REVISION = "2026-07-28"
CHECKS = 44
"""How many pass directly."""

later = pytest.mark.skipif(
    not os.environ.get("CONF_ALL"), reason="takes long: make conformance runs it"
)


@pytest.fixture(scope="module")
def found(suite: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Findings]:
    """What is found with so many nodes in between."""
    folder = tmp_path_factory.mktemp("tasks")
    scenarios = [one for one in requirements(REVISION, "server").unscored if "tasks-" in one]
    known: dict[int, Findings] = {}

    def look(nodes: int) -> Findings:
        if nodes not in known:
            with tasks_server() as url, in_front_of(url, nodes, folder / f"{nodes}") as endpoint:
                place = folder / f"found{nodes}"
                known[nodes] = run_scenarios(endpoint, REVISION, scenarios, place)
        return known[nodes]

    return look


def test_the_ceiling(found: Callable[[int], Findings]) -> None:
    assert "FAILURE" not in found(0).status.values()
    assert len(found(0).passed) >= CHECKS


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=later)])
def test_tasks_through_nodes(found: Callable[[int], Findings], nodes: int) -> None:
    lost = sorted(found(0).passed - found(nodes).passed)
    assert not lost, "\n".join(["lost:", *(found(nodes).said(check) for check in lost)])


def test_what_a_session_server_asks_is_a_task(suite: None, tmp_path: Path) -> None:
    """To a client that speaks tasks; the server knows nothing of them."""
    with server("session", "neutral") as url, in_front_of(url, 1, tmp_path) as endpoint:
        found = run_scenarios(endpoint, REVISION, ["tasks-mrtr-input"], tmp_path / "found")
    assert set(found.status.values()) == {"SUCCESS"}, [found.said(check) for check in found.status]
    assert len(found.passed) >= 4
