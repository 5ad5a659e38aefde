"""Caller tokens between the nodes of a tree.

A node adds a token about the caller to every call that it sends to a subserver, and reads the
tokens of its parent.
"""

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

_MEMBER_FORMAT: Final = b',"%b":"%%b"' % ax.AUTHORIZATION.encode()


def format_member(token: str) -> bytes:
    """Format a token as a further member of a `_meta` object. A token needs no JSON escapes."""
    return _MEMBER_FORMAT % token.encode()


class CallerTokens(UpstreamExtension):
    """The caller tokens that a node exchanges with its parent and its subservers."""

    def __init__(
        self,
        issuer: TokenIssuer,
        registrar: Registrar,
        registrant: Callable[[], Registrant | None],
        *,
        required: bool = False,
        wall_clock: Clock = time.time,
    ) -> None:
        """Create the tokens of a node.

        Args:
            required: True if the parent must send a token with every call.
        """
        self._issuer = issuer
        self._registrar = registrar
        self._registrant = registrant
        tokens = HopTokenReader(self.parent_issuer, wall_clock=wall_clock, is_required=required)
        # Stored as a bound method, which is faster to call than the object.
        self.read = tokens.__call__
        """Reads the caller from the credentials that the parent sent. Used by the identity
        component."""
        self._registration_result: ax.RegistrationResult | None = None
        self._parent_issuer: ParentIssuer | None = None
        registrar.grants.keys = issuer.keys.jwks
        issuer.on_new_keys(registrar.keys_changed)

    def prepare_connection(self, upstream_client: UpstreamClient, key: str) -> None:
        """Add caller tokens to the calls of a subserver. Other upstreams are not changed."""
        record = self._registrar.subserver(key) if upstream_client.speaks_ax else None
        if record is None:
            return
        upstream_client.hop_token_encoder = HopTokens(
            self._issuer.minter,
            record.subserver_id,
            issuer=lambda: self._registrar.aggregator_id,
            encode=format_member,
            prefix=self._issuer.name_prefix(record.segment),
        )

    def parent_issuer(self) -> ParentIssuer | None:
        """Return the parent whose tokens are accepted, or None without a parent."""
        registrant = self._registrant()
        registration_result = None if registrant is None else registrant.registration_result
        if registration_result is not self._registration_result:
            self._registration_result = registration_result
            self._parent_issuer = None
            if registrant is not None and registration_result is not None:
                jwks = (
                    registration_result.jwks if isinstance(registration_result.jwks, Raw) else b""
                )
                own_id = registrant.identity().subserver_id
                self._parent_issuer = ParentIssuer(registration_result.aggregator_id, own_id, jwks)
        return self._parent_issuer
