"""Tests of danger levels and trust, and of their combination."""

from __future__ import annotations

import msgspec
import pytest

from interlock.aql import danger
from interlock.aql.config import AqlConfig
from interlock.aql.danger import TRUST_LEVELS, classify_danger, verdict_of
from interlock.aql.operations import OperationCatalogBuilder, ServerTrust
from interlock.core.catalog.effects import EffectLevel
from interlock.protocol.aql_terms import Category, Danger
from tests.aql.operation_catalogs import NEEDED, STRING, operation_catalog, single_operation, tool
from tests.support.offerings import merged, offer

MUTATING = EffectLevel.MUTATING


@pytest.mark.spec("AQ-DNG-2.1-1")
def test_danger_levels_are_ordered() -> None:
    assert [one.label for one in sorted(Danger)] == [
        "safe", "reversible", "destructive", "dangerous", "forbidden",
    ]  # fmt: skip
    assert [one.value for one in sorted(Danger)] == [0, 1, 2, 3, 4]


@pytest.mark.spec("AQ-DNG-3.3-1", "AQ-DNG-7.1-1")
@pytest.mark.parametrize(
    ("name", "category", "expected"),
    [
        ("get_thing", Category.READ, Danger.SAFE),
        ("create_thing", Category.CREATE, Danger.REVERSIBLE),
        ("update_thing", Category.UPDATE, Danger.REVERSIBLE),
        ("delete_thing", Category.DELETE, Danger.DESTRUCTIVE),
        ("start_thing", Category.EXECUTE, Danger.REVERSIBLE),
    ],
)
def test_default_categories_and_dangers(name: str, category: Category, expected: Danger) -> None:
    found = single_operation(tool(name, {"id": NEEDED, "title": STRING}))
    assert (found.category, found.danger) == (category, expected)


@pytest.mark.parametrize("effect", list(EffectLevel))
@pytest.mark.parametrize("category", list(Category))
@pytest.mark.parametrize("name", ["thing", "drop_table", "purge_all", "get_x", "delete_x"])
def test_irreversible_effects_are_destructive(
    name: str, category: Category, effect: EffectLevel
) -> None:
    held = effect is EffectLevel.IRREVERSIBLE
    assert (classify_danger(name, category, effect)[0] >= Danger.DESTRUCTIVE) is held


@pytest.mark.spec("AQ-DNG-6.1-1", "AQ-DNG-5.1-1")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("force_sync", Danger.DANGEROUS),
        ("remove_permanently", Danger.DANGEROUS),
        ("bulk_delete_rows", Danger.DANGEROUS),
        ("override_lock", Danger.DANGEROUS),
        ("bypass_check", Danger.DANGEROUS),
        ("migrate_without_backup", Danger.DANGEROUS),
        ("purge_cache", Danger.DANGEROUS),
        ("drop_table", Danger.FORBIDDEN),
        ("delete_all", Danger.FORBIDDEN),
        ("delete_all_users", Danger.FORBIDDEN),
        ("truncate_table", Danger.FORBIDDEN),
        ("reset_database", Danger.FORBIDDEN),
        ("destroy_cluster", Danger.FORBIDDEN),
        ("wipe_disk", Danger.FORBIDDEN),
        ("deploy_production", Danger.FORBIDDEN),
        ("force_delete_all", Danger.FORBIDDEN),
        ("get_x", Danger.SAFE),
        ("list_x", Danger.SAFE),
        ("search_x", Danger.SAFE),
        ("count_x", Danger.SAFE),
        ("check_x", Danger.SAFE),
        ("introspect", Danger.SAFE),
        ("frobnicate", None),
    ],
)
def test_classifies_danger_by_name(name: str, expected: Danger | None) -> None:
    assert danger.danger_of_name(name) is expected


@pytest.mark.spec("AQ-DNG-5.1-1")
def test_declared_danger_overrides_in_both_directions() -> None:
    declared = {"operations": {"s.force_sync": {"danger": "safe"}}}
    found = operation_catalog(offer("s", ["force_sync", "force_push"]), **declared)  # type: ignore[arg-type]
    assert found.find("s_force_sync").danger is Danger.SAFE  # type: ignore[union-attr]
    assert found.find("s_force_push").danger is Danger.DANGEROUS  # type: ignore[union-attr]


@pytest.mark.spec("AQ-8.5-1")
def test_patterns_match_local_name() -> None:
    assert single_operation("drop_table", key="github").danger is Danger.FORBIDDEN


