"""A chain of nodes on one clock: real pipelines, peers and conversations, with links in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from msgspec import Raw

from interlock.core.call import Call, Caller, Client, ClientSession, Credentials, Outcome
from interlock.core.catalog.catalog import Catalog
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.authentication import Authenticator
from interlock.core.pipeline.breaker import Breakers
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.ports import ResponseHandler, Upstream
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.server_info import Introduction, ServerInfo
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.pending_request import PendingRequest
from interlock.core.upstreams.transports.transport import (
    EarlyReceiver,
    SingleChannel,
    TransportReceiver,
    TransportRequest,
)
from interlock.errors import InterlockError
from interlock.protocol import mcpax as ax
from interlock.protocol.mcp import LATEST_SESSION, LATEST_STATELESS, Era
from interlock.tree.parent_conversation import AxConversation
from interlock.tree.route_check import RouteCheck
from interlock.trust.authorization import Authorizer
from interlock.trust.budgets import Budgets
from tests.support.calls import SESSION, STATELESS
from tests.support.clock import ManualClock
from tests.support.offerings import offer
from tests.support.pipeline import MemoryJournal

OWN_INFO = b'{"name":"interlock","version":"1"}'
Body = Callable[..., None]
UUID = "7d1f0f0e-0000-4000-8000-000000000001"


class MemoryTransport(SingleChannel):
    """A transport in memory. `down` and `up` are the messages of both directions."""

    receiver: TransportReceiver

    def __init__(self, clock: ManualClock, transit: float) -> None:
        self.receiver = EarlyReceiver()
        self.far: Callable[[bytes], None] = lambda _: None
        self.clock = clock
        self.transit = transit
        self.down: list[dict[str, Any]] = []
        self.up: list[bytes] = []

    def _later(self, what: Callable[[], None]) -> None:
        if self.transit:
            self.clock.call_later(self.transit, what)
        else:
            what()

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.post(payload, headers)

    def send_long_lived(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.post(payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        self.down.append(json.loads(payload))
        self._later(lambda: self.far(payload))

    def respond(self, payload: bytes) -> None:
        """Deliver a message from the other side."""
        self.up.append(payload)
        self._later(lambda: self.receiver.deliver(payload, None))

    async def post_and_wait(self, payload: bytes) -> None:
        self.post(payload, b"")

    def remove_request(self, request: TransportRequest) -> None:
        """Ignore the request: its response is dropped later."""

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class ChainUpstream:
    """An upstream behind a transport in memory, as the pipeline uses it."""

    timeout: float | None = None
    capabilities: Mapping[str, Any] = {}

    def __init__(self, key: str, peer: UpstreamClient) -> None:
        self.key = key
        self.peer = peer

    def start(self, call: Call, back: ResponseHandler) -> PendingRequest:
        return self.peer.start(call, back)

    def set_log_level(self, level: str, session: ClientSession | None) -> None: ...

    def session_key(self, call: Call) -> object | None:
        return None

    async def subscribe(self, uri: str, call: Call | None) -> None: ...

    async def unsubscribe(self, uri: str, call: Call | None) -> None: ...

    async def wait_until_ready(self, seconds: float) -> bool:
        return True


class ChainNode:
    """A node with one upstream, registered by the segment `below`."""

    def __init__(
        self,
        clock: ManualClock,
        segment: str,
        below: str,
        tools: list[bytes],
        *,
        leaf: bool,
        root: bool,
        era: Era,
        transit: float,
    ) -> None:
        self.clock = clock
        self.segment = segment
        self.catalog = Catalog(server_info=OWN_INFO)
        role: Any = "leaf" if leaf else "aggregator"
        self.catalog.publish(
            offer(below, tools, registered=role, root=segment or None if root else None)
        )
        self.wire = MemoryTransport(clock, transit)
        self.peer = UpstreamClient(below, self.wire, OWN_INFO)
        self.peer.speaks_ax = True
        self.peer.segment = below
        self.peer.set_revision(era, LATEST_STATELESS if era is Era.STATELESS else LATEST_SESSION)
        self.below = ChainUpstream(below, self.peer)
        upstreams: dict[str, Upstream] = {below: self.below}
        self.journal = MemoryJournal()
        self.breakers = Breakers(clock, failures=3, cooldown=10.0)
        self.authorizer = Authorizer(self.catalog, Budgets(clock))
        self.pipeline = Pipeline(
            catalog=self.catalog,
            authenticate=Authenticator({}),
            authorizer=self.authorizer,
            breakers=self.breakers,
            upstreams=upstreams,
            audit=Audit(self.journal, durable=False),
            clock=clock,
            call_later=clock.call_later,
            names="dotted",
            timeout=60.0,
            concurrent_calls=10_000,
            route_check=RouteCheck(lambda: self.segment),
        )
        self.notifications: list[tuple[str, dict[str, Any]]] = []
        self.peer.on_notification = lambda method, params: self.notifications.append(
            (method, json.loads(params))
        )
        self.listeners = ChangeListeners(self.pipeline.subscriptions)
        hello = ServerInfo(
            lambda: Introduction({"name": "interlock", "version": "1"}, {"tools": {}})
        )
        self.to_parent: Callable[[bytes], None] = lambda _: None
        self.face = AxConversation(
            pipeline=self.pipeline,
            server_info=hello,
            listeners=self.listeners,
            send=lambda payload: self.to_parent(payload),
            peer="local",
            identify=lambda: ax.SubserverIdentity(UUID),
        )

    @property
    def sent(self) -> list[dict[str, Any]]:
        """Return the calls that were sent to the child."""
        return [message for message in self.wire.down if message["method"] == "tools/call"]

    @property
    def cancelled(self) -> list[Any]:
        return [
            message["params"]["requestId"]
            for message in self.wire.down
            if message["method"] == "notifications/cancelled"
        ]


class NodeChain:
    """A root, aggregators, and a leaf that the test controls."""

    def __init__(
        self,
        segments: list[str],
        tools: list[dict[str, Any]],
        *,
        root_segment: str = "",
        era: Era = Era.STATELESS,
        leaf_era: Era = Era.SESSION,
        transit: float = 0.0,
    ) -> None:
        """Build the chain. `segments`: of all nodes below the root, the leaf is the last."""
        self.clock = ManualClock()
        self.nodes: list[ChainNode] = []
        names = [root_segment, *segments]
        for depth in range(len(segments)):
            leaf = depth == len(segments) - 1
            listed = [
                {**tool, "name": ".".join([*segments[depth + 1 :], tool["name"]])} for tool in tools
            ]
            for tool in listed:
                # What each node below has added by then.
                tool["_meta"] = {**tool.get("_meta", {}), "x-mcpax-hops": len(segments) - depth - 1}
            self.nodes.append(
                ChainNode(
                    self.clock,
                    names[depth],
                    segments[depth],
                    [json.dumps(tool).encode() for tool in listed],
                    leaf=leaf,
                    root=depth == 0,
                    era=leaf_era if leaf else era,
                    transit=transit,
                )
            )
        for above, below in zip(self.nodes, self.nodes[1:], strict=False):
            above.wire.far = below.face.process_message
            below.to_parent = above.wire.respond
            if era is Era.SESSION:
                about = {"protocolVersion": LATEST_SESSION, "capabilities": {}}
                above.peer.request("initialize", about)
                above.peer.notify("notifications/initialized")
                self.clock.advance(2 * transit)
                assert not above.peer.pending
        self.leaf_messages: list[dict[str, Any]] = []
        """What came to the leaf."""
        self.nodes[-1].wire.far = lambda payload: self.leaf_messages.append(json.loads(payload))
        self.outcomes: list[Outcome] = []
        self.errors: list[InterlockError] = []
        self.caller_notifications: list[tuple[str, dict[str, Any]]] = []
        """What the caller at the root was told on the way."""

    @property
    def root(self) -> ChainNode:
        return self.nodes[0]

    def call(self, name: str, client: Client = SESSION, caller: str = "", **fields: Any) -> Call:
        meta = fields.pop("meta", None)
        if meta is not None:
            fields["meta"] = {key: Raw(json.dumps(value).encode()) for key, value in meta.items()}

        def hear(call: Call, method: str, params: bytes | Raw) -> None:
            self.caller_notifications.append((method, json.loads(bytes(params))))

        def done(call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
            if outcome is not None:
                self.outcomes.append(outcome)
            if error is not None:
                self.errors.append(error)

        call = Call(
            "tools/call",
            "test",
            Credentials("local", assigned_name=""),
            client,
            name=name,
            on_notification=hear,
            on_done=done,
            **fields,
        )
        self.root.pipeline.begin(call)
        if caller:
            call.caller = Caller(caller)
        return call

    def respond(self, result: bytes = b'{"content":[]}', number: int = -1) -> None:
        """Answer a call as the leaf."""
        id = self.nodes[-1].sent[number]["id"]
        self.nodes[-1].wire.respond(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (id, result))

    def respond_error(self, error: dict[str, Any]) -> None:
        id = self.nodes[-1].sent[-1]["id"]
        self.nodes[-1].wire.respond(
            json.dumps({"jsonrpc": "2.0", "id": id, "error": error}).encode()
        )

    def send_notification(self, method: str, **params: Any) -> None:
        """Send a notification as the leaf."""
        self.nodes[-1].wire.respond(
            json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
        )


def run_on_loop(body: Body) -> Body:
    """Run a test on an event loop, with a manual clock."""

    @wraps(body)
    def test(*given: Any, **named: Any) -> None:
        async def main() -> None:
            body(*given, **named)

        asyncio.run(main())

    return test


def tool(name: str = "dma2d_status", **capability: Any) -> dict[str, Any]:
    definition: dict[str, Any] = {"name": name, "inputSchema": {"type": "object"}}
    if capability:
        definition["_meta"] = {"x-mcpax-capability": capability}
    return definition


__all__ = [
    "SESSION",
    "STATELESS",
    "ChainNode",
    "MemoryTransport",
    "NodeChain",
    "run_on_loop",
    "tool",
]
