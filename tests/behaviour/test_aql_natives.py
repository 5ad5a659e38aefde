"""Own operations of a real node in introspection: consistent names and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.test_aql_executions import ExecutionNode

pytestmark = pytest.mark.feature("aql")

RESERVED = {
    "introspect", "execute_agent", "record_execution_step", "complete_execution",
    "abort_execution", "confirm_operation", "verify_challenge",
}  # fmt: skip
"""Names that the draft itself has given."""
VERBS = {
    "CREATE": ("create",),
    "READ": ("get", "list"),
    "UPDATE": ("update",),
    "DELETE": ("delete",),
    "EXECUTE": ("execute", "cancel"),
}


@pytest.fixture(scope="module")
def details(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    execution_node = ExecutionNode(Path(tmp_path_factory.mktemp("natives")))
    try:
        node = execution_node.up()
        operations = execution_node.data(node, "introspect", query="operations")["operations"]
        own = [tool["name"] for tool in operations if not tool["name"].startswith("demo_")]
        # The safety loop is off: its operations are in no list, and told of to who names them.
        assert RESERVED & {*own} == {"introspect", "confirm_operation"}
        yield {
            name: execution_node.data(node, "introspect", query="operations", name=name)[
                "operation"
            ]
            for name in (*own, *sorted(RESERVED - {*own}))
        }
    finally:
        execution_node.world.close()


def test_introspection_lists_own_operations(details: dict[str, Any]) -> None:
    assert RESERVED | {
        "get_execution", "list_executions", "cancel_execution", "retry_execution",
        "list_resources", "get_resource", "list_prompts", "get_prompt", "query_relationships",
        "create_note", "get_note", "list_notes", "search_notes", "update_note", "delete_note",
    } <= details.keys()  # fmt: skip


@pytest.mark.spec("AQ-8.5.2-2")
def test_operation_names_have_verb_and_object(details: dict[str, Any]) -> None:
    assert all(len(name.split("_")) >= 2 for name in details if name != "introspect")


@pytest.mark.spec("AQ-8.5.1-1", "AQ-8.5.3-1")
def test_operation_names_start_with_canonical_verbs(details: dict[str, Any]) -> None:
    for name, item in details.items():
        if name in RESERVED:
            continue
        verbs = VERBS[item["semantic_category"]]
        if name.partition("_")[0] not in verbs:
            assert any(verb in item["description"] for verb in verbs), (
                f"{name} says to which of {verbs} it is related"
            )


@pytest.mark.spec("AQ-OPS-4.4.4-1")
def test_parameter_has_one_type_and_default(details: dict[str, Any]) -> None:
    seen: dict[str, tuple[Any, Any]] = {}
    for name, item in details.items():
        for parameter in item["parameters"]:
            means = (parameter["type"], parameter.get("default"))
            known = seen.setdefault(parameter["name"], means)
            assert known == means, f"{parameter['name']} of {name}"


@pytest.mark.spec("AQ-OPS-4.4.4-1")
def test_list_operations_describe_parameters_alike(details: dict[str, Any]) -> None:
    lists = [item for name, item in details.items() if name.startswith(("list_", "search_"))]
    common = {"query", "filter", "sort", "fields", "aggregate", "first", "after", "limit", "offset"}
    told: dict[str, Any] = {}
    for operation in lists:
        actual = {parameter["name"]: parameter for parameter in operation["parameters"]}
        assert common <= actual.keys()
        for name in common:
            about = {key: value for key, value in actual[name].items() if key == "description"}
            assert told.setdefault(name, about) == about
