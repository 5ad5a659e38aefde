"""What a tool says of itself in MCP-AX's words, read once, and what the node adds to it in lists.

What a capability declares travels as it came: only its latency class may rise, its availability may
become degraded, and a value that is none is replaced. What it does not declare is added, once, by
the node next to the tool, as it follows from its effect: whoever calls must be able to judge every
tool. A server that is shown as itself is not touched. All of it is for MCP-AX links and for clients
that speak MCP-AX: other clients see MCP's own hints alone.
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
    with_capability,
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

PER_HOP: Final = 0.25
"""So many seconds more has each node further up: the one next to the tool should report first."""

_SAYS_UNSAFE: Final = Raw(encode_value(IRREVERSIBLE_MUTABLE))
# What the operator's `effects:` says is declared, though not by the tool.
_NOT_FROM_EFFECT: Final = Raw(
    encode_value(sorted(CAPABILITY_FIELDS - {"mutable", "reversible", "idempotent", "auth_scope"}))
)
_ALL: Final = Raw(b"true")
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint")


class AnnotationTerms(NamedTuple):
    """What holds for every tool of one upstream."""

    server: ServerConfig
    transport: str
    floor: str
    """No tool is shown as quicker than this."""
    slower: Mapping[str, str]
    """Own names of tools → the class that their calls were measured in."""
    degraded: bool
    own: bool = False
    """The node's own: there is no hop to them."""
    levels: Mapping[str, EffectLevel] | None = None
    """Where it is known what each tool does, by a contract: own name → level."""
    unannotated: Unannotated = "infer"
    """What is assumed of tools that say nothing, unless the server has a setting of its own."""
    boilerplate: bool = False
    """Whether several tools have MCP's default hints written out, as some libraries do."""

    @property
    def transparent(self) -> bool:
        return self.server.expose == "transparent"

    def effect_of(
        self, definition: Definition, hints: Annotations | None, *, alone: bool = False
    ) -> Effect:
        """What one tool does to the world. `alone`: nobody but its server says anything of it."""
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
            boilerplate=self.boilerplate and alone,
        )

    def floor_of(self, name: str) -> str:
        """The same for one tool."""
        measured = self.slower.get(name)
        return self.floor if measured is None else slower_class(self.floor, measured)


class ToolFacts(NamedTuple):
    """What is known of a tool, once its definition has been read."""

    effect: Effect
    cost_units: int = 0
    latency_class: str | None = None
    """As it is shown, if somebody declared one."""
    limit: float | None = None
    problems: tuple[str, ...] = ()


def annotate(definition: Definition, members: dict[str, Raw], terms: AnnotationTerms) -> ToolFacts:
    """Read what a tool says of itself, and put into `members` what clients see of it."""
    raw = members.get("_meta")
    if raw is None:
        return _without_capability(definition, members, None, terms)
    try:
        meta = decode_members(raw)
    except ProtocolError:
        # No client takes such a definition.
        return _without_capability(definition, members, None, terms)
    if CAPABILITY not in meta:
        return _without_capability(definition, members, meta, terms)
    try:
        said = decode_members(meta[CAPABILITY])
    except ProtocolError:
        problem = "The capability annotation is not an object."
        return _without_capability(definition, members, meta, terms, (problem,))
    if not said:
        return _without_capability(definition, members, meta, terms)
    return _with_capability(definition, members, meta, said, terms)


def shown_capability(members: Mapping[str, Raw], effect: Effect) -> Raw:
    """The capability of a tool as its definition has it, or as it follows from its effect."""
    try:
        meta = decode_members(members["_meta"])
        decode_members(meta[CAPABILITY])
    except (KeyError, ProtocolError):
        return Raw(_derived(effect, "native").encode())
    return meta[CAPABILITY]


def without_ax(members: Mapping[str, Raw]) -> Raw | None:
    """The `_meta` of a definition without the members of MCP-AX; empty where it has no others.
    None: it has none of them."""
    raw = members.get("_meta")
    if raw is None or PREFIX.encode() not in bytes(raw):
        return None
    try:
        meta = decode_members(raw)
    except ProtocolError:
        return None
    kept = {name: value for name, value in meta.items() if not name.startswith(PREFIX)}
    return Raw(encode_members(kept)) if kept else Raw(b"")


