"""The load generator as a process that is given one plan after another.

Starting Python for every short run would cost more than the run; the process is the same, what
it measures is not.
"""

from __future__ import annotations

import signal
import subprocess
from types import TracebackType
from typing import Self

import msgspec

from bench.load_run import LoadFailure, LoadPlan, LoadReport
from bench.processes import module_command, python_environment


class LoadLine(msgspec.Struct):
    report: LoadReport | None = None
    failure: str | None = None


class LoadProcess:
    """Runs plans in another process; leaving the block ends it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            module_command("bench.load", "-"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=python_environment(),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

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

    def begin(self, plan: LoadPlan) -> None:
        """Start a run without waiting for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(plan) + b"\n")
        self.process.stdin.flush()

    def tell_to_stop(self) -> None:
        """End a run that was begun until told."""
        self.process.send_signal(signal.SIGUSR1)

    def result(self) -> LoadReport:
        """Wait for the run that was begun."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise LoadFailure("the load generator ended without a report")
        answer = msgspec.json.decode(line, type=LoadLine)
        if answer.report is None:
            raise LoadFailure(answer.failure or "the load generator said nothing")
        return answer.report

    def run(self, plan: LoadPlan) -> LoadReport:
        self.begin(plan)
        return self.result()
