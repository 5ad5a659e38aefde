"""Names of contracts that clash with names of servers: the server wins."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import (
    CONTRACTS,
    ENDED_CONTRACTS,
    Offering,
    read_contract_offering,
)
from tests.support.offerings import definition, merged, offer


def contracts(*names: str, key: str = CONTRACTS) -> Offering:
    effects = dict.fromkeys(names, EffectLevel.READ_ONLY)
    return read_contract_offering(key, None, [definition(name) for name in names], effects)


@pytest.mark.parametrize(
    ("contract", "settings", "own"),
    [
        ("bank.pay", {}, "pay"),
        ("bank.a.b", {}, "a__b"),
        ("pay.out", {"expose": "transparent"}, "pay.out"),
        ("bank.pay", {"registered": "leaf"}, "pay"),
    ],
    ids=["canonical", "safe", "transparent", "registered"],
)
def test_server_keeps_names_over_contracts(
    contract: str, settings: dict[str, Any], own: str
) -> None:
    theirs = offer("bank", [own], **settings)
    (tool,) = theirs.tools
    alone = merged(theirs)
    for order in permutations([theirs, contracts(contract, "text.echo")]):
        both = merged(*order)
        for name in alone.names():
            assert both.by_name[name] is tool
        for style in ("dotted", "safe"):
            assert both.name_in_list(tool, style) == alone.name_in_list(tool, style)
        assert [tool.upstream for tool in both.tools] == ["bank", CONTRACTS]
        ((aside, reason),) = both.contracts_not_offered()
        assert aside.upstream_name == contract
        assert "the server bank has" in reason


def test_ended_contract_does_not_hide_tool() -> None:
    catalog = Catalog(server_info=b"{}")
    catalog.publish(contracts("bank.pay", key=ENDED_CONTRACTS))
    catalog.publish(offer("bank", ["pay"]))
    assert [tool.upstream for tool in catalog.current.tools] == ["bank"]


def test_contract_returns_when_name_is_free() -> None:
    catalog = Catalog(server_info=b"{}")
    catalog.publish(contracts("bank.pay"))
    catalog.publish(offer("bank", ["pay"]))
    assert [tool.upstream for tool in catalog.current.tools] == ["bank"]
    catalog.withdraw("bank")
    assert [tool.upstream for tool in catalog.current.tools] == [CONTRACTS]
    assert list(catalog.current.contracts_not_offered()) == []


# -- servers that are not there yet


@pytest.mark.parametrize(
    ("contract", "prefix", "waits"),
    [
        ("bank.pay", "bank", True),
        ("bank__pay", "bank", True),
        ("bank.a.b", "bank", True),
        ("banker.pay", "bank", False),
        ("bank", "bank", False),
        ("pay.out", "", True),
    ],
)
def test_reserved_names_delay_contract(contract: str, prefix: str, waits: bool) -> None:
    catalog = Catalog(server_info=b"{}")
    catalog.reserve_names("bank", prefix)
    catalog.publish(contracts(contract))
    notifications: list[frozenset[str]] = []
    catalog.on_change(notifications.append)
    assert bool(catalog.current.tools) is not waits
    assert (catalog.find(contract) is None) is waits
    if waits:
        ((aside, reason),) = catalog.current.contracts_not_offered()
        assert (aside.upstream_name, "the server bank is not connected" in reason) == (
            contract,
            True,
        )
    # It has something else, or nothing at all: then the contract may have its name.
    catalog.publish(offer("bank", []))
    assert [tool.upstream_name for tool in catalog.current.tools] == [contract]
    assert notifications == [{"tools"}]
    # It is lost, and may come back with other tools.
    catalog.withdraw("bank")
    assert (catalog.find(contract) is None) is waits
    catalog.release_names("bank")
    assert catalog.find(contract) is not None
    assert list(catalog.current.contracts_not_offered()) == []


def test_does_not_notify_without_contracts() -> None:
    catalog = Catalog(server_info=b"{}")
    notifications: list[frozenset[str]] = []
    catalog.on_change(notifications.append)
    catalog.reserve_names("bank", "bank")
    catalog.publish(offer("bank", []))
    catalog.withdraw("bank")
    catalog.release_names("bank")
    assert notifications == []
