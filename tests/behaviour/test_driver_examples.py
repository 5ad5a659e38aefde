"""The drivers of `examples/drivers`: AIP-32's own example and its four patterns, read and served.
Public servers for real are in `test_driver_examples_npm`."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.core.config import Config, load_config
from interlock.drivers.commands.workspace import project_of
from interlock.drivers.installation import MARKER, driver_folder
from interlock.drivers.launch import server_command, server_config
from interlock.drivers.paths import installed_drivers_path
from interlock.drivers.sandbox.remote import check_remote
from interlock.errors import InterlockError
from interlock.manifests.model import DriverManifest
from interlock.manifests.workspace import Workspace, load_workspace
from tests.behaviour.driver_examples import (
    EXAMPLES,
    PATTERNS,
    call,
    confirm_call,
    copy_examples,
    names,
    result,
)
from tests.cli.drivers_workspace import STAND_IN
from tests.support.command_line import CommandLine

PUBLIC = {
    "filesystem-mcp", "memory-mcp", "everything-mcp", "sequential-thinking-mcp", "git-mcp",
    "time-mcp", "clock-mcp", "fetch-mcp", "duckduckgo-mcp", "exa-mcp", "tavily-mcp",
    "brave-search-mcp", "context7-mcp", "playwright-mcp", "github-mcp", "github-docker-mcp",
    "postgres-mcp",
}  # fmt: skip

pytestmark = [pytest.mark.feature("drivers"), pytest.mark.timeout(1800)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path)
    # Where drivers are installed.
    one.environ["XDG_DATA_HOME"] = str(tmp_path / "data")
    try:
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def patterns() -> Workspace:
    return load_workspace(PATTERNS)


def driver(workspace: Workspace, id: str) -> DriverManifest:
    return workspace.drivers[f"{id}@1"]


# -- the files


def test_all_examples_are_valid() -> None:
    for folder in (EXAMPLES, PATTERNS):
        project = project_of(load_config(folder / "interlock.yaml"), folder)
        assert project.workspace.problems == {}
    assert {driver.partition("@")[0] for driver in load_workspace(EXAMPLES).drivers} == PUBLIC


def test_readme_names_every_driver_and_server() -> None:
    text = (EXAMPLES / "README.md").read_text()
    for manifest in load_workspace(EXAMPLES).drivers.values():
        server = manifest.server
        assert server is not None
        named = server.package or server.image or server.path or server.url.split("/")[2]
        assert f"| `{manifest.id}` | `{named}` |" in text


def test_readme_commands_work(world: CommandLine) -> None:
    """Every command of it that installs nothing and asks nobody, as it stands there."""
    text = (EXAMPLES / "README.md").read_text()
    first, _, second = text.partition("## The patterns of AIP-32")
    shutil.copytree(EXAMPLES, world.cwd, dirs_exist_ok=True)
    lines = 0
    for part, folder in ((first, world.cwd), (second, world.cwd / "patterns")):
        for line in part.splitlines():
            words = shlex.split(line) if line.startswith("    interlock drivers ") else []
            if words[2:3] not in (["check"], ["list"], ["explain"], ["show"]) or "--live" in words:
                continue
            lines += 1
            config = str(folder / "interlock.yaml")
            outcome = world.run_here(*words[1:], "-c", config)
            # Without anything installed no driver can serve a call: that is what is explained.
            expected = 1 if words[2] == "explain" else 0
            assert outcome.returncode == expected, f"{line}: {outcome.stdout}{outcome.stderr}"
            assert "Traceback" not in outcome.stderr
    assert lines == 9


def test_examples_pass_driver_check(world: CommandLine) -> None:
    for folder, warnings in (
        (EXAMPLES, {"any_egress"}),
        (PATTERNS, {"hard_coded_path", "refresh_without_hook"}),
    ):
        outcome = world.run_here("drivers", "check", "--json", "-c", str(folder / "interlock.yaml"))
        assert outcome.returncode == 0, outcome.stdout
        data = json.loads(outcome.stdout)
        assert {warning["code"] for warning in data["warnings"]} == warnings


@pytest.mark.spec("DR-32.motive-1")
def test_patterns_cover_all_server_kinds(patterns: Workspace) -> None:
    """npm without auth, docker with a secret, remote with a key, npm with OAuth: one reader, and
    one function from what was read to what is started or reached."""
    assert patterns.problems == {}
    kinds = {
        driver.id: (driver.server.kind, driver.transport)
        for driver in patterns.drivers.values()
        if driver.server
    }
    assert kinds == {
        "filesystem-mcp": ("npm", "stdio"),
        "postgres-mcp": ("docker", "stdio"),
        "acme-mcp": ("remote", "sse"),
        "github-mcp": ("npm", "stdio"),
    }
    made = {
        driver.id: server_config(driver, workspace=PATTERNS, installed=None)
        for driver in patterns.drivers.values()
    }
    assert made["filesystem-mcp"].command == "npx"
    assert made["filesystem-mcp"].args == [
        "--no-install", "@modelcontextprotocol/server-filesystem", "/workspace",
    ]  # fmt: skip
    assert made["postgres-mcp"].command == "docker"
    assert made["acme-mcp"].url == "https://mcp.acme.com/v1"
    assert made["github-mcp"].env == {
        "GITHUB_PERSONAL_ACCESS_TOKEN": "${secrets.GITHUB_OAUTH_ACCESS_TOKEN}"
    }


def test_filesystem_example_matches_aip_32(patterns: Workspace) -> None:
    one = driver(patterns, "filesystem-mcp")
    assert one.protocol_version == "2025-03-26"
    check = one.version_check
    assert check is not None
    assert (check.parse, check.range) == (r"v(\S+)", ">=0.5")
    assert (one.egress, one.region, one.policy_tags) == (
        (), ("self-hosted",), ("self-hosted", "pii-safe"),
    )  # fmt: skip
    bound = [(e.mcp.tool_name, e.mcp.result_extract) for e in one.implements if e.mcp]
    assert bound == [
        ("read_file", "$.contents"),
        ("write_file", "$"),
        ("list_directory", "$.entries"),
    ]
    [resource] = one.resources
    assert (resource.uri_template, resource.ref_kind_id) == ("file:///{path}", "mcp_filesystem")
    assert [(step.method, step.settings["global"]) for step in one.install] == [("npm", False)]


def test_container_command_is_shown(patterns: Workspace, world: CommandLine) -> None:
    one = driver(patterns, "postgres-mcp")
    assert one.auth is not None
    assert one.auth.expiry_detect == ("exception:ConnectionRefused",)
    entries = {e.mcp.tool_name: e.mcp for e in one.implements if e.mcp}
    assert entries["query"].argument_mapping == {"sql": "query"}
    assert entries["query"].result_extract == "$.rows"
    assert entries["list_tables"].result_extract == "$.tables"
    command = [
        "docker", "run", "-i", "--rm", "--network", "none", "-e", "DATABASE_URL",
        "modelcontextprotocol/server-postgres:latest",
    ]  # fmt: skip
    assert server_command(one, workspace=PATTERNS, installed=None) == command
    config = str(PATTERNS / "interlock.yaml")
    outcome = world.run_here("drivers", "show", "postgres-mcp", "-c", config, PATH="")
    assert shlex.join(command) in outcome.stdout


@pytest.mark.spec("DR-32.example-2", "DR-32.principles-3")
def test_container_contracts_are_served(world: CommandLine) -> None:
    """With an engine that runs the stand-in, whatever the image is called."""
    copy_examples(world, PATTERNS)
    notes, engine = world.folder / "notes", world.folder / "engine"
    engine.mkdir()
    executable(
        engine / "docker",
        f'echo "$@" >> {world.folder}/docker\n[ "$1" = run ] || exit 0\n'
        f"STAND_IN_NOTES={notes} exec {sys.executable} {STAND_IN}",
    )
    path = os.pathsep.join([str(engine), world.environ["PATH"]])
    address = "postgres://reader:hush-hush@db/main"
    node = world.up(PATH=path, POSTGRES_DATABASE_URL=address)
    assert result(world, "db-query", "sql=SELECT 1") == {"rows": [{"sum": 1}]}
    assert result(world, "db-list-tables") == {"tables": ["a", "b"]}
    assert [json.loads(line) for line in notes.read_text().splitlines()] == [
        {"tool": "query", "arguments": {"query": "SELECT 1"}},
        {"tool": "list_tables", "arguments": {"secret": len(address)}},
    ]
    started = (world.folder / "docker").read_text()
    assert (
        "run -i --rm --network none -e DATABASE_URL modelcontextprotocol/server-postgres:latest"
        in started
    )
    assert "hush" not in started
    node.end()


def executable(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.spec("DR-32.example-3")
def test_remote_server_is_reached_at_its_host_only(patterns: Workspace) -> None:
    one = driver(patterns, "acme-mcp")
    assert one.server is not None
    assert one.auth is not None
    assert one.auth.expiry_detect == ("http_status:401",)
    assert one.egress == ("mcp.acme.com",)
    options = one.connection
    assert (options.timeout_ms, options.max_retries, options.keepalive) == (30000, 3, True)
    costs = [e.cost.units_per_call for e in one.implements if e.cost]
    assert costs == [0.5, 1]
    headers = server_config(one, workspace=PATTERNS, installed=None).headers
    assert headers == {"Authorization": "Bearer ${secrets.ACME_API_KEY}"}
    check_remote(one.server.url, one.egress)
    with pytest.raises(InterlockError):
        check_remote("https://other.acme.com/v1", one.egress)
    assert_mapping(one, {"query": "x"}, "search", {"q": "x"}, {"hits": []}, {"hits": []})
    assert_mapping(
        one, {"id": "7"}, "get_document", {"doc_id": "7"}, {"content": "t"}, {"content": "t"}
    )


@pytest.mark.spec("DR-32.example-4")
def test_oauth_pattern_passes_check(patterns: Workspace, world: CommandLine) -> None:
    one = driver(patterns, "github-mcp")
    assert one.auth is not None
    assert one.server is not None
    login, refresh = one.auth.login, one.auth.refresh
    assert login is not None
    assert login.requires_callback_url
    assert login.completes_when is not None
    assert login.completes_when.http is not None
    probe = login.completes_when.http
    assert (probe.method, probe.expect_status) == ("GET", 200)
    assert refresh is not None
    assert (refresh.cmd, refresh.every) == ("", 3600.0)
    outcome = world.run_here("drivers", "check", "-c", str(PATTERNS / "interlock.yaml"))
    assert "the sign-in will expire" in outcome.stderr
    # With the hook there is nothing to warn of.
    folder = world.cwd / "patterns"
    shutil.copytree(PATTERNS, folder)
    (folder / ".drivers/github-mcp/driver.py").write_text("# its hooks\n")
    outcome = world.run_here("drivers", "check", "patterns")
    assert outcome.returncode == 0
    assert "the sign-in will expire" not in outcome.stderr


def assert_mapping(
    manifest: DriverManifest,
    inputs: dict[str, Any],
    tool: str,
    arguments: dict[str, Any],
    answer: dict[str, Any],
    value: Any,
) -> None:
    """An input reaches the tool under its names, and its answer comes back under the contract's."""
    from interlock.drivers.translation import BoundEntry

    found = load_workspace(PATTERNS).bindings[manifest.key]
    one = next(b for b in found if b.entry.mcp and b.entry.mcp.tool_name == tool)
    bound = BoundEntry(one.contract, one.entry)
    bound.shape.check_inputs(inputs)
    assert bound.arguments(inputs) == arguments
    assert bound.extract_value({"structuredContent": answer, "content": []}).value == value


