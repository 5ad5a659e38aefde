"""The approvals of a node as one component: store, trust anchors, approval page and socket.

The node creates one `ApprovalsComponent`, opens it with its listeners, and closes it after them.
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
from interlock.trust.approvals.proofs import PASSKEY, Anchors, Proofs, check_has_anchors
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
    """The approvals of a node, with their store, operators and page."""

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
        on_rejected: Callable[[Call, InterlockError], None],
        children: Callable[[], Mapping[str, ChildPeer]] = dict,
    ) -> None:
        """Args:
        url: returns the address of the HTTP listener, once it is open.
        on_rejected: journals a request that was rejected.

        Raises InterlockError when a trust anchor of the config cannot be used.
        """
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
        watch.anchors, watch.on_changed = self.anchors, self._on_operators_changed
        self.operators.proofs = self.proofs = proofs = Proofs(self.anchors)
        proofs.refresh = watch.refresh
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
            operators=self.operators,
            guard=guard,
            authenticate=authenticate,
            on_rejected=on_rejected,
            origins=self.origins,
        )
        self._socket: ApprovalsSocket | None = None

    def serve_codes(self, verification: Verification) -> None:
        """Serve the verification codes of AQL to operators. Call it before the node listens."""
        self._app.verification = verification

    def _secret_digests(self, config: Config) -> frozenset[bytes]:
        return secret_digests(config, environ=self._environ, base_dir=self._base_dir)

    def origins(self) -> tuple[str, ...]:
        """Return the origins of the approval page."""
        return page_origins(self._config, self._url())

    # -- Start and stop

    def routes(self) -> Sequence[Route]:
        return (AppRoute(BASE, self._app),)

    def start(self) -> None:
        """Load the pending approvals and watch the operators. Call it before the node listens."""
        self.approvals.load()
        self.operators.watch.start()

    async def listen_locally(self, socket: Path) -> None:
        """Open the Unix socket of the node's own user, beside its MCP socket.

        A node without other listeners has this one: without it nobody could decide its pending
        calls. Raises OSError.
        """
        self.operators.watch.start()
        make_private(socket.parent)
        self._socket = ApprovalsSocket(self._app.local)
        await self._socket.open(approvals_socket_path(socket))

    def configure(self, config: Config) -> None:
        """Use a new config. Raises InterlockError, and changes nothing, when a trust anchor of it
        cannot be used."""
        self.anchors.configure(config.approvals)
        self._config = config
        gate = self.approvals.gate
        gate.secrets, gate.page = self._secret_digests(config), None
        self.operators.watch.recovery_delay = config.approvals.recovery_delay
        self.approvals.configure(config.approvals)
        self._count_operators()

    def retain_only(self, callers: Container[str]) -> None:
        """End the event streams of all callers that are not in `callers`."""
        self._app.retain_only(callers)

    def _on_operators_changed(self) -> None:
        self._count_operators()
        # Event streams check again whether their readers may see approvals.
        self._app.wake_streams()

    def _count_operators(self) -> None:
        watch = self.operators.watch
        self.approvals.gate.has_operators = bool(len(self.anchors) or watch.enrolled)

    def close_streams(self) -> None:
        """Close all event streams: the node stops."""
        self._app.close()

    async def close(self) -> None:
        """Write the remaining steps, once no call is under way."""
        if self._socket is not None:
            await self._socket.close()
        await self.operators.watch.stop()
        # The writer thread reports its last steps to the loop, so the loop must not block.
        await asyncio.get_running_loop().run_in_executor(None, self.approvals.close)


def check_anchors(
    config: Config, *, environ: Mapping[str, str], base_dir: Path, gates: bool
) -> None:
    """Raise InterlockError for a config that requires approvals which no operator could give.

    Args:
        gates: whether a rule of the config holds calls.
    """
    check_has_anchors(config.approvals, gates=gates)
    Anchors(config.approvals, environ=environ, base_dir=base_dir)
