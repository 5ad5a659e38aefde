"""Capability annotations in lists: declared values are kept, missing values are derived."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.catalog.definitions import MAX_LISTED_REASONS
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import Offering, Tool, read_builtin_offering
from interlock.protocol.capabilities import LATENCY_CLASSES
from interlock.protocol.mcp import Era
from tests.protocol import json_values
from tests.support.offerings import definition, merged, offer, shown, without_node_members

CAPABILITY, HOPS = "x-mcpax-capability", "x-mcpax-hops"
SAFETY, DERIVED = "x-mcpax-safety", "x-mcpax-derived"
FULL: dict[str, Any] = {
    "latency_class": "fast",
    "consistency": "strong",
    "mutable": True,
    "reversible": True,
    "idempotent": False,
    "transport": "can_cbor",
    "auth_scope": "admin",
    "cost_class": "expensive",
    "availability": "always",
    "schema_version": "2.1.0",
}
classes = st.sampled_from(LATENCY_CLASSES)


def annotated_tool(name: str = "t", /, *, hops: Any = None, **said: Any) -> bytes:
    """Return a tool with this capability annotation."""
    meta: dict[str, Any] = {CAPABILITY: said}
    if hops is not None:
        meta[HOPS] = hops
    return definition(name, _meta=meta)


def list_single_tool(offering: Offering) -> tuple[Tool, dict[str, Any]]:
    """Return the only tool of an offering, and how it is listed."""
    [tool] = offering.tools
    return tool, json.loads(b"{" + tool.listed[1:])


def list_meta(tool: bytes, **settings: Any) -> dict[str, Any]:
    result: dict[str, Any] = list_single_tool(offer("s", [tool], **settings))[1]["_meta"]
    return result


def relist(offering: Offering) -> list[bytes]:
    """Return the tools as a parent reads them from this node."""
    return [json.dumps(entry).encode() for entry in shown(merged(offering))]


# --- a declared capability ---


@pytest.mark.spec("AX-9.2-1")
def test_keeps_declared_capability() -> None:
    members = {**FULL, "calibrated": {"by": ["lab"], "at": 1.50}}
    tool, listed = list_single_tool(offer("s", [annotated_tool(**members)]))
    assert listed["_meta"][CAPABILITY] == members
    assert DERIVED not in listed["_meta"]
    assert tool.cost_units == 10
    assert tool.latency_class == "fast"


@pytest.mark.spec("AX-9.2-1")
@given(
    st.dictionaries(json_values.text.filter(lambda key: key not in FULL), json_values.values),
    st.sets(st.sampled_from(sorted(FULL))),
)
def test_keeps_declared_members_and_derives_missing(
    unknown: dict[str, Any], known: set[str]
) -> None:
    members = {**{name: FULL[name] for name in known}, **unknown}
    shown_said = list_meta(annotated_tool(**members))[CAPABILITY] if members else None
    # Through a second node, too.
    above = offer("up", relist(offer("s", [annotated_tool(**members)])), registered="aggregator")
    if shown_said is not None:
        assert shown_said.keys() == members.keys() | FULL.keys()
        assert {name: shown_said[name] for name in members} == members
        assert list_single_tool(above)[1]["_meta"][CAPABILITY] == shown_said
        derived = list_single_tool(above)[1]["_meta"].get(DERIVED, [])
        assert derived is True or set(derived) == FULL.keys() - known


def test_keeps_other_meta_members() -> None:
    meta = list_meta(definition("t", _meta={"k": 1, CAPABILITY: FULL, "z": [None]}))
    assert (meta["k"], meta["z"], meta[CAPABILITY]) == (1, [None], FULL)
    assert without_node_members({"_meta": meta})["_meta"] == {"k": 1, "z": [None]}


@pytest.mark.spec("AX-9.1-1", "AX-9.1-3", "AX-9.1-8")
def test_replaces_and_reports_invalid_capability_value() -> None:
    members = {**FULL, "latency_class": "quick", "mutable": "false", "more": 1}
    offering = offer("s", [annotated_tool(**members), "other"])
    tool, _ = offering.tools[::-1]
    listed = json.loads(b"{" + tool.listed[1:])
    assert listed["_meta"][CAPABILITY] == {**members, "latency_class": "standard", "mutable": True}
    assert listed["_meta"][DERIVED] == ["latency_class", "mutable"]
    assert [(item.name, item.reason.split()[0]) for item in offering.metadata_problems] == [
        ("t", "`latency_class`"), ("t", "`mutable`")
    ]  # fmt: skip
    # Nobody declared a class, so no deadline comes of it.
    assert (tool.latency_class, tool.declared_timeout) == (None, None)


@pytest.mark.parametrize("members", [5, [], "fast", None, True])
def test_replaces_capability_that_is_not_object(members: Any) -> None:
    offering = offer("s", [definition("t", _meta={CAPABILITY: members})])
    assert [problem.reason for problem in offering.metadata_problems] == [
        "The capability annotation is not an object."
    ]
    assert list_single_tool(offering)[1]["_meta"] == list_meta(definition("t"))


def test_limits_reported_metadata_problems() -> None:
    invalid = [annotated_tool(f"t{number}", mutable=5) for number in range(MAX_LISTED_REASONS + 50)]
    offering = offer("s", invalid)
    assert len(offering.tools) == MAX_LISTED_REASONS + 50
    assert len(offering.metadata_problems) == MAX_LISTED_REASONS + 1
    assert offering.rejected_count == 0


@pytest.mark.spec("AX-9.1-11")
@pytest.mark.parametrize(
    ("members", "hints", "mirrored"),
    [
        ({"mutable": False}, {}, {"readOnlyHint": True, "destructiveHint": False}),
        ({"mutable": True}, {}, {"readOnlyHint": False}),
        ({"mutable": True, "reversible": False}, {},
         {"readOnlyHint": False, "destructiveHint": True}),
        ({"mutable": True, "reversible": True}, {},
         {"readOnlyHint": False, "destructiveHint": False}),
        ({"idempotent": True}, {"title": "T"}, {"title": "T", "idempotentHint": True}),
        ({"mutable": False}, {"readOnlyHint": False}, {"readOnlyHint": False,
                                                       "destructiveHint": False}),
        ({"mutable": "no", "cost_class": "free"}, {}, None),
    ],
)  # fmt: skip
def test_derives_missing_hints_from_capability(
    members: dict[str, Any], hints: dict[str, Any], mirrored: dict[str, Any] | None
) -> None:
    annotations = {"annotations": hints} if hints else {}
    raw = definition("t", _meta={CAPABILITY: members}, **annotations)
    assert list_single_tool(offer("s", [raw]))[1].get("annotations") == mirrored


# --- a derived one ---


@pytest.mark.spec("AX-9.1-11", "AX-11.2-1")
def test_marks_tool_without_annotations() -> None:
    meta = list_meta(definition("t"))
    assert meta == {
        CAPABILITY: {
            "latency_class": "standard",
            "consistency": "best_effort",
            "mutable": True,
            "reversible": False,
            "idempotent": False,
            "transport": "native",
            "auth_scope": "write",
            "cost_class": "free",
            "availability": "best_effort",
            "schema_version": "0.0.0",
        },
        DERIVED: True,
        HOPS: 1,
        SAFETY: "irreversible_mutable",
    }
    tool, listed = list_single_tool(offer("s", [definition("t")]))
    assert "annotations" not in listed
    assert (tool.declared_timeout, tool.latency_class, tool.cost_units, tool.mutable) == (
        None,
        None,
        0,
        True,
    )


@pytest.mark.spec("AX-9.1-11", "AX-11.2-1")
@pytest.mark.parametrize(
    ("hints", "settings", "mutable", "reversible", "flagged"),
    [
        ({"readOnlyHint": True}, {}, False, True, False),
        ({"destructiveHint": False}, {}, True, True, False),
        ({"destructiveHint": True}, {}, True, False, True),
        ({"idempotentHint": True}, {}, True, False, True),
        # Hints that lower are not believed from everybody.
        ({"readOnlyHint": True}, {"trust_annotations": False}, True, False, True),
        ({"destructiveHint": False}, {"trust_annotations": False}, True, False, True),
        # The operator has the last word.
        ({}, {"effects": {"*": "read_only"}}, False, True, False),
        ({}, {"effects": {"*": "additive"}}, True, True, False),
        ({}, {"effects": {"*": "mutating"}}, True, True, False),
        ({"readOnlyHint": True}, {"effects": {"*": "irreversible"}}, True, False, True),
    ],
)
def test_derives_capability_from_hints(
    hints: dict[str, Any], settings: Any, mutable: bool, reversible: bool, flagged: bool
) -> None:
    tool, listed = list_single_tool(offer("s", [definition("t", annotations=hints)], **settings))
    capability = listed["_meta"][CAPABILITY]
    assert (capability["mutable"], capability["reversible"]) == (mutable, reversible)
    assert tool.mutable is mutable
    assert (listed["_meta"].get(SAFETY) == "irreversible_mutable") is flagged
    assert listed["annotations"] == hints


def test_derives_transport_class_from_registration() -> None:
    assert list_meta(definition("t"), transport_class="ble_cbor")[CAPABILITY]["transport"] == (
        "ble_cbor"
    )
    assert list_meta(annotated_tool(**FULL), transport_class="ble_cbor")[CAPABILITY] == FULL


# --- what it does to the world ---


@pytest.mark.parametrize(
    ("members", "hints", "trusted", "level"),
    [
        ({"mutable": False}, {}, True, EffectLevel.READ_ONLY),
        ({"mutable": False}, {}, False, EffectLevel.MUTATING),
        ({"mutable": True, "reversible": True}, {}, True, EffectLevel.ADDITIVE),
        ({"mutable": True, "reversible": True}, {}, False, EffectLevel.MUTATING),
        ({"mutable": True, "reversible": False}, {}, True, EffectLevel.IRREVERSIBLE),
        ({"mutable": True, "reversible": False}, {}, False, EffectLevel.IRREVERSIBLE),
        ({"mutable": True}, {}, True, EffectLevel.MUTATING),
        ({"reversible": False}, {}, True, EffectLevel.IRREVERSIBLE),
        ({"cost_class": "free"}, {"readOnlyHint": True}, True, EffectLevel.READ_ONLY),
        # Contradictions: the worse counts.
        ({"mutable": True}, {"readOnlyHint": True}, True, EffectLevel.MUTATING),
        ({"mutable": False}, {"readOnlyHint": False}, True, EffectLevel.MUTATING),
        ({"mutable": True, "reversible": True}, {"destructiveHint": True}, True,
         EffectLevel.IRREVERSIBLE),
        ({"mutable": True, "reversible": False}, {"destructiveHint": False}, True,
         EffectLevel.IRREVERSIBLE),
    ],
)  # fmt: skip
def test_declared_capability_sets_effect(
    members: dict[str, Any], hints: dict[str, Any], trusted: bool, level: EffectLevel
) -> None:
    raw = definition("t", annotations=hints, _meta={CAPABILITY: members})
    tool, _ = list_single_tool(offer("s", [raw], trust_annotations=trusted))
    assert tool.effect.level is level
    assert tool.mutable is (level is not EffectLevel.READ_ONLY)


bools = st.none() | st.booleans()


@pytest.mark.spec("AX-11.2-1")
@given(bools, bools, bools, bools, st.booleans())
def test_safety_flag_matches_capability(
    mutable: bool | None, reversible: bool | None, reads: bool | None, destroys: bool | None,
    trusted: bool,
) -> None:  # fmt: skip
    pairs = (("mutable", mutable), ("reversible", reversible))
    members = {name: value for name, value in pairs if value is not None}
    hints = {"readOnlyHint": reads, "destructiveHint": destroys}
    raw = definition(
        "t",
        annotations={name: value for name, value in hints.items() if value is not None},
        _meta={CAPABILITY: members},
    )
    tool, listed = list_single_tool(offer("s", [raw], trust_annotations=trusted))
    capability = listed["_meta"][CAPABILITY]
    flagged = SAFETY in listed["_meta"]
    if capability.get("mutable") and capability.get("reversible") is False:
        assert flagged
    if tool.effect.level is EffectLevel.IRREVERSIBLE:
        assert flagged
    if trusted and tool.effect.level < EffectLevel.MUTATING:
        assert not flagged
    if not trusted:
        assert flagged
        assert tool.mutable


# --- latency classes ---


@pytest.mark.spec("AX-9.2-3", "AX-9.2-4", "AX-9.2-5")
@given(st.none() | classes, st.none() | classes, st.none() | classes)
def test_never_lowers_latency_class(said: str | None, least: str | None, seen: str | None) -> None:
    tool = annotated_tool(cost_class="free") if said is None else annotated_tool(latency_class=said)
    slower = {} if seen is None else {"t": seen, "other": "batch"}
    result, listed = list_single_tool(offer("s", [tool], min_latency_class=least, slower=slower))
    given_classes = [item for item in (said or "standard", least, seen) if item is not None]
    expected = max(given_classes, key=LATENCY_CLASSES.index)
    assert listed["_meta"][CAPABILITY].get("latency_class", "standard") == expected
    assert result.latency_class == (None if said is None else expected)


@pytest.mark.spec("AX-9.2-5")
def test_applies_minimum_latency_class() -> None:
    fast = annotated_tool(**{**FULL, "latency_class": "realtime"})
    meta = list_meta(fast, min_latency_class="standard")
    assert meta[CAPABILITY] == {**FULL, "latency_class": "standard"}
    assert (
        list_meta(definition("t"), min_latency_class="slow")[CAPABILITY]["latency_class"] == "slow"
    )
    assert list_meta(definition("t"), min_latency_class="fast")[CAPABILITY]["latency_class"] == (
        "standard"
    )


@pytest.mark.spec("AX-7.3-1", "AX-7.3-7")
@pytest.mark.parametrize(
    ("latency_class", "hops", "limit"),
    [
        ("realtime", None, 0.5),
        ("realtime", 1, 0.75),
        ("fast", 2, 5.5),
        ("standard", None, 30.0),
        ("slow", 3, 120.75),
        ("batch", None, 0.0),
        ("batch", 5, 0.0),
    ],
)
def test_derives_timeout_from_class_and_hops(
    latency_class: str, hops: int | None, limit: float
) -> None:
    tool, _ = list_single_tool(offer("s", [annotated_tool(latency_class=latency_class, hops=hops)]))
    assert tool.declared_timeout == limit


def test_slower_class_extends_timeout() -> None:
    tool, _ = list_single_tool(
        offer("s", [annotated_tool(latency_class="realtime")], slower={"t": "fast"})
    )
    assert (tool.latency_class, tool.declared_timeout) == ("fast", 5.0)


# --- degraded ---


@pytest.mark.spec("AX-9.1-7", "AX-13.2-1", "AX-9.2-5")
def test_marks_tools_of_lost_subserver_as_degraded() -> None:
    for raw in (
        annotated_tool(**FULL, extra=1),
        definition("t", annotations={"readOnlyHint": True}),
    ):
        well, lost = list_meta(raw), list_meta(raw, degraded=True)
        assert lost[CAPABILITY] == {**well[CAPABILITY], "availability": "degraded"}
        assert {**lost, CAPABILITY: None} == {**well, CAPABILITY: None}
    [partly] = offer("s", [annotated_tool(mutable=False)], degraded=True).tools
    shown = json.loads(bytes(partly.capability()))
    assert (shown["mutable"], shown["availability"]) == (False, "degraded")


# --- hops ---


@pytest.mark.spec("AX-9.2-2")
def test_counts_each_node_as_hop() -> None:
    offering = offer("leaf", ["t", annotated_tool("d", **FULL)])
    for hops in (1, 2, 3, 4):
        assert {entry["_meta"][HOPS] for entry in shown(merged(offering))} == {hops}
        offering = offer(f"n{hops}", relist(offering), registered="aggregator")


@pytest.mark.spec("AX-9.2-2")
def test_counts_hops_without_capability() -> None:
    raw = definition("t", _meta={HOPS: 3, "vendor/other": 1})
    _, listed = list_single_tool(offer("s", [raw], registered="aggregator"))
    assert listed["_meta"][HOPS] == 4
    assert listed["_meta"]["vendor/other"] == 1


@pytest.mark.parametrize(
    ("members", "hops"),
    [(-5, 1), (True, 1), ("3", 1), (2.5, 1), (None, 1), (0, 1), (7, 8), (10**9, 65), (10**30, 1)],
)
def test_bounds_implausible_hops(members: Any, hops: int) -> None:
    raw = definition("t", _meta={HOPS: members, CAPABILITY: FULL})
    tool, listed = list_single_tool(offer("s", [raw]))
    assert listed["_meta"][HOPS] in {hops, 65}
    assert tool.declared_timeout is not None
    assert 5.0 <= tool.declared_timeout <= 5.0 + 64 * 0.25


@pytest.mark.spec("AX-11.2-1")
def test_keeps_safety_flag_of_node_but_not_of_leaf() -> None:
    members = {CAPABILITY: {**FULL, "mutable": False}, SAFETY: "irreversible_mutable"}
    assert SAFETY in list_meta(definition("t", _meta={**members, HOPS: 1}))
    assert SAFETY not in list_meta(definition("t", _meta=members))
    unsaid = {SAFETY: "irreversible_mutable", HOPS: 1}
    reads = {"readOnlyHint": True}
    assert SAFETY in list_meta(definition("t", _meta=unsaid, annotations=reads))
    assert SAFETY not in list_meta(definition("t", _meta={SAFETY: "x"}, annotations=reads))


# --- a guess is no declaration further up ---

leaf_tools = st.builds(
    lambda said, hints: definition(
        "t",
        annotations=hints,
        **({} if said is None else {"_meta": {CAPABILITY: said}}),
    ),
    st.none() | st.fixed_dictionaries({}, optional={
        "mutable": st.booleans(), "reversible": st.booleans(), "latency_class": classes,
        "idempotent": st.booleans() | st.just("bad"), "cost_class": st.just("metered"),
    }),
    st.fixed_dictionaries({}, optional={
        "readOnlyHint": st.booleans(), "destructiveHint": st.booleans(),
        "idempotentHint": st.booleans(),
    }),
)  # fmt: skip


@given(leaf_tools, st.booleans(), st.none() | st.sampled_from(["read_only", "irreversible"]))
def test_parent_judges_tool_no_safer_than_child(
    raw: bytes, trusted: bool, word: str | None
) -> None:
    effects = {} if word is None else {"*": word}
    below = offer("s", [raw], trust_annotations=trusted, effects=effects)
    lower, lower_listed = list_single_tool(below)
    upper, upper_listed = list_single_tool(offer("up", relist(below), registered="aggregator"))
    if word != "read_only":
        assert upper.effect.level >= lower.effect.level
        assert upper.repeatable <= lower.repeatable
    assert (SAFETY in lower_listed["_meta"]) <= (SAFETY in upper_listed["_meta"])
    assert upper.latency_class == lower.latency_class
    assert upper.cost_units == lower.cost_units
    if lower.declared_timeout:
        assert upper.declared_timeout == lower.declared_timeout + 0.25
    else:
        assert upper.declared_timeout == lower.declared_timeout
    assert upper_listed["_meta"][CAPABILITY] == lower_listed["_meta"][CAPABILITY]
    assert upper_listed["_meta"].get(DERIVED) == lower_listed["_meta"].get(DERIVED)


def test_unannotated_tool_has_same_effect_on_every_level() -> None:
    offering = offer("s", ["t"])
    for _ in range(3):
        tool, _listed = list_single_tool(offering)
        assert tool.effect.level is EffectLevel.MUTATING
        assert tool.declared_timeout is None
        offering = offer("up", relist(offering), registered="aggregator")


def test_parent_applies_effects_configured_below() -> None:
    below = offer("s", ["t"], effects={"*": "irreversible"})
    tool, _ = list_single_tool(offer("up", relist(below), registered="aggregator"))
    assert tool.effect.level is EffectLevel.IRREVERSIBLE
    below = offer("s", ["t"], effects={"*": "read_only"})
    tool, _ = list_single_tool(offer("up", relist(below), registered="aggregator"))
    assert tool.effect.level is EffectLevel.READ_ONLY
    assert tool.declared_timeout is None


# --- a server that is shown as itself ---


@given(json_values.values, json_values.values)
def test_does_not_change_transparent_tool(said: Any, hops: Any) -> None:
    raw = json.dumps(
        {"name": "t", "inputSchema": {"type": "object"}, "_meta": {CAPABILITY: said, HOPS: hops}},
        separators=(",", ":"),
    ).encode()
    offering = offer("s", [raw], expose="transparent", degraded=True, min_latency_class="batch")
    [tool] = offering.tools
    assert b'{"name":"t"' + tool.listed == raw
    assert (tool.declared_timeout, tool.latency_class) == (None, None)


def test_reads_capability_of_transparent_tool() -> None:
    raw = annotated_tool(mutable=False, cost_class="metered")
    [tool] = offer("s", [raw], expose="transparent").tools
    assert (tool.effect.level, tool.cost_units) == (EffectLevel.READ_ONLY, 1)
    assert json.loads(bytes(tool.capability())) == {"mutable": False, "cost_class": "metered"}
    [plain] = offer("s", ["t"], expose="transparent").tools
    assert json.loads(bytes(plain.capability()))["reversible"] is False


# --- the node's own tools ---


def test_builtin_tools_have_no_hops() -> None:
    raw = definition("notifications_dropped", annotations={"readOnlyHint": True})
    _, listed = list_single_tool(read_builtin_offering(None, [raw]))
    assert HOPS not in listed["_meta"]
    assert listed["_meta"][CAPABILITY]["mutable"] is False
    above = offer("edge", relist(read_builtin_offering(None, [raw])), registered="aggregator")
    assert list_single_tool(above)[1]["_meta"][HOPS] == 1


def test_lists_tool_with_invalid_meta() -> None:
    meta: Any
    for meta in ([], 5, "x", {CAPABILITY: FULL, SAFETY: 5}, {DERIVED: [1, "mutable"]}):
        offering = offer("s", [definition("t", _meta=meta)])
        assert list_single_tool(offering)[1]["_meta"][HOPS] == 1
        assert offering.rejected == ()


# --- who sees it ---


@pytest.mark.spec("AX-9.2-2", "AX-11.2-1")
@pytest.mark.parametrize("era", list(Era))
def test_hides_extension_members_from_other_clients(era: Era) -> None:
    schema = {"type": "array"}
    tools = [
        definition("plain"),
        definition("own", _meta={"com.example/a": 1}, outputSchema=schema, execution={}),
        annotated_tool("said", mutable=True, reversible=False),
        definition("both", _meta={"com.example/a": 1, CAPABILITY: {"mutable": False}}),
        # A member of its schema that looks like what is taken out.
        definition("schema", inputSchema={"type": "object", "_meta": {HOPS: 1}}),
    ]
    snapshot = merged(offer("s", tools))
    full = shown(snapshot, "ax", era)
    assert all(item["_meta"][HOPS] == 1 and CAPABILITY in item["_meta"] for item in full)
    for style in ("dotted", "safe"):
        plain = shown(snapshot, style, era)
        assert [item.get("_meta") for item in plain] == [
            {"com.example/a": 1}, {"com.example/a": 1}, None, None, None
        ]  # fmt: skip
        # All else is the same, MCP's own hints included.
        for less, more in zip(plain, full, strict=True):
            assert {**less, "name": "", "_meta": 0} == {**more, "name": "", "_meta": 0}
    hints = {entry["name"]: entry.get("annotations") for entry in shown(snapshot, "dotted", era)}
    assert hints["s.said"] == {"readOnlyHint": False, "destructiveHint": True}


def test_transparent_server_keeps_meta() -> None:
    tool = definition("t", _meta={CAPABILITY: {"mutable": False}, "a": 1})
    snapshot = merged(offer("s", [tool], expose="transparent"))
    for style in ("ax", "dotted", "safe"):
        assert shown(snapshot, style)[0]["_meta"] == {CAPABILITY: {"mutable": False}, "a": 1}
