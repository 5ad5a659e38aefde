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


class Desk:
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
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def publish(self, version: str, *more: str) -> Any:
        return self.run(
            "publish", "order.json", "--name", "Order", "--version", version, "--domain", "shop",
            "-m", f"order {version}", *more,
        )  # fmt: skip


@pytest.fixture
def desk(world: CommandLine) -> Desk:
    return Desk(world)


@pytest.mark.spec("ST-4.6.4-1", "ST-4.6.4-2")
def test_from_publishing_to_the_log(desk: Desk) -> None:
    first = desk.publish("2.3.0")
    assert first.returncode == 0, first.stderr
    assert first.stdout == "Published Order 2.3.0: shop/Order/2.3.0.schema.json\n"
    assert "with the same document" in desk.publish("2.3.0").stdout
    for version in ("2.3.4", "2.4.0"):
        assert desk.publish(version, "--author", "An Author").returncode == 0
    assert desk.ok("list").splitlines() == [
        f"Order  {version}  json-schema  shop  order.json"
        for version in ("2.3.0", "2.3.4", "2.4.0")
    ]
    listed = desk.json("list", "Ord*", "--version", "2.3.x", "--domain", "shop")
    assert [one["version"] for one in listed] == ["2.3.0", "2.3.4"]
    assert desk.run("list", "--protocol", "openapi").stderr == "no matching contract.\n"

    shown = desk.run("show", "Order", "--version", "2.3.x")
    assert json.loads(shown.stdout) == ORDER
    assert shown.stderr.startswith("Order 2.3.4  json-schema  shop\nfrom order.json, by interlock")
    whole = desk.json("show", "Order", "--version", "2.3.x")
    assert (whole["version"], whole["provenance"]["source"]) == ("2.3.4", "order.json")
    missing = desk.run("show", "Order", "--version", "9.x")
    assert missing.returncode == 1
    assert "Available: 2.3.0, 2.3.4, 2.4.0" in missing.stderr

    log = desk.json("log", "Order", "-n", "2")
    assert [(one["author"], one["reason"]) for one in log] == [
        ("An Author", "order 2.4.0"),
        ("An Author", "order 2.3.4"),
    ]
    lines = desk.ok("log").splitlines()
    assert len(lines) == 3
    assert lines[-1].endswith("Order@2.3.0  order 2.3.0")
    assert git(desk.registry, "log", "--format=%s").split("\n")[0] == "order 2.4.0"


def test_what_is_refused(desk: Desk) -> None:
    assert desk.publish("1.0.0").returncode == 0
    desk.file.write_text(json.dumps({**ORDER, "required": ["id", "note"]}))
    conflict = desk.publish("1.0.0")
    assert conflict.returncode == 1
    assert "Published versions never change" in conflict.stderr
    broken = desk.publish("1.1.0")
    assert broken.returncode == 1
    assert "Breaking changes detected without major version bump" in broken.stderr
    assert "REQUIRED_FIELD_ADDED" in broken.stderr
    assert desk.publish("2.0.0").returncode == 0
    assert desk.publish("two").returncode == 2
    assert desk.run("list", "--version", "two").returncode == 2
    missing = desk.run("publish", "nothing.json", "--name", "X", "--version", "1.0.0", "-m", "x")
    assert missing.returncode == 2
    assert "Cannot read nothing.json" in missing.stderr
    assert desk.run("list", "--protocol", "xml").returncode == 2


@pytest.mark.spec("ST-4.6.4-3")
def test_validating(desk: Desk) -> None:
    assert desk.publish("1.0.0").returncode == 0
    payload = desk.world.cwd / "payload.json"
    payload.write_text('{"id": "a"}')
    assert desk.ok("validate", "Order", "payload.json") == "✓ valid: Order 1.0.0\n"
    payload.write_text('{"note": 7}')
    bad = desk.run("validate", "Order", "payload.json", "--version", "1.x", "--json")
    assert bad.returncode == 1
    assert {one["path"] for one in json.loads(bad.stdout)["errors"]} == {"/note", "/id"}
    told = desk.run("validate", "Order", "payload.json")
    assert "✗ /note: 7 is not of type" in told.stdout
    payload.write_text("{")
    assert "is not JSON" in desk.run("validate", "Order", "payload.json").stderr


