"""The paths beside the MCP endpoint, a small ASGI app: is the node alive, how does it fare?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from interlock.call import Call, Client, Credentials
from interlock.errors import InterlockError
from interlock.faces.http.guard import Guard, peer_name
from interlock.pipeline.pipeline import Pipeline
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import LATEST_STATELESS, Era

Send = Callable[[dict[str, Any]], Awaitable[None]]
_CLIENT = Client(Era.STATELESS, LATEST_STATELESS)


class NodeApp:
    """`/healthz` for whoever restarts nodes, `/status` for whoever operates this one."""

    def __init__(
        self, *, pipeline: Pipeline, guard: Guard, status: Callable[[], Any], mcp_path: str
    ) -> None:
        self._pipeline = pipeline
        self.guard = guard
        self._status = status
        self._mcp_path = mcp_path

    async def __call__(self, scope: dict[str, Any], receive: object, send: Send) -> None:
        fields = dict(scope["headers"])
        refusal = self.guard.refusal(fields.get(b"host"), fields.get(b"origin"))
        if refusal is not None:
            await _answer(send, 403, {"error": "foreign_origin", "message": refusal})
            return
        path, method = scope["path"], scope["method"]
        if path not in ("/healthz", "/status"):
            hint = f"There is nothing here. The MCP endpoint is {self._mcp_path}."
            await _answer(send, 404, {"error": "not_found", "message": hint})
        elif method not in ("GET", "HEAD"):
            await _answer(send, 405, {"error": "method_not_allowed", "message": "Use GET."})
        elif path == "/healthz":
            await _answer(send, 200, {"status": "ok"})
        else:
            await self._show_status(scope, fields, send)

    async def _show_status(
        self, scope: dict[str, Any], fields: dict[bytes, bytes], send: Send
    ) -> None:
        authorization = fields.get(b"authorization", b"")
        bearer = None
        if authorization[:7].lower() == b"bearer ":
            bearer = authorization[7:].strip().decode("latin-1")
        call = Call("status", "http", Credentials(peer_name(scope.get("client")), bearer), _CLIENT)
        try:
            self._pipeline.admit(call)
        except InterlockError as error:
            body = {"error": error.failure.name, "message": error.message}
            await _answer(send, error.failure.http, body)
            return
        await _answer(send, 200, self._status())


async def _answer(send: Send, status: int, body: Any) -> None:
    payload = encode_value(body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(payload)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": payload})
