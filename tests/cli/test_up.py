"""`interlock up`: start, commands for clients, and a clean stop."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client

from tests.cli.screen import screen
from tests.support.command_line import DEMO, INTERLOCK, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until, wait_until_gone

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("started", file=sys.stderr, flush=True)
time.sleep(600)
"""


def test_demo_serves_both_protocol_generations(world: CommandLine) -> None:
    node = world.up("--demo", "--listen", str(world.port))
    assert node.url == f"http://127.0.0.1:{world.port}/mcp"
    node.pids()

    async def ask(mode: str) -> tuple[str, list[str], str]:
        async with Client(node.url, mode=mode) as client:
            listing = await client.list_tools()
            rolled = await client.call_tool("demo.roll_dice", {"sides": 2, "count": 3})
            assert rolled.structured_content is not None
            assert 3 <= rolled.structured_content["total"] <= 6
            return client.protocol_version, [tool.name for tool in listing.tools], "rolled"

    for mode, revision in (("legacy", "2025-11-25"), ("auto", "2026-07-28")):
        spoken, names, _ = asyncio.run(ask(mode))
        assert spoken == revision
        assert "demo__roll_dice" in names
        assert len(names) == 9


@pytest.mark.feature("aql")
def test_up_prints_client_commands(world: CommandLine) -> None:
    node = world.up("--demo", "--listen", str(world.port))
    node.wait_for_line("Many tools")
    output = "".join(node.seen)
    url = node.url
    assert f"claude mcp add --scope user --transport http interlock {url}\n" in output
    assert f'{{"mcpServers": {{"interlock": {{"url": "{url}"}}}}}}' in output
    assert f'code --add-mcp \'{{"name":"interlock","type":"http","url":"{url}"}}\'\n' in output
    assert f"codex mcp add interlock --url {url}\n" in output
    assert f" {url}?view=aql " in output


@pytest.mark.feature("topics")
def test_up_prints_topics(world: CommandLine) -> None:
    world.config(topics={"rooms": {"ops": {"access": "private"}, "t-*": {"access": "private"}}})
    node = world.up()
    node.wait_for_line("Topics ")
    there = node.url.replace("http://", "ws://").replace("/mcp", "/ws")
    assert f" {there}   ops, t-*: `interlock topic join NAME`\n" in "".join(node.seen)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_node_and_removes_files(world: CommandLine, number: int) -> None:
    world.config({"one": DEMO, "two": DEMO})
    node = world.up()
    started = list(node.pids().values())
    sockets = list(world.state.rglob("node.sock"))
    assert len(sockets) == 1
    assert node.end(number) == 0
    wait_until_gone(started)
    assert not sockets[0].exists()


def test_second_interrupt_stops_at_once(world: CommandLine) -> None:
    script = world.folder / "stubborn.py"
    script.write_text(STUBBORN, encoding="utf-8")
    world.config({"stubborn": f"{sys.executable} {script}"})
    node = world.up()
    children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
    started = wait_until(
        "the process", lambda: [int(item) for item in children.read_text().split()]
    )
    node.send(signal.SIGINT)
    node.wait_for_line("stopping")
    # In order, its status would be 0.
    assert node.end(signal.SIGINT) == 130
    wait_until_gone(started)


def test_up_without_config_explains_start(world: CommandLine) -> None:
    result = world.run("up")
    assert result.returncode == 3
    assert result.stdout == ""
    assert result.stderr == (
        "interlock: No config file: no --config, no $INTERLOCK_CONFIG, no ./interlock.yaml "
        "and no ~/.config/interlock/interlock.yaml\n"
        "Run one of these commands:\n"
        "  interlock up --demo                      start a node with a small demo server\n"
        "  interlock import --write                 import the servers of your MCP clients\n"
        "  interlock add NAME URL-or-COMMAND ...    create a config with one server\n"
        "  echo 'drivers: {}' > interlock.yaml      run the drivers of this folder (.drivers)\n"
    )


