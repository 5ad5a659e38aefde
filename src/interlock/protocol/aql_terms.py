"""Terms of AQL: categories, danger levels, and the views in which clients see operations."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase
from typing import Final, Literal

import msgspec

SPEC_VERSION: Final = "1.0.0-draft"
BUILTIN_KEY: Final = "aql:"
"""The key of the built-in operations among the upstreams."""
BUILTIN_SEGMENT: Final = "aql"
"""The segment of the built-in operations in the catalog. No server of a config may use it."""


class Category(StrEnum):
    """The category of an operation, as the draft defines it."""

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
    """The danger level of an operation."""

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
"""Operation names that the draft reserves, with their category."""


class EndpointFamily(msgspec.Struct, frozen=True):
    """The operations of one endpoint."""

    name: str
    tool: str
    """The name of the endpoint as an MCP tool."""
    categories: frozenset[Category]
    operations: tuple[str, ...] = ()
    """Globs of operations that belong to this endpoint regardless of their category."""


Mode = Literal["semantic", "single", "all", "auto", "plain"]


class OperationView(msgspec.Struct, frozen=True, dict=True):
    """The view of the operations for a client. Hashable, since lists are cached by it."""

    mode: Mode
    profile: str
    families: tuple[EndpointFamily, ...]
    prefix: str = ""
    namespace: str = ""
    """A segment. If it is set, only operations of that server are shown."""

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
        """The endpoints by name. The value None is the endpoint for all operations."""
        tools: dict[str, EndpointFamily | None] = self.__dict__["tools"]
        return tools

    def find_family(self, operation: str, category: Category) -> EndpointFamily:
        """Return the family of an operation. Named operations have priority over categories."""
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
    """Return whether a name matches a glob with `*` and `?`."""
    return fnmatchcase(name, glob.replace("[", "[[]"))


PLAIN_VIEW: Final = OperationView("plain", "", ())
"""The view of a client that does not want AQL."""
