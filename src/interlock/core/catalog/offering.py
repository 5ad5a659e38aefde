"""The offering of one upstream: its lists, decoded once and prepared for merging."""

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
    decode_entry,
    is_tool_included,
    members_for_session,
    members_for_stateless,
    read_entries,
    read_tool_entries,
    remove_nulls,
    value_of,
)
from interlock.core.catalog.effects import (
    MIN_BOILERPLATE_TOOLS,
    EffectLevel,
    Unannotated,
    is_boilerplate,
)
from interlock.core.catalog.names import NameRule, Names
from interlock.core.catalog.tool_contracts import find_rewritten_members, rewritable_members
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

# -- Tools with a UI resource (the MCP Apps extension).
#
# Such a tool names the resource in its `_meta`, and the resource need not be listed. The name
# counts as a listing of it, and is rewritten to the URI under which clients see the resource.

_UI_MEMBER: Final = ("ui", "resourceUri")
_UI_MEMBER_FLAT: Final = "ui/resourceUri"


def find_ui_resource(members: dict[str, Raw]) -> str | None:
    """Return the URI of the UI resource of a tool, if it names one."""
    raw = members.get("_meta")
    if raw is None or b"resourceUri" not in bytes(raw):
        return None
    try:
        meta = decode_members(raw)
        uri = value_of(meta, _UI_MEMBER_FLAT)
        if _UI_MEMBER[0] in meta:
            uri = value_of(decode_members(meta[_UI_MEMBER[0]]), _UI_MEMBER[1]) or uri
    except ProtocolError:
        return None
    return uri if isinstance(uri, str) and uri else None


def replace_ui_resource(listed: bytes, upstream_uri: str, shown_uri: str) -> bytes:
    """Return a tool definition, without its name, with `shown_uri` in place of `upstream_uri`."""
    members = decode_members(b"{" + listed[1:])
    meta = decode_members(members["_meta"])
    uri = Raw(encode_value(shown_uri))
    if value_of(meta, _UI_MEMBER_FLAT) == upstream_uri:
        meta[_UI_MEMBER_FLAT] = uri
    if _UI_MEMBER[0] in meta:
        try:
            nested = decode_members(meta[_UI_MEMBER[0]])
        except ProtocolError:
            nested = {}
        if value_of(nested, _UI_MEMBER[1]) == upstream_uri:
            meta[_UI_MEMBER[0]] = Raw(encode_members({**nested, _UI_MEMBER[1]: uri}))
    members["_meta"] = Raw(encode_members(meta))
    return b"," + encode_members(members)[1:]


# -- Reading of the prompts, resources, templates and skills that an upstream lists.
#
# Entries that would make a client reject a whole list are rejected. Others are passed on unchanged.

MAX_URI_LENGTH: Final = 8192
"""The limit of a URI. It travels in a header, which is limited, too."""


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


class _ResourceFields(msgspec.Struct, gc=False, rename="camel"):
    """The common members of resources and templates."""

    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: dict[str, Raw] | None = None


class _ResourceEntry(_ResourceFields, gc=False, rename="camel", kw_only=True):
    uri: str
    size: int | float | None = None


class _TemplateEntry(_ResourceFields, gc=False, rename="camel", kw_only=True):
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
        return (self.uri, *(resource.uri for resource in listed))


class AcceptedSkill(NamedTuple):
    """A skill that will be shown."""

    entry: SkillEntry
    members: dict[str, Raw]
    """All members except the URI."""


_decode_skill = msgspec.json.Decoder(SkillEntry).decode
_decode_prompt = msgspec.json.Decoder(PromptEntry).decode
_decode_resource = msgspec.json.Decoder(_ResourceEntry).decode
_decode_template = msgspec.json.Decoder(_TemplateEntry).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode


class AcceptedPrompt(NamedTuple):
    """A prompt that will be shown, before it gets its names."""

    entry: PromptEntry
    members: dict[str, Raw]
    """All members except the name."""


