"""LLM frameworks with a node behind them and a model API before them, as their users run them.

The frameworks are real, each in a process of its own. The model API is a stand-in that accepts the
names that real ones accept, and no others. It asks for one call of a tool, then repeats the result.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import ServerConfig
from interlock.core.journal.reader import JournalReader
from interlock.protocol.mcp import TOOLS_CALL
from tests.behaviour.frameworks.agent import FRAMEWORKS
from tests.support.node import NodeThread
from tests.support.programs import FRAMEWORKS_PYTHON, requires_frameworks

pytestmark = [requires_frameworks, pytest.mark.timeout(600)]

AGENT = Path(__file__).parent / "frameworks" / "agent.py"
ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""As the APIs of OpenAI and Anthropic document it."""


class ModelApi(ThreadingHTTPServer):
    """An OpenAI-compatible API whose model calls the tool that adds numbers."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Completions)
        self.offered: list[str] = []
        """The names of tools that the last request had."""
        self.rejected: list[str] = []
        self._thread = threading.Thread(target=self.serve_forever, name="model api")
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def answer(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.offered = [item["function"]["name"] for item in request.get("tools", ())]
        self.rejected += [name for name in self.offered if not ACCEPTED.fullmatch(name)]
        if self.rejected:
            problem = f"Invalid 'tools[0].function.name': {self.rejected[0]!r}"
            return 400, {"error": {"message": problem, "type": "invalid_request_error"}}
        last = request["messages"][-1]
        if last["role"] == "tool":
            fields = {
                "role": "assistant",
                "content": f"The tool said {json.dumps(last['content'])}",
            }
            return 200, _completion(fields, "stop")
        [name] = [name for name in self.offered if name.endswith("add")]
        call = {"name": name, "arguments": json.dumps({"a": 2, "b": 3})}
        calls = [{"id": "call_1", "type": "function", "function": call}]
        fields = {"role": "assistant", "content": None, "tool_calls": calls}  # type: ignore[dict-item]
        return 200, _completion(fields, "tool_calls")


class _Completions(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, ModelApi)
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.server.answer(request)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def _completion(message: dict[str, Any], reason: str) -> dict[str, Any]:
    return {
        "id": "completion",
        "object": "chat.completion",
        "created": 1,
        "model": "stand-in",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


@pytest.fixture
def model_api() -> Iterator[ModelApi]:
    api = ModelApi()
    yield api
    api.close()


def run_agent(framework: str, node: NodeThread, api: ModelApi) -> subprocess.CompletedProcess[str]:
    command = [str(FRAMEWORKS_PYTHON), str(AGENT), framework, node.url, api.url]
    # No proxy of the machine stands before loopback, and nothing is reported to anybody.
    environ = {"PATH": "", "NO_PROXY": "*", "DO_NOT_TRACK": "1", "HOME": str(node.folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=500)


@pytest.mark.spec("AX-4.1-6")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_framework_calls_tool_through_node(
    start_node: Callable[..., NodeThread],
    server_for: Callable[..., ServerConfig],
    model_api: ModelApi,
    framework: str,
) -> None:
    server = server_for("pipe", effects={"*": "read_only"})
    node = start_node(workshops={}, servers={"office": server})
    ran = run_agent(framework, node, model_api)
    assert model_api.rejected == []
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "office__add" in model_api.offered
    assert re.search(r'"sum\W+5', ran.stdout)
    # Under its canonical name in the node's own books.
    entries = JournalReader(node.folder / "journal.db").tail(100)
    assert [entry.name for entry in entries if entry.verb == TOOLS_CALL] == ["office.add"]


def test_model_api_rejects_dotted_name(model_api: ModelApi) -> None:
    """Otherwise the tests above would prove nothing."""
    function = {"name": "office.add", "parameters": {"type": "object"}}
    request = {
        "messages": [{"role": "user", "content": "Add."}],
        "tools": [{"type": "function", "function": function}],
    }
    status, _ = model_api.answer(request)
    assert (status, model_api.rejected) == (400, ["office.add"])
