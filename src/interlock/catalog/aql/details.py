"""One operation as introspection shows it: in a line, in full, and what else may be asked for.

By default an answer has exactly the members that the draft's schema knows; the rest is behind
`include`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from interlock.catalog.aql import examples, types
from interlock.catalog.aql.book import LONGEST_LINE, OperationBook, OperationsAt
from interlock.catalog.aql.described import parameters_info, surface_of
from interlock.catalog.aql.operation import Operation
from interlock.catalog.aql.parameters import one_line
from interlock.protocol.aql.lifecycle import LIFECYCLE
from interlock.protocol.aql.words import OWN, Category, Danger, Face

INCLUDES: Final = (
    "parameters", "danger", "source", "input_schema", "output_schema", "field_selection",
    "pagination", "description", "lifecycle",
)  # fmt: skip
"""What may be asked for besides."""
LONGEST: Final = 1_000
"""Characters of a description in details."""
_LONGEST_WHOLE: Final = 20_000
_LONGEST_FOUND: Final = 200
_WARNED_OF: Final = Danger.DESTRUCTIVE
"""From here on a description says it."""

_PRESETS: Final = ["minimal", "standard", "full"]


class Details:
    """Describes operations of one book in one face."""

    __slots__ = ("_book", "_face", "_operations", "_trust")

    def __init__(
        self,
        operations: OperationBook,
        book: OperationsAt,
        face: Face,
        trust: Callable[[str], str],
    ) -> None:
        self._operations = operations
        self._book = book
        self._face = face
        self._trust = trust

    def line(self, one: Operation) -> dict[str, Any]:
        """As it stands in a list: exactly these members."""
        return {
            "name": self._book.name_in(one, self._face),
            "semantic_category": one.category.value,
            "endpoint": self._face.family_of(one.name, one.category).name,
            "description": one_line(one.description, LONGEST_LINE) or f"Calls {one.canonical}.",
        }

    def tool(self, one: Operation) -> str:
        """The MCP tool by which it is called."""
        if self._face.mode == "single":
            return self._face.single
        return self._face.family_of(one.name, one.category).tool

    def found(self, one: Operation) -> dict[str, Any]:
        """As one of a search: everything that is needed to call it."""
        return {
            **self.line(one),
            "description": self._about(one, _LONGEST_FOUND, source=False),
            "mcpTool": self.tool(one),
            "parameters": parameters_info(one, features=False, brief=True),
        }

    def whole(self, one: Operation, include: Iterable[str] = ()) -> dict[str, Any]:
        """Everything about it."""
        name = self._book.name_in(one, self._face)
        made: dict[str, Any] = {
            **self.line(one),
            "mcpTool": self.tool(one),
            "description": self._about(one, LONGEST),
            "permissions": {
                "readOnly": one.category.read_only,
                "destructive": one.category.destructive,
            },
            "parameters": parameters_info(one),
            "returns": types.returns(one),
            "examples": [{"request": examples.request(one, name)}],
        }
        for block in include:
            if block in _BLOCKS:
                made[block] = _BLOCKS[block](self, one)
        return made

    def _about(self, one: Operation, most: int, *, source: bool = True) -> str:
        """Its description, and what a caller should know of it besides."""
        settings = self._operations.settings(one.canonical)
        said = one.description if one.native is not None else one.tool.description
        parts = [one_line(said, most)]
        if settings.deprecated:
            instead = f" Use {settings.replacement} instead." if settings.replacement else ""
            parts.append(f"Deprecated since {one_line(settings.deprecated, 60)}.{instead}")
        if one.danger >= _WARNED_OF:
            parts.append(f"Danger: {one.danger.word}; a human may have to confirm it.")
        if source and one.tool.upstream != OWN:
            parts.append(f"(Tool {one.canonical}.)")
        return " ".join(part for part in parts if part)

    # -- blocks that are asked for

    def danger(self, one: Operation) -> dict[str, Any]:
        settings = self._operations.settings(one.canonical)
        return {
            "level": one.danger.word,
            "dangerous": one.danger >= _WARNED_OF,
            "reasons": list(one.reasons),
            "confirmation_message": settings.confirmation_message,
            "cooldown_seconds": settings.cooldown,
            "requires_reauth": False,
            "audit_context": [each.name for each in one.signature.parameters if not each.sensitive],
        }

    def source(self, one: Operation) -> dict[str, Any]:
        return {
            "tool": one.canonical,
            "server": one.server or None,
            "effect": one.tool.effect_word,
            "trust": self._trust(one.server) if one.server else None,
            "confidence": one.confidence,
            "needs_review": one.needs_review,
            "origins": dict(one.origins),
            "map_to": {
                each.name: each.own for each in one.signature.parameters if each.own != each.name
            },
            "open": one.signature.open,
        }

    def input_schema(self, one: Operation) -> Any:
        """The schema that arguments are validated with, in the server's own names."""
        return surface_of(one).root

    def output_schema(self, one: Operation) -> Any:
        return types.output_schema(one)

    def lifecycle(self, one: Operation) -> dict[str, Any] | None:
        """What becomes of it as an execution, where it can be one."""
        return LIFECYCLE if one.native is None or one.native.lifecycle else None

    def field_selection(self, one: Operation) -> dict[str, Any]:
        reads = one.category is Category.READ
        return {
            "supported": reads,
            "presets": _PRESETS if reads else [],
            "parameters": sorted(
                name if name in one.signature.features else f"_{name}"
                for name in ("fields", "preset")
            )
            if reads
            else [],
        }

    def pagination(self, one: Operation) -> dict[str, Any]:
        names = one.signature.names
        if one.native is not None:
            return {"supported": "first" in names, "style": "cursors"}
        own = sorted(names & _PAGING)
        return {
            "supported": one.category is Category.READ,
            "style": "upstream" if own else "cursors",
            "parameters": own or ["_first", "_after"],
        }

    def description(self, one: Operation) -> str:
        """All of it that is of use, where the usual is cut."""
        return self._about(one, _LONGEST_WHOLE)

    def parameters(self, one: Operation) -> list[dict[str, Any]]:
        return parameters_info(one)


_PAGING: Final = frozenset(
    {
        "page", "per_page", "page_size", "limit", "offset", "cursor", "first", "after", "last",
        "before", "page_token", "start_cursor", "next_token", "max_results", "count",
    }
)  # fmt: skip
_BLOCKS: Final[dict[str, Callable[[Details, Operation], Any]]] = {
    name: getattr(Details, name) for name in INCLUDES
}
