"""`interlock login` and `logout` beside a running node."""

from __future__ import annotations

import asyncio
import os
import pty
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.core.upstreams.oauth.fetch import fetch
from tests.core.upstreams.oauth.authority import Authority, ProtectedServer
from tests.support.command_line import INTERLOCK, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until

NEEDED = "jira requires a sign-in. Run `interlock login jira`"
SERVER = {"jira": {"url": "https://mcp.example.com/mcp"}}


class Person:
    """Somebody at a terminal, with a browser."""

    def __init__(self, world: CommandLine) -> None:
        self.world = world
        self.said: list[str] = []
        self.page = ""

    async def login(self, *arguments: str, answer: bool = True, stdin: int | None = None) -> int:
        """Run `login`, and do in the browser what its page asks for; the exit code."""
        process = await asyncio.create_subprocess_exec(
            *INTERLOCK,
            "login",
            *arguments,
            cwd=self.world.cwd,
            env=self.world.environ,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(HANG_TIMEOUT):
                while line := (await process.stdout.readline()).decode():
                    self.said.append(line)
                    page = re.match(r"  (http\S+)", line)
                    if page is not None:
                        self.page = page[1]
                        if answer:
                            await self.agree()
                    elif "paste its address" in line:
                        await self.paste(stdin)
                return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def agree(self) -> None:
        answer = await fetch("GET", self.page, {})
        back = answer.headers[b"location"].decode()
        # Somebody else knocks first, and is sent away.
        other = await fetch("GET", re.sub("state=[^&]*", "state=forged", back), {})
        assert other.status == 400
        assert (await fetch("GET", back, {})).status == 200

    async def paste(self, terminal: int | None) -> None:
        answer = await fetch("GET", self.page, {})
        os.write(self.terminal, b"what?\n" + answer.headers[b"location"] + b"\n")

    terminal = -1

    @property
    def output(self) -> str:
        return "".join(self.said)

    async def run(self, *arguments: str) -> Any:
        return await asyncio.to_thread(self.world.run, *arguments)


@asynccontextmanager
async def open_terminal(
    world: CommandLine,
) -> AsyncIterator[tuple[Person, Authority, ProtectedServer]]:
    async with Authority() as authority, ProtectedServer(authority) as server:
        world.config({"jira": server.url()})
        yield Person(world), authority, server


async def test_signs_in_beside_running_node(world: CommandLine) -> None:
    async with open_terminal(world) as (person, authority, server):
        server.scope = "read"
        node = await asyncio.to_thread(world.up)

        def upstream() -> dict[str, Any]:
            (one,) = node.status()["upstreams"]
            return dict(one)

        await asyncio.to_thread(
            wait_until, "it asks for a human", lambda: upstream()["problem"] == NEEDED
        )
        result = await person.run("status")
        assert NEEDED in result.stdout
        result = await person.run("doctor")
        assert result.returncode == 1
        assert f"✗ jira: {NEEDED}" in result.stdout
        called = await person.run("call", "jira.echo", "text=hi")
        assert called.returncode != 0
        assert "interlock login jira" in called.stderr

        assert await person.login("jira", "--no-browser") == 0, person.output
        assert person.said[-1] == "Signed in to jira, with the scopes read.\n"
        await asyncio.to_thread(
            wait_until, "it is ready", lambda: upstream()["state"] == "ready" or None
        )
        called = await person.run("call", "jira.echo", "text=hi")
        assert called.stdout == "hi\n"
        result = await person.run("doctor")
        assert "✓ jira" in result.stdout

        # The token was given back: the node notices with the next call.
        result = await person.run("logout", "jira")
        assert result.stdout == "Signed out of jira.\n"
        assert len(authority.revoked) == 2
        called = await person.run("call", "jira.echo", "text=hi")
        assert "interlock login jira" in called.stderr
        result = await person.run("logout", "jira")
        assert result.stdout == "Not signed in to jira.\n"

        assert await asyncio.to_thread(node.end) == 0
        kept = (world.state / "interlock" / "tokens.db").stat()
        assert kept.st_mode & 0o777 == 0o600
        written = person.output + "".join(node.seen)
        for path in world.state.rglob("journal.db*"):
            written += path.read_bytes().decode("latin-1")
        assert not [secret for secret in authority.secrets() if secret in written]


async def test_signs_in_with_browser_on_other_machine(world: CommandLine) -> None:
    """It ends up at an address that leads nowhere there, and a human carries it over."""

    async with open_terminal(world) as (person, _authority, _server):
        ours, theirs = pty.openpty()
        person.terminal = ours
        try:
            code = await person.login("jira", "--no-browser", answer=False, stdin=theirs)
        finally:
            os.close(ours)
            os.close(theirs)
        assert code == 0, person.output
        assert "This is not the address of this sign-in." in person.output
        assert person.said[-1] == "Signed in to jira.\n"


async def test_login_reuses_client_and_port(world: CommandLine) -> None:
    async with open_terminal(world) as (person, authority, _server):
        for _ in range(2):
            assert await person.login("jira", "--no-browser") == 0, person.output
        assert len(authority.requests_to("/register")) == 1


async def test_login_prints_rejection_as_sentence(world: CommandLine) -> None:
    async with open_terminal(world) as (person, authority, _server):
        authority.consents = False
        assert await person.login("jira", "--no-browser") == 4
        assert person.said[-1] == (
            "interlock: Cannot sign in to jira: the request was denied in the browser.\n"
        )
        await authority.stop()
        assert await person.login("jira", "--no-browser") == 4
        assert "cannot connect to 127.0.0.1" in person.said[-1]


async def test_login_warns_about_missing_refresh_token(world: CommandLine) -> None:
    async with open_terminal(world) as (person, authority, _server):
        authority.refreshable = False
        assert await person.login("jira", "--no-browser") == 0
        assert "The server sent no refresh token." in person.output


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"command": "run"}, "jira is started by the node"),
        (
            {"url": "https://e.com", "headers": {"authorization": "Bearer ${env:X}"}},
            "its headers have Authorization",
        ),
        ({"url": "https://e.com", "oauth": {"enabled": False}}, "oauth.enabled is false"),
        (
            {
                "url": "https://e.com",
                "oauth": {
                    "grant": "client_credentials",
                    "client_id": "x",
                    "client_secret": "${env:X}",
                },
            },
            "needs no sign-in by a person",
        ),
        ({"url": "http://example.com/mcp"}, "a plain http URL"),
        ({"url": "https://e.com", "oauth": {"client_id": "${env:NOWHERE}"}}, "NOWHERE is not set"),
    ],
)
@pytest.mark.parametrize("command", ["login", "logout"])
def test_rejects_login_for_servers_without_oauth(
    world: CommandLine, server: dict[str, Any], message: str, command: str
) -> None:
    world.config({"jira": server})
    result = world.run_here(command, "jira")
    assert result.returncode == 3
    assert message in result.stderr


def test_rejects_login_for_unknown_server(world: CommandLine) -> None:
    world.config(SERVER)
    result = world.run_here("login", "jra")
    assert result.returncode == 3
    assert "there is no server 'jra' in the config" in result.stderr
    assert "there are: jira" in result.stderr


def test_check_reports_unresolved_oauth_reference(world: CommandLine) -> None:
    oauth = {"client_id": "x", "client_secret": "${env:NOWHERE}", "issuer": "https://i.example.com"}
    path = world.config({"jira": {"url": "https://e.com/mcp", "oauth": oauth}})
    result = world.run_here("check")
    assert result.returncode == 1
    assert "servers.jira.oauth.client_secret: the environment variable NOWHERE" in result.stderr
    assert Path(path).exists()