class AcceptedUri(NamedTuple):
    """A resource or a template that will be shown."""

    uri: str
    members: dict[str, Raw]
    """All members except the URI."""


def read_prompt_entries(
    entries: Iterable[Raw | bytes], rejected: RejectedEntries
) -> list[AcceptedPrompt]:
    """Return the prompts that will be shown, in their order."""
    return read_entries(entries, rejected, _read_prompt, lambda prompt: prompt.entry.name)


def read_resource_entries(
    entries: Iterable[Raw | bytes], rejected: RejectedEntries
) -> list[AcceptedUri]:
    """Return the resources that will be shown, in their order."""

    def read(raw: bytes) -> AcceptedUri:
        entry, members = decode_entry(raw, _decode_resource, "uri", MAX_URI_LENGTH)
        return AcceptedUri(entry.uri, members)

    return read_entries(entries, rejected, read, lambda resource: resource.uri)


def read_template_entries(
    entries: Iterable[Raw | bytes], rejected: RejectedEntries
) -> list[AcceptedUri]:
    """Return the templates that will be shown, in their order."""

    def read(raw: bytes) -> AcceptedUri:
        entry, members = decode_entry(raw, _decode_template, "uriTemplate", MAX_URI_LENGTH)
        return AcceptedUri(entry.uri_template, members)

    return read_entries(entries, rejected, read, lambda resource: resource.uri)


def read_skill_entries(
    entries: Iterable[Raw | bytes], rejected: RejectedEntries
) -> list[AcceptedSkill]:
    """Return the skills that will be shown, in their order."""

    def read(raw: bytes) -> AcceptedSkill:
        return AcceptedSkill(*decode_entry(raw, _decode_skill, "uri", MAX_URI_LENGTH))

    return read_entries(entries, rejected, read, lambda skill: skill.entry.uri)


def _read_prompt(raw: bytes) -> AcceptedPrompt:
    entry, members = decode_entry(raw, _decode_prompt, "name", names.MAX_UPSTREAM_NAME_LENGTH)
    arguments = members.get("arguments")
    if arguments is not None and NULL in bytes(arguments):
        cleaned = [remove_nulls(decode_members(argument)) for argument in _decode_list(arguments)]
        members["arguments"] = Raw(encode_value(cleaned))
    return AcceptedPrompt(entry, members)


T = TypeVar("T")

CONTRACTS: Final = "drivers:"
"""The upstream of all contracts that drivers serve. No server can have this key."""
META_DRIVER: Final = "dev.interlock/driver"
"""Member of `_meta` in a call of a contract: the driver that must serve it."""
META_CONTEXT: Final = "dev.interlock/context"
"""Member of `_meta` in a call of a contract: the context that the contract's schema requires."""
ENDED_CONTRACTS: Final = "drivers:ended"
"""The upstream of ended contracts. They are in no list, but a call returns what to do instead."""
RegisteredRole = Literal["", "leaf", "aggregator"]
"""The role in which an upstream registered. Empty: it is configured."""

_META_PREFIX: Final = b',"_meta":'
_NAME_RULES: Final[dict[RegisteredRole, NameRule]] = {
    "": NameRule.SANITIZED,
    "leaf": NameRule.SEGMENT,
    "aggregator": NameRule.DOTTED,
}


