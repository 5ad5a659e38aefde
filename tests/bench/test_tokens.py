"""The token benchmark: its catalogs, tasks and break-even."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import real_servers, tokens
from bench.real_server_table import SERVERS, RealServer
from bench.real_servers import Conversation, Listed, NotListed, list_over_stdio
from tests.support.timeouts import HANG_TIMEOUT

TOOL: dict[str, Any] = {
    "name": "find-thing",
    "description": "Finds a thing by what it is called, wherever it was put, if anywhere.",
    "inputSchema": {
        "type": "object",
        "properties": {"thingName": {"type": "string"}, "n": {"type": ["integer", "null"]}},
        "required": ["thingName", "n"],
    },
}


def server_with_tools(name: str, tools: int) -> Listed:
    return Listed(name, f"{name}@1", [{**TOOL, "name": f"tool{n}"} for n in range(tools)])


def test_catalog_has_requested_size() -> None:
    servers = [server_with_tools("a", 3), server_with_tools("b", 2)]
    small = tokens.catalog_of(servers, 4)
    assert {name: len(tools) for name, tools in small.servers.items()} == {"a": 3, "b": 1}
    assert (small.size, small.real) == (4, 4)
    large = tokens.catalog_of(servers, 12)
    assert list(large.servers) == ["a", "b", "a-2", "b-2", "a-3"]
    assert (large.size, large.real) == (12, 5)


def test_task_has_arguments_of_schema() -> None:
    catalog = tokens.Catalog({"shop": [TOOL]}, 1)
    (task,) = tokens.tasks_of(catalog)
    assert task.tool == "shop.find-thing"
    assert task.said == "Finds a thing by what it is called, wherever it was put,"
    assert task.arguments == {"thingName": "x", "n": 1}


@pytest.mark.feature("aql")
def test_update_wraps_changes_in_input() -> None:
    detail = {"parameters": [{"name": "thing_name"}, {"name": "input"}]}
    assert tokens.shaped({"thingName": "a", "newState": 1}, detail) == {
        "thing_name": "a",
        "input": {"new_state": 1},
    }
    assert tokens.shaped({"thingName": "a"}, {"parameters": [{"name": "thing_name"}]}) == {
        "thing_name": "a"
    }


def test_break_even_grows_with_tasks() -> None:
    view = {"shown": 900.0, "task": 900 + 600 + 80.0}
    each = {"views": {"plain": {"call": 60.0}, "five": view, "one": view}}
    assert tokens.break_even([each])["five"] == {"1": 1520, "3": 2760, "10": 7100}


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_counts_tokens_by_ranks() -> None:
    try:
        assert tokens.count_tokens(["hello world", "<|endoftext|>", ""]) == [2, 7, 0]  # type: ignore[attr-defined]
    except tokens.TargetMissing as why:  # type: ignore[attr-defined]
        pytest.skip(str(why))


def test_every_server_is_listed_once_and_pinned() -> None:
    names = [server.name for server in SERVERS]
    assert len(set(names)) == len(names)
    for server in SERVERS:
        assert "@" in server.package[1:] if server.source == "npm" else "==" in server.package
        assert server.program or server.source == "npm"


def demo(name: str, *command: str) -> tuple[list[str], RealServer]:
    return [sys.executable, *command], RealServer(name, "pypi", "none==1", "none")


def test_lists_server_over_stdio(tmp_path: Path) -> None:
    command, server = demo("demo", "-m", "interlock.demo")
    names = [tool["name"] for tool in list_over_stdio(command, server, tmp_path)]
    assert "time_now" in names


@pytest.mark.parametrize(
    ("script", "reason", "seconds"),
    [
        ("import sys; sys.exit('no credentials')", "it ended: no credentials", HANG_TIMEOUT),
        ("print('hello'); input()", "it ended", HANG_TIMEOUT),
        ("import time; time.sleep(600)", "it does not answer", 0.2),
    ],
)
def test_reports_why_listing_failed(
    script: str, reason: str, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_servers, "LISTING_S", seconds)
    command, server = demo("bad", "-c", script)
    with pytest.raises(NotListed, match=reason):
        list_over_stdio(command, server, tmp_path)


def test_reports_why_server_ended(tmp_path: Path) -> None:
    command, _ = demo("bad", "-c", "import sys; sys.exit('no credentials')")
    talk = Conversation(command, dict(os.environ), tmp_path)
    talk._child.wait(HANG_TIMEOUT)
    with pytest.raises(NotListed, match="it ended: no credentials"), talk:
        talk.ask("initialize", {})
    assert talk._child.stdin is not None
    assert talk._child.stdout is not None
    assert talk._child.stdin.closed
    assert talk._child.stdout.closed
