"""Clients from npm in front of a node: the official TypeScript SDKs, and the MCP Inspector's CLI.

Behind the node are the official `server-everything`, which knows the session wire only, and the
official Python server, which speaks both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config import ServerConfig
from tests.behaviour.conftest import OFFICIAL
from tests.conformance import external_packages
from tests.support.command_line import INTERLOCK, CommandLine
from tests.support.node import NodeThread
from tests.support.timeouts import HANG_TIMEOUT

CLIENT = Path(__file__).parent / "clients" / "official.mjs"
STATIC = "demo://resource/static/document/architecture.md"
SECONDS = HANG_TIMEOUT

pytestmark = pytest.mark.timeout(1800)
MODES = ["session", "legacy", "modern", "auto"]
every_mode = pytest.mark.parametrize("mode", MODES)


def fetch(pinned: str) -> Path:
    try:
        return external_packages.package(pinned)
    except external_packages.CannotRun as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def program() -> str:
    try:
        return external_packages.node()
    except external_packages.CannotRun as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def node(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    everything = fetch(external_packages.SERVER_EVERYTHING) / "dist" / "index.js"
    servers = {
        "every": ServerConfig(command=program, args=[str(everything), "stdio"]),
        "both": ServerConfig(command=sys.executable, args=[str(OFFICIAL), "stdio", "both"]),
    }
    running = NodeThread(tmp_path_factory.mktemp("node"), workshops={}, servers=servers)
    yield running
    running.stop()


class Ran:
    """What came of the steps of a client."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = iter(lines)

    def next(self) -> Any:
        line = next(self._lines)
        assert "error" not in line, line
        return line["result"]

    def refused(self) -> dict[str, Any]:
        error: dict[str, Any] = next(self._lines)["error"]
        return error

    def progress(self) -> tuple[Any, list[float]]:
        line = next(self._lines)
        assert "error" not in line, line
        return line["result"], line["progress"]


