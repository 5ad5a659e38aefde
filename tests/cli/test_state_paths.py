"""State folders: one for each address, private to its user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from interlock.core.config import Config
from interlock.core.paths import is_trusted, make_private, seal_key, socket_path, state_dir
from interlock.errors import CONFIG, InterlockError
from tests.support.command_line import CommandLine


def long_place(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A socket whose state folder has too long a name, and so stands in the runtime folder."""
    runtime = tmp_path / "r"
    runtime.mkdir()
    config = Config(state_dir=str(tmp_path / ("deep/" * 40)))
    environ = {"XDG_RUNTIME_DIR": str(runtime)}
    return socket_path(config, environ, tmp_path), environ


def test_each_address_has_own_folder(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    for listen, name in (("127.0.0.1:8420", "127.0.0.1-8420"), ("[::1]:18402", "--1-18402")):
        assert state_dir(Config(listen=listen), environ, tmp_path).name == name


def test_folder_of_short_socket_is_private(tmp_path: Path) -> None:
    path, _ = long_place(tmp_path)
    assert path.parent.parent == tmp_path / "r"
    assert not is_trusted(path.parent)
    make_private(path.parent)
    assert is_trusted(path.parent)
    path.parent.chmod(0o755)
    with pytest.raises(InterlockError, match="other users can read it"):
        make_private(path.parent)


def test_rejects_symlink_or_foreign_folder(tmp_path: Path) -> None:
    path, _ = long_place(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    path.parent.symlink_to(elsewhere)
    with pytest.raises(InterlockError, match="belongs to another user"):
        make_private(path.parent)
    path.parent.unlink()
    if os.getuid() == 0:
        path.parent.mkdir(mode=0o700)
        os.chown(path.parent, 65534, 65534)
        with pytest.raises(InterlockError, match="belongs to another user"):
            make_private(path.parent)


def test_configured_folder_keeps_its_permissions(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    make_private(shared)
    assert is_trusted(shared)


def test_reports_folder_that_cannot_be_created(world: CommandLine) -> None:
    (world.cwd / "file").touch()
    with pytest.raises(InterlockError) as error:
        make_private(world.cwd / "file")
    assert error.value.failure is CONFIG
    world.config({}, state_dir="file/below")
    for command in ("up", "tools"):
        result = world.run_here(command)
        assert result.returncode == 3
        assert result.stderr.splitlines()[-1].startswith(
            f"interlock: Cannot create the folder {world.cwd}/file/below: Not a directory."
        )
        assert "$XDG_STATE_HOME" in result.stderr
    result = world.run_here("doctor")
    assert result.returncode == 1
    assert "✗ state folder: " in result.stdout
    assert f"{world.cwd}/file is not a folder" in result.stdout


def test_reports_key_that_cannot_be_written(world: CommandLine) -> None:
    (world.cwd / "file").touch()
    result = world.run_here(
        "keys", "new", "chief", "--no-passphrase", XDG_CONFIG_HOME=f"{world.cwd}/file"
    )
    assert result.returncode == 3
    assert result.stderr.splitlines()[-1] == (
        f"interlock: Cannot write a key to {world.cwd}/file/interlock/keys: Not a directory. "
        "Set $XDG_CONFIG_HOME to a folder that you can write to."
    )


def test_seal_key_is_created_once(tmp_path: Path) -> None:
    config = Config(state_dir=str(tmp_path / "s"))
    key = seal_key(config, {}, tmp_path, 32)
    assert len(key) == 32
    assert seal_key(config, {}, tmp_path, 32) == key
    [file] = (tmp_path / "s").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_invalid_seal_key_is_replaced(tmp_path: Path) -> None:
    config = Config(state_dir=str(tmp_path / "s"))
    seal_key(config, {}, tmp_path, 32)
    (tmp_path / "s" / "seal.key").write_bytes(b"cut off")
    key = seal_key(config, {}, tmp_path, 32)
    assert len(key) == 32
    assert seal_key(config, {}, tmp_path, 32) == key


def test_unwritable_seal_key_lasts_for_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    config = Config(state_dir=str(tmp_path / "file" / "s"))
    assert len(seal_key(config, {}, tmp_path, 32)) == 32
    assert "cannot be stored" in caplog.text
