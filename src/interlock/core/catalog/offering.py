"""What one upstream offers, read once from its lists and made ready to be merged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
from msgspec import Raw

from interlock.core.catalog import names
from interlock.core.catalog.annotations import (
    AnnotationTerms,
    ToolFacts,
    annotate,
    shown_capability,
    without_ax,
)
from interlock.core.catalog.definitions import (
    RejectedEntries,
    RejectedEntry,
    is_wanted,
    session_members,
    sift_tools,
    stateless_members,
    take_apart,
    usable,
    value_of,
    without_nulls,
)
from interlock.core.catalog.effects import (
    BOILERPLATE_FROM,
    EffectLevel,
    Unannotated,
    is_boilerplate,
)
from interlock.core.catalog.names import NameRule, Names
from interlock.core.catalog.tool_contracts import before_rewriting, own_words
from interlock.core.config import ServerConfig
from interlock.errors import ProtocolError
from interlock.protocol import mcpax as ax
from interlock.protocol.capabilities import LATENCY_CLASSES, slower_class
from interlock.protocol.headers import HeaderParam
from interlock.protocol.jsonrpc import (
    NULL,
    decode_members,
    decode_value,
    encode_members,
    encode_value,
)
from interlock.protocol.mcp import Era
from interlock.protocol.mcpax import NATIVE
from interlock.protocol.uri_templates import UriTemplate, read_template

# -- Tools whose results are shown by a resource of the same server (the MCP Apps extension).
#
# Such a tool names the resource in its `_meta`, and the resource need not be listed. So what the
# tool says counts as a listing of it, and is put in the form in which the resource is shown.

_NESTED: Final = ("ui", "resourceUri")
_FLAT: Final = "ui/resourceUri"


def screen_of(members: dict[str, Raw]) -> str | None:
    """The URI of the resource that a tool names, if it names one."""
    raw = members.get("_meta")
    if raw is None or b"resourceUri" not in bytes(raw):
        return None
    try:
        meta = decode_members(raw)
        named = value_of(meta, _FLAT)
        if _NESTED[0] in meta:
            named = value_of(decode_members(meta[_NESTED[0]]), _NESTED[1]) or named
    except ProtocolError:
        return None
    return named if isinstance(named, str) and named else None


def with_screen(listed: bytes, own: str, shown: str) -> bytes:
    """A tool's definition, as it stands behind its name, with the URI `shown` for its `own`."""
    members = decode_members(b"{" + listed[1:])
    meta = decode_members(members["_meta"])
    uri = Raw(encode_value(shown))
    if value_of(meta, _FLAT) == own:
        meta[_FLAT] = uri
    if _NESTED[0] in meta:
        try:
            nested = decode_members(meta[_NESTED[0]])
        except ProtocolError:
            nested = {}
        if value_of(nested, _NESTED[1]) == own:
            meta[_NESTED[0]] = Raw(encode_members({**nested, _NESTED[1]: uri}))
    members["_meta"] = Raw(encode_members(meta))
    return b"," + encode_members(members)[1:]


# -- Reads the prompts, resources and templates that an upstream lists, and keeps what can be
# used.
#
# What would make a client refuse a whole list is set aside. Everything else stays as it came.

MAX_URI: Final = 8192
"""A URI travels in a header, which has its limits too."""


class _Argument(msgspec.Struct, gc=False):
    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


