"""The protocol over stdio: generations, invalid messages, ids, server requests and lists."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import UpstreamLostError, UpstreamResponseError
from interlock.core.config import ServerConfig
from interlock.core.upstreams import negotiation as negotiate
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.transports import stdio
from interlock.core.upstreams.transports.process import INHERITED
from interlock.errors import UPSTREAM_PROTOCOL
from interlock.protocol.mcp import Era
from tests.support.upstreams import (
    SupervisorHarness,
    run,
    run_supervisor,
    server_script,
    stdio_server,
    text_of,
    with_timeout,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
ERAS = pytest.mark.parametrize("generations", ["stateless", "session"])
REVISIONS = {"stateless": "2026-07-28", "session": "2025-11-25"}


@LOOPS
@pytest.mark.parametrize("server", ["demo", "official"])
def test_works_with_real_servers(server: str, loop: str) -> None:
    demo = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"])
    config = demo if server == "demo" else server_script("sdk_stdio.py")

    async def body() -> None:
        async with run_supervisor(config) as upstream:
            await upstream.ready()
            peer = upstream.supervisor.upstream_client
            assert peer is not None
            assert (peer.era, peer.revision) == (Era.STATELESS, "2026-07-28")
            assert peer.instructions
            assert peer.server_info["name"] in ("interlock-demo", "official")
            if server == "demo":
                assert (await upstream.result("text_stats", {"text": "a b"}))["structuredContent"][
                    "words"
                ] == 2
            else:
                assert await upstream.text("echo", text="grüezi") == "grüezi"

    run(body, loop=loop)


@pytest.mark.parametrize("server", ["demo", "official"])
async def test_works_with_real_servers_in_session_generation(server: str) -> None:
    demo = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"])
    config = demo if server == "demo" else server_script("sdk_stdio.py")

    upstream = SupervisorHarness(config)
    upstream.connector._session_first = True
    upstream.supervisor.begin()
    await upstream.ready()
    peer = upstream.supervisor.upstream_client
    assert peer is not None
    assert (peer.era, peer.revision) == (Era.SESSION, "2025-11-25")
    if server == "official":
        assert await upstream.text("echo", text="hello") == "hello"
    await upstream.supervisor.end()


@LOOPS
@ERAS
def test_detects_protocol_generation(generations: str, loop: str) -> None:
    async def body() -> None:
        async with run_supervisor(stdio_server("--eras", generations)) as upstream:
            await upstream.ready()
            assert upstream.supervisor.upstream_client is not None
            assert upstream.supervisor.upstream_client.revision == REVISIONS[generations]
            assert await upstream.text("echo", text="hi") == "hi"

    run(body, loop=loop)


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-03-26", "2024-11-05"])
async def test_accepts_older_revisions(revision: str) -> None:
    async with run_supervisor(
        stdio_server("--eras", "session", "--revision", revision)
    ) as upstream:
        await upstream.ready()
        assert upstream.supervisor.upstream_client is not None
        assert upstream.supervisor.upstream_client.revision == revision
        assert await upstream.text("echo", text="hi") == "hi"


async def test_reports_unknown_revision() -> None:
    async with run_supervisor(
        stdio_server("--eras", "session", "--revision", "1999-01-01")
    ) as upstream:
        upstream.sleeps.hold()
        await upstream.until(lambda: upstream.sleeps.sleeping)
        assert upstream.supervisor.problem is not None
        assert "requires MCP 1999-01-01" in upstream.supervisor.problem


@ERAS
async def test_ignores_garbage_between_messages(generations: str) -> None:
    async with run_supervisor(stdio_server("--eras", generations, "--garbage")) as upstream:
        await upstream.ready()
        for number in range(5):
            assert await upstream.text("echo", text=str(number)) == str(number)
        peer = upstream.supervisor.upstream_client
        assert peer is not None
        assert peer.noise > 50
        assert not peer.pending
        assert upstream.supervisor.restarts == 0


async def test_unanswered_probe_leads_to_initialize(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(negotiate, "PROBE_TIMEOUT_SECONDS", 0.05)

    async with run_supervisor(stdio_server("--eras", "session", "--probe", "ignore")) as upstream:
        await upstream.ready()
        peer = upstream.supervisor.upstream_client
        assert peer is not None
        assert peer.era is Era.SESSION
        assert not peer.pending
        assert await upstream.text("echo", text="hi") == "hi"


async def test_accepts_late_probe_response_of_stateless_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The probe goes unanswered for so long that `initialize` is tried, which it refuses."""
    monkeypatch.setattr(negotiate, "PROBE_TIMEOUT_SECONDS", 0.01)
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    peers: list[UpstreamClient] = []
    initialize = negotiate._initialize

    async def noticed(peer: UpstreamClient, revision: str) -> None:
        peers.append(peer)
        asyncio.get_running_loop().call_soon(gate.write_text, "go")
        await initialize(peer, revision)

    monkeypatch.setattr(negotiate, "_initialize", noticed)
    async with run_supervisor(stdio_server("--eras", "stateless", "--gate", str(gate))) as upstream:
        await upstream.ready()
        assert len(peers) == 1
        assert upstream.era is Era.STATELESS
        assert peers[0].revision == "2026-07-28"
        assert upstream.supervisor.restarts == 0
        assert await upstream.text("echo", text="hi") == "hi"


