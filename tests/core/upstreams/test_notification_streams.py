"""Notification streams of one peer: subscriptions, resumption and failures.

Longer than 500 lines, because both generations have the same failures.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import UpstreamResponseError
from interlock.core.config import ServerConfig, resolve_server
from interlock.core.upstreams import subscriptions as hearing
from interlock.core.upstreams import subscriptions as listening
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import Connector
from interlock.core.upstreams.subscriptions import (
    MAX_REOPEN_DELAY_SECONDS,
    REOPEN_DELAY_SECONDS,
    UpstreamSubscriptions,
    reopen_delay,
)
from interlock.errors import InterlockError
from interlock.primitives.backoff import Backoff
from tests.core.upstreams.servers.http_server import Legacy, Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import notification, result
from tests.support.upstreams import OWN_INFO, ManualSleep, run, stdio_server, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


class StreamHarness:
    """A running notification stream, and its events."""

    def __init__(self, peer: UpstreamClient, uris: tuple[str, ...]) -> None:
        self.peer = peer
        self.changed: list[str] = []
        self.updated: list[str] = []
        self.relisted = 0
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[None]]] = []
        self.sleeps = ManualSleep(self.notify_waiters)
        peer.on_changed = self._record_in(self.changed)
        peer.on_updated = self._record_in(self.updated)
        self.hearing = UpstreamSubscriptions(
            peer, relist=self._relist, sleep=self.sleeps, uris=uris
        )
        self.task = asyncio.ensure_future(self.hearing.run())

    def _record_in(self, told: list[str]) -> Callable[[str], None]:
        def record(what: str) -> None:
            told.append(what)
            self.notify_waiters()

        return record

    def _relist(self) -> None:
        self.relisted += 1
        self.notify_waiters()

    def notify_waiters(self) -> None:
        for condition, future in self._waiting:
            if not future.done() and condition():
                future.set_result(None)

    async def until(self, condition: Callable[[], Any]) -> None:
        if condition():
            return
        entry = (condition, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            await with_timeout(entry[1])
        finally:
            self._waiting.remove(entry)


@asynccontextmanager
async def open_streams(server: ServerConfig, *uris: str) -> AsyncIterator[StreamHarness]:
    connector = Connector(
        "up",
        server,
        node_info=OWN_INFO,
        resolve=lambda item: resolve_server(item, environ=os.environ, base_dir=Path.cwd()),
        clock=asyncio.get_running_loop().time,
    )
    peer = await connector.connect()
    upstream = StreamHarness(peer, uris)
    try:
        yield upstream
    finally:
        upstream.task.cancel()
        await asyncio.gather(upstream.task, return_exceptions=True)
        await peer.close()


def get_requests(server: Streamable) -> list[Request]:
    return [request for request in server.requests if request.method == "GET"]


def requested_notifications(server: Streamable) -> list[dict[str, Any]]:
    """Return what each `subscriptions/listen` requested."""
    return [
        request.message["params"]["notifications"]
        for request in server.requests
        if request.rpc == "subscriptions/listen"
    ]


ALL = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
}


def stateless(**capabilities: Any) -> Streamable:
    server = Streamable("stateless")
    server.toolbox.capabilities = capabilities or ALL
    return server


# -- the stream of a session


async def test_opens_session_stream() -> None:
    async with Streamable("session", get="stream") as server:
        async with open_streams(ServerConfig(url=server.url())) as upstream:
            await with_timeout(upstream.hearing.wait_open())
            (stream,) = server.streams
            for kind in ("tools", "prompts", "resources"):
                stream.event(notification(f"notifications/{kind}/list_changed"))
            stream.event(notification("notifications/resources/updated", {"uri": "a:b"}))
            await upstream.until(lambda: upstream.updated)
            assert upstream.changed == ["tools", "prompts", "resources"]
            assert upstream.updated == ["a:b"]
            (get,) = get_requests(server)
            assert get.headers["mcp-session-id"] == "session-1"
            assert "last-event-id" not in get.headers


@LOOPS
@pytest.mark.parametrize("properly", [True, False])
def test_resumes_stream_from_last_event_id(properly: bool, loop: str) -> None:
    async def body() -> None:
        async with Streamable("session", get="stream") as server:
            async with open_streams(ServerConfig(url=server.url())) as upstream:
                await with_timeout(upstream.hearing.wait_open())
                stream = server.streams.pop()
                stream.write_chunk(b"id: 7\nretry: 250\ndata: \n\n")
                if properly:
                    stream.end()
                else:
                    stream.abort()
                await server.until(lambda: server.streams)
                assert get_requests(server)[-1].headers["last-event-id"] == "7"
                # Its own wish counts; one that breaks is given more time.
                assert upstream.sleeps.taken == [0.25 if properly else 2.0]
                server.streams[0].event(notification("notifications/tools/list_changed"))
                await upstream.until(lambda: upstream.changed)
                # The id lasts until there is another.
                server.streams.pop().end()
                await server.until(lambda: server.streams)
                assert get_requests(server)[-1].headers["last-event-id"] == "7"
                assert len(get_requests(server)) == 3
                # Who ends it properly and takes ids keeps what comes between.
                await upstream.until(lambda: upstream.relisted == (0 if properly else 1))

    run(body, loop=loop)


async def test_lists_again_after_stream_without_ids() -> None:
    async with Streamable("session", get="stream") as server:
        async with open_streams(ServerConfig(url=server.url())) as upstream:
            await with_timeout(upstream.hearing.wait_open())
            await upstream.hearing.watch("a:b")
            server.streams.pop().end()
            await upstream.until(lambda: upstream.relisted)
            assert upstream.updated == ["a:b"]
            assert "last-event-id" not in get_requests(server)[-1].headers
            # The session remembers what was subscribed to.
            assert [r.rpc for r in server.requests].count("resources/subscribe") == 1


async def test_opens_new_stream_when_resume_fails() -> None:
    async with Streamable("session", get="stream") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if "last-event-id" in request.headers:
                response.empty("400 Bad Request")
            return "last-event-id" in request.headers

        server.override = override
        async with open_streams(ServerConfig(url=server.url())) as upstream:
            await with_timeout(upstream.hearing.wait_open())
            stream = server.streams.pop()
            stream.write_chunk(b"id: 7\n\n")
            stream.end()
            await server.until(lambda: server.streams)
            await upstream.until(lambda: upstream.relisted)
            ids = [get.headers.get("last-event-id") for get in get_requests(server)]
            assert ids == [None, "7", None]


@pytest.mark.parametrize("status", ["409 Conflict", "429 Slow Down", "503 Busy"])
async def test_retries_unavailable_stream(status: str) -> None:
    async with Streamable("session", get=status) as server:
        async with open_streams(ServerConfig(url=server.url())) as upstream:
            upstream.sleeps.hold()
            # Nobody is kept waiting for it.
            await with_timeout(upstream.hearing.wait_open())
            await upstream.until(lambda: upstream.sleeps.sleeping)
            server.get = "stream"
            upstream.sleeps.wake()
            await upstream.until(lambda: upstream.relisted == 1)
            assert len(get_requests(server)) == 2
            assert len(server.streams) == 1


@pytest.mark.parametrize("status", ["405 Method Not Allowed", "404 Not Found", "501 No"])
async def test_requests_unsupported_stream_once(status: str) -> None:
    async with Streamable("session", get=status) as server:
        async with open_streams(ServerConfig(url=server.url()), "a:b") as upstream:
            await with_timeout(upstream.hearing.wait_open())
            await with_timeout(upstream.task)
            assert len(get_requests(server)) == 1
            assert not upstream.sleeps.taken
            # Subscriptions do not need it: updates may come on the stream of a call.
            assert server.toolbox.subscribed == {"a:b"}


async def test_silent_stream_counts_as_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hearing, "HEADERS_TIMEOUT_SECONDS", 0.02)

    async with Streamable("session") as server:
        waiting: list[ResponseWriter] = []

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.method == "GET":
                waiting.append(response)
            return request.method == "GET"

        server.override = override
        async with open_streams(ServerConfig(url=server.url())) as upstream:
            await with_timeout(upstream.hearing.wait_open())
            waiting[0].open()
            waiting[0].event(notification("notifications/tools/list_changed"))
            await upstream.until(lambda: upstream.changed)


def test_increases_delay_between_streams() -> None:
    backoff = Backoff(REOPEN_DELAY_SECONDS, MAX_REOPEN_DELAY_SECONDS)
    assert [reopen_delay(backoff, 0.0) for _ in range(7)] == [2, 4, 8, 16, 32, 60, 60]
    assert reopen_delay(backoff, 100.0) == 1
    assert reopen_delay(backoff, 0.0, 5.0) == 5
    assert reopen_delay(backoff, 0.0, 5.0) == 10
    assert reopen_delay(backoff, 0.0, 5.0, is_clean_end=True) == 5
    assert reopen_delay(backoff, 0.0, 0.0, is_clean_end=True) == 0.05
    assert reopen_delay(backoff, 0.0, 1e9, is_clean_end=True) == 60


# -- watching on the session wire


@pytest.mark.parametrize("link", ["http", "legacy", "stdio"])
async def test_subscribes_resources_in_session(link: str) -> None:
    async with Streamable("session", get="stream") as server, Legacy() as legacy:
        toolbox = legacy.toolbox if link == "legacy" else server.toolbox
        config = {
            "http": ServerConfig(url=server.url()),
            "legacy": ServerConfig(url=legacy.url("/sse"), transport="sse"),
            "stdio": stdio_server("--eras", "session"),
        }[link]
        async with open_streams(config, "old:one") as upstream:
            await with_timeout(upstream.hearing.wait_open())
            # What was watched before is watched again, and may have changed meanwhile.
            await upstream.until(lambda: upstream.updated == ["old:one"])
            await with_timeout(upstream.hearing.watch("new:one"))
            await with_timeout(upstream.hearing.watch("new:one"))
            assert upstream.hearing.watched == ("old:one", "new:one")
            if link != "stdio":
                assert toolbox.subscribed == {"old:one", "new:one"}
            await with_timeout(upstream.hearing.unwatch("old:one"))
            await with_timeout(upstream.hearing.unwatch("never:seen"))
            assert upstream.hearing.watched == ("new:one",)
            if link != "stdio":
                assert toolbox.subscribed == {"new:one"}
                methods = [message.get("method") for message in toolbox.received]
                assert methods.count("resources/subscribe") == 2
                assert methods.count("resources/unsubscribe") == 1


async def test_reports_rejected_subscription_of_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Streamable("session", get="stream") as server:
        server.toolbox.unwatchable = {"no:one", "gone:one"}
        async with open_streams(ServerConfig(url=server.url()), "gone:one", "old:one") as upstream:
            await upstream.until(lambda: upstream.updated == ["old:one"])
            with pytest.raises(UpstreamResponseError, match="Nobody is told of no:one"):
                await with_timeout(upstream.hearing.watch("no:one"))
            assert upstream.hearing.watched == ("old:one",)

            async def override(request: Request, response: ResponseWriter) -> bool:
                return request.rpc == "resources/subscribe"

            server.override = override
            monkeypatch.setattr(hearing, "RESPONSE_TIMEOUT_SECONDS", 0.02)
            with pytest.raises(InterlockError, match="did not respond to resources/subscribe"):
                await with_timeout(upstream.hearing.watch("silent:one"))
            assert upstream.hearing.watched == ("old:one",)


# -- listening on the stateless wire


@pytest.mark.parametrize(
    ("capabilities", "requested"),
    [
        (ALL, ["toolsListChanged", "promptsListChanged", "resourcesListChanged"]),
        ({"tools": {}, "prompts": {"listChanged": True}}, ["promptsListChanged"]),
        ({"resources": {"listChanged": True}, "tools": None}, ["resourcesListChanged"]),
    ],
)
async def test_requests_announced_stateless_notifications(
    capabilities: Any, requested: list[str]
) -> None:
    async with stateless(**capabilities) as server:
        async with open_streams(ServerConfig(url=server.url())) as upstream:
            await with_timeout(upstream.hearing.wait_open())
            assert requested_notifications(server) == [dict.fromkeys(requested, True)]
            assert not get_requests(server)


def watched_uris(server: Streamable) -> list[list[str]]:
    """Return the URIs of each open subscription."""
    toolbox = server.toolbox
    return [toolbox.filters[id].get("resourceSubscriptions", []) for id in toolbox.listeners]


class ForgetfulServer(Streamable):
    """A stateless server that removes a listener when its connection ends."""

    def __init__(self) -> None:
        super().__init__("stateless")
        self.toolbox.capabilities = ALL

    def notify_waiters(self) -> None:
        for request in self.dropped:
            self.toolbox.listeners.pop(request.message.get("id"), None)
        super().notify_waiters()


@LOOPS
def test_subscribes_resources_stateless(loop: str) -> None:
    async def body() -> None:
        async with ForgetfulServer() as server:
            async with open_streams(ServerConfig(url=server.url())) as upstream:
                await with_timeout(upstream.hearing.wait_open())
                await with_timeout(upstream.hearing.watch("a:1"))
                # A new one takes the place of the old one; it brings the lists too.
                await server.until(lambda: watched_uris(server) == [["a:1"]])
                assert requested_notifications(server)[-1]["toolsListChanged"] is True
                await with_timeout(
                    asyncio.gather(*(upstream.hearing.watch(f"a:{n}") for n in (1, 2, 3)))
                )
                await server.until(lambda: watched_uris(server) == [["a:1", "a:2", "a:3"]])
                server.toolbox.update("a:2")
                await upstream.until(lambda: upstream.updated == ["a:2"])
                await with_timeout(upstream.hearing.unwatch("a:2"))
                await server.until(lambda: watched_uris(server) == [["a:1", "a:3"]])
                server.toolbox.update("a:2")
                server.toolbox.update("a:3")
                await upstream.until(lambda: upstream.updated == ["a:2", "a:3"])
                assert upstream.hearing.watched == ("a:1", "a:3")
                # All of it without a gap.
                assert not upstream.sleeps.taken
                assert not upstream.relisted

    run(body, loop=loop)


async def test_keeps_old_subscription_until_acknowledgement() -> None:
    async with ForgetfulServer() as server:
        async with open_streams(ServerConfig(url=server.url()), "a:1") as upstream:
            await with_timeout(upstream.hearing.wait_open())
            await upstream.until(lambda: upstream.updated == ["a:1"])
            slow: list[Callable[[], None]] = []

            async def override(request: Request, response: ResponseWriter) -> bool:
                if request.rpc != "subscriptions/listen":
                    return False
                slow.append(lambda: server.post(request, response))
                server.notify_waiters()
                return True

            server.override = override
            watch = asyncio.ensure_future(upstream.hearing.watch("a:2"))
            await server.until(lambda: slow)
            server.toolbox.update("a:1")
            await upstream.until(lambda: upstream.updated == ["a:1", "a:1"])
            assert watched_uris(server) == [["a:1"]]
            slow[0]()
            await with_timeout(watch)
            await server.until(lambda: watched_uris(server) == [["a:1", "a:2"]])


async def test_reports_rejected_stateless_subscription() -> None:
    async with ForgetfulServer() as server:
        server.toolbox.unwatchable = {"no:one", "gone:one"}
        async with open_streams(ServerConfig(url=server.url()), "gone:one", "old:one") as upstream:
            await upstream.until(lambda: upstream.updated)
            await with_timeout(upstream.hearing.wait_open())
            with pytest.raises(InterlockError, match="does not report changes of no:one"):
                await with_timeout(upstream.hearing.watch("no:one"))
            assert upstream.hearing.watched == ("old:one",)
            # What was there is still there.
            assert ["gone:one", "old:one"] in watched_uris(server)
            server.toolbox.update("old:one")
            await upstream.until(lambda: upstream.updated[-1] == "old:one")


async def test_times_out_without_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "ACKNOWLEDGE_TIMEOUT_SECONDS", 0.02)

    async with stateless() as server:
        open_ones: list[ResponseWriter] = []

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc != "subscriptions/listen":
                return False
            response.open()
            open_ones.append(response)
            return True

        server.override = override
        async with open_streams(ServerConfig(url=server.url())) as upstream:
            await with_timeout(upstream.hearing.wait_open())
            with pytest.raises(InterlockError, match="did not acknowledge"):
                await with_timeout(upstream.hearing.watch("a:1"))
            # It is heard all the same.
            open_ones[0].event(notification("notifications/tools/list_changed"))
            await upstream.until(lambda: upstream.changed)
            await server.until(lambda: len(server.dropped) == 1)


@LOOPS
@pytest.mark.parametrize("ending", ["result", "cancelled", "dropped"])
def test_renews_ended_subscription(ending: str, loop: str) -> None:
    async def body() -> None:
        async with ForgetfulServer() as server:
            async with open_streams(ServerConfig(url=server.url()), "a:1") as upstream:
                await upstream.until(lambda: upstream.updated == ["a:1"])
                upstream.sleeps.hold()
                ((id, send),) = server.toolbox.listeners.items()
                if ending == "result":
                    send(result(id, {"resultType": "complete"}))
                elif ending == "cancelled":
                    send(notification("notifications/cancelled", {"requestId": id}))
                else:
                    server.cut_connections()
                await upstream.until(lambda: upstream.sleeps.sleeping)
                server.toolbox.listeners.clear()
                assert upstream.sleeps.taken == [2.0]
                # Watching goes on while it is away, and brings it back.
                if ending == "cancelled":
                    await with_timeout(upstream.hearing.watch("a:2"))
                    assert upstream.relisted == 1
                upstream.sleeps.wake()
                await upstream.until(lambda: upstream.relisted == 1 and len(upstream.updated) == 2)
                await server.until(lambda: len(watched_uris(server)) == 1)
                assert watched_uris(server)[0] == list(upstream.hearing.watched)
                assert upstream.sleeps.taken == [2.0]

    run(body, loop=loop)


async def test_subscribes_only_for_resources_without_announced_changes() -> None:
    async with ForgetfulServer() as server:
        server.toolbox.capabilities = {"tools": {}}
        async with open_streams(ServerConfig(url=server.url())) as upstream:
            await with_timeout(upstream.hearing.wait_open())
            assert not requested_notifications(server)
            await with_timeout(upstream.hearing.watch("a:1"))
            assert requested_notifications(server) == [{"resourceSubscriptions": ["a:1"]}]
            server.toolbox.update("a:1")
            await upstream.until(lambda: upstream.updated == ["a:1"])
            await with_timeout(upstream.hearing.unwatch("a:1"))
            await server.until(lambda: not server.toolbox.listeners)
            await with_timeout(upstream.hearing.watch("a:2"))
            server.toolbox.update("a:2")
            await upstream.until(lambda: upstream.updated == ["a:1", "a:2"])
            assert not upstream.sleeps.taken


async def test_reports_unsupported_subscriptions_once() -> None:
    async with stateless() as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc == "subscriptions/listen":
                id = request.message["id"]
                error = {"code": -32601, "message": "Method not found"}
                response.json({"jsonrpc": "2.0", "id": id, "error": error}, "404 Not Found")
            return request.rpc == "subscriptions/listen"

        server.override = override
        async with open_streams(ServerConfig(url=server.url())) as upstream:
            await with_timeout(upstream.hearing.wait_open())
            with pytest.raises(UpstreamResponseError, match="Method not found"):
                await with_timeout(upstream.hearing.watch("a:1"))
            assert len(requested_notifications(server)) == 2
            assert not upstream.sleeps.taken


async def test_retries_busy_server_later() -> None:
    async with stateless() as server:
        full = 2

        async def override(request: Request, response: ResponseWriter) -> bool:
            nonlocal full
            if request.rpc != "subscriptions/listen" or not full:
                return False
            full -= 1
            error = {"code": -32603, "message": "Subscription limit reached"}
            response.json({"jsonrpc": "2.0", "id": request.message["id"], "error": error})
            return True

        server.override = override
        async with open_streams(ServerConfig(url=server.url())) as upstream:
            await with_timeout(upstream.hearing.wait_open())
            # The list that is known was read before anybody listened.
            await upstream.until(lambda: upstream.relisted == 1)
            assert upstream.sleeps.taken == [2.0, 4.0]


async def test_listens_to_process() -> None:
    async with open_streams(stdio_server("--announces")) as upstream:
        await with_timeout(upstream.hearing.wait_open())
        first = await with_timeout(upstream.peer.request("tools/call", {"name": "cancelled"}))
        assert b"[]" in bytes(first.result)
        await with_timeout(upstream.hearing.watch("a:1"))
        # The one before it was cancelled, since no stream is closed here.
        after = await with_timeout(upstream.peer.request("tools/call", {"name": "cancelled"}))
        assert b"[]" not in bytes(after.result)
        change = {"name": "change", "arguments": {"names": ["echo"]}}
        await with_timeout(upstream.peer.request("tools/call", change))
        await upstream.until(lambda: upstream.changed == ["tools"])


@pytest.mark.parametrize("generations", ["session", "stateless"])
async def test_ends_with_peer(generations: str) -> None:
    server = Streamable(generations, get="stream", announces=True)
    await server.start()
    async with open_streams(ServerConfig(url=server.url())) as upstream:
        await with_timeout(upstream.hearing.wait_open())
        upstream.peer.on_transport_lost("test")
        await with_timeout(upstream.task)
    await server.stop()
