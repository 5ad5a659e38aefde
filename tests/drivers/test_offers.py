"""Offered prompts and resources of a server, and allowed URIs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.drivers.offers import META_SKILL, DeclaredUris, declared_prompts, declared_resources
from interlock.errors import InterlockError
from interlock.manifests.model import DeclaredPrompt, DeclaredResource
from tests.drivers.driver_parts import manifest

FILES = DeclaredResource("file:///{path}", "ref_kind", "Files.", "mcp_filesystem")


def list_raw(*entries: Any) -> list[Raw]:
    return [Raw(json.dumps(entry).encode()) for entry in entries]


def plain(entries: list[bytes]) -> list[Any]:
    return [json.loads(entry) for entry in entries]


def test_only_declared_prompts_are_offered() -> None:
    driver = manifest(
        prompts=(
            DeclaredPrompt("a", "raw"),
            DeclaredPrompt("b", "skill_block", "Better.", "./SKILL.md"),
            DeclaredPrompt("c", "raw"),
        )
    )
    kept, missing = declared_prompts(
        driver,
        list_raw(
            {"name": "a", "description": "A."},
            {"name": "b", "description": "B.", "_meta": {"x": 1}},
            {"name": "d"},
            {"name": "a", "description": "again"},
            5,
        ),
    )
    assert plain(kept) == [
        {"name": "a", "description": "A."},
        {"name": "b", "description": "Better.", "_meta": {"x": 1, META_SKILL: "./SKILL.md"}},
    ]
    assert missing == ["Its server has no prompt 'c'."]


@pytest.mark.spec("DR-32.resources-2")
def test_reference_kind_has_own_template() -> None:
    driver = manifest(resources=(FILES, DeclaredResource("gone://{x}", "raw")))
    kept, templates, missing = declared_resources(
        driver,
        list_raw({"uri": "file:///a/b", "name": "b"}, {"uri": "memo://x", "name": "x"}),
        list_raw({"uriTemplate": "file:///{path}", "name": "files"}, {"uriTemplate": "memo://{d}"}),
    )
    assert plain(kept) == [{"uri": "file:///a/b", "name": "b"}]
    assert plain(templates) == [
        {"uriTemplate": "file:///{path}", "name": "files"},
        {
            "uriTemplate": "mcp_filesystem:file:///{+path}",
            "name": "mcp_filesystem",
            "description": "Files.",
        },
    ]
    assert missing == ["Its server lists no resource of 'gone://{x}'."]


@pytest.mark.parametrize(
    ("uri", "own"),
    [
        ("file:///work/a", "file:///work/a"),
        ("file:///work/deep/er", "file:///work/deep/er"),
        ("mcp_filesystem:file:///work/a", "file:///work/a"),
        ("file:///{path}", "file:///{path}"),
    ],
)
def test_declared_uris_map_to_server_uris(uri: str, own: str) -> None:
    uris = DeclaredUris(manifest(resources=(FILES,)), None, os.path.realpath)
    assert uris.server_uri(uri) == own


@pytest.mark.spec("DR-32.security-3")
def test_undeclared_or_escaping_uri_is_rejected(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "way-out").symlink_to(tmp_path)
    uris = DeclaredUris(manifest(resources=(FILES,)), (str(inside),), os.path.realpath)
    assert uris.server_uri(f"file://{inside}/a") == f"file://{inside}/a"
    for uri, code in (
        ("memo://today", "unknown_resource"),
        ("other_kind:file:///a", "unknown_resource"),
        ("mcp_filesystem:memo://today", "unknown_resource"),
        (f"file://{tmp_path}/a", "policy_violation"),
        (f"file://{inside}/../a", "policy_violation"),
        (f"file://{inside}/way-out/a", "policy_violation"),
    ):
        with pytest.raises(InterlockError) as error:
            uris.server_uri(uri)
        assert error.value.failure.name == code, uri
