"""Commands: run without a shell, with a filtered environment, and ended in time."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from interlock.core.upstreams.transports.process import Process
from interlock.drivers import processes
from interlock.drivers.processes import (
    EXIT_NOT_RUN,
    MAX_OUTPUT_BYTES,
    CommandResult,
    run,
    split_command,
)
from tests.drivers.driver_world import PYTHON, hanging_command, read_child_pid
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.upstreams import LOOPS, is_running, wait_for_exit, with_timeout
from tests.support.upstreams import run as on_loop

pytestmark = pytest.mark.usefixtures("no_leaks")

SECRET = "hunter2-hunter2"


def run_command(cmd: str | list[str], *, timeout: float = 20.0, **more: object) -> CommandResult:
    found: list[CommandResult] = []

    async def main() -> None:
        arguments: dict[str, object] = {"env": {}, "cwd": None, "timeout": timeout, **more}
        found.append(await run(cmd, **arguments))  # type: ignore[arg-type]

    on_loop(main)
    return found[0]


@pytest.mark.parametrize("loop", LOOPS)
def test_returns_status_and_both_outputs(loop: str) -> None:
    async def main() -> None:
        one = await run(
            [PYTHON, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"],
            env={},
            cwd=None,
            timeout=HANG_TIMEOUT,
        )
        assert (one.status, one.out, one.err) == (3, "out\n", "err\n")
        assert one.exited_with(3)
        assert not one.exited_with(0)
        assert one.ending == "exit status 3"
        assert one.last_line == "err"

    on_loop(main, loop=loop)


def test_command_line_is_split_without_shell(tmp_path: Path) -> None:
    left = tmp_path / "left"
    line = f'{PYTHON} -c "import sys; print(sys.argv[1:])" "a b" $HOME ; touch {left} `id` | cat'
    one = run_command(line)
    assert one.out.strip() == repr(["a b", "$HOME", ";", "touch", str(left), "`id`", "|", "cat"])
    assert not left.exists()


@pytest.mark.parametrize(
    ("cmd", "reason"),
    [
        ("", "it is empty"),
        ("   ", "it is empty"),
        ([], "it is empty"),
        ([""], "it is empty"),
        ("echo 'open", "cannot be split into words"),
        (["echo", "a\0b"], "NUL"),
        ("no-such-program-anywhere --version", "there is no no-such-program-anywhere"),
    ],
)
def test_start_failure_has_reason(cmd: str | list[str], reason: str) -> None:
    one = run_command(cmd)
    assert one.status == EXIT_NOT_RUN
    assert reason in one.start_error
    assert one.ending == one.start_error
    assert not one.exited_with(EXIT_NOT_RUN)


def test_unexecutable_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"\0\1\2")
    assert f"{path} cannot be run (permission denied)" in run_command([str(path)]).start_error
    path.chmod(0o700)
    assert f"{path} cannot be run (exec format error)" in run_command([str(path)]).start_error


def test_missing_working_folder_is_reported(tmp_path: Path) -> None:
    assert str(tmp_path / "gone") in run_command(["true"], cwd=str(tmp_path / "gone")).start_error


@pytest.mark.spec("DR-32.adapter-6")
def test_environment_is_filtered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOO", "1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("TMPDIR", "/tmp")
    monkeypatch.setenv("LANG", "C.UTF-8")
    one = run_command(["env"], env={"GIVEN": "yes"})
    found = dict(line.split("=", 1) for line in one.out.splitlines())
    assert found["GIVEN"] == "yes"
    assert set(found) == {"PATH", "HOME", "LANG", "TMPDIR", "GIVEN"}
    assert found["PATH"] == os.environ["PATH"]


def test_input_is_written_to_command() -> None:
    text = b"x" * 300_000
    one = run_command([PYTHON, "-c", "import sys; print(len(sys.stdin.buffer.read()))"], stdin=text)
    assert one.out.strip() == "300000"
    # Without any it reads the end at once, and does not wait for a human.
    assert run_command(["cat"]).exited_with(0)


@pytest.mark.parametrize("loop", LOOPS)
def test_command_may_end_before_reading_input(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = Process.connect

    async def late(process: Process) -> None:
        assert await process.wait_gone(HANG_TIMEOUT)
        await connect(process)

    async def main() -> None:
        monkeypatch.setattr(Process, "connect", late)
        one = await run(["false"], env={}, cwd=None, timeout=HANG_TIMEOUT, stdin=b"too late")
        assert one.exited_with(1)
        assert not one.timed_out

    on_loop(main, loop=loop)


def test_long_output_is_truncated() -> None:
    one = run_command([PYTHON, "-c", f"print('x' * {4 * MAX_OUTPUT_BYTES})"])
    assert one.exited_with(0)
    assert one.cut
    assert len(one.out) == MAX_OUTPUT_BYTES
    assert not run_command(["echo", "short"]).cut


def test_repr_hides_output() -> None:
    one = run_command(["echo", SECRET])
    assert SECRET in one.out
    assert SECRET not in repr(one)
    assert SECRET not in f"{one}"
    assert SECRET not in one.ending


def test_last_line_is_sanitized_and_short() -> None:
    assert CommandResult(1, err="first\n\x1b[31mlast\n\n").last_line == "\ufffd[31mlast"
    assert CommandResult(1, out="only out\n").last_line == "only out"
    assert CommandResult(1).last_line == ""
    assert len(CommandResult(1, err="y" * 5000).last_line) == 200


async def test_timeout_ends_all_children() -> None:
    one = await run(["sh", "-c", "sleep 300 & echo $!; wait"], env={}, cwd=None, timeout=0.3)
    assert one.timed_out
    assert one.ending == "it did not end within its timeout"
    await wait_for_exit(int(one.out))


async def test_remaining_children_end_with_command() -> None:
    one = await run(["sh", "-c", "sleep 300 & echo $!"], env={}, cwd=None, timeout=HANG_TIMEOUT)
    assert one.exited_with(0)
    await wait_for_exit(int(one.out))


async def test_detached_child_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    leaves = """setsid sh -c 'echo $$ > "$0"; exec sleep 300' "$0" & read pid < "$0"; echo $pid"""
    one = await run(["sh", "-c", leaves, str(pipe)], env={}, cwd=None, timeout=HANG_TIMEOUT)
    assert one.exited_with(0)
    assert is_running(int(one.out))
    os.kill(int(one.out), 9)
    await wait_for_exit(int(one.out))


@pytest.mark.parametrize("loop", LOOPS)
def test_cancelling_ends_all_children(tmp_path: Path, loop: str) -> None:
    async def main() -> None:
        with hanging_command(tmp_path) as (cmd, pipe):
            task = asyncio.ensure_future(run(cmd, env={}, cwd=None, timeout=300.0))
            child = await with_timeout(read_child_pid(pipe))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await with_timeout(task, 1.0)
            await wait_for_exit(child)

    on_loop(main, loop=loop)


def test_split_command_splits_text() -> None:
    assert split_command("npx @scope/pkg --flag 'a b'") == ["npx", "@scope/pkg", "--flag", "a b"]
    assert split_command(("a", "b c")) == ["a", "b c"]


# -- with a human at a terminal

_IN_TERMINAL = """
import asyncio, fcntl, json, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from interlock.drivers.processes import run_in_terminal
async def main():
    ran = await run_in_terminal(sys.argv[2:], env={}, cwd=None, timeout=float(sys.argv[1]))
    back = os.tcgetpgrp(0) == os.getpgrp()
    os.write(3, json.dumps([ran.status, ran.timed_out, back]).encode())
