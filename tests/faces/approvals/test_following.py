"""Events of approvals: told as they happen, ended with the node, and never in anybody's way."""

from __future__ import annotations

import json
from typing import Any

from tests.faces.approvals.office import Office
from tests.faces.wire import Wire, request


def follow(office: Office, path: str) -> Wire:
    wire = Wire(("127.0.0.1", office.port))
    wire.send(request(f"localhost:{office.port}", b"", method="GET", path=path))
    status, headers = wire.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    return wire


def event(wire: Wire) -> dict[str, Any]:
    """The next one, each in a chunk of its own."""
    data: dict[str, Any] = json.loads(wire.chunk().partition(b"data: ")[2])
    return data


def test_a_page_hears_what_becomes_of_its_approval(office: Office) -> None:
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


def test_the_stream_of_one_that_is_over_ends_at_once(office: Office) -> None:
    told = office.held()
    office.decide(told, office.proof(told))
    with follow(office, f"/approvals/{told['confirmation_id']}/events") as wire:
        assert event(wire)["state"] == "done"
        wire.stream_end()


def test_who_leaves_is_forgotten(office: Office) -> None:
    told = office.held()
    before = office.do(lambda: list(office.approving.approvals._inbox._watchers))
    wire = follow(office, f"/approvals/{told['confirmation_id']}/events")
    assert event(wire)["state"] == "pending"
    app = office.approving._app
    assert app is not None
    assert len(app._streams) == 1
    wire.close()
    office.until(lambda: not app._streams, "the stream is forgotten")
    assert office.do(lambda: office.approving.approvals._inbox._watchers) == before


def test_a_node_stops_while_somebody_listens(office: Office) -> None:
    told = office.held()
    with follow(office, f"/approvals/{told['confirmation_id']}/events") as wire:
        assert event(wire)["state"] == "pending"
        office.stop()
        wire.stream_end()
