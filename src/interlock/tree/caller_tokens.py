"""The tokens about who calls, between the nodes of a tree: a node makes one for every call that it
sends to a subserver, and reads those that its parent sends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from msgspec import Raw

from interlock.core.ports import Clock
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.extension import UpstreamExtension
from interlock.protocol import mcpax as ax
from interlock.tree.registrant import Registrant
from interlock.tree.registrar import Registrar
from interlock.trust.hop_tokens import HopTokenReader, HopTokens, ParentIssuer
from interlock.trust.token_issuer import TokenIssuer

_MEMBER: Final = b',"%b":"%%b"' % ax.AUTHORIZATION.encode()


def as_member(token: str) -> bytes:
    """A token as a member of a `_meta`, as it stands behind others. It needs no escapes."""
    return _MEMBER % token.encode()


class CallerTokens(UpstreamExtension):
    """The tokens that a node exchanges with the nodes beside it in the tree."""

    def __init__(
        self,
        issuer: TokenIssuer,
        registrar: Registrar,
        registrant: Callable[[], Registrant | None],
        *,
        demanded: bool = False,
        wall_clock: Clock = time.time,
    ) -> None:
        """`demanded`: the parent must send a token with every call."""
        self._issuer = issuer
        self._registrar = registrar
        self._registrant = registrant
        tokens = HopTokenReader(self.above, wall_clock=wall_clock, is_required=demanded)
        # By its method: to call an object costs more than to call a method of it.
        self.read = tokens.__call__
        """Who calls, by the credentials that a parent sent. For `IdentityComponent.minted`."""
        self._granted: ax.RegistrationResult | None = None
        self._above: ParentIssuer | None = None
        registrar.grants.keys = issuer.keys.jwks
        issuer.on_new_keys(registrar.keys_changed)

    def prepare_connection(self, peer: UpstreamClient, key: str) -> None:
        """Put tokens on what is sent to a subserver. Every other peer is left as it is."""
        info = self._registrar.subserver(key) if peer.speaks_ax else None
        if info is None:
            return
        peer.hop_token_encoder = HopTokens(
            self._issuer.minter,
            info.subserver_id,
            issuer=lambda: self._registrar.aggregator_id,
            encode=as_member,
            prefix=self._issuer.name_prefix(info.segment),
        )

    def above(self) -> ParentIssuer | None:
        """The parent whose tokens are read. None: there is none."""
        registrant = self._registrant()
        granted = None if registrant is None else registrant.granted
        if granted is not self._granted:
            self._granted = granted
            self._above = None
            if registrant is not None and granted is not None:
                jwks = granted.jwks if isinstance(granted.jwks, Raw) else b""
                own = registrant.identity().subserver_id
                self._above = ParentIssuer(granted.aggregator_id, own, jwks)
        return self._above
