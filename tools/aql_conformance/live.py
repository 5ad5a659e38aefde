"""A live node and its clients: two modes of AQL, in both protocol generations, over HTTP.

Without a URL it starts a node with the demo upstream, on loopback and with its state in a temporary
folder. All functions block, with a timeout.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

Era = Literal["session", "stateless"]
Mode = Literal["crude", "single"]
VIEWS: Final[dict[Mode, str]] = {"crude": "aql", "single": "aql-single"}
WAYS: Final[tuple[tuple[Mode, Era], ...]] = (
    ("crude", "session"),
    ("single", "session"),
    ("crude", "stateless"),
    ("single", "stateless"),
)
PATIENCE_S: Final = 20.0
_SESSION: Final = "2025-11-25"
_STATELESS: Final = "2026-07-28"
_CLIENT: Final = {"name": "aql-conformance", "version": "1"}
_META: Final = "io.modelcontextprotocol/"
CONFIG: Final = """\
listen: 127.0.0.1:0
servers:
  demo:
    command: {python}
    args: [-m, interlock.demo]
    expose: prefixed
"""


class NoNode(Exception):
    """There is no node, or its responses are invalid. The message says why."""


@contextlib.contextmanager
def started_node(config: str = CONFIG) -> Iterator[str]:
    """Start a node for the duration of the block. Yield its address."""
    with tempfile.TemporaryDirectory(prefix="aql-conformance-") as folder:
        home = Path(folder)
        (home / "interlock.yaml").write_text(config.replace("{python}", sys.executable))
        environment = {
            **os.environ,
            "HOME": folder,
            **{f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("STATE", "CONFIG")},
        }
        with (home / "node.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "interlock", "up", "--config", "interlock.yaml"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        try:
            yield _address(process, home / "node.log")
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the address of the node, after its demo upstream is ready."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        if process.poll() is not None:
            raise NoNode(f"the node ended with {process.returncode}:\n{text[-1000:]}")
        if found := re.search(r"http://127\.0\.0\.1:\d+/mcp", text):
            url = found.group()
            with contextlib.suppress(NoNode, OSError):
                if any("time_now" in name for name in Client(url, None, "stateless").tools()):
                    return url
        time.sleep(0.02)
    raise NoNode(f"the node did not start:\n{log.read_text(errors='replace')[-1000:]}")


class Client:
    """A client of a node, in a mode of AQL (None: the plain view) and in a protocol generation."""

    def __init__(self, url: str, mode: Mode | None, era: Era, token: str = "") -> None:
        self.mode = mode
        self.era = era
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._path = parts.path + (f"?view={VIEWS[mode]}" if mode is not None else "")
        self._token = token
        self._ids = itertools.count(1)
        self._session = ""
        self._endpoints: dict[str, str] = {}
        if era == "session":
            self._initialize()

    @property
    def way(self) -> str:
        return f"{self.mode}, {self.era}"

    # -- AQL

    def learn(self, operations: list[dict[str, Any]]) -> None:
        """Store the endpoints of the operations that the node listed."""
        self._endpoints = {one["name"]: f"mcp_aql_{one['endpoint']}" for one in operations}

    def ask(self, operation: str, params: dict[str, Any] | None = None, **more: Any) -> Any:
        """Call an operation and return the envelope of its response."""
        arguments: dict[str, Any] = {"operation": operation, **more}
        if params is not None:
            arguments["params"] = params
        return self.call(self.endpoint(operation), arguments)

    def endpoint(self, operation: str) -> str:
        if self.mode == "single":
            return "mcp_aql"
        return self._endpoints.get(operation, "mcp_aql_read")

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Call a tool and return the envelope in its result."""
        result = self.request("tools/call", {"name": tool, "arguments": arguments}, name=tool)
        try:
            return json.loads(result["content"][0]["text"])
        except (KeyError, IndexError, TypeError, ValueError):
            raise NoNode(f"the result of {tool} is not an envelope: {result}") from None

    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.request("tools/list", {})["tools"]]

    # -- MCP

    def request(self, method: str, params: dict[str, Any], name: str = "") -> Any:
        headers: dict[str, str] = {}
        if self.era == "stateless":
            headers = {"MCP-Protocol-Version": _STATELESS, "Mcp-Method": method}
            if name:
                headers["Mcp-Name"] = name
            known = {
                f"{_META}protocolVersion": _STATELESS,
                f"{_META}clientInfo": _CLIENT,
                f"{_META}clientCapabilities": {},
            }
            params = {**params, "_meta": known}
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        answer = self._post(body, headers)
        if "result" not in answer:
            raise NoNode(f"the response to {method} {name} is {answer.get('error')}")
        return answer["result"]

    def _initialize(self) -> None:
        params = {"protocolVersion": _SESSION, "capabilities": {}, "clientInfo": _CLIENT}
        self.request("initialize", params)
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})

    def _post(self, body: dict[str, Any], headers: dict[str, str]) -> Any:
        sent = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **headers,
        }
        if self._session:
            sent |= {"Mcp-Session-Id": self._session, "MCP-Protocol-Version": _SESSION}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPConnection(*self._address, timeout=PATIENCE_S)
        try:
            connection.request("POST", self._path, json.dumps(body), sent)
            answer = connection.getresponse()
            raw = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise NoNode(f"the node cannot be reached: {error}") from error
        finally:
            connection.close()
        self._session = answer.getheader("Mcp-Session-Id") or self._session
        if answer.status == 202:
            return {}
        if answer.status not in (200, 400, 404):
            raise NoNode(f"HTTP {answer.status}: {raw[:300]!r}")
        if (answer.getheader("Content-Type") or "").startswith("text/event-stream"):
            return _last_event(raw)
        try:
            return json.loads(raw)
        except ValueError:
            raise NoNode(f"not JSON: {raw[:300]!r}") from None


def _last_event(raw: bytes) -> Any:
    """Return the response in a stream, which may have notifications before it."""
    for line in reversed(raw.decode().splitlines()):
        if line.startswith("data: ") and line != "data: ":
            message = json.loads(line.removeprefix("data: "))
            if "result" in message or "error" in message:
                return message
    raise NoNode(f"a stream without a response: {raw[:300]!r}")
