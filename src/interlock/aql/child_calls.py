"""Calls that are made for another one: the items of a batch, the steps of an update.

Each walks the whole pipeline as any call does, with the identity of whoever made the first one. It
promises no server that its client answers questions: nobody could tell for which of the calls.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from interlock.aql.language.errors import AqlError
from interlock.aql.language.request import Single
from interlock.aql.request import Asked
from interlock.core.call import Call, Client
from interlock.protocol.aql_terms import Family
from interlock.protocol.mcp import META_PROGRESS_TOKEN, TOOLS_CALL


class Unread(msgspec.Struct):
    """`call.asked` of a call that the stage still has to make of a request."""

    single: Single | None
    family: Family | None
    error: AqlError | None = None
    """Why it cannot be one."""
    item: bool = True
    """As `Asked.item`."""
    confirmation: str = ""
    """It is not read yet."""
    alone: bool = True
    """Whether it is worth looking for what was meant, if there is no such operation."""


def child_of(
    parent: Call, name: str, arguments: bytes | Raw, asked: Asked | Unread, *, follows: bool = False
) -> Call:
    """`follows`: what is said of it on the way is for the parent's client."""
    meta: dict[str, Any] | None = parent.meta
    if meta is not None and not follows:
        meta = {key: value for key, value in meta.items() if key != META_PROGRESS_TOKEN} or None
    client = parent.client
    return Call(
        TOOLS_CALL,
        parent.face,
        parent.credentials,
        Client(client.era, client.revision, client.name),
        name,
        parent.owner,
        arguments=arguments,
        meta=meta,
        session=parent.session,
        view=parent.view,
        asked=asked,
    )
