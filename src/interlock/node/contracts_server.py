"""The contract registry over HTTP, by itself: what a node serves under /contracts, for machines on
which no node runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Final

import uvicorn

from interlock.call import Caller
from interlock.config import Config, resolve
from interlock.errors import CONFIG, InterlockError
from interlock.faces.http.answers import Receive, Scope, Send, respond_json
from interlock.faces.http.contracts import BASE, ContractsApp
from interlock.faces.http.guard import Guard
from interlock.node.contracts_asked import AskedRegistry
from interlock.pipeline.audit import Audit
from interlock.pipeline.authenticate import Authenticator
from interlock.stores.contract_registry import ContractRegistry

_GRACEFUL: Final = 5


class _Server(uvicorn.Server):
    """Signals are the business of whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class RegistryServer:
    """Answers for one registry at the address of the config, to those whose tokens it has; where it
    has none, to this machine alone."""

    def __init__(
        self,
        config: Config,
        open: Callable[[], ContractRegistry],
        *,
        base_dir: Path,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises InterlockError for an address or tokens that cannot be used."""
        tokens = {
            resolve(one.token, environ=environ, base_dir=base_dir): Caller(
                one.name, calls="call" in one.may
            )
            for one in config.tokens
        }
        authenticate = Authenticator(tokens)
        self._asked = AskedRegistry(open)
        self._socket = _bind(config)
        host, port = config.host, self._socket.getsockname()[1]
        guard = Guard(
            host,
            port,
            allowed_hosts=config.allowed_hosts,
            allowed_origins=config.allowed_origins,
        )
        app = ContractsApp(
            self._asked,
            guard=guard,
            authenticate=authenticate,
            refused=lambda call, error: None,
            audit=Audit(None),
            most_bytes=config.limits.body_bytes,
            otherwise=_nothing_else,
        )
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}{BASE}"
        self._server = _Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_GRACEFUL,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[self._socket])
        )
        while not self._server.started:
            if self._task.done():
                await self._task
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Let what is under way finish, and close the rest."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()
        await asyncio.get_running_loop().run_in_executor(None, self._asked.close)


def _bind(config: Config) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise InterlockError(
            CONFIG,
            f"Cannot listen on {config.listen}: {error.strerror}. Choose a free port of this "
            "machine: --listen ADDR.",
        ) from None
    listener.setblocking(False)
    return listener


async def _nothing_else(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        hint = f"There is nothing here but {BASE} and below."
        body: dict[str, Any] = {"error": "not_found", "message": hint}
        await respond_json(send, 404, body)
