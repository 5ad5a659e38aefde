"""`interlock contracts build`: generated, checked, published, and told to people and programs."""

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
from tests.contracts.schemas.folders import SEARCH, folder, shop
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("contracts")

ROOT = Path(__file__).resolve().parents[2]
ORDER = "schemas/json/shop/v1/Order.schema.json"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def built(world: CommandLine) -> CommandLine:
    """A folder of schemas that was built."""
    shop(world.cwd / "schemas")
    done = world.run_here("contracts", "build")
    assert done.returncode == 0, done.stderr
    return world


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


def report(world: CommandLine, *more: str) -> dict[str, Any]:
    done = world.run_here("contracts", "build", "--json", *more)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.spec("ST-4.6.3-6")
def test_a_build_writes_what_is_missing_and_says_how_it_went(world: CommandLine) -> None:
    shop(world.cwd / "schemas")
    done = world.run_here("contracts", "build")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["json 5 · openapi 2 · proto 3 · python 2", "written 9 · removed 0"]
    assert re.fullmatch(
        r"schema_count 10 · drift_violations 0 · generation_duration \d+\.\d{3} s", lines[2]
    )
    assert (world.cwd / ORDER).is_file()
    again = world.run_here("contracts", "build")
    assert "written 0 · removed 0" in again.stdout
    assert not list((world.cwd / "schemas").rglob(".*.new"))


@pytest.mark.spec("ST-4.6.3-1", "ST-4.6.3-2", "ST-4.6.3-6")
def test_the_report_for_programs(world: CommandLine) -> None:
    shop(world.cwd / "schemas")
    told = report(world)
    canonical = [one["path"] for one in told["files"] if not one["source"]]
    assert canonical == [
        "json/tools/search.schema.json",
        "openapi/store.yaml",
        "proto/shop/v1/orders.proto",
    ]
    for one in told["artefacts"]:
        assert set(one["provenance"]) == {"source", "generator_version", "timestamp"}
        assert one["provenance"]["source"] in canonical
        assert one["provenance"]["timestamp"].endswith("Z")
    assert set(told["metrics"]) == {"schema_count", "drift_violations", "generation_duration"}
    assert len(told["written"]) == 9
    # The time is in no file: nothing changes by building again.
    assert report(world)["written"] == []


@pytest.mark.spec("ST-4.6.2-1")
def test_a_check_fails_when_a_build_would_change_something(built: CommandLine) -> None:
    good = built.run_here("contracts", "build", "schemas", "--check")
    assert good.returncode == 0
    assert "all generated files are up to date" in good.stdout
    edit(built.cwd / "schemas/proto/shop/v1/orders.proto", "int32 count", "int64 count")
    before = (built.cwd / ORDER).read_bytes()
    stale = built.run_here("contracts", "build", "schemas", "--check")
    assert stale.returncode == 1
    assert (
        "json/shop/v1/Order.schema.json: it differs from its source proto/shop/v1/orders.proto. "
        "Run `interlock contracts build`" in stale.stderr
    )
    assert (built.cwd / ORDER).read_bytes() == before
    assert built.run_here("contracts", "build").returncode == 0
    assert built.run_here("contracts", "build", "--check").returncode == 0


@pytest.mark.spec("ST-4.6.3-5", "ST-4.6.2-1")
@pytest.mark.parametrize("how", [(), ("--check",)])
def test_drift_ends_it_with_the_sentence_of_the_specification(
    built: CommandLine, how: tuple[str, ...]
) -> None:
    edit(built.cwd / ORDER, '"count"', '"number"')
    before = (built.cwd / ORDER).read_bytes()
    done = built.run_here("contracts", "build", *how)
    assert done.returncode == 1
    assert (
        "Schema drift detected for type shop.v1.Order: count is in proto/shop/v1/orders.proto "
        "only; number is in json/shop/v1/Order.schema.json only" in done.stderr
    )
    assert "nothing was written" in done.stdout
    assert (built.cwd / ORDER).read_bytes() == before
    told = report(built)
    assert told["metrics"]["drift_violations"] == 1
    assert told["problems"][0]["drift"] is True
    (built.cwd / ORDER).unlink()
    assert built.run_here("contracts", "build").returncode == 0


@pytest.mark.spec("ST-4.6.3-2")
def test_a_syntax_error_is_named_with_its_line(built: CommandLine) -> None:
    edit(built.cwd / "schemas/proto/shop/v1/orders.proto", "int32 count = 2;", "int32 count 2;")
    done = built.run_here("contracts", "build")
    assert done.returncode == 1
    assert done.stderr.startswith("proto/shop/v1/orders.proto:12:15: ")
    told = report(built)
    assert told["problems"][0]["line"] == 12


@pytest.mark.spec("ST-4.6.3-3")
def test_a_json_schema_that_is_none_is_named(built: CommandLine) -> None:
    folder(built.cwd / "schemas", {"json/tools/search.schema.json": {**SEARCH, "type": "thing"}})
    done = built.run_here("contracts", "build")
    assert done.returncode == 1
    assert done.stderr.startswith("json/tools/search.schema.json: type: ")


def test_what_nothing_gives_any_more_is_removed(built: CommandLine) -> None:
    (built.cwd / "schemas/openapi/store.yaml").unlink()
    checked = built.run_here("contracts", "build", "--check")
    assert checked.returncode == 1
    assert checked.stderr.count("openapi/store.yaml no longer generates it") == 3
    assert "removed 3" in built.run_here("contracts", "build").stdout
    assert not (built.cwd / "schemas/python/store_client.py").exists()


