"""Hidden tools: not listed, but callable."""

from __future__ import annotations

from interlock.core.catalog.catalog import TOOLS, Catalog
from interlock.core.catalog.offering import Offering
from tests.support.offerings import INFO, definition, list_names, offer, shown


def catalog() -> Catalog:
    return Catalog(server_info=str(INFO).encode())


def offer_described(**tools: str) -> Offering:
    return offer("s", [definition(name, description=said) for name, said in tools.items()])


def test_hidden_tool_is_callable_but_not_listed() -> None:
    board = catalog()
    board.publish(offer("s", ["a", "b"]))
    board.hide_tools("s", frozenset({"s.a"}))
    assert list_names(board.current) == ["s.b"]
    assert list_names(board.current, "safe") == ["s__b"]
    assert [tool.canonical for tool in board.current.tools] == ["s.b"]
    for name in ("s.a", "s__a"):
        result = board.find(name)
        assert result is not None
        assert result.canonical == "s.a"
    board.hide_tools("s", frozenset())
    assert list_names(board.current) == ["s.a", "s.b"]


def test_hiding_notifies_clients_once() -> None:
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


def test_reviewed_tools_are_never_visible() -> None:
    """Listeners may read the lists while they are told: both ways, neither shows the bad one."""
    board = catalog()
    board.review = lambda offering: frozenset(
        tool.canonical for tool in offering.tools if "poison" in tool.description
    )
    seen: list[str] = []
    board.on_change(lambda _: seen.extend(tool["description"] for tool in shown(board.current)))
    board.publish(offer_described(a="good", b="other"))
    board.publish(offer_described(a="poison", b="other"))
    board.publish(offer_described(a="good", b="other"))
    board.publish(offer_described(a="more poison", b="new"))
    assert seen == ["good", "other", "other", "good", "other", "new"]


def test_withdrawal_clears_hidden_tools() -> None:
    board = catalog()
    board.publish(offer("s", ["a"]))
    board.hide_tools("s", frozenset({"s.a"}))
    board.withdraw("s")
    board.publish(offer("s", ["a"]))
    assert list_names(board.current) == ["s.a"]


def test_lists_all_offerings() -> None:
    board = catalog()
    board.publish(offer("s", ["a"]))
    board.publish(offer("t", ["b"]))
    assert [offering.upstream for offering in board.offerings] == ["s", "t"]
