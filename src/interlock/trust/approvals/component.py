"""Approvals put together: what keeps them, whose proofs count, and the ways by which people answer.

The node makes one of these, opens it with its doors, and closes it after them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

from interlock.core.call import Call, Caller, Credentials
from interlock.core.config import Config
from interlock.core.config.secrets import secret_digests
from interlock.core.paths import approvals_socket_path, make_private
from interlock.core.pipeline.request_state import StateSealer
from interlock.core.ports import Recorder
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.router import AppRoute, Route
from interlock.errors import InterlockError
from interlock.trust.approvals.downstream import ChildPeer
from interlock.trust.approvals.proofs import PASSKEY, Anchors, Proofs, must_have_anchors
from interlock.trust.approvals.service import Approvals
from interlock.trust.approvals.store import open_store
from interlock.trust.approvals.web import BASE, ApprovalsSocket, Verification, VerificationApp
from interlock.trust.authorization import Authorizer
from interlock.trust.operators.operators import (
    Operators,
    operators_of,
    operators_path,
    page_base,
    page_origins,
)
from interlock.trust.operators.store import OperatorStore


class ApprovalsComponent:
    """The inbox of a node, and everything around it."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        node_id: Callable[[], str],
        authorizer: Authorizer,
        url: Callable[[], str | None],
        seals: StateSealer,
        recorder: Recorder | None,
        guard: Guard,
        authenticate: Callable[[Credentials], Caller],
        refused: Callable[[Call, InterlockError], None],
        children: Callable[[], Mapping[str, ChildPeer]] = dict,
    ) -> None:
        """`url`: where the HTTP face answers, once it does. `refused`: records who was turned
        away. Raises InterlockError when a trust anchor of the config cannot be used."""
        loop = asyncio.get_running_loop()
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._url = url
        configured = Anchors(config.approvals, environ=environ, base_dir=base_dir)
        store = OperatorStore(
            operators_path(config, environ, base_dir),
            roots=lambda: operators_of(configured.configured),
        )
        self.operators = Operators(store, origins=self.origins, audience=node_id)
        self.anchors = Anchors(
            config.approvals,
            environ=environ,
            base_dir=base_dir,
            enrolled=self.operators.anchors,
        )
        store.roots = lambda: operators_of(self.anchors.configured)
        watch = self.operators.watch
        watch.recovery_delay = config.approvals.recovery_delay
        watch.anchors, watch.on_changed = self.anchors, self._operators_changed
        self.operators.proofs = self.proofs = proofs = Proofs(self.anchors)
        proofs.look = watch.look
        proofs.register(PASSKEY, self.operators.passkeys)
        self.approvals = Approvals(
            open_store(config, environ, base_dir, deliver=loop.call_soon_threadsafe),
            proofs,
            settings=config.approvals,
            node_id=node_id,
            authorizer=authorizer,
            page=lambda: page_base(self._config, self._url()),
            seals=seals,
            recorder=recorder,
            clock=time.monotonic,
            wall_clock=time.time,
            call_later=loop.call_later,
            children=children,
            journals_digests=config.journal.arguments == "digest",
        )
        self.approvals.gate.secrets = self._secret_digests(config)
        self._count_operators()
        self._app = VerificationApp(
            approvals=self.approvals,
            desk=self.operators,
            guard=guard,
            authenticate=authenticate,
            refused=refused,
            origins=self.origins,
        )
        self._socket: ApprovalsSocket | None = None

    def serve_codes(self, verification: Verification) -> None:
        """Serve the safety loop from the operator's side, before anything listens."""
        self._app.verification = verification

    def _secret_digests(self, config: Config) -> frozenset[bytes]:
        return secret_digests(config, environ=self._environ, base_dir=self._base_dir)

    def origins(self) -> tuple[str, ...]:
        """Where people reach the approval page."""
        return page_origins(self._config, self._url())

    # -- life

    def routes(self) -> Sequence[Route]:
        return (AppRoute(BASE, self._app),)

    def start(self) -> None:
        """Before anybody can answer: take up what waits from before, and watch the operators."""
        self.approvals.load()
        self.operators.watch.start()

    async def listen_locally(self, socket: Path) -> None:
        """Open the socket of the node's own user, beside its MCP socket. A node that has no other
        doors has this one: else nobody could answer what it holds. Raises OSError."""
        self.operators.watch.start()
        make_private(socket.parent)
        self._socket = ApprovalsSocket(self._app.local)
        await self._socket.open(approvals_socket_path(socket))

    def configure(self, config: Config) -> None:
        """Run by a new config. Raises InterlockError, and changes nothing, when a trust anchor of
        it cannot be used."""
        self.anchors.configure(config.approvals)
        self._config = config
        gate = self.approvals.gate
        gate.secrets, gate.page = self._secret_digests(config), None
        self.operators.watch.recovery_delay = config.approvals.recovery_delay
        self.approvals.configure(config.approvals)
        self._count_operators()

    def retain_only(self, callers: Container[str]) -> None:
        """Only these callers are known any more: what others listen to ends."""
        self._app.retain_only(callers)

    def _operators_changed(self) -> None:
        """Who listens is looked at anew."""
        self._count_operators()
        self._app.wake_streams()

    def _count_operators(self) -> None:
        """Whether there is somebody whose proof could count."""
        self.approvals.gate.anybody = bool(len(self.anchors) or self.operators.watch.enrolled)

    def close_streams(self) -> None:
        """Close the event streams of everybody who listens: the node stops."""
        self._app.close()

    async def close(self) -> None:
        """Write what is left, once no call is under way any more."""
        if self._socket is not None:
            await self._socket.close()
        await self.operators.watch.stop()
        # The writer tells the loop of its last steps: the loop must not wait for it.
        await asyncio.get_running_loop().run_in_executor(None, self.approvals.close)


def check_anchors(
    config: Config, *, environ: Mapping[str, str], base_dir: Path, gates: bool
) -> None:
    """Raises InterlockError for a config whose gated calls nobody could confirm."""
    must_have_anchors(config.approvals, gates=gates)
    Anchors(config.approvals, environ=environ, base_dir=base_dir)
