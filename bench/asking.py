"""Single questions to a running target, off the clock: its tools, its status, its counts."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from bench.processes import TargetFailure, TargetProcess
from bench.wire import STATELESS_META, STATELESS_REVISION

Answered = TypeVar("Answered")


def fetch(port: int, verb: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """One HTTP exchange on a connection of its own; anything but 200 is a failure."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(verb, path, body or None, named)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise TargetFailure(f"{verb} {path} got HTTP {answer.status}: {content[:300]!r}")
    return content


def fetch_json(port: int, verb: str, path: str) -> Any:
    return msgspec.json.decode(fetch(port, verb, path))


def ask_tools_list(port: int, path: str = "/mcp") -> bytes:
    """The whole body of a stateless ``tools/list`` answer, its first page."""
    params = b'{"_meta":%b}' % STATELESS_META.encode()
    return fetch(
        port,
        "POST",
        path,
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":%b}' % params,
        content_type="application/json",
        accept="application/json, text/event-stream",
        mcp_protocol_version=STATELESS_REVISION,
        mcp_method="tools/list",
    )


def call_tool(port: int, name: str, arguments: dict[str, Any], path: str = "/mcp") -> str:
    """One stateless ``tools/call``; the text of its answer, or what was answered instead."""
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": name,
            "arguments": arguments,
            "_meta": msgspec.json.decode(STATELESS_META),
        },
    }
    answered = fetch(
        port,
        "POST",
        path,
        msgspec.json.encode(body),
        content_type="application/json",
        accept="application/json, text/event-stream",
        mcp_protocol_version=STATELESS_REVISION,
        mcp_method="tools/call",
        mcp_name=name,
    )
    result = msgspec.json.decode(answered).get("result")
    if result is None or result.get("isError"):
        return answered.decode(errors="replace")
    return "".join(part.get("text", "") for part in result["content"])


def tool_names(body: bytes) -> list[str]:
    """The names in a ``tools/list`` answer; an answer without a result has none."""
    answer = msgspec.json.decode(body)
    return [tool["name"] for tool in answer.get("result", {}).get("tools", [])]


def until(
    what: str,
    process: TargetProcess,
    look: Callable[[], Answered],
    accept: Callable[[Answered], bool],
    patience: float = 60.0,
    pause: float = 0.005,
) -> Answered:
    """Ask again and again until the answer is the one waited for."""
    deadline = time.monotonic() + patience
    problem = "it never answered"
    while time.monotonic() < deadline:
        if process.process.poll() is not None:
            code = process.process.returncode
            raise TargetFailure(f"{process.name} ended with {code}:\n{process.log_tail()}")
        try:
            answer = look()
            if accept(answer):
                return answer
            problem = "its answer never was the one waited for"
        except (OSError, http.client.HTTPException, TargetFailure) as cause:
            problem = str(cause)
        time.sleep(pause)
    raise TargetFailure(f"{what}: {problem}\n{process.log_tail()}")