# -- a tool that declares none


def _without_capability(
    definition: Definition,
    members: dict[str, Raw],
    meta: dict[str, Raw] | None,
    terms: AnnotationTerms,
    problems: tuple[str, ...] = (),
) -> ToolFacts:
    name, hints = definition.name, definition.annotations
    flagged = meta is not None and _flagged_below(meta)
    if flagged:
        hints = with_capability(hints, {}, (), flagged=True)
    effect = terms.effect_of(definition, hints, alone=not flagged)
    if not terms.transparent:
        floor = terms.floor_of(name)
        if meta is None:
            hops = 0 if terms.own else 1
            members["_meta"] = _plain_meta(
                _bare(effect), terms.transport, floor, terms.degraded, hops
            )
        else:
            hops = 0 if terms.own else _hops(meta) + 1
            unsafe = _add_derived(meta, effect, terms.transport, floor, terms.degraded)
            members["_meta"] = _finished(meta, hops, unsafe or flagged)
    return ToolFacts(effect, problems=problems)


def _add_derived(
    meta: dict[str, Raw], effect: Effect, transport: str, floor: str, degraded: bool
) -> bool:
    """Put in the capability that follows from an effect. Whether it is one to be flagged."""
    capability = _shown(_derived(effect, transport), floor, degraded)
    meta[CAPABILITY] = Raw(capability.encode())
    meta[DERIVED_KEY] = _NOT_FROM_EFFECT if effect.source == "config" else _ALL
    return capability.irreversible_mutable


@lru_cache(maxsize=1024)
def _plain_meta(effect: Effect, transport: str, floor: str, degraded: bool, hops: int) -> Raw:
    """The whole `_meta` of a tool that has none: most tools have one of a few."""
    meta: dict[str, Raw] = {}
    unsafe = _add_derived(meta, effect, transport, floor, degraded)
    return _finished(meta, hops, unsafe)


# -- a tool that declares one


def _with_capability(
    definition: Definition,
    members: dict[str, Raw],
    meta: dict[str, Raw],
    said: dict[str, Raw],
    terms: AnnotationTerms,
) -> ToolFacts:
    """`said`: the members of the annotation, of which there are some."""
    name = definition.name
    values, wrong = read_values(said)
    derived = _derived_names(meta)
    declared = values.keys() - derived
    flagged = _flagged_below(meta)
    hints = with_capability(definition.annotations, values, declared, flagged=flagged)
    effect = terms.effect_of(definition, hints)
    fallback = _derived(effect, terms.transport)
    capability = with_defaults(values, fallback)
    if terms.transparent:
        return ToolFacts(effect, capability.cost_units, problems=tuple(wrong.values()))
    shown = _shown(capability, terms.floor_of(name), terms.degraded)
    for one in Capability.__struct_fields__:
        if one in wrong or one not in said:
            said[one] = Raw(encode_value(getattr(shown, one)))
            derived |= {one}
    if shown.latency_class != capability.latency_class:
        said["latency_class"] = Raw(encode_value(shown.latency_class))
    if shown.availability != capability.availability:
        said["availability"] = Raw(encode_value(shown.availability))
    _mirror({one: values[one] for one in declared}, effect, members)
    hops = 0 if terms.own else _hops(meta) + 1
    unsafe = capability.irreversible_mutable or fallback.irreversible_mutable or flagged
    meta[CAPABILITY] = Raw(encode_members(said))
    meta.pop(DERIVED_KEY, None)
    if derived:
        meta[DERIVED_KEY] = Raw(
            b"true" if derived >= said.keys() & CAPABILITY_FIELDS else encode_value(sorted(derived))
        )
    members["_meta"] = _finished(meta, hops, unsafe)
    latency_class = shown.latency_class if "latency_class" in declared else None
    return ToolFacts(
        effect,
        capability.cost_units,
        latency_class,
        None if latency_class is None else _limit(latency_class, hops),
        tuple(wrong.values()),
    )