def test_a_name_that_nobody_looks_for_is_noted(built: CommandLine) -> None:
    more = {"openapi/api.yml": "x: 1\n", "json/readme.md": "x", "json/order.json": {}}
    folder(built.cwd / "schemas", more)
    done = built.run_here("contracts", "build", "--check")
    assert done.returncode == 0
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == [
        "json/order.json",
        "openapi/api.yml",
    ]
    assert report(built)["ignored"] == ["json/order.json", "openapi/api.yml"]


def test_into_another_folder(world: CommandLine) -> None:
    shop(world.cwd / "schemas")
    done = world.run_here("contracts", "build", "schemas", "--out", "made")
    assert done.returncode == 0
    assert not (world.cwd / ORDER).exists()
    assert (world.cwd / "made/json/shop/v1/Order.schema.json").is_file()
    assert world.run_here("contracts", "build", "--out", "made", "--check").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere"], 1, "the folder does not exist"),
        (["--check", "--registry", "r"], 2, "--check does not publish"),
    ],
)
def test_what_cannot_be(world: CommandLine, arguments: list[str], code: int, words: str) -> None:
    shop(world.cwd / "schemas")
    done = world.run_here("contracts", "build", *arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.spec("ST-4.6.4-4")
def test_the_nodes_own_schemas_are_built_without_any_connection(
    world: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "schemas" / "proto", world.cwd / "schemas" / "proto")
    reached: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, where: reached.append(where))
    done = world.run_here("contracts", "build")
    assert done.returncode == 0, done.stdout + done.stderr
    assert reached == []
    made = {
        one.relative_to(world.cwd / "schemas"): one.read_bytes()
        for one in (world.cwd / "schemas").rglob("*")
        if one.is_file()
    }
    ours = {
        one.relative_to(ROOT / "schemas"): one.read_bytes()
        for one in (ROOT / "schemas").rglob("*")
        if one.is_file() and "__pycache__" not in one.parts
    }
    assert made == ours


def test_the_program_itself(world: CommandLine) -> None:
    shop(world.cwd / "schemas")
    done = world.run("contracts", "build")
    assert done.returncode == 0, done.stdout + done.stderr
    assert world.run("contracts", "build", "--check").returncode == 0


# -- the registry


@needs_git
@pytest.mark.spec("ST-4.6.3-3", "ST-4.6.3-6")
def test_a_run_is_published_and_measured(built: CommandLine) -> None:
    done = built.run_here("contracts", "build", "--registry", "registry", "-m", "first")
    assert done.returncode == 0, done.stderr
    assert "published 8 contracts as registry-v1: 8 new or changed" in done.stdout
    registry = ContractRegistry(built.cwd / "registry")
    try:
        order = registry.find("Order", "1.x", domain="shop.v1")
        assert order.provenance.source == "proto/shop/v1/orders.proto"
        assert order.provenance.generator_version == "interlock-contracts 2"
        assert "x-generated-from" not in order.schema()
        assert registry.find("Search").domain == "tools"
        assert registry.find("Store", protocol="openapi").version == "2.3.0"
        assert registry.find("GetItemParams").version == "2.3.0"
        proto = registry.find("shop/v1/orders.proto", protocol="protobuf")
        assert proto.document == (built.cwd / "schemas/proto/shop/v1/orders.proto").read_bytes()
        metrics = registry.metrics()
        assert (metrics.version, metrics.drift_violations) == (1, 0)
        assert metrics.generation_duration > 0
        good = registry.validate("Search", "*", {"query": "x"})
        bad = registry.validate("Search", "*", {"query": 1})
        assert (good.valid, bad.valid, bad.errors[0].path) == (True, False, "/query")
    finally:
        registry.close()
    tags = subprocess.run(
        ["git", "tag"], cwd=built.cwd / "registry", capture_output=True, text=True, check=True
    )
    assert tags.stdout.split() == ["registry-v1"]
    told = report(built, "--registry", "registry")
    assert told["registry"]["tag"] == "registry-v2"
    assert not any(one["new"] for one in told["registry"]["contracts"])


@needs_git
def test_a_change_gets_the_version_that_it_asks_for(built: CommandLine) -> None:
    assert built.run_here("contracts", "build", "--registry", "r").returncode == 0
    more = {**SEARCH, "properties": {**SEARCH["properties"], "page": {"type": "integer"}}}
    folder(built.cwd / "schemas", {"json/tools/search.schema.json": more})
    told = report(built, "--registry", "r")
    (search,) = [one for one in told["registry"]["contracts"] if one["name"] == "Search"]
    assert search["version"] == "1.1.0"
    folder(built.cwd / "schemas", {"json/tools/search.schema.json": {**more, "required": ["page"]}})
    done = built.run_here("contracts", "build", "--registry", "r")
    assert "Search (json-schema) has a breaking change: its new version is 2.0.0" in done.stdout
    told = report(built, "--registry", "r")
    (search,) = [one for one in told["registry"]["contracts"] if one["name"] == "Search"]
    assert (search["version"], search["new"]) == ("2.0.0", False)


@needs_git
def test_a_version_that_somebody_said_is_published_once(built: CommandLine) -> None:
    assert built.run_here("contracts", "build", "--registry", "r").returncode == 0
    edit(built.cwd / "schemas/openapi/store.yaml", "price: {type: number}", "price: {type: string}")
    done = built.run_here("contracts", "build", "--registry", "r")
    assert done.returncode == 1
    assert "2.3.0 is published with another document" in done.stderr
    edit(built.cwd / "schemas/openapi/store.yaml", "version: 2.3.0", "version: 3.0.0")
    assert built.run_here("contracts", "build", "--registry", "r").returncode == 0
