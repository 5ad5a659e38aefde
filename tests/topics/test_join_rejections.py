"""Tests of rejected joins: responses and journal entries."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from interlock.core.call import Caller
from interlock.core.pipeline.authentication import KnownToken, PendingIdentity
from interlock.core.server.http.server import tls_context
from interlock.errors import FORBIDDEN, InterlockError
from interlock.topics.config import TopicConfig
from interlock.topics.gateway import Gateway
from tests.channels.certificates import Authority
from tests.topics.peers import WebSocketParticipant, get_rejection, join_topic
from tests.topics.topic_server import PUBLIC, RESTRICTED, TopicServer, run

REFUSALS = [
    ("", "t-human", 400),
    ("?topic=", "t-human", 400),
    ("?topic=a/b", "t-human", 400),
    ("?topic=" + "x" * 129, "t-human", 400),
    ("?topic=room&topic=room", "t-human", 400),
    ("?topic=room&routing=some", "t-human", 400),
    ("?topic=room&token=t-human", None, 400),
    ("?topic=room&access_token=t-human", "t-human", 400),
    ("?topic=room", None, 401),
    ("?topic=nowhere", None, 401),
    ("?topic=room", "t-nobody", 401),
    ("?topic=nowhere", "t-nobody", 401),
    ("?topic=nowhere", "t-human", 403),
    ("?topic=other", "t-human", 403),
]
OUTCOMES = {400: "invalid_request", 401: "unauthenticated", 403: "forbidden"}


@pytest.mark.spec("MX-6.2a-7", "MX-6.3a-4")
def test_rejects_invalid_join_requests() -> None:
    async def test(rooms: TopicServer) -> None:
        for query, token, status in REFUSALS:
            answer = await get_rejection(rooms.address(f"/ws{query}").replace("http", "ws"), token)
            assert answer.status == status, query
            assert ("WWW-Authenticate" in answer.headers) == (status == 401)
            assert answer.sentence.endswith(".")
            # Each is written down, once, and opened nothing.
            entry = rooms.journal.pop()
            assert rooms.journal == []
            assert (entry["verb"], entry["face"]) == ("topics/join", "topic")
            assert entry["outcome"] == OUTCOMES[status]
        assert rooms.present == []
        assert rooms.door.connections == 0

    run(test, rooms=RESTRICTED)


@pytest.mark.spec("MX-8.1-2")
def test_rejects_wrong_token() -> None:
    async def test(rooms: TopicServer) -> None:
        answer = await get_rejection(rooms.url(), "wrong")
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        async with rooms.join("human") as (human,):
            assert human.id == "human"

    run(test)


def test_rejections_do_not_reveal_topics() -> None:
    async def test(rooms: TopicServer) -> None:
        denied = await get_rejection(rooms.url("other"), "t-human")
        unknown = await get_rejection(rooms.url("no-such"), "t-human")
        assert denied.sentence.replace("other", "T") == unknown.sentence.replace("no-such", "T")

    run(test, rooms=RESTRICTED)


@pytest.mark.spec("MX-6.2a-7")
def test_token_in_url_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    secret = "hJ3kq8-very-secret"

    async def test(rooms: TopicServer) -> None:
        for query in (f"room&token={secret}", f"room&auth={secret}", f"room&x=Bearer%20{secret}"):
            answer = await get_rejection(rooms.url(query), "t-human")
            assert answer.status == 400
            assert secret not in answer.sentence
        # Nor one that somebody took for the name of a topic.
        assert (await get_rejection(rooms.url(secret), "t-human")).status == 403
        assert len(rooms.journal) == 4
        assert secret not in repr(rooms.journal)

    caplog.set_level(logging.DEBUG, "interlock")
    run(test)
    assert secret not in "".join(record.getMessage() for record in caplog.records)


def test_rejects_foreign_origins() -> None:
    async def test(rooms: TopicServer) -> None:
        for origin in ("https://evil.example", "null"):
            assert (await get_rejection(rooms.url(), "t-human", ("Origin", origin))).status == 403
            assert rooms.journal.pop()["outcome"] == "foreign_origin"
        assert await get_status(rooms, "/ws?topic=room", host="evil.example") == 403
        assert rooms.journal.pop()["outcome"] == "foreign_origin"

    run(test)


def test_accepts_local_origin() -> None:
    async def test(rooms: TopicServer) -> None:
        origin = f"http://localhost:{rooms.http.port}"
        async with join_topic(rooms.url(), "t-human", origin=origin) as human:
            assert human.id == "human"

    run(test)


def test_rejects_caller_without_call_permission() -> None:
    async def test(rooms: TopicServer) -> None:
        answer = await get_rejection(rooms.url(), "t-viewer")
        assert answer.status == 403
        assert [entry["outcome"] for entry in rooms.journal] == ["forbidden"]

    run(test, callers=[Caller("viewer", can_call=False, can_view_approvals=True, kind="token")])


def test_rejects_join_of_full_topic() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent", "human"):
            answer = await get_rejection(rooms.url(), "t-worker")
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "1"
            # Who is in already may come by another connection.
            async with rooms.join("human") as (human,):
                assert human.id == "human"

    run(test, rooms={"room": TopicConfig(access="private", max_participants=2)})


def test_stopping_node_rejects_joins() -> None:
    async def test(rooms: TopicServer) -> None:
        rooms.rig.pipeline.admission.is_closed = True
        for token in ("t-human", None):
            assert (await get_rejection(rooms.url(), token)).status == 503

    run(test, rooms=PUBLIC)


class TokenLookup:
    """An identity source that needs a lookup for each token."""

    requires_token = True

    def __init__(self) -> None:
        self.asked = 0

    def find(self, bearer: str) -> KnownToken | None:
        if bearer != "opaque":
            return None
        if not self.asked:
            raise PendingIdentity(self._settle)
        return KnownToken(Caller("stranger", kind="introspection"))

    async def _settle(self) -> None:
        self.asked += 1


def test_unknown_token_is_retried_after_lookup() -> None:
    async def test(rooms: TopicServer) -> None:
        answer = await get_rejection(rooms.url(), "opaque")
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert rooms.journal == []
        async with join_topic(rooms.url(), "opaque") as stranger:
            assert stranger.id == "stranger"

    source = TokenLookup()

    async def fresh(rooms: TopicServer) -> None:
        source.asked = 0
        await test(rooms)

    run(fresh, sources=[source])


def test_limits_pending_token_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.topics.endpoint.MAX_PENDING_IDENTITIES", 3)

    class NeverAnswered(TokenLookup):
        def find(self, bearer: str) -> KnownToken | None:
            raise PendingIdentity(self._settle)

        async def _settle(self) -> None:
            self.asked += 1
            await asyncio.get_running_loop().create_future()

    source = NeverAnswered()

    async def test(rooms: TopicServer) -> None:
        source.asked = 0
        for number in range(6):
            assert (await get_rejection(rooms.url(), f"opaque-{number}")).status == 503
        assert source.asked == 3

    run(test, sources=[source])


def test_rejection_after_upgrade_closes_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(*_: Any, **__: Any) -> None:
        raise InterlockError(FORBIDDEN, "There is no topic room any more.")

    async def test(rooms: TopicServer) -> None:
        headers = {"Authorization": "Bearer t-human"}
        async with connect(rooms.url(), additional_headers=headers, proxy=None) as client:
            assert await WebSocketParticipant(client).wait_closed() == (
                4003,
                "There is no topic room any more.",
            )

    monkeypatch.setattr(Gateway, "add_member", enter)
    run(test)


async def get_status(rooms: TopicServer, path: str, *doubled: str, host: str = "127.0.0.1") -> int:
    """Return the status of a request with these additional headers."""
    port = rooms.http.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = (
        f"GET {path} HTTP/1.1", *doubled, f"Host: {host}:{port}", "Connection: Upgrade",
        "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Origin: http://127.0.0.1:{port}",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Authorization: Bearer t-boss", "", "",
    )  # fmt: skip
    if path != "/ws?topic=room":
        lines = tuple(line for line in lines if "pgrade" not in line and "WebSocket" not in line)
    writer.write("\r\n".join(lines).encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


@pytest.mark.parametrize(
    "doubled",
    ["Host: evil.example", "Origin: http://evil.example", "Authorization: Bearer t-human"],
)
@pytest.mark.parametrize(("path", "well"), [("/ws?topic=room", 101), ("/admin/participants", 200)])
def test_rejects_duplicate_headers(path: str, well: int, doubled: str) -> None:
    async def test(rooms: TopicServer) -> None:
        assert await get_status(rooms, path) == well
        assert await get_status(rooms, path, doubled) == 400

    run(test, admins=["boss"])


@pytest.mark.parametrize("offered", ["MCPX.BEARER.nonsense", "mcpx.Bearer.nonsense", "bearer.x"])
def test_invalid_token_in_subprotocol_is_rejected(offered: str) -> None:
    async def test(rooms: TopicServer) -> None:
        answer = await get_rejection(
            rooms.url(), None, ("Sec-WebSocket-Protocol", f"mcpx, {offered}")
        )
        assert answer.status == 401

    run(test, rooms=PUBLIC)


def test_unknown_client_certificate_is_rejected(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node, stranger = authority.issue("node", "127.0.0.1"), authority.issue("who", "who.example")
    without = ssl.create_default_context(cafile=authority.file)
    shows = ssl.create_default_context(cafile=authority.file)
    shows.load_cert_chain(stranger.certificate, stranger.key)

    async def test(rooms: TopicServer) -> None:
        async with join_topic(rooms.url(), ssl=without) as guest:
            assert guest.id.startswith("guest-")
            assert (await get_rejection(rooms.url(), ssl=shows)).status == 401
            assert rooms.present == [guest.id]

    tls = tls_context(node.certificate, node.key, authority.file)
    run(test, rooms=PUBLIC, tls=tls)
