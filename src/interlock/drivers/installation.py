"""Installation of a driver's server on this machine, and the check of its version (AIP-32).

Everything goes into one private folder of the driver. A completed installation has a marker file,
which is written last. A folder without a marker is an interrupted installation and is deleted
before the next attempt. Installing runs only installers, never the installed code: npm runs without
scripts, pip does not build.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from interlock.core.config import redact
from interlock.core.config.problems import InvalidValueError
from interlock.core.upstreams.oauth.urls import is_secure
from interlock.core.upstreams.transports.process import child_environment
from interlock.drivers import processes
from interlock.drivers.processes import CommandResult, CommandRunner, printable_excerpt
from interlock.drivers.sandbox.docker import is_image
from interlock.errors import INSTALL_FAILED, VERSION_MISMATCH, InterlockError
from interlock.manifests.model import DriverManifest, VersionCheck
from interlock.manifests.ranges import in_range

# -- Content of a driver's private folder: the installation method and the program.
#
# A server is started from this folder without network access: the program itself, not `npx`.

MARKER: Final = "installed.json"
VENV: Final = "venv"
DOWNLOAD: Final = "download"
_MAX_FILE_BYTES: Final = 1024 * 1024
_NAME: Final = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*")


class InstallMarker(Struct, frozen=True, rename={"install_digest": "wanted"}):
    """The marker of a completed installation."""

    method: str
    install_digest: str
    """Digest of the manifest's `install` at the time of the installation."""
    at: float
    settings: dict[str, Any]


class _Package(Struct, frozen=True):
    version: str = ""
    bin: str | dict[str, str] = ""


def read_marker(folder: Path) -> InstallMarker | None:
    """Read the marker of a folder. None: no installation was completed there."""
    content = _content(folder / MARKER)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=InstallMarker)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def package_name(spec: str) -> str:
    """Return the name of an npm package: `@scope/name@1.2.3` → `@scope/name`. Empty if it is
    invalid."""
    name = spec[: spec.index("@", 1)] if "@" in spec[1:] else spec
    return name if _NAME.fullmatch(name) else ""


def installed_bin(manifest: DriverManifest, folder: Path) -> Path | None:
    """Return the program of an installed driver. None: it is not installed."""
    marker, server = read_marker(folder), manifest.server
    if marker is None or server is None:
        return None
    match marker.method:
        case "npm":
            program = _npm_bin(folder, package_name(server.package))
        case "pip":
            program = (
                folder / VENV / "bin" / (_relative_path(marker, "bin") or Path(server.path).name)
            )
        case "download":
            program = folder / DOWNLOAD / (_relative_path(marker, "bin") or Path(server.path).name)
        case "vendored":
            program = manifest.folder / _relative_path(marker, "path")
        case _:
            return None
    return program if program is not None and program.is_file() else None


def package_version(manifest: DriverManifest, folder: Path) -> str:
    """Return the version of an installed npm package. Empty: it is not installed."""
    if manifest.server is None or manifest.server.kind != "npm" or read_marker(folder) is None:
        return ""
    package = _npm_package(folder, package_name(manifest.server.package))
    return "" if package is None else package.version


def _npm_bin(folder: Path, name: str) -> Path | None:
    package = _npm_package(folder, name)
    if package is None or not package.bin:
        return None
    default = name.rpartition("/")[2]
    if isinstance(package.bin, str) or default in package.bin:
        program = default
    elif len(package.bin) == 1:
        program = next(iter(package.bin))
    else:
        return None
    # A name with a slash would lead out of the folder. npm never creates one.
    return folder / "node_modules" / ".bin" / program if "/" not in program else None


def _npm_package(folder: Path, name: str) -> _Package | None:
    content = _content(folder / "node_modules" / name / "package.json") if name else None
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=_Package)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _relative_path(marker: InstallMarker, name: str) -> str:
    """Return a setting that is a path inside the folder. Empty: it is missing or leads outside."""
    path = marker.settings.get(name)
    if not isinstance(path, str) or Path(path).is_absolute() or ".." in Path(path).parts:
        return ""
    return path


