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
from interlock.core.config.problems import BadValue
from interlock.core.upstreams.oauth.urls import is_secure
from interlock.core.upstreams.transports.process import child_environment
from interlock.drivers import processes
from interlock.drivers.processes import CommandResult, CommandRunner, printable_excerpt
from interlock.drivers.sandbox.docker import is_image
from interlock.errors import INSTALL_FAILED, VERSION_MISMATCH, InterlockError
from interlock.manifests.model import DriverManifest, VersionCheck
from interlock.manifests.ranges import in_range

# -- What is in a driver's private folder: how it came there, and the program in it.
#
# A server is started from here without the network: by the program itself, not by `npx`.

MARKER: Final = "installed.json"
VENV: Final = "venv"
DOWNLOAD: Final = "download"
_LONGEST: Final = 1024 * 1024
_NAME: Final = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*")


class InstallMarker(Struct, frozen=True):
    """What was installed here, to its end."""

    method: str
    wanted: str
    """The digest of what the manifest said under install."""
    at: float
    settings: dict[str, Any]


class _Package(Struct, frozen=True):
    version: str = ""
    bin: str | dict[str, str] = ""


def read_marker(folder: Path) -> InstallMarker | None:
    """The marker of a folder; None when nothing was installed there to its end."""
    content = _content(folder / MARKER)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=InstallMarker)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def package_name(spec: str) -> str:
    """`@scope/name@1.2.3` → `@scope/name`. Empty for what is not the name of an npm package."""
    name = spec[: spec.index("@", 1)] if "@" in spec[1:] else spec
    return name if _NAME.fullmatch(name) else ""


def installed_bin(manifest: DriverManifest, folder: Path) -> Path | None:
    """The program of an installed copy; None when there is none."""
    marker, server = read_marker(folder), manifest.server
    if marker is None or server is None:
        return None
    match marker.method:
        case "npm":
            found = _npm_bin(folder, package_name(server.package))
        case "pip":
            found = folder / VENV / "bin" / (_said(marker, "bin") or Path(server.path).name)
        case "download":
            found = folder / DOWNLOAD / (_said(marker, "bin") or Path(server.path).name)
        case "vendored":
            found = manifest.folder / _said(marker, "path")
        case _:
            return None
    return found if found is not None and found.is_file() else None


def package_version(manifest: DriverManifest, folder: Path) -> str:
    """The version that an installed npm package says of itself; empty when there is none."""
    if manifest.server is None or manifest.server.kind != "npm" or read_marker(folder) is None:
        return ""
    package = _npm_package(folder, package_name(manifest.server.package))
    return "" if package is None else package.version


def _npm_bin(folder: Path, name: str) -> Path | None:
    package = _npm_package(folder, name)
    if package is None or not package.bin:
        return None
    own = name.rpartition("/")[2]
    if isinstance(package.bin, str) or own in package.bin:
        chosen = own
    elif len(package.bin) == 1:
        chosen = next(iter(package.bin))
    else:
        return None
    # A name with a slash would lead out of the folder; npm makes none.
    return folder / "node_modules" / ".bin" / chosen if "/" not in chosen else None


def _npm_package(folder: Path, name: str) -> _Package | None:
    content = _content(folder / "node_modules" / name / "package.json") if name else None
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=_Package)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _said(marker: InstallMarker, name: str) -> str:
    """A setting that is a path inside the folder."""
    said = marker.settings.get(name)
    if not isinstance(said, str) or Path(said).is_absolute() or ".." in Path(said).parts:
        return ""
    return said


def _content(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST)
    except OSError:
        return None


# -- The ways to install that are known here: npm, pip, docker, vendored and download.
#
# Each does one entry of `install`, in a folder that is empty before it, and says why when it
# cannot. What an entry names is a stranger's text: packages go by their names in a registry or
# are files beside the manifest, and nothing of it is taken for an option.

