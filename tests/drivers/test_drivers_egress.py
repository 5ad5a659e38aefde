"""The network of driver servers in a live node: listed hosts only, and no start without
enforcement."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from interlock.app.node import Node
from interlock.drivers import driver_confinement
from interlock.drivers.folders import DriverFolders
from interlock.drivers.sandbox.confinement import Confinement
from tests.drivers.driver_workspace import ANY, SERVER, Workspace, running
from tests.drivers.sandbox.confinements import GREETING, greeting_server, needs_confinement

pytestmark = pytest.mark.usefixtures("no_leaks")

PROXY = 3128
"""Where the way out of a confinement is, as seen from inside."""
PLACE = {
    "type": "object",
    "properties": {
        "host": {"type": "string"},
        "port": {"type": "integer"},
        "say": {"type": "string"},
    },
    "required": ["host", "port"],
}


def dial_workspace(folder: Path, *egress: str, **more: Any) -> Workspace:
    workspace = Workspace(folder)
    contract = workspace.contract("net.dial", inputs=PLACE, outputs=ANY)
    workspace.driver(
        "dial-mcp",
        workspace.serves(contract, "dial"),
        network={"egress": list(egress)},
        **more,
    )
    return workspace


@needs_confinement
@pytest.mark.spec("DR-32.security-1", "DR-30.security-1")
async def test_listed_port_is_only_reachable_port(tmp_path: Path) -> None:
    async with greeting_server() as friend, greeting_server() as stranger:
        workspace = dial_workspace(tmp_path, f"127.0.0.1:{friend.port}")
        async with running(workspace) as node:
            assert await node.call("net.dial", host="127.0.0.1", port=friend.port) == {
                "got": GREETING
            }
            response = await node.call("net.dial", host="127.0.0.1", port=stranger.port)
            assert set(response) == {"failed"}
            response = await node.call("net.dial", host="localhost", port=stranger.port)
            assert set(response) == {"failed"}
        assert (friend.visits, stranger.visits) == (1, 0)


@needs_confinement
@pytest.mark.spec("DR-30.conformance-5")
async def test_driver_with_code_is_confined(tmp_path: Path) -> None:
    async with greeting_server() as stranger:
        workspace = dial_workspace(tmp_path)
        (tmp_path / ".drivers" / "dial-mcp" / "driver.py").write_text(
            "from interlock.drivers.sdk import define_driver\n"
            "def build_arguments(args):\n"
            f"    return {{'host': '127.0.0.1', 'port': {stranger.port}}}\n"
            "driver = define_driver(build_arguments=build_arguments)\n",
            encoding="utf-8",
        )
        async with running(workspace, workspace.config(allow_code=["dial-mcp"])) as node:
            response = await node.call("net.dial", host="a.example", port=1)
            assert set(response) == {"failed"}
        (called,) = workspace.heard("tools/call")
        assert called["params"]["arguments"]["port"] == stranger.port
        assert stranger.visits == 0


@needs_confinement
@pytest.mark.spec("DR-30.auth-9")
async def test_sign_in_folder_is_readable(tmp_path: Path) -> None:
    signed_in = tmp_path / "signed-in"
    signed_in.mkdir()
    token, neighbour = signed_in / "token.json", signed_in / "neighbour.json"
    token.write_text("a token", encoding="utf-8")
    neighbour.write_text("something else", encoding="utf-8")
    workspace = Workspace(tmp_path)
    contract = workspace.contract("env.look", inputs=ANY, outputs=ANY)
    code = (
        "import os, runpy, sys\n"
        f"files = {[str(token), str(neighbour)]!r}\n"
        "os.environ['READ'] = ', '.join(open(file).read() for file in files)\n"
        f"sys.argv[:] = [{str(SERVER)!r}]\n"
        f"runpy.run_path({str(SERVER)!r}, run_name='__main__')\n"
    )
    workspace.driver(
        "look-mcp",
        workspace.serves(contract, "environ"),
        server={"kind": "binary", "path": sys.executable, "args": ["-c", code]},
        auth={"state": {"paths": [str(token)]}},
    )

    async with running(workspace) as node:
        environ = (await node.call("env.look"))["environ"]
        assert environ["READ"] == "a token, something else"


@needs_confinement
@pytest.mark.spec("DR-32.security-1", "DR-30.fields-3")
@pytest.mark.parametrize("network", [{"egress": []}, None], ids=["empty", "missing"])
async def test_missing_egress_means_no_network(tmp_path: Path, network: Any) -> None:
    async with greeting_server() as stranger:
        workspace = Workspace(tmp_path)
        contract = workspace.contract("net.dial", inputs=PLACE, outputs=ANY)
        file = workspace.driver("dial-mcp", workspace.serves(contract, "dial"), network={})
        text = file.read_text()
        said = "" if network is None else "network: {egress: []}\n"
        file.write_text(text.replace("network: {}\n", said))
        async with running(workspace) as node:
            response = await node.call("net.dial", host="127.0.0.1", port=stranger.port)
            assert set(response) == {"failed"}
        assert stranger.visits == 0


@needs_confinement
async def test_denied_egress_is_journaled(tmp_path: Path) -> None:
    workspace = dial_workspace(tmp_path, "a.example:443")
    ask = "CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n"

    async with running(workspace) as node:
        response = await node.call("net.dial", host="127.0.0.1", port=PROXY, say=ask)
        assert response["got"].startswith("HTTP/1.1 403")
        journal = node.node._journal
        assert journal is not None
        assert await journal.flush_async()
        (row,) = [entry for entry in journal.tail(100) if entry.verb == "egress"]
        assert (row.name, row.outcome) == ("driver:dial-mcp@1", "refused")
        assert "b.example:443" in row.detail


@pytest.mark.spec("DR-32.security-8")
async def test_unconfinable_server_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot_confine(monkeypatch)
    workspace = dial_workspace(tmp_path)

    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        await asyncio.sleep(0)

    def take_over(node: Node) -> None:
        node.component(DriverFolders).drivers.lifecycle.sleep = nap

    async with running(workspace, workspace.config(verify="start"), before=take_over) as node:
        await node.until(lambda: node.status("dial-mcp").problem, "the refusal")
        assert "drivers.sandbox: advisory" in node.status("dial-mcp").problem
        error = await node.refused("net.dial", host="127.0.0.1", port=1)
        assert error.failure.name == "sandbox_unavailable"
        assert workspace.heard() == []
        # Somebody has to do something first: one look each is enough.
        assert naps == [0.5, 0.5]


@pytest.mark.spec("DR-32.security-8")
async def test_advisory_sandbox_starts_unconfined_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot_confine(monkeypatch)

    async with greeting_server() as anybody:
        workspace = dial_workspace(tmp_path)
        async with running(workspace, workspace.config(sandbox="advisory")) as node:
            response = await node.call("net.dial", host="127.0.0.1", port=anybody.port)
            assert response == {"got": GREETING}
            warnings = node.status("dial-mcp").warnings
            assert any("without network confinement" in warning for warning in warnings)


@needs_confinement
@pytest.mark.spec("DR-30.security-4")
async def test_any_egress_requires_operator_consent(tmp_path: Path) -> None:
    async with greeting_server() as anybody:
        workspace = dial_workspace(tmp_path, "*")
        async with running(workspace) as node:
            status = node.status("dial-mcp")
            assert status.state == "refused"
            assert "any_egress" in status.problem
            assert node.tools == []
        async with running(workspace, workspace.config(any_egress=True)) as node:
            response = await node.call("net.dial", host="127.0.0.1", port=anybody.port)
            assert response == {"got": GREETING}


@needs_confinement
@pytest.mark.spec("DR-30.security-4")
async def test_local_egress_requires_operator_consent(tmp_path: Path) -> None:
    async with greeting_server() as friend:
        workspace = dial_workspace(tmp_path, f"localhost:{friend.port}")
        async with running(workspace, workspace.config(local_egress=False)) as node:
            status = node.status("dial-mcp")
            assert status.state == "refused"
            assert "drivers.local_egress: true" in status.problem
            assert node.tools == []
        async with running(workspace, workspace.config(local_egress=True)) as node:
            response = await node.call("net.dial", host="localhost", port=friend.port)
            assert response == {"got": GREETING}


@needs_confinement
@pytest.mark.spec("DR-32.security-1")
@pytest.mark.parametrize(
    "port_source", ["config", "kernel"], ids=["from its config", "chosen later"]
)
async def test_driver_never_reaches_its_node(
    tmp_path: Path, port_source: str, free_port: int
) -> None:
    """Not with the operator's word for this machine either: there its own calls are judged."""
    hosts = ("127.0.0.1", "localhost")
    ask = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    port = free_port if port_source == "config" else 0
    workspace = dial_workspace(tmp_path, *(f"{host}:{free_port}" for host in hosts))
    config = replace(workspace.config(), listen=f"127.0.0.1:{port}")
    async with running(workspace, config) as node:
        url = await node.node.listen()
        reached = urlsplit(url).port
        if port_source == "kernel":
            # What it says it may reach is only known now.
            dial_workspace(tmp_path, *(f"{host}:{reached}" for host in hosts), version="2.0.0")
            await node.until(lambda: node.status("dial-mcp").version == "2.0.0", "the new one")
        for host in hosts:
            response = await node.call("net.dial", host=host, port=reached, say=ask)
            assert set(response) == {"failed"}, response
        # Somebody is there, for others.
        reader, writer = await asyncio.open_connection("127.0.0.1", reached)
        writer.write(ask.encode())
        assert (await reader.read(8)) == b"HTTP/1.1"
        writer.close()


@pytest.mark.spec("DR-31.security-1")
async def test_rejects_remote_server_outside_egress_or_over_plain_http(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for id, url, egress in (
        ("plain-mcp", "http://mcp.example/mcp", ["mcp.example"]),
        ("other-mcp", "https://mcp.example/mcp", ["another.example"]),
    ):
        contract = workspace.contract(f"text.{id}")
        workspace.driver(
            id,
            workspace.echoes(contract),
            server={"kind": "remote", "url": url},
            transport="http",
            network={"egress": egress},
        )

    async with running(workspace) as node:
        assert node.tools == []
        assert {node.status(id).state for id in ("plain-mcp", "other-mcp")} == {"refused"}


def cannot_confine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that forbids namespaces."""
    message = "this machine forbids user namespaces"
    monkeypatch.setattr(driver_confinement, "confinement_problem", lambda: message)
    opened = Confinement.open.__func__  # type: ignore[attr-defined]

    async def open_in_vain(cls: Any, *given: Any, **more: Any) -> Any:
        return await opened(cls, *given, **more, problem=lambda: message)

    monkeypatch.setattr(Confinement, "open", classmethod(open_in_vain))
