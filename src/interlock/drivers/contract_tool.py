"""The tool definition of a contract, and its approval requirement and effect level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from interlock.core.catalog.effects import EffectLevel
from interlock.manifests.model import ToolContract
from interlock.protocol.capabilities import latency_class_for
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcpax import CAPABILITY

DEPRECATION: Final = "deprecation"
"""Key in `_meta` of a tool whose major version is deprecated."""
CONFIRM: Final = "confirm"
_IRREVERSIBLE: Final = 3
_COST: Final = {"trivial": "free", "metered": "metered", "expensive": "expensive"}


def definition(
    contract: ToolContract,
    *,
    name: str,
    deprecation: Mapping[str, Any] | None = None,
    level: EffectLevel = EffectLevel.READ_ONLY,
) -> bytes:
    """Return the MCP tool definition of a contract, as an upstream would list it.

    Args:
        level: the effect that the serving tools declare, at least.
    """
    level = max(level, effect_level(contract))
    mutable = level is not EffectLevel.READ_ONLY
    irreversible = level is EffectLevel.IRREVERSIBLE
    idempotent = contract.idempotent or not mutable
    meta: dict[str, Any] = {
        CAPABILITY: {
            "latency_class": latency_class_for(contract.timeout_ms / 1000),
            "mutable": mutable,
            "reversible": not irreversible,
            "idempotent": idempotent,
            "cost_class": _COST[contract.cost_class],
            "schema_version": contract.version,
        }
    }
    if deprecation:
        meta[DEPRECATION] = dict(deprecation)
    tool: dict[str, Any] = {
        "name": name,
        "title": contract.name,
        "description": contract.description,
        # Clients reject a whole tool list if one input schema is not of type object.
        "inputSchema": {**contract.inputs, "type": "object"},
    }
    if contract.outputs.get("type") == "object":
        tool["outputSchema"] = contract.outputs
    tool["annotations"] = {
        "readOnlyHint": not mutable,
        "destructiveHint": irreversible,
        "idempotentHint": idempotent,
    }
    tool["_meta"] = meta
    return encode_value(tool)


def effect_level(contract: ToolContract) -> EffectLevel:
    """Return the effect level that the contract declares. Risk level 3 means irreversible, even if
    the contract lists nothing that it changes."""
    if contract.risk_level >= _IRREVERSIBLE:
        return EffectLevel.IRREVERSIBLE
    return EffectLevel.MUTATING if contract.mutates else EffectLevel.READ_ONLY


def approval_floor(contract: ToolContract, level: EffectLevel = EffectLevel.READ_ONLY) -> str:
    """Return the minimum approval of a call, whatever a driver declares: `confirm`, or empty for
    none.

    A policy that the contract refers to is unknown here and counts as the strictest. If the serving
    tool has a higher effect than the contract, approval is required: the contract's author did not
    know of the effect and cannot have waived the approval.

    Args:
        level: the effect that the serving tools declare, at least.
    """
    if level > effect_level(contract):
        return CONFIRM
    if contract.approval == "always" or contract.approval.startswith("policy:"):
        return CONFIRM
    return CONFIRM if contract.approval == "on-mutate" and contract.mutates else ""
