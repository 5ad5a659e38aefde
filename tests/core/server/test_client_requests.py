"""Client requests to sessions, and the responses of their clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from interlock.core.call import Call, ClientRequest, ClientResponse
from interlock.core.server.mcp.sessions import Session as Served
from tests.support.http_client import HttpConnection, initialize, message
from tests.support.node import HttpSession, NodeThread, result_text

FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}


class RecordedRequest:
    """A client request, with its responses and progress."""

    def __init__(self, method: str = "elicitation/create", params: Any = FORM) -> None:
        self.answers: list[ClientResponse] = []
        self.progress: list[Any] = []
        raw = b"" if params is None else json.dumps(params).encode()
        self.ask = ClientRequest(method, raw, self.answers.append)
        token = ((params or {}).get("_meta") or {}).get("progressToken")
        if token is not None:
            self.ask.progress_token = json.dumps(token).encode()
            self.ask.on_progress = lambda raw: self.progress.append(json.loads(bytes(raw)))


def node_session(node: NodeThread, session: HttpSession) -> Served:
    return node.node.sessions._sessions[session.id]


def call_of(node: NodeThread, text: str) -> Call:
    """Return the pending call with `text` in its arguments."""
    (result,) = (
        call
        for call in node.node.pipeline.running_calls()
        if text.encode() in bytes(call.arguments)
    )
    return result


def send_to_session(
    node: NodeThread, session: HttpSession, recorded: RecordedRequest, call: Call | None = None
) -> bool:
    return node.do(lambda: node_session(node, session).send_request(recorded.ask, call))


def post_response(node: NodeThread, session: HttpSession, id: Any, **members: Any) -> int:
    """Post a response."""
    body = json.dumps({"jsonrpc": "2.0", "id": id, **members}).encode()
    return node.once(session.raw(body)).status


@contextmanager
def open_stream(node: NodeThread, session: HttpSession) -> Iterator[HttpConnection]:
    with node.connect() as connection:
        connection.send(session.get())
        assert connection.head()[0] == 200
        yield connection


def wait_for_rejection(node: NodeThread, recorded: RecordedRequest, why: str) -> None:
    node.until(lambda: recorded.answers, why)
    (one,) = recorded.answers
    assert one.code == -32603
    assert "disconnected" in one.message


# -- there and back


def test_sends_request_on_session_stream(shared_node: NodeThread) -> None:
    session, recorded = shared_node.session(), RecordedRequest()
    with open_stream(shared_node, session) as connection:
        assert send_to_session(shared_node, session, recorded)
        client_request = connection.event()
        assert client_request == {
            "jsonrpc": "2.0",
            "id": client_request["id"],
            "method": "elicitation/create",
            "params": FORM,
        }
        assert (
            post_response(shared_node, session, client_request["id"], result={"action": "decline"})
            == 202
        )
        (one,) = recorded.answers
        assert json.loads(one.result) == {"action": "decline"}
        assert not one.is_error
        # Once is enough.
        assert (
            post_response(shared_node, session, client_request["id"], result={"action": "accept"})
            == 202
        )
        assert len(recorded.answers) == 1


def test_omits_absent_params(shared_node: NodeThread) -> None:
    session, recorded = shared_node.session(), RecordedRequest("roots/list", None)
    with open_stream(shared_node, session) as connection:
        assert send_to_session(shared_node, session, recorded)
        client_request = connection.event()
        assert set(client_request) == {"jsonrpc", "id", "method"}
        post_response(shared_node, session, client_request["id"], result={"roots": []})
        assert json.loads(recorded.answers[0].result) == {"roots": []}


def test_relays_error_response(shared_node: NodeThread) -> None:
    session, recorded = shared_node.session(), RecordedRequest()
    with open_stream(shared_node, session) as connection:
        send_to_session(shared_node, session, recorded)
        error = {"code": -1, "message": "The user said no.", "data": {"why": "nö"}}
        post_response(shared_node, session, connection.event()["id"], error=error)
        (one,) = recorded.answers
        assert (one.code, one.message) == (-1, "The user said no.")
        assert json.loads(bytes(one.data or b"")) == {"why": "nö"}


def test_ignores_unexpected_responses(shared_node: NodeThread) -> None:
    session, other = shared_node.session(), shared_node.session()
    recorded = RecordedRequest()
    with open_stream(shared_node, session) as connection:
        send_to_session(shared_node, session, recorded)
        id = connection.event()["id"]
        for invalid in (id + 1, str(id), -id, "x", 10**40):
            assert post_response(shared_node, session, invalid, result={}) == 202
        # The same id on another session is another question, or none.
        assert post_response(shared_node, other, id, result={}) == 202
        assert not recorded.answers
        post_response(shared_node, session, id, result={"mine": True})
        assert json.loads(recorded.answers[0].result) == {"mine": True}


def test_concurrent_requests_have_different_ids(shared_node: NodeThread) -> None:
    session = shared_node.session()
    recorded_requests = [
        RecordedRequest("sampling/createMessage", {"n": number}) for number in range(10)
    ]
    with open_stream(shared_node, session) as connection:
        for recorded in recorded_requests:
            send_to_session(shared_node, session, recorded)
        ids = {}
        for _ in recorded_requests:
            client_request = connection.event()
            ids[client_request["params"]["n"]] = client_request["id"]
        assert len(set(ids.values())) == 10
        for number in reversed(range(10)):
            post_response(shared_node, session, ids[number], result={"n": number})
        assert [json.loads(item.answers[0].result)["n"] for item in recorded_requests] == list(
            range(10)
        )
        # And none of them ever comes again.
        again = RecordedRequest()
        send_to_session(shared_node, session, again)
        assert connection.event()["id"] not in ids.values()


def test_limits_pending_requests(shared_node: NodeThread) -> None:
    session = shared_node.session()
    recorded_requests = [RecordedRequest() for _ in range(101)]
    with open_stream(shared_node, session):
        assert [send_to_session(shared_node, session, item) for item in recorded_requests] == [
            True
        ] * 100 + [False]
        assert recorded_requests[-1].ask.is_open


def test_rejects_request_without_stream(shared_node: NodeThread) -> None:
    session, recorded = shared_node.session(), RecordedRequest()
    assert not send_to_session(shared_node, session, recorded)
    assert recorded.ask.is_open
    assert not recorded.answers


# -- on a call's own stream


def test_sends_request_of_call_on_its_stream(shared_node: NodeThread) -> None:
    session, recorded = shared_node.session(), RecordedRequest()
    with open_stream(shared_node, session) as own, shared_node.connect() as connection:
        own.read_event_id()
        connection.send(session.call("hold", {"text": "asked"}, "c"))
        pending_call = shared_node.shop.wait_for_hold("asked")
        assert send_to_session(
            shared_node, session, recorded, shared_node.do(lambda: call_of(shared_node, "asked"))
        )
        assert connection.head()[0] == 200
        connection.read_event_id()
        client_request = connection.event()
        assert client_request["method"] == "elicitation/create"
        post_response(shared_node, session, client_request["id"], result={"action": "accept"})
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        assert result_text(connection.event()) == "released"
        connection.stream_end()
        own.expect_silence()
        assert json.loads(recorded.answers[0].result) == {"action": "accept"}


def test_client_without_call_stream_gets_request_on_session_stream(shared_node: NodeThread) -> None:
    session, recorded = shared_node.session(), RecordedRequest()
    data = session.call("hold", {"text": "json"}, "c")
    data = data.replace(b"application/json, text/event-stream", b"application/json")
    with open_stream(shared_node, session) as own, shared_node.connect() as connection:
        connection.send(data)
        pending_call = shared_node.shop.wait_for_hold("json")
        assert send_to_session(
            shared_node, session, recorded, shared_node.do(lambda: call_of(shared_node, "json"))
        )
        assert own.event()["method"] == "elicitation/create"
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        assert result_text(connection.read_response()) == "released"


# -- withdrawn


@pytest.mark.parametrize("about_a_call", [True, False])
def test_withdrawn_request_is_cancelled(shared_node: NodeThread, about_a_call: bool) -> None:
    session, recorded = shared_node.session(), RecordedRequest()
    text = f"withdrawn {about_a_call}"
    with open_stream(shared_node, session) as own, shared_node.connect() as connection:
        call = None
        if about_a_call:
            connection.send(session.call("hold", {"text": text}, "c"))
            pending_call = shared_node.shop.wait_for_hold(text)
            call = shared_node.do(lambda: call_of(shared_node, text))
        send_to_session(shared_node, session, recorded, call)
        where = own
        if about_a_call:
            assert connection.head()[0] == 200
            where = connection
        id = where.event()["id"]
        shared_node.do(lambda: recorded.ask.withdraw("Never mind."))
        assert where.event() == {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "Never mind."},
        }
        # Its answer comes too late.
        assert post_response(shared_node, session, id, result={}) == 202
        assert not recorded.answers
        if about_a_call:
            shared_node.do(lambda: shared_node.shop.release(pending_call))


# -- ends


def test_ended_session_rejects_pending_requests(shared_node: NodeThread) -> None:
    session, recorded = shared_node.session(), RecordedRequest()
    ended: list[str] = []
    with open_stream(shared_node, session) as connection:
        send_to_session(shared_node, session, recorded)
        connection.event()
        one = shared_node.do(lambda: node_session(shared_node, session))

        def fails() -> None:
            raise RuntimeError("on purpose")

        one.on_close += [lambda: ended.append("first"), fails, lambda: ended.append("last")]
        assert shared_node.once(session.delete()).status == 200
        wait_for_rejection(shared_node, recorded, "a refusal")
        assert ended == ["first", "last"]
        assert not one.is_alive
        late = RecordedRequest()
        assert not shared_node.do(lambda: one.send_request(late.ask, None))


# -- what a client says on its way


def test_relays_progress_of_client(shared_node: NodeThread) -> None:
    session = shared_node.session()
    # Two servers that use the same token by chance.
    recorded_requests = [
        RecordedRequest("sampling/createMessage", {"_meta": {"progressToken": "t", "k": 1}})
    ]
    recorded_requests.append(
        RecordedRequest("sampling/createMessage", {"_meta": {"progressToken": "t"}})
    )
    with open_stream(shared_node, session) as connection:
        tokens = []
        for recorded in recorded_requests:
            send_to_session(shared_node, session, recorded)
            client_request = connection.event()
            tokens.append(client_request["params"]["_meta"]["progressToken"])
            assert tokens[-1] == client_request["id"]
        for number, token in enumerate(tokens):
            params = {"progressToken": token, "progress": number}
            data = session.request("notifications/progress", params, None)
            assert shared_node.once(data).status == 202
        assert [item.progress for item in recorded_requests] == [
            [{"progressToken": "t", "progress": 0}],
            [{"progressToken": "t", "progress": 1}],
        ]
        invalid: Any
        for invalid in ({"progressToken": 99, "progress": 1}, {}, [], {"progressToken": "t"}):
            data = session.request("notifications/progress", invalid, None)
            assert shared_node.once(data).status == 202
        assert [len(item.progress) for item in recorded_requests] == [1, 1]


def test_relays_roots_change(shared_node: NodeThread) -> None:
    session = shared_node.session()
    received: list[str] = []
    shared_node.do(
        lambda: node_session(shared_node, session).on_roots_changed.append(
            lambda: received.append("x")
        )
    )
    data = session.request("notifications/roots/list_changed", None, None)
    assert shared_node.once(data).status == 202
    assert shared_node.once(
        shared_node.session().request("notifications/roots/list_changed", None, None)
    )
    assert received == ["x"]


def test_accepts_response_in_batch(shared_node: NodeThread) -> None:
    session, recorded = shared_node.session("2025-03-26"), RecordedRequest()
    with open_stream(shared_node, session) as connection:
        send_to_session(shared_node, session, recorded)
        response = {
            "jsonrpc": "2.0",
            "id": connection.event()["id"],
            "result": {"action": "cancel"},
        }
        ping = {"jsonrpc": "2.0", "id": 9, "method": "ping"}
        responses = shared_node.once(session.raw(json.dumps([response, ping]).encode())).json
        assert responses == [{"jsonrpc": "2.0", "id": 9, "result": {}}]
        assert json.loads(recorded.answers[0].result) == {"action": "cancel"}
        assert shared_node.once(session.raw(json.dumps([response]).encode())).status == 202


# -- on a channel of lines


def open_line_session(node: NodeThread, connection: HttpConnection) -> Served:
    """Open a session on a line connection."""
    before = set(node.node._change_listeners._sessions)
    connection.send(message("initialize", initialize(), 0) + b"\n")
    assert connection.line()["id"] == 0
    connection.send(message("notifications/initialized", None, None) + b"\n")
    connection.send(message("ping", None, 1) + b"\n")
    assert connection.line() == {"jsonrpc": "2.0", "id": 1, "result": {}}
    (session,) = set(node.node._change_listeners._sessions) - before
    return session


def test_sends_requests_over_lines(shared_node: NodeThread) -> None:
    recorded, withdrawn, remaining = RecordedRequest(), RecordedRequest(), RecordedRequest()
    with shared_node.local() as connection:
        session = open_line_session(shared_node, connection)
        assert shared_node.do(lambda: session.send_request(recorded.ask, None))
        client_request = connection.line()
        assert client_request["params"] == FORM
        response = {"jsonrpc": "2.0", "id": client_request["id"], "result": {"action": "accept"}}
        connection.send(json.dumps(response).encode() + b"\n")
        shared_node.until(lambda: recorded.answers)
        assert json.loads(recorded.answers[0].result) == {"action": "accept"}
        shared_node.do(lambda: session.send_request(withdrawn.ask, None))
        id = connection.line()["id"]
        shared_node.do(lambda: withdrawn.ask.withdraw("No."))
        assert connection.line()["params"] == {"requestId": id, "reason": "No."}
        shared_node.do(lambda: session.send_request(remaining.ask, None))
        assert connection.line()["id"] not in (id, client_request["id"])
        assert session.is_alive
    wait_for_rejection(shared_node, remaining, "a refusal when the client hangs up")
    assert not session.is_alive
    assert session not in shared_node.node._change_listeners._sessions


def test_sends_notifications_over_lines(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        session = open_line_session(shared_node, connection)
        shared_node.do(lambda: session.send_resource_update("x:y"))
        assert connection.line() == {
            "jsonrpc": "2.0",
            "method": "notifications/resources/updated",
            "params": {"uri": "x:y"},
        }
        received: list[str] = []
        session.on_roots_changed.append(lambda: received.append("x"))
        connection.send(message("notifications/roots/list_changed", None, None) + b"\n")
        shared_node.until(lambda: received)
