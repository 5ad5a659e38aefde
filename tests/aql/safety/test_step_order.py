"""Property tests of the safety loop: steps of an agent in any order."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.errors import ALREADY_DECIDED, InterlockError
from tests.aql.safety.guarded_pipeline import GuardedPipeline
from tests.support.timeouts import HANG_TIMEOUT

HINTS = st.sampled_from(
    [
        "list_issues of docs",
        "get_issue 7 of docs",
        "create an issue about tests",
        "delete_repo docs",
        "purge the queue of staging",
        "drop_table users",
        "doing something",
        "list issues then drop_table users",
        "look at s.delete_repo docs",
    ]
)
TOOLS = st.sampled_from(["list_issues", "get_issue", "create_issue", "delete_repo", "drop_table"])
STEPS = st.one_of(
    st.tuples(st.just("report"), HINTS),
    st.tuples(st.just("call"), TOOLS),
    st.tuples(st.just("guess"), st.integers(0, 5)),
    st.tuples(st.just("complete"), st.none()),
    st.tuples(st.just("time"), st.sampled_from([1, 61, 301])),
    st.tuples(st.just("human"), st.none()),
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=25))
def test_calls_need_reports_in_any_step_order(steps: list[tuple[str, Any]]) -> None:
    async def play(folder: Path) -> None:
        node = GuardedPipeline(folder, max_steps=1_000)
        await node.begin()
        ended, let_on = False, 0
        ids: list[str] = []
        for kind, what in steps:
            blocked = bool(len(node.loop.blocks))
            if kind == "report":
                told = await node.call_builtin(
                    "record_execution_step", element_name="agent", next_action_hint=what
                )
                if isinstance(told, InterlockError):
                    assert blocked or ended
                    continue
                data = told["structuredContent"]
                let_on += data["continue"]
                assert not blocked
                for one in data.get("notifications", []):
                    ids += filter(None, [one.get("metadata", {}).get("verificationId")])
            elif kind == "call":
                before = len(node.upstream.started)
                done = await node.call_executes(what)
                assert done == (len(node.upstream.started) > before)
                if done and not ended:
                    let_on -= 1
                    assert not blocked
                    assert let_on >= 0
            elif kind == "guess":
                given_up = ids[-1] if ids else "x"
                guess = [given_up, "A" * 32, "x", given_up[::-1], "code", "0"][what]
                told = await node.call_builtin(
                    "verify_challenge", challenge_id=given_up, code=guess
                )
                assert isinstance(told, InterlockError)
                assert bool(len(node.loop.blocks)) == blocked
            elif kind == "complete":
                told = await node.call_builtin("complete_execution", element_name="agent")
                ended = ended or not isinstance(told, InterlockError)
                let_on = 0 if ended else let_on
            elif kind == "time":
                node.pass_time(what)
                let_on = 0 if what > 60 else let_on
            else:
                for record in node.approvals.pending():
                    if record.tool == "aql.unblock":
                        # The end of one that a wrong guess used up may still be written.
                        try:
                            await node.approve(record)
                        except InterlockError as error:
                            if error.failure is not ALREADY_DECIDED:
                                raise
        node.close()

    with tempfile.TemporaryDirectory() as folder:

        async def within() -> None:
            async with asyncio.timeout(HANG_TIMEOUT):
                await play(Path(folder))

        asyncio.run(within())
