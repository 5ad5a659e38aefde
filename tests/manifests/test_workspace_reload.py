"""Reload of a workspace: which files are read, and which changes are rejected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.manifests.folders import Folder, rejection_reasons
from tests.manifests.texts import GONE, entry, write


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.spec("DR-32.identity-1", "DR-30.identity-2")
def test_rejects_breaking_change_without_new_major(folder: Folder) -> None:
    folder.tool()
    docker = {"kind": "docker", "image": "x", "port": 80}
    path = folder.driver(server=docker, transport="http", version="1.0.0")
    first = folder.load()
    folder.driver(server=docker, transport="sse", version="1.1.0")
    second = first.reload()
    assert "requires a new major version" in rejection_reasons(second, path)
    assert not second.drivers
    # It stays refused, also for a node that starts again and remembers what was accepted.
    assert "requires a new major" in rejection_reasons(second.reload([path]), path)
    assert "requires a new major" in rejection_reasons(
        folder.load(registered=first.registered), path
    )
    folder.driver(server=docker, transport="sse", version="2.0.0")
    third = second.reload()
    assert list(third.drivers) == ["files-mcp@2"]
    narrowed = entry(schema_narrowing={"drop_inputs": ["encoding"]})
    folder.driver(server=docker, transport="sse", version="2.1.0", implements=[narrowed])
    assert "narrowing" in rejection_reasons(third.reload(), path)


def test_rereads_only_changed_files(folder: Folder) -> None:
    folder.tool("read")
    folder.tool("write", id="fs.write")
    one, two = folder.driver("one-mcp"), folder.driver("two-mcp")
    first = folder.load()
    assert len(first.read_files) == 4
    again = first.reload()
    assert again.read_files == ()
    assert again.drivers == first.drivers
    folder.driver("two-mcp", description="Other words, and more of them.")
    second = again.reload()
    assert second.read_files == (two,)
    assert second.drivers["two-mcp@1"].description.startswith("Other")
    assert second.drivers["one-mcp@1"] is first.drivers["one-mcp@1"]
    assert first.drivers["two-mcp@1"].description == "Reads files."
    assert second.reload([one]).read_files == (one,)


def test_notices_added_and_removed_files(folder: Folder) -> None:
    contract = folder.tool()
    path = folder.driver()
    result = folder.load()
    late = folder.driver("late-mcp", implements=[entry("./tools/late/TOOL.md")])
    result = result.reload()
    assert result.rejected_files[late].code == "tool_unavailable"
    assert result.reload().read_files == ()
    folder.tool("late", id="late.one")
    result = result.reload()
    assert sorted(result.drivers) == ["files-mcp@1", "late-mcp@1"]
    assert not result.rejected_files
    contract.unlink()
    result = result.reload()
    assert result.rejected_files[path].code == "tool_unavailable"
    path.unlink()
    path.parent.rmdir()
    result = result.reload()
    assert path not in result.rejected_files
    assert sorted(result.drivers) == ["late-mcp@1"]


def test_binds_changed_contract_again(folder: Folder) -> None:
    contract = folder.tool()
    path = folder.driver()
    result = folder.load()
    folder.tool(version="2.0.0")
    result = result.reload()
    assert result.read_files == (contract,)
    assert result.rejected_files[path].code == "tool_unavailable"
    assert list(result.contracts) == ["fs.read@2"]


def test_nearer_contract_replaces_farther_contract(folder: Folder) -> None:
    folder.tool("x", id="far.away")
    folder.driver(implements=[entry("tools/x/TOOL.md")])
    result = folder.load()
    assert result.bindings["files-mcp@1"][0].contract.id == "far.away"
    folder.tool("x", where=".drivers/files-mcp/tools", id="near.by")
    result = result.reload()
    assert result.bindings["files-mcp@1"][0].contract.id == "near.by"


def test_notices_changed_code(folder: Folder) -> None:
    folder.tool()
    path = folder.driver(implements=[entry(metadata=GONE)])
    result = folder.load()
    assert "no driver.py serves it" in rejection_reasons(result, path)
    write(path.with_name("driver.py"), "driver = 1\n")
    result = result.reload()
    assert list(result.drivers) == ["files-mcp@1"]
    assert result.reload().read_files == ()
    write(path.with_name("driver.py"), "driver = 2  # changed\n")
    assert result.reload().read_files == (path,)
    path.with_name("driver.py").unlink()
    assert "no driver.py serves it" in rejection_reasons(result.reload(), path)


def test_explicit_reload_reads_unchanged_metadata(folder: Folder) -> None:
    folder.tool()
    path = folder.driver(description="AAAA")
    result = folder.load()
    status = path.stat()
    with path.open("r+", encoding="utf-8") as file:
        text = file.read().replace("AAAA", "BBBB")
        file.seek(0)
        file.write(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert result.reload([path]).drivers["files-mcp@1"].description == "BBBB"