async def test_accepts_probe_response_after_rejected_initialize(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(negotiate, "PROBE_TIMEOUT_SECONDS", 0.01)

    async with run_supervisor(stdio_server("--eras", "stateless", "--probe", "late")) as upstream:
        await upstream.ready()
        assert upstream.era is Era.STATELESS
        assert upstream.supervisor.restarts == 0
        assert await upstream.text("echo", text="hi") == "hi"


async def test_ignores_unknown_ids_and_second_responses() -> None:
    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        assert await upstream.text("strangers") == "mine"
        assert await upstream.text("twice") == "first"
        assert await upstream.text("echo", text="still fine") == "still fine"


async def test_answers_requests_of_server() -> None:
    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        responses = {a["id"]: a for a in json.loads(await upstream.text("ask"))}
        assert responses["ask-ping"]["result"] == {}
        for method in ("sampling/createMessage", "roots/list"):
            error = responses[f"ask-{method}"]["error"]
            assert error["code"] == -32601
            assert method in error["message"]


async def test_relays_server_error_unchanged() -> None:
    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        with pytest.raises(UpstreamResponseError) as caught:
            await with_timeout(upstream.start("fail"))
        assert caught.value.code == -32042
        assert caught.value.message == "It failed on purpose."
        assert caught.value.raw_data is not None
        assert json.loads(bytes(caught.value.raw_data)) == {"why": "asked"}


@pytest.mark.parametrize("value", ["null", "7", '"text"', "[]", "true"])
async def test_rejects_result_that_is_not_object(value: str) -> None:
    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        with pytest.raises(UpstreamLostError) as caught:
            await with_timeout(upstream.start("null", {"as": value}))
        assert caught.value.failure is UPSTREAM_PROTOCOL
        assert caught.value.was_sent
        assert await upstream.text("echo", text="on") == "on"


async def test_rejects_response_without_result_and_error() -> None:
    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        with pytest.raises(UpstreamLostError, match="neither result nor error") as caught:
            await with_timeout(upstream.start("wordless"))
        assert caught.value.was_sent


async def test_reads_batch_of_supporting_revision() -> None:
    async with run_supervisor(
        stdio_server("--eras", "session", "--revision", "2025-03-26")
    ) as upstream:
        await upstream.ready()
        lists = upstream.supervisor.lists
        assert await upstream.text("batch") == "batched"
        await upstream.until(lambda: upstream.supervisor.lists > lists)


async def test_large_response_fails_call_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "MAX_MESSAGE", 300_000)

    async with run_supervisor(stdio_server("--eras", "session")) as upstream:
        await upstream.ready()
        pending_call = upstream.start("hold", {"text": "unharmed"})
        with pytest.raises(UpstreamLostError, match="longer than 300000 bytes") as caught:
            await with_timeout(upstream.start("huge", {"size": 2_000_000}))
        assert caught.value.failure is UPSTREAM_PROTOCOL
        assert caught.value.was_sent
        assert await upstream.text("huge", size=100_000) == "x" * 100_000
        assert await upstream.text("release") == "1"
        assert text_of(json.loads(bytes((await with_timeout(pending_call)).result))) == "unharmed"


async def test_reads_response_of_many_megabytes() -> None:
    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        assert len(await upstream.text("huge", size=20_000_000)) == 20_000_000


@pytest.mark.parametrize(
    ("head", "id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"content"', 7),
        (b' { "jsonrpc" : "2.0" , "id" : 7 , "error" : {', 7),
        (b'{"id":7,"jsonrpc":"2.0","result":{', 7),
        (b'{"id":7,"result":{', 7),
        # What is not its own id must not fail somebody else's call.
        (b'{"jsonrpc":"2.0","result":{"id":7,"result":1', None),
        (b'{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{', None),
        (b'{"jsonrpc":"2.0","method":"x","params":{"id":7,"result":1', None),
        (b'{"jsonrpc":"2.0","id":"7","result":{', None),
        (b'{"jsonrpc":"2.0","id":7.5,"result":{', None),
        (b"xxxxxxxxxxxxxxxxx", None),
    ],
)
def test_finds_id_in_head_of_long_line(head: bytes, id: int | None) -> None:
    assert stdio.find_response_id(head) == id


async def test_progress_reaches_its_caller() -> None:
    received: dict[str, list[Any]] = {"a": [], "b": []}

    def hear(name: str) -> Any:
        return lambda _, method, params: received[name].append((method, json.loads(bytes(params))))

    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        # Both callers chose the same token: it is theirs, and comes back to each.
        first = upstream.start("report", {"steps": 3}, hear=hear("a"), token="t")
        second = upstream.start("report", {"steps": 2}, hear=hear("b"), token="t")
        await with_timeout(first)
        await with_timeout(second)
    assert [told["progress"] for _, told in received["a"]] == [1, 2, 3]
    assert [told["progress"] for _, told in received["b"]] == [1, 2]
    for method, told in received["a"] + received["b"]:
        assert method == "notifications/progress"
        assert told["progressToken"] == "t"


