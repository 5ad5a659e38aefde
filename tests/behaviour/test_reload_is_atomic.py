"""A reload applies the whole config or nothing of it: faults are injected into every component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from interlock.app.features import load_features
from interlock.automation.config import AutomationConfig
from interlock.contracts.config import ContractsConfig
from interlock.core.config import Config, ServerConfig
from interlock.core.config.trust import PolicyConfig
from interlock.core.feature import Component
from interlock.drivers.config import DriversConfig
from interlock.errors import INTERNAL, InterlockError
from interlock.topics.config import TopicConfig, TopicsConfig
from interlock.topics.overview import TopicsStatus
from tests.support.node import NodeThread, result_text
from tests.support.tool_server import ToolServer

ORDER = (
    "listeners", "trust", "settings", "tree", "upstreams", "contracts", "drivers", "aql",
    "automation", "topics", "introduction",
)  # fmt: skip
OF_CORE = {"listeners", "trust", "settings", "upstreams", "introduction"}
COMPONENTS = tuple(
    name
    for name in ORDER
    if name in OF_CORE or name in {feature.name for feature in load_features()}
)
FAULT = InterlockError(INTERNAL, "The disk is full.")


def components(node: NodeThread) -> dict[str, Component]:
    return node.node._lifecycle._components


def break_once(component: Any, *, after: bool) -> None:
    """The next `apply` fails, before or after the component did its work; later ones succeed."""
    original = component.apply

    async def failing(old: Config, new: Config) -> None:
        component.apply = original
        if after:
            await original(old, new)
        raise FAULT

    component.apply = failing


def observe(node: NodeThread) -> dict[str, Any]:
    """What a caller and an operator can see of the config in force."""
    status = node.do(node.node.status)
    tools = node.once(node.stateless("tools/list")).result
    return {
        "tools": [tool["name"] for tool in tools["tools"]],
        "pages": "nextCursor" in tools,
        "upstreams": [
            (upstream.key, upstream.state, upstream.restarts) for upstream in status.upstreams
        ],
        "policy": status.policy,
        "topics": sorted(node.do(node.node.report).part(TopicsStatus).topics),
        "problems": status.problems,
        "call": result_text(node.once(node.call("echo", {"text": "x"}))),
    }


@pytest.fixture
def node(start_node: Callable[..., NodeThread]) -> NodeThread:
    other = ToolServer()
    running = start_node(
        workshops={"shop": ToolServer(), "other": other}, environ={"T_CLERK": "a-long-enough-token"}
    )
    assert tuple(components(running)) == COMPONENTS
    return running


def changed_config(node: NodeThread) -> Config:
    """A config in which every component has something to change."""
    servers = dict(node.config().servers)
    moved = ServerConfig(url=servers["other"].url, connections=3)
    return node.config(
        servers={"other": moved, "added": ServerConfig(command="false")},
        tokens=[{"name": "clerk", "token": "${env:T_CLERK}"}],
        policy=PolicyConfig(default="deny"),
        topics=TopicsConfig(rooms={"ops": TopicConfig(node="interlock")}),
        automation=AutomationConfig(enabled=False),
        contracts=ContractsConfig(watch=False),
        drivers=DriversConfig(enabled=False),
        page_size=1,
        names="dotted",
        root_segment="acme",
        timeout=0.001,
    )


@pytest.mark.parametrize("after", [False, True], ids=["before-its-work", "after-its-work"])
@pytest.mark.parametrize("name", COMPONENTS)
def test_failing_component_restores_previous_config(
    node: NodeThread, name: str, after: bool
) -> None:
    before, config = observe(node), node.node.config
    node.do(lambda: break_once(components(node)[name], after=after))
    with pytest.raises(InterlockError, match="The disk is full"):
        node.wait(node.node.apply(changed_config(node)))
    node.wait(node.node.until_settled(300))
    assert node.node.config is config
    assert observe(node) == before
    # The fault is gone: the same config applies now.
    change = node.wait(node.node.apply(changed_config(node)))
    assert change.added == ("added",)
    assert sorted(node.do(node.node.report).part(TopicsStatus).topics) == ["ops"]
    response = node.once(node.call("echo", {"text": "x"}))
    assert response.status == 401


def test_failing_check_changes_nothing(node: NodeThread, monkeypatch: pytest.MonkeyPatch) -> None:
    before, config = observe(node), node.node.config
    applied: list[str] = []
    for name, component in components(node).items():

        async def record(old: Config, new: Config, name: str = name) -> None:
            applied.append(name)

        monkeypatch.setattr(component, "apply", record)

    def refuse(config: Config) -> None:
        raise FAULT

    monkeypatch.setattr(components(node)["topics"], "check", refuse)
    with pytest.raises(InterlockError, match="The disk is full"):
        node.wait(node.node.apply(changed_config(node)))
    monkeypatch.undo()
    assert not applied
    assert node.node.config is config
    assert observe(node) == before


def test_failing_restore_does_not_affect_others(
    node: NodeThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = observe(node)

    async def fail(old: Config, new: Config) -> None:
        raise FAULT

    monkeypatch.setattr(components(node)["automation"], "apply", fail)
    with pytest.raises(InterlockError, match="The disk is full"):
        node.wait(node.node.apply(changed_config(node)))
    monkeypatch.undo()
    node.wait(node.node.until_settled(300))
    assert observe(node) == before
    assert any("automation" in record.getMessage() for record in caplog.records)


def test_failing_stop_does_not_affect_others(
    start_node: Callable[..., NodeThread],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = start_node()
    stopped: list[str] = []
    for name in ("automation", "contracts"):
        original = components(node)[name].stop

        async def failing(original: Any = original, name: str = name) -> None:
            await original()
            stopped.append(name)
            raise RuntimeError("no")

        monkeypatch.setattr(components(node)[name], "stop", failing)
    # It fails on tasks, sockets and files that a skipped component would leave.
    node.stop()
    assert stopped == ["automation", "contracts"]
    assert sum("cannot stop it" in record.getMessage() for record in caplog.records) == 2
