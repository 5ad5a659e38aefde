"""Tests of functions as tools: schema, arguments, results and errors."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Raw

from interlock.sdk.functions import FunctionTool, ThreadPool
from interlock.sdk.tool import ToolError, ToolResult
from interlock.tree.subserver import Progress, Subserver
from tests.support.http_client import HANG_TIMEOUT


class Point(msgspec.Struct):
    """A point with two coordinates."""

    x: int
    y: int = 0


class Tree(msgspec.Struct):
    branches: list[Tree]


def make_tool(function: Any, **capability: Any) -> FunctionTool:
    return FunctionTool(
        function, name=function.__name__, title=None, description=None, capability=capability
    )


def call_tool(function: Any, arguments: Any, report: Any = None) -> ToolResult:
    async def call() -> ToolResult:
        answer: ToolResult = await make_tool(function).start(
            Raw(json.dumps(arguments).encode()), report
        )
        # What was told from another thread has arrived by now.
        await asyncio.sleep(0)
        return answer

    return asyncio.run(call())


def test_schema_follows_signature() -> None:
    def everything(  # type: ignore[no-untyped-def]
        name: str,
        count: Annotated[int, Meta(ge=1, description="How many.")] = 1,
        ratio: float | None = None,
        tags: list[str] = [],  # noqa: B006 - authors write such things
        kind: Literal["a", "b"] = "a",
        where: Point | None = None,
        more: dict[str, int] = {},  # noqa: B006
        untyped=None,
        *,
        progress: Progress,
    ) -> str:
        """Takes everything.

        And says so.
        """
        return name

    listed = make_tool(everything).listed()
    assert listed["description"] == "Takes everything.\n\nAnd says so."
    schema = listed["inputSchema"]
    assert schema["type"] == "object"
    assert schema["required"] == ["name"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert set(properties) == {
        "name", "count", "ratio", "tags", "kind", "where", "more", "untyped",
    }  # fmt: skip
    assert properties["count"] == {
        "type": "integer", "minimum": 1, "description": "How many.", "default": 1,
    }  # fmt: skip
    assert properties["kind"]["enum"] == ["a", "b"]
    assert {"type": "null"} in properties["where"]["anyOf"]
    assert "$ref" not in json.dumps(schema)
    assert "outputSchema" not in listed


def test_checks_arguments_before_call() -> None:
    def move(to: Point, times: int = 1) -> str:
        return f"{to.x},{to.y} {times}"

    assert call_tool(move, {"to": {"x": 3}}).text == "3,0 1"
    assert call_tool(move, {"to": {"x": 3}, "times": 2.0}).text == "3,0 2"
    wrong: Any
    for wrong in ({}, {"to": 5}, {"to": {"x": "3"}}, {"to": {"x": 1}, "other": 1}, [], 5):
        with pytest.raises(ToolError, match="cannot be used"):
            call_tool(move, wrong)


def test_defaults_are_not_shared_between_calls() -> None:
    def collect(one: str, into: list[str] = []) -> int:  # noqa: B006
        into.append(one)
        return len(into)

    tool = make_tool(collect)

    async def twice() -> list[str]:
        return [(await tool.start(Raw(b'{"one":"x"}'), None)).text for _ in range(2)]  # type: ignore[arg-type]

    assert asyncio.run(twice()) == ["1", "1"]


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (None, ToolResult("Done.")),
        ("text", ToolResult("text")),
        (21.5, ToolResult("21.5")),
        ([1, "a"], ToolResult('[1,"a"]')),
        ({"a": 1}, ToolResult('{"a":1}', {"a": 1})),
        (Point(1), ToolResult('{"x":1,"y":0}', Point(1))),
        (ToolResult("as it is", {"b": 2}), ToolResult("as it is", {"b": 2})),
    ],
)
def test_converts_results(found: Any, answer: ToolResult) -> None:
    def plain() -> Any:
        return found

    async def later() -> Any:
        return found

    assert call_tool(plain, {}) == answer
    assert call_tool(later, {}) == answer


def test_struct_result_has_output_schema() -> None:
    def where() -> Point:
        return Point(1, 2)

    assert make_tool(where).listed()["outputSchema"]["properties"]["x"] == {"type": "integer"}


def test_errors_become_tool_errors() -> None:
    def divide(by: int) -> float:
        return 1 / by

    async def refuse() -> None:
        raise ToolError("Not on Sundays.")

    def unwritable() -> Any:
        return object()

    with pytest.raises(ToolError, match="divide failed: ZeroDivisionError: division by zero"):
        call_tool(divide, {"by": 0})
    with pytest.raises(ToolError, match=r"^Not on Sundays\.$"):
        call_tool(refuse, {})
    with pytest.raises(ToolError, match="unwritable failed: TypeError"):
        call_tool(unwritable, {})


@pytest.mark.parametrize(
    "raised", [SystemExit(3), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError()]
)
def test_any_exception_becomes_tool_error(raised: BaseException) -> None:
    def plain() -> None:
        raise raised

    async def later() -> None:
        raise raised

    for function in (plain, later):
        if function is later and isinstance(raised, asyncio.CancelledError):
            # On the loop that is how a call is ended.
            continue
        with pytest.raises(ToolError, match=f"{function.__name__} failed: "):
            call_tool(function, {})


def test_reuses_limited_threads() -> None:
    threads = ThreadPool(max_threads=2)
    gate, seen = threading.Event(), set()

    def work() -> int:
        seen.add(threading.current_thread())
        if len(seen) == 2:
            # Until then nobody is done, who could do the work of the other as well.
            gate.set()
        assert gate.wait(HANG_TIMEOUT)
        return len(seen)

    async def run() -> None:
        jobs = [asyncio.create_task(threads.run(work)) for _ in range(5)]
        assert max(await asyncio.gather(*jobs)) <= 2
        await threads.run(work)

    asyncio.run(run())
    assert len(seen) == 2
    assert all(one.daemon for one in seen)


def test_reports_progress_from_threads_and_loop() -> None:
    def slow(progress: Progress) -> None:
        progress(1, 2, "half")

    async def quick(progress: Progress | None = None) -> None:
        assert progress is not None
        progress(2, 2)

    for function, told in ((slow, (1, 2, "half")), (quick, (2, 2, ""))):
        heard: list[Any] = []
        call_tool(function, {}, lambda *one, into=heard: into.append(one))
        assert heard == [told]


@pytest.mark.spec("AX-9.1-1")
def test_tool_options_become_capability() -> None:
    plant = Subserver("plant")

    @plant.tool(latency_class="slow", mutable=False, schema_version="1.2.0", title="Look")
    def look() -> str:
        return "seen"

    @plant.tool(name="other", description="Something.")
    def something() -> None:
        """Not this."""

    listed = plant._tools["look"].listed()
    assert listed["_meta"] == {
        "x-mcpax-capability": {
            "latency_class": "slow", "mutable": False, "schema_version": "1.2.0",
        }
    }  # fmt: skip
    assert listed["title"] == "Look"
    assert plant._tools["other"].listed() == {
        "name": "other",
        "description": "Something.",
        "inputSchema": {
            "type": "object", "properties": {}, "required": [], "additionalProperties": False,
        },
    }  # fmt: skip
    # The function is still the author's own.
    assert look() == "seen"


def test_rejects_invalid_tools() -> None:
    plant = Subserver("plant")

    def tool(**more: Any) -> Any:
        return plant.tool(**more)

    with pytest.raises(ValueError, match="latency_class"):
        tool(name="a", latency_class="quick")(lambda: None)
    with pytest.raises(ValueError, match=r"'a.b' is not a valid tool name. Use 1 to 63"):
        tool(name="a.b")(lambda: None)
    tool(name="once")(lambda: None)
    with pytest.raises(ValueError, match="A tool 'once' exists already"):
        tool(name="once")(lambda: None)
    with pytest.raises(TypeError, match="must be a keyword parameter"):
        tool(name="many")(lambda *args: None)

    def endless(tree: Tree) -> None:
        """It holds itself."""

    with pytest.raises(TypeError, match="Tree is recursive"):
        tool()(endless)


@pytest.mark.parametrize("segment", ["", "A", "a.b", "x" * 64, "notifications_dropped"])
def test_rejects_invalid_segments(segment: str) -> None:
    with pytest.raises(ValueError, match="is not a valid segment"):
        Subserver(segment)


def test_rejects_invalid_subserver_id() -> None:
    with pytest.raises(ValueError, match="not a UUID"):
        Subserver("a", subserver_id="plant-1")
