"""`interlock join`: an unmodified server in the tree of a node."""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest
import typer

from interlock.terminal.server_options import guess_segment, read_server
from tests.support.command_line import DEMO, INTERLOCK, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.feature("tree")


class JoinProcess:
    """`interlock join`, running."""

    def __init__(self, world: CommandLine, *arguments: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [*INTERLOCK, "join", *arguments],
            cwd=world.cwd,
            env={**world.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.seen: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def says(self, words: str) -> None:
        """Wait for a line with these words."""
        while True:
            try:
                line = self._lines.get(timeout=HANG_TIMEOUT)
            except queue.Empty:
                raise AssertionError(f"no line {words!r}, only: {self.seen}") from None
            self.seen.append(line)
            if words in line:
                return

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(HANG_TIMEOUT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(HANG_TIMEOUT)
        assert self.process.stdout is not None
        self.process.stdout.close()


Join = Callable[..., JoinProcess]


@pytest.fixture
def join(world: CommandLine) -> Iterator[Join]:
    started: list[JoinProcess] = []

    def begin(*arguments: str, **environ: str) -> JoinProcess:
        started.append(JoinProcess(world, *arguments, **environ))
        return started[-1]

    yield begin
    for call in started:
        call.close()


def parent_of(world: CommandLine) -> str:
    return f"ws://127.0.0.1:{world.port}/ax"


@pytest.mark.spec("AX-6.1-10")
def test_joined_server_is_called_through_tree(world: CommandLine, join: Join) -> None:
    world.config()
    node = world.up()
    one = join(parent_of(world), "--segment", "demo", "--", *DEMO.split())
    one.says("starting demo: ")
    one.says(f"Registered as demo at {parent_of(world)}, 9 tools")
    wait_until("the tools", lambda: node.status()["tools"] >= 9 or None)
    called = world.run_here("call", "demo.roll_dice", "sides=2", "count=1")
    assert called.returncode == 0, called.stderr
    assert one.end() == 0
    one.says(f"Deregistered from {parent_of(world)}")
    wait_until("their end", lambda: node.status()["tools"] < 9 or None)


def test_server_id_is_stored_and_locked(world: CommandLine, join: Join) -> None:
    world.config()
    node = world.up()
    events = []
    for number in (signal.SIGINT, signal.SIGTERM):
        one = join(parent_of(world), "-s", "demo", "--", *DEMO.split())
        one.says("Registered as demo")
        (folder,) = (world.state / "interlock" / "join").iterdir()
        events.append(folder)
        again = world.run("join", parent_of(world), "-s", "demo", "--", *DEMO.split())
        assert again.returncode == 3
        assert "has already joined" in again.stderr
        assert one.end(number) == 0
    assert events[0] == events[1]
    assert node.end() == 0


def test_taken_segment_is_rejected_with_advice(world: CommandLine, join: Join) -> None:
    world.config({"demo": DEMO})
    world.up()
    result = world.run("join", parent_of(world), "-s", "demo", "--", *DEMO.split())
    assert result.returncode == 1
    assert result.stderr.count("Choose another segment") == 1
    assert "Traceback" not in result.stderr


def test_permanently_rejected_server_exits_with_reason(world: CommandLine, join: Join) -> None:
    """Also when it was registered before: here the config gives the segment to a server."""
    world.config()
    world.up()
    one = join(parent_of(world), "-s", "demo", "--", *DEMO.split())
    one.says("Registered as demo")
    world.config({"demo": DEMO})
    one.says("Choose another segment,")
    assert one.process.wait(HANG_TIMEOUT) == 1
    assert sum("Registered as" in line for line in one.seen) == 1


def test_start_error_is_printed_once(world: CommandLine) -> None:
    world.config()
    world.up()
    result = world.run("join", parent_of(world) + "/no", "-s", "demo", "--", "no-such-program")
    problems = [line for line in result.stderr.splitlines() if line.startswith("interlock: ")]
    assert len(problems) == 1, result.stderr
    assert problems[0].count("no-such-program") == 1


def test_join_retries_until_parent_returns(world: CommandLine, join: Join) -> None:
    world.config()
    one = join(parent_of(world), "-s", "demo", "--heartbeat", "200ms", "--", *DEMO.split())
    one.says("Retrying until Ctrl-C.")
    node = world.up()
    one.says("Registered as demo")
    assert node.end() == 0
    one.says(f"Connection to {parent_of(world)} lost")
    world.up()
    one.says("Registered as demo")


def test_token_is_sent_and_never_printed(world: CommandLine, join: Join) -> None:
    token = "hunter2-hunter2-hunter2"
    world.config(tokens=[{"name": "me", "token": "${env:T}", "may": ["register"]}])
    world.up(T=token)
    result = world.run("join", parent_of(world), "-s", "demo", "--", *DEMO.split())
    if result.returncode == 0:
        pytest.fail("a node with tokens let a stranger in")
    assert "Use a token that the parent accepts." in result.stderr
    one = join(parent_of(world), "-s", "demo", "--token-env", "T", "--", *DEMO.split(), T=token)
    one.says("Registered as demo")
    assert token not in "".join(one.seen)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("ws://127.0.0.1:1/ax",), 2, "Name one server"),
        (("ws://127.0.0.1:1/ax", "--url", "http://x", "--", "prog"), 2, "Name one server"),
        (("ws://192.0.2.1/ax", "--", "prog"), 2, "write wss://192.0.2.1/ax"),
        (("http://127.0.0.1:1/ax", "--", "prog"), 2, "is not the address of a node"),
        (("unix:/x", "-s", "A", "--", "prog"), 2, "is not a segment"),
        (("unix:/x", "--authority", "edge", "--", "prog"), 2, "is not an authority"),
        (
            ("unix:/x", "--authority-key", "k", "--", "prog"),
            2,
            "--authority-key requires --authority. Add it.",
        ),
        (
            ("wss://x/ax", "--certificate", "c", "--", "prog"),
            2,
            "--certificate requires --key. Add it.",
        ),
        (("wss://x/ax", "--key", "k", "--", "prog"), 2, "--key requires --certificate. Add it."),
        (("unix:/x", "--token-env", "not a name", "--", "prog"), 2, "takes the name of an"),
        (("unix:/x", "--heartbeat", "soon", "--", "prog"), 2, "is not a duration"),
        (("unix:/x", "--url", "ftp://x"), 2, "not a URL of an MCP server"),
        (("unix:/x", "--url", "http://127.0.0.1/mcp"), 2, "Set one with --segment"),
        (("unix:/x", "-H", "a: b", "--", "prog"), 2, "--header is for --url"),
        (("unix:/x", "--url", "http://x", "-e", "A=b"), 2, "--env is for a command"),
        (("unix:/x", "-s", "a", "--", "/no/such/program"), 4, "was not found"),
        (("wss://x/ax", "--ca", "no.pem", "--", "prog"), 3, "--ca: the file no.pem does not exist"),
        (
            ("unix:/x", "--authority", "dns:a", "--authority-key", "no.pem", "--", "prog"),
            3,
            "--authority-key: the file no.pem does not exist; correct the path",
        ),
        (
            ("unix:/x", "--authority", "dns:a", "--authority-key", "/dev/null", "--", "prog"),
            3,
            "--authority-key: The key of the authority is not a private key",
        ),
        (
            ("wss://x/ax", "--certificate", "c.pem", "--key", "k.pem", "--", "prog"),
            3,
            "--certificate: the file c.pem does not exist",
        ),
        (
            ("wss://x/ax", "--token-env", "NOPE", "--", "prog"),
            3,
            "NOPE is not set; set the environment variable NOPE to the token",
        ),
        (
            ("unix:/x", "--token-env", "LINES", "--", "prog"),
            3,
            "--token-env: the environment variable LINES has a line end around the token",
        ),
        (("unix:/x", "--token-env", "EMPTY", "--", "prog"), 3, "variable EMPTY is empty"),
    ],
)
def test_join_rejects_invalid_options(
    world: CommandLine, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = world.run_here("join", *arguments, LINES="hunter2hunter2\n", EMPTY="")
    assert "hunter2" not in result.stderr
    whole = " ".join(result.stderr.replace("│", " ").split())
    assert result.returncode == code, whole
    assert message in whole


@pytest.mark.parametrize(
    ("line", "segment"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem .", "filesystem"),
        ("npx -y jira-mcp@1.2.3", "jira"),
        ("uvx mcp-server-git --repository .", "git"),
        ("python3.12 -m my_server", "my"),
        ("python server.py", "server"),
        ("/opt/tools/Weather-Station --fast", "weather-station"),
        ("docker run -i --rm db-server:latest", "db"),
        ("node build/index.js", "index"),
        ("npx -y", ""),
    ],
)
def test_segment_derives_from_command(line: str, segment: str) -> None:
    assert guess_segment(read_server(line.split(), None, [], [])) == segment


@pytest.mark.parametrize(
    ("url", "segment"),
    [
        ("https://mcp.jira.example.com/mcp", "jira"),
        ("http://wiki:9001/mcp", "wiki"),
        ("http://localhost:9001/mcp", ""),
        ("http://[::1]:9001/mcp", ""),
    ],
)
def test_segment_derives_from_url(url: str, segment: str) -> None:
    assert guess_segment(read_server([], url, [], [])) == segment


def test_command_line_values_are_literal() -> None:
    server = read_server(["run", "${env:HOME}"], None, ["A", "B=${env:C}"], [])
    assert server.args == ["$${env:HOME}"]
    assert server.env == {"A": "${env:A}", "B": "${env:C}"}
    with pytest.raises(typer.BadParameter, match="takes NAME"):
        read_server(["run"], None, ["=x"], [])
    remote = read_server([], "http://x", [], ["Authorization: Bearer ${env:T}"])
    assert remote.headers == {"Authorization": "Bearer ${env:T}"}
    with pytest.raises(typer.BadParameter, match="--header takes"):
        read_server([], "http://x", [], ["nothing"])
