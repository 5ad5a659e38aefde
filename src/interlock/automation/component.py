"""The component of automation in a node: records decisions of humans, and decides calls by the
learned rules that a human accepted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from interlock.automation.config import AutomationConfig
from interlock.automation.decision import DecisionRecorder
from interlock.automation.learned_rules import LearnedRules
from interlock.automation.store import DecisionStore, decisions_path
from interlock.core.config import Config, LearnedRule
from interlock.core.feature import FeatureComponent
from interlock.core.journal.audit import Audit
from interlock.errors import InterlockError
from interlock.trust.approvals.record import APPROVED, REFUSED
from interlock.trust.approvals.service import Approvals
from interlock.trust.authorization import HELD, Authorizer, DecisionStep
from interlock.trust.node_context import NodeContext


class Automation(FeatureComponent):
    """What a node learns."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        approvals: Approvals,
        authorizer: Authorizer,
        audit: Audit,
    ) -> None:
        self._path = decisions_path(config, environ, base_dir)
        self._approvals = approvals
        self._audit = audit
        self._store: DecisionStore | None = None
        self._stop: Callable[[], None] | None = None
        self._rules = {rule.name: rule for rule in config.policy.learned}
        self._step = DecisionStep(
            "learned", LearnedRules((), audit=audit).__call__, when=(), applies_to=HELD
        )
        self._use(config)
        authorizer.install(self._step)

    async def apply(self, old: Config, new: Config) -> None:
        self._use(new)

    def _use(self, config: Config) -> None:
        rules = config.policy.learned
        self._tell_of_changes({rule.name: rule for rule in rules})
        self._step.decide = LearnedRules(rules, audit=self._audit).__call__
        self._step.when = rules
        if self._store is not None:
            self._store.configure(config.section(AutomationConfig))
        if config.section(AutomationConfig).enabled and self._stop is None:
            if self._store is None:
                self._store = self._opened(config.section(AutomationConfig))
            self._stop = self._approvals.watch(
                DecisionRecorder(self._store, time.time).heard, (APPROVED, REFUSED)
            )
        elif not config.section(AutomationConfig).enabled:
            self._hear_no_more()

    def _opened(self, settings: AutomationConfig) -> DecisionStore:
        return DecisionStore(
            self._path,
            deliver=asyncio.get_running_loop().call_soon_threadsafe,
            settings=settings,
            wall_clock=time.time,
        )

    async def stop(self) -> None:
        self._hear_no_more()
        if self._store is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._store.close)

    def _tell_of_changes(self, rules: dict[str, LearnedRule]) -> None:
        """Who may answer in a human's place, and since when, is in the journal."""
        before, self._rules = self._rules, rules
        for name in {**before, **rules}:
            old, new = before.get(name), rules.get(name)
            if new == old:
                continue
            word = "accepted" if old is None else "reverted" if new is None else "changed"
            if new is None:
                about = self._who_took_back(name)
            else:
                about = f"{new.then} {' '.join(new.tools)} {new.evidence}"
            self._audit.record_change("learned", name, word, about)

    def _who_took_back(self, name: str) -> str:
        """Whoever `interlock automation revert` remembered, just before it changed the config."""
        store = self._store or self._opened(AutomationConfig())
        try:
            found = [one for one in store.dismissed() if one.reverted and one.rule.name == name]
        except InterlockError:
            # The log has it, and the rule is gone all the same.
            found = []
        finally:
            if store is not self._store:
                store.close()
        return f"by {found[-1].by}" if found else "by whoever changed the config"

    def _hear_no_more(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()


def create(context: NodeContext) -> Automation:
    return Automation(
        context.config,
        environ=context.environ,
        base_dir=context.base_dir,
        approvals=context.approving.approvals,
        authorizer=context.authorizer,
        audit=context.audit,
    )