def _content(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError:
        return None


# -- Installation methods: npm, pip, docker, vendored and download.
#
# Each method runs one entry of `install` in an empty folder and raises InstallStepError on failure.
# The entries are untrusted text: a package is a name in a registry or a file beside the manifest,
# and no text is passed as an option.

INSTALL_TIMEOUT_SECONDS: Final = 600.0
"""Timeout of one installer."""
_NPM: Final = re.compile(
    r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*(?:@[0-9A-Za-z.^~<>=*+ -]+)?"
)
_PIP: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?(?:[<>=!~]=?[0-9A-Za-z.*+!,<>=~-]+)?"
)
_IMAGE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?")
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+!_-]*")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
# Installers get the operator's settings, such as package sources. They do not run what they
# install.
_INSTALLER_VARIABLES: Final = ("PIP_", "NPM_CONFIG_", "npm_config_", "DOCKER_")
_NPM_TIMEOUTS: Final = {"fetch-retries": 1, "fetch-timeout": 20000}
_NPM_ERROR_LINE: Final = re.compile(r"npm (?:error|ERR!) (?:(?:404|network) +)?(\S.*)")
_NPM_MACHINE_FIELDS: Final = frozenset(
    {"code", "syscall", "errno", "path", "dest", "command", "signal"}
)
"""First words of npm's error lines that are for programs."""
_CHUNK: Final = 1024 * 1024
_DOWNLOADER: Final = Path(__file__).with_name("download.py")


FailureReader = Callable[[CommandResult], str]
"""Extracts the reason of a failure from an installer's output."""


class InstallStepError(Exception):
    """The reason why an installation method failed, as the rest of a sentence."""


class InstallSite(Struct, frozen=True):
    """The target of an installation: the driver and its folder."""

    manifest: DriverManifest
    folder: Path
    run: CommandRunner
    warn: Callable[[str], None]

    async def run_installer(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        read_failure: FailureReader | None = None,
    ) -> CommandResult:
        """Run an installer. Raises InstallStepError with the reason that `read_failure` extracts
        from its output."""
        settings = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_INSTALLER_VARIABLES)
        }
        result = await self.run(
            argv,
            env=child_environment(settings),
            cwd=str(cwd or self.folder),
            timeout=INSTALL_TIMEOUT_SECONDS,
        )
        if not result.exited_with(0):
            reason = result.last_line if read_failure is None else read_failure(result)
            raise InstallStepError(
                redact(f"{result.ending}: {reason}" if reason else result.ending)
            )
        return result

    def driver_file(self, path: str) -> Path:
        """Return a file in the driver's folder. Raises InstallStepError if it is missing or
        outside."""
        folder = self.manifest.folder.resolve()
        file = (folder / path).resolve()
        if not file.is_relative_to(folder):
            raise InstallStepError(f"{path} is outside the driver's folder")
        if not file.exists():
            raise InstallStepError(f"there is no {path} in the driver's folder")
        return file


