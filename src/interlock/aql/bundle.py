"""A discovery bundle: what a server was found to offer, and what operations were made of it.

For whoever wants to look at it, keep it, or compare it with a later one. It is made from the list
that the server gave, word by word, and from nothing else: no tool is ever called to find out what
it does. Everything that was inferred says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.aql.config import AqlConfig
from interlock.aql.operations import Operation, OperationCatalog, OperationCatalogBuilder, Parameter
from interlock.core.catalog.offering import Offering, Tool, read_offering
from interlock.core.catalog.snapshot import Snapshot
from interlock.core.config import ServerConfig
from interlock.protocol.aql_terms import SPEC_VERSION
from interlock.protocol.json_pointer import escape_step
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_value

FORMAT: Final = "1"
STATED, NORMALIZED, CLASSIFIED, OVERRIDDEN = (
    "direct_source_metadata",
    "deterministic_normalization",
    "heuristic_classification",
    "manual_override",
)
"""Where a field may come from."""
_ORIGINS: Final = {
    "override": OVERRIDDEN,
    "effects": OVERRIDDEN,
    "annotations": STATED,
    "native": STATED,
}
_ADDED: Final = "x-mcpax-"
"""What the node adds to a tool's `_meta` begins so."""


def export(offering: Offering, operation_catalog: OperationCatalog) -> dict[str, Any]:
    """The bundle of one upstream: JSON values only."""
    operations = []
    warnings = []
    for tool in offering.tools:
        operation = operation_catalog.of(tool)
        exported = _operation(operation)
        operations.append(exported)
        if operation.needs_review:
            warnings.append(
                {
                    "code": "NEEDS_REVIEW",
                    "operation": operation.name,
                    "message": " ".join(exported["review_reasons"]),
                }
            )
    warnings += [
        {"code": "SET_ASIDE", "tool": one.name, "message": one.reason} for one in offering.rejected
    ]
    return {
        "bundle_version": FORMAT,
        "spec_version": SPEC_VERSION,
        "source": {
            "type": "mcp_server",
            "server": offering.upstream,
            "segment": offering.segment,
            "prefix": offering.prefix,
            "method": "tools/list",
        },
        "raw_capture": {"tools": [verbatim(tool) for tool in offering.tools]},
        "normalized_bundle": {"operations": operations},
        "warnings": warnings,
    }


def verbatim(tool: Tool) -> dict[str, Any]:
    """A tool's definition as its server lists it."""
    members = decode_members(b"{" + tool.listed[1:])
    for name, own in (tool.upstream_members or {}).items():
        if own:
            members[name] = Raw(own)
        else:
            members.pop(name, None)
    found: dict[str, Any] = {"name": tool.upstream_name}
    for name, raw in members.items():
        value = decode_value(raw)
        if (
            name == "_meta"
            and isinstance(value, dict)
            and "_meta" not in (tool.upstream_members or {})
        ):
            value = {key: each for key, each in value.items() if not key.startswith(_ADDED)}
            if not value:
                continue
        found[name] = value
    return found


def _operation(operation: Operation) -> dict[str, Any]:
    signature = operation.signature
    origins = operation.origins
    reasons = []
    if operation.needs_review:
        reason = origins.get("category_reason", "")
        reasons.append(f"The category {operation.category.value} is a guess{_because(reason)}.")
    return {
        "source_tool_name": operation.tool.upstream_name,
        "operation_name": operation.name,
        "endpoint": operation.category.value,
        "endpoint_confidence": operation.confidence,
        "danger_level": operation.danger.label,
        "danger_reasons": list(operation.reasons),
        "needs_review": operation.needs_review,
        "review_reasons": reasons,
        "description": operation.description,
        "params": [_parameter(one) for one in signature.parameters],
        "maps_to": {"method": "tools/call", "name": operation.tool.upstream_name},
        "returns": _returns(operation.tool),
        "provenance": {
            "canonical": operation.canonical,
            "effect": operation.tool.effect_name,
            "inference_sources": {
                "operation_name": _origin(origins.get("name", ""), NORMALIZED),
                "endpoint": _origin(origins.get("category", ""), CLASSIFIED),
                "danger_level": _origin(origins.get("danger", ""), CLASSIFIED),
                "description": STATED if operation.tool.description else NORMALIZED,
                "params": STATED,
                "param_names": STATED if signature.same else NORMALIZED,
                "returns": STATED,
            },
        },
    }


def _because(reason: str) -> str:
    return f": {reason.rstrip('.')}" if reason else ""


def _origin(word: str, otherwise: str) -> str:
    return _ORIGINS.get(word, otherwise)


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name,
        "original_name": one.own,
        "type": one.type,
        "required": one.required,
        "description": one.description,
        "inside_input": one.inside,
        "source_path": f"/inputSchema/properties/{escape_step(one.own)}",
        "inference_source": STATED if one.name == one.own else NORMALIZED,
    }


def _returns(tool: Tool) -> str:
    schema = decode_members(b"{" + tool.listed[1:]).get("outputSchema")
    value = None if schema is None else decode_value(schema)
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else "object"


def read(
    bundle: Mapping[str, Any], server: ServerConfig | None = None, config: AqlConfig | None = None
) -> OperationCatalog:
    """The operations that are made of a bundle's capture, as if its server listed it now.

    Raises ValueError for what is no bundle.
    """
    try:
        source, tools = bundle["source"], bundle["raw_capture"]["tools"]
        key, segment = str(source["server"]), str(source["segment"])
        root = str(source["prefix"]).removesuffix(segment).rstrip(".") or None
        raw = [encode_value(tool) for tool in tools]
    except (KeyError, TypeError) as exc:
        raise ValueError(f"This is no discovery bundle: {exc} is missing or wrong.") from None
    settings = server or ServerConfig(command="captured", segment=segment)
    if settings.segment != segment:
        settings = msgspec.structs.replace(settings, segment=segment)
    offering = read_offering(key, settings, raw, root_segment=root)
    snapshot = Snapshot(1, [offering], page_size=0, server_info=b"{}", key=b"\0" * 32)
    return OperationCatalogBuilder(config or AqlConfig()).at(snapshot)
