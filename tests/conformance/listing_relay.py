"""A relay in front of a server of the suite that adds one tool to its list.

The suite's server of `request-metadata` answers calls of any tool and lists none, and a node calls
no tool that is not listed. The relay changes no request: the server sees what the node sent.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.support.timeouts import HANG_TIMEOUT

_PER_HOP = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})


@contextmanager
def listing(url: str, tool: str) -> Iterator[str]:
    """Run the relay in front of `url`; yield its address.

    Args:
        url: the address of the suite's server.
        tool: the name of the tool that is added. It takes any arguments.
    """
    target = urlsplit(url)
    assert target.hostname is not None

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _relay(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = dict(self.headers.items())
            connection = http.client.HTTPConnection(
                str(target.hostname), target.port, timeout=HANG_TIMEOUT
            )
            try:
                connection.request(self.command, target.path or "/", body, headers)
                response = connection.getresponse()
                answer = response.read()
            finally:
                connection.close()
            if response.status == 200:
                answer = _with_tool(json.loads(body)["method"], answer, tool)
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in _PER_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_DELETE = _relay

        def log_message(self, *_: Any) -> None:
            """Keep stderr for the node."""

    relay = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=relay.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{relay.server_port}"
    finally:
        relay.shutdown()
        relay.server_close()
        thread.join(HANG_TIMEOUT)


def _with_tool(method: str, answer: bytes, tool: str) -> bytes:
    if method not in ("server/discover", "tools/list"):
        return answer
    message = json.loads(answer)
    if method == "server/discover":
        message["result"]["capabilities"]["tools"] = {}
    else:
        schema = {"type": "object"}
        message["result"]["tools"].append({"name": tool, "inputSchema": schema})
    return json.dumps(message).encode()
