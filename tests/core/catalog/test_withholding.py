"""Tools that are held back: in no list at any moment, and still to be found by a call."""

from __future__ import annotations

from interlock.core.catalog.catalog import TOOLS, Catalog
from interlock.core.catalog.offering import Offering
from tests.support.offerings import INFO, definition, list_names, offer, shown


def catalog() -> Catalog:
    return Catalog(server_info=str(INFO).encode())


def described(**tools: str) -> Offering:
    return offer("s", [definition(name, description=said) for name, said in tools.items()])


def test_what_is_withheld_is_found_but_not_listed() -> None:
    board = catalog()
    board.publish(offer("s", ["a", "b"]))
    board.hide_tools("s", frozenset({"s.a"}))
    assert list_names(board.current) == ["s.b"]
    assert list_names(board.current, "safe") == ["s__b"]
    assert [tool.canonical for tool in board.current.tools] == ["s.b"]
    for name in ("s.a", "s__a"):
        found = board.find(name)
        assert found is not None
        assert found.canonical == "s.a"
    board.hide_tools("s", frozenset())
    assert list_names(board.current) == ["s.a", "s.b"]


def test_clients_are_told_once() -> None:
    board = catalog()
    board.publish(offer("s", ["a", "b"]))
    told: list[frozenset[str]] = []
    board.on_change(told.append)
    board.hide_tools("s", frozenset({"s.a"}))
    board.hide_tools("s", frozenset({"s.a"}))
    board.hide_tools("other", frozenset())
    assert told == [{TOOLS}]
    number = board.current.number
    board.hide_tools("s", frozenset())
    assert told == [{TOOLS}] * 2
    assert board.current.number > number


def test_at_no_moment_anybody_sees_what_is_reviewed() -> None:
    """Listeners may read the lists while they are told: both ways, neither shows the bad one."""
    board = catalog()
    board.review = lambda offering: frozenset(
        tool.canonical for tool in offering.tools if "poison" in tool.description
    )
    seen: list[str] = []
    board.on_change(lambda _: seen.extend(tool["description"] for tool in shown(board.current)))
    board.publish(described(a="good", b="other"))
    board.publish(described(a="poison", b="other"))
    board.publish(described(a="good", b="other"))
    board.publish(described(a="more poison", b="new"))
    assert seen == ["good", "other", "other", "good", "other", "new"]


def test_what_goes_takes_what_is_withheld_with_it() -> None:
    board = catalog()
    board.publish(offer("s", ["a"]))
    board.hide_tools("s", frozenset({"s.a"}))
    board.withdraw("s")
    board.publish(offer("s", ["a"]))
    assert list_names(board.current) == ["s.a"]


def test_everything_on_the_board() -> None:
    board = catalog()
    board.publish(offer("s", ["a"]))
    board.publish(offer("t", ["b"]))
    assert [one.upstream for one in board.offerings] == ["s", "t"]
