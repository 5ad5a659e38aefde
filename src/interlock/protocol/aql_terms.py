"""The words of AQL: categories, danger levels, and the faces by which a client sees operations."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase
from typing import Final, Literal

import msgspec

SPEC_VERSION: Final = "1.0.0-draft"
BUILTIN_KEY: Final = "aql:"
"""The key of the node's own operations among the upstreams."""
BUILTIN_SEGMENT: Final = "aql"
"""Their segment in the catalog. No server of a config may have it."""


class Category(StrEnum):
    """What an operation does, in the draft's five words."""

    CREATE = "CREATE"
    READ = "READ"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    EXECUTE = "EXECUTE"

    @property
    def is_read_only(self) -> bool:
        return self is Category.READ

    @property
    def is_destructive(self) -> bool:
        return self in (Category.UPDATE, Category.DELETE, Category.EXECUTE)


class Danger(IntEnum):
    """How bad it can get."""

    SAFE = 0
    REVERSIBLE = 1
    DESTRUCTIVE = 2
    DANGEROUS = 3
    FORBIDDEN = 4

    @property
    def label(self) -> str:
        return self.name.lower()


RESERVED_OPERATIONS: Final[dict[str, Category]] = {
    "introspect": Category.READ,
    "execute_agent": Category.EXECUTE,
    "record_execution_step": Category.CREATE,
    "complete_execution": Category.EXECUTE,
    "abort_execution": Category.EXECUTE,
    "confirm_operation": Category.EXECUTE,
    "verify_challenge": Category.CREATE,
}
"""Names that the draft has taken, and where they belong."""


class EndpointFamily(msgspec.Struct, frozen=True):
    """The operations behind one endpoint."""

    name: str
    tool: str
    """The endpoint's name as an MCP tool."""
    categories: frozenset[Category]
    operations: tuple[str, ...] = ()
    """Globs of operations that are here whatever their category is."""


Mode = Literal["semantic", "single", "all", "auto", "plain"]


class OperationView(msgspec.Struct, frozen=True, dict=True):
    """How one client sees the operations. Hashable: lists are kept by it."""

    mode: Mode
    profile: str
    families: tuple[EndpointFamily, ...]
    prefix: str = ""
    namespace: str = ""
    """A segment: only operations of that server are shown."""

    def __post_init__(self) -> None:
        tools: dict[str, EndpointFamily | None] = {}
        if self.mode in ("semantic", "all", "auto"):
            tools |= {family.tool: family for family in self.families}
        if self.mode in ("single", "all"):
            tools[self.single_tool] = None
        self.__dict__["tools"] = tools

    @property
    def single_tool(self) -> str:
        return f"{self.prefix}mcp_aql"

    @property
    def tools(self) -> dict[str, EndpointFamily | None]:
        """Its endpoints by name. None: the one that takes every operation."""
        made: dict[str, EndpointFamily | None] = self.__dict__["tools"]
        return made

    def find_family(self, operation: str, category: Category) -> EndpointFamily:
        """Where an operation belongs. Operations that a family names win over categories."""
        for family in self.families:
            if family.operations and any(
                matches_glob(glob, operation) for glob in family.operations
            ):
                return family
        for family in self.families:
            if category in family.categories:
                return family
        return self.families[-1]


def matches_glob(glob: str, name: str) -> bool:
    """Whether a name fits a glob, in which only `*` and `?` mean something."""
    return fnmatchcase(name, glob.replace("[", "[[]"))


PLAIN_VIEW: Final = OperationView("plain", "", ())
"""What a client says that wants no AQL where others get it."""
