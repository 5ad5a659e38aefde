"""What another part of the node adds to the upstreams: a kind of connection, terms, tokens."""

from __future__ import annotations

from interlock.core.catalog.offering import OfferingTerms
from interlock.core.config import ServerConfig
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import ConnectionOpener, ConnectorOptions
from interlock.core.upstreams.supervisor import Supervisor


class UpstreamExtension:
    """Hears of every upstream of a node. Each method may be left as it is: then it adds nothing."""

    def connector(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> ConnectionOpener | None:
        """What connects to this server of the config. None: that is for others to do."""
        return None

    def terms(self, supervisor: Supervisor) -> OfferingTerms:
        """How the lists of this upstream are read. Empty: as those of any other."""
        return {}

    def prepare(self, peer: UpstreamClient, key: str) -> None:
        """A new connection to an upstream: nothing has been read on it yet."""

    def ended(self, key: str) -> None:
        """An upstream is no more."""
