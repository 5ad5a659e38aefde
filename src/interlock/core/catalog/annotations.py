"""The MCP-AX metadata of a tool: read once, and completed for lists.

A declared capability is passed on unchanged, with three exceptions: its latency class may rise, its
availability may become `degraded`, and invalid values are replaced. Missing values are derived
from the tool's effect, once, by the node next to the tool, because callers must be able to judge
every tool. A server that is shown as itself is not changed. The metadata is for MCP-AX connections
and clients that support MCP-AX. Other clients only see the hints of MCP.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from interlock.core.catalog.definitions import Definition, value_of
from interlock.core.catalog.effects import (
    Annotations,
    Effect,
    EffectLevel,
    Unannotated,
    classify,
    merge_capability,
)
from interlock.core.config import ServerConfig
from interlock.errors import ProtocolError
from interlock.protocol.capabilities import (
    CAPABILITY_FIELDS,
    DEGRADED,
    DERIVED_KEY,
    Capability,
    derive_capability,
    read_values,
    slower_class,
    timeout_for,
    with_defaults,
)
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcpax import (
    CAPABILITY,
    HOPS,
    IRREVERSIBLE_MUTABLE,
    MAX_ROUTE,
    PREFIX,
    SAFETY,
)

SECONDS_PER_HOP: Final = 0.25
"""Added to the timeout per hop, so that the node next to the tool reports a timeout first."""

_IRREVERSIBLE_FLAG: Final = Raw(encode_value(IRREVERSIBLE_MUTABLE))
# The operator's `effects:` count as declared, though not by the tool.
_NAMES_NOT_FROM_EFFECT: Final = Raw(
    encode_value(sorted(CAPABILITY_FIELDS - {"mutable", "reversible", "idempotent", "auth_scope"}))
)
_ALL_DERIVED: Final = Raw(b"true")
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint")


class AnnotationTerms(NamedTuple):
    """Settings for all tools of one upstream."""

    server: ServerConfig
    transport: str
    min_latency_class: str
    """Tools are never shown with a faster class than this."""
    measured_classes: Mapping[str, str]
    """Measured latency classes, by the tools' own names."""
    is_degraded: bool
    is_local: bool = False
    """True for the node's own tools: there is no hop to them."""
    levels: Mapping[str, EffectLevel] | None = None
    """For contracts: the effect level by the tools' own names."""
    unannotated: Unannotated = "infer"
    """The classification of tools without conclusive annotations, unless the server has a
    setting."""
    has_boilerplate: bool = False
    """True if several tools have MCP's default hints written out, as some libraries do."""

    @property
    def is_transparent(self) -> bool:
        return self.server.expose == "transparent"

    def classify(
        self, definition: Definition, hints: Annotations | None, *, is_only_source: bool = False
    ) -> Effect:
        """Return the effect of a tool. `is_only_source`: only its server describes it."""
        name = definition.name
        if self.levels is not None and name in self.levels:
            level = self.levels[name]
            idempotent = hints is not None and bool(hints.idempotent_hint)
            return Effect(level, idempotent or level is EffectLevel.READ_ONLY, "contract")
        server = self.server
        return classify(
            name,
            hints,
            server.effects,
            trusted=server.trust_annotations,
            unannotated=server.unannotated or self.unannotated,
            description=definition.description or "",
            schema=_schema_of(definition),
            boilerplate=self.has_boilerplate and is_only_source,
        )

    def min_latency_class_of(self, name: str) -> str:
        """Return the minimum latency class of one tool."""
        measured = self.measured_classes.get(name)
        return (
            self.min_latency_class
            if measured is None
            else slower_class(self.min_latency_class, measured)
        )


class ToolFacts(NamedTuple):
    """The data about a tool that follow from its definition."""

    effect: Effect
    cost_units: int = 0
    latency_class: str | None = None
    """The class that is shown, if one was declared."""
    timeout: float | None = None
    problems: tuple[str, ...] = ()


def annotate(definition: Definition, members: dict[str, Raw], terms: AnnotationTerms) -> ToolFacts:
    """Read a tool's metadata, and write into `members` what clients see of it."""
    raw = members.get("_meta")
    if raw is None:
        return _annotate_derived(definition, members, None, terms)
    try:
        meta = decode_members(raw)
    except ProtocolError:
        # Clients reject such a definition.
        return _annotate_derived(definition, members, None, terms)
    if CAPABILITY not in meta:
        return _annotate_derived(definition, members, meta, terms)
    try:
        capability_members = decode_members(meta[CAPABILITY])
    except ProtocolError:
        problem = "The capability annotation is not an object."
        return _annotate_derived(definition, members, meta, terms, (problem,))
    if not capability_members:
        return _annotate_derived(definition, members, meta, terms)
    return _annotate_declared(definition, members, meta, capability_members, terms)


