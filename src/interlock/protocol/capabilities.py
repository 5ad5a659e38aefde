"""Capability annotations of MCP-AX: what a tool says about its speed, its effects and its cost.

Ten values (section 9.1 of the draft). What a tool does not say is taken from MCP's hints, and then
from defaults that err on the safe side. Pure: values in, values out.
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
"""From the quickest to the slowest."""
CONSISTENCIES: Final = ("strong", "eventual", "best_effort")
AUTH_SCOPES: Final = ("read", "write", "admin")
COST_CLASSES: Final = ("free", "metered", "expensive")
AVAILABILITIES: Final = ("always", "scheduled", "best_effort", "degraded")
DEGRADED: Final = "degraded"

DERIVED_KEY: Final = "x-mcpax-derived"
"""Not in the draft. Beside a capability: the names of those of its values that nobody declared, or
`true` for all of them. A node says so of what it derived, so that its parent sets no deadline by a
latency class that is only a guess."""

_TIMEOUTS: Final[dict[str, float | None]] = {
    "realtime": 0.5,
    "fast": 5.0,
    "standard": 30.0,
    "slow": 120.0,
    "batch": None,
}
_RANK: Final = {name: rank for rank, name in enumerate(LATENCY_CLASSES)}
_COST_UNITS: Final = {"free": 0, "metered": 1, "expensive": 10}
_LONGEST_VERSION: Final = 255
_SEMVER: Final = re.compile(
    r"(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*)){2}"
    r"(?:-(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
    r"(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


class Capability(msgspec.Struct, frozen=True, gc=False):
    """The ten values, as the draft orders them. The defaults are for a tool that says nothing."""

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
        """What one call takes from a budget."""
        return _COST_UNITS[self.cost_class]

    def encode(self) -> bytes:
        return encode_value(self)


DEFAULT_CAPABILITY: Final = Capability()
CAPABILITY_FIELDS: Final = frozenset(Capability.__struct_fields__)


class Advice(msgspec.Struct, frozen=True, gc=False):
    """What an agent should heed that calls a tool."""

    stale_reads: bool
    """Calls of tools in one subtree, made at the same time, may see what is no longer so."""
    read_before_retry: bool
    """Look at the state before a call is made again whose first attempt failed."""


def _one_of(choices: tuple[str, ...]) -> tuple[Callable[[Any], bool], str]:
    return lambda value: isinstance(value, str) and value in choices, f"one of {', '.join(choices)}"


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def is_semver(value: Any) -> bool:
    """Whether this is a version by Semantic Versioning 2.0.0."""
    return (
        isinstance(value, str)
        and len(value) <= _LONGEST_VERSION
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
    """The values of an annotation that are lawful, and what is wrong with the others, by name.

    Names that the draft does not know are nobody's business here.
    """
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, (lawful, wanted) in _RULES.items():
        raw = members.get(name)
        if raw is None:
            continue
        try:
            value = decode_value(raw)
        except ProtocolError:
            value = None
        if lawful(value):
            values[name] = value
        else:
            problems[name] = f"`{name}` must be {wanted}."
    return values, problems


def read_capability(
    raw: bytes | Raw, fallback: Capability = DEFAULT_CAPABILITY
) -> tuple[Capability, list[str]]:
    """An annotation, and what is wrong with it. What is missing or wrong is as in `fallback`."""
    try:
        members = decode_members(raw)
    except ProtocolError:
        return fallback, ["The capability annotation is not an object."]
    values, problems = read_values(members)
    return with_defaults(values, fallback), list(problems.values())


def with_defaults(values: Mapping[str, Any], fallback: Capability) -> Capability:
    """Lawful values, and the missing ones from `fallback`."""
    return msgspec.structs.replace(fallback, **values) if values else fallback


def derive_capability(
    *,
    read_only: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    transport: str = NATIVE,
) -> Capability:
    """The capability of a tool that declares none, by MCP's hints. None: the hint is not there.

    As MCP says it, the other two hints mean something only for tools that change something. What
    changes nothing has nothing to undo, and may be done twice.
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
    """How many seconds a call of this class may take. None: that is for the caller to say."""
    return _TIMEOUTS[latency_class]


def slower_class(one: str, other: str) -> str:
    """The slower of two latency classes."""
    return one if _RANK[one] >= _RANK[other] else other


def latency_class_for(seconds: float) -> str:
    """The quickest class in which a call of this length is in time."""
    for name in LATENCY_CLASSES:
        limit = _TIMEOUTS[name]
        if limit is None or seconds <= limit:
            return name
    return LATENCY_CLASSES[-1]


def advice_for(capability: Capability) -> Advice:
    """What its consistency means for whoever calls it."""
    weak = capability.consistency != "strong"
    return Advice(stale_reads=weak, read_before_retry=weak)
