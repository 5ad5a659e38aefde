"""Whatever is reserved, settled and renewed in whatever order: no account is ever overdrawn."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from interlock.core.call import Call
from interlock.core.catalog.offering import Tool
from interlock.core.config import BudgetConfig, BudgetsConfig, CallerBudget
from interlock.protocol.mcpax import SubserverBudget
from interlock.trust.budgets import MINUTE_SECONDS
from tests.core.pipeline.budget_harness import TOOLS, BudgetHarness

# -- whatever happens


class AnyOrder(RuleBasedStateMachine):
    """Calls that take, leave, or come back, in any order and at any time: never over a limit, and
    never refused where there is room."""

    under_way = Bundle("under_way")

    @initialize(
        session=st.builds(BudgetConfig, *[st.none() | st.integers(1, 4)] * 3),
        caller=st.builds(BudgetConfig, *[st.none() | st.integers(1, 12)] * 3),
        subserver=st.integers(1, 5),
    )
    def begin(self, session: BudgetConfig, caller: BudgetConfig, subserver: int) -> None:
        whole = CallerBudget(caller.calls_per_minute, caller.mutable_calls, caller.cost_units)
        # No stretch of calls ends by itself here.
        self.desk = BudgetHarness(BudgetsConfig(session=session, callers=[whole]), idle=1e9)
        self.desk.budgets.grant("s", "id", SubserverBudget(max_calls_per_minute=subserver))
        self.limits = {"session": session, "caller": whole}
        self.subserver = subserver
        self.sessions = [self.desk.session("ada"), self.desk.session("bert")]
        self.counted: list[tuple[float, Call]] = []
        """What was taken and not given back."""

    @rule(
        target=under_way,
        tool=st.sampled_from(sorted(TOOLS)),
        who=st.sampled_from(["ada", "bert"]),
        own_session=st.booleans(),
        upstream=st.sampled_from(["s", "other"]),
    )
    def call(self, tool: str, who: str, own_session: bool, upstream: str) -> Call:
        session = self.sessions[0 if who == "ada" else 1] if own_session else None
        call = self.desk.call(tool, who, session, upstream)
        before = self._used(call)
        error = self.desk.refusal(call)
        if error is None:
            self.counted.append((self.desk.clock(), call))
        else:
            assert error.data is not None
            of = error.data["of"]
            limit, used = error.data["limit"], error.data["used"]
            # It says what is so; a group counts for as long as the last of it.
            if error.data["budget"] != "max_calls_per_minute":
                assert used == before[of, error.data["budget"]]
            assert used + self._units(call, error.data["budget"]) > limit
            assert error.data["left"] == max(0, limit - used)
        return call

    @rule(call=under_way, sent=st.booleans())
    def settle(self, call: Call, sent: bool) -> None:
        reserved = call.reservations is not None
        self.desk.budgets.release(call, sent)
        if reserved and not sent:
            self.counted = [item for item in self.counted if item[1] is not call]

    @rule(seconds=st.floats(0, 90))
    def wait(self, seconds: float) -> None:
        self.desk.clock.advance(seconds)

    @rule(who=st.sampled_from([0, 1]))
    def reconnect(self, who: int) -> None:
        session = self.sessions[who]
        self.desk.sessions.close(session)
        self.sessions[who] = self.desk.session(session.owner)

    @invariant()
    def never_over_a_limit(self) -> None:
        if not hasattr(self, "desk"):
            return
        for call in (item for _, item in self.counted):
            for (of, budget), used in self._used(call).items():
                limit = self._limit(of, budget)
                assert limit is None or used <= limit, (of, budget)

    def _limit(self, of: str, budget: str) -> int | None:
        if of == "subserver":
            return self.subserver if budget == "max_calls_per_minute" else None
        config = self.limits[of]
        return {
            "max_calls_per_minute": config.calls_per_minute,
            "max_mutable_calls_per_session": config.mutable_calls,
            "max_cost_units_per_session": config.cost_units,
        }[budget]

    @staticmethod
    def _units(call: Call, budget: str) -> int:
        assert isinstance(call.route, Tool)
        if budget == "max_cost_units_per_session":
            return call.route.cost_units
        return 1

    def _used(self, call: Call) -> dict[tuple[str, str], int]:
        """What the accounts of this call hold, by what is known to have been taken."""
        now = self.desk.clock()
        actual: dict[tuple[str, str], int] = {}
        for of in ("session", "caller", "subserver"):
            same = [item for item in self.counted if self._same(of, item[1], call)]
            minute = [item for when, item in same if when + MINUTE_SECONDS > now]
            session = [item.route for _, item in same]
            actual[of, "max_calls_per_minute"] = len(minute)
            actual[of, "max_mutable_calls_per_session"] = sum(
                isinstance(item, Tool) and item.mutable for item in session
            )
            actual[of, "max_cost_units_per_session"] = sum(
                item.cost_units for item in session if isinstance(item, Tool)
            )
        return actual

    @staticmethod
    def _same(of: str, one: Call, other: Call) -> bool:
        if of == "subserver":
            return one.upstream == other.upstream == "s"
        assert one.caller is not None
        assert other.caller is not None
        if of == "caller":
            return one.caller.name == other.caller.name
        return one.session is other.session and (
            one.session is not None or one.caller.name == other.caller.name
        )


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
