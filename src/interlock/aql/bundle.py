"""A discovery bundle: the tools that a server lists, and the operations derived from them.

Bundles can be reviewed, stored and compared. A bundle is derived from the server's list only: no
tool is called to find out what it does. Every inferred value names its source.
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
"""The sources of a value."""
_ORIGINS: Final = {
    "override": OVERRIDDEN,
    "effects": OVERRIDDEN,
    "annotations": STATED,
    "builtin": STATED,
}
_ADDED_PREFIX: Final = "x-mcpax-"
"""The prefix of members that the node adds to a tool's `_meta`."""


def export(offering: Offering, operation_catalog: OperationCatalog) -> dict[str, Any]:
    """Return the bundle of one upstream as JSON values."""
    operations = []
    warnings = []
    for tool in offering.tools:
        operation = operation_catalog.for_tool(tool)
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
        {"code": "SET_ASIDE", "tool": tool.name, "message": tool.reason}
        for tool in offering.rejected
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
    """Return a tool's definition as its server lists it."""
    members = decode_members(b"{" + tool.listed[1:])
    for name, original in (tool.upstream_members or {}).items():
        if original:
            members[name] = Raw(original)
        else:
            members.pop(name, None)
    definition: dict[str, Any] = {"name": tool.upstream_name}
    for name, raw in members.items():
        value = decode_value(raw)
        if (
            name == "_meta"
            and isinstance(value, dict)
            and "_meta" not in (tool.upstream_members or {})
        ):
            value = {
                key: member for key, member in value.items() if not key.startswith(_ADDED_PREFIX)
            }
            if not value:
                continue
        definition[name] = value
    return definition


def _operation(operation: Operation) -> dict[str, Any]:
    signature = operation.signature
    origins = operation.origins
    reasons = []
    if operation.needs_review:
        reason = origins.get("category_reason", "")
        reasons.append(
            f"The category {operation.category.value} is uncertain{_reason_suffix(reason)}."
        )
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
        "params": [_parameter(parameter) for parameter in signature.parameters],
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
                "param_names": STATED if signature.is_unchanged else NORMALIZED,
                "returns": STATED,
            },
        },
    }


def _reason_suffix(reason: str) -> str:
    return f": {reason.rstrip('.')}" if reason else ""


def _origin(source: str, default: str) -> str:
    return _ORIGINS.get(source, default)


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "original_name": parameter.upstream_name,
        "type": parameter.type,
        "required": parameter.required,
        "description": parameter.description,
        "inside_input": parameter.in_input,
        "source_path": f"/inputSchema/properties/{escape_step(parameter.upstream_name)}",
        "inference_source": STATED if parameter.name == parameter.upstream_name else NORMALIZED,
    }


def _returns(tool: Tool) -> str:
    schema = decode_members(b"{" + tool.listed[1:]).get("outputSchema")
    value = None if schema is None else decode_value(schema)
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else "object"


def read_bundle(
    bundle: Mapping[str, Any], server: ServerConfig | None = None, config: AqlConfig | None = None
) -> OperationCatalog:
    """Return the operations of a bundle, as if its server listed the captured tools now.

    Raises:
        ValueError: The bundle is invalid.
    """
    try:
        source, tools = bundle["source"], bundle["raw_capture"]["tools"]
        key, segment = str(source["server"]), str(source["segment"])
        root = str(source["prefix"]).removesuffix(segment).rstrip(".") or None
        encoded_tools = [encode_value(tool) for tool in tools]
    except (KeyError, TypeError) as exc:
        raise ValueError(f"Invalid discovery bundle: {exc} is missing or invalid.") from None
    settings = server or ServerConfig(command="captured", segment=segment)
    if settings.segment != segment:
        settings = msgspec.structs.replace(settings, segment=segment)
    offering = read_offering(key, settings, encoded_tools, root_segment=root)
    snapshot = Snapshot(1, [offering], page_size=0, server_info=b"{}", key=b"\0" * 32)
    return OperationCatalogBuilder(config or AqlConfig()).build(snapshot)
