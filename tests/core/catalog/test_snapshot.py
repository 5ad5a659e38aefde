"""The merged namespace: listed names, resolved names, pages and cursors."""

from __future__ import annotations

import json
import re
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.catalog.names import add_hash
from interlock.core.catalog.offering import Offering
from interlock.core.catalog.pages import LIST_TTL_MS
from interlock.core.catalog.snapshot import Snapshot
from interlock.errors import INVALID_CURSOR, InterlockError
from interlock.protocol.mcp import LIST_METHODS, META_SERVER_INFO, RESOURCES_LIST, TOOLS_LIST, Era
from tests.protocol import json_values
from tests.support.offerings import (
    INFO,
    MEMBER,
    definition,
    list_names,
    merged,
    offer,
    pages,
    reached,
    shown,
)

STYLES = ("ax", "dotted", "safe")
SAFE_FOR_EVERYBODY = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def marked_definition(name: str, upstream: str) -> bytes:
    """Return a definition whose title names its upstream and tool."""
    return definition(name, title=json.dumps([upstream, name]))


def assert_listed_names_resolve(snapshot: Snapshot) -> None:
    """Check that every listed name, in every style, resolves to the listed tool."""
    meaning: dict[str, tuple[str, str]] = {}
    for style in STYLES:
        listed = shown(snapshot, style)
        assert len(listed) == len(snapshot.tools)
        assert len({tool["name"] for tool in listed}) == len(listed), "a name is listed twice"
        for tool in listed:
            upstream, own = json.loads(tool["title"])
            assert reached(snapshot, tool["name"]) == (upstream, own), (style, tool["name"])
            # One name means one tool, whichever list it was read from.
            assert meaning.setdefault(tool["name"], (upstream, own)) == (upstream, own)
            if style == "safe":
                assert SAFE_FOR_EVERYBODY.fullmatch(tool["name"])


def marked_offer(key: str, tools: list[str], **settings: Any) -> Offering:
    return offer(key, [marked_definition(name, key) for name in tools], **settings)


# --- what a name means ---


@pytest.mark.spec("AX-4.1-6")
def test_resolves_every_form_of_name() -> None:
    snapshot = merged(offer("edge", ["getUser"], root="infra"))
    for name in ("infra.edge.getuser", "infra__edge__getUser", "infra.edge.getUser"):
        assert reached(snapshot, name) == ("edge", "getUser")
    for name in ("getUser", "edge.getuser", "infra__edge__getuser", "infra.edge", "", "."):
        assert reached(snapshot, name) is None


def test_knows_every_resolvable_name() -> None:
    snapshot = merged(offer("a", ["getUser"]))
    assert set(snapshot.names()) == {"a.getuser", "a__getUser", "a.getUser"}


def test_resolves_renamed_tool_by_both_names() -> None:
    snapshot = merged(offer("a", ["old", "other"], rename={"old": "new"}))
    assert list_names(snapshot) == ["a.new", "a.other"]
    assert reached(snapshot, "a.new") == reached(snapshot, "a.old") == ("a", "old")


def test_alternative_spelling_yields_to_other_tool() -> None:
    # `b` was renamed to `a`, so `x.b` could mean it; but `x.b` is what another tool is called.
    snapshot = merged(offer("x", ["b", "c"], rename={"b": "a", "c": "b"}))
    assert reached(snapshot, "x.a") == ("x", "b")
    assert reached(snapshot, "x.b") == ("x", "c")


def test_distinguishes_overlapping_names_of_upstreams() -> None:
    snapshot = merged(marked_offer("a", ["b__c"]), marked_offer("a__b", ["c"]))
    assert_listed_names_resolve(snapshot)
    assert list_names(snapshot, "safe") == ["a__b__c", add_hash("a__b__c", "a__b.c")]
    assert reached(snapshot, "a__b__c") == ("a", "b__c")


