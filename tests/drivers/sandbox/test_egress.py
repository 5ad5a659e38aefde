"""Allowed egress of a confined process, through the proxy and without knowing of a proxy."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from interlock.drivers.sandbox.addresses import own_networks
from interlock.drivers.sandbox.confinement import Confinement
from interlock.drivers.sandbox.name_resolution import resolve_outside
from interlock.drivers.sandbox.proxy import Proxy
from interlock.errors import InterlockError
from tests.drivers.sandbox.confinements import (
    GREETING,
    LOOPS,
    PLAIN,
    attempt_all,
    greeting_server,
    needs_confinement,
    open_confinement,
    resolve_to_loopback,
    run_command,
    tried,
)
from tests.support.programs import NODE, requires_node
from tests.support.upstreams import run, with_timeout

pytestmark = [needs_confinement, pytest.mark.usefixtures("no_leaks")]

OWN = [
    str(network.network_address)
    for network in own_networks()
    if network.version == 4 and network.num_addresses == 1 and not network.is_loopback
]
"""What others call this machine by."""
ESTABLISHED = "HTTP/1.1 200 Connection established"
FORBIDDEN = "HTTP/1.1 403 Forbidden"


@LOOPS
@pytest.mark.spec("DR-32.security-1", "DR-32.security-8", "DR-32.server-10")
def test_listed_host_is_reached_without_proxy_support(loop: str) -> None:
    """As a database's driver does: first it fails, then its host is listed, and it works."""

    async def body() -> None:
        async with greeting_server() as other:
            attempt = ("tcp", "db.example", other.port, "select 1")
            async with open_confinement() as inside:
                assert await tried(inside, *attempt) == "gaierror"
            async with open_confinement(f"db.example:{other.port}") as inside:
                assert await tried(inside, *attempt) == GREETING
            assert other.visits == 1
            assert other.said == [b"select 1"]

    run(body, loop=loop)


@LOOPS
@pytest.mark.spec("DR-32.security-1", "DR-30.security-4")
def test_tunnel_reaches_listed_hosts_only(loop: str) -> None:
    async def body() -> None:
        refused: list[tuple[str, int]] = []
        requests: list[tuple[str, int]] = []

        async def resolve(host: str, port: int) -> list[str]:
            requests.append((host, port))
            return ["127.0.0.1"]

        async with greeting_server() as other:
            port = other.port
            async with open_confinement(
                f"*.example.org:{port}",
                f"exact.example:{port}",
                resolve=resolve,
                on_denied=lambda host, port: refused.append((host, port)),
            ) as inside:
                answers = await attempt_all(
                    inside,
                    *(
                        ("tunnelled", host, port)
                        for host in (
                            "API.example.org",
                            "exact.example",
                            "example.org",
                            "other.example",
                            "127.0.0.1",
                        )
                    ),
                    ("tunnelled", "api.example.org", port % 65535 + 1),
                )
            assert [answer[0] for answer in answers] == [ESTABLISHED] * 2 + [FORBIDDEN] * 4
            assert [answer[1] for answer in answers[:2]] == [GREETING] * 2
            assert f"example.org:{port} is not in network.egress of the prisoner." in answers[2][1]
            assert requests == [("api.example.org", port), ("exact.example", port)]
            assert other.visits == 2
            assert refused == [
                ("example.org", port),
                ("other.example", port),
                ("127.0.0.1", port),
                ("api.example.org", port % 65535 + 1),
            ]

    run(body, loop=loop)


@LOOPS
@pytest.mark.spec("DR-32.security-1")
def test_proxy_environment_reaches_listed_hosts(loop: str) -> None:
    async def body() -> None:
        heads: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, open_confinement(f"*.example.org:{port}") as inside:
            fetched, refused = await attempt_all(
                inside,
                ("fetched", f"http://api.example.org:{port}/x"),
                ("fetched", f"http://other.example:{port}/x"),
            )
        assert fetched == "hi"
        assert refused.startswith("403 interlock: other.example")
        (head,) = heads
        assert head.startswith(b"GET /x HTTP/1.1\r\nHost: api.example.org:%d\r\n" % port)

    run(body, loop=loop)


