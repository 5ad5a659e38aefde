"""The merged namespace as callers see it: immutable, and replaced as a whole after a change.

Lists are encoded once per protocol generation and name style. A call finds its tool with one
dictionary lookup, by any form of the name. Everything except tools is built on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from interlock.core.catalog import names
from interlock.core.catalog.names import AX, MAX_UPSTREAM_NAME_LENGTH, Names
from interlock.core.catalog.offering import (
    CONTRACTS,
    ENDED_CONTRACTS,
    ListedEntry,
    Offering,
    Prompt,
    Tool,
    replace_ui_resource,
)
from interlock.core.catalog.pages import Pages, PageSettings
from interlock.core.catalog.uris import ResourceRoute, ShownResource, UriTable
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import (
    PROMPTS_LIST,
    RESOURCES_LIST,
    SKILLS_LIST,
    TEMPLATES_LIST,
    TOOLS_LIST,
    Era,
)

# -- Names of all upstreams: a name in a list and in a call means the same.
#
# Names in lists are assigned first, each to one entry. Remaining names serve as alternative
# spellings. Entries with low priority, such as contracts, get no name that is taken.
# Tools and prompts have separate namespaces.

T = TypeVar("T", bound=ListedEntry)


class Namespace(Generic[T]):
    """All entries of one kind, by each of their names."""

    __slots__ = ("_replaced_names", "by_name", "entries", "shadowed")

    def __init__(self, entries: Iterable[T], low_priority: Iterable[T] = ()) -> None:
        # Two upstreams with one segment are a config mistake. No name is listed twice.
        by_canonical: dict[str, T] = {}
        for entry in entries:
            by_canonical.setdefault(entry.canonical, entry)
        self.entries: tuple[T, ...] = tuple(by_canonical.values())
        self.by_name: dict[str, T] = {}
        self._replaced_names: dict[tuple[T, str], str] = {}
        self._assign_names()
        self.shadowed: dict[T, T] = {}
        """Entries that are not available because a name of theirs is taken, and by which entry."""
        self._add_low_priority(low_priority)

    def _add_low_priority(self, low_priority: Iterable[T]) -> None:
        added: dict[str, T] = {}
        for entry in low_priority:
            owner = self.by_name.get(entry.canonical) or self.by_name.get(entry.safe_name)
            if owner is None:
                added.setdefault(entry.canonical, entry)
            else:
                self.shadowed[entry] = owner
        self.entries += tuple(added.values())
        for style in (names.DOTTED, names.SAFE):
            for entry in added.values():
                self._claim(entry, style)

    def _assign_names(self) -> None:
        by_name = self.by_name
        transparent, builtin = [], []
        for entry in self.entries:
            if entry.transparent_name is not None:
                transparent.append(entry)
            elif entry.segment:
                by_name[entry.canonical] = entry
            else:
                builtin.append(entry)
        # Built-in entries have no prefix either, and rank behind an upstream shown as itself.
        for entry in (*transparent, *builtin):
            self._claim(entry, names.DOTTED)
        for entry in self.entries:
            self._claim(entry, names.SAFE)
        for entry in self.entries:
            by_name.setdefault(entry.canonical, entry)
            by_name.setdefault(entry.safe_name, entry)
        for entry in self.entries:
            if entry.alias is not None:
                by_name.setdefault(entry.alias, entry)

    def _claim(self, entry: T, style: str) -> None:
        """Assign the name in lists of this style, or another one if it is taken."""
        requested = name = entry.name_in_list(style)
        attempt = 0
        while self.by_name.setdefault(name, entry) is not entry:
            attempt += 1
            name = names.add_hash(requested, f"{entry.canonical} {attempt}")
        if attempt:
            self._replaced_names[entry, style] = name

    def name_in_list(self, entry: T, style: str) -> str:
        """Return the name in the lists of clients with this name style."""
        claimed_style = names.SAFE if style == names.SAFE else names.DOTTED
        return self._replaced_names.get((entry, claimed_style)) or entry.name_in_list(style)


_LOW_PRIORITY_UPSTREAMS: Final = (CONTRACTS, ENDED_CONTRACTS)
"""A file in a workspace must not take over a tool that a server has."""
_NO_NAMES: Final = frozenset[str]()
_MAX_CACHED_VIEWS: Final = 64
"""The number of cached lists for callers that do not see all tools."""


class View(NamedTuple):
    """The part of the tools that some callers see."""

    key: Hashable
    """Equal for all callers with the same view."""
    includes: Callable[[Tool], bool]


class Snapshot:
    """One state of the catalog."""

    __slots__ = (
        "_offerings", "_pages", "_paging", "_prompts", "_reserved", "_tool_names", "_uris",
        "_views", "by_name", "number", "plain_tools", "tools",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        offerings: Iterable[Offering],
        *,
        page_size: int,
        server_info: bytes,
        key: bytes,
        hidden: Mapping[str, frozenset[str]] | None = None,
        reserved_prefixes: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            hidden: by upstream, canonical names of tools that can be found but are not listed.
            reserved_prefixes: name prefixes of servers that are not connected yet. Their tools are
                unknown, so contracts get no such names.
        """
        self.number = number
        self._offerings = sorted(
            offerings, key=lambda offering: (offering.segment, offering.upstream)
        )
        regular = (
            offering
            for offering in self._offerings
            if offering.upstream not in _LOW_PRIORITY_UPSTREAMS
        )
        low_priority_offerings = (
            offering for offering in self._offerings if offering.upstream in _LOW_PRIORITY_UPSTREAMS
        )
        low_priority = [tool for offering in low_priority_offerings for tool in offering.tools]
        self._reserved: dict[Tool, str] = {}
        if reserved_prefixes and low_priority:
            self._reserved = _find_reserved(low_priority, reserved_prefixes)
            low_priority = [tool for tool in low_priority if tool not in self._reserved]
        self._tool_names = Namespace(
            (tool for offering in regular for tool in offering.tools), low_priority
        )
        self.tools: tuple[Tool, ...] = self._tool_names.entries
        """The listed tools."""
        if hidden:
            self.tools = tuple(
                tool for tool in self.tools
                if tool.canonical not in hidden.get(tool.upstream, _NO_NAMES)
            )  # fmt: skip
        self.plain_tools = tuple(tool for tool in self.tools if not tool.is_drop_counter)
        """The tools that clients without MCP-AX support see, and that people count."""
        self.by_name: dict[str, Tool] = self._tool_names.by_name
        self._paging = PageSettings(size=page_size, server_info=server_info, key=key)
        self._prompts: Namespace[Prompt] | None = None
        self._uris: UriTable | None = None
        self._pages: dict[tuple[str, bool], Pages[Any]] = {}
        self._views: BoundedDict[Hashable, Pages[Any]] = BoundedDict(_MAX_CACHED_VIEWS)

    # -- tools and prompts

    def resolve(self, name: str) -> Tool | None:
        """Return the tool with this name, in any accepted form."""
        return self.by_name.get(name)

    def name_in_list(self, tool: Tool, style: str) -> str:
        """Return the name of a tool in the lists of clients with this name style."""
        return self._tool_names.name_in_list(tool, style)

    def names(self) -> Iterable[str]:
        """Return all names that a call may use."""
        return self.by_name.keys()

    def contracts_not_offered(self) -> Iterator[tuple[Tool, str]]:
        """Return the contracts that are not offered because a name is taken or reserved, with the
        reason."""
        yield from self.shadowed_contracts()
        for contract, server in self._reserved.items():
            if contract.upstream == CONTRACTS:
                yield (
                    contract,
                    f"the server {server} is not connected, and may have a tool of this name.",
                )

    def shadowed_contracts(self) -> Iterator[tuple[Tool, str]]:
        """Return the contracts whose name is taken, with the reason."""
        for contract, owner in self._tool_names.shadowed.items():
            owner_name = f"the server {owner.upstream}" if owner.upstream else "the node itself"
            if contract.upstream == CONTRACTS:
                yield contract, f"{owner_name} has {owner.canonical}; give the contract another id."

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        return self._prompt_names.entries

    def prompt(self, name: str) -> Prompt | None:
        """Return the prompt with this name, in any accepted form.

        Unlisted names go to the upstream that is shown as itself, if there is one.
        """
        prompt = self._prompt_names.by_name.get(name)
        if prompt is not None or not name or len(name) > MAX_UPSTREAM_NAME_LENGTH:
            return prompt
        for offering in self._offerings:
            if offering.is_transparent:
                return Prompt(
                    upstream=offering.upstream,
                    segment=offering.segment,
                    upstream_name=name,
                    assigned_names=Names(name, name, name),
                    description="",
                    members={},
                )
        return None

    @property
    def _prompt_names(self) -> Namespace[Prompt]:
        if self._prompts is None:
            self._prompts = Namespace(
                prompt for offering in self._offerings for prompt in offering.prompts
            )
        return self._prompts

    # -- resources

    @property
    def uris(self) -> UriTable:
        if self._uris is None:
            self._uris = UriTable(self._offerings)
        return self._uris

    def resource(self, uri: str) -> ResourceRoute | None:
        """Return the upstream of a client's URI. Raises InterlockError if there are several."""
        return self.uris.resource(uri)

    def shown_uri(self, upstream: str, upstream_uri: str) -> str:
        """Return the form in which clients see a URI of this upstream."""
        return self.uris.shown_uri(upstream, upstream_uri)

    def has_collisions(self, upstream: str) -> bool:
        """Return whether a listed URI of this upstream is shown in another form."""
        return self.uris.has_collisions(upstream)

    @property
    def has_uri_collisions(self) -> bool:
        """True if this is the case for any upstream."""
        # The URI table is not built if no upstream has resources.
        return any(
            offering.resources
            or offering.templates
            or offering.skills
            or any(tool.ui_resource is not None for tool in offering.tools)
            for offering in self._offerings
        ) and bool(self.uris.colliding_upstreams)

    # -- lists

    def page(
        self, method: str, era: Era, style: str, cursor: str | None = None, view: View | None = None
    ) -> bytes:
        """Return the encoded result of a list method. Raises InterlockError for an invalid cursor.

        Args:
            view: the view of a caller that does not see all tools.
        """
        with_ax = style == AX
        if view is not None and method == TOOLS_LIST:
            return self._pages_of_view(view, with_ax).page(era, style, cursor)
        pages = self._pages.get((method, with_ax))
        if pages is None:
            pages = self._pages[method, with_ax] = self._create_pages(method, with_ax)
        # URIs do not depend on the name style.
        return pages.page(era, style if method in (TOOLS_LIST, PROMPTS_LIST) else "", cursor)

    def _pages_of_view(self, view: View, with_ax: bool) -> Pages[Any]:
        pages = self._views.get((view.key, with_ax))
        if pages is None:
            tools = self.tools if with_ax else self.plain_tools
            visible_tools = tuple(tool for tool in tools if view.includes(tool))
            pages = self._views[view.key, with_ax] = self._create_tool_pages(visible_tools)
        return pages

    def _create_tool_pages(self, tools: tuple[Tool, ...]) -> Pages[Any]:
        return Pages(
            TOOLS_LIST, tools, identity=_canonical, encode_line=self._encode_tool,
            paging=self._paging,
        )  # fmt: skip

    def _create_pages(self, method: str, with_ax: bool) -> Pages[Any]:
        if method == TOOLS_LIST:
            return self._create_tool_pages(self.tools if with_ax else self.plain_tools)
        if method == PROMPTS_LIST:
            prompt_names = self._prompt_names
            return Pages(
                method, self.prompts, identity=_canonical, paging=self._paging,
                encode_line=lambda prompt, era, style: _encode_entry(
                    b"name", prompt_names.name_in_list(prompt, style), prompt.encode_for(era, style)
                ),
            )  # fmt: skip
        if method == RESOURCES_LIST:
            return self._create_uri_pages(method, b"uri", self.uris.resources)
        if method == SKILLS_LIST:
            return self._create_uri_pages(method, b"uri", self.uris.skills)
        if method == TEMPLATES_LIST:
            return self._create_uri_pages(method, b"uriTemplate", self.uris.templates)
        raise ValueError(f"{method} is not a list")

    def _create_uri_pages(
        self, method: str, uri_member: bytes, resources: tuple[ShownResource, ...]
    ) -> Pages[ShownResource]:
        return Pages(
            method, resources, identity=lambda resource: resource.identity, paging=self._paging,
            encode_line=lambda resource, _era, _style: _encode_entry(
                uri_member, resource.uri, resource.listed
            ),
        )  # fmt: skip

    def _encode_tool(self, tool: Tool, era: Era, style: str) -> bytes:
        listed = tool.encode_for(era, style)
        if tool.ui_resource is not None:
            shown_uri = self.shown_uri(tool.upstream, tool.ui_resource)
            if shown_uri != tool.ui_resource:
                listed = replace_ui_resource(listed, tool.ui_resource, shown_uri)
        return _encode_entry(b"name", self._tool_names.name_in_list(tool, style), listed)


def _find_reserved(tools: Iterable[Tool], reserved_prefixes: Mapping[str, str]) -> dict[Tool, str]:
    """Return the contracts whose names are reserved, with the server that reserved them."""
    reserved: dict[Tool, str] = {}
    for tool in tools:
        # All spellings are compared: see `Namespace`.
        name = tool.canonical.replace("__", ".")
        for server, prefix in reserved_prefixes.items():
            if not prefix or name.startswith(prefix.replace("__", ".") + "."):
                reserved.setdefault(tool, server)
    return reserved


def _canonical(entry: ListedEntry) -> str:
    return entry.canonical


def _encode_entry(member: bytes, value: str, rest: bytes) -> bytes:
    return b'{"%b":%b%b' % (member, encode_value(value), rest)
