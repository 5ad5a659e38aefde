"""An upstream that does what a test says: an MCP server over HTTP, in the test's own process.

It runs on the node's loop and is used from the test's thread, so everything that a test waits for
is announced on a condition. Calls to `hold` stay pending until the test releases them.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any, Final

from tests.support.http_client import HANG_TIMEOUT, META, SESSION, STATELESS

Message = dict[str, Any]

_OBJECT: Final = {"type": "object"}


def tool(name: str, *required: str, **properties: Any) -> Message:
    schema: Message = {**_OBJECT, "properties": properties}
    if required:
        schema["required"] = list(required)
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema}


TOOLS: Final = [
    tool("echo", text={"type": "string"}),
    tool("add", "a", "b", a={"type": "integer"}, b={"type": "integer"}),
    tool("hold"),
    tool("report", steps={"type": "integer"}),
    {
        **tool("say", method={"type": "string"}, params=_OBJECT),
        "annotations": {"destructiveHint": False},
    },
    tool("fail", code={"type": "integer"}),
    tool("broken"),
    tool("large", size={"type": "integer"}),
    tool("region", region={"type": "string", "x-mcp-header": "Region"}),
    tool("größe"),
]


class ToolServer:
    """An MCP server. `era` is its protocol generation: `stateless` or `session`."""

    def __init__(self, era: str = "session", **capabilities: Any) -> None:
        self.stateless = era == "stateless"
        self.capabilities = {"tools": {"listChanged": True}, **capabilities}
        self.tools: list[Message] = list(TOOLS)
        self.info = {"name": "workshop", "version": "7"}
        self.instructions = "Mind the tools."
        self.received: list[Message] = []
        """Every message that came, in order."""
        self.headers: list[dict[str, str]] = []
        self.hung_up: list[Any] = []
        """Ids of requests whose connection went away before they were answered."""
        self.results: dict[str, Message] = {}
        """What a tool answers instead of what it usually does."""
        self.changed = threading.Condition()
        self._held: dict[Any, _Reply] = {}
        self._listening: list[_Reply] = []
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.url = ""

    # -- what the test's thread asks

    def wait_for(self, result: Callable[[], Any], what: str = "") -> Any:
        """Wait until `found` returns something, and return it."""
        with self.changed:
            value = None

            def look() -> bool:
                nonlocal value
                value = result()
                return bool(value)

            assert self.changed.wait_for(look, HANG_TIMEOUT), f"{what}: {self.received[-5:]}"
            return value

    def find_received(self, method: str, **params: Any) -> list[Message]:
        return [
            message
            for message in self.received
            if message.get("method") == method
            and params.items() <= (message.get("params") or {}).items()
        ]

    def calls(self, name: str) -> list[Message]:
        return self.find_received("tools/call", name=name)

    def wait_for_hold(self, text: str) -> Any:
        """Return the id of a pending call of `hold`."""
        return self.wait_for(
            lambda: [
                call["id"]
                for call in self.calls("hold")
                if call["params"]["arguments"]["text"] == text
            ],
            f"hold {text}",
        )[-1]

    # -- life, on the node's loop

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/mcp"
        return self.url

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def release(self, id: Any) -> None:
        """Answer a pending call."""
        reply = self._held.pop(id)
        reply.end(self._text(reply.message, "released"))

    def progress(self, id: Any, done: int) -> None:
        """Report progress of a pending call."""
        self._progress(self._held[id], done)

    def offer(self, *names: str) -> None:
        """Change the tools and announce the change."""
        self.tools = [tool(name) for name in names]
        self.announce()

    def announce(self) -> None:
        for reply in self._listening:
            reply.send(_notification("notifications/tools/list_changed", reply.subscription))

    # -- one request

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        ahead: bytes | None = b""
        try:
            while ahead is not None:
                ahead = await self._request(reader, writer, ahead)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ahead: bytes
    ) -> bytes | None:
        """Serve one request. Return bytes of the next request, or None at the end."""
        head = ahead + await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().strip().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        verb = first.split(" ")[0]
        if verb == "POST":
            message = json.loads(body)
            reply = _Reply(writer, message)
            with self.changed:
                self.received.append(message)
                self.headers.append(headers)
                self._take(message, reply)
                self.changed.notify_all()
        elif verb == "GET" and not self.stateless:
            reply = _Reply(writer, {})
            reply.open()
            with self.changed:
                self._listening.append(reply)
                self.changed.notify_all()
        else:
            writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
            return b""
        if not reply.over:
            # The connection is this request's until it is answered; its end is a hang-up.
            ended = asyncio.ensure_future(reader.read(1))
            done = asyncio.ensure_future(reply.done.wait())
            try:
                await asyncio.wait({ended, done}, return_when=asyncio.FIRST_COMPLETED)
                if not reply.over:
                    with self.changed:
                        self.hung_up.append(reply.message.get("id"))
                        self._held.pop(reply.message.get("id"), None)
                        if reply in self._listening:
                            self._listening.remove(reply)
                        self.changed.notify_all()
                    return None
                if ended.done():
                    return ended.result() or None
            finally:
                for item in (ended, done):
                    item.cancel()
                await asyncio.gather(ended, done, return_exceptions=True)
        await writer.drain()
        return b""

    def _take(self, message: Message, reply: _Reply) -> None:
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message:
            if method == "notifications/cancelled":
                pending_call = self._held.pop(params["requestId"], None)
                if pending_call is not None:
                    pending_call.end(_error(pending_call.message, -32800, "cancelled"))
            reply.accepted()
        elif method == "server/discover" and self.stateless:
            reply.end(self._result(message, self._about("supportedVersions", [STATELESS])))
        elif method == "initialize" and not self.stateless:
            about = self._about("protocolVersion", SESSION)
            reply.end(
                self._result(message, {**about, "serverInfo": self.info}), "mcp-session-id: s\r\n"
            )
        elif method == "tools/list":
            reply.end(self._result(message, {"tools": self.tools}))
        elif method == "tools/call":
            self._call(message, params["name"], params.get("arguments") or {}, reply)
        elif method == "subscriptions/listen" and self.stateless:
            reply.open()
            self._listening.append(reply)
            reply.send(
                _notification(
                    "notifications/subscriptions/acknowledged",
                    {**reply.subscription, "notifications": {"toolsListChanged": True}},
                )
            )
        elif method in ("prompts/list", "resources/read", "completion/complete"):
            reply.end(self._result(message, {"asked": method, "params": params}))
        else:
            reply.end(_error(message, -32601, f"No {method} here."))

    def _call(self, message: Message, name: str, arguments: Message, reply: _Reply) -> None:
        if name in self.results:
            reply.end(self._result(message, self.results[name]))
        elif name == "hold":
            self._held[message["id"]] = reply
        elif name == "report":
            for step in range(1, arguments["steps"] + 1):
                self._progress(reply, step, arguments["steps"])
            reply.end(self._text(message, "reported"))
        elif name == "say":
            reply.open()
            reply.send(_notification(arguments["method"], arguments["params"]))
            reply.end(self._text(message, "said"))
        elif name == "fail":
            reply.end(_error(message, arguments["code"], "It failed.", {"on": "purpose"}))
        elif name == "broken":
            result = {"content": [{"type": "text", "text": "no"}], "isError": True}
            reply.end(self._result(message, result))
        elif name == "large":
            reply.end(self._text(message, "x" * arguments["size"]))
        elif name == "add":
            reply.end(self._text(message, str(arguments["a"] + arguments["b"])))
        else:
            reply.end(self._text(message, str(arguments.get("text", name))))

    def _progress(self, reply: _Reply, done: int, total: int | None = None) -> None:
        token = reply.message["params"].get("_meta", {}).get("progressToken")
        if token is None:
            return
        received: Message = {"progressToken": token, "progress": done}
        if total is not None:
            received["total"] = total
        reply.open()
        reply.send(_notification("notifications/progress", received))

    # -- answers

    def _about(self, key: str, versions: Any) -> Message:
        return {
            key: versions,
            "capabilities": self.capabilities,
            "instructions": self.instructions,
            "ttlMs": 0,
            "cacheScope": "private",
        }

    def _text(self, message: Message, text: str) -> Message:
        return self._result(message, {"content": [{"type": "text", "text": text}]})

    def _result(self, message: Message, members: Message) -> Message:
        if self.stateless:
            members = {
                "resultType": "complete",
                **members,
                "_meta": {META + "serverInfo": self.info},
            }
        return {"jsonrpc": "2.0", "id": message["id"], "result": members}


class _Reply:
    """The response to one request: one JSON message, or a stream after `open`."""

    def __init__(self, writer: asyncio.StreamWriter, message: Message) -> None:
        self.message = message
        self.over = False
        self.done = asyncio.Event()
        self.subscription = {"_meta": {META + "subscriptionId": message.get("id")}}
        self._writer = writer
        self._streaming = False

    def _write(self, data: bytes) -> None:
        # The node may have hung up.
        if not self._writer.is_closing():
            self._writer.write(data)

    def accepted(self) -> None:
        self._write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        self._finish()

    def open(self) -> None:
        if not self._streaming:
            self._streaming = True
            self._write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )

    def send(self, message: Message) -> None:
        data = b"data: %b\n\n" % json.dumps(message).encode()
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self, message: Message, headers: str = "") -> None:
        if self._streaming:
            self.send(message)
            self._write(b"0\r\n\r\n")
        else:
            body = json.dumps(message).encode()
            self._write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
                % (headers.encode(), len(body))
                + body
            )
        self._finish()

    def _finish(self) -> None:
        self.over = True
        self.done.set()


def _notification(method: str, params: Message) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def _error(message: Message, code: int, text: str, data: Any = None) -> Message:
    error: Message = {"code": code, "message": text}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": message["id"], "error": error}