class ListedEntry:
    """A tool or prompt: its upstream, its names, and its encoded definition."""

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
        assigned_names: Names,
        description: str,
        members: dict[str, Raw],
        params: tuple[HeaderParam, ...] = (),
        prefix: str = "",
    ) -> None:
        self.upstream = upstream
        self.segment = segment
        self.upstream_name = upstream_name
        self.upstream_name_json = encode_value(upstream_name)
        self.canonical, self.safe_name, self.transparent_name = assigned_names
        alias = f"{prefix}.{upstream_name}" if prefix else self.canonical
        self.alias: str | None = None if alias == self.canonical else alias
        """The upstream's own name with our prefix, if the catalog uses another name."""
        self.description = description
        self.header_params = params
        self.declared_timeout: float | None = None
        self.route_members = b""
        self.listed = _encode_rest(members)
        """The definition after its name: `,"description":…}`."""

    def name_in_list(self, style: str) -> str:
        """Return the name that a client with this name style sees."""
        if self.transparent_name is not None:
            if style == names.SAFE and not names.is_safe_name(self.transparent_name):
                return self.safe_name
            return self.transparent_name
        return self.safe_name if style == names.SAFE else self.canonical

    def encode_for(self, era: Era, style: str) -> bytes:
        """Return `listed` without members that clients of this generation and style cannot use."""
        return self.listed


class Prompt(ListedEntry):
    """A prompt."""

    __slots__ = ()


class Tool(ListedEntry):
    """A tool and its effect.

    Immutable except for `validator` and its companions, which the validation stage compiles on the
    first call, and for `digest` and `schema_and_capability`, which are made on demand.
    """

    __slots__ = (
        "_ax_length",
        "_plain_ending",
        "_session_listed",
        "_stateless_listed",
        "check_context",
        "cost_units",
        "digest",
        "effect",
        "effect_name",
        "file_digest",
        "inspects_arguments",
        "is_drop_counter",
        "is_skip_logged",
        "latency_class",
        "mutable",
        "repeatable",
        "schema_and_capability",
        "schema_work",
        "served_by",
        "ui_resource",
        "unmeasured",
        "upstream_members",
        "validator",
    )

    def __init__(
        self,
        *,
        upstream: str,
        segment: str,
        upstream_name: str,
        assigned_names: Names,
        description: str,
        members: dict[str, Raw],
        params: tuple[HeaderParam, ...],
        annotated: ToolFacts,
        prefix: str = "",
        route_members: bytes = b"",
        upstream_members: dict[str, bytes] | None = None,
        plain_meta: Raw | None = None,
        is_drop_counter: bool = False,
    ) -> None:
        """
        Args:
            plain_meta: the `_meta` for clients without MCP-AX support, empty for none. Only given
                if it differs from that of `members`, which is then the last member.
        """
        super().__init__(
            upstream=upstream,
            segment=segment,
            upstream_name=upstream_name,
            assigned_names=assigned_names,
            description=description,
            members=members,
            params=params,
            prefix=prefix,
        )
        self.route_members = route_members
        effect = annotated.effect
        self.effect = effect
        self.effect_name = effect.level.label
        self.repeatable = effect.repeatable
        self.mutable = effect.level is not EffectLevel.READ_ONLY
        self.inspects_arguments = bool(params) or bool(effect.choices)
        """True if the arguments of each call are checked beyond their schema."""
        self.cost_units = annotated.cost_units
        """The units that a call takes from a budget."""
        self.latency_class = annotated.latency_class
        """The latency class that is shown, if one was declared."""
        self.declared_timeout = annotated.timeout
        self.ui_resource = find_ui_resource(members)
        """The URI of the resource that shows its results (MCP Apps)."""
        generation_members = members_for_session(members)
        self._session_listed = (
            self.listed if generation_members is members else _encode_rest(generation_members)
        )
        generation_members = members_for_stateless(members)
        self._stateless_listed = (
            self.listed if generation_members is members else _encode_rest(generation_members)
        )
        self._ax_length = 0
        """The number of bytes at the end of `listed` that are for MCP-AX."""
        self._plain_ending = b""
        """The bytes for other clients."""
        if plain_meta is not None:
            self._ax_length = len(_META_PREFIX) + len(bytes(members["_meta"])) + 1
            self._plain_ending = _META_PREFIX + bytes(plain_meta) + b"}" if plain_meta else b"}"
        self.is_drop_counter = is_drop_counter
        """True for an aggregator's count of dropped notifications, listed on MCP-AX connections."""
        self.validator: Any = None
        """Compiled from its schema on its first call, together with the next three."""
        self.unmeasured = sys.maxsize
        """Arguments up to this size are validated without an estimate of the work."""
        self.schema_work: Any = None
        """Estimates whether larger arguments can be validated."""
        self.is_skip_logged = False
        """True if it was logged that some arguments were not validated."""
        self.upstream_members = upstream_members
        """Members as the upstream wrote them, where `listed` differs."""
        self.served_by: tuple[str, ...] = ()
        """For a contract: the drivers that a call may go to, each as `id@version digest`."""
        self.file_digest = ""
        """For a contract: the digest of its file, which contains more than is listed."""
        self.check_context: Callable[[Any], None] | None = None
        """For a contract with a context: raises InterlockError for an invalid one."""
        self.schema_and_capability: tuple[Any, bytes] | None = None
        """The result of `read_schema_and_capability`, once it was called."""
        self.digest = ""
        """The digest of its contract: use `tool_contracts.contract_digest`."""

    def encode_for(self, era: Era, style: str) -> bytes:
        listed = self._stateless_listed if era is Era.STATELESS else self._session_listed
        if not self._ax_length or style == names.AX:
            return listed
        return listed[: -self._ax_length] + self._plain_ending

    def input_schema(self) -> Any:
        """Return the decoded schema of the arguments."""
        return decode_value(decode_members(b"{" + self.listed[1:])["inputSchema"])

    def capability(self) -> Raw:
        """Return the capability annotation as clients see it."""
        return shown_capability(decode_members(b"{" + self.listed[1:]), self.effect)

    def read_schema_and_capability(self) -> tuple[Any, bytes]:
        """Return the schema and the capability for the approval of a call. Decoded once."""
        self.schema_and_capability = self.input_schema(), bytes(self.capability())
        return self.schema_and_capability