async def npm(site: InstallSite, settings: Mapping[str, Any]) -> None:
    """Install a package of the npm registry, or a tarball beside the manifest."""
    if settings.get("global"):
        site.warn(f"{site.manifest.id}: npm installs into the driver's own folder, never globally")
    package = _package(site, settings, _NPM, "@", (".tgz", ".tar.gz"))
    expected = _hash(settings)
    (site.folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
    if expected and not Path(package).is_absolute():
        download_folder = site.folder / "packed"
        download_folder.mkdir()
        await site.run_installer(
            ["npm", "pack", *_npm_timeouts(os.environ), "--loglevel=error", "--pack-destination",
             str(download_folder), "--", package],
            read_failure=npm_error,
        )  # fmt: skip
        package = str(_only_file(download_folder))
    if expected:
        require_hash(Path(package), expected)
    await site.run_installer(
        ["npm", "install", "--prefix", str(site.folder), "--ignore-scripts", "--no-audit",
         "--no-fund", "--no-update-notifier", "--loglevel=error", *_npm_timeouts(os.environ), "--",
         package],
        read_failure=npm_error,
    )  # fmt: skip


def _npm_timeouts(environ: Mapping[str, str]) -> list[str]:
    """Return npm options with short network timeouts: without a network npm waits for minutes.
    Settings of the operator take precedence."""
    settings = {name.lower() for name in environ}
    return [
        f"--{name}={value}"
        for name, value in _NPM_TIMEOUTS.items()
        if f"npm_config_{name.replace('-', '_')}" not in settings
    ]


def npm_error(result: CommandResult) -> str:
    """Extract the reason from npm's error output. npm states it at the beginning: a code, such as
    E404 or ENOTFOUND, and then a sentence. The last lines are advice and the path of npm's log."""
    lines = [
        match[1] for line in result.err.splitlines() if (match := _NPM_ERROR_LINE.fullmatch(line))
    ]
    code = next((line[5:] for line in lines if line.startswith("code ")), "")
    sentence = next((line for line in lines if line.split(" ")[0] not in _NPM_MACHINE_FIELDS), "")
    reason = ": ".join(part for part in (code, sentence) if part)
    return printable_excerpt(reason) if reason else result.last_line


async def pip(site: InstallSite, settings: Mapping[str, Any]) -> None:
    """Install a wheel of the package index, or a wheel beside the manifest, in a virtual
    environment."""
    package = _package(site, settings, _PIP, "==", (".whl",))
    expected = _hash(settings)
    venv = site.folder / VENV
    await site.run_installer([sys.executable, "-m", "venv", "--without-pip", str(venv)])
    base = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "--quiet"]
    if expected and not Path(package).is_absolute():
        download_folder = site.folder / "packed"
        await site.run_installer(
            [*base, "download", "--no-deps", "--only-binary", ":all:", "--dest",
             str(download_folder), "--", package]
        )  # fmt: skip
        package = str(_only_file(download_folder))
    if expected:
        require_hash(Path(package), expected)
    await site.run_installer(
        [*base, "--python", str(venv / "bin" / "python"), "install", "--only-binary", ":all:",
         "--no-compile", "--", package]
    )  # fmt: skip


async def docker(site: InstallSite, settings: Mapping[str, Any]) -> None:
    """Pull an image."""
    image = _text(settings, "image") or _text(settings, "package") or _text(settings, "url")
    image = image.removeprefix("docker://")
    if not image and site.manifest.server is not None:
        image = site.manifest.server.image
    expected = _hash(settings)
    if expected and "@" not in image:
        repository, colon, tag = image.rpartition(":")
        image = f"{repository if colon and '/' not in tag else image}@sha256:{expected}"
    if not _IMAGE.fullmatch(image):
        raise InstallStepError(f"{image!r} is not the name of an image")
    await site.run_installer(["docker", "pull", "--quiet", image])


async def vendored(site: InstallSite, settings: Mapping[str, Any]) -> None:
    """Use a file of the driver's own folder."""
    path = _text(settings, "path") or _text(settings, "package")
    if not path:
        raise InstallStepError("`path` is missing")
    file = site.driver_file(path)
    expected = _hash(settings)
    if expected:
        require_hash(file, expected)


async def download(site: InstallSite, settings: Mapping[str, Any]) -> None:
    """Download a file and verify its SHA-256."""
    url = _text(settings, "url")
    if url.startswith("docker://"):
        await docker(site, {**settings, "image": url})
        return
    expected = _hash(settings)
    if not expected:
        raise InstallStepError("`sha256` is missing; a download needs it")
    if not is_secure(url):
        raise InstallStepError(f"{url} must be an https URL or a URL of this machine")
    target = site.folder / DOWNLOAD
    target.mkdir(mode=0o700)
    name = Path(_text(settings, "bin")).name or Path(url.partition("?")[0]).name
    # Downloads run in a process of their own: it can be killed, and it reads untrusted archives.
    await site.run_installer(
        [sys.executable, "-I", str(_DOWNLOADER), url, str(target), name, expected]
    )


