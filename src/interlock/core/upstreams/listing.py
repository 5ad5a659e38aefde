"""Reads everything that an upstream offers: its tools, prompts, resources, templates and skills.

Only what it says that it has is asked for, everything at once. Trouble with one list never hides
the others; whoever asks learns what could not be read.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from interlock.core.call import UpstreamResponseError
from interlock.core.upstreams.client import UpstreamClient
from interlock.errors import UPSTREAM_PROTOCOL, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol import mcp

KINDS: Final = frozenset({"tools", "prompts", "resources"})
"""What an upstream announces to be new. Templates go with the resources."""

_MOST_PAGES: Final = 500
_MOST_ENTRIES: Final = 20_000
"""Twice what a catalog shows of one upstream: no further page is asked for then."""
_METHOD_NOT_FOUND: Final = -32601


class _List(NamedTuple):
    """One of the lists."""

    kind: str
    verb: str
    words: str


_LISTS: Final = {
    "tools": _List("tools", mcp.TOOLS_LIST, "tools"),
    "prompts": _List("prompts", mcp.PROMPTS_LIST, "prompts"),
    "resources": _List("resources", mcp.RESOURCES_LIST, "resources"),
    "templates": _List("resources", mcp.TEMPLATES_LIST, "resource templates"),
    "skills": _List("resources", mcp.SKILLS_LIST, "skills"),
}
"""By what they are called in an offer."""


class RawOffering(msgspec.Struct, frozen=True):
    """What an upstream lists, as it came."""

    tools: list[Raw] = []
    prompts: list[Raw] = []
    resources: list[Raw] = []
    templates: list[Raw] = []
    skills: list[Raw] = []
    problems: dict[str, InterlockError] = {}
    """Which lists could not be read, and why: they are what they were before."""


async def list_tools(peer: UpstreamClient, *, timeout: float) -> list[Raw]:
    """Every tool that the upstream lists. Raises InterlockError."""
    return (await list_offer(peer, timeout=timeout, kinds=frozenset({"tools"}))).tools


async def list_offer(
    peer: UpstreamClient,
    *,
    timeout: float,
    kinds: frozenset[str] = KINDS,
    before: RawOffering | None = None,
) -> RawOffering:
    """Everything the upstream lists, page by page.

    Of what is not asked for (`kinds`) or cannot be read, the offer has what it had `before`.
    Raises InterlockError when nothing that was asked for could be read.
    """
    before = before or RawOffering()
    # A list that could not be read the last time is out of date, whatever is new now.
    wanted = kinds | {_LISTS[name].kind for name in before.problems}
    asked = {
        name: one
        for name, one in _LISTS.items()
        if one.kind in wanted and peer.capabilities.get(one.kind) not in (None, False)
        if _is_declared(peer, one.verb)
    }
    answers = await asyncio.gather(*(_read(peer, one, timeout) for one in asked.values()))
    # What the upstream no longer says that it has is gone.
    read: dict[str, list[Raw]] = {
        name: [] if one.kind in wanted else getattr(before, name) for name, one in _LISTS.items()
    }
    problems: dict[str, InterlockError] = {}
    for name, answer in zip(asked, answers, strict=True):
        if isinstance(answer, InterlockError):
            problems[name] = answer
            read[name] = getattr(before, name)
        else:
            read[name] = answer
    if problems and len(problems) == len(asked):
        raise next(iter(problems.values()))
    return RawOffering(**read, problems=problems)


def _is_declared(peer: UpstreamClient, verb: str) -> bool:
    extension = mcp.METHODS[verb].extension
    return not extension or mcp.declares_capability(peer.capabilities, extension=extension)


async def _read(peer: UpstreamClient, one: _List, timeout: float) -> list[Raw] | InterlockError:
    """One list, or why it could not be read."""
    try:
        async with asyncio.timeout(timeout):
            return await _read_pages(peer, one)
    except TimeoutError:
        return InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"{peer.label} did not list its {one.words} within {timeout:g} s.",
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return InterlockError(
            UPSTREAM_PROTOCOL, f"{peer.label} answered `{one.verb}` with nonsense: {exc}."
        )
    except UpstreamResponseError as error:
        if error.code == _METHOD_NOT_FOUND:
            return []
        return InterlockError(
            UPSTREAM_PROTOCOL, f"{peer.label} could not list its {one.words}: {error.message}"
        )
    except InterlockError as error:
        return error


class _Cursor(msgspec.Struct, gc=False, rename="camel"):
    next_cursor: str | None = None


_decode_cursor = msgspec.json.Decoder(_Cursor).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_entries = msgspec.json.Decoder(list[Raw]).decode


async def _read_pages(peer: UpstreamClient, one: _List) -> list[Raw]:
    entries: list[Raw] = []
    seen: set[str] = set()
    params: dict[str, Any] = {}
    member = mcp.METHODS[one.verb].lists
    for _ in range(_MOST_PAGES):
        result = (await peer.request(one.verb, params)).result
        page = _decode_members(result).get(member)
        if page is not None:
            entries += _decode_entries(page)
        # An empty cursor is a cursor; only none at all is the end.
        cursor = _decode_cursor(result).next_cursor
        if cursor is None or cursor in seen or len(entries) > _MOST_ENTRIES:
            break
        seen.add(cursor)
        params = {"cursor": cursor}
    return entries
