"""The paths of an HTTP listener: one table of routes, and the app that serves most of them.

Parts of the node contribute routes (`routes()`). The kind of a route says who may come:

- `DirectRoute`: served by the connection itself, without ASGI; checks callers on its own,
- `AppRoute`: an ASGI app that checks hosts, origins and callers on its own,
- `PublicDocument`: read by anybody, pages of any origin included,
- `StatusDocument`: read by those who may call,
- `WebSocketRoute`: takes connections that leave HTTP; checks callers on its own.
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
from interlock.core.server.http.exchange import Check, Serve, let_pass
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.plain_requests import call_of, words
from interlock.core.server.http.resource_metadata import Challenges
from interlock.core.server.http.upgrade import Upgrades
from interlock.errors import FOREIGN_ORIGIN, InterlockError
from interlock.protocol.jsonrpc import encode_value

_NO_STORE: Final = (b"cache-control", b"no-store")
_UPGRADE: Final = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))
_NO_WEBSOCKET: Final = (
    "{} are joined by WebSocket, and this request does not ask for one. If a proxy stands in "
    "between, it has to pass on the headers Upgrade and Connection."
)


def _always() -> bool:
    return True


class DirectRoute(Struct, frozen=True):
    """A path that the connection serves without ASGI."""

    path: str
    serve: Serve
    check: Check = let_pass
    title: str = ""
    """What an answer about an unknown path calls it. Empty: it is not named there."""


class AppRoute(Struct, frozen=True):
    """A path of an ASGI app, and all paths below it."""

    path: str
    app: App
    is_there: Callable[[], bool] = _always
    below: bool = True


class PublicDocument(Struct, frozen=True):
    """A document for everybody."""

    path: str
    document: Callable[[], Any]


class StatusDocument(Struct, frozen=True):
    """A document for those who may call. `document` may return an awaitable."""

    path: str
    document: Callable[[], Any]
    authenticated: bool = True


class WebSocketRoute(Struct, frozen=True):
    """A path of WebSockets."""

    path: str
    take: Upgrades
    title: str = ""
    """What an answer about another path calls it, in the plural. Empty: it is not named there."""
    is_there: Callable[[], bool] = _always
    """Whether it is named in answers. `take` decides about requests in any case."""


Route = DirectRoute | AppRoute | PublicDocument | StatusDocument | WebSocketRoute
R = TypeVar("R", DirectRoute, AppRoute, PublicDocument, StatusDocument, WebSocketRoute)


class RouteTable:
    """The routes of one listener, by kind and path. Of two with one path, the first counts."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self.direct = {path.encode(): one for path, one in self._kind(DirectRoute).items()}
        self._websockets = self._kind(WebSocketRoute)
        self.websockets = {path.encode(): one for path, one in self._websockets.items()}
        self.public = self._kind(PublicDocument)
        self.status = self._kind(StatusDocument)
        self._apps = self._kind(AppRoute)
        self._above = tuple((f"{one.path}/", one) for one in self._apps.values() if one.below)

    def _kind(self, kind: type[R]) -> dict[str, R]:
        found: dict[str, R] = {}
        for route in self.routes:
            if isinstance(route, kind):
                found.setdefault(route.path, route)
        return found

    def app_at(self, path: str) -> App | None:
        """The ASGI app that serves a path."""
        route = self._apps.get(path)
        if route is None:
            route = next((one for start, one in self._above if path.startswith(start)), None)
        return route.app if route is not None and route.is_there() else None

    def websocket_at(self, path: str) -> WebSocketRoute | None:
        """The WebSocket route that a plain request for a path may have meant."""
        route = self._websockets.get(path)
        return route if route is not None and route.title and route.is_there() else None

    def named_websockets(self) -> list[str]:
        """Where WebSockets are taken, in words."""
        return [
            f"{one.title} are at {one.path}"
            for one in self.websockets.values()
            if one.title and one.is_there()
        ]

    def describe(self) -> str:
        """What is there, for whoever asked for something else."""
        direct = [f"{one.title} is {one.path}" for one in self.direct.values() if one.title]
        there = ", and ".join([*direct, *self.named_websockets()])
        return f"There is nothing here. {there}." if there else "There is nothing here."


