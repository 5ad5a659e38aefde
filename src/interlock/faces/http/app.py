"""The paths beside the MCP endpoint, a small ASGI app: is the node alive, how do it and its tree
fare?"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from interlock.call import Call, Client, Credentials
from interlock.errors import FOREIGN_ORIGIN, InterlockError
from interlock.faces.http.fast_lane import CERTIFICATE
from interlock.faces.http.guard import Guard, peer_name
from interlock.faces.http.resource_metadata import ResourceMetadata, challenge_of
from interlock.pipeline.authenticate import Unsettled
from interlock.pipeline.entry import MOST_UNSETTLED, too_many_unsettled
from interlock.pipeline.pipeline import Pipeline
from interlock.protocol.headers import bearer_of
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import LATEST_STATELESS, Era

Send = Callable[[dict[str, Any]], Awaitable[None]]
_CLIENT = Client(Era.STATELESS, LATEST_STATELESS)


class NodeApp:
    """`/healthz` for whoever restarts nodes; other paths for whoever operates them."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        guard: Guard,
        shown: Mapping[str, Callable[[], Any]],
        mcp_path: str,
    ) -> None:
        """`shown`: what is told at which path, to those who may call; it may have to be awaited."""
        self._pipeline = pipeline
        self.guard = guard
        self._shown = shown
        self._mcp_path = mcp_path
        self._unsettled = 0
        """How many wait until it is known who they are."""
        self.metadata: ResourceMetadata | None = None
        """What everybody is told about where to get a token. None: nothing."""
        self.public: dict[str, Callable[[], Any]] = {}
        """What else everybody is told at which path."""

    async def __call__(self, scope: dict[str, Any], receive: object, send: Send) -> None:
        fields = dict(scope["headers"])
        path, method = scope["path"], scope["method"]
        public = self._public(path)
        origin = None if public is not None else fields.get(b"origin")
        refusal = self.guard.refusal(fields.get(b"host"), origin)
        if refusal is not None:
            foreign = InterlockError(FOREIGN_ORIGIN, refusal)
            self._pipeline.refused(self._call(scope, fields, method), foreign)
            await _answer(send, 403, {"error": foreign.failure.name, "message": refusal})
            return
        if public is not None:
            await _tell_everybody(send, method, public())
            return
        if path != "/healthz" and path not in self._shown:
            hint = f"There is nothing here. The MCP endpoint is {self._mcp_path}."
            await _answer(send, 404, {"error": "not_found", "message": hint})
        elif method not in ("GET", "HEAD"):
            await _answer(send, 405, {"error": "method_not_allowed", "message": "Use GET."})
        elif path == "/healthz":
            await _answer(send, 200, {"status": "ok"})
        else:
            await self._show(path, scope, fields, send)

    def _public(self, path: str) -> Callable[[], Any] | None:
        """What stands at a path that is for everybody. None: nothing of that kind."""
        metadata = self.metadata
        if metadata is not None and path in metadata.paths:
            return lambda: metadata.document
        return self.public.get(path)

    async def _show(
        self, path: str, scope: dict[str, Any], fields: dict[bytes, bytes], send: Send
    ) -> None:
        try:
            await self._admit(scope, fields, path.removeprefix("/"))
        except InterlockError as error:
            body = {"error": error.failure.name, "message": error.message}
            shown = bearer_of(fields.get(b"authorization")) is not None
            challenge = challenge_of(self.metadata, error, shown=shown)
            await _answer(send, error.failure.http, body, challenge)
            return
        told = self._shown[path]()
        await _answer(send, 200, await told if inspect.isawaitable(told) else told)

    async def _admit(self, scope: dict[str, Any], fields: dict[bytes, bytes], verb: str) -> None:
        try:
            self._pipeline.admit(self._call(scope, fields, verb))
        except Unsettled as unsettled:
            if self._unsettled >= MOST_UNSETTLED:
                raise too_many_unsettled() from None
            self._unsettled += 1
            try:
                await unsettled.settle()
            finally:
                self._unsettled -= 1
            self._pipeline.admit(self._call(scope, fields, verb))

    @staticmethod
    def _call(scope: dict[str, Any], fields: dict[bytes, bytes], verb: str) -> Call:
        bearer = bearer_of(fields.get(b"authorization"))
        shown = scope.get("extensions", {}).get(CERTIFICATE, {}).get("names", ())
        credentials = Credentials(peer_name(scope.get("client")), bearer, certificate=shown)
        return Call(verb, "http", credentials, _CLIENT)


async def _answer(send: Send, status: int, body: Any, challenge: bytes | None = None) -> None:
    payload = encode_value(body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(payload)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if challenge is not None:
        headers.append((b"www-authenticate", challenge))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": payload})


async def _tell_everybody(send: Send, method: str, document: Any) -> None:
    """A public document, which pages of any origin may read too."""
    payload = encode_value(document) if method in ("GET", "HEAD") else b""
    status = 200 if payload else 204 if method == "OPTIONS" else 405
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(payload)).encode()),
        (b"cache-control", b"max-age=60"),
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", b"GET, HEAD"),
        (b"access-control-allow-headers", b"*"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": payload})
