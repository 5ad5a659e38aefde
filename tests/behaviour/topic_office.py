"""A node in a topic, as a real program, and the four who are there with it.

Participants are the `websockets` library and envelopes written by hand. The tool is a server that
writes a line into a file each time that it is called: the file says how often that was.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from joserfc.jwk import OKPKey

from tests.support.command_line import CommandLine
from tests.support.waiting import HANG_TIMEOUT
from tests.topics.peers import Envelope, WebSocketParticipant, join_topic
from tests.trust.approvals.gated import sign

LEDGER = Path(__file__).parent / "servers" / "ledger.py"
TOPIC = "ops"
NODE = "interlock"
NAMES = ("proposer", "human", "orchestrator", "worker")
CAPABILITIES = {
    "proposer": ["mcp/proposal:*"],
    "human": ["chat", "mcp/request:tools/list"],
    "orchestrator": ["mcp/request:*"],
    "worker": ["mcp/response:*"],
}
PRESS = {"name": "ledger.press", "arguments": {"button": "red"}}


def token(name: str) -> str:
    return f"token-of-{name}-" + "x" * 24


class Office:
    """A node with a topic, its ledger, and its clerk, whose key is an anchor."""

    def __init__(self, world: CommandLine, record: str = "off", pipe: Path | None = None) -> None:
        """`pipe`: what the tool does is over once somebody opens it."""
        self.world = world
        self.file = world.cwd / "ledger"
        self.key = OKPKey.generate_key("Ed25519")
        (world.cwd / "clerk.pem").write_bytes(self.key.as_pem(private=False))
        self._pipe = pipe
        self.configure(record)
        self.start()

    def configure(self, record: str) -> None:
        """Write the config; a running node takes it up."""
        seats = [
            {"callers": [name], "capabilities": CAPABILITIES[name], "profile": "response_only"}
            if name == "worker"
            else {"callers": [name], "capabilities": [*CAPABILITIES[name], "chat"]}
            for name in NAMES
        ]
        arguments = [str(item) for item in (LEDGER, self.file, self._pipe) if item is not None]
        self.world.config(
            {"ledger": {"command": sys.executable, "args": arguments}},
            tokens=[{"name": name, "token": f"${{env:T_{name}}}"} for name in NAMES],
            approvals={"anchors": [{"name": "clerk", "key": str(self.world.cwd / "clerk.pem")}]},
            topics={"rooms": {TOPIC: {"node": NODE, "participants": seats, "record": record}}},
        )

    def start(self) -> None:
        self.node = self.world.up(**{f"T_{name}": token(name) for name in NAMES})
        self.node.wait_for_line("upstream ledger: ready")
        self.base = self.node.url.rpartition("/")[0]

    def pressed(self) -> list[Any]:
        text = self.file.read_text() if self.file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def waiting(self) -> list[dict[str, Any]]:
        result = self.world.run("approvals", "--json")
        assert result.returncode == 0, result.stderr
        approvals: list[dict[str, Any]] = json.loads(result.stdout)["approvals"]
        return approvals

    def journal(self) -> list[dict[str, Any]]:
        """All that is written, once the node has stopped."""
        assert self.node.end() == 0
        result = self.world.run("journal", "tail", "-n", "1000", "--json")
        return [json.loads(line) for line in result.stdout.splitlines()]

    @asynccontextmanager
    async def everybody(self) -> AsyncIterator[dict[str, WebSocketParticipant]]:
        async with AsyncExitStack() as stack:
            url = f"ws{self.base.removeprefix('http')}/ws?topic={TOPIC}"
            peers = {
                name: await stack.enter_async_context(join_topic(url, token(name)))
                for name in NAMES
            }
            for name, peer in peers.items():
                await peer.until(
                    lambda one: one["payload"].get("participant", {}).get("id") == NAMES[-1]
                )
                assert peer.id == name
            yield peers

    def ask(self, path: str, body: Any = None, bearer: str = "") -> tuple[int, Any]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read()

    def proof(self, shown: dict[str, Any], key: Any = None, **changes: Any) -> str:
        now = int(time.time())
        claims = {
            "aud": shown["aud"],
            "jti": shown["id"],
            "args_sha256": shown["args_sha256"],
            "iat": now,
            "exp": now + 300,
            "decision": "approve",
            **changes,
        }
        return sign(key or self.key, claims)


def rpc(method: str, params: Any, id: int = 1) -> Envelope:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


async def receive_everywhere(
    peers: dict[str, WebSocketParticipant], wanted: Callable[[Envelope], bool]
) -> Envelope:
    """The message that is wanted: the same for everybody."""
    first, *others = [await peer.until(wanted) for peer in peers.values()]
    assert all(item == first for item in others)
    return first


async def propose_press(
    office: Office, peers: dict[str, WebSocketParticipant]
) -> tuple[str, dict[str, Any]]:
    """The proposer proposes to the node; its id, and what the inbox shows of it."""
    proposal = await peers["proposer"].say(
        "mcp/proposal:tools/call:ledger.press",
        {"method": "tools/call", "params": PRESS},
        to=[NODE],
    )
    word = await peers["proposer"].until(lambda one: one.get("correlation_id") == proposal)
    assert word["kind"] == "chat"
    [shown] = await asyncio.to_thread(office.waiting)
    assert shown["id"] in word["payload"]["text"]
    assert shown["proposal"] == {"topic": TOPIC, "id": proposal, "by": "proposer"}
    assert shown["caller"]["name"] == "proposer"
    assert office.pressed() == []
    return proposal, shown


async def receive_fulfilment(
    peers: dict[str, WebSocketParticipant], proposal: str
) -> tuple[Envelope, Envelope]:
    """The fulfilment and its response, as everybody sees them."""

    def request(one: Envelope) -> bool:
        return one["kind"].startswith("mcp/request:") and one.get("correlation_id") == proposal

    fulfilment = await receive_everywhere(peers, request)
    response = await receive_everywhere(
        peers, lambda one: one.get("correlation_id") == fulfilment["id"]
    )
    return fulfilment, response