def test_config_is_searched_in_order(world: CommandLine) -> None:
    def written(path: Path, key: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"servers: {{{key}: http://127.0.0.1:9/mcp}}\n", encoding="utf-8")
        return path

    def used(*arguments: str, **environ: str) -> str:
        result = world.run_here("check", *arguments, **environ)
        assert result.returncode == 0, result.stderr
        return result.stdout.split("\n")[1].split()[0]

    written(world.home / ".config" / "interlock" / "interlock.yaml", "user")
    assert used() == "user"
    written(world.cwd / "interlock.yaml", "folder")
    assert used() == "folder"
    named = written(world.folder / "variable.yaml", "variable")
    assert used(INTERLOCK_CONFIG=str(named)) == "variable"
    given = written(world.folder / "option.yaml", "option")
    assert used("--config", str(given), INTERLOCK_CONFIG=str(named)) == "option"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--config", "nowhere.yaml"], 3, "nowhere.yaml: there is no such file"),
        (["--demo", "--listen", "nonsense"], 2, "is not an address to listen on"),
        (["--demo", "--config", "x.yaml"], 2, "--demo reads no config"),
        (["--demo", "--listen", "0.0.0.0:0"], 3, "add this line: tokens:"),
        (["--no-such-option"], 2, "No such option"),
    ],
)
def test_up_reports_mistakes_in_one_sentence(
    world: CommandLine, arguments: list[str], code: int, message: str
) -> None:
    result = world.run_here("up", *arguments)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_up_reports_taken_port(world: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", world.port)):
        result = world.run("up", "--demo", "--listen", str(world.port))
    assert result.returncode == 3
    assert f"Cannot listen on 127.0.0.1:{world.port}" in result.stderr
    assert "stop it, or choose a free port with `listen` in the config or --listen" in result.stderr
    assert "Traceback" not in result.stderr


def test_rejects_second_node_on_same_folder(world: CommandLine) -> None:
    node = world.up("--demo", "--listen", str(world.port))
    result = world.run("up", "--demo", "--listen", str(world.port))
    assert result.returncode == 3
    assert "Another node uses the state folder" in result.stderr
    assert node.end() == 0


def test_up_shows_screen_on_terminal(world: CommandLine) -> None:
    world.config({"demo": DEMO, "gone": "no-such-program-anywhere"})
    with screen(world) as one:
        wait_until("the view", lambda: one.sees(b"stateless", b"failed", b"9", b"was not found"))
        assert one.interrupt() == 0
        assert b"Stopping." in one.shown
        assert b"Traceback" not in one.shown


# Makes its stdin the controlling terminal, as a terminal window does for a shell.
OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_closing_terminal_stops_node(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, *INTERLOCK, "up"],
        cwd=world.cwd,
        env={**world.environ, "TERM": "xterm", "LINES": "40"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        shown = b""
        while b"stateless" not in shown:
            shown += os.read(master, 65536)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        started = [int(item) for item in children.read_text().split()]
        assert started
        sockets = list(world.state.rglob("node.sock"))
        os.close(master)
        assert process.wait(HANG_TIMEOUT) == 0
        wait_until_gone(started)
        assert not any(socket.exists() for socket in sockets)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(HANG_TIMEOUT)


AT_A_TERMINAL = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]


@pytest.mark.parametrize("sign", ["&", ""], ids=["background", "foreground"])
def test_background_job_draws_no_screen(world: CommandLine, sign: str) -> None:
    # A shell with a terminal of its own, which starts the node as a job.
    job = f'set -m; "$@" {sign}\nwait'
    up = [*INTERLOCK, "up", "--demo", "--listen", str(world.port)]
    shell = subprocess.Popen(
        [*AT_A_TERMINAL, "sh", "-c", job, "sh", *up],
        cwd=world.cwd,
        env={**world.environ, "TERM": "xterm-256color"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout is not None
    assert shell.stdin is not None
    written = ""
    try:
        while "listening at" not in written:
            written += shell.stdout.readline()
        # What it starts is called like itself for a moment.
        [pid] = wait_until("its pid", lambda: one if len(one := pids_of(up)) == 1 else None)
        if not sign:
            while "calls/s" not in written:
                written += shell.stdout.readline()
        os.kill(pid, signal.SIGTERM)
        written += shell.stdout.read()
    finally:
        for left in pids_of(up):
            os.kill(left, signal.SIGKILL)
        shell.kill()
        shell.wait()
        shell.stdin.close()
        shell.stdout.close()
    assert ("calls/s" in written) == (not sign)
    assert ("INFO    node: stopped" in written) == bool(sign)


def pids_of(command: list[str]) -> list[int]:
    """The processes that were started by this command line."""
    whole = "\0".join([*command, ""]).encode()
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and (path / "cmdline").read_bytes() == whole:
                found.append(int(path.name))
        except OSError:
            continue  # it has ended meanwhile
    return found