def shown_capability(members: Mapping[str, Raw], effect: Effect) -> Raw:
    """Return the capability of a tool as its definition has it, or as derived from its effect."""
    try:
        meta = decode_members(members["_meta"])
        decode_members(meta[CAPABILITY])
    except (KeyError, ProtocolError):
        return Raw(_derive(effect, "native").encode())
    return meta[CAPABILITY]


def without_ax(members: Mapping[str, Raw]) -> Raw | None:
    """Return the `_meta` of a definition without MCP-AX members. Empty: there are no others.
    None: the definition has no MCP-AX members."""
    raw = members.get("_meta")
    if raw is None or PREFIX.encode() not in bytes(raw):
        return None
    try:
        meta = decode_members(raw)
    except ProtocolError:
        return None
    others = {name: value for name, value in meta.items() if not name.startswith(PREFIX)}
    return Raw(encode_members(others)) if others else Raw(b"")


# -- tools without a capability


def _annotate_derived(
    definition: Definition,
    members: dict[str, Raw],
    meta: dict[str, Raw] | None,
    terms: AnnotationTerms,
    problems: tuple[str, ...] = (),
) -> ToolFacts:
    name, hints = definition.name, definition.annotations
    is_flagged = meta is not None and _is_flagged_below(meta)
    if is_flagged:
        hints = merge_capability(hints, {}, (), is_flagged_below=True)
    effect = terms.classify(definition, hints, is_only_source=not is_flagged)
    if not terms.is_transparent:
        min_latency_class = terms.min_latency_class_of(name)
        if meta is None:
            hops = 0 if terms.is_local else 1
            members["_meta"] = _plain_meta(
                _without_reason(effect), terms.transport, min_latency_class, terms.is_degraded, hops
            )
        else:
            hops = 0 if terms.is_local else _count_hops(meta) + 1
            is_irreversible = _add_derived_capability(
                meta, effect, terms.transport, min_latency_class, terms.is_degraded
            )
            members["_meta"] = _encode_meta(meta, hops, is_irreversible or is_flagged)
    return ToolFacts(effect, problems=problems)


def _add_derived_capability(
    meta: dict[str, Raw], effect: Effect, transport: str, min_latency_class: str, is_degraded: bool
) -> bool:
    """Add the capability that follows from an effect. Returns whether it is irreversible."""
    capability = _adjust(_derive(effect, transport), min_latency_class, is_degraded)
    meta[CAPABILITY] = Raw(capability.encode())
    meta[DERIVED_KEY] = _NAMES_NOT_FROM_EFFECT if effect.source == "config" else _ALL_DERIVED
    return capability.irreversible_mutable


@lru_cache(maxsize=1024)
def _plain_meta(
    effect: Effect, transport: str, min_latency_class: str, is_degraded: bool, hops: int
) -> Raw:
    """Return the complete `_meta` of a tool without metadata. Most tools share one of a few."""
    meta: dict[str, Raw] = {}
    is_irreversible = _add_derived_capability(
        meta, effect, transport, min_latency_class, is_degraded
    )
    return _encode_meta(meta, hops, is_irreversible)


# -- tools with a capability


def _annotate_declared(
    definition: Definition,
    members: dict[str, Raw],
    meta: dict[str, Raw],
    capability_members: dict[str, Raw],
    terms: AnnotationTerms,
) -> ToolFacts:
    """Annotate a tool whose capability has `capability_members`, of which there is at least one."""
    name = definition.name
    values, invalid = read_values(capability_members)
    derived_names = _derived_names(meta)
    declared = values.keys() - derived_names
    is_flagged = _is_flagged_below(meta)
    hints = merge_capability(definition.annotations, values, declared, is_flagged_below=is_flagged)
    effect = terms.classify(definition, hints)
    fallback = _derive(effect, terms.transport)
    capability = with_defaults(values, fallback)
    if terms.is_transparent:
        return ToolFacts(effect, capability.cost_units, problems=tuple(invalid.values()))
    shown_capability = _adjust(capability, terms.min_latency_class_of(name), terms.is_degraded)
    for name in Capability.__struct_fields__:
        if name in invalid or name not in capability_members:
            capability_members[name] = Raw(encode_value(getattr(shown_capability, name)))
            derived_names |= {name}
    if shown_capability.latency_class != capability.latency_class:
        capability_members["latency_class"] = Raw(encode_value(shown_capability.latency_class))
    if shown_capability.availability != capability.availability:
        capability_members["availability"] = Raw(encode_value(shown_capability.availability))
    _mirror({member: values[member] for member in declared}, effect, members)
    hops = 0 if terms.is_local else _count_hops(meta) + 1
    is_irreversible = capability.irreversible_mutable or fallback.irreversible_mutable or is_flagged
    meta[CAPABILITY] = Raw(encode_members(capability_members))
    meta.pop(DERIVED_KEY, None)
    if derived_names:
        meta[DERIVED_KEY] = Raw(
            b"true"
            if derived_names >= capability_members.keys() & CAPABILITY_FIELDS
            else encode_value(sorted(derived_names))
        )
    members["_meta"] = _encode_meta(meta, hops, is_irreversible)
    latency_class = shown_capability.latency_class if "latency_class" in declared else None
    return ToolFacts(
        effect,
        capability.cost_units,
        latency_class,
        None if latency_class is None else _declared_timeout(latency_class, hops),
        tuple(invalid.values()),
    )


