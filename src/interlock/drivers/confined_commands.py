"""The commands that a manifest names, and that the node runs by itself: version and health checks,
and what keeps a sign-in fresh.

They are a stranger's as much as the driver's server is, so they run behind the same walls. Each is
written down: which one it was and how it ended, and not a word of what it wrote.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from interlock.drivers import processes
from interlock.drivers.launch import Confines
from interlock.drivers.processes import NOT_RUN, Ran, Runs, argv_of, minimal_environment


class Walls(Confines, Protocol):
    """A confinement for one command."""

    async def close(self) -> None: ...


Opens = Callable[[], Awaitable[Walls | None]]
"""Gives a confinement. None: the operator lets it go without. Raises InterlockError."""
Tell = Callable[[str, Mapping[str, Any]], None]
"""Writes down that a command was run: a word, and what is known of it."""


def confined(what: str, open_walls: Opens, tell: Tell, *, run: Runs = processes.run) -> Runs:
    """What runs one command of a manifest, such as `health_check.cmd`.

    Where it cannot be confined it is not run: that raises InterlockError.
    """

    async def run_confined(
        cmd: str | Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        timeout: float,
        stdin: bytes | None = None,
    ) -> Ran:
        try:
            argv = argv_of(cmd)
        except ValueError as bad:
            return Ran(NOT_RUN, trouble=str(bad))
        word, row = "refused", {"command": what, "confined": True, "ended": "it was not run"}
        walls: Walls | None = None
        try:
            walls = await open_walls()
            word, row["ended"] = "error", "nobody waited for its end"
            if walls is None:
                row["confined"] = False
                ran = await run(argv, env=env, cwd=cwd, timeout=timeout, stdin=stdin)
            else:
                ran = await run(
                    walls.argv(argv),
                    env=walls.environment(minimal_environment(env)),
                    cwd=cwd,
                    timeout=timeout,
                    stdin=stdin,
                )
            word, row["ended"] = ("ok" if ran.ended_with(0) else "error"), ran.how
            return ran
        finally:
            tell(word, row)
            if walls is not None:
                await walls.close()

    return run_confined
