"""Tests of the registration of children."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.protocol import mcpax as ax
from interlock.tree.config import SubserversConfig
from tests.tree.registrar_hub import (
    HELLO,
    OTHER_PARENT,
    PARENT,
    numbered_uuid,
    open_hub,
    run_pending_tasks,
    tool,
)

pytestmark = pytest.mark.usefixtures("no_leaks")


def read_error(answer: dict[str, Any] | None) -> tuple[int, str]:
    assert answer is not None
    assert "error" in answer, answer
    return answer["error"]["code"], answer["error"]["message"]


@pytest.mark.spec("AX-4.2-1", "AX-6.1-1", "AX-6.1-8", "AX-6.2-1", "AX-1-2")
async def test_registers_child_and_lists_its_tools(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        answer = child.register()
        assert answer["id"] == "mcpax-2"
        result = answer["result"]
        assert result["status"] == "registered"
        assert result["assigned_segment"] == "edge"
        assert result["aggregator_id"] == PARENT
        assert result["tree_id"] == PARENT
        await run_pending_tasks()
        assert hub.listed == {"ax:edge": ["read"]}
        assert child.asked.count("tools/list") == 1
        outcome = await hub.call("read")
        assert b'"text": "read"' in outcome.result or b'"text":"read"' in outcome.result
        info = hub.info()
        assert (info.key, info.role, info.live, info.caller) == ("ax:edge", "leaf", True, "local")
        assert hub.registrar.subserver("ax:edge") is info


async def test_initialize_identifies_aggregator(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        answer = hub.child().ask("initialize", {**HELLO, "protocolVersion": "2025-06-18"})
        assert answer is not None
        result = answer["result"]
        assert result["protocolVersion"] == "2025-06-18"
        assert result["capabilities"]["experimental"]["mcpax"] == {
            "versions": ["2026-05-01"],
            "aggregator_id": PARENT,
            "tree_id": PARENT,
        }
        assert result["serverInfo"]["name"] == "interlock-test"


async def test_invalid_initialize_can_be_repeated(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        plain = {"protocolVersion": "2025-11-25", "capabilities": {}}
        assert read_error(child.ask("initialize", plain))[0] == -32602
        assert read_error(child.ask("initialize"))[0] == -32602
        assert read_error(child.ask("initialize", [1]))[0] == -32602
        future = {"experimental": {"mcpax": {"versions": ["2030-01-01"]}}}
        answer = child.ask("initialize", {**HELLO, "capabilities": future})
        assert read_error(answer) == (-31009, "unsupported_version")
        assert answer is not None
        assert answer["error"]["data"]["supported"] == ["2026-05-01"]
        child.hello().registered()


@pytest.mark.spec("AX-6.1-10")
async def test_requires_initialize_first(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        assert read_error(child.ask("mcpax/register", {}))[0] == -32600
        assert read_error(child.ask("tools/list"))[0] == -32600
        assert read_error(child.ask("mcpax/heartbeat", {"session_id": "x"})) == (
            -31011,
            "unknown_session",
        )
        assert child.ask("ping") == {"jsonrpc": "2.0", "id": "mcpax-4", "result": {}}
        child.say("notifications/initialized")
        child.hello()
        assert read_error(child.ask("tools/call", {"name": "x"}))[0] == -32600
        assert read_error(child.ask("initialize", HELLO))[0] == -32600
        child.registered()


@pytest.mark.spec("AX-6.1-1")
async def test_ignores_registration_without_id(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().hello()
        child.say("mcpax/register", {"subserver_id": numbered_uuid(1), "segment": "edge"})
        assert not hub.registrar.subservers()
        assert len(child.heard) == 1


async def test_survives_unknown_methods_and_invalid_messages(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().hello()
        assert read_error(child.ask("mcpax/confirm", {}))[0] == -32601
        assert read_error(child.ask("mcpax/identify", {}))[0] == -32601
        for noise in (b"", b"\xff\xfe", b"nonsense", b"[", b"[]", b"{}", b"[1]", b'"x"', b"null"):
            before = len(child.heard)
            child.raw(noise)
            (told,) = child.heard[before:]
            assert told["id"] is None
            assert told["error"]["code"] in (-32700, -32600)
        child.raw(b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]')
        assert child.heard[-1]["error"]["code"] == -32600
        child.raw(b'{"jsonrpc":"1.0","id":7,"method":"ping"}')
        assert child.heard[-1]["id"] == 7
        child.raw(b'{"jsonrpc":"2.0","id":1,"result":{}}')
        child.answers.pop(None)
        child.registered()
        await run_pending_tasks()
        # Now a peer has the channel, and bears as much.
        for noise in (b"", b"\xff\xfe", b"nonsense", b"[", b"{}", b'{"jsonrpc":"2.0","id":9}'):
            child.raw(noise)
        assert read_error(child.ask("mcpax/confirm", {}))[0] == -32601
        assert child.send_heartbeat()["result"]["status"] == "ok"


# -- the answer


@pytest.mark.spec("AX-6.2-2")
async def test_session_ids_are_unique_and_random(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        ids = {hub.child().registered(n, f"s{n}").session_id for n in range(50)}
        assert len(ids) == 50
        # 6 bits in each character.
        assert all(len(one) * 6 >= 128 for one in ids)


@pytest.mark.spec("AX-6.2-3", "AX-6.2-5")
@pytest.mark.parametrize(("interval", "deadline"), [(5000, 15000), (2000, 6000), (0, 0)])
async def test_deadline_is_three_intervals(tmp_path: Path, interval: int, deadline: int) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        answer = child.register(heartbeat_interval_ms=interval)
        assert answer["result"]["heartbeat_deadline_ms"] == deadline
        assert answer["result"]["assigned_segment"] == "edge"
        assert child.send_heartbeat()["result"]["heartbeat_deadline_ms"] == deadline


@pytest.mark.spec("AX-6.2-4", "AX-11.4-1")
async def test_budget_comes_from_config(tmp_path: Path) -> None:
    from interlock.core.config import BudgetConfig
    from interlock.tree.config import SubserverLink

    links = {"vip": SubserverLink(budget=BudgetConfig(calls_per_minute=600))}
    everybody = BudgetConfig(calls_per_minute=60, mutable_calls=10)

    async with open_hub(tmp_path, budget=everybody, links=links) as hub:
        child = hub.child()
        wish = {"max_calls_per_minute": 10_000}
        assert child.register(budget=wish)["result"]["budget"] == {
            "max_calls_per_minute": 60,
            "max_mutable_calls_per_session": 10,
            "max_cost_units_per_session": ax.UNLIMITED,
        }
        vip = hub.child().register(2, "vip")["result"]["budget"]
        assert vip["max_calls_per_minute"] == 600
        assert vip["max_mutable_calls_per_session"] == ax.UNLIMITED
        assert "budget" not in child.send_heartbeat()["result"]
        # What the node itself may is the most that it can grant.
        hub.registrar.budget_cap = ax.SubserverBudget(max_calls_per_minute=50)
        assert child.send_heartbeat()["result"]["budget"]["max_calls_per_minute"] == 50
        assert "budget" not in child.send_heartbeat()["result"]
        assert hub.granted == [("edge", 60), ("vip", 600), ("edge", 50), ("vip", 50)]
        hub.configure(budget=BudgetConfig(calls_per_minute=7))
        assert child.send_heartbeat()["result"]["budget"]["max_calls_per_minute"] == 7
        assert hub.info("vip").budget.max_calls_per_minute == 50


@pytest.mark.spec("AX-3.1-5")
async def test_heartbeat_announces_tree_change(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered()
        assert child.send_heartbeat()["result"]["tree_id"] == PARENT
        hub.registrar.tree_id = OTHER_PARENT
        assert child.send_heartbeat()["result"]["tree_id"] == OTHER_PARENT
        assert hub.child().register(2, "b")["result"]["tree_id"] == OTHER_PARENT


# -- a channel registers once


async def test_rejects_second_registration_on_channel(
    tmp_path: Path,
) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered()
        first = child.session_id
        # Before and after a peer has taken the channel over.
        for _ in range(2):
            assert read_error(child.register(2, "other"))[0] == -32600
            await run_pending_tasks()
        assert hub.listed == {"ax:edge": ["read"]}
        assert child.send_heartbeat(first)["result"]["status"] == "ok"


async def test_rejected_channel_may_register_other_segment(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        hub.child().registered(1, "edge")
        late = hub.child()
        assert read_error(late.register(2, "edge")) == (-31001, "namespace_conflict")
        assert read_error(late.register(2, "Bad")) == (-31005, "invalid_segment")
        assert late.register(2, "edge2")["result"]["assigned_segment"] == "edge2"
        await run_pending_tasks()
        assert hub.listed == {"ax:edge": ["read"], "ax:edge2": ["read"]}


async def test_closes_channel_without_registration(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        mute, shy = hub.child(), hub.child().hello()
        hub.time.advance(29.9)
        assert mute.open
        assert shy.open
        hub.time.advance(0.2)
        assert not mute.open
        assert not shy.open
        assert shy.end.close_reason == "not_registered"
        # Attempts do not make it longer.
        keen = hub.child().hello()
        keen.silent.add("mcpax/identify")
        hub.time.advance(29)
        assert keen.ask("mcpax/register", {}) is not None
        hub.time.advance(2)
        assert not keen.open


# -- asked who it is


async def test_waits_two_seconds_for_identity(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().hello()
        child.silent.add("mcpax/identify")
        child.say("mcpax/register", _registration(), "r")
        assert child.answer("r") is None
        # While that lasts, nothing else can be had.
        assert read_error(child.ask("mcpax/register", _registration()))[0] == -32600
        assert read_error(child.ask("mcpax/heartbeat", {"session_id": "x"}))[0] == -31011
        assert read_error(child.ask("tools/list"))[0] == -32600
        child.raw(b'{"jsonrpc":"2.0","id":999,"result":{}}')
        hub.time.advance(1.9)
        assert child.answer("r") is None
        hub.time.advance(0.2)
        answer = child.answer("r")
        assert answer is not None
        assert answer["result"]["status"] == "registered"


async def test_first_of_two_pending_registrations_wins(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        slow = hub.child().hello()
        slow.silent.add("mcpax/identify")
        slow.say("mcpax/register", _registration(), "r")
        hub.child().registered(2, "edge")
        hub.time.advance(3)
        assert read_error(slow.answer("r")) == (-31001, "namespace_conflict")
        assert hub.info().subserver_id == numbered_uuid(2)


@pytest.mark.parametrize(
    "said", [{}, {"subserver_id": 5}, {"subserver_id": "x", "parent_id": [1]}], ids=repr
)
async def test_invalid_identity_counts_as_missing(tmp_path: Path, said: dict[str, Any]) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        child.identity = said
        child.registered()


async def test_closed_channel_leaves_no_registration(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().hello()
        child.silent.add("mcpax/identify")
        child.say("mcpax/register", _registration(), "r")
        child.end.close()
        assert hub.time.timers == 0
        hub.child().registered()


# -- limits


async def test_limits_registrations(tmp_path: Path) -> None:
    async with open_hub(tmp_path, max_registrations=2) as hub:
        first = hub.child().registered(1, "a")
        hub.child().registered(2, "b")
        assert read_error(hub.child().register(3, "c"))[0] == -31026
        # Who is in already may come again.
        hub.child().registered(1, "a")
        assert not first.open


async def test_disabled_registration_ends_sessions(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered()
        waiting = hub.child().hello()
        await run_pending_tasks()
        hub.configure(enabled=False)
        await run_pending_tasks()
        assert not child.open
        assert not waiting.open
        assert child.session_end()["message"] == "scope_denied"
        assert hub.listed == {}
        assert not hub.child().open
        hub.configure(enabled=True)
        hub.child().registered()


@pytest.mark.spec("AX-6.1-5")
async def test_does_not_list_tools_of_child_without_tools(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        child.registered(capabilities={"tools": False})
        await run_pending_tasks()
        assert "initialize" in child.asked
        assert "tools/list" not in child.asked
        assert hub.listed == {"ax:edge": []}
        assert hub.info().offers == ax.SubserverCapabilities(tools=False)


async def test_rejects_calls_of_children(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered()
        await run_pending_tasks()
        for method in ("tools/call", "tools/list", "resources/read"):
            code, message = read_error(child.ask(method, {"name": "x"}))
            assert code == -32601
            assert "a subserver cannot send requests to its parent" in message


@pytest.mark.spec("AX-5.1-2", "AX-5.1-3")
async def test_refreshes_list_after_ttl(tmp_path: Path) -> None:
    assert SubserversConfig().list_ttl == 60.0
    async with open_hub(tmp_path, list_ttl=SubserversConfig().list_ttl) as hub:
        child = hub.child().registered(heartbeat_interval_ms=0)
        await run_pending_tasks()
        child.tools = [tool("read"), tool("more")]
        hub.time.advance(59)
        await run_pending_tasks()
        assert hub.listed == {"ax:edge": ["read"]}
        for turn in range(2, 4):
            hub.time.advance(2)
            await run_pending_tasks()
            assert hub.listed == {"ax:edge": ["read", "more"]}
            assert child.asked.count("tools/list") == turn
            hub.time.advance(58.5)
            await run_pending_tasks()


def _registration(**more: Any) -> dict[str, Any]:
    from tests.tree.registrar_hub import registration

    return registration(**more)
