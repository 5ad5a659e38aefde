"""Installing with pip, docker, and downloads of untrusted archives."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers import download as installing_download
from interlock.drivers.download import DownloadError, unpack
from interlock.drivers.processes import run
from interlock.errors import INSTALL_FAILED
from interlock.manifests.model import ServerBlock
from tests.drivers.driver_world import Web, web
from tests.drivers.install_world import NOWHERE, World, add_fake_program
from tests.support.timeouts import HANG_TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks")

BINARY = ServerBlock("binary", path="tiny-server")
SCRIPT = b"#!/bin/sh\necho tiny v0.6.0\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def site() -> Iterator[Web]:
    with web() as one:
        yield one


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- pip


def wheel(path: Path, version: str = "0.6.0") -> str:
    """A wheel with a program in it; its SHA-256."""
    info = f"tiny_server-{version}.dist-info"
    files = {
        "tiny_server.py": f"def main():\n    print('tiny v{version}')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny-server\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntiny-server = tiny_server:main\n",
    }
    record = [
        f"{name},sha256={_urlsafe(text.encode())},{len(text.encode())}"
        for name, text in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return sha256(path.read_bytes())


def _urlsafe(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@pytest.mark.spec("DR-30.install-3")
async def test_pip_installs_into_own_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    name = "tiny_server-0.6.0-py3-none-any.whl"
    digest = wheel(world.home / name)
    manifest = world.driver(
        ("pip", {"package": f"./{name}", "sha256": NOWHERE}),
        ("pip", {"package": f"./{name}", "sha256": digest}),
        server=BINARY,
    )
    installation = await world.prepare(manifest)
    assert installation.program == world.folder / "venv" / "bin" / "tiny-server"
    ran = await run([str(installation.program)], env={}, cwd=None, timeout=HANG_TIMEOUT)
    assert ran.out.strip() == "tiny v0.6.0", ran.err
    assert [told[0] for told in world.told] == [0, 1, 2, 3]
    # By a name that no index has.
    error = await world.failed(
        world.driver(("pip", {"package": "tiny-server", "version": "0.6.0"}), server=BINARY)
    )
    assert error.failure is INSTALL_FAILED
    assert "pip: exit status 1" in error.message
    assert "tiny-server==0.6.0" in error.message


# -- docker


@pytest.mark.parametrize(
    ("settings", "image", "pulled"),
    [
        ({"image": "mcp/postgres:latest"}, "", "mcp/postgres:latest"),
        ({"image": "docker://mcp/postgres"}, "", "mcp/postgres"),
        ({}, "mcp/postgres:1", "mcp/postgres:1"),
        ({"image": "mcp/postgres:1", "sha256": NOWHERE}, "", f"mcp/postgres@sha256:{NOWHERE}"),
        ({"image": "h:5000/p", "sha256": NOWHERE}, "", f"h:5000/p@sha256:{NOWHERE}"),
    ],
)
async def test_docker_pulls_image(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    image: str,
    pulled: str,
) -> None:
    add_fake_program(
        tmp_path, "docker", f'[ "$1" = pull ] && echo "$@" > {tmp_path / "asked"}', monkeypatch
    )

    server = ServerBlock("docker", image=image or "unknown")
    assert (await world.prepare(world.driver(("docker", settings), server=server))).installed_now
    assert (tmp_path / "asked").read_text() == f"pull --quiet {pulled}\n"


async def test_existing_image_is_not_pulled(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_fake_program(tmp_path, "docker", '[ "$*" = "image inspect mcp/postgres" ]', monkeypatch)

    server = ServerBlock("docker", image="mcp/postgres")
    installation = await world.prepare(world.driver(("docker", {}), server=server), allowed=False)
    assert not installation.installed_now


async def test_missing_docker_is_reported(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    server = ServerBlock("docker", image="mcp/postgres")
    error = await world.failed(world.driver(("docker", {}), server=server))
    assert "docker: there is no docker" in error.message
    error = await world.failed(world.driver(("docker", {"image": "--privileged"}), server=server))
    assert "'--privileged' is not the name of an image" in error.message
    # The way in which a download names one.
    step = ("download", {"url": "docker://mcp/postgres"})
    assert "there is no docker" in (await world.failed(world.driver(step))).message


# -- downloads


@pytest.mark.spec("DR-30.install-3")
async def test_download_is_fetched_and_verified(world: World, site: Web) -> None:
    site.files["tiny-server"] = SCRIPT
    site.moved["latest"] = f"{site.base}/file/tiny-server"
    url = f"{site.base}/file/latest"
    bad = world.driver(("download", {"url": url, "sha256": NOWHERE}), server=BINARY)
    error = await world.failed(bad)
    assert error.failure is INSTALL_FAILED
    assert f"its SHA-256 is {sha256(SCRIPT)}, expected {NOWHERE}" in error.message
    # Nothing of it stays.
    assert [path for path in world.folder.rglob("*") if path.is_file()] == []
    step = {"url": url, "sha256": sha256(SCRIPT), "bin": "tiny-server"}
    installation = await world.prepare(world.driver(("download", step), server=BINARY))
    assert installation.program == world.folder / "download" / "tiny-server"
    ran = await run([str(installation.program)], env={}, cwd=None, timeout=HANG_TIMEOUT)
    assert ran.out == "tiny v0.6.0\n"


async def test_rejects_unsafe_downloads(world: World, site: Web) -> None:
    site.moved["out"] = "http://example.com/x"
    site.moved["file"] = "file:///etc/passwd"

    for settings, why in (
        ({"url": f"{site.base}/file/x"}, "a download needs it"),
        (
            {"url": "http://example.com/x", "sha256": NOWHERE},
            "must be an https URL",
        ),
        ({"url": "file:///etc/passwd", "sha256": NOWHERE}, "must be an https URL"),
        ({"url": f"{site.base}/status/500", "sha256": NOWHERE}, "HTTP 500"),
        ({"url": f"{site.base}/file/out", "sha256": NOWHERE}, "use the final URL"),
        ({"url": f"{site.base}/file/file", "sha256": NOWHERE}, "HTTP 302"),
        ({"url": "http://127.0.0.1:1/x", "sha256": NOWHERE}, "cannot be fetched"),
    ):
        error = await world.failed(world.driver(("download", settings)), force=True)
        assert why in error.message, error.message


def archive(kind: str, files: dict[str, bytes], link: str = "") -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as packed:
            for name, content in files.items():
                info = zipfile.ZipInfo(name)
                info.external_attr = 0o755 << 16
                packed.writestr(info, content)
            if link:
                info = zipfile.ZipInfo(link)
                info.external_attr = 0o120777 << 16
                packed.writestr(info, "/etc/passwd")
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tape:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tape.addfile(entry, io.BytesIO(content))
        if link:
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tape.addfile(entry)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
async def test_archive_is_unpacked(world: World, site: Web, kind: str) -> None:
    packed = archive(kind, {"dist/bin/tiny-server": SCRIPT, "dist/README": b"text"})
    site.files[f"tiny.{kind}"] = packed
    url = f"{site.base}/file/tiny.{kind}"
    step = {"url": url, "sha256": sha256(packed), "bin": "dist/bin/tiny-server"}
    installation = await world.prepare(world.driver(("download", step), server=BINARY))
    assert installation.program is not None
    assert os.access(installation.program, os.X_OK)
    ran = await run([str(installation.program)], env={}, cwd=None, timeout=HANG_TIMEOUT)
    assert ran.out == "tiny v0.6.0\n"
    assert not (world.folder / "download" / ".part").exists()


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
@pytest.mark.parametrize(
    ("files", "link", "reason"),
    [
        ({"../evil": b"x"}, "", "a path outside of its folder"),
        ({"/etc/evil": b"x"}, "", "a path outside of its folder"),
        ({"a/../../evil": b"x"}, "", "a path outside of its folder"),
        ({"ok": b"x"}, "link", "the archive contains"),
        ({"twice": b"x", "twice/": b"y"}, "", "cannot be read|would"),
    ],
)
def test_rejects_malicious_archive(
    tmp_path: Path, kind: str, files: dict[str, bytes], link: str, reason: str
) -> None:
    target = tmp_path / "deep" / "target"
    target.mkdir(parents=True)
    path = tmp_path / "archive"
    path.write_bytes(archive(kind, files, link))
    if "twice/" in files and kind == "zip":
        unpack(path, f"x.{kind}", target)  # a folder's entry, of which nothing is written
        return
    with pytest.raises(DownloadError, match=reason):
        unpack(path, f"x.{kind}", target)
    assert not (tmp_path / "deep" / "evil").exists()
    assert not (tmp_path / "evil").exists()


def test_rejects_oversized_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "archive"
    path.write_bytes(archive("zip", {f"f{number}": b"0" * 1000 for number in range(10)}))
    monkeypatch.setattr(installing_download, "MAX_UNPACKED_BYTES", 9_999)
    with pytest.raises(DownloadError, match="exceeds the limit"):
        unpack(path, "x.zip", tmp_path / "one")
    monkeypatch.setattr(installing_download, "MAX_UNPACKED_BYTES", 10_000)
    unpack(path, "x.zip", tmp_path / "two")
    monkeypatch.setattr(installing_download, "MAX_FILES", 9)
    with pytest.raises(DownloadError, match="exceeds the limit"):
        unpack(path, "x.zip", tmp_path / "three")


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "x.tgz"])
def test_rejects_invalid_archive(tmp_path: Path, name: str) -> None:
    path = tmp_path / "archive"
    path.write_bytes(b"not an archive")
    with pytest.raises(DownloadError, match="cannot be read"):
        unpack(path, name, tmp_path)
