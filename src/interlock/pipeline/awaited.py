"""A call for those who can wait for it: a future stands between the pipeline and them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from interlock.call import Call, Outcome
from interlock.errors import InterlockError


async def outcome_of(
    call: Call, begin: Callable[[Call], None], cancel: Callable[[Call], None]
) -> Outcome:
    """Begin the call and wait until it is over. Raises InterlockError, and nothing else."""
    over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        if over.done():
            return
        if error is not None:
            over.set_exception(error)
        elif outcome is not None:
            over.set_result(outcome)

    call.on_done = done
    begin(call)
    try:
        return await over
    except asyncio.CancelledError:
        cancel(call)
        raise
