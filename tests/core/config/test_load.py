"""Reading of valid config files."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock import errors
from interlock.core.config import (
    BreakerConfig,
    Config,
    ConfigError,
    JournalConfig,
    Limits,
    ServerConfig,
    TokenConfig,
    check_exposure,
    load_config,
    parse_config,
)


def test_reads_shortest_useful_file() -> None:
    config = parse_config(
        """
listen: 127.0.0.1:8420          # the default; the MCP face is at /mcp
servers:
  jira: http://127.0.0.1:9001/mcp                            # a URL
  files: npx -y @modelcontextprotocol/server-filesystem .    # a command line
"""
    )
    assert config.servers == {
        "jira": ServerConfig(url="http://127.0.0.1:9001/mcp", segment="jira"),
        "files": ServerConfig(
            command="npx",
            args=["-y", "@modelcontextprotocol/server-filesystem", "."],
            segment="files",
        ),
    }
    assert (config.host, config.port, config.path) == ("127.0.0.1", 8420, "/mcp")


@pytest.mark.parametrize(
    "text", ["", "\n", "# nothing yet\n", "---\n", "{}", "servers:\n", "\ufeff"]
)
def test_reads_empty_file_as_default_config(text: str) -> None:
    assert parse_config(text) == Config()


def test_applies_defaults() -> None:
    config = Config()
    assert config.listen == "127.0.0.1:8420"
    assert config.path == "/mcp"
    assert config.names == "auto"
    assert config.root_segment is None
    assert config.page_size == 0
    assert config.timeout == 60.0
    assert config.limits == Limits(
        body_bytes=4 * 1024 * 1024,
        header_bytes=16 * 1024,
        header_count=100,
        sessions=10_000,
        session_idle=3600.0,
        concurrent_calls=10_000,
    )
    assert config.breaker == BreakerConfig(failures=5, cooldown=10.0)
    assert config.journal == JournalConfig(enabled=True, path=None, max_rows=1_000_000)
    server = ServerConfig(url="http://x")
    assert (server.connections, server.grace, server.start_timeout) == (16, 300.0, 30.0)
    assert (server.transport, server.expose, server.enabled) == ("auto", "prefixed", True)
    assert (server.timeout, server.trust_annotations) == (None, True)


def test_reads_all_keys_together() -> None:
    config = parse_config(
        """
