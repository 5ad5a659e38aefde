"""Resolution of tool names, and suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import pytest

from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import Offering
from interlock.core.pipeline.resolution import resolve_tool
from interlock.errors import UNKNOWN_TOOL, InterlockError
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer


def make_catalog(*offerings: Offering) -> Catalog:
    catalog = Catalog(server_info=b"{}")
    for offering in offerings:
        catalog.publish(offering)
    return catalog


CATALOG = make_catalog(
    offer("jira", ["create_issue", "get_issue", "deleteIssue"]),
    offer("files", ["read_file", definition("look", annotations={"readOnlyHint": True})]),
)


def reject_unknown(name: str, catalog: Catalog = CATALOG) -> InterlockError:
    call = tool_call(name)
    with pytest.raises(InterlockError) as caught:
        resolve_tool(call, catalog)
    assert caught.value.failure is UNKNOWN_TOOL
    # A call that leads nowhere has no route, so it can reach nobody.
    assert call.route is None
    assert call.upstream == ""
    return caught.value


@pytest.mark.parametrize(
    "name", ["jira.deleteissue", "jira__deleteIssue", "jira.deleteIssue"]
)  # fmt: skip
def test_sets_route_of_call(name: str) -> None:
    call = tool_call(name)
    tool = resolve_tool(call, CATALOG)
    assert call.route is tool
    assert tool.canonical == "jira.deleteissue"
    assert tool.upstream_name == "deleteIssue"
    assert call.upstream == "jira"
    assert call.effect == "irreversible"


def test_sets_effect_of_call() -> None:
    call = tool_call("files.look")
    resolve_tool(call, CATALOG)
    assert call.effect == "read_only"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("jira.create_isue", "jira.create_issue"),
        ("jira__create_isue", "jira.create_issue"),
        ("Jira.Create_Issue", "jira.create_issue"),
        ("create_issue", "jira.create_issue"),
        ("issue.create_issue", "jira.create_issue"),
        ("jira.createissue", "jira.create_issue"),
        ("files.readfile", "files.read_file"),
        ("file.read_file", "files.read_file"),
    ],
)
def test_suggests_similar_name(name: str, near: str) -> None:
    error = reject_unknown(name)
    assert error.data is not None
    assert error.data["near"][0] == near
    assert f"Did you mean {near}" in error.message
    assert repr(name) in error.message


def test_suggests_names_as_client_sees_them() -> None:
    snapshot = make_catalog(offer("demo", ["echo", "reverse"], expose="transparent"))
    assert reject_unknown("ecko", snapshot).data == {"tool": "ecko", "near": ["echo"]}


@pytest.mark.parametrize("name", ["zzzzzzzz", "", ".", "__", "\n", "*", "é", "x" * 300])
def test_names_list_method_without_similar_name(name: str) -> None:
    assert "`tools/list` returns the names" in reject_unknown(name).message


def test_suggests_nothing_for_empty_catalog() -> None:
    assert reject_unknown("a.b", make_catalog()).data == {"tool": "a.b", "near": []}


def test_shortens_long_name_in_error() -> None:
    error = reject_unknown("jira.create_issue" * 100_000)
    assert len(error.message) < 500
    assert error.data is not None
    assert len(error.data["tool"]) == 101


def test_limits_cost_of_suggestions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []
    real = difflib.SequenceMatcher

    class Counting(real):  # type: ignore[valid-type]
        def real_quick_ratio(self) -> float:
            compared.append((len(self.a), len(self.b)))
            return super().real_quick_ratio()  # type: ignore[no-any-return]

    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    snapshot = make_catalog(*many_offerings())
    assert len(snapshot.current.tools) == 5_000
    error = reject_unknown("s07.get_the_thing_number_55x", snapshot)
    assert error.data is not None
    assert error.data["near"]
    reject_unknown("s07.get_the_thing_number_" * 100_000, snapshot)
    reject_unknown("thing", snapshot)
    assert len(compared) <= 3 * 60
    assert max(size for sizes in compared for size in sizes) <= 100


def many_offerings() -> Iterator[Any]:
    for which in range(50):
        yield offer(f"s{which:02}", [f"get_the_thing_number_{number}" for number in range(100)])


def test_never_suggests_destructive_tool() -> None:
    catalog = make_catalog(
        offer(
            "disk",
            [
                definition("wipe_disk", annotations={"destructiveHint": True}),
                definition("wipe_dish", annotations={"readOnlyHint": True}),
            ],
        )
    )
    # Nearer to the one that may be suggested; as near as to both; nearer to the other.
    assert reject_unknown("disk.wipe_dsh", catalog).data["near"] == ["disk.wipe_dish"]  # type: ignore[index]
    for typo in ("disk.wipe_dsk", "disk.wipe_disks"):
        assert reject_unknown(typo, catalog).data["near"] == []  # type: ignore[index]
