"""Tests of the programs in docs/topics-library.md and of the named draft."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock import errors
from interlock.protocol.kinds import PROFILES
from interlock.protocol.mcpx_terms import PROTOCOL
from interlock.topics.client import Participant
from tests.topics.client.two_gateways import GatewayUnderTest, run_with_both_gateways, wait_until

PAGE = Path(__file__).parents[3] / "docs" / "topics-library.md"
EVERYTHING = ("mcp/*", "chat")


def documented_programs() -> Iterator[str]:
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        yield block.replace('topic="ops"', 'topic="room"')


@pytest.mark.spec("MX-0-1")
def test_pages_name_protocol_draft() -> None:
    gateway, overview, library = (
        " ".join((PAGE.parent / name).read_text(encoding="utf-8").split())
        for name in ("topics-gateway.md", "topics.md", "topics-library.md")
    )
    assert (
        f"`{PROTOCOL}` (the draft of that name; its text is that of the released v0.1)" in gateway
    )
    assert f"Interlock speaks exactly `{PROTOCOL}`" in overview
    assert "MCPx v0.1" in library


def test_documented_programs_work_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(house: GatewayUnderTest) -> None:
        monkeypatch.setenv("GATEWAY", house.url)
        for name in ("worker", "agent", "human", "robot"):
            monkeypatch.setenv(f"{name.upper()}_TOKEN", f"t-{name}")
        made: dict[str, Any] = {}
        mains = []
        for program in documented_programs():
            exec(compile(program, str(PAGE), "exec"), made)
            mains.append(made.pop("main", None))
        work, act, decide, _ = mains
        tasks = []
        for name, main in (("worker", work), ("human", decide)):
            events = made[name].events()
            tasks.append(asyncio.create_task(main()))
            await wait_until(events, lambda event: event.kind == "system/welcome")
        assert await act() == "12 characters written to report"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        # The rule of the last one covers what it says.
        assert made["orchestrator"].rules == tuple(made["rules"])

    run_with_both_gateways(
        test,
        {
            "worker": ("mcp/response:*", "chat"),
            "agent": ("mcp/proposal:*", "chat"),
            "human": EVERYTHING,
            "robot": EVERYTHING,
        },
    )


def test_documented_programs_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY", "ws://127.0.0.1:1/ws")
    for name in ("worker", "agent", "human", "robot"):
        monkeypatch.setenv(f"{name.upper()}_TOKEN", f"t-{name}")
    for program in documented_programs():
        made: dict[str, Any] = {"__name__": "program"}
        exec(compile(program, str(PAGE), "exec"), made)
        assert asyncio.iscoroutinefunction(made["main"])
        # Whoever pastes it into a file and runs that has it running.
        assert "asyncio.run(main())" in program.partition('if __name__ == "__main__":')[2]


def test_documented_failure_names_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("| `error.failure.name` | |\n|---|---|\n")[2].partition("\n\n")[0]
    told = re.findall(r"^\| `([a-z_]+)`", table, re.MULTILINE)
    assert "upstream_lost" in told
    assert "approval_refused" in told
    names = {one.name for one in vars(errors).values() if isinstance(one, errors.Failure)}
    assert names.issuperset(told)


def test_documented_profiles_match_code() -> None:
    text = PAGE.with_name("topics.md").read_text(encoding="utf-8")
    table = text.partition("| profile | what it may send |\n|---|---|\n")[2].partition("\n\n")[0]
    told = {}
    for row in table.splitlines():
        name, _, may = row.strip("| ").partition(" | ")
        told[name.strip("`")] = tuple(re.findall(r"`([^`]+)`", may))
    assert told == PROFILES


def test_documented_names_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = set(re.findall(r"\bp\.(\w+)", text))
    assert {"connected", "call", "propose", "fulfil", "events"} <= names
    assert not [name for name in names if not hasattr(Participant, name)]
    assert asyncio.iscoroutinefunction(Participant.call)
