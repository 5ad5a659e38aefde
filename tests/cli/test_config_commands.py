"""`check`, `add`, `import` and `schema`: the config, without a node."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest

from interlock.core.config import load_config
from tests.support.command_line import CommandLine


def test_check_reports_servers_and_settings(world: CommandLine) -> None:
    world.config(
        {
            "jira": "http://127.0.0.1:9001/mcp",
            "files": {"command": "files-server", "args": ["--token", "${env:FILES_TOKEN}"]},
            "off": {"url": "http://127.0.0.1:1/", "enabled": False},
        }
    )
    result = world.run_here("check", FILES_TOKEN="secret")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(
        f"interlock.yaml: 2 servers (1 more not enabled), listening on 127.0.0.1:{world.port}/mcp\n"
        "  jira   http://127.0.0.1:9001/mcp\n"
        "  files  files-server --token '${env:FILES_TOKEN}'\n"
        "  unannotated: infer. "
    )


def test_check_reports_all_config_problems(world: CommandLine) -> None:
    (world.cwd / "interlock.yaml").write_text(
        "lisen: 127.0.0.1:1\nservers:\n  a:\n    url: ftp://x\n", encoding="utf-8"
    )
    result = world.run("check")
    assert result.returncode == 3
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith("interlock.yaml:1:1: ")
    assert "listen" in first
    assert second.startswith("interlock.yaml:4:5: servers.a.url: ")
    as_json = world.run_here("check", "--json")
    assert as_json.returncode == 3
    data = json.loads(as_json.stdout)
    assert data["ok"] is False
    assert [(problem["line"], problem["column"]) for problem in data["problems"]] == [
        (1, 1),
        (4, 5),
    ]


@pytest.mark.feature("drivers")
def test_check_reports_all_kinds_of_problems(world: CommandLine) -> None:
    (world.cwd / "interlock.yaml").write_text(
        "lisen: 127.0.0.1:1\n"
        "listen: 0.0.0.0:8420\n"
        "tokens:\n"
        "  - {name: me, token: '${env:T}'}\n"
        "servers:\n"
        "  a:\n"
        "    url: ftp://x\n"
        "  b:\n"
        "    url: http://h/\n"
        "    headers: {X: '${env:MISSING_ONE}'}\n",
        encoding="utf-8",
    )
    drivers = world.cwd / ".drivers" / "broken"
    drivers.mkdir(parents=True)
    (drivers / "DRIVER.md").write_text("no front matter\n", encoding="utf-8")
    result = world.run_here("check", T="short")
    assert result.returncode == 3
    for words in (
        "interlock.yaml:1:1: lisen: unknown key",
        "servers.a.url: ",
        'tokens[0].token: the token "me" has less than 16 characters',
        "servers.b.headers.X: the environment variable MISSING_ONE is not set",
        "DRIVER.md",
    ):
        assert result.stderr.count(words) == 1, (words, result.stderr)
    data = json.loads(world.run_here("check", "--json", T="short").stdout)
    assert data["ok"] is False
    assert len(data["problems"]) == len(result.stderr.splitlines())


def test_check_reports_weak_token_beside_missing_reference(world: CommandLine) -> None:
    server = {"url": "http://h/", "headers": {"X": "${env:MISSING_ONE}"}}
    tokens = [{"name": "me", "token": "${env:T}"}]
    world.config({"a": server}, tokens=tokens, listen=f"0.0.0.0:{world.port}")
    result = world.run_here("check", T="short")
    assert result.returncode == 3
    assert 'the token "me" has less than 16 characters' in result.stderr
    assert "MISSING_ONE is not set" in result.stderr
    assert result.stderr.count("16 characters") == 1


def test_check_reports_single_problem_for_invalid_yaml(world: CommandLine) -> None:
    (world.cwd / "interlock.yaml").write_text("servers: [\n", encoding="utf-8")
    result = world.run_here("check")
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (3, "", 1)


def test_check_reports_unresolved_references(world: CommandLine) -> None:
    world.config(
        {
            "a": {"url": "http://h/", "headers": {"X": "${env:MISSING_ONE} ${env:FOUND}"}},
            "b": {"command": "x", "env": {"KEY": "${file:no/such/file}"}},
        }
    )
    result = world.run_here("check", FOUND="here")
    assert result.returncode == 1
    first, second = result.stderr.splitlines()
    where = "interlock.yaml:7:9: servers.a.headers.X: "
    assert first.startswith(f"{where}the environment variable MISSING_ONE is not set")
    where = "interlock.yaml:13:9: servers.b.env.KEY: "
    assert second.startswith(f"{where}the secret file no/such/file does not exist")
    data = json.loads(world.run_here("check", "--json", FOUND="here").stdout)
    assert [problem["path"] for problem in data["problems"]] == [
        "servers.a.headers.X",
        "servers.b.env.KEY",
    ]


def test_reference_in_short_form_has_place_of_its_server(world: CommandLine) -> None:
    path = world.cwd / "interlock.yaml"
    path.write_text("servers:\n  a: run --token ${env:MISSING_ONE}\n", encoding="utf-8")
    result = world.run_here("check")
    assert result.returncode == 1
    assert result.stderr.startswith("interlock.yaml:2:3: servers.a.args[1]: ")


def test_check_counts_tokens_and_rejects_weak_tokens_on_public_address(world: CommandLine) -> None:
    tokens = [{"name": "me", "token": "${env:T}"}]
    world.config({}, tokens=tokens)
    assert world.run_here("check", T="short").stdout.endswith("/mcp, 1 token\n")
    world.config({}, tokens=tokens, listen=f"0.0.0.0:{world.port}")
    assert world.run_here("check", T="x" * 16).returncode == 0
    for command in ("check", "up"):
        result = world.run_here(command, T="x" * 15)
        assert result.returncode == 3
        assert 'the token "me" has less than 16 characters' in result.stderr
        assert "xxx" not in result.stderr


def test_add_creates_config_and_keeps_content(world: CommandLine) -> None:
    result = world.run("add", "jira", "http://127.0.0.1:9001/mcp")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "Added jira to interlock.yaml (new file)\n"
    path = world.cwd / "interlock.yaml"
    path.write_text(f"# mine\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    path.chmod(0o640)
    added = world.run_here(
        "add", "files", "--env", "MODE=quiet", "--", "npx", "-y", "a server", "."
    )
    assert added.returncode == 0, added.stderr
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# mine\n")
    assert path.stat().st_mode & 0o777 == 0o640
    servers = load_config(path).servers
    assert servers["jira"].url == "http://127.0.0.1:9001/mcp"
    assert servers["files"].command == "npx"
    assert servers["files"].args == ["-y", "a server", "."]
    assert servers["files"].env == {"MODE": "quiet"}


def test_add_and_import_print_client_config(world: CommandLine) -> None:
    # A client starts programs in a folder of its own, with a PATH of its own.
    line = f"-m interlock stdio -c {world.cwd}/interlock.yaml\n"
    for done in (
        world.run("add", "jira", "http://127.0.0.1:9001/mcp"),
        (client_config(world.cwd / ".mcp.json"), world.run("import", "--write"))[1],  # type: ignore[func-returns-value]
    ):
        assert done.returncode == 0, done.stderr
        assert "Command for a client that only starts programs: /" in done.stderr
        assert line in done.stderr


def test_add_accepts_command_with_own_options(world: CommandLine) -> None:
    result = world.run("add", "files", "npx", "-y", "server", "--root", ".")
    assert result.returncode == 0, result.stderr
    server = load_config(world.cwd / "interlock.yaml").servers["files"]
    assert (server.command, server.args) == ("npx", ["-y", "server", "--root", "."])
    result = world.run_here(
        "add", "db", "-e", "A=b", "-c", "x.yaml", "--", "docker", "run", "-e", "A"
    )
    assert result.returncode == 0, result.stderr
    server = load_config(world.cwd / "x.yaml").servers["db"]
    assert (server.command, server.args) == ("docker", ["run", "-e", "A"])
    assert server.env == {"A": "b"}


def test_add_warns_about_secrets_and_missing_variables(world: CommandLine) -> None:
    result = world.run_here(
        "add",
        "wiki",
        "https://wiki.example.com/mcp",
        "--header",
        "X-Api-Key: abc123",
        "--header",
        "Proxy-Authorization: Bearer abc123",
        "--header",
        "Authorization: Bearer ${env:WIKI_TOKEN}",
    )
    assert result.returncode == 0
    assert (
        "X-Api-Key looks like a secret, and interlock.yaml now contains its plain value"
        in result.stderr
    )
    assert "Write a reference instead: '${env:WIKI_X_API_KEY}'" in result.stderr
    assert "Write a reference instead: 'Bearer ${env:WIKI_PROXY_AUTHORIZATION}'" in result.stderr
    assert "abc123" not in result.stderr
    assert "the environment variable WIKI_TOKEN is not set" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["jira", "http://h/other"], 3, 'there is already a server "jira"'),
        (["x", "http://h/", "more"], 2, "A URL has no arguments"),
        (["x", "http://h/", "--env", "A=b"], 2, "--env is for a command"),
        (["x", "--header", "A: b", "cmd"], 2, "--header is for a URL"),
        (["x", "--env", "A", "cmd"], 2, "--env takes NAME=VALUE"),
        (["x", "ws://h/"], 2, "only http:// and https://"),
        (["x"], 2, "Missing argument"),
        (["x", "--env", "A=b"], 2, "Name a URL, or a command"),
        (["x", "--nonsense", "cmd"], 2, "No such option: --nonsense"),
        (["x", "http://h/", "-H"], 2, "--header needs a value"),
    ],
)
def test_add_rejects_invalid_servers(
    world: CommandLine, arguments: list[str], code: int, message: str
) -> None:
    path = world.config({"jira": "http://127.0.0.1:9001/mcp"})
    before = path.read_text(encoding="utf-8")
    result = world.run_here("add", *arguments)
    assert result.returncode == code
    assert message in result.stderr
    assert path.read_text(encoding="utf-8") == before


def client_config(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "mcpServers": {
            "github": {
                "command": "npx",
                "args": ["-y", "server-github"],
                "env": {"GITHUB_TOKEN": "ghp_0123456789abcdefghijABCDEFGHIJ012345"},
            },
            "web": {"type": "http", "url": "https://example.com/mcp"},
        }
    }
    path.write_text(json.dumps(document), encoding="utf-8")


def test_import_shows_planned_changes(world: CommandLine) -> None:
    client_config(world.cwd / ".mcp.json")
    result = world.run("import")
    assert result.returncode == 0
    assert result.stdout == (
        "servers:\n"
        "  github:\n"
        "    command: npx\n"
        "    args: [-y, server-github]\n"
        "    env:\n"
        "      GITHUB_TOKEN: ${env:GITHUB_TOKEN}\n"
        "  web: https://example.com/mcp\n"
    )
    assert "Claude Code: " in result.stderr
    assert "GITHUB_TOKEN  for servers.github.env.GITHUB_TOKEN" in result.stderr
    assert "ghp_" not in result.stdout + result.stderr
    assert not (world.cwd / "interlock.yaml").exists()


def test_import_writes_servers_and_keeps_existing(world: CommandLine) -> None:
    client_config(world.folder / "other" / "mcp.json")
    world.config({"web": "http://127.0.0.1:1/mine"})
    result = world.run("import", str(world.folder / "other" / "mcp.json"), "--write")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "Added github to interlock.yaml\n"
    assert "interlock.yaml has another server named web, which stays unchanged" in result.stderr
    # Without the client's own entry nobody would reach that one any more.
    assert '"mcpServers" > "github"' in result.stderr
    assert '"mcpServers" > "web"' not in result.stderr
    servers = load_config(world.cwd / "interlock.yaml").servers
    assert servers["web"].url == "http://127.0.0.1:1/mine"
    assert servers["github"].env == {"GITHUB_TOKEN": "${env:GITHUB_TOKEN}"}


def test_import_says_how_to_remove_each_direct_connection(world: CommandLine) -> None:
    """By the client's own command and its scope, or by the file and the key in it."""
    cwd = world.cwd.resolve()

    def entries(*names: str) -> dict[str, object]:
        return {name: {"command": f"{name}-server"} for name in names}

    def write(path: Path, content: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    elsewhere = {"mcpServers": entries("far")}
    projects = {str(cwd): {"mcpServers": entries("local one")}, "/else/where": elsewhere}
    write(world.home / ".claude.json", {"mcpServers": entries("mine"), "projects": projects})
    write(world.cwd / ".mcp.json", {"mcpServers": entries("shared")})
    write(world.home / ".cursor" / "mcp.json", {"mcpServers": entries("cur")})
    write(world.cwd / ".vscode" / "settings.json", {"mcp": {"servers": entries("vs")}})
    write(world.home / ".codex" / "config.toml", '[mcp_servers.dex]\ncommand = "dex-server"\n')
    write(world.cwd / ".codex" / "config.toml", '[mcp_servers.dex2]\ncommand = "dex2-server"\n')
    desktop = world.home / ".config" / "Claude" / "claude_desktop_config.json"
    write(desktop, {"mcpServers": entries("desk", "mine")})
    world.config()
    result = world.run("import", "--write")
    assert result.returncode == 0, result.stderr
    url = f"http://127.0.0.1:{world.port}/mcp"
    lines = [line.strip() for line in result.stderr.splitlines()]
    assert f"claude mcp add --scope user --transport http interlock {url}" in lines
    assert f"codex mcp add interlock --url {url}" in lines
    first = lines.index("claude mcp remove shared --scope project")
    assert set(lines[first:]) == {
        "claude mcp remove shared --scope project",
        "claude mcp remove mine --scope user",
        "claude mcp remove 'local one' --scope local",
        "codex mcp remove dex",
        f"delete [mcp_servers.dex2] in {cwd / '.codex' / 'config.toml'}",
        f'delete "mcpServers" > "cur" in {world.home / ".cursor" / "mcp.json"}',
        f'delete "mcp" > "servers" > "vs" in {cwd / ".vscode" / "settings.json"}',
        f'delete "mcpServers" > "desk" in {desktop}',
        # The same server as Claude Code's: imported once, and still reached by two ways.
        f'delete "mcpServers" > "mine" in {desktop}',
    }
    assert "far" not in load_config(world.cwd / "interlock.yaml").servers
    assert '"far" of the folder /else/where is not imported' in result.stderr


def test_import_does_not_suggest_removing_this_node(world: CommandLine) -> None:
    world.config()
    url = f"http://127.0.0.1:{world.port}/mcp"
    servers = {"interlock": {"type": "http", "url": url}, "old": {"command": "old-server"}}
    (world.cwd / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    for _ in range(2):
        # What was imported before is still reached directly, until it is removed.
        result = world.run_here("import", "--write")
        assert result.returncode == 0, result.stderr
        assert "claude mcp add" not in result.stderr
        assert "claude mcp remove old --scope project" in result.stderr
        assert "claude mcp remove interlock" not in result.stderr


def test_reports_unwritable_config(world: CommandLine) -> None:
    (world.cwd / "file").touch()
    client_config(world.cwd / ".mcp.json")
    for command in (["add", "-c", "file/it.yaml", "x", "http://127.0.0.1:1/mcp"],
                    ["import", "--write", "-c", "file/it.yaml"]):  # fmt: skip
        result = world.run_here(*command)
        assert result.returncode == 3
        assert result.stdout == ""
        assert "Cannot write file/it.yaml: " in result.stderr
        assert "to: --config FILE" in result.stderr


def test_import_without_servers_fails(world: CommandLine) -> None:
    result = world.run_here("import")
    assert result.returncode == 1
    assert "No config of an MCP client was found" in result.stderr
    assert "interlock import FILE" in result.stderr
    assert "interlock add NAME" in result.stderr
    missing = world.run_here("import", "nowhere.json")
    assert missing.returncode == 3
    assert "nowhere.json: there is no such file" in missing.stderr


def test_schema_prints_valid_json_schema(world: CommandLine) -> None:
    result = world.run_here("schema")
    assert result.returncode == 0
    schema = json.loads(result.stdout)
    jsonschema_rs.meta.validate(schema)
    assert jsonschema_rs.is_valid(schema, {"servers": {"a": "http://h/"}})
    assert not jsonschema_rs.is_valid(schema, {"severs": {}})
