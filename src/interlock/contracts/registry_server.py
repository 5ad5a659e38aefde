"""A server for the contract registry alone: what a node serves under /contracts, for machines
without a node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from interlock.contracts.http_api import BASE, ContractsApp
from interlock.contracts.registry.registry import ContractRegistry
from interlock.contracts.registry_service import RegistryService
from interlock.core.call import Caller
from interlock.core.config import Config, resolve_tokens
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.authentication import Authenticator
from interlock.core.server.http.asgi import Receive, Scope, Send, respond_json
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.plain_requests import error_body
from interlock.core.server.http.resource_metadata import Challenges
from interlock.core.server.http.router import AppRoute, RouteTable
from interlock.core.server.http.server import HttpServer


class RegistryServer:
    """Serves one registry at the address of the config, to callers with a token. Without configured
    tokens it serves this machine only."""

    def __init__(
        self,
        config: Config,
        open: Callable[[], ContractRegistry],
        *,
        base_dir: Path,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises InterlockError for an address or tokens that cannot be used."""
        credentials = resolve_tokens(config.tokens, environ=environ, base_dir=base_dir)
        tokens = {
            secret: Caller(credential.name, can_call="call" in credential.may)
            for secret, credential in credentials.items()
        }
        authenticate = Authenticator(tokens)
        self._registry_service = RegistryService(open)
        self._http = HttpServer(config.host, config.port)
        host, port = config.host, self._http.port
        guard = Guard(
            host,
            port,
            allowed_hosts=config.allowed_hosts,
            allowed_origins=config.allowed_origins,
        )
        app = ContractsApp(
            self._registry_service,
            guard=guard,
            authenticate=authenticate,
            on_rejection=lambda call, error: None,
            audit=Audit(None),
            max_payload_bytes=lambda: config.limits.body_bytes,
            challenges=Challenges(),
        )
        self._table = RouteTable(
            [AppRoute(BASE, app, is_available=lambda: self._registry_service.is_available)]
        )
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}{BASE}"

    async def start(self) -> None:
        await self._http.start(HttpToolsProtocol, self._serve)

    async def stop(self) -> None:
        """Finish the requests that are in progress, then close all connections."""
        await self._http.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._registry_service.close)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._table.app_at(scope["path"])
        if app is not None:
            await app(scope, receive, send)
        else:
            hint = f"Only {BASE} and the paths below it exist here."
            await respond_json(send, 404, error_body("not_found", hint))
