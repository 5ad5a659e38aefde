"""Commands and requests of manifests: confined, journaled, and never run for a rejected driver."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from interlock.drivers.health import ProbeError, declared_probe_client
from interlock.drivers.lifecycle import NODE_USER, workspace_id
from interlock.drivers.paths import driver_states_path
from interlock.drivers.sign_in_store import SqliteSignInStore
from interlock.manifests.model import HttpProbe
from tests.drivers.driver_workspace import Running, Workspace, running
from tests.drivers.driver_world import driver
from tests.drivers.sandbox.confinements import needs_confinement
from tests.drivers.test_drivers_egress import cannot_confine
from tests.drivers.test_drivers_trust import key

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOKS_AROUND = """\
import json, os, socket, sys
folder, port, name = sys.argv[1:]
def may(act):
    try:
        act()
    except OSError:
        return False
    return True
told = {
    "dials": may(lambda: socket.create_connection(("127.0.0.1", int(port)), 5).close()),
    "sees state": bool(os.listdir(folder + "/state")),
    "writes manifests": may(lambda: open(folder + "/.drivers/planted", "w").close()),
}
with open(folder + "/told-" + name, "w") as file:
    file.write(json.dumps(told))
print("v1.0.0 a word that is not written down")
"""
KEPT_IN = {"dials": False, "sees state": False, "writes manifests": False}


@asynccontextmanager
async def web(status: int = 204) -> AsyncIterator[tuple[int, list[str]]]:
    """An HTTP server of this machine: its port, and what it was asked."""
    requests: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if line:
            requests.append(line.decode().strip())
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], requests


class ProbingWorkspace:
    """A workspace whose driver names commands that look where they can get."""

    def __init__(self, folder: Path, port: int) -> None:
        self.workspace = Workspace(folder)
        self.contract = self.workspace.contract()
        self._folder = folder
        self._port = port
        self.script = folder / ".drivers" / "echo-mcp" / "looks.py"
        self.script.parent.mkdir()
        self.script.write_text(LOOKS_AROUND, encoding="utf-8")

    def command(self, name: str) -> str:
        return shlex.join([sys.executable, "looks.py", str(self._folder), str(self._port), name])

    def told(self, name: str) -> dict[str, bool] | None:
        try:
            data: dict[str, bool] = json.loads((self._folder / f"told-{name}").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return data

    def driver(self, **fields: Any) -> None:
        self.workspace.driver("echo-mcp", self.workspace.echoes(self.contract), **fields)

    def version_check(self) -> dict[str, Any]:
        return {"cmd": self.command("version"), "parse": r"v(\S+)", "range": "^1.0.0"}


@needs_confinement
async def test_checks_run_confined(tmp_path: Path) -> None:
    async with web() as (port, asked):
        world = ProbingWorkspace(tmp_path, port)
        world.driver(
            version_check=world.version_check(),
            health_check={"method": "exec", "cmd": world.command("health"), "every": "60s"},
        )
        async with running(world.workspace) as node:
            # Both work, and the driver is used.
            assert (await node.call("text.echo", text="x"))["said"] == "x"
            await node.until(lambda: world.told("health"), "the health check")
            assert world.told("version") == world.told("health") == KEPT_IN
            assert asked == []
            rows = await _commands(node, 2)
            assert {row["command"] for _, row in rows} == {
                "version_check.cmd", "health_check.cmd",
            }  # fmt: skip
            assert {(item.name, item.outcome) for item, _ in rows} == {("driver:echo-mcp@1", "ok")}
            assert all(row["confined"] for _, row in rows)
            assert "is not written down" not in str(rows)


@needs_confinement
async def test_refresh_command_runs_confined(tmp_path: Path) -> None:
    async with web() as (port, asked):
        world = ProbingWorkspace(tmp_path, port)
        world.driver(
            auth={
                "login": {"cmd": "true"},
                "refresh": {"cmd": world.command("refresh"), "every": "60s"},
            }
        )
        _signed_in(world.workspace)
        async with running(world.workspace) as node:
            assert (await node.call("text.echo", text="x"))["said"] == "x"
            assert world.told("refresh") == KEPT_IN
            assert asked == []
            ((_, row),) = await _commands(node, 1)
            assert row["command"] == "auth.refresh.cmd"


async def test_refresh_request_requires_declared_egress(tmp_path: Path) -> None:
    async with web() as (port, asked):
        for egress, times in (([], 0), ([f"127.0.0.1:{port}"], 1)):
            folder = tmp_path / str(times)
            folder.mkdir()
            workspace = Workspace(folder)
            url = f"http://127.0.0.1:{port}/refresh"
            workspace.driver(
                "echo-mcp",
                workspace.echoes(workspace.contract()),
                network={"egress": egress},
                auth={"login": {"cmd": "true"}, "refresh": {"url": url, "every": "60s"}},
            )
            _signed_in(workspace)
            async with running(workspace) as node:
                await node.call("text.echo", text="x")
                assert asked == ["POST /refresh HTTP/1.1"] * times
                response = str(node.status().warnings)
                assert ("not in its network.egress" in response) is (times == 0)


async def test_health_request_requires_declared_egress(tmp_path: Path) -> None:
    async with web() as (port, asked):
        workspace = Workspace(tmp_path)
        contract = workspace.contract()
        check = {
            "method": "http",
            "http": {"url": f"http://127.0.0.1:{port}/live", "expect_status": 204},
            "every": "60s",
        }
        for id, egress in (("good-mcp", [f"127.0.0.1:{port}"]), ("other-mcp", [])):
            workspace.driver(
                id, workspace.echoes(contract), network={"egress": egress}, health_check=check
            )
        async with running(workspace) as node:
            good, other = (node.driver(id).health for id in ("good-mcp", "other-mcp"))
            assert good is not None
            assert other is not None
            await node.until(lambda: good.passed_at and other.failed_at, "both checks")
            assert other.is_failing
            assert "which is not in its network.egress" in other.reason
            assert asked == ["GET /live HTTP/1.1"]


async def test_health_request_cannot_reach_node(tmp_path: Path) -> None:
    """Not for a driver that may reach this machine either: a request from here would be believed
    to be the operator's own."""

    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    async with running(workspace, workspace.config(local_egress=True)) as node:
        port = urlsplit(await node.node.listen()).port
        for number, host in enumerate(("127.0.0.1", "localhost", "[::ffff:127.0.0.1]")):
            url = f"http://{host}:{port}/mcp"
            workspace.driver(
                f"echo-{number}",
                workspace.echoes(contract),
                network={"egress": [f"{host}:{port}"]},
                health_check={"method": "http", "http": {"url": url}, "every": "60s"},
            )
        await node.until(
            lambda: len(node.drivers.lifecycle.drivers) == 3,
            "the drivers",
        )
        actual = [driver.health for driver in node.drivers.lifecycle.drivers.values()]
        await node.until(
            lambda: all(item is not None and item.failed_at for item in actual), "the checks"
        )
        for element in actual:
            assert element is not None
            assert "an address of this node" in element.reason


