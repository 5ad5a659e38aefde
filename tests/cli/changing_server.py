"""A small MCP server on stdin and stdout whose tools are what a file says now. It writes down every
call that reaches it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def answer(method: str, params: dict[str, Any], tools: Path) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "changing", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": json.loads(tools.read_text())}
    if method == "tools/call":
        with tools.with_suffix(".calls").open("a") as calls:
            calls.write(params["name"] + "\n")
        return {"content": [{"type": "text", "text": "done"}]}
    if method == "ping":
        return {}
    return None


def main() -> None:
    tools = Path(sys.argv[1])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        result = answer(message["method"], message.get("params", {}), tools)
        fields: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            fields["error"] = {"code": -32601, "message": "Method not found"}
        else:
            fields["result"] = result
        print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
