"""Approvals put together: what keeps them, whose proofs count, and the ways by which people answer.

The node makes one of these, opens it with its doors, and closes it after them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path

from interlock.call import Call, Caller, Credentials
from interlock.config import Config
from interlock.errors import InterlockError
from interlock.faces.http.answers import App, Receive, Scope, Send, respond_json
from interlock.faces.http.guard import Guard
from interlock.faces.http.verification import Verification, VerificationApp
from interlock.node.approvals_socket import ApprovalsSocket, approvals_socket_path
from interlock.node.operators import Operators, operators_path, page_base, page_origins
from interlock.node.places import make_private, state_dir
from interlock.pipeline.approval.anchors import Anchors, must_have_anchors
from interlock.pipeline.approval.approvals import Approvals
from interlock.pipeline.approval.below import Child
from interlock.pipeline.approval.proofs import PASSKEY, Proofs
from interlock.pipeline.sealing import Seals
from interlock.ports import Recorder
from interlock.stores.approvals import ApprovalStore
from interlock.stores.operators import OperatorStore


class Approving:
    """The inbox of a node, and everything around it."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        node_id: Callable[[], str],
        policy_version: Callable[[], str],
        url: Callable[[], str | None],
        seals: Seals,
        recorder: Recorder | None,
        authenticate: Callable[[Credentials], Caller],
        refused: Callable[[Call, InterlockError], None],
        children: Callable[[], Mapping[str, Child]] = dict,
    ) -> None:
        """`url`: where the HTTP face answers, once it does. `refused`: records who was turned
        away. Raises InterlockError when a trust anchor of the config cannot be used."""
        loop = asyncio.get_running_loop()
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._url = url
        self._authenticate = authenticate
        self._refused = refused
        store = OperatorStore(operators_path(config, environ, base_dir))
        self.operators = Operators(store, origins=self.origins, audience=node_id)
        self.anchors = Anchors(
            config.approvals,
            environ=environ,
            base_dir=base_dir,
            enrolled=self.operators.anchors,
        )
        watch = self.operators.watch
        watch.anchors, watch.on_changed = self.anchors, self._operators_changed
        self.operators.proofs = self.proofs = proofs = Proofs(self.anchors)
        proofs.look = watch.look
        proofs.register(PASSKEY, self.operators.passkeys)
        self.approvals = Approvals(
            ApprovalStore(
                state_dir(config, environ, base_dir) / "approvals.db",
                deliver=loop.call_soon_threadsafe,
            ),
            proofs,
            settings=config.approvals,
            node_id=node_id,
            policy_version=policy_version,
            page=lambda: page_base(self._config, self._url()),
            seals=seals,
            recorder=recorder,
            clock=time.monotonic,
            wall_clock=time.time,
            call_later=loop.call_later,
            children=children,
        )
        self.approvals.gate.anybody = lambda: bool(len(self.anchors) or watch.enrolled)
        self._app: VerificationApp | None = None
        self.verification: Verification | None = None
        """The safety loop from the operator's side. Set before the doors open."""
        self._socket: ApprovalsSocket | None = None

    def origins(self) -> tuple[str, ...]:
        """Where people reach the approval page."""
        return page_origins(self._config, self._url())

    # -- life

    def app(self, guard: Guard, otherwise: App) -> VerificationApp:
        """What serves /approvals, and leaves all other paths to `otherwise`."""
        self.operators.watch.start()
        self._app = VerificationApp(
            approvals=self.approvals,
            desk=self.operators,
            guard=guard,
            authenticate=self._authenticate,
            refused=self._refused,
            origins=self.origins,
            otherwise=otherwise,
        )
        self._app.verification = self.verification
        return self._app

    async def listen_locally(self, socket: Path) -> None:
        """Open the socket of the node's own user, beside its MCP socket. A node that has no other
        doors has this one: else nobody could answer what it holds. Raises OSError."""
        app = self._app or self.app(Guard("127.0.0.1", 0), _nothing_else)
        make_private(socket.parent)
        self._socket = ApprovalsSocket(app.local)
        await self._socket.open(approvals_socket_path(socket))

    def configure(self, config: Config, guard: Guard | None) -> None:
        """Run by a new config. Raises InterlockError, and changes nothing, when a trust anchor of
        it cannot be used."""
        self.anchors.configure(config.approvals)
        self._config = config
        self.approvals.configure(config.approvals)
        if self._app is not None and guard is not None:
            self._app.guard = guard

    def end_of(self, callers: Container[str]) -> None:
        """Only these callers are known any more: what others listen to ends."""
        if self._app is not None:
            self._app.end_of(callers)

    def _operators_changed(self) -> None:
        """Who listens is looked at anew."""
        if self._app is not None:
            self._app.look_again()

    def let_go(self) -> None:
        """Nobody listens for what happens any longer."""
        if self._app is not None:
            self._app.close()

    async def close(self) -> None:
        """Write what is left, once no call is under way any more."""
        if self._socket is not None:
            await self._socket.close()
        await self.operators.watch.stop()
        # The writer tells the loop of its last steps: the loop must not wait for it.
        await asyncio.get_running_loop().run_in_executor(None, self.approvals.close)


async def _nothing_else(scope: Scope, receive: Receive, send: Send) -> None:
    await respond_json(send, 404, {"error": "not_found", "message": "There is nothing here."})


def check_anchors(
    config: Config, *, environ: Mapping[str, str], base_dir: Path, gates: bool
) -> None:
    """Raises InterlockError for a config whose gated calls nobody could confirm."""
    must_have_anchors(config.approvals, gates=gates)
    Anchors(config.approvals, environ=environ, base_dir=base_dir)
