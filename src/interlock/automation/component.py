"""The automation component of a node: records decisions of operators, and applies accepted
learned rules."""

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
    """The automation feature of a node."""

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
        self._apply_config(config)
        authorizer.install(self._step)

    async def apply(self, old: Config, new: Config) -> None:
        self._apply_config(new)

    def _apply_config(self, config: Config) -> None:
        rules = config.policy.learned
        self._record_changes({rule.name: rule for rule in rules})
        self._step.decide = LearnedRules(rules, audit=self._audit).__call__
        self._step.when = rules
        if self._store is not None:
            self._store.configure(config.section(AutomationConfig))
        if config.section(AutomationConfig).enabled and self._stop is None:
            if self._store is None:
                self._store = self._open_store(config.section(AutomationConfig))
            self._stop = self._approvals.watch(
                DecisionRecorder(self._store, time.time).on_approval, (APPROVED, REFUSED)
            )
        elif not config.section(AutomationConfig).enabled:
            self._stop_recording()

    def _open_store(self, settings: AutomationConfig) -> DecisionStore:
        return DecisionStore(
            self._path,
            deliver=asyncio.get_running_loop().call_soon_threadsafe,
            settings=settings,
            wall_clock=time.time,
        )

    async def stop(self) -> None:
        self._stop_recording()
        if self._store is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._store.close)

    def _record_changes(self, rules: dict[str, LearnedRule]) -> None:
        """Write to the journal which rules decide in place of operators, and since when."""
        previous, self._rules = self._rules, rules
        for name in {**previous, **rules}:
            old, new = previous.get(name), rules.get(name)
            if new == old:
                continue
            event = "accepted" if old is None else "reverted" if new is None else "changed"
            if new is None:
                detail = self._find_reverter(name)
            else:
                detail = f"{new.then} {' '.join(new.tools)} {new.evidence}"
            self._audit.record_change("learned", name, event, detail)

    def _find_reverter(self, name: str) -> str:
        """Return who reverted a rule: `interlock automation revert` stores the name before it
        changes the config."""
        store = self._store or self._open_store(AutomationConfig())
        try:
            dismissals = [
                dismissal
                for dismissal in store.read_dismissals()
                if dismissal.reverted and dismissal.rule.name == name
            ]
        except InterlockError:
            # The error is in the log. The rule is removed in any case.
            dismissals = []
        finally:
            if store is not self._store:
                store.close()
        return f"by {dismissals[-1].by}" if dismissals else "by a change of the config"

    def _stop_recording(self) -> None:
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
