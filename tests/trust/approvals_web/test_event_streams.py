"""Event streams of approvals: events arrive as they happen, and streams end with the node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.paths import access_path
from interlock.errors import InterlockError
from interlock.trust.approvals.web import to_list
from interlock.trust.identity.token_store import AccessStore
from tests.support.http_client import HttpConnection, request
from tests.trust.approvals_web.office import Office, session_of


def follow(office: Office, path: str, *headers: tuple[str, str]) -> HttpConnection:
    wire = HttpConnection(("127.0.0.1", office.port))
    wire.send(request(f"localhost:{office.port}", b"", *headers, method="GET", path=path))
    status, fields = wire.head()
    assert (status, fields["content-type"]) == (200, "text/event-stream")
    return wire


def event(wire: HttpConnection) -> dict[str, Any]:
    """The next one, each in a chunk of its own."""
    data: dict[str, Any] = json.loads(wire.chunk().partition(b"data: ")[2])
    return data


def test_page_receives_events_of_its_approval(office: Office) -> None:
    told, other = office.held(), office.held(table="other")
    with follow(office, f"/approvals/{told['confirmation_id']}/events") as wire:
        assert event(wire)["state"] == "pending"
        # What happens to another one is none of its business.
        office.decide(other, office.proof(other))
        office.decide(told, office.proof(told, "refuse", reason="no"))
        last = event(wire)
        assert (last["id"], last["state"], last["note"]) == (
            told["confirmation_id"],
            "refused",
            "no",
        )
        # And that is all: the stream ends.
        wire.stream_end()


def test_event_stream_of_finished_approval_ends_at_once(office: Office) -> None:
    pending = office.held()
    office.decide(pending, office.proof(pending))
    with follow(office, f"/approvals/{pending['confirmation_id']}/events") as wire:
        assert event(wire)["state"] == "done"
        wire.stream_end()


def test_disconnected_watcher_is_removed(office: Office) -> None:
    pending = office.held()
    before = office.do(lambda: list(office.approving.approvals._inbox._watchers))
    wire = follow(office, f"/approvals/{pending['confirmation_id']}/events")
    assert event(wire)["state"] == "pending"
    app = office.approving._app
    assert app is not None
    assert len(app._streams) == 1
    wire.close()
    office.until(lambda: not app._streams, "the stream is forgotten")
    assert office.do(lambda: office.approving.approvals._inbox._watchers) == before


def test_shutdown_ends_event_streams(office: Office) -> None:
    pending = office.held()
    with follow(office, f"/approvals/{pending['confirmation_id']}/events") as wire:
        assert event(wire)["state"] == "pending"
        office.stop()
        wire.stream_end()


def test_revoked_caller_loses_event_stream(office: Office) -> None:
    node = office.node
    store = AccessStore(access_path(node.config, {}, node.base_dir))
    token, shown = store.create("clerk", may=("call", "approve"))
    _, others = store.create("other", may=("approve",))
    _, model = store.create("model")
    office.until(lambda: _lets_in(office, others), "the tokens are known")
    first = follow(office, "/approvals/events", ("Authorization", f"Bearer {shown}"))
    second = follow(office, "/approvals/events", ("Authorization", f"Bearer {others}"))
    for wire in (first, second):
        assert event(wire) == {"approvals": []}
    store.revoke([token.id])
    first.stream_end()
    call = office.call("drop_table", {"table": "a plan"}, 1, ("Authorization", f"Bearer {model}"))
    content = office.once(call).result["structuredContent"]
    assert event(second)["approvals"][0]["id"] == content["confirmation_id"]
    first.close()
    second.close()


def _lets_in(office: Office, bearer: str) -> bool:
    from interlock.core.call import Credentials

    try:
        caller = office.node.trust.identity.authenticator(Credentials("10.0.0.1", bearer))
    except InterlockError:
        return False
    return caller.can_view_approvals


def test_event_stream_ends_with_session(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.trust.operators.operators.SESSION_SECONDS", 0.5)
    with follow(office, "/approvals/events", session_of(office)) as wire:
        assert event(wire) == {"approvals": []}
        wire.stream_end()


def test_removed_operator_loses_event_stream(office: Office) -> None:
    with follow(office, "/approvals/events", session_of(office)) as wire:
        assert event(wire) == {"approvals": []}
        office.remove("chief")
        wire.stream_end()


def test_list_is_brief_and_encoded_once(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    whole = to_list

    def counted(*about: Any) -> dict[str, Any]:
        nonlocal made
        made += 1
        return whole(*about)

    long = "x" * 5000
    pending = office.held(table=long)
    monkeypatch.setattr("interlock.trust.approvals.web.to_list", counted)
    session = session_of(office)
    app = office.approving._app
    assert app is not None
    # A clock that stands still: what is the same is made once, however many listen.
    monkeypatch.setattr(app, "_now", lambda: 1_000_000.0)
    wires = [follow(office, "/approvals/events", session) for _ in range(3)]
    for wire in wires:
        (one,) = event(wire)["approvals"]
        assert one["arguments_cut"] is True
        assert len(one["arguments_text"]) < 1100
        assert one["arguments"] is None
    assert made == 1
    office.do(app.wake_streams)
    second = office.held(table="b")
    for wire in wires:
        ids = [approval["id"] for approval in event(wire)["approvals"]]
        assert ids == [pending["confirmation_id"], second["confirmation_id"]]
        wire.close()
    assert made == 2
    # Whoever decides sees everything.
    response = office.ask("GET", f"/approvals/{pending['confirmation_id']}").json
    assert response["arguments"] == {"table": long}
