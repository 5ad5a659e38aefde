"""Tests of versions: the version that a change needs, and compatible versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.contracts.diff.changes import (
    ChangeReason,
    SchemaChange,
    breaking,
    format_value,
    prefix_paths,
    truncate_value,
)
from interlock.contracts.diff.compatibility import (
    Bump,
    Compatibility,
    check_compatibility,
    next_version,
    read_version,
    required_bump,
)
from interlock.contracts.diff.tools import diff_tools
from interlock.errors import INVALID_ARGUMENTS, InterlockError

TOOL = {"name": "t", "description": "d", "inputSchema": {"type": "object", "properties": {
    "a": {"type": "string"}}}}  # fmt: skip


def with_schema(**more: object) -> dict[str, object]:
    return {**TOOL, "inputSchema": {**TOOL["inputSchema"], **more}}  # type: ignore[dict-item]


@pytest.mark.spec("ST-4.5.1-1")
@pytest.mark.parametrize(
    ("after", "raised", "version"),
    [
        (with_schema(required=["a"]), Bump.MAJOR, "2.0.0"),
        (
            with_schema(properties={"a": {"type": "string"}, "b": {"type": "integer"}}),
            Bump.MINOR,
            "1.5.0",
        ),
        ({**TOOL, "description": "better said"}, Bump.PATCH, "1.4.3"),
        (TOOL, Bump.PATCH, "1.4.3"),
        ({**TOOL, "annotations": {"destructiveHint": True}}, Bump.MAJOR, "2.0.0"),
    ],
    ids=["incompatible", "addition", "documentation", "implementation", "meaning"],
)
def test_change_determines_version(after: dict[str, object], raised: Bump, version: str) -> None:
    changes = diff_tools(TOOL, after)
    assert required_bump(changes) is raised
    assert next_version("1.4.2", changes) == version


@pytest.mark.spec("ST-4.5.2-1")
@pytest.mark.parametrize(
    ("client", "server", "expected"),
    [
        ("2.1.0", "2.3.5", Compatibility.FULL),
        ("2.3.9", "2.3.5", Compatibility.FULL),
        ("2.4.0", "2.3.5", Compatibility.DEGRADED),
        ("1.9.0", "2.0.0", Compatibility.INCOMPATIBLE),
        ("3.0.0", "2.9.9", Compatibility.INCOMPATIBLE),
    ],
)
def test_checks_compatibility_of_versions(
    client: str, server: str, expected: Compatibility
) -> None:
    assert check_compatibility(client, server) is expected


@pytest.mark.spec("ST-4.5.2-1")
@given(*[st.tuples(*[st.integers(0, 20)] * 3)] * 2)
def test_compatibility_follows_major_and_minor(
    client: tuple[int, int, int], server: tuple[int, int, int]
) -> None:
    found = check_compatibility("{}.{}.{}".format(*client), "{}.{}.{}".format(*server))
    assert (found is Compatibility.INCOMPATIBLE) == (client[0] != server[0])
    if client[0] == server[0]:
        assert (found is Compatibility.FULL) == (client[1] <= server[1])


@pytest.mark.parametrize("text", ["1", "1.2", "v1.2.3", "", "1.2.3.4", "01.2.3", "x"])
def test_rejects_invalid_versions(text: str) -> None:
    with pytest.raises(InterlockError, match=r"major\.minor\.patch") as raised:
        read_version(text)
    assert raised.value.failure is INVALID_ARGUMENTS


def test_prefix_paths_adds_location() -> None:
    change = SchemaChange(ChangeReason.FIELD_REMOVED, "/properties/a", True, "It is gone.")
    moved = prefix_paths("/inputSchema", [change])
    assert moved[0].path == "/inputSchema/properties/a"
    assert breaking(moved) == moved


def test_truncates_large_values() -> None:
    assert truncate_value({"a": 1}) == {"a": 1}
    assert len(truncate_value(["x" * 1000])) == 401
    assert format_value("é" * 100).endswith("…")
