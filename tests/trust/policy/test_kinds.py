"""Rules about requests that call no tool: prompts and resources, by all the names they have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Call
from interlock.core.pipeline.resolution import resolve_method
from interlock.protocol.mcp import (
    DIRECTORY_READ,
    PROMPTS_GET,
    RESOURCES_READ,
    SKILLS_GET,
    SUBSCRIBE,
    TOOLS_LIST,
)
from interlock.trust.policy.attributes import spellings
from tests.support.offerings import offer
from tests.trust.policy.asking import a_request, board, policy, rule, said

CATALOG = board(
    offer("docs", prompts=["write"], resources=["file:///a/x", "test://both"]),
    offer("wiki", prompts=["write"], resources=["test://both"], templates=["file:///{+path}"]),
)


def resolved(verb: str, name: str) -> Call:
    call = a_request(verb, name)
    assert resolve_method(call, CATALOG)
    return call


def test_a_prompt_is_the_same_by_any_of_its_names() -> None:
    decides = policy(
        rule("no", "deny", kinds=["mcp/request:prompts/get:docs.write"]), catalog=CATALOG
    )
    for name in ("docs.write", "docs__write"):
        assert said(decides, resolved(PROMPTS_GET, name)) == ("deny", "no")
    assert said(decides, resolved(PROMPTS_GET, "wiki.write"))[0] == "allow"


def test_a_resource_is_known_by_its_own_uri_and_by_the_one_shown_here() -> None:
    own = policy(rule("no", "deny", kinds=["mcp/request:resources/read:test://both"]))
    shown = policy(rule("no", "deny", kinds=["mcp/request:resources/read:interlock:docs:*"]))
    call = resolved(RESOURCES_READ, "interlock:docs:test://both")
    assert said(own, call) == ("deny", "no")
    assert said(shown, call) == ("deny", "no")
    other = resolved(RESOURCES_READ, "interlock:wiki:test://both")
    assert said(own, other) == ("deny", "no")
    assert said(shown, other)[0] == "allow"


@pytest.mark.parametrize(
    "uri",
    [
        "file:///a/x",
        "file:///b/../a/x",
        "file:///b/%2e%2e/a/x",
        "file:///%61/x",
        "file:///b/..%2fa/x",
        "file:///b\\..\\a\\x",
        "file:////a/x",
        "file:///./a/x",
        "interlock:wiki:FILE:///a/x",
        "interlock:wiki:file:///b/../a/x",
    ],
)
def test_another_spelling_is_no_way_round_a_rule(uri: str) -> None:
    decides = policy(rule("no", "deny", kinds=["mcp/request:resources/*:file:///a/*"]))
    for verb in (RESOURCES_READ, SUBSCRIBE):
        kind = policy(rule("no", "deny", kinds=[f"mcp/request:{verb}:file:///a/*"]))
        assert said(kind, resolved(verb, uri)) == ("deny", "no")
    assert said(decides, resolved(RESOURCES_READ, "file:///b/x"))[0] == "allow"


@pytest.mark.parametrize(
    "uri", ["file:///a/../b", "file:///a/%2e%2e/b", "file:///a/..%5cb", "file:///a/../../etc/x"]
)
def test_another_spelling_is_no_way_into_what_is_allowed(uri: str) -> None:
    decides = policy(
        rule("a", "allow", kinds=["mcp/request:resources/read:file:///a/*"]), default="deny"
    )
    assert said(decides, resolved(RESOURCES_READ, uri)) == ("deny", "default:deny")
    assert said(decides, resolved(RESOURCES_READ, "file:///a/b")) == ("allow", "a")
    assert said(decides, resolved(RESOURCES_READ, "file:///a/c/../b")) == ("allow", "a")


def test_a_list_can_be_denied() -> None:
    decides = policy(rule("none", "deny", kinds=["mcp/request:*/list"]))
    assert said(decides, a_request(TOOLS_LIST)) == ("deny", "none")
    assert said(decides, resolved(RESOURCES_READ, "file:///x/list"))[0] == "allow"


@pytest.mark.parametrize("verb", [SKILLS_GET, DIRECTORY_READ])
@pytest.mark.parametrize(
    "uri",
    ["file:///a/x", "file:///b/%2e%2e/a/x", "interlock:docs:file:///a/x"],
)
def test_the_uri_of_a_skill_or_directory_is_visible_to_rules(verb: str, uri: str) -> None:
    denies = policy(rule("no", "deny", kinds=[f"mcp/request:{verb}:file:///a/*"]))
    assert said(denies, resolved(verb, uri)) == ("deny", "no")
    assert said(denies, resolved(verb, "file:///b/x"))[0] == "allow"
    allows = policy(rule("a", "allow", kinds=[f"mcp/request:{verb}:file:///a/*"]), default="deny")
    assert said(allows, resolved(verb, "file:///a/y")) == ("allow", "a")
    assert said(allows, resolved(verb, "file:///a/../b")) == ("deny", "default:deny")


@given(st.text(max_size=30))
def test_spellings_begin_with_the_one_that_came_and_end_there(rest: str) -> None:
    for uri in (rest, f"file:///{rest}"):
        found = spellings(uri)
        assert found[0] == uri
        assert len(found) <= 2
