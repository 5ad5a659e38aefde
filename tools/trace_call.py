"""Trace the path of a call through the package on a live node.

    python -m tools.trace_call [plain|held|approval|approval-http ...] [--functions]

A node with the demo server (stdio) runs in this process and gets requests over HTTP, on an open
connection. The functions on the path, their files, and the jumps between files are printed.

Counted are the Python functions of the package `interlock` that are entered on the thread of the
event loop, from the bytes of the request to the bytes of the response. Lambdas and nested functions
count. Not counted are other packages, comprehensions, resumed coroutines, and the threads that
write to the disk. A jump is an entry in another file than the previous entry. The shortest of
several traces counts, because timers of the node are not part of the path.

- `plain`: a call of a read-only tool.
- `held`: a call of a destructive tool, until the response says that an operator must approve it.
- `approval`: a signed proof, from the call of `Approvals.confirm` to its result.
- `approval-http`: the same, from the bytes of the operator's request to those of the response.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from joserfc import jws
from joserfc.jwk import OKPKey

import interlock
from interlock.app.node import Node
from interlock.core.config import Config, ServerConfig
from interlock.core.config.trust import AnchorConfig, ApprovalsConfig

PACKAGE = str(Path(interlock.__file__).parent) + "/"
PATHS = ("plain", "held", "approval", "approval-http")
TRACES = 20
"""The number of traces. The first ones warm up."""
_INLINE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

Entry = tuple[str, str]
"""A file and a function of that file."""


async def trace(path: Awaitable[Any]) -> tuple[list[Entry], Any]:
    """Return the entries on a path, and its result."""
    entries: list[Entry] = []
    begun: set[FrameType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name in _INLINE or frame in begun:
            return
        begun.add(frame)
        entries.append((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    sys.setprofile(profile)
    try:
        result = await path
    finally:
        sys.setprofile(None)
    return entries, result


class TracedNode:
    """A node with one operator, and a client on one connection."""

    def __init__(self, folder: Path) -> None:
        self.key = OKPKey.generate_key("Ed25519")
        (folder / "operator.pem").write_bytes(self.key.as_pem(private=False))
        demo = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"])
        self.node = Node(
            Config(
                servers={"demo": demo},
                listen="127.0.0.1:0",
                state_dir=str(folder / "state"),
                approvals=ApprovalsConfig(
                    anchors=[AnchorConfig(name="operator", key=str(folder / "operator.pem"))]
                ),
            ),
            base_dir=folder,
        )
        self._number = 0

    async def start(self) -> None:
        self.node.start()
        self._host = (await self.node.listen()).split("//")[1].partition("/")[0]
        await self.node.until_settled(30.0)
        host, _, port = self._host.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))

    async def post(self, path: str, body: Any, *fields: str) -> Any:
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1", f"Host: {self._host}", "Content-Type: application/json",
            "Accept: application/json, text/event-stream", *fields, f"Content-Length: {len(raw)}",
        )  # fmt: skip
        self._writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + raw)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length:")[2].split()[0])
        return json.loads(await self._reader.readexactly(length))

    async def call(self, tool: str, **arguments: Any) -> Any:
        self._number += 1
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "trace", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        answer = await self.post(
            "/mcp",
            {"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params},
            "MCP-Protocol-Version: 2026-07-28",
            "Mcp-Method: tools/call",
            f"Mcp-Name: {tool}",
        )
        return answer["result"]

    def plain(self) -> Awaitable[Any]:
        return self.call("demo.time_now")

    def held(self) -> Awaitable[Any]:
        return self.call("demo.notes_delete", id=self._number + 1)

    async def proof(self) -> tuple[str, str]:
        """Return the id of a pending approval, and an operator's proof for it."""
        held = (await self.held())["structuredContent"]
        now = int(time.time())
        claims = {
            "aud": held["aud"], "jti": held["confirmation_id"], "args_sha256": held["args_sha256"],
            "iat": now, "exp": now + 300, "decision": "approve",
        }  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            signed = jws.serialize_compact(
                {"alg": "EdDSA"}, json.dumps(claims).encode(), self.key, algorithms=["EdDSA"]
            )
        return held["confirmation_id"], signed

    async def trace(self, path: str) -> list[Entry]:
        if path in ("plain", "held"):
            ask: Callable[[], Awaitable[Any]] = self.plain if path == "plain" else self.held
            return (await trace(ask()))[0]
        id, proof = await self.proof()
        if path == "approval-http":
            sent = {"proof": proof, "accept_masked": True}
            entries, answer = await trace(self.post(f"/approvals/{id}", sent))
            assert answer["state"] == "done", answer
            return entries
        approving = self.node.trust.approving
        assert approving is not None
        return (await trace(approving.approvals.confirm(id, proof)))[0]


def count(entries: list[Entry]) -> tuple[int, int, int]:
    """Return the number of functions, files and jumps."""
    files = [file for file, _ in entries]
    jumps = sum(before != after for before, after in pairwise(files))
    return len(set(entries)), len(set(files)), jumps


def describe(path: str, entries: list[Entry], *, functions: bool) -> str:
    lines = ["{}: {} functions, {} files, {} jumps".format(path, *count(entries))]
    if functions:
        for file, some in groupby(entries, key=lambda entry: entry[0]):
            lines.append(f"  {file}: {', '.join(name for _, name in some)}")
    return "\n".join(lines)


async def run(paths: list[str], *, functions: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        traced = TracedNode(Path(folder))
        await traced.start()
        try:
            for path in paths:
                traces = [await traced.trace(path) for _ in range(TRACES)]
                print(describe(path, min(traces, key=count), functions=functions))
        finally:
            await traced.node.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Trace the path of a call on a live node.")
    parser.add_argument("paths", nargs="*", default=list(PATHS), metavar="PATH")
    parser.add_argument("--functions", action="store_true", help="print every function")
    given = parser.parse_args()
    asyncio.run(run(given.paths, functions=given.functions))


if __name__ == "__main__":
    main()
