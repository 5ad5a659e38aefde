"""What a session's client is asked, and how its answers find their way back."""

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


def test_a_question_on_the_sessions_own_stream(plain: NodeThread) -> None:
    session, asked = plain.session(), Asked()
    with listening(plain, session) as wire:
        assert put(plain, session, asked)
        question = wire.event()
        assert question == {
            "jsonrpc": "2.0",
            "id": question["id"],
            "method": "elicitation/create",
            "params": FORM,
        }
        assert answer(plain, session, question["id"], result={"action": "decline"}) == 202
        (one,) = asked.answers
        assert json.loads(one.result) == {"action": "decline"}
        assert not one.is_error
        # Once is enough.
        assert answer(plain, session, question["id"], result={"action": "accept"}) == 202
        assert len(asked.answers) == 1


def test_a_question_without_params_has_none(plain: NodeThread) -> None:
    session, asked = plain.session(), Asked("roots/list", None)
    with listening(plain, session) as wire:
        assert put(plain, session, asked)
        question = wire.event()
        assert set(question) == {"jsonrpc", "id", "method"}
        answer(plain, session, question["id"], result={"roots": []})
        assert json.loads(asked.answers[0].result) == {"roots": []}


def test_an_error_is_an_answer_too(plain: NodeThread) -> None:
    session, asked = plain.session(), Asked()
    with listening(plain, session) as wire:
        put(plain, session, asked)
        error = {"code": -1, "message": "The user said no.", "data": {"why": "nö"}}
        answer(plain, session, wire.event()["id"], error=error)
        (one,) = asked.answers
        assert (one.code, one.message) == (-1, "The user said no.")
        assert json.loads(bytes(one.data or b"")) == {"why": "nö"}


def test_answers_that_nobody_waits_for(plain: NodeThread) -> None:
    session, other = plain.session(), plain.session()
    asked = Asked()
    with listening(plain, session) as wire:
        put(plain, session, asked)
        id = wire.event()["id"]
        for wrong in (id + 1, str(id), -id, "x", 10**40):
            assert answer(plain, session, wrong, result={}) == 202
        # The same id on another session is another question, or none.
        assert answer(plain, other, id, result={}) == 202
        assert not asked.answers
        answer(plain, session, id, result={"mine": True})
        assert json.loads(asked.answers[0].result) == {"mine": True}


def test_many_questions_at_once_have_ids_of_their_own(plain: NodeThread) -> None:
    session = plain.session()
    several = [Asked("sampling/createMessage", {"n": number}) for number in range(10)]
    with listening(plain, session) as wire:
        for asked in several:
            put(plain, session, asked)
        ids = {}
        for _ in several:
            question = wire.event()
            ids[question["params"]["n"]] = question["id"]
        assert len(set(ids.values())) == 10
        for number in reversed(range(10)):
            answer(plain, session, ids[number], result={"n": number})
        assert [json.loads(one.answers[0].result)["n"] for one in several] == list(range(10))
        # And none of them ever comes again.
        again = Asked()
        put(plain, session, again)
        assert wire.event()["id"] not in ids.values()


def test_too_many_questions_are_not_put(plain: NodeThread) -> None:
    session = plain.session()
    several = [Asked() for _ in range(101)]
    with listening(plain, session):
        assert [put(plain, session, one) for one in several] == [True] * 100 + [False]
        assert several[-1].ask.is_open


def test_no_way_to_the_client(plain: NodeThread) -> None:
    session, asked = plain.session(), Asked()
    assert not put(plain, session, asked)
    assert asked.ask.is_open
    assert not asked.answers


# -- on a call's own stream


def test_a_question_about_a_call_goes_on_its_stream(plain: NodeThread) -> None:
    session, asked = plain.session(), Asked()
    with listening(plain, session) as own, plain.connect() as wire:
        own.primed()
        wire.send(session.call("hold", {"text": "asked"}, "c"))
        held = plain.shop.wait_for_hold("asked")
        assert put(plain, session, asked, plain.do(lambda: call_of(plain, "asked")))
        assert wire.head()[0] == 200
        wire.primed()
        question = wire.event()
        assert question["method"] == "elicitation/create"
        answer(plain, session, question["id"], result={"action": "accept"})
        plain.do(lambda: plain.shop.release(held))
        assert result_text(wire.event()) == "released"
        wire.stream_end()
        own.silent()
        assert json.loads(asked.answers[0].result) == {"action": "accept"}


def test_a_client_that_takes_no_streams_there_is_asked_on_its_own(plain: NodeThread) -> None:
    session, asked = plain.session(), Asked()
    data = session.call("hold", {"text": "json"}, "c")
    data = data.replace(b"application/json, text/event-stream", b"application/json")
    with listening(plain, session) as own, plain.connect() as wire:
        wire.send(data)
        held = plain.shop.wait_for_hold("json")
        assert put(plain, session, asked, plain.do(lambda: call_of(plain, "json")))
        assert own.event()["method"] == "elicitation/create"
        plain.do(lambda: plain.shop.release(held))
        assert result_text(wire.answer()) == "released"


# -- withdrawn


