"""Topics behind a real HTTP server, with a visible pipeline and journal."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvloop

from interlock.core.call import Caller
from interlock.core.config import Limits
from interlock.core.pipeline.authentication import Authenticator, BearerSource
from interlock.core.server.http.exchange import HttpExchange
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.protocol import HttpProtocol
from interlock.core.server.http.resource_metadata import Challenges
from interlock.core.server.http.router import DirectRoute, Router, RouteTable, WebSocketRoute
from interlock.core.server.http.server import HttpServer
from interlock.topics.admin_api import AdminApp
from interlock.topics.config import ParticipantConfig, TopicConfig, TopicsConfig
from interlock.topics.endpoint import TopicsEndpoint
from interlock.topics.gateway import Gateway
from interlock.topics.socket import format_now
from tests.support.clock import run_ready_tasks
from tests.support.pipeline import PipelineHarness
from tests.topics.peers import HANG_TIMEOUT, WebSocketParticipant, join_topic

NAMES = ("agent", "human", "worker", "boss")


PUBLIC = {"room": TopicConfig(access="public")}
RESTRICTED = {
    "room": TopicConfig(
        participants=[
            ParticipantConfig(callers=["agent"], id="robot-alpha", profile="proposal_only"),
            ParticipantConfig(callers=["hum*"], profile="full_access"),
            ParticipantConfig(roles=["ops"], capabilities=["x/*"]),
        ]
    ),
    "other": TopicConfig(participants=[ParticipantConfig(callers=["boss"])]),
}


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition of this loop is true."""
    while not condition():
        await run_ready_tasks(1)


def _serve(exchange: HttpExchange) -> None:
    exchange.respond(200, b"{}")


class TopicServer:
    """A gateway with its endpoint. The token of NAME is `t-NAME`."""

    def __init__(
        self,
        *,
        rooms: dict[str, TopicConfig] | None = None,
        admins: Sequence[str] = (),
        callers: Sequence[Caller] = (),
        sources: Sequence[BearerSource] = (),
        tls: ssl.SSLContext | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        rooms = {"room": TopicConfig(access="private")} if rooms is None else rooms
        self.config = TopicsConfig(rooms=rooms, admins=list(admins))
        self.rig = PipelineHarness()
        known = {f"t-{name}": Caller(name, kind="token") for name in NAMES}
        known |= {f"t-{caller.name}": caller for caller in callers}
        self.rig.pipeline.admission.authenticate = Authenticator(known, sources=sources)
        ids = itertools.count(1)
        loop = asyncio.get_running_loop()
        self.gateway = Gateway(
            self.config,
            call_soon=loop.call_soon,
            new_id=lambda: f"gateway-{next(ids)}",
            now=format_now,
            audit=self.rig.audit,
        )
        self.guard, self.challenges = Guard(), Challenges()
        self.door = TopicsEndpoint(
            self.gateway,
            self.rig.pipeline,
            guard=self.guard,
            challenges=self.challenges,
            audit=self.rig.audit,
            wall_clock=wall_clock,
        )
        self.http = HttpServer("127.0.0.1", 0, tls)
        self.secure = tls is not None

    async def start(self) -> None:
        pipeline = self.rig.pipeline
        admin = AdminApp(
            self.gateway,
            guard=self.guard,
            challenges=self.challenges,
            authenticate=lambda credentials: pipeline.admission.authenticate(credentials),
            on_rejected=pipeline.record_rejection,
            audit=self.rig.audit,
        )
        table = RouteTable(
            [
                DirectRoute("/mcp", _serve),
                WebSocketRoute("/ws", self.door.handle_upgrade),
                *admin.routes(),
            ]
        )
        router = Router(table, pipeline=pipeline, guard=self.guard, challenges=self.challenges)
        self.guard.listen_at("127.0.0.1", self.http.port)
        await self.http.start(HttpProtocol.bound(table, Limits()), router)
        self.gateway.start()

    async def stop(self) -> None:
        self.gateway.close()
        await self.door.close()
        await self.http.stop()

    # -- what a test asks

    def url(self, topic: str = "room", more: str = "") -> str:
        scheme = "wss" if self.secure else "ws"
        return f"{scheme}://127.0.0.1:{self.http.port}/ws?topic={topic}{more}"

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.http.port}{path}"

    @asynccontextmanager
    async def join(
        self, *names: str, topic: str = "room", more: str = "", **options: Any
    ) -> AsyncIterator[tuple[WebSocketParticipant, ...]]:
        """These come in, one after the other."""
        async with AsyncExitStack() as stack:
            url = self.url(topic, more)
            yield tuple(
                [
                    await stack.enter_async_context(join_topic(url, f"t-{name}", **options))
                    for name in names
                ]
            )

    @property
    def present(self) -> list[str]:
        """Who is there, as the gateway says."""
        return sorted(one.participant_id for one in self.gateway.list_connections())

    @property
    def journal(self) -> list[dict[str, Any]]:
        return self.rig.journal.entries


def run(test: Callable[[TopicServer], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run the test on both kinds of loop. No loop may report an error."""
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        rooms = TopicServer(**settings)
        await rooms.start()
        try:
            async with asyncio.timeout(HANG_TIMEOUT):
                await test(rooms)
        finally:
            await rooms.stop()
        assert rooms.door.connections == 0

    for factory in (uvloop.new_event_loop, asyncio.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
    assert not complaints, complaints
