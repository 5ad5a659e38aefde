"""An AQL request on its way: what `call.asked` holds, and the calls that are made for another call.

A child call (an item of a batch, a step of an update) passes the whole pipeline like any call, with
the identity of the caller of its parent. It promises no server that its client answers requests:
nobody could tell for which of the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Raw

from interlock.aql.language.errors import AqlError
from interlock.aql.language.request import Single
from interlock.aql.operations import Operation
from interlock.core.call import Call, Client
from interlock.protocol.aql_terms import Face, Family
from interlock.protocol.mcp import META_PROGRESS_TOKEN, TOOLS_CALL

if TYPE_CHECKING:
    from interlock.core.catalog.offering import Tool


class Warning(msgspec.Struct, frozen=True, omit_defaults=True):
    """What did not keep the operation from being done, but should be known."""

    code: str
    message: str
    details: dict[str, Any] | None = None
    severity: str = "medium"


class Answer(msgspec.Struct, frozen=True):
    """What an operation of the node's own gives, when it has something to warn of."""

    data: Any
    warnings: tuple[Warning, ...] = ()


class Asked(msgspec.Struct):
    """`call.asked`: the request as far as the upstream's arguments do not say it."""

    operation: Operation
    face: Face
    family: Family | None
    """The endpoint that it came by. None: the one for everything."""
    params: dict[str, Any] | None = None
    """For the node's own operations: decoded, in snake_case, with defaults."""
    call: Call | None = None
    request_id: str = ""
    fields: Any = None
    shaping: dict[str, Any] | None = None
    """Filter, sort, paging, aggregate, as asked."""
    warnings: list[Warning] | None = None
    confirmation: str = ""
    started: float = 0.0
    item: bool = False
    """Whether it is one of a batch."""
    ordinary: bool = False
    """Whether nothing was asked but the operation itself: no fields, no paging, nothing beside."""


class Sees(Protocol):
    """Says for a call which tools its caller is shown."""

    def __call__(self, call: Call) -> Callable[[Tool], bool]: ...


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
    """A call for `parent`. `follows`: its progress goes to the client of the parent."""
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
