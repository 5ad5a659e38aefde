"""Whether a remote server of a driver is where the driver may reach.

Nothing of a remote driver runs here, so its egress confines the node's own connection: the host of
its URL has to be in it. An empty egress means no network, for a remote server as for any other;
the refusal says what to write.
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
    what: str = "its server",
    field: str = "server.url",
) -> None:
    """Raises InterlockError unless what a manifest names at this URL may be connected to. `what` is
    there, by which `field` of the manifest."""
    try:
        found = parse_url(url)
        host = normal_host(found.hostname or "")
        compiled = (
            egress
            if isinstance(egress, Egress)
            else Egress.compile(egress, any_egress=any_egress, local_egress=local_egress)
        )
    except ValueError as exc:
        # What the URL holds besides its host may be a secret.
        raise InterlockError(CONFIG, f"{key}: {field} or egress is wrong: {exc}.") from None
    if found.scheme != "https" and not is_loopback(host):
        raise InterlockError(
            POLICY_VIOLATION,
            f"{key}: {what} at {host} is to be reached over plain http, where anybody on the "
            "way can read and change what is said. Use https.",
        )
    place = HostPort(host, found.port or (443 if found.scheme == "https" else 80))
    own = LOOPBACK if is_localhost(host) else host
    if is_address(own) and is_node(own, place.port, never):
        raise InterlockError(
            POLICY_VIOLATION,
            f"{key}: {what} is at {place}, where this node itself listens. A driver cannot be the "
            "node that uses it.",
        )
    if not compiled.allows(*place):
        pattern = host if place.port in (80, 443) and ":" not in host else str(place)
        raise InterlockError(
            POLICY_VIOLATION,
            f"{key}: {what} is at {place}, which is not in its network.egress. If it is meant "
            f'to be reached, write egress: ["{pattern}"].',
        )