class Router:
    """The ASGI app of a listener: every path that is not served directly."""

    def __init__(
        self, table: RouteTable, *, pipeline: Pipeline, guard: Guard, challenges: Challenges
    ) -> None:
        self.table = table
        self._pipeline = pipeline
        self._guard = guard
        self._challenges = challenges
        self._unsettled = 0
        """How many wait until it is known who they are."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, table = scope["path"], self.table
        app = table.app_at(path)
        if app is not None:
            await app(scope, receive, send)
            return
        fields, method = dict(scope["headers"]), scope["method"]
        public = self._public(path)
        origin = None if public is not None else fields.get(b"origin")
        refusal = self._guard.refusal(fields.get(b"host"), origin)
        if refusal is not None:
            foreign = InterlockError(FOREIGN_ORIGIN, refusal)
            self._pipeline.record_rejection(call_of(scope, method, ""), foreign)
            await _answer(send, 403, words(foreign.failure.name, refusal))
            return
        if public is not None:
            await _tell_everybody(send, method, public())
            return
        joined, status = table.websocket_at(path), table.status.get(path)
        if joined is not None:
            hint = _NO_WEBSOCKET.format(joined.title.capitalize())
            await _answer(send, 426, words("upgrade_required", hint), fields=_UPGRADE)
        elif status is None:
            await _answer(send, 404, words("not_found", table.describe()))
        elif method not in ("GET", "HEAD"):
            await _answer(send, 405, words("method_not_allowed", "Use GET."))
        else:
            await self._show(status, scope, send)

    def _public(self, path: str) -> Callable[[], Any] | None:
        """What stands at a path that is for everybody. None: nothing of that kind."""
        metadata = self._challenges.metadata
        if metadata is not None and path in metadata.paths:
            return lambda: metadata.document
        found = self.table.public.get(path)
        return None if found is None else found.document

    async def _show(self, route: StatusDocument, scope: Scope, send: Send) -> None:
        if route.authenticated:
            call = call_of(scope, route.path.removeprefix("/"), "")
            try:
                await self._admit(call)
            except InterlockError as error:
                shown = call.credentials.bearer is not None
                challenge = self._challenges.challenge(error, shown=shown)
                body = words(error.failure.name, error.message)
                await _answer(send, error.failure.http, body, challenge)
                return
        told = route.document()
        await _answer(send, 200, await told if inspect.isawaitable(told) else told)

    async def _admit(self, call: Call) -> None:
        try:
            self._pipeline.admit(call)
        except PendingIdentity as unsettled:
            if self._unsettled >= MAX_PENDING_IDENTITIES:
                raise pending_identities_error() from None
            self._unsettled += 1
            try:
                await unsettled.resolve()
            finally:
                self._unsettled -= 1
            self._pipeline.admit(call)


async def _answer(
    send: Send, status: int, body: Any, challenge: bytes | None = None, *, fields: Fields = ()
) -> None:
    sent = [_NO_STORE, *fields]
    if challenge is not None:
        sent.append((b"www-authenticate", challenge))
    await respond_json(send, status, body, sent)


async def _tell_everybody(send: Send, method: str, document: Any) -> None:
    """A public document, which pages of any origin may read too."""
    payload = encode_value(document) if method in ("GET", "HEAD") else b""
    status = 200 if payload else 204 if method == "OPTIONS" else 405
    fields = [
        (b"cache-control", b"max-age=60"),
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", b"GET, HEAD"),
        (b"access-control-allow-headers", b"*"),
    ]
    await respond(send, status, payload, JSON, fields)
