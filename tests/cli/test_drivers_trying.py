"""`interlock drivers test`: examples of contracts against real servers, and what differs."""

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


def tried(world: CommandLine, name: str, *more: str, code: int = 0) -> list[dict[str, Any]]:
    done = world.run_here("drivers", "test", name, "--json", *more)
    assert done.returncode == code, done.stdout + done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return told


@pytest.fixture
def greeting(world: CommandLine) -> CommandLine:
    (world.cwd / "greeting.txt").write_text(GREETING)
    return world


def examples(world: CommandLine, output: str = GREETING) -> list[dict[str, Any]]:
    path = str(world.cwd / "greeting.txt")
    return [
        {"name": "a greeting", "input": {"path": path}, "output": {"contents": output}},
        {"input": {"path": path}},
    ]


@pytest.mark.spec("DR-14.fields-11")
def test_examples_hold_for_a_driver_or_do_not(greeting: CommandLine) -> None:
    contract(greeting, examples=examples(greeting))
    driver(greeting)
    found = tried(greeting, "files-mcp")
    assert [one["outcome"] for one in found] == ["ok", "ok"]
    assert found[0]["value"] == {"contents": GREETING}
    # Another answer than the example says.
    contract(greeting, examples=examples(greeting, "Good bye.\n"))
    done = greeting.run_here("drivers", "test", "fs-read")
    assert done.returncode == 1
    assert "✗ files-mcp  fs-read: a greeting (differs)" in done.stdout
    assert '-  "contents": "Good bye.\\n"' in done.stdout
    assert '+  "contents": "Hello.\\n"' in done.stdout


@pytest.mark.spec("DR-14.fields-11", "DR-32.principles-4")
def test_every_driver_of_a_contract_is_tried_whatever_its_transport(greeting: CommandLine) -> None:
    greeting.config(drivers={"local_egress": True})
    contract(greeting, examples=examples(greeting))
    with ExitStack() as stack:
        driver(greeting, "piped-mcp")
        for transport in ("http", "sse"):
            url = stack.enter_context(listening(transport))
            driver(
                greeting,
                f"{transport}-mcp",
                server={"kind": "remote", "url": url},
                transport=transport,
                network={"egress": [url.split("/")[2]]},
            )
        found = tried(greeting, "fs-read")
    assert {(one["driver"], one["outcome"]) for one in found} == {
        ("piped-mcp", "ok"),
        ("http-mcp", "ok"),
        ("sse-mcp", "ok"),
    }
    assert len(found) == 6
    assert len({json.dumps(one["value"]) for one in found}) == 1


def test_what_fails_is_told_with_its_code(greeting: CommandLine) -> None:
    contract(greeting, examples=[{"input": {"path": "/no/such/file"}}])
    driver(greeting)
    [one] = tried(greeting, "files-mcp", code=1)
    assert one["outcome"] == "failed"
    assert one["message"].startswith("upstream_error: ")
    # An example that is none of the contract's own, and an answer that does not fit it.
    contract(greeting, examples=[{"input": {}}])
    [one] = tried(greeting, "files-mcp", code=1)
    assert one["message"].startswith("invalid_arguments: ")
    contract(greeting, examples=examples(greeting)[1:], outputs={"type": "array"})
    driver(greeting, implements=[entry(mcp={"result_extract": "$"})])
    [one] = tried(greeting, "files-mcp", code=1)
    assert one["outcome"] == "failed"


def test_a_tool_that_is_not_there(greeting: CommandLine) -> None:
    contract(greeting, examples=examples(greeting))
    driver(greeting, implements=[entry(tool="read_fil")])
    [one] = tried(greeting, "files-mcp", code=1)
    assert "Did you mean 'read_file'?" in one["message"]


def test_what_changes_something_is_tried_only_when_it_is_wanted(greeting: CommandLine) -> None:
    target = greeting.cwd / "written.txt"
    contract(
        greeting,
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
    driver(greeting, implements=[entry("fs-write", "write_file", mcp={"result_extract": "$"})])
    [one] = tried(greeting, "files-mcp", code=1)
    assert one["outcome"] == "skipped"
    assert "--changes" in greeting.run_here("drivers", "test", "files-mcp").stderr
    assert not target.exists()
    [one] = tried(greeting, "files-mcp", "--changes")
    assert one["outcome"] == "ok"
    assert target.read_text() == "x"


def test_nothing_to_try_and_nobody_to_ask(greeting: CommandLine) -> None:
    contract(greeting)
    driver(greeting)
    done = greeting.run_here("drivers", "test", "files-mcp")
    assert done.returncode == 1
    assert "no example of files-mcp was run: add examples" in done.stderr
    contract(greeting, examples=examples(greeting))
    driver(greeting, server={"kind": "binary", "path": "not-there"})
    [one] = tried(greeting, "files-mcp", code=4)
    assert one["outcome"] == "unreachable"
    assert greeting.run_here("drivers", "test", "nothing").returncode == 3


def test_translations_by_code_are_the_real_ones(greeting: CommandLine) -> None:
    """A driver.py that is trusted takes part; one that is not does not."""
    greeting.config(drivers={"allow_code": ["files-mcp"]})
    contract(greeting, examples=examples(greeting, "HELLO.\n"))
    path = driver(greeting, server=STARTED)
    (path.parent / "driver.py").write_text(
        "from interlock.drivers.sdk import define_driver\n"
        "def parse_tool_result(args):\n"
        "    return {'contents': args.result['structuredContent']['contents'].upper()}\n"
        "driver = define_driver(parse_tool_result=parse_tool_result)\n"
    )
    assert tried(greeting, "files-mcp")[0]["outcome"] == "ok"
    greeting.config(drivers={"allow_code": []})
    assert tried(greeting, "files-mcp", code=1)[0]["outcome"] == "differs"


def test_long_differences_are_cut() -> None:
    lines = difference({str(n): n for n in range(200)}, {str(n): n + 1 for n in range(200)})
    assert len(lines) == 41
    assert "more lines" in lines[-1]
    assert difference("a\x1bb", "c") == [
        "--- expected", "+++ actual", "@@ -1 +1 @@", "-a\ufffdb", "+c",
    ]  # fmt: skip
