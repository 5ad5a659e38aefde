"""Having what a driver needs on this machine: installed when that is allowed, and of the right
version.

Everything goes into one private folder of the driver. What was installed whole has a marker in it,
written last; a folder without one was cut short, and is cleared away before the next attempt.
Installing runs installers and never the code of what they install: npm without its scripts, pip
without building.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from interlock.errors import INSTALL_FAILED, InterlockError
from interlock.manifests.driver import DriverManifest
from interlock.upstreams.drivers import processes
from interlock.upstreams.drivers.installing_bin import (
    MARKER,
    Marker,
    installed_bin,
    package_name,
    package_version,
    read_marker,
)
from interlock.upstreams.drivers.installing_steps import STEPS, Site, StepFailed
from interlock.upstreams.drivers.processes import Runs
from interlock.upstreams.drivers.versions import check_version
from interlock.upstreams.egress.docker import is_image

ALLOW: Final = "drivers: {allow_install: true}"
"""The line that lets a node install."""
_LOOK_AGAIN: Final = 0.2

_log = logging.getLogger("interlock.drivers")

Progress = Callable[[int, int, str], None]
"""Is told how far it is: step, of how many, and what is done."""


class Prepared(Struct, frozen=True):
    """What a driver has on this machine."""

    program: Path | None = None
    """Its program, where an installed copy has one."""
    version: str = ""
    """As its version check found it; empty when it has none."""
    installed_now: bool = False


def not_installed(id: str) -> str:
    """What a person does about a driver that is not there: the same sentence wherever it is told.
    Also when what is there is too old."""
    return (
        f"What {id} needs is not installed here. Run `interlock drivers install {id}`, or let the "
        f"node do it: add `{ALLOW}` to interlock.yaml."
    )


def driver_folder(state: Path, manifest: DriverManifest) -> Path:
    """The private folder of a driver below a node's state folder."""
    return state / "drivers" / manifest.key.replace(os.sep, "_").lstrip(".")


def _unheard(step: int, of: int, text: str) -> None:
    """Nobody looks."""


