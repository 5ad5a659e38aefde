"""Sessions: their number, their idle time, and their end."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.call import Call, Client, Credentials
from interlock.core.server.mcp.sessions import Session, Sessions
from interlock.errors import UNKNOWN_SESSION, InterlockError
from interlock.protocol.mcp import LATEST_SESSION, Era
from tests.support.clock import ManualClock
from tests.support.node import NodeThread, result_text

CLIENT = Client(Era.SESSION, LATEST_SESSION, "tests")


class ScriptedTransport:
    """A transport of a session, with a number of open streams."""

    def __init__(self, connected: int) -> None:
        self.connected = connected

    def send(self, payload: bytes, call: Call | None, *, question: bool = False) -> bool:
        return True

    def ping(self) -> None: ...

    def stop_listening(self) -> None: ...

    def end(self) -> None: ...


class SessionHarness:
    """Sessions with a manual clock, and a list of closed sessions."""

    def __init__(self, most: int = 3, idle: float = 100.0) -> None:
        self.clock = ManualClock()
        self.sessions = Sessions(max_sessions=most, idle=idle, clock=self.clock)
        self.closed: list[str] = []
        self.sessions.on_closed = lambda item: self.closed.append(item.owner)

    def open(self, owner: str, later: float = 1.0) -> Session:
        self.clock.now += later
        return self.sessions.open(CLIENT, owner)

    def is_open(self, session: Session) -> bool:
        """Return whether the session is found, which counts as use."""
        if session.is_alive:
            return self.sessions.find(session.id) is session
        with pytest.raises(InterlockError) as caught:
            self.sessions.find(session.id)
        return caught.value.failure is not UNKNOWN_SESSION


def pending_call() -> Call:
    return Call("tools/call", "http", Credentials("loopback"), CLIENT)


def test_session_ids_are_random() -> None:
    book = SessionHarness(most=1_000)
    ids = {book.open("o").id for _ in range(500)}
    assert len(ids) == 500
    assert min(map(len, ids)) >= 32


def test_finds_session_until_closed() -> None:
    book = SessionHarness()
    session = book.open("a")
    assert book.is_open(session)
    assert session.is_alive
    book.sessions.close(session)  # type: ignore[arg-type]
    assert not session.is_alive
    assert not book.is_open(session)
    # Closing it again is nothing.
    book.sessions.close(session)
    assert book.closed == ["a"]
    with pytest.raises(InterlockError):
        book.sessions.find("")


def test_closes_least_recently_used_session_above_limit() -> None:
    book = SessionHarness(most=3)
    a, b, c = (book.open(name) for name in "abc")
    book.clock.now += 1
    assert book.is_open(a)
    d = book.open("d")
    assert book.closed == ["b"]
    assert [book.is_open(item) for item in (a, b, c, d)] == [True, False, True, True]
    assert len(book.sessions) == 3


def test_closes_unused_sessions_first() -> None:
    book = SessionHarness(most=3)
    calling, listening, quiet = (book.open(name) for name in ("calling", "listening", "quiet"))
    calling.calls[b"1"] = pending_call()
    listening.channel = ScriptedTransport(1)
    book.open("new")
    assert book.closed == ["quiet"]
    assert not quiet.is_alive
    # But there is a bound, whoever uses what.
    for session in list(book.sessions._sessions.values()):
        session.channel = ScriptedTransport(1)
    book.open("newer")
    assert book.closed == ["quiet", "calling"]
    assert len(book.sessions) == 3


def test_closes_several_sessions_at_large_limit() -> None:
    book = SessionHarness(most=1_000, idle=10_000)
    for number in range(1_000):
        book.open(str(number))
    book.open("one more")
    assert book.closed == [str(number) for number in range(10)]


def test_closes_idle_session() -> None:
    book = SessionHarness(most=10, idle=100)
    quiet, used = book.open("quiet"), book.open("used")
    calling, listening = book.open("calling"), book.open("listening")
    calling.calls[b"1"] = pending_call()
    listening.channel = ScriptedTransport(1)
    book.clock.now += 60
    assert book.is_open(used)
    book.open("new", later=60)
    assert book.closed == ["quiet"]
    assert not quiet.is_alive
    # Nobody looks all the time.
    book.open("newer", later=59)
    assert book.closed == ["quiet"]
    book.open("newest", later=1)
    assert book.closed == ["quiet", "used"]
    assert book.is_open(calling)
    assert book.is_open(listening)


def test_applies_new_limits_to_next_session() -> None:
    book = SessionHarness(most=10, idle=1_000)
    for name in "abcde":
        book.open(name)
    book.sessions.configure(max_sessions=5, idle=1_000)
    book.open("f")
    assert book.closed == ["a"]


# -- in a node


def test_session_limit_ends_streams_and_calls(start_node: Any) -> None:
    node: NodeThread = start_node(limits={"sessions": 1})
    first = node.session()
    with node.connect() as stream, node.connect() as call:
        stream.send(first.get())
        assert stream.head()[0] == 200
        stream.read_event_id()
        call.send(first.call("hold", {"text": "dropped"}))
        held = node.shop.wait_for_hold("dropped")
        second = node.session()
        stream.stream_end()
        assert call.read_response().body == b""
        node.shop.wait_for(
            lambda: node.shop.find_received("notifications/cancelled", requestId=held)
        )
    assert node.once(first.call("echo", {"text": "x"})).status == 404
    assert result_text(node.once(second.call("echo", {"text": "x"}))) == "x"
    assert node.do(node.node.status).sessions == 1
    assert node.do(lambda: len(node.node._change_listeners)) == 0


def test_open_stream_keeps_session(start_node: Any) -> None:
    node: NodeThread = start_node()
    listening, quiet = node.session(), node.session()
    with node.connect() as stream:
        stream.send(listening.get())
        assert stream.head()[0] == 200

        def hours_later() -> None:
            node.node.sessions._next_sweep = 0.0
            for session in node.node.sessions._sessions.values():
                session.last_seen -= 10_000

        node.do(hours_later)
        node.session()
        assert node.once(quiet.request("ping")).status == 404
        assert node.once(listening.request("ping")).status == 200
    node.until(lambda: not len(node.node._change_listeners))
    node.do(hours_later)
    node.session()
    assert node.once(listening.request("ping")).status == 404


def test_sweep_closes_idle_sessions() -> None:
    book = SessionHarness(idle=100)
    quiet, busy = book.open("quiet"), book.open("busy")
    busy.calls[b"1"] = pending_call()
    book.clock.now += 101
    book.sessions.sweep()
    assert book.closed == ["quiet"]
    assert not quiet.is_alive
    assert busy.is_alive


def test_closes_sessions_of_unknown_callers() -> None:
    book = SessionHarness()
    book.open("operator")
    remaining = book.open("auditor")
    book.sessions.retain_only({"operator"})
    assert book.closed == ["auditor"]
    assert not remaining.is_alive
    assert len(book.sessions) == 1