INSTALL_TIMEOUT_SECONDS: Final = 600.0
"""How long one installer may take."""
_NPM: Final = re.compile(
    r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*(?:@[0-9A-Za-z.^~<>=*+ -]+)?"
)
_PIP: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?(?:[<>=!~]=?[0-9A-Za-z.*+!,<>=~-]+)?"
)
_IMAGE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?")
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+!_-]*")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
# Where packages come from is a matter of the machine: its operator's settings hold for installers,
# which run nothing of what they install.
_SETTINGS: Final = ("PIP_", "NPM_CONFIG_", "npm_config_", "DOCKER_")
_NPM_TIMEOUTS: Final = {"fetch-retries": 1, "fetch-timeout": 20000}
_NPM_ERROR_LINE: Final = re.compile(r"npm (?:error|ERR!) (?:(?:404|network) +)?(\S.*)")
_NPM_MACHINE_FIELDS: Final = frozenset(
    {"code", "syscall", "errno", "path", "dest", "command", "signal"}
)
"""Lines of npm's that are for programs begin with one of these."""
_CHUNK: Final = 1024 * 1024
_DOWNLOADER: Final = Path(__file__).with_name("download.py")


FailureReader = Callable[[CommandResult], str]
"""What of an installer's words says why it failed."""


class InstallStepError(Exception):
    """Why one way did not work, as the rest of a sentence."""


class InstallSite(Struct, frozen=True):
    """Where something is installed, and for whom."""

    manifest: DriverManifest
    folder: Path
    run: CommandRunner
    warn: Callable[[str], None]

    async def ran(
        self, argv: Sequence[str], *, cwd: Path | None = None, why: FailureReader | None = None
    ) -> CommandResult:
        """Run an installer. Raises InstallStepError, with what `why` makes of what it wrote."""
        settings = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
        ran = await self.run(
            argv,
            env=child_environment(settings),
            cwd=str(cwd or self.folder),
            timeout=INSTALL_TIMEOUT_SECONDS,
        )
        if not ran.exited_with(0):
            words = ran.last_line if why is None else why(ran)
            raise InstallStepError(redact(f"{ran.ending}: {words}" if words else ran.ending))
        return ran

    def beside(self, path: str) -> Path:
        """A file of the driver, by a path that starts at its folder. Raises InstallStepError."""
        folder = self.manifest.folder.resolve()
        found = (folder / path).resolve()
        if not found.is_relative_to(folder):
            raise InstallStepError(f"{path} is outside the driver's folder")
        if not found.exists():
            raise InstallStepError(f"there is no {path} in the driver's folder")
        return found


async def npm(site: InstallSite, settings: Mapping[str, Any]) -> None:
    """A package of npm's registry, or a tarball beside the manifest."""
    if settings.get("global"):
        site.warn(f"{site.manifest.id}: npm installs into the driver's own folder, never globally")
    what = _package(site, settings, _NPM, "@", (".tgz", ".tar.gz"))
    wanted = _hash(settings)
    (site.folder / "package.json").write_text('{"private": true}\n', encoding="utf-8")
    if wanted and not Path(what).is_absolute():
        packed = site.folder / "packed"
        packed.mkdir()
        await site.ran(
            ["npm", "pack", *_npm_timeouts(os.environ), "--loglevel=error", "--pack-destination",
             str(packed), "--", what],
            why=npm_error,
        )  # fmt: skip
        what = str(_only_file(packed))
    if wanted:
        require_hash(Path(what), wanted)
    await site.ran(
        ["npm", "install", "--prefix", str(site.folder), "--ignore-scripts", "--no-audit",
         "--no-fund", "--no-update-notifier", "--loglevel=error", *_npm_timeouts(os.environ), "--",
         what],
        why=npm_error,
    )  # fmt: skip


def _npm_timeouts(environ: Mapping[str, str]) -> list[str]:
    """npm waits for minutes where there is no network. Who set it up otherwise knows why."""
    known = {name.lower() for name in environ}
    return [
        f"--{name}={value}"
        for name, value in _NPM_TIMEOUTS.items()
        if f"npm_config_{name.replace('-', '_')}" not in known
    ]


def npm_error(ran: CommandResult) -> str:
    """What npm says went wrong. It ends with advice and with where its log is; why is said at the
    beginning: a code, such as E404 or ENOTFOUND, and a sentence after it."""
    said = [found[1] for line in ran.err.splitlines() if (found := _NPM_ERROR_LINE.fullmatch(line))]
    code = next((line[5:] for line in said if line.startswith("code ")), "")
    told = next((line for line in said if line.split(" ")[0] not in _NPM_MACHINE_FIELDS), "")
    words = ": ".join(part for part in (code, told) if part)
    return printable_excerpt(words) if words else ran.last_line


