"""Tests of a node that watches the contracts of its upstreams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.contracts.registry.records import parse_timestamp
from interlock.contracts.tool_records import ToolRecordStore
from interlock.core.config import LearnedRule, PinsConfig, PolicyConfig, ServerConfig
from interlock.drivers.contract_versions import registered_deprecations
from interlock.errors import TOOL_HELD
from interlock.manifests.model import ToolContract
from interlock.trust.pin_store import PinStore
from tests.contracts.changing_server import ADD, DEMANDING, ECHO, TEXT, WIDER, ChangingServer
from tests.contracts.registry.git_repositories import git
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.tool_server import tool
from tests.support.waiting import wait_until

Start = Callable[..., ChangingServer]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Start]:
    """A function that stops the previous node and starts a node in its folder."""
    running: list[ChangingServer] = []

    def begin(*tools: dict[str, Any], **settings: Any) -> ChangingServer:
        for one in running:
            one.close()
        running[:] = [ChangingServer(tmp_path, *tools, **settings)]
        return running[0]

    yield begin
    for one in running:
        one.close()


def call_and_get_error(shop: ChangingServer, **arguments: Any) -> str | None:
    """Return the error of a call, or None if the call reaches its server."""
    before = len(shop.shop.calls("echo"))
    result = shop.call("echo", **arguments).json
    if len(shop.shop.calls("echo")) > before:
        return None
    return str(result)


@pytest.mark.spec("ST-4.5.3-5", "ST-4.6.4-4")
def test_reports_parameter_that_becomes_required(
    start_node: Start, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    rule = LearnedRule(name="echo is fine", then="allow", tools=["shop.echo"])
    policy = PolicyConfig(default="allow", learned=[rule])
    shop = start_node(registry="registry", node_policy=policy)
    assert shop.status() == []
    assert git(tmp_path / "registry", "log", "--format=%an: %s") == (
        "interlock: First seen: 2 tools of shop\n"
    )
    assert call_and_get_error(shop, text="a") is None
    shop.journal("tools/call")

    shop.offers(DEMANDING, ADD)
    [row] = shop.status()
    assert (row.tool, row.upstream) == ("shop.echo", "shop")
    assert (row.from_version, row.to_version) == ("1.0.0", "2.0.0")
    assert (row.breaking, row.held) == (True, False)
    [change] = [one for one in row.changes if one.breaking]
    assert change.reason == "REQUIRED_FIELD_ADDED"
    assert "text" in change.path
    assert change.message
    assert row.breaks.callers == ["local"]
    assert row.breaks.rules == ["echo is fine"]
    # An event: in the log and in the journal.
    assert "contract of shop.echo: breaking change: 1.0.0 → 2.0.0" in caplog.text
    [entry] = shop.journal("contracts")
    assert (entry.name, entry.outcome) == ("shop.echo", "breaking")
    assert "REQUIRED_FIELD_ADDED" in entry.detail
    # It is told, and nobody is kept from it.
    assert call_and_get_error(shop, text="a") is None
    registry = shop.registry()
    assert registry.versions("shop.echo") == ["1.0.0", "2.0.0"]
    newest = registry.find("shop.echo", "2.x")
    assert (newest.domain, newest.protocol) == ("upstream.shop", "mcp-tool")
    assert newest.provenance.source == "upstream:shop"
    [commit, _] = registry.history("shop.echo")
    assert commit.reason.startswith("shop.echo: REQUIRED_FIELD_ADDED /")
    registry.close()


def test_reports_compatible_change_without_holding(start_node: Start) -> None:
    shop = start_node(on_break="hold")
    shop.offers(WIDER, ADD)
    [row] = shop.status()
    assert (row.tool, row.breaking, row.held) == ("shop.echo", False, False)
    assert (row.from_version, row.to_version) == ("1.0.0", "1.1.0")
    assert [one.reason for one in row.changes] == ["FIELD_ADDED_OPTIONAL"]
    assert call_and_get_error(shop, loud=True) is None
    [entry] = shop.journal("contracts")
    assert entry.outcome == "compatible"
    # Words alone are a patch.
    shop.offers({**WIDER, "description": "Says it again."}, ADD)
    rows = shop.status()
    assert [row.to_version for row in rows] == ["1.1.1", "1.1.0"]


def test_holds_breaking_tool_until_accepted(start_node: Start) -> None:
    shop = start_node(on_break="hold", registry="registry")
    assert call_and_get_error(shop) is None
    shop.offers(DEMANDING, ADD)
    assert shop.listed() == ["shop.add"]
    [row] = shop.status()
    assert row.held
    # Also who calls it as it was: what it asks for now is nobody's business.
    for told in (str(call_and_get_error(shop)), str(call_and_get_error(shop, text="a"))):
        assert f"'error': '{TOOL_HELD.name}'" in told
        assert "its contract has a breaking change (REQUIRED_FIELD_ADDED)" in told
        assert "interlock contracts accept shop.echo" in told
        assert "text" not in told
    assert "shop.echo" in shop.running.do(shop.running.node.status).held
    [held] = shop.journal("held")
    assert held.name == "shop.echo"

    assert shop.accept(by="somebody")
    assert shop.status() == []
    assert shop.listed() == ["shop.add", "shop.echo"]
    assert call_and_get_error(shop, text="a") is None
    assert "invalid_arguments" in str(call_and_get_error(shop))
    assert [(one.outcome, one.detail) for one in shop.journal("contracts")][-1] == (
        "accepted",
        "somebody",
    )
    # From now on that is what it is to stay.
    shop.offers(ECHO, ADD)
    assert shop.listed() == ["shop.add", "shop.echo"]
    shop.offers(DEMANDING, ADD)
    assert "shop.echo" not in shop.listed()


def test_pending_tool_is_never_visible(start_node: Start) -> None:
    shop = start_node(on_break="hold")
    seen: list[list[str]] = []
    catalog = shop.running.node.catalog
    shop.running.do(
        lambda: catalog.on_change(
            lambda _: seen.append([one.canonical for one in catalog.current.tools])
        )
    )
    shop.offers(DEMANDING, ADD)
    assert seen
    assert all("shop.echo" not in names for names in seen)


def test_restored_tool_is_listed_again(start_node: Start) -> None:
    shop = start_node(on_break="hold", registry="registry")
    shop.offers(DEMANDING, ADD)
    assert call_and_get_error(shop, text="a") is not None
    shop.offers(ECHO, ADD)
    assert call_and_get_error(shop) is None
    [row] = shop.status()
    assert (row.breaking, row.to_version) == (False, "2.1.0")
    registry = shop.registry()
    assert registry.versions("shop.echo") == ["1.0.0", "2.0.0", "2.1.0"]
    registry.close()
    assert [one.outcome for one in shop.journal("contracts")] == ["breaking", "restored"]


def test_records_survive_restart(start_node: Start) -> None:
    start_node(on_break="hold")
    shop = start_node(DEMANDING, ADD, on_break="hold")
    assert shop.listed() == ["shop.add"]
    shop = start_node(DEMANDING, ADD, on_break="hold")
    assert shop.listed() == ["shop.add"]
    [row] = shop.status()
    assert (row.from_version, row.to_version, row.held) == ("1.0.0", "2.0.0", True)
    # It is told once.
    assert len(shop.journal("contracts")) == 1
    shop = start_node(ECHO, ADD, on_break="hold")
    assert shop.listed() == ["shop.add", "shop.echo"]


def test_accepts_only_shown_change(start_node: Start) -> None:
    shop = start_node(on_break="hold")
    shop.offers(DEMANDING, ADD)
    store = ToolRecordStore(shop.path)
    shown = store.get("shop.echo")
    assert shown is not None
    shop.offers(tool("echo", "text", "more", text=TEXT, more=TEXT), ADD)
    assert not store.accept(shown, "operator")
    store.close()
    shop.settle()
    assert call_and_get_error(shop, text="a") is not None


def test_reports_removed_tool(start_node: Start) -> None:
    shop = start_node(on_break="hold")
    shop.offers(ADD)
    [row] = shop.status()
    assert [one.reason for one in row.changes] == ["TOOL_REMOVED"]
    assert (row.tool, row.breaking, row.held) == ("shop.echo", True, False)
    shop.offers(ECHO, ADD)
    assert not [row for row in shop.status() if row.breaking]
    shop.offers(ADD)
    # Accepting that it is gone forgets it: what comes later is new.
    assert shop.accept()
    assert not [row for row in shop.status() if row.breaking]
    shop.offers(DEMANDING, ADD)
    assert shop.listed() == ["shop.add", "shop.echo"]
    outcomes = [one.outcome for one in shop.journal("contracts")]
    assert outcomes == ["removed", "restored", "removed"]


def test_hidden_or_renamed_tool_is_not_removed(start_node: Start) -> None:
    shop = start_node()
    url = shop.shop.url
    for server in (
        ServerConfig(url=url, deny=["echo"]),
        ServerConfig(url=url, rename={"echo": "say"}),
        ServerConfig(url=url, descriptions={"echo": "Ours."}),
    ):
        config = shop.running.config(servers={"shop": server})
        shop.running.wait(shop.running.node.apply(config))
        shop.settle()
        assert shop.status() == []
    assert shop.journal("contracts") == []


def test_registry_restores_lost_state_folder(start_node: Start) -> None:
    shop = start_node(registry="registry")
    path = shop.path
    shop = start_node(registry="registry")
    store = ToolRecordStore(path)
    # As if the file had never been.
    store._file.connection.execute("DELETE FROM sighting")
    store._file.connection.execute("DELETE FROM place")
    store.close()
    shop = start_node(DEMANDING, ADD, registry="registry", on_break="hold")
    [row] = shop.status()
    assert (row.tool, row.from_version, row.to_version) == ("shop.echo", "1.0.0", "2.0.0")
    assert row.held
    assert shop.accept()
    assert shop.status() == []
    shop = start_node(DEMANDING, ADD, registry="registry", on_break="hold")
    assert shop.status() == []


def test_retries_failed_publication(start_node: Start, tmp_path: Path) -> None:
    shop = start_node(registry="registry")
    git(tmp_path / "registry", "checkout", "--quiet", "--detach")
    shop.offers(DEMANDING, ADD)
    [problem] = shop.running.do(shop.contracts.problems)
    assert "is on no branch" in problem
    [row] = shop.status()
    assert row.to_version == "2.0.0"
    git(tmp_path / "registry", "switch", "--quiet", "main")
    shop.offers(DEMANDING)
    assert shop.running.do(shop.contracts.problems) == []
    registry = shop.registry()
    assert registry.versions("shop.echo") == ["1.0.0", "2.0.0"]
    registry.close()


def test_publishes_to_changed_registry(start_node: Start, tmp_path: Path) -> None:
    shop = start_node()
    assert not (tmp_path / "registry").exists()
    shop.configure(registry="registry")
    shop.settle()
    registry = shop.registry()
    assert registry.versions("shop.echo") == ["1.0.0"]
    registry.close()
    shop.configure(registry="other")
    shop.settle()
    assert (tmp_path / "other" / "upstream.shop" / "shop.echo" / "1.0.0.tool.json").exists()


def test_settings_change_live(start_node: Start) -> None:
    shop = start_node()
    shop.offers(DEMANDING, ADD)
    assert call_and_get_error(shop, text="a") is None
    shop.configure(on_break="hold")
    assert shop.listed() == ["shop.add"]
    shop.configure(on_break="report")
    assert shop.listed() == ["shop.add", "shop.echo"]
    shop.configure(watch=False)
    shop.offers(tool("echo", "text", "x", text=TEXT, x=TEXT), ADD)
    [row] = shop.status()
    assert row.to_version == "2.0.0"
    shop.configure(watch=True)
    shop.settle()
    [row] = shop.status()
    assert row.to_version == "3.0.0"


def test_pins_and_contracts_need_separate_acceptance(start_node: Start) -> None:
    shop = start_node(on_break="hold", node_pins=PinsConfig(mode="first_seen"))
    shop.offers({**DEMANDING, "description": "Another."}, ADD)
    assert shop.listed() == ["shop.add"]
    assert "interlock pins accept" in str(call_and_get_error(shop, text="a"))
    assert shop.accept()
    assert shop.listed() == ["shop.add"]
    trust = shop.running.node.trust
    assert trust._pin_store.sync().wait(HANG_TIMEOUT)
    store = PinStore(shop.folder / "pins.db")
    seen = store.find_seen_contract("shop.echo")
    assert seen is not None
    store.accept(seen, "operator")
    store.close()
    assert trust._pin_store.sync().wait(HANG_TIMEOUT)
    shop.running.until(lambda: not trust.pins.held_tools, "the pin to be accepted")
    assert shop.listed() == ["shop.add", "shop.echo"]
    # And the other way round: what pins let go is still held for what it breaks.
    shop.offers(tool("echo", "text", "x", text=TEXT, x=TEXT), ADD)
    store = PinStore(shop.folder / "pins.db")
    assert trust._pin_store.sync().wait(HANG_TIMEOUT)
    seen = store.find_seen_contract("shop.echo")
    assert seen is not None
    store.accept(seen, "operator")
    store.close()
    assert trust._pin_store.sync().wait(HANG_TIMEOUT)
    shop.running.until(
        lambda: [type(one).__name__ for one in trust.pins.held_tools.values()] == ["HeldContract"],
        "only the contract to hold it",
    )
    assert shop.listed() == ["shop.add"]
    assert "interlock contracts accept" in str(call_and_get_error(shop))


def test_compares_large_contract_in_background(start_node: Start) -> None:
    def large(*required: str) -> dict[str, Any]:
        many = {f"p{n}": {"type": "string", "description": "x" * 100} for n in range(2000)}
        return tool("echo", *required, text=TEXT, **many)

    shop = start_node(large(), ADD, on_break="hold")
    wait_until("it may be called", lambda: call_and_get_error(shop) is None)
    shop.offers({**large(), "description": "Other words."}, ADD)
    wait_until("both are listed", lambda: shop.listed() == ["shop.add", "shop.echo"])
    shop.offers(large("text"), ADD)
    wait_until("it is held", lambda: shop.listed() == ["shop.add"])
    assert "REQUIRED_FIELD_ADDED" in str(call_and_get_error(shop, text="a"))


def test_publishes_declared_versions(start_node: Start, tmp_path: Path) -> None:
    shop = start_node(registry="registry")
    document = b'{"name": "mail.send", "inputSchema": {"type": "object"}}'
    shop.running.do(
        lambda: shop.contracts.declare("mail.send", "1.4.0", document, "tools/mail/TOOL.md")
    )
    shop.settle()
    registry = shop.registry()
    found = registry.find("mail.send", "1.x")
    assert (found.version, found.domain) == ("1.4.0", "contract")
    assert found.provenance.source == "tools/mail/TOOL.md"
    # Whoever deprecates a major of it does it there, and the node hears of it.
    told: list[str] = []
    shop.contracts.on_deprecations = lambda: told.append("ends")
    send, other = (
        ToolContract(tmp_path, id, id, "", "1.4.0", {}, {}) for id in ("mail.send", "mail.list")
    )
    assert registered_deprecations([send], shop.contracts.deprecations) == {}
    ends = registry.deprecate(
        "mail.send", 1, author="operator", migration_uri="https://example.org/2"
    )
    registry.close()
    shop.settle()
    assert told == ["ends"]
    found_ends = registered_deprecations([send, other], shop.contracts.deprecations)
    [(key, end)] = found_ends.items()
    assert (key, end.migration_uri) == ("mail.send@1", "https://example.org/2")
    assert end.ends_at == parse_timestamp(ends.sunset_at)
