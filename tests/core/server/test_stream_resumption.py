"""Resumption of broken session streams: event ids, missed events and limits."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.server.mcp import event_streams as outlets
from interlock.core.server.mcp.sessions import HttpSession as NodeSession
from tests.support.http_client import HttpConnection, event_fields
from tests.support.node import HttpSession, NodeThread, result_text

OLDER = "2025-06-18"


def served(node: NodeThread, session: HttpSession) -> NodeSession:
    return node.node.sessions._sessions[session.id]


def tell(node: NodeThread, session: HttpSession, *names: str) -> None:
    def all() -> None:
        for name in names:
            served(node, session).send_notification(f"notifications/{name}", None)

    node.do(all)


def resume(session: HttpSession, last: str) -> bytes:
    return session.get(("Last-Event-ID", last))


def came_back(wire: HttpConnection, session: HttpSession, last: str) -> None:
    wire.send(resume(session, last))
    status, headers = wire.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream")


def left(node: NodeThread, session: HttpSession, kept: int = 1) -> None:
    """Wait until the node knows that the connection is gone."""

    def alone() -> bool:
        streams = served(node, session).streams._streams.values()
        return len(streams) == kept and all(one.connection is None for one in streams)

    node.until(alone, "the end of a connection")


def names(wire: HttpConnection, count: int) -> list[str]:
    return [wire.event()["method"].partition("/")[2] for _ in range(count)]


def open_own(node: NodeThread, wire: HttpConnection, session: HttpSession) -> None:
    wire.send(session.get())
    assert wire.head()[0] == 200


# -- ids


def test_new_client_gets_event_id_first(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as wire:
        open_own(shared_node, wire, session)
        fields = wire.primed()
        assert int(fields["retry"]) > 0
        tell(shared_node, session, "a")
        assert event_fields(wire.chunk())["id"] != fields["id"]


def test_older_client_gets_no_empty_event(shared_node: NodeThread) -> None:
    session = shared_node.session(OLDER)
    with shared_node.connect() as wire:
        open_own(shared_node, wire, session)
        tell(shared_node, session, "a")
        fields = event_fields(wire.chunk())
        assert fields["data"]
        assert fields["id"]


def test_event_ids_are_unique_across_sessions(shared_node: NodeThread) -> None:
    ids: list[str] = []
    for session in (shared_node.session(), shared_node.session()):
        for _ in range(2):
            with shared_node.connect() as wire:
                open_own(shared_node, wire, session)
                tell(shared_node, session, "a", "b")
                ids += [event_fields(wire.chunk())["id"] for _ in range(3)]
    assert len(set(ids)) == 12


def test_stateless_streams_have_no_event_ids(shared_node: NodeThread) -> None:
    with shared_node.connect() as wire:
        wire.send(shared_node.call("report", {"steps": 1}, more_meta={"progressToken": 1}))
        assert wire.head()[0] == 200
        assert set(event_fields(wire.chunk())) == {"data"}


# -- the session's own stream


def test_resumed_stream_sends_missed_events_first(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as wire:
        open_own(shared_node, wire, session)
        tell(shared_node, session, "seen", "lost", "lost too")
        assert names(wire, 1) == ["seen"]
        last = wire.last_event_id
    left(shared_node, session)
    tell(shared_node, session, "while away")
    with shared_node.connect() as wire:
        came_back(wire, session, last)
        tell(shared_node, session, "later")
        assert names(wire, 4) == ["lost", "lost too", "while away", "later"]
        last = wire.last_event_id
        # Again, with nothing missed, and while the other connection still looks alive.
        with shared_node.connect() as newer:
            came_back(newer, session, last)
            wire.stream_end()
            tell(shared_node, session, "now")
            assert names(newer, 1) == ["now"]


def test_resumes_stream_without_events(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as wire:
        open_own(shared_node, wire, session)
        wire.primed()
        last = wire.last_event_id
    left(shared_node, session)
    tell(shared_node, session, "a")
    with shared_node.connect() as wire:
        came_back(wire, session, last)
        assert names(wire, 1) == ["a"]


def test_new_stream_omits_old_events(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as wire:
        open_own(shared_node, wire, session)
        wire.primed()
        last = wire.last_event_id
    left(shared_node, session)
    tell(shared_node, session, "old")
    with shared_node.connect() as wire:
        open_own(shared_node, wire, session)
        tell(shared_node, session, "new")
        assert names(wire, 1) == ["new"]
    assert shared_node.once(resume(session, last)).status == 400


# -- a request's stream


@pytest.mark.parametrize("version", ["2025-11-25", OLDER])
@pytest.mark.parametrize("answered", ["while away", "after"])
def test_keeps_response_for_resumed_stream(start_node: Any, version: str, answered: str) -> None:
    node = start_node()
    session = node.session(version)
    with node.connect() as wire:
        wire.send(session.call("hold", {"text": "w"}, "c", _meta={"progressToken": 1}))
        held = node.shop.wait_for_hold("w")
        node.do(lambda: node.shop.progress(held, 1))
        assert wire.head()[0] == 200
        assert wire.event()["params"]["progress"] == 1
        last = wire.last_event_id
    left(node, session)
    node.do(lambda: node.shop.progress(held, 2))
    if answered == "while away":
        node.do(lambda: node.shop.release(held))
        node.until(lambda: not list(node.node.pipeline.running_calls()))
    with node.connect() as own, node.connect() as wire:
        # Nothing of it comes on the session's own stream.
        own.send(session.get())
        assert own.head()[0] == 200
        if version != OLDER:
            own.primed()
        came_back(wire, session, last)
        assert wire.event()["params"]["progress"] == 2
        if answered == "after":
            node.do(lambda: node.shop.release(held))
        answer = wire.event()
        assert (answer["id"], result_text(answer)) == ("c", "released")
        wire.stream_end()
        own.silent()
    assert not node.shop.heard_of("notifications/cancelled")
    # Whoever missed even that may ask once more.
    with node.connect() as wire:
        came_back(wire, session, last)
        assert wire.event()["params"]["progress"] == 2
        assert result_text(wire.event()) == "released"
        wire.stream_end()


def test_keeps_client_request_for_resumed_stream(shared_node: NodeThread) -> None:
    from tests.core.server.test_client_requests import Asked, answer, call_of

    session, asked = shared_node.session(), Asked()
    with shared_node.connect() as wire:
        wire.send(session.call("hold", {"text": "q"}, "c", _meta={"progressToken": 1}))
        held = shared_node.shop.wait_for_hold("q")
        shared_node.do(lambda: shared_node.shop.progress(held, 1))
        assert wire.head()[0] == 200
        wire.event()
        last = wire.last_event_id
    left(shared_node, session)
    assert shared_node.do(
        lambda: served(shared_node, session).send_request(asked.ask, call_of(shared_node, "q"))
    )
    with shared_node.connect() as wire:
        came_back(wire, session, last)
        answer(shared_node, session, wire.event()["id"], result={"action": "accept"})
        assert asked.answers
        shared_node.do(lambda: shared_node.shop.release(held))
        assert result_text(wire.event()) == "released"


def test_client_resumes_stream_closed_by_node(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as wire:
        wire.send(session.call("hold", {"text": "polled"}, "c", _meta={"progressToken": 1}))
        held = shared_node.shop.wait_for_hold("polled")
        shared_node.do(lambda: shared_node.shop.progress(held, 1))
        assert wire.head()[0] == 200
        wire.event()
        shared_node.do(
            lambda: served(shared_node, session).close_stream(
                next(iter(shared_node.node.pipeline.running_calls()))
            )
        )
        wire.stream_end()
        # On the same connection, even.
        came_back(wire, session, wire.last_event_id)
        shared_node.do(lambda: shared_node.shop.release(held))
        assert result_text(wire.event()) == "released"
        wire.stream_end()


def test_cancelled_request_leaves_ended_stream(start_node: Any) -> None:
    node = start_node()
    session = node.session()
    with node.connect() as wire:
        wire.send(session.call("hold", {"text": "x"}, "c", _meta={"progressToken": 1}))
        held = node.shop.wait_for_hold("x")
        node.do(lambda: node.shop.progress(held, 1))
        assert wire.head()[0] == 200
        wire.event()
        last = wire.last_event_id
    left(node, session)
    data = session.request("notifications/cancelled", {"requestId": "c"}, None)
    assert node.once(data).status == 202
    with node.connect() as wire:
        came_back(wire, session, last)
        wire.stream_end()


# -- refusals


def test_rejects_foreign_and_forged_event_ids(shared_node: NodeThread) -> None:
    mine, theirs = shared_node.session(), shared_node.session()
    with shared_node.connect() as one, shared_node.connect() as other:
        for wire, session in ((one, mine), (other, theirs)):
            open_own(shared_node, wire, session)
            wire.primed()
        tell(shared_node, theirs, "secret")
        assert names(other, 1) == ["secret"]
        mark, number, seen = one.last_event_id.split("-")
        forged = [
            other.last_event_id,
            f"{mark}-{number}-{int(seen) + 1}",
            f"{mark}-{number}-{10**30}",
            f"{mark}-{int(number) + 1}-0",
            f"{mark}-{number}--1",
            f"{mark}-{number}",
            f"{mark}-x-y",
            "",
            "0",
            "-" * 50,
            "\u00fc",
        ]
        for last in forged:
            answer = shared_node.once(resume(mine, last))
            assert (answer.status, answer.error["code"]) == (400, -32600), last
            assert b"secret" not in answer.body
            assert "Last-Event-ID" in answer.error["message"]
        # The session lives on, and so does its stream.
        tell(shared_node, mine, "still")
        assert names(one, 1) == ["still"]


def test_rejects_repeated_event_id_header(shared_node: NodeThread) -> None:
    session = shared_node.session()
    data = session.get(("Last-Event-ID", "a"), ("Last-Event-ID", "b"))
    assert shared_node.once(data).status == 400


def test_rejects_resume_of_other_caller(start_node: Any) -> None:
    node = start_node(
        tokens={
            "operator": "a-token-of-operator-1234567890",
            "auditor": "b-token-of-auditor-1234567890",
        }
    )
    operator = node.session(
        "2025-11-25", ("Authorization", "Bearer a-token-of-operator-1234567890")
    )
    with node.connect() as wire:
        open_own(node, wire, operator)
        wire.primed()
        auditor = node.http(
            b"",
            ("Mcp-Session-Id", operator.id),
            ("Authorization", "Bearer b-token-of-auditor-1234567890"),
            ("Last-Event-ID", wire.last_event_id),
            method="GET",
        )
        assert node.once(auditor).status == 404
        tell(node, operator, "mine")
        assert names(wire, 1) == ["mine"]


def test_rejects_resume_of_ended_session(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as wire:
        open_own(shared_node, wire, session)
        wire.primed()
        last = wire.last_event_id
        assert shared_node.once(session.delete()).status == 200
        wire.stream_end()
    assert shared_node.once(resume(session, last)).status == 404


# -- bounds


def test_limits_stored_events(shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "MOST_EVENTS", 3)
    session = shared_node.session()
    with shared_node.connect() as wire:
        open_own(shared_node, wire, session)
        wire.primed()
        ids = [wire.last_event_id]
        for name in "abcde":
            tell(shared_node, session, name)
            assert names(wire, 1) == [name]
            ids.append(wire.last_event_id)
    left(shared_node, session)
    for last in ids[:2]:
        answer = shared_node.once(resume(session, last))
        assert answer.status == 400
        assert "no longer kept" in answer.error["message"]
    with shared_node.connect() as wire:
        came_back(wire, session, ids[2])
        assert names(wire, 3) == ["c", "d", "e"]


def test_limits_stored_bytes(
    shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlets, "MOST_BYTES", 1_000)
    session = shared_node.session()
    with shared_node.connect() as wire:
        open_own(shared_node, wire, session)
        wire.primed()
        first = wire.last_event_id
        tell(shared_node, session, "a" * 600, "b" * 600)
        wire.event()
        second = wire.last_event_id
    left(shared_node, session)
    assert shared_node.once(resume(session, first)).status == 400
    # The last one is always kept, however long it is.
    tell(shared_node, session, "c" * 5_000)
    assert shared_node.once(resume(session, second)).status == 400
    (outlet,) = shared_node.do(lambda: list(served(shared_node, session).streams._streams.values()))
    assert len(outlet._events) == 1


def test_removes_ended_streams_after_timeout(
    start_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlets, "KEPT_FOR", 0.01)
    node = start_node()
    session = node.session()
    with node.connect() as wire:
        wire.send(session.call("report", {"steps": 1}, "c", _meta={"progressToken": 1}))
        assert wire.head()[0] == 200
        wire.event()
        last = wire.last_event_id
        assert result_text(wire.event()) == "reported"
        wire.stream_end()
    node.until(lambda: not len(served(node, session).streams), "to be forgotten")
    answer = node.once(resume(session, last))
    assert answer.status == 400
    assert "no longer kept" in answer.error["message"]


def test_limits_stored_streams(start_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "MOST_STREAMS", 2)
    node = start_node()
    session = node.session()
    ids = []
    for _ in range(4):
        with node.connect() as wire:
            wire.send(session.call("report", {"steps": 1}, "c", _meta={"progressToken": 1}))
            assert wire.head()[0] == 200
            wire.event()
            ids.append(wire.last_event_id)
            wire.event()
            wire.stream_end()
    assert node.do(lambda: len(served(node, session).streams)) == 2
    assert [node.once(resume(session, last)).status for last in ids] == [400, 400, 200, 200]


def test_ended_session_removes_streams(start_node: Any) -> None:
    node = start_node()
    session = node.session()
    with node.connect() as wire:
        wire.send(session.call("report", {"steps": 1}, "c", _meta={"progressToken": 1}))
        assert result_text(_last(wire)) == "reported"
    one = node.do(lambda: served(node, session))
    assert len(one.streams) == 1
    (outlet,) = one.streams._streams.values()
    assert outlet.expiry_timer is not None
    node.once(session.delete())
    assert len(one.streams) == 0
    assert outlet.expiry_timer is None


def _last(wire: HttpConnection) -> Any:
    assert wire.head()[0] == 200
    wire.event()
    last = wire.event()
    wire.stream_end()
    return last
