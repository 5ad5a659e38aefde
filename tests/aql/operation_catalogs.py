"""Operation catalogs of real offerings and builtin operations."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from interlock.aql.config import AqlConfig
from interlock.aql.introspection import IntrospectOperation
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.operations import (
    BuiltinOperation,
    Operation,
    OperationCatalogBuilder,
    OperationSnapshot,
    Parameter,
    input_schema,
)
from interlock.aql.request import AqlRequest
from interlock.aql.search.searcher import LexicalSearcher
from interlock.core.catalog.offering import Offering, read_offering
from interlock.core.catalog.snapshot import Snapshot, View
from interlock.core.config import Config, ServerConfig
from interlock.core.server.mcp.views import Views
from interlock.protocol.aql_terms import BUILTIN_KEY, BUILTIN_SEGMENT, Category, OperationView
from tests.support.offerings import definition, merged, offer

VIEWS = Views()
FIVE = VIEWS.named(b"view=aql")
SINGLE = VIEWS.named(b"view=aql-single")
assert FIVE is not None
assert SINGLE is not None


def config(**settings: Any) -> AqlConfig:
    """Return AQL settings from values of a config file."""
    return msgspec.convert(settings, AqlConfig)


def find_view(query: str, **settings: Any) -> OperationView:
    found = Views(Config(sections=[config(**settings)])).named(query.encode())
    assert found is not None
    return found


def tool(name: str, properties: dict[str, Any] | None = None, **members: Any) -> bytes:
    """Return a tool with these properties. `required: True` in a schema makes it required."""
    properties = properties or {}
    required = [
        key
        for key, value in properties.items()
        if isinstance(value, dict) and value.get("required") is True
    ]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            key: {k: v for k, v in value.items() if k != "required" or v is not True}
            if isinstance(value, dict)
            else value
            for key, value in properties.items()
        },
    }
    if required:
        schema["required"] = required
    return definition(name, **{"inputSchema": schema, "description": f"About {name}.", **members})


STRING = {"type": "string"}
NEEDED = {"type": "string", "required": True}


def builtin_operation(
    name: str, category: Category = Category.READ, **settings: Any
) -> BuiltinOperation:
    return BuiltinOperation(
        **{
            "name": name,
            "category": category,
            "effect": "read_only" if category is Category.READ else "mutating",
            "description": f"The node's {name}.",
            "answer": lambda asked: {"asked": asked.params},
            **settings,
        }
    )


def builtin_offering(*natives: BuiltinOperation) -> Offering:
    """Return the offering of builtin operations."""
    server = ServerConfig(
        command="interlock",
        segment=BUILTIN_SEGMENT,
        effects={one.name: one.effect for one in natives},
    )
    return read_offering(
        BUILTIN_KEY,
        server,
        [
            json.dumps(
                {
                    "name": one.name,
                    "description": one.description,
                    "inputSchema": input_schema(one.parameters),
                }
            ).encode()
            for one in natives
        ],
    )


def snapshot(*offerings: Offering, natives: tuple[BuiltinOperation, ...] = ()) -> Snapshot:
    return merged(*offerings, *([builtin_offering(*natives)] if natives else []))


def operation_catalog(
    *offerings: Offering, natives: tuple[BuiltinOperation, ...] = (), **settings: Any
) -> OperationSnapshot:
    return OperationCatalogBuilder(config(**settings), natives).build(
        snapshot(*offerings, natives=natives)
    )


def single_operation(*tools: str | bytes, key: str = "s", **settings: Any) -> Operation:
    """Return the only operation of an offering with one tool."""
    (one,) = operation_catalog(offer(key, tools, **settings)).all()
    return one


class Introspection:
    """The introspection of some offerings for a client in a view."""

    def __init__(
        self,
        *offerings: Offering,
        face: OperationView | None = None,
        view: View | None = None,
        natives: tuple[BuiltinOperation, ...] = (),
        config: AqlConfig | None = None,
        **more: Any,
    ) -> None:
        assert FIVE is not None
        self.face = face or FIVE
        self.operations = OperationCatalogBuilder(config or AqlConfig())
        self.warnings: list[tuple[str, str, dict[str, Any]]] = []
        self.introspection = IntrospectOperation(
            self.operations,
            lambda: self.operation_catalog,
            LexicalSearcher(lambda: self.operation_catalog),
            view_of=lambda _: view,
            cursors=CursorCodec(b"k" * 32),
            warn=lambda _, code, message, details: self.warnings.append((code, message, details)),
            **more,
        )
        self.builtin_operations = (*self.introspection.builtin_operations(), *natives)
        self.operations.configure(config or AqlConfig(), self.builtin_operations)
        self.snapshot = snapshot(*offerings, natives=self.builtin_operations)

    @property
    def operation_catalog(self) -> OperationSnapshot:
        return self.operations.build(self.snapshot)

    def __call__(self, query: Any = "operations", /, **params: Any) -> dict[str, Any]:
        found = self.operation_catalog.find("introspect")
        assert found is not None
        params = {"query": query, **params}
        answer: dict[str, Any] = self.introspection.answer(
            AqlRequest(found, self.face, None, params)
        )
        return answer


def parameter(name: str, type: str = "string", required: bool = False, **schema: Any) -> Parameter:
    return Parameter(name, name, type, required, {"type": type, **schema}, f"The {name}.")
