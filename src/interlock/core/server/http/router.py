"""The paths of an HTTP listener: the route table, and the ASGI app that serves most routes.

Components contribute routes (`routes()`). The kind of a route determines who has access:

- `DirectRoute`: served by the connection, without ASGI; checks callers itself,
- `AppRoute`: an ASGI app that checks hosts, origins and callers itself,
- `PublicDocument`: readable without a check, also by pages of any origin,
- `StatusDocument`: readable by every admitted caller,
- `WebSocketRoute`: accepts connections that leave HTTP; checks callers itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from msgspec import Struct

from interlock.core.call import Call
from interlock.core.pipeline.admission import MAX_PENDING_IDENTITIES, pending_identities_error
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.asgi import (
    JSON,
    App,
    Fields,
    Receive,
    Scope,
    Send,
    respond,
    respond_json,
)
from interlock.core.server.http.exchange import Check, Serve, allow_request
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.plain_requests import create_call, error_body
from interlock.core.server.http.resource_metadata import Challenges
from interlock.core.server.http.upgrade import Upgrades
from interlock.errors import FOREIGN_ORIGIN, InterlockError
from interlock.protocol.jsonrpc import encode_value

_NO_STORE: Final = (b"cache-control", b"no-store")
_UPGRADE: Final = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))
_NO_WEBSOCKET: Final = (
    "{} are joined by WebSocket, and this request is not an upgrade to "
    "WebSocket. If a proxy forwards it, configure the proxy to forward the headers Upgrade and "
    "Connection."
)


def is_always_available() -> bool:
    return True


class DirectRoute(Struct, frozen=True):
    """A path that the HTTP connection serves without ASGI."""

    path: str
    serve: Serve
    check: Check = allow_request
    title: str = ""
    """The name of the path in the response for an unknown path. Empty: the path is not listed."""


class AppRoute(Struct, frozen=True):
    """A path of an ASGI app and, unless `below` is False, all paths below it."""

    path: str
    app: App
    is_available: Callable[[], bool] = is_always_available
    includes_subpaths: bool = True


class PublicDocument(Struct, frozen=True):
    """A public document."""

    path: str
    document: Callable[[], Any]


class StatusDocument(Struct, frozen=True):
    """A document for admitted callers. `document` may return an awaitable."""

    path: str
    document: Callable[[], Any]
    authenticated: bool = True


class WebSocketRoute(Struct, frozen=True):
    """A path that accepts WebSockets."""

    path: str
    handler: Upgrades
    title: str = ""
    """The name of the path, in the plural, in responses for other paths. Empty: not listed."""
    is_available: Callable[[], bool] = is_always_available
    """True if responses list the path. `handler` decides about requests in any case."""


Route = DirectRoute | AppRoute | PublicDocument | StatusDocument | WebSocketRoute
R = TypeVar("R", DirectRoute, AppRoute, PublicDocument, StatusDocument, WebSocketRoute)


class RouteTable:
    """The routes of a listener, by kind and path. Of two routes with the same path, the first is
    used."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self.direct = {path.encode(): route for path, route in self._by_path(DirectRoute).items()}
        self._websockets = self._by_path(WebSocketRoute)
        self.websockets = {path.encode(): route for path, route in self._websockets.items()}
        self.public = self._by_path(PublicDocument)
        self.status = self._by_path(StatusDocument)
        self._apps = self._by_path(AppRoute)
        self._app_prefixes = tuple(
            (f"{route.path}/", route) for route in self._apps.values() if route.includes_subpaths
        )

    def _by_path(self, kind: type[R]) -> dict[str, R]:
        """Return the routes of one kind by path."""
        routes: dict[str, R] = {}
        for route in self.routes:
            if isinstance(route, kind):
                routes.setdefault(route.path, route)
        return routes

    def app_at(self, path: str) -> App | None:
        """Return the ASGI app that serves a path."""
        route = self._apps.get(path)
        if route is None:
            route = next(
                (route for prefix, route in self._app_prefixes if path.startswith(prefix)), None
            )
        return route.app if route is not None and route.is_available() else None

    def websocket_at(self, path: str) -> WebSocketRoute | None:
        """Return the listed WebSocket route at the path of a request without an upgrade."""
        route = self._websockets.get(path)
        return route if route is not None and route.title and route.is_available() else None

    def named_websockets(self) -> list[str]:
        """Return a description of each listed WebSocket route."""
        return [
            f"{route.title} are at {route.path}"
            for route in self.websockets.values()
            if route.title and route.is_available()
        ]

    def describe(self) -> str:
        """Return the message for an unknown path. It lists the paths that exist."""
        direct = [f"{route.title} is {route.path}" for route in self.direct.values() if route.title]
        hints = ", and ".join([*direct, *self.named_websockets()])
        return f"There is nothing here. {hints}." if hints else "There is nothing here."


