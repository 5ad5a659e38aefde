"""Hidden tools: not listed, but callable."""

from __future__ import annotations

from interlock.core.catalog.catalog import TOOLS, Catalog
from interlock.core.catalog.offering import Offering
from tests.support.offerings import INFO, definition, list_names, offer, shown


def make_catalog() -> Catalog:
    return Catalog(server_info=str(INFO).encode())


def offer_tools(**tools: str) -> Offering:
    return offer("s", [definition(name, description=members) for name, members in tools.items()])


def test_hidden_tool_is_callable_but_not_listed() -> None:
    catalog = make_catalog()
    catalog.publish(offer("s", ["a", "b"]))
    catalog.hide_tools("s", frozenset({"s.a"}))
    assert list_names(catalog.current) == ["s.b"]
    assert list_names(catalog.current, "safe") == ["s__b"]
    assert [tool.canonical for tool in catalog.current.tools] == ["s.b"]
    for name in ("s.a", "s__a"):
        result = catalog.find(name)
        assert result is not None
        assert result.canonical == "s.a"
    catalog.hide_tools("s", frozenset())
    assert list_names(catalog.current) == ["s.a", "s.b"]


def test_hiding_notifies_clients_once() -> None:
    catalog = make_catalog()
    catalog.publish(offer("s", ["a", "b"]))
    notifications: list[frozenset[str]] = []
    catalog.on_change(notifications.append)
    catalog.hide_tools("s", frozenset({"s.a"}))
    catalog.hide_tools("s", frozenset({"s.a"}))
    catalog.hide_tools("other", frozenset())
    assert notifications == [{TOOLS}]
    number = catalog.current.number
    catalog.hide_tools("s", frozenset())
    assert notifications == [{TOOLS}] * 2
    assert catalog.current.number > number


def test_reviewed_tools_are_never_visible() -> None:
    """Listeners may read the lists while they are told: both ways, neither shows the bad one."""
    catalog = make_catalog()
    catalog.review = lambda offering: frozenset(
        tool.canonical for tool in offering.tools if "poison" in tool.description
    )
    seen: list[str] = []
    catalog.on_change(lambda _: seen.extend(tool["description"] for tool in shown(catalog.current)))
    catalog.publish(offer_tools(a="good", b="other"))
    catalog.publish(offer_tools(a="poison", b="other"))
    catalog.publish(offer_tools(a="good", b="other"))
    catalog.publish(offer_tools(a="more poison", b="new"))
    assert seen == ["good", "other", "other", "good", "other", "new"]


def test_withdrawal_clears_hidden_tools() -> None:
    catalog = make_catalog()
    catalog.publish(offer("s", ["a"]))
    catalog.hide_tools("s", frozenset({"s.a"}))
    catalog.withdraw("s")
    catalog.publish(offer("s", ["a"]))
    assert list_names(catalog.current) == ["s.a"]


def test_lists_all_offerings() -> None:
    catalog = make_catalog()
    catalog.publish(offer("s", ["a"]))
    catalog.publish(offer("t", ["b"]))
    assert [offering.upstream for offering in catalog.offerings] == ["s", "t"]
