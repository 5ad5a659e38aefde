"""Transparent mode: unknown names and methods go to the transparent upstream."""

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

_MAX_METHOD_LENGTH: Final = 100


def _letters(method: str) -> str:
    """Return the letters of a method name, as a tolerant server may read it."""
    normalized = unicodedata.normalize("NFKC", method[:_MAX_METHOD_LENGTH]).casefold()
    return "".join(character for character in normalized if character.isalpha())


_JUDGED_BY_NAME: Final = frozenset(map(_letters, CONTEXT_MEMBER))
"""Methods that are authorized by what they name. Another spelling must not bypass that."""


def resolve_transparently(
    call: Call, upstream: str, catalog: Catalog, authorizer: Authorizer
) -> None:
    """Find the tool of a call. The transparent upstream validates the arguments itself. Raises
    InterlockError."""
    tool = resolve_tool(call, catalog, authorizer.view_of)
    authorizer.check_tool(call)
    validate_arguments(call, tool, against_schema=tool.upstream != upstream)


def is_listing_outdated(call: Call, upstream: str, catalog: Catalog) -> bool:
    """Return whether a call names a tool that the server may have added without a notification.
    Names that the config hides are excluded."""
    if call.method != TOOLS_CALL or call.approval_id or catalog.find(call.name) is not None:
        return False
    offering = catalog.offering(upstream)
    return offering is not None and offering.allows_name(call.name)


def route_transparently(call: Call, key: str | None, upstream: Upstream | None) -> None:
    """Route an unknown method to the transparent upstream, if client and upstream share an
    extension to which it may belong. Otherwise raise InterlockError."""
    method = call.method
    if (
        key is None
        or upstream is None
        or not shared_capabilities(call, upstream.capabilities)
        or _letters(method) in _JUDGED_BY_NAME
    ):
        short_method = (
            method if len(method) <= _MAX_METHOD_LENGTH else method[:_MAX_METHOD_LENGTH] + "…"
        )
        raise InterlockError(METHOD_NOT_FOUND, f"Unknown method {short_method!r}.")
    call.upstream = key