class Resource(msgspec.Struct, frozen=True):
    """A resource or a template: its URI at the upstream, and its encoded definition."""

    uri: str
    """The URI, or the URI template."""
    listed: bytes
    """The definition after the URI: `,"name":…}`."""
    template: UriTemplate | None = None
    """Matches URIs. None: it matches none."""


class Skill(msgspec.Struct, frozen=True):
    """A skill: the URI of its SKILL.md, its files, and its encoded definition."""

    uri: str
    listed: bytes
    """The definition after the URI: `,"frontmatter":…}`."""
    files: tuple[str, ...]
    """The URIs of its files, including SKILL.md."""


class Offering(msgspec.Struct, frozen=True, eq=False):
    """The tools, resources and prompts of one upstream, in the order of its lists."""

    upstream: str
    segment: str
    tools: tuple[Tool, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    templates: tuple[Resource, ...] = ()
    skills: tuple[Skill, ...] = ()
    rejected: tuple[RejectedEntry, ...] = ()
    """Rejected entries, at least the first of them."""
    rejected_count: int = 0
    """The number of all rejected entries."""
    metadata_problems: tuple[RejectedEntry, ...] = ()
    """Tools that are shown but have invalid metadata."""
    registered: RegisteredRole = ""
    is_transparent: bool = False
    """True if it is shown as if it were connected directly."""
    serves_resources: bool = False
    """True if resources may be read from it, listed or not."""
    allows_name: Callable[[str], bool] = lambda _: True
    """Returns whether the config allows a tool of this name, listed or not."""
    prefix: str = ""
    """The prefix of its tools' canonical names, without the dot."""


class OfferingTerms(TypedDict, total=False):
    """Arguments of `read_offering` that extensions set for their upstreams."""

    registered: RegisteredRole
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
    registered: RegisteredRole = "",
    degraded: bool = False,
    transport_class: str = NATIVE,
    min_latency_class: str | None = None,
    slower: Mapping[str, str] | None = None,
    unannotated: Unannotated = "infer",
) -> Offering:
    """Build the offering of an upstream: filter and rename its raw lists by its config.

    Never raises: invalid entries are rejected, all others are used.

    Args:
        registered: the role of a subserver. Its invalid names are rejected, not sanitized.
        degraded: the upstream is not reachable, and its tools say so.
        slower: measured latency classes, by the tools' own names.
        unannotated: how tools without conclusive annotations are classified, unless `server` has a
            setting.
    """
    segment = server.segment or key
    prefix = f"{root_segment}.{segment}" if root_segment else segment
    terms = AnnotationTerms(
        server=server,
        transport=transport_class,
        min_latency_class=_slowest_class(server.min_latency_class, min_latency_class),
        measured_classes=slower or {},
        is_degraded=degraded,
        unannotated=unannotated,
    )
    return _read_lists(
        key, segment, prefix, terms, tools, prompts, resources, templates,
        skills=skills, http=http, serves_resources=serves_resources, registered=registered,
    )  # fmt: skip


