"""A uvicorn server on a socket that is bound already, without uvicorn's signal handling."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Generator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from interlock.channels.tls import load_ca, load_certificate
from interlock.core.server.http.protocol import KEEP_ALIVE
from interlock.errors import CONFIG, InterlockError

GRACEFUL: Final = 5
"""The seconds in which open requests can finish when the server stops."""
_BACKLOG: Final = 2048


class _Server(uvicorn.Server):
    """uvicorn's server without signal handling: the node handles signals, because it stops more
    than the HTTP server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """An HTTP listener of a node or of a standalone registry."""

    def __init__(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> None:
        """Bind the socket.

        Args:
            host: the address to listen on.
            port: the port to listen on. 0 selects a free port.
            ssl_context: makes the listener accept TLS only (see `tls_context`).

        Raises:
            InterlockError: the address cannot be bound.
        """
        self._ssl_context = ssl_context
        self.secure = ssl_context is not None
        self._socket = _bind(host, port)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, protocol: type[HttpToolsProtocol], app: Any) -> None:
        context = self._ssl_context
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            # The peer is the address of the connection. Headers that name another are not trusted.
            proxy_headers=False,
            timeout_keep_alive=int(KEEP_ALIVE),
            timeout_graceful_shutdown=GRACEFUL,
            backlog=_BACKLOG,
            ssl_context_factory=None if context is None else lambda *_: context,
        )
        self._server = server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(server.serve(sockets=[self._socket]))
        while not server.started:
            if self._task.done():
                await self._task
            await asyncio.sleep(0)

    def stop_listening(self) -> None:
        """Accept no new connections, and no new requests on open connections."""
        if self._server is not None and self._server.started:
            for server in self._server.servers:
                server.close()
            for connection in list(self._server.server_state.connections):
                connection.shutdown()

    async def stop(self) -> None:
        """Stop listening, wait up to `GRACEFUL` seconds for open requests, and close the rest."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
        self._socket.close()


def tls_context(certificate: str, key: str, client_ca: str | None = None) -> ssl.SSLContext:
    """Return the TLS 1.3 context of a listener.

    Args:
        certificate: the PEM file of the certificate.
        key: the PEM file of the private key.
        client_ca: the PEM file of the CA that signs client certificates. A client certificate is
            optional; the handshake rejects one that this CA did not sign.

    Raises:
        InterlockError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, certificate, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        load_ca(context, client_ca)
    return context


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if exc.errno == errno.EADDRINUSE:
            advice = (
                "Another program listens there, perhaps another node: stop it, or choose a free "
                "port with `listen` in the config or --listen."
            )
        else:
            advice = "Set `listen` to an address of this machine."
        raise InterlockError(
            CONFIG, f"Cannot listen on {address}: {exc.strerror}. {advice}"
        ) from None
    listener.setblocking(False)
    return listener