def _schema_of(definition: Definition) -> Any:
    """The input schema, decoded. None: it cannot be read."""
    try:
        return decode_value(definition.input_schema)
    except ProtocolError:
        return None


def _bare(effect: Effect) -> Effect:
    """An effect without the words of its tool, so that many tools have the same one."""
    return Effect(effect.level, effect.idempotent, effect.source)


def _derived_names(meta: dict[str, Raw]) -> frozenset[str]:
    """Which values of a capability a node below derived, as it says."""
    said = value_of(meta, DERIVED_KEY)
    if said is True:
        return CAPABILITY_FIELDS
    if isinstance(said, list):
        return CAPABILITY_FIELDS & {one for one in said if isinstance(one, str)}
    return frozenset()


def _mirror(declared: Mapping[str, Any], effect: Effect, members: dict[str, Raw]) -> None:
    """Say in MCP's own hints what the capability says, where the tool has not."""
    mutable, reversible = declared.get("mutable"), declared.get("reversible")
    hints = dict.fromkeys(_HINTS)
    if mutable is not None:
        hints["readOnlyHint"] = not mutable
        if not mutable or reversible is not None:
            hints["destructiveHint"] = mutable and not reversible
    if effect.source == "config" and effect.level is EffectLevel.IRREVERSIBLE:
        # The annotation stays as it is. This is how nodes above hear of it.
        hints["destructiveHint"] = True
    hints["idempotentHint"] = declared.get("idempotent")
    known = decode_members(members.get("annotations", b"{}"))
    missing = {
        name: Raw(b"true" if value else b"false")
        for name, value in hints.items()
        if value is not None and value_of(known, name) is None
    }
    if missing:
        members["annotations"] = Raw(encode_members({**known, **missing}))


# -- values


def _derived(effect: Effect, transport: str) -> Capability:
    """What follows from an effect. Unless the operator says so, what changes things is not assumed
    to be reversible."""
    return _derived_once(_bare(effect), transport)


@lru_cache(maxsize=256)
def _derived_once(effect: Effect, transport: str) -> Capability:
    level = effect.level
    kept = level is EffectLevel.ADDITIVE or (
        level is EffectLevel.MUTATING and effect.source == "config"
    )
    return derive_capability(
        read_only=level is EffectLevel.READ_ONLY,
        destructive=not kept,
        idempotent=effect.idempotent,
        transport=transport,
    )


def _shown(capability: Capability, floor: str, degraded: bool) -> Capability:
    """As the way to the tool makes it: slower, or degraded, and nothing else."""
    latency_class = slower_class(capability.latency_class, floor)
    availability = DEGRADED if degraded else capability.availability
    if latency_class == capability.latency_class and availability == capability.availability:
        return capability
    return replace(capability, latency_class=latency_class, availability=availability)


def _limit(latency_class: str, hops: int) -> float:
    timeout = timeout_for(latency_class)
    return 0.0 if timeout is None else timeout + PER_HOP * max(hops - 1, 0)


def _hops(meta: dict[str, Raw]) -> int:
    """How many nodes there are below, as the one next to us says."""
    said = value_of(meta, HOPS) if HOPS in meta else None
    if not isinstance(said, int) or isinstance(said, bool):
        return 0
    return min(max(said, 0), MAX_ROUTE)


def _flagged_below(meta: dict[str, Raw]) -> bool:
    """A node below flagged it: that stands, whatever the tool says of itself."""
    return _hops(meta) > 0 and value_of(meta, SAFETY) == IRREVERSIBLE_MUTABLE


def _finished(meta: dict[str, Raw], hops: int, unsafe: bool) -> Raw:
    meta.pop(HOPS, None)
    meta.pop(SAFETY, None)
    if hops:
        meta[HOPS] = Raw(b"%d" % hops)
    if unsafe:
        meta[SAFETY] = _SAYS_UNSAFE
    return Raw(encode_members(meta))
