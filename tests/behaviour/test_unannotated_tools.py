"""A server without annotations behind a real node: irreversible calls are pending in every view."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import ServerConfig
from interlock.core.config.trust import PolicyConfig, RuleConfig
from tests.aql.server.aql_client import ERAS, AqlClient
from tests.support.node import NodeThread

WEATHER = Path(__file__).parent / "servers" / "weather.py"
DELETE = {"station_id": "5"}
HARMLESS = [
    ("add", {"a": 1, "b": 2}),
    ("get_forecast", {"city": "Bern"}),
    ("manage_stations", {"action": "list"}),
]
HELD = [("delete_station", DELETE), ("manage_stations", {"action": "delete", "station_id": "5"})]


class Weather:
    """A node and its one server."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.ledger = folder / "ledger"
        server = ServerConfig(
            command=sys.executable,
            args=[str(WEATHER), str(self.ledger)],
            sessions="shared",
            **config.pop("server", {}),
        )
        self.node = NodeThread(folder, workshops={}, servers={"weather": server}, **config)

    def executed(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    def call(self, view: str, era: str, tool: str, arguments: dict[str, Any]) -> str:
        """The code of the answer; `ok` for a result."""
        if view == "plain":
            client = AqlClient(self.node, "?view=plain", era)
            name = f"weather.{tool}"
            answer = client.request("tools/call", {"name": name, "arguments": arguments}, name)
            text = answer.body.decode()
            return "CONFIRMATION_REQUIRED" if "confirmation_required" in text else "ok"
        client = AqlClient(self.node, f"?view={view}", era)
        (found,) = [
            operation
            for operation in client.introspect()["operations"]
            if operation["name"].endswith(tool)
        ]
        endpoint = (
            "mcp_aql" if view == "aql-single" else f"mcp_aql_{found['semantic_category'].lower()}"
        )
        response = client.ask(found["name"], arguments, endpoint)
        return "ok" if response["success"] else str(response["error"]["code"])


@pytest.fixture
def weather(tmp_path: Path) -> Any:
    made: list[Weather] = []

    def start(**config: Any) -> Weather:
        made.append(Weather(tmp_path, **config))
        return made[-1]

    yield start
    for item in made:
        item.node.stop()


@pytest.mark.parametrize("era", ERAS)
def test_irreversible_calls_are_pending_in_every_view(weather: Any, era: str) -> None:
    place = weather()
    views = ("plain", "aql", "aql-single")
    for tool, arguments in HELD:
        actual = {view: place.call(view, era, tool, arguments) for view in views}
        assert actual == dict.fromkeys(views, "CONFIRMATION_REQUIRED"), tool
    assert place.executed() == []
    for tool, arguments in HARMLESS:  # type: ignore[assignment]
        actual = {view: place.call(view, era, tool, arguments) for view in views}
        assert actual == dict.fromkeys(views, "ok"), tool
    assert set(place.executed()) == {"add", "get_forecast", "manage_stations list"}
    assert len(place.executed()) == 9


@pytest.mark.parametrize(
    ("config", "held", "runs"),
    [
        ({"unannotated": "allow"}, [], ["delete_station", "add", "get_forecast"]),
        ({"unannotated": "confirm"}, ["delete_station", "add"], ["get_forecast"]),
        ({"server": {"unannotated": "allow"}}, [], ["delete_station", "add"]),
        (
            {"unannotated": "allow", "server": {"effects": {"add": "irreversible"}}},
            ["add"],
            ["delete_station", "get_forecast"],
        ),
        ({"policy": PolicyConfig(default="allow")}, [], ["delete_station", "add"]),
    ],
)
def test_settings_apply_to_every_view(
    weather: Any, config: dict[str, Any], held: list[str], runs: list[str]
) -> None:
    arguments = {"delete_station": DELETE, **dict(HARMLESS)}
    place = weather(**config)
    for view in ("plain", "aql", "aql-single"):
        actual = {
            tool: place.call(view, "stateless", tool, arguments[tool]) for tool in [*held, *runs]
        }
        assert actual == {
            **dict.fromkeys(held, "CONFIRMATION_REQUIRED"),
            **dict.fromkeys(runs, "ok"),
        }


def test_rules_see_effect_of_actual_call(weather: Any) -> None:
    rule = RuleConfig(name="never", then="deny", effects=["irreversible"])
    place = weather(policy=PolicyConfig(rules=[rule]))
    # Twice: what was decided for one call must not decide the other.
    for _ in range(2):
        assert place.call("aql", "stateless", "manage_stations", {"action": "list"}) == "ok"
        response = place.call("aql", "stateless", "manage_stations", {"action": "delete"})
        assert response.startswith("PERMISSION_"), response
    assert place.executed() == ["manage_stations list"] * 2


def test_rejects_ambiguous_arguments(weather: Any) -> None:
    place = weather()
    client = AqlClient(place.node, "?view=plain", "session")
    body = (
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"weather.manage_stations",'
        b'"arguments":{"action":"delete","action":"list"}}}'
    )
    answer = client.send(body, "tools/call", "weather.manage_stations")
    assert answer.result["isError"] is True
    assert place.executed() == []


def test_approval_states_reason_for_effect(weather: Any) -> None:
    place = weather()
    place.call("plain", "stateless", "delete_station", DELETE)
    (record,) = place.node.node.trust.approving.approvals.pending()
    assert "`delete` in its name" in record.reason
    assert json.loads(record.arguments) == DELETE
