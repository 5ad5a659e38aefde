"""What is kept of an AQL request until it is answered, and what its answer is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from interlock.aql.operations import Operation
from interlock.core.call import Call
from interlock.protocol.aql_terms import Face, Family

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
