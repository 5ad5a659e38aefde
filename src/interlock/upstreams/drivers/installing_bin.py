"""What is in a driver's private folder: how it came there, and the program in it.

A server is started from here without the network: by the program itself, not by `npx`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from interlock.manifests.driver import DriverManifest

MARKER: Final = "installed.json"
VENV: Final = "venv"
DOWNLOAD: Final = "download"
_LONGEST: Final = 1024 * 1024
_NAME: Final = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*")


class Marker(Struct, frozen=True):
    """What was installed here, to its end."""

    method: str
    wanted: str
    """The digest of what the manifest said under install."""
    at: float
    settings: dict[str, Any]


class _Package(Struct, frozen=True):
    version: str = ""
    bin: str | dict[str, str] = ""


def read_marker(folder: Path) -> Marker | None:
    """The marker of a folder; None when nothing was installed there to its end."""
    content = _content(folder / MARKER)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=Marker)
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


def _said(marker: Marker, name: str) -> str:
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
