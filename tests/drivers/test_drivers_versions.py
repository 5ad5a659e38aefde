"""Several majors of a contract and of a driver, and the end of a major."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from interlock.drivers.contract_versions import MajorDeprecation
from interlock.manifests.model import ToolContract
from tests.drivers.driver_workspace import Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")

LOUD = {"type": "object", "properties": {"loud": {"type": "string"}}, "required": ["loud"]}
MOVING = "https://docs.example/moving"


def two_majors(folder: Path) -> Workspace:
    workspace = Workspace(folder)
    old = workspace.contract(version="1.2.0")
    new = workspace.contract(version="2.0.0", inputs=LOUD)
    workspace.driver("one-mcp", workspace.echoes(old))
    workspace.driver(
        "two-mcp", workspace.serves(new, "echo", "^2.0.0", argument_mapping={"loud": "message"})
    )
    return workspace


@pytest.mark.spec("DR-14.fields-8", "ST-4.5.4-1")
async def test_two_contract_majors_are_two_tools(tmp_path: Path) -> None:
    workspace = two_majors(tmp_path)

    async with running(workspace) as node:
        # The bare name is the older one's: who called it first goes on calling the same.
        assert node.tools == ["text.echo", "v1.text.echo", "v2.text.echo"]
        assert (await node.call("text.echo", text="a"))["said"] == "a"
        assert (await node.call("v1.text.echo", text="b"))["said"] == "b"
        assert (await node.call("v2.text.echo", loud="c"))["said"] == "c"
        error = await node.refused("v2.text.echo", text="d")
        assert error.failure.name == "invalid_arguments"
        assert (node.status("one-mcp").calls, node.status("two-mcp").calls) == (2, 1)
        keys = {item.key: item.names for item in node.drivers.contract_status()}
        assert keys == {
            "text.echo@1": ["text.echo", "v1.text.echo"],
            "text.echo@2": ["v2.text.echo"],
        }


@pytest.mark.spec("DR-30.identity-1")
async def test_two_driver_majors_are_two_drivers(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    workspace.driver("echo-mcp", workspace.echoes(contract), folder="echo-mcp")
    workspace.driver("echo-mcp", workspace.echoes(contract), folder="echo-2", version="2.0.0")

    async with running(workspace) as node:
        versions = [item.version for item in node.drivers.status()]
        assert sorted(versions) == ["1.0.0", "2.0.0"]
        for pin in ("echo-mcp@1", "echo-mcp@2"):
            await node.call("text.echo", {"dev.interlock/driver": pin}, text="x")
        rows = await node.rows("driver.invoked")
        assert [entry.upstream for entry, _ in rows] == [
            "driver:echo-mcp@1",
            "driver:echo-mcp@2",
        ]
        assert len({message["birth"] for message in workspace.heard("tools/call")}) == 2


@pytest.mark.spec("ST-4.5.4-2", "ST-4.5.4-3")
async def test_ending_major_is_announced_and_then_redirects(tmp_path: Path) -> None:
    workspace = two_majors(tmp_path)
    now = time.time()
    end = MajorDeprecation(deprecated_at=now - 86_400, sunset_at=now + 3_600, migration_uri=MOVING)

    def deprecations(contracts: Iterable[ToolContract]) -> dict[str, MajorDeprecation]:
        return {contract.key: end for contract in contracts if contract.major == 1}

    async with running(workspace) as node:
        drivers = node.drivers
        drivers.publisher.deprecations = deprecations
        drivers.refresh()
        await node.until(
            lambda: "deprecation" in node.listed("text.echo")["_meta"], "the announcement"
        )
        notice = node.listed("text.echo")["_meta"]["deprecation"]
        assert notice["migration_uri"] == MOVING
        result = await node.result("text.echo", {"text": "a"})
        assert result["_meta"]["deprecation"] == notice
        assert "_meta" not in await node.result("v2.text.echo", {"loud": "a"})
        # Its time is over.
        drivers.publisher.wall_clock = lambda: now + 3_601
        drivers.refresh()
        await node.until(lambda: "v1.text.echo" not in node.tools, "the list without it")
        assert node.tools == ["text.echo", "v2.text.echo"]
        error = await node.refused("v1.text.echo", text="a")
        assert error.failure.name == "deprecated_version"
        assert (error.data or {})["migration_uri"] == MOVING
        assert MOVING in error.message
        # The bare name is the next one's now.
        assert (await node.call("text.echo", loud="b"))["said"] == "b"


@pytest.mark.spec("ST-4.5.4-2")
async def test_last_ended_major_still_explains(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract(mutates=["db:x"], approval="always")
    workspace.driver("echo-mcp", workspace.echoes(contract))
    end = MajorDeprecation(deprecated_at=0.0, sunset_at=1.0, migration_uri=MOVING)

    async with running(workspace) as node:
        drivers = node.drivers
        drivers.publisher.deprecations = lambda contracts: {
            contract.key: end for contract in contracts
        }
        drivers.refresh()
        await node.until(lambda: node.tools == [], "the empty list")
        # Nobody is asked for a yes to something that is not done.
        for name in ("text.echo", "v1.text.echo"):
            error = await node.refused(name, anything="at all")
            assert error.failure.name == "deprecated_version"
        assert workspace.heard() == []
        drivers.publisher.deprecations = lambda _: {}
        drivers.refresh()
        await node.until(lambda: node.tools == ["text.echo"], "its return")


async def test_sunset_removes_major_on_time(tmp_path: Path) -> None:
    """A timer is set for it: nothing else has to happen."""
    workspace = two_majors(tmp_path)

    async with running(workspace) as node:
        publisher = node.drivers.publisher
        now = time.time()
        end = MajorDeprecation(deprecated_at=now - 10, sunset_at=now + 0.3)
        publisher.deprecations = lambda contracts: {
            contract.key: end for contract in contracts if contract.major == 1
        }
        node.drivers.refresh()
        await node.until(lambda: publisher._end_timer is not None, "the timer")
        assert "v1.text.echo" in node.tools
        await node.until(lambda: "v1.text.echo" not in node.tools, "the end")