async def pip(site: InstallSite, settings: Mapping[str, Any]) -> None:
    """A wheel of the package index, or one beside the manifest, in an environment of its own."""
    what = _package(site, settings, _PIP, "==", (".whl",))
    wanted = _hash(settings)
    venv = site.folder / VENV
    await site.ran([sys.executable, "-m", "venv", "--without-pip", str(venv)])
    base = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "--quiet"]
    if wanted and not Path(what).is_absolute():
        packed = site.folder / "packed"
        await site.ran(
            [*base, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(packed),
             "--", what]
        )  # fmt: skip
        what = str(_only_file(packed))
    if wanted:
        require_hash(Path(what), wanted)
    await site.ran(
        [*base, "--python", str(venv / "bin" / "python"), "install", "--only-binary", ":all:",
         "--no-compile", "--", what]
    )  # fmt: skip


async def docker(site: InstallSite, settings: Mapping[str, Any]) -> None:
    """An image, pulled."""
    image = _text(settings, "image") or _text(settings, "package") or _text(settings, "url")
    image = image.removeprefix("docker://")
    if not image and site.manifest.server is not None:
        image = site.manifest.server.image
    wanted = _hash(settings)
    if wanted and "@" not in image:
        repository, colon, tag = image.rpartition(":")
        image = f"{repository if colon and '/' not in tag else image}@sha256:{wanted}"
    if not _IMAGE.fullmatch(image):
        raise InstallStepError(f"{image!r} is not the name of an image")
    await site.ran(["docker", "pull", "--quiet", image])


async def vendored(site: InstallSite, settings: Mapping[str, Any]) -> None:
    """A file that came with the driver."""
    path = _text(settings, "path") or _text(settings, "package")
    if not path:
        raise InstallStepError("it says no path")
    found = site.beside(path)
    wanted = _hash(settings)
    if wanted:
        require_hash(found, wanted)


async def download(site: InstallSite, settings: Mapping[str, Any]) -> None:
    """A file from a server, which must be the one that the manifest knows by its hash."""
    url = _text(settings, "url")
    if url.startswith("docker://"):
        await docker(site, {**settings, "image": url})
        return
    wanted = _hash(settings)
    if not wanted:
        raise InstallStepError("a download needs its sha256")
    if not is_secure(url):
        raise InstallStepError(f"{url} is neither https nor on this machine")
    target = site.folder / DOWNLOAD
    target.mkdir(mode=0o700)
    name = Path(_text(settings, "bin")).name or Path(url.partition("?")[0]).name
    # A process of its own: it can be ended in the middle, and reads strangers' archives.
    await site.ran([sys.executable, "-I", str(_DOWNLOADER), url, str(target), name, wanted])


STEPS: Final[dict[str, Callable[[InstallSite, Mapping[str, Any]], Awaitable[None]]]] = {
    "npm": npm,
    "pip": pip,
    "docker": docker,
    "vendored": vendored,
    "download": download,
}


def require_hash(path: Path, wanted: str) -> None:
    """Raises InstallStepError when a file is not the one that was meant."""
    if not path.is_file():
        raise InstallStepError(f"{path.name} is no file, so its sha256 cannot be checked")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != wanted:
        raise InstallStepError(
            f"{path.name} is refused: its SHA-256 is {digest.hexdigest()}, not {wanted}"
        )


def _package(
    site: InstallSite,
    settings: Mapping[str, Any],
    pattern: re.Pattern[str],
    joint: str,
    endings: tuple[str, ...],
) -> str:
    """What an installer is told: a name with a version, or the absolute path of a local file."""
    name = _text(settings, "package")
    if name.startswith(("./", "../")) and name.endswith(endings):
        return str(site.beside(name))
    version = _text(settings, "version")
    if version:
        if not _VERSION.fullmatch(version):
            raise InstallStepError(f"{version!r} is not a version")
        name = f"{name}{joint}{version}"
    if not pattern.fullmatch(name):
        raise InstallStepError(
            f"{name!r} is not the name of a package (a file beside the driver begins with ./ and "
            f"ends with {' or '.join(endings)})"
        )
    return name


