"""A server to be started as a process, whose lists are whatever its one argument says.

    {"era": "session", "capabilities": {…}, "lists": {"prompts/list": {"first": …, "cursor": …}}}

Each page is the result, or `"error"` with a code and a message, or null: no answer at all. It
answers `test/asked` with what it was asked before. Standard library only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ABOUT = {"name": "offers", "version": "1"}


def response(
    request: dict[str, Any], told: dict[str, Any], asked: list[str]
) -> dict[str, Any] | None:
    method, params = request["method"], request.get("params", {})
    stateless = told["era"] == "stateless"
    if method == "server/discover" and stateless:
        result: Any = {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": told["capabilities"],
            "_meta": {"io.modelcontextprotocol/serverInfo": ABOUT},
        }
    elif method == "initialize" and not stateless:
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": told["capabilities"],
            "serverInfo": ABOUT,
        }
    elif method == "test/asked":
        result = {"asked": asked}
    elif method in told["lists"]:
        pages = told["lists"][method]
        page = pages[params.get("cursor", "first")]
        if page is None:
            return None
        if "error" in page:
            return {"jsonrpc": "2.0", "id": request["id"], "error": page["error"]}
        result = {"resultType": "complete", **page} if stateless else page
    else:
        error = {"code": -32601, "message": f"{method}? Never heard of it."}
        return {"jsonrpc": "2.0", "id": request["id"], "error": error}
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def main() -> None:
    settings = json.loads(sys.argv[1])
    requested: list[str] = []
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        message = response(request, settings, requested)
        requested.append(request["method"])
        if message is not None:
            print(json.dumps(message), flush=True)


main()
