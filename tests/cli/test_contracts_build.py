"""`interlock contracts build`: generate, check, publish and report."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from interlock.contracts.registry.registry import ContractRegistry
from tests.contracts.schemas.schema_folders import SEARCH, write_folder, write_shop
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("contracts")

ROOT = Path(__file__).resolve().parents[2]
ORDER = "schemas/json/shop/v1/Order.schema.json"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def built_world(world: CommandLine) -> CommandLine:
    """A folder of schemas that was built."""
    write_shop(world.cwd / "schemas")
    result = world.run_here("contracts", "build")
    assert result.returncode == 0, result.stderr
    return world


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


def report(world: CommandLine, *more: str) -> dict[str, Any]:
    result = world.run_here("contracts", "build", "--json", *more)
    data: dict[str, Any] = json.loads(result.stdout)
    return data


@pytest.mark.spec("ST-4.6.3-6")
def test_build_writes_missing_files_and_reports(world: CommandLine) -> None:
    write_shop(world.cwd / "schemas")
    result = world.run_here("contracts", "build")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[:2] == ["json 5 · openapi 2 · proto 3 · python 2", "written 9 · removed 0"]
    assert re.fullmatch(
        r"schema_count 10 · drift_violations 0 · generation_duration \d+\.\d{3} s", lines[2]
    )
    assert (world.cwd / ORDER).is_file()
    again = world.run_here("contracts", "build")
    assert "written 0 · removed 0" in again.stdout
    assert not list((world.cwd / "schemas").rglob(".*.new"))


@pytest.mark.spec("ST-4.6.3-1", "ST-4.6.3-2", "ST-4.6.3-6")
def test_build_reports_as_json(world: CommandLine) -> None:
    write_shop(world.cwd / "schemas")
    response = report(world)
    canonical = [file["path"] for file in response["files"] if not file["source"]]
    assert canonical == [
        "json/tools/search.schema.json",
        "openapi/store.yaml",
        "proto/shop/v1/orders.proto",
    ]
    for artefact in response["artefacts"]:
        assert set(artefact["provenance"]) == {"source", "generator_version", "timestamp"}
        assert artefact["provenance"]["source"] in canonical
        assert artefact["provenance"]["timestamp"].endswith("Z")
    assert set(response["metrics"]) == {"schema_count", "drift_violations", "generation_duration"}
    assert len(response["written"]) == 9
    # The time is in no file: nothing changes by building again.
    assert report(world)["written"] == []


@pytest.mark.spec("ST-4.6.2-1")
def test_build_check_fails_on_pending_changes(built_world: CommandLine) -> None:
    good = built_world.run_here("contracts", "build", "schemas", "--check")
    assert good.returncode == 0
    assert "all generated files are up to date" in good.stdout
    edit(built_world.cwd / "schemas/proto/shop/v1/orders.proto", "int32 count", "int64 count")
    before = (built_world.cwd / ORDER).read_bytes()
    stale = built_world.run_here("contracts", "build", "schemas", "--check")
    assert stale.returncode == 1
    assert (
        "json/shop/v1/Order.schema.json: it differs from its source proto/shop/v1/orders.proto. "
        "Run `interlock contracts build`" in stale.stderr
    )
    assert (built_world.cwd / ORDER).read_bytes() == before
    assert built_world.run_here("contracts", "build").returncode == 0
    assert built_world.run_here("contracts", "build", "--check").returncode == 0


@pytest.mark.spec("ST-4.6.3-5", "ST-4.6.2-1")
@pytest.mark.parametrize("change", [(), ("--check",)])
def test_drift_fails_build_with_specified_message(
    built_world: CommandLine, change: tuple[str, ...]
) -> None:
    edit(built_world.cwd / ORDER, '"count"', '"number"')
    before = (built_world.cwd / ORDER).read_bytes()
    result = built_world.run_here("contracts", "build", *change)
    assert result.returncode == 1
    assert (
        "Schema drift detected for type shop.v1.Order: count is in proto/shop/v1/orders.proto "
        "only; number is in json/shop/v1/Order.schema.json only" in result.stderr
    )
    assert "nothing was written" in result.stdout
    assert (built_world.cwd / ORDER).read_bytes() == before
    response = report(built_world)
    assert response["metrics"]["drift_violations"] == 1
    assert response["problems"][0]["drift"] is True
    (built_world.cwd / ORDER).unlink()
    assert built_world.run_here("contracts", "build").returncode == 0


@pytest.mark.spec("ST-4.6.3-2")
def test_syntax_error_names_its_line(built_world: CommandLine) -> None:
    edit(
        built_world.cwd / "schemas/proto/shop/v1/orders.proto", "int32 count = 2;", "int32 count 2;"
    )
    result = built_world.run_here("contracts", "build")
    assert result.returncode == 1
    assert result.stderr.startswith("proto/shop/v1/orders.proto:12:15: ")
    response = report(built_world)
    assert response["problems"][0]["line"] == 12


@pytest.mark.spec("ST-4.6.3-3")
def test_build_names_invalid_json_schema(built_world: CommandLine) -> None:
    write_folder(
        built_world.cwd / "schemas", {"json/tools/search.schema.json": {**SEARCH, "type": "thing"}}
    )
    result = built_world.run_here("contracts", "build")
    assert result.returncode == 1
    assert result.stderr.startswith("json/tools/search.schema.json: type: ")


def test_build_removes_obsolete_files(built_world: CommandLine) -> None:
    (built_world.cwd / "schemas/openapi/store.yaml").unlink()
    checked = built_world.run_here("contracts", "build", "--check")
    assert checked.returncode == 1
    assert checked.stderr.count("openapi/store.yaml no longer generates it") == 3
    assert "removed 3" in built_world.run_here("contracts", "build").stdout
    assert not (built_world.cwd / "schemas/python/store_client.py").exists()


def test_build_reports_ignored_files(built_world: CommandLine) -> None:
    more = {"openapi/api.yml": "x: 1\n", "json/readme.md": "x", "json/order.json": {}}
    write_folder(built_world.cwd / "schemas", more)
    result = built_world.run_here("contracts", "build", "--check")
    assert result.returncode == 0
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == [
        "json/order.json",
        "openapi/api.yml",
    ]
    assert report(built_world)["ignored"] == ["json/order.json", "openapi/api.yml"]


def test_build_writes_to_other_folder(world: CommandLine) -> None:
    write_shop(world.cwd / "schemas")
    result = world.run_here("contracts", "build", "schemas", "--out", "made")
    assert result.returncode == 0
    assert not (world.cwd / ORDER).exists()
    assert (world.cwd / "made/json/shop/v1/Order.schema.json").is_file()
    assert world.run_here("contracts", "build", "--out", "made", "--check").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 1, "the folder does not exist"),
        (["--check", "--registry", "r"], 2, "--check does not publish"),
    ],
)
def test_rejects_invalid_build_options(
    world: CommandLine, arguments: list[str], code: int, message: str
) -> None:
    write_shop(world.cwd / "schemas")
    result = world.run_here("contracts", "build", *arguments)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.spec("ST-4.6.4-4")
def test_builds_own_schemas_without_network(
    world: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "schemas" / "proto", world.cwd / "schemas" / "proto")
    reached: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, where: reached.append(where))
    result = world.run_here("contracts", "build")
    assert result.returncode == 0, result.stdout + result.stderr
    assert reached == []
    made = {
        path.relative_to(world.cwd / "schemas"): path.read_bytes()
        for path in (world.cwd / "schemas").rglob("*")
        if path.is_file()
    }
    ours = {
        path.relative_to(ROOT / "schemas"): path.read_bytes()
        for path in (ROOT / "schemas").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert made == ours


def test_build_runs_in_own_process(world: CommandLine) -> None:
    write_shop(world.cwd / "schemas")
    result = world.run("contracts", "build")
    assert result.returncode == 0, result.stdout + result.stderr
    assert world.run("contracts", "build", "--check").returncode == 0


# -- the registry


@needs_git
@pytest.mark.spec("ST-4.6.3-3", "ST-4.6.3-6")
def test_build_publishes_to_registry_and_measures(built_world: CommandLine) -> None:
    result = built_world.run_here("contracts", "build", "--registry", "registry", "-m", "first")
    assert result.returncode == 0, result.stderr
    assert "published 8 contracts as registry-v1: 8 new or changed" in result.stdout
    registry = ContractRegistry(built_world.cwd / "registry")
    try:
        order = registry.find("Order", "1.x", domain="shop.v1")
        assert order.provenance.source == "proto/shop/v1/orders.proto"
        assert order.provenance.generator_version == "interlock-contracts 2"
        assert "x-generated-from" not in order.schema()
        assert registry.find("Search").domain == "tools"
        assert registry.find("Store", protocol="openapi").version == "2.3.0"
        assert registry.find("GetItemParams").version == "2.3.0"
        proto = registry.find("shop/v1/orders.proto", protocol="protobuf")
        assert (
            proto.document == (built_world.cwd / "schemas/proto/shop/v1/orders.proto").read_bytes()
        )
        metrics = registry.metrics()
        assert (metrics.version, metrics.drift_violations) == (1, 0)
        assert metrics.generation_duration > 0
        good = registry.validate("Search", "*", {"query": "x"})
        bad = registry.validate("Search", "*", {"query": 1})
        assert (good.valid, bad.valid, bad.errors[0].path) == (True, False, "/query")
    finally:
        registry.close()
    tags = subprocess.run(
        ["git", "tag"], cwd=built_world.cwd / "registry", capture_output=True, text=True, check=True
    )
    assert tags.stdout.split() == ["registry-v1"]
    response = report(built_world, "--registry", "registry")
    assert response["registry"]["tag"] == "registry-v2"
    assert not any(contract["new"] for contract in response["registry"]["contracts"])


@needs_git
def test_changed_contract_gets_required_version(built_world: CommandLine) -> None:
    assert built_world.run_here("contracts", "build", "--registry", "r").returncode == 0
    more = {**SEARCH, "properties": {**SEARCH["properties"], "page": {"type": "integer"}}}
    write_folder(built_world.cwd / "schemas", {"json/tools/search.schema.json": more})
    response = report(built_world, "--registry", "r")
    (search,) = [
        contract for contract in response["registry"]["contracts"] if contract["name"] == "Search"
    ]
    assert search["version"] == "1.1.0"
    write_folder(
        built_world.cwd / "schemas",
        {"json/tools/search.schema.json": {**more, "required": ["page"]}},
    )
    result = built_world.run_here("contracts", "build", "--registry", "r")
    assert "Search (json-schema) has a breaking change: its new version is 2.0.0" in result.stdout
    response = report(built_world, "--registry", "r")
    (search,) = [
        contract for contract in response["registry"]["contracts"] if contract["name"] == "Search"
    ]
    assert (search["version"], search["new"]) == ("2.0.0", False)


@needs_git
def test_declared_version_is_published_once(built_world: CommandLine) -> None:
    assert built_world.run_here("contracts", "build", "--registry", "r").returncode == 0
    edit(
        built_world.cwd / "schemas/openapi/store.yaml",
        "price: {type: number}",
        "price: {type: string}",
    )
    result = built_world.run_here("contracts", "build", "--registry", "r")
    assert result.returncode == 1
    assert "2.3.0 is published with another document" in result.stderr
    edit(built_world.cwd / "schemas/openapi/store.yaml", "version: 2.3.0", "version: 3.0.0")
    assert built_world.run_here("contracts", "build", "--registry", "r").returncode == 0
