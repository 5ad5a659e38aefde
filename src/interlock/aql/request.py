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
from interlock.aql.language.request import SingleRequest
from interlock.aql.operations import Operation
from interlock.core.call import Call, Client
from interlock.protocol.aql_terms import EndpointFamily, OperationView
from interlock.protocol.mcp import META_PROGRESS_TOKEN, TOOLS_CALL

if TYPE_CHECKING:
    from interlock.core.catalog.offering import Tool


class AqlWarning(msgspec.Struct, frozen=True, omit_defaults=True):
    """A warning: the operation was done, but its caller should know this."""

    code: str
    message: str
    details: dict[str, Any] | None = None
    severity: str = "medium"


class BuiltinResponse(msgspec.Struct, frozen=True):
    """The response of a built-in operation that has warnings."""

    data: Any
    warnings: tuple[AqlWarning, ...] = ()


class AqlRequest(msgspec.Struct):
    """`call.asked` of a resolved request: all that the arguments of the upstream do not say."""

    operation: Operation
    face: OperationView
    family: EndpointFamily | None
    """The endpoint that it came by. None: the one for everything."""
    params: dict[str, Any] | None = None
    """For the node's own operations: decoded, in snake_case, with defaults."""
    call: Call | None = None
    request_id: str = ""
    fields: Any = None
    shaping: dict[str, Any] | None = None
    """Filter, sort, paging, aggregate, as asked."""
    warnings: list[AqlWarning] | None = None
    confirmation: str = ""
    started: float = 0.0
    item: bool = False
    """Whether it is one of a batch."""
    ordinary: bool = False
    """Whether nothing was asked but the operation itself: no fields, no paging, nothing beside."""


class CallVisibility(Protocol):
    """Returns for a call a filter of the tools that its caller sees."""

    def __call__(self, call: Call) -> Callable[[Tool], bool]: ...


class ChildRequest(msgspec.Struct):
    """`call.asked` of a child call, which the stage still has to resolve."""

    single: SingleRequest | None
    family: EndpointFamily | None
    error: AqlError | None = None
    """Why it cannot be one."""
    item: bool = True
    """As `AqlRequest.item`."""
    confirmation: str = ""
    """It is not read yet."""
    alone: bool = True
    """Whether it is worth looking for what was meant, if there is no such operation."""


def child_of(
    parent: Call,
    name: str,
    arguments: bytes | Raw,
    asked: AqlRequest | ChildRequest,
    *,
    follows: bool = False,
) -> Call:
    """A call for `parent`. `follows`: its progress goes to the client of the parent."""
    meta: dict[str, Any] | None = parent.meta
    if meta is not None and not follows:
        meta = {key: value for key, value in meta.items() if key != META_PROGRESS_TOKEN} or None
    client = parent.client
    return Call(
        TOOLS_CALL,
        parent.server,
        parent.credentials,
        Client(client.era, client.revision, client.name),
        name,
        parent.session_owner,
        arguments=arguments,
        meta=meta,
        session=parent.session,
        view=parent.view,
        operation_request=asked,
    )