class PromptEntry(msgspec.Struct, gc=False):
    """The members of a prompt that the node reads."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[_Argument] | None = None


class _About(msgspec.Struct, gc=False, rename="camel"):
    """What a resource and a template have in common."""

    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: dict[str, Raw] | None = None


class _ResourceEntry(_About, gc=False, rename="camel", kw_only=True):
    uri: str
    size: int | float | None = None


class _TemplateEntry(_About, gc=False, rename="camel", kw_only=True):
    uri_template: str


class _SkillFile(msgspec.Struct, gc=False):
    uri: str


class SkillEntry(msgspec.Struct, gc=False):
    """The members of a skill (SEP-2640) that the node reads."""

    uri: str
    frontmatter: dict[str, Raw]
    resources: list[_SkillFile] | Literal["dynamic"]

    @property
    def files(self) -> tuple[str, ...]:
        """The URIs of its files, as far as they are known."""
        listed = () if isinstance(self.resources, str) else self.resources
        return (self.uri, *(one.uri for one in listed))


class AcceptedSkill(NamedTuple):
    """A skill that is to be shown."""

    entry: SkillEntry
    members: dict[str, Raw]
    """All but the URI."""


_decode_skill = msgspec.json.Decoder(SkillEntry).decode
_decode_prompt = msgspec.json.Decoder(PromptEntry).decode
_decode_resource = msgspec.json.Decoder(_ResourceEntry).decode
_decode_template = msgspec.json.Decoder(_TemplateEntry).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode


class AcceptedPrompt(NamedTuple):
    """A prompt that is to be shown, before it has its names."""

    entry: PromptEntry
    members: dict[str, Raw]
    """All but the name."""


class AcceptedUri(NamedTuple):
    """A resource or a template that is to be shown."""

    uri: str
    members: dict[str, Raw]
    """All but the URI."""


def sift_prompts(
    entries: Iterable[Raw | bytes], set_aside: RejectedEntries
) -> list[AcceptedPrompt]:
    """The prompts that are to be shown, in their order."""
    return usable(entries, set_aside, _read_prompt, lambda read: read.entry.name)


def sift_resources(entries: Iterable[Raw | bytes], set_aside: RejectedEntries) -> list[AcceptedUri]:
    """The resources that are to be shown, in their order."""

    def read(raw: bytes) -> AcceptedUri:
        entry, members = take_apart(raw, _decode_resource, "uri", MAX_URI)
        return AcceptedUri(entry.uri, members)

    return usable(entries, set_aside, read, lambda one: one.uri)


def sift_templates(entries: Iterable[Raw | bytes], set_aside: RejectedEntries) -> list[AcceptedUri]:
    """The templates that are to be shown, in their order."""

    def read(raw: bytes) -> AcceptedUri:
        entry, members = take_apart(raw, _decode_template, "uriTemplate", MAX_URI)
        return AcceptedUri(entry.uri_template, members)

    return usable(entries, set_aside, read, lambda one: one.uri)


def sift_skills(entries: Iterable[Raw | bytes], set_aside: RejectedEntries) -> list[AcceptedSkill]:
    """The skills that are to be shown, in their order."""

    def read(raw: bytes) -> AcceptedSkill:
        return AcceptedSkill(*take_apart(raw, _decode_skill, "uri", MAX_URI))

    return usable(entries, set_aside, read, lambda one: one.entry.uri)


def _read_prompt(raw: bytes) -> AcceptedPrompt:
    entry, members = take_apart(raw, _decode_prompt, "name", names.MAX_OWN)
    arguments = members.get("arguments")
    if arguments is not None and NULL in bytes(arguments):
        cleaned = [without_nulls(decode_members(one)) for one in _decode_list(arguments)]
        members["arguments"] = Raw(encode_value(cleaned))
    return AcceptedPrompt(entry, members)


T = TypeVar("T")

CONTRACTS: Final = "drivers:"
"""The upstream of everything that drivers serve. No server can have this key."""
META_DRIVER: Final = "dev.interlock/driver"
"""In the `_meta` of a call of a contract: the driver that it has to go to."""
META_CONTEXT: Final = "dev.interlock/context"
"""Likewise: what the contract's context schema asks for."""
ENDED_CONTRACTS: Final = "drivers:ended"
"""Names of contracts that have ended: in no list, but who calls one is told what to do instead."""
Registered = Literal["", "leaf", "aggregator"]
"""How an upstream came to be one: of the config, or registered in either role."""

_META: Final = b',"_meta":'
_RULES: Final[dict[Registered, NameRule]] = {
    "": NameRule.MENDED,
    "leaf": NameRule.SEGMENT,
    "aggregator": NameRule.DOTTED,
}