@pytest.mark.spec("ST-4.5.4-2")
def test_ending_a_major(desk: Desk) -> None:
    assert desk.publish("1.0.0").returncode == 0
    uri = "https://example.org/order-2"
    past = ("deprecate", "Order", "1", "--migration", uri, "--since", "2020-01-01")
    unsure = desk.run(*past)
    assert unsure.returncode == 2
    assert "--yes" in unsure.stderr
    soon = format_utc(time.time() + 30 * 86_400)
    early = desk.run("deprecate", "Order", "1", "--migration", uri, "--sunset", soon)
    assert early.returncode == 2
    assert "ended" not in desk.ok("list")
    told = desk.json(*past, "--yes")
    assert (told["deprecated_at"], told["sunset_at"]) == (
        "2020-01-01T00:00:00Z",
        "2020-06-29T00:00:00Z",
    )
    over = desk.run("validate", "Order", "order.json", "--version", "1.x")
    assert over.returncode == 1
    assert uri in over.stderr
    assert desk.ok("list").rstrip().endswith("order.json  ended 2020-06-29")
    assert desk.json("list")[0]["deprecation"]["migration_uri"] == uri
    # Whoever looks at it may: its history stays.
    assert uri in desk.run("show", "Order").stderr
    again = desk.ok(
        "deprecate", "Order", "1", "--migration", uri, "--since", "2020-01-01", "--sunset",
        "2999-01-01",
    )  # fmt: skip
    assert again == "Order 1.x is supported until 2999-01-01T00:00:00Z.\n"
    (desk.world.cwd / "good.json").write_text('{"id": "a"}')
    noticed = desk.run("validate", "Order", "good.json")
    assert noticed.returncode == 0
    assert "is supported until 2999" in noticed.stderr


def test_a_registry_that_is_not_there(desk: Desk) -> None:
    for command in (["list"], ["log"], ["show", "Order"], ["serve"], ["status"]):
        told = desk.run(*command, "--registry", "typo")
        assert told.returncode == 3, command
        assert "There is no contract registry in typo" in told.stderr
    assert not (desk.world.cwd / "typo").exists()


def test_the_ending_of_a_file_says_what_it_is(desk: Desk) -> None:
    (desk.world.cwd / "a.proto").write_text('syntax = "proto3";\nmessage A { string x = 1; }\n')
    desk.ok("publish", "a.proto", "--name", "a.proto", "--version", "1.0.0", "-m", "first")
    (desk.world.cwd / "TOOL.md").write_text(
        "---\nname: Find\nid: acme.find\ndescription: Finds.\nversion: 1.2.0\n"
        "inputs: {type: object}\noutputs: {type: object}\napproval: auto\n---\n"
    )
    desk.ok("publish", "TOOL.md", "-m", "a tool")
    listed = [(one["name"], one["version"], one["protocol"]) for one in desk.json("list")]
    assert listed == [("a.proto", "1.0.0", "protobuf"), ("acme.find", "1.2.0", "mcp-tool")]
    assert desk.json("show", "acme.find")["schema"]["inputSchema"] == {"type": "object"}
    nameless = desk.run("publish", "order.json", "--version", "1.0.0", "-m", "x")
    assert nameless.returncode == 2
    assert "Add --name" in nameless.stderr


def test_which_registry(desk: Desk, tmp_path: Path) -> None:
    other = desk.world.cwd / "other"
    assert desk.publish("1.0.0", "--registry", "other").returncode == 0
    assert other.exists()
    assert not desk.registry.exists()
    assert desk.run("list").stderr == "no matching contract.\n"
    desk.world.config()
    none = desk.run("list")
    assert none.returncode == 2
    assert "No registry is configured" in none.stderr
    (desk.world.cwd / "full").mkdir()
    (desk.world.cwd / "full" / "notes.txt").write_text("mine")
    wrong = desk.publish("1.0.0", "--registry", "full")
    assert wrong.returncode == 3
    assert "is not a Git repository" in wrong.stderr
    git(other, "checkout", "--quiet", "--detach")
    detached = desk.publish("1.1.0", "--registry", "other")
    assert detached.returncode == 3
    assert "git switch" in detached.stderr
    git(other, "switch", "--quiet", "main")
    (other / ".git" / "MERGE_HEAD").touch()
    assert desk.publish("1.1.0", "--registry", "other").returncode == 1