def _text(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name, "")
    return value.strip() if isinstance(value, str) else str(value)


def _hash(settings: Mapping[str, Any]) -> str:
    said = _text(settings, "sha256") or _text(settings, "checksum")
    wanted = said.lower().removeprefix("sha256:").removeprefix("sha256-")
    if wanted and not _SHA256.fullmatch(wanted):
        raise InstallStepError("its sha256 is not 64 hexadecimal digits")
    return wanted


def _only_file(folder: Path) -> Path:
    found = [path for path in folder.iterdir() if path.is_file()]
    if len(found) != 1:
        raise InstallStepError("what was fetched is not one file, so its sha256 cannot be checked")
    return found[0]


# -- Which version of a driver's program is there, and whether it will do.
#
# The pattern that finds the version in the command's output is a stranger's: it is matched in a
# process of its own, which is ended when it takes too long.

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
    """What was found out."""

    version: str = ""
    """Of three parts; empty when nothing was found."""
    problem: str = ""
    """Why it will not do, as the rest of a sentence; empty: it will."""


async def check_version(
    manifest: DriverManifest,
    *,
    run: CommandRunner = processes.run,
    env: Mapping[str, str] | None = None,
    command: Callable[[str], list[str]] | None = None,
    otherwise: Callable[[], str] | None = None,
    reinstall: Callable[[], Awaitable[None]] | None = None,
) -> str:
    """The version that is there; empty when the driver does not ask. Raises InterlockError.

    `command` makes words of the driver's line, such as the installed copy for `npx`. `otherwise`
    knows the version where the command does not tell one; `reinstall` is tried once when the
    version will not do.
    """
    check = manifest.version_check
    if check is None:
        return ""
    found = await _look(manifest, check, run, env or {}, command, otherwise)
    if found.problem and reinstall is not None:
        try:
            await reinstall()
        except InterlockError as error:
            if not found.version:
                raise
            raise _mismatch(manifest, check, found, error.message) from error
        found = await _look(manifest, check, run, env or {}, command, otherwise)
    if found.problem:
        raise _mismatch(manifest, check, found)
    return found.version


async def _look(
    manifest: DriverManifest,
    check: VersionCheck,
    run: CommandRunner,
    env: Mapping[str, str],
    command: Callable[[str], list[str]] | None,
    otherwise: Callable[[], str] | None,
) -> VersionResult:
    try:
        cmd = check.cmd if command is None else command(check.cmd)
    except ValueError as bad:
        return VersionResult(problem=f"version_check.cmd: {bad}")
    ran = await run(cmd, env=env, cwd=str(manifest.folder), timeout=check.timeout_ms / 1000)
    told = ""
    if not ran.start_error and not ran.timed_out:
        for text in (ran.out, ran.err):
            told = told or await match_version(check.parse, text[:_MAX_VERSION_OUTPUT])
    known = "" if otherwise is None else otherwise()
    # What failed may have told the version of something else, such as its runtime.
    first, then = (told, known) if ran.status == 0 else (known, told)
    version = normalize_version(first) or normalize_version(then)
    if not version:
        how = (
            ran.ending
            if ran.start_error or ran.timed_out
            else "it told no version that parse finds"
        )
        return VersionResult(problem=f"version_check.cmd: {how}")
    try:
        fits = in_range(version, check.range)
    except BadValue as bad:
        return VersionResult(version, f"version_check: {bad.message}")
    if not fits:
        return VersionResult(version, f"its version is {version}, and {check.range} is wanted")
    return VersionResult(version)


async def match_version(pattern: str, text: str) -> str:
    """What the first group of a pattern finds in a text; without a group, what all of it finds.
    Empty when it finds nothing, is no pattern, or takes too long."""
    if not text.strip():
        return ""
    ran = await processes.run(
        [sys.executable, "-I", "-S", "-c", _MATCHER],
        env={},
        cwd=None,
        timeout=_MATCH_TIMEOUT_SECONDS,
        stdin=msgspec.json.encode([pattern, text]),
    )
    if not ran.exited_with(0):
        return ""
    found = msgspec.json.decode(ran.out)
    return found if isinstance(found, str) else ""