def test_irreversible_is_destructive_and_unknown_read_is_not_safe() -> None:
    assert (
        classify_danger("make_thing", Category.CREATE, EffectLevel.IRREVERSIBLE)[0]
        is Danger.DESTRUCTIVE
    )
    assert classify_danger("fetch_thing", Category.READ, MUTATING)[0] is Danger.REVERSIBLE
    assert classify_danger("get_thing", Category.READ, MUTATING)[0] is Danger.SAFE
    assert (
        classify_danger("drop_x", Category.DELETE, EffectLevel.IRREVERSIBLE)[0] is Danger.FORBIDDEN
    )


@pytest.mark.spec("AQ-DNG-4.1-1")
def test_decides_by_danger_and_trust_matrix() -> None:
    a, c, d = "allow", "confirm", "deny"
    expected = [
        ["introspect_only", a, a, a, a],
        [d, d, a, a, a],
        [d, d, c, a, a],
        [d, d, d, c, a],
        [d, d, d, d, c],
    ]
    assert [
        [verdict_of(one, trust) for trust in TRUST_LEVELS] for one in sorted(Danger)
    ] == expected


# -- trust


@pytest.mark.spec("AQ-TRU-2.1-1", "AQ-TRU-6.1-1")
def test_trust_has_five_levels() -> None:
    assert TRUST_LEVELS == ("untested", "generated", "validated", "community_reviewed", "certified")
    with pytest.raises(msgspec.ValidationError, match="certifed"):
        msgspec.convert({"trust": {"s": "certifed"}}, AqlConfig)


def test_registered_servers_have_lower_default_trust() -> None:
    trusting = ServerTrust(
        {"c": "certified"}, registered=lambda key: key == "r", wall_clock=lambda: 1
    )
    assert [trusting(key) for key in ("c", "r", "x")] == ["certified", "generated", "validated"]


@pytest.mark.spec("AQ-TRU-4.1-1")
def test_trust_rises_one_level_at_a_time() -> None:
    trusting = ServerTrust({"s": "generated"}, wall_clock=lambda: 12.5)
    problem = trusting.change("s", "certified", "admin")
    assert problem is not None
    assert "validated before" in problem
    assert trusting.change("s", "community_reviewed", "admin") is not None
    assert trusting("s") == "generated"
    assert trusting.history("s") == []
    assert trusting.change("s", "validated", "admin", "tests passed") is None
    assert trusting("s") == "validated"
    assert trusting.change("s", "untested", "admin", "a security issue") is None
    rose, fell = trusting.history("s")
    assert rose == {
        "from": "generated", "to": "validated", "at": 12.5, "by": "admin", "reason": "tests passed",
    }  # fmt: skip
    assert (fell["from"], fell["to"], fell["reason"]) == (
        "validated", "untested", "a security issue",
    )  # fmt: skip


@pytest.mark.spec("AQ-TRU-4.1-1")
def test_config_cannot_skip_trust_level() -> None:
    trusting = ServerTrust({"s": "generated", "t": "certified"}, wall_clock=lambda: 1)
    assert len(trusting.configure({"s": "certified", "t": "untested"})) == 1
    assert (trusting("s"), trusting("t")) == ("generated", "untested")
    assert [one["by"] for one in trusting.history("t")] == ["config"]


@pytest.mark.spec("AQ-TRU-4.1-1")
@pytest.mark.parametrize(
    ("now", "what"),
    [
        ({"id": NEEDED}, "title was removed"),
        ({"id": NEEDED, "title": {"type": "integer"}}, "from string to integer"),
        ({"id": NEEDED, "title": STRING, "body": NEEDED}, "body became required"),
        ({"id": NEEDED, "title": NEEDED}, "title became required"),
        ({"id": NEEDED, "title": STRING, "body": STRING}, None),
        ({"id": STRING, "title": STRING}, None),
    ],
)
def test_changed_promise_demotes_server(now: dict[str, object], what: str | None) -> None:
    trusting = ServerTrust({"s": "certified"}, wall_clock=lambda: 3)
    operations = OperationCatalogBuilder(AqlConfig(), on_break=trusting.demote)
    operations.build(merged(offer("s", [tool("create_x", {"id": NEEDED, "title": STRING})])))
    operations.build(merged(offer("s", [tool("create_x", now)])))
    if what is None:
        assert trusting("s") == "certified"
        assert trusting.history("s") == []
    else:
        assert trusting("s") == "generated"
        (change,) = trusting.history("s")
        assert what in change["reason"]
        assert (change["by"], change["from"]) == ("node", "certified")
