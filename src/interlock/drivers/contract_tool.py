"""A contract as the tool that callers see, and what it says about approval and effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from interlock.core.catalog.effects import EffectLevel
from interlock.manifests.model import ToolContract
from interlock.protocol.capabilities import latency_class_for
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcpax import CAPABILITY

DEPRECATION: Final = "deprecation"
"""In `_meta` of a tool whose major is on its way out."""
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
    """The MCP definition of a contract's tool, as an upstream would list it. `level`: what it does
    at least, by those who serve it."""
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
    shown: dict[str, Any] = {
        "name": name,
        "title": contract.name,
        "description": contract.description,
        # Clients refuse a whole list for one schema of arguments that is not of type object.
        "inputSchema": {**contract.inputs, "type": "object"},
    }
    if contract.outputs.get("type") == "object":
        shown["outputSchema"] = contract.outputs
    shown["annotations"] = {
        "readOnlyHint": not mutable,
        "destructiveHint": irreversible,
        "idempotentHint": idempotent,
    }
    shown["_meta"] = meta
    return encode_value(shown)


def effect_level(contract: ToolContract) -> EffectLevel:
    """What a call does to the world, by the contract.

    A risk that cannot be undone counts also where the contract names nothing that it changes.
    """
    if contract.risk_level >= _IRREVERSIBLE:
        return EffectLevel.IRREVERSIBLE
    return EffectLevel.MUTATING if contract.mutates else EffectLevel.READ_ONLY


def approval_floor(contract: ToolContract, level: EffectLevel = EffectLevel.READ_ONLY) -> str:
    """What a call has to wait for at least, whatever a driver says: `confirm`, or nothing.

    A policy that the contract refers to is not known here: it counts as the strictest. `level`:
    what a call does at least, by those who serve it. Whoever wrote the contract did not know of
    harm that is beyond it, and cannot have waived a human's look at it.
    """
    if level > effect_level(contract):
        return CONFIRM
    if contract.approval == "always" or contract.approval.startswith("policy:"):
        return CONFIRM
    return CONFIRM if contract.approval == "on-mutate" and contract.mutates else ""
