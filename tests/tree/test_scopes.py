"""Tests of the scope of a subserver: requested, permitted and proven."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import Caller
from interlock.protocol.scopes import LEVELS
from interlock.tree.config import SubserversConfig
from interlock.tree.registrar import granted_scope
from tests.tree.registrar_hub import RegistrarHub, ScriptedChild, open_hub, run_pending_tasks, tool

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.spec("AX-10.2-3")
@pytest.mark.parametrize(
    ("wanted", "scopes", "unproven", "granted"),
    [
        (None, None, False, "write"),
        ("read", None, False, "read"),
        ("admin", None, False, "admin"),
        (None, None, True, "read"),
        ("admin", None, True, "read"),
        ("admin", ("write:edge.*", "read"), False, "write"),
        ("write", ("read",), False, "read"),
        (None, (), False, "read"),
        ("read", ("admin",), False, "read"),
    ],
)
def test_grants_lowest_scope(
    wanted: str | None, scopes: tuple[str, ...] | None, unproven: bool, granted: str
) -> None:
    assert granted_scope(wanted, scopes, unproven=unproven) == granted


@pytest.mark.spec("AX-10.2-3")
@pytest.mark.parametrize(("wanted", "may"), list(product(LEVELS, LEVELS)))
async def test_registration_result_contains_granted_scope(
    tmp_path: Path, wanted: str, may: str
) -> None:
    async with open_hub(tmp_path) as hub:
        child = ScopedChild(hub, Caller("joins", scopes=(may,)))
        result = child.register(auth_scope=wanted)["result"]
        expected = min(wanted, may, key=LEVELS.index)
        assert result["auth_scope"] == expected
        assert hub.registrar.grants.limits == ({} if expected == "admin" else {"ax:edge": expected})
        assert hub.info().auth_scope == expected


class ScopedChild(ScriptedChild):
    """A child of a caller with scopes."""

    def __init__(self, hub: RegistrarHub, caller: Caller) -> None:
        super().__init__(hub)
        for session in list(hub.registrar._channels):
            session.caller = caller


@pytest.mark.spec("AX-10.2-3", "AX-10.2-1")
async def test_remote_subserver_without_proof_gets_read_scope(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        afar = hub.child(peer="192.0.2.7")
        assert afar.register(1, "afar", auth_scope="admin")["result"]["auth_scope"] == "read"
        near = hub.child()
        assert near.register(2, "near", auth_scope="admin")["result"]["auth_scope"] == "admin"
        silent = hub.child()
        assert silent.register(3, "silent")["result"]["auth_scope"] == "write"
        await run_pending_tasks()
        assert hub.registrar.grants.limits == {"ax:afar": "read", "ax:silent": "write"}


async def test_never_setting_needs_no_proof(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        hub.registrar.configure(SubserversConfig(proof="never"))
        afar = hub.child(peer="192.0.2.7")
        assert afar.register(auth_scope="admin")["result"]["auth_scope"] == "admin"


async def test_disconnect_removes_scope_limit(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child().registered(auth_scope="read")
        assert hub.registrar.grants.limits == {"ax:edge": "read"}
        child.ask("mcpax/deregister", {"session_id": child.session_id})
        await run_pending_tasks()
        assert hub.registrar.grants.limits == {}
        hub.child().registered(auth_scope="admin")
        assert hub.registrar.grants.limits == {}


@pytest.mark.parametrize("wrong", ["", "root", "READ", 7, ["read"], {"level": "read"}])
async def test_rejects_invalid_scope(tmp_path: Path, wrong: Any) -> None:
    async with open_hub(tmp_path) as hub:
        error = hub.child().register(auth_scope=wrong)["error"]
        assert error["code"] == -32602
        assert error["data"]["field"] == "auth_scope"


async def test_null_scope_uses_default(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        assert hub.child().register(auth_scope=None)["result"]["auth_scope"] == "write"


@pytest.mark.spec("ST-4.8.5-3")
async def test_sends_keys_at_once_and_with_next_heartbeat(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child()
        child.tools = [tool("read")]
        assert "jwks" not in child.register()["result"]
        assert "jwks" not in child.send_heartbeat()["result"]
        shown = [b'{"keys":[{"kid":"1"}]}']
        hub.registrar.grants.keys = lambda: shown[0]
        late = hub.child()
        assert late.register(2, "late")["result"]["jwks"] == {"keys": [{"kid": "1"}]}
        hub.time.advance(5)
        assert child.send_heartbeat()["result"]["jwks"] == {"keys": [{"kid": "1"}]}
        hub.time.advance(5)
        assert "jwks" not in child.send_heartbeat()["result"]
        shown[0] = b'{"keys":[{"kid":"2"}]}'
        hub.registrar.keys_changed()
        for one in (child, late):
            [told] = [each for each in one.heard if each.get("method", "").endswith("keys_changed")]
            assert told == {
                "jsonrpc": "2.0",
                "method": "notifications/mcpax/keys_changed",
                "params": {"jwks": {"keys": [{"kid": "2"}]}},
            }
