"""Tests of relationship queries: cycles, depth and visibility."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.errors import AqlError, is_safe_message
from interlock.aql.list_requests import ListResponder
from interlock.aql.relations import (
    MAX_GRAPH_EDGES,
    MAX_NODES,
    Edge,
    Element,
    RelationGraph,
    Relations,
    relation_operations,
)
from interlock.aql.request import BuiltinResponse
from interlock.core.call import Caller
from interlock.core.config.trust import PolicyConfig
from interlock.trust.policy import Policy
from tests.aql.execution_bench import CLERK, GUARD, Bench
from tests.aql.operation_catalogs import builtin_operation, operation_catalog
from tests.support.offerings import offer

SERVER = {"element_type": "server", "element_name": "s"}


class RelationshipBench(Bench):
    def __init__(self) -> None:
        super().__init__()
        listing = ListResponder(CursorCodec(b"k" * 32))
        self.relations = Relations(
            lambda: self.operation_catalog,
            self.rig.authorizer,
            self.executions,
        )
        [self.builtin] = relation_operations(self.relations, lambda: listing)

    def answer(self, caller: Caller = CLERK, **params: Any) -> BuiltinResponse:
        answer: BuiltinResponse = self.builtin.answer(self.asked(params, caller))
        return answer

    def query(self, caller: Caller = CLERK, **params: Any) -> Any:
        return self.answer(caller, **params).data

    def refused(self, **params: Any) -> AqlError:
        with pytest.raises(AqlError) as refused:
            self.query(**params)
        assert is_safe_message(refused.value.message)
        return refused.value


@asynccontextmanager
async def open_desk() -> AsyncIterator[RelationshipBench]:
    desk = RelationshipBench()
    try:
        yield desk
    finally:
        desk.close()


def list_ids(data: Any) -> list[str]:
    return [node["id"] for node in data["graph"]["nodes"]]


@pytest.mark.spec("AQ-REL-1-1")
async def test_cycle_ends_with_each_element_once() -> None:
    async with open_desk() as desk:
        data = desk.query(root=SERVER, direction="outgoing", depth=5)
        assert data["root"] == SERVER
        policies = [one for one in list_ids(data) if one.startswith("policy:")]
        assert policies, "operations are judged by rules"
        assert sorted(set(list_ids(data))) == sorted(list_ids(data))
        assert {"server:s", "operation:s_build", "operation:s_look"} <= set(list_ids(data))
        edges = {(one["from"], one["type"], one["to"]) for one in data["graph"]["edges"]}
        assert ("server:s", "composes", "operation:s_build") in edges
        assert ("operation:s_build", "uses", policies[0]) in edges
        assert (policies[0], "references", "server:s") in edges, "the circle is shown"
        assert len(edges) == len(data["graph"]["edges"])
        assert all(1 <= one["depth"] <= 5 for one in data["relationships"])


@pytest.mark.spec("AQ-REL-1-1")
async def test_limits_depth_and_types() -> None:
    async with open_desk() as desk:
        near = desk.query(root=SERVER, direction="outgoing", depth=1)
        assert set(list_ids(near)) == {"server:s", "operation:s_build", "operation:s_look"}
        operation = {"element_type": "operation", "element_name": "s_build"}
        back = desk.query(root=operation, direction="incoming")
        assert set(list_ids(back)) == {"server:s", "operation:s_build"}
        both = desk.query(root=operation, relationship="uses")
        assert {one["relationship"] for one in both["relationships"]} == {"uses"}
        only = desk.query(root=SERVER, depth=5, include=["operation"])
        assert {one.partition(":")[0] for one in list_ids(only)} == {"server", "operation"}


def test_shared_default_policy_connects_no_servers() -> None:
    def of(server: str) -> list[Edge]:
        default = Element("policy", "default:safe")
        return [
            Edge(Element("server", server), "composes", Element("operation", f"{server}_x")),
            Edge(Element("operation", f"{server}_x"), "uses", default),
            Edge(default, "references", Element("server", server)),
        ]

    graph = RelationGraph([*of("a"), *of("b")])
    edges, nodes, _ = graph.find_around(Element("server", "a"), "both", None, 5)
    assert {one.name for one in nodes} == {"a", "a_x", "default:safe"}
    assert len(edges) == 3
    _, nodes, _ = graph.find_around(Element("policy", "default:safe"), "both", None, 5)
    assert {one.name for one in nodes} == {"a", "a_x", "b", "b_x", "default:safe"}


async def test_builtin_operations_belong_to_no_server() -> None:
    async with open_desk() as desk:
        call = desk.asked({}, CLERK).call
        assert call is not None
        desk.operation_catalog = operation_catalog(  # type: ignore[assignment]
            offer("s", ["look"]), natives=(builtin_operation("introspect"),)
        )
        graph = desk.relations.graph(call)
        assert [one.name for one in graph.elements if one.type == "server"] == ["s"]
        assert Element("operation", "introspect") in graph.elements


async def test_limits_graph_and_lists_every_relationship() -> None:
    root = Element("server", "s")
    many = [Edge(root, "composes", Element("operation", f"o{at}")) for at in range(300)]

    async with open_desk() as desk:
        desk.relations.graph = lambda _: RelationGraph(many)  # type: ignore[assignment, method-assign]
        answer = desk.answer(root=SERVER)
        assert len(answer.data["graph"]["edges"]) == MAX_GRAPH_EDGES
        assert len(list_ids(answer.data)) == MAX_GRAPH_EDGES + 1
        assert [one.code for one in answer.warnings] == ["VALIDATION_TRUNCATED_WARNING"]


async def test_executions_belong_to_operation_and_owner() -> None:
    async with open_desk() as desk:
        id = (await desk.start())["execution_id"]
        root = {"element_type": "execution", "element_name": id}
        data = desk.query(root=root)
        assert set(list_ids(data)) == {f"execution:{id}", "operation:s_build"}
        with pytest.raises(AqlError) as refused:
            desk.query(GUARD, root=root)
        assert refused.value.code == "NOT_FOUND_RESOURCE"
        assert f"execution:{id}" not in list_ids(desk.query(GUARD, root=SERVER, depth=10))


async def test_hides_invisible_elements() -> None:
    async with open_desk() as desk:
        rules: Any = [{"name": "no-building", "tools": ["s.build"], "then": "deny"}]
        config = msgspec.convert({"default": "allow", "rules": rules}, PolicyConfig)
        desk.rig.authorizer.set_policy(Policy(config, desk.rig.catalog))
        data = desk.query(root=SERVER, depth=5)
        assert "operation:s_build" not in list_ids(data)
        assert "operation:s_look" in list_ids(data)


async def test_pages_relationships() -> None:
    async with open_desk() as desk:
        first = desk.query(root=SERVER, direction="outgoing", first=1)
        assert len(first["relationships"]) == 1
        second = desk.query(
            root=SERVER, direction="outgoing", first=1, after=first["pageInfo"]["endCursor"]
        )
        assert second["relationships"] != first["relationships"]
        assert second["pageInfo"]["hasNextPage"] is False


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({}, "VALIDATION_INVALID_TYPE"),
        ({"root": []}, "VALIDATION_INVALID_TYPE"),
        ({"root": {"element_type": "server"}}, "VALIDATION_MISSING_PARAM"),
        ({"root": {"element_type": "x", "element_name": "s"}}, "VALIDATION_INVALID_ENUM"),
        ({"root": {"element_type": [], "element_name": "s"}}, "VALIDATION_INVALID_ENUM"),
        ({"root": {"element_type": "server", "element_name": "no"}}, "NOT_FOUND_RESOURCE"),
        ({"root": SERVER, "direction": "up"}, "VALIDATION_INVALID_ENUM"),
        ({"root": SERVER, "relationship": "owns"}, "VALIDATION_INVALID_ENUM"),
        ({"root": SERVER, "depth": 0}, "VALIDATION_OUT_OF_RANGE"),
        ({"root": SERVER, "depth": 11}, "VALIDATION_OUT_OF_RANGE"),
        ({"root": SERVER, "depth": "2"}, "VALIDATION_INVALID_TYPE"),
        ({"root": SERVER, "include": "server"}, "VALIDATION_INVALID_TYPE"),
        ({"root": SERVER, "include": ["x"]}, "VALIDATION_INVALID_ENUM"),
    ],
)
async def test_rejects_invalid_queries(params: dict[str, Any], code: str) -> None:
    async with open_desk() as desk:
        assert desk.refused(**params).code == code


def test_limits_large_graph() -> None:
    root = Element("server", "s")
    graph = RelationGraph(
        Edge(root, "composes", Element("operation", f"o{number}")) for number in range(5_000)
    )
    edges, nodes, cut = graph.find_around(root, "both", None, 3)
    assert cut
    assert len(nodes) == MAX_NODES
    assert len(edges) == MAX_NODES - 1


def test_self_reference_ends() -> None:
    root = Element("policy", "p")
    edges, nodes, cut = RelationGraph([Edge(root, "extends", root)]).find_around(
        root, "both", None, 10
    )
    assert (len(edges), list(nodes), cut) == (1, [root], False)
