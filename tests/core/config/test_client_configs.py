"""Config files of MCP clients: how they are found, read and imported without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import (
    ClientImport,
    ConfigError,
    ServerConfig,
    find_client_configs,
    format_import,
    import_client_configs,
    parse_config,
    read_client_config,
    to_yaml,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def write(path: Path, content: str | dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def read(path: Path, home: Path, cwd: Path) -> ClientImport:
    """Read an import and check that it survives a round trip."""
    result = read_client_config(path, home=home, cwd=cwd)
    assert parse_config(to_yaml(result.servers)).servers == result.servers
    return result


def test_reads_project_file_of_claude_code(home: Path, cwd: Path) -> None:
    path = write(
        cwd / ".mcp.json",
        {
            "mcpServers": {
                "files": {"command": "npx", "args": ["-y", "server-files", "."]},
                "docs": {"type": "http", "url": "https://docs.example.com/mcp"},
                "old": {"type": "sse", "url": "https://old.example.com/sse"},
                "jira": {
                    "type": "stdio",
                    "command": "${HOME_BIN:-/usr/bin}/jira",
                    "env": {"JIRA_URL": "${JIRA_URL}", "DEBUG": "1"},
                    "timeout": 600000,
                },
                "api": {
                    "type": "streamable-http",
                    "url": "${API_URL}/mcp",
                    "headers": {"Authorization": "Bearer ${API_TOKEN}"},
                },
            }
        },
    )
    result = read(path, home, cwd)
    assert (
        to_yaml(result.servers)
        == """\
servers:
  files: npx -y server-files .
  docs: https://docs.example.com/mcp
  old:
    url: https://old.example.com/sse
    transport: sse
  jira:
    command: ${env:HOME_BIN:-/usr/bin}/jira
    env:
      JIRA_URL: ${env:JIRA_URL}
      DEBUG: '1'
    timeout: 10m
  api:
    url: ${env:API_URL}/mcp
    headers:
      Authorization: Bearer ${env:API_TOKEN}
"""
    )
    assert [variable.name for variable in result.variables] == ["API_TOKEN", "API_URL", "JIRA_URL"]
    assert result.notes == []


def test_replaces_literal_secrets_with_references(home: Path, cwd: Path) -> None:
    secret = "hunter2-hunter2"
    path = write(
        cwd / "claude_desktop_config.json",
        {
            "mcpServers": {
                "git": {
                    "command": "npx",
                    "args": ["git", "--api-key", secret, f"--token={secret}x", f"MY_KEY={secret}"],
                    "env": {
                        "GITHUB_TOKEN": secret,
                        "KEY_FILE": "/etc/key.pem",
                        "LOG_LEVEL": "debug",
                        "HIDDEN": "ghp_" + "a" * 36,
                        "TOKENIZERS_PARALLELISM": "false",
                    },
                },
                "git two": {"command": "x", "env": {"GITHUB_TOKEN": secret + "-other"}},
                "git three": {"command": "x", "env": {"GITHUB_TOKEN": secret}},
                "api": {
                    "url": f"https://me:{secret}@x.example.com/s/{'a1' * 20}/mcp?key={secret}&a=b",
                    "headers": {
                        "Authorization": f"Bearer {secret}",
                        "X-Api-Key": secret,
                        "X-Team": "blue",
                    },
                },
                "remote": {
                    "command": "npx",
                    "args": ["mcp-remote", "https://x/y", "--header", f"Authorization:{secret}"],
                },
                "defaulted": {"command": "x", "env": {"API_KEY": f"${{API_KEY:-{secret}}}"}},
            }
        },
    )  # fmt: skip
    result = read(path, home, cwd)
    text = to_yaml(result.servers) + format_import(result)
    assert "hunter2" not in text
    assert "ghp_" not in text
    assert "a1a1" not in text
    assert (
        to_yaml(result.servers)
        == """\
servers:
  git:
    command: npx
    args: [git, --api-key, '${env:GIT_API_KEY}', '--token=${env:GIT_TOKEN}', 'MY_KEY=${env:MY_KEY}']
    env:
      GITHUB_TOKEN: ${env:GITHUB_TOKEN}
      KEY_FILE: /etc/key.pem
      LOG_LEVEL: debug
      HIDDEN: ${env:HIDDEN}
      TOKENIZERS_PARALLELISM: 'false'
  git two:
    command: x
    env:
      GITHUB_TOKEN: ${env:GIT_TWO_GITHUB_TOKEN}
  git three:
    command: x
    env:
      GITHUB_TOKEN: ${env:GITHUB_TOKEN}
  api:
    url: https://me:${env:API_PASSWORD}@x.example.com/s/${env:API_URL_SECRET}/mcp?key=${env:API_KEY_2}&a=b
    headers:
      Authorization: Bearer ${env:API_TOKEN}
      X-Api-Key: ${env:API_X_API_KEY}
      X-Team: blue
  remote: npx mcp-remote https://x/y --header 'Authorization:${env:REMOTE_TOKEN}'
  defaulted:
    command: x
    env:
      API_KEY: ${env:API_KEY}
