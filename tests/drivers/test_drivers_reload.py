"""Driver files that change while the node runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock.app.node import Node
from interlock.drivers import component as node_drivers
from interlock.drivers.component import create_driver
from interlock.drivers.folders import DriverFolders
from interlock.errors import InterlockError
from tests.drivers.driver_workspace import ANY, Running, Workspace, running, use_clock
from tests.support.clock import ManualClock
from tests.support.upstreams import HANG_TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks")


def pair_workspace(folder: Path) -> tuple[Workspace, str]:
    workspace = Workspace(folder)
    contract = workspace.contract()
    workspace.driver("echo-mcp", workspace.echoes(contract))
    workspace.driver("other-mcp", workspace.echoes(workspace.contract("text.other")))
    return workspace, contract


async def test_changed_driver_gets_new_server_and_others_keep_theirs(tmp_path: Path) -> None:
    workspace, contract = pair_workspace(tmp_path)

    async with running(workspace) as node:
        first = await node.call("text.echo", text="one")
        await node.call("text.other", text="one")
        other = node.pid("other-mcp")
        workspace.driver(
            "echo-mcp",
            workspace.serves(contract, "show", result_extract="$.arguments"),
            version="1.1.0",
        )
        await node.until(lambda: node.status().version == "1.1.0", "the new file")
        error = await node.refused("text.echo", text="two")
        # The new binding is used: its answer is no longer what the contract says.
        assert error.failure.name == "output_parse_failed"
        assert workspace.heard("tools/call")[-1]["birth"] != first["birth"]
        assert node.pid("other-mcp") == other
        assert node.status("other-mcp").calls == 1


async def test_changed_contract_is_reloaded(tmp_path: Path) -> None:
    workspace, _ = pair_workspace(tmp_path)

    async with running(workspace) as node:
        await node.call("text.echo", text="much too long for the next version")
        await node.call("text.other", text="one")
        other = node.pid("other-mcp")
        shorter = {
            "type": "object",
            "properties": {"text": {"type": "string", "maxLength": 5}},
            "required": ["text"],
        }
        workspace.contract(version="1.1.0", inputs=shorter, description="Shorter now.")
        await node.until(
            lambda: node.listed("text.echo")["description"] == "Shorter now.", "the new text"
        )
        error = await node.refused("text.echo", text="much too long")
        assert error.failure.name == "invalid_arguments"
        assert (await node.call("text.echo", text="short"))["said"] == "short"
        assert node.pid("other-mcp") == other


async def test_added_driver_starts_and_removed_driver_stops(tmp_path: Path) -> None:
    workspace, _ = pair_workspace(tmp_path)

    async with running(workspace) as node:
        await node.call("text.other", text="one")
        other = node.pid("other-mcp")
        third = workspace.contract("text.third")
        file = workspace.driver("third-mcp", workspace.echoes(third))
        await node.until(lambda: "text.third" in node.tools, "the new contract")
        assert (await node.call("text.third", text="x"))["said"] == "x"
        pid = node.pid("third-mcp")
        assert pid is not None
        file.unlink()
        await node.until(lambda: "text.third" not in node.tools, "the list without it")
        error = await node.refused("text.third", text="x")
        assert error.failure.name == "unknown_tool"
        assert [item.id for item in node.drivers.status()] == [
            "echo-mcp",
            "other-mcp",
        ]
        assert node.pid("other-mcp") == other


@pytest.mark.spec("DR-30.resolver-7")
async def test_broken_file_is_rejected_with_reason(tmp_path: Path) -> None:
    workspace, contract = pair_workspace(tmp_path)
    file = workspace.driver("echo-mcp", workspace.echoes(contract), transport="ws")

    async with running(workspace) as node:
        assert node.tools == ["text.other"]
        status = node.status()
        assert status.state == "refused"
        assert "transport" in status.problem
        assert str(file) in status.file
        assert (await node.call("text.other", text="one"))["said"] == "one"
        workspace.driver("echo-mcp", workspace.echoes(contract))
        await node.until(lambda: "text.echo" in node.tools, "the list with it")
        assert (await node.call("text.echo", text="two"))["said"] == "two"


@pytest.mark.parametrize("wrong", ["validation", "syntax", "empty"])
async def test_invalidated_driver_keeps_last_valid_version(
    tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    workspace, contract = pair_workspace(tmp_path)

    def spoil() -> Path:
        if wrong == "validation":
            return workspace.driver("echo-mcp", workspace.echoes(contract), transport="ws")
        file = tmp_path / ".drivers" / "echo-mcp" / "DRIVER.md"
        file.write_text("" if wrong == "empty" else "---\nid: [echo-mcp\n")
        return file

    async with running(workspace) as node:
        await node.call("text.echo", text="one")
        pid = node.pid("echo-mcp")
        assert node.status().problem == ""
        file = spoil()
        await node.until(lambda: node.status().problem, "the problem in the status")
        assert [item.id for item in node.drivers.status()] == [
            "echo-mcp",
            "other-mcp",
        ]
        status = node.status()
        assert (status.state, status.version) == ("running", "1.0.0")
        assert str(file) in status.problem
        assert "version 1.0.0 stays in use" in caplog.text
        assert (await node.call("text.echo", text="two"))["said"] == "two"
        assert node.pid("echo-mcp") == pid
        # Another change elsewhere does not make it forget the last valid version.
        workspace.driver("third-mcp", workspace.echoes(workspace.contract("text.third")))
        await node.until(lambda: "text.third" in node.tools, "the new contract")
        assert node.pid("echo-mcp") == pid
        file.unlink()
        await node.until(lambda: "text.echo" not in node.tools, "the list without it")
        workspace.driver("echo-mcp", workspace.echoes(contract), version="1.1.0")
        await node.until(lambda: "text.echo" in node.tools, "the list with it again")
        assert node.status().problem == ""


async def test_file_replaced_by_external_symlink_is_removed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    workspace, _ = pair_workspace(tmp_path)
    outside = tmp_path_factory.mktemp("outside") / "DRIVER.md"

    async with running(workspace) as node:
        await node.call("text.echo", text="one")
        file = tmp_path / ".drivers" / "echo-mcp" / "DRIVER.md"
        outside.write_bytes(file.read_bytes())
        file.unlink()
        file.symlink_to(outside)
        await node.until(lambda: "text.echo" not in node.tools, "the list without it")


@pytest.mark.parametrize("wrong", ["one", "2.0.0"], ids=["no-version", "out-of-range"])
async def test_contract_version_can_be_fixed_while_running(tmp_path: Path, wrong: str) -> None:
    workspace = Workspace(tmp_path)
    file = tmp_path / workspace.contract("text.echo")
    workspace.driver("echo-mcp", workspace.echoes("./tools/text.echo-1/TOOL.md"))
    good = file.read_text()
    bad = good.replace('version: "1.0.0"', f'version: "{wrong}"')
    assert bad != good
    file.write_text(bad)

    async with running(workspace) as node:
        drivers = node.drivers
        for _ in range(2):
            # A file that is being written may be seen empty first: that is refused too.
            await node.until(
                lambda: any(wrong in item.problem for item in drivers.status()), "its problem"
            )
            assert node.tools == []
            assert {item.state for item in drivers.status()} == {"refused"}
            file.write_text(good)
            await node.until(lambda: node.tools == ["text.echo"], "the contract")
            assert (await node.call("text.echo", text="one"))["said"] == "one"
            assert [(item.id, item.state) for item in drivers.status()] == [("echo-mcp", "running")]
            file.write_text(bad)
            await node.until(lambda: node.tools == [], "the list without it")
            error = await node.refused("text.echo", text="two")
            assert error.failure.name == "unknown_tool"


async def test_running_call_finishes_on_old_server(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    slow = workspace.contract("text.slow", inputs=ANY)
    release = workspace.contract("text.release", inputs=ANY, outputs={"type": "string"})
    entries = [workspace.serves(slow, "slow"), workspace.serves(release, "release")]
    workspace.driver("echo-mcp", *entries)

    async with running(workspace) as node:
        call = asyncio.create_task(node.call("text.slow"))
        await node.until(lambda: workspace.heard("tools/call"), "the slow call")
        before = node.driver()
        old = before.supervisor
        assert old is not None
        workspace.driver("echo-mcp", *entries, version="1.1.0")
        await node.until(lambda: node.status().version == "1.1.0", "the new file")
        # The old server still has the call; what is new goes to the new one.
        assert not call.done()
        await node.result("text.release", {})
        births = {message["birth"] for message in workspace.heard("tools/call")}
        assert len(births) == 2
        assert old.upstream_client is not None
        await old.upstream_client.request("tools/call", {"name": "release", "arguments": {}})
        assert await call == {"said": "at last"}
        await node.until(lambda: old.upstream_client is None, "the end of the old server")


async def test_call_waiting_for_removed_driver_fails(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    down = tmp_path / "down"
    down.touch()
    file = workspace.driver(
        "echo-mcp", workspace.echoes(contract), server=workspace.server("--down", down)
    )

    napping = asyncio.Event()

    async def nap(_: float) -> None:
        napping.set()
        await asyncio.Event().wait()

    async with running(workspace) as node:
        node.drivers.lifecycle.sleep = nap
        call = asyncio.create_task(node.refused("text.echo", text="x"))
        await napping.wait()
        file.unlink()
        error = await call
        assert error.failure.name == "upstream_unavailable"
        assert "was removed" in error.message


@pytest.mark.spec("DR-30.identity-2", "DR-32.identity-1")
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("change", ["narrowing", "transport"])
async def test_breaking_driver_change_requires_new_major(
    tmp_path: Path, change: str, restarted: bool
) -> None:
    workspace = Workspace(tmp_path)
    inputs = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "seed": {"type": "number"}},
        "required": ["text"],
    }
    contract = workspace.contract(inputs=inputs)
    workspace.driver("echo-mcp", workspace.echoes(contract))

    def written(version: str) -> None:
        entry = workspace.echoes(contract)
        if change == "narrowing":
            entry["schema_narrowing"] = {"drop_inputs": ["seed"]}
            workspace.driver("echo-mcp", entry, version=version)
        else:
            workspace.driver(
                "echo-mcp",
                entry,
                version=version,
                server={"kind": "remote", "url": "http://127.0.0.1:9/sse"},
                transport="sse",
                network={"egress": ["127.0.0.1:9"]},
            )

    async with running(workspace) as node:
        assert node.status().state == "unverified"
        if not restarted:
            written("1.1.0")
            await node.until(lambda: node.status().state == "refused", "the refusal")
            assert "major" in node.status().problem
            written("2.0.0")
            await node.until(lambda: node.status().version == "2.0.0", "the new major")
            return
    written("1.1.0")
    async with running(workspace) as node:
        assert node.status().state == "refused"
        assert "major" in node.status().problem
    written("2.0.0")
    async with running(workspace) as node:
        assert node.status().version == "2.0.0"


async def test_disabling_drivers_removes_all(tmp_path: Path) -> None:
    workspace, _ = pair_workspace(tmp_path)

    async with running(workspace) as node:
        await node.call("text.echo", text="one")
        await node.node.apply(workspace.config(enabled=False))
        assert node.tools == []
        assert node.drivers.status() == []
        assert not [key for key in node.node.upstreams.upstreams if key.startswith("driver")]
        await node.node.apply(workspace.config())
        assert node.tools == ["text.echo", "text.other"]
        assert (await node.call("text.echo", text="two"))["said"] == "two"


# -- calls that are under way


def waiting_workspace(folder: Path) -> tuple[Workspace, str]:
    """A contract whose calls may take two minutes."""
    workspace = Workspace(folder)
    contract = workspace.contract("text.late", inputs=ANY, outputs=ANY, timeout_ms=120_000)
    workspace.driver("late-mcp", workspace.serves(contract, "slow"))
    return workspace, contract


async def start_slow_call(workspace: Workspace, node: Running) -> tuple[asyncio.Future[Any], Any]:
    """A call that its server has, and the supervisor of that."""
    late = asyncio.ensure_future(node.node.pipeline.run(node.request("tools/call", "text.late")))
    await node.until(lambda: workspace.heard("tools/call"), "the call")
    return late, node.driver("late-mcp").supervisor


async def test_call_on_replaced_driver_ends_at_its_deadline(tmp_path: Path) -> None:
    workspace, contract = waiting_workspace(tmp_path)
    clock = ManualClock()
    glances = 0

    async def glance(_: float) -> None:
        nonlocal glances
        glances += 1
        await asyncio.sleep(0.001)

    def turned(node: Node) -> None:
        use_clock(node, clock)
        node.component(DriverFolders).drivers.lifecycle.sleep = glance

    async with running(workspace, before=turned) as node:
        late, server = await start_slow_call(workspace, node)
        workspace.driver("late-mcp", workspace.serves(contract, "slow"), version="1.1.0")
        await node.until(lambda: node.status("late-mcp").version == "1.1.0", "the new file")
        clock.advance(100)
        seen = glances
        await node.until(lambda: glances > seen + 20, "looks at who still waits")
        assert not late.done()
        await server.upstream_client.request("tools/call", {"name": "release", "arguments": {}})
        assert b"at last" in (await late).result
        await node.until(lambda: server.upstream_client is None, "nobody waits for it any more")


async def test_shutdown_does_not_wait_for_old_server(tmp_path: Path) -> None:
    workspace, contract = waiting_workspace(tmp_path)

    async with running(workspace) as node:
        late, server = await start_slow_call(workspace, node)
        workspace.driver("late-mcp", workspace.serves(contract, "slow"), version="1.1.0")
        await node.until(lambda: node.status("late-mcp").version == "1.1.0", "the new file")
        # As when the drivers' settings are others now.
        async with asyncio.timeout(HANG_TIMEOUT):
            await node.drivers.close()
        assert server.upstream_client is None
        with pytest.raises(InterlockError):
            await late


async def test_loading_many_drivers_does_not_block_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all in one turn of the loop, however many files come at once."""
    workspace, _ = pair_workspace(tmp_path)
    turns = 0
    made_in: list[int] = []
    make = create_driver

    def made(*given: Any, **more: Any) -> Any:
        made_in.append(turns)
        return make(*given, **more)

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with running(workspace) as node:
        ahead = tmp_path / "ahead"
        ahead.mkdir()
        for number in range(60):
            id = f"more-{number}"
            contract = workspace.contract(f"more.n{number}")
            workspace.driver(id, workspace.echoes(contract))
            (tmp_path / ".drivers" / id).rename(ahead / id)
        await node.until(lambda: node.tools == ["text.echo", "text.other"])
        monkeypatch.setattr(node_drivers, "create_driver", made)
        turning = asyncio.ensure_future(turn())
        for path in ahead.iterdir():
            path.rename(tmp_path / ".drivers" / path.name)
        await node.until(lambda: len(node.tools) == 62, "all of them")
        turning.cancel()
        assert len(made_in) == 60
        most = max(made_in.count(item) for item in set(made_in))
        assert most <= node_drivers.CREATE_BATCH_SIZE
        assert (await node.call("more.n59", text="x"))["said"] == "x"