class ListedEntry:
    """Something with a name: where it leads, what it is called, and how it reads in a list."""

    __slots__ = (
        "alias",
        "canonical",
        "declared_timeout",
        "description",
        "header_params",
        "listed",
        "route_members",
        "safe_name",
        "segment",
        "transparent_name",
        "upstream",
        "upstream_name",
        "upstream_name_json",
    )

    def __init__(
        self,
        *,
        upstream: str,
        segment: str,
        upstream_name: str,
        called: Names,
        description: str,
        members: dict[str, Raw],
        params: tuple[HeaderParam, ...] = (),
        prefix: str = "",
    ) -> None:
        self.upstream = upstream
        self.segment = segment
        self.upstream_name = upstream_name
        self.upstream_name_json = encode_value(upstream_name)
        self.canonical, self.safe_name, self.transparent_name = called
        alias = f"{prefix}.{upstream_name}" if prefix else self.canonical
        self.alias: str | None = None if alias == self.canonical else alias
        """Its upstream's own name behind our prefix, where it has another one in the catalog."""
        self.description = description
        self.header_params = params
        self.declared_timeout: float | None = None
        self.route_members = b""
        self.listed = _behind(members)
        """The definition behind its name: `,"description":…}`."""

    def shown_as(self, style: str) -> str:
        """The name that a client with this name style sees."""
        if self.transparent_name is not None:
            if style == names.SAFE and not names.is_safe(self.transparent_name):
                return self.safe_name
            return self.transparent_name
        return self.safe_name if style == names.SAFE else self.canonical

    def listed_in(self, era: Era, style: str) -> bytes:
        """`listed`, without what clients of this era and style cannot use."""
        return self.listed


class Prompt(ListedEntry):
    """One prompt."""

    __slots__ = ()


class Tool(ListedEntry):
    """One tool, and what it does to the world.

    Immutable but for `validator` and what belongs to it, which the validation stage compiles on the
    first call, and for `digest` and `described`, which are made when somebody asks for
    them.
    """

    __slots__ = (
        "_added",
        "_plain_end",
        "_session_listed",
        "_stateless_listed",
        "check_context",
        "cost_units",
        "counter",
        "described",
        "digest",
        "effect",
        "effect_word",
        "file_digest",
        "inspected",
        "latency_class",
        "mutable",
        "own_words",
        "repeatable",
        "screen",
        "served_by",
        "skipped",
        "unmeasured",
        "validator",
        "work",
    )

    def __init__(
        self,
        *,
        upstream: str,
        segment: str,
        upstream_name: str,
        called: Names,
        description: str,
        members: dict[str, Raw],
        params: tuple[HeaderParam, ...],
        annotated: ToolFacts,
        prefix: str = "",
        route_members: bytes = b"",
        own_words: dict[str, bytes] | None = None,
        plain_meta: Raw | None = None,
        counter: bool = False,
    ) -> None:
        """`plain_meta`: the `_meta` for clients that do not speak MCP-AX, empty for none, where it
        differs from that of `members`, which is the last of them then."""
        super().__init__(
            upstream=upstream,
            segment=segment,
            upstream_name=upstream_name,
            called=called,
            description=description,
            members=members,
            params=params,
            prefix=prefix,
        )
        self.route_members = route_members
        effect = annotated.effect
        self.effect = effect
        self.effect_word = effect.level.word
        self.repeatable = effect.repeatable
        self.mutable = effect.level is not EffectLevel.READ_ONLY
        self.inspected = bool(params) or bool(effect.choices)
        """Whether the arguments of each call are looked at beyond their schema."""
        self.cost_units = annotated.cost_units
        """What a call takes from a budget."""
        self.latency_class = annotated.latency_class
        """As it is shown, if somebody declared one."""
        self.declared_timeout = annotated.limit
        self.screen = screen_of(members)
        """The URI of the resource that shows its results, for hosts that show such things."""
        known = session_members(members)
        self._session_listed = self.listed if known is members else _behind(known)
        known = stateless_members(members)
        self._stateless_listed = self.listed if known is members else _behind(known)
        self._added = 0
        """So many bytes at the end of `listed` are for MCP-AX."""
        self._plain_end = b""
        """What stands there for other clients."""
        if plain_meta is not None:
            self._added = len(_META) + len(bytes(members["_meta"])) + 1
            self._plain_end = _META + bytes(plain_meta) + b"}" if plain_meta else b"}"
        self.counter = counter
        """Whether it is an aggregator's count of dropped notifications, listed on MCP-AX links."""
        self.validator: Any = None
        """Made from its schema with its first call, together with the next three."""
        self.unmeasured = sys.maxsize
        """Arguments of so many bytes can be validated without a look at the work."""
        self.work: Any = None
        """Of longer ones it says whether they can be."""
        self.skipped = False
        """Whether it was logged that some could not be."""
        self.own_words = own_words
        """Members as its upstream has them, where `listed` has them otherwise."""
        self.served_by: tuple[str, ...] = ()
        """Of a contract: the drivers that a call may go to, each as `id@version digest`."""
        self.file_digest = ""
        """Of a contract: of the file that says it, which says more than is listed."""
        self.check_context: Callable[[Any], None] | None = None
        """Of a contract that takes a context: raises InterlockError for one that is none."""
        self.described: tuple[Any, bytes] | None = None
        """What `describe` returned, once it was asked."""
        self.digest = ""
        """Of its contract: ask `pinning.contract_digest`."""

    def listed_in(self, era: Era, style: str) -> bytes:
        listed = self._stateless_listed if era is Era.STATELESS else self._session_listed
        if not self._added or style == names.AX:
            return listed
        return listed[: -self._added] + self._plain_end

    def input_schema(self) -> Any:
        """The schema of the arguments, decoded when it is needed."""
        return decode_value(decode_members(b"{" + self.listed[1:])["inputSchema"])

    def capability(self) -> Raw:
        """The capability annotation, as clients see it."""
        return shown_capability(decode_members(b"{" + self.listed[1:]), self.effect)

    def describe(self) -> tuple[Any, bytes]:
        """The schema and the capability, as an approval of a call shows them. Read once."""
        self.described = self.input_schema(), bytes(self.capability())
        return self.described


