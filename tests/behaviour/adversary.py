"""A node before a vault, and everything that a model's client can say to it, by every door.

The vault's file has a line for each time that it was opened. `Fortress.allowed` has what the one
human let through. The two are the same at the end of every test, or somebody got through.
"""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from joserfc.jwk import ECKey, OKPKey
from msgspec.structs import replace

from interlock.core.config import Config, ServerConfig
from interlock.core.config.trust import AnchorConfig, ApprovalsConfig
from interlock.protocol import mcp
from interlock.protocol.headers import encode_header_value
from tests.support.command_line import INTERLOCK
from tests.support.http_client import (
    META,
    STATELESS,
    HttpConnection,
    HttpResponse,
    event_fields,
    initialize,
    message,
    meta,
    stateless_headers,
)
from tests.support.node import NodeThread
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import sign

VAULT: Final = Path(__file__).parent / "servers" / "vault.py"
TOOL: Final = "vault.open"
MODEL, CLERK, CHILD = "m" * 32, "c" * 32, "k" * 32
"""The tokens of the model, of somebody who may see approvals, and of a subserver. None is a key."""
MAY: Final = {"model": ["call"], "clerk": ["call", "approve"], "child": ["register"]}
TOKENS: Final = {"model": MODEL, "clerk": CLERK, "child": CHILD}
URL_CAPABLE: dict[str, Any] = {"elicitation": {"url": {}, "form": {}}, "sampling": {}, "roots": {}}
REQUIRED: Final = "confirmation_required"

_numbers = itertools.count(1)


def fresh(**more: Any) -> dict[str, Any]:
    """Arguments that nobody has used before."""
    return {"door": next(_numbers), **more}


class _Faults(logging.Handler):
    """Hears of everything that went wrong inside the node."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None:
            self.heard.append(self.format(record))


class Fortress(NodeThread):
    """The node, its vault, and its one human: the keeper, who has a key."""

    def __init__(self, folder: Path, *, servers: dict[str, Any] | None = None, **more: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "opened"
        self.definitions = folder / "definitions.json"
        self.keeper = OKPKey.generate_key("Ed25519")
        self.engine = ECKey.generate_key("P-256")
        self.own = OKPKey.generate_key("Ed25519")
        """The model's own key. It is an anchor, too: as the model."""
        self.allowed: list[Any] = []
        """With what the keeper let the vault be opened."""
        self.faults = _Faults()
        logging.getLogger("interlock").addHandler(self.faults)
        anchors = [
            AnchorConfig("keeper", key=self._public(folder, "keeper", self.keeper)),
            AnchorConfig("mod", key=self._public(folder, "mod", self.own), caller="model"),
            AnchorConfig(
                "engine",
                kind="policy_engine",
                key=self._public(folder, "engine", self.engine),
                tools=["elsewhere.*"],
            ),
        ]
        settings: dict[str, Any] = {
            "expiry": 300.0,
            "max_pending": 100_000,
            "max_pending_per_caller": 100_000,
        }
        settings |= more.pop("approvals", {})
        super().__init__(
            folder,
            workshops={},
            servers=servers or {"vault": self.vault(folder)},
            approvals=ApprovalsConfig(anchors=anchors, **settings),
            **more,
        )

    @staticmethod
    def vault(
        folder: Path, *, told: bool = False, any_case: bool = False, **settings: Any
    ) -> ServerConfig:
        """The server. `told`: what it lists is in a file. `any_case`: it reads as Go does."""
        args = [str(VAULT), str(folder / "opened")]
        if told:
            args.append(str(folder / "definitions.json"))
        if any_case:
            args.append("--any-case")
        return ServerConfig(command=sys.executable, args=args, **settings)

    @staticmethod
    def _public(folder: Path, name: str, key: Any) -> str:
        path = folder / f"{name}.pem"
        path.write_bytes(key.as_pem(private=False))
        return str(path)

    def config(self, **changes: Any) -> Config:
        whole = super().config(**changes)
        return replace(
            whole, tokens=[replace(token, may=MAY[token.name]) for token in whole.tokens]
        )

    def stop(self) -> None:
        logging.getLogger("interlock").removeHandler(self.faults)
        super().stop()
        assert self.faults.heard == []

    # -- what happened

    def opened(self) -> list[dict[str, Any]]:
        """With what the vault was opened, each time, so far."""
        text = self.file.read_text() if self.file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def settle(self) -> None:
        """Wait until everything that was said has come to its end, also in the vault."""
        self.until(lambda: not list(self.node.pipeline.running_calls()), "calls are under way")
        with Lines(self) as client:
            tools = self.node.catalog.current.tools
            name = next(tool.canonical for tool in tools if tool.upstream_name == "look")
            assert client.result("tools/call", {"name": name})["isError"] is False

    def must_be_intact(self) -> None:
        """The vault was opened with what the keeper let through, once each, and nothing else."""
        self.settle()
        opened, allowed = in_order(self.opened()), in_order(self.allowed)
        assert opened == allowed, f"opened with {opened}, allowed was {allowed}"
        assert self.faults.heard == []

    # -- the keeper

    def approve(self, client: AdversaryClient, told: dict[str, Any], arguments: Any) -> Any:
        """Let a call through. What the one who brings the proof is told."""
        self.allowed.append(arguments)
        return client.confirm(told["confirmation_id"], self.proof(told))

    def proof(self, told: dict[str, Any], key: Any = None, **changes: Any) -> str:
        """What the keeper, or somebody else, signs about a held call."""
        now = int(time.time())
        claims = {
            "aud": told["aud"],
            "jti": told["confirmation_id"],
            "args_sha256": told["args_sha256"],
            "iat": now,
            "exp": now + 300,
            "decision": "approve",
            **changes,
        }
        algorithm = "ES256" if isinstance(key, ECKey) else "EdDSA"
        return sign(key or self.keeper, claims, algorithm)