async def test_request_to_name_of_own_machine_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose name is declared decides where it leads, and may decide for the node."""

    loop = asyncio.get_running_loop()
    requests = []

    async def here(host: str, port: int, **_: Any) -> Any:
        requests.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    manifest = driver(tmp_path, egress=("orders.example",))
    ask = declared_probe_client(manifest, local_egress=True)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: Names(loop, here))
    with pytest.raises(ProbeError, match=r"resolves to 127\.0\.0\.1, which is not allowed"):
        await ask(HttpProbe("https://orders.example/live"), timeout=5)
    assert requests == ["orders.example"]


class Names:
    """A loop with a resolver of a test's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, resolve: Any) -> None:
        self._loop = loop
        self.getaddrinfo = resolve

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


async def test_unconfinable_command_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot_confine(monkeypatch)

    world = ProbingWorkspace(tmp_path, 1)
    world.driver(
        version_check=world.version_check(),
        health_check={"method": "exec", "cmd": world.command("health"), "every": "60s"},
    )
    async with running(world.workspace) as node:
        health = node.driver().health
        assert health is not None
        await node.until(lambda: health.is_failing, "the check")
        assert "drivers.sandbox: advisory" in health.reason
        code, words = "", ""
        try:
            await node.driver().server.ensure_running()
        except Exception as error:
            code, words = error.failure.name, error.message  # type: ignore[attr-defined]
        assert code == "sandbox_unavailable"
        assert "drivers.sandbox: advisory" in words
        assert {item.outcome for item, _ in await _commands(node, 2)} == {"refused"}
        assert world.told("version") is world.told("health") is None

    config = world.workspace.config(sandbox="advisory")
    async with running(world.workspace, config) as node:
        await node.call("text.echo", text="x")
        await node.until(lambda: world.told("health"), "the check")
        rows = await _commands(node, 4)
        assert [row["confined"] for item, row in rows if item.outcome == "ok"] == [False, False]


async def test_rejected_driver_runs_nothing(tmp_path: Path) -> None:
    """Neither its checks nor its code, whatever it is refused for."""

    for why, settings, fields in (
        ("signature", {"trust": ["right.pem"]}, {}),
        ("egress", {}, {"network": {"egress": ["*"]}}),
        ("strict", {"strict": True}, {"timeout_override_ms": 10_000_000}),
    ):
        folder = tmp_path / why
        folder.mkdir()
        key(folder, "right")
        world = ProbingWorkspace(folder, 1)
        world.driver(
            version_check=world.version_check(),
            health_check={"method": "exec", "cmd": world.command("health"), "every": "60s"},
            auth={
                "login": {"cmd": "true"},
                "refresh": {"cmd": world.command("refresh"), "every": "60s"},
            },
            **fields,
        )
        imported = folder / "imported"
        (world.script.parent / "driver.py").write_text(
            f"open({str(imported)!r}, 'w').close()\n"
            "from interlock.drivers.sdk import define_driver\n"
            "driver = define_driver()\n",
            encoding="utf-8",
        )
        _signed_in(world.workspace)
        config = world.workspace.config(
            verify="start", sandbox="advisory", allow_code=["echo-mcp"], **settings
        )
        async with running(world.workspace, config) as node:
            assert node.status().state == "refused", why
            driver = node.driver()
            driver.check_sign_in_soon()
            assert not await driver.wait_until_ready(10)
            verifier = node.drivers.verifier.task
            if verifier is not None:
                await verifier
            assert driver.health is None
            assert await node.rows("driver.command") == []
        assert [*folder.glob("told-*")] == []
        assert not imported.exists(), why


async def _commands(node: Running, wanted: int) -> list[tuple[Any, dict[str, Any]]]:
    rows = await node.rows("driver.command")
    for _ in range(1000):
        if len(rows) >= wanted:
            break
        rows = await node.rows("driver.command")
    assert len(rows) == wanted
    return rows


def _signed_in(workspace: Workspace) -> None:
    """Long ago, so that it is to be refreshed."""
    path = driver_states_path(workspace.config(), {}, workspace.folder)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    SqliteSignInStore(path).save(
        "echo-mcp", workspace_id(workspace.folder), NODE_USER, authed=True, refreshed_at=1.0
    )
