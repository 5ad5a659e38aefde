"""Servers that are the node itself: they are rejected, by URL and by command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import (
    Config,
    ConfigError,
    check_not_self,
    import_client_configs,
    parse_config,
)
from interlock.core.config.model import ServerConfig
from interlock.core.config.own_node import is_own_url, runs_interlock


@pytest.mark.parametrize(
    ("url", "listen", "own"),
    [
        ("http://127.0.0.1:8420/mcp", "127.0.0.1:8420", True),
        ("http://localhost:8420/mcp/", "127.0.0.1:8420", True),
        ("HTTP://LOCALHOST:8420/mcp?x=1", "127.0.0.1:8420", True),
        ("http://[::1]:8420/mcp", "localhost:8420", True),
        ("http://127.0.0.1:8420/mcp", "0.0.0.0:8420", True),
        ("http://box.example.com:8420/mcp", "box.example.com:8420", True),
        ("http://127.0.0.1/mcp", "127.0.0.1:80", True),
        ("http://127.0.0.1:8421/mcp", "127.0.0.1:8420", False),
        ("http://127.0.0.1:8420/other", "127.0.0.1:8420", False),
        ("http://192.0.2.1:8420/mcp", "127.0.0.1:8420", False),
        ("https://127.0.0.1:8420/mcp", "127.0.0.1:8420", False),
        ("http://127.0.0.1:nonsense/mcp", "127.0.0.1:8420", False),
        ("", "127.0.0.1:8420", False),
    ],
)
def test_recognizes_address_of_node(url: str, listen: str, own: bool) -> None:
    assert is_own_url(url, listen, "/mcp") is own


@pytest.mark.parametrize(
    ("line", "own"),
    [
        ("interlock stdio", True),
        ("/opt/venv/bin/interlock stdio -c x.yaml", True),
        ("C:\\bin\\interlock.exe stdio", True),
        ("uvx interlock stdio", True),
        ("python -m interlock stdio", True),
        ("interlock up", False),
        ("python -m interlock.demo", False),
        ("npx -y server-files .", False),
    ],
)
def test_recognizes_command_of_node(line: str, own: bool) -> None:
    assert runs_interlock(line.split(" ")) is own


@pytest.mark.parametrize(
    ("text", "line", "path"),
    [
        ("servers:\n  me: http://localhost:8420/mcp\n", 2, "servers.me"),
        (
            "listen: 127.0.0.1:9\npath: /x\nservers:\n  me:\n    url: http://[::1]:9/x\n",
            5,
            "servers.me.url",
        ),
    ],
)
def test_rejects_server_that_is_the_node(text: str, line: int, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    (problem,) = caught.value.problems
    assert (problem.line, problem.path) == (line, path)
    assert "the address of this node" in problem.message


def test_accepts_disabled_or_other_address() -> None:
    parse_config("servers: {me: {url: 'http://localhost:8420/mcp', enabled: false}}")
    parse_config("listen: 127.0.0.1:9\nservers: {other: 'http://localhost:8420/mcp'}")


def test_checks_overridden_address() -> None:
    servers = {"me": ServerConfig(url="http://localhost:9/mcp")}
    check_not_self(Config(servers=servers))
    with pytest.raises(ConfigError, match=r"servers\.me: this is the address of this node"):
        check_not_self(Config(servers=servers, listen="127.0.0.1:9"))


def write_client_config(path: Path, servers: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return path


def test_import_omits_the_node(tmp_path: Path) -> None:
    path = write_client_config(
        tmp_path / "mcp.json",
        {
            "interlock": {
                "url": "http://localhost:9/mcp",
                "headers": {"Authorization": "Bearer ${MY_NODE_TOKEN}"},
            },
            "pump": {"command": "/bin/interlock", "args": ["stdio"]},
            "bridge": {"command": "npx", "args": ["mcp-remote", "http://127.0.0.1:9/mcp"]},
            "jira": {"url": "http://localhost:9001/mcp"},
        },
    )
    own = Config(listen="127.0.0.1:9")
    result = import_client_configs([path], home=tmp_path, cwd=tmp_path, node_config=own)
    assert list(result.servers) == ["jira"]
    # What only the node itself would need is not asked for.
    assert result.variables == []
    assert [note.partition(" is not imported: ")[0] for note in result.notes] == [
        'mcp.json: "interlock"', 'mcp.json: "pump"', 'mcp.json: "bridge"',
    ]  # fmt: skip


def test_import_skips_broken_file(tmp_path: Path) -> None:
    valid = write_client_config(tmp_path / "good.json", {"jira": {"url": "http://h/"}})
    broken = tmp_path / "broken.json"
    broken.write_text('{"mcpServers": {', encoding="utf-8")
    missing = tmp_path / "missing.json"
    paths = [broken, missing, valid]
    result = import_client_configs(paths, home=tmp_path, cwd=tmp_path)
    assert list(result.servers) == ["jira"]
    assert len(result.notes) == 2
    assert str(broken) in result.notes[0]
    with pytest.raises(ConfigError) as caught:
        import_client_configs([missing], home=tmp_path, cwd=tmp_path)
    assert str(caught.value) == f"{missing}: there is no such file; check the path"
