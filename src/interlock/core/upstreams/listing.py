"""Reading everything that an upstream lists: tools, prompts, resources, templates and skills.

Only the lists that the upstream declares are requested, all at once. An error in one list does not
affect the others and is part of the result.
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
"""The kinds whose changes an upstream announces. Templates and skills belong to resources."""

_MAX_PAGES: Final = 500
_MAX_ENTRIES: Final = 20_000
"""Twice the number of entries that a catalog shows of one upstream. Then no further page is read.
"""
_METHOD_NOT_FOUND: Final = -32601


class _Listing(NamedTuple):
    """One of the lists of an upstream."""

    kind: str
    method: str
    label: str


_LISTS: Final = {
    "tools": _Listing("tools", mcp.TOOLS_LIST, "tools"),
    "prompts": _Listing("prompts", mcp.PROMPTS_LIST, "prompts"),
    "resources": _Listing("resources", mcp.RESOURCES_LIST, "resources"),
    "templates": _Listing("resources", mcp.TEMPLATES_LIST, "resource templates"),
    "skills": _Listing("resources", mcp.SKILLS_LIST, "skills"),
}
"""By their field in `RawOffering`."""


class RawOffering(msgspec.Struct, frozen=True):
    """The lists of an upstream, undecoded."""

    tools: list[Raw] = []
    prompts: list[Raw] = []
    resources: list[Raw] = []
    templates: list[Raw] = []
    skills: list[Raw] = []
    problems: dict[str, InterlockError] = {}
    """The lists that could not be read, with the reason. They keep their previous entries."""


async def list_tools(upstream_client: UpstreamClient, *, timeout: float) -> list[Raw]:
    """Return all tools of an upstream. Raises InterlockError."""
    return (await list_offering(upstream_client, timeout=timeout, kinds=frozenset({"tools"}))).tools


async def list_offering(
    upstream_client: UpstreamClient,
    *,
    timeout: float,
    kinds: frozenset[str] = KINDS,
    before: RawOffering | None = None,
) -> RawOffering:
    """Read the lists of an upstream, page by page.

    Args:
        kinds: the kinds to read.
        before: the previous lists, for kinds that are not read or fail.

    Raises:
        InterlockError: no requested list could be read.
    """
    before = before or RawOffering()
    # A list that failed the last time is read again, too.
    requested_kinds = kinds | {_LISTS[name].kind for name in before.problems}
    requested = {
        name: listing
        for name, listing in _LISTS.items()
        if listing.kind in requested_kinds
        and upstream_client.capabilities.get(listing.kind) not in (None, False)
        if _is_declared(upstream_client, listing.method)
    }
    results = await asyncio.gather(
        *(_read(upstream_client, listing, timeout) for listing in requested.values())
    )
    # Lists that the upstream no longer declares become empty.
    read: dict[str, list[Raw]] = {
        name: [] if listing.kind in requested_kinds else getattr(before, name)
        for name, listing in _LISTS.items()
    }
    problems: dict[str, InterlockError] = {}
    for name, result in zip(requested, results, strict=True):
        if isinstance(result, InterlockError):
            problems[name] = result
            read[name] = getattr(before, name)
        else:
            read[name] = result
    if problems and len(problems) == len(requested):
        raise next(iter(problems.values()))
    return RawOffering(**read, problems=problems)


def _is_declared(upstream_client: UpstreamClient, method: str) -> bool:
    extension = mcp.METHODS[method].extension
    return not extension or mcp.declares_capability(
        upstream_client.capabilities, extension=extension
    )


async def _read(
    upstream_client: UpstreamClient, listing: _Listing, timeout: float
) -> list[Raw] | InterlockError:
    """Return the entries of one list, or the error."""
    try:
        async with asyncio.timeout(timeout):
            return await _read_pages(upstream_client, listing)
    except TimeoutError:
        return InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"{upstream_client.label} did not list its {listing.label} within {timeout:g} s.",
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return InterlockError(
            UPSTREAM_PROTOCOL,
            f"{upstream_client.label} sent an invalid result of `{listing.method}`: {exc}.",
        )
    except UpstreamResponseError as error:
        if error.code == _METHOD_NOT_FOUND:
            return []
        return InterlockError(
            UPSTREAM_PROTOCOL,
            f"{upstream_client.label} could not list its {listing.label}: {error.message}",
        )
    except InterlockError as error:
        return error


class _Cursor(msgspec.Struct, gc=False, rename="camel"):
    next_cursor: str | None = None


_decode_cursor = msgspec.json.Decoder(_Cursor).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_entries = msgspec.json.Decoder(list[Raw]).decode


async def _read_pages(upstream_client: UpstreamClient, listing: _Listing) -> list[Raw]:
    entries: list[Raw] = []
    seen: set[str] = set()
    params: dict[str, Any] = {}
    member = mcp.METHODS[listing.method].lists
    for _ in range(_MAX_PAGES):
        result = (await upstream_client.request(listing.method, params)).result
        page = _decode_members(result).get(member)
        if page is not None:
            entries += _decode_entries(page)
        # An empty cursor is a cursor. Only an absent one ends the list (MCP, "Pagination").
        cursor = _decode_cursor(result).next_cursor
        if cursor is None or cursor in seen or len(entries) > _MAX_ENTRIES:
            break
        seen.add(cursor)
        params = {"cursor": cursor}
    return entries
