"""Versions: parsed from the output of a command, completed, and compared with a range."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.drivers.installation import check_version, match_version, normalize_version
from interlock.errors import INSTALL_FAILED, VERSION_MISMATCH, InterlockError
from interlock.manifests.model import DriverManifest, VersionCheck
from tests.drivers.driver_world import driver, hanging_command, read_child_pid
from tests.support.upstreams import wait_for_exit, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")


def version_driver(
    folder: Path, text: str, range: str = ">=0.5", parse: str = r"v(\S+)"
) -> DriverManifest:
    """A driver whose program says this of its version."""
    (folder / "version").write_text(text, encoding="utf-8")
    return driver(folder, version_check=VersionCheck("cat version", parse, range))


async def version_error(manifest: DriverManifest, **more: object) -> InterlockError:
    with pytest.raises(InterlockError) as error:
        await with_timeout(check_version(manifest, **more))  # type: ignore[arg-type]
    return error.value


@pytest.mark.spec("DR-30.install-2")
async def test_rejects_old_version(tmp_path: Path) -> None:
    error = await version_error(version_driver(tmp_path, "tiny v0.4\n"))
    assert error.failure is VERSION_MISMATCH
    assert "its version is 0.4.0; >=0.5 is required" in error.message
    assert error.data == {"driver": "tiny-mcp", "version": "0.4.0", "range": ">=0.5"}


@pytest.mark.spec("DR-30.install-2")
@pytest.mark.parametrize(
    ("text", "range", "version"),
    [
        ("v0.5", ">=0.5", "0.5.0"),
        ("tiny v1.2.3 (build 9)", "^1.0.0", "1.2.3"),
        ("v2025.8.21", ">=0.5", "2025.8.21"),
        ("v1.0.0-beta.2", ">=1.0.0-beta", "1.0.0-beta.2"),
    ],
)
async def test_first_group_of_pattern_is_version(
    tmp_path: Path, text: str, range: str, version: str
) -> None:
    assert await check_version(version_driver(tmp_path, text, range)) == version


@pytest.mark.spec("DR-30.install-2")
async def test_reinstalls_at_most_once(tmp_path: Path) -> None:
    manifest, times = version_driver(tmp_path, "v0.4"), list[str]()

    async def useless() -> None:
        times.append("again")

    assert (await version_error(manifest, reinstall=useless)).failure is VERSION_MISMATCH
    assert times == ["again"]

    async def mending() -> None:
        (tmp_path / "version").write_text("v0.6", encoding="utf-8")

    assert await check_version(manifest, reinstall=mending) == "0.6.0"
    # What will do is left alone.
    times.clear()
    assert await check_version(manifest, reinstall=useless) == "0.6.0"
    assert times == []


async def test_failed_reinstall_is_reported(tmp_path: Path) -> None:
    async def refused() -> None:
        raise InterlockError(INSTALL_FAILED, "Cannot install: add allow_install.")

    error = await version_error(version_driver(tmp_path, "v0.4"), reinstall=refused)
    assert error.failure is VERSION_MISMATCH
    assert "0.4.0" in error.message
    assert "add allow_install" in error.message
    # What is not there at all is not installed, whatever its version would be.
    error = await version_error(version_driver(tmp_path, "nothing here"), reinstall=refused)
    assert error.failure is INSTALL_FAILED


@pytest.mark.parametrize(
    ("cmd", "parse", "reason"),
    [
        ("no-such-program --version", r"v(\S+)", "there is no no-such-program"),
        ("echo nothing", r"v(\d+)", "its output has no version that matches"),
        ("echo vnext", r"v(\S+)", "its output has no version that matches"),
        ("echo v1", r"v(", "its output has no version that matches"),
        ("echo 'open", r"v(\S+)", "cannot be split into words"),
        ("", r"v(\S+)", "it is empty"),
    ],
)
async def test_missing_version_is_reported(
    tmp_path: Path, cmd: str, parse: str, reason: str
) -> None:
    error = await version_error(driver(tmp_path, version_check=VersionCheck(cmd, parse, "*")))
    assert error.failure is VERSION_MISMATCH
    assert reason in error.message


async def test_invalid_range_is_reported(tmp_path: Path) -> None:
    error = await version_error(version_driver(tmp_path, "v1.0.0", range="newest"))
    assert "newest" in error.message


async def test_package_version_replaces_failed_command(tmp_path: Path) -> None:
    crash = shlex.join(["sh", "-c", "echo Node.js v18.20.4 >&2; exit 1"])
    manifest = driver(tmp_path, version_check=VersionCheck(crash, r"v(\S+)", ">=0.5"))
    assert await check_version(manifest, fallback_version=lambda: "0.6.2") == "0.6.2"
    # Without anybody who knows, what it said is believed.
    assert await check_version(manifest) == "18.20.4"
    # What the program itself says comes first when it ran well.
    assert (
        await check_version(version_driver(tmp_path, "v0.7"), fallback_version=lambda: "0.6.2")
        == "0.7.0"
    )
    silent = driver(tmp_path, version_check=VersionCheck("true", r"v(\S+)", ">=0.5"))
    assert await check_version(silent, fallback_version=lambda: "0.6.2") == "0.6.2"


async def test_driver_without_version_check_passes(tmp_path: Path) -> None:
    assert await check_version(driver(tmp_path)) == ""


async def test_hanging_command_times_out(tmp_path: Path) -> None:
    with hanging_command(tmp_path) as (cmd, pipe):
        line = shlex.join(cmd)
        check = VersionCheck(line, r"v(\S+)", "*", timeout_ms=300)
        telling = asyncio.ensure_future(read_child_pid(pipe))
        error = await version_error(driver(tmp_path, version_check=check))
        assert "it did not end within its timeout" in error.message
        await wait_for_exit(await with_timeout(telling))
    assert VersionCheck("x", "y", "z").timeout_ms == 5000


async def test_endless_pattern_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.drivers.installation._MATCH_TIMEOUT_SECONDS", 0.5)

    assert await with_timeout(match_version(r"(a+)+$", "a" * 60 + "b")) == ""
    assert await match_version(r"\d+\.\d+", "version 1.5") == "1.5"
    assert await match_version(r"(x)?1", "1") == ""
    assert await match_version(r"v(.*)", "") == ""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.4", "0.4.0"),
        ("v0.4", "0.4.0"),
        ("1", "1.0.0"),
        ("1.2.3", "1.2.3"),
        ("01.02.03", "1.2.3"),
        ("=1.2.3-rc.1+build", "1.2.3-rc.1+build"),
        (" v1.2 ", "1.2.0"),
        ("1.2.3.4", ""),
        ("next", ""),
        ("", ""),
        ("9" * 20, ""),
    ],
)
def test_partial_versions_are_completed(text: str, version: str) -> None:
    assert normalize_version(text) == version


@given(st.tuples(*[st.integers(0, 99_999)] * 3), st.integers(1, 3))
def test_normalizing_keeps_every_number(numbers: tuple[int, int, int], parts: int) -> None:
    whole = [*map(str, numbers[:parts]), *["0"] * (3 - parts)]
    assert normalize_version("v" + ".".join(map(str, numbers[:parts]))) == ".".join(whole)
