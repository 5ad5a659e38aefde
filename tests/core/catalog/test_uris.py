"""URIs of many upstreams: collisions, prefixes, and the upstream that a URI resolves to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.catalog.offering import Offering
from interlock.core.catalog.snapshot import Snapshot
from interlock.errors import INVALID_PARAMS, InterlockError
from interlock.protocol.mcp import RESOURCES_LIST, TEMPLATES_LIST
from tests.support.offerings import (
    definition,
    list_templates,
    list_uris,
    merged,
    offer,
    resource,
    shown,
    template,
    without_node_members,
)


def resolve_uri(snapshot: Snapshot, uri: str) -> tuple[str, str] | None:
    route = snapshot.resource(uri)
    return None if route is None else (route.upstream, route.upstream_uri)


def list_candidates(snapshot: Snapshot, uri: str) -> list[str]:
    """Return the URIs that the error for an ambiguous URI lists."""
    with pytest.raises(InterlockError) as caught:
        snapshot.resource(uri)
    assert caught.value.failure is INVALID_PARAMS
    assert caught.value.data is not None
    assert caught.value.data["uri"] == uri
    result: list[str] = caught.value.data["forms"]
    for form in result:
        assert form[:100] in caught.value.message
    return result


# --- unique, and not ---


def test_keeps_uri_of_single_upstream() -> None:
    snapshot = merged(offer("a", resources=["x://1"]), offer("b", resources=["x://2"]))
    assert list_uris(snapshot) == ["x://1", "x://2"]
    assert resolve_uri(snapshot, "x://1") == ("a", "x://1")
    assert resolve_uri(snapshot, "x://2") == ("b", "x://2")
    assert snapshot.shown_uri("a", "x://1") == "x://1"
    assert not snapshot.has_collisions("a")
    # The other form is understood all the same, also where nothing collides.
    route = snapshot.resource("interlock:a:x://1")
    assert route is not None
    assert (route.upstream, route.upstream_uri, route.shown_uri) == ("a", "x://1", "x://1")


def test_prefixes_colliding_uri_with_segment() -> None:
    snapshot = merged(
        offer("a", resources=["x://1", "x://2"], segment="one"),
        offer("b", resources=["x://1"], segment="two"),
        offer("c", resources=["x://3"]),
    )
    assert list_uris(snapshot) == ["x://3", "interlock:one:x://1", "x://2", "interlock:two:x://1"]
    assert resolve_uri(snapshot, "interlock:one:x://1") == ("a", "x://1")
    assert resolve_uri(snapshot, "interlock:two:x://1") == ("b", "x://1")
    assert snapshot.shown_uri("a", "x://1") == "interlock:one:x://1"
    assert snapshot.shown_uri("a", "x://2") == "x://2"
    assert list_candidates(snapshot, "x://1") == ["interlock:one:x://1", "interlock:two:x://1"]
    assert [snapshot.has_collisions(key) for key in "abc"] == [True, True, False]


def test_prefixes_colliding_templates() -> None:
    snapshot = merged(
        offer("a", templates=["x://{id}", "y://{id}"]), offer("b", templates=["x://{id}"])
    )
    assert list_templates(snapshot) == [
        "interlock:a:x://{id}", "y://{id}", "interlock:b:x://{id}",
    ]  # fmt: skip
    # Filled in, the form leads to the right one.
    assert resolve_uri(snapshot, "interlock:b:x://7") == ("b", "x://7")
    assert resolve_uri(snapshot, "y://7") == ("a", "y://7")
    assert list_candidates(snapshot, "x://7") == ["interlock:a:x://7", "interlock:b:x://7"]
    # Completion asks about a template itself.
    assert resolve_uri(snapshot, "interlock:b:x://{id}") == ("b", "x://{id}")
    assert resolve_uri(snapshot, "y://{id}") == ("a", "y://{id}")
    assert list_candidates(snapshot, "x://{id}") == ["interlock:a:x://{id}", "interlock:b:x://{id}"]
    assert snapshot.has_collisions("a")


def test_prefixes_uri_that_resembles_prefixed_form() -> None:
    snapshot = merged(
        offer("a", resources=["interlock:b:x://1"]), offer("b", resources=["x://1", "x://2"])
    )
    assert list_uris(snapshot) == ["interlock:a:interlock:b:x://1", "x://1", "x://2"]
    assert resolve_uri(snapshot, "interlock:a:interlock:b:x://1") == ("a", "interlock:b:x://1")
    assert resolve_uri(snapshot, "interlock:b:x://1") == ("b", "x://1")
    assert snapshot.shown_uri("a", "interlock:b:x://1") == "interlock:a:interlock:b:x://1"
    assert snapshot.shown_uri("a", "interlock:new") == "interlock:a:interlock:new"


@pytest.mark.parametrize("uri", ["interlock:", "interlock:a", "interlock:a:", "interlock::x://1"])
def test_rejects_incomplete_prefixed_uri(uri: str) -> None:
    snapshot = merged(offer("a", resources=["x://1"]), offer("b", resources=["x://2"]))
    assert snapshot.resource(uri) is None


def test_distinguishes_uris_of_upstreams_with_same_segment() -> None:
    snapshot = merged(
        offer("two", resources=["x://1", "x://2"], segment="same"),
        offer("one", resources=["x://1"], segment="same"),
    )
    assert list_uris(snapshot) == ["interlock:same:x://1", "x://2"]
    assert resolve_uri(snapshot, "interlock:same:x://1") == ("one", "x://1")


# --- what is not listed ---


def test_listed_uri_does_not_override_template_of_other() -> None:
    snapshot = merged(offer("a", templates=["x://{id}"]), offer("b", resources=["x://1", "y://1"]))
    assert list_uris(snapshot) == ["interlock:b:x://1", "y://1"]
    assert resolve_uri(snapshot, "x://1") == ("a", "x://1")
    assert resolve_uri(snapshot, "x://2") == ("a", "x://2")
    assert resolve_uri(snapshot, "interlock:b:x://1") == ("b", "x://1")
    assert snapshot.shown_uri("a", "x://1") == "x://1"
    assert snapshot.shown_uri("b", "x://1") == "interlock:b:x://1"
    assert snapshot.has_collisions("b")
    assert not snapshot.has_collisions("a")


def test_template_for_every_scheme_matches_only_unlisted_uris() -> None:
    snapshot = merged(offer("a", templates=["{+any}"]), offer("b", resources=["x://1"]))
    assert list_uris(snapshot) == ["x://1"]
    assert resolve_uri(snapshot, "x://1") == ("b", "x://1")
    assert resolve_uri(snapshot, "x://2") == ("a", "x://2")


def test_keeps_uri_matched_by_own_template() -> None:
    snapshot = merged(offer("a", resources=["x://1"], templates=["x://{id}"]), offer("b", ["t"]))
    assert list_uris(snapshot) == ["x://1"]
    assert resolve_uri(snapshot, "x://1") == ("a", "x://1")


def test_configured_servers_precede_registered_servers() -> None:
    bank = offer("z", resources=["x://1"], templates=["db://{table}"], serves_resources=True)
    evil = offer(
        "a",
        resources=["x://1", "db://users", "own://1"],
        templates=["x://{n}", "db://user{s}", "db://{table}", "own://{n}"],
        registered="leaf",
        serves_resources=True,
    )
    before, after = merged(bank), merged(bank, evil)
    for uri in ("x://1", "db://users", "db://{table}", "z://unlisted"):
        assert resolve_uri(before, uri) == resolve_uri(after, uri) == ("z", uri)
        assert after.shown_uri("z", uri) == uri
        assert after.shown_uri("a", uri) == f"interlock:a:{uri}"
        assert resolve_uri(after, f"interlock:a:{uri}") == ("a", uri)
    # Nobody else has anything to do with these.
    assert resolve_uri(after, "own://2") == ("a", "own://2")
    assert list_uris(after) == ["interlock:a:db://users", "own://1", "interlock:a:x://1", "x://1"]


def test_closer_template_does_not_override_other_server() -> None:
    valid = offer("a", templates=["db://{table}"], registered="leaf")
    evil = offer("b", templates=["db://user{s}"], registered="leaf")
    snapshot = merged(valid, evil)
    assert list_candidates(snapshot, "db://users") == [
        "interlock:a:db://users",
        "interlock:b:db://users",
    ]
    assert resolve_uri(snapshot, "db://other") == ("a", "db://other")


def test_limits_template_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not compared any more is shown in the form that takes over nothing."""
    monkeypatch.setattr("interlock.core.catalog.uris._MAX_COMPARE_STEPS", 10)
    many = [f"x://{n}/1" for n in range(8)]
    snapshot = merged(
        offer("a", templates=["x://{id}/2", "x://{id}/3"]), offer("b", resources=[*many, "y://1"])
    )
    assert list_uris(snapshot) == [
        *many[:5], *(f"interlock:b:{uri}" for uri in many[5:]), "y://1"
    ]  # fmt: skip
    for uri in list_uris(snapshot):
        assert resolve_uri(snapshot, uri) == ("b", uri.removeprefix("interlock:b:"))


