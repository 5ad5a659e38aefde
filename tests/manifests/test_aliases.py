"""Deprecated field names of DRIVER.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.core.config.problems import ConfigError
from interlock.manifests.document import Caution
from interlock.manifests.driver_reader import parse_driver, read_driver
from tests.manifests.texts import GONE, driver_text, entry, write


@pytest.mark.spec("DR-32.principles-6")
def test_translates_deprecated_fields_with_warnings(tmp_path: Path) -> None:
    """The pattern of AIP-30's example 5: server_ref and mcp_tools beside the new fields."""
    write(
        tmp_path / "servers" / "fs" / "server.json",
        '{"command": "npx", "args": ["-y", "@scope/files", "/workspace"], "env": {"A": "b"}}',
    )
    text = driver_text(
        server=GONE,
        server_ref="./servers/fs/server.json",
        mcp_tools={"read_file": "fs-read", "write_file": "fs-write", "list": "fs-list"},
        implements=[
            entry("./tools/fs-read/TOOL.md", metadata={"mcp": {"tool_name": "other"}}),
            entry("./tools/fs-write/TOOL.md", metadata=GONE),
            entry("fs-list", metadata={"x": 1}),
        ],
    )
    path = write(tmp_path / ".drivers" / "files-mcp" / "DRIVER.md", text)
    cautions: list[Caution] = []
    result = read_driver(path, root=tmp_path, cautions=cautions)
    deprecated = [caution for caution in cautions if caution.code == "deprecated_field"]
    assert len(deprecated) == 2
    assert all(item.line > 1 for item in deprecated)
    assert result.server is not None
    assert (result.server.kind, result.server.package) == ("npm", "@scope/files")
    assert result.server.args == ("/workspace",)
    assert result.server.env == {"A": "b"}
    tools = [item.mcp.tool_name for item in result.implements if item.mcp is not None]
    assert tools == ["other", "write_file", "list"]


@pytest.mark.spec("DR-32.principles-6")
def test_current_fields_override_deprecated_fields() -> None:
    reading = parse_driver(
        driver_text(server_ref="./nowhere.json", mcp_tools={"x": "fs.read"}), Path("a/DRIVER.md")
    )
    result = reading.unwrap()
    assert result.server is not None
    assert result.server.package == "@scope/files"
    assert result.implements[0].mcp is not None
    assert result.implements[0].mcp.tool_name == "read_file"
    assert len([caution for caution in reading.cautions if caution.code == "deprecated_field"]) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"kind": "remote", "url": "https://x.example/"}', ""),
        ('{"url": "https://x.example/"}', ""),
        ('{"mcpServers": {"a": {"url": "https://x.example/"}}}', ""),
        ("{", "not JSON"),
        ("[]", "names no server"),
        ('{"kind": "pip"}', "not one of the choices"),
    ],
)
def test_reads_or_rejects_server_json(tmp_path: Path, content: str, message: str) -> None:
    write(tmp_path / "server.json", content)
    text = driver_text(server=GONE, server_ref="server.json", transport="sse")
    reading = parse_driver(text, tmp_path / "DRIVER.md")
    if message:
        assert any(message in problem.message for problem in reading.problems), reading.problems
        assert all(problem.line > 1 for problem in reading.problems)
    else:
        assert reading.unwrap().server.url == "https://x.example/"  # type: ignore[union-attr]


def test_rejects_server_json_outside_workspace(tmp_path: Path) -> None:
    write(tmp_path / "server.json", '{"url": "https://x.example/"}')
    path = write(
        tmp_path / "ws" / "a" / "DRIVER.md",
        driver_text(server=GONE, server_ref="../../server.json", transport="sse"),
    )
    with pytest.raises(ConfigError, match="leads out of the workspace"):
        read_driver(path, root=tmp_path / "ws")