def test_name_never_changes_tool_when_upstreams_disappear() -> None:
    """A client calls from an old list: it reaches that tool or none, never another."""
    offers = [
        marked_offer("a", ["b__c", "b__c_0123abcd", "_b"]),
        marked_offer("a__b", ["c"]),
        marked_offer("a_", ["b"]),
    ]
    everything = merged(*offers)
    for absent in range(len(offers)):
        remaining = merged(*(offering for place, offering in enumerate(offers) if place != absent))
        for style in STYLES:
            for name in list_names(everything, style):
                assert reached(remaining, name) in (reached(everything, name), None)
        assert_listed_names_resolve(remaining)


def test_duplicate_hash_gets_other_hash() -> None:
    long = "x" * 60
    victim = add_hash(f"a__b__{long}", f"a__b.{long}")
    # Somebody calls a tool exactly what another's add_hash name is; it would be `t__` + that.
    offers = [
        marked_offer("a__b", [long]),
        marked_offer("t", [victim], expose="transparent"),
    ]
    snapshot = merged(*offers)
    assert_listed_names_resolve(snapshot)


# --- transparent ---


def test_lists_transparent_upstream_unchanged() -> None:
    snapshot = merged(marked_offer("demo", ["Zeta", "a.b", "alpha"], expose="transparent"))
    assert list_names(snapshot, "dotted") == ["Zeta", "a.b", "alpha"]
    assert list_names(snapshot, "safe") == ["Zeta", "a_b", "alpha"]
    assert_listed_names_resolve(snapshot)
    for name in ("a.b", "a_b", "demo.a_b", "demo.a.b"):
        assert reached(snapshot, name) == ("demo", "a.b")


def test_transparent_name_may_resemble_canonical_name() -> None:
    # `demo.echo` is listed, as the name of the second tool; it must not reach the first.
    snapshot = merged(marked_offer("demo", ["echo", "demo.echo"], expose="transparent"))
    assert list_names(snapshot) == ["echo", "demo.echo"]
    assert reached(snapshot, "demo.echo") == ("demo", "demo.echo")
    assert_listed_names_resolve(snapshot)


def test_transparent_upstream_cannot_take_names_of_others() -> None:
    snapshot = merged(
        marked_offer("jira", ["pay"]),
        marked_offer("rogue", ["jira.pay", "jira__pay", "rogue.x"], expose="transparent"),
    )
    assert reached(snapshot, "jira.pay") == ("jira", "pay")
    assert_listed_names_resolve(snapshot)


def test_distinguishes_transparent_upstreams_with_same_tools() -> None:
    snapshot = merged(
        marked_offer("one", ["a", "b"], expose="transparent"),
        marked_offer("two", ["a", "b"], expose="transparent"),
    )
    assert list_names(snapshot)[:2] == ["a", "b"]
    assert_listed_names_resolve(snapshot)


def test_distinguishes_upstreams_with_same_segment() -> None:
    snapshot = merged(
        marked_offer("two", ["a", "c"], segment="same"),
        marked_offer("one", ["a", "b"], segment="same"),
    )
    # The first by its key keeps its name, however they came.
    assert reached(snapshot, "same.a") == ("one", "a")
    assert list_names(snapshot) == ["same.a", "same.b", "same.c"]
    assert_listed_names_resolve(snapshot)


# --- any set of offers ---

tricky_names = st.sampled_from(
    ["a", "b", "c", "_", "__", "a_", "_a", "a__b", "b__c", "a__b__c", "a.b", "b.c", "a.b.c", "A",
     "B", "a-b", "a b", "ä", "a_2", "a_00000000", "x" * 64, "x" * 70 + "y", "x" * 70 + "z"]
)  # fmt: skip
tool_names = st.lists(tricky_names | st.text(min_size=1, max_size=12), unique=True, max_size=6)
segments = st.sampled_from(["a", "b", "_", "a_", "a__b", "b__c", "a__b__c", "x" * 63])
upstreams = st.dictionaries(
    segments,
    st.tuples(
        tool_names,
        st.sampled_from(["prefixed", "prefixed", "transparent"]),
        st.dictionaries(
            tricky_names, st.sampled_from(["a", "b", "a__b", "b.c", "A", "a.b"]), max_size=2
        ),
    ),
    max_size=4,
)


