"""References to a driver: inline, by id, or by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from interlock.core.config.problems import ConfigError, InvalidValueError
from interlock.manifests.references import resolve_driver
from interlock.manifests.workspace import load_workspace
from tests.manifests.texts import driver_text, driver_values, tool_text, write


@pytest.mark.spec("DR-30.composition-1")
def test_resolves_inline_id_and_file_to_same_driver(tmp_path: Path) -> None:
    write(tmp_path / "tools" / "fs-read" / "TOOL.md", tool_text())
    path = write(tmp_path / ".drivers" / "files-mcp" / "DRIVER.md", driver_text())
    drivers = load_workspace(tmp_path).drivers
    folder = tmp_path / ".workflows" / "one"

    def resolve(reference: Any) -> Any:
        return resolve_driver(reference, drivers, folder=folder, root=tmp_path)

    expected = resolve({"ref": "files-mcp"})
    assert expected.file == path
    for reference in (
        {"inline": driver_values()},
        {"file": ".drivers/files-mcp/DRIVER.md"},
        {"file": "./.drivers/files-mcp/DRIVER.md"},
        {"ref": "files-mcp@1"},
        "files-mcp",
        ".drivers/files-mcp/DRIVER.md",
    ):
        one = resolve(reference)
        line = expected.implements[0]
        assert replace(one, file=path, digest=expected.digest, implements=(line,)) == expected, (
            reference
        )


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (5, "not a reference"),
        ({}, "not a reference"),
        ({"ref": "a", "file": "b"}, "not a reference"),
        ({"path": "a"}, "not a reference"),
        ({"ref": 5}, "ref must be text"),
        ({"inline": "x"}, "fields of a driver"),
        ({"ref": "file-mcp"}, "no driver"),
        ({"file": "../../x/DRIVER.md"}, "leads out"),
        ({"file": "nowhere.md"}, "no file"),
    ],
)
def test_rejects_unresolvable_reference(tmp_path: Path, reference: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        resolve_driver(reference, {}, folder=tmp_path, root=tmp_path)


def test_reports_problems_of_invalid_driver(tmp_path: Path) -> None:
    invalid = {"inline": driver_values(transport="ws")}
    with pytest.raises(ConfigError, match="transport"):
        resolve_driver(invalid, {}, folder=tmp_path, root=tmp_path)
    write(tmp_path / "DRIVER.md", driver_text(transport="ws"))
    with pytest.raises(ConfigError, match="transport"):
        resolve_driver({"file": "DRIVER.md"}, {}, folder=tmp_path, root=tmp_path)


def test_prefers_newest_major_version(tmp_path: Path) -> None:
    write(tmp_path / "tools" / "fs-read" / "TOOL.md", tool_text())
    write(tmp_path / ".drivers" / "a" / "DRIVER.md", driver_text(version="1.9.0"))
    write(tmp_path / ".drivers" / "b" / "DRIVER.md", driver_text(version="2.0.0"))
    drivers = load_workspace(tmp_path).drivers
    for text, version in (("files-mcp", "2.0.0"), ("files-mcp@1", "1.9.0")):
        result = resolve_driver(text, drivers, folder=tmp_path, root=tmp_path)
        assert result.version == version
    with pytest.raises(InvalidValueError) as caught:
        resolve_driver("filse-mcp", drivers, folder=tmp_path, root=tmp_path)
    assert "files-mcp" in caught.value.hint
