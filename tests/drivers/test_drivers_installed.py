"""Installations of drivers: kept for each workspace, and noticed by a running node."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from interlock.core.config import parse_config
from interlock.drivers.installation import RECHECK_SECONDS, prepare
from interlock.drivers.paths import guarded_from_drivers, installed_drivers_path
from interlock.drivers.standalone import installed_folder
from interlock.manifests.model import DriverManifest
from tests.drivers.driver_workspace import Running, Workspace, running, use_clock
from tests.support.clock import ManualClock

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_workspaces_share_no_installations(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_STATE_HOME": str(tmp_path / "state")}
    one, other = tmp_path / "a" / "my shop", tmp_path / "b" / "my shop"
    for folder in (one, other):
        folder.mkdir(parents=True)
    for text in ("{}", f"state_dir: {tmp_path / 'given'}"):
        config = parse_config(text)
        first = installed_drivers_path(config, environ, one)
        second = installed_drivers_path(config, environ, other)
        assert first != second
        assert first.parent == second.parent
        assert first.name.startswith("my_shop-")
        # By whatever way it is reached, a workspace is the same.
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(one)
        assert installed_drivers_path(config, environ, tmp_path / "link") == first
        # No server changes the programs of another, wherever that is at home.
        assert first.parent in guarded_from_drivers(config, environ, other)


def uninstalled_workspace(folder: Path) -> Workspace:
    """A driver whose program comes with it, but has to be put in its place first."""
    workspace = Workspace(folder)
    server = workspace.server()
    args = [str(arg) for arg in server["args"]]
    workspace.driver(
        "echo-mcp",
        workspace.echoes(workspace.contract()),
        server={"kind": "binary", "path": "no-such-program-here", "args": args},
        install=[{"method": "vendored", "path": "program"}],
    )
    program = folder / ".drivers" / "echo-mcp" / "program"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return workspace


async def install(workspace: Workspace, manifest: DriverManifest) -> None:
    """As `interlock drivers install` does it."""
    folder = installed_folder(manifest, workspace.config(), workspace.folder, {})
    await prepare(manifest, folder=folder, allowed=True)


async def expect_not_installed(node: Running) -> str:
    error = await node.refused("text.echo", text="hi")
    assert error.failure.name == "install_failed"
    return error.message


async def test_call_after_install_works(tmp_path: Path) -> None:
    workspace = uninstalled_workspace(tmp_path)

    async with running(workspace) as node:
        await expect_not_installed(node)
        # Also when nothing changed, the answer stays the same.
        await expect_not_installed(node)
        await install(workspace, node.driver().manifest)
        assert (await node.call("text.echo", text="hi"))["said"] == "hi"
        assert node.status().problem == ""


async def test_install_is_noticed_without_call(tmp_path: Path) -> None:
    workspace = uninstalled_workspace(tmp_path)

    async with running(workspace) as node:
        await expect_not_installed(node)
        assert node.status().state == "failing"
        await install(workspace, node.driver().manifest)
        await node.until(lambda: node.status().state != "failing", "the install is noticed")
        assert node.status().problem == ""


async def test_external_installation_is_found_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = uninstalled_workspace(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs), prepend=":")

    clock = ManualClock()
    async with running(workspace, before=lambda node: use_clock(node, clock)) as node:
        await expect_not_installed(node)
        (programs / "no-such-program-here").symlink_to(
            tmp_path / ".drivers" / "echo-mcp" / "program"
        )
        clock.advance(RECHECK_SECONDS - 0.1)
        await expect_not_installed(node)
        clock.advance(0.2)
        assert (await node.call("text.echo", text="hi"))["said"] == "hi"
