"""Ends the sessions and streams of callers: after revocation, after expiry of a token, and when
idle."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from typing import Final

from interlock.app.listeners import NodeListeners
from interlock.core.call import RevokedCallers
from interlock.core.feature import FeatureComponent
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.sessions import Sessions
from interlock.trust.approvals.component import ApprovalsComponent
from interlock.trust.identity.component import CallerComplement

SWEEP_SECONDS: Final = 60.0
"""Seconds between two searches for idle sessions."""


class Revocation:
    """Ends the sessions, streams and calls of callers."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        change_listeners: ChangeListeners,
        listeners: NodeListeners,
        approving: ApprovalsComponent,
        features: Iterable[FeatureComponent],
        pipeline: Pipeline,
    ) -> None:
        self._sessions = sessions
        self._change_listeners = change_listeners
        self._listeners = listeners
        self._approving = approving
        self._features = features
        self._pipeline = pipeline
        self._sweeper: asyncio.TimerHandle | None = None

    def sweep(self) -> None:
        """End idle sessions, now and periodically."""
        self._sessions.sweep()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self.sweep)

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()

    def retain_only(self, callers: Container[str]) -> None:
        """End the sessions and open streams of all other callers."""
        self._sessions.retain_only(callers)
        self._end_streams(callers)

    def on_tokens_revoked(self, callers: RevokedCallers) -> None:
        """End everything of callers whose tokens were revoked."""
        self.retain_only(CallerComplement(callers))
        for feature in self._features:
            feature.on_tokens_revoked(callers)
        for call in list(self._pipeline.running_calls()):
            if call.caller is not None and callers.affects(call.caller):
                self._pipeline.cancel(call, "The caller's token was revoked.")

    def on_tokens_expired(self, callers: frozenset[str]) -> None:
        """End the open streams of callers whose tokens expired. Their sessions wait for a new
        token."""
        remaining = CallerComplement(callers)
        self._sessions.hang_up_on_all_but(remaining)
        self._end_streams(remaining)
        for feature in self._features:
            feature.on_tokens_expired(callers)

    def _end_streams(self, callers: Container[str]) -> None:
        self._change_listeners.retain_only(callers)
        self._listeners.retain_only(callers)
        self._approving.retain_only(callers)