# -- a node


def stand_in_for_npm(
    world: CommandLine, config: Config, manifest: DriverManifest, notes: Path
) -> None:
    """Put the stand-in where npm would have put the package of a driver."""
    assert manifest.server is not None
    folder = driver_folder(installed_drivers_path(config, world.environ, world.cwd), manifest)
    package = folder / "node_modules" / manifest.server.package
    package.mkdir(parents=True)
    own = manifest.server.package.rpartition("/")[2]
    (package / "package.json").write_text(json.dumps({"version": "0.6.2", "bin": own}))
    program = folder / "node_modules" / ".bin" / own
    program.parent.mkdir()
    executable(program, f'STAND_IN_NOTES={notes} exec {sys.executable} {STAND_IN} "$@"')
    marker = {
        "method": "npm",
        "wanted": hashlib.sha256(msgspec.json.encode(manifest.install)).hexdigest(),
        "at": time.time(),
        "settings": {},
    }
    (folder / MARKER).write_text(json.dumps(marker))


@pytest.mark.spec("DR-32.example-1", "DR-32.principles-2", "DR-32.principles-3", "DR-32.meta-1")
def test_aip_32_example_is_served(world: CommandLine) -> None:
    """The driver as it stands in AIP-32, its package stood in for by a server that answers as the
    one did for which AIP-32 was written."""
    output = (EXAMPLES.parents[1] / "docs" / "drivers.md").read_text()
    assert all(f"AIP-{number}" in output for number in (32, 30, 14, 16, 19))
    config = load_config(copy_examples(world, PATTERNS))
    one = driver(load_workspace(world.cwd), "filesystem-mcp")
    assert [path.name for path in one.folder.iterdir()] == ["DRIVER.md"]
    notes = world.folder / "notes"
    stand_in_for_npm(world, config, one, notes)
    node = world.up()
    assert {"fs-read", "fs-write", "fs-list"} <= names(node)
    target = world.folder / "work"
    target.mkdir()
    (target / "a.txt").write_text("Hello.")
    read = result(world, "fs-read", f"path={target}/a.txt")
    assert read == {"contents": "Hello."}
    assert confirm_call(world, "fs-write", f"path={target}/b.txt", "content=new") == {"written": 3}
    assert (target / "b.txt").read_text() == "new"
    assert result(world, "fs-list", f"path={target}") == {"entries": ["a.txt", "b.txt"]}
    asked = [json.loads(line) for line in notes.read_text().splitlines()]
    assert asked == [
        {"tool": "read_file", "arguments": {"path": f"{target}/a.txt"}},
        {"tool": "write_file", "arguments": {"path": f"{target}/b.txt", "content": "new"}},
        {"tool": "list_directory", "arguments": {"path": str(target)}},
    ]
    [told] = [row for row in node.status()["drivers"] if row["id"] == "filesystem-mcp"]
    assert (told["state"], told["revision"]) == ("running", "2025-03-26")
    # What the contract does not take never reaches the server.
    assert call(world, "fs-read", "path:=1").returncode == 1
    assert len(notes.read_text().splitlines()) == 3
    node.end()