def test_prefers_most_specific_template() -> None:
    snapshot = merged(
        offer("a", templates=["{+anything}"]),
        offer("b", templates=["weather://{city}"]),
        offer("c", templates=["weather://{city}/now"]),
    )
    assert resolve_uri(snapshot, "weather://oslo") == ("b", "weather://oslo")
    assert resolve_uri(snapshot, "weather://oslo/now") == ("c", "weather://oslo/now")
    assert resolve_uri(snapshot, "file:///x") == ("a", "file:///x")
    assert snapshot.shown_uri("a", "weather://oslo") == "interlock:a:weather://oslo"
    assert snapshot.shown_uri("b", "weather://oslo") == "weather://oslo"


def test_unknown_uri_goes_to_only_resource_server() -> None:
    alone = merged(offer("a", ["tool"]), offer("b", resources=["x://1"]))
    assert resolve_uri(alone, "ui://anything") == ("b", "ui://anything")
    two = merged(offer("a", templates=["y://{id}"]), offer("b", resources=["x://1"]))
    assert two.resource("ui://anything") is None
    # So that the way back is open, it is shown in the form that has one.
    assert two.shown_uri("a", "ui://anything") == "interlock:a:ui://anything"
    assert alone.shown_uri("b", "ui://anything") == "ui://anything"
    assert merged(offer("a", ["tool"])).resource("x://1") is None
    # It may have resources without listing any.
    silent = merged(offer("a", ["tool"]), offer("b", serves_resources=True))
    assert resolve_uri(silent, "ui://anything") == ("b", "ui://anything")


