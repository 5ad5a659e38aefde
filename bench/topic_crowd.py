"""The load on a topic, in a process of its own, given one command after another."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from bench.load_run import LoadFailure
from bench.processes import module_command, python_environment
from bench.topic_load import Command, Figures


class _Line(msgspec.Struct):
    figures: Figures | None = None
    failure: str | None = None


class CrowdProcess:
    """Runs commands in another process; leaving the block ends it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            module_command("bench.topic_load"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=python_environment(),
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def __call__(
        self,
        do: Literal["join", "run", "pump", "stall", "wake", "leave"],
        **more: Any,
    ) -> Figures:
        """Raises LoadFailure when the target did not do what it should."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(Command(do, **more)) + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise LoadFailure("the crowd ended without a word")
        answer = msgspec.json.decode(line, type=_Line)
        if answer.figures is None:
            raise LoadFailure(answer.failure or "the crowd said nothing")
        return answer.figures
