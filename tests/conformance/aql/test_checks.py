"""The checks of an evidence bundle can fail, each of them, and only that one then does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.aql.bundle import bundle, failure
from tests.support.timeouts import HANG_TIMEOUT
from tools.aql_conformance import checks, report
from tools.aql_conformance.__main__ import main

pytestmark = pytest.mark.feature("aql")

Spoil = Callable[[dict[str, Any]], Any]
CHECKOUT = os.environ.get("AQL_SPEC_CHECKOUT", "")


def details(each: dict[str, Any]) -> dict[str, Any]:
    operation_details: dict[str, Any] = each["introspection"]["operation_details"][0]
    return operation_details


def tried(each: dict[str, Any], kind: str) -> dict[str, Any]:
    parameter_tests: dict[str, Any] = each["parameter_tests"][kind][0]
    return parameter_tests


def leak(each: dict[str, Any]) -> None:
    each["error_tests"][0]["response"] = failure("INTERNAL_ERROR", "lampid: see that line")


MUST: list[tuple[str, str, Spoil]] = [
    (
        "introspect lists operations",
        "FAIL",
        lambda b: b["introspection"]["operations_list"]["data"]["operations"][0].pop("endpoint"),
    ),
    ("introspect lists types", "FAIL", lambda b: b["introspection"].pop("types_list")),
    ("Details of operations are valid", "FAIL", lambda b: details(b).pop("returns")),
    (
        "Accepted parameters are documented",
        "FAIL",
        lambda b: b["accepted_parameters"]["set_lamp"].append("force"),
    ),
    (
        "Accepted parameters are documented",
        "WARN",
        lambda b: b["accepted_parameters"]["set_lamp"].remove("input"),
    ),
    (
        "Required parameters are required",
        "FAIL",
        lambda b: b["parameter_tests"].update(missing_required=[]),
    ),
    (
        "Required parameters are required",
        "FAIL",
        lambda b: tried(b, "missing_required").update(
            response=failure("X", "Something is missing")
        ),
    ),
    (
        "Unknown parameters are reported",
        "FAIL",
        lambda b: tried(b, "unknown_parameter").update(response={"success": True, "data": 1}),
    ),
    (
        "Documented defaults are used",
        "FAIL",
        lambda b: tried(b, "optional_defaults").update(expected_value=4),
    ),
    (
        "Parameters are named in snake_case",
        "FAIL",
        lambda b: (
            details(b)["parameters"].append(
                {"name": "lampId", "type": "string", "required": False}
            ),
            b["accepted_parameters"]["set_lamp"].append("lampId"),
        ),
    ),
    (
        "Failures are valid",
        "FAIL",
        lambda b: b["error_tests"][0].update(response={"success": False, "error": "no"}),
    ),
    ("Failures contain no implementation details", "FAIL", leak),
    ("Failures suggest a fix", "WARN", lambda b: b["error_tests"][0]["must_mention"].append("?")),
    (
        "A created resource is read back",
        "FAIL",
        lambda b: b["round_trip_tests"][0]["expected_fields"].update({"data.gone": 1}),
    ),
    (
        "An update changes no other fields",
        "FAIL",
        lambda b: b["update_preservation_tests"][0]["preserved_fields"].update({"data.level": 4}),
    ),
]
SHOULD: list[tuple[str, str, Spoil]] = [
    ("Both endpoint modes are available", "FAIL", lambda b: b["endpoint_modes"].remove("single")),
    ("Fields can be selected", "FAIL", lambda b: b["capabilities"].pop("field_selection")),
    (
        "Operations can be batched",
        "FAIL",
        lambda b: b["batch_example"]["results"][0].update(result={"success": True}),
    ),
    (
        "Constraints are enforced",
        "FAIL",
        lambda b: b["constraint_tests"][0].update(response={"success": True, "data": 1}),
    ),
    (
        "Constraints are documented",
        "WARN",
        lambda b: b["constraint_tests"][0].update(documented=False),
    ),
    ("found", "FAIL", lambda b: b["semantic_tests"][0].update(tool_calls=[])),
    (
        "found",
        "WARN",
        lambda b: b["semantic_tests"][0].update(structural={"required_patterns": ["?!z"]}),
    ),
]


def not_passed(judged: checks.Report) -> dict[str, str]:
    return {
        test.name: test.result
        for category in judged.categories
        for test in category.tests
        if test.result != "PASS"
    }


@pytest.mark.spec("AQ-CT-2.1-1", "AQ-CT-2.2-1")
def test_valid_bundle_passes_all_checks() -> None:
    first = checks.evaluate(bundle(), 1)
    assert first.summary == {"total": 13, "passed": 13, "warned": 0, "failed": 0, "skipped": 0}
    assert [(c.name, len(c.tests)) for c in first.categories] == [
        ("Introspection Fidelity", 4),
        ("Parameter Handling", 4),
        ("Error Quality", 3),
        ("Round-Trip Integrity", 2),
    ]
    second = checks.evaluate(bundle(), 2)
    assert (second.exit_code, second.conformance_level) == (0, 2)
    assert [(c.name, len(c.tests)) for c in second.categories[4:]] == [
        ("Level 2 Features", 3),
        ("Constraint Documentation", 2),
        ("Semantic Evaluation", 1),
    ]


@pytest.mark.spec("AQ-CT-2.1-1", "AQ-CT-3.2-1", "AQ-CT-3.3-1", "AQ-CT-1.3-1")
@pytest.mark.parametrize(("name", "result", "spoil"), MUST)
def test_each_required_check_can_fail(name: str, result: str, spoil: Spoil) -> None:
    bad = bundle()
    spoil(bad)
    judged = checks.evaluate(bad, 2)
    assert not_passed(judged) == {name: result}
    assert judged.exit_code == (1 if result == "FAIL" else 0)
    assert judged.conformance_level == (0 if result == "FAIL" else 2)


@pytest.mark.spec("AQ-CT-2.2-1", "AQ-CT-1.3-1", "AQ-CT-5.1-1")
@pytest.mark.parametrize(("name", "result", "spoil"), SHOULD)
def test_each_level_two_check_warns(name: str, result: str, spoil: Spoil) -> None:
    bad = bundle()
    spoil(bad)
    judged = checks.evaluate(bad, 2)
    assert not_passed(judged) == {name: result}
    assert (judged.exit_code, judged.conformance_level) == (2, 2)
    assert checks.evaluate(bad, 1).exit_code == 0


@pytest.mark.spec("AQ-CT-3.3-1")
@pytest.mark.parametrize(
    "message",
    ["TypeError: x", "a ReferenceError", "syntaxerror", "at Object.run", "expected at least 2",
     "what to do", "in /src/x", "in /node_modules/y", "lamp.ts:12", "lamp.js:3"],
)  # fmt: skip
def test_error_messages_resembling_code_fail(message: str) -> None:
    bad = bundle()
    bad["error_tests"][0].update(response=failure("X", f"lampid {message}"))
    assert "Failures contain no implementation details" in not_passed(checks.evaluate(bad, 1))


@pytest.mark.spec("AQ-CT-5.1-1")
def test_second_tier_is_skipped_on_request() -> None:
    judged = checks.evaluate(bundle(), 2, tier="1")
    assert judged.summary["skipped"] == 1
    assert judged.exit_code == 0


@pytest.mark.spec("AQ-CT-6.1-1")
def test_report_has_documented_shape_and_reads_back() -> None:
    judged = checks.evaluate(bundle(), 2)
    written = json.loads(report.written(judged, "json"))
    assert {"implementation", "version", "specVersion", "requestedLevel", "conformanceLevel",
            "summary", "categories", "exitCode"} == set(written)  # fmt: skip
    assert set(written["summary"]) == {"total", "passed", "warned", "failed", "skipped"}
    assert set(written["categories"][0]) == {"name", "required", "result", "tests"}
    assert report.read(report.written(judged, "json").encode()) == judged
    assert "1.0.0-draft, Level 2" in report.written(judged, "text")
    assert "1.0.0-draft, Level 2" in report.written(judged, "markdown")


def exit_code(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.spec("AQ-CT-7.4-1")
def test_command_has_documented_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, warns, fails = (tmp_path / name for name in ("good.json", "warns.json", "fails.json"))
    good.write_text(json.dumps(bundle()))
    one = bundle() | {"endpoint_modes": ["crude"], "expected_exit_code": 2, "expected_level": 2}
    warns.write_text(json.dumps(one))
    fails.write_text(json.dumps(bundle() | {"round_trip_tests": [], "introspection": {}}))
    broken = tmp_path / "broken.txt"
    broken.write_text("{")

    assert exit_code("test", str(good), "--level", "2") == 0
    assert exit_code("test", str(fails), "--level", "2") == 1
    assert exit_code("test", str(warns), "--level", "2") == 2
    assert exit_code("test", str(warns), "--level", "2", "--category", "Error Quality") == 0
    assert exit_code("test", str(broken)) == 3
    assert exit_code("test", str(tmp_path / "absent.json")) == 3
    assert exit_code("test", str(good), "--level", "3") == 3
    assert exit_code("nothing") == 3
    assert exit_code("version") == 0
    fails.unlink()
    assert exit_code("verify-fixtures", str(tmp_path)) == 0
    assert exit_code("verify-fixtures", str(tmp_path / "absent")) == 3

    out = tmp_path / "report.out"
    assert exit_code("test", str(good), "--format", "json", "--output", str(out)) == 0
    capsys.readouterr()
    assert exit_code("report", str(out), "--format", "markdown") == 0
    assert capsys.readouterr().out.startswith("# lamps 1 and MCP-AQL")
    assert exit_code("report", str(good)) == 3


@pytest.mark.spec("AQ-D-2")
def test_public_checkout_is_not_in_repository() -> None:
    """Its schemas, fixtures and scripts are under another licence: they stay where they are."""
    root = Path(__file__).resolve().parents[3]
    result = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, timeout=HANG_TIMEOUT
    )
    if result.returncode != 0:
        pytest.skip("this is no git checkout")
    names = {Path(name).name for name in result.stdout.splitlines()}
    assert not [name for name in names if name.endswith(".mjs") and "conformance" in name]
    assert not [name for name in names if re.fullmatch(r"reference-level\d\.json", name)]
    for name in result.stdout.splitlines():
        if name.endswith(".schema.json"):
            assert "mcpaql.org" not in (root / name).read_text(encoding="utf-8")


@pytest.mark.skipif(
    not CHECKOUT or shutil.which("node") is None,
    reason="AQL_SPEC_CHECKOUT names no checkout of the public runner, or node is absent",
)
@pytest.mark.spec("AQ-D-2", "AQ-CT-2.1-1")
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    "spoil", [None, *(item[2] for item in MUST), *(item[2] for item in SHOULD)]
)  # fmt: skip
def test_public_runner_agrees(spoil: Spoil | None, level: int, tmp_path: Path) -> None:
    judged = bundle()
    if spoil is not None:
        spoil(judged)
    path = tmp_path / "bundle.json"
    path.write_text(json.dumps(judged))
    runner = Path(CHECKOUT) / "scripts" / "run-conformance-tests.mjs"
    command = ["node", str(runner), "test", str(path), "--level", str(level), "--format", "json"]
    public = subprocess.run(command, capture_output=True, text=True, timeout=HANG_TIMEOUT)
    ours = checks.evaluate(judged, level)
    assert public.returncode == ours.exit_code, public.stdout
    theirs = [
        test["result"] for c in json.loads(public.stdout)["categories"] for test in c["tests"]
    ]
    assert theirs == [test.result for c in ours.categories for test in c.tests], public.stdout
