"""Fetches one file, makes sure that it is the one that is meant, and takes it apart if it is an
archive. Run as a program, so that it can be ended in the middle: only the standard library is used.

    python installing_download.py URL FOLDER NAME SHA256
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

LARGEST: Final = 1024 * 1024 * 1024
LARGEST_UNPACKED: Final = 4 * LARGEST
MOST_FILES: Final = 100_000
TIMEOUT_SECONDS: Final = 60.0
"""How long a server may be silent."""
_CHUNK: Final = 256 * 1024
_TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")


class DownloadError(Exception):
    """Why the file is not taken, as a sentence."""


def is_loopback(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Followed, but never from the safe to the unsafe, nor from outside to this machine."""

    def __init__(self, local: bool) -> None:
        self._local = local

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if is_loopback(newurl) is not self._local:
            raise DownloadError("it redirects to another kind of place, which is not followed")
        if not self._local and urllib.parse.urlsplit(newurl).scheme != "https":
            raise DownloadError("it redirects to an address without TLS, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(url: str, file: IO[bytes]) -> str:
    """Write what is at a URL into a file; its SHA-256. Raises DownloadError."""
    local = is_loopback(url)
    handlers: list[urllib.request.BaseHandler] = [
        _Redirects(local),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
    ]
    if local:
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    digest, size = hashlib.sha256(), 0
    try:
        with opener.open(url, timeout=TIMEOUT_SECONDS) as answer:
            while chunk := answer.read(_CHUNK):
                size += len(chunk)
                if size > LARGEST:
                    raise DownloadError("it is larger than 1 GiB")
                digest.update(chunk)
                file.write(chunk)
    except urllib.error.HTTPError as error:
        raise DownloadError(f"the server answered HTTP {error.code}") from None
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise DownloadError(f"it cannot be fetched ({reason})") from None
    return digest.hexdigest()


def unpack(archive: Path, name: str, target: Path) -> None:
    """Unpack an archive. Raises DownloadError if it would write elsewhere, or too much."""
    left, files = LARGEST_UNPACKED, 0
    try:
        for member, mode, content in _members(archive, name):
            files += 1
            path = target / _inside(member)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                while chunk := content.read(_CHUNK):
                    left -= len(chunk)
                    if left < 0 or files > MOST_FILES:
                        raise DownloadError("the archive holds more than anybody could want")
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
                    raise DownloadError(f"the archive holds a link ({member.filename})")
                if not member.is_dir():
                    with packed.open(member) as content:
                        yield member.filename, mode, content
        return
    with tarfile.open(archive) as tape:
        for entry in tape:
            if entry.isdir():
                continue
            if not entry.isreg():
                raise DownloadError(f"the archive holds something that is no file ({entry.name})")
            stream = tape.extractfile(entry)
            if stream is not None:
                yield entry.name, entry.mode, stream


def _inside(member: str) -> PurePosixPath:
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in member:
        raise DownloadError(f"the archive would write outside its folder ({member})")
    return path


def take(url: str, folder: Path, name: str, wanted: str) -> None:
    """Fetch, check, and only then look at it. Raises DownloadError."""
    part = folder / ".part"
    with part.open("wb") as file:
        found = fetch(url, file)
    try:
        if found != wanted:
            raise DownloadError(f"it is refused: its SHA-256 is {found}, not {wanted}")
        source = urllib.parse.urlsplit(url).path
        if source.endswith((*_TARS, ".zip")):
            unpack(part, source, folder)
            return
        part.chmod(0o700)
        part.rename(folder / name)
    finally:
        part.unlink(missing_ok=True)


def main(words: list[str]) -> int:
    url, folder, name, wanted = words
    try:
        take(url, Path(folder), name, wanted)
    except DownloadError as why:
        print(why, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
