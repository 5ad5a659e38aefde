"""Tests of the progress that the node generates during silent calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import Raw

from interlock.aql.progress import ProgressStage
from interlock.aql.request import AqlRequest
from interlock.core.call import Call
from interlock.protocol.mcp import LOG_MESSAGE, PROGRESS
from tests.aql.execution_bench import VIEW, Bench, EnvelopeWriter
from tests.support.calls import LOCAL, SESSION


class ProgressBench(Bench):
    def __init__(self) -> None:
        super().__init__()
        clock = self.rig.clock
        self.rig.pipeline.install_operations(
            ProgressStage(EnvelopeWriter(), clock=clock, call_later=clock.call_later)  # type: ignore[arg-type]
        )
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def call(
        self, operation: str = "s_build", token: bytes | None = b'"mine"', hear: Any = None
    ) -> Call:
        found = self.operation_catalog.find(operation)
        assert found is not None
        call = Call(
            "tools/call", "test", LOCAL, SESSION, found.canonical, view=VIEW,
            meta={} if token is None else {"progressToken": Raw(token)},
            on_notification=hear or self._hear,
            operation_request=AqlRequest(found, VIEW, None),
        )  # fmt: skip
        return self.rig.begin(call)

    def _hear(self, _: Call, method: str, params: bytes | Raw) -> None:
        self.heard.append((method, json.loads(bytes(params))))

    def report(self, progress: Any) -> None:
        said = {"progressToken": "mine", "progress": progress}
        self.last.say(PROGRESS, json.dumps(said).encode())

    @property
    def progress(self) -> list[Any]:
        return [params["progress"] for method, params in self.heard if method == PROGRESS]


@pytest.fixture
def desk() -> Any:
    async def make() -> ProgressBench:
        return ProgressBench()

    desk = asyncio.run(make())
    yield desk
    desk.close()


@pytest.mark.spec("AQ-MCP-5.1-1")
def test_sends_progress_every_second_of_silence(desk: ProgressBench) -> None:
    desk.call()
    desk.rig.clock.advance(3.5)
    assert len(desk.progress) == 3
    assert sorted(set(desk.progress)) == desk.progress
    assert desk.heard[0] == (
        PROGRESS,
        {"progressToken": "mine", "progress": 0.001, "message": "Running for 1 s."},
    )
    desk.last.answer(content=[])
    desk.rig.clock.advance(5)
    assert len(desk.progress) == 3, "it is over"
    assert desk.rig.clock.timers == 0


@pytest.mark.spec("AQ-MCP-5.1-1")
def test_sends_nothing_without_progress_token(desk: ProgressBench) -> None:
    desk.call(token=None)
    desk.rig.clock.advance(3.5)
    assert desk.heard == []


def test_sends_nothing_for_read_operations(desk: ProgressBench) -> None:
    desk.call("s_look")
    desk.rig.clock.advance(3.5)
    assert desk.heard == []


def test_sends_nothing_for_fast_calls(desk: ProgressBench) -> None:
    desk.call()
    desk.rig.clock.advance(0.5)
    desk.last.answer(content=[])
    desk.rig.clock.advance(2)
    assert desk.heard == []


def test_server_progress_replaces_generated_progress(desk: ProgressBench) -> None:
    desk.call()
    for progress in (0, 0.1, 5):
        desk.report(progress)
    desk.rig.clock.advance(3.5)
    assert desk.progress == [0, 0.1, 5]


def test_progress_never_decreases(desk: ProgressBench) -> None:
    desk.call()
    desk.rig.clock.advance(2.5)
    for progress in (0, 0.0005, 0.5, 0.25, "x", 1):
        desk.report(progress)
    desk.rig.clock.advance(3)
    # Once the server counts itself, it is answerable for it.
    assert desk.progress == [0.001, 0.002, 0.5, 0.25, "x", 1]


def test_passes_other_notifications(desk: ProgressBench) -> None:
    desk.call()
    desk.rig.clock.advance(1.5)
    desk.last.say(LOG_MESSAGE, b'{"level":"info","data":"x"}')
    assert [method for method, _ in desk.heard] == [PROGRESS, LOG_MESSAGE]


def test_failing_client_does_not_affect_others(desk: ProgressBench) -> None:
    def gone(*_: Any) -> None:
        raise OSError("the connection is gone")

    desk.call(hear=gone)
    desk.call()
    desk.rig.clock.advance(2.5)
    assert len(desk.progress) == 2
