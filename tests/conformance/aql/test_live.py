"""A live node is conformant at Level 2: by our checks, and by the public runner if at hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.timeouts import HANG_TIMEOUT
from tools.aql_conformance import checks, shapes
from tools.aql_conformance.__main__ import main
from tools.aql_conformance.evidence import gather
from tools.aql_conformance.live import WAYS, Client, NoNode, started_node

pytestmark = pytest.mark.feature("aql")

CHECKOUT = os.environ.get("AQL_SPEC_CHECKOUT", "")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with started_node() as address:
        yield address


@pytest.fixture(scope="module")
def evidence(url: str) -> dict[str, Any]:
    return gather([Client(url, mode, era) for mode, era in WAYS])


@pytest.mark.spec("AQ-10.1-1", "AQ-10.1-2", "AQ-10-1", "AQ-CT-2.1-1", "AQ-CT-2.2-1")
def test_live_node_passes_level_two(evidence: dict[str, Any]) -> None:
    judged = checks.evaluate(evidence, 2)
    wrong = {
        test.name: (test.result, test.detail)
        for category in judged.categories
        for test in category.tests
        if test.result != "PASS"
    }
    assert wrong == {}
    assert (judged.exit_code, judged.conformance_level) == (0, 2)


@pytest.mark.spec("AQ-10.1-2")
def test_evidence_is_complete(evidence: dict[str, Any]) -> None:
    """Nothing passes for want of a case."""
    assert evidence["endpoint_modes"] == ["crude", "single"]
    assert evidence["capabilities"] == {"field_selection": True, "batch_operations": True}
    tried = evidence["parameter_tests"]
    details = evidence["introspection"]["operation_details"]
    assert len(details) >= 25
    needed = [p for d in details for p in d["parameters"] if p["required"]]
    assert len(tried["missing_required"]) == len(needed) >= 15
    assert len(tried["unknown_parameter"]) == len(details)
    for cases in (tried["optional_defaults"], evidence["semantic_tests"]):
        assert len(cases) >= len(WAYS)
    assert len(evidence["error_tests"]) >= 15 * len(WAYS)
    assert len(evidence["round_trip_tests"]) == len(WAYS)
    assert len(evidence["update_preservation_tests"]) == len(WAYS)
    assert len(evidence["constraint_tests"]) == 2 * len(WAYS)
    results = [item["result"]["success"] for item in evidence["batch_example"]["results"]]
    assert results == [True, True, False]


@pytest.mark.spec("AQ-10.2-1", "AQ-CT-3.2-1")
def test_types_match_shapes(url: str) -> None:
    client = Client(url, "crude", "session")
    data = client.ask("introspect", {"query": "operations"})["data"]
    assert data["_protocol"]["conformance"] == "level-2"
    types = client.ask("introspect", {"query": "types"})["data"]["types"]
    for item in types:
        detail = client.ask("introspect", {"query": "types", "name": item["name"]})["data"]["type"]
        assert shapes.problem(detail, shapes.TypeDetails) == "", item  # type: ignore[arg-type]
    category = client.ask("introspect", {"query": "types", "name": "SemanticCategory"})
    assert category["data"]["type"]["values"] == ["CREATE", "READ", "UPDATE", "DELETE", "EXECUTE"]


@pytest.mark.spec("AQ-10-1", "AQ-D-2")
@pytest.mark.skipif(
    not CHECKOUT or shutil.which("node") is None,
    reason="AQL_SPEC_CHECKOUT names no checkout of the public runner, or node is absent",
)
def test_public_runner_accepts_evidence(evidence: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps(evidence))
    runner = Path(CHECKOUT) / "scripts" / "run-conformance-tests.mjs"
    command = ["node", str(runner), "test", str(path), "--level", "2", "--format", "json"]
    public = subprocess.run(command, capture_output=True, text=True, timeout=HANG_TIMEOUT)
    assert public.returncode == 0, public.stdout
    report = json.loads(public.stdout)
    assert report["conformanceLevel"] == 2
    assert report["summary"]["failed"] == report["summary"]["warned"] == 0


@pytest.mark.spec("AQ-CT-7.4-1", "AQ-10-1")
def test_command_tests_node_at_address(url: str, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    assert main(["test", "--url", url, "--level", "2", "-f", "json", "-o", str(out)]) == 0
    assert json.loads(out.read_text())["conformanceLevel"] == 2
    bundle = tmp_path / "evidence.json"
    assert main(["evidence", "--url", url, "-o", str(bundle)]) == 0
    assert main(["test", str(bundle), "--level", "2", "-o", str(out)]) == 0
    assert main(["test", "--url", "http://127.0.0.1:9/mcp"]) == 3


def test_rejects_server_without_aql(url: str) -> None:
    client = Client(url, None, "session")
    client.mode = "crude"
    with pytest.raises(NoNode, match="mcp_aql_read"):
        gather([client])
