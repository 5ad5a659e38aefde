"""Which tool is meant: any accepted form of a name, and a hint for a wrong one."""

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


def board(*offerings: Offering) -> Catalog:
    catalog = Catalog(server_info=b"{}")
    for offering in offerings:
        catalog.publish(offering)
    return catalog


CATALOG = board(
    offer("jira", ["create_issue", "get_issue", "deleteIssue"]),
    offer("files", ["read_file", definition("look", annotations={"readOnlyHint": True})]),
)


def unknown(name: str, catalog: Catalog = CATALOG) -> InterlockError:
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
def test_a_call_learns_its_route(name: str) -> None:
    call = tool_call(name)
    tool = resolve_tool(call, CATALOG)
    assert call.route is tool
    assert tool.canonical == "jira.deleteissue"
    assert tool.upstream_name == "deleteIssue"
    assert call.upstream == "jira"
    assert call.effect == "irreversible"


def test_a_call_learns_what_the_tool_does_to_the_world() -> None:
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
def test_a_wrong_name_gets_a_hint(name: str, near: str) -> None:
    error = unknown(name)
    assert error.data is not None
    assert error.data["near"][0] == near
    assert f"Did you mean {near}" in error.message
    assert repr(name) in error.message


def test_a_hint_names_what_the_client_sees() -> None:
    snapshot = board(offer("demo", ["echo", "reverse"], expose="transparent"))
    assert unknown("ecko", snapshot).data == {"tool": "ecko", "near": ["echo"]}


@pytest.mark.parametrize("name", ["zzzzzzzz", "", ".", "__", "\n", "*", "é", "x" * 300])
def test_a_name_like_no_other_is_sent_to_the_list(name: str) -> None:
    assert "`tools/list` returns the names" in unknown(name).message


def test_an_empty_catalog_has_no_hints() -> None:
    assert unknown("a.b", board()).data == {"tool": "a.b", "near": []}


def test_a_giant_name_is_not_repeated() -> None:
    error = unknown("jira.create_issue" * 100_000)
    assert len(error.message) < 500
    assert error.data is not None
    assert len(error.data["tool"]) == 101


def test_a_hint_costs_little_however_many_tools_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []
    real = difflib.SequenceMatcher

    class Counting(real):  # type: ignore[type-arg, misc, valid-type]
        def real_quick_ratio(self) -> float:
            compared.append((len(self.a), len(self.b)))
            return super().real_quick_ratio()

    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    snapshot = board(*crowd())
    assert len(snapshot.current.tools) == 5_000
    error = unknown("s07.get_the_thing_number_55x", snapshot)
    assert error.data is not None
    assert error.data["near"]
    unknown("s07.get_the_thing_number_" * 100_000, snapshot)
    unknown("thing", snapshot)
    assert len(compared) <= 3 * 60
    assert max(size for sizes in compared for size in sizes) <= 100


def crowd() -> Iterator[Any]:
    for which in range(50):
        yield offer(f"s{which:02}", [f"get_the_thing_number_{number}" for number in range(100)])


def test_destructive_tool_is_never_suggested() -> None:
    catalog = board(
        offer(
            "disk",
            [
                definition("wipe_disk", annotations={"destructiveHint": True}),
                definition("wipe_dish", annotations={"readOnlyHint": True}),
            ],
        )
    )
    # Nearer to the one that may be suggested; as near as to both; nearer to the other.
    assert unknown("disk.wipe_dsh", catalog).data["near"] == ["disk.wipe_dish"]  # type: ignore[index]
    for typo in ("disk.wipe_dsk", "disk.wipe_disks"):
        assert unknown(typo, catalog).data["near"] == []  # type: ignore[index]