"""
    )
    assert format_import(result).splitlines()[:3] == [
        "Set these environment variables before the node starts:",
        "  API_KEY  for servers.defaulted.env.API_KEY",
        "  API_KEY_2  for servers.api.url",
    ]


def test_reads_vs_code_inputs_and_comments(home: Path, cwd: Path) -> None:
    path = write(
        cwd / ".vscode" / "mcp.json",
        """{
  // what to ask for
  "inputs": [
    {"type": "promptString", "id": "api-token", "description": "The API token", "password": true,},
    {"type": "promptString", "id": "region", "description": "Region", "default": "eu"},
  ],
  "servers": {
    /* a "remote" one */
    "api": {
      "type": "http",
      "url": "https://api.example.com/mcp", // "quoted" here
      "headers": {"Authorization": "Bearer ${input:api-token}", "X-Region": "${input:region}"},
    },
    "local": {
      "type": "stdio",
      "command": "${workspaceFolder}/run",
      "args": ["--home", "${userHome}", "--name=${workspaceFolderBasename}", "http://x//y"],
      "env": {"A": "${env:A}", "GONE": null, "N": 5, "B": true},
      "envFile": "${workspaceFolder}/.env",
      "cwd": "${workspaceFolder}",
      "dev": {"watch": "src/**"},
      "strange": 1,
    },
    "asked": {"command": "x", "args": ["${command:pick.one}"]},
  },
}
""",
    )
    result = read(path, home, cwd)
    assert result.servers["api"] == ServerConfig(
        url="https://api.example.com/mcp",
        headers={
            "Authorization": "Bearer ${env:API_TOKEN}",
            "X-Region": "${env:REGION:-eu}",
        },
        segment="api",
    )
    assert result.servers["local"] == ServerConfig(
        command=f"{cwd}/run",
        args=["--home", str(home), f"--name={cwd.name}", "http://x//y"],
        env={"A": "${env:A}", "N": "5", "B": "true"},
        cwd=str(cwd),
        segment="local",
    )
    assert result.servers["asked"].args == ["$${command:pick.one}"]
    note = format_import(result)
    assert "  API_TOKEN  for servers.api.headers.Authorization (The API token)" in note
    assert 'Note: local: envFile "${workspaceFolder}/.env" is not read; ' in note
    assert "Note: local: env.GONE has no value and is ignored" in note
    assert "Note: local: not imported: strange" in note
    assert "${command:pick.one} has a meaning only in the client; imported as plain text" in note


@pytest.mark.parametrize(
    "settings",
    [
        {"mcp": {"servers": {"a": {"url": "http://a"}}}, "editor.fontSize": 12},
        {"mcp.servers": {"a": {"url": "http://a"}}},
    ],
)
def test_reads_vs_code_settings(home: Path, cwd: Path, settings: dict[str, Any]) -> None:
    path = write(cwd / ".vscode" / "settings.json", settings)
    assert list(read(path, home, cwd).servers) == ["a"]


def test_reads_cursor_file(home: Path, cwd: Path) -> None:
    path = write(
        cwd / ".cursor" / "mcp.json",
        {
            "mcpServers": {
                "a": {"url": "http://localhost:3000/sse", "headers": {"API_KEY": "${env:KEY}"}},
                "b": {"command": "npx -y thing", "disabled": True},
                "c": {"url": "https://c.example.com/mcp", "auth": {"CLIENT_ID": "x"}},
            }
        },
    )
    result = read(path, home, cwd)
    assert result.servers["a"].headers == {"API_KEY": "${env:KEY}"}
    assert (result.servers["b"].command, result.servers["b"].args) == ("npx", ["-y", "thing"])
    assert not result.servers["b"].enabled
    assert result.notes == ["c: auth is not imported; set headers if the server needs a token"]


def test_reads_codex_file(home: Path, cwd: Path) -> None:
    path = write(
        home / ".codex" / "config.toml",
        """
