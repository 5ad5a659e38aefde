"""`interlock operator`: verification codes for operators with a key."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from joserfc.jwk import OKPKey
from typer.testing import CliRunner

from interlock.aql.commands.operator import operator
from interlock.core.paths import approvals_socket_path, make_private
from interlock.trust.approvals.web import ApprovalsSocket
from tests.aql.safety.guarded_pipeline import challenge_id
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.waiting import wait_until
from tests.trust.approvals_web.code_office import CodeOffice

pytestmark = pytest.mark.feature("aql")

T = TypeVar("T")


class Terminal:
    """A node with its local socket in a thread, and the terminal of its operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(HANG_TIMEOUT)
        self.config = folder / "interlock.yaml"
        self.config.write_text(json.dumps({"servers": {}, "state_dir": str(folder)}))
        self.key = folder / "clerk.pem"
        self.key.write_bytes(self.office.node.keys.operator.as_pem(private=True))
        self.key.chmod(0o600)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        state = self.folder / "state"
        state.mkdir()
        self.office = CodeOffice(state)
        make_private(self.folder)
        socket = ApprovalsSocket(self.office.app.local)
        await socket.open(approvals_socket_path(self.folder / "mcp.sock"))
        self._ready.set()
        await self._end.wait()
        self.office.app.close()
        await socket.close()
        self.office.node.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(HANG_TIMEOUT)
        assert not self._thread.is_alive()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def do(self, action: Callable[[], T]) -> T:
        async def call() -> T:
            return action()

        return self.wait(call())

    def blocked(self) -> str:
        """The id of the challenge that can unblock ada."""
        node = self.office.node
        self.wait(node.begin())
        id = challenge_id(self.wait(node.report("drop_table users")))
        self.wait(node.wait_for_approval("unblock"))
        return id

    def says(self, *words: str, key: Path | None = None) -> Any:
        options = ["--config", str(self.config), "--key", str(key or self.key)]
        command = [*words[:1], *options, *words[1:]] if words[:1] else options
        if words and words[0].startswith("-"):
            command = [*options, *words]
        return CliRunner().invoke(operator, command)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    # The path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="il"))
    one = Terminal(folder)
    try:
        yield one
    finally:
        one.stop()
        shutil.rmtree(folder)


@pytest.mark.spec("AQ-8.8.2-5")
def test_operator_sees_code_and_blocked_caller(terminal: Terminal) -> None:
    assert terminal.says().exit_code == 0
    id = terminal.blocked()
    result = terminal.says()
    assert result.exit_code == 0, result.output
    code = terminal.office.node.code(id)
    assert code in result.output
    assert "ada (agent) is blocked after: drop_table users" in result.output
    data = json.loads(terminal.says("--json").stdout)
    assert data["nodes"][0]["challenges"][0]["code"] == code


def test_wrong_key_shows_no_codes(terminal: Terminal) -> None:
    id = terminal.blocked()
    other = terminal.folder / "model.pem"
    other.write_bytes(OKPKey.generate_key("Ed25519").as_pem(private=True))
    result = terminal.says(key=other)
    assert result.exit_code != 0
    assert terminal.office.node.code(id) not in result.output


@pytest.mark.spec("AQ-8.8.2-5")
def test_operator_renews_code(terminal: Terminal) -> None:
    id = terminal.blocked()
    result = terminal.says("renew", id[:8], "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["id"] != id
    response = terminal.wait(
        terminal.office.node.read_builtin(
            "verify_challenge", challenge_id=data["id"], code=data["code"]
        )
    )
    assert response["unblocked"] is True
    assert terminal.says("renew", id).exit_code != 0


@pytest.mark.spec("AQ-8.8.3-1")
def test_operator_unblocks_caller_by_key(terminal: Terminal) -> None:
    terminal.blocked()
    node = terminal.office.node
    assert terminal.says("unblock", "deputy", "--yes").exit_code != 0
    # The signature is made by the node's clock, which stands still here.
    result = terminal.says("unblock", "ada", "--yes")
    assert result.exit_code == 0, result.output
    assert "is unblocked" in result.output
    assert terminal.do(lambda: len(node.loop.blocks)) == 0
    assert "unblocked" in node.list_outcomes("ada")


def test_watch_prints_new_challenges(terminal: Terminal) -> None:
    command = ["-c", "from interlock.aql.commands.operator import operator; operator()", "--watch"]
    options = ["--config", str(terminal.config), "--key", str(terminal.key)]
    program = subprocess.Popen(
        [sys.executable, *command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert program.stdout is not None
        streams = terminal.office.app._streams
        wait_until("somebody watches", lambda: len(streams) > 0)
        id = terminal.blocked()
        code = terminal.office.node.code(id)
        assert any(code in line for line in program.stdout)
        terminal.do(terminal.office.app.close)
        assert program.wait(HANG_TIMEOUT) == 0
    finally:
        program.kill()
        program.wait()
        assert program.stdout is not None
        program.stdout.close()


@pytest.mark.parametrize("command", [("renew", "x"), ("unblock", "ada"), ("end", "x")])
def test_rejects_option_before_subcommand(command: tuple[str, str]) -> None:
    ran = CliRunner().invoke(operator, ["--config", "other.yaml", *command])
    assert ran.exit_code == 2
    assert f"--config must come after {command[0]}" in " ".join(
        ran.output.replace("│", " ").split()
    )