def test_unpublished_upstream_keeps_uris() -> None:
    snapshot = merged(offer("a", resources=["x://1"]))
    assert snapshot.shown_uri("gone", "x://1") == "x://1"
    assert not snapshot.has_collisions("gone")


def test_invalid_template_is_listed_but_matches_nothing() -> None:
    snapshot = merged(offer("a", templates=["x://{"]), offer("b", resources=["y://1"]))
    assert list_templates(snapshot) == ["x://{"]
    assert snapshot.resource("x://1") is None


def test_limits_match_steps_of_templates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("interlock.core.catalog.uris._MAX_MATCH_STEPS", 1_000)
    hostile = offer("a", templates=["{x}a{+y}b{z}" + "c" * n for n in range(50)])
    snapshot = merged(hostile, offer("b", templates=["good://{x}/{y}"]))
    assert resolve_uri(snapshot, "good://1/" + "a" * 500) == ("b", "good://1/" + "a" * 500)
    assert snapshot.resource("x" * 1_000_000) is None


# --- shown as itself ---


def test_transparent_upstream_keeps_uris_and_wins() -> None:
    snapshot = merged(
        offer("a", resources=["x://1", "x://2"], templates=["z://{id}"]),
        offer(
            "t",
            resources=["x://1", "interlock:a:x://2"],
            templates=["z://{id}", "z://{+all}"],
            expose="transparent",
        ),
    )
    assert list_uris(snapshot) == ["interlock:a:x://1", "x://2", "x://1", "interlock:a:x://2"]
    assert resolve_uri(snapshot, "x://1") == ("t", "x://1")
    assert resolve_uri(snapshot, "x://2") == ("a", "x://2")
    assert resolve_uri(snapshot, "interlock:a:x://1") == ("a", "x://1")
    assert resolve_uri(snapshot, "interlock:a:x://2") == ("t", "interlock:a:x://2")
    assert resolve_uri(snapshot, "z://7") == ("t", "z://7")
    assert resolve_uri(snapshot, "interlock:a:z://7") == ("a", "z://7")
    # Whatever nobody lists is its own, and so is a form of its own segment.
    assert resolve_uri(snapshot, "ui://anything") == ("t", "ui://anything")
    assert resolve_uri(snapshot, "interlock:t:x") == ("t", "interlock:t:x")
    assert not snapshot.has_collisions("t")
    assert snapshot.shown_uri("t", "x://1") == "x://1"
    assert snapshot.shown_uri("t", "x://2") == "x://2"


def test_transparent_upstream_lists_in_original_order() -> None:
    snapshot = merged(offer("t", resources=["x:2", "x:1"], expose="transparent"))
    assert list_uris(snapshot) == ["x:2", "x:1"]
    assert list_uris(merged(offer("p", resources=["x:2", "x:1"]))) == ["x:1", "x:2"]


# --- screens of tools ---


def tool_with_screen(name: str, uri: Any, **more: Any) -> bytes:
    return definition(name, _meta={"ui": {"resourceUri": uri, "visibility": ["app"]}, **more})


def test_resolves_unlisted_resource_of_tool() -> None:
    snapshot = merged(
        offer("a", [tool_with_screen("t", "ui://a/chart")]), offer("b", resources=["x:1"]),
        offer("c", resources=["x:2"]),
    )  # fmt: skip
    assert resolve_uri(snapshot, "ui://a/chart") == ("a", "ui://a/chart")
    [tool] = shown(snapshot)
    assert tool["_meta"]["ui"]["resourceUri"] == "ui://a/chart"
    assert list_uris(snapshot) == ["x:1", "x:2"]


