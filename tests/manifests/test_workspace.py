"""A workspace of drivers and contracts, and their bindings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.manifests.workspace import load_workspace
from tests.manifests.folders import Folder, rejection_reasons
from tests.manifests.texts import GONE, codes, driver_text, entry, tool_text, write


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# -- finding


@pytest.mark.spec("DR-32.location-1")
def test_finds_drivers_in_their_folders(folder: Folder) -> None:
    folder.tool()
    folder.driver("one-mcp")
    folder.driver("two-mcp")
    write(folder.root / ".drivers" / "README.md", "hello")
    write(folder.root / ".drivers" / "notes" / "x.md", "hello")
    result = folder.load()
    assert sorted(result.drivers) == ["one-mcp@1", "two-mcp@1"]
    assert not result.rejected_files
    assert result.contracts["fs.read@1"].id == "fs.read"
    assert result.serving == {"fs.read@1": ("one-mcp@1", "two-mcp@1")}


def test_finds_drivers_in_configured_folders(folder: Folder, tmp_path: Path) -> None:
    outside = Folder(tmp_path.parent / f"{tmp_path.name}-outside")
    folder.tool(where=".tools/deep/er")
    folder.driver("a-mcp", where="more/drivers")
    outside.driver("b-mcp", where="x")
    outside.driver("c-mcp", where="single")
    result = folder.load(
        folders=["more/drivers", outside.root / "x", outside.root / "single" / "c-mcp"]
    )
    assert sorted(result.drivers) == ["a-mcp@1", "b-mcp@1", "c-mcp@1"]


def test_accepts_empty_folder(tmp_path: Path) -> None:
    result = load_workspace(tmp_path / "nothing")
    assert (result.drivers, result.contracts, result.rejected_files) == ({}, {}, {})


# -- binding


@pytest.mark.spec("DR-32.location-4")
@pytest.mark.parametrize("where", [".drivers/files-mcp/tools", "tools"])
def test_resolves_path_from_driver_or_workspace(folder: Folder, where: str) -> None:
    contract = folder.tool("anything", where=where)
    folder.driver(implements=[entry("./tools/anything/TOOL.md")])
    result = folder.load()
    (binding,) = result.bindings["files-mcp@1"]
    assert binding.contract.file == contract
    assert binding.entry.tool == "./tools/anything/TOOL.md"


@pytest.mark.spec("DR-32.location-4")
def test_prefers_path_in_driver_folder(folder: Folder) -> None:
    folder.tool("x", id="far.away")
    folder.tool("x", where=".drivers/files-mcp/tools", id="near.by")
    folder.driver(implements=[entry("tools/x/TOOL.md")])
    (binding,) = folder.load().bindings["files-mcp@1"]
    assert binding.contract.id == "near.by"


@pytest.mark.spec("DR-32.location-4")
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../../../outside/TOOL.md", "leads out of the workspace"),
        ("../../../../../../etc/TOOL.md", "leads out of the workspace"),
        ("/etc/hostname", "leads out of the workspace"),
        ("./tools/none/TOOL.md", "there is no file"),
        ("./tools", "is not a file"),
        ("https://elsewhere.example/TOOL.md", "URLs are not fetched"),
        ("./linked/TOOL.md", "link that leads out"),
        ("./link.md", "link that leads out"),
    ],
)
def test_rejects_path_outside_workspace(folder: Folder, path: str, message: str) -> None:
    folder.root.joinpath("inside").mkdir()
    outside = write(folder.root / "outside" / "TOOL.md", tool_text())
    inside = Folder(folder.root / "inside")
    inside.tool()
    (inside.root / "linked").symlink_to(outside.parent)
    (inside.root / "link.md").symlink_to(outside)
    broken = inside.driver("bad-mcp", implements=[entry(path)])
    inside.driver("good-mcp")
    result = inside.load()
    assert message in rejection_reasons(result, broken)
    assert result.rejected_files[broken].code == "tool_unavailable"
    assert result.rejected_files[broken].problems[0].line > 1
    assert list(result.drivers) == ["good-mcp@1"]


def test_follows_link_inside_workspace(folder: Folder) -> None:
    real = folder.tool("real")
    (folder.root / "alias.md").symlink_to(real)
    folder.driver(implements=[entry("./alias.md")])
    assert folder.load().bindings["files-mcp@1"][0].contract.file == real


def test_rejects_link_to_outside_driver(folder: Folder, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    path = write(outside / "files-mcp" / "DRIVER.md", driver_text())
    drivers = folder.root / ".drivers"
    drivers.mkdir()
    (drivers / "a-mcp").symlink_to(path.parent)
    (drivers / "b-mcp").mkdir()
    (drivers / "b-mcp" / "DRIVER.md").symlink_to(path)
    folder.tool()
    result = folder.load()
    assert not result.drivers
    assert {file.parent.name for file in result.rejected_files} == {"a-mcp", "b-mcp"}
    assert all(
        "link that leads out" in rejection_reasons(result, file) for file in result.rejected_files
    )


@pytest.mark.spec("DR-30.implements-8")
@pytest.mark.parametrize(
    ("version", "range_", "fits"),
    [
        ("1.4.2", "^1.0", True),
        ("2.0.0", "^1.0", False),
        ("1.1.0-beta", "^1.0.0", False),
        ("1.0.0-beta.2", "^1.0.0-beta.1", True),
    ],
)
@pytest.mark.parametrize("tool", ["fs.read", "./tools/fs-read/TOOL.md"])
def test_rejects_contract_outside_range(
    folder: Folder, version: str, range_: str, fits: bool, tool: str
) -> None:
    folder.tool(version=version)
    path = folder.driver(implements=[entry(tool, version=range_)])
    result = folder.load()
    assert bool(result.drivers) is fits
    if not fits:
        assert result.rejected_files[path].code == "tool_unavailable"
        assert version in rejection_reasons(result, path)
        assert range_ in rejection_reasons(result, path)


@pytest.mark.spec("DR-14.fields-8", "DR-30.identity-1")
def test_loads_several_major_versions(folder: Folder) -> None:
    folder.tool("one", id="image.create", version="1.5.0")
    folder.tool("two", id="image.create", version="2.1.0")
    folder.driver("a", id="image-mcp", version="1.0.0", implements=[entry("image.create")])
    folder.driver(
        "b", id="image-mcp", version="2.0.0", implements=[entry("image.create", version="^2.0.0")]
    )
    folder.driver("c", id="both-mcp", implements=[entry("image.create", version=">=1")])
    result = folder.load()
    assert sorted(result.contracts) == ["image.create@1", "image.create@2"]
    assert sorted(result.drivers) == ["both-mcp@1", "image-mcp@1", "image-mcp@2"]
    assert result.serving["image.create@1"] == ("image-mcp@1",)
    assert result.serving["image.create@2"] == ("image-mcp@2", "both-mcp@1")
    assert {version.version for version in result.versions("image.create")} == {"1.5.0", "2.1.0"}


@pytest.mark.spec("DR-30.implements-4")
@pytest.mark.parametrize(
    ("narrowing", "message"),
    [
        ({"drop_inputs": ["encoding"], "drop_outputs": ["mime"]}, ""),
        ({"drop_inputs": ["path"]}, "fs.read: `drop_inputs` has 'path', which is required by"),
        ({"drop_inputs": ["nothing"]}, "'nothing', which is not among the contract's inputs"),
        ({"drop_outputs": ["contents"]}, "`drop_outputs` has 'contents', which is required by"),
        ({"drop_outputs": ["nothing"]}, "'nothing', which is not among the contract's outputs"),
    ],
)
def test_narrowing_may_drop_only_optional_inputs(
    folder: Folder, narrowing: dict[str, Any], message: str
) -> None:
    folder.tool()
    path = folder.driver(implements=[entry(schema_narrowing=narrowing)])
    result = folder.load()
    assert bool(result.drivers) is not bool(message)
    if message:
        assert message in rejection_reasons(result, path)
        (problem,) = result.problems[path]
        assert problem.path == f"implements[0].schema_narrowing.{next(iter(narrowing))}"
        assert "- tool: fs.read" in path.read_text().splitlines()[problem.line - 1]
        # It was never accepted, so what mends it needs no new major.
        folder.driver(implements=[entry()])
        assert result.reload().drivers


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"path": "file"}, ""),
        ({"path": "p", "encoding": "p"}, "maps 'path' and 'encoding' to the same name, 'p'"),
        ({"nothing": "p"}, "'nothing', which is not an input of the contract"),
    ],
)
def test_mapping_must_name_contract_inputs(
    folder: Folder, mapping: dict[str, Any], message: str
) -> None:
    folder.tool()
    path = folder.driver(implements=[entry(mapping=mapping)])
    result = folder.load()
    assert bool(result.drivers) is not bool(message)
    if message:
        assert message in rejection_reasons(result, path)


def test_rejects_contract_in_two_entries(folder: Folder) -> None:
    folder.tool()
    path = folder.driver(implements=[entry(), entry("./tools/fs-read/TOOL.md")])
    assert "two entries serve" in rejection_reasons(folder.load(), path)


# -- one broken file


@pytest.mark.spec("DR-30.resolver-7")
def test_broken_file_does_not_affect_others(folder: Folder) -> None:
    folder.tool("read")
    folder.tool("write", id="fs.write")
    folder.driver("good-mcp")
    invalid = [
        write(folder.root / "tools" / "bad" / "TOOL.md", "---\nname: [\n---\n"),
        write(folder.root / ".drivers" / "a" / "DRIVER.md", "---\nname: x\n"),
        write(folder.root / ".drivers" / "b" / "DRIVER.md", "no front matter"),
        folder.driver("c-mcp", transport="ws"),
        folder.driver("d-mcp", implements=[entry("./tools/bad/TOOL.md")]),
        folder.driver("e-mcp", implements=[entry("no.such.contract")]),
        write(folder.root / ".secrets" / "SECRETS.md", "---\nsecrets: 5\n---\n"),
    ]
    (folder.root / ".drivers" / "f").mkdir()
    (folder.root / ".drivers" / "f" / "DRIVER.md").write_bytes(b"\xff\xfe")
    invalid.append(folder.root / ".drivers" / "f" / "DRIVER.md")
    result = folder.load()
    assert list(result.drivers) == ["good-mcp@1"]
    assert set(result.rejected_files) == set(invalid)
    assert set(result.problems) == set(invalid)
    for path in invalid:
        assert all(problem.message and problem.hint for problem in result.problems[path])
    assert result.rejected_files[invalid[4]].code == "tool_unavailable"
    assert result.rejected_files[invalid[3]].code == "config_error"


def test_rejects_duplicate_drivers_and_contracts(folder: Folder) -> None:
    folder.tool("a")
    other = folder.tool("b", description="Something else.")
    folder.driver("one", id="files-mcp")
    second = folder.driver("two", id="files-mcp")
    result = folder.load()
    assert result.drivers["files-mcp@1"].folder.name == "one"
    assert "already declared" in rejection_reasons(result, second)
    assert "fs.read@1 is already declared" in rejection_reasons(result, other)


def test_drivers_may_share_contract(folder: Folder) -> None:
    for name in ("a-mcp", "b-mcp"):
        folder.tool(where=f".drivers/{name}/tools")
        folder.driver(name, implements=[entry("tools/fs-read/TOOL.md")])
    result = folder.load()
    assert not result.rejected_files
    assert result.serving["fs.read@1"] == ("a-mcp@1", "b-mcp@1")


# -- other files


@pytest.mark.spec("DR-30.fields-8")
def test_loads_runner_from_file(folder: Folder) -> None:
    folder.tool()
    write(folder.root / "RUNNER.md", "---\nengine: sandbox\nneeds: {language: python}\n---\n")
    folder.driver(runner="./RUNNER.md")
    folder.driver("none-mcp")
    broken = folder.driver("bad-mcp", runner="./none.md")
    result = folder.load()
    assert result.drivers["files-mcp@1"].engine == "sandbox"
    assert result.drivers["none-mcp@1"].engine == "subprocess"
    assert "there is no file" in rejection_reasons(result, broken)


def test_lists_cautions_by_file(folder: Folder) -> None:
    folder.tool()
    prompt = {"name": "x", "integrate_as": "skill_block", "skill_ref": "./skills/x/SKILL.md"}
    path = folder.driver(network={"egress": ["*"]}, prompts=[prompt])
    assert codes(folder.load().cautions[path]) == {"any_egress", "skill_missing"}
    write(folder.root / "skills" / "x" / "SKILL.md", "")
    assert codes(folder.load().cautions[path]) == {"any_egress"}


def test_binds_no_tool_for_other_kinds(folder: Folder) -> None:
    folder.tool()
    folder.driver("gh", kind="cli", server=GONE, transport=GONE, bin="gh")
    result = folder.load()
    assert result.drivers["gh@1"].server is None
    assert result.bindings["gh@1"][0].entry.mcp is None
