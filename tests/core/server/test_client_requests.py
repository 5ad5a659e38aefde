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


class Asked:
    """A question put to a client, and what became of it."""

    def __init__(self, method: str = "elicitation/create", params: Any = FORM) -> None:
        self.answers: list[ClientResponse] = []
        self.progress: list[Any] = []
        raw = b"" if params is None else json.dumps(params).encode()
        self.ask = ClientRequest(method, raw, self.answers.append)
        token = ((params or {}).get("_meta") or {}).get("progressToken")
        if token is not None:
            self.ask.progress_token = json.dumps(token).encode()
            self.ask.on_progress = lambda raw: self.progress.append(json.loads(bytes(raw)))


def served(node: NodeThread, session: HttpSession) -> Served:
    return node.node.sessions._sessions[session.id]


def call_of(node: NodeThread, text: str) -> Call:
    """The call under way that holds `text`."""
    (found,) = (
        one for one in node.node.pipeline.running_calls() if text.encode() in bytes(one.arguments)
    )
    return found


def put(node: NodeThread, session: HttpSession, asked: Asked, call: Call | None = None) -> bool:
    return node.do(lambda: served(node, session).send_request(asked.ask, call))


def answer(node: NodeThread, session: HttpSession, id: Any, **members: Any) -> int:
    """Post a response."""
    body = json.dumps({"jsonrpc": "2.0", "id": id, **members}).encode()
    return node.once(session.raw(body)).status


@contextmanager
def listening(node: NodeThread, session: HttpSession) -> Iterator[HttpConnection]:
    with node.connect() as wire:
        wire.send(session.get())
        assert wire.head()[0] == 200
        yield wire


def refused(node: NodeThread, asked: Asked, why: str) -> None:
    node.until(lambda: asked.answers, why)
    (one,) = asked.answers
    assert one.code == -32603
    assert "gone" in one.message


# -- there and back


def test_sends_request_on_session_stream(shared_node: NodeThread) -> None:
    session, asked = shared_node.session(), Asked()
    with listening(shared_node, session) as wire:
        assert put(shared_node, session, asked)
        question = wire.event()
        assert question == {
            "jsonrpc": "2.0",
            "id": question["id"],
            "method": "elicitation/create",
            "params": FORM,
        }
        assert answer(shared_node, session, question["id"], result={"action": "decline"}) == 202
        (one,) = asked.answers
        assert json.loads(one.result) == {"action": "decline"}
        assert not one.is_error
        # Once is enough.
        assert answer(shared_node, session, question["id"], result={"action": "accept"}) == 202
        assert len(asked.answers) == 1


def test_omits_absent_params(shared_node: NodeThread) -> None:
    session, asked = shared_node.session(), Asked("roots/list", None)
    with listening(shared_node, session) as wire:
        assert put(shared_node, session, asked)
        question = wire.event()
        assert set(question) == {"jsonrpc", "id", "method"}
        answer(shared_node, session, question["id"], result={"roots": []})
        assert json.loads(asked.answers[0].result) == {"roots": []}


def test_relays_error_response(shared_node: NodeThread) -> None:
    session, asked = shared_node.session(), Asked()
    with listening(shared_node, session) as wire:
        put(shared_node, session, asked)
        error = {"code": -1, "message": "The user said no.", "data": {"why": "nö"}}
        answer(shared_node, session, wire.event()["id"], error=error)
        (one,) = asked.answers
        assert (one.code, one.message) == (-1, "The user said no.")
        assert json.loads(bytes(one.data or b"")) == {"why": "nö"}


def test_ignores_unexpected_responses(shared_node: NodeThread) -> None:
    session, other = shared_node.session(), shared_node.session()
    asked = Asked()
    with listening(shared_node, session) as wire:
        put(shared_node, session, asked)
        id = wire.event()["id"]
        for wrong in (id + 1, str(id), -id, "x", 10**40):
            assert answer(shared_node, session, wrong, result={}) == 202
        # The same id on another session is another question, or none.
        assert answer(shared_node, other, id, result={}) == 202
        assert not asked.answers
        answer(shared_node, session, id, result={"mine": True})
        assert json.loads(asked.answers[0].result) == {"mine": True}


