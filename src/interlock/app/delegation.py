"""The hops of a node: what it tells the next ones about who calls, and what it is told itself.

Downwards every call gets a token that the node makes for it: in the `_meta` to subservers, as a
bearer token to servers of the config that want it. From above the tokens of the parent are read.
The node's own keys are changed in time here, and shown to everybody who checks with them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Raw

from interlock.core.config import ServerConfig
from interlock.core.ports import Clock
from interlock.core.server.http.router import PublicDocument, Route
from interlock.core.upstreams.client import Peer
from interlock.core.upstreams.connection import ConnectorOptions, Connects
from interlock.core.upstreams.extension import UpstreamExtension
from interlock.core.upstreams.transports.http import as_header
from interlock.errors import InterlockError
from interlock.protocol import mcpax as ax
from interlock.tree.registrant import Registrant
from interlock.tree.registrar import Registrar
from interlock.trust.authorization import Authorizer
from interlock.trust.hop_token_connector import HopTokenConnector
from interlock.trust.hop_tokens import Above, MintedTokens, Minter, Stamp, Stamps
from interlock.trust.identity.component import Identity
from interlock.trust.signing_keys import SigningKeys

KEYS_PATH: Final = "/.well-known/jwks.json"
"""Where everybody finds the public keys."""
LOOKED_AT: Final = 5.0
"""How often it is seen whether the keys are due, or were changed by hand."""

_log = logging.getLogger("interlock.node")
_MEMBER: Final = b',"%b":"%%b"' % ax.AUTHORIZATION.encode()


def as_member(token: str) -> bytes:
    """A token as a member of a `_meta`, as it stands behind others. It needs no escapes."""
    return _MEMBER % token.encode()


class Hops(UpstreamExtension):
    """The tokens of one node."""

    def __init__(
        self,
        keys: SigningKeys,
        *,
        registrar: Registrar,
        registrant: Callable[[], Registrant | None],
        issuer: Callable[[], str],
        root_segment: Callable[[], str | None] = lambda: None,
        demanded: bool = False,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        call_later: Callable[[float, Callable[[], None]], Any] | None = None,
    ) -> None:
        """`issuer`: the address under which servers of the config know this node. `demanded`: the
        parent must send a token with every call."""
        self._keys = keys
        self._registrar = registrar
        self._registrant = registrant
        self._issuer = issuer
        self._root_segment = root_segment
        self._call_later = call_later or asyncio.get_running_loop().call_later
        self._minter = Minter(keys.sign, clock=clock, wall_clock=wall_clock)
        self._tokens = MintedTokens(self._above, wall_clock=wall_clock, demanded=demanded)
        self._granted: ax.Registered | None = None
        self._is_above: Above | None = None
        self._timer: Any = None
        self._looking: asyncio.Task[None] | None = None
        registrar.grants.keys = keys.jwks

    def stand_between(self, authorizer: Authorizer, identity: Identity) -> None:
        """Take this place in a node, before anything is begun."""
        authorizer.limit_scopes(self._registrar.grants.limits)
        # By its method: to call an object costs more than to call a method of it.
        identity.minted = self._tokens.__call__

    # -- life

    def start(self) -> None:
        """Begin to look after the keys."""
        self._timer = self._call_later(LOOKED_AT, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._call_later(LOOKED_AT, self._look)
        # Another process may hold the file, and for long: one look at a time, beside the loop.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self.look())

    async def look(self) -> None:
        """See whether the keys are due, or were changed by hand."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, self._keys.look)
        except InterlockError as error:
            # It goes on with the key that it has, and tries again.
            _log.warning("%s", error.message)
            return
        if self._keys.take(found):
            _log.info("tokens are signed with the key %s", self._keys.kid)
            self._registrar.keys_changed()

    # -- downwards

    def prepare(self, peer: Peer, key: str) -> None:
        """Put tokens on what is sent to a subserver. Every other peer is left as it is."""
        info = self._registrar.subserver(key) if peer.speaks_ax else None
        if info is None:
            return
        peer.stamp = Stamp(
            self._minter,
            info.subserver_id,
            issuer=lambda: self._registrar.aggregator_id,
            shape=as_member,
            prefix=self._prefix(info.segment),
        )

    def connector(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> Connects | None:
        """What sends tokens to a server of the config that wants them (`minted_tokens`)."""
        if not server.minted_tokens:
            return None
        return HopTokenConnector(key, server, stamp=self.stamp, **options)

    def stamp(self, url: str, segment: str) -> Stamps:
        """What makes tokens for a server of the config."""
        return Stamp(
            self._minter, url, issuer=self._issuer, shape=as_header, prefix=self._prefix(segment)
        )

    def _prefix(self, segment: str) -> str:
        root = self._root_segment()
        return f"{root}.{segment}." if root else f"{segment}."

    def routes(self) -> Sequence[Route]:
        return (PublicDocument(KEYS_PATH, self.public_keys),)

    def public_keys(self) -> Raw:
        """The document at `KEYS_PATH`: for everybody."""
        return Raw(self._keys.jwks())

    # -- from above

    def _above(self) -> Above | None:
        registrant = self._registrant()
        granted = None if registrant is None else registrant.granted
        if granted is not self._granted:
            self._granted = granted
            self._is_above = None
            if registrant is not None and granted is not None:
                jwks = granted.jwks if isinstance(granted.jwks, Raw) else b""
                own = registrant.identity().subserver_id
                self._is_above = Above(granted.aggregator_id, own, jwks)
        return self._is_above
