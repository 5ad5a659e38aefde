"""The API of the safety loop for operators: open codes, blocked principals, running agents, and new
challenges for lost codes.
"""

from __future__ import annotations

from typing import Any

from interlock.aql.safety.executions import AgentRun
from interlock.aql.safety.loop import SafetyLoop
from interlock.aql.safety.store import CANCELLED, AgentExecution, PrincipalBlock, SafetyChallenge
from interlock.errors import UNKNOWN_APPROVAL, InterlockError
from interlock.primitives.timestamps import format_utc


class OperatorApi:
    """The safety loop for operators. The caller of this class has authenticated the operator."""

    def __init__(self, loop: SafetyLoop) -> None:
        self._loop = loop

    def list_challenges(self) -> dict[str, Any]:
        """Return the open challenges with their codes, the blocks and the executions."""
        loop = self._loop
        loop.end_idle()
        challenges = [self._describe_challenge(challenge) for challenge in loop.challenges]
        return {
            "mode": loop.mode,
            "challenges": challenges,
            "blocks": [_describe_block(challenge) for challenge in loop.blocks],
            "executions": [
                _describe_execution(challenge.execution) for challenge in self._running()
            ],
        }

    async def renew(self, id: str, by: str) -> dict[str, Any]:
        """Replace a challenge. Raises InterlockError."""
        matching_ids = [
            challenge.id
            for challenge in self._loop.challenges
            if id and challenge.id.startswith(id)
        ]
        new = self._loop.challenges.renew(matching_ids[0]) if len(matching_ids) == 1 else None
        if new is None:
            raise InterlockError(UNKNOWN_APPROVAL, "No open challenge has this id.")
        return await self._describe_renewed(new, by)

    async def challenge_again(self, name: str, by: str) -> dict[str, Any]:
        """Return a challenge that unblocks a principal. Raises InterlockError."""
        blocks = [block for block in self._loop.blocks if name in (block.owner[0], block.owner[2])]
        if not blocks:
            raise InterlockError(UNKNOWN_APPROVAL, "No blocked principal has this name.")
        if len(blocks) > 1:
            raise InterlockError(
                UNKNOWN_APPROVAL, "Several blocked principals have this name. Use a challenge id."
            )
        open_challenge = self._loop.challenges.get(blocks[0].challenge)
        if open_challenge is not None and open_challenge.approval:
            return self._describe_challenge(open_challenge)
        return await self._describe_renewed(self._loop.renew_challenge(blocks[0]), by)

    async def end(self, id: str, by: str) -> dict[str, Any]:
        """End a running execution. Its caller is no longer watched. A block stays in effect.

        Raises:
            InterlockError: No execution, or more than one, has this id.
        """
        matching_runs = [run for run in self._running() if id and run.execution.id.startswith(id)]
        if len(matching_runs) != 1:
            message = (
                "Several executions have ids with this prefix."
                if matching_runs
                else "No running execution has this id."
            )
            raise InterlockError(UNKNOWN_APPROVAL, message)
        await self._loop.end(matching_runs[0], CANCELLED, "Ended by an operator.", by)
        return _describe_execution(matching_runs[0].execution)

    def _running(self) -> list[AgentRun]:
        runs = self._loop.runs
        return [run for owner in runs.owners() for run in runs.runs_of(owner)]

    async def _describe_renewed(self, id: str, by: str) -> dict[str, Any]:
        await self._loop.challenges.wait_written(id)
        challenge = self._loop.challenges.get(id)
        if challenge is None:
            raise InterlockError(UNKNOWN_APPROVAL, "The challenge has ended.")
        self._loop.write_journal(challenge.owner[0], "challenge_renewed", f"challenge:{id} by {by}")
        return self._describe_challenge(challenge)

    def _describe_challenge(self, challenge: SafetyChallenge) -> dict[str, Any]:
        challenges = self._loop.challenges
        return {
            "id": challenge.id,
            "code": challenges.codes.reveal(challenge.id),
            "caller": challenge.owner[0],
            "above": challenge.owner[2],
            "element_name": challenge.element,
            "tier": challenge.tier,
            "hint": challenge.hint,
            "approval": challenge.approval,
            "created_at": format_utc(challenge.created),
            "seconds_left": challenges.remaining_seconds(challenge),
        }


def _describe_block(block: PrincipalBlock) -> dict[str, Any]:
    return {
        "caller": block.owner[0],
        "above": block.owner[2],
        "element_name": block.element,
        "hint": block.hint,
        "reason": block.reason,
        "since": format_utc(block.at),
        "challenge": block.challenge,
    }


def _describe_execution(execution: AgentExecution) -> dict[str, Any]:
    return {
        "id": execution.id,
        "caller": execution.owner[0],
        "above": execution.owner[2],
        "element_name": execution.element,
        "state": execution.state,
        "since": format_utc(execution.started),
        "last_step": format_utc(execution.last) if execution.last else "",
        "steps": execution.steps,
        "violations": execution.violations,
    }
