"""Real catalogs to put behind a node: the lists that servers were found to have, served again.

    python -m bench.catalog_upstream --port 9001 --catalog FILE

The file holds ``{server: [tool, ...]}``; each server is at ``/mcp/SERVER``. A call of any tool is
answered with one small object, whatever its arguments.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from bench.answers import SESSION_ECHO, STATELESS_ECHO, Answer, Endpoint, RequestParams

RESULT = b'"{\\"id\\":\\"a1b2c3\\",\\"state\\":\\"done\\",\\"count\\":3}"'
"""The text of every result, as JSON within JSON."""


class CatalogEndpoint(Endpoint):
    """A server with tools that were listed elsewhere."""

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        super().__init__(0)
        self.tools = tools
        self.make_bytes()

    def call(self, request_id: bytes, params: RequestParams, stateless: bool) -> bytes | Answer:
        if params.name not in self.names:
            return super().call(request_id, params, stateless)
        self.calls += 1
        return (STATELESS_ECHO if stateless else SESSION_ECHO) % (request_id, RESULT)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.catalog_upstream", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--catalog", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    catalog = msgspec.json.decode(chosen.catalog.read_bytes(), type=dict[str, list[dict[str, Any]]])
    from bench.raw_http import run_http

    run_http(
        {f"/mcp/{name}".encode(): CatalogEndpoint(tools) for name, tools in catalog.items()},
        chosen.port,
    )


if __name__ == "__main__":
    main()
