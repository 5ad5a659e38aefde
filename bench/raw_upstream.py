"""The raw upstream: an MCP server that costs almost nothing, to put behind what is measured.

HTTP by hand on uvloop, or newline-delimited messages on stdio. With ``--changes`` it keeps event
streams open, and ``POST /admin/change/PATH`` adds a tool to one endpoint and tells its listeners;
``GET /admin/counts`` says how often each endpoint's list was asked for.

    python -m bench.raw_upstream --port 9001
    python -m bench.raw_upstream --stdio
"""

from __future__ import annotations

import argparse
import os

from bench.answers import Answer, Endpoint, NamedEndpoint, Wire


def serve_stdio(endpoint: Endpoint) -> None:
    """Answer every line of stdin until it ends; the answers to one read go in one write."""
    pending = b""
    while chunk := os.read(0, 262144):
        *lines, pending = (pending + chunk).split(b"\n")
        answers = []
        for line in lines:
            if not line.strip():
                continue
            answer = endpoint.answer(line)
            body = answer.body if isinstance(answer, Answer) else answer
            if body:
                answers.append(body)
        if answers:
            out = memoryview(b"\n".join(answers) + b"\n")
            while out:
                out = out[os.write(1, out) :]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.raw_upstream", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one and prints it")
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--wire", choices=("session", "stateless", "both"), default="both")
    parser.add_argument("--tools", type=int, default=0, help="synthetic tools beside echo")
    parser.add_argument("--paths", type=int, default=0, help="serve /mcp/0 .. /mcp/N-1, not /mcp")
    parser.add_argument("--changes", action="store_true", help="keep event streams for changes")
    parser.add_argument("--label", help="tells this process from others in a process list")
    parser.add_argument("--name", help="echo puts this name in front of its text")
    chosen = parser.parse_args(arguments)
    wire: Wire = chosen.wire

    def endpoint() -> Endpoint:
        if chosen.name:
            return NamedEndpoint(chosen.name)
        return Endpoint(chosen.tools, wire, chosen.changes)

    if chosen.stdio:
        serve_stdio(endpoint())
        return
    if chosen.paths:
        endpoints = {b"/mcp/%d" % number: endpoint() for number in range(chosen.paths)}
    else:
        endpoints = {b"/mcp": endpoint()}
    # Imported only here: a stdio child must start fast, and needs no event loop.
    from bench.raw_http import run_http

    run_http(endpoints, chosen.port)


if __name__ == "__main__":
    main()
