"""The additions of features to upstreams: connectors, offering terms, hop tokens."""

from __future__ import annotations

from interlock.core.catalog.offering import OfferingTerms
from interlock.core.config import ServerConfig
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import ConnectionOpener, ConnectorOptions
from interlock.core.upstreams.supervisor import Supervisor


class UpstreamExtension:
    """Observes and extends all upstreams of a node. The default methods do nothing."""

    def create_connector(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> ConnectionOpener | None:
        """Return the connector for this configured server. None: use another connector."""
        return None

    def offering_terms(self, supervisor: Supervisor) -> OfferingTerms:
        """Return how the lists of this upstream are read. Empty: like those of any other."""
        return {}

    def prepare_connection(self, upstream_client: UpstreamClient, key: str) -> None:
        """Prepare a new connection before anything is read from it."""

    def on_closed(self, key: str) -> None:
        """Clean up after an upstream was closed."""
