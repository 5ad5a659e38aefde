"""Tokens over HTTP: rejections, resource metadata and revocation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import Caller, Credentials
from interlock.core.config.trust import IdentityConfig, IssuerConfig
from interlock.core.journal.reader import JournalReader
from interlock.core.pipeline.admission import MAX_PENDING_IDENTITIES
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.trust.identity.token_store import AccessStore
from tests.support.http_client import initialize, message
from tests.support.node import HttpSession, NodeThread, result_text
from tests.trust.identity.issuers import ISSUER, NODE, Signer, part

SIGNER = Signer()
METADATA = "https://node.example.com/.well-known/oauth-protected-resource/mcp"
WELL_KNOWN = "/.well-known/oauth-protected-resource"


def identity(folder: Path, **more: Any) -> IdentityConfig:
    (folder / "keys.json").write_bytes(SIGNER.jwks())
    issuer = IssuerConfig(issuer=ISSUER, jwks_file=str(folder / "keys.json"), prefix="corp:")
    return IdentityConfig(resource=NODE, issuers=[issuer], **more)


@pytest.fixture(scope="module")
def signed_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node that trusts an issuer."""
    folder = tmp_path_factory.mktemp("signed")
    node = NodeThread(folder, identity=identity(folder))
    yield node
    node.stop()


