"""How a watched execution ends: by its agent, by an operator, or by itself when its agent has not
reported anything for long. A block does not end with it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.aql.safety.executions import Run
from interlock.aql.safety.store import CANCELLED
from interlock.errors import InterlockError

if TYPE_CHECKING:
    from interlock.aql.safety.loop import Loop

_log = logging.getLogger("interlock.safety")
IDLE: Final = 24 * 3600.0
"""Seconds without a step, after which nobody is taken to be at work any more."""


async def end(loop: Loop, run: Run, state: str, note: str, by: str) -> None:
    """`by`: who ends it, for the journal. Raises InterlockError where it cannot be written."""
    _finish(loop, run, state, note, by)
    gone = msgspec.structs.replace(run.execution)
    await asyncio.get_running_loop().run_in_executor(None, loop.keeper.drop, gone)


def end_idle(loop: Loop) -> None:
    """End those whose agents have not been heard of for long."""
    now = loop.wall_clock()
    for who in loop.runs.everybody():
        for run in loop.runs.of(who):
            if now - max(run.execution.started, run.execution.last) > IDLE:
                _finish(loop, run, CANCELLED, "No step was reported for 24 hours.", who[0])
                asyncio.get_running_loop().run_in_executor(None, _forget, loop, run)


def _forget(loop: Loop, run: Run) -> None:
    """Nobody waits for the disk: where it fails, it ends once more after a restart."""
    try:
        loop.keeper.drop(run.execution)
    except InterlockError as error:
        _log.warning("%s It will end again after a restart.", error.message)


def _finish(loop: Loop, run: Run, state: str, note: str, by: str) -> None:
    execution = run.execution
    who = execution.who
    loop.runs.end(run, state, note)
    loop.reports.forget(who, execution.id)
    loop.pauses.forget(execution.id)
    for challenge in loop.challenges:
        if challenge.execution == execution.id:
            loop.challenges.close(challenge, "The execution is over.")
    if not loop.runs.of(who):
        loop.notices.forget(who)
    loop.note(by, f"execution_{state}", f"{execution.id} {note}")
