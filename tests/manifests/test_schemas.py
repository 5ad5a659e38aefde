"""The schemas of manifests: valid, complete, and without a network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import jsonschema_rs
import pytest
import yaml

from interlock.manifests import schemas
from interlock.manifests.schemas import MANIFEST_NAMES, manifest_schema
from tests.manifests.texts import driver_values, secret_values, tool_values

LAWFUL: dict[str, Any] = {
    "driver": driver_values(),
    "mcp": driver_values(),
    "tool": tool_values(),
    "io": {},
    "secrets": {"secrets": [secret_values()]},
}


@pytest.mark.parametrize("name", MANIFEST_NAMES)
def test_schema_is_valid_and_copied(name: Any) -> None:
    schema = manifest_schema(name)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema
    schema["properties"] = {"changed": True}
    assert manifest_schema(name) != schema
    assert schemas.validator(name).is_valid(LAWFUL[name])


@pytest.mark.spec("DR-32.meta-2")
def test_requirements_and_schemas_name_specifications() -> None:
    spec = Path(__file__).resolve().parents[2] / "spec" / "aip32.yaml"
    ids = [item["id"] for item in yaml.safe_load(spec.read_text(encoding="utf-8"))]
    sources = {re.fullmatch(r"DR-([0-9]+)\.[a-z]+-[0-9]+", id)[1] for id in ids}  # type: ignore[index]
    assert sources == {"14", "16", "19", "27", "30", "31", "32"}
    for topic in ("install", "auth", "security"):
        assert f"DR-30.{topic}-1" in ids
    # The schemas that check them say so as well.
    named = {manifest_schema(name)["$id"].split(":")[3] for name in MANIFEST_NAMES}
    assert named == {"aip-14", "aip-16", "aip-19", "aip-30", "aip-32"}


def test_schemas_need_no_network() -> None:
    for name in (*MANIFEST_NAMES, "secret", "whole-driver"):
        validator = schemas.validator(name)
        assert validator.is_valid({}) in (True, False)
    with pytest.raises(ValueError, match="cannot refer"):
        schemas.no_retrieval("https://elsewhere.example/")


def test_driver_schema_equals_both_parts() -> None:
    for change in ({}, {"transport": "ws"}, {"id": "X"}, {"kind": "http"}, {"server": 1}):
        values = driver_values(**change)
        halves = schemas.validator("driver").is_valid(values) and (
            values["kind"] != "mcp" or schemas.validator("mcp").is_valid(values)
        )
        assert schemas.validator("whole-driver").is_valid(values) is halves


def test_patterns_agree_in_python_and_json_schema() -> None:
    """Another validator, and so an editor, agrees about what is lawful."""
    for name, values in LAWFUL.items():
        if name in ("tool",):
            continue  # it refers to the schema of inputs by its address
        jsonschema.Draft202012Validator(manifest_schema(name)).validate(values)  # type: ignore[arg-type]
