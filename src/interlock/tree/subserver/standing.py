"""How a subserver stands with its node, for its author: waited for, logged, and raised."""

from __future__ import annotations

import logging
import sys

from interlock.errors import UPSTREAM_LOST, InterlockError
from interlock.sdk.awaited_state import Waited
from interlock.tree.config import ParentConfig
from interlock.tree.registrant import Registrant, State, advice

_log = logging.getLogger("interlock.subserver")


def tell_on_stderr() -> None:
    """For a program that is nothing but a subserver. Whoever has set up logging is left alone."""
    if _log.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    # What it would say is said here already, in the words of a subserver.
    logging.getLogger("interlock.tree").setLevel(logging.ERROR)


class Standing(Waited):
    """Told of every move."""

    def __init__(self, parent: ParentConfig) -> None:
        super().__init__()
        self._parent = parent
        self._registered = False
        self._before = False
        """Whether it was registered ever."""
        self._told = ""

    def moved(self, registrant: Registrant) -> None:
        """It has come to another state."""
        problem = registrant.problem
        if registrant.state is State.REGISTERED:
            again = " again" if self._before else ""
            self._say(
                logging.INFO,
                f"registered{again} as {registrant.assigned_segment} at {registrant.url}",
            )
            self._registered = self._before = True
            self.settle()
        elif registrant.state is State.WAITING and problem is not None:
            lost, self._registered = self._registered, False
            # A refusal that is the end of it is raised, and not told twice.
            if not registrant.refused or self._parent.backup:
                sentence = problem.message.rstrip(".")
                first = "" if lost else "not registered: "
                self._say(logging.WARNING, f"{first}{sentence}. Trying again.", always=lost)
        elif registrant.state is State.ENDED:
            self._over(problem, refused=registrant.refused)

    def _say(self, level: int, sentence: str, *, always: bool = False) -> None:
        if always or sentence != self._told:
            _log.log(level, "%s", sentence)
        self._told = sentence

    def _over(self, problem: InterlockError | None, *, refused: bool) -> None:
        if self._before and not refused:
            # The node that started this program has gone, or it is told to end.
            return
        lost = problem or InterlockError(UPSTREAM_LOST, "It was ended before it was registered.")
        self.end(InterlockError(lost.failure, f"{lost.message} {advice(lost)}".strip(), lost.data))

    async def until_registered(self) -> None:
        """Raises InterlockError when that will not be."""
        await self.until_settled()
