"""The network of drivers' servers, in a live node: what is listed is reached, everything else is
not, and where that cannot be enforced nothing is started."""

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
from tests.drivers.sandbox.cells import GREETING, needs_confinement, outside

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


def dialling(folder: Path, *egress: str, **more: Any) -> Workspace:
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
async def test_a_listed_port_is_reached_and_no_other(tmp_path: Path) -> None:
    async with outside() as friend, outside() as stranger:
        workspace = dialling(tmp_path, f"127.0.0.1:{friend.port}")
        async with running(workspace) as node:
            assert await node.call("net.dial", host="127.0.0.1", port=friend.port) == {
                "got": GREETING
            }
            told = await node.call("net.dial", host="127.0.0.1", port=stranger.port)
            assert set(told) == {"failed"}
            told = await node.call("net.dial", host="localhost", port=stranger.port)
            assert set(told) == {"failed"}
        assert (friend.visits, stranger.visits) == (1, 0)


@needs_confinement
@pytest.mark.spec("DR-30.conformance-5")
async def test_the_server_of_a_driver_with_code_is_confined_all_the_same(tmp_path: Path) -> None:
    async with outside() as stranger:
        workspace = dialling(tmp_path)
        (tmp_path / ".drivers" / "dial-mcp" / "driver.py").write_text(
            "from interlock.drivers.sdk import define_driver\n"
            "def build_arguments(args):\n"
            f"    return {{'host': '127.0.0.1', 'port': {stranger.port}}}\n"
            "driver = define_driver(build_arguments=build_arguments)\n",
            encoding="utf-8",
        )
        async with running(workspace, workspace.config(allow_code=["dial-mcp"])) as node:
            told = await node.call("net.dial", host="a.example", port=1)
            assert set(told) == {"failed"}
        (called,) = workspace.heard("tools/call")
        assert called["params"]["arguments"]["port"] == stranger.port
        assert stranger.visits == 0


@needs_confinement
@pytest.mark.spec("DR-30.auth-9")
async def test_places_of_a_sign_in_are_readable_and_so_are_their_neighbours(tmp_path: Path) -> None:
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
        seen = (await node.call("env.look"))["environ"]
        assert seen["READ"] == "a token, something else"


@needs_confinement
@pytest.mark.spec("DR-32.security-1", "DR-30.fields-3")
@pytest.mark.parametrize("network", [{"egress": []}, None], ids=["empty", "missing"])
async def test_without_egress_there_is_no_network(tmp_path: Path, network: Any) -> None:
    async with outside() as stranger:
        workspace = Workspace(tmp_path)
        contract = workspace.contract("net.dial", inputs=PLACE, outputs=ANY)
        file = workspace.driver("dial-mcp", workspace.serves(contract, "dial"), network={})
        text = file.read_text()
        said = "" if network is None else "network: {egress: []}\n"
        file.write_text(text.replace("network: {}\n", said))
        async with running(workspace) as node:
            told = await node.call("net.dial", host="127.0.0.1", port=stranger.port)
            assert set(told) == {"failed"}
        assert stranger.visits == 0


@needs_confinement
async def test_a_place_that_was_asked_for_in_vain_is_in_the_journal(tmp_path: Path) -> None:
    workspace = dialling(tmp_path, "a.example:443")
    ask = "CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n"

    async with running(workspace) as node:
        told = await node.call("net.dial", host="127.0.0.1", port=PROXY, say=ask)
        assert told["got"].startswith("HTTP/1.1 403")
        journal = node.node._journal
        assert journal is not None
        assert await journal.flush_async()
        (row,) = [one for one in journal.tail(100) if one.verb == "egress"]
        assert (row.name, row.outcome) == ("driver:dial-mcp@1", "refused")
        assert "b.example:443" in row.detail


@pytest.mark.spec("DR-32.security-8")
async def test_what_cannot_be_confined_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot_confine(monkeypatch)
    workspace = dialling(tmp_path)

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
async def test_an_operator_may_let_it_run_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot_confine(monkeypatch)

    async with outside() as anybody:
        workspace = dialling(tmp_path)
        async with running(workspace, workspace.config(sandbox="advisory")) as node:
            told = await node.call("net.dial", host="127.0.0.1", port=anybody.port)
            assert told == {"got": GREETING}
            warnings = node.status("dial-mcp").warnings
            assert any("without network confinement" in one for one in warnings)


@needs_confinement
@pytest.mark.spec("DR-30.security-4")
async def test_the_whole_network_needs_the_operators_word(tmp_path: Path) -> None:
    async with outside() as anybody:
        workspace = dialling(tmp_path, "*")
        async with running(workspace) as node:
            status = node.status("dial-mcp")
            assert status.state == "refused"
            assert "any_egress" in status.problem
            assert node.tools == []
        async with running(workspace, workspace.config(any_egress=True)) as node:
            told = await node.call("net.dial", host="127.0.0.1", port=anybody.port)
            assert told == {"got": GREETING}


@needs_confinement
@pytest.mark.spec("DR-30.security-4")
async def test_this_machine_needs_the_operators_word(tmp_path: Path) -> None:
    async with outside() as friend:
        workspace = dialling(tmp_path, f"localhost:{friend.port}")
        async with running(workspace, workspace.config(local_egress=False)) as node:
            status = node.status("dial-mcp")
            assert status.state == "refused"
            assert "drivers.local_egress: true" in status.problem
            assert node.tools == []
        async with running(workspace, workspace.config(local_egress=True)) as node:
            told = await node.call("net.dial", host="localhost", port=friend.port)
            assert told == {"got": GREETING}


@needs_confinement
@pytest.mark.spec("DR-32.security-1")
@pytest.mark.parametrize("known", ["config", "kernel"], ids=["from its config", "chosen later"])
async def test_a_driver_never_reaches_the_node_that_confines_it(
    tmp_path: Path, known: str, free_port: int
) -> None:
    """Not with the operator's word for this machine either: there its own calls are judged."""
    hosts = ("127.0.0.1", "localhost")
    ask = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    port = free_port if known == "config" else 0
    workspace = dialling(tmp_path, *(f"{host}:{free_port}" for host in hosts))
    config = replace(workspace.config(), listen=f"127.0.0.1:{port}")
    async with running(workspace, config) as node:
        url = await node.node.listen()
        reached = urlsplit(url).port
        if known == "kernel":
            # What it says it may reach is only known now.
            dialling(tmp_path, *(f"{host}:{reached}" for host in hosts), version="2.0.0")
            await node.until(lambda: node.status("dial-mcp").version == "2.0.0", "the new one")
        for host in hosts:
            told = await node.call("net.dial", host=host, port=reached, say=ask)
            assert set(told) == {"failed"}, told
        # Somebody is there, for others.
        reader, writer = await asyncio.open_connection("127.0.0.1", reached)
        writer.write(ask.encode())
        assert (await reader.read(8)) == b"HTTP/1.1"
        writer.close()


@pytest.mark.spec("DR-31.security-1")
async def test_a_remote_server_over_plain_http_or_elsewhere_is_refused(tmp_path: Path) -> None:
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
    said = "this machine forbids user namespaces"
    monkeypatch.setattr(driver_confinement, "confinement_problem", lambda: said)
    opened = Confinement.open.__func__  # type: ignore[attr-defined]

    async def open_in_vain(cls: Any, *given: Any, **more: Any) -> Any:
        return await opened(cls, *given, **more, problem=lambda: said)

    monkeypatch.setattr(Confinement, "open", classmethod(open_in_vain))