async def test_listed_addresses_and_localhost_are_reached() -> None:
    """Named as they stand, they lead to the node's machine and network, from where it is."""

    events: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        events.append(host)
        return ["127.0.0.1"]

    async with greeting_server() as other:
        port = other.port
        named = [f"192.0.2.7:{port}", f"[2001:db8::7]:{port}", f"localhost:{port}"]
        async with open_confinement(*named, resolve=resolve, local_egress=True) as inside:
            hosts = ("192.0.2.7", "2001:db8::7", "127.0.0.1", "::1", "localhost")
            answers = await attempt_all(inside, *(("tcp", host, port) for host in hosts))
            assert answers == [GREETING] * 5
            assert events == ["192.0.2.7", "2001:db8::7", *["localhost"] * 3]
            assert await tried(inside, "tcp", "192.0.2.8", port) == "ENETUNREACH"


@pytest.mark.spec("DR-32.security-1")
async def test_node_is_never_reached() -> None:
    """Other programs of this machine with consent; the node's own door never."""

    async with greeting_server() as node, greeting_server() as other:
        named = [f"localhost:{node.port}", f"127.0.0.1:{node.port}", f"localhost:{other.port}"]
        with pytest.raises(InterlockError, match="local_egress"):
            await Confinement.open("the prisoner", named)
        async with open_confinement(
            *named,
            f"a.example:{node.port}",
            local_egress=True,
            resolve=resolve_outside,
            never=[("127.0.0.1", node.port)],
        ) as inside:
            raw, proxied, address, allowed = await attempt_all(
                inside,
                ("tcp", "localhost", node.port),
                ("tunnelled", "localhost", node.port),
                ("tunnelled", "127.0.0.1", node.port),
                ("tcp", "localhost", other.port),
            )
        assert raw == "ECONNRESET"
        assert {proxied[0], address[0]} == {"HTTP/1.1 502 Bad Gateway"}
        assert allowed == GREETING
        assert (node.visits, other.visits) == (0, 1)


@pytest.mark.skipif(not OWN, reason="this machine has no address but its loopback")
async def test_address_of_machine_requires_local_egress() -> None:
    own = OWN[0]
    with socket.create_server((own, 0)) as listening:
        port = listening.getsockname()[1]
        async with greeting_server() as other:
            await other.listen_on(listening)
            attempt = ("tcp", own, port)
            async with open_confinement(f"{own}:{port}", resolve=resolve_outside) as inside:
                assert await tried(inside, *attempt) == "ECONNRESET"
            consent = {"resolve": resolve_outside, "local_egress": True}
            async with open_confinement(f"{own}:{port}", **consent) as inside:
                assert await tried(inside, *attempt) == GREETING
            assert other.visits == 1


async def test_name_address_reaches_its_name_only() -> None:
    """Each has an address of its own; one that is nobody's is closed at once, and told."""

    events: list[str] = []
    refused: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        events.append(host)
        return ["127.0.0.1"]

    async with greeting_server() as other:
        port = other.port
        async with open_confinement(
            f"a.example:{port}",
            f"b.example:{port}",
            "c.example:1",
            resolve=resolve,
            on_denied=lambda host, port: refused.append((host, port)),
        ) as inside:
            answers = await attempt_all(
                inside,
                ("tcp", "b.example", port),
                ("tcp", "a.example", port),
                ("tcp", "c.example", port),
                ("tcp", "127.0.0.1", port),
            )
            assert answers[:2] == [GREETING] * 2
            assert answers[2:] == ["ECONNRESET"] * 2
            assert events == ["b.example", "a.example"]
            assert refused == [("127.64.0.3", port), ("127.0.0.1", port)]


async def test_unavailable_host_is_reported() -> None:
    async with greeting_server() as gone:
        port = gone.port
    async with open_confinement(f"a.example:{port}") as inside:
        raw, proxied = await attempt_all(
            inside, ("tcp", "a.example", port), ("tunnelled", "a.example", port)
        )
        assert raw == "ECONNRESET"
        assert proxied[0] == "HTTP/1.1 502 Bad Gateway"
        assert "could not be reached from the node" in proxied[1]