async def test_code_changed_while_loading_is_reloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what a file looked like before it was read it is known again."""
    workspace = Workspace(tmp_path)
    contract = workspace.contract(outputs=ANY)
    code = "from interlock.drivers.sdk import *\ndriver = define_driver(parse_tool_result={})\n"
    first, second = (code.format(f'lambda _: {{"said": "{item}"}}') for item in ("one", "two"))
    make = create_driver

    async with running(workspace, workspace.config(allow_code=["echo-mcp"])) as node:

        def made(*given: Any, **more: Any) -> Any:
            driver = make(*given, **more)
            file.with_name("driver.py").write_text(second, encoding="utf-8")
            return driver

        monkeypatch.setattr(node_drivers, "create_driver", made)
        file = tmp_path / ".drivers" / "echo-mcp" / "DRIVER.md"
        file.parent.mkdir()
        file.with_name("driver.py").write_text(first, encoding="utf-8")
        workspace.driver("echo-mcp", workspace.echoes(contract))
        await node.until(lambda: "text.echo" in node.tools, "the driver")
        monkeypatch.setattr(node_drivers, "create_driver", make)
        before = node.driver()
        await node.until(lambda: node.driver() is not before, "the code of now")
        assert (await node.call("text.echo", text="x"))["said"] == "two"
