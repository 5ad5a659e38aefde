"""Covered files that are replaced while a server runs: the server is ended, and the next one is
covered again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from interlock.errors import InterlockError
from tests.drivers.driver_workspace import ANY, Running, Workspace, running
from tests.drivers.sandbox.confinements import needs_confinement
from tests.drivers.test_drivers_approvals import NOTE_IN

pytestmark = [needs_confinement, pytest.mark.usefixtures("no_leaks")]


def notes_workspace(folder: Path) -> Workspace:
    workspace = Workspace(folder)
    note = workspace.contract("note.add", inputs=NOTE_IN, outputs=ANY)
    slow = workspace.contract("wait.long", inputs=ANY, outputs=ANY)
    workspace.driver("note-mcp", workspace.serves(note, "note"), workspace.serves(slow, "slow"))
    return workspace


async def can_write(node: Running, file: Path) -> bool:
    """Whether the driver's server gets a line into a file. It ends when it does not."""
    try:
        await node.result("note.add", {"text": "evil", "file": str(file)})
    except InterlockError:
        return False
    return True


async def start_server(node: Running) -> int:
    """The number of a server that is ready to be asked."""
    await node.result("note.add", {"text": "x", "file": str(node.node.base_dir / "anything")})
    pid = node.pid("note-mcp")
    assert pid is not None
    return pid


def save(file: Path, text: str) -> None:
    """As many editors do it."""
    beside = file.with_name("beside")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, file)


async def another_server(node: Running, pid: int | None) -> None:
    await node.until(lambda: node.pid("note-mcp") != pid, "the server is ended")


@pytest.mark.feature("topics")
@pytest.mark.spec("DR-32.security-1")
@pytest.mark.parametrize("name", ["interlock.yaml", "keys/human.pem", "keys"])
async def test_server_that_lost_its_cover_is_ended(tmp_path: Path, name: str) -> None:
    workspace = notes_workspace(tmp_path)
    (tmp_path / "keys").mkdir()
    key, config_file = tmp_path / "keys" / "human.pem", tmp_path / "interlock.yaml"
    for file in (key, config_file):
        file.write_text("mine\n", encoding="utf-8")
    config = workspace.config(more="topics: {admins: [keys/human.pem]}\n")
    covered = key if name == "keys" else tmp_path / name

    async with running(workspace, config) as node:
        pid = await start_server(node)
        if name == "keys":
            # A folder on the way to it, and the very file in the new one.
            (tmp_path / "keys").rename(tmp_path / "old")
            (tmp_path / "keys").mkdir()
            (tmp_path / "old" / "human.pem").rename(key)
        else:
            save(covered, "mine, too\n")
        await another_server(node, pid)
        assert await start_server(node) != pid
        assert not await can_write(node, covered)
        (entry,) = [row for row in await _egress(node) if row[1] == "uncovered"]
        assert str(tmp_path / name) in entry[2] or name == "keys"


async def _egress(node: Running) -> list[tuple[str, str, str]]:
    journal = node.node._journal
    assert journal is not None
    assert await journal.flush_async()
    return [
        (row.name, row.outcome, row.detail) for row in journal.tail(1000) if row.verb == "egress"
    ]


@pytest.mark.spec("DR-32.security-1")
async def test_calls_do_not_delay_ending_server(tmp_path: Path) -> None:
    """A call under way is not worth a server that can change what says what it may do."""
    workspace = notes_workspace(tmp_path)
    file = tmp_path / "interlock.yaml"
    file.write_text("mine\n", encoding="utf-8")

    async with running(workspace) as node:
        pid = await start_server(node)
        waiting = asyncio.ensure_future(node.result("wait.long", {}))
        await node.until(
            lambda: any(
                message["params"]["name"] == "slow" for message in workspace.heard("tools/call")
            )
        )
        save(file, "mine, too\n")
        await another_server(node, pid)
        with pytest.raises(InterlockError) as failed:
            await waiting
        assert failed.value.failure.name == "upstream_lost"


async def test_harmless_changes_end_no_server(tmp_path: Path) -> None:
    workspace = notes_workspace(tmp_path)
    file, other = tmp_path / "interlock.yaml", tmp_path / "data.txt"
    file.write_text("mine\n", encoding="utf-8")
    other.write_text("anybody's\n", encoding="utf-8")

    async with running(workspace) as node:
        pid = await start_server(node)
        # Written in its place, it is the same file; and a new one of its own is a server's.
        file.write_text("mine, too\n", encoding="utf-8")
        save(other, "still anybody's\n")
        (tmp_path / "its-own.yaml").write_text("new\n", encoding="utf-8")
        await node.drivers.lifecycle.confinements.end_uncovered_processes()
        assert node.pid("note-mcp") == pid
        assert await _egress(node) == []


@pytest.mark.feature("topics")
async def test_reloaded_config_covers_more_files(tmp_path: Path) -> None:
    workspace = notes_workspace(tmp_path)
    key = tmp_path / "new.pem"
    key.write_text("mine\n", encoding="utf-8")
    before = workspace.config()

    async with running(workspace, before) as node:
        assert await can_write(node, key)
        pid = await start_server(node)
        await node.node.apply(workspace.config(more="topics: {admins: [new.pem]}\n"))
        assert node.pid("note-mcp") != pid
        assert not await can_write(node, key)


@pytest.mark.spec("DR-32.security-1")
async def test_replaced_server_with_running_calls_is_ended(tmp_path: Path) -> None:
    """Its driver has other files by now, and it stays only for the calls that it has."""
    workspace = notes_workspace(tmp_path)
    file = tmp_path / "interlock.yaml"
    file.write_text("mine\n", encoding="utf-8")

    async with running(workspace) as node:
        await start_server(node)
        old = node.driver("note-mcp")
        waiting = asyncio.ensure_future(node.result("wait.long", {}))
        await node.until(
            lambda: any(
                message["params"]["name"] == "slow" for message in workspace.heard("tools/call")
            )
        )
        driver = tmp_path / ".drivers" / "note-mcp" / "DRIVER.md"
        driver.write_text(driver.read_text(encoding="utf-8") + "More.\n", encoding="utf-8")
        await node.until(lambda: node.driver("note-mcp") is not old, "the new driver")
        assert not waiting.done()
        save(file, "mine, too\n")
        with pytest.raises(InterlockError) as failed:
            await waiting
        assert failed.value.failure.name == "upstream_lost"
        assert [row[1] for row in await _egress(node)] == ["uncovered"]


async def test_server_ends_after_cancelled_shutdown(tmp_path: Path) -> None:
    """A new config may come while one is ended, and what ended it is ended itself."""
    workspace = notes_workspace(tmp_path)

    async with running(workspace) as node:
        await start_server(node)
        around = node.drivers.lifecycle.confinements._active
        (confinement,) = around
        ending = asyncio.ensure_future(node.driver("note-mcp").server.end())
        await asyncio.sleep(0)
        ending.cancel()
        await node.until(lambda: confinement not in around, "its walls are taken down")
        await node.until(lambda: not confinement._folder.exists(), "and their folder")
