"""What is meant by what no list names? A server that is shown as itself judges for itself."""

from __future__ import annotations

import unicodedata
from typing import Final

from interlock.core.call import Call
from interlock.core.catalog.catalog import Catalog
from interlock.core.pipeline.client_requests import shared_capabilities
from interlock.core.pipeline.resolution import resolve_tool
from interlock.core.pipeline.validation import validate_arguments
from interlock.core.ports import Authorizer, Upstream
from interlock.errors import METHOD_NOT_FOUND, InterlockError
from interlock.protocol.kinds import CONTEXT_MEMBER
from interlock.protocol.mcp import TOOLS_CALL

_MOST_CHARACTERS: Final = 100


def _letters(verb: str) -> str:
    """What a kind reader may find in a method's name."""
    plain = unicodedata.normalize("NFKC", verb[:_MOST_CHARACTERS]).casefold()
    return "".join(one for one in plain if one.isalpha())


_JUDGED_BY_NAME: Final = frozenset(map(_letters, CONTEXT_MEMBER))
"""What is judged by what it names. In another spelling it must not get around that."""


def resolve_transparently(
    call: Call, upstream: str, catalog: Catalog, authorizer: Authorizer
) -> None:
    """Find the tool that is meant, as if nobody stood before the server `upstream`, which checks
    the arguments itself. Raises InterlockError."""
    tool = resolve_tool(call, catalog, authorizer.view_of)
    authorizer.check_tool(call)
    validate_arguments(call, tool, against_schema=tool.upstream != upstream)


def is_listing_outdated(call: Call, upstream: str, catalog: Catalog) -> bool:
    """Whether the call names a tool that the server may have added without an announcement. A name
    that the config hides is never one."""
    if call.method != TOOLS_CALL or call.approval_id or catalog.find(call.name) is not None:
        return False
    offering = catalog.offering(upstream)
    return offering is not None and offering.lets_through(call.name)


def route_transparently(call: Call, key: str | None, upstream: Upstream | None) -> None:
    """What the node does not know goes, as it is, to the one upstream that is shown as itself, if
    that and the client have an extension in common that it may belong to."""
    verb = call.method
    if (
        key is None
        or upstream is None
        or not shared_capabilities(call, upstream.capabilities)
        or _letters(verb) in _JUDGED_BY_NAME
    ):
        shown = verb if len(verb) <= _MOST_CHARACTERS else verb[:_MOST_CHARACTERS] + "…"
        raise InterlockError(METHOD_NOT_FOUND, f"{shown!r} is not served here.")
    call.upstream = key
