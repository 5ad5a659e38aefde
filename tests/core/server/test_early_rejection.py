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
FOREIGN_HOST = ("Host", "evil.example")


@pytest.fixture(scope="module")
def token_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node that requires a token."""
    node = NodeThread(tmp_path_factory.mktemp("tokens"), tokens={"agent": "good-token"})
    yield node
    node.stop()


def head(node: NodeThread, *headers: tuple[str, str], path: str = "/mcp", **more: Any) -> bytes:
    """Return the head of a request with a large body."""
    names = {name for name, _ in headers}
    usual = [
        ("Host", node.host),
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("Content-Length", str(SIZE)),
    ]
    count_stored_bytes = [pair for pair in usual if pair[0] not in names]
    return node.http(b"", *count_stored_bytes, *headers, path=path, plain=True, **more)


def http_protocols(node: NodeThread) -> list[Any]:
    http = node.node.listeners._http
    assert http is not None
    assert http._server is not None
    return list(http._server.server_state.connections)


def count_stored_bytes(node: NodeThread) -> int:
    """Return how many bytes of bodies all connections store."""

    def count() -> int:
        result = [piece for protocol in http_protocols(node) for piece in protocol._body]
        result += [
            protocol.cycle.body for protocol in http_protocols(node) if protocol.cycle is not None
        ]
        return sum(map(len, result))

    return node.do(count)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        [FOREIGN_HOST],
        [("Origin", "https://evil.example")],
        [FOREIGN_HOST, ("Expect", "100-continue")],
    ],
    ids=["host", "origin", "expect"],
)
def test_rejects_foreign_host_or_origin_before_body(
    shared_node: NodeThread, path: str, headers: list[tuple[str, str]]
) -> None:
    whole = head(shared_node, *headers, ("Content-Length", "2"), path=path) + b"{}"
    expected = shared_node.once(whole)
    with shared_node.connect() as connection:
        connection.send(head(shared_node, *headers, path=path))
        status, fields = connection.head()
        body = connection.exactly(int(fields["content-length"]))
        assert (status, body) == (403, expected.body)
        assert fields["connection"] == "close"
        connection.expect_closed()
    assert count_stored_bytes(shared_node) == 0


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
    token_node: NodeThread, path: str, headers: list[tuple[str, str]]
) -> None:
    with token_node.connect() as connection:
        connection.send(head(token_node, *headers, path=path))
        answer_status, fields = connection.head()
        assert answer_status == 401
        assert fields["www-authenticate"].startswith("Bearer")
        connection.exactly(int(fields["content-length"]))
        connection.expect_closed()
    assert count_stored_bytes(token_node) == 0


def test_rejects_forwarded_request_before_body(
    shared_node: NodeThread,
) -> None:
    with shared_node.connect() as connection:
        connection.send(head(shared_node, ("X-Forwarded-For", "192.0.2.1")))
        assert connection.read_response().status == 401
        connection.expect_closed()


@pytest.mark.parametrize("path", ["/approvals/x", "/contracts/x", "/status", "/ax", "/nowhere"])
def test_other_paths_reject_before_body(shared_node: NodeThread, path: str) -> None:
    with shared_node.connect() as connection:
        connection.send(head(shared_node, FOREIGN_HOST, ("Expect", "100-continue"), path=path))
        status, fields = connection.head()
        assert status == 403
        connection.exactly(int(fields["content-length"]))
    assert count_stored_bytes(shared_node) == 0


def test_stores_no_body_of_rejected_client(
    shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a client on a busy machine is not cut off while it sends.
    monkeypatch.setattr(fast_lane, "LINGER", HANG_TIMEOUT)
    with ExitStack() as stack:
        wires = [stack.enter_context(shared_node.connect()) for _ in range(20)]
        for connection in wires:
            connection.send(head(shared_node, FOREIGN_HOST) + b"{" * 60_000)
        for connection in wires:
            assert connection.read_response().status == 403
            connection.send(b"{" * 60_000)
            connection.expect_closed()
        assert count_stored_bytes(shared_node) == 0
    assert shared_node.alive()


def test_reads_no_chunked_body_of_rejected_request(shared_node: NodeThread) -> None:
    with shared_node.connect() as connection:
        lines = [
            FOREIGN_HOST,
            ("Content-Type", "application/json"),
            ("Transfer-Encoding", "chunked"),
        ]
        connection.send(shared_node.http(b"", *lines, plain=True))
        assert connection.read_response().status == 403
        connection.expect_closed()


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "OPTIONS"])
def test_stores_no_body_for_methods_without_body(shared_node: NodeThread, method: str) -> None:
    sent = 200_000
    with shared_node.connect() as connection:
        connection.send(
            head(shared_node, FOREIGN_HOST, ("Content-Length", str(sent)), method=method),
            b"{" * 100_000,
        )
        shared_node.until(
            lambda: any(protocol._body_size == 100_000 for protocol in http_protocols(shared_node)),
            "half to arrive",
        )
        assert count_stored_bytes(shared_node) == 0
        connection.send(b"{" * (sent - 100_000))
        expected = 405 if method == "HEAD" else 403
        assert connection.read_response(to_head=method == "HEAD").status == expected


def test_rejection_waits_for_earlier_responses(shared_node: NodeThread) -> None:
    with shared_node.connect() as connection:
        connection.send(
            shared_node.call("hold", {"text": "early"}),
            head(shared_node, FOREIGN_HOST),
            b"{" * 10_000,
        )
        id = shared_node.shop.wait_for_hold("early")
        shared_node.do(lambda: shared_node.shop.release(id))
        assert result_text(connection.read_response()) == "released"
        assert connection.read_response().status == 403
        connection.expect_closed()


def test_reads_accepted_body_in_pieces(token_node: NodeThread) -> None:
    allowed = ("Authorization", "Bearer good-token")
    data = token_node.call("echo", {"text": "y" * 500_000}, 1, allowed)
    start_node, _, body = data.partition(b"\r\n\r\n")
    with token_node.connect() as connection:
        for _ in range(2):
            connection.send(start_node + b"\r\n\r\n", body[:1000], body[1000:])
            assert result_text(connection.read_response()) == "y" * 500_000
        assert (
            result_text(connection.request(token_node.call("echo", {"text": "after"}, 2, allowed)))
            == "after"
        )


# -- tokens that somebody else has to be asked about


class PendingAuthenticator:
    """An authenticator that knows no caller before `resolve`."""

    def __init__(self, node: NodeThread, caller: Caller | None) -> None:
        self._caller = caller
        self._node = node
        self._is_resolved = False
        self._resolved = asyncio.Event()
        node.node.pipeline.admission.authenticate = self  # type: ignore[assignment]

    def __call__(self, _: Credentials) -> Caller:
        if self._is_resolved and self._caller is not None:
            return self._caller
        raise PendingIdentity(self._wait_until_resolved)

    async def _wait_until_resolved(self) -> None:
        await self._resolved.wait()

    def resolve(self) -> None:
        async def resolve() -> None:
            self._is_resolved = True
            self._resolved.set()

        self._node.wait(resolve())

    def count_waiting(self) -> int:
        endpoint = self._node.node.listeners._mcp_endpoint
        assert endpoint is not None
        return len(endpoint.responder._pending_identities)


def test_reads_no_body_during_token_check(
    start_node: Callable[..., NodeThread],
) -> None:
    node = start_node()
    authenticator = PendingAuthenticator(node, None)
    sent = 3_000_000
    with node.connect() as connection:
        connection.send(head(node, ("Content-Length", str(SIZE))))
        node.until(lambda: authenticator.count_waiting() == 1, "the token to be asked about")
        assert node.do(
            lambda: [protocol.flow.read_paused for protocol in http_protocols(node)]
        ) == [True]
        connection.socket.setblocking(False)
        try:
            connection.socket.send(b"{" * sent)
        finally:
            connection.socket.settimeout(HANG_TIMEOUT)
        assert count_stored_bytes(node) == 0
        authenticator.resolve()
        assert connection.read_response().status == 401
    node.until(lambda: authenticator.count_waiting() == 0, "nobody to wait")


def test_reads_body_after_token_check(start_node: Callable[..., NodeThread]) -> None:
    node = start_node()
    authenticator = PendingAuthenticator(node, LOCAL_CALLER)
    data = node.call("echo", {"text": "y" * 500_000}, 1, ("Expect", "100-continue"))
    first, _, body = data.partition(b"\r\n\r\n")
    with node.connect() as connection:
        connection.send(first + b"\r\n\r\n")
        node.until(lambda: authenticator.count_waiting() == 1, "the token to be asked about")
        connection.expect_silence()
        authenticator.resolve()
        assert connection.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert result_text(connection.request(body)) == "y" * 500_000


def test_limits_requests_during_token_check(
    start_node: Callable[..., NodeThread],
) -> None:
    node = start_node()
    authenticator = PendingAuthenticator(node, None)
    with ExitStack() as stack:
        wires = [stack.enter_context(node.connect()) for _ in range(MAX_PENDING_IDENTITIES)]
        for connection in wires:
            connection.send(head(node))
        node.until(
            lambda: authenticator.count_waiting() == MAX_PENDING_IDENTITIES, "not all of them wait"
        )
        with node.connect() as connection:
            connection.send(head(node))
            assert connection.read_response().status == 503
        authenticator.resolve()
        assert {connection.read_response().status for connection in wires} == {401}


def test_client_may_disconnect_during_token_check(
    start_node: Callable[..., NodeThread],
) -> None:
    node = start_node()
    authenticator = PendingAuthenticator(node, LOCAL_CALLER)
    with node.connect() as connection:
        connection.send(head(node))
        node.until(lambda: authenticator.count_waiting() == 1, "the token to be asked about")
    authenticator.resolve()
    node.until(lambda: authenticator.count_waiting() == 0, "nobody to wait")
    assert node.alive()
