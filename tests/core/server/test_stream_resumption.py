"""Resumption of broken session streams: event ids, missed events and limits."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.server.mcp import event_streams as outlets
from interlock.core.server.mcp.sessions import HttpSession as NodeSession
from tests.support.http_client import HttpConnection, event_fields
from tests.support.node import HttpSession, NodeThread, result_text

OLDER = "2025-06-18"


def node_session(node: NodeThread, session: HttpSession) -> NodeSession:
    return node.node.sessions._sessions[session.id]


def send_notifications(node: NodeThread, session: HttpSession, *read_names: str) -> None:
    def all() -> None:
        for name in read_names:
            node_session(node, session).send_notification(f"notifications/{name}", None)

    node.do(all)


def resume_request(session: HttpSession, last: str) -> bytes:
    return session.get(("Last-Event-ID", last))


def resume_stream(connection: HttpConnection, session: HttpSession, last: str) -> None:
    connection.send(resume_request(session, last))
    status, headers = connection.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream")


def wait_for_disconnect(node: NodeThread, session: HttpSession, kept: int = 1) -> None:
    """Wait until the node knows that the connection is gone."""

    def alone() -> bool:
        streams = node_session(node, session).streams._streams.values()
        return len(streams) == kept and all(stream.connection is None for stream in streams)

    node.until(alone, "the end of a connection")


def read_names(connection: HttpConnection, count: int) -> list[str]:
    return [connection.event()["method"].partition("/")[2] for _ in range(count)]


def open_session_stream(node: NodeThread, connection: HttpConnection, session: HttpSession) -> None:
    connection.send(session.get())
    assert connection.head()[0] == 200


# -- ids


def test_new_client_gets_event_id_first(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as connection:
        open_session_stream(shared_node, connection, session)
        fields = connection.read_event_id()
        assert int(fields["retry"]) > 0
        send_notifications(shared_node, session, "a")
        assert event_fields(connection.chunk())["id"] != fields["id"]


def test_older_client_gets_no_empty_event(shared_node: NodeThread) -> None:
    session = shared_node.session(OLDER)
    with shared_node.connect() as connection:
        open_session_stream(shared_node, connection, session)
        send_notifications(shared_node, session, "a")
        fields = event_fields(connection.chunk())
        assert fields["data"]
        assert fields["id"]


def test_event_ids_are_unique_across_sessions(shared_node: NodeThread) -> None:
    ids: list[str] = []
    for session in (shared_node.session(), shared_node.session()):
        for _ in range(2):
            with shared_node.connect() as connection:
                open_session_stream(shared_node, connection, session)
                send_notifications(shared_node, session, "a", "b")
                ids += [event_fields(connection.chunk())["id"] for _ in range(3)]
    assert len(set(ids)) == 12


def test_stateless_streams_have_no_event_ids(shared_node: NodeThread) -> None:
    with shared_node.connect() as connection:
        connection.send(shared_node.call("report", {"steps": 1}, more_meta={"progressToken": 1}))
        assert connection.head()[0] == 200
        assert set(event_fields(connection.chunk())) == {"data"}


# -- the session's own stream


def test_resumed_stream_sends_missed_events_first(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as connection:
        open_session_stream(shared_node, connection, session)
        send_notifications(shared_node, session, "seen", "lost", "lost too")
        assert read_names(connection, 1) == ["seen"]
        last = connection.last_event_id
    wait_for_disconnect(shared_node, session)
    send_notifications(shared_node, session, "while away")
    with shared_node.connect() as connection:
        resume_stream(connection, session, last)
        send_notifications(shared_node, session, "later")
        assert read_names(connection, 4) == ["lost", "lost too", "while away", "later"]
        last = connection.last_event_id
        # Again, with nothing missed, and while the other connection still looks alive.
        with shared_node.connect() as newer:
            resume_stream(newer, session, last)
            connection.stream_end()
            send_notifications(shared_node, session, "now")
            assert read_names(newer, 1) == ["now"]


def test_resumes_stream_without_events(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as connection:
        open_session_stream(shared_node, connection, session)
        connection.read_event_id()
        last = connection.last_event_id
    wait_for_disconnect(shared_node, session)
    send_notifications(shared_node, session, "a")
    with shared_node.connect() as connection:
        resume_stream(connection, session, last)
        assert read_names(connection, 1) == ["a"]


def test_new_stream_omits_old_events(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as connection:
        open_session_stream(shared_node, connection, session)
        connection.read_event_id()
        last = connection.last_event_id
    wait_for_disconnect(shared_node, session)
    send_notifications(shared_node, session, "old")
    with shared_node.connect() as connection:
        open_session_stream(shared_node, connection, session)
        send_notifications(shared_node, session, "new")
        assert read_names(connection, 1) == ["new"]
    assert shared_node.once(resume_request(session, last)).status == 400


# -- a request's stream


@pytest.mark.parametrize("version", ["2025-11-25", OLDER])
@pytest.mark.parametrize("answered", ["while away", "after"])
def test_keeps_response_for_resumed_stream(start_node: Any, version: str, answered: str) -> None:
    node = start_node()
    session = node.session(version)
    with node.connect() as connection:
        connection.send(session.call("hold", {"text": "w"}, "c", _meta={"progressToken": 1}))
        pending_call = node.shop.wait_for_hold("w")
        node.do(lambda: node.shop.progress(pending_call, 1))
        assert connection.head()[0] == 200
        assert connection.event()["params"]["progress"] == 1
        last = connection.last_event_id
    wait_for_disconnect(node, session)
    node.do(lambda: node.shop.progress(pending_call, 2))
    if answered == "while away":
        node.do(lambda: node.shop.release(pending_call))
        node.until(lambda: not list(node.node.pipeline.running_calls()))
    with node.connect() as own, node.connect() as connection:
        # Nothing of it comes on the session's own stream.
        own.send(session.get())
        assert own.head()[0] == 200
        if version != OLDER:
            own.read_event_id()
        resume_stream(connection, session, last)
        assert connection.event()["params"]["progress"] == 2
        if answered == "after":
            node.do(lambda: node.shop.release(pending_call))
        response = connection.event()
        assert (response["id"], result_text(response)) == ("c", "released")
        connection.stream_end()
        own.expect_silence()
    assert not node.shop.find_received("notifications/cancelled")
    # Whoever missed even that may ask once more.
    with node.connect() as connection:
        resume_stream(connection, session, last)
        assert connection.event()["params"]["progress"] == 2
        assert result_text(connection.event()) == "released"
        connection.stream_end()


def test_keeps_client_request_for_resumed_stream(shared_node: NodeThread) -> None:
    from tests.core.server.test_client_requests import RecordedRequest, call_of, post_response

    session, request = shared_node.session(), RecordedRequest()
    with shared_node.connect() as connection:
        connection.send(session.call("hold", {"text": "q"}, "c", _meta={"progressToken": 1}))
        pending_call = shared_node.shop.wait_for_hold("q")
        shared_node.do(lambda: shared_node.shop.progress(pending_call, 1))
        assert connection.head()[0] == 200
        connection.event()
        last = connection.last_event_id
    wait_for_disconnect(shared_node, session)
    assert shared_node.do(
        lambda: node_session(shared_node, session).send_request(
            request.ask, call_of(shared_node, "q")
        )
    )
    with shared_node.connect() as connection:
        resume_stream(connection, session, last)
        post_response(shared_node, session, connection.event()["id"], result={"action": "accept"})
        assert request.answers
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        assert result_text(connection.event()) == "released"


def test_client_resumes_stream_closed_by_node(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as connection:
        connection.send(session.call("hold", {"text": "polled"}, "c", _meta={"progressToken": 1}))
        pending_call = shared_node.shop.wait_for_hold("polled")
        shared_node.do(lambda: shared_node.shop.progress(pending_call, 1))
        assert connection.head()[0] == 200
        connection.event()
        shared_node.do(
            lambda: node_session(shared_node, session).close_stream(
                next(iter(shared_node.node.pipeline.running_calls()))
            )
        )
        connection.stream_end()
        # On the same connection, even.
        resume_stream(connection, session, connection.last_event_id)
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        assert result_text(connection.event()) == "released"
        connection.stream_end()


def test_cancelled_request_leaves_ended_stream(start_node: Any) -> None:
    node = start_node()
    session = node.session()
    with node.connect() as connection:
        connection.send(session.call("hold", {"text": "x"}, "c", _meta={"progressToken": 1}))
        pending_call = node.shop.wait_for_hold("x")
        node.do(lambda: node.shop.progress(pending_call, 1))
        assert connection.head()[0] == 200
        connection.event()
        last = connection.last_event_id
    wait_for_disconnect(node, session)
    data = session.request("notifications/cancelled", {"requestId": "c"}, None)
    assert node.once(data).status == 202
    with node.connect() as connection:
        resume_stream(connection, session, last)
        connection.stream_end()


# -- refusals


def test_rejects_foreign_and_forged_event_ids(shared_node: NodeThread) -> None:
    mine, theirs = shared_node.session(), shared_node.session()
    with shared_node.connect() as one, shared_node.connect() as other:
        for connection, session in ((one, mine), (other, theirs)):
            open_session_stream(shared_node, connection, session)
            connection.read_event_id()
        send_notifications(shared_node, theirs, "secret")
        assert read_names(other, 1) == ["secret"]
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
            response = shared_node.once(resume_request(mine, last))
            assert (response.status, response.error["code"]) == (400, -32600), last
            assert b"secret" not in response.body
            assert "Last-Event-ID" in response.error["message"]
        # The session lives on, and so does its stream.
        send_notifications(shared_node, mine, "still")
        assert read_names(one, 1) == ["still"]


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
    with node.connect() as connection:
        open_session_stream(node, connection, operator)
        connection.read_event_id()
        auditor = node.http(
            b"",
            ("Mcp-Session-Id", operator.id),
            ("Authorization", "Bearer b-token-of-auditor-1234567890"),
            ("Last-Event-ID", connection.last_event_id),
            method="GET",
        )
        assert node.once(auditor).status == 404
        send_notifications(node, operator, "mine")
        assert read_names(connection, 1) == ["mine"]


def test_rejects_resume_of_ended_session(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as connection:
        open_session_stream(shared_node, connection, session)
        connection.read_event_id()
        last = connection.last_event_id
        assert shared_node.once(session.delete()).status == 200
        connection.stream_end()
    assert shared_node.once(resume_request(session, last)).status == 404


# -- bounds


def test_limits_stored_events(shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "MAX_EVENTS", 3)
    session = shared_node.session()
    with shared_node.connect() as connection:
        open_session_stream(shared_node, connection, session)
        connection.read_event_id()
        ids = [connection.last_event_id]
        for name in "abcde":
            send_notifications(shared_node, session, name)
            assert read_names(connection, 1) == [name]
            ids.append(connection.last_event_id)
    wait_for_disconnect(shared_node, session)
    for last in ids[:2]:
        response = shared_node.once(resume_request(session, last))
        assert response.status == 400
        assert "no longer kept" in response.error["message"]
    with shared_node.connect() as connection:
        resume_stream(connection, session, ids[2])
        assert read_names(connection, 3) == ["c", "d", "e"]


def test_limits_stored_bytes(shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "MAX_BYTES", 1_000)
    session = shared_node.session()
    with shared_node.connect() as connection:
        open_session_stream(shared_node, connection, session)
        connection.read_event_id()
        first = connection.last_event_id
        send_notifications(shared_node, session, "a" * 600, "b" * 600)
        connection.event()
        second = connection.last_event_id
    wait_for_disconnect(shared_node, session)
    assert shared_node.once(resume_request(session, first)).status == 400
    # The last one is always kept, however long it is.
    send_notifications(shared_node, session, "c" * 5_000)
    assert shared_node.once(resume_request(session, second)).status == 400
    (outlet,) = shared_node.do(
        lambda: list(node_session(shared_node, session).streams._streams.values())
    )
    assert len(outlet._events) == 1


def test_removes_ended_streams_after_timeout(
    start_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlets, "KEPT_FOR", 0.01)
    node = start_node()
    session = node.session()
    with node.connect() as connection:
        connection.send(session.call("report", {"steps": 1}, "c", _meta={"progressToken": 1}))
        assert connection.head()[0] == 200
        connection.event()
        last = connection.last_event_id
        assert result_text(connection.event()) == "reported"
        connection.stream_end()
    node.until(lambda: not len(node_session(node, session).streams), "to be forgotten")
    response = node.once(resume_request(session, last))
    assert response.status == 400
    assert "no longer kept" in response.error["message"]


def test_limits_stored_streams(start_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "MAX_STREAMS", 2)
    node = start_node()
    session = node.session()
    ids = []
    for _ in range(4):
        with node.connect() as connection:
            connection.send(session.call("report", {"steps": 1}, "c", _meta={"progressToken": 1}))
            assert connection.head()[0] == 200
            connection.event()
            ids.append(connection.last_event_id)
            connection.event()
            connection.stream_end()
    assert node.do(lambda: len(node_session(node, session).streams)) == 2
    assert [node.once(resume_request(session, last)).status for last in ids] == [400, 400, 200, 200]


def test_ended_session_removes_streams(start_node: Any) -> None:
    node = start_node()
    session = node.session()
    with node.connect() as connection:
        connection.send(session.call("report", {"steps": 1}, "c", _meta={"progressToken": 1}))
        assert result_text(read_result(connection)) == "reported"
    one = node.do(lambda: node_session(node, session))
    assert len(one.streams) == 1
    (outlet,) = one.streams._streams.values()
    assert outlet.expiry_timer is not None
    node.once(session.delete())
    assert len(one.streams) == 0
    assert outlet.expiry_timer is None


def read_result(connection: HttpConnection) -> Any:
    assert connection.head()[0] == 200
    connection.event()
    last = connection.event()
    connection.stream_end()
    return last
