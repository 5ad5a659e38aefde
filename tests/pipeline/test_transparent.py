"""A server that is shown as itself judges for itself, but what the config keeps back stays back."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.call import Call, Caller
from interlock.config.trust import BudgetsConfig, CallerBudget
from interlock.errors import BUDGET_EXCEEDED, FORBIDDEN, UNKNOWN_TOOL
from tests.catalog.offers import offer
from tests.pipeline.calls import LOCAL, WITH_EXTENSION, tool_call
from tests.pipeline.rig import Rig


def transparent(**settings: object) -> Rig:
    node = Rig(offer("s", ["open"], expose="transparent", **settings))
    node.pipeline.transparent = "s"
    return node


def test_a_tool_that_is_not_listed_is_for_the_server_to_judge() -> None:
    node = transparent()
    node.begin(tool_call("unlisted"))
    [sent] = node.upstreams["s"].started
    assert sent.call.extra is not None
    assert bytes(sent.call.extra["name"]) == b'"unlisted"'


@pytest.mark.parametrize(
    "settings", [{"deny": ["*"]}, {"deny": ["un*"]}, {"allow": ["open"]}], ids=str
)
def test_what_the_config_keeps_back_stays_back(settings: dict[str, list[str]]) -> None:
    node = transparent(**settings)
    assert node.refused(tool_call("unlisted")).failure is UNKNOWN_TOOL
    assert node.upstreams["s"].started == []


# -- methods that nobody here knows


def extended(**settings: Any) -> Rig:
    node = Rig(offer("s", ["open"], expose="transparent"), **settings)
    node.pipeline.transparent = "s"
    node.upstreams["s"].capabilities["extensions"] = {"org.example/shared": {}}
    return node


def unknown() -> Call:
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
def test_what_is_passed_on_takes_the_scope_to_write(
    scopes: tuple[str, ...] | None, passes: bool
) -> None:
    node = extended()
    node.pipeline.enter.authenticate = lambda _: Caller("who", scopes=scopes)  # type: ignore[assignment]
    if passes:
        node.begin(unknown())
        assert len(node.upstreams["s"].started) == 1
        return
    error = node.refused(unknown())
    assert error.failure is FORBIDDEN
    assert node.upstreams["s"].started == []


def test_a_subserver_that_may_only_read_is_passed_nothing() -> None:
    node = extended()
    node.pipeline.permit.scope_limits = {"s": "read"}
    assert node.refused(unknown()).failure is FORBIDDEN
    assert node.upstreams["s"].started == []


def test_what_is_passed_on_is_on_disk_first() -> None:
    class Slow:
        def __init__(self) -> None:
            self.kept: list[Any] = []
            self.then: list[Any] = []

        def record(self, entry: Any) -> None:
            self.kept.append(entry)

        def record_durably(self, entry: Any, then: Any) -> None:
            self.kept.append(entry)
            self.then.append(then)

    journal = Slow()
    node = extended(recorder=journal, durable=True)
    node.begin(unknown())
    node.begin(unknown())
    assert node.upstreams["s"].started == []
    assert [entry[7] for entry in journal.kept] == ["dispatching"] * 2
    journal.then[0](True)
    assert len(node.upstreams["s"].started) == 1
    journal.then[1](False)
    assert len(node.upstreams["s"].started) == 1
    assert node.done[-1][1].failure.name == "journal_unavailable"


def test_what_is_passed_on_is_counted() -> None:
    node = extended()
    budget = CallerBudget(calls_per_minute=2)
    node.pipeline.budgets.configure(BudgetsConfig(callers=[budget]))
    node.begin(unknown())
    node.begin(unknown())
    assert node.refused(unknown()).failure is BUDGET_EXCEEDED
