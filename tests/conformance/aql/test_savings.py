"""What AQL saves, counted with o200k's ranks on a live node: lists of any size, and a session."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from bench.synthetic_tools import synthetic_tool
from bench.targets import TargetMissing
from bench.tokenizer import count_tokens, installed
from interlock.aql.config import AqlConfig, OperationConfig
from tests.aql.server.aql_client import AqlClient
from tests.support.node import NodeThread
from tests.support.tool_server import ToolServer

pytestmark = pytest.mark.feature("aql")

TOOLS = 100


@pytest.fixture(scope="module", autouse=True)
def tokenizer() -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    try:
        installed()
    except TargetMissing as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    shop = ToolServer()
    shop.tools = [synthetic_tool(number) for number in range(TOOLS)]
    config = AqlConfig(operations={"shop.*": OperationConfig(danger="safe")})
    running = NodeThread(tmp_path_factory.mktemp("savings"), workshops={"shop": shop}, aql=config)
    yield running
    running.stop()


def tokens(*values: Any) -> int:
    texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values]
    return sum(count_tokens(texts))


@pytest.mark.spec("AQ-1.1-1", "AQ-A.1-1")
def test_endpoints_save_tokens(node: NodeThread) -> None:
    plain = tokens(AqlClient(node, "").tools())
    five = tokens(AqlClient(node, "?view=aql").tools())
    one = tokens(AqlClient(node, "?view=aql-single").tools())
    assert plain > 10_000
    assert five <= 1_500
    assert one <= 400
    assert 1 - five / plain >= 0.85
    assert 1 - one / plain >= 0.96


@pytest.mark.spec("AQ-1.1-1")
def test_every_operation_stays_reachable(node: NodeThread) -> None:
    client = AqlClient(node, "?view=aql-single")
    actual = {operation["name"] for operation in client.introspect()["operations"]}
    for tool in node.shop.tools:
        name = f"shop_{tool['name']}"
        assert name in actual
        detail = client.introspect(name=name)["operation"]
        params: dict[str, Any] = {"project": "p"}
        if any(parameter["name"] == "input" for parameter in detail["parameters"]):
            params = {
                parameter["name"]: "p"
                for parameter in detail["parameters"]
                if parameter["required"]
            }
            params["input"] = {"state": "done"}
        answer = client.ask(name, params)
        code = answer.get("error", {}).get("code")
        assert answer["success"] or code == "CONFIRMATION_REQUIRED", (name, answer)


@pytest.mark.spec("AQ-A.2-1")
def test_ten_operations_cost_few_tokens(node: NodeThread) -> None:
    """Registration, and for each operation its details: the example that the draft gives."""
    client = AqlClient(node, "?view=aql-single")
    registered = tokens(client.tools())
    names = [f"shop_{tool['name']}" for tool in node.shop.tools[::10]][:10]
    details = [client.introspect(name=name) for name in names]
    assert len(details) == 10
    assert registered + tokens(*details) <= 2_600 * 1.2
