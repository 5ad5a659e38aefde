"""Connections of an HTTP upstream: reuse, limits, queues, failures and TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from interlock.core.call import UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.upstreams.supervisor import State
from interlock.core.upstreams.transports import http_pool
from interlock.core.upstreams.transports.http_pool import HttpPool, Origin
from interlock.errors import TOO_BUSY, UPSTREAM_LOST, UPSTREAM_UNAVAILABLE
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.support.upstreams import SupervisorHarness, run, run_supervisor, text, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


# -- reuse and limits


async def test_reuses_connections_up_to_limit() -> None:
    async with Streamable("stateless") as server:
        async with run_supervisor(ServerConfig(url=server.url(), connections=4)) as upstream:
            await upstream.ready()
            for _ in range(10):
                await upstream.text("echo", text="x")
            assert server.connected == 1
            calls = [upstream.start("echo", {"text": str(n)}) for n in range(200)]
            for number, call in enumerate(calls):
                assert text(await with_timeout(call)) == str(number)
            assert server.connected == 4


async def test_queues_calls_above_connection_limit() -> None:
    async with Streamable("stateless") as server:
        async with run_supervisor(ServerConfig(url=server.url(), connections=2)) as upstream:
            await upstream.ready()
            pending_call = [upstream.start("hold", {"text": f"h{n}"}) for n in range(2)]
            await server.until(lambda: len(server.toolbox.pending_calls) == 2)
            waiting = [upstream.start("echo", {"text": f"w{n}"}) for n in range(20)]
            received = len(server.requests)
            pending_call[0].exchange.abandon("given up")
            # Its connection is gone; a new one takes its place and serves the queue in order.
            for number, call in enumerate(waiting):
                assert text(await with_timeout(call)) == f"w{number}"
            order = [r.message["params"]["arguments"]["text"] for r in server.requests[received:]]
            assert order == [f"w{number}" for number in range(20)]
            assert server.open_connections == 2


@pytest.mark.parametrize("how", ["abandon", "expire"])
async def test_cancelled_queued_call_is_never_sent(how: str) -> None:
    async with Streamable("session") as server:
        async with run_supervisor(ServerConfig(url=server.url(), connections=1)) as upstream:
            await upstream.ready()
            pending_call = upstream.start("hold", {"text": "x"})
            await server.until(lambda: server.toolbox.pending_calls)
            given_up = upstream.start("echo", {"text": "never"})
            after = upstream.start("echo", {"text": "after"})
            if how == "abandon":
                given_up.exchange.abandon("The caller is gone.")
            else:
                given_up.exchange.expire()
            pending_call.exchange.abandon("The caller is gone.")
            assert text(await with_timeout(after)) == "after"
            sent = [r.message["params"]["arguments"] for r in server.requests if r.tool]
            assert {"text": "never"} not in sent


@pytest.mark.parametrize("how", ["abandon", "expire"])
async def test_closes_connection_with_unread_response(how: str) -> None:
    """In a session the server is told, may answer all the same, and nobody must meet that."""

    async with Streamable("session") as server:
        async with run_supervisor(ServerConfig(url=server.url(), connections=2)) as upstream:
            await upstream.ready()
            pending_call = upstream.start("hold", {"text": "late"})
            await server.until(lambda: server.toolbox.pending_calls)
            (message, send), request = (
                server.toolbox.pending_calls[pending_call.exchange.id],  # type: ignore[attr-defined]
                server.requests[-1],
            )
            if how == "abandon":
                pending_call.exchange.abandon("The caller is gone.")
            else:
                pending_call.exchange.expire()
            await server.until(lambda: server.toolbox.cancelled == [pending_call.exchange.id])  # type: ignore[attr-defined]
            send(server.toolbox._text(message, "late"))
            for number in range(5):
                assert await upstream.text("echo", text=str(number)) == str(number)
            used = {r.connection for r in server.requests if r.tool == "echo"}
            assert request.connection not in used


async def test_rejects_calls_above_queue_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pool, "_MAX_WAITING_REQUESTS", 3)

    async with Streamable("stateless") as server:
        async with run_supervisor(ServerConfig(url=server.url(), connections=1)) as upstream:
            await upstream.ready()
            pending_call = upstream.start("hold", {"text": "held"})
            await server.until(lambda: server.toolbox.pending_calls)
            waiting = [upstream.start("echo", {"text": str(n)}) for n in range(3)]
            with pytest.raises(UpstreamLostError) as caught:
                upstream.start("echo", {"text": "too many"})
            assert caught.value.failure is TOO_BUSY
            assert not caught.value.was_sent
            assert upstream.supervisor.state is State.READY
            pending_call.exchange.abandon("make room")
            for number, call in enumerate(waiting):
                assert text(await with_timeout(call)) == str(number)


# -- closing ends


@LOOPS
def test_replaces_idle_connection_closed_by_server(loop: str) -> None:
    async def body() -> None:
        async with Streamable("stateless") as server:
            async with run_supervisor(ServerConfig(url=server.url(), connections=1)) as upstream:
                await upstream.ready()
                for number in range(5):
                    server.cut_connections()
                    await server.until(lambda: server.open_connections == 0)
                    assert await upstream.text("echo", text=str(number)) == str(number)
                assert upstream.supervisor.restarts == 0

    run(body, loop=loop)


@LOOPS
@pytest.mark.parametrize("how", ["close", "reset"])
def test_reports_call_lost_on_reused_connection(how: str, loop: str) -> None:
    """The request may have been read: only who knows that it is harmless may send it again."""

    async def body() -> None:
        async with Streamable("stateless") as server:
            async with run_supervisor(ServerConfig(url=server.url(), connections=1)) as upstream:
                await upstream.ready()

                async def override(request: Request, response: ResponseWriter) -> bool:
                    if how == "reset":
                        response.abort()
                    response.finish(keep=False)
                    return True

                server.override = override
                with pytest.raises(UpstreamLostError) as caught:
                    await with_timeout(upstream.start("echo", {"text": "x"}))
                assert caught.value.failure is UPSTREAM_LOST
                assert caught.value.was_sent
                server.override = None
                assert await upstream.text("echo", text="next") == "next"
                assert upstream.supervisor.restarts == 0

    run(body, loop=loop)


async def test_does_not_reuse_connection_announced_as_closing() -> None:
    """The end is heard in one turn of the loop, the connection is gone in the next."""

    async with Streamable("stateless") as server:
        async with run_supervisor(ServerConfig(url=server.url(), connections=2)) as upstream:
            await upstream.ready()
            assert upstream.supervisor.upstream_client is not None
            link: Any = upstream.supervisor.upstream_client.transport
            (connection,) = link._pool.idle
            connection.eof_received()
            assert await upstream.text("echo", text="x") == "x"
            assert server.requests[-1].connection == 2


async def test_closes_connection_idle_too_long() -> None:
    now = 0.0

    async with Streamable("stateless") as server:
        upstream = SupervisorHarness(ServerConfig(url=server.url(), connections=1))
        upstream.connector._clock = lambda: now
        upstream.supervisor.begin()
        await upstream.ready()
        await upstream.text("echo", text="x")
        assert server.connected == 1
        now = http_pool.IDLE_TIMEOUT_SECONDS - 0.1
        await upstream.text("echo", text="x")
        assert server.connected == 1
        now += http_pool.IDLE_TIMEOUT_SECONDS + 0.1
        await upstream.text("echo", text="x")
        assert server.connected == 2
        await upstream.supervisor.end()


# -- refusals


@LOOPS
def test_connects_when_server_starts_later(loop: str, free_port: int) -> None:
    async def body() -> None:
        url = f"http://127.0.0.1:{free_port}/mcp"
        async with run_supervisor(ServerConfig(url=url)) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.states == [State.FAILED]
            assert upstream.supervisor.problem == (
                f"Cannot connect to up at 127.0.0.1:{free_port}: connection refused. "
                "Start the server, or correct `url`."
            )
            server = Streamable("stateless")
            await server.start(free_port)
            upstream.sleeps.wake()
            await upstream.ready()
            assert await upstream.text("echo", text="up") == "up"
            assert upstream.states == [State.FAILED, State.READY]
            await server.stop()

    run(body, loop=loop)


@LOOPS
def test_reports_refused_connection_for_every_address(loop: str, free_port: int) -> None:
    async def body() -> None:
        async with run_supervisor(
            ServerConfig(url=f"http://localhost:{free_port}/mcp")
        ) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.supervisor.problem is not None
            assert upstream.supervisor.problem.endswith(
                "connection refused. Start the server, or correct `url`."
            )

    run(body, loop=loop)
    several = OSError(
        "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
        "[Errno 111] Connect call failed ('127.0.0.1', 1)"
    )
    assert (
        http_pool._describe_error(several)
        == "connection refused. Start the server, or correct `url`."
    )
    mixed = OSError("Multiple exceptions: [Errno 111] Refused, [Errno 113] No route to host")
    assert "No route to host" in http_pool._describe_error(mixed)


async def test_reports_lost_server_and_unsent_call() -> None:
    server = Streamable("stateless")
    await server.start()
    async with run_supervisor(ServerConfig(url=server.url(), connections=3)) as upstream:
        await upstream.ready()
        upstream.sleeps.hold()
        await server.stop()
        # Some of these wait for a connection; all of them never left.
        calls = [upstream.start("echo", {"text": "x"}) for _ in range(10)]
        for call in calls:
            with pytest.raises(UpstreamLostError) as caught:
                await with_timeout(call)
            assert caught.value.failure is UPSTREAM_UNAVAILABLE
            assert not caught.value.was_sent
            assert "refused" in caught.value.message
        await upstream.state(State.DEGRADED)
        assert not await upstream.supervisor.wait_until_ready(0.01)
        await server.start(server.port)
        upstream.sleeps.wake()
        await upstream.ready()
        assert await upstream.text("echo", text="back") == "back"
        await server.stop()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"http://{'a' * 70}.test/mcp", "the host name in `url` is invalid."),
        ("http://127.0.0.1:99999/mcp", "`url` is invalid"),
        ("http://[::1:2/mcp", "`url` is invalid"),
    ],
)
async def test_reports_unreachable_address(url: str, message: str) -> None:
    async with run_supervisor(ServerConfig(url=url)) as upstream:
        upstream.sleeps.hold()
        await upstream.until(lambda: upstream.sleeps.sleeping)
        assert upstream.supervisor.problem is not None
        assert message in upstream.supervisor.problem


# -- headers


async def test_sends_configured_headers() -> None:
    async with Streamable("session", get="stream", announces=True) as server:
        headers = {"Authorization": "Bearer xyz", "X-Team": "größe"}
        async with run_supervisor(ServerConfig(url=server.url(), headers=headers)) as upstream:
            await upstream.ready()
            await server.until(lambda: server.streams)
        await server.until(lambda: server.deleted)
        methods = {request.method for request in server.requests}
        assert methods == {"GET", "POST", "DELETE"}
        for request in server.requests:
            assert request.headers["authorization"] == "Bearer xyz"
            assert request.headers["x-team"] == "größe"
            assert request.headers["host"] == f"127.0.0.1:{server.port}"


async def test_rejects_header_with_line_end() -> None:
    async with Streamable("stateless") as server:
        headers = {"Authorization": "Bearer xyz\r\nX-Evil: 1"}
        for transport in ("auto", "sse"):
            config = ServerConfig(url=server.url(), headers=headers, transport=transport)
            async with run_supervisor(config) as one:
                one.sleeps.hold()
                await one.until(lambda one=one: one.sleeps.sleeping)
                assert one.supervisor.problem is not None
                assert "Authorization" in one.supervisor.problem
                assert "xyz" not in one.supervisor.problem
        assert not server.requests


# -- TLS


def self_signed(folder: Path) -> tuple[Path, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "interlock test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "certificate.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = folder / "key.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, private)
    return pem, context


@LOOPS
def test_reports_untrusted_certificate(loop: str, tmp_path: Path) -> None:
    _, context = self_signed(tmp_path)

    async def body() -> None:
        server = Streamable("stateless")
        await server.start(tls=context)
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.supervisor.problem is not None
            assert "certificate is not trusted" in upstream.supervisor.problem
            assert "self-signed" in upstream.supervisor.problem.replace(
                "self signed", "self-signed"
            )
        assert not server.requests
        await server.stop()

    run(body, loop=loop)


@LOOPS
def test_accepts_trusted_certificate(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem, context = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))

    async def body() -> None:
        server = Streamable("stateless")
        await server.start(tls=context)
        async with run_supervisor(ServerConfig(url=server.url(), connections=2)) as upstream:
            await upstream.ready()
            calls = [upstream.start("echo", {"text": str(n)}) for n in range(20)]
            for number, call in enumerate(calls):
                assert text(await with_timeout(call)) == str(number)
        await server.stop()

    run(body, loop=loop)


@LOOPS
def test_tls_handshake_times_out(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pool, "CONNECT_TIMEOUT_SECONDS", 0.1)

    async def body() -> None:
        async with Streamable("stateless") as server:
            url = server.url().replace("http:", "https:")
            async with run_supervisor(ServerConfig(url=url)) as upstream:
                upstream.sleeps.hold()
                await upstream.until(lambda: upstream.sleeps.sleeping)
                assert upstream.supervisor.problem is not None
                assert upstream.supervisor.problem.endswith(": no response within 0.1 s.")

    run(body, loop=loop)


# -- the pool by itself


async def test_closing_pool_fails_waiting_requests() -> None:
    class Waiter:
        connection = None

        def __init__(self) -> None:
            self.told: list[bool] = []

        def on_failure(self, failure: object, message: str, *, was_sent: bool) -> None:
            self.told.append(was_sent)

    async with Streamable("stateless") as server:
        pool = HttpPool("up", Origin(server.url()), 2, asyncio.get_running_loop().time)
        waiters: list[Any] = [Waiter() for _ in range(5)]
        for waiter in waiters:
            pool.send(b"GET / HTTP/1.1\r\n\r\n", waiter)
        await pool.close()
        assert [waiter.told for waiter in waiters] == [[False]] * 5
        late: Any = Waiter()
        pool.send(b"GET / HTTP/1.1\r\n\r\n", late)
        assert late.told == [False]


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("http://a.test", "a.test", 80, "/", "a.test"),
        ("https://a.test/mcp?x=1", "a.test", 443, "/mcp?x=1", "a.test"),
        ("http://A.test:8080/mcp/", "a.test", 8080, "/mcp/", "a.test:8080"),
        ("http://[::1]:9/x", "::1", 9, "/x", "[::1]:9"),
        ("http://[::1]/x", "::1", 80, "/x", "[::1]"),
    ],
)
def test_parses_url_to_origin(url: str, host: str, port: int, path: str, authority: str) -> None:
    origin = Origin(url)
    assert (origin.host, origin.port, origin.path) == (host, port, path)
    assert origin.authority == authority
