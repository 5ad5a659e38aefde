"""`interlock tree`: printed once, as JSON, live on a terminal, and when there is no node."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.certificates import Authority
from tests.support.command_line import DEMO, INTERLOCK, CommandLine
from tests.support.ports import free_port
from tests.support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.feature("tree")


@pytest.fixture
def child(world: CommandLine) -> Iterator[CommandLine]:
    """A node with a demo server, registered with the node of `world` as `edge`."""
    folder = world.folder / "child"
    folder.mkdir()
    other = CommandLine(folder)
    parent = {"url": f"ws://127.0.0.1:{world.port}/ax", "segment": "edge", "heartbeat": "1h"}
    other.config({"demo": DEMO}, parent=parent)
    try:
        yield other
    finally:
        other.close()


def test_prints_tree_of_two_nodes(world: CommandLine, child: CommandLine) -> None:
    world.config({"gone": "no-such-program-anywhere"}, names="safe")
    node = world.up()
    node.wait_for_line("upstream gone: failed: ")
    below = child.up()
    node.wait_for_line("upstream ax:edge: ready")
    wait_until("its tools", lambda: node.status()["tools"] > 5)
    called = world.run_here("call", "edge.demo.roll_dice")
    assert called.returncode == 0, called.stderr
    result = world.run("tree")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"2 nodes · 2 servers · {node.status()['tools']} tools · 1 with problems"
    # All count the same, and by canonical names, whatever clients are shown.
    listing = [tool["name"] for tool in json.loads(world.run("tools", "--json").stdout)["tools"]]
    assert len(listing) == node.status()["tools"]
    assert all(name.startswith("edge.demo.") for name in listing)
    assert re.fullmatch(r" +state +role +link +tools +calls +failed +latency", lines[1].rstrip())
    assert re.match(r"root +ready +root +- ", lines[2])
    assert re.match(r"├ edge +ready +aggregator +ax +9 +1 +0 +[\d.]+ m?s", lines[3])
    assert re.match(r"│ └ demo +ready +leaf +stdio +9 +1 +0 +[\d.]+ m?s", lines[4])
    assert re.match(r"└ gone +failed +leaf +stdio +0 +0 +0 +-", lines[5])
    assert "'no-such-program-anywhere' was not found" in lines[6]
    data = json.loads(world.run_here("tree", "--json").stdout)
    edge = data["children"][0]
    assert (edge["name"], edge["role"], edge["heartbeat_ms"]) == ("edge", "aggregator", 3_600_000)
    assert edge["children"][0]["name"] == "demo"
    assert data["id"] != edge["id"]
    # The lower node shows its own part, and knows that it is not the root.
    own = json.loads(child.run_here("tree", "--json").stdout)
    assert (own["name"], own["role"], own["id"]) == ("edge", "aggregator", edge["id"])
    below.process.kill()
    below.process.wait(HANG_TIMEOUT)
    node.wait_for_line("upstream ax:edge: degraded")
    lines = world.run_here("tree", "--once").stdout.splitlines()
    assert re.match(r"├ edge +degraded +aggregator +ax ", lines[3])
    # Nothing is known of what was below it.
    assert not any("demo" in line for line in lines[4:])


def test_tree_uses_token_over_http(world: CommandLine) -> None:
    world.config({"demo": DEMO}, tokens=[{"name": "me", "token": "${env:NODE_TOKEN}"}])
    node = world.up(NODE_TOKEN="s3cret-s3cret-s3cret")
    node.wait_for_line("upstream demo: ready")
    for path in world.state.rglob("tree.sock"):
        path.unlink()
    result = world.run_here("tree", "--json", NODE_TOKEN="s3cret-s3cret-s3cret")
    assert json.loads(result.stdout)["children"][0]["name"] == "demo"
    outcome = world.run_here("tree", NODE_TOKEN="another-another-another")
    assert outcome.returncode == 1
    assert "rejected the token" in outcome.stderr


def test_tree_trusts_certificate_of_node_only(world: CommandLine) -> None:
    for name in ("ours", "theirs"):
        (world.folder / name).mkdir()
    ours, key = Authority(world.folder / "ours").certificate("node", ["192.0.2.1"])
    theirs, _ = Authority(world.folder / "theirs").certificate("node", ["127.0.0.1"])
    world.config({"demo": DEMO}, tls={"certificate": str(ours), "key": str(key)})
    node = world.up()
    assert node.url.startswith("https://")
    node.wait_for_line("upstream demo: ready")
    for name in ("tree.sock", "status.sock"):
        next(iter(world.state.rglob(name))).unlink()
    assert json.loads(world.run_here("tree", "--json").stdout)["children"][0]["name"] == "demo"
    assert world.run_here("status").returncode == 0
    other = world.cwd / "other.yaml"
    settings = {"certificate": str(theirs), "key": str(key)}
    other.write_text(json.dumps({"listen": f"127.0.0.1:{world.port}", "tls": settings}))
    result = world.run_here("tree", "--config", str(other))
    assert result.returncode == 4
    assert result.stdout == ""


def test_admin_socket_is_private_and_removed(world: CommandLine) -> None:
    world.config({})
    node = world.up()
    (socket,) = wait_until("the socket", lambda: list(world.state.rglob("tree.sock")))
    assert socket.stat().st_mode & 0o777 == 0o600
    assert node.end() == 0
    assert not socket.exists()


def test_tree_without_node_fails(world: CommandLine) -> None:
    world.config({})
    for arguments in (["tree"], ["tree", "--json"], ["tree", "--node", str(free_port())]):
        result = world.run_here(*arguments)
        assert result.returncode == 4
        assert "No node is running at 127.0.0.1:" in result.stderr
        assert result.stdout == ""


def test_tree_has_help(world: CommandLine) -> None:
    output = world.run_here("tree", "--help").stdout
    for words in ("Examples:", "interlock tree --once", "--json", "--node", "exit code is 4"):
        assert words in output
    assert re.search(r"│ tree ", world.run_here("--help").stdout)


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, world: CommandLine, *arguments: str, lines: int = 30) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*INTERLOCK, *arguments],
            cwd=world.cwd,
            env={**world.environ, "TERM": "xterm", "LINES": str(lines), "COLUMNS": "80"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = b""

    def read_on(self) -> bytes:
        while select.select([self._master], [], [], 0)[0]:
            try:
                self.shown += os.read(self._master, 65536)
            except OSError:
                break
        return self.shown

    def sees(self, pattern: bytes) -> None:
        wait_until(f"{pattern!r}", lambda: re.search(pattern, self.read_on()))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(HANG_TIMEOUT)
        os.close(self._master)


def test_tree_updates_on_terminal(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    node = world.up()
    node.wait_for_line("upstream demo: ready")
    terminal = Terminal(world, "tree")
    try:
        terminal.sees(rb"calls/s")
        terminal.sees(rb"demo +\x1b\[32mready")
        for _ in range(3):
            world.run_here("call", "demo.roll_dice")
        # Calls in the last second; then, in a quiet one, none.
        terminal.sees(rb"demo.*ready.* [1-9]\d* +0 +[\d.]+ m?s")
        assert node.end() == 0
        terminal.sees(rb"No node is running at")
        world.up()
        terminal.shown = b""
        terminal.sees(rb"demo +\x1b\[32mready")
        terminal.process.send_signal(signal.SIGINT)
        wait_until("the end", lambda: (terminal.read_on(), terminal.process.poll())[1] is not None)
        assert terminal.process.returncode == 0
        assert b"Traceback" not in terminal.read_on()
    finally:
        terminal.close()


CROWD = """
import asyncio, sys
from interlock.tree.subserver import Subserver

