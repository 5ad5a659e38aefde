"""`interlock contracts`: the registry from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.contracts.tool_records import (
    ChangeRecord,
    ObservedTool,
    ToolRecordStore,
    create_record,
)
from interlock.primitives.timestamps import format_utc
from tests.contracts.registry.git_repositories import git
from tests.support.command_line import INTERLOCK, CommandLine
from tests.support.timeouts import HANG_TIMEOUT

pytestmark = pytest.mark.feature("contracts")

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "note": {"type": "string"}},
    "required": ["id"],
}


class RegistryHarness:
    """A config with a registry, and the commands about it."""

    def __init__(self, world: CommandLine) -> None:
        self.world = world
        self.registry = world.cwd / "contracts"
        world.config(contracts={"registry": "contracts"}, state_dir=str(world.folder / "state-of"))
        self.file = world.cwd / "order.json"
        self.file.write_text(json.dumps(ORDER))

    def run(self, *arguments: str) -> Any:
        return self.world.run_here("contracts", *arguments)

    def ok(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def publish(self, version: str, *more: str) -> Any:
        return self.run(
            "publish", "order.json", "--name", "Order", "--version", version, "--domain", "shop",
            "-m", f"order {version}", *more,
        )  # fmt: skip


@pytest.fixture
def harness(world: CommandLine) -> RegistryHarness:
    return RegistryHarness(world)


@pytest.mark.spec("ST-4.6.4-1", "ST-4.6.4-2")
def test_publishes_lists_and_logs_contracts(harness: RegistryHarness) -> None:
    first = harness.publish("2.3.0")
    assert first.returncode == 0, first.stderr
    assert first.stdout == "Published Order 2.3.0: shop/Order/2.3.0.schema.json\n"
    assert "with the same document" in harness.publish("2.3.0").stdout
    for version in ("2.3.4", "2.4.0"):
        assert harness.publish(version, "--author", "An Author").returncode == 0
    assert harness.ok("list").splitlines() == [
        f"Order  {version}  json-schema  shop  order.json"
        for version in ("2.3.0", "2.3.4", "2.4.0")
    ]
    listing = harness.json("list", "Ord*", "--version", "2.3.x", "--domain", "shop")
    assert [tool["version"] for tool in listing] == ["2.3.0", "2.3.4"]
    assert harness.run("list", "--protocol", "openapi").stderr == "No matching contract.\n"

    result = harness.run("show", "Order", "--version", "2.3.x")
    assert json.loads(result.stdout) == ORDER
    assert result.stderr.startswith("Order 2.3.4  json-schema  shop\nfrom order.json, by interlock")
    whole = harness.json("show", "Order", "--version", "2.3.x")
    assert (whole["version"], whole["provenance"]["source"]) == ("2.3.4", "order.json")
    missing = harness.run("show", "Order", "--version", "9.x")
    assert missing.returncode == 1
    assert "Available: 2.3.0, 2.3.4, 2.4.0" in missing.stderr

    log = harness.json("log", "Order", "-n", "2")
    assert [(item["author"], item["reason"]) for item in log] == [
        ("An Author", "order 2.4.0"),
        ("An Author", "order 2.3.4"),
    ]
    lines = harness.ok("log").splitlines()
    assert len(lines) == 3
    assert lines[-1].endswith("Order@2.3.0  order 2.3.0")
    assert git(harness.registry, "log", "--format=%s").split("\n")[0] == "order 2.4.0"


def test_publish_rejects_breaking_change_and_missing_file(harness: RegistryHarness) -> None:
    assert harness.publish("1.0.0").returncode == 0
    harness.file.write_text(json.dumps({**ORDER, "required": ["id", "note"]}))
    conflict = harness.publish("1.0.0")
    assert conflict.returncode == 1
    assert "Published versions never change" in conflict.stderr
    breaking = harness.publish("1.1.0")
    assert breaking.returncode == 1
    assert "Breaking changes detected without major version bump" in breaking.stderr
    assert "REQUIRED_FIELD_ADDED" in breaking.stderr
    assert harness.publish("2.0.0").returncode == 0
    assert harness.publish("two").returncode == 2
    assert harness.run("list", "--version", "two").returncode == 2
    missing = harness.run("publish", "nothing.json", "--name", "X", "--version", "1.0.0", "-m", "x")
    assert missing.returncode == 2
    assert "Cannot read nothing.json" in missing.stderr
    assert harness.run("list", "--protocol", "xml").returncode == 2


@pytest.mark.spec("ST-4.6.4-3")
def test_validates_payload(harness: RegistryHarness) -> None:
    assert harness.publish("1.0.0").returncode == 0
    payload = harness.world.cwd / "payload.json"
    payload.write_text('{"id": "a"}')
    assert harness.ok("validate", "Order", "payload.json") == "✓ valid: Order 1.0.0\n"
    payload.write_text('{"note": 7}')
    bad = harness.run("validate", "Order", "payload.json", "--version", "1.x", "--json")
    assert bad.returncode == 1
    assert {error["path"] for error in json.loads(bad.stdout)["errors"]} == {"/note", "/id"}
    result = harness.run("validate", "Order", "payload.json")
    assert "✗ /note: 7 is not of type" in result.stdout
    payload.write_text("{")
    assert "is not JSON" in harness.run("validate", "Order", "payload.json").stderr


@pytest.mark.spec("ST-4.5.4-2")
def test_deprecates_major_version(harness: RegistryHarness) -> None:
    assert harness.publish("1.0.0").returncode == 0
    uri = "https://example.org/order-2"
    past = ("deprecate", "Order", "1", "--migration", uri, "--since", "2020-01-01")
    unsure = harness.run(*past)
    assert unsure.returncode == 2
    assert "--yes" in unsure.stderr
    soon = format_utc(time.time() + 30 * 86_400)
    early = harness.run("deprecate", "Order", "1", "--migration", uri, "--sunset", soon)
    assert early.returncode == 2
    assert "ended" not in harness.ok("list")
    response = harness.json(*past, "--yes")
    assert (response["deprecated_at"], response["sunset_at"]) == (
        "2020-01-01T00:00:00Z",
        "2020-06-29T00:00:00Z",
    )
    over = harness.run("validate", "Order", "order.json", "--version", "1.x")
    assert over.returncode == 1
    assert uri in over.stderr
    assert harness.ok("list").rstrip().endswith("order.json  ended 2020-06-29")
    assert harness.json("list")[0]["deprecation"]["migration_uri"] == uri
    # Whoever looks at it may: its history stays.
    assert uri in harness.run("show", "Order").stderr
    again = harness.ok(
        "deprecate", "Order", "1", "--migration", uri, "--since", "2020-01-01", "--sunset",
        "2999-01-01",
    )  # fmt: skip
    assert again == "Order 1.x is supported until 2999-01-01T00:00:00Z.\n"
    (harness.world.cwd / "good.json").write_text('{"id": "a"}')
    noticed = harness.run("validate", "Order", "good.json")
    assert noticed.returncode == 0
    assert "is supported until 2999" in noticed.stderr


def test_reports_missing_registry(harness: RegistryHarness) -> None:
    for command in (["list"], ["log"], ["show", "Order"], ["serve"], ["status"]):
        result = harness.run(*command, "--registry", "typo")
        assert result.returncode == 3, command
        assert "There is no contract registry in typo" in result.stderr
    assert not (harness.world.cwd / "typo").exists()


def test_file_extension_decides_protocol(harness: RegistryHarness) -> None:
    (harness.world.cwd / "a.proto").write_text('syntax = "proto3";\nmessage A { string x = 1; }\n')
    harness.ok("publish", "a.proto", "--name", "a.proto", "--version", "1.0.0", "-m", "first")
    (harness.world.cwd / "TOOL.md").write_text(
        "---\nname: Find\nid: acme.find\ndescription: Finds.\nversion: 1.2.0\n"
        "inputs: {type: object}\noutputs: {type: object}\napproval: auto\n---\n"
    )
    harness.ok("publish", "TOOL.md", "-m", "a tool")
    listing = [(item["name"], item["version"], item["protocol"]) for item in harness.json("list")]
    assert listing == [("a.proto", "1.0.0", "protobuf"), ("acme.find", "1.2.0", "mcp-tool")]
    assert harness.json("show", "acme.find")["schema"]["inputSchema"] == {"type": "object"}
    nameless = harness.run("publish", "order.json", "--version", "1.0.0", "-m", "x")
    assert nameless.returncode == 2
    assert "Add --name" in nameless.stderr


def test_registry_option_selects_registry(harness: RegistryHarness, tmp_path: Path) -> None:
    other = harness.world.cwd / "other"
    assert harness.publish("1.0.0", "--registry", "other").returncode == 0
    assert other.exists()
    assert not harness.registry.exists()
    assert harness.run("list").stderr == "No matching contract.\n"
    harness.world.config()
    none = harness.run("list")
    assert none.returncode == 2
    assert "No registry is configured" in none.stderr
    (harness.world.cwd / "full").mkdir()
    (harness.world.cwd / "full" / "notes.txt").write_text("mine")
    wrong = harness.publish("1.0.0", "--registry", "full")
    assert wrong.returncode == 3
    assert "is not a Git repository" in wrong.stderr
    git(other, "checkout", "--quiet", "--detach")
    detached = harness.publish("1.1.0", "--registry", "other")
    assert detached.returncode == 3
    assert "git switch" in detached.stderr
    git(other, "switch", "--quiet", "main")
    (other / ".git" / "MERGE_HEAD").touch()
    assert harness.publish("1.1.0", "--registry", "other").returncode == 1


# -- tools that broke


@pytest.fixture
def store(harness: RegistryHarness) -> ToolRecordStore:
    return ToolRecordStore(harness.world.folder / "state-of" / "contracts.db")


def record_break(store: ToolRecordStore, tool: str = "files.read") -> None:
    before = create_record(ObservedTool(tool, "files", "a" * 64, b"{}"), 1_700_000_000.0)
    change = ChangeRecord(
        "REQUIRED_FIELD_ADDED", "/inputSchema/properties/x\x1b[2J", True, "It asks."
    )
    store.write(
        [
            msgspec.structs.replace(
                before, version="2.0.0", digest="b" * 64, definition=b"[]", changes=[change]
            )
        ]
    )


def test_accepts_broken_contract(harness: RegistryHarness, store: ToolRecordStore) -> None:
    assert harness.json("status")["tools"] == []
    record_break(store)
    record_break(store, "files.list")
    result = harness.run("status")
    assert result.returncode == 1
    assert "files.read  1.0.0 → 2.0.0  broken since 2023-11-14T22:13:20Z" in result.stdout
    assert "✗ REQUIRED_FIELD_ADDED /inputSchema/properties/x" in result.stdout
    assert "\x1b" not in result.stdout
    [row] = json.loads(harness.run("status", "files.read", "--json").stdout)["tools"]
    assert row["changes"][0]["reason"] == "REQUIRED_FIELD_ADDED"
    assert (row["from_version"], row["to_version"], row["held"]) == ("1.0.0", "2.0.0", False)
    outcome = harness.run("accept", "files.read")
    assert outcome.returncode == 2
    assert "add --yes" in outcome.stderr
    assert harness.run("accept").returncode == 2
    unknown = harness.run("accept", "files.nothing", "--yes")
    assert unknown.returncode == 1
    assert "Accepted files.read 2.0.0" in harness.ok("accept", "files.read", "--yes")
    again = harness.run("accept", "files.read", "--yes")
    assert (again.returncode, again.stdout) == (0, "")
    assert "Accepted files.list" in harness.ok("accept", "--all", "-y")
    assert harness.run("accept", "--all").stderr == "No tool has a breaking change.\n"
    accepted = store.get("files.read")
    assert accepted is not None
    assert not accepted.is_broken
    assert accepted.accepted_by
    store.close()


def test_status_reports_registry_problems(harness: RegistryHarness, store: ToolRecordStore) -> None:
    store.close()
    assert harness.publish("1.0.0").returncode == 0
    registry = harness.json("status")["registry"]
    assert registry["metrics"]["schema_count"] == 1
    assert registry["problems"] == []
    (harness.registry / "shop" / "Order" / "1.0.0.schema.json").write_text("{}")
    assert "edited by hand and not committed" in harness.run("status").stderr
    (harness.registry / ".git" / "HEAD").write_bytes(b"\xff")
    assert "Cannot read" in harness.run("status").stderr


def test_status_reads_registry_without_node(harness: RegistryHarness) -> None:
    assert harness.publish("1.0.0", "--registry", "other").returncode == 0
    result = harness.run("status", "--registry", "other")
    assert result.returncode == 0
    assert "Registry other: 1 contract, at " in result.stderr


def test_status_without_recorded_tools_fails(harness: RegistryHarness) -> None:
    for command in (["status"], ["accept", "--all"]):
        result = harness.run(*command)
        assert result.returncode == 4
        assert "has recorded no tools" in result.stderr


def test_watch_prints_breaking_changes(harness: RegistryHarness, store: ToolRecordStore) -> None:
    record_break(store)
    process = start_command(harness, "watch", "--json")
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["tool"], first["to_version"]) == ("files.read", "2.0.0")
        response = store.get("files.read")
        assert response is not None
        assert store.accept(response, "somebody")
        assert json.loads(process.stdout.readline()) == {"tool": "files.read", "resolved": True}
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_TIMEOUT) == 130
    finally:
        process.kill()
        process.communicate()
        store.close()


def start_command(harness: RegistryHarness, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*INTERLOCK, "contracts", *arguments],
        cwd=harness.world.cwd,
        env=harness.world.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# -- served


def test_serves_registry(harness: RegistryHarness) -> None:
    assert harness.publish("2.3.0").returncode == 0
    process = start_command(harness, "serve", "--listen", "0")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().rsplit(" ", 1)[-1].strip()
        with urllib.request.urlopen(f"{url}/Order?version=2.3.x", timeout=HANG_TIMEOUT) as answer:
            assert json.load(answer)["version"] == "2.3.0"
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_TIMEOUT) == 0
    finally:
        process.kill()
        process.communicate()


def test_serving_on_public_address_requires_tokens(harness: RegistryHarness) -> None:
    result = harness.run("serve", "--listen", "0.0.0.0:0")
    assert result.returncode == 3
    assert "there is no token" in result.stderr


def test_every_command_has_help(harness: RegistryHarness) -> None:
    response = harness.ok("--help")
    for command in (
        "list", "show", "log", "diff", "check", "build", "publish", "validate", "deprecate",
        "status", "watch", "accept", "serve",
    ):  # fmt: skip
        assert command in response
        assert "Usage" in harness.ok(command, "--help")
