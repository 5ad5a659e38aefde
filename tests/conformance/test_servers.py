"""The official suite against the reference server: directly, through nodes, and across the eras.

Every check that passes directly passes through a node, and through two in a row. Across the eras
the same holds but for what is in `unbridgeable.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from interlock.core.config import ServerConfig
from tests.conformance import external_packages
from tests.conformance.cells import Cell, Results
from tests.conformance.suite import REVISIONS, Check, Findings, requirements, run_server
from tests.conformance.unbridgeable import (
    SESSION_TO_STATELESS,
    STARTED_SERVER,
    STATELESS_TO_SESSION,
    UNLISTED_TOOLS,
    Forced,
)
from tests.support.node import NodeThread

pytestmark = pytest.mark.timeout(1800)

CEILING = {"2025-11-25": (33, 84), "2026-07-28": (39, 168)}
"""Scenarios and checks that pass directly: less would be too low a bar for a node."""

NOT_YET: dict[tuple[str, str], str] = {
    ("server-sse-polling", "server-sse-priming-event"): "a call without news is answered as JSON",
    ("server-sse-polling", "server-sse-retry-field"): "a call without news is answered as JSON",
}
"""(scenario, check id) → why it is lost through a node, though nothing forces it."""

SESSION, STATELESS = REVISIONS
later = pytest.mark.skipif(
    not os.environ.get("CONF_ALL"), reason="takes long: make conformance runs it"
)
through_nodes = pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=later)])
every_revision = pytest.mark.parametrize("revision", REVISIONS)
across = pytest.mark.parametrize(
    ("nodes", "fixture"),
    [(1, "reference"), (1, "neutral"), pytest.param(2, "neutral", marks=later)],
)


def lost_checks(results: Results, cell: Cell) -> tuple[set[Check], Findings]:
    """Find the checks that pass directly and not in this cell."""
    direct, found = results.of(Cell(cell.revision)), results.of(cell)
    return direct.passed - found.passed, found


def checks_of(forced: Iterable[Forced]) -> set[tuple[str, str]]:
    return {(entry.scenario, check) for entry in forced for check in entry.checks}


def unlisted(revision: str) -> set[tuple[str, str]]:
    """List the checks that call tools which the reference server does not list."""
    return checks_of(UNLISTED_TOOLS) if revision == STATELESS else set()


def report(capsys: pytest.CaptureFixture[str], cell: Cell, found: Findings) -> None:
    scored = set(requirements(cell.revision, "server").scored)
    with capsys.disabled():
        print(f"\n  suite {cell}: {found.line(scored)}")


def assert_only(missing: set[Check], listed: Iterable[tuple[str, str]], found: Findings) -> None:
    """Exactly what is listed may be missing."""
    expected = set(listed) | set(NOT_YET)
    others = sorted(check for check in missing if check[:2] not in expected)
    assert not others, "\n".join(["lost:", *(found.said(check) for check in others)])
    kept = sorted(set(listed) - {check[:2] for check in missing})
    assert not kept, f"listed as lost, and passes: {kept}"


@every_revision
def test_reference_server_passes_directly(
    results: Results, revision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = results.of(Cell(revision))
    report(capsys, Cell(revision), result)
    assert set(requirements(revision, "server").scored) <= result.good
    scenarios, checks = CEILING[revision]
    assert len(result.good) >= scenarios
    assert len(result.passed) >= checks


def test_no_scored_check_calls_an_unlisted_tool(suite: None) -> None:
    scored = set(requirements(STATELESS, "server").scored)
    assert not scored & {entry.scenario for entry in UNLISTED_TOOLS}


@every_revision
@through_nodes
def test_checks_pass_through_nodes(
    results: Results, revision: str, nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell(revision, nodes)
    missing, found = lost_checks(results, cell)
    report(capsys, cell, found)
    assert_only(missing, unlisted(revision), found)
    assert set(requirements(revision, "server").scored) <= found.good


@every_revision
def test_started_server_of_both_generations_passes(
    results: Results, revision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each client is served in its own generation, so that what the server asks arrives."""
    started = ServerConfig(
        command=sys.executable,
        args=["-c", "from mcp_everything_server.server import mcp; mcp.run(transport='stdio')"],
        cwd=str(external_packages.everything_folder()),
        env={"PYTHONPATH": ".", "PYTHONDONTWRITEBYTECODE": "1"},
        expose="transparent",
    )
    node = NodeThread(tmp_path, workshops={}, servers={"server": started})
    try:
        result = run_server(node.url, revision, tmp_path / "found")
    finally:
        node.stop()
    scored = set(requirements(revision, "server").scored)
    with capsys.disabled():
        print(f"\n  suite {revision}, a node, started server: {result.line(scored)}")
    assert scored <= result.good, sorted(scored - result.good)
    missing = results.of(Cell(revision)).passed - result.passed
    assert_only(missing, checks_of(STARTED_SERVER[revision]), result)


def _across(
    results: Results,
    cell: Cell,
    forced: list[Forced],
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing, found = lost_checks(results, cell)
    report(capsys, cell, found)
    assert_only(missing, checks_of(forced) | unlisted(cell.revision), found)
    unforced = set(requirements(cell.revision, "server").scored) - {
        item.scenario for item in forced
    }
    assert unforced <= found.good


@pytest.mark.spec("ST-4.4.2-12")
@across
def test_stateless_client_works_with_session_server(
    results: Results, nodes: int, fixture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell(STATELESS, nodes, "session", fixture)
    _across(results, cell, STATELESS_TO_SESSION[fixture], capsys)


@pytest.mark.spec("ST-4.4.2-12")
@across
def test_session_client_works_with_stateless_server(
    results: Results, nodes: int, fixture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell(SESSION, nodes, "stateless", fixture)
    _across(results, cell, SESSION_TO_STATELESS[fixture], capsys)


def test_known_gaps_still_fail(results: Results) -> None:
    cells = [Cell(revision, 1) for revision in REVISIONS] + [
        Cell(SESSION, 1, "stateless", "neutral")
    ]
    missing = {check[:2] for cell in cells for check in lost_checks(results, cell)[0]}
    assert set(NOT_YET) <= missing, f"passes, and is to be taken off the list: {NOT_YET}"


@pytest.mark.parametrize(("era", "revision"), [("session", STATELESS), ("stateless", SESSION)])
def test_single_generation_server_passes_no_other_generation(
    results: Results, era: str, revision: str
) -> None:
    """Without a node nothing gets across: what passes above is the node's doing."""
    scored = set(requirements(revision, "server").scored)
    assert len(results.of(Cell(revision, 0, era)).good & scored) <= 1
