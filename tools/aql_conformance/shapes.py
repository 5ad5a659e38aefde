"""The shapes of the responses of AQL, by its specification. Pure.

Unknown keys are not allowed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

Category = Literal["CREATE", "READ", "UPDATE", "DELETE", "EXECUTE"]
Kind = Literal["enum", "object", "scalar", "union"]
Code = Annotated[str, Meta(pattern=r"^[A-Z][A-Z0-9_]*$")]
Name = Annotated[str, Meta(min_length=1)]
Length = Annotated[int, Meta(ge=0)]
T = TypeVar("T")


class Shape(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base class of the shapes."""


class Permissions(Shape, frozen=True):
    readOnly: bool
    destructive: bool


class ParameterInfo(Shape, frozen=True):
    name: str
    type: str
    required: bool
    description: str = ""
    default: Any = None
    enum: list[Any] | None = None
    minimum: float | None = None
    maximum: float | None = None
    minLength: Length | None = None
    maxLength: Length | None = None
    pattern: str | None = None
    format: str | None = None
    items: dict[str, Any] | None = None
    sensitive: bool = False


class OperationInfo(Shape, frozen=True):
    name: str
    semantic_category: Category
    endpoint: Name
    description: str


class TypeInfo(Shape, frozen=True):
    name: str
    kind: Kind
    description: str = ""


class Example(Shape, frozen=True):
    request: dict[str, Any]
    description: str = ""


class Lifecycle(Shape, frozen=True):
    states: list[str]
    supports_cancel: bool = False
    supports_retry: bool = False
    progress_reporting: bool = False


class ComputedField(Shape, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*$")]
    type: str
    description: str = ""
    filterable: bool = False
    sortable: bool = False


class Aggregations(Shape, frozen=True):
    supported: bool
    default_mode: Literal["summary_only", "include_items"] = "summary_only"
    functions: list[Literal["count", "group_by", "sum", "avg", "min", "max"]] = []
    groupable_fields: list[str] = []
    numeric_fields: list[str] = []


class Relationships(Shape, frozen=True):
    supported: bool
    directions: list[Literal["incoming", "outgoing", "both"]] = []
    relationship_types: list[str] = []
    max_depth: Annotated[int, Meta(ge=1)] = 1


class OperationDetails(Shape, frozen=True):
    name: str
    semantic_category: Category
    endpoint: Name
    mcpTool: str
    description: str
    permissions: Permissions
    parameters: list[ParameterInfo]
    returns: TypeInfo
    examples: list[Example] = []
    computed_fields: list[ComputedField] = []
    aggregation_support: Aggregations | None = None
    relationship_capabilities: Relationships | None = None
    lifecycle: Lifecycle | None = None


class ProtocolInfo(msgspec.Struct, frozen=True):
    """Information about the protocol. Further keys are allowed."""

    version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+(-[a-zA-Z0-9.-]+)?$")]
    conformance: Literal["level-1", "level-2"] | None = None
    mode: Literal["semantic", "single", "all"] | None = None
    capabilities: dict[str, Any] = {}


class OperationsList(Shape, frozen=True):
    operations: list[OperationInfo]
    protocol: ProtocolInfo | None = msgspec.field(default=None, name="_protocol")


class TypesList(Shape, frozen=True):
    types: list[TypeInfo]


class EnumType(Shape, frozen=True, tag_field="kind", tag="enum"):
    name: str
    values: list[str]
    description: str = ""


class ObjectType(Shape, frozen=True, tag_field="kind", tag="object"):
    name: str
    fields: list[ParameterInfo]
    description: str = ""


class UnionType(Shape, frozen=True, tag_field="kind", tag="union"):
    name: str
    members: list[str]
    description: str = ""


class ScalarType(Shape, frozen=True, tag_field="kind", tag="scalar"):
    name: str
    description: str = ""


TypeDetails = EnumType | ObjectType | UnionType | ScalarType


class Warned(Shape, frozen=True):
    code: Code
    message: str
    details: dict[str, Any] = {}
    severity: Literal["low", "medium", "high"] = "medium"


class Fault(Shape, frozen=True):
    code: Code
    message: str
    details: dict[str, Any] = {}


class Item(msgspec.Struct, frozen=True):
    """One result of a batch."""

    index: Length
    operation: str
    result: dict[str, Any]


class Summary(msgspec.Struct, frozen=True):
    total: Length
    succeeded: Length
    failed: Length


class Succeeded(Shape, frozen=True):
    success: Literal[True]
    data: Any
    warnings: list[Warned] = []
    meta: dict[str, Any] = msgspec.field(default_factory=dict, name="_meta")
    results: list[Item] = []
    summary: Summary | None = None


class Failed(Shape, frozen=True):
    success: Literal[False]
    error: Fault
    confirmation: dict[str, Any] | None = None


def problem(value: Any, shape: type[T]) -> str:
    """Return the problem of a value that should have a shape. Empty: none."""
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def envelope_problem(value: Any) -> str:
    """Return the problem of a response, which must be a success or a failure. Empty: none."""
    if not isinstance(value, dict) or not isinstance(value.get("success"), bool):
        return "it is neither a success nor a failure"
    if not value["success"]:
        return problem(value, Failed)
    if wrong := problem(value, Succeeded):
        return wrong
    for item in value.get("results", []):
        if wrong := envelope_problem(item["result"]):
            return f"result {item['index']}: {wrong}"
    return ""