async def prepare(
    manifest: DriverManifest,
    *,
    folder: Path,
    allowed: bool,
    run: Runs = processes.run,
    check: Runs | None = None,
    env: Mapping[str, str] | None = None,
    progress: Progress = _unheard,
    warn: Callable[[str], None] = _log.warning,
    again: bool = False,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Prepared:
    """Have a driver's program there, and of the right version. Raises InterlockError.

    `folder` is the driver's own (`driver_folder`). `again`: also when it was installed before.
    What is on this machine already, by whatever way, is not installed. `run` runs installers, and
    `check` the manifest's own version check.
    """
    if manifest.server is not None and manifest.server.kind == "remote":
        if manifest.install:
            warn(f"{manifest.id}: its server is remote, so what it says under install is ignored")
        return Prepared()
    desk = _Desk(
        manifest, folder, allowed, run, check or run, dict(env or {}), progress, warn, sleep
    )
    if not manifest.install:
        return Prepared(version=await desk.version())
    if again or (allowed and desk.is_outdated()):
        await desk.install()
        version = await desk.version()
    elif manifest.version_check is not None:
        # A version that will not do, or none at all, is mended by installing: once.
        version = await desk.version(desk.install)
    else:
        version = ""
        if not desk.is_installed() and not await desk.is_there():
            await desk.install()
    desk.done()
    return Prepared(installed_bin(manifest, folder), version, desk.installed)


class _Desk:
    """One driver that is being prepared."""

    def __init__(
        self,
        manifest: DriverManifest,
        folder: Path,
        allowed: bool,
        run: Runs,
        check: Runs,
        env: dict[str, str],
        progress: Progress,
        warn: Callable[[str], None],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._manifest = manifest
        self._folder = folder
        self._allowed = allowed
        self._run = run
        self._check = check
        self._env = env
        self._progress = progress
        self._warn = warn
        self._sleep = sleep
        self._known = [step for step in manifest.install if step.method in STEPS]
        self._of = len(self._known) + 1
        self.installed = False

    # -- what is there

    def is_installed(self) -> bool:
        """Whether an install came to its end here, for what the manifest says today."""
        marker = read_marker(self._folder)
        return marker is not None and marker.wanted == self._wanted()

    def is_outdated(self) -> bool:
        """Whether what was installed here is not what the manifest says today."""
        return read_marker(self._folder) is not None and not self.is_installed()

    async def is_there(self) -> bool:
        """Whether it is on this machine without us."""
        server = self._manifest.server
        if server is not None and server.kind == "binary":
            program = (
                str(self._manifest.folder / server.path) if "/" in server.path else server.path
            )
            return shutil.which(program) is not None
        if server is not None and server.kind == "docker" and is_image(server.image):
            asked = ["docker", "image", "inspect", server.image]
            ran = await self._run(asked, env={}, cwd=None, timeout=30.0)
            return ran.ended_with(0)
        return False

    async def version(self, reinstall: Callable[[], Awaitable[None]] | None = None) -> str:
        """Its version. Raises InterlockError when it will not do."""
        return await check_version(
            self._manifest,
            run=self._check,
            env=self._env,
            command=self._command,
            otherwise=lambda: package_version(self._manifest, self._folder),
            reinstall=reinstall,
        )

    def _command(self, cmd: str) -> list[str]:
        """A command of the manifest, which must not fetch anything: `npx` only knows what is
        installed, and of the driver's own package that is the copy in its folder."""
        words = processes.argv_of(cmd)
        if Path(words[0]).name != "npx":
            return words
        rest = [word for word in words[1:] if word not in ("-y", "--yes", "--no-install")]
        server = self._manifest.server
        program = installed_bin(self._manifest, self._folder)
        own = "" if server is None else package_name(server.package)
        if program is not None and own and rest and package_name(rest[0]) == own:
            return [str(program), *rest[1:]]
        return ["npx", "--no-install", *rest]

    # -- installing

    async def install(self) -> None:
        """By the first way that works. Raises InterlockError."""
        if not self._allowed:
            raise self._error(not_installed(self._manifest.id))
        before = read_marker(self._folder)
        async with self._alone():
            if self.is_installed() and read_marker(self._folder) != before:
                # Somebody else did it while we waited.
                return
            await self._first_that_works()
        self.installed = True

    async def _first_that_works(self) -> None:
        for step in self._manifest.install:
            if step.method not in STEPS:
                self._warn(
                    f"{self._manifest.id}: install method {step.method!r} is not known here, and "
                    f"skipped (known: {', '.join(STEPS)})"
                )
        why: list[str] = []
        for number, step in enumerate(self._known):
            self._progress(number, self._of, f"{step.method}: {_what(step.settings)}")
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700, parents=True)
            site = Site(self._manifest, self._folder, self._run, self._warn)
            try:
                await STEPS[step.method](site, step.settings)
            except StepFailed as failed:
                why.append(f"{step.method}: {failed}")
                continue
            marker = Marker(step.method, self._wanted(), time.time(), step.settings)
            _write(self._folder / MARKER, msgspec.json.encode(marker))
            self._progress(self._of - 1, self._of, f"{step.method}: installed")
            return
        raise self._failed("; ".join(why) or "no way to install it is known here")

    def done(self) -> None:
        if self.installed:
            self._progress(self._of, self._of, "ready")

    def _wanted(self) -> str:
        """What an install was for: another package or version is another install."""
        return hashlib.sha256(msgspec.json.encode(self._manifest.install)).hexdigest()

    def _failed(self, why: str) -> InterlockError:
        id = self._manifest.id
        return self._error(
            f"Cannot install {id}: {why.rstrip('.')}. When that is mended: "
            f"`interlock drivers install {id}`."
        )

    def _error(self, message: str) -> InterlockError:
        data = {"driver": self._manifest.id, "allow_install": self._allowed}
        return InterlockError(INSTALL_FAILED, message, data)

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Be the only process that installs this driver."""
        try:
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(
                self._folder.parent / f".{self._folder.name}.lock",
                os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                0o600,
            )
        except OSError as error:
            raise self._failed(
                f"{self._folder} cannot be written ({str(error.strerror).lower()})"
            ) from None
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await self._sleep(_LOOK_AGAIN)
            yield
        finally:
            # Closing gives the lock back.
            os.close(lock)


def _what(settings: Mapping[str, object]) -> str:
    for name in ("package", "image", "url", "path"):
        if isinstance(settings.get(name), str):
            return str(settings[name])
    return ""


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, also when the power fails."""
    beside = path.with_suffix(".part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
