"""A real node whose server makes a parameter required, seen and accepted from the command line."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.drivers_workspace import contract, driver
from tests.contracts.registry.git_repositories import git
from tests.support.command_line import CommandLine, NodeProcess
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.feature("contracts")

SERVER = str(Path(__file__).with_name("changing_server.py"))


class Files:
    """A server with one tool, and the node before it."""

    def __init__(self, world: CommandLine, **contracts: Any) -> None:
        self.world = world
        self._tools = world.folder / "tools.json"
        self.asks_for()
        world.config(
            {"files": {"command": sys.executable, "args": [SERVER, str(self._tools)]}},
            contracts={"registry": "contracts", **contracts},
            policy={"default": "allow"},
        )

    def asks_for(self, *required: str) -> None:
        schema = {
            "type": "object",
            "properties": {"path": {"type": "string"}, "encoding": {"type": "string"}},
            "required": list(required),
        }
        self._tools.write_text(json.dumps([{"name": "read", "inputSchema": schema}]))

    def restart_server(self, node: NodeProcess) -> None:
        """It ends, and the node starts it again."""
        before = node.pids()["files"]
        os.kill(before, signal.SIGKILL)

        def is_back() -> bool:
            [one] = node.status()["upstreams"]
            return bool(one["state"] == "ready" and one["pid"] != before)

        wait_until("the server to be back", lambda: is_back() or None)

    def run(self, *arguments: str) -> Any:
        return self.world.run_here(*arguments)


@pytest.mark.spec("ST-4.5.3-5")
def test_breaking_change_is_reported_and_accepted(world: CommandLine) -> None:
    files = Files(world, on_break="hold")
    node = world.up()
    node.pids()
    registry = world.cwd / "contracts"

    def published(reason: str) -> None:
        wait_until(
            f"a commit {reason}",
            lambda: reason in git(registry, "log", "--format=%s", check=False) or None,
        )

    published("First seen: files.read")
    assert files.run("call", "files.read").returncode == 0

    files.asks_for("encoding")
    files.restart_server(node)
    [row] = wait_until(
        "the change in the status", lambda: node.status()["changed_contracts"] or None
    )
    assert row["tool"] == "files.read"
    assert [change["reason"] for change in row["changes"]] == ["REQUIRED_FIELD_ADDED"]
    assert row["held"] is True
    published("files.read: REQUIRED_FIELD_ADDED /inputSchema/properties/encoding")
    refused = files.run("call", "files.read")
    assert refused.returncode == 1
    assert "files.read is held" in refused.stderr
    assert "encoding" not in refused.stderr + refused.stdout

    outcome = files.run("contracts", "status")
    assert outcome.returncode == 1
    assert "files.read  1.0.0 → 2.0.0  held since" in outcome.stdout
    assert "affected callers: local" in outcome.stdout
    accepted = files.run("contracts", "accept", "files.read", "--yes")
    assert accepted.returncode == 0, accepted.stderr

    def is_free() -> bool:
        result = files.run("call", "files.read", "encoding=utf-8")
        return bool(result.returncode == 0)

    wait_until("the node to hear of it", lambda: is_free() or None)
    assert files.run("contracts", "status").returncode == 0
    searched = files.run("audit", "search", "files.read", "--json").stdout.splitlines()
    entries = {(item["verb"], item["outcome"]) for item in map(json.loads, searched)}
    assert {("contracts", "breaking"), ("held", "held"), ("contracts", "accepted")} <= entries
    versions = [
        load["version"] for load in json.loads(files.run("contracts", "list", "--json").stdout)
    ]
    assert versions == ["1.0.0", "2.0.0"]
    assert node.end() == 0


@pytest.mark.spec("ST-4.6.4-2", "ST-4.6.4-3")
def test_node_serves_its_registry(world: CommandLine) -> None:
    import urllib.error
    import urllib.request

    Files(world)
    node = world.up()
    node.pids()
    base = node.url.rpartition("/")[0]

    def ask(path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(
            f"{base}/contracts{path}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as answer:
            return json.load(answer)

    wait_until("the tool to be published", lambda: ask("")["contracts"] or None)
    details = ask("/files.read?version=1.x")
    assert (details["version"], details["protocol"]) == ("1.0.0", "mcp-tool")
    assert details["provenance"]["source"] == "upstream:files"
    response = ask("/files.read/validate?version=1.x", b'{"path": 7}')
    assert (response["valid"], response["errors"][0]["path"]) == (False, "/path")
    with pytest.raises(urllib.error.HTTPError) as error:
        ask("/files.read?version=9.x")
    assert error.value.code == 404
    error.value.close()
    assert node.end() == 0


def test_broken_driver_contract_is_accepted(world: CommandLine) -> None:
    """Nothing but drivers: no server of the config was ever seen."""
    world.config(drivers={}, contracts={"on_break": "hold"})
    contract(world)
    driver(world)
    world.up()

    def ready() -> bool:
        result = world.run_here("drivers", "list", "--json")
        return [driver["state"] for driver in json.loads(result.stdout)["drivers"]] == ["ready"]

    wait_until("the driver to be ready", ready)
    whole = world.run_here("contracts", "status")
    assert (whole.returncode, whole.stdout) == (0, "")
    assert "No tool has a breaking change." in whole.stderr
    nothing = world.run_here("contracts", "accept", "--all")
    assert nothing.returncode == 0
    assert "No tool has a breaking change." in nothing.stderr
    unknown = world.run_here("contracts", "accept", "fs-nothing", "--yes")
    assert unknown.returncode == 1
    assert "Unknown tool fs-nothing: " in unknown.stderr

    (world.cwd / "words.txt").write_text("Hello.")
    call = ("call", "fs-read", f"path={world.cwd}/words.txt", "head=1")
    stricter = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "head": {"type": "integer"}},
        "required": ["path", "head"],
    }
    contract(world, inputs=stricter)

    def held() -> bool:
        output = world.run_here("status").stdout
        return "accept it: `interlock contracts accept fs-read`" in " ".join(output.split())

    wait_until("the contract to be held", held)
    # It is offered to nobody.
    assert "Unknown tool 'fs-read'" in world.run_here(*call).stderr
    broke = world.run_here("contracts", "status", "fs-read")
    assert broke.returncode == 1
    assert broke.stdout.startswith("fs-read  1.0.0 → 1.0.0  held since ")
    assert "✗ REQUIRED_FIELD_ADDED /inputs/properties/head" in broke.stdout
    assert "affected drivers: files-mcp" in broke.stdout
    other = world.run_here("contracts", "status", "fs-other")
    assert (other.returncode, other.stdout) == (0, "")
    outcome = world.run_here("contracts", "accept", "fs-read")
    assert outcome.returncode == 2
    assert "Cannot ask for confirmation" in outcome.stderr
    result = world.run_here("contracts", "accept", "fs-read", "--yes")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "Accepted fs-read 1.0.0."
    assert world.run_here("contracts", "status").returncode == 0
    wait_until("it to be served again", lambda: "Hello." in world.run_here(*call).stdout)
