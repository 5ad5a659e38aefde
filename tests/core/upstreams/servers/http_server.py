"""MCP over HTTP on a real socket of this loop, with every bad habit that a test can give it.

`HttpServer` reads requests and lets `serve` do with the connection whatever it likes. On it stand
a streamable server (`Streamable`) and one of 2024-11-05 (`Legacy`), both with a toolbox behind.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from tests.core.upstreams.servers.toolbox import Message, Toolbox, ToolboxExit, error, list_changed
from tests.support.timeouts import HANG_TIMEOUT


class Request:
    """A received request."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.message: Message = json.loads(body) if body else {}
        self.connection = 0
        """The number of the connection it came on."""

    @property
    def rpc(self) -> str:
        return str(self.message.get("method", ""))

    @property
    def tool(self) -> str:
        name = self.message.get("params", {}).get("name", "")
        return str(name) if self.rpc == "tools/call" else ""


class ResponseWriter:
    """A writer of one response: complete, in pieces, or none."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True when the connection may be used on."""
        self._chunked = False

    def raw(self, data: bytes) -> None:
        self._writer.write(data)

    def finish(self, *, keep: bool = True) -> None:
        if not self.done.done():
            self.done.set_result(keep)

    def abort(self) -> None:
        self._writer.transport.abort()
        self.finish(keep=False)

    def respond(self, body: bytes, status: str = "200 OK", **headers: str) -> None:
        """Write a response with a length."""
        fields = {"content-type": "application/json", **headers}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        head = f"HTTP/1.1 {status}\r\n{lines}content-length: {len(body)}\r\n\r\n"
        self.raw(head.encode() + body)
        self.finish()

    def json(self, message: Any, status: str = "200 OK", **headers: str) -> None:
        self.respond(json.dumps(message).encode(), status, **headers)

    def empty(self, status: str, **headers: str) -> None:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.raw(f"HTTP/1.1 {status}\r\n{lines}content-length: 0\r\n\r\n".encode())
        self.finish()

    def open(self, *, chunked: bool = True, **headers: str) -> None:
        """Begin an event stream; without chunks it ends with the connection."""
        self._chunked = chunked
        fields = {"content-type": "text/event-stream", **headers}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        end = "transfer-encoding: chunked\r\n" if chunked else "connection: close\r\n"
        self.raw(f"HTTP/1.1 200 OK\r\n{lines}{end}\r\n".encode())

    def write_chunk(self, data: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def event(self, message: Any, name: str = "message") -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self.write_chunk(f"event: {name}\r\ndata: {text}\r\n\r\n".encode())

    def end(self) -> None:
        if self._chunked:
            self.raw(b"0\r\n\r\n")
        self.finish(keep=self._chunked)


class HttpServer:
    """An HTTP server on 127.0.0.1."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.dropped: list[Request] = []
        """Requests whose client left before it had its answer."""
        self.connected = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[None]]] = []
        self._tls: ssl.SSLContext | None = None

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    def url(self, path: str = "/mcp") -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}{path}"

    async def serve(self, request: Request, answer: ResponseWriter) -> None:
        raise NotImplementedError

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", port, ssl=tls, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop like a killed process: stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = list(self._tasks)
        self.cut_connections()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cut_connections(self) -> None:
        """Cut every connection."""
        for writer in self._tasks.values():
            writer.transport.abort()

    async def __aenter__(self) -> Any:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a request, or a connection's end, makes the condition true."""
        if condition():
            return
        entry = (condition, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(HANG_TIMEOUT):
                await entry[1]
        finally:
            self._waiting.remove(entry)

    def notify_waiters(self) -> None:
        for condition, future in self._waiting:
            if not future.done() and condition():
                future.set_result(None)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connected += 1
        number = self.connected
        self._tasks[task] = writer
        self.notify_waiters()
        try:
            while (request := await _read(reader)) is not None:
                request.connection = number
                self.requests.append(request)
                self.notify_waiters()
                if not await self._one(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            del self._tasks[task]
            writer.close()
            self.notify_waiters()

    async def _one(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        response = ResponseWriter(writer)
        await self.serve(request, response)
        # A client that leaves is noticed while it waits.
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([gone, response.done], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        if not response.done.done():
            self.dropped.append(request)
            self.notify_waiters()
            return False
        await writer.drain()
        return response.done.result()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ")
    fields = (line.partition(":") for line in lines if line)
    headers = {name.lower(): value.strip() for name, _, value in fields}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)


Override = Callable[[Request, ResponseWriter], Awaitable[bool]]


class Streamable(HttpServer):
    """A streamable HTTP server. `override` sees every request first and may answer it."""

    def __init__(
        self,
        generations: str = "both",
        *,
        sse: bool = False,
        chunked: bool = True,
        sessions: bool = True,
        announces: bool = False,
        get: str = "405 Method Not Allowed",
        forgets: str = "404 empty",
    ) -> None:
        super().__init__()
        self.toolbox = Toolbox(generations, announces=announces)
        self.sse = sse
        self.chunked = chunked
        self.get = get
        """What a GET is answered with; `stream` is the session's stream."""
        self.forgets = forgets
        """How an unknown session is refused: status, and `empty`, `text` or an error's id."""
        self.override: Override | None = None
        self.sessions: set[str] | None = set() if sessions else None
        self.streams: list[ResponseWriter] = []
        self.deleted: list[str] = []
        self._named = 0

    async def serve(self, request: Request, answer: ResponseWriter) -> None:
        if self.override is not None and await self.override(request, answer):
            return
        if request.method == "GET":
            self._get(request, answer)
        elif request.method == "DELETE":
            self.deleted.append(request.headers.get("mcp-session-id", ""))
            answer.empty("200 OK")
        elif self._admit(request, answer):
            self.post(request, answer)
        self.notify_waiters()

    def forget_sessions(self) -> None:
        if self.sessions is not None:
            self.sessions.clear()

    def announce(self) -> None:
        """Announce a changed list on every session stream."""
        for stream in self.streams:
            stream.event(list_changed())

    def post(self, request: Request, answer: ResponseWriter, **headers: str) -> None:
        message = request.message
        if "id" not in message or "method" not in message:
            self.toolbox.receive(message, lambda _: None)
            answer.empty("202 Accepted")
            return
        if request.rpc == "initialize" and self.sessions is not None:
            self._named += 1
            session = f"session-{self._named}"
            self.sessions.add(session)
            headers["mcp_session_id"] = session
        opened = False

        def send(back: Message) -> None:
            nonlocal opened
            final = "method" not in back
            if not (self.sse or not final or opened):
                answer.json(back, **headers)
                return
            if not opened:
                opened = True
                answer.open(chunked=self.chunked, **headers)
            answer.event(back)
            if final:
                answer.end()

        try:
            self.toolbox.receive(message, send)
        except ToolboxExit:
            self.cut_connections()

    def _admit(self, request: Request, answer: ResponseWriter) -> bool:
        stateless = "mcp-method" in request.headers
        if stateless and not self.toolbox.stateless:
            answer.respond(b"Bad Request: Missing session ID", "400 Bad Request")
            return False
        if stateless or self.sessions is None or request.rpc == "initialize":
            return True
        session = request.headers.get("mcp-session-id")
        if session in self.sessions:
            return True
        text = "Bad Request: No valid session ID provided"
        status, _, id = self.forgets.partition(" ")
        if id == "empty":
            answer.empty(f"{status} Whatever")
        elif id == "text":
            answer.respond(text.encode(), f"{status} Whatever", content_type="text/plain")
        else:
            answer.json(error(json.loads(id), -32000, text), f"{status} Whatever")
        return False

    def _get(self, request: Request, answer: ResponseWriter) -> None:
        if self.get != "stream":
            answer.empty(self.get)
            return
        answer.open(chunked=self.chunked)
        self.streams.append(answer)


class Legacy(HttpServer):
    """A server of 2024-11-05: one event stream, and an endpoint for POSTs."""

    def __init__(self, endpoint: str = "/messages?session=1") -> None:
        super().__init__()
        self.toolbox = Toolbox("session", revision="2024-11-05")
        self.endpoint = endpoint
        self.override: Override | None = None
        self.stream: ResponseWriter | None = None

    async def serve(self, request: Request, answer: ResponseWriter) -> None:
        if self.override is not None and await self.override(request, answer):
            return
        if request.method == "GET" and request.path == "/sse":
            answer.open()
            answer.event(self.endpoint, "endpoint")
            self.stream = answer
        elif request.method == "POST" and request.path == self.endpoint:
            answer.empty("202 Accepted")
            stream = self.stream
            assert stream is not None
            try:
                self.toolbox.receive(request.message, stream.event)
            except ToolboxExit:
                self.cut_connections()
        else:
            answer.empty("405 Method Not Allowed")
        self.notify_waiters()
