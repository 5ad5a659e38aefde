"""An operation: a tool of the catalog as AQL sees it, or one that the node answers itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from interlock.protocol.aql.words import Category, Danger

if TYPE_CHECKING:
    from interlock.catalog.offering import Tool


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of an operation."""

    name: str
    """In snake_case, as AQL shows it."""
    own: str
    """As the upstream wants it."""
    type: str
    required: bool
    schema: dict[str, Any]
    description: str = ""
    inside: bool = False
    """Whether it belongs into UPDATE's `input`."""
    sensitive: bool = False
    deprecated: str = ""


class Signature(msgspec.Struct, frozen=True):
    """What an operation takes."""

    parameters: tuple[Parameter, ...]
    by_name: dict[str, Parameter]
    aliases: dict[str, str]
    """Other spellings that are understood → the name."""
    required: frozenset[str]
    names: frozenset[str]
    same: bool
    """Nothing to rename, nothing to unfold: the bytes pass as they are."""
    features: frozenset[str]
    """Features of the language that may stand beside the parameters, by their plain names."""
    open: bool = False
    """The tool takes parameters, too, that its schema does not name."""


class Native(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that the node answers itself. Its tool in the catalog is made from this."""

    name: str
    category: Category
    effect: str
    """A word of `EffectLevel`."""
    description: str
    answer: Callable[[Any], Any]
    """Takes an `Asked`; gives data, an `Answer`, or an awaitable of one. Raises AqlError."""
    parameters: tuple[Parameter, ...] = ()
    returns: str = "object"
    gives: tuple[tuple[str, str, str], ...] = ()
    """The fields of what it returns: name, type, and what it is."""
    free: bool = False
    """As free as asking for a list: it looks at identity itself, and shows what its caller sees."""
    lifecycle: bool = False
    listed: Callable[[], bool] | None = None
    """Whether it is in lists and searches now. None: it always is."""
    example: dict[str, Any] = {}


class Operation:
    """Made once for a tool, and kept while the tool is the same. Compared by identity."""

    __slots__ = (
        "_sign",
        "_signature",
        "canonical",
        "category",
        "confidence",
        "danger",
        "description",
        "local",
        "name",
        "native",
        "needs_review",
        "origins",
        "reasons",
        "server",
        "tool",
    )

    def __init__(
        self,
        *,
        name: str,
        local: str,
        canonical: str,
        server: str,
        category: Category,
        danger: Danger,
        tool: Tool,
        sign: Callable[[Operation], Signature],
        reasons: tuple[str, ...] = (),
        confidence: str = "high",
        needs_review: bool = False,
        origins: dict[str, str] | None = None,
        description: str = "",
        native: Native | None = None,
    ) -> None:
        """`sign` makes its signature, when somebody first asks for it."""
        self.name = name
        self.local = local
        """The last segment of its tool's name, in snake_case."""
        self.canonical = canonical
        self.server = server
        self.category = category
        self.danger = danger
        self.reasons = reasons
        self.confidence = confidence
        self.needs_review = needs_review
        self.origins = origins or {}
        """What was taken from where: `category` → `override`, `annotations`, `verb`, …"""
        self.description = description
        self.tool = tool
        self.native = native
        self._sign = sign
        self._signature: Signature | None = None

    @property
    def signature(self) -> Signature:
        made = self._signature
        if made is None:
            made = self._signature = self._sign(self)
        return made

    def __repr__(self) -> str:
        return f"Operation({self.name}, {self.category.value})"


class Book(Protocol):
    """Every operation of one snapshot of the catalog."""

    number: int
    """Another one for another snapshot."""

    def find(self, name: str) -> Operation | None: ...

    def of(self, tool: Tool) -> Operation: ...

    def all(self) -> Sequence[Operation]: ...

    def near(
        self, name: str, most: int = 5, sees: Callable[[Tool], bool] | None = None
    ) -> list[str]:
        """Names that somebody may have meant, nearest first. `sees`: what the asker is shown."""