def make_offers(described: dict[str, Any], root: str | None = None) -> list[Offering]:
    return [
        marked_offer(key, tools, expose=expose, rename=rename, root=root)
        for key, (tools, expose, rename) in described.items()
    ]


@given(upstreams, st.sampled_from([None, "a", "a__b", "root"]), st.integers(0, 3))
def test_every_listed_name_resolves_to_listed_tool(
    described: dict[str, Any], root: str | None, page_size: int
) -> None:
    snapshot = merged(*make_offers(described, root), page_size=page_size)
    assert_listed_names_resolve(snapshot)
    # No tool is lost on the way.
    assert len(snapshot.tools) == sum(len(tools) for tools, _, _ in described.values())
    # Every spelling that is accepted reaches something that is shown.
    for name in snapshot.names():
        assert snapshot.resolve(name) in snapshot.tools


@given(upstreams, st.randoms())
def test_ignores_order_of_upstreams(described: dict[str, Any], chance: Any) -> None:
    offers = make_offers(described)
    expected = [merged(*offers).page(TOOLS_LIST, Era.SESSION, style) for style in STYLES]
    chance.shuffle(offers)
    assert [merged(*offers).page(TOOLS_LIST, Era.SESSION, style) for style in STYLES] == expected


@given(upstreams, st.data())
def test_safe_name_never_moves_to_other_tool(
    described: dict[str, Any], data: st.DataObject
) -> None:
    prefixed: dict[str, Any] = {
        key: (tools, "prefixed", {}) for key, (tools, _, _) in described.items()
    }
    everything = merged(*make_offers(prefixed))
    present = (
        data.draw(st.lists(st.sampled_from(sorted(prefixed)), unique=True)) if prefixed else []
    )
    remaining = merged(*make_offers({key: prefixed[key] for key in present}))
    for style in STYLES:
        for name in list_names(everything, style):
            assert reached(remaining, name) in (reached(everything, name), None)


# --- the list as bytes ---


@given(
    st.dictionaries(
        json_values.text.filter(bool),
        json_values.objects.filter(
            lambda members: (
                not {"name", "inputSchema", "outputSchema", "description", "annotations"}
                & members.keys()
            )
        ),
        max_size=5,
    )
)
def test_lists_definitions_unchanged(tools: dict[str, dict[str, Any]]) -> None:
    raw = [definition(name, **members) for name, members in tools.items()]
    snapshot = merged(offer("s", raw, expose="transparent"))
    assert shown(snapshot) == [
        {key: value for key, value in json.loads(item).items() if value is not None} for item in raw
    ]


@pytest.mark.parametrize("style", STYLES)
def test_builds_list_result_for_each_generation(style: str) -> None:
    snapshot = merged(offer("s", ["a"]))
    [session] = pages(snapshot, style, Era.SESSION)
    assert session.keys() == {"tools"}
    [stateless] = pages(snapshot, style, Era.STATELESS)
    assert stateless == {
        "resultType": "complete",
        "tools": session["tools"],
        "ttlMs": LIST_TTL_MS,
        "cacheScope": "private",
        "_meta": {META_SERVER_INFO: INFO},
    }


def test_lists_nothing_for_empty_catalog() -> None:
    assert pages(merged()) == [{"tools": []}]
    assert pages(merged(offer("s", []))) == [{"tools": []}]


def test_orders_upstreams_by_segment() -> None:
    snapshot = merged(offer("z", ["a"]), offer("a", ["z", "b"]), offer("m", ["x"], segment="b"))
    assert list_names(snapshot) == ["a.b", "a.z", "b.x", "z.a"]


