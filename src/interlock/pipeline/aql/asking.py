"""What is kept of an AQL request until it is answered, and what its answer is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from interlock.call import Call, Caller
from interlock.catalog.aql.operation import Operation
from interlock.protocol.aql.words import Face, Family

if TYPE_CHECKING:
    from interlock.catalog.offering import Tool

Principal = tuple[str, str, str]
"""Who is behind a connection: name, kind, and for whom it speaks. Never a name from a request."""


def principal(caller: Caller) -> Principal:
    return (caller.name, caller.kind, caller.above)


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