STEPS: Final[dict[str, Callable[[InstallSite, Mapping[str, Any]], Awaitable[None]]]] = {
    "npm": npm,
    "pip": pip,
    "docker": docker,
    "vendored": vendored,
    "download": download,
}


def require_hash(path: Path, expected: str) -> None:
    """Raise InstallStepError if the SHA-256 of a file is not the expected one."""
    if not path.is_file():
        raise InstallStepError(f"{path.name} is not a file, so its sha256 cannot be checked")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise InstallStepError(
            f"{path.name} is rejected: its SHA-256 is {digest.hexdigest()}, expected {expected}"
        )


def _package(
    site: InstallSite,
    settings: Mapping[str, Any],
    pattern: re.Pattern[str],
    separator: str,
    endings: tuple[str, ...],
) -> str:
    """Return the package argument of an installer: a name with a version, or the absolute path of a
    local file."""
    name = _text(settings, "package")
    if name.startswith(("./", "../")) and name.endswith(endings):
        return str(site.driver_file(name))
    version = _text(settings, "version")
    if version:
        if not _VERSION.fullmatch(version):
            raise InstallStepError(f"{version!r} is not a version")
        name = f"{name}{separator}{version}"
    if not pattern.fullmatch(name):
        raise InstallStepError(
            f"{name!r} is not a package name (a file beside the driver begins with ./ and "
            f"ends with {' or '.join(endings)})"
        )
    return name


def _text(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name, "")
    return value.strip() if isinstance(value, str) else str(value)


def _hash(settings: Mapping[str, Any]) -> str:
    value = _text(settings, "sha256") or _text(settings, "checksum")
    expected = value.lower().removeprefix("sha256:").removeprefix("sha256-")
    if expected and not _SHA256.fullmatch(expected):
        raise InstallStepError("`sha256` must be 64 hexadecimal digits")
    return expected


def _only_file(folder: Path) -> Path:
    files = [path for path in folder.iterdir() if path.is_file()]
    if len(files) != 1:
        raise InstallStepError(
            "the download is not exactly one file, so its sha256 cannot be checked"
        )
    return files[0]


# -- Version check of a driver's program.
#
# The pattern that finds the version in the command's output is untrusted. It is matched in a
# process of its own, which is killed after a timeout.

_MATCH_TIMEOUT_SECONDS: Final = 5.0
_MAX_VERSION_OUTPUT: Final = 16 * 1024
_LOOSE_VERSION: Final = re.compile(
    r"[v=\s]*(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?"
    r"(-[0-9A-Za-z][0-9A-Za-z.-]*)?(\+[0-9A-Za-z.-]+)?\s*"
)
_MATCHER: Final = (
    "import json, re, sys; pattern, text = json.load(sys.stdin); found = re.search(pattern, text); "
    "print(json.dumps(found and (found.group(1) if found.re.groups else found.group())))"
)


class VersionResult(Struct, frozen=True):
    """The result of a version check."""

    version: str = ""
    """The version with three parts. Empty: none was found."""
    problem: str = ""
    """Why the version is not accepted, as the rest of a sentence. Empty: it is accepted."""


async def check_version(
    manifest: DriverManifest,
    *,
    run: CommandRunner = processes.run,
    env: Mapping[str, str] | None = None,
    command: Callable[[str], list[str]] | None = None,
    fallback_version: Callable[[], str] | None = None,
    reinstall: Callable[[], Awaitable[None]] | None = None,
) -> str:
    """Check the installed version and return it. Empty if the manifest has no version check.

    Args:
        run: runs the version command.
        command: splits the version command into arguments and may replace `npx` by the installed
            program.
        otherwise: returns the version if the command does not report one.
        reinstall: called once if the version is not accepted.

    Raises:
        InterlockError: the version is not accepted, or the installation failed.
    """
    check = manifest.version_check
    if check is None:
        return ""
    result = await _inspect_version(manifest, check, run, env or {}, command, fallback_version)
    if result.problem and reinstall is not None:
        try:
            await reinstall()
        except InterlockError as error:
            if not result.version:
                raise
            raise _mismatch(manifest, check, result, error.message) from error
        result = await _inspect_version(manifest, check, run, env or {}, command, fallback_version)
    if result.problem:
        raise _mismatch(manifest, check, result)
    return result.version


