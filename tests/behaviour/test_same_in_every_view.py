"""One call of one caller has the same outcome over every route."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.core.config import ServerConfig
from interlock.topics.config import TopicsConfig
from tests.aql.server.aql_client import ERAS, AqlClient
from tests.behaviour.test_unannotated_tools import WEATHER, Weather
from tests.behaviour.topic_office import NODE, TOPIC, rpc, token
from tests.support.command_line import CommandLine
from tests.support.node import NodeThread
from tests.topics.peers import join_topic

Outcome = Callable[[str, dict[str, Any]], str]
"""Calls a tool: `waits`, or `runs`."""

HELD: list[tuple[str, dict[str, Any]]] = [
    ("delete_station", {"station_id": "5"}),
    ("drop_stations", {"region": "north"}),
    ("manage_stations", {"action": "delete"}),
]
RUNNING: list[tuple[str, dict[str, Any], str]] = [
    ("add", {"a": 1, "b": 2}, "add"),
    ("get_forecast", {"city": "Bern"}, "get_forecast"),
    ("manage_stations", {"action": "list"}, "manage_stations list"),
]


def outcome_of(text: str) -> str:
    held = "confirmation_required" in text or "CONFIRMATION_REQUIRED" in text
    return "waits" if held else "runs"


@contextmanager
def in_view(folder: Path, ledger: Path, view: str, era: str) -> Iterator[Outcome]:
    place = Weather(folder)
    place.ledger = ledger
    try:
        yield lambda tool, arguments: outcome_of(
            {"ok": "runs"}.get(code := place.call(view, era, tool, arguments), code)
        )
    finally:
        place.node.stop()


def server_of(ledger: Path, **more: Any) -> ServerConfig:
    args = [str(WEATHER), str(ledger)]
    return ServerConfig(command=sys.executable, args=args, sessions="shared", **more)


def plain_call(node: NodeThread, name: str, arguments: dict[str, Any]) -> str:
    client = AqlClient(node, "?view=plain")
    answer = client.request("tools/call", {"name": name, "arguments": arguments}, name)
    assert "result" in json.loads(answer.body), answer.body
    return outcome_of(answer.body.decode())


@contextmanager
def transparent(folder: Path, ledger: Path) -> Iterator[Outcome]:
    """The only server, shown as itself: its tools have their own names."""
    servers = {"weather": server_of(ledger, expose="transparent")}
    node = NodeThread(folder, workshops={}, servers=servers)
    try:
        yield lambda tool, arguments: plain_call(node, tool, arguments)
    finally:
        node.stop()


@contextmanager
def through_parent(folder: Path, ledger: Path) -> Iterator[Outcome]:
    """The child's own gate is open, so that the parent's is seen."""
    (folder / "child").mkdir()
    (folder / "parent").mkdir()
    servers = {"weather": server_of(ledger, unannotated="allow")}
    child = NodeThread(folder / "child", workshops={}, servers=servers)
    try:
        parent = NodeThread(
            folder / "parent", workshops={}, servers={"child": ServerConfig(url=child.url)}
        )
        try:
            names = AqlClient(parent, "?view=plain").names()

            def call(tool: str, arguments: dict[str, Any]) -> str:
                (name,) = (name for name in names if name.endswith(tool))
                return plain_call(parent, name, arguments)

            yield call
        finally:
            parent.stop()
    finally:
        child.stop()


@contextmanager
def at_terminal(folder: Path, ledger: Path) -> Iterator[Outcome]:
    world = CommandLine(folder)
    try:
        world.config({"weather": {"command": sys.executable, "args": [str(WEATHER), str(ledger)]}})
        world.up().wait_for_line("upstream weather: ready")
        seen: set[str] = set()

        def call(tool: str, arguments: dict[str, Any]) -> str:
            given = ("--json", json.dumps(arguments), "--json-output")
            result = world.run_here("call", f"weather.{tool}", *given)
            waiting = json.loads(world.run_here("approvals", "--json").stdout)["approvals"]
            held = len(waiting) - len(seen)
            seen.update(task["id"] for task in waiting)
            assert bool(held) == (result.returncode != 0), result.stderr
            return "waits" if held else "runs"

        yield call
    finally:
        world.close()


@contextmanager
def in_topic(folder: Path, ledger: Path) -> Iterator[Outcome]:
    """A participant that may make requests, and so need not propose."""
    seats = [{"callers": ["caller"], "capabilities": ["mcp/request:*", "chat"]}]
    node = NodeThread(
        folder,
        workshops={},
        servers={"weather": server_of(ledger)},
        tokens={"caller": token("caller")},
        topics=msgspec.convert(
            {"rooms": {TOPIC: {"node": NODE, "participants": seats}}}, TopicsConfig
        ),
    )

    async def say(tool: str, arguments: dict[str, Any]) -> str:
        url = f"ws://{node.host}/ws?topic={TOPIC}"
        async with join_topic(url, token("caller")) as peer:
            payload = rpc("tools/call", {"name": f"weather.{tool}", "arguments": arguments})
            kind = f"mcp/request:tools/call:weather.{tool}"
            request = await peer.say(kind, payload, to=[NODE])
            message = await peer.until(lambda one: one.get("correlation_id") == request)
            assert message["kind"].startswith("mcp/response"), message
            return outcome_of(json.dumps(message["payload"]))

    try:
        yield lambda tool, arguments: asyncio.run(say(tool, arguments))
    finally:
        node.stop()


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    **{
        f"{view} {era}": lambda folder, ledger, view=view, era=era: in_view(
            folder, ledger, view, era
        )
        for view in ("plain", "aql", "aql-single")
        for era in ERAS
    },
    "transparent": transparent,
    "parent": through_parent,
    "interlock call": at_terminal,
    "topic request": in_topic,
}


@pytest.mark.parametrize("route", WAYS)
def test_same_calls_are_pending_in_every_view(route: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with WAYS[route](tmp_path, ledger) as call:
        actual = {f"{tool} {given}": call(tool, given) for tool, given in HELD}
        assert actual == dict.fromkeys(actual, "waits")
        assert not ledger.exists()
        actual = {f"{tool} {given}": call(tool, given) for tool, given, _ in RUNNING}
        assert actual == dict.fromkeys(actual, "runs")
        assert ledger.read_text().split("\n") == [*(what for *_, what in RUNNING), ""]


@pytest.mark.parametrize("view", ["plain", "aql", "aql-single"])
def test_dangerous_names_require_operator_in_every_view(view: str, tmp_path: Path) -> None:
    place = Weather(tmp_path)
    try:
        for tool, given in HELD:
            place.call(view, "stateless", tool, given)
        pending = place.node.node.trust.approving.approvals.pending()  # type: ignore[union-attr]
        actual = {record.tool.rpartition(".")[2]: record.action for record in pending}
    finally:
        place.node.stop()
    assert actual == {
        "delete_station": "confirm",
        "manage_stations": "confirm",
        "drop_stations": "verify",
    }
