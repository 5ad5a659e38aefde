"""Scopes that a call requires, compared with the scopes of its caller."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.call import Call, Caller
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import Tool
from interlock.errors import FORBIDDEN, InterlockError
from interlock.protocol.mcp import (
    DIRECTORY_READ,
    PROMPTS_GET,
    RESOURCES_READ,
    SKILLS_GET,
    TOOLS_LIST,
)
from interlock.protocol.mcpax import encode_error
from interlock.protocol.scopes import LEVELS
from interlock.trust.scopes import check_method_scopes, check_scopes, name_prefix, required_level
from tests.support.calls import LOCAL, SESSION, tool_call
from tests.support.offerings import definition, offer, prompt, resource


def tool(capability: dict[str, Any] | None = None, **members: Any) -> Tool:
    if capability is not None:
        members["_meta"] = {"x-mcpax-capability": capability}
    [one] = offer("edge", [definition("t", **members)], registered="leaf").tools
    return one


def call_of(one: Tool | None, caller: Caller, name: str = "edge.t") -> Call:
    call = tool_call(name)
    call.caller, call.route, call.upstream = caller, one, "edge"
    return call


READS = {"annotations": {"readOnlyHint": True}}
AT = {
    "read": tool(**READS),
    "write": tool({"mutable": True, "auth_scope": "write"}),
    "admin": tool({"mutable": True, "auth_scope": "admin"}),
}


@pytest.mark.spec("AX-10.2-3")
@pytest.mark.parametrize(
    ("one", "level"),
    [
        (tool(), "write"),
        (tool(**READS), "read"),
        (tool({"mutable": False}), "read"),
        (tool({"mutable": False, "auth_scope": "admin"}), "admin"),
        (tool({"mutable": True, "auth_scope": "read"}), "write"),
        (tool({"mutable": True, "auth_scope": "admin"}), "admin"),
        (tool({"auth_scope": "read"}, **READS), "read"),
    ],
)
def test_required_level_is_highest_declared(one: Tool, level: str) -> None:
    """The larger of what the tool says and of what it does."""
    assert required_level(one) == level


@pytest.mark.spec("AX-10.2-3", "AX-10.2-2")
@pytest.mark.parametrize("granted", LEVELS)
@pytest.mark.parametrize("implied", LEVELS)
def test_subserver_gets_no_call_over_its_scope(granted: str, implied: str) -> None:
    call = call_of(AT[implied], Caller("me"))
    if LEVELS.index(granted) >= LEVELS.index(implied):
        check_scopes(call, AT[implied], {"edge": granted})
        return
    with pytest.raises(InterlockError) as error:
        check_scopes(call, AT[implied], {"edge": granted})
    assert error.value.failure is FORBIDDEN
    code, symbol, data = encode_error(error.value)
    assert (code, symbol) == (-31006, "scope_denied")
    assert (data["missing"], data["auth_scope"]) == ([implied], granted)


@pytest.mark.spec("AX-10.2-1")
def test_each_subserver_has_own_scope_limit() -> None:
    limits = {"edge": "read", "other": "write"}
    call = call_of(AT["write"], Caller("me"))
    with pytest.raises(InterlockError, match="registered for read only"):
        check_scopes(call, AT["write"], limits)
    call.upstream = "other"
    check_scopes(call, AT["write"], limits)
    call.upstream = "a configured one"
    check_scopes(call, AT["admin"], limits)


@pytest.mark.spec("ST-4.8.4-2", "ST-4.8.1-3")
@pytest.mark.parametrize(
    ("scopes", "level", "passes"),
    [
        (None, "admin", True),
        ((), "read", False),
        (("read",), "read", True),
        (("read",), "write", False),
        (("read", "write:other.*"), "write", False),
        (("read", "write:edge.*"), "write", True),
        (("write",), "admin", False),
        (("admin:edge.t",), "admin", True),
    ],
)
def test_checks_scopes_of_caller(scopes: tuple[str, ...] | None, level: str, passes: bool) -> None:
    call = call_of(AT[level], Caller("me", scopes=scopes))
    if passes:
        check_scopes(call, AT[level], {})
        return
    with pytest.raises(InterlockError, match=f"lacks the scope {level}:edge.t") as error:
        check_scopes(call, AT[level], {})
    assert error.value.failure is FORBIDDEN
    assert error.value.data == {"missing": [f"{level}:edge.t"]}


@pytest.mark.spec("ST-4.8.4-2")
def test_error_names_missing_scope_only() -> None:
    """A call takes one scope. Two calls take {read:edge.t, write:edge.t}; the caller has one."""
    caller = Caller("me", scopes=("read:edge.t",))
    check_scopes(call_of(AT["read"], caller), AT["read"], {})
    with pytest.raises(InterlockError) as error:
        check_scopes(call_of(AT["write"], caller), AT["write"], {})
    assert error.value.failure is FORBIDDEN
    assert error.value.data == {"missing": ["write:edge.t"]}


@pytest.mark.spec("ST-4.8.1-3")
def test_call_of_parent_uses_scopes_granted_to_its_caller() -> None:
    """The parent itself may do everything, and that does not count."""
    narrow = Caller("parent", kind="parent", parent_caller="visitor", scopes=("read:github.*",))
    call = call_of(AT["read"], narrow, name="github.t")
    check_scopes(call, AT["read"], {})
    with pytest.raises(InterlockError, match=r"visitor lacks the scope write:github\.t"):
        check_scopes(call, AT["write"], {})


def test_unlisted_tool_requires_write_scope() -> None:
    call = call_of(None, Caller("me", scopes=("read",)), name="unlisted")
    with pytest.raises(InterlockError, match="write:unlisted"):
        check_scopes(call, None, {})
    call.caller = Caller("me", scopes=("write:unlisted",))
    check_scopes(call, None, {})


# -- what is no call of a tool


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog(server_info=b"{}")
    catalog.publish(
        offer("shop", ["t"], prompts=[prompt("p")], resources=[resource("x://1")], root="infra")
    )
    catalog.publish(offer("bare", resources=[resource("y://1")]))
    return catalog


def request_of(verb: str, name: str, upstream: str, scopes: tuple[str, ...] | None) -> Call:
    call = Call(verb, "test", LOCAL, SESSION, name=name)
    call.caller, call.upstream = Caller("me", scopes=scopes), upstream
    return call


@pytest.mark.parametrize(
    ("verb", "name", "upstream", "scopes", "passes"),
    [
        (PROMPTS_GET, "shop.p", "shop", None, True),
        (PROMPTS_GET, "infra.shop.p", "shop", ("read:infra.shop.p",), True),
        (PROMPTS_GET, "infra.shop.p", "shop", ("read:infra.other.*",), False),
        (PROMPTS_GET, "infra.shop.p", "shop", (), False),
        (RESOURCES_READ, "x://1", "shop", ("read:infra.shop.*",), True),
        (RESOURCES_READ, "x://1", "shop", ("write:infra.shop.resources",), True),
        (RESOURCES_READ, "x://1", "shop", ("read:infra.shop.t",), False),
        (RESOURCES_READ, "y://1", "bare", ("read:bare.*",), True),
        (RESOURCES_READ, "y://1", "bare", ("read:infra.*",), False),
        (SKILLS_GET, "x://1", "shop", ("read:infra.shop.resources",), True),
        (SKILLS_GET, "x://1", "shop", ("read:infra.shop.t",), False),
        (DIRECTORY_READ, "x://1", "shop", ("read:infra.shop.resources",), True),
        (DIRECTORY_READ, "x://1", "shop", ("read:bare.*",), False),
        (TOOLS_LIST, "", "", (), True),
    ],
)
def test_reading_requires_scope(
    catalog: Catalog,
    verb: str,
    name: str,
    upstream: str,
    scopes: tuple[str, ...] | None,
    passes: bool,
) -> None:
    call = request_of(verb, name, upstream, scopes)
    if passes:
        check_method_scopes(call, catalog, {})
        return
    with pytest.raises(InterlockError, match="lacks the scope read:") as error:
        check_method_scopes(call, catalog, {})
    assert error.value.failure is FORBIDDEN


def test_name_prefix_includes_full_path(catalog: Catalog) -> None:
    assert name_prefix("shop", catalog) == "infra.shop."
    assert name_prefix("bare", catalog) == "bare."
    assert name_prefix("nobody", catalog) == ""
