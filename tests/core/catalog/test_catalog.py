"""The catalog: one notification for each change, and one merge for many offerings."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import Offering
from interlock.protocol.mcp import TOOLS_LIST, Era
from tests.support.offerings import definition, list_names, offer, pages, prompt, resource


class Listener:
    """A listener that counts notifications and reads the catalog in each."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.count = 0
        self.kinds: list[set[str]] = []
        self.names: list[str] = []
        self.end = catalog.on_change(self)

    def __call__(self, kinds: frozenset[str]) -> None:
        self.count += 1
        self.kinds.append(set(kinds))
        self.names = list_names(self._catalog.current)


@pytest.fixture
def catalog() -> Catalog:
    return Catalog(server_info=b"{}")


@pytest.fixture
def listener(catalog: Catalog) -> Listener:
    return Listener(catalog)


def test_publishes_offering_and_notifies(catalog: Catalog, listener: Listener) -> None:
    assert list_names(catalog.current) == []
    offering = offer("a", ["x"])
    catalog.publish(offering)
    assert listener.count == 1
    # Who is told sees the new list at once.
    assert listener.names == ["a.x"]
    assert catalog.offering("a") is offering
    assert catalog.offering("b") is None


CHANGES = {
    "another tool": offer("a", ["x", "y"]),
    "no tool": offer("a", []),
    "another name": offer("a", ["z"]),
    "another description": offer("a", [definition("x", description="new")]),
    "another schema": offer("a", [definition("x", inputSchema={"type": "object", "a": 1})]),
    "another effect": offer("a", ["x"], effects={"x": "read_only"}),
    "another segment": offer("a", ["x"], segment="b"),
    "a root segment": offer("a", ["x"], root="r"),
    "a rename": offer("a", ["x"], rename={"x": "w"}),
    "a rename that only safe names show": offer("a", ["x"], rename={"x": "X"}),
    "no prefix any more": offer("a", ["x"], expose="transparent"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_notifies_once_per_change(catalog: Catalog, listener: Listener, change: str) -> None:
    catalog.publish(offer("a", ["x"]))
    before = {style: pages(catalog.current, style) for style in ("dotted", "safe")}
    catalog.publish(CHANGES[change])
    assert listener.count == 2
    if change != "another effect":
        after = {style: pages(catalog.current, style) for style in ("dotted", "safe")}
        assert after != before


OTHER_CHANGES = {
    "another prompt": (offer("a", ["x"], prompts=["p", "q"], resources=["r:1"]), {"prompts"}),
    "another argument": (
        offer("a", ["x"], prompts=[prompt("p", arguments=[{"name": "n"}])], resources=["r:1"]),
        {"prompts"},
    ),
    "another resource": (offer("a", ["x"], prompts=["p"], resources=["r:2"]), {"resources"}),
    "another size": (
        offer("a", ["x"], prompts=["p"], resources=[resource("r:1", size=1)]),
        {"resources"},
    ),
    "a template": (
        offer("a", ["x"], prompts=["p"], resources=["r:1"], templates=["r:{x}"]),
        {"resources"},
    ),
    "no tool any more": (offer("a", prompts=["p"], resources=["r:1"]), {"tools"}),
    "nothing but tools": (offer("a", ["x"]), {"prompts", "resources"}),
    "nothing": (offer("a"), {"tools", "prompts", "resources"}),
    "another segment": (
        offer("a", ["x"], prompts=["p"], resources=["r:1"], segment="b"),
        {"tools", "prompts", "resources"},
    ),
    "the same": (offer("a", ["x"], prompts=["p"], resources=["r:1"]), None),
}


@pytest.mark.parametrize("change", OTHER_CHANGES)
def test_names_changed_lists(catalog: Catalog, listener: Listener, change: str) -> None:
    catalog.publish(offer("a", ["x"], prompts=["p"], resources=["r:1"]))
    assert listener.kinds == [{"tools", "prompts", "resources"}]
    offering, kinds = OTHER_CHANGES[change]
    catalog.publish(offering)
    assert listener.kinds[1:] == ([] if kinds is None else [kinds])


def test_withdrawal_names_lists_of_offering(catalog: Catalog, listener: Listener) -> None:
    catalog.publish(offer("a", prompts=["p"]))
    catalog.publish(offer("b", templates=["r:{x}"]))
    catalog.withdraw("a")
    catalog.withdraw("b")
    assert listener.kinds == [{"prompts"}, {"resources"}, {"prompts"}, {"resources"}]


def test_segment_change_without_resources_names_only_tools(
    catalog: Catalog, listener: Listener
) -> None:
    catalog.publish(offer("a", ["x"]))
    catalog.publish(offer("a", ["x"], segment="b"))
    assert listener.kinds == [{"tools"}, {"tools"}]


def test_notifies_of_change_in_transparent_names(catalog: Catalog, listener: Listener) -> None:
    catalog.publish(offer("a", ["a.b"], expose="transparent"))
    catalog.publish(offer("a", ["a_b"], expose="transparent"))
    assert listener.count == 2
    assert listener.names == ["a_b"]


def test_order_change_notifies_only_where_visible(catalog: Catalog, listener: Listener) -> None:
    catalog.publish(offer("a", ["x", "y"]))
    catalog.publish(offer("a", ["y", "x"]))
    assert listener.count == 1
    catalog.publish(offer("b", ["x", "y"], expose="transparent"))
    catalog.publish(offer("b", ["y", "x"], expose="transparent"))
    assert listener.count == 3


def test_same_list_again_does_not_notify(catalog: Catalog, listener: Listener) -> None:
    catalog.publish(offer("a", ["x"]))
    snapshot = catalog.current
    again = offer("a", ["x"])
    catalog.publish(again)
    assert listener.count == 1
    # Calls go by what was read last all the same.
    assert catalog.current.tools == again.tools
    assert catalog.current.number == snapshot.number


def test_empty_offering_does_not_notify(catalog: Catalog, listener: Listener) -> None:
    snapshot = catalog.current
    catalog.publish(offer("a", []))
    catalog.withdraw("a")
    catalog.withdraw("never there")
    assert listener.count == 0
    assert catalog.current.number == snapshot.number


def test_withdrawn_offering_is_removed(catalog: Catalog, listener: Listener) -> None:
    catalog.publish(offer("a", ["x"]))
    catalog.publish(offer("b", ["y"]))
    catalog.withdraw("a")
    assert listener.count == 3
    assert listener.names == ["b.y"]
    assert catalog.current.resolve("a.x") is None
    assert catalog.offering("a") is None
    catalog.withdraw("a")
    assert listener.count == 3


def test_publishes_withdrawn_offering_again(catalog: Catalog, listener: Listener) -> None:
    catalog.publish(offer("a", ["x"]))
    catalog.withdraw("a")
    catalog.publish(offer("a", ["x"]))
    assert listener.count == 3
    assert listener.names == ["a.x"]


def test_caches_snapshot_until_change(catalog: Catalog) -> None:
    catalog.publish(offer("a", ["x"]))
    snapshot = catalog.current
    assert catalog.current is snapshot
    page = snapshot.page(TOOLS_LIST, Era.SESSION, "dotted")
    assert catalog.current.page(TOOLS_LIST, Era.SESSION, "dotted") is page
    catalog.publish(offer("b", ["y"]))
    assert catalog.current is not snapshot
    # Whoever holds the old one goes on reading it.
    assert snapshot.page(TOOLS_LIST, Era.SESSION, "dotted") is page


def test_merges_many_offerings_once(monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> None:
    merges: list[Any] = []
    real = catalog.current.__class__

    def counting(*args: Any, **named: Any) -> Any:
        merges.append(args)
        return real(*args, **named)

    monkeypatch.setattr("interlock.core.catalog.catalog.Snapshot", counting)
    for number in range(50):
        catalog.publish(offer(f"s{number}", ["a", "b"]))
    assert not merges
    assert len(catalog.current.tools) == 100
    assert len(catalog.current.tools) == 100
    assert len(merges) == 1


def test_change_keeps_tools_of_other_upstreams(catalog: Catalog) -> None:
    kept: Offering = offer("a", ["x"])
    catalog.publish(kept)
    catalog.publish(offer("b", ["y"]))
    catalog.publish(offer("b", ["y", "z"]))
    assert catalog.current.tools[0] is kept.tools[0]


def test_page_size_change_does_not_notify(catalog: Catalog, listener: Listener) -> None:
    catalog.publish(offer("a", ["x", "y", "z"]))
    [page] = pages(catalog.current)
    catalog.configure(page_size=2)
    assert [len(page["tools"]) for page in pages(catalog.current)] == [2, 1]
    snapshot = catalog.current
    catalog.configure(page_size=2)
    assert catalog.current is snapshot
    catalog.configure(page_size=0)
    assert pages(catalog.current) == [page]
    assert listener.count == 1


def test_cursor_survives_new_snapshot() -> None:
    catalog = Catalog(server_info=b"{}", page_size=1)
    catalog.publish(offer("a", ["x", "y"]))
    cursor = pages(catalog.current)[0]["nextCursor"]
    catalog.publish(offer("b", ["z"]))
    page = catalog.current.page(TOOLS_LIST, Era.SESSION, "dotted", cursor)
    assert b'"a.y"' in page


def test_removed_listener_is_not_called(catalog: Catalog, listener: Listener) -> None:
    other = Listener(catalog)
    catalog.publish(offer("a", ["x"]))
    listener.end()
    listener.end()
    catalog.publish(offer("b", ["y"]))
    assert (listener.count, other.count) == (1, 2)


def test_listener_may_remove_itself_during_notification(catalog: Catalog) -> None:
    received: list[str] = []

    def once(kinds: frozenset[str]) -> None:
        received.append("once")
        end()

    end = catalog.on_change(once)
    catalog.on_change(lambda _: received.append("other"))
    catalog.publish(offer("a", ["x"]))
    catalog.publish(offer("b", ["x"]))
    assert received == ["once", "other", "other"]
