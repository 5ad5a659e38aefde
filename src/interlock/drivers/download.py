"""A program that downloads one file, verifies its SHA-256, and unpacks it if it is an archive. It
runs in its own process, so that it can be killed, and uses only the standard library.

    python download.py URL FOLDER NAME SHA256
"""

from __future__ import annotations

import hashlib
import ipaddress
import ssl
import stat
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

MAX_DOWNLOAD_BYTES: Final = 1024 * 1024 * 1024
MAX_UNPACKED_BYTES: Final = 4 * MAX_DOWNLOAD_BYTES
MAX_FILES: Final = 100_000
TIMEOUT_SECONDS: Final = 60.0
"""Maximum time without data from the server."""
_CHUNK: Final = 256 * 1024
_TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")


class DownloadError(Exception):
    """The reason why the file is rejected, as a sentence."""


def is_loopback(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _RedirectHandler(urllib.request.HTTPRedirectHandler):
    """A handler that follows redirects, but never from https to http and never between this machine
    and others."""

    def __init__(self, local: bool) -> None:
        self._local = local

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if is_loopback(newurl) is not self._local:
            raise DownloadError(
                "the redirect leads from a remote host to this machine or back; use the final URL"
            )
        if not self._local and urllib.parse.urlsplit(newurl).scheme != "https":
            raise DownloadError("the redirect leads to a URL without TLS; use an https URL")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(url: str, file: IO[bytes]) -> str:
    """Download a URL into a file and return its SHA-256. Raises DownloadError."""
    local = is_loopback(url)
    handlers: list[urllib.request.BaseHandler] = [
        _RedirectHandler(local),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
    ]
    if local:
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    digest, size = hashlib.sha256(), 0
    try:
        with opener.open(url, timeout=TIMEOUT_SECONDS) as response:
            while chunk := response.read(_CHUNK):
                size += len(chunk)
                if size > MAX_DOWNLOAD_BYTES:
                    raise DownloadError("it is larger than 1 GiB")
                digest.update(chunk)
                file.write(chunk)
    except urllib.error.HTTPError as error:
        raise DownloadError(f"the server returned HTTP {error.code}") from None
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise DownloadError(f"it cannot be fetched ({reason})") from None
    return digest.hexdigest()


def unpack(archive: Path, name: str, target: Path) -> None:
    """Unpack an archive. Raises DownloadError if it would write outside of the target or is too
    large."""
    remaining, files = MAX_UNPACKED_BYTES, 0
    try:
        for member, mode, content in _members(archive, name):
            files += 1
            path = target / _safe_path(member)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                while chunk := content.read(_CHUNK):
                    remaining -= len(chunk)
                    if remaining < 0 or files > MAX_FILES:
                        raise DownloadError(
                            f"the archive exceeds the limit of {MAX_UNPACKED_BYTES} bytes or "
                            f"{MAX_FILES} files"
                        )
                    file.write(chunk)
            path.chmod(0o700 if mode & stat.S_IXUSR else 0o600)
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise DownloadError(f"the archive cannot be read ({type(error).__name__})") from None


def _members(archive: Path, name: str) -> Iterator[tuple[str, int, IO[bytes]]]:
    if name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            for member in packed.infolist():
                mode = member.external_attr >> 16
                if stat.S_ISLNK(mode):
                    raise DownloadError(f"the archive contains a link ({member.filename})")
                if not member.is_dir():
                    with packed.open(member) as content:
                        yield member.filename, mode, content
        return
    with tarfile.open(archive) as tape:
        for entry in tape:
            if entry.isdir():
                continue
            if not entry.isreg():
                raise DownloadError(
                    f"the archive contains an entry that is not a file ({entry.name})"
                )
            stream = tape.extractfile(entry)
            if stream is not None:
                yield entry.name, entry.mode, stream


def _safe_path(member: str) -> PurePosixPath:
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in member:
        raise DownloadError(f"the archive contains a path outside of its folder ({member})")
    return path


def install_file(url: str, folder: Path, name: str, expected: str) -> None:
    """Download a file, verify its SHA-256 and then unpack it. Raises DownloadError."""
    temporary = folder / ".part"
    with temporary.open("wb") as file:
        digest = fetch(url, file)
    try:
        if digest != expected:
            raise DownloadError(
                f"the file is rejected: its SHA-256 is {digest}, expected {expected}"
            )
        source = urllib.parse.urlsplit(url).path
        if source.endswith((*_TAR_SUFFIXES, ".zip")):
            unpack(temporary, source, folder)
            return
        temporary.chmod(0o700)
        temporary.rename(folder / name)
    finally:
        temporary.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    url, folder, name, expected = arguments
    try:
        install_file(url, Path(folder), name, expected)
    except DownloadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