class AdversaryClient(ABC):
    """A door, and the model's client before it."""

    def __init__(self, node: Fortress) -> None:
        self.node = node
        self._ids = itertools.count(1)

    def __enter__(self) -> AdversaryClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        return

    @abstractmethod
    def say(self, body: bytes, id: Any = None) -> list[Any]:
        """Send a body as it is; every message that comes back until `id` is answered. None: nothing
        has to be answered."""

    def fit(self, params: dict[str, Any]) -> dict[str, Any]:
        """Params with what every request must carry here."""
        return params

    def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """The answer to a request in order."""
        id = f"r{next(self._ids)}"
        for item in self.say(message(method, self.fit(params or {}), id), id):
            if isinstance(item, dict) and item.get("id") == id and "method" not in item:
                return item
        raise AssertionError(f"{method} was not answered")

    def result(self, method: str, params: dict[str, Any] | None = None) -> Any:
        answer = self.ask(method, params)
        assert "result" in answer, answer
        return answer["result"]

    def call(self, arguments: Any, name: str = TOOL, **more: Any) -> Any:
        """Try to open the vault."""
        return self.ask("tools/call", {"name": name, "arguments": arguments, **more})

    def hold(self, arguments: Any) -> dict[str, Any]:
        """What a model is told whose call waits."""
        content: dict[str, Any] = self.call(arguments)["result"]["structuredContent"]
        assert content["status"] == REQUIRED
        return content

    def confirm(self, id: str, proof: Any) -> Any:
        return self.ask("mcpax/confirm", {"confirmation_id": id, "proof": proof})


class _Http(AdversaryClient):
    token = MODEL

    @property
    def bearer(self) -> tuple[tuple[str, str], ...]:
        return (("Authorization", f"Bearer {self.token}"),) if self.node.tokens else ()

    def post(self, body: bytes, *headers: tuple[str, str], **more: Any) -> HttpResponse:
        return self.node.once(self.node.http(body, *self.bearer, *headers, **more))


class HttpSession(_Http):
    """The session wire over HTTP."""

    def __init__(self, node: Fortress, revision: str, capabilities: Any = None) -> None:
        super().__init__(node)
        self.revision = revision
        hello = {**initialize(revision), "capabilities": capabilities or {}}
        answer = self.post(message("initialize", hello, 0))
        self.headers = (
            ("Mcp-Session-Id", answer.headers["mcp-session-id"]),
            ("MCP-Protocol-Version", revision),
        )
        self.post(message("notifications/initialized", None, None), *self.headers)

    def say(self, body: bytes, id: Any = None) -> list[Any]:
        return messages_in(self.post(body, *self.headers))


class Stateless(_Http):
    """The stateless wire over HTTP."""

    def __init__(self, node: Fortress, capabilities: Any = None) -> None:
        super().__init__(node)
        self.capabilities = capabilities or {}

    def fit(self, params: dict[str, Any]) -> dict[str, Any]:
        needed = {**meta(), META + "clientCapabilities": self.capabilities}
        return {**params, "_meta": {**needed, **params.get("_meta", {})}}

    def say(self, body: bytes, id: Any = None) -> list[Any]:
        return messages_in(self.post(body, *self.headers_of(body)))

    def call_and_leave(self, arguments: Any, **more: Any) -> None:
        """Try to open the vault, and close the connection without reading the response."""
        params = self.fit({"name": TOOL, "arguments": arguments, **more})
        body = message("tools/call", params, f"r{next(self._ids)}")
        with self.node.connect() as wire:
            wire.send(self.node.http(body, *self.bearer, *self.headers_of(body)))

    def headers_of(self, body: bytes) -> list[tuple[str, str]]:
        """Headers that fit the body as far as it can be read."""
        try:
            data = json.loads(body)
            method, params = data["method"], data.get("params") or {}
            named = mcp_name(method, params)
            lines = stateless_headers(method, named)
            return [(key, encode_header_value(value)) for key, value in lines]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return [("MCP-Protocol-Version", STATELESS)]


