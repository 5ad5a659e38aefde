"""Requests that are rejected by their head: without reading or storing the body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from interlock.core.call import Caller, Credentials
from interlock.core.pipeline.admission import MAX_PENDING_IDENTITIES
from interlock.core.pipeline.authentication import LOCAL_CALLER, PendingIdentity
from interlock.core.server.http import protocol as fast_lane
from tests.support.node import NodeThread, result_text
from tests.support.timeouts import HANG_TIMEOUT

SIZE = 4 * 1024 * 1024
PATHS = ["/mcp", "/messages?session_id=x", "/messages/", "/sse"]
EVIL = ("Host", "evil.example")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node that demands a token."""
    node = NodeThread(tmp_path_factory.mktemp("tokens"), tokens={"agent": "good-token"})
    yield node
    node.stop()


def head(node: NodeThread, *headers: tuple[str, str], path: str = "/mcp", **more: Any) -> bytes:
    """The head of a request with a large body."""
    names = {name for name, _ in headers}
    usual = [
        ("Host", node.host),
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("Content-Length", str(SIZE)),
    ]
    kept = [pair for pair in usual if pair[0] not in names]
    return node.http(b"", *kept, *headers, path=path, plain=True, **more)


def lanes(node: NodeThread) -> list[Any]:
    http = node.node.listeners._http
    assert http is not None
    assert http._server is not None
    return list(http._server.server_state.connections)


def kept(node: NodeThread) -> int:
    """How many bytes of bodies all connections hold."""

    def count() -> int:
        found = [piece for lane in lanes(node) for piece in lane._body]
        found += [lane.cycle.body for lane in lanes(node) if lane.cycle is not None]
        return sum(map(len, found))

    return node.do(count)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        [EVIL],
        [("Origin", "https://evil.example")],
        [EVIL, ("Expect", "100-continue")],
    ],
    ids=["host", "origin", "expect"],
)
def test_rejects_foreign_host_or_origin_before_body(
    shared_node: NodeThread, path: str, headers: list[tuple[str, str]]
) -> None:
    whole = head(shared_node, *headers, ("Content-Length", "2"), path=path) + b"{}"
    expected = shared_node.once(whole)
    with shared_node.connect() as wire:
        wire.send(head(shared_node, *headers, path=path))
        status, fields = wire.head()
        body = wire.exactly(int(fields["content-length"]))
        assert (status, body) == (403, expected.body)
        assert fields["connection"] == "close"
        wire.closed()
    assert kept(shared_node) == 0


@pytest.mark.parametrize("path", ["/mcp", "/messages/"])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "Bearer wrong")],
        [("Authorization", "Bearer wrong"), ("Expect", "100-continue")],
    ],
    ids=["none", "wrong", "expect"],
)
def test_checks_token_before_body(
    tokens: NodeThread, path: str, headers: list[tuple[str, str]]
) -> None:
    with tokens.connect() as wire:
        wire.send(head(tokens, *headers, path=path))
        answer_status, fields = wire.head()
        assert answer_status == 401
        assert fields["www-authenticate"].startswith("Bearer")
        wire.exactly(int(fields["content-length"]))
        wire.closed()
    assert kept(tokens) == 0


def test_rejects_forwarded_request_before_body(
    shared_node: NodeThread,
) -> None:
    with shared_node.connect() as wire:
        wire.send(head(shared_node, ("X-Forwarded-For", "192.0.2.1")))
        assert wire.answer().status == 401
        wire.closed()


@pytest.mark.parametrize("path", ["/approvals/x", "/contracts/x", "/status", "/ax", "/nowhere"])
def test_other_paths_reject_before_body(shared_node: NodeThread, path: str) -> None:
    with shared_node.connect() as wire:
        wire.send(head(shared_node, EVIL, ("Expect", "100-continue"), path=path))
        status, fields = wire.head()
        assert status == 403
        wire.exactly(int(fields["content-length"]))
    assert kept(shared_node) == 0


def test_stores_no_body_of_rejected_client(
    shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a client on a busy machine is not cut off while it sends.
    monkeypatch.setattr(fast_lane, "LINGER", HANG_TIMEOUT)
    with ExitStack() as stack:
        wires = [stack.enter_context(shared_node.connect()) for _ in range(20)]
        for wire in wires:
            wire.send(head(shared_node, EVIL) + b"{" * 60_000)
        for wire in wires:
            assert wire.answer().status == 403
            wire.send(b"{" * 60_000)
            wire.closed()
        assert kept(shared_node) == 0
    assert shared_node.alive()


def test_reads_no_chunked_body_of_rejected_request(shared_node: NodeThread) -> None:
    with shared_node.connect() as wire:
        lines = [EVIL, ("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")]
        wire.send(shared_node.http(b"", *lines, plain=True))
        assert wire.answer().status == 403
        wire.closed()


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "OPTIONS"])
def test_stores_no_body_for_methods_without_body(shared_node: NodeThread, method: str) -> None:
    sent = 200_000
    with shared_node.connect() as wire:
        wire.send(
            head(shared_node, EVIL, ("Content-Length", str(sent)), method=method), b"{" * 100_000
        )
        shared_node.until(
            lambda: any(lane._body_size == 100_000 for lane in lanes(shared_node)), "half to arrive"
        )
        assert kept(shared_node) == 0
        wire.send(b"{" * (sent - 100_000))
        expected = 405 if method == "HEAD" else 403
        assert wire.answer(to_head=method == "HEAD").status == expected


