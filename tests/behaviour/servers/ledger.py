"""An MCP server that cannot take anything back: what it is told to do it writes into a file.

    python ledger.py FILE [PIPE]

Each execution is one line of the file, on disk before the answer, which waits for somebody to open
the pipe, if there is one. Only the standard library.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

TOOLS = [
    {
        "name": "press",
        "description": "Presses the button. It stays pressed.",
        "inputSchema": {"type": "object", "properties": {"button": {"type": "string"}}},
        "_meta": {"x-mcpax-capability": {"mutable": True, "reversible": False}},
    },
    {
        "name": "look",
        "description": "Looks at the buttons.",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "note",
        "description": "Writes a note that can be taken away again.",
        "inputSchema": {"type": "object"},
        "_meta": {"x-mcpax-capability": {"mutable": True, "reversible": True}},
    },
]


def answer(method: str, params: dict[str, Any], path: str, pipe: str = "") -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "ledger", "version": "1"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        if params["name"] != "look":
            line = json.dumps([params["name"], params.get("arguments", {})]).encode() + b"\n"
            ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(ledger, line)
            os.fsync(ledger)
            os.close(ledger)
            if pipe:
                os.close(os.open(pipe, os.O_RDONLY))
        return {"content": [{"type": "text", "text": f"{params['name']}: done"}]}
    return None


def main() -> None:
    path, *pipe = sys.argv[1:]
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        result = answer(message["method"], message.get("params", {}), path, *pipe)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": "There is no such method."}
        else:
            reply["result"] = result
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