async def test_host_without_port_allows_web_ports() -> None:
    wanted: list[int] = []

    async def resolve(host: str, port: int) -> list[str]:
        wanted.append(port)
        raise OSError("nowhere")

    async with open_confinement("a.example", resolve=resolve) as inside:
        attempts = [("tcp", "a.example", port) for port in (80, 443, 8080)]
        answers = await attempt_all(inside, *attempts)
        assert answers == ["ECONNRESET", "ECONNRESET", "ECONNREFUSED"]
        assert wanted == [80, 443]


@LOOPS
def test_each_start_has_own_proxy_until_its_end(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        closed: asyncio.Queue[None] = asyncio.Queue()
        close = Proxy.close

        async def noticed(proxy: Proxy) -> None:
            await close(proxy)
            closed.put_nowait(None)

        monkeypatch.setattr(Proxy, "close", noticed)
        async with (
            greeting_server() as other,
            open_confinement(f"a.example:{other.port}") as inside,
        ):
            before = len(os.listdir("/proc/self/fd"))
            attempt = ("tcp", "a.example", other.port)
            answers = await asyncio.gather(*(tried(inside, *attempt) for _ in range(4)))
            assert answers == [GREETING] * 4
            for _ in range(4):
                await with_timeout(closed.get())
            # What the loop closes, it closes in its next turns.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(os.listdir("/proc/self/fd")) <= before + 1

    run(body, loop=loop)


@LOOPS
def test_closing_cuts_connections(loop: str) -> None:
    async def body() -> None:
        reached = asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            async with open_confinement(f"a.example:{port}") as inside:
                trying = asyncio.create_task(tried(inside, "tcp", "a.example", port))
                await with_timeout(reached.wait())
            assert await with_timeout(trying) in ("ECONNRESET", "")

    run(body, loop=loop)


# -- real programs

NODE_PROGRAM = """
const [port] = process.argv.slice(2);
const net = require("net");
const raw = (host) => new Promise((done) => {
  const one = net.connect({ host, port: Number(port) });
  let said = "";
  one.on("data", (data) => { said += data; });
  one.on("end", () => { one.end(); done(said); });
  one.on("error", (error) => done(error.code));
});
const web = (host) => fetch(`http://${host}:${port}/`)
  .then(async (answer) => `${answer.status} ${await answer.text()}`)
  .catch((error) => String(error.cause?.code ?? error));
(async () => {
  console.log(JSON.stringify([
    await raw("a.example"), await raw("other.example"), await raw("127.0.0.1"),
    await web("a.example"), await web("other.example"),
  ]));
})();
"""


@requires_node
@pytest.mark.spec("DR-32.security-1")
async def test_nodejs_program_reaches_listed_hosts(tmp_path: Path) -> None:
    assert NODE is not None
    script = tmp_path / "program.cjs"
    script.write_text(NODE_PROGRAM, encoding="utf-8")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        writer.write_eof()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, open_confinement(f"a.example:{port}", resolve=resolve_to_loopback) as inside:
        status, output, errors = await run_command(inside, NODE, str(script), str(port))
    assert status == 0, errors
    raw, raw_other, raw_machine, web, web_other = json.loads(output)
    assert raw.endswith("hi")
    assert raw_other in ("EAI_AGAIN", "ENOTFOUND")
    assert raw_machine == "ECONNRESET"
    assert web == "200 hi"
    # A Node.js that heeds the proxy is refused by it, an older one finds no such name.
    assert web_other in ("EAI_AGAIN", "ENOTFOUND") or web_other.startswith("403")


async def test_missing_proxy_prevents_start() -> None:
    """The launcher, without the node's ear: no server is run."""

    async with open_confinement("a.example:1") as inside:
        argv, env = (
            inside.argv([sys.executable, "-c", "print('ran')"]),
            inside.environment(PLAIN),
        )
    status, output, errors = await run_command(None, *argv, env=env)
    assert (status, output) == (126, "")
    assert errors.startswith("interlock: the prisoner cannot be confined: No such file")