def bearer(token: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {token}")


def valid_token(**changes: Any) -> tuple[str, str]:
    now = time.time()
    return bearer(SIGNER.token(**{"iat": now, "exp": now + 60, **changes}))


def get(node: NodeThread, path: str, *headers: tuple[str, str], method: str = "GET") -> Any:
    with node.connect() as connection:
        connection.send(node.http(b"", *headers, method=method, path=path))
        return connection.read_response(to_head=method == "HEAD")


# -- refusals


@pytest.mark.parametrize(
    "invalid", [[], [bearer("wrong")], [valid_token(exp=1)]], ids=["none", "invalid", "expired"]
)
def test_rejection_contains_resource_metadata(
    signed_node: NodeThread, invalid: list[tuple[str, str]]
) -> None:
    expected = f'Bearer resource_metadata="{METADATA}"'
    if invalid:
        expected += ', error="invalid_token"'
    responses = [
        signed_node.once(signed_node.call("echo", {"text": "x"}, 1, *invalid)),
        signed_node.once(signed_node.stateless("tools/list", {}, 1, *invalid)),
        signed_node.once(signed_node.http(message("initialize", initialize()), *invalid)),
        signed_node.once(
            signed_node.http(message("tools/list"), ("Mcp-Session-Id", "x"), *invalid)
        ),
        get(signed_node, "/status", *invalid),
        get(signed_node, "/sse", *invalid),
    ]
    for response in responses:
        assert response.status == 401
        assert response.headers["www-authenticate"] == expected


@pytest.mark.spec("ST-4.8.4-1", "AX-10.1-2")
def test_rejects_and_journals_invalid_signed_tokens(signed_node: NodeThread) -> None:
    before = len(signed_node.shop.received)
    now = time.time()
    head = part({"alg": "none", "kid": "k1"})
    body = part({"iss": ISSUER, "aud": NODE, "sub": "admin", "exp": now + 60, "scope": "admin"})
    tokens = {
        "none": f"{head}.{body}.",
        "secret": SIGNER.with_secret(b"k", exp=now + 60),
        "stranger": Signer().token(exp=now + 60, iat=now),
        "expired": SIGNER.token(exp=now - 61, iat=now - 100),
        "elsewhere": SIGNER.token(aud="https://other.example.com/mcp", exp=now + 60, iat=now),
    }
    for token in tokens.values():
        response = signed_node.once(signed_node.call("echo", {"text": "x"}, 1, bearer(token)))
        assert response.status == 401
        assert "Invalid or expired credentials" in response.error["message"]
        assert token not in response.body.decode()
    assert len(signed_node.shop.received) == before
    rows = JournalReader(signed_node.folder / "journal.db")

    def recorded() -> list[Any]:
        return [row for row in rows.tail(50) if "Invalid or expired" in row.detail]

    signed_node.until(lambda: len(recorded()) >= len(tokens), "refusals in the journal")
    for row in recorded():
        assert row.outcome == "unauthenticated"
        assert not any(token in str(row) for token in tokens.values())
    # The same token on another connection fares no better.
    assert signed_node.once(signed_node.call("echo", {}, 1, bearer(tokens["none"]))).status == 401


def test_accepts_signed_token(signed_node: NodeThread) -> None:
    assert (
        result_text(
            signed_node.once(
                signed_node.call("echo", {"text": "hi"}, 1, valid_token(scope="write"))
            )
        )
        == "hi"
    )
    session = signed_node.session("2025-11-25", valid_token(scope="write"))
    assert result_text(signed_node.once(session.call("echo", {"text": "on"}))) == "on"
    # Another subject has no part in that session.
    other = valid_token(sub="other", scope="write")
    stolen = signed_node.http(message("tools/list"), *session.headers[:2], other)
    assert signed_node.once(stolen).status == 404


@pytest.mark.spec("ST-4.8.4-2")
def test_insufficient_scope_names_required_scope(signed_node: NodeThread) -> None:
    requested = 'error="insufficient_scope", scope="write:shop.echo"'
    expected = f'Bearer {requested}, resource_metadata="{METADATA}"'
    response = signed_node.once(
        signed_node.call("echo", {"text": "x"}, 1, valid_token(scope="read"))
    )
    assert response.status == 403
    assert response.headers["www-authenticate"] == expected
    session = signed_node.session("2025-11-25", valid_token(scope="read"))
    response = signed_node.once(session.call("echo", {"text": "x"}))
    assert response.status == 403
    assert response.headers["www-authenticate"] == expected


# -- the document


@pytest.mark.parametrize("path", [WELL_KNOWN, WELL_KNOWN + "/mcp"])
def test_serves_resource_metadata_without_token(signed_node: NodeThread, path: str) -> None:
    for origin in ([], [("Origin", "https://inspector.example.com")]):
        response = get(signed_node, path, *origin)
        assert response.status == 200
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.json == {
            "resource": NODE,
            "authorization_servers": [ISSUER],
            "scopes_supported": ["read", "write", "admin"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Interlock",
        }
    assert get(signed_node, path, method="HEAD").status == 200
    asks = ("Access-Control-Request-Method", "GET")
    assert (
        get(signed_node, path, ("Origin", "https://a.example"), asks, method="OPTIONS").status
        == 204
    )
    assert get(signed_node, path, method="DELETE").status == 405


def test_resource_metadata_checks_host(signed_node: NodeThread) -> None:
    lines = f"GET {WELL_KNOWN} HTTP/1.1\r\nHost: evil.example.com\r\n\r\n"
    assert signed_node.once(lines.encode()).status == 403


def test_node_without_issuers_has_no_metadata(shared_node: NodeThread) -> None:
    assert get(shared_node, WELL_KNOWN).status == 404


def test_resource_name_follows_address_or_config(start_node: Any, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(SIGNER.jwks())
    issuer = IssuerConfig(issuer=ISSUER, jwks_file=str(tmp_path / "keys.json"))
    node = start_node(identity=IdentityConfig(issuers=[issuer]))
    assert get(node, WELL_KNOWN).json["resource"] == node.url
    response = node.once(node.call("echo"))
    where = node.url.replace("/mcp", f"{WELL_KNOWN}/mcp")
    assert response.headers["www-authenticate"] == f'Bearer resource_metadata="{where}"'
    assert get(node, "/" + where.split("/", 3)[3]).status == 200
    assert node.once(node.call("echo", {}, 1, valid_token())).status == 401
    assert (
        node.once(node.call("echo", {}, 1, valid_token(aud=node.url, scope="write"))).status == 200
    )
    # A changed config counts at once.
    node.wait(node.node.apply(node.config(identity=IdentityConfig())))
    assert get(node, WELL_KNOWN).status == 404
    assert "www-authenticate" not in node.once(node.call("echo")).headers


# -- revoking


class CallerConnections:
    """A caller with a session stream, a subscription, a legacy stream and a call."""

    def __init__(self, node: NodeThread, token: str) -> None:
        self.node = node
        self.header = bearer(token)
        self.session: HttpSession = node.session("2025-11-25", self.header)
        self.stream, self.listen = node.connect(), node.connect()
        self.legacy, self.call = node.connect(), node.connect()
        self.stream.send(self.session.get())
        assert self.stream.head()[0] == 200
        self.stream.read_event_id()
        self.listen.send(
            node.stateless(
                "subscriptions/listen",
                {"notifications": {"toolsListChanged": True}},
                1,
                self.header,
            )
        )
        assert self.listen.head()[0] == 200
        self.listen.event()
        self.legacy.send(node.http(b"", self.header, method="GET", path="/sse"))
        assert self.legacy.head()[0] == 200
        self.legacy.chunk()
        self.call.send(node.call("hold", {}, 7, self.header))
        node.shop.wait_for(lambda: node.shop._held)

    def assert_ended(self) -> None:
        """Check that all connections ended and none can be opened again."""
        self.stream.stream_end()
        while self.listen.chunk():
            pass
        self.legacy.stream_end()
        response = self.call.read_response()
        assert b'"result"' not in response.body
        caught = self.node.once(self.node.call("echo", {"text": "x"}, 1, self.header))
        assert caught.status == 401
        assert "revoked" in caught.error["message"]
        assert self.node.once(self.session.call("echo", {"text": "x"})).status == 401

    def close(self) -> None:
        for connection in (self.stream, self.listen, self.legacy, self.call):
            connection.close()


@pytest.mark.spec("ST-4.8.5-2")
def test_revoked_api_token_ends_connections_of_caller(start_node: Any, tmp_path: Path) -> None:
    folder = tmp_path / "0"
    store = AccessStore(folder / "access.db")
    node = start_node(identity=IdentityConfig(revocation_seconds=0.1))
    made, shown = store.create("agent")
    _, kept = store.create("other")
    node.until(lambda: "other" in node.node.trust.identity, "the tokens to be seen")
    caller, bystander = CallerConnections(node, shown), node.session("2025-11-25", bearer(kept))
    try:
        store.revoke([made.id])
        caller.assert_ended()
        # Nobody else notices.
        assert result_text(node.once(bystander.call("echo", {"text": "on"}))) == "on"
    finally:
        caller.close()
    rows = JournalReader(folder / "journal.db")
    node.until(lambda: any(row.outcome == "unauthenticated" for row in rows.tail(50)), "a record")


@pytest.mark.spec("ST-4.8.5-2")
@pytest.mark.parametrize("kind", ["subject", "jti"])
def test_revoked_signed_token_ends_connections_of_caller(
    start_node: Any, tmp_path: Path, kind: str
) -> None:
    node = start_node(identity=identity(tmp_path, revocation_seconds=0.1))
    caller = CallerConnections(node, valid_token(scope="write")[1].removeprefix("Bearer "))
    try:
        store = AccessStore(tmp_path / "0" / "access.db")
        store.revoke_external(kind, "corp:somebody" if kind == "subject" else "t-1")
        caller.assert_ended()
    finally:
        caller.close()


def test_first_minted_token_requires_authentication(start_node: Any, tmp_path: Path) -> None:
    node = start_node(identity=IdentityConfig(revocation_seconds=0.1))
    assert node.once(node.call("echo", {"text": "x"})).status == 200
    AccessStore(tmp_path / "0" / "access.db").create("agent")
    node.until(lambda: "agent" in node.node.trust.identity, "the token to be seen")
    assert node.once(node.call("echo", {"text": "x"})).status == 401
    # This user's own programs come in by the socket, as before.
    with node.local() as connection:
        connection.send(message("initialize", initialize()) + b"\n")
        assert "result" in connection.line()


# -- strangers


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeThread]:
    node = NodeThread(tmp_path)
    yield node
    node.stop()


def test_limits_pending_identities(own_node: NodeThread) -> None:
    answered = asyncio.Event()

    async def settle() -> None:
        await answered.wait()

    async def answer() -> None:
        answered.set()

    def who(_: Credentials) -> Caller:
        raise PendingIdentity(settle)

    own_node.node.pipeline.admission.authenticate = who  # type: ignore[assignment]
    assert own_node.node.listeners._mcp_endpoint is not None
    waiting = own_node.node.listeners._mcp_endpoint.responder._pending_identities
    hello = own_node.http(message("initialize", initialize("2025-11-25"), 1), bearer("strange"))
    with ExitStack() as stack:
        wires = [stack.enter_context(own_node.connect()) for _ in range(MAX_PENDING_IDENTITIES)]
        for connection in wires:
            connection.send(hello)
        own_node.until(lambda: len(waiting) == MAX_PENDING_IDENTITIES, "not all of them wait")
        busy = own_node.once(hello)
        assert (busy.status, b"too_busy" in busy.body) == (503, True)
        own_node.wait(answer())
        assert {connection.read_response().status for connection in wires} == {401}


def test_warns_once_about_unused_token(
    start_node: Callable[..., NodeThread], caplog: pytest.LogCaptureFixture
) -> None:
    node, invalid = start_node(), ("Authorization", "Bearer wrong")
    text = "a caller on this machine presents a token that is not checked"
    assert node.once(node.call("echo", {"text": "x"})).status == 200
    assert text not in caplog.text
    for _ in range(2):
        with node.connect() as connection:
            connection.send(node.http(b"", invalid, method="GET", path="/status"))
            assert connection.read_response().status == 200
    assert caplog.text.count(text) == 1
    assert "wrong" not in caplog.text
