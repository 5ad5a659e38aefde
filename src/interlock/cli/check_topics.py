"""What `interlock check` doubts about topics: seats of callers that nobody is, and rooms into which
nobody comes. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Final

from interlock.config import Config
from interlock.config.topics import TopicConfig

Doubt = tuple[tuple[str | int, ...], str, str]
_LOCAL: Final = "local"
_GLOB: Final = frozenset("*?[")
_MCP: Final = ("request", "response", "proposal")


def topic_doubts(config: Config) -> Iterator[Doubt]:
    """Callers, administrators and upstreams that no token names, where tokens name all callers; and
    capabilities that let nobody say anything of MCP."""
    for name, topic in config.topics.rooms.items():
        yield from _capabilities(name, topic)
        yield from _closed(name, topic)
    identity = config.identity
    if not config.tokens or identity.issuers or identity.introspection:
        # Others know who comes.
        return
    callers = {_LOCAL, *(one.name for one in config.tokens)}
    callers |= {one.name for one in identity.certificates}
    yield from _strangers(("topics", "admins"), config.topics.admins, callers)
    for name, topic in config.topics.rooms.items():
        at = ("topics", "rooms", name)
        for number, seat in enumerate(topic.seats):
            yield from _strangers((*at, "seats", number, "callers"), seat.callers, callers)
        if topic.node is not None and topic.node in callers and _by_own_name(topic.node, topic):
            what = f"a caller is called {topic.node}, too, and cannot come in under that name"
            yield (*at, "node"), what, "give its seat another id, or call the node something else"
        ids = callers | {seat.id for seat in topic.seats if seat.id is not None}
        for id in topic.upstreams:
            if id not in ids:
                what = f"nobody is called {id} there: no token and no seat names it"
                yield (*at, "upstreams", id), what, _hint(id, ids)


def _strangers(
    path: tuple[str | int, ...], globs: Iterable[str], known: set[str]
) -> Iterator[Doubt]:
    for number, glob in enumerate(globs):
        if any(fnmatchcase(one, glob) for one in known):
            continue
        fits = "fits" if _GLOB & {*glob} else "names"
        yield (*path, number), f"no token of this config {fits} {glob}", _hint(glob, known)


def _hint(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    if close:
        return f'did you mean "{close[0]}"?'
    return "correct it, unless a token of `interlock token` names it"


def _by_own_name(caller: str, topic: TopicConfig) -> bool:
    """Whether this caller, if it may come in at all, does so under its own name."""
    for seat in topic.seats:
        if any(fnmatchcase(caller, glob) for glob in seat.callers):
            return seat.id is None
    return topic.access != "restricted"


def _closed(name: str, topic: TopicConfig) -> Iterator[Doubt]:
    if topic.access == "restricted" and not topic.seats:
        what = "nobody has a seat here, and only who has one comes in"
        hint = "write seats: [{callers: [NAME], profile: full_access}], or access: private"
        yield ("topics", "rooms", name), what, hint


def _capabilities(name: str, topic: TopicConfig) -> Iterator[Doubt]:
    for number, seat in enumerate(topic.seats):
        for index, pattern in enumerate(seat.capabilities):
            doubt = pattern_doubt(pattern)
            if doubt is not None:
                yield ("topics", "rooms", name, "seats", number, "capabilities", index), *doubt


def pattern_doubt(pattern: str) -> tuple[str, str] | None:
    """What is odd about a capability that seems to be of MCP, and how it is written."""
    family, slash, rest = pattern.partition("/")
    action = rest.partition(":")[0].partition("/")[0]
    if family != "mcp" or "*" in action or (slash and action in _MCP):
        return None
    hint = "write mcp/request:…, mcp/proposal:…, mcp/response:… or mcp/*"
    return f"no message is of the kind {pattern}", hint