def test_rejection_waits_for_earlier_responses(shared_node: NodeThread) -> None:
    with shared_node.connect() as wire:
        wire.send(
            shared_node.call("hold", {"text": "early"}), head(shared_node, EVIL), b"{" * 10_000
        )
        id = shared_node.shop.wait_for_hold("early")
        shared_node.do(lambda: shared_node.shop.release(id))
        assert result_text(wire.answer()) == "released"
        assert wire.answer().status == 403
        wire.closed()


def test_reads_accepted_body_in_pieces(tokens: NodeThread) -> None:
    allowed = ("Authorization", "Bearer good-token")
    data = tokens.call("echo", {"text": "y" * 500_000}, 1, allowed)
    start_node, _, body = data.partition(b"\r\n\r\n")
    with tokens.connect() as wire:
        for _ in range(2):
            wire.send(start_node + b"\r\n\r\n", body[:1000], body[1000:])
            assert result_text(wire.answer()) == "y" * 500_000
        assert result_text(wire.ask(tokens.call("echo", {"text": "after"}, 2, allowed))) == "after"


# -- tokens that somebody else has to be asked about


class Asked:
    """Stands in for the authenticator: it knows nobody before `answered`."""

    def __init__(self, node: NodeThread, caller: Caller | None) -> None:
        self._caller = caller
        self._node = node
        self._settled = False
        self._answered = asyncio.Event()
        node.node.pipeline.admission.authenticate = self  # type: ignore[assignment]

    def __call__(self, _: Credentials) -> Caller:
        if self._settled and self._caller is not None:
            return self._caller
        raise PendingIdentity(self._settle)

    async def _settle(self) -> None:
        await self._answered.wait()

    def answer(self) -> None:
        async def answer() -> None:
            self._settled = True
            self._answered.set()

        self._node.wait(answer())

    def waiting(self) -> int:
        face = self._node.node.listeners._mcp_endpoint
        assert face is not None
        return len(face.answering._pending_identities)


def test_reads_no_body_during_token_check(
    start_node: Callable[..., NodeThread],
) -> None:
    node = start_node()
    asked = Asked(node, None)
    sent = 3_000_000
    with node.connect() as wire:
        wire.send(head(node, ("Content-Length", str(SIZE))))
        node.until(lambda: asked.waiting() == 1, "the token to be asked about")
        assert node.do(lambda: [lane.flow.read_paused for lane in lanes(node)]) == [True]
        wire.socket.setblocking(False)
        try:
            wire.socket.send(b"{" * sent)
        finally:
            wire.socket.settimeout(HANG_TIMEOUT)
        assert kept(node) == 0
        asked.answer()
        assert wire.answer().status == 401
    node.until(lambda: asked.waiting() == 0, "nobody to wait")


def test_reads_body_after_token_check(start_node: Callable[..., NodeThread]) -> None:
    node = start_node()
    asked = Asked(node, LOCAL_CALLER)
    data = node.call("echo", {"text": "y" * 500_000}, 1, ("Expect", "100-continue"))
    first, _, body = data.partition(b"\r\n\r\n")
    with node.connect() as wire:
        wire.send(first + b"\r\n\r\n")
        node.until(lambda: asked.waiting() == 1, "the token to be asked about")
        wire.silent()
        asked.answer()
        assert wire.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert result_text(wire.ask(body)) == "y" * 500_000


def test_limits_requests_during_token_check(
    start_node: Callable[..., NodeThread],
) -> None:
    node = start_node()
    asked = Asked(node, None)
    with ExitStack() as stack:
        wires = [stack.enter_context(node.connect()) for _ in range(MAX_PENDING_IDENTITIES)]
        for wire in wires:
            wire.send(head(node))
        node.until(lambda: asked.waiting() == MAX_PENDING_IDENTITIES, "not all of them wait")
        with node.connect() as wire:
            wire.send(head(node))
            assert wire.answer().status == 503
        asked.answer()
        assert {wire.answer().status for wire in wires} == {401}


def test_client_may_disconnect_during_token_check(
    start_node: Callable[..., NodeThread],
) -> None:
    node = start_node()
    asked = Asked(node, LOCAL_CALLER)
    with node.connect() as wire:
        wire.send(head(node))
        node.until(lambda: asked.waiting() == 1, "the token to be asked about")
    asked.answer()
    node.until(lambda: asked.waiting() == 0, "nobody to wait")
    assert node.alive()