def test_concurrent_requests_have_different_ids(shared_node: NodeThread) -> None:
    session = shared_node.session()
    several = [Asked("sampling/createMessage", {"n": number}) for number in range(10)]
    with listening(shared_node, session) as wire:
        for asked in several:
            put(shared_node, session, asked)
        ids = {}
        for _ in several:
            question = wire.event()
            ids[question["params"]["n"]] = question["id"]
        assert len(set(ids.values())) == 10
        for number in reversed(range(10)):
            answer(shared_node, session, ids[number], result={"n": number})
        assert [json.loads(one.answers[0].result)["n"] for one in several] == list(range(10))
        # And none of them ever comes again.
        again = Asked()
        put(shared_node, session, again)
        assert wire.event()["id"] not in ids.values()


def test_limits_pending_requests(shared_node: NodeThread) -> None:
    session = shared_node.session()
    several = [Asked() for _ in range(101)]
    with listening(shared_node, session):
        assert [put(shared_node, session, one) for one in several] == [True] * 100 + [False]
        assert several[-1].ask.is_open


def test_rejects_request_without_stream(shared_node: NodeThread) -> None:
    session, asked = shared_node.session(), Asked()
    assert not put(shared_node, session, asked)
    assert asked.ask.is_open
    assert not asked.answers


# -- on a call's own stream


def test_sends_request_of_call_on_its_stream(shared_node: NodeThread) -> None:
    session, asked = shared_node.session(), Asked()
    with listening(shared_node, session) as own, shared_node.connect() as wire:
        own.primed()
        wire.send(session.call("hold", {"text": "asked"}, "c"))
        held = shared_node.shop.wait_for_hold("asked")
        assert put(
            shared_node, session, asked, shared_node.do(lambda: call_of(shared_node, "asked"))
        )
        assert wire.head()[0] == 200
        wire.primed()
        question = wire.event()
        assert question["method"] == "elicitation/create"
        answer(shared_node, session, question["id"], result={"action": "accept"})
        shared_node.do(lambda: shared_node.shop.release(held))
        assert result_text(wire.event()) == "released"
        wire.stream_end()
        own.silent()
        assert json.loads(asked.answers[0].result) == {"action": "accept"}


def test_client_without_call_stream_gets_request_on_session_stream(shared_node: NodeThread) -> None:
    session, asked = shared_node.session(), Asked()
    data = session.call("hold", {"text": "json"}, "c")
    data = data.replace(b"application/json, text/event-stream", b"application/json")
    with listening(shared_node, session) as own, shared_node.connect() as wire:
        wire.send(data)
        held = shared_node.shop.wait_for_hold("json")
        assert put(
            shared_node, session, asked, shared_node.do(lambda: call_of(shared_node, "json"))
        )
        assert own.event()["method"] == "elicitation/create"
        shared_node.do(lambda: shared_node.shop.release(held))
        assert result_text(wire.answer()) == "released"


# -- withdrawn


@pytest.mark.parametrize("about_a_call", [True, False])
def test_withdrawn_request_is_cancelled(shared_node: NodeThread, about_a_call: bool) -> None:
    session, asked = shared_node.session(), Asked()
    text = f"withdrawn {about_a_call}"
    with listening(shared_node, session) as own, shared_node.connect() as wire:
        call = None
        if about_a_call:
            wire.send(session.call("hold", {"text": text}, "c"))
            held = shared_node.shop.wait_for_hold(text)
            call = shared_node.do(lambda: call_of(shared_node, text))
        put(shared_node, session, asked, call)
        where = own
        if about_a_call:
            assert wire.head()[0] == 200
            where = wire
        id = where.event()["id"]
        shared_node.do(lambda: asked.ask.withdraw("Never mind."))
        assert where.event() == {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "Never mind."},
        }
        # Its answer comes too late.
        assert answer(shared_node, session, id, result={}) == 202
        assert not asked.answers
        if about_a_call:
            shared_node.do(lambda: shared_node.shop.release(held))


# -- ends


def test_ended_session_rejects_pending_requests(shared_node: NodeThread) -> None:
    session, asked = shared_node.session(), Asked()
    ended: list[str] = []
    with listening(shared_node, session) as wire:
        put(shared_node, session, asked)
        wire.event()
        one = shared_node.do(lambda: served(shared_node, session))

        def fails() -> None:
            raise RuntimeError("on purpose")

        one.on_close += [lambda: ended.append("first"), fails, lambda: ended.append("last")]
        assert shared_node.once(session.delete()).status == 200
        refused(shared_node, asked, "a refusal")
        assert ended == ["first", "last"]
        assert not one.is_alive
        late = Asked()
        assert not shared_node.do(lambda: one.send_request(late.ask, None))


# -- what a client says on its way


