"""What the tests of installing stand on: a driver's folder and the one that it is installed into,
packages made on the spot, and programs that come first on the PATH."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers.installation import Installation, prepare
from interlock.errors import InterlockError
from interlock.manifests.model import DriverManifest, InstallStep, ServerBlock, VersionCheck
from tests.drivers.driver_world import driver
from tests.support.upstreams import with_timeout

TINY = ServerBlock("npm", package="tiny-server")
CHECK = VersionCheck("npx -y tiny-server --version", r"v(\S+)", ">=0.5")
NOWHERE = "0" * 64


class World:
    """A driver's folder, the folder that it is installed into, and what was told."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "tiny"
        self.home.mkdir()
        self.folder = folder / "state" / "tiny-mcp@1"
        self.told: list[tuple[int, int, str]] = []
        self.warned: list[str] = []

    def driver(self, *steps: tuple[str, dict[str, Any]], **fields: Any) -> DriverManifest:
        install = tuple(InstallStep(method, settings) for method, settings in steps)
        return driver(self.home, **{"server": TINY, "install": install, **fields})

    async def prepare(
        self, manifest: DriverManifest, *, allowed: bool = True, **more: Any
    ) -> Installation:
        return await with_timeout(
            prepare(
                manifest,
                folder=self.folder,
                allowed=allowed,
                progress=lambda *told: self.told.append(told),
                warn=self.warned.append,
                **more,
            ),
            100.0,
        )

    async def failed(self, manifest: DriverManifest, **more: Any) -> InterlockError:
        with pytest.raises(InterlockError) as error:
            await self.prepare(manifest, **more)
        return error.value


def npm_package(path: Path, version: str = "0.6.0", **more: Any) -> str:
    """A package of npm as a tarball; its SHA-256."""
    fields = {
        "name": "tiny-server",
        "version": version,
        "bin": {"tiny-server": "cli.js"},
        "scripts": {"postinstall": "touch ../../run-by-npm"},
        **more,
    }
    script = f"#!/usr/bin/env node\nconsole.log('tiny v{version}', process.argv.slice(2).join());\n"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tape:
        for name, text, mode in (
            ("package/package.json", json.dumps(fields), 0o644),
            ("package/cli.js", script, 0o755),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), mode
            tape.addfile(entry, io.BytesIO(text.encode()))
    path.write_bytes(buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def add_vendored_program(world: World, text: str = "#!/bin/sh\necho v0.6\n") -> str:
    """A program that comes with the driver; its SHA-256."""
    path = world.home / "tool"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return hashlib.sha256(text.encode()).hexdigest()


def add_fake_program(folder: Path, name: str, cmd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of this name that comes first on the PATH."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    (bin_folder / name).write_text(f"#!/bin/sh\n{cmd}\n", encoding="utf-8")
    (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
