"""Rules for prompts and resources, by every form of name and URI."""

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
from tests.trust.policy.policy_calls import catalog_of, decide, make_request, policy, rule

CATALOG = catalog_of(
    offer("docs", prompts=["write"], resources=["file:///a/x", "test://both"]),
    offer("wiki", prompts=["write"], resources=["test://both"], templates=["file:///{+path}"]),
)


def resolve_request(verb: str, name: str) -> Call:
    call = make_request(verb, name)
    assert resolve_method(call, CATALOG)
    return call


def test_prompt_rule_matches_every_name_form() -> None:
    decides = policy(
        rule("no", "deny", kinds=["mcp/request:prompts/get:docs.write"]), catalog=CATALOG
    )
    for name in ("docs.write", "docs__write"):
        assert decide(decides, resolve_request(PROMPTS_GET, name)) == ("deny", "no")
    assert decide(decides, resolve_request(PROMPTS_GET, "wiki.write"))[0] == "allow"


def test_resource_rule_matches_original_and_exposed_uri() -> None:
    own = policy(rule("no", "deny", kinds=["mcp/request:resources/read:test://both"]))
    shown = policy(rule("no", "deny", kinds=["mcp/request:resources/read:interlock:docs:*"]))
    call = resolve_request(RESOURCES_READ, "interlock:docs:test://both")
    assert decide(own, call) == ("deny", "no")
    assert decide(shown, call) == ("deny", "no")
    other = resolve_request(RESOURCES_READ, "interlock:wiki:test://both")
    assert decide(own, other) == ("deny", "no")
    assert decide(shown, other)[0] == "allow"


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
def test_deny_rule_matches_every_uri_spelling(uri: str) -> None:
    decides = policy(rule("no", "deny", kinds=["mcp/request:resources/*:file:///a/*"]))
    for verb in (RESOURCES_READ, SUBSCRIBE):
        kind = policy(rule("no", "deny", kinds=[f"mcp/request:{verb}:file:///a/*"]))
        assert decide(kind, resolve_request(verb, uri)) == ("deny", "no")
    assert decide(decides, resolve_request(RESOURCES_READ, "file:///b/x"))[0] == "allow"


@pytest.mark.parametrize(
    "uri", ["file:///a/../b", "file:///a/%2e%2e/b", "file:///a/..%5cb", "file:///a/../../etc/x"]
)
def test_allow_rule_matches_no_escaping_uri_spelling(uri: str) -> None:
    decides = policy(
        rule("a", "allow", kinds=["mcp/request:resources/read:file:///a/*"]), default="deny"
    )
    assert decide(decides, resolve_request(RESOURCES_READ, uri)) == ("deny", "default:deny")
    assert decide(decides, resolve_request(RESOURCES_READ, "file:///a/b")) == ("allow", "a")
    assert decide(decides, resolve_request(RESOURCES_READ, "file:///a/c/../b")) == ("allow", "a")


def test_rule_denies_list() -> None:
    decides = policy(rule("none", "deny", kinds=["mcp/request:*/list"]))
    assert decide(decides, make_request(TOOLS_LIST)) == ("deny", "none")
    assert decide(decides, resolve_request(RESOURCES_READ, "file:///x/list"))[0] == "allow"


@pytest.mark.parametrize("verb", [SKILLS_GET, DIRECTORY_READ])
@pytest.mark.parametrize(
    "uri",
    ["file:///a/x", "file:///b/%2e%2e/a/x", "interlock:docs:file:///a/x"],
)
def test_rule_matches_uri_of_skill_or_directory(verb: str, uri: str) -> None:
    denies = policy(rule("no", "deny", kinds=[f"mcp/request:{verb}:file:///a/*"]))
    assert decide(denies, resolve_request(verb, uri)) == ("deny", "no")
    assert decide(denies, resolve_request(verb, "file:///b/x"))[0] == "allow"
    allows = policy(rule("a", "allow", kinds=[f"mcp/request:{verb}:file:///a/*"]), default="deny")
    assert decide(allows, resolve_request(verb, "file:///a/y")) == ("allow", "a")
    assert decide(allows, resolve_request(verb, "file:///a/../b")) == ("deny", "default:deny")


@given(st.text(max_size=30))
def test_uri_spellings_start_with_original(rest: str) -> None:
    for uri in (rest, f"file:///{rest}"):
        result = spellings(uri)
        assert result[0] == uri
        assert len(result) <= 2