def test_relays_progress_of_client(shared_node: NodeThread) -> None:
    session = shared_node.session()
    # Two servers that use the same token by chance.
    several = [Asked("sampling/createMessage", {"_meta": {"progressToken": "t", "k": 1}})]
    several.append(Asked("sampling/createMessage", {"_meta": {"progressToken": "t"}}))
    with listening(shared_node, session) as wire:
        tokens = []
        for asked in several:
            put(shared_node, session, asked)
            question = wire.event()
            tokens.append(question["params"]["_meta"]["progressToken"])
            assert tokens[-1] == question["id"]
        for number, token in enumerate(tokens):
            params = {"progressToken": token, "progress": number}
            data = session.request("notifications/progress", params, None)
            assert shared_node.once(data).status == 202
        assert [one.progress for one in several] == [
            [{"progressToken": "t", "progress": 0}],
            [{"progressToken": "t", "progress": 1}],
        ]
        bad: Any
        for bad in ({"progressToken": 99, "progress": 1}, {}, [], {"progressToken": "t"}):
            data = session.request("notifications/progress", bad, None)
            assert shared_node.once(data).status == 202
        assert [len(one.progress) for one in several] == [1, 1]


def test_relays_roots_change(shared_node: NodeThread) -> None:
    session = shared_node.session()
    heard: list[str] = []
    shared_node.do(
        lambda: served(shared_node, session).on_roots_changed.append(lambda: heard.append("x"))
    )
    data = session.request("notifications/roots/list_changed", None, None)
    assert shared_node.once(data).status == 202
    assert shared_node.once(
        shared_node.session().request("notifications/roots/list_changed", None, None)
    )
    assert heard == ["x"]


def test_accepts_response_in_batch(shared_node: NodeThread) -> None:
    session, asked = shared_node.session("2025-03-26"), Asked()
    with listening(shared_node, session) as wire:
        put(shared_node, session, asked)
        response = {"jsonrpc": "2.0", "id": wire.event()["id"], "result": {"action": "cancel"}}
        ping = {"jsonrpc": "2.0", "id": 9, "method": "ping"}
        answers = shared_node.once(session.raw(json.dumps([response, ping]).encode())).json
        assert answers == [{"jsonrpc": "2.0", "id": 9, "result": {}}]
        assert json.loads(asked.answers[0].result) == {"action": "cancel"}
        assert shared_node.once(session.raw(json.dumps([response]).encode())).status == 202


# -- on a channel of lines


def lines(node: NodeThread, wire: HttpConnection) -> Served:
    """Open a session on a channel of lines."""
    before = set(node.node._change_listeners._sessions)
    wire.send(message("initialize", initialize(), 0) + b"\n")
    assert wire.line()["id"] == 0
    wire.send(message("notifications/initialized", None, None) + b"\n")
    wire.send(message("ping", None, 1) + b"\n")
    assert wire.line() == {"jsonrpc": "2.0", "id": 1, "result": {}}
    (session,) = set(node.node._change_listeners._sessions) - before
    return session


def test_sends_requests_over_lines(shared_node: NodeThread) -> None:
    asked, withdrawn, left = Asked(), Asked(), Asked()
    with shared_node.local() as wire:
        session = lines(shared_node, wire)
        assert shared_node.do(lambda: session.send_request(asked.ask, None))
        question = wire.line()
        assert question["params"] == FORM
        response = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}
        wire.send(json.dumps(response).encode() + b"\n")
        shared_node.until(lambda: asked.answers)
        assert json.loads(asked.answers[0].result) == {"action": "accept"}
        shared_node.do(lambda: session.send_request(withdrawn.ask, None))
        id = wire.line()["id"]
        shared_node.do(lambda: withdrawn.ask.withdraw("No."))
        assert wire.line()["params"] == {"requestId": id, "reason": "No."}
        shared_node.do(lambda: session.send_request(left.ask, None))
        assert wire.line()["id"] not in (id, question["id"])
        assert session.is_alive
    refused(shared_node, left, "a refusal when the client hangs up")
    assert not session.is_alive
    assert session not in shared_node.node._change_listeners._sessions


def test_sends_notifications_over_lines(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        session = lines(shared_node, wire)
        shared_node.do(lambda: session.send_resource_update("x:y"))
        assert wire.line() == {
            "jsonrpc": "2.0",
            "method": "notifications/resources/updated",
            "params": {"uri": "x:y"},
        }
        heard: list[str] = []
        session.on_roots_changed.append(lambda: heard.append("x"))
        wire.send(message("notifications/roots/list_changed", None, None) + b"\n")
        shared_node.until(lambda: heard)