async def _inspect_version(
    manifest: DriverManifest,
    check: VersionCheck,
    run: CommandRunner,
    env: Mapping[str, str],
    command: Callable[[str], list[str]] | None,
    fallback_version: Callable[[], str] | None,
) -> VersionResult:
    try:
        argv = check.cmd if command is None else command(check.cmd)
    except ValueError as error:
        return VersionResult(problem=f"version_check.cmd: {error}")
    result = await run(argv, env=env, cwd=str(manifest.folder), timeout=check.timeout_ms / 1000)
    reported = ""
    if not result.start_error and not result.timed_out:
        for text in (result.out, result.err):
            reported = reported or await match_version(check.parse, text[:_MAX_VERSION_OUTPUT])
    fallback = "" if fallback_version is None else fallback_version()
    # A failed command may have reported the version of something else, such as its runtime.
    first, second = (reported, fallback) if result.status == 0 else (fallback, reported)
    version = normalize_version(first) or normalize_version(second)
    if not version:
        reason = (
            result.ending
            if result.start_error or result.timed_out
            else "its output has no version that matches version_check.parse"
        )
        return VersionResult(problem=f"version_check.cmd: {reason}")
    try:
        fits = in_range(version, check.range)
    except InvalidValueError as error:
        return VersionResult(version, f"version_check: {error.message}")
    if not fits:
        return VersionResult(version, f"its version is {version}; {check.range} is required")
    return VersionResult(version)


async def match_version(pattern: str, text: str) -> str:
    """Return the text of the first group of a pattern, or the whole match if the pattern has no
    group. Empty if nothing matches, the pattern is invalid or the match takes too long."""
    if not text.strip():
        return ""
    result = await processes.run(
        [sys.executable, "-I", "-S", "-c", _MATCHER],
        env={},
        cwd=None,
        timeout=_MATCH_TIMEOUT_SECONDS,
        stdin=msgspec.json.encode([pattern, text]),
    )
    if not result.exited_with(0):
        return ""
    version = msgspec.json.decode(result.out)
    return version if isinstance(version, str) else ""


def normalize_version(text: str) -> str:
    """Normalize a version to three parts: `v0.4` → `0.4.0`. Empty if the text is not a version."""
    match = _LOOSE_VERSION.fullmatch(text)
    if match is None:
        return ""
    numbers = ".".join(str(int(match[part] or 0)) for part in (1, 2, 3))
    return f"{numbers}{match[4] or ''}{match[5] or ''}"


def _mismatch(
    manifest: DriverManifest, check: VersionCheck, result: VersionResult, advice: str = ""
) -> InterlockError:
    return InterlockError(
        VERSION_MISMATCH,
        f"{manifest.id}: {result.problem}. "
        + (advice or f"Install a version that matches {check.range}."),
        {"driver": manifest.id, "version": result.version, "range": check.range},
    )


ALLOW_INSTALL_SETTING: Final = "drivers: {allow_install: true}"
"""The config line that allows a node to install drivers."""
_LOCK_POLL_SECONDS: Final = 0.2

_log = logging.getLogger("interlock.drivers")

Progress = Callable[[int, int, str], None]
"""Reports the progress: step, number of steps, and what is done."""


class Installation(Struct, frozen=True):
    """The result of a preparation."""

    program: Path | None = None
    """The installed program, if there is one."""
    version: str = ""
    """The version of the version check. Empty if there is no check."""
    installed_now: bool = False


def not_installed(id: str) -> str:
    """Return the message for a driver that is not installed or outdated. All commands use the same
    text."""
    return (
        f"{id} is not installed on this machine. Run `interlock drivers install {id}`, or let the "
        f"node install it: add `{ALLOW_INSTALL_SETTING}` to interlock.yaml."
    )


