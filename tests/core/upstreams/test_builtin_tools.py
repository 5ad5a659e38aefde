"""The builtin tool that counts dropped notifications."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.catalog.offering import read_builtin_offering
from interlock.core.ports import Upstream
from interlock.core.upstreams.builtin_tools import BuiltinTools
from interlock.errors import INVALID_ARGUMENTS, UNKNOWN_TOOL, InterlockError
from tests.support.calls import tool_call
from tests.support.pipeline import PipelineHarness

DROPPED = {"edge": 400, "leaf": 0, "rack": 3}


def make_node(root: str | None = None, dropped: dict[str, int] = DROPPED) -> PipelineHarness:
    own = BuiltinTools(lambda: dropped)
    node = PipelineHarness(read_builtin_offering(root, own.definitions))
    upstream: Upstream = own
    node.upstreams[""] = upstream  # type: ignore[assignment]
    return node


def call_builtin(
    node: PipelineHarness, name: str = "notifications_dropped", arguments: Any = None
) -> dict[str, Any]:
    node.begin(tool_call(name, arguments))
    shown = node.done[-1][1]
    assert isinstance(shown, dict)
    return shown


@pytest.mark.spec("AX-12-5")
@pytest.mark.parametrize("root", [None, "infra"])
def test_counts_all_dropped_notifications(root: str | None) -> None:
    node = make_node(root)
    name = "notifications_dropped" if root is None else f"{root}.notifications_dropped"
    shown = call_builtin(node, name)
    assert shown["structuredContent"] == {"total": 403, "by_subserver": DROPPED}
    assert shown["content"] == [
        {"type": "text", "text": "403 notifications were rejected (edge: 400, rack: 3)."}
    ]
    assert node.journal.outcomes == ["ok"]
    assert node.under_way == 0


@pytest.mark.spec("AX-12-5")
def test_counts_dropped_notifications_of_subserver() -> None:
    shown = call_builtin(make_node(), arguments={"segment": "rack"})
    assert shown["structuredContent"] == {"total": 3, "by_subserver": {"rack": 3}}
    assert call_builtin(make_node(dropped={}))["structuredContent"] == {
        "total": 0,
        "by_subserver": {},
    }


def test_rejects_unknown_subserver() -> None:
    node = make_node()
    shown = call_builtin(node, arguments={"segment": "x"})
    assert shown["isError"]
    assert "No subserver 'x'" in shown["content"][0]["text"]
    assert node.journal.outcomes == ["tool_error"]


@pytest.mark.parametrize("arguments", [{"segment": 1}, {"other": 1}])
def test_rejects_invalid_arguments(arguments: Any) -> None:
    assert (
        make_node().refused(tool_call("notifications_dropped", arguments)).failure
        is INVALID_ARGUMENTS
    )


def test_counter_is_read_only_and_listed() -> None:
    [definition] = BuiltinTools.definitions
    read = json.loads(definition)
    assert read["annotations"]["readOnlyHint"] is True
    [tool] = read_builtin_offering(None, BuiltinTools.definitions).tools
    assert tool.repeatable
    assert not tool.route_members


def test_rejects_unknown_builtin_tool() -> None:
    call = tool_call("other")
    with pytest.raises(InterlockError, match="no tool 'other'") as caught:
        BuiltinTools(dict).start(call, make_node().pipeline)
    assert caught.value.failure is UNKNOWN_TOOL