class Resource(msgspec.Struct, frozen=True):
    """One resource, or one template: its URI at home, and how it reads in a list."""

    uri: str
    """Of a template: the template."""
    listed: bytes
    """What stands behind the URI: `,"name":…}`."""
    template: UriTemplate | None = None
    """What URIs are matched with. None: nothing is."""


class Skill(msgspec.Struct, frozen=True):
    """One skill: the URI of its SKILL.md at home, its files, and how it reads in a list."""

    uri: str
    listed: bytes
    """What stands behind the URI: `,"frontmatter":…}`."""
    files: tuple[str, ...]
    """The URIs of its files, SKILL.md included."""


class Offering(msgspec.Struct, frozen=True, eq=False):
    """Everything one upstream offers, in the order in which it is listed."""

    upstream: str
    segment: str
    tools: tuple[Tool, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    templates: tuple[Resource, ...] = ()
    skills: tuple[Skill, ...] = ()
    set_aside: tuple[RejectedEntry, ...] = ()
    """Entries that are not shown, at least the first of them."""
    omitted: int = 0
    """How many there are."""
    flagged: tuple[RejectedEntry, ...] = ()
    """Tools that are shown, but say something of themselves that means nothing."""
    registered: Registered = ""
    transparent: bool = False
    """Whether it is shown as if it were directly connected."""
    serves_resources: bool = False
    """Whether it can be asked for resources, be they listed or not."""
    lets_through: Callable[[str], bool] = lambda _: True
    """Whether the config lets a tool of this name be used, be it listed or not."""
    prefix: str = ""
    """What stands before the names of its tools in their canonical form, without the dot."""


class OfferingTerms(TypedDict, total=False):
    """Terms of `read_offering` that whoever brought an upstream sets."""

    registered: Registered
    degraded: bool
    transport_class: str
    min_latency_class: str | None


def read_offering(
    key: str,
    server: ServerConfig,
    tools: Iterable[Raw | bytes],
    *,
    prompts: Iterable[Raw | bytes] = (),
    resources: Iterable[Raw | bytes] = (),
    templates: Iterable[Raw | bytes] = (),
    skills: Iterable[Raw | bytes] = (),
    root_segment: str | None = None,
    http: bool = False,
    serves_resources: bool = False,
    registered: Registered = "",
    degraded: bool = False,
    transport_class: str = NATIVE,
    min_latency_class: str | None = None,
    slower: Mapping[str, str] | None = None,
    unannotated: Unannotated = "infer",
) -> Offering:
    """An upstream's raw lists as an offering, filtered and renamed by its config.

    `registered`: names are refused that a subserver may not give, not mended. `degraded`: it cannot
    be reached, and its tools say so. `slower`: own names of tools → the latency class that their
    calls were measured in. `unannotated`: what is assumed of tools that say nothing, unless
    `server` says it. Never raises: whatever an upstream lists, what can be used is used.
    """
    segment = server.segment or key
    prefix = f"{root_segment}.{segment}" if root_segment else segment
    terms = AnnotationTerms(
        server=server,
        transport=transport_class,
        floor=_slowest(server.min_latency_class, min_latency_class),
        slower=slower or {},
        degraded=degraded,
        unannotated=unannotated,
    )
    return _read(
        key, segment, prefix, terms, tools, prompts, resources, templates,
        skills=skills, http=http, serves_resources=serves_resources, registered=registered,
    )  # fmt: skip


def own_offering(root_segment: str | None, tools: Iterable[Raw | bytes]) -> Offering:
    """The node's own tools: they have no segment, and are called by their bare names, behind the
    root segment if there is one."""
    terms = AnnotationTerms(ServerConfig(), NATIVE, LATENCY_CLASSES[0], {}, False, own=True)
    return _read("", "", root_segment or "", terms, tools, registered="")


def contract_offering(
    key: str,
    root_segment: str | None,
    tools: Iterable[Raw | bytes],
    effects: Mapping[str, EffectLevel],
    served_by: Mapping[str, tuple[str, ...]] | None = None,
    digests: Mapping[str, str] | None = None,
    contexts: Mapping[str, Callable[[Any], None]] | None = None,
) -> Offering:
    """Contracts that drivers serve: their ids are their names, dots included. `key`: the upstream
    that takes their calls; by name, `effects`: what they do, `served_by`: by whom, `digests`: of
    their files, and `contexts`: what checks the context of a call, where they take one."""
    terms = AnnotationTerms(ServerConfig(), NATIVE, LATENCY_CLASSES[0], {}, False, levels=effects)
    made = _read(key, "", root_segment or "", terms, tools, registered="", rule=NameRule.DOTTED)
    for tool in made.tools:
        tool.served_by = (served_by or {}).get(tool.upstream_name, ())
        tool.file_digest = (digests or {}).get(tool.upstream_name, "")
        tool.check_context = (contexts or {}).get(tool.upstream_name)
    return made


def _slowest(*classes: str | None) -> str:
    slowest = LATENCY_CLASSES[0]
    for one in classes:
        if one is not None:
            slowest = slower_class(slowest, one)
    return slowest


def _read(
    key: str,
    segment: str,
    prefix: str,
    terms: AnnotationTerms,
    tools: Iterable[Raw | bytes],
    prompts: Iterable[Raw | bytes] = (),
    resources: Iterable[Raw | bytes] = (),
    templates: Iterable[Raw | bytes] = (),
    *,
    skills: Iterable[Raw | bytes] = (),
    registered: Registered,
    http: bool = False,
    serves_resources: bool = False,
    rule: NameRule | None = None,
) -> Offering:
    server, transparent = terms.server, terms.transparent
    rule = rule or _RULES[registered]
    asides = {
        kind: RejectedEntries(kind) for kind in ("tool", "prompt", "resource", "template", "skill")
    }
    flagged = RejectedEntries("tool")
    wanted = sift_tools(tools, server, asides["tool"], http=http)
    alike = sum(is_boilerplate(one.definition.annotations) for one in wanted)
    if alike >= BOILERPLATE_FROM:
        terms = terms._replace(boilerplate=True)
    own = [one.definition.name for one in wanted]
    shown = [server.rename.get(name, name) for name in own]
    called = names.give(list(zip(own, shown, strict=True)), prefix, bare=transparent, rule=rule)
    offered_tools = []
    for (definition, members, params), name in _with_names(wanted, called, own, asides["tool"]):
        came = before_rewriting(members)
        description = server.descriptions.get(definition.name)
        if description is not None:
            members["description"] = Raw(encode_value(description))
        annotated = annotate(definition, members, terms)
        for problem in annotated.problems:
            flagged.add(definition.name, problem)
        plain_meta = None if transparent else without_ax(members)
        if plain_meta is not None:
            members["_meta"] = members.pop("_meta")
        offered_tools.append(
            Tool(
                upstream=key,
                segment=segment,
                upstream_name=definition.name,
                called=name,
                description=definition.description or "" if description is None else description,
                members=members,
                params=params,
                annotated=annotated,
                prefix=prefix,
                route_members=_way(prefix, definition.name) if registered else b"",
                own_words=own_words(came, members),
                plain_meta=plain_meta,
                counter=terms.own or ax.is_dropped_counter(definition.name, came.get("_meta", b"")),
            )
        )
    read = sift_prompts(prompts, asides["prompt"])
    own = [one.entry.name for one in read]
    called = names.give(list(zip(own, own, strict=True)), prefix, bare=transparent, rule=rule)
    offered_prompts = [
        Prompt(
            upstream=key,
            segment=segment,
            upstream_name=one.entry.name,
            called=name,
            description=one.entry.description or "",
            members=one.members,
            prefix=prefix,
        )
        for one, name in _with_names(read, called, own, asides["prompt"])
    ]
    offered_resources = [
        Resource(one.uri, _behind(one.members))
        for one in sift_resources(resources, asides["resource"])
    ]
    offered_templates = [
        Resource(one.uri, _behind(one.members), read_template(one.uri))
        for one in sift_templates(templates, asides["template"])
    ]
    offered_skills = [
        Skill(one.entry.uri, _behind(one.members), one.entry.files)
        for one in sift_skills(skills, asides["skill"])
    ]
    if not transparent:
        offered_skills.sort(key=lambda skill: skill.uri)
        offered_tools.sort(key=lambda tool: tool.canonical)
        offered_prompts.sort(key=lambda prompt: prompt.canonical)
        offered_resources.sort(key=lambda resource: resource.uri)
        offered_templates.sort(key=lambda template: template.uri)
    return Offering(
        upstream=key,
        segment=segment,
        tools=tuple(offered_tools),
        prompts=tuple(offered_prompts),
        resources=tuple(offered_resources),
        templates=tuple(offered_templates),
        skills=tuple(offered_skills),
        set_aside=tuple(one for kind in asides.values() for one in kind.all()),
        omitted=sum(kind.count for kind in asides.values()),
        flagged=flagged.all(),
        registered=registered,
        transparent=transparent,
        serves_resources=serves_resources or bool(offered_resources or offered_templates),
        # Under its own name a renamed tool is not to be had: it would be one that nobody knows.
        lets_through=lambda name: name not in server.rename and is_wanted(name, server),
        prefix=prefix,
    )


def _with_names(
    entries: Sequence[T],
    called: Sequence[Names | str],
    own: Sequence[str],
    set_aside: RejectedEntries,
) -> Iterator[tuple[T, Names]]:
    """The entries that got names, with them."""
    for entry, given, name in zip(entries, called, own, strict=True):
        if isinstance(given, str):
            set_aside.add(name, given)
        else:
            yield entry, given


def _way(prefix: str, own: str) -> bytes:
    """Members of `_meta` that lead a call to a node below: all segments, and that node's place."""
    return ax.encode_route_members(f"{prefix}.{own}".split("."), prefix.count("."))


def _behind(members: dict[str, Raw]) -> bytes:
    """Members as they stand behind another one."""
    return b"," + encode_members(members)[1:] if members else b"}"