def test_builds_list_once_per_generation_and_style() -> None:
    snapshot = merged(offer("s", ["a", "b"]))
    made = {
        (era, style): snapshot.page(TOOLS_LIST, era, style) for era, style in product(Era, STYLES)
    }  # fmt: skip
    assert len(set(made.values())) == 6
    for (era, style), page in made.items():
        assert snapshot.page(TOOLS_LIST, era, style) is page


# --- all four lists ---

ALL_KINDS = [
    offer(
        key,
        ["t1", "t2", "t3"],
        prompts=["t1", "t2", "t3"],
        resources=["s:1", f"{key}:2", f"{key}:3"],
        templates=["s:{x}", f"{key}:{{x}}", f"{key}:{{y}}"],
        skills=["skill:s/SKILL.md", f"skill:{key}/SKILL.md", f"skill:{key}/x/SKILL.md"],
    )
    for key in ("a", "b", "c")
]


@pytest.mark.parametrize("verb", LIST_METHODS)
@pytest.mark.parametrize("style", STYLES)
def test_builds_result_for_each_list_method(verb: str, style: str) -> None:
    snapshot = merged(*ALL_KINDS)
    [session] = pages(snapshot, style, Era.SESSION, verb)
    [stateless] = pages(snapshot, style, Era.STATELESS, verb)
    assert session.keys() == {MEMBER[verb]}
    assert len(session[MEMBER[verb]]) == 9
    assert stateless == {
        "resultType": "complete",
        "ttlMs": LIST_TTL_MS,
        "cacheScope": "private",
        "_meta": {META_SERVER_INFO: INFO},
        **session,
    }
    assert pages(merged(), style, Era.SESSION, verb) == [{MEMBER[verb]: []}]


@pytest.mark.parametrize("verb", LIST_METHODS)
def test_caches_each_list(verb: str) -> None:
    snapshot = merged(*ALL_KINDS)
    for era, style in product(Era, STYLES):
        assert snapshot.page(verb, era, style) is snapshot.page(verb, era, style)


@pytest.mark.parametrize("verb", LIST_METHODS)
@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize("page_size", [1, 2, 4, 9, 10])
def test_pages_of_each_list_contain_whole_list(verb: str, era: Era, page_size: int) -> None:
    whole = shown(merged(*ALL_KINDS), era=era, verb=verb)
    assert shown(merged(*ALL_KINDS, page_size=page_size), era=era, verb=verb) == whole


@pytest.mark.parametrize(("made_for", "used_for"), [*permutations(LIST_METHODS, 2)])
def test_rejects_cursor_of_other_list(made_for: str, used_for: str) -> None:
    snapshot = merged(*ALL_KINDS, page_size=1)
    cursor = pages(snapshot, verb=made_for)[0]["nextCursor"]
    with pytest.raises(InterlockError, match="not from this node") as caught:
        snapshot.page(used_for, Era.SESSION, "dotted", cursor)
    assert caught.value.failure is INVALID_CURSOR


def test_resource_cursor_survives_uri_collision() -> None:
    before = merged(offer("b", resources=["x:1", "x:2"]), page_size=1)
    cursor = pages(before, verb=RESOURCES_LIST)[0]["nextCursor"]
    after = merged(offer("a", resources=["x:1"]), offer("b", resources=["x:1", "x:2"]), page_size=1)
    page = json.loads(after.page(RESOURCES_LIST, Era.SESSION, "dotted", cursor))
    assert [item["uri"] for item in page["resources"]] == ["x:2"]


def test_rejects_page_of_other_method() -> None:
    with pytest.raises(ValueError, match="not a list"):
        merged().page("tools/call", Era.SESSION, "dotted")


# --- pages ---


@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("page_size", [0, 1, 2, 3, 7, 20, 21, 22, 1000])
def test_pages_contain_whole_list(era: Era, style: str, page_size: int) -> None:
    offers = [offer(key, [f"t{number}" for number in range(7)]) for key in ("a", "b", "c")]
    whole = shown(merged(*offers), style, era)
    walked = pages(merged(*offers, page_size=page_size), style, era)
    assert [tool for page in walked for tool in page["tools"]] == whole
    if page_size:
        sizes = [len(page["tools"]) for page in walked]
        assert all(size == page_size for size in sizes[:-1])
        assert 0 < sizes[-1] <= page_size
    else:
        assert len(walked) == 1


