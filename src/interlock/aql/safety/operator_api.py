"""The API of the safety loop for operators who have signed in: open codes, blocked principals,
running agents, and another challenge where a code was lost."""

from __future__ import annotations

from typing import Any

from interlock.aql.safety.executions import AgentRun
from interlock.aql.safety.loop import SafetyLoop
from interlock.aql.safety.store import CANCELLED, AgentExecution, PrincipalBlock, SafetyChallenge
from interlock.errors import UNKNOWN_APPROVAL, InterlockError
from interlock.primitives.timestamps import format_utc


class OperatorApi:
    """The loop from the operator's side. Whoever calls this has looked at who asks."""

    def __init__(self, loop: SafetyLoop) -> None:
        self._loop = loop

    def shown(self) -> dict[str, Any]:
        """Every open challenge with its code, and every block. For an operator's eyes only."""
        loop = self._loop
        loop.end_idle()
        challenges = [self._challenge(one) for one in loop.challenges]
        return {
            "mode": loop.mode,
            "challenges": challenges,
            "blocks": [_block(one) for one in loop.blocks],
            "executions": [_execution(one.execution) for one in self._running()],
        }

    async def renew(self, id: str, by: str) -> dict[str, Any]:
        """Another challenge in place of this one. Raises InterlockError."""
        found = [one.id for one in self._loop.challenges if id and one.id.startswith(id)]
        new = self._loop.challenges.renew(found[0]) if len(found) == 1 else None
        if new is None:
            raise InterlockError(UNKNOWN_APPROVAL, "No challenge with this id is open.")
        return await self._asked(new, by)

    async def ask_again(self, name: str, by: str) -> dict[str, Any]:
        """A challenge by which somebody who is blocked can be let go. Raises InterlockError."""
        blocks = [one for one in self._loop.blocks if name in (one.who[0], one.who[2])]
        if not blocks:
            raise InterlockError(UNKNOWN_APPROVAL, "Nobody of this name is blocked.")
        if len(blocks) > 1:
            raise InterlockError(
                UNKNOWN_APPROVAL, "Several of this name are blocked: give the id of a challenge."
            )
        open = self._loop.challenges.get(blocks[0].challenge)
        if open is not None and open.approval:
            return self._challenge(open)
        return await self._asked(self._loop.ask_again(blocks[0]), by)

    async def end(self, id: str, by: str) -> dict[str, Any]:
        """End an execution that runs: what its caller does is watched no more. A block stays.
        Raises InterlockError."""
        found = [one for one in self._running() if id and one.execution.id.startswith(id)]
        if len(found) != 1:
            several = "Several executions begin with this." if found else "No such execution runs."
            raise InterlockError(UNKNOWN_APPROVAL, several)
        await self._loop.end(found[0], CANCELLED, "An operator ended it.", by)
        return _execution(found[0].execution)

    def _running(self) -> list[AgentRun]:
        runs = self._loop.runs
        return [one for who in runs.everybody() for one in runs.of(who)]

    async def _asked(self, id: str, by: str) -> dict[str, Any]:
        await self._loop.challenges.written(id)
        challenge = self._loop.challenges.get(id)
        if challenge is None:
            raise InterlockError(UNKNOWN_APPROVAL, "The challenge is over already.")
        self._loop.note(challenge.who[0], "challenge_renewed", f"challenge:{id} by {by}")
        return self._challenge(challenge)

    def _challenge(self, one: SafetyChallenge) -> dict[str, Any]:
        challenges = self._loop.challenges
        return {
            "id": one.id,
            "code": challenges.codes.reveal(one.id),
            "caller": one.who[0],
            "above": one.who[2],
            "element_name": one.element,
            "tier": one.tier,
            "hint": one.hint,
            "approval": one.approval,
            "created_at": format_utc(one.created),
            "seconds_left": challenges.left(one),
        }


def _block(one: PrincipalBlock) -> dict[str, Any]:
    return {
        "caller": one.who[0],
        "above": one.who[2],
        "element_name": one.element,
        "hint": one.hint,
        "reason": one.reason,
        "since": format_utc(one.at),
        "challenge": one.challenge,
    }


def _execution(one: AgentExecution) -> dict[str, Any]:
    return {
        "id": one.id,
        "caller": one.who[0],
        "above": one.who[2],
        "element_name": one.element,
        "state": one.state,
        "since": format_utc(one.started),
        "last_step": format_utc(one.last) if one.last else "",
        "steps": one.steps,
        "violations": one.violations,
    }
