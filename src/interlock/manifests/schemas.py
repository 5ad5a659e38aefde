"""Our own JSON Schemas of manifests, ready to validate with and to be handed out.

They are in this program; nothing is ever fetched. The schema of inputs and outputs is known under
both addresses that published manifests use for it.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Final, Literal, get_args

import jsonschema_rs

from interlock.manifests.schema_contract import (
    IO,
    IO_ADDRESSES,
    REF,
    REF_ADDRESS,
    SECRET,
    SECRETS,
    TOOL,
)
from interlock.manifests.schema_driver import DRIVER, MCP
from interlock.manifests.schema_parts import DIALECT, Schema

ManifestName = Literal["driver", "mcp", "tool", "io", "secrets"]
MANIFEST_NAMES: Final[tuple[ManifestName, ...]] = get_args(ManifestName)

_SCHEMAS: Final[dict[str, Schema]] = {
    "driver": DRIVER,
    "mcp": MCP,
    "tool": TOOL,
    "io": IO,
    "secrets": SECRETS,
    # One secret alone, as define_secret takes it.
    "secret": {"$schema": DIALECT, "$id": "urn:interlock:schema:aip-19:secret", **SECRET},
    # Both parts of a driver in one go, to find out quickly that there is nothing to explain.
    "whole-driver": {
        "$schema": DIALECT,
        "$id": "urn:interlock:schema:aip-32:whole-driver",
        "allOf": [
            {"$ref": DRIVER["$id"]},
            {"if": {"properties": {"kind": {"const": "mcp"}}}, "then": {"$ref": MCP["$id"]}},
        ],
    },
}


def manifest_schema(name: ManifestName) -> dict[str, Any]:
    """A schema of ours, to keep: what an editor or another program validates with."""
    return copy.deepcopy(_SCHEMAS[name])


def schema_of(name: str) -> Schema:
    """A schema of ours, to look into."""
    return _SCHEMAS[name]


def at_address(address: str) -> Schema | None:
    """The schema that is known under an address, with or without a fragment."""
    return _addresses().get(address.partition("#")[0])


@cache
def _addresses() -> dict[str, Schema]:
    known: dict[str, Schema] = {schema["$id"]: schema for schema in _SCHEMAS.values()}
    for address in IO_ADDRESSES:
        # Under an address, a schema must not say that it lives at another one.
        known[address] = {**IO, "$id": address}
    known[REF_ADDRESS] = REF
    return known


@cache
def registry() -> jsonschema_rs.Registry:
    """All of them, by address. Whoever validates with it fetches nothing."""
    return jsonschema_rs.Registry(
        list(_addresses().items()), draft=jsonschema_rs.Draft202012, retriever=no_retrieval
    )


@cache
def validator(name: str) -> jsonschema_rs.Validator:
    """What checks values against one of our schemas."""
    return jsonschema_rs.Draft202012Validator(
        _SCHEMAS[name], registry=registry(), retriever=no_retrieval, mask="the value"
    )


def no_retrieval(address: str) -> Any:
    """A schema from a stranger must not make anybody fetch anything."""
    raise ValueError(f"schemas may not refer to {address}")
