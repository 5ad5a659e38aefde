"""`interlock drivers test`: run the examples of contracts on real servers."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest

from interlock.drivers.commands.test import difference
from tests.cli.drivers_workspace import STARTED, contract, driver, entry, listening
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("drivers")

GREETING = "Hello.\n"


def run_examples(world: CommandLine, name: str, *more: str, code: int = 0) -> list[dict[str, Any]]:
    result = world.run_here("drivers", "test", name, "--json", *more)
    assert result.returncode == code, result.stdout + result.stderr
    data: list[dict[str, Any]] = json.loads(result.stdout)
    return data


@pytest.fixture
def greeting_world(world: CommandLine) -> CommandLine:
    (world.cwd / "greeting.txt").write_text(GREETING)
    return world


def examples(world: CommandLine, output: str = GREETING) -> list[dict[str, Any]]:
    path = str(world.cwd / "greeting.txt")
    return [
        {"name": "a greeting", "input": {"path": path}, "output": {"contents": output}},
        {"input": {"path": path}},
    ]


@pytest.mark.spec("DR-14.fields-11")
def test_examples_pass_or_fail_for_driver(greeting_world: CommandLine) -> None:
    contract(greeting_world, examples=examples(greeting_world))
    driver(greeting_world)
    outcomes = run_examples(greeting_world, "files-mcp")
    assert [item["outcome"] for item in outcomes] == ["ok", "ok"]
    assert outcomes[0]["value"] == {"contents": GREETING}
    # Another answer than the example says.
    contract(greeting_world, examples=examples(greeting_world, "Good bye.\n"))
    result = greeting_world.run_here("drivers", "test", "fs-read")
    assert result.returncode == 1
    assert "✗ files-mcp  fs-read: a greeting (differs)" in result.stdout
    assert '-  "contents": "Good bye.\\n"' in result.stdout
    assert '+  "contents": "Hello.\\n"' in result.stdout


@pytest.mark.spec("DR-14.fields-11", "DR-32.principles-4")
def test_examples_run_on_every_driver_and_transport(greeting_world: CommandLine) -> None:
    greeting_world.config(drivers={"local_egress": True})
    contract(greeting_world, examples=examples(greeting_world))
    with ExitStack() as stack:
        driver(greeting_world, "piped-mcp")
        for transport in ("http", "sse"):
            url = stack.enter_context(listening(transport))
            driver(
                greeting_world,
                f"{transport}-mcp",
                server={"kind": "remote", "url": url},
                transport=transport,
                network={"egress": [url.split("/")[2]]},
            )
        outcomes = run_examples(greeting_world, "fs-read")
    assert {(item["driver"], item["outcome"]) for item in outcomes} == {
        ("piped-mcp", "ok"),
        ("http-mcp", "ok"),
        ("sse-mcp", "ok"),
    }
    assert len(outcomes) == 6
    assert len({json.dumps(item["value"]) for item in outcomes}) == 1


def test_failed_example_has_error_code(greeting_world: CommandLine) -> None:
    contract(greeting_world, examples=[{"input": {"path": "/no/such/file"}}])
    driver(greeting_world)
    [one] = run_examples(greeting_world, "files-mcp", code=1)
    assert one["outcome"] == "failed"
    assert one["message"].startswith("upstream_error: ")
    # An example that is none of the contract's own, and an answer that does not fit it.
    contract(greeting_world, examples=[{"input": {}}])
    [one] = run_examples(greeting_world, "files-mcp", code=1)
    assert one["message"].startswith("invalid_arguments: ")
    contract(greeting_world, examples=examples(greeting_world)[1:], outputs={"type": "array"})
    driver(greeting_world, implements=[entry(mcp={"result_extract": "$"})])
    [one] = run_examples(greeting_world, "files-mcp", code=1)
    assert one["outcome"] == "failed"


def test_missing_tool_is_reported_with_suggestion(greeting_world: CommandLine) -> None:
    contract(greeting_world, examples=examples(greeting_world))
    driver(greeting_world, implements=[entry(tool="read_fil")])
    [one] = run_examples(greeting_world, "files-mcp", code=1)
    assert "Did you mean 'read_file'?" in one["message"]


def test_mutating_example_runs_only_with_option(greeting_world: CommandLine) -> None:
    target = greeting_world.cwd / "written.txt"
    contract(
        greeting_world,
        "fs-write",
        inputs={
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
        outputs={"type": "object"},
        mutates=["workspace:*"],
        approval="always",
        examples=[{"input": {"path": str(target), "content": "x"}, "output": {"written": 1}}],
    )
    driver(
        greeting_world, implements=[entry("fs-write", "write_file", mcp={"result_extract": "$"})]
    )
    [one] = run_examples(greeting_world, "files-mcp", code=1)
    assert one["outcome"] == "skipped"
    assert "--changes" in greeting_world.run_here("drivers", "test", "files-mcp").stderr
    assert not target.exists()
    [one] = run_examples(greeting_world, "files-mcp", "--changes")
    assert one["outcome"] == "ok"
    assert target.read_text() == "x"


def test_missing_examples_and_unreachable_server_are_reported(greeting_world: CommandLine) -> None:
    contract(greeting_world)
    driver(greeting_world)
    result = greeting_world.run_here("drivers", "test", "files-mcp")
    assert result.returncode == 1
    assert "no example of files-mcp was run: add examples" in result.stderr
    contract(greeting_world, examples=examples(greeting_world))
    driver(greeting_world, server={"kind": "binary", "path": "not-there"})
    [one] = run_examples(greeting_world, "files-mcp", code=4)
    assert one["outcome"] == "unreachable"
    assert greeting_world.run_here("drivers", "test", "nothing").returncode == 3


def test_examples_use_trusted_driver_code(greeting_world: CommandLine) -> None:
    """A driver.py that is trusted takes part; one that is not does not."""
    greeting_world.config(drivers={"allow_code": ["files-mcp"]})
    contract(greeting_world, examples=examples(greeting_world, "HELLO.\n"))
    path = driver(greeting_world, server=STARTED)
    (path.parent / "driver.py").write_text(
        "from interlock.drivers.sdk import define_driver\n"
        "def parse_tool_result(args):\n"
        "    return {'contents': args.result['structuredContent']['contents'].upper()}\n"
        "driver = define_driver(parse_tool_result=parse_tool_result)\n"
    )
    assert run_examples(greeting_world, "files-mcp")[0]["outcome"] == "ok"
    greeting_world.config(drivers={"allow_code": []})
    assert run_examples(greeting_world, "files-mcp", code=1)[0]["outcome"] == "differs"


def test_long_differences_are_cut() -> None:
    lines = difference({str(n): n for n in range(200)}, {str(n): n + 1 for n in range(200)})
    assert len(lines) == 41
    assert "more lines" in lines[-1]
    assert difference("a\x1bb", "c") == [
        "--- expected", "+++ actual", "@@ -1 +1 @@", "-a\ufffdb", "+c",
    ]  # fmt: skip
