"""What is meant by what no list names? A server that is shown as itself judges for itself."""

from __future__ import annotations

import unicodedata
from typing import Final

from interlock.call import Call
from interlock.catalog.catalog import Catalog
from interlock.errors import METHOD_NOT_FOUND, InterlockError
from interlock.pipeline.questions import have_in_common
from interlock.pipeline.resolve import name_as_it_is, resolve
from interlock.pipeline.validate import validate
from interlock.ports import Upstream
from interlock.protocol.mcp import PROMPTS_GET, RESOURCES_READ, TOOLS_CALL

_MOST_CHARACTERS: Final = 100


def _letters(verb: str) -> str:
    """What a kind reader may find in a method's name."""
    plain = unicodedata.normalize("NFKC", verb[:_MOST_CHARACTERS]).casefold()
    return "".join(one for one in plain if one.isalpha())


_JUDGED_BY_NAME: Final = frozenset(map(_letters, (TOOLS_CALL, PROMPTS_GET, RESOURCES_READ)))
"""What is judged by what it names. In another spelling it must not get around that."""


def find_transparently(call: Call, upstream: str, catalog: Catalog) -> None:
    """Find the tool that is meant, as if nobody stood before the server `upstream`.

    It checks its arguments itself, and may know tools that it does not list. What the config keeps
    back stays back, listed or not.
    """
    if catalog.find(call.name) is None:
        offering = catalog.offering(upstream)
        if offering is not None and offering.lets_through(call.name):
            name_as_it_is(call, upstream)
            return
    tool = resolve(call, catalog)
    validate(call, tool, against_schema=tool.upstream != upstream)


def pass_on(call: Call, key: str | None, upstream: Upstream | None) -> None:
    """What the node does not know goes, as it is, to the one upstream that is shown as itself, if
    that and the client have an extension in common that it may belong to."""
    verb = call.verb
    if (
        key is None
        or upstream is None
        or not have_in_common(call, upstream.capabilities)
        or _letters(verb) in _JUDGED_BY_NAME
    ):
        shown = verb if len(verb) <= _MOST_CHARACTERS else verb[:_MOST_CHARACTERS] + "…"
        raise InterlockError(METHOD_NOT_FOUND, f"{shown!r} is not served here.")
    call.upstream = key
