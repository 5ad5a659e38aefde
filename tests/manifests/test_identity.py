"""Which changes of a driver need a new major version."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.manifests.workspace import major_changes, successor_problems
from tests.manifests.texts import driver, entry

DOCKER = {"kind": "docker", "image": "a.example:5000/x/y:1", "port": 80}
REMOTE = {"kind": "remote", "url": "https://a.example/"}


def npm(package: str) -> dict[str, Any]:
    return {"server": {"kind": "npm", "package": package}}


@pytest.mark.spec("DR-32.identity-1", "DR-30.identity-2")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ({"protocol_version": "2025-03"}, {"protocol_version": "2025-06"}, "MCP version"),
        ({}, {"protocol_version": "2025-06"}, "MCP version"),
        (
            {"server": DOCKER, "transport": "http"},
            {"server": DOCKER, "transport": "sse"},
            "transport",
        ),
        (npm("@a/b@1.2.3"), npm("@a/b@2.0.0"), "server"),
        (npm("@a/b@^1"), npm("@a/b@^2"), "server"),
        (npm("@a/b"), npm("@a/c"), "server"),
        (npm("@a/b"), {"server": DOCKER}, "server"),
        ({"server": DOCKER}, {"server": {**DOCKER, "image": "a.example:5000/x/z:1"}}, "server"),
        (
            {"server": REMOTE, "transport": "sse"},
            {"server": {**REMOTE, "url": "https://b.example/"}, "transport": "sse"},
            "server",
        ),
        (
            {},
            {"implements": [entry(schema_narrowing={"drop_inputs": ["encoding"]})]},
            "narrowing of fs.read",
        ),
        (
            {"implements": [entry(schema_narrowing={"drop_outputs": ["a"]})]},
            {"implements": [entry(schema_narrowing={"drop_outputs": ["a", "b"]})]},
            "narrowing",
        ),
    ],
)
def test_reports_change_that_needs_new_major(
    old: dict[str, Any], new: dict[str, Any], message: str
) -> None:
    before = driver(version="1.0.0", **old)
    (change,) = major_changes(before, driver(version="1.1.0", **new))
    assert message in change
    (problem,) = successor_problems(before, driver(version="1.1.0", **new))
    assert "2.0.0" in problem.hint
    assert successor_problems(before, driver(version="2.0.0", **new)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {}),
        ({}, {"description": "Other words.", "tags": ["a"], "network": {"egress": ["a.example"]}}),
        (npm("@a/b@1.2.3"), npm("@a/b@1.9.0")),
        ({"server": DOCKER}, {"server": {**DOCKER, "image": "a.example:5000/x/y:2"}}),
        ({"protocol_version": "2025-03"}, {"protocol_version": "2025-03-26"}),
        ({}, {"implements": [entry(), entry("fs.write")]}),
        (
            {"implements": [entry(schema_narrowing={"drop_inputs": ["a", "b"]})]},
            {"implements": [entry(schema_narrowing={"drop_inputs": ["b", "a"]})]},
        ),
        ({"implements": [entry("./a/TOOL.md")]}, {"implements": [entry("a/TOOL.md")]}),
    ],
)
def test_accepts_compatible_change(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert major_changes(driver(**old), driver(version="1.0.1", **new)) == []


def test_does_not_compare_different_drivers() -> None:
    assert successor_problems(driver(), driver(id="other-mcp", server=DOCKER)) == []
