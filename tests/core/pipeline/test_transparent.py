"""A transparent server: unlisted tools, and methods that are passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from interlock.core.call import Call, Caller
from interlock.core.config.trust import BudgetsConfig, CallerBudget
from interlock.errors import BUDGET_EXCEEDED, FORBIDDEN, UNKNOWN_TOOL
from tests.support.calls import LOCAL, WITH_EXTENSION, tool_call
from tests.support.offerings import offer
from tests.support.pipeline import PipelineHarness


def make_transparent_node(**settings: Any) -> PipelineHarness:
    node = PipelineHarness(offer("s", ["open"], expose="transparent", **settings))
    node.pipeline.transparent_upstream = "s"
    return node


class ToolListing:
    """A replacement for the listing of tools that a search starts."""

    def __init__(self, node: PipelineHarness, reads: bool = True) -> None:
        self.searches: list[tuple[str, Callable[[], None]]] = []
        self._reads = reads
        node.read_tools = self._read

    def _read(self, upstream: str, then: Callable[[], None]) -> bool:
        self.searches.append((upstream, then))
        return self._reads

    def end(self) -> None:
        searches, self.searches = self.searches, []
        for _, then in searches:
            then()


def test_rejects_unlisted_tool_after_one_listing() -> None:
    node = make_transparent_node()
    reader = ToolListing(node)
    calls = [node.begin(tool_call("unlisted")) for _ in range(2)]
    assert [upstream for upstream, _ in reader.searches] == ["s", "s"]
    assert node.under_way == 2
    reader.end()
    assert [call for call, _ in node.done] == calls
    assert all(error.failure is UNKNOWN_TOOL for _, error in node.done)
    # It is not listed over and over for one call.
    assert reader.searches == []
    assert node.upstreams["s"].started == []
    assert node.journal.outcomes == ["unknown_tool", "unknown_tool"]


def test_rejects_unlisted_tool_immediately_after_listing() -> None:
    node = make_transparent_node()
    reader = ToolListing(node, reads=False)
    assert node.refused(tool_call("unlisted")).failure is UNKNOWN_TOOL
    assert len(reader.searches) == 1
    assert node.upstreams["s"].started == []


def test_calls_added_tool_by_its_definition() -> None:
    node = make_transparent_node()
    reader = ToolListing(node)
    call, cancelled = node.begin(tool_call("added")), node.begin(tool_call("added"))
    node.pipeline.cancel(cancelled)
    node.catalog.publish(offer("s", ["open", "added"], expose="transparent"))
    reader.end()
    [sent] = node.upstreams["s"].started
    assert sent.call is call
    assert call.route is node.catalog.find("added")


def test_known_tool_needs_no_listing() -> None:
    node = make_transparent_node()
    reader = ToolListing(node)
    node.begin(tool_call("open"))
    assert reader.searches == []


@pytest.mark.parametrize(
    "settings", [{"deny": ["*"]}, {"deny": ["un*"]}, {"allow": ["open"]}], ids=str
)
def test_rejects_tool_hidden_by_config(settings: dict[str, list[str]]) -> None:
    node = make_transparent_node(**settings)
    reader = ToolListing(node)
    assert node.refused(tool_call("unlisted")).failure is UNKNOWN_TOOL
    assert node.upstreams["s"].started == []
    assert reader.searches == []


# -- methods that nobody here knows


def make_extended_node(**settings: Any) -> PipelineHarness:
    node = PipelineHarness(offer("s", ["open"], expose="transparent"), **settings)
    node.pipeline.transparent_upstream = "s"
    node.upstreams["s"].capabilities["extensions"] = {"org.example/shared": {}}
    return node


def unknown_method_call() -> Call:
    return Call("org.example/do", "test", LOCAL, WITH_EXTENSION)


@pytest.mark.parametrize(
    ("scopes", "passes"),
    [
        (None, True),
        (("write",), True),
        (("write:s.*",), True),
        (("admin",), True),
        (("read",), False),
        (("write:other.*",), False),
        ((), False),
    ],
)
def test_passed_method_requires_write_scope(scopes: tuple[str, ...] | None, passes: bool) -> None:
    node = make_extended_node()
    node.pipeline.admission.authenticate = lambda _: Caller("who", scopes=scopes)  # type: ignore[assignment]
    if passes:
        node.begin(unknown_method_call())
        assert len(node.upstreams["s"].started) == 1
        return
    error = node.refused(unknown_method_call())
    assert error.failure is FORBIDDEN
    assert node.upstreams["s"].started == []


def test_read_only_subserver_receives_no_unknown_method() -> None:
    node = make_extended_node()
    node.authorizer.limit_scopes({"s": "read"})
    assert node.refused(unknown_method_call()).failure is FORBIDDEN
    assert node.upstreams["s"].started == []


def test_journals_passed_method_before_dispatch() -> None:
    class SlowJournal:
        def __init__(self) -> None:
            self.kept: list[Any] = []
            self.then: list[Any] = []

        def record(self, entry: Any) -> None:
            self.kept.append(entry)

        def record_durably(self, entry: Any, then: Any) -> None:
            self.kept.append(entry)
            self.then.append(then)

    journal = SlowJournal()
    node = make_extended_node(recorder=journal, durable=True)
    node.begin(unknown_method_call())
    node.begin(unknown_method_call())
    assert node.upstreams["s"].started == []
    assert [entry[7] for entry in journal.kept] == ["dispatching"] * 2
    journal.then[0](True)
    assert len(node.upstreams["s"].started) == 1
    journal.then[1](False)
    assert len(node.upstreams["s"].started) == 1
    assert node.done[-1][1].failure.name == "journal_unavailable"


def test_passed_method_counts_against_budget() -> None:
    node = make_extended_node()
    budget = CallerBudget(calls_per_minute=2)
    node.authorizer.budgets.configure(BudgetsConfig(callers=[budget]))
    node.begin(unknown_method_call())
    node.begin(unknown_method_call())
    assert node.refused(unknown_method_call()).failure is BUDGET_EXCEEDED
