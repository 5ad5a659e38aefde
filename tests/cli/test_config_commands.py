"""`check`, `add`, `import` and `schema`: the config, without a node."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest

from interlock.core.config import load_config
from tests.support.command_line import CommandLine


def test_check_says_what_is_there(world: CommandLine) -> None:
    world.config(
        {
            "jira": "http://127.0.0.1:9001/mcp",
            "files": {"command": "files-server", "args": ["--token", "${env:FILES_TOKEN}"]},
            "off": {"url": "http://127.0.0.1:1/", "enabled": False},
        }
    )
    done = world.run_here("check", FILES_TOKEN="secret")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"interlock.yaml: 2 servers (1 more not enabled), listening on 127.0.0.1:{world.port}/mcp\n"
        "  jira   http://127.0.0.1:9001/mcp\n"
        "  files  files-server --token '${env:FILES_TOKEN}'\n"
        "  unannotated: infer. "
    )


def test_check_finds_every_problem(world: CommandLine) -> None:
    (world.cwd / "interlock.yaml").write_text(
        "lisen: 127.0.0.1:1\nservers:\n  a:\n    url: ftp://x\n", encoding="utf-8"
    )
    done = world.run("check")
    assert done.returncode == 3
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("interlock.yaml:1:1: ")
    assert "listen" in first
    assert second.startswith("interlock.yaml:4:5: servers.a.url: ")
    as_json = world.run_here("check", "--json")
    assert as_json.returncode == 3
    told = json.loads(as_json.stdout)
    assert told["ok"] is False
    assert [(one["line"], one["column"]) for one in told["problems"]] == [(1, 1), (4, 5)]


@pytest.mark.feature("drivers")
def test_check_reports_all_kinds_of_problems_at_once(world: CommandLine) -> None:
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
    done = world.run_here("check", T="short")
    assert done.returncode == 3
    for words in (
        "interlock.yaml:1:1: lisen: unknown key",
        "servers.a.url: ",
        'tokens[0].token: the token "me" has less than 16 characters',
        "servers.b.headers.X: the environment variable MISSING_ONE is not set",
        "DRIVER.md",
    ):
        assert done.stderr.count(words) == 1, (words, done.stderr)
    told = json.loads(world.run_here("check", "--json", T="short").stdout)
    assert told["ok"] is False
    assert len(told["problems"]) == len(done.stderr.splitlines())


def test_check_reports_a_weak_token_beside_a_missing_reference(world: CommandLine) -> None:
    server = {"url": "http://h/", "headers": {"X": "${env:MISSING_ONE}"}}
    tokens = [{"name": "me", "token": "${env:T}"}]
    world.config({"a": server}, tokens=tokens, listen=f"0.0.0.0:{world.port}")
    done = world.run_here("check", T="short")
    assert done.returncode == 3
    assert 'the token "me" has less than 16 characters' in done.stderr
    assert "MISSING_ONE is not set" in done.stderr
    assert done.stderr.count("16 characters") == 1


def test_check_reports_only_what_is_wrong_with_a_file_that_is_no_yaml(world: CommandLine) -> None:
    (world.cwd / "interlock.yaml").write_text("servers: [\n", encoding="utf-8")
    done = world.run_here("check")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (3, "", 1)


def test_check_finds_references_that_lead_nowhere(world: CommandLine) -> None:
    world.config(
        {
            "a": {"url": "http://h/", "headers": {"X": "${env:MISSING_ONE} ${env:FOUND}"}},
            "b": {"command": "x", "env": {"KEY": "${file:no/such/file}"}},
        }
    )
    done = world.run_here("check", FOUND="here")
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    where = "interlock.yaml:7:9: servers.a.headers.X: "
    assert first.startswith(f"{where}the environment variable MISSING_ONE is not set")
    where = "interlock.yaml:13:9: servers.b.env.KEY: "
    assert second.startswith(f"{where}the secret file no/such/file does not exist")
    told = json.loads(world.run_here("check", "--json", FOUND="here").stdout)
    assert [one["path"] for one in told["problems"]] == ["servers.a.headers.X", "servers.b.env.KEY"]


def test_what_a_short_form_refers_to_has_the_place_of_its_server(world: CommandLine) -> None:
    path = world.cwd / "interlock.yaml"
    path.write_text("servers:\n  a: run --token ${env:MISSING_ONE}\n", encoding="utf-8")
    done = world.run_here("check")
    assert done.returncode == 1
    assert done.stderr.startswith("interlock.yaml:2:3: servers.a.args[1]: ")


def test_tokens_are_counted_and_weighed(world: CommandLine) -> None:
    tokens = [{"name": "me", "token": "${env:T}"}]
    world.config({}, tokens=tokens)
    assert world.run_here("check", T="short").stdout.endswith("/mcp, 1 token\n")
    world.config({}, tokens=tokens, listen=f"0.0.0.0:{world.port}")
    assert world.run_here("check", T="x" * 16).returncode == 0
    for command in ("check", "up"):
        done = world.run_here(command, T="x" * 15)
        assert done.returncode == 3
        assert 'the token "me" has less than 16 characters' in done.stderr
        assert "xxx" not in done.stderr


def test_add_makes_the_file_and_keeps_what_is_there(world: CommandLine) -> None:
    made = world.run("add", "jira", "http://127.0.0.1:9001/mcp")
    assert made.returncode == 0, made.stderr
    assert made.stdout == "Added jira to interlock.yaml (new file)\n"
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


def test_what_was_written_can_be_given_to_a_client(world: CommandLine) -> None:
    # A client starts programs in a folder of its own, with a PATH of its own.
    line = f"-m interlock stdio -c {world.cwd}/interlock.yaml\n"
    for done in (
        world.run("add", "jira", "http://127.0.0.1:9001/mcp"),
        (client_config(world.cwd / ".mcp.json"), world.run("import", "--write"))[1],  # type: ignore[func-returns-value]
    ):
        assert done.returncode == 0, done.stderr
        assert "Command for a client that only starts programs: /" in done.stderr
        assert line in done.stderr


def test_add_takes_a_command_with_options_of_its_own(world: CommandLine) -> None:
    done = world.run("add", "files", "npx", "-y", "server", "--root", ".")
    assert done.returncode == 0, done.stderr
    server = load_config(world.cwd / "interlock.yaml").servers["files"]
    assert (server.command, server.args) == ("npx", ["-y", "server", "--root", "."])
    done = world.run_here(
        "add", "db", "-e", "A=b", "-c", "x.yaml", "--", "docker", "run", "-e", "A"
    )
    assert done.returncode == 0, done.stderr
    server = load_config(world.cwd / "x.yaml").servers["db"]
    assert (server.command, server.args) == ("docker", ["run", "-e", "A"])
    assert server.env == {"A": "b"}


def test_add_warns_of_secrets_and_of_what_is_missing(world: CommandLine) -> None:
    done = world.run_here(
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
    assert done.returncode == 0
    assert (
        "X-Api-Key looks like a secret, and interlock.yaml now contains its plain value"
        in done.stderr
    )
    assert "Write a reference instead: '${env:WIKI_X_API_KEY}'" in done.stderr
    assert "Write a reference instead: 'Bearer ${env:WIKI_PROXY_AUTHORIZATION}'" in done.stderr
    assert "abc123" not in done.stderr
    assert "the environment variable WIKI_TOKEN is not set" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
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
def test_add_refuses_with_a_sentence(
    world: CommandLine, arguments: list[str], code: int, said: str
) -> None:
    path = world.config({"jira": "http://127.0.0.1:9001/mcp"})
    before = path.read_text(encoding="utf-8")
    done = world.run_here("add", *arguments)
    assert done.returncode == code
    assert said in done.stderr
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


def test_import_shows_what_it_would_take_over(world: CommandLine) -> None:
    client_config(world.cwd / ".mcp.json")
    done = world.run("import")
    assert done.returncode == 0
    assert done.stdout == (
        "servers:\n"
        "  github:\n"
        "    command: npx\n"
        "    args: [-y, server-github]\n"
        "    env:\n"
        "      GITHUB_TOKEN: ${env:GITHUB_TOKEN}\n"
        "  web: https://example.com/mcp\n"
    )
    assert "Claude Code: " in done.stderr
    assert "GITHUB_TOKEN  for servers.github.env.GITHUB_TOKEN" in done.stderr
    assert "ghp_" not in done.stdout + done.stderr
    assert not (world.cwd / "interlock.yaml").exists()


def test_import_writes_and_leaves_what_is_there(world: CommandLine) -> None:
    client_config(world.folder / "other" / "mcp.json")
    world.config({"web": "http://127.0.0.1:1/mine"})
    done = world.run("import", str(world.folder / "other" / "mcp.json"), "--write")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Added github to interlock.yaml\n"
    assert "interlock.yaml has another server named web, which stays unchanged" in done.stderr
    # Without the client's own entry nobody would reach that one any more.
    assert '"mcpServers" > "github"' in done.stderr
    assert '"mcpServers" > "web"' not in done.stderr
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
    done = world.run("import", "--write")
    assert done.returncode == 0, done.stderr
    url = f"http://127.0.0.1:{world.port}/mcp"
    lines = [line.strip() for line in done.stderr.splitlines()]
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
    assert '"far" of the folder /else/where is left out' in done.stderr


def test_import_asks_for_no_second_connection_to_this_node(world: CommandLine) -> None:
    world.config()
    url = f"http://127.0.0.1:{world.port}/mcp"
    servers = {"interlock": {"type": "http", "url": url}, "old": {"command": "old-server"}}
    (world.cwd / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    for _ in range(2):
        # What was imported before is still reached directly, until it is removed.
        done = world.run_here("import", "--write")
        assert done.returncode == 0, done.stderr
        assert "claude mcp add" not in done.stderr
        assert "claude mcp remove old --scope project" in done.stderr
        assert "claude mcp remove interlock" not in done.stderr


def test_a_config_that_cannot_be_written_is_told(world: CommandLine) -> None:
    (world.cwd / "file").touch()
    client_config(world.cwd / ".mcp.json")
    for command in (["add", "-c", "file/it.yaml", "x", "http://127.0.0.1:1/mcp"],
                    ["import", "--write", "-c", "file/it.yaml"]):  # fmt: skip
        done = world.run_here(*command)
        assert done.returncode == 3
        assert done.stdout == ""
        assert "Cannot write file/it.yaml: " in done.stderr
        assert "to: --config FILE" in done.stderr


def test_import_without_anything_to_import(world: CommandLine) -> None:
    done = world.run_here("import")
    assert done.returncode == 1
    assert "No config of an MCP client was found" in done.stderr
    assert "interlock import FILE" in done.stderr
    assert "interlock add NAME" in done.stderr
    missing = world.run_here("import", "nowhere.json")
    assert missing.returncode == 3
    assert "nowhere.json: there is no such file" in missing.stderr


def test_the_schema_is_one(world: CommandLine) -> None:
    done = world.run_here("schema")
    assert done.returncode == 0
    schema = json.loads(done.stdout)
    jsonschema_rs.meta.validate(schema)
    assert jsonschema_rs.is_valid(schema, {"servers": {"a": "http://h/"}})
    assert not jsonschema_rs.is_valid(schema, {"severs": {}})
