"""Installing: opt-in, methods in order, a folder for each driver, and checks afterwards."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers.installation import (
    MARKER,
    Installation,
    driver_folder,
    installed_bin,
    read_marker,
)
from interlock.drivers.processes import run
from interlock.errors import INSTALL_FAILED, VERSION_MISMATCH
from interlock.manifests.model import ServerBlock, VersionCheck
from tests.drivers.driver_world import driver, hanging_command, read_child_pid
from tests.drivers.install_world import NOWHERE, World, add_fake_program, add_vendored_program
from tests.support.upstreams import wait_for_exit, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# -- whether it is allowed


@pytest.mark.spec("DR-30.install-4")
async def test_install_requires_permission(world: World) -> None:
    ran: list[Any] = []

    async def spy(cmd: Any, **more: Any) -> Any:
        ran.append(cmd)
        return await run(cmd, **more)

    manifest = world.driver(("npm", {"package": "tiny-server"}))
    error = await world.failed(manifest, allowed=False, run=spy)
    assert error.failure is INSTALL_FAILED
    assert error.message == (
        "tiny-mcp is not installed on this machine. Run `interlock drivers install tiny-mcp`, "
        "or let the node install it: add `drivers: {allow_install: true}` to interlock.yaml."
    )
    assert error.data == {"driver": "tiny-mcp", "allow_install": False}
    assert ran == []
    assert not world.folder.exists()
    assert world.told == []


@pytest.mark.spec("DR-30.install-4")
async def test_existing_installation_needs_no_permission(world: World) -> None:
    add_vendored_program(world)
    server = ServerBlock("binary", path="./tool")
    manifest = world.driver(("npm", {"package": "tiny-server"}), server=server)
    assert await world.prepare(manifest, allowed=False) == Installation()
    # By its version, where it tells one.
    check = VersionCheck("./tool --version", r"v(\S+)", ">=0.5")
    manifest = world.driver(("npm", {"package": "x"}), server=server, version_check=check)
    assert (await world.prepare(manifest, allowed=False)).version == "0.6.0"
    check = VersionCheck("./tool --version", r"v(\S+)", ">=0.7")
    manifest = world.driver(("npm", {"package": "x"}), server=server, version_check=check)
    error = await world.failed(manifest, allowed=False)
    assert error.failure is VERSION_MISMATCH
    assert "`interlock drivers install tiny-mcp`" in error.message
    assert "allow_install: true" in error.message


@pytest.mark.spec("DR-32.server-5")
async def test_remote_server_needs_no_install(world: World) -> None:
    server = ServerBlock("remote", url="https://mcp.example.com/v1")
    manifest = world.driver(("npm", {"package": "tiny-server"}), server=server)
    assert await world.prepare(manifest, allowed=False) == Installation()
    assert "its server is remote" in world.warned[0]
    world.warned.clear()
    await world.prepare(world.driver(server=server))
    assert world.warned == []


async def test_driver_without_install_is_accepted(world: World) -> None:
    assert await world.prepare(world.driver(), allowed=False) == Installation()


# -- the order of the ways


@pytest.mark.spec("DR-30.install-1")
async def test_first_working_method_is_used(world: World) -> None:
    add_vendored_program(world)
    manifest = world.driver(
        ("vendored", {"path": "./not-there"}),
        ("vendored", {"path": "./tool"}),
        ("vendored", {"path": "./never-tried"}),
    )
    installation = await world.prepare(manifest)
    assert installation == Installation(world.home / "tool", "", installed_now=True)
    assert world.told == [
        (0, 4, "vendored: ./not-there"),
        (1, 4, "vendored: ./tool"),
        (3, 4, "vendored: installed"),
        (4, 4, "ready"),
    ]
    # Once is enough.
    world.told.clear()
    assert not (await world.prepare(manifest)).installed_now
    assert world.told == []


@pytest.mark.spec("DR-30.install-1")
async def test_all_failed_methods_are_reported(world: World) -> None:
    manifest = world.driver(
        ("vendored", {"path": "./not-there"}),
        ("vendored", {"path": "../../outside"}),
        ("vendored", {}),
    )
    error = await world.failed(manifest)
    assert error.failure is INSTALL_FAILED
    assert "vendored: there is no ./not-there in the driver's folder" in error.message
    assert "vendored: ../../outside is outside the driver's folder" in error.message
    assert "vendored: `path` is missing" in error.message
    assert read_marker(world.folder) is None


@pytest.mark.spec("DR-30.install-4")
async def test_unknown_methods_are_skipped(world: World) -> None:
    add_vendored_program(world)
    manifest = world.driver(("brew", {"formula": "tiny"}), ("vendored", {"path": "./tool"}))
    assert (await world.prepare(manifest)).installed_now
    (warning,) = world.warned
    assert "unknown install method 'brew' is skipped" in warning
    assert "npm, pip, docker, vendored, download" in warning
    error = await world.failed(world.driver(("brew", {}), ("apt", {})), force=True)
    assert error.failure is INSTALL_FAILED
    assert "no supported install method" in error.message


@pytest.mark.spec("DR-30.install-3")
async def test_rejects_file_with_wrong_digest(world: World) -> None:
    digest = add_vendored_program(world)
    error = await world.failed(world.driver(("vendored", {"path": "tool", "sha256": NOWHERE})))
    assert f"tool is rejected: its SHA-256 is {digest}, expected {NOWHERE}" in error.message
    error = await world.failed(world.driver(("vendored", {"path": "tool", "sha256": "abc"})))
    assert "must be 64 hexadecimal digits" in error.message
    arguments = {"path": "tool", "sha256": f"sha256:{digest.upper()}"}
    assert (await world.prepare(world.driver(("vendored", arguments)))).installed_now


# -- what is checked afterwards


@pytest.mark.spec("DR-30.install-3", "DR-30.install-2")
async def test_version_is_checked_after_install_and_before_use(world: World) -> None:
    add_vendored_program(world, "#!/bin/sh\necho v0.4\n")
    check = VersionCheck("./tool --version", r"v(\S+)", ">=0.5")
    server = ServerBlock("binary", path="./tool")
    manifest = world.driver(("vendored", {"path": "./tool"}), version_check=check, server=server)
    error = await world.failed(manifest)
    assert error.failure is VERSION_MISMATCH
    # It was installed once in the attempt to mend that.
    assert [told for told in world.told if "installed" in told[2]] == [
        (1, 2, "vendored: installed")
    ]
    add_vendored_program(world)
    assert (await world.prepare(manifest)).version == "0.6.0"
    add_vendored_program(world, "#!/bin/sh\necho v0.1\n")
    assert (await world.failed(manifest)).failure is VERSION_MISMATCH


async def test_changed_manifest_requires_new_install(world: World) -> None:
    add_vendored_program(world)
    await world.prepare(world.driver(("vendored", {"path": "./tool"})))
    first = read_marker(world.folder)
    newer = world.driver(("vendored", {"path": "tool"}))
    assert (await world.prepare(newer)).installed_now
    assert read_marker(world.folder) != first
    # Who may not install goes on with what is there.
    check = VersionCheck("./tool", r"v(\S+)", ">=0.5")
    newest = world.driver(("vendored", {"path": "././tool"}), version_check=check)
    assert not (await world.prepare(newest, allowed=False)).installed_now


async def test_interrupted_install_is_removed(world: World) -> None:
    add_vendored_program(world)
    world.folder.mkdir(parents=True)
    (world.folder / "half").write_text("of something")
    (world.folder / MARKER).write_text('{"method": "npm"')
    manifest = world.driver(("vendored", {"path": "./tool"}))
    assert installed_bin(manifest, world.folder) is None
    assert (await world.prepare(manifest)).installed_now
    assert sorted(path.name for path in world.folder.iterdir()) == [MARKER]
    assert stat.S_IMODE(world.folder.stat().st_mode) == 0o700


@pytest.mark.spec("DR-30.conformance-3")
async def test_cancelled_install_ends_installer(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging_command(tmp_path) as (_, pipe):
        add_fake_program(tmp_path, "npm", f'sleep 300 & echo $! > "{pipe}"; wait', monkeypatch)
        manifest = world.driver(("npm", {"package": "tiny-server"}))
        task = asyncio.ensure_future(world.prepare(manifest))
        child = await with_timeout(read_child_pid(pipe))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(task, 1.0)
        await wait_for_exit(child)
        assert read_marker(world.folder) is None
        # The next one is not locked out.
        add_vendored_program(world)
        await world.prepare(world.driver(("vendored", {"path": "./tool"})))


async def test_concurrent_installs_run_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_fake_program(tmp_path, "npm", f"echo install >> {tmp_path / 'log'}", monkeypatch)
    manifest = world.driver(("npm", {"package": "tiny-server"}))

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0.001)

    results = await asyncio.gather(*(world.prepare(manifest, sleep=sleep) for _ in range(4)))
    assert (tmp_path / "log").read_text() == "install\n"
    assert sum(item.installed_now for item in results) == 1


async def test_unwritable_folder_is_reported(world: World, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    error = await world.failed(world.driver(("vendored", {"path": "./tool"})))
    assert error.failure is INSTALL_FAILED
    assert "cannot be written" in error.message


def test_each_driver_has_own_folder(tmp_path: Path) -> None:
    one = driver(tmp_path, version="1.2.3")
    two = driver(tmp_path, version="2.0.0")
    assert driver_folder(tmp_path, one) == tmp_path / "drivers" / "tiny-mcp@1"
    assert driver_folder(tmp_path, one) != driver_folder(tmp_path, two)
    sly = driver(tmp_path, id="../../sly")
    assert driver_folder(tmp_path, sly).parent == tmp_path / "drivers"


async def test_installer_environment_is_filtered(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("A_SECRET_OF_THE_NODE", "hunter2-hunter2")
    add_fake_program(tmp_path, "npm", f"env > {tmp_path / 'env'}", monkeypatch)

    await world.prepare(world.driver(("npm", {"package": "tiny-server"})))
    output = (tmp_path / "env").read_text()
    assert "NPM_CONFIG_CACHE" in output
    assert "A_SECRET_OF_THE_NODE" not in output