def read_builtin_offering(root_segment: str | None, tools: Iterable[Raw | bytes]) -> Offering:
    """Build the offering of the node's own tools. They have no segment: their names are bare, after
    the root segment if there is one."""
    terms = AnnotationTerms(ServerConfig(), NATIVE, LATENCY_CLASSES[0], {}, False, is_local=True)
    return _read_lists("", "", root_segment or "", terms, tools, registered="")


def read_contract_offering(
    key: str,
    root_segment: str | None,
    tools: Iterable[Raw | bytes],
    effects: Mapping[str, EffectLevel],
    served_by: Mapping[str, tuple[str, ...]] | None = None,
    digests: Mapping[str, str] | None = None,
    contexts: Mapping[str, Callable[[Any], None]] | None = None,
) -> Offering:
    """Build the offering of contracts. Their ids are their names, including dots.

    Args:
        key: the upstream that handles their calls.
        effects: the effect levels by name.
        served_by: the drivers by name.
        digests: the digests of the contract files by name.
        contexts: checks of the context of a call by name, for contracts that take one.
    """
    terms = AnnotationTerms(ServerConfig(), NATIVE, LATENCY_CLASSES[0], {}, False, levels=effects)
    offering = _read_lists(
        key, "", root_segment or "", terms, tools, registered="", rule=NameRule.DOTTED
    )
    for tool in offering.tools:
        tool.served_by = (served_by or {}).get(tool.upstream_name, ())
        tool.file_digest = (digests or {}).get(tool.upstream_name, "")
        tool.check_context = (contexts or {}).get(tool.upstream_name)
    return offering


def _slowest_class(*classes: str | None) -> str:
    slowest = LATENCY_CLASSES[0]
    for latency_class in classes:
        if latency_class is not None:
            slowest = slower_class(slowest, latency_class)
    return slowest


