"""AQL requests inside the pipeline: the values of `call.operation_request`, and child calls of
another call.

A child call (an item of a batch, a step of an update) passes the whole pipeline like any call, with
the identity of its parent's caller. It declares no client capabilities: a client request could not
be assigned to one of the child calls.
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
    """A warning: the operation was executed, but its caller should know this."""

    code: str
    message: str
    details: dict[str, Any] | None = None
    severity: str = "medium"


class BuiltinResponse(msgspec.Struct, frozen=True):
    """The response of a built-in operation that has warnings."""

    data: Any
    warnings: tuple[AqlWarning, ...] = ()


class AqlRequest(msgspec.Struct):
    """`call.operation_request` of a resolved request: everything that is not part of the upstream's
    arguments."""

    operation: Operation
    operation_view: OperationView
    family: EndpointFamily | None
    """The endpoint that received the request. None: the endpoint for all categories."""
    params: dict[str, Any] | None = None
    """Parameters of a built-in operation: decoded, in snake_case, with defaults."""
    call: Call | None = None
    request_id: str = ""
    fields: Any = None
    shaping: dict[str, Any] | None = None
    """The requested filter, sort, paging and aggregate."""
    warnings: list[AqlWarning] | None = None
    confirmation: str = ""
    started: float = 0.0
    item: bool = False
    """True if the request is an item of a batch."""
    ordinary: bool = False
    """True if the request has parameters only: no field selection, paging or other options."""


class CallVisibility(Protocol):
    """Returns, for a call, a filter of the tools that its caller sees."""

    def __call__(self, call: Call) -> Callable[[Tool], bool]: ...


class ChildRequest(msgspec.Struct):
    """`call.operation_request` of a child call that the stage has not resolved yet."""

    single: SingleRequest | None
    family: EndpointFamily | None
    error: AqlError | None = None
    """Why the request is invalid. None: it is valid."""
    item: bool = True
    """As `AqlRequest.item`."""
    confirmation: str = ""
    """Always empty: the stage reads the token when it resolves the request."""
    suggest_names: bool = True
    """True to suggest similar names if the operation is unknown."""


def create_child_call(
    parent: Call,
    name: str,
    arguments: bytes | Raw,
    request: AqlRequest | ChildRequest,
    *,
    sends_progress: bool = False,
) -> Call:
    """Create a child call of `parent`.

    Args:
        sends_progress: True to send the progress of the child call to the parent's client.
    """
    meta: dict[str, Any] | None = parent.meta
    if meta is not None and not sends_progress:
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
        operation_request=request,
    )
