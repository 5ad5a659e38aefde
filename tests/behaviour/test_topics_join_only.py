"""A token for topics only: its caller can propose and nothing else."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_topic_program import Running
from tests.support.command_line import DEMO, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.feature("topics")

AGENT = "agent-token-0123456789abcdef"
BOSS = "boss-token-0123456789abcdef"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path)
    try:
        yield one
    finally:
        one.close()


def status_at(url: str, bearer: str) -> tuple[int, str]:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    headers = {
        "Authorization": f"Bearer {bearer}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_join_only_participant_proposes_and_calls_nothing(world: CommandLine) -> None:
    seats = [
        {"callers": ["agent"], "profile": "proposal_only"},
        {"callers": ["boss"], "profile": "full_access"},
    ]
    world.config(
        {"demo": DEMO},
        tokens=[
            {"name": "agent", "token": "${env:T_AGENT}", "may": ["join"]},
            {"name": "boss", "token": "${env:T_BOSS}"},
        ],
        topics={"rooms": {"ops": {"node": "interlock", "participants": seats}}},
    )
    node = world.up(T_AGENT=AGENT, T_BOSS=BOSS)
    node.wait_for_line("upstream demo: ready")
    world.environ |= {"T_AGENT": AGENT, "T_BOSS": BOSS, "INTERLOCK_TOKEN": AGENT}

    code, told = status_at(node.url, AGENT)
    assert code == 403
    assert "for topics only" in told
    assert "Add `call` to its `may`" in told
    assert "for topics only" not in status_at(node.url, BOSS)[1]

    words = ("topic", "call", "ops", "interlock", "demo.notes_add", "title=x", "text=hello")
    running = Running(world, *words)
    try:

        def waits() -> list[dict[str, Any]] | None:
            return json.loads(world.run("approvals", "--json").stdout)["approvals"] or None

        [held] = wait_until("the proposal", waits)
        assert held["caller"]["name"] == "agent"
        # Whoever waits for it hears of a refusal at once.
        assert world.run("reject", "--reason", "not today", "--", held["id"]).returncode == 0
        _, errors = running.process.communicate(timeout=HANG_TIMEOUT)
        assert running.process.returncode == 1
        assert "demo.notes_add waits for approval" in errors
        assert errors.splitlines()[-1].endswith("rejected it: not today")
    finally:
        running.close()
