"""Installing from npm: from local tarballs and from its registry."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers.installation import (
    MARKER,
    Installation,
    installed_bin,
    npm_error,
    package_name,
)
from interlock.drivers.processes import CommandResult, run
from interlock.errors import INSTALL_FAILED, VERSION_MISMATCH
from interlock.manifests.model import ServerBlock, VersionCheck
from tests.drivers.install_world import CHECK, NOWHERE, World, npm_package
from tests.support.programs import NPM, requires_npm
from tests.support.timeouts import HANG_TIMEOUT

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@requires_npm
@pytest.mark.spec("DR-30.install-3")
async def test_npm_installs_into_driver_folder(world: World) -> None:
    digest = npm_package(world.home / "tiny.tgz")
    step = {"package": "./tiny.tgz", "global": True, "sha256": digest}
    manifest = world.driver(("npm", step), version_check=CHECK)
    installation = await world.prepare(manifest)
    assert installation == Installation(
        world.folder / "node_modules" / ".bin" / "tiny-server", "0.6.0", installed_now=True
    )
    assert any("never globally" in warning for warning in world.warned)
    # No code of the package ran.
    assert not (world.folder / "run-by-npm").exists()
    # It runs as it is: nobody is asked for anything.
    assert installation.program is not None
    ran = await run([str(installation.program), "a", "b"], env={}, cwd=None, timeout=HANG_TIMEOUT)
    assert ran.out.strip() == "tiny v0.6.0 a,b"
    # Before the next use it is only looked at.
    assert not (await world.prepare(manifest, allowed=False)).installed_now
    bad = world.driver(("npm", {**step, "sha256": NOWHERE}), version_check=CHECK)
    error = await world.failed(bad, force=True)
    assert "tiny.tgz is rejected" in error.message
    assert installed_bin(bad, world.folder) is None


@requires_npm
@pytest.mark.spec("DR-30.install-2")
async def test_rejects_package_with_old_version(world: World) -> None:
    npm_package(world.home / "tiny.tgz", "0.4.0")
    manifest = world.driver(("npm", {"package": "./tiny.tgz"}), version_check=CHECK)
    error = await world.failed(manifest)
    assert error.failure is VERSION_MISMATCH
    assert "0.4.0" in error.message
    npm_package(world.home / "tiny.tgz", "0.5.1")
    assert (await world.prepare(manifest)).version == "0.5.1"


@requires_npm
async def test_npm_installs_from_registry(world: World) -> None:
    assert NPM is not None
    result = subprocess.run(
        [NPM, "view", "semver@7.6.3", "version", "--fetch-retries=0", "--fetch-timeout=10000"],
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    if result.returncode != 0 or result.stdout.strip() != "7.6.3":
        pytest.skip("npm's registry cannot be reached")

    server = ServerBlock("npm", package="semver@7.6.3")
    step = {"package": "semver", "version": "7.6.3"}
    manifest = world.driver(
        ("npm", {**step, "sha256": NOWHERE}),
        ("npm", step),
        server=server,
        version_check=VersionCheck("npx semver --help", r"SemVer (\S+)", "^7.0.0"),
    )
    installation = await world.prepare(manifest)
    assert installation.version == "7.6.3"
    assert installation.program is not None
    ran = await run(
        [str(installation.program), "-r", "^1", "1.4.2"], env={}, cwd=None, timeout=HANG_TIMEOUT
    )
    assert ran.out.strip() == "1.4.2"
    # The first way was refused for its hash.
    assert [told[2] for told in world.told][:3] == [
        "npm: semver", "npm: semver", "npm: installed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "package",
    ["", "--global", "-g", "https://example.com/x.tgz", "git+ssh://x/y", "a b", "../../x.tgz",
     "file:../x", "npm:other", "tiny;id", "./tiny.zip"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["npm", "pip"])
async def test_invalid_package_name_reaches_no_installer(
    world: World, package: str, method: str
) -> None:
    async def never(cmd: Any, **more: Any) -> Any:
        if cmd[-1] == package or "install" in cmd:
            raise AssertionError(cmd)
        return await run(["true"], **more)

    error = await world.failed(world.driver((method, {"package": package})), run=never)
    assert error.failure is INSTALL_FAILED


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("tiny", "tiny"),
        ("tiny@1.2", "tiny"),
        ("@scope/tiny", "@scope/tiny"),
        ("@scope/tiny@^1", "@scope/tiny"),
        ("../x", ""),
        ("@scope", ""),
        ("", ""),
    ],
)
def test_parses_package_names(spec: str, name: str) -> None:
    assert package_name(spec) == name


def test_finds_program_of_package(world: World) -> None:
    def said(bins: Any, name: str = "@scope/tiny") -> str | None:
        package = world.folder / "node_modules" / name
        package.mkdir(parents=True, exist_ok=True)
        (package / "package.json").write_text(json.dumps({"version": "1.0.0", "bin": bins}))
        manifest = world.driver(server=ServerBlock("npm", package=name))
        result = installed_bin(manifest, world.folder)
        return None if result is None else result.name

    bins = world.folder / "node_modules" / ".bin"
    bins.mkdir(parents=True)
    for name in ("tiny", "serve", "other"):
        (bins / name).touch()
    (world.folder / "evil").touch()
    assert said("cli.js") is None  # nothing was installed to its end
    marker = {"method": "npm", "wanted": "x", "at": 1.0, "settings": {}}
    (world.folder / MARKER).write_text(json.dumps(marker))
    assert said("cli.js") == "tiny"
    assert said({"serve": "cli.js"}) == "serve"
    assert said({"serve": "cli.js", "tiny": "cli.js"}) == "tiny"
    assert said({"serve": "cli.js", "other": "cli.js"}) is None
    assert said({"../../evil": "cli.js"}) is None
    assert said({}) is None
    assert said({"gone": "cli.js"}) is None
    assert said(7) is None


class NothingThere(BaseHTTPRequestHandler):
    """A registry without packages."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@contextmanager