def drive(
    program: str, mode: str, url: str, *steps: dict[str, Any], transport: str = "http"
) -> Ran:
    """The official client does these steps, one after the other."""
    folder = fetch(external_packages.SDK_1 if mode == "session" else external_packages.SDK_2)
    result = subprocess.run(
        [program, str(CLIENT), str(folder), mode, transport, url],
        input="".join(json.dumps(step) + "\n" for step in steps),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == len(steps), (lines, result.stderr)
    return Ran(lines)


def do(method: str, *arguments: Any, **more: Any) -> dict[str, Any]:
    return {"do": method, "with": list(arguments), **more}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return do("callTool", {"name": name, "arguments": arguments})


def text(result: dict[str, Any]) -> str:
    return "\n".join(item["text"] for item in result["content"] if item["type"] == "text")


# -- the official TypeScript clients


@pytest.mark.spec("AX-1.1-1", "ST-4.4.1-2")
@every_mode
def test_all_features_are_listed(program: str, node: NodeThread, mode: str) -> None:
    steps = [
        do("getServerVersion"),
        do("getServerCapabilities"),
        do("listTools"),
        do("listResources"),
        do("listResourceTemplates"),
        do("listPrompts"),
        call("every.echo", message="Grüezi"),
        call("both.add", a=2, b=3),
        do("readResource", {"uri": STATIC}),
        do("readResource", {"uri": "demo://resource/dynamic/text/7"}),
        do("getPrompt", {"name": "every.args-prompt", "arguments": {"city": "Bern"}}),
        do(
            "complete",
            {
                "ref": {"type": "ref/prompt", "name": "every.completable-prompt"},
                "argument": {"name": "department", "value": "S"},
            },
        ),
        call("both.nothing_like_that"),
        call(STATIC),
        call("every.echo", message="on"),
    ]
    ran = drive(program, mode, node.url, *steps)
    assert ran.next()["name"] == "interlock"
    assert set(ran.next()) >= {"tools", "resources", "prompts", "completions", "logging"}
    names = {tool["name"] for tool in ran.next()["tools"]}
    assert {"every__echo", "every__trigger-sampling-request", "both__add"} <= names
    assert STATIC in {resource["uri"] for resource in ran.next()["resources"]}
    templates = {template["uriTemplate"] for template in ran.next()["resourceTemplates"]}
    assert "demo://resource/dynamic/text/{resourceId}" in templates
    assert "every__simple-prompt" in {prompt["name"] for prompt in ran.next()["prompts"]}
    assert text(ran.next()) == "Echo: Grüezi"
    assert ran.next()["structuredContent"] == {"sum": 5}
    assert "Everything Server" in ran.next()["contents"][0]["text"]
    assert "Resource 7" in ran.next()["contents"][0]["text"]
    assert "Bern" in ran.next()["messages"][0]["content"]["text"]
    assert ran.next()["completion"]["values"] == ["Sales", "Support"]
    assert ran.refused()["code"] == -32602
    # A resource is no tool.
    assert ran.refused()["code"] == -32602
    assert text(ran.next()) == "Echo: on"


@every_mode
def test_client_requests_reach_client(program: str, node: NodeThread, mode: str) -> None:
    page = "https://example.com/agree"
    ran = drive(
        program,
        mode,
        node.url,
        call("every.trigger-sampling-request", prompt="Which way?", maxTokens=77),
        call("every.trigger-elicitation-request"),
        call("every.trigger-url-elicitation", url=page),
        call("every.get-roots-list"),
    )
    assert "a-model" in text(ran.next())
    assert "Name: A. Person" in text(ran.next())
    assert page in text(ran.next())
    assert "file:///some/where" in text(ran.next())


@every_mode
def test_progress_reaches_client(program: str, node: NodeThread, mode: str) -> None:
    step = call("every.trigger-long-running-operation", duration=0.3, steps=3)
    result, heard = drive(program, mode, node.url, {**step, "progress": True}).progress()
    assert "completed" in text(result)
    assert heard == [1, 2, 3]


@every_mode
def test_resource_updates_reach_client(program: str, node: NodeThread, mode: str) -> None:
    stateless = mode in ("modern", "auto")
    ran = drive(
        program,
        mode,
        node.url,
        do("listen", {"resourceSubscriptions": [STATIC]})
        if stateless
        else do("subscribeResource", {"uri": STATIC}),
        call("every.toggle-subscriber-updates"),
        {"await": "notifications/resources/updated"},
        call("every.toggle-subscriber-updates"),
    )
    ran.next()
    assert "Started" in text(ran.next())
    assert ran.next()["uri"] == STATIC
    assert "Stopped" in text(ran.next())


@pytest.mark.parametrize("mode", ["session", "legacy"])
def test_log_messages_reach_client(program: str, node: NodeThread, mode: str) -> None:
    ran = drive(
        program,
        mode,
        node.url,
        do("setLoggingLevel", "debug"),
        call("every.toggle-simulated-logging"),
        {"await": "notifications/message"},
        call("every.toggle-simulated-logging"),
    )
    assert ran.next() == {}
    assert "Started" in text(ran.next())
    assert ran.next()["level"]
    assert "Stopped" in text(ran.next())


@pytest.mark.parametrize("mode", ["session", "legacy"])
def test_legacy_sse_transport_works(program: str, node: NodeThread, mode: str) -> None:
    """HTTP+SSE of 2024-11-05, which old clients still speak."""
    address = node.url.rpartition("/")[0] + "/sse"
    ran = drive(
        program,
        mode,
        address,
        do("listTools"),
        call("every.echo", message="hi"),
        call("both.add", a=2, b=3),
        call("every.trigger-sampling-request", prompt="Which way?", maxTokens=77),
        do("readResource", {"uri": STATIC}),
        transport="sse",
    )
    assert "every__echo" in {tool["name"] for tool in ran.next()["tools"]}
    assert text(ran.next()) == "Echo: hi"
    assert ran.next()["structuredContent"] == {"sum": 5}
    assert "a-model" in text(ran.next())
    assert "Everything Server" in ran.next()["contents"][0]["text"]


@every_mode
def test_stdio_command_works(program: str, tmp_path: Path, mode: str) -> None:
    """`interlock stdio`, as a client has it in its config."""
    world = CommandLine(tmp_path)
    everything = fetch(external_packages.SERVER_EVERYTHING) / "dist" / "index.js"
    servers = {"every": {"command": program, "args": [str(everything), "stdio"]}}
    config = world.config(servers)
    [python, *words] = INTERLOCK
    command = {
        "command": python,
        "args": [*words, "stdio", "--config", str(config)],
        "env": world.environ,
    }
    ran = drive(
        program,
        mode,
        json.dumps(command),
        do("listTools"),
        call("every.echo", message="hi"),
        call("every.trigger-elicitation-request"),
        do("readResource", {"uri": STATIC}),
        transport="stdio",
    )
    assert "every__echo" in {tool["name"] for tool in ran.next()["tools"]}
    assert text(ran.next()) == "Echo: hi"
    assert "Name: A. Person" in text(ran.next())
    assert "Everything Server" in ran.next()["contents"][0]["text"]


# -- MCP Inspector's CLI


class Inspector:
    """`mcp-inspector --cli`, asked once."""

    def __init__(self, program: str, url: str, home: Path) -> None:
        launcher = (
            fetch(external_packages.INSPECTOR) / "clients" / "launcher" / "build" / "index.js"
        )
        self._command = [program, str(launcher), "--cli", url, "--transport", "http"]
        self._environ = {**os.environ, "HOME": str(home)}

    def ask(self, era: str, method: str, *more: str) -> subprocess.CompletedProcess[str]:
        quiet = ["--format", "json", "-q", "--stored-auth-only"]
        return subprocess.run(
            [*self._command, "--protocol-era", era, *quiet, "--method", method, *more],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def result(self, era: str, method: str, *more: str) -> Any:
        response = self.ask(era, method, *more)
        assert response.returncode == 0, response.stderr
        return json.loads(response.stdout)["result"]


@pytest.fixture
def inspector(program: str, node: NodeThread, tmp_path: Path) -> Inspector:
    return Inspector(program, node.url, tmp_path)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_inspector_lists_and_calls(inspector: Inspector, era: str) -> None:
    names = {tool["name"] for tool in inspector.result(era, "tools/list")["tools"]}
    assert {"every.echo", "both.add"} <= names
    echo = ["--tool-name", "every.echo", "--tool-args-json", '{"message":"hi"}']
    assert text(inspector.result(era, "tools/call", *echo)) == "Echo: hi"
    read = inspector.result(era, "resources/read", "--uri", STATIC)
    assert "Everything Server" in read["contents"][0]["text"]
    prompt = ["--prompt-name", "every.args-prompt", "--prompt-args", "city=Bern"]
    got = inspector.result(era, "prompts/get", *prompt)
    assert "Bern" in got["messages"][0]["content"]["text"]


def test_inspector_reports_failed_tool(inspector: Inspector) -> None:
    refuse = ["--tool-name", "both.refuse", "--tool-args-json", '{"why":"no"}']
    assert inspector.ask("legacy", "tools/call", *refuse).returncode == 5
