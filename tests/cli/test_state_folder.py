"""The state folder is private to its user and locked by one listening node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.core.instance_lock import StateLock
from interlock.core.paths import check_state
from interlock.errors import CONFIG, InterlockError
from tests.support.command_line import DEMO, INTERLOCK, CommandLine

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="takes root, to give files to others")
NOBODY = 65534


def refused(folder: Path) -> None:
    with pytest.raises(InterlockError) as error:
        check_state(folder)
    assert error.value.failure is CONFIG


def test_accepts_private_state_folder(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    check_state(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "operators.db").write_bytes(b"")
    (folder / "operators.db").chmod(0o644)
    check_state(folder)


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o707, 0o777, 0o1777])
def test_rejects_folder_writable_by_others(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(mode)
    refused(folder)
    folder.chmod(mode & ~0o022)
    check_state(folder)


@pytest.mark.parametrize(
    "name", ["operators.db", "access.db", "approvals.db", "pins.db", "seal.key"]
)
def test_rejects_file_writable_by_others(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    for mode in (0o660, 0o606):
        (tmp_path / name).chmod(mode)
        refused(tmp_path)
    (tmp_path / name).chmod(0o600)
    check_state(tmp_path)


def test_rejects_folder_that_others_can_replace(tmp_path: Path) -> None:
    above = tmp_path / "shared"
    above.mkdir()
    above.chmod(0o777)
    refused(above / "state")
    # As in /tmp: what is there belongs to whoever made it.
    above.chmod(0o1777)
    check_state(above / "state")


@AS_ROOT
def test_rejects_folder_or_file_of_other_user(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    check_state(folder)
    file = folder / "operators.db"
    file.write_bytes(b"")
    os.chown(file, NOBODY, NOBODY)
    refused(folder)
    os.chown(file, 0, 0)
    check_state(folder)
    os.chown(folder, NOBODY, NOBODY)
    refused(folder)


@AS_ROOT
def test_accepts_root_owned_files_for_other_user(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    (folder / "operators.recovery-1").write_bytes(b"")
    for path in (*tmp_path.parents, tmp_path):
        if path.stat().st_uid == 0 and "pytest" in str(path):
            path.chmod(path.stat().st_mode | 0o055)
    script = (
        "import os, sys; os.setuid(65534)\n"
        "from pathlib import Path\n"
        "from interlock.core.paths import check_state\n"
        "check_state(Path(sys.argv[1]))\n"
    )
    result = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True)
    assert result.returncode == 0, result.stderr


def test_node_does_not_start_with_unsafe_folder(world: CommandLine) -> None:
    state = world.cwd / "state"
    state.mkdir()
    state.chmod(0o777)
    world.config({"demo": DEMO}, state_dir="state")
    result = world.run_here("up")
    assert result.returncode == 3
    assert f"chmod go-w {state}" in result.stderr
    assert list(state.iterdir()) == []


def test_state_lock_belongs_to_one_process(tmp_path: Path) -> None:
    first = StateLock(tmp_path)
    with pytest.raises(InterlockError) as error:
        StateLock(tmp_path)
    assert error.value.failure is CONFIG
    first.release()
    StateLock(tmp_path).release()


def test_rejects_second_node_on_same_folder(world: CommandLine) -> None:
    world.config({"demo": DEMO}, state_dir="state")
    node = world.up()
    node.wait_for_line("upstream demo: ready")
    second = world.run_here("up", "--listen", "127.0.0.1:0")
    assert second.returncode == 3
    assert str(world.cwd / "state") in second.stderr
    # What a client starts for itself is answered beside it; and the folder is free afterwards,
    # however the first one ended.
    beside = subprocess.Popen(
        [*INTERLOCK, "stdio"], cwd=world.cwd, env=world.environ, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert beside.stdin is not None
    assert beside.stdout is not None
    beside.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    beside.stdin.flush()
    assert b'"id":1' in beside.stdout.readline()
    beside.stdin.close()
    beside.wait()
    beside.stdout.close()
    node.end(signal.SIGKILL)
    world.up().wait_for_line("upstream demo: ready")