listen: "[::1]:9000"
path: /tools/mcp
names: safe
root_segment: infra
page_size: 50
timeout: 2.5
state_dir: ~/state
allowed_hosts: [gateway.example.com, "gateway.example.com:8420"]
allowed_origins: [https://app.example.com, vscode-webview://abc]
tokens:
  - name: laptop
    token: ${env:LAPTOP_TOKEN}
  - {name: build, token: "${file:build.token}"}
limits:
  body_bytes: 512KiB
  header_bytes: 8192
  header_count: 50
  sessions: 3
  session_idle: 250ms
  concurrent_calls: 7
breaker: {failures: 2, cooldown: 1h}
journal:
  enabled: false
  path: journal.db
  max_rows: 10
servers:
  jira:
    url: https://jira.example.com/mcp
    transport: http
    segment: tracker
    description: Issues
    headers:
      Authorization: Bearer ${env:JIRA_TOKEN}
      X-Retries: 3
    allow: [get_*, "*_list"]
    deny: [delete_*]
    rename: {get_issue: issue}
    descriptions: {get_issue: One issue.}
    effects: {get_*: read_only, delete_*: irreversible}
    trust_annotations: false
    timeout: 5m
    start_timeout: 10
    grace: 0
    connections: 4
    enabled: false
  files:
    command: npx -y server-files
    env: {DEBUG: true, PORT: 8080, RATIO: 1.10, NAME: "x"}
    cwd: ./work
    transport: stdio
  exact:
    command: /opt/my tools/run
    args: [--port, 8080]
"""
    )
    assert (config.host, config.port) == ("::1", 9000)
    assert config.tokens == [
        TokenConfig(name="laptop", token="${env:LAPTOP_TOKEN}"),
        TokenConfig(name="build", token="${file:build.token}"),
    ]
    assert config.limits == Limits(
        body_bytes=512 * 1024,
        header_bytes=8192,
        header_count=50,
        sessions=3,
        session_idle=0.25,
        concurrent_calls=7,
    )
    assert config.breaker == BreakerConfig(failures=2, cooldown=3600.0)
    assert config.journal == JournalConfig(enabled=False, path="journal.db", max_rows=10)
    assert config.allowed_origins == ["https://app.example.com", "vscode-webview://abc"]
    assert config.servers["jira"] == ServerConfig(
        url="https://jira.example.com/mcp",
        transport="http",
        segment="tracker",
        description="Issues",
        headers={"Authorization": "Bearer ${env:JIRA_TOKEN}", "X-Retries": "3"},
        allow=["get_*", "*_list"],
        deny=["delete_*"],
        rename={"get_issue": "issue"},
        descriptions={"get_issue": "One issue."},
        effects={"get_*": "read_only", "delete_*": "irreversible"},
        trust_annotations=False,
        timeout=300.0,
        start_timeout=10.0,
        grace=0.0,
        connections=4,
        enabled=False,
    )
    # A value that was written as a number or a switch is the text that was written.
    assert config.servers["files"] == ServerConfig(
        command="npx",
        args=["-y", "server-files"],
        env={"DEBUG": "true", "PORT": "8080", "RATIO": "1.10", "NAME": "x"},
        cwd="./work",
        transport="stdio",
        segment="files",
    )
    # With args, the command is the program as it stands.
    assert config.servers["exact"] == ServerConfig(
        command="/opt/my tools/run", args=["--port", "8080"], segment="exact"
    )
    assert list(config.enabled_servers) == ["files", "exact"]


def test_reads_json() -> None:
    text = (
        '{\n\t"servers": {"a":"http://x/mcp","b":{"command":"run","env":{"A":"\\ud83d\\ude00"}}}\n}'
    )
    config = parse_config(text, "interlock.json")
    assert config.servers["a"].url == "http://x/mcp"
    assert config.servers["b"].env == {"A": "\N{GRINNING FACE}"}


def test_reads_anchors_and_aliases() -> None:
    config = parse_config(
        "servers:\n  a: {command: run, env: &shared {A: one}}\n  b: {command: walk, env: *shared}\n"
    )
    assert config.servers["b"].env == {"A": "one"}


@pytest.mark.parametrize(
    ("key", "segment"),
    [
        ("jira", "jira"),
        ("My Server", "my-server"),
        ("a.b/c", "a-b-c"),
        ("UPPER_case-1", "upper_case-1"),
        ("  padded  ", "padded"),
        ("-kept-", "-kept-"),
        ("é" * 3 + "x", "x"),
        ("k" * 80, "k" * 63),
        ("7", "7"),
    ],
)
def test_makes_segment_from_server_key(key: str, segment: str) -> None:
    assert Config(servers={key: ServerConfig(url="http://x")}).servers[key].segment == segment
    text = f'servers: {{"{key}": "http://x"}}'
    assert parse_config(text).servers[key].segment == segment


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("1.5h", 5400.0),
        ("2 s", 2.0),
        ("90", 90.0),
        ("0.5", 0.5),
        ("1e2", 100.0),
    ],
)
def test_parses_durations(written: str, seconds: float) -> None:
    assert parse_config(f"timeout: {written}").timeout == seconds


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("4MiB", 4 * 1024**2),
        ("16 KiB", 16 * 1024),
        ("1GB", 10**9),
        ("100B", 100),
        ("1.5KiB", 1536),
        ("77", 77),
    ],
)
def test_parses_sizes(written: str, size: int) -> None:
    assert parse_config(f"limits: {{body_bytes: {written}}}").limits.body_bytes == size


@pytest.mark.parametrize(
    "listen",
    ["127.0.0.1:0", "localhost:8420", "127.8.8.8:1", '"[::1]:8420"', '"[::ffff:127.0.0.1]:1"'],
)
def test_accepts_loopback_address_without_token(listen: str) -> None:
    assert parse_config(f"listen: {listen}").address.loopback


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:8420", '"[::]:8420"', "gateway:8420", "192.168.1.2:80"]
)
def test_requires_token_for_other_addresses(listen: str) -> None:
    with pytest.raises(ConfigError, match="there is no token"):
        parse_config(f"listen: {listen}")
    text = f"listen: {listen}\n" + 'tokens: [{name: me, token: "${env:INTERLOCK_TOKEN}"}]'
    assert not parse_config(text).address.loopback


def test_checks_exposure_of_overridden_address() -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0:1 is reachable"):
        check_exposure(Config(listen="0.0.0.0:1"))
    check_exposure(Config(listen="127.0.0.1:1"))
    check_exposure(Config(listen="0.0.0.0:1", tokens=[TokenConfig(name="a", token="b")]))


def test_accepts_single_transparent_server() -> None:
    text = "servers: {a: {url: http://x, expose: transparent}, b: {url: http://y, enabled: false}}"
    assert parse_config(text).servers["a"].expose == "transparent"


def test_load_config_names_file_in_problems(tmp_path: Path) -> None:
    path = tmp_path / "interlock.yaml"
    path.write_text("\ufefflisten: localhost:1\n", encoding="utf-8")
    assert load_config(path).port == 1
    path.write_text("a: 1\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.problems[0].file == str(path)
    assert caught.value.failure is errors.CONFIG
    assert caught.value.data is not None
    assert caught.value.data["problems"][0]["line"] == 1


def test_rejects_unreadable_file(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(ConfigError) as caught:
        load_config(missing)
    assert str(caught.value) == (
        f"{missing}: there is no such file; check the path, or create the file: `interlock add`"
    )
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"# ok\nlisten: \xff\n")
    with pytest.raises(ConfigError, match=r"latin.yaml:2:9: this is not UTF-8 text"):
        load_config(tmp_path / "latin.yaml")
