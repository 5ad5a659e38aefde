"""Detection of the protocol generation of an HTTP server, and redirects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.core.config import ServerConfig
from interlock.protocol.mcp import Era
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import error, result
from tests.support.upstreams import run_supervisor

pytestmark = pytest.mark.usefixtures("no_leaks")

# -- the probe


@pytest.mark.parametrize("generations", ["stateless", "both"])
async def test_detects_stateless_server(generations: str) -> None:
    async with Streamable(generations) as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            assert upstream.era is Era.STATELESS
            await upstream.text("echo", text="x")
    methods = [request.rpc for request in server.requests]
    assert methods == ["server/discover", "tools/list", "tools/call"]
    for request in server.requests:
        assert request.headers["mcp-protocol-version"] == "2026-07-28"
        assert request.headers["mcp-method"] == request.rpc
        assert "mcp-session-id" not in request.headers
        meta = request.message["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "interlock-test"
        # Lists of tools are read with all that MCP-AX says of them.
        ax = {"experimental": {"mcpax": {"versions": ["2026-05-01"]}}}
        promised = ax if request.rpc == "tools/list" else {}
        assert meta["io.modelcontextprotocol/clientCapabilities"] == promised
    assert server.requests[-1].headers["mcp-name"] == "echo"


@pytest.mark.parametrize("sessions", [True, False])
async def test_detects_session_server_by_400(sessions: bool) -> None:
    async with Streamable("session", sessions=sessions) as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            assert upstream.era is Era.SESSION
            await upstream.text("echo", text="x")
        if sessions:
            await server.until(lambda: server.deleted)
    # The GET of the stream carries no method, and goes out beside `tools/list`.
    methods = [request.rpc for request in server.requests if request.rpc]
    assert methods[:5] == [
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/call",
    ]
    first = server.requests[1]
    assert "mcp-protocol-version" not in first.headers
    assert "mcp-session-id" not in first.headers
    assert "mcp-method" not in first.headers
    for request in server.requests[2:]:
        assert request.headers["mcp-protocol-version"] == "2025-11-25"
        assert request.headers.get("mcp-session-id") == ("session-1" if sessions else None)
    assert server.deleted == (["session-1"] if sessions else [])


async def test_sends_initialized_before_other_requests() -> None:
    """On several connections the list could overtake `initialized`, and strict servers refuse."""

    async with Streamable("session") as server:
        heard_before: list[int] = []

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc == "notifications/initialized":
                # A slow server: there would be time enough to overtake it.
                for _ in range(50):
                    await asyncio.sleep(0)
            elif request.rpc == "tools/list":
                heard_before.append(server.toolbox.initialized)
            return False

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
        assert heard_before == [1]


@pytest.mark.parametrize(
    "status",
    ["400 Bad Request", "404 Not Found", "405 Method Not Allowed", "406 Not Acceptable",
     "415 Unsupported Media Type", "422 Unprocessable Content"],
)  # fmt: skip
async def test_rejected_probe_leads_to_initialize(status: str) -> None:
    async with Streamable("session") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc == "server/discover":
                response.empty(status)
            return request.rpc == "server/discover"

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            assert upstream.era is Era.SESSION
            assert await upstream.text("echo", text="x") == "x"


@pytest.mark.parametrize(
    "answer_with",
    [
        lambda id: error(id, -32601, "Method not found"),
        lambda id: error(None, -32600, "Bad Request: Server not initialized"),
        lambda id: error("server-error", -32600, "Bad Request: Missing session ID"),
        lambda id: error(id, -32022, "no", {"supported": ["2025-11-25", "2025-06-18"]}),
        lambda id: error(id, -32022, "no", {"supported": ["2027-01-01", "2025-06-18"]}),
        lambda id: result(id, {"supportedVersions": ["2031-01-01"]}),
        lambda id: result(id, {"something": "else"}),
    ],
    ids=["unknown", "uninitialized", "legacy", "supported", "mixed", "later", "nonsense"],
)
@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request"])
async def test_json_rpc_error_on_probe_leads_to_initialize(answer_with: Any, status: str) -> None:
    async with Streamable("session") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc == "server/discover":
                response.json(answer_with(request.message["id"]), status)
            return request.rpc == "server/discover"

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            assert upstream.era is Era.SESSION


async def test_reports_unsupported_revisions() -> None:
    async with Streamable("session") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            id = request.message["id"]
            response.json(error(id, -32022, "Unsupported", {"supported": ["2031-01-01", 7]}))
            return True

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.supervisor.problem is not None
            assert "supports only MCP 2031-01-01, 7" in upstream.supervisor.problem
    assert [request.rpc for request in server.requests] == ["server/discover"]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("401 Unauthorized", "rejected the credentials (HTTP 401)"),
        ("403 Forbidden", "rejected the credentials (HTTP 403)"),
        ("429 Too Many Requests", "HTTP 429"),
        ("500 Internal Server Error", "HTTP 500"),
        ("503 Service Unavailable", "HTTP 503"),
        ("200 OK", "which is not MCP"),
    ],
)
async def test_probes_again_after_inconclusive_response(status: str, message: str) -> None:
    """It is not taken for a session server, and the next attempt asks afresh."""

    async with Streamable("both") as server:
        broken = True

        async def override(request: Request, response: ResponseWriter) -> bool:
            if broken:
                response.respond(b"oops", status, content_type="text/plain")
            return broken

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.supervisor.problem is not None
            assert message in upstream.supervisor.problem
            assert [request.rpc for request in server.requests] == ["server/discover"]
            broken = False
            upstream.sleeps.wake()
            await upstream.ready()
            assert upstream.era is Era.STATELESS


async def test_unanswered_probe_times_out() -> None:
    async with Streamable("both") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            return True

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url(), start_timeout=0.1)) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.supervisor.problem is not None
            assert "was not ready within 0.1 s" in upstream.supervisor.problem
            await server.until(lambda: server.open_connections == 0)


async def test_reports_rejected_initialize() -> None:
    async with Streamable("session") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc == "initialize":
                response.json(error(request.message["id"], -32000, "Closed on Sundays."))
            return request.rpc == "initialize"

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            problem = "up rejected the start of a session: Closed on Sundays."
            assert upstream.supervisor.problem == problem


# -- redirects


@pytest.mark.parametrize("generations", ["stateless", "session"])
@pytest.mark.parametrize("status", ["307 Temporary Redirect", "308 Permanent Redirect"])
async def test_follows_redirect_on_same_server(generations: str, status: str) -> None:
    async with Streamable(generations) as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.path == "/mcp":
                response.empty(status, location="/mcp/")
            return request.path == "/mcp"

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            assert await upstream.text("echo", text="x") == "x"
    assert [r.path for r in server.requests].count("/mcp") == 1


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("http://127.0.0.2:{port}/mcp", "redirects to another server"),
        ("http://127.0.0.1:1/mcp", "redirects to another server"),
        ("https://127.0.0.1:{port}/mcp", "redirects to another server"),
        ("//evil.test/mcp", "redirects to another server"),
        ("http://127.0.0.1:99999/", "redirects to another server"),
        ("http://[/", "redirects to another server"),
        ("/mcp", "redirects in a loop"),
    ],
)
async def test_rejects_redirect_to_other_server(location: str, message: str) -> None:
    async with Streamable("stateless") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            response.empty("307 Whatever", location=location.format(port=server.port))
            return True

        server.override = override
        headers = {"Authorization": "Bearer secret"}
        async with run_supervisor(ServerConfig(url=server.url(), headers=headers)) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.supervisor.problem is not None
            assert message in upstream.supervisor.problem