asyncio.run(main())
"""


def at_a_terminal(typed: str, cmd: list[str], timeout: float) -> tuple[list[object], str]:
    """What becomes of a command that runs at a terminal where somebody types."""
    ours, theirs = pty.openpty()
    reader, writer = os.pipe()
    try:
        os.set_inheritable(writer, True)
        script = _IN_TERMINAL.replace("os.write(3,", f"os.write({writer},")
        child = subprocess.Popen(
            [PYTHON, "-c", script, str(timeout), *cmd],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            pass_fds=[writer],
        )
        os.close(writer)
        os.close(theirs)
        os.write(ours, typed.encode())
        said = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:
                break  # Linux says so when the other end is closed
            if not chunk:
                break
            said += chunk
        assert child.wait(HANG_TIMEOUT) == 0, said
        with os.fdopen(reader, "rb") as found:
            reader = -1
            return json.loads(found.read()), said.decode()
    finally:
        os.close(ours)
        if reader >= 0:
            os.close(reader)


def test_interactive_command_gets_and_returns_terminal() -> None:
    script = "import os; name = input('who? '); print('hello', name, os.isatty(0)); exit(7)"
    found, message = at_a_terminal("somebody\n", [PYTHON, "-c", script], 20.0)
    assert found == [7, False, True], message
    assert "hello somebody True" in message


def test_interactive_command_times_out() -> None:
    found, message = at_a_terminal("", [PYTHON, "-c", "input('who? ')"], 1.0)
    assert found == [-9, True, True], message


async def test_interactive_command_requires_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    one = await processes.run_in_terminal(["true"], env={}, cwd=None, timeout=1.0)
    assert one.status == EXIT_NOT_RUN
    assert "needs a terminal" in one.start_error
