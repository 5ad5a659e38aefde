"""Our schemas: valid themselves, closed where they must be, and complete without a network."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import jsonschema_rs
import pytest

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
def test_a_schema_is_one_and_can_be_kept(name: Any) -> None:
    schema = manifest_schema(name)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema
    schema["properties"] = {"changed": True}
    assert manifest_schema(name) != schema
    assert schemas.validator(name).is_valid(LAWFUL[name])


def test_all_schemas_together_need_nobody_else() -> None:
    for name in (*MANIFEST_NAMES, "secret", "whole-driver"):
        validator = schemas.validator(name)
        assert validator.is_valid({}) in (True, False)
    with pytest.raises(ValueError, match="may not refer"):
        schemas.no_retrieval("https://elsewhere.example/")


def test_the_two_halves_of_a_driver_are_the_whole() -> None:
    for change in ({}, {"transport": "ws"}, {"id": "X"}, {"kind": "http"}, {"server": 1}):
        values = driver_values(**change)
        halves = schemas.validator("driver").is_valid(values) and (
            values["kind"] != "mcp" or schemas.validator("mcp").is_valid(values)
        )
        assert schemas.validator("whole-driver").is_valid(values) is halves


def test_patterns_say_the_same_in_python_and_in_the_validator() -> None:
    """Another validator, and so an editor, agrees about what is lawful."""
    for name, values in LAWFUL.items():
        if name in ("tool",):
            continue  # it refers to the schema of inputs by its address
        jsonschema.Draft202012Validator(manifest_schema(name)).validate(values)  # type: ignore[arg-type]
