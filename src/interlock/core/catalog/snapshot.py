"""The merged namespace as callers see it: immutable, swapped whole when something changes.

Lists are bytes that are made once per (era, style) and kept; a call finds its tool with one
dictionary look-up, whichever form of the name it used. What is not about tools is put together
when somebody asks for it first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from interlock.core.catalog import names
from interlock.core.catalog.names import AX, MAX_OWN, Names
from interlock.core.catalog.offering import (
    CONTRACTS,
    ENDED_CONTRACTS,
    ListedEntry,
    Offering,
    Prompt,
    Tool,
    with_screen,
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

# -- Names of all upstreams together: what a name shows in a list is what it reaches on a call.
#
# Names in lists are given out first, each to one thing; only what is left over serves as another
# spelling. What stands back, as contracts do, gets no name that means something else already.
# Tools have one such namespace, and prompts another.

T = TypeVar("T", bound=ListedEntry)


class Namespace(Generic[T]):
    """Everything of one kind, by each of its names."""

    __slots__ = ("_other_names", "by_name", "everything", "overshadowed")

    def __init__(self, everything: Iterable[T], standing_back: Iterable[T] = ()) -> None:
        # Two upstreams with one segment are a mistake of the config. Nothing is shown twice.
        by_canonical: dict[str, T] = {}
        for one in everything:
            by_canonical.setdefault(one.canonical, one)
        self.everything: tuple[T, ...] = tuple(by_canonical.values())
        self.by_name: dict[str, T] = {}
        self._other_names: dict[tuple[T, str], str] = {}
        self._give_names()
        self.overshadowed: dict[T, T] = {}
        """What is not to be had, because a name of it belongs to something else, and to what."""
        self._let_in(standing_back)

    def _let_in(self, standing_back: Iterable[T]) -> None:
        let_in: dict[str, T] = {}
        for one in standing_back:
            other = self.by_name.get(one.canonical) or self.by_name.get(one.safe_name)
            if other is None:
                let_in.setdefault(one.canonical, one)
            else:
                self.overshadowed[one] = other
        self.everything += tuple(let_in.values())
        for style in (names.DOTTED, names.SAFE):
            for one in let_in.values():
                self._claim(one, style)

    def _give_names(self) -> None:
        by_name = self.by_name
        shown_as_themselves, own = [], []
        for one in self.everything:
            if one.transparent_name is not None:
                shown_as_themselves.append(one)
            elif one.segment:
                by_name[one.canonical] = one
            else:
                own.append(one)
        # The node's own have no prefix either, and stand back behind whoever is shown as itself.
        for one in (*shown_as_themselves, *own):
            self._claim(one, names.DOTTED)
        for one in self.everything:
            self._claim(one, names.SAFE)
        for one in self.everything:
            by_name.setdefault(one.canonical, one)
            by_name.setdefault(one.safe_name, one)
        for one in self.everything:
            if one.alias is not None:
                by_name.setdefault(one.alias, one)

    def _claim(self, one: T, style: str) -> None:
        """Give it its name in lists of this style: another one if that is taken."""
        first = name = one.shown_as(style)
        attempt = 0
        while self.by_name.setdefault(name, one) is not one:
            attempt += 1
            name = names.hashed(first, f"{one.canonical} {attempt}")
        if attempt:
            self._other_names[one, style] = name

    def shown_as(self, one: T, style: str) -> str:
        """Its name in the lists of clients with this name style."""
        claimed = names.SAFE if style == names.SAFE else names.DOTTED
        return self._other_names.get((one, claimed)) or one.shown_as(style)


_STANDING_BACK: Final = (CONTRACTS, ENDED_CONTRACTS)
"""Whoever writes a file into a workspace must not take over a tool that a server has."""
_NOBODY: Final = frozenset[str]()
_MOST_VIEWS: Final = 64
"""So many lists of callers who do not see everything are kept."""


class View(NamedTuple):
    """What somebody sees who does not see every tool."""

    key: Hashable
    """The same for all who see the same."""
    sees: Callable[[Tool], bool]


class Snapshot:
    """One state of the catalog."""

    __slots__ = (
        "_awaiting", "_named", "_offerings", "_pages", "_paging", "_prompts", "_uris", "_views",
        "by_name", "number", "plain_tools", "tools",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        offerings: Iterable[Offering],
        *,
        page_size: int,
        server_info: bytes,
        key: bytes,
        withheld: Mapping[str, frozenset[str]] | None = None,
        expected: Mapping[str, str] | None = None,
    ) -> None:
        """`withheld`: by upstream, canonical names of tools that are found but are in no list.
        `expected`: servers that are to come, and what their names begin with: until they are there,
        nobody knows which of these are theirs."""
        self.number = number
        self._offerings = sorted(offerings, key=lambda one: (one.segment, one.upstream))
        first = (one for one in self._offerings if one.upstream not in _STANDING_BACK)
        then = (one for one in self._offerings if one.upstream in _STANDING_BACK)
        standing_back = [tool for one in then for tool in one.tools]
        self._awaiting: dict[Tool, str] = {}
        if expected and standing_back:
            self._awaiting = _awaiting(standing_back, expected)
            standing_back = [tool for tool in standing_back if tool not in self._awaiting]
        self._named = Namespace((tool for one in first for tool in one.tools), standing_back)
        self.tools: tuple[Tool, ...] = self._named.everything
        """Those that are listed."""
        if withheld:
            self.tools = tuple(
                tool for tool in self.tools
                if tool.canonical not in withheld.get(tool.upstream, _NOBODY)
            )  # fmt: skip
        self.plain_tools = tuple(tool for tool in self.tools if not tool.counter)
        """Those that are listed to clients that do not speak MCP-AX: what people count."""
        self.by_name: dict[str, Tool] = self._named.by_name
        self._paging = PageSettings(size=page_size, server_info=server_info, key=key)
        self._prompts: Namespace[Prompt] | None = None
        self._uris: UriTable | None = None
        self._pages: dict[tuple[str, bool], Pages[Any]] = {}
        self._views: BoundedDict[Hashable, Pages[Any]] = BoundedDict(_MOST_VIEWS)

    # -- tools and prompts

    def resolve(self, name: str) -> Tool | None:
        """The tool that `name` means, in any of the forms that are accepted."""
        return self.by_name.get(name)

    def shown_as(self, tool: Tool, style: str) -> str:
        """The name of a tool in the lists of clients with this name style."""
        return self._named.shown_as(tool, style)

    def names(self) -> Iterable[str]:
        """Every name that a call of a tool may use."""
        return self.by_name.keys()

    def set_aside(self) -> Iterator[tuple[Tool, str]]:
        """Contracts that are not offered, because something else has a name of theirs, or may have
        it, and why."""
        yield from self.overshadowed()
        for one, server in self._awaiting.items():
            if one.upstream == CONTRACTS:
                yield one, f"the server {server} is not there, and may have a tool of this name."

    def overshadowed(self) -> Iterator[tuple[Tool, str]]:
        """Those of them whose name something else has."""
        for one, other in self._named.overshadowed.items():
            whose = f"the server {other.upstream}" if other.upstream else "the node itself"
            if one.upstream == CONTRACTS:
                yield one, f"{whose} has {other.canonical}; give the contract another id."

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        return self._prompt_names.everything

    def prompt(self, name: str) -> Prompt | None:
        """The prompt that `name` means, in any of the forms that are accepted.

        What nobody lists is for the upstream that is shown as itself, if there is one, to judge.
        """
        found = self._prompt_names.by_name.get(name)
        if found is not None or not name or len(name) > MAX_OWN:
            return found
        for one in self._offerings:
            if one.transparent:
                return Prompt(
                    upstream=one.upstream,
                    segment=one.segment,
                    upstream_name=name,
                    called=Names(name, name, name),
                    description="",
                    members={},
                )
        return None

    @property
    def _prompt_names(self) -> Namespace[Prompt]:
        if self._prompts is None:
            self._prompts = Namespace(each for one in self._offerings for each in one.prompts)
        return self._prompts

    # -- resources

    @property
    def uris(self) -> UriTable:
        if self._uris is None:
            self._uris = UriTable(self._offerings)
        return self._uris

    def resource(self, uri: str) -> ResourceRoute | None:
        """Where a client's URI leads. Raises InterlockError when it could lead to several."""
        return self.uris.resource(uri)

    def shown_uri(self, upstream: str, own_uri: str) -> str:
        """How clients see a URI of this upstream."""
        return self.uris.shown_uri(upstream, own_uri)

    def colliding(self, upstream: str) -> bool:
        """Whether anything that this upstream lists is shown under another URI than its own."""
        return self.uris.colliding(upstream)

    @property
    def collides(self) -> bool:
        """Whether that is so for any upstream."""
        # Not even looked at where nobody has a resource.
        return any(
            one.resources
            or one.templates
            or one.skills
            or any(tool.screen is not None for tool in one.tools)
            for one in self._offerings
        ) and bool(self.uris.all_colliding)

    # -- lists

    def page(
        self, verb: str, era: Era, style: str, cursor: str | None = None, view: View | None = None
    ) -> bytes:
        """The result of one of the four lists, ready to be sent. Raises InterlockError for a
        cursor that leads nowhere. `view`: who asks does not see every tool.
        """
        ax = style == AX
        if view is not None and verb == TOOLS_LIST:
            return self._viewed(view, ax).page(era, style, cursor)
        pages = self._pages.get((verb, ax))
        if pages is None:
            pages = self._pages[verb, ax] = self._paged(verb, ax)
        # URIs have no styles.
        return pages.page(era, style if verb in (TOOLS_LIST, PROMPTS_LIST) else "", cursor)

    def _viewed(self, view: View, ax: bool) -> Pages[Any]:
        pages = self._views.get((view.key, ax))
        if pages is None:
            tools = self.tools if ax else self.plain_tools
            seen = tuple(tool for tool in tools if view.sees(tool))
            pages = self._views[view.key, ax] = self._paged_tools(seen)
        return pages

    def _paged_tools(self, tools: tuple[Tool, ...]) -> Pages[Any]:
        return Pages(
            TOOLS_LIST, tools, identity=_canonical, line=self._tool_line,
            paging=self._paging,
        )  # fmt: skip

    def _paged(self, verb: str, ax: bool) -> Pages[Any]:
        if verb == TOOLS_LIST:
            return self._paged_tools(self.tools if ax else self.plain_tools)
        if verb == PROMPTS_LIST:
            named = self._prompt_names
            return Pages(
                verb, self.prompts, identity=_canonical, paging=self._paging,
                line=lambda prompt, era, style: _line(
                    b"name", named.shown_as(prompt, style), prompt.listed_in(era, style)
                ),
            )  # fmt: skip
        if verb == RESOURCES_LIST:
            return self._paged_uris(verb, b"uri", self.uris.resources)
        if verb == SKILLS_LIST:
            return self._paged_uris(verb, b"uri", self.uris.skills)
        if verb == TEMPLATES_LIST:
            return self._paged_uris(verb, b"uriTemplate", self.uris.templates)
        raise ValueError(f"{verb} is not a list")

    def _paged_uris(
        self, verb: str, first: bytes, shown: tuple[ShownResource, ...]
    ) -> Pages[ShownResource]:
        return Pages(
            verb, shown, identity=lambda one: one.identity, paging=self._paging,
            line=lambda one, _era, _style: _line(first, one.uri, one.listed),
        )  # fmt: skip

    def _tool_line(self, tool: Tool, era: Era, style: str) -> bytes:
        listed = tool.listed_in(era, style)
        if tool.screen is not None:
            shown = self.shown_uri(tool.upstream, tool.screen)
            if shown != tool.screen:
                listed = with_screen(listed, tool.screen, shown)
        return _line(b"name", self._named.shown_as(tool, style), listed)


def _awaiting(tools: Iterable[Tool], expected: Mapping[str, str]) -> dict[Tool, str]:
    """Those whose names may be of a server that is to come, and of which."""
    found: dict[Tool, str] = {}
    for tool in tools:
        # In all spellings: see `Namespace`.
        name = tool.canonical.replace("__", ".")
        for server, prefix in expected.items():
            if not prefix or name.startswith(prefix.replace("__", ".") + "."):
                found.setdefault(tool, server)
    return found


def _canonical(one: ListedEntry) -> str:
    return one.canonical


def _line(first: bytes, value: str, rest: bytes) -> bytes:
    return b'{"%b":%b%b' % (first, encode_value(value), rest)
