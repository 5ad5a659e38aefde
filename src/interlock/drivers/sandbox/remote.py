"""The check that a remote server is inside the driver's egress.

Nothing of a remote driver runs on this machine, so its egress confines the node's own connection:
the host of its URL must be allowed. An empty egress means no network, as for any other server. The
error says what to write.
"""

from __future__ import annotations

from collections.abc import Sequence

from interlock.core.upstreams.oauth.urls import is_loopback, parse_url
from interlock.drivers.sandbox.name_resolution import OwnAddresses, is_node
from interlock.drivers.sandbox.patterns import (
    Egress,
    HostPort,
    is_address,
    is_localhost,
    normal_host,
)
from interlock.drivers.sandbox.plan import LOOPBACK
from interlock.errors import CONFIG, POLICY_VIOLATION, InterlockError


def check_remote(
    url: str,
    egress: Sequence[str] | Egress,
    *,
    any_egress: bool = False,
    local_egress: bool = False,
    never: OwnAddresses = (),
    key: str = "The driver",
    subject: str = "its server",
    field: str = "server.url",
) -> None:
    """Raise InterlockError if the node must not connect to a URL of a manifest.

    Args:
        never: addresses of the node.
        subject: what is at the URL, for messages.
        field: the field of the manifest that contains the URL, for messages.
    """
    try:
        url_parts = parse_url(url)
        host = normal_host(url_parts.hostname or "")
        compiled = (
            egress
            if isinstance(egress, Egress)
            else Egress.compile(egress, any_egress=any_egress, local_egress=local_egress)
        )
    except ValueError as exc:
        # The URL is not shown: its other parts may contain a secret.
        raise InterlockError(CONFIG, f"{key}: invalid {field} or network.egress: {exc}.") from None
    if url_parts.scheme != "https" and not is_loopback(host):
        raise InterlockError(
            POLICY_VIOLATION,
            f"{key}: {subject} at {host} uses http without TLS, so others can read and change "
            "the traffic. Use https.",
        )
    place = HostPort(host, url_parts.port or (443 if url_parts.scheme == "https" else 80))
    address = LOOPBACK if is_localhost(host) else host
    if is_address(address) and is_node(address, place.port, never):
        raise InterlockError(
            POLICY_VIOLATION,
            f"{key}: {subject} is at {place}, an address of this node. A driver must not "
            "connect to the node itself.",
        )
    if not compiled.allows(*place):
        pattern = host if place.port in (80, 443) and ":" not in host else str(place)
        raise InterlockError(
            POLICY_VIOLATION,
            f"{key}: {subject} is at {place}, which is not in its network.egress. To allow it, "
            "write "
            f'egress: ["{pattern}"].',
        )