# -- tools that broke


@pytest.fixture
def store(desk: Desk) -> ToolRecordStore:
    return ToolRecordStore(desk.world.folder / "state-of" / "contracts.db")


def broken(store: ToolRecordStore, tool: str = "files.read") -> None:
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


def test_what_broke_and_accepting_it(desk: Desk, store: ToolRecordStore) -> None:
    assert desk.json("status")["tools"] == []
    broken(store)
    broken(store, "files.list")
    told = desk.run("status")
    assert told.returncode == 1
    assert "files.read  1.0.0 → 2.0.0  broken since 2023-11-14T22:13:20Z" in told.stdout
    assert "✗ REQUIRED_FIELD_ADDED /inputSchema/properties/x" in told.stdout
    assert "\x1b" not in told.stdout
    [row] = json.loads(desk.run("status", "files.read", "--json").stdout)["tools"]
    assert row["changes"][0]["reason"] == "REQUIRED_FIELD_ADDED"
    assert (row["from_version"], row["to_version"], row["held"]) == ("1.0.0", "2.0.0", False)
    asked = desk.run("accept", "files.read")
    assert asked.returncode == 2
    assert "add --yes" in asked.stderr
    assert desk.run("accept").returncode == 2
    unknown = desk.run("accept", "files.nothing", "--yes")
    assert unknown.returncode == 1
    assert "Accepted files.read 2.0.0" in desk.ok("accept", "files.read", "--yes")
    again = desk.run("accept", "files.read", "--yes")
    assert (again.returncode, again.stdout) == (0, "")
    assert "Accepted files.list" in desk.ok("accept", "--all", "-y")
    assert desk.run("accept", "--all").stderr == "no tool has a breaking change.\n"
    accepted = store.get("files.read")
    assert accepted is not None
    assert not accepted.is_broken
    assert accepted.accepted_by
    store.close()


def test_how_the_registry_fares(desk: Desk, store: ToolRecordStore) -> None:
    store.close()
    assert desk.publish("1.0.0").returncode == 0
    told = desk.json("status")["registry"]
    assert told["metrics"]["schema_count"] == 1
    assert told["problems"] == []
    (desk.registry / "shop" / "Order" / "1.0.0.schema.json").write_text("{}")
    assert "edited by hand and not committed" in desk.run("status").stderr
    (desk.registry / ".git" / "HEAD").write_bytes(b"\xff")
    assert "Cannot read" in desk.run("status").stderr


def test_how_a_registry_fares_where_no_node_ran(desk: Desk) -> None:
    assert desk.publish("1.0.0", "--registry", "other").returncode == 0
    told = desk.run("status", "--registry", "other")
    assert told.returncode == 0
    assert "registry other: 1 contract, at " in told.stderr


def test_no_node_ever_ran(desk: Desk) -> None:
    for command in (["status"], ["accept", "--all"]):
        told = desk.run(*command)
        assert told.returncode == 4
        assert "has recorded no tools" in told.stderr


def test_watching(desk: Desk, store: ToolRecordStore) -> None:
    broken(store)
    process = started(desk, "watch", "--json")
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["tool"], first["to_version"]) == ("files.read", "2.0.0")
        seen = store.get("files.read")
        assert seen is not None
        assert store.accept(seen, "somebody")
        assert json.loads(process.stdout.readline()) == {"tool": "files.read", "resolved": True}
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_TIMEOUT) == 130
    finally:
        process.kill()
        process.communicate()
        store.close()


def started(desk: Desk, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*INTERLOCK, "contracts", *arguments],
        cwd=desk.world.cwd,
        env=desk.world.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# -- served


def test_serving_it(desk: Desk) -> None:
    assert desk.publish("2.3.0").returncode == 0
    process = started(desk, "serve", "--listen", "0")
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


def test_serving_it_to_everybody_needs_tokens(desk: Desk) -> None:
    told = desk.run("serve", "--listen", "0.0.0.0:0")
    assert told.returncode == 3
    assert "there is no token" in told.stderr


def test_help(desk: Desk) -> None:
    told = desk.ok("--help")
    for command in (
        "list", "show", "log", "diff", "check", "build", "publish", "validate", "deprecate",
        "status", "watch", "accept", "serve",
    ):  # fmt: skip
        assert command in told
        assert "Usage" in desk.ok(command, "--help")
