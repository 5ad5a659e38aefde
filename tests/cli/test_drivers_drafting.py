"""Drafts of contracts: ids, schemas and effects from the tools of a server."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from interlock.drivers.commands.new import (
    argument_mapping,
    contract_id,
    convert_schema,
    draft_contract,
    draft_contracts,
    driver_id,
    manifest_text,
    one_line,
    paragraphs,
    prefix_of,
)

pytestmark = pytest.mark.feature("drivers")


@pytest.mark.parametrize(
    ("kind", "ref", "id"),
    [
        ("npm", "@modelcontextprotocol/server-filesystem", "filesystem-mcp"),
        ("npm", "@example/server-sequential-thinking@2026.1.1", "sequential-thinking-mcp"),
        ("npm", "@playwright/mcp", "playwright-mcp"),
        ("npm", "@upstash/context7-mcp", "context7-mcp"),
        ("npm", "time-mcp@1.0.0", "time-mcp"),
        ("npm", "mcp", "server-mcp"),
        ("docker", "ghcr.io/github/github-mcp-server:latest", "github-mcp"),
        ("docker", "mcp/postgres@sha256:00", "postgres-mcp"),
        ("docker", "example/mcp", "example-mcp"),
        ("binary", "/usr/local/bin/mcp-server-git", "git-mcp"),
        ("binary", "tools/weather_server.py", "weather-mcp"),
        ("remote", "https://mcp.context7.com/mcp", "context7-mcp"),
        ("remote", "https://api.acme.co.uk/v1", "acme-mcp"),
        ("remote", "http://127.0.0.1:9000/mcp", "local-mcp"),
        ("remote", "http://localhost:9000/mcp", "local-mcp"),
    ],
)  # fmt: skip
def test_driver_id_derives_from_server(kind: str, ref: str, id: str) -> None:
    assert driver_id(kind, ref) == id


@pytest.mark.parametrize(
    ("tool", "prefix", "id"),
    [
        ("read_file", "filesystem", "filesystem.read-file"),
        ("git_status", "git", "git.status"),
        ("getSum", "everything", "everything.get-sum"),
        ("listHTTPServers", "net", "net.list-http-servers"),
        ("resolve-library-id", "context7", "context7.resolve-library-id"),
        ("API-post-page", "notion", "notion.api-post-page"),
        ("größe", "x", "x.gr-e"),
        ("...", "x", "x.tool"),
        ("a" * 100, "x", "x." + "a" * 78),
    ],
)
def test_contract_id_derives_from_tool(tool: str, prefix: str, id: str) -> None:
    assert contract_id(tool, prefix) == id


def test_prefix_is_driver_id_without_suffix() -> None:
    assert prefix_of("filesystem-mcp") == "filesystem"
    assert prefix_of("filesystem") == "filesystem"


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def test_drafts_chosen_tools_with_unique_ids() -> None:
    listed = [tool("read_file"), tool("readFile"), tool("write_file")]
    everything = draft_contracts(listed, prefix="fs")
    assert [item.id for item in everything] == ["fs.read-file", "fs.read-file-2", "fs.write-file"]
    chosen = draft_contracts(listed, prefix="fs", chosen={"read_file": "fs-read", "write_file": ""})
    assert [(item.tool, item.id) for item in chosen] == [
        ("read_file", "fs-read"),
        ("write_file", "fs.write-file"),
    ]


@pytest.mark.parametrize(
    ("hints", "reaches", "expected"),
    [
        ({"readOnlyHint": True}, False, (True, [], "auto", 0)),
        (None, False, (False, ["workspace:*"], "on-mutate", 2)),
        ({}, True, (False, ["network:*"], "on-mutate", 2)),
        ({"destructiveHint": False}, False, (False, ["workspace:*"], "on-mutate", 1)),
        ({"destructiveHint": True}, False, (False, ["workspace:*"], "always", 3)),
        ({"idempotentHint": True}, True, (True, ["network:*"], "on-mutate", 2)),
        ("nonsense", False, (False, ["workspace:*"], "on-mutate", 2)),
    ],
)  # fmt: skip
def test_effects_derive_from_annotations(
    hints: Any, reaches: bool, expected: tuple[Any, ...]
) -> None:
    fields = draft_contract(tool("t", annotations=hints), "x.t", has_network=reaches).fields
    assert expected == tuple(
        fields[name] for name in ("idempotent", "mutates", "approval", "risk_level")
    )


def test_schemas_are_converted_to_one_dialect() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "pair": {"type": "array", "items": [{"type": "string"}], "additionalItems": False},
            # A property may be called like a keyword.
            "items": {"type": "array", "items": {"type": "string"}},
            "dependencies": {"enum": [{"items": [1]}]},
        },
        "dependencies": {"pair": ["items"], "items": {"required": ["pair"]}},
    }
    draft = draft_contract(tool("t", inputSchema=schema, outputSchema={"type": "object"}), "x.t")
    assert draft.fields["inputs"] == {
        "type": "object",
        "properties": {
            "pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
            "items": {"type": "array", "items": {"type": "string"}},
            "dependencies": {"enum": [{"items": [1]}]},
        },
        "dependentRequired": {"pair": ["items"]},
        "dependentSchemas": {"items": {"required": ["pair"]}},
    }
    assert draft.fields["outputs"] == {"type": "object"}


def test_deeply_nested_schema_is_left_out() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"in": deep}}
    draft = draft_contract(tool("t", inputSchema=deep), "x.t")
    assert draft.fields["inputs"] == {"type": "object"}
    assert any("write one" in note for note in draft.notes)
    assert draft_contract(tool("t", outputSchema=deep), "x.t").fields["outputs"] == {
        "type": "object"
    }


def test_undescribed_tool_gets_placeholders_and_notes() -> None:
    draft = draft_contract(tool("do_it"), "x.do-it")
    assert draft.fields["name"] == "Do it"
    assert draft.fields["description"]
    assert draft.fields["outputs"] == {"type": "string"}
    assert len(draft.notes) == 3


def test_hostile_text_cannot_control_terminal_or_file() -> None:
    described = "One\x1b[2Jline.\r\n---\nname: other\n\u202e" + "x" * 5000
    draft = draft_contract(tool("t", description=described, title="A\x07B\nC"), "x.t")
    text = manifest_text(draft.fields, "Words.")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert len(draft.fields["description"]) <= 2000
    assert draft.fields["name"] == "A\ufffdB C"
    # Only the first and the last line of the front matter are three dashes.
    assert [line for line in text.split("\n") if line.rstrip() == "---"] == ["---", "---"]
    assert yaml.safe_load(text.split("\n---\n")[0][4:]) == draft.fields


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1), inner, max_size=4)
        ),
        max_leaves=20,
    )
)
def test_written_manifest_reads_back_unchanged(value: Any) -> None:
    from interlock.manifests.document import read_yaml

    text = manifest_text({"value": value}, "Words.")
    matter = text[: text.rindex("---\n")]
    assert read_yaml(matter, "x").value == {"value": value}


def test_text_is_truncated_at_limit() -> None:
    assert one_line("a  b\n\tc", 80) == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert paragraphs("a\n\n  b  \n", 80) == "a\n\n  b"
    assert len(paragraphs("x" * 50, 10)) == 10


@pytest.mark.parametrize(
    ("contract", "argument", "expected"),
    [
        ({"path": {}}, ({"path": {}}, ["path"]), {}),
        ({"sql": {}}, ({"query": {}}, ["query"]), {"sql": "query"}),
        ({"sql": {}, "limit": {}}, ({"query": {}, "limit": {}}, ["query"]), {"sql": "query"}),
        ({"a": {}, "b": {}}, ({"c": {}, "d": {}}, ["c", "d"]), {}),
        ({"a": {}}, ({"c": {}}, []), {}),
    ],
)
def test_maps_arguments_with_unambiguous_names(
    contract: dict[str, Any], argument: tuple[dict[str, Any], list[str]], expected: dict[str, str]
) -> None:
    properties, required = argument
    result = argument_mapping(
        {"type": "object", "properties": contract},
        {"type": "object", "properties": properties, "required": required},
    )
    assert result == expected


def test_boolean_schemas_stay_unchanged() -> None:
    assert convert_schema(True) is True
    assert convert_schema({"not": False, "anyOf": [True, {"items": [{}]}]}) == {
        "not": False,
        "anyOf": [True, {"prefixItems": [{}]}],
    }
