"""The trust component of a node: identity, policy, pins, budgets and approvals."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from interlock.core.catalog.catalog import Catalog
from interlock.core.config import Config
from interlock.core.feature import Component
from interlock.core.journal.audit import Audit
from interlock.core.paths import pins_path
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.pipeline.request_state import StateSealer
from interlock.core.ports import Recorder
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.router import Route
from interlock.trust.approvals.component import ApprovalsComponent, check_anchors
from interlock.trust.approvals.downstream import ChildPeer
from interlock.trust.approvals.record import PENDING, Approval
from interlock.trust.authorization import Authorizer, DecisionStep
from interlock.trust.budgets import Budgets
from interlock.trust.identity.component import IdentityComponent
from interlock.trust.identity.revocation_watch import NamesCallback, RevokedCallback
from interlock.trust.pin_store import NodePinStore, PinStore
from interlock.trust.pins import HeldTool, Pins
from interlock.trust.policy import Policy

_log = logging.getLogger("interlock.node")


class Trust(Component):
    """The trust component: identity, policy, budgets, pins and approvals."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        catalog: Catalog,
        audit: Audit,
        on_revoked: RevokedCallback,
        on_expired: NamesCallback,
        on_held: Callable[[HeldTool], None],
    ) -> None:
        """Args:
        on_revoked: called with callers whose tokens were revoked.
        on_expired: called with callers whose tokens have expired.
        on_held: called with tools that changed since they were accepted.

        Raises InterlockError for an unusable config.
        """
        loop = asyncio.get_running_loop()
        self._environ = environ
        self._base_dir = base_dir
        self._catalog = catalog
        check_gates(config, environ=environ, base_dir=base_dir)
        self.policy = Policy(config.policy, catalog)
        self.identity = IdentityComponent(
            config,
            environ=environ,
            base_dir=base_dir,
            on_revoked=on_revoked,
            on_expired=on_expired,
        )
        self._pin_store = NodePinStore(
            PinStore.open(pins_path(config, environ, base_dir)), loop.call_soon_threadsafe
        )
        self.pins = Pins(catalog, self._pin_store, config.pins.mode, on_held=on_held)
        budgets = Budgets(time.monotonic)
        budgets.configure(config.budgets, idle=config.limits.session_idle)
        pins = DecisionStep(
            "pins", self.pins.reject_held, when=self.pins.held_tools, previewed=True
        )
        self.authorizer = Authorizer(catalog, budgets, self.policy, (pins,))
        self._pin_store.on_changed = self._on_pins_changed
        self._audit = audit
        self._pin_store.start()
        self.approving: ApprovalsComponent | None = None
        self._started = False

    def attach(
        self,
        pipeline: Pipeline,
        config: Config,
        *,
        node_id: Callable[[], str],
        url: Callable[[], str | None],
        seals: StateSealer,
        guard: Guard,
        recorder: Recorder | None,
        children: Callable[[], Mapping[str, ChildPeer]],
    ) -> ApprovalsComponent:
        """Create the approvals and install them in the pipeline."""
        self.approving = ApprovalsComponent(
            config,
            environ=self._environ,
            base_dir=self._base_dir,
            node_id=node_id,
            authorizer=self.authorizer,
            url=url,
            seals=seals,
            guard=guard,
            recorder=recorder,
            authenticate=lambda credentials: self.identity.authenticator(credentials),
            on_rejected=pipeline.record_rejection,
            children=children,
        )
        approvals = self.approving.approvals
        pipeline.install_gate(approvals.gate, approvals.confirm_call)
        approvals.gate.on_approved_tool = self.pins.on_approved_tool
        self.approving.operators.watch.command_options = node_option(config.listen)
        approvals.watch(partial(log_pending, option=node_option(config.listen)), (PENDING,))
        self.identity.watch.on_change = partial(self._audit.record_change, "tokens")
        self.approving.operators.watch.on_change = partial(self._audit.record_change, "keys")
        return self.approving

    def _on_pins_changed(self, pins: Mapping[str, str | None], requested: Sequence[str]) -> None:
        for tool, digest in pins.items():
            event = "forgotten" if digest is None else "accepted"
            self._audit.record_change("pins", tool, event, digest or "")
        self.pins.apply_changes(pins, requested)

    @property
    def pending_count(self) -> int:
        """The number of calls that wait for approval."""
        return 0 if self.approving is None else len(self.approving.approvals.pending())

    def problems(self) -> list[str]:
        """Return the current problems, for the status of the node."""
        problems = self.identity.problems()
        if self._pin_store.problem is not None:
            problems.append(self._pin_store.problem)
        watch = None if self.approving is None else self.approving.operators.watch
        if watch is not None:
            problems += [] if watch.problem is None else [watch.problem]
            problems += watch.notices()
        return problems

    # -- Start and stop

    def routes(self) -> Sequence[Route]:
        return () if self.approving is None else self.approving.routes()

    def start(self) -> None:
        """Load pending approvals before the listeners open. A second call does nothing."""
        self.authorizer.freeze()
        if self.approving is not None and not self._started:
            self._started = True
            self.approving.start()

    async def stop(self) -> None:
        """Stop, once no call is under way."""
        if self.approving is not None:
            await self.approving.close()
        await self.identity.close()
        await asyncio.get_running_loop().run_in_executor(None, self._pin_store.close)

    # -- Configuration

    def check(self, config: Config) -> None:
        """Raise InterlockError for an unusable config. Changes nothing."""
        self.identity.check(config)
        check_gates(config, environ=self._environ, base_dir=self._base_dir)
        Policy(config.policy, self._catalog)

    async def apply(self, old: Config, new: Config) -> None:
        self.identity.configure(new)
        if self.approving is not None:
            self.approving.configure(new)
        policy = Policy(new.policy, self._catalog)
        if policy.version != self.policy.version:
            self._audit.record_change("policy", policy.version, "changed", self.policy.version)
            self.policy = policy
            self.authorizer.set_policy(policy)
            if self.approving is not None:
                self.approving.approvals.on_policy_changed()
        self.authorizer.budgets.configure(new.budgets, idle=new.limits.session_idle)
        self.pins.configure(new.pins.mode)


def log_pending(approval: Approval, option: str) -> None:
    """Log a new approval with the command that decides it.

    Args:
        approval: the approval that changed. Only a pending one of this node is logged.
        option: the option that the command needs to find the node, as of `node_option`.
    """
    if approval.state == PENDING and not approval.at:
        _log.info(
            "approval %s: %s is pending, called by %s. Approve it: `interlock approve %s%s`",
            approval.id,
            approval.tool,
            approval.caller.name,
            approval.id,
            option,
        )


def node_option(listen: str) -> str:
    """Return the option that a command needs to find the node at this address. Empty: none."""
    return "" if listen == Config().listen or listen.endswith(":0") else f" --node {listen}"


def check_gates(config: Config, *, environ: Mapping[str, str], base_dir: Path) -> None:
    """Raise InterlockError for rules that require approvals which no operator could give.

    Calls that are held by default are no reason not to start: their response says how to enrol.
    """
    gates = any(rule.then in ("confirm", "verify") for rule in config.policy.rules)
    check_anchors(config, environ=environ, base_dir=base_dir, gates=gates)
