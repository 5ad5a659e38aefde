"""A workspace of a thousand drivers: each file is read once.

The time that it takes: `python -m bench drivers`.
"""

from __future__ import annotations

from pathlib import Path

from interlock.manifests.workspace import load_workspace
from tests.manifests.test_published_patterns import FILES
from tests.manifests.texts import tool_text, write

DRIVERS, CONTRACTS = 1000, 200


def fill(root: Path) -> None:
    for number in range(CONTRACTS):
        write(root / "tools" / f"t{number}" / "TOOL.md", tool_text(id=f"files.t{number}"))
    for number in range(DRIVERS):
        text = FILES.replace("id: filesystem-mcp", f"id: files-{number}-mcp")
        for offset, name in enumerate(("fs-read", "fs-write", "fs-list")):
            text = text.replace(f"tools/{name}/", f"tools/t{(3 * number + offset) % CONTRACTS}/")
        write(root / ".drivers" / f"files-{number}-mcp" / "DRIVER.md", text)


def test_rereads_only_changed_file_of_thousand_drivers(tmp_path: Path) -> None:
    fill(tmp_path)
    result = load_workspace(tmp_path)
    assert (len(result.drivers), len(result.contracts)) == (DRIVERS, CONTRACTS)
    assert not result.rejected_files
    assert len(result.read_files) == DRIVERS + CONTRACTS
    assert result.reload().read_files == ()
    changed = tmp_path / ".drivers" / "files-7-mcp" / "DRIVER.md"
    write(changed, changed.read_text(encoding="utf-8").replace("Files over MCP", "Others"))
    after = result.reload()
    assert after.read_files == (changed,)
    assert after.drivers["files-7-mcp@1"].name == "Others"