def _read_lists(
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
    registered: RegisteredRole,
    http: bool = False,
    serves_resources: bool = False,
    rule: NameRule | None = None,
) -> Offering:
    server, is_transparent = terms.server, terms.is_transparent
    rule = rule or _NAME_RULES[registered]
    rejected = {
        kind: RejectedEntries(kind) for kind in ("tool", "prompt", "resource", "template", "skill")
    }
    metadata_problems = RejectedEntries("tool")
    accepted_tools = read_tool_entries(tools, server, rejected["tool"], http=http)
    boilerplate_count = sum(
        is_boilerplate(accepted.definition.annotations) for accepted in accepted_tools
    )
    if boilerplate_count >= MIN_BOILERPLATE_TOOLS:
        terms = terms._replace(has_boilerplate=True)
    upstream_names = [accepted.definition.name for accepted in accepted_tools]
    shown_names = [server.rename.get(name, name) for name in upstream_names]
    assigned_names = names.assign_names(
        list(zip(upstream_names, shown_names, strict=True)),
        prefix,
        allow_bare=is_transparent,
        rule=rule,
    )
    offered_tools = []
    for (definition, members, params), name in _pair_with_names(
        accepted_tools, assigned_names, upstream_names, rejected["tool"]
    ):
        original = rewritable_members(members)
        description = server.descriptions.get(definition.name)
        if description is not None:
            members["description"] = Raw(encode_value(description))
        annotated = annotate(definition, members, terms)
        for problem in annotated.problems:
            metadata_problems.add(definition.name, problem)
        plain_meta = None if is_transparent else without_ax(members)
        if plain_meta is not None:
            members["_meta"] = members.pop("_meta")
        offered_tools.append(
            Tool(
                upstream=key,
                segment=segment,
                upstream_name=definition.name,
                assigned_names=name,
                description=definition.description or "" if description is None else description,
                members=members,
                params=params,
                annotated=annotated,
                prefix=prefix,
                route_members=_encode_route(prefix, definition.name) if registered else b"",
                upstream_members=find_rewritten_members(original, members),
                plain_meta=plain_meta,
                is_drop_counter=terms.is_local
                or ax.is_dropped_counter(definition.name, original.get("_meta", b"")),
            )
        )
    accepted_prompts = read_prompt_entries(prompts, rejected["prompt"])
    upstream_names = [prompt.entry.name for prompt in accepted_prompts]
    assigned_names = names.assign_names(
        list(zip(upstream_names, upstream_names, strict=True)),
        prefix,
        allow_bare=is_transparent,
        rule=rule,
    )
    offered_prompts = [
        Prompt(
            upstream=key,
            segment=segment,
            upstream_name=prompt.entry.name,
            assigned_names=name,
            description=prompt.entry.description or "",
            members=prompt.members,
            prefix=prefix,
        )
        for prompt, name in _pair_with_names(
            accepted_prompts, assigned_names, upstream_names, rejected["prompt"]
        )
    ]
    offered_resources = [
        Resource(resource.uri, _encode_rest(resource.members))
        for resource in read_resource_entries(resources, rejected["resource"])
    ]
    offered_templates = [
        Resource(template.uri, _encode_rest(template.members), read_template(template.uri))
        for template in read_template_entries(templates, rejected["template"])
    ]
    offered_skills = [
        Skill(skill.entry.uri, _encode_rest(skill.members), skill.entry.files)
        for skill in read_skill_entries(skills, rejected["skill"])
    ]
    if not is_transparent:
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
        rejected=tuple(entry for entries in rejected.values() for entry in entries.all()),
        rejected_count=sum(entries.count for entries in rejected.values()),
        metadata_problems=metadata_problems.all(),
        registered=registered,
        is_transparent=is_transparent,
        serves_resources=serves_resources or bool(offered_resources or offered_templates),
        # A renamed tool cannot be called by its old name: that would be an unlisted tool.
        allows_name=lambda name: name not in server.rename and is_tool_included(name, server),
        prefix=prefix,
    )


def _pair_with_names(
    entries: Sequence[T],
    assigned_names: Sequence[Names | str],
    upstream_names: Sequence[str],
    rejected: RejectedEntries,
) -> Iterator[tuple[T, Names]]:
    """Pair the entries with their names, and reject those that got none."""
    for entry, assigned, name in zip(entries, assigned_names, upstream_names, strict=True):
        if isinstance(assigned, str):
            rejected.add(name, assigned)
        else:
            yield entry, assigned


def _encode_route(prefix: str, upstream_name: str) -> bytes:
    """Return the `_meta` members of a route: all segments, and the position of the next node."""
    return ax.encode_route_members(f"{prefix}.{upstream_name}".split("."), prefix.count("."))


def _encode_rest(members: dict[str, Raw]) -> bytes:
    """Return members as they follow a first one: with a leading comma."""
    return b"," + encode_members(members)[1:] if members else b"}"
