"""Tests of the view of a client: by URL, config, catalog size and environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from interlock.aql.config import AqlConfig, ClientView, FamilyConfig, OperationConfig, ProfileConfig
from tests.aql.server.aql_client import ERAS, FIVE, AqlClient, read_code
from tests.support.http_client import META, initialize, message, meta
from tests.support.node import NodeThread
from tests.support.tool_server import ToolServer, tool

Start = Callable[..., NodeThread]
READ = {"shop.echo": OperationConfig(category="READ", danger="safe")}


def list_tools_as(node: NodeThread, client: str, era: str, query: str = "") -> list[str]:
    """Return the names of the tools that a client of this name sees."""
    wanted = AqlClient(node, query, "stateless")
    if era == "session":
        wanted.era = era
        wanted.session = wanted.open(client)
        return wanted.names()
    who = {META + "clientInfo": {"name": client, "version": "1"}}
    return [
        one["name"]
        for one in wanted.request("tools/list", {"_meta": {**meta(), **who}}).result["tools"]
    ]


def read_instructions(client: AqlClient) -> str:
    if client.session is not None:
        opened: str = client.session.opened.get("instructions", "")
        return opened
    found: str = client.request("server/discover").result.get("instructions", "")
    return found


@pytest.mark.parametrize("era", ERAS)
def test_schema_without_properties_accepts_any_parameter(start_node: Start, era: str) -> None:
    shop = ToolServer()
    shop.tools = [{"name": "echo", "inputSchema": {"type": "object"}}, tool("add", a={})]
    config = AqlConfig(operations={"shop.*": OperationConfig(category="READ", danger="safe")})
    client = AqlClient(start_node(workshops={"shop": shop}, aql=config), "?view=aql", era)
    answer = client.ask("shop_echo", {"text": "free", "more": [1]})
    assert answer["data"]["content"][0]["text"] == "free"
    assert shop.calls("echo")[-1]["params"]["arguments"] == {"text": "free", "more": [1]}
    assert read_code(client.ask("shop_add", {"b": 1})) == "VALIDATION_UNKNOWN_PARAM"


@pytest.mark.parametrize("era", ERAS)
def test_is_error_setting_marks_failures_for_mcp_clients(start_node: Start, era: str) -> None:
    client = AqlClient(start_node(aql=AqlConfig(operations=READ)), "?view=aql", era)
    failed = client.call("mcp_aql_read", {"operation": "shop_ecko"})
    assert failed["isError"] is True
    assert failed["structuredContent"]["error"]["code"] == "NOT_FOUND_OPERATION"
    fine = client.call("mcp_aql_read", {"operation": "shop_echo", "params": {"text": "x"}})
    assert not fine.get("isError")


@pytest.mark.spec("AQ-EPM-3.2-1", "AQ-3.3-1")
@pytest.mark.parametrize("era", ERAS)
def test_config_selects_view_by_client(start_node: Start, era: str) -> None:
    rules = [
        ClientView(view="aql-single", clients=["small-*"]),
        ClientView(view="plain", clients=["classic"]),
    ]
    node = start_node(aql=AqlConfig(view="aql", clients=rules, operations=READ))
    assert list_tools_as(node, "anybody", era) == FIVE
    assert list_tools_as(node, "small-model", era) == ["mcp_aql"]
    assert "shop__echo" in list_tools_as(node, "classic", era)
    # Who asks in its URL gets what it asks for.
    assert list_tools_as(node, "classic", era, "?view=aql-single") == ["mcp_aql"]
    assert "shop__echo" in list_tools_as(node, "small-model", era, "?view=plain")
    # In which view something is called is decided in the same way.
    client = AqlClient(node, "", era)
    assert client.ask("shop_echo", {"text": "by default"})["success"] is True
    protocol = client.introspect()["_protocol"]
    assert (protocol["mode"], protocol["profile"]) == ("semantic", "crude")


@pytest.mark.spec("AQ-3.3-3")
@pytest.mark.parametrize("era", ERAS)
def test_profiles_define_endpoints(start_node: Start, era: str) -> None:
    own = ProfileConfig(
        families={
            "inspect": FamilyConfig(operations=["introspect"]),
            "query": FamilyConfig(categories=["READ"]),
            "mutate": FamilyConfig(categories=["CREATE", "UPDATE"]),
            "administer": FamilyConfig(categories=["DELETE", "EXECUTE"]),
        }
    )
    node = start_node(aql=AqlConfig(profiles={"ops": own}, operations=READ))
    for view, families in (
        ("semantic", ["discover", "query", "manage", "operate"]),
        ("ops", ["inspect", "query", "mutate", "administer"]),
    ):
        client = AqlClient(node, f"?view={view}", era)
        assert client.names() == [f"mcp_aql_{family}" for family in families]
        told = client.ask("introspect", {"query": "operations"}, tool=f"mcp_aql_{families[0]}")[
            "data"
        ]
        assert told["_protocol"]["profile"] == view
        assert {one["endpoint"] for one in told["operations"]} <= set(families)
        by_name = {one["name"]: one["endpoint"] for one in told["operations"]}
        assert by_name["introspect"] == families[0]
        assert by_name["shop_echo"] == "query"
        answer = client.ask("shop_echo", {"text": view}, tool="mcp_aql_query")
        assert answer["success"] is True
        wrong = client.ask("introspect", {"query": "operations"}, tool="mcp_aql_query")
        assert read_code(wrong) == "VALIDATION_ENDPOINT_MISMATCH"


@pytest.mark.spec("AQ-MCP-6.2-1")
@pytest.mark.parametrize("era", ERAS)
def test_prefix_separates_nodes(start_node: Start, era: str) -> None:
    home = start_node(aql=AqlConfig(prefix="home_", operations=READ))
    office = start_node(aql=AqlConfig(prefix="office_", operations=READ))
    names = [AqlClient(node, "?view=aql", era).names() for node in (home, office)]
    assert names[0] == [f"home_{name}" for name in FIVE]
    assert not set(names[0]) & set(names[1])
    assert AqlClient(home, "?view=aql-single", era).names() == ["home_mcp_aql"]
    client = AqlClient(home, "?view=aql", era)
    detail = client.ask(
        "introspect", {"query": "operations", "name": "shop_echo"}, tool="home_mcp_aql_read"
    )
    assert detail["data"]["operation"]["mcpTool"] == "home_mcp_aql_read"


@pytest.mark.spec("AQ-MCP-6.6-1")
@pytest.mark.parametrize("era", ERAS)
def test_namespace_view_shows_only_its_operations(start_node: Start, era: str) -> None:
    node = start_node(workshops={"shop": ToolServer(), "other": ToolServer()})
    told = AqlClient(node, "?view=aql&namespace=other", era).introspect()
    names = {one["name"] for one in told["operations"]}
    assert not [name for name in names if name.startswith("shop_")]
    assert any("echo" in name for name in names)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("query", ["?view=graphql", "?view=", "?view=aql&view=none"])
def test_rejects_unknown_view_and_lists_views(start_node: Start, era: str, query: str) -> None:
    node = start_node()
    body = message("tools/list", {"_meta": meta()})
    client = AqlClient(node, "", "stateless")
    client.path = "/mcp" + query
    answer = client.send(body, "tools/list")
    assert answer.status == 400
    assert "aql-single" in answer.error["message"]
    assert node.alive()


@pytest.mark.spec("AQ-3.3-4")
@pytest.mark.parametrize("era", ERAS)
def test_auto_view_shows_tools_of_small_catalog(start_node: Start, era: str) -> None:
    few, many = ToolServer(), ToolServer()
    few.tools = [tool("echo", text={"type": "string"})]
    many.tools = [
        {**tool(f"tool_{n}", text={"type": "string"}), "description": "A long story. " * 20}
        for n in range(200)
    ]
    config = AqlConfig(operations={"shop.*": OperationConfig(category="READ", danger="safe")})
    small = start_node(workshops={"shop": few}, aql=config)
    large = start_node(workshops={"shop": many}, aql=config)
    assert AqlClient(small, "?view=auto", era).names() == ["shop__echo"]
    client = AqlClient(large, "?view=auto", era)
    assert client.names() == FIVE
    assert "mcp_aql_read" in read_instructions(client)
    assert "mcp_aql_read" not in read_instructions(AqlClient(small, "?view=auto", era))
    # Both ways of calling work, whatever is listed.
    said = client.call("shop.tool_3", {"text": "by name"})
    assert said["content"][0]["text"] == "by name"
    assert client.ask("shop_tool_4", {"text": "as operation"})["success"] is True


@pytest.mark.spec("AQ-EPM-8.3-1")
def test_config_change_applies_to_new_sessions_only(start_node: Start) -> None:
    node = start_node(aql=AqlConfig(view="plain", operations=READ))
    before = AqlClient(node, "")
    assert "shop__echo" in before.names()
    node.wait(node.node.apply(node.config(aql=AqlConfig(view="aql", operations=READ))))
    assert "shop__echo" in before.names()
    assert AqlClient(node, "").names() == FIVE
    assert AqlClient(node, "", "stateless").names() == FIVE


@pytest.mark.spec("AQ-EPM-3.1-1", "AQ-3.3-2", "AQ-MCP-6.2-1")
@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"MCP_AQL_ENDPOINT_MODE": "semantic"}, FIVE),
        ({"MCP_AQL_ENDPOINT_MODE": "crude"}, FIVE),
        ({"MCP_AQL_ENDPOINT_MODE": "single"}, ["mcp_aql"]),
        ({"MCP_AQL_ENDPOINT_MODE": "all"}, [*FIVE, "mcp_aql"]),
        (
            {"MCP_AQL_ENDPOINT_MODE": "semantic", "MCP_AQL_ENDPOINT_PROFILE": "semantic"},
            [f"mcp_aql_{one}" for one in ("discover", "query", "manage", "operate")],
        ),
        (
            {"MCP_AQL_ENDPOINT_MODE": "single", "MCP_AQL_TOOL_PREFIX": "github_"},
            ["github_mcp_aql"],
        ),
    ],
)
def test_environment_overrides_config(
    tmp_path: Path, environ: dict[str, str], names: list[str]
) -> None:
    node = NodeThread(tmp_path, environ=environ, aql=AqlConfig(view="plain"))
    try:
        assert AqlClient(node, "").names() == names
    finally:
        node.stop()


@pytest.mark.spec("AQ-MCP-6.2-1")
@pytest.mark.parametrize("value", ["Git-", "GIT_", "gït_", "github", "_", "x" * 19 + "_"])
def test_rejects_invalid_prefix(tmp_path: Path, value: str) -> None:
    with pytest.raises(Exception, match="MCP_AQL_TOOL_PREFIX"):
        NodeThread(tmp_path, environ={"MCP_AQL_TOOL_PREFIX": value})


@pytest.mark.parametrize("view", ["aql", "aql-single", "aql-all", "semantic", "own"])
def test_instructions_name_tool_of_view(start_node: Start, view: str) -> None:
    own = {
        "look": FamilyConfig(categories=["READ"]),
        "act": FamilyConfig(categories=["CREATE", "UPDATE", "DELETE", "EXECUTE"]),
    }
    profiles = {"own": ProfileConfig(families=own)}
    node = start_node(aql=AqlConfig(prefix="home_", profiles=profiles, operations=READ))
    client = AqlClient(node, f"?view={view}", "stateless")
    said = client.request("server/discover").result["instructions"]
    named = said.partition("call ")[2].split()[0]
    assert named in client.names()
    arguments = {"operation": "introspect", "params": {"query": "operations"}}
    assert client.call(named, arguments)["structuredContent"]["success"] is True
    body = message("initialize", initialize(client="tests"), 0)
    opened = node.once(node.http(body, path=f"/mcp?view={view}"))
    assert opened.result["instructions"] == said
