"""Reload of a live node: only changed servers are touched, and no outdated state is shown."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import ServerConfig
from interlock.core.server.http.server import HttpServer
from interlock.errors import InterlockError
from tests.support.http_client import HttpConnection, message
from tests.support.node import NodeThread, result_text
from tests.support.ports import free_port
from tests.support.tool_server import ToolServer


def names(node: NodeThread) -> set[str]:
    tools = node.once(node.stateless("tools/list")).result["tools"]
    return {tool["name"].partition("__")[0] for tool in tools}


def apply(node: NodeThread, **changes: Any) -> Any:
    change = node.wait(node.node.apply(node.config(**changes)))
    node.wait(node.node.until_settled(10))
    return change


@pytest.mark.spec("ST-4.4.1-1")
def test_server_is_added_and_removed_while_running(start_node: Any) -> None:
    shop, other = ToolServer(), ToolServer("stateless")
    node = start_node(workshops={"shop": shop, "other": other})
    everything = node.config().servers
    only = {"shop": everything["shop"]}
    apply(node, servers=only)
    assert names(node) == {"shop"}
    lists = len(shop.find_received("tools/list"))
    with node.connect() as wire:
        change = apply(node, servers=everything)
        assert change.added == ("other",)
        data = node.stateless(
            "tools/call", {"name": "other.echo", "arguments": {"text": "hi"}}, name="other.echo"
        )
        assert result_text(wire.request(data)) == "hi"
        assert names(node) == {"shop", "other"}
        apply(node, servers=only)
        answer = wire.request(data)
        assert answer.error["data"]["error"] == "unknown_tool"
    # The one that stayed was not asked again.
    assert len(shop.find_received("tools/list")) == lists


def test_server_with_unreachable_new_address_is_not_listed(start_node: Any) -> None:
    shop = ToolServer()
    node = start_node(workshops={"shop": shop})
    assert names(node) == {"shop"}
    gone = ServerConfig(url=f"http://127.0.0.1:{free_port()}/mcp")
    apply(node, servers={"shop": gone})
    assert names(node) == set()
    apply(node)
    assert names(node) == {"shop"}


def test_rejected_config_changes_nothing(start_node: Any) -> None:
    node = start_node(tokens={"clerk": "s3cret"})
    missing = node.config(tokens=[{"name": "clerk", "token": "${env:NOT_THERE}"}], servers={})
    with pytest.raises(InterlockError, match="NOT_THERE"):
        node.wait(node.node.apply(missing))
    token = ("Authorization", "Bearer s3cret")
    assert result_text(node.once(node.call("echo", {"text": "x"}, 1, token))) == "x"


def test_list_pages_follow_config(start_node: Any) -> None:
    node = start_node()
    everything = node.once(node.stateless("tools/list")).result["tools"]
    apply(node, page_size=3)
    found: list[Any] = []
    cursor: dict[str, Any] = {}
    while True:
        result = node.once(node.stateless("tools/list", cursor)).result
        assert len(result["tools"]) <= 3
        found += result["tools"]
        if "nextCursor" not in result:
            break
        cursor = {"cursor": result["nextCursor"]}
    assert found == everything


def test_reloaded_timeout_applies(start_node: Any) -> None:
    node = start_node()
    apply(node, timeout=0.05)
    answer = node.once(node.call("hold", {"text": "too long"}))
    assert answer.status == 200
    assert answer.error["data"]["error"] == "deadline_exceeded"
    held = node.shop.wait_for_hold("too long")
    node.shop.wait_for(lambda: node.shop.find_received("notifications/cancelled", requestId=held))


def test_concurrency_limit_applies(start_node: Any) -> None:
    node = start_node(limits={"concurrent_calls": 1})
    with node.connect() as wire:
        wire.send(node.call("hold", {"text": "one"}))
        held = node.shop.wait_for_hold("one")
        response = node.once(node.call("echo", {"text": "two"}))
        assert (response.status, response.error["data"]["error"]) == (503, "too_busy")
        session = node.once(node.call("echo", {"text": "two"}))
        assert session.error["data"]["retryable"] is True
        node.do(lambda: node.shop.release(held))
        assert result_text(wire.read_response()) == "released"
    assert result_text(node.once(node.call("echo", {"text": "two"}))) == "two"


# -- where it listens


def test_node_sharing_state_folder_gets_no_socket(start_node: Any, tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    first, second = start_node(state_dir=shared), start_node(state_dir=shared)
    with first.local() as wire:
        with pytest.raises(OSError, match="another node"):
            second.local()
        # The first is found as before.
        wire.send(message("ping") + b"\n")
        assert wire.line()["result"] == {}
    first.stop()
    with second.local() as wire:
        wire.send(message("ping") + b"\n")
        assert wire.line()["result"] == {}


def test_stale_socket_is_replaced(start_node: Any) -> None:
    node = start_node()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(node.folder / "node.sock"))
    with node.local() as wire:
        wire.send(message("ping") + b"\n")
        assert wire.line()["result"] == {}


def test_rejects_taken_address(plain_port: int) -> None:
    with pytest.raises(InterlockError, match="Another program listens there"):
        HttpServer("127.0.0.1", plain_port)


@pytest.fixture
def plain_port() -> Any:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_rejects_foreign_address(host: str) -> None:
    with pytest.raises(InterlockError, match="Set `listen` to an address of this machine"):
        HttpServer(host, 0)


def test_listens_on_ipv6(start_node: Any) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    node = start_node(listen="[::1]:0")
    assert node.url == f"http://[::1]:{node.port}/mcp"
    data = node.call("echo", {"text": "six"}).replace(b"127.0.0.1", b"[::1]")
    with HttpConnection(("::1", node.port), family=socket.AF_INET6) as wire:
        assert result_text(wire.request(data)) == "six"
    assert node.do(node.node.status).calls == 1