def _schema_of(definition: Definition) -> Any:
    """Return the decoded input schema. None: it is invalid."""
    try:
        return decode_value(definition.input_schema)
    except ProtocolError:
        return None


def _without_reason(effect: Effect) -> Effect:
    """Return an effect without its reason, so that it is the same for many tools."""
    return Effect(effect.level, effect.idempotent, effect.source)


def _derived_names(meta: dict[str, Raw]) -> frozenset[str]:
    """Return the names of the values that a subnode derived, as it declares."""
    value = value_of(meta, DERIVED_KEY)
    if value is True:
        return CAPABILITY_FIELDS
    if isinstance(value, list):
        return CAPABILITY_FIELDS & {name for name in value if isinstance(name, str)}
    return frozenset()


def _mirror(declared: Mapping[str, Any], effect: Effect, members: dict[str, Raw]) -> None:
    """Add MCP hints that follow from the capability, where the tool has none."""
    mutable, reversible = declared.get("mutable"), declared.get("reversible")
    hints = dict.fromkeys(_HINTS)
    if mutable is not None:
        hints["readOnlyHint"] = not mutable
        if not mutable or reversible is not None:
            hints["destructiveHint"] = mutable and not reversible
    if effect.source == "config" and effect.level is EffectLevel.IRREVERSIBLE:
        # The capability stays as it is. The hint informs the nodes above.
        hints["destructiveHint"] = True
    hints["idempotentHint"] = declared.get("idempotent")
    annotations = decode_members(members.get("annotations", b"{}"))
    missing = {
        name: Raw(b"true" if value else b"false")
        for name, value in hints.items()
        if value is not None and value_of(annotations, name) is None
    }
    if missing:
        members["annotations"] = Raw(encode_members({**annotations, **missing}))


# -- values


def _derive(effect: Effect, transport: str) -> Capability:
    """Return the capability that follows from an effect. Changes are not assumed to be reversible,
    unless the operator says so."""
    return _derive_cached(_without_reason(effect), transport)


@lru_cache(maxsize=256)
def _derive_cached(effect: Effect, transport: str) -> Capability:
    level = effect.level
    is_reversible = level is EffectLevel.ADDITIVE or (
        level is EffectLevel.MUTATING and effect.source == "config"
    )
    return derive_capability(
        read_only=level is EffectLevel.READ_ONLY,
        destructive=not is_reversible,
        idempotent=effect.idempotent,
        transport=transport,
    )


def _adjust(capability: Capability, min_latency_class: str, is_degraded: bool) -> Capability:
    """Return the capability as the route to the tool makes it: slower or degraded."""
    latency_class = slower_class(capability.latency_class, min_latency_class)
    availability = DEGRADED if is_degraded else capability.availability
    if latency_class == capability.latency_class and availability == capability.availability:
        return capability
    return replace(capability, latency_class=latency_class, availability=availability)


def _declared_timeout(latency_class: str, hops: int) -> float:
    timeout = timeout_for(latency_class)
    return 0.0 if timeout is None else timeout + SECONDS_PER_HOP * max(hops - 1, 0)


def _count_hops(meta: dict[str, Raw]) -> int:
    """Return the number of nodes below, as the next one says."""
    value = value_of(meta, HOPS) if HOPS in meta else None
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return min(max(value, 0), MAX_ROUTE)


def _is_flagged_below(meta: dict[str, Raw]) -> bool:
    """Return whether a subnode flagged the tool as irreversible. The flag always counts."""
    return _count_hops(meta) > 0 and value_of(meta, SAFETY) == IRREVERSIBLE_MUTABLE


def _encode_meta(meta: dict[str, Raw], hops: int, is_irreversible: bool) -> Raw:
    meta.pop(HOPS, None)
    meta.pop(SAFETY, None)
    if hops:
        meta[HOPS] = Raw(b"%d" % hops)
    if is_irreversible:
        meta[SAFETY] = _IRREVERSIBLE_FLAG
    return Raw(encode_members(meta))