class Router:
    """The ASGI app of a listener. It serves every path without a `DirectRoute`."""

    def __init__(
        self, table: RouteTable, *, pipeline: Pipeline, guard: Guard, challenges: Challenges
    ) -> None:
        self.table = table
        self._pipeline = pipeline
        self._guard = guard
        self._challenges = challenges
        self._pending_identities = 0
        """The number of requests whose caller's identity is being resolved."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, table = scope["path"], self.table
        app = table.app_at(path)
        if app is not None:
            await app(scope, receive, send)
            return
        fields, method = dict(scope["headers"]), scope["method"]
        public = self._find_public_document(path)
        origin = None if public is not None else fields.get(b"origin")
        rejection = self._guard.find_rejection(fields.get(b"host"), origin)
        if rejection is not None:
            foreign = InterlockError(FOREIGN_ORIGIN, rejection)
            self._pipeline.record_rejection(create_call(scope, method, ""), foreign)
            await _respond(send, 403, error_body(foreign.failure.name, rejection))
            return
        if public is not None:
            await _respond_public(send, method, public())
            return
        websocket, status = table.websocket_at(path), table.status.get(path)
        if websocket is not None:
            hint = _NO_WEBSOCKET.format(websocket.title.capitalize())
            await _respond(send, 426, error_body("upgrade_required", hint), fields=_UPGRADE)
        elif status is None:
            await _respond(send, 404, error_body("not_found", table.describe()))
        elif method not in ("GET", "HEAD"):
            await _respond(send, 405, error_body("method_not_allowed", "Use GET."))
        else:
            await self._respond_status(status, scope, send)

    def _find_public_document(self, path: str) -> Callable[[], Any] | None:
        """Return the function that makes the public document of a path, or None."""
        metadata = self._challenges.metadata
        if metadata is not None and path in metadata.paths:
            return lambda: metadata.document
        route = self.table.public.get(path)
        return None if route is None else route.document

    async def _respond_status(self, route: StatusDocument, scope: Scope, send: Send) -> None:
        if route.authenticated:
            call = create_call(scope, route.path.removeprefix("/"), "")
            try:
                await self._admit(call)
            except InterlockError as error:
                has_token = call.credentials.bearer is not None
                challenge = self._challenges.challenge(error, has_token=has_token)
                body = error_body(error.failure.name, error.message)
                await _respond(send, error.failure.http, body, challenge)
                return
        document = route.document()
        await _respond(send, 200, await document if inspect.isawaitable(document) else document)

    async def _admit(self, call: Call) -> None:
        try:
            self._pipeline.admit(call)
        except PendingIdentity as pending:
            if self._pending_identities >= MAX_PENDING_IDENTITIES:
                raise pending_identities_error() from None
            self._pending_identities += 1
            try:
                await pending.resolve()
            finally:
                self._pending_identities -= 1
            self._pipeline.admit(call)


async def _respond(
    send: Send, status: int, body: Any, challenge: bytes | None = None, *, fields: Fields = ()
) -> None:
    all_fields = [_NO_STORE, *fields]
    if challenge is not None:
        all_fields.append((b"www-authenticate", challenge))
    await respond_json(send, status, body, all_fields)


async def _respond_public(send: Send, method: str, document: Any) -> None:
    """Send a public document. Pages of any origin may read it."""
    payload = encode_value(document) if method in ("GET", "HEAD") else b""
    status = 200 if payload else 204 if method == "OPTIONS" else 405
    fields = [
        (b"cache-control", b"max-age=60"),
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", b"GET, HEAD"),
        (b"access-control-allow-headers", b"*"),
    ]
    await respond(send, status, payload, JSON, fields)