# -- lists


async def test_change_lists_only_this_upstream_again() -> None:
    async with (
        run_supervisor(stdio_server("--eras", "session", "--announces"), key="a") as upstream,
        run_supervisor(stdio_server("--eras", "session", "--announces"), key="b") as other,
    ):
        await upstream.ready()
        await other.ready()
        assert await upstream.text("change", names=["echo", "change"]) == "changed"
        await upstream.until(lambda: upstream.listed[-1] == ["echo", "change"])
        assert upstream.supervisor.lists == 2
        assert await other.text("echo", text="x") == "x"
        assert other.supervisor.lists == 1


async def test_notices_change_during_first_listing() -> None:
    async with run_supervisor(
        stdio_server("--eras", "session", "--changes-while-listing")
    ) as upstream:
        await upstream.until(lambda: upstream.listed and upstream.listed[-1] == ["new"])


async def test_subscribes_to_stateless_process() -> None:
    async with run_supervisor(stdio_server("--eras", "stateless", "--announces")) as upstream:
        await upstream.ready()
        # It reads in order: once this is answered, it has heard of the subscription.
        await upstream.text("echo", text="x")
        await upstream.text("change", names=["echo", "new"])
        await upstream.until(lambda: upstream.listed[-1] == ["echo", "new"])


async def test_invalid_entries_do_not_hide_valid_ones() -> None:
    entries: list[Any] = [
        {"name": "good", "inputSchema": {"type": "object"}}, 7, None, {}, {"name": 3}, [],
        {"name": "no schema"}, {"name": "also good", "inputSchema": {"type": "object"}},
    ]  # fmt: skip

    async with run_supervisor(stdio_server("--entries", json.dumps(entries))) as upstream:
        await upstream.ready()
        assert len(upstream.supervisor.raw_offering.tools) == len(entries)
        assert upstream.tool("good").upstream_name == "good"
        assert upstream.tool("also good").upstream_name == "also good"


def page(*names: str, cursor: str | None = None) -> dict[str, Any]:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    return {"tools": tools} if cursor is None else {"tools": tools, "nextCursor": cursor}


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ({"first": page("a", cursor="2"), "2": page("b", cursor="3"), "3": page("c")}, "abc"),
        ({"first": page("a", cursor="2"), "2": page("b", cursor="2")}, "ab"),
        ({"first": page("a", cursor="2"), "2": page("b", cursor="3"), "3": page("c", cursor="2")},
         "abc"),
    ],
    ids=["pages", "itself", "circle"],
)  # fmt: skip
async def test_reads_pages_without_repetition(pages: dict[str, Any], expected: str) -> None:
    async with run_supervisor(stdio_server("--pages", json.dumps(pages))) as upstream:
        await upstream.ready()
        assert "".join(upstream.listed[0]) == expected


@pytest.mark.parametrize(
    "pages",
    ['{"first": {"tools": 7}}', '{"first": {"tools": [], "nextCursor": 7}}'],
)
async def test_reports_invalid_list(pages: str) -> None:
    async with run_supervisor(stdio_server("--pages", pages)) as upstream:
        upstream.sleeps.hold()
        await upstream.until(lambda: upstream.sleeps.sleeping)
        assert upstream.supervisor.problem is not None
        assert "`tools/list`" in upstream.supervisor.problem


async def test_lists_thousands_of_tools() -> None:
    async with run_supervisor(stdio_server("--many", "6000")) as upstream:
        await upstream.ready()
        assert len(upstream.supervisor.raw_offering.tools) == 6000
        assert isinstance(upstream.supervisor.raw_offering.tools[0], Raw)


# -- what it is given


async def test_process_does_not_inherit_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ours alone")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("TOKEN_OF_THE_NODE", "s3cret")
    config = stdio_server(env={"API_KEY": "${env:TOKEN_OF_THE_NODE}", "HOME": "/given"})

    async with run_supervisor(config) as upstream:
        await upstream.ready()
        environ = json.loads(await upstream.text("environ"))
    assert environ["API_KEY"] == "s3cret"
    assert environ["HOME"] == "/given"
    assert environ["PATH"] == os.environ["PATH"]
    assert environ["LANG"] == "C.UTF-8"
    allowed = {*INHERITED, "API_KEY", "LC_CTYPE"}
    assert set(environ) <= allowed
    assert "ours alone" not in environ.values()


async def test_starts_process_in_configured_folder(tmp_path: Path) -> None:
    async with run_supervisor(stdio_server(cwd=str(tmp_path))) as upstream:
        await upstream.ready()
        assert await upstream.text("where") == str(tmp_path)


async def test_splits_command_like_shell() -> None:
    path = Path(__file__).parent / "servers" / "stdio_server.py"
    config = ServerConfig(command=f"'{sys.executable}' -S \"{path}\" --eras 'session'")

    async with run_supervisor(config) as upstream:
        await upstream.ready()
        assert await upstream.text("echo", text="x") == "x"
