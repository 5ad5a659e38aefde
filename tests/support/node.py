"""A real node for tests of its server: on uvloop, in a thread, with upstreams beside it."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from interlock.app.node import Node
from interlock.core.config import Config, ServerConfig
from tests.support.http_client import (
    HANG_TIMEOUT,
    SESSION,
    HttpConnection,
    HttpResponse,
    initialize,
    message,
    meta,
    request,
    stateless_headers,
)
from tests.support.tool_server import ToolServer

T = TypeVar("T")


class NodeThread:
    """A node in its own thread, with its own loop, that runs until `stop`."""

    def __init__(
        self,
        folder: Path,
        *,
        workshops: dict[str, ToolServer] | None = None,
        servers: dict[str, ServerConfig] | None = None,
        tokens: dict[str, str] | None = None,
        environ: dict[str, str] | None = None,
        **config: Any,
    ) -> None:
        """Start the node. `tokens`: name → token. `servers`: servers besides the workshops."""
        self.workshops = {"shop": ToolServer()} if workshops is None else workshops
        self.folder = folder
        self.complaints: list[dict[str, Any]] = []
        """What the loop had to complain about: nothing may."""
        self._servers = servers or {}
        self.tokens = tokens or {}
        self._environ = environ or {}
        self._config = config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._node: Node | None = None
        self.tasks_left: list[str] = []
        self._ids = itertools.count(1000)
        self._thread = threading.Thread(target=self._run, name="node", daemon=True)
        self._thread.start()
        assert self._ready.wait(HANG_TIMEOUT)
        if self._failed is not None:
            raise self._failed

    # -- the thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            self._failed = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        self._end = asyncio.Event()
        for shop in self.workshops.values():
            await shop.start()
        self._node = node = Node(
            self.config(),
            base_dir=self.folder,
            environ={**{"T_" + k: v for k, v in self.tokens.items()}, **self._environ},
        )
        try:
            await node.listen()
            node.start()
            await node.until_settled(HANG_TIMEOUT)
            self._ready.set()
            await self._end.wait()
        finally:
            await node.stop()
            for shop in self.workshops.values():
                await shop.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, others = await asyncio.wait(others, timeout=HANG_TIMEOUT)
        self.tasks_left = [repr(other) for other in others]

    def config(self, **changes: Any) -> Config:
        """Return the node's config, with changes."""
        shops = {key: ServerConfig(url=shop.url) for key, shop in self.workshops.items()}
        settings: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "state_dir": str(self.folder),
            "servers": {**shops, **self._servers},
            "tokens": [{"name": name, "token": f"${{env:T_{name}}}"} for name in self.tokens],
            **self._config,
            **changes,
        }
        return _as_config(settings)

    def stop(self) -> None:
        """Stop the node and check that it left nothing behind."""
        if self._loop is not None and self._end is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(2 * HANG_TIMEOUT)
        assert not self._thread.is_alive()
        assert self._failed is None, self._failed
        assert not self.complaints, self.complaints
        assert not self.tasks_left, self.tasks_left

    # -- what a test asks

    @property
    def node(self) -> Node:
        assert self._node is not None
        return self._node

    @property
    def shop(self) -> ToolServer:
        return next(iter(self.workshops.values()))

    @property
    def port(self) -> int:
        assert self.node.listeners._http is not None
        return self.node.listeners._http.port

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        assert self.node.url is not None
        return self.node.url

    def do(self, action: Callable[[], T]) -> T:
        """Run `action` on the node's loop."""

        async def call() -> T:
            return action()

        return self.wait(call())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(HANG_TIMEOUT)

    def until(self, result: Callable[[], Any], what: str = "") -> None:
        """Wait until a condition of the node is true. It is checked in every turn of the loop."""

        async def look() -> None:
            async with asyncio.timeout(HANG_TIMEOUT):
                while not result():  # noqa: ASYNC110 - nobody announces what is looked at here
                    await asyncio.sleep(0.001)

        try:
            self.wait(look())
        except TimeoutError:
            raise AssertionError(f"waited in vain: {what}") from None

    def connect(self, **more: Any) -> HttpConnection:
        return HttpConnection(("127.0.0.1", self.port), **more)

    def local(self) -> HttpConnection:
        """Return a client of the node's local socket, which speaks lines."""
        path = self.node.listeners._unix_path
        if path is None:
            path = self.wait(self.node.listen_locally())
        return HttpConnection(str(path), family=socket.AF_UNIX)

    def once(self, *pieces: bytes) -> HttpResponse:
        """Return the response to one request, on a new connection."""
        with self.connect() as connection:
            return connection.request(*pieces)

    def alive(self) -> bool:
        """Return whether the node answers a tool call."""
        text = f"alive {next(self._ids)}"
        response = self.once(self.call("echo", {"text": text}))
        return bool(response.result["content"][0]["text"] == text)

    # -- requests as bytes

    def http(self, body: bytes = b"", *headers: tuple[str, str], **more: Any) -> bytes:
        return request(self.host, body, *headers, **more)

    def stateless(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        id: Any = 1,
        *headers: tuple[str, str],
        name: str | None = None,
        more_meta: dict[str, Any] | None = None,
    ) -> bytes:
        """Return a valid stateless request."""
        body = message(method, {**(params or {}), "_meta": meta(**(more_meta or {}))}, id)
        return self.http(body, *stateless_headers(method, name), *headers)

    def call(
        self,
        tool: str,
        arguments: dict[str, Any] | None = None,
        id: Any = 1,
        *headers: tuple[str, str],
        more_meta: dict[str, Any] | None = None,
    ) -> bytes:
        """Return a stateless call of a tool."""
        name = f"shop.{tool}"
        params = {"name": name, "arguments": arguments or {}}
        return self.stateless("tools/call", params, id, *headers, name=name, more_meta=more_meta)

    def session(
        self, version: str = SESSION, *headers: tuple[str, str], **more: Any
    ) -> HttpSession:
        """Open a new session."""
        response = self.once(
            self.http(message("initialize", initialize(version, **more), 0), *headers)
        )
        assert response.status == 200, response
        return HttpSession(self, response, version, headers)