def test_builds_page_once() -> None:
    snapshot = merged(offer("s", ["a", "b", "c"]), page_size=1)
    cursor = pages(snapshot)[0]["nextCursor"]
    assert snapshot.page(TOOLS_LIST, Era.SESSION, "dotted", cursor) is snapshot.page(
        TOOLS_LIST, Era.SESSION, "dotted", cursor
    )


@pytest.mark.parametrize(
    "cursor",
    ["", ".", "0", "1", "s.a", ".s.a", "x" * 18 + ".s.a", "x" * 1_000_000, "\x00", "é.s.a", "s."],
)
def test_rejects_forged_cursor(cursor: str) -> None:
    snapshot = merged(offer("s", ["a", "b"]), page_size=1)
    with pytest.raises(InterlockError, match="not from this node") as caught:
        snapshot.page(TOOLS_LIST, Era.SESSION, "dotted", cursor)
    assert caught.value.failure is INVALID_CURSOR


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_rejects_any_text_as_cursor(cursor: str) -> None:
    snapshot = merged(offer("s", ["a", "b"]), page_size=1)
    with pytest.raises(InterlockError):
        snapshot.page(TOOLS_LIST, Era.SESSION, "dotted", cursor)


def test_rejects_cursor_of_other_node() -> None:
    offers = [offer("s", ["a", "b"])]
    theirs = Snapshot(1, offers, page_size=1, server_info=b"{}", key=b"o" * 32)
    cursor = pages(theirs)[0]["nextCursor"]
    with pytest.raises(InterlockError, match="not from this node"):
        merged(*offers, page_size=1).page(TOOLS_LIST, Era.SESSION, "dotted", cursor)


def test_cursor_survives_unrelated_change() -> None:
    before = merged(offer("b", ["b1", "b2"]), offer("d", ["d1"]), page_size=2)
    cursor = pages(before)[0]["nextCursor"]
    changed = merged(
        offer("a", ["new"]), offer("b", ["b1", "b2"]), offer("c", ["new"]), offer("d", ["d1"]),
        page_size=2,
    )  # fmt: skip
    page = json.loads(changed.page(TOOLS_LIST, Era.SESSION, "dotted", cursor))
    assert [tool["name"] for tool in page["tools"]] == ["c.new", "d.d1"]


def test_cursor_at_last_tool_returns_empty_page() -> None:
    before = merged(offer("b", ["b1", "b2"]), offer("d", ["d1"]), page_size=2)
    cursor = pages(before)[0]["nextCursor"]
    page = merged(offer("b", ["b1", "b2"]), page_size=2).page(
        TOOLS_LIST, Era.SESSION, "dotted", cursor
    )
    assert json.loads(page) == {"tools": []}


def test_rejects_cursor_of_removed_tool() -> None:
    before = merged(offer("b", ["b1", "b2"]), page_size=1)
    cursor = pages(before)[0]["nextCursor"]
    with pytest.raises(InterlockError, match="has changed") as caught:
        merged(offer("b", ["b2"]), page_size=1).page(TOOLS_LIST, Era.SESSION, "dotted", cursor)
    assert caught.value.failure is INVALID_CURSOR


def test_old_cursors_do_not_fill_cache() -> None:
    tools = [f"t{number:03}" for number in range(50)]
    fine = merged(offer("s", tools), page_size=1)
    cursors = [page["nextCursor"] for page in pages(fine)[:-1]]
    coarse = merged(offer("s", tools), page_size=10)
    for cursor in cursors:
        coarse.page(TOOLS_LIST, Era.SESSION, "dotted", cursor)
    assert len(coarse._pages[TOOLS_LIST, False]._pages) <= 5