def driver_folder(state: Path, manifest: DriverManifest) -> Path:
    """Return the private folder of a driver below a node's installation folder."""
    return state / "drivers" / manifest.key.replace(os.sep, "_").lstrip(".")


def _ignore_progress(step: int, step_count: int, text: str) -> None:
    """Ignore the progress."""


async def prepare(
    manifest: DriverManifest,
    *,
    folder: Path,
    allowed: bool,
    run: CommandRunner = processes.run,
    check: CommandRunner | None = None,
    env: Mapping[str, str] | None = None,
    progress: Progress = _ignore_progress,
    warn: Callable[[str], None] = _log.warning,
    force: bool = False,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Installation:
    """Install a driver's program if necessary and check its version. A program that is already on
    this machine is not installed again.

    Args:
        folder: the driver's private folder (`driver_folder`).
        allowed: installation is allowed.
        run: runs installers.
        check: runs the manifest's version check. Default: `run`.
        env: the environment of the version check.
        again: install even if it is installed already.

    Raises:
        InterlockError: it is not installed, cannot be installed or has the wrong version.
    """
    if manifest.server is not None and manifest.server.kind == "remote":
        if manifest.install:
            warn(f"{manifest.id}: its server is remote, so `install` is ignored")
        return Installation()
    preparation = _Preparation(
        manifest, folder, allowed, run, check or run, dict(env or {}), progress, warn, sleep
    )
    if not manifest.install:
        return Installation(version=await preparation.version())
    if force or (allowed and preparation.is_outdated()):
        await preparation.install()
        version = await preparation.version()
    elif manifest.version_check is not None:
        # A missing or wrong version is fixed by one installation.
        version = await preparation.version(preparation.install)
    else:
        version = ""
        if not preparation.is_installed() and not await preparation.is_available():
            await preparation.install()
    preparation.report_done()
    return Installation(installed_bin(manifest, folder), version, preparation.installed)


class _Preparation:
    """The preparation of one driver."""

    def __init__(
        self,
        manifest: DriverManifest,
        folder: Path,
        allowed: bool,
        run: CommandRunner,
        check: CommandRunner,
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
        self._steps = [step for step in manifest.install if step.method in STEPS]
        self._step_count = len(self._steps) + 1
        self.installed = False

    # -- current state

    def is_installed(self) -> bool:
        """Return whether an installation for the current `install` of the manifest was
        completed."""
        marker = read_marker(self._folder)
        return marker is not None and marker.install_digest == self._install_digest()

    def is_outdated(self) -> bool:
        """Return whether the installation belongs to an earlier version of the manifest."""
        return read_marker(self._folder) is not None and not self.is_installed()

    async def is_available(self) -> bool:
        """Return whether the program is on this machine without an installation by Interlock."""
        server = self._manifest.server
        if server is not None and server.kind == "binary":
            program = (
                str(self._manifest.folder / server.path) if "/" in server.path else server.path
            )
            return shutil.which(program) is not None
        if server is not None and server.kind == "docker" and is_image(server.image):
            argv = ["docker", "image", "inspect", server.image]
            result = await self._run(argv, env={}, cwd=None, timeout=30.0)
            return result.exited_with(0)
        return False

    async def version(self, reinstall: Callable[[], Awaitable[None]] | None = None) -> str:
        """Check the version and return it. Raises InterlockError."""
        return await check_version(
            self._manifest,
            run=self._check,
            env=self._env,
            command=self._command,
            fallback_version=lambda: package_version(self._manifest, self._folder),
            reinstall=reinstall,
        )

    def _command(self, cmd: str) -> list[str]:
        """Split a command of the manifest. The command must not download anything: `npx` gets
        --no-install, and for the driver's own package it is replaced by the installed program."""
        words = processes.split_command(cmd)
        if Path(words[0]).name != "npx":
            return words
        arguments = [word for word in words[1:] if word not in ("-y", "--yes", "--no-install")]
        server = self._manifest.server
        program = installed_bin(self._manifest, self._folder)
        own_package = "" if server is None else package_name(server.package)
        if (
            program is not None
            and own_package
            and arguments
            and package_name(arguments[0]) == own_package
        ):
            return [str(program), *arguments[1:]]
        return ["npx", "--no-install", *arguments]

    # -- installing

    async def install(self) -> None:
        """Install with the first method that succeeds. Raises InterlockError."""
        if not self._allowed:
            raise self._error(not_installed(self._manifest.id))
        before = read_marker(self._folder)
        async with self._install_lock():
            if self.is_installed() and read_marker(self._folder) != before:
                # Another process installed it while this one waited for the lock.
                return
            await self._try_steps()
        self.installed = True

    async def _try_steps(self) -> None:
        for step in self._manifest.install:
            if step.method not in STEPS:
                self._warn(
                    f"{self._manifest.id}: unknown install method {step.method!r} is skipped "
                    f"(known: {', '.join(STEPS)})"
                )
        failures: list[str] = []
        for number, step in enumerate(self._steps):
            self._progress(
                number, self._step_count, f"{step.method}: {_describe_step(step.settings)}"
            )
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700, parents=True)
            site = InstallSite(self._manifest, self._folder, self._run, self._warn)
            try:
                await STEPS[step.method](site, step.settings)
            except InstallStepError as failure:
                failures.append(f"{step.method}: {failure}")
                continue
            marker = InstallMarker(step.method, self._install_digest(), time.time(), step.settings)
            _write(self._folder / MARKER, msgspec.json.encode(marker))
            self._progress(self._step_count - 1, self._step_count, f"{step.method}: installed")
            return
        raise self._failed(
            "; ".join(failures) or f"no supported install method (supported: {', '.join(STEPS)})"
        )

    def report_done(self) -> None:
        if self.installed:
            self._progress(self._step_count, self._step_count, "ready")

    def _install_digest(self) -> str:
        """Return the digest of `install`: another package or version is another installation."""
        return hashlib.sha256(msgspec.json.encode(self._manifest.install)).hexdigest()

    def _failed(self, reason: str) -> InterlockError:
        id = self._manifest.id
        return self._error(
            f"Cannot install {id}: {reason.rstrip('.')}. Fix this, then run "
            f"`interlock drivers install {id}`."
        )

    def _error(self, message: str) -> InterlockError:
        data = {"driver": self._manifest.id, "allow_install": self._allowed}
        return InterlockError(INSTALL_FAILED, message, data)

    @contextlib.asynccontextmanager
    async def _install_lock(self) -> AsyncIterator[None]:
        """Hold the lock that allows only one process to install this driver."""
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
                    await self._sleep(_LOCK_POLL_SECONDS)
            yield
        finally:
            # Closing the file releases the lock.
            os.close(lock)


def _describe_step(settings: Mapping[str, object]) -> str:
    for name in ("package", "image", "url", "path"):
        if isinstance(settings.get(name), str):
            return str(settings[name])
    return ""


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, also across a power failure."""
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


# -- Retry of failed installations and version checks: at once if something was installed in the
# driver's folder, otherwise after a delay.

RECHECK_SECONDS: Final = 5.0
"""Delay if the node does not install: the program may have been installed in another way."""
INSTALL_RETRY_SECONDS: Final = 60.0
"""Delay if the node installs: an attempt without network takes long."""

InstallFingerprint = tuple[int, int, int] | None


class InstallFailure(Struct, frozen=True):
    """A failed installation attempt."""

    folder: Path
    fingerprint: InstallFingerprint
    """Fingerprint of the folder at the time of the failure."""
    retry_at: float
    """Time of the next attempt, on the clock of the lifecycle."""

    def is_outdated(self) -> bool:
        """Return whether something was installed since."""
        return install_fingerprint(self.folder) != self.fingerprint


def install_fingerprint(folder: Path) -> InstallFingerprint:
    """Return a value that changes with each installation. None: nothing is installed."""
    try:
        status = os.stat(folder / MARKER)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
