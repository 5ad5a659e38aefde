"""A subserver to be started as a process: it registers on its stdout and serves on its stdin.

Standard library only; `python -S` starts it in a few hundredths of a second.
"""

from __future__ import annotations

import json
import sys
from typing import Any

SEGMENT, HABIT = sys.argv[1], sys.argv[2]
ID = "00000000-0000-4000-8000-000000000001"


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def ask(id: str, method: str, params: Any) -> None:
    send(id=id, method=method, params=params)


def tool(name: str, read_only: bool) -> dict[str, Any]:
    hints = {"readOnlyHint": read_only}
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": hints}


if HABIT == "dumb":
    sys.stdin.read()
    sys.exit()
if HABIT == "dies":
    sys.exit("no licence")
session = ""
experimental = {"mcpax": {"versions": ["2026-05-01"]}}
ask(
    "mcpax-1",
    "initialize",
    {"protocolVersion": "2025-11-25", "capabilities": {"experimental": experimental}},
)
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if id == "mcpax-1":
        wanted = {
            "subserver_id": ID,
            "segment": SEGMENT,
            "capabilities": {"tools": True},
            "heartbeat_interval_ms": 0,
            "transport_class": "native",
            "version": "2026-05-01",
        }
        ask("mcpax-2", "mcpax/register", wanted)
    elif id == "mcpax-2":
        if "error" in message:
            sys.exit(message["error"]["data"]["detail"])
        session = message["result"]["session_id"]
    elif method == "initialize":
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "child", "version": "0"},
        }
        send(id=id, result=hello)
    elif method == "tools/list":
        send(id=id, result={"tools": [tool("read", True), tool("leave", HABIT != "mutable")]})
    elif method == "tools/call":
        if message["params"]["name"] == "leave":
            ask("mcpax-3", "mcpax/deregister", {"session_id": session})
        else:
            send(id=id, result={"content": [{"type": "text", "text": "done"}]})
    elif method is not None and id is not None:
        send(id=id, error={"code": -32601, "message": "no such method"})