@pytest.mark.parametrize("about_a_call", [True, False])
def test_a_withdrawn_question_is_cancelled(plain: NodeThread, about_a_call: bool) -> None:
    session, asked = plain.session(), Asked()
    text = f"withdrawn {about_a_call}"
    with listening(plain, session) as own, plain.connect() as wire:
        call = None
        if about_a_call:
            wire.send(session.call("hold", {"text": text}, "c"))
            held = plain.shop.wait_for_hold(text)
            call = plain.do(lambda: call_of(plain, text))
        put(plain, session, asked, call)
        where = own
        if about_a_call:
            assert wire.head()[0] == 200
            where = wire
        id = where.event()["id"]
        plain.do(lambda: asked.ask.withdraw("Never mind."))
        assert where.event() == {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "Never mind."},
        }
        # Its answer comes too late.
        assert answer(plain, session, id, result={}) == 202
        assert not asked.answers
        if about_a_call:
            plain.do(lambda: plain.shop.release(held))


# -- ends


def test_a_session_that_ends_answers_nothing_more(plain: NodeThread) -> None:
    session, asked = plain.session(), Asked()
    ended: list[str] = []
    with listening(plain, session) as wire:
        put(plain, session, asked)
        wire.event()
        one = plain.do(lambda: served(plain, session))

        def fails() -> None:
            raise RuntimeError("on purpose")

        one.on_close += [lambda: ended.append("first"), fails, lambda: ended.append("last")]
        assert plain.once(session.delete()).status == 200
        refused(plain, asked, "a refusal")
        assert ended == ["first", "last"]
        assert not one.is_alive
        late = Asked()
        assert not plain.do(lambda: one.send_request(late.ask, None))


# -- what a client says on its way


def test_progress_of_an_answer(plain: NodeThread) -> None:
    session = plain.session()
    # Two servers that use the same token by chance.
    several = [Asked("sampling/createMessage", {"_meta": {"progressToken": "t", "k": 1}})]
    several.append(Asked("sampling/createMessage", {"_meta": {"progressToken": "t"}}))
    with listening(plain, session) as wire:
        tokens = []
        for asked in several:
            put(plain, session, asked)
            question = wire.event()
            tokens.append(question["params"]["_meta"]["progressToken"])
            assert tokens[-1] == question["id"]
        for number, token in enumerate(tokens):
            params = {"progressToken": token, "progress": number}
            data = session.request("notifications/progress", params, None)
            assert plain.once(data).status == 202
        assert [one.progress for one in several] == [
            [{"progressToken": "t", "progress": 0}],
            [{"progressToken": "t", "progress": 1}],
        ]
        for bad in ({"progressToken": 99, "progress": 1}, {}, [], {"progressToken": "t"}):
            data = session.request("notifications/progress", bad, None)
            assert plain.once(data).status == 202
        assert [len(one.progress) for one in several] == [1, 1]


def test_other_roots(plain: NodeThread) -> None:
    session = plain.session()
    heard: list[str] = []
    plain.do(lambda: served(plain, session).on_roots_changed.append(lambda: heard.append("x")))
    data = session.request("notifications/roots/list_changed", None, None)
    assert plain.once(data).status == 202
    assert plain.once(plain.session().request("notifications/roots/list_changed", None, None))
    assert heard == ["x"]


def test_an_answer_in_a_batch(plain: NodeThread) -> None:
    session, asked = plain.session("2025-03-26"), Asked()
    with listening(plain, session) as wire:
        put(plain, session, asked)
        response = {"jsonrpc": "2.0", "id": wire.event()["id"], "result": {"action": "cancel"}}
        ping = {"jsonrpc": "2.0", "id": 9, "method": "ping"}
        answers = plain.once(session.raw(json.dumps([response, ping]).encode())).json
        assert answers == [{"jsonrpc": "2.0", "id": 9, "result": {}}]
        assert json.loads(asked.answers[0].result) == {"action": "cancel"}
        assert plain.once(session.raw(json.dumps([response]).encode())).status == 202


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


def test_lines_there_and_back(plain: NodeThread) -> None:
    asked, withdrawn, left = Asked(), Asked(), Asked()
    with plain.local() as wire:
        session = lines(plain, wire)
        assert plain.do(lambda: session.send_request(asked.ask, None))
        question = wire.line()
        assert question["params"] == FORM
        response = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}
        wire.send(json.dumps(response).encode() + b"\n")
        plain.until(lambda: asked.answers)
        assert json.loads(asked.answers[0].result) == {"action": "accept"}
        plain.do(lambda: session.send_request(withdrawn.ask, None))
        id = wire.line()["id"]
        plain.do(lambda: withdrawn.ask.withdraw("No."))
        assert wire.line()["params"] == {"requestId": id, "reason": "No."}
        plain.do(lambda: session.send_request(left.ask, None))
        assert wire.line()["id"] not in (id, question["id"])
        assert session.is_alive
    refused(plain, left, "a refusal when the client hangs up")
    assert not session.is_alive
    assert session not in plain.node._change_listeners._sessions


def test_lines_that_tell(plain: NodeThread) -> None:
    with plain.local() as wire:
        session = lines(plain, wire)
        plain.do(lambda: session.send_resource_update("x:y"))
        assert wire.line() == {
            "jsonrpc": "2.0",
            "method": "notifications/resources/updated",
            "params": {"uri": "x:y"},
        }
        heard: list[str] = []
        session.on_roots_changed.append(lambda: heard.append("x"))
        wire.send(message("notifications/roots/list_changed", None, None) + b"\n")
        plain.until(lambda: heard)