def normalize_version(text: str) -> str:
    """`v0.4` → `0.4.0`. Empty for what is no version."""
    found = _LOOSE_VERSION.fullmatch(text)
    if found is None:
        return ""
    numbers = ".".join(str(int(found[part] or 0)) for part in (1, 2, 3))
    return f"{numbers}{found[4] or ''}{found[5] or ''}"


def _mismatch(
    manifest: DriverManifest, check: VersionCheck, found: VersionResult, more: str = ""
) -> InterlockError:
    return InterlockError(
        VERSION_MISMATCH,
        f"{manifest.id}: {found.problem}. " + (more or "Install one that fits."),
        {"driver": manifest.id, "version": found.version, "range": check.range},
    )


ALLOW_INSTALL_SETTING: Final = "drivers: {allow_install: true}"
"""The line that lets a node install."""
_LOCK_POLL_SECONDS: Final = 0.2

_log = logging.getLogger("interlock.drivers")

Progress = Callable[[int, int, str], None]
"""Is told how far it is: step, of how many, and what is done."""


class Installation(Struct, frozen=True):
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
        f"node do it: add `{ALLOW_INSTALL_SETTING}` to interlock.yaml."
    )


def driver_folder(state: Path, manifest: DriverManifest) -> Path:
    """The private folder of a driver below a node's state folder."""
    return state / "drivers" / manifest.key.replace(os.sep, "_").lstrip(".")


def _ignore_progress(step: int, of: int, text: str) -> None:
    """Nobody looks."""


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
    again: bool = False,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Installation:
    """Have a driver's program there, and of the right version. Raises InterlockError.

    `folder` is the driver's own (`driver_folder`). `again`: also when it was installed before.
    What is on this machine already, by whatever way, is not installed. `run` runs installers, and
    `check` the manifest's own version check.
    """
    if manifest.server is not None and manifest.server.kind == "remote":
        if manifest.install:
            warn(f"{manifest.id}: its server is remote, so what it says under install is ignored")
        return Installation()
    desk = _Preparation(
        manifest, folder, allowed, run, check or run, dict(env or {}), progress, warn, sleep
    )
    if not manifest.install:
        return Installation(version=await desk.version())
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
    return Installation(installed_bin(manifest, folder), version, desk.installed)


class _Preparation:
    """One driver that is being prepared."""

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
            return ran.exited_with(0)
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
        words = processes.split_command(cmd)
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
        async with self._install_lock():
            if self.is_installed() and read_marker(self._folder) != before:
                # Somebody else did it while we waited.
                return
            await self._try_steps()
        self.installed = True

    async def _try_steps(self) -> None:
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
            site = InstallSite(self._manifest, self._folder, self._run, self._warn)
            try:
                await STEPS[step.method](site, step.settings)
            except InstallStepError as failed:
                why.append(f"{step.method}: {failed}")
                continue
            marker = InstallMarker(step.method, self._wanted(), time.time(), step.settings)
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
    async def _install_lock(self) -> AsyncIterator[None]:
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
                    await self._sleep(_LOCK_POLL_SECONDS)
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


# -- When a driver that could not be installed, or whose version would not do, is looked at again:
# as soon as somebody installed something in its folder, and otherwise after a while.

RECHECK_SECONDS: Final = 5.0
"""It may have come onto this machine by another way."""
INSTALL_RETRY_SECONDS: Final = 60.0
"""Where the node installs by itself: an attempt without a network takes its time."""

InstallFingerprint = tuple[int, int, int] | None


class InstallFailure(Struct, frozen=True):
    """An attempt that failed."""

    folder: Path
    seen: InstallFingerprint
    """By what a change of the folder is seen."""
    again_at: float
    """On the clock of whoever tried."""

    def is_outdated(self) -> bool:
        """Whether somebody has installed something since."""
        return install_fingerprint(self.folder) != self.seen


def install_fingerprint(folder: Path) -> InstallFingerprint:
    """Another one after each install; None when nothing is installed."""
    try:
        found = os.stat(folder / MARKER)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