def empty_registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), NothingThere)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@requires_npm
@pytest.mark.parametrize("hashed", [False, True], ids=["install", "pack"])
async def test_reports_npm_error_for_missing_package(
    world: World, hashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {"package": "tiny-server", **({"sha256": NOWHERE} if hashed else {})}

    with empty_registry() as url:
        monkeypatch.setenv("npm_config_registry", url)
        error = await world.failed(world.driver(("npm", step)))
    begun = "Cannot install tiny-mcp: npm: exit status 1: E404: Not Found"
    assert error.message.startswith(begun)
    assert "tiny-server" in error.message[len(begun) :]
    assert error.message.endswith("Fix this, then run `interlock drivers install tiny-mcp`.")


@requires_npm
async def test_reports_npm_error_without_network(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with empty_registry() as url:
        monkeypatch.setenv("npm_config_registry", url)
    monkeypatch.setenv("NPM_CONFIG_FETCH_RETRIES", "0")

    error = await world.failed(world.driver(("npm", {"package": "tiny-server"})))
    assert "status 1: ECONNREFUSED: " in error.message
    assert ".." not in error.message


async def test_npm_timeouts_have_short_defaults(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    async def spy(cmd: Any, **_: Any) -> CommandResult:
        ran.append(list(cmd))
        return CommandResult(0)

    manifest = world.driver(("npm", {"package": "tiny-server"}))
    for name in [name for name in os.environ if name.lower().startswith("npm_config_fetch")]:
        monkeypatch.delenv(name)
    await world.prepare(manifest, run=spy, force=True)
    assert {"--fetch-retries=1", "--fetch-timeout=20000"} <= set(ran[-1])
    monkeypatch.setenv("NPM_CONFIG_FETCH_RETRIES", "5")
    await world.prepare(manifest, run=spy, force=True)
    assert "--fetch-timeout=20000" in ran[-1]
    assert not any(word.startswith("--fetch-retries") for word in ran[-1])


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (
            "npm ERR! code ENOTFOUND\nnpm ERR! syscall getaddrinfo\nnpm ERR! errno ENOTFOUND\n"
            "npm ERR! network request to http://x/ failed, reason: getaddrinfo ENOTFOUND x\n"
            "npm ERR! network This is a problem related to network connectivity.\n",
            "ENOTFOUND: request to http://x/ failed, reason: getaddrinfo ENOTFOUND x",
        ),
        ("npm error code EINTEGRITY\n", "EINTEGRITY"),
        ("node: not found\n", "node: not found"),
        ("", ""),
    ],
    ids=["no-network", "code-only", "not-npm", "silent"],
)
def test_extracts_npm_error(stderr: str, expected: str) -> None:
    assert npm_error(CommandResult(1, err=stderr)) == expected
