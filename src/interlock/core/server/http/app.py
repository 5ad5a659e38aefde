"""The paths beside the MCP endpoint, a small ASGI app: is the node alive, how do it and its tree
fare?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from interlock.core.call import Call
from interlock.core.pipeline.admission import MOST_UNSETTLED, too_many_unsettled
from interlock.core.pipeline.authentication import Unsettled
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.asgi import JSON, Fields, Scope, Send, respond, respond_json
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.plain_requests import call_of, words
from interlock.core.server.http.resource_metadata import ResourceMetadata, challenge_of
from interlock.errors import FOREIGN_ORIGIN, InterlockError
from interlock.protocol.jsonrpc import encode_value

_NO_STORE: Final = (b"cache-control", b"no-store")
_UPGRADE: Final = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))
_NO_WEBSOCKET: Final = (
    "Topics are joined by WebSocket, and this request does not ask for one. If a proxy stands in "
    "between, it has to pass on the headers Upgrade and Connection."
)


class NodeApp:
    """`/healthz` for whoever restarts nodes; other paths for whoever operates them."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        guard: Guard,
        shown: Mapping[str, Callable[[], Any]],
        mcp_path: str,
        topics_path: Callable[[], str] = str,
    ) -> None:
        """`shown`: what is told at which path, to those who may call; it may have to be awaited.
        `topics_path`: where WebSockets of topics are taken. Empty: nowhere."""
        self._pipeline = pipeline
        self.guard = guard
        self._shown = shown
        self._mcp_path = mcp_path
        self._topics_path = topics_path
        self._unsettled = 0
        """How many wait until it is known who they are."""
        self.metadata: ResourceMetadata | None = None
        """What everybody is told about where to get a token. None: nothing."""
        self.public: dict[str, Callable[[], Any]] = {}
        """What else everybody is told at which path."""

    async def __call__(self, scope: Scope, receive: object, send: Send) -> None:
        fields = dict(scope["headers"])
        path, method = scope["path"], scope["method"]
        public = self._public(path)
        origin = None if public is not None else fields.get(b"origin")
        refusal = self.guard.refusal(fields.get(b"host"), origin)
        if refusal is not None:
            foreign = InterlockError(FOREIGN_ORIGIN, refusal)
            self._pipeline.refused(call_of(scope, method, ""), foreign)
            await _answer(send, 403, words(foreign.failure.name, refusal))
            return
        if public is not None:
            await _tell_everybody(send, method, public())
            return
        topics = self._topics_path()
        if topics and path == topics:
            await _answer(send, 426, words("upgrade_required", _NO_WEBSOCKET), fields=_UPGRADE)
        elif path != "/healthz" and path not in self._shown:
            hint = f"There is nothing here. The MCP endpoint is {self._mcp_path}."
            if topics:
                hint = f"{hint[:-1]}, and topics are at {topics}."
            await _answer(send, 404, words("not_found", hint))
        elif method not in ("GET", "HEAD"):
            await _answer(send, 405, words("method_not_allowed", "Use GET."))
        elif path == "/healthz":
            await _answer(send, 200, {"status": "ok"})
        else:
            await self._show(path, scope, send)

    def _public(self, path: str) -> Callable[[], Any] | None:
        """What stands at a path that is for everybody. None: nothing of that kind."""
        metadata = self.metadata
        if metadata is not None and path in metadata.paths:
            return lambda: metadata.document
        return self.public.get(path)

    async def _show(self, path: str, scope: Scope, send: Send) -> None:
        call = call_of(scope, path.removeprefix("/"), "")
        try:
            await self._admit(call)
        except InterlockError as error:
            shown = call.credentials.bearer is not None
            challenge = challenge_of(self.metadata, error, shown=shown)
            body = words(error.failure.name, error.message)
            await _answer(send, error.failure.http, body, challenge)
            return
        told = self._shown[path]()
        await _answer(send, 200, await told if inspect.isawaitable(told) else told)

    async def _admit(self, call: Call) -> None:
        try:
            self._pipeline.admit(call)
        except Unsettled as unsettled:
            if self._unsettled >= MOST_UNSETTLED:
                raise too_many_unsettled() from None
            self._unsettled += 1
            try:
                await unsettled.settle()
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
