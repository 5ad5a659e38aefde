"""uvicorn, run by us: on a socket that is already bound, without its signal handling."""

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
_BACKLOG: Final = 2048


class _Server(uvicorn.Server):
    """Signals are the business of whoever runs it: a node has more to end than HTTP."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """An HTTP listener of ours: a node's, or that of a registry by itself."""

    def __init__(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> None:
        """With `ssl_context` (see `tls_context`) nothing but TLS is spoken."""
        self._ssl_context = ssl_context
        self.secure = ssl_context is not None
        self._socket = _bind(host, port)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, lane: type[HttpToolsProtocol], app: Any) -> None:
        context = self._ssl_context
        config = uvicorn.Config(
            app,
            http=lane,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            # Who is on the other side is what the connection says, not what a header does.
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
        """No new connections, and on those that are there no new requests."""
        if self._server is not None and self._server.started:
            for server in self._server.servers:
                server.close()
            for connection in list(self._server.server_state.connections):
                connection.shutdown()

    async def stop(self) -> None:
        """Stop listening, let what is under way finish, and close the rest."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
        self._socket.close()


def tls_context(certificate: str, key: str, client_ca: str | None = None) -> ssl.SSLContext:
    """TLS 1.3 for the listener, from PEM files. With a `client_ca` a client may show a certificate,
    and one that this CA did not sign is refused. Raises InterlockError for files it cannot use.
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
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if exc.errno == errno.EADDRINUSE:
            advice = (
                "Another program listens there, perhaps another node: stop it, or choose a free "
                "port with `listen` in the config or --listen."
            )
        else:
            advice = "Set `listen` to an address of this machine."
        raise InterlockError(
            CONFIG, f"Cannot listen on {shown}: {exc.strerror}. {advice}"
        ) from None
    listener.setblocking(False)
    return listener