async def stay(number):
    one = Subserver(f"s{number:03}")
    one.tool(name="where", mutable=False)(lambda: "here")
    async with one.connect(sys.argv[1]):
        print("registered", flush=True)
        await asyncio.Event().wait()

async def all_of_them():
    await asyncio.gather(*(stay(number) for number in range(60)))

asyncio.run(all_of_them())
"""


def test_large_tree_fits_terminal(world: CommandLine) -> None:
    world.config({"gone": "no-such-program-anywhere"})
    node = world.up()
    script = world.folder / "crowd.py"
    script.write_text(CROWD, encoding="utf-8")
    crowd = subprocess.Popen(
        [sys.executable, str(script), f"ws://127.0.0.1:{world.port}/ax"],
        env=world.environ,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until("all of them", lambda: node.status()["tools"] >= 60)
        terminal = Terminal(world, "tree", "--once", lines=24)
        try:
            assert terminal.process.wait(HANG_TIMEOUT) == 0
            shown = terminal.read_on().decode()
        finally:
            terminal.close()
        lines = [line for line in shown.splitlines() if line.strip()]
        assert len(lines) <= 24
        # What is with problems comes first, the rest is counted.
        assert "gone" in lines[3]
        assert re.search(r"… and \d+ more, all ready", lines[-1])
        whole = world.run_here("tree").stdout
        assert len([line for line in whole.splitlines() if " leaf " in line]) == 61
    finally:
        crowd.kill()
        crowd.wait()


def test_long_state_path_uses_short_socket(world: CommandLine, tmp_path: Path) -> None:
    """A state folder whose path is too long for a socket: the short one has this socket too."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    world.config({"demo": DEMO}, state_dir=str(deep))
    node = world.up()
    node.wait_for_line("upstream demo: ready")
    assert json.loads(world.run_here("tree", "--json").stdout)["children"][0]["name"] == "demo"