class HttpSession:
    """A session of a client, which makes its requests."""

    def __init__(
        self,
        running: NodeThread,
        answer: HttpResponse,
        version: str,
        headers: tuple[tuple[str, str], ...],
    ) -> None:
        self.id = answer.headers["mcp-session-id"]
        self.opened = answer.result
        self.headers = (("Mcp-Session-Id", self.id), ("MCP-Protocol-Version", version), *headers)
        self._running = running

    def request(
        self, method: str, params: Any = None, id: Any = 1, *headers: tuple[str, str]
    ) -> bytes:
        return self._running.http(message(method, params, id), *self.headers, *headers)

    def raw(self, body: bytes) -> bytes:
        return self._running.http(body, *self.headers)

    def call(
        self, tool: str, arguments: dict[str, Any] | None = None, id: Any = 1, **more: Any
    ) -> bytes:
        params = {"name": f"shop.{tool}", "arguments": arguments or {}, **more}
        return self.request("tools/call", params, id)

    def get(self, *headers: tuple[str, str]) -> bytes:
        return self._running.http(b"", *self.headers, *headers, method="GET")

    def delete(self) -> bytes:
        return self._running.http(b"", *self.headers, method="DELETE")


def _as_config(settings: dict[str, Any]) -> Config:
    from interlock.core.config import JournalConfig, Limits, TokenConfig
    from interlock.core.config.feature_sections import make_config

    limits = settings.pop("limits", {})
    tokens = [TokenConfig(**item) for item in settings.pop("tokens")]
    journal = JournalConfig(**{"max_rows": 10_000, **settings.pop("journal", {})})
    own = {"tokens": tokens, "limits": Limits(**limits), "journal": journal}
    return make_config({**settings, **own})


def result_text(answer: Any) -> str:
    """Return the text of a tool result."""
    result = answer.result if isinstance(answer, HttpResponse) else answer["result"]
    (content,) = result["content"]
    text: str = content["text"]
    return text