def test_prefixes_resource_uri_in_tools() -> None:
    old = definition("old", _meta={"ui/resourceUri": "ui://chart", "x": 1.5})
    snapshot = merged(
        offer("a", [tool_with_screen("t", "ui://chart", k=1), "plain"]),
        offer("b", [old], resources=["ui://chart"]),
    )
    tools = {tool["name"]: without_node_members(tool).get("_meta") for tool in shown(snapshot)}
    assert tools == {
        "a.plain": None,
        "a.t": {
            "ui": {"resourceUri": "interlock:a:ui://chart", "visibility": ["app"]},
            "k": 1,
        },
        "b.old": {"ui/resourceUri": "interlock:b:ui://chart", "x": 1.5},
    }
    assert resolve_uri(snapshot, "interlock:a:ui://chart") == ("a", "ui://chart")
    assert snapshot.has_collisions("a")


@pytest.mark.parametrize(
    "meta", [None, 5, [], {"ui": 5}, {"ui": {"resourceUri": 5}}, {"ui": {"resourceUri": ""}},
             {"ui": "resourceUri"}, {"ui/resourceUri": None}]
)  # fmt: skip
def test_tool_without_resource_uri_is_unchanged(meta: Any) -> None:
    snapshot = merged(offer("a", [definition("t", _meta=meta)]), offer("b", ["u"]))
    [tool, _] = shown(snapshot)
    # What is no object is no `_meta`: that it is there would cost clients the whole list.
    assert without_node_members(tool).get("_meta") == (meta if isinstance(meta, dict) else None)
    assert not snapshot.has_collisions("a")


# --- any set of offers ---

own_uris = st.sampled_from(
    ["x:1", "x:2", "x:1/y", "y:", "interlock:a:x:1", "interlock:b:x:1", "interlock:z:x",
     "interlock:", "x:{id}", "é:ü"]
)  # fmt: skip
own_templates = st.sampled_from(
    ["x:{id}", "x:{+id}", "{+all}", "x:1", "interlock:a:{x}", "y:{/p*}{?q}", "x:{"]
)
described = st.dictionaries(
    st.sampled_from("abcz"),
    st.tuples(
        st.lists(own_uris, unique=True, max_size=5),
        st.lists(own_templates, unique=True, max_size=3),
        st.sampled_from(["prefixed", "prefixed", "prefixed", "transparent"]),
    ),
    max_size=4,
)


def make_offers(described: dict[str, Any]) -> list[Offering]:
    return [
        offer(
            key,
            resources=[resource(uri, title=json.dumps([key, uri])) for uri in resources],
            templates=[template(text, title=json.dumps([key, text])) for text in templates],
            expose=expose,
        )
        for key, (resources, templates, expose) in described.items()
    ]


@given(described)
def test_every_listed_uri_resolves_to_its_resource(described: dict[str, Any]) -> None:
    snapshot = merged(*make_offers(described))
    listed = shown(snapshot, verb=RESOURCES_LIST)
    assert len({tool["uri"] for tool in listed}) == len(listed)
    for item in listed:
        upstream, own = json.loads(item["title"])
        assert resolve_uri(snapshot, item["uri"]) == (upstream, own)
        assert snapshot.shown_uri(upstream, own) == item["uri"]
        if item["uri"] != own:
            assert snapshot.has_collisions(upstream)
    resources = {uri for uris, _, _ in described.values() for uri in uris}
    for entry in shown(snapshot, verb=TEMPLATES_LIST):
        upstream, own = json.loads(entry["title"])
        # A template without variables may be what somebody lists as a resource.
        if entry["uriTemplate"] not in resources and own not in resources:
            assert resolve_uri(snapshot, entry["uriTemplate"]) == (upstream, own)


@given(described, own_uris | st.text())
def test_shown_uri_resolves_to_original(described: dict[str, Any], uri: str) -> None:
    """Whatever an upstream calls something: how a client sees it leads to it."""
    offers = make_offers(described)
    snapshot = merged(*offers)
    itself = sorted(
        (offering for offering in offers if offering.is_transparent), key=lambda item: item.segment
    )[:1]
    for one in offers:
        if one not in itself and uri:
            seen = snapshot.shown_uri(one.upstream, uri)
            if itself and seen.startswith("interlock:") and seen in list_own_uris(itself[0]):
                continue  # it wins
            assert resolve_uri(snapshot, seen) == (one.upstream, uri)


def list_own_uris(one: Offering) -> set[str]:
    return {each.uri for each in (*one.resources, *one.templates)}


@given(described, st.randoms())
def test_ignores_order_of_upstreams(described: dict[str, Any], chance: Any) -> None:
    offers = make_offers(described)
    expected = list_uris(merged(*offers)), list_templates(merged(*offers))
    chance.shuffle(offers)
    assert (list_uris(merged(*offers)), list_templates(merged(*offers))) == expected
