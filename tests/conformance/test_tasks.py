"""The suite's scenarios of the tasks extension, with our own server for them.

The suite does not score them, and the reference server has none of their tools. What passes
directly passes through a node, and through two in a row.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from interlock.core.config import EffectName
from tests.conformance.cells import in_front_of, server, tasks_server
from tests.conformance.suite import Findings, requirements, run_scenarios
from tests.conformance.unbridgeable import UNLISTED_TOOLS
from tests.support.timeouts import HANG_TIMEOUT

pytestmark = pytest.mark.timeout(1800)

REVISION = "2026-07-28"
CHECKS = 44
"""How many pass directly."""
HELD: dict[str, EffectName] = {"confirm_delete": "mutating"}
"""Tools that a node with the default config holds for approval, and their effect in the config."""
HELD_CHECKS = {
    ("tasks-mrtr-input", "sep-2663-tasks-get-status-input-required"),
    ("tasks-mrtr-input", "tasks-mrtr-tasks-update-resumes"),
}
"""Checks that call these tools."""

later = pytest.mark.skipif(
    not os.environ.get("CONF_ALL"), reason="takes long: make conformance runs it"
)


def run_tasks(nodes: int, folder: Path, effects: dict[str, EffectName]) -> Findings:
    """Run the tasks scenarios through nodes with these effects in their config."""
    scenarios = [item for item in requirements(REVISION, "server").unscored if "tasks-" in item]
    with tasks_server() as url, in_front_of(url, nodes, folder, effects) as endpoint:
        return run_scenarios(endpoint, REVISION, scenarios, folder / "found")


@pytest.fixture(scope="module")
def found(suite: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Findings]:
    """What is found with so many nodes in between."""
    folder = tmp_path_factory.mktemp("tasks")
    known: dict[int, Findings] = {}

    def look(nodes: int) -> Findings:
        if nodes not in known:
            known[nodes] = run_tasks(nodes, folder / f"{nodes}", HELD)
        return known[nodes]

    return look


def test_task_server_passes_directly(found: Callable[[int], Findings]) -> None:
    assert "FAILURE" not in found(0).status.values()
    assert len(found(0).passed) >= CHECKS


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=later)])
def test_tasks_pass_through_nodes(found: Callable[[int], Findings], nodes: int) -> None:
    lost = sorted(found(0).passed - found(nodes).passed)
    assert not lost, "\n".join(["lost:", *(found(nodes).said(check) for check in lost)])


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=later)])
def test_checks_of_unlisted_tools_pass_where_they_are_listed(
    found: Callable[[int], Findings], nodes: int
) -> None:
    passed = {check[:2] for check in found(nodes).passed}
    listing = {(entry.scenario, check) for entry in UNLISTED_TOOLS for check in entry.checks}
    assert listing <= passed, sorted(listing - passed)


@later
def test_default_config_requires_approval_for_deletes_only(
    found: Callable[[int], Findings], tmp_path: Path
) -> None:
    by_default = run_tasks(1, tmp_path / "node", {})
    assert {check[:2] for check in found(0).passed - by_default.passed} == HELD_CHECKS


def test_unknown_tool_gets_error_of_server(tmp_path: Path) -> None:
    """A node does not ask the server about a name that is not listed; its error is the same."""
    with tasks_server() as url, in_front_of(url, 1, tmp_path / "node") as endpoint:
        errors = [call_unknown_tool(address) for address in (url, endpoint)]
    assert errors == [(400, -32602)] * 2


def call_unknown_tool(url: str) -> tuple[int, int]:
    """Call a tool that does not exist; return the HTTP status and the code of the error."""
    reserved = "io.modelcontextprotocol/"
    about = {"name": "test", "version": "1"}
    meta = {"protocolVersion": REVISION, "clientInfo": about, "clientCapabilities": {}}
    params = {
        "name": "nothing",
        "arguments": {},
        "_meta": {f"{reserved}{name}": value for name, value in meta.items()},
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": REVISION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "nothing",
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = httpx2.post(url, json=message, headers=headers, timeout=HANG_TIMEOUT, trust_env=False)
    return answer.status_code, answer.json()["error"]["code"]


def test_client_request_of_session_server_is_task(suite: None, tmp_path: Path) -> None:
    """To a client that speaks tasks; the server knows nothing of them."""
    with server("session", "neutral") as url, in_front_of(url, 1, tmp_path, HELD) as endpoint:
        result = run_scenarios(endpoint, REVISION, ["tasks-mrtr-input"], tmp_path / "found")
    assert set(result.status.values()) == {"SUCCESS"}, [
        result.said(check) for check in result.status
    ]
    assert len(result.passed) >= 4
