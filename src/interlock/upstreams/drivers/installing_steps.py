"""The ways to install that are known here: npm, pip, docker, vendored and download.

Each does one entry of `install`, in a folder that is empty before it, and says why when it cannot.
What an entry names is a stranger's text: packages go by their names in a registry or are files
beside the manifest, and nothing of it is taken for an option.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from interlock.config import redact
from interlock.manifests.driver import DriverManifest
from interlock.upstreams.drivers.installing_bin import DOWNLOAD, VENV
from interlock.upstreams.drivers.processes import Ran, Runs, in_a_sentence
from interlock.upstreams.links.process import child_environment
from interlock.upstreams.oauth.addresses import is_secure

WITHIN: Final = 600.0
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
_NPM_PATIENCE: Final = {"fetch-retries": 1, "fetch-timeout": 20000}
_NPM_SAYS: Final = re.compile(r"npm (?:error|ERR!) (?:(?:404|network) +)?(\S.*)")
_NPM_MARKS: Final = frozenset({"code", "syscall", "errno", "path", "dest", "command", "signal"})
"""Lines of npm's that are for programs begin with one of these."""
_CHUNK: Final = 1024 * 1024
_DOWNLOADER: Final = Path(__file__).with_name("installing_download.py")


Why = Callable[[Ran], str]
"""What of an installer's words says why it failed."""


class StepFailed(Exception):
    """Why one way did not work, as the rest of a sentence."""


class Site(Struct, frozen=True):
    """Where something is installed, and for whom."""

    manifest: DriverManifest
    folder: Path
    run: Runs
    warn: Callable[[str], None]

    async def ran(
        self, argv: Sequence[str], *, cwd: Path | None = None, why: Why | None = None
    ) -> Ran:
        """Run an installer. Raises StepFailed, with what `why` makes of what it wrote."""
        settings = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
        ran = await self.run(
            argv,
            env=child_environment(settings),
            cwd=str(cwd or self.folder),
            timeout=WITHIN,
        )
        if not ran.ended_with(0):
            words = ran.last_words if why is None else why(ran)
            raise StepFailed(redact(f"{ran.how}: {words}" if words else ran.how))
        return ran

    def beside(self, path: str) -> Path:
        """A file of the driver, by a path that starts at its folder. Raises StepFailed."""
        folder = self.manifest.folder.resolve()
        found = (folder / path).resolve()
        if not found.is_relative_to(folder):
            raise StepFailed(f"{path} is outside the driver's folder")
        if not found.exists():
            raise StepFailed(f"there is no {path} in the driver's folder")
        return found


async def npm(site: Site, settings: Mapping[str, Any]) -> None:
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
            ["npm", "pack", *_patience(os.environ), "--loglevel=error", "--pack-destination",
             str(packed), "--", what],
            why=npm_words,
        )  # fmt: skip
        what = str(_only_file(packed))
    if wanted:
        require_hash(Path(what), wanted)
    await site.ran(
        ["npm", "install", "--prefix", str(site.folder), "--ignore-scripts", "--no-audit",
         "--no-fund", "--no-update-notifier", "--loglevel=error", *_patience(os.environ), "--",
         what],
        why=npm_words,
    )  # fmt: skip


def _patience(environ: Mapping[str, str]) -> list[str]:
    """npm waits for minutes where there is no network. Who set it up otherwise knows why."""
    known = {name.lower() for name in environ}
    return [
        f"--{name}={value}"
        for name, value in _NPM_PATIENCE.items()
        if f"npm_config_{name.replace('-', '_')}" not in known
    ]


def npm_words(ran: Ran) -> str:
    """What npm says went wrong. It ends with advice and with where its log is; why is said at the
    beginning: a code, such as E404 or ENOTFOUND, and a sentence after it."""
    said = [found[1] for line in ran.err.splitlines() if (found := _NPM_SAYS.fullmatch(line))]
    code = next((line[5:] for line in said if line.startswith("code ")), "")
    told = next((line for line in said if line.split(" ")[0] not in _NPM_MARKS), "")
    words = ": ".join(part for part in (code, told) if part)
    return in_a_sentence(words) if words else ran.last_words


async def pip(site: Site, settings: Mapping[str, Any]) -> None:
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


async def docker(site: Site, settings: Mapping[str, Any]) -> None:
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
        raise StepFailed(f"{image!r} is not the name of an image")
    await site.ran(["docker", "pull", "--quiet", image])


async def vendored(site: Site, settings: Mapping[str, Any]) -> None:
    """A file that came with the driver."""
    path = _text(settings, "path") or _text(settings, "package")
    if not path:
        raise StepFailed("it says no path")
    found = site.beside(path)
    wanted = _hash(settings)
    if wanted:
        require_hash(found, wanted)


async def download(site: Site, settings: Mapping[str, Any]) -> None:
    """A file from a server, which must be the one that the manifest knows by its hash."""
    url = _text(settings, "url")
    if url.startswith("docker://"):
        await docker(site, {**settings, "image": url})
        return
    wanted = _hash(settings)
    if not wanted:
        raise StepFailed("a download needs its sha256")
    if not is_secure(url):
        raise StepFailed(f"{url} is neither https nor on this machine")
    target = site.folder / DOWNLOAD
    target.mkdir(mode=0o700)
    name = Path(_text(settings, "bin")).name or Path(url.partition("?")[0]).name
    # A process of its own: it can be ended in the middle, and reads strangers' archives.
    await site.ran([sys.executable, "-I", str(_DOWNLOADER), url, str(target), name, wanted])


STEPS: Final[dict[str, Callable[[Site, Mapping[str, Any]], Awaitable[None]]]] = {
    "npm": npm,
    "pip": pip,
    "docker": docker,
    "vendored": vendored,
    "download": download,
}


def require_hash(path: Path, wanted: str) -> None:
    """Raises StepFailed when a file is not the one that was meant."""
    if not path.is_file():
        raise StepFailed(f"{path.name} is no file, so its sha256 cannot be checked")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != wanted:
        raise StepFailed(
            f"{path.name} is refused: its SHA-256 is {digest.hexdigest()}, not {wanted}"
        )


def _package(
    site: Site,
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
            raise StepFailed(f"{version!r} is not a version")
        name = f"{name}{joint}{version}"
    if not pattern.fullmatch(name):
        raise StepFailed(
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
        raise StepFailed("its sha256 is not 64 hexadecimal digits")
    return wanted


def _only_file(folder: Path) -> Path:
    found = [path for path in folder.iterdir() if path.is_file()]
    if len(found) != 1:
        raise StepFailed("what was fetched is not one file, so its sha256 cannot be checked")
    return found[0]
