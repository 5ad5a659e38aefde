"""Capability annotations of MCP-AX: latency, effects and cost of a tool.

Ten values (MCP-AX §9.1). Missing values are derived from the hints of MCP, and then from
conservative defaults. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_value
from interlock.protocol.mcpax import NATIVE, TRANSPORT_CLASSES

LATENCY_CLASSES: Final = ("realtime", "fast", "standard", "slow", "batch")
"""From the fastest to the slowest."""
CONSISTENCIES: Final = ("strong", "eventual", "best_effort")
AUTH_SCOPES: Final = ("read", "write", "admin")
COST_CLASSES: Final = ("free", "metered", "expensive")
AVAILABILITIES: Final = ("always", "scheduled", "best_effort", "degraded")
DEGRADED: Final = "degraded"

DERIVED_KEY: Final = "x-mcpax-derived"
"""Not in the draft. Next to a capability: the names of its derived values, or `true` for all of
them. A node marks derived values, so that its parent sets no deadline by a derived latency
class."""

_TIMEOUTS: Final[dict[str, float | None]] = {
    "realtime": 0.5,
    "fast": 5.0,
    "standard": 30.0,
    "slow": 120.0,
    "batch": None,
}
_RANK: Final = {name: rank for rank, name in enumerate(LATENCY_CLASSES)}
_COST_UNITS: Final = {"free": 0, "metered": 1, "expensive": 10}
_MAX_VERSION_LENGTH: Final = 255
_SEMVER: Final = re.compile(
    r"(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*)){2}"
    r"(?:-(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
    r"(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


class Capability(msgspec.Struct, frozen=True, gc=False):
    """The ten values, in the order of the draft. The defaults are for a tool without annotation."""

    latency_class: str = "standard"
    consistency: str = "best_effort"
    mutable: bool = True
    reversible: bool = False
    idempotent: bool = False
    transport: str = NATIVE
    auth_scope: str = "write"
    cost_class: str = "free"
    availability: str = "best_effort"
    schema_version: str = "0.0.0"

    @property
    def irreversible_mutable(self) -> bool:
        return self.mutable and not self.reversible

    @property
    def cost_units(self) -> int:
        """The cost of one call in a budget."""
        return _COST_UNITS[self.cost_class]

    def encode(self) -> bytes:
        return encode_value(self)


DEFAULT_CAPABILITY: Final = Capability()
CAPABILITY_FIELDS: Final = frozenset(Capability.__struct_fields__)


class Advice(msgspec.Struct, frozen=True, gc=False):
    """Advice for an agent that calls a tool."""

    stale_reads: bool
    """Concurrent calls of tools in one subtree may return outdated data."""
    read_before_retry: bool
    """Read the state before a failed call is retried."""


def _one_of(choices: tuple[str, ...]) -> tuple[Callable[[Any], bool], str]:
    return lambda value: isinstance(value, str) and value in choices, f"one of {', '.join(choices)}"


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def is_semver(value: Any) -> bool:
    """Return whether a value is a version by Semantic Versioning 2.0.0."""
    return (
        isinstance(value, str)
        and len(value) <= _MAX_VERSION_LENGTH
        and _SEMVER.fullmatch(value) is not None
    )


_RULES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "latency_class": _one_of(LATENCY_CLASSES),
    "consistency": _one_of(CONSISTENCIES),
    "mutable": (_is_bool, "true or false"),
    "reversible": (_is_bool, "true or false"),
    "idempotent": (_is_bool, "true or false"),
    "transport": _one_of(TRANSPORT_CLASSES),
    "auth_scope": _one_of(AUTH_SCOPES),
    "cost_class": _one_of(COST_CLASSES),
    "availability": _one_of(AVAILABILITIES),
    "schema_version": (is_semver, "a semantic version, such as 1.2.0"),
}


def read_values(members: Mapping[str, Raw]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the valid values of an annotation, and the problems of the others, by name.

    Names that the draft does not define are ignored.
    """
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, (is_valid, expected) in _RULES.items():
        raw = members.get(name)
        if raw is None:
            continue
        try:
            value = decode_value(raw)
        except ProtocolError:
            value = None
        if is_valid(value):
            values[name] = value
        else:
            problems[name] = f"`{name}` must be {expected}."
    return values, problems


def read_capability(
    raw: bytes | Raw, fallback: Capability = DEFAULT_CAPABILITY
) -> tuple[Capability, list[str]]:
    """Read an annotation. Return the capability and its problems. Missing and invalid values are
    those of `fallback`."""
    try:
        members = decode_members(raw)
    except ProtocolError:
        return fallback, ["The capability annotation is not an object."]
    values, problems = read_values(members)
    return with_defaults(values, fallback), list(problems.values())


def with_defaults(values: Mapping[str, Any], fallback: Capability) -> Capability:
    """Return a capability with these values, and the others from `fallback`."""
    return msgspec.structs.replace(fallback, **values) if values else fallback


def derive_capability(
    *,
    read_only: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    transport: str = NATIVE,
) -> Capability:
    """Derive the capability of a tool without annotation from the hints of MCP. None: no hint.

    As in MCP, the destructive and idempotent hints only apply to tools that change something. A
    read-only tool is reversible and idempotent.
    """
    mutable = not read_only
    return Capability(
        mutable=mutable,
        reversible=not mutable or destructive is False,
        idempotent=not mutable or bool(idempotent),
        transport=transport,
        auth_scope="write" if mutable else "read",
    )


def timeout_for(latency_class: str) -> float | None:
    """Return the timeout of a latency class in seconds. None: the caller decides."""
    return _TIMEOUTS[latency_class]


def slower_class(first: str, second: str) -> str:
    """Return the slower of two latency classes."""
    return first if _RANK[first] >= _RANK[second] else second


def latency_class_for(seconds: float) -> str:
    """Return the fastest latency class for a call of this duration."""
    for name in LATENCY_CLASSES:
        limit = _TIMEOUTS[name]
        if limit is None or seconds <= limit:
            return name
    return LATENCY_CLASSES[-1]


def advice_for(capability: Capability) -> Advice:
    """Return the advice for callers, by the consistency of a tool."""
    is_weak = capability.consistency != "strong"
    return Advice(stale_reads=is_weak, read_before_retry=is_weak)