class Channel(AdversaryClient):
    """A door by which messages come back in their own time."""

    def say(self, body: bytes, id: Any = None) -> list[Any]:
        messages: list[Any] = []
        end = f"end {next(_numbers)}"
        wanted = {end, id} if self.send(body) and id is not None else {end}
        self.send(message("ping", {}, end))
        while wanted:
            one = self.heard()
            messages.append(one)
            for part in one if isinstance(one, list) else [one]:
                if "method" not in part:
                    # What cannot be read is answered too, but to nobody.
                    wanted.discard(id if part.get("id") is None else part["id"])
        return messages

    @abstractmethod
    def send(self, body: bytes) -> bool:
        """False: it was turned away at once."""

    @abstractmethod
    def heard(self) -> Any: ...

    def open_session(self, revision: str, capabilities: Any = None) -> None:
        hello = {**initialize(revision), "capabilities": capabilities or {}}
        self.send(message("initialize", hello, "hello"))
        assert self.heard()["id"] == "hello"
        self.send(message("notifications/initialized", None, None))


class Lines(Channel):
    """The Unix socket, as the node's own user."""

    def __init__(self, node: Fortress, revision: str = "2025-11-25", capabilities: Any = None):
        super().__init__(node)
        self.wire = node.local()
        self.open_session(revision, capabilities)

    def close(self) -> None:
        self.wire.close()

    def send(self, body: bytes) -> bool:
        self.wire.send(body.replace(b"\n", b" ") + b"\n")
        return True

    def heard(self) -> Any:
        return self.wire.line()


class StatelessLines(Lines):
    """The same in the words of the stateless era."""

    def fit(self, params: dict[str, Any]) -> dict[str, Any]:
        return {**params, "_meta": {**meta(), **params.get("_meta", {})}}


class Pipe(Channel):
    """`interlock stdio`, started as a client starts it."""

    def __init__(self, node: Fortress, environ: dict[str, str], config: Path) -> None:
        super().__init__(node)
        node.local().close()
        self.process = subprocess.Popen(
            [*INTERLOCK, "stdio", "--config", str(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            cwd=config.parent,
        )
        self.open_session("2025-06-18")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.wait(HANG_TIMEOUT) == 0
        self.process.stdout.close()

    def send(self, body: bytes) -> bool:
        assert self.process.stdin is not None
        self.process.stdin.write(body.replace(b"\n", b" ") + b"\n")
        self.process.stdin.flush()
        return True

    def heard(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the pipe has ended"
        return json.loads(line)


class OldSse(_Http, Channel):
    """The old pair of an event stream and posted messages."""

    def __init__(self, node: Fortress) -> None:
        super().__init__(node)
        self.wire = HttpConnection(("127.0.0.1", node.port))
        self.wire.send(node.http(b"", *self.bearer, method="GET", path="/sse"))
        assert self.wire.head()[0] == 200
        self.endpoint = event_fields(self.wire.chunk())["data"]
        self.open_session("2024-11-05")

    def close(self) -> None:
        self.wire.close()

    def send(self, body: bytes) -> bool:
        answer = self.post(body, path=self.endpoint)
        assert answer.status in (202, 400), answer
        return answer.status == 202

    def heard(self) -> Any:
        while (one := self.wire.event()) is None:
            continue
        return one


CLIENTS: Final = (
    *(f"http {revision}" for revision in mcp.REVISIONS),
    "sse",
    "lines",
    "stateless lines",
)
"""Every door but `interlock stdio`, which is a program of its own."""


@contextmanager
def open_client(node: Fortress, which: str, **more: Any) -> Iterator[AdversaryClient]:
    """The client before one of FACES."""
    client: AdversaryClient
    if which == f"http {STATELESS}":
        client = Stateless(node, **more)
    elif which.startswith("http "):
        client = HttpSession(node, which.removeprefix("http "), **more)
    elif which == "sse":
        client = OldSse(node)
    else:
        client = (Lines if which == "lines" else StatelessLines)(node, **more)
    with client:
        yield client


def in_order(many: list[Any]) -> list[str]:
    return sorted(json.dumps(item, sort_keys=True) for item in many)


def running_fortress(folder: Path, **more: Any) -> Iterator[Fortress]:
    """For a fixture: a node with a token for the model."""
    node = Fortress(folder, tokens=TOKENS, **more)
    try:
        yield node
        node.must_be_intact()
    finally:
        node.stop()


def mcp_name(method: str, params: dict[str, Any]) -> str | None:
    """What the header Mcp-Name has to say."""
    key = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}.get(method)
    if key is None and method.startswith("tasks/"):
        key = "taskId"
    name = params.get(key) if key is not None else None
    return name if isinstance(name, str) else None


def messages_in(answer: HttpResponse) -> list[Any]:
    """Everything that one HTTP response says."""
    assert answer.status < 500 or answer.status == 503, answer
    if not answer.body:
        return []
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        lines = answer.body.decode().split("\r\n")
        texts = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(text) for text in texts if text]
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return []
    data = json.loads(answer.body)
    return data if isinstance(data, list) else [data]