model = "x"

[mcp_servers.context7]
command = "npx"
args = ["-y", "@upstash/context7-mcp", "${NOT_EXPANDED}"]
env_vars = ["LOCAL_TOKEN", { name = "OTHER", source = "local" }]
startup_timeout_sec = 20
tool_timeout_sec = 45.5
enabled_tools = ["search", "fetch[1]"]
disabled_tools = ["delete"]

[mcp_servers.context7.env]
MY_VAR = "value"
API_KEY = "hunter2"

[mcp_servers.figma]
url = "https://mcp.figma.com/mcp"
bearer_token_env_var = "FIGMA_TOKEN"
http_headers = { "X-Figma-Region" = "us-east-1" }
env_http_headers = { "X-Team" = "FIGMA_TEAM" }
enabled = false
scopes = ["a"]

[mcp_servers.slow]
command = "slow"
startup_timeout_ms = 1500
""",
    )
    result = read(path, home, cwd)
    assert result.servers == {
        "context7": ServerConfig(
            command="npx",
            args=["-y", "@upstash/context7-mcp", "$${NOT_EXPANDED}"],
            env={
                "MY_VAR": "value",
                "API_KEY": "${env:API_KEY}",
                "LOCAL_TOKEN": "${env:LOCAL_TOKEN}",
                "OTHER": "${env:OTHER}",
            },
            start_timeout=20.0,
            timeout=45.5,
            allow=["search", "fetch[[]1]"],
            deny=["delete"],
            segment="context7",
        ),
        "figma": ServerConfig(
            url="https://mcp.figma.com/mcp",
            headers={
                "X-Figma-Region": "us-east-1",
                "X-Team": "${env:FIGMA_TEAM}",
                "Authorization": "Bearer ${env:FIGMA_TOKEN}",
            },
            enabled=False,
            segment="figma",
        ),
        "slow": ServerConfig(command="slow", start_timeout=1.5, segment="slow"),
    }
    assert result.notes == [
        "figma: scopes is not imported; set headers if the server needs a token"
    ]


def test_reads_servers_of_project_from_user_file(home: Path, cwd: Path) -> None:
    path = write(
        home / ".claude.json",
        {
            "mcpServers": {"user": {"url": "http://user"}},
            "projects": {
                str(cwd): {"mcpServers": {"local": {"command": "run"}}},
                "/elsewhere": {"mcpServers": {"other": {"command": "run"}}},
            },
        },
    )
    result = read(path, home, cwd)
    assert list(result.servers) == ["user", "local"]
    assert len(result.notes) == 1
    assert "/elsewhere" in result.notes[0]
    assert '"other"' in result.notes[0]


def test_omits_common_variables_from_format_import(home: Path, cwd: Path) -> None:
    env = {"HOME": "${HOME}", "TEAM": "${TEAM}"}
    path = write(cwd / ".mcp.json", {"mcpServers": {"a": {"command": "run", "env": env}}})
    note = format_import(read(path, home, cwd))
    assert "TEAM" in note
    assert "HOME" not in note


def test_bad_entry_does_not_hide_other_servers(home: Path, cwd: Path) -> None:
    path = write(
        cwd / ".mcp.json",
        {
            "mcpServers": {
                "none": {},
                "both": {"url": "http://x", "command": "run"},
                "socket": {"type": "ws", "url": "ws://x"},
                "text": "run",
                "header": {"url": "http://x", "headers": {"a b": "c"}},
                "half": {"command": "run", "args": ["\ud800"]},
                "good": {"command": "run"},
                "日本": {"command": "walk"},
            }
        },
    )
    result = read(path, home, cwd)
    assert list(result.servers) == ["good", "日本"]
    assert result.servers["日本"].segment == "server"
    assert result.notes == [
        '.mcp.json: "none" is not imported: it has neither a URL nor a command',
        '.mcp.json: "both" is not imported: it has both a URL and a command',
        '.mcp.json: "socket" is not imported: this is not a URL of an MCP server',
        '.mcp.json: "text" is not imported: it is not a server',
        '.mcp.json: "header" is not imported: "a b" is not the name of a header',
        '.mcp.json: "half" is not imported: this text has half a surrogate pair',
    ]


def test_merges_several_files(home: Path, cwd: Path) -> None:
    first = write(
        cwd / ".mcp.json",
        {"mcpServers": {"a": {"url": "http://a"}, "My Tool": {"command": "run"}}},
    )
    second = write(
        cwd / ".cursor" / "mcp.json",
        {"mcpServers": {"a": {"url": "http://a"}, "my-tool": {"command": "walk"}}},
    )
    third = write(home / ".cursor" / "mcp.json", {"mcpServers": {"a": {"url": "http://other"}}})
    result = import_client_configs([first, second, third], home=home, cwd=cwd)
    assert {key: server.segment for key, server in result.servers.items()} == {
        "a": "a",
        "My Tool": "my-tool",
        "my-tool": "my-tool-2",
        "a-2": "a-2",
    }
    assert result.notes == ['two servers are called "a"; one is now "a-2"']
    assert parse_config(to_yaml(result.servers)).servers == result.servers


def test_finds_client_config_files(home: Path, cwd: Path) -> None:
    assert find_client_configs(home, cwd) == []
    write(cwd / ".mcp.json", {})
    write(cwd / ".vscode" / "settings.json", {"editor.fontSize": 12})
    write(cwd / ".vscode" / "mcp.json", {})
    write(home / ".config" / "Claude" / "claude_desktop_config.json", {})
    write(home / "Library" / "Application Support" / "Code" / "User" / "settings.json", {"mcp": {}})
    write(home / ".codex" / "config.toml", 'model = "x"\n')
    write(home / ".cursor" / "mcp.json", {})
    (home / ".claude.json").mkdir()
    result = [(f.client, f.path.name, f.project) for f in find_client_configs(home, cwd)]
    assert result == [
        ("Claude Code", ".mcp.json", True),
        ("VS Code", "mcp.json", True),
        ("Claude Desktop", "claude_desktop_config.json", False),
        ("Cursor", "mcp.json", False),
        ("VS Code", "settings.json", False),
    ]
    write(home / ".codex" / "config.toml", "[mcp_servers.a]\n")
    assert find_client_configs(home, cwd)[-1].client == "Codex"
    assert len([f for f in find_client_configs(home, home) if f.client == "Cursor"]) == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", '{\n  "a": hunter2\n}', ":2:8: this is not valid JSON; check this line"),
        ("x.json", "[1]", ": this is not the config of an MCP client; name another file"),
        ("x.json", "[" * 100_000, ": this is not usable JSON; check the file"),
        ("x.toml", "a = 1\nb = hunter2\n", ":2:5: this is not valid TOML; check this line"),
    ],
)
def test_rejects_unreadable_file(home: Path, cwd: Path, name: str, text: str, message: str) -> None:
    path = write(cwd / name, text)
    with pytest.raises(ConfigError) as caught:
        read(path, home, cwd)
    assert str(caught.value) == f"{path}{message}"


def test_reads_no_servers_from_empty_file(home: Path, cwd: Path) -> None:
    for name, text in [("a.json", ""), ("b.json", "// nothing\n"), ("c.toml", "")]:
        result = read(write(cwd / name, text), home, cwd)
        assert result == ClientImport({}, [], [])
        assert format_import(result) == ""


def test_moves_passwords_into_env_references(home: Path, cwd: Path) -> None:
    path = write(
        cwd / ".mcp.json",
        {
            "mcpServers": {
                "db": {
                    "command": "db-server",
                    "args": ["postgres://me:hunter2@db/x", "--dsn=mysql://me:hunter2@db/x"],
                    "env": {"DB_PASS": "hunter2", "COMPASS": "north"}
                    | {"DATABASE_URL": "h://a:hunter2@b"},
                },
            }
        },
    )
    result = read(path, home, cwd)
    assert "hunter2" not in to_yaml(result.servers)
    assert result.servers["db"].env == {
        "DB_PASS": "${env:DB_PASS}",
        "COMPASS": "north",
        "DATABASE_URL": "${env:DATABASE_URL}",
    }


def test_numbers_servers_of_same_name_in_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    path = tmp_path / ".claude.json"
    own = {"mcpServers": {"weather": {"command": "other"}, "same": {"command": "x"}}}
    document = {
        "mcpServers": {"weather": {"command": "python"}, "same": {"command": "x"}},
        "projects": {str(folder): own},
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    result = import_client_configs([path], home=tmp_path, cwd=folder)
    assert {key: server.command for key, server in result.servers.items()} == {
        "weather": "python", "weather-2": "other", "same": "x",
    }  # fmt: skip
    assert {(entry.keys[0], entry.server) for entry in result.entries} == {
        ("mcpServers", "weather"), ("projects", "weather-2"), ("mcpServers", "same"),
        ("projects", "same"),
    }  # fmt: skip
