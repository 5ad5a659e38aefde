"""Negotiation of the protocol generation and revision of an upstream.

The probe is `server/discover`. Unless the response proves the stateless generation, `initialize`
follows. A response that says nothing about the generation (no connection, 401, 5xx) is an error.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.call import StartError, UpstreamLostError, UpstreamResponseError
from interlock.core.upstreams.client import UpstreamClient
from interlock.errors import UPSTREAM_PROTOCOL, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol import jsonrpc, mcp

PROBE_TIMEOUT_SECONDS: Final = 5.0
"""The time for which a process may leave the probe unanswered before `initialize` is sent."""
_REDIRECTS: Final = (301, 302, 307, 308)
_MODERN_ERRORS: Final = frozenset({-32020, -32021, -32022})


async def negotiate_revision(
    upstream_client: UpstreamClient,
    *,
    session_first: bool,
    timeout: float,
    revision: str = mcp.LATEST_SESSION,
    stateless_only: bool = False,
) -> None:
    """Negotiate a revision and read what the server says about itself.

    Args:
        session_first: do not probe, send `initialize`.
        revision: the revision that a session server is asked for.
        stateless_only: do not fall back to a session.

    Raises:
        InterlockError: negotiation failed.
    """
    try:
        async with asyncio.timeout(timeout):
            if stateless_only and not session_first:
                await _open_stateless(upstream_client)
            else:
                await _open(upstream_client, session_first, revision)
    except UpstreamLostError as error:
        if upstream_client.transport.is_http or not upstream_client.closed.done():
            raise
        raise UpstreamLostError(
            UPSTREAM_UNAVAILABLE,
            f"{upstream_client.label} failed to start: {upstream_client.closed.result()}",
            was_sent=error.was_sent,
            status=error.status,
        ) from None
    except TimeoutError:
        raise StartError(
            UPSTREAM_UNAVAILABLE,
            f"{upstream_client.label} was not ready within {timeout:g} s. Increase "
            "`start_timeout` of this "
            "server.",
            is_timeout=True,
        ) from None


async def _open_stateless(upstream_client: UpstreamClient) -> None:
    discovery = await _discover(upstream_client)
    if discovery is None:
        raise InterlockError(
            UPSTREAM_PROTOCOL,
            f"{upstream_client.label} does not support the stateless protocol generation. Remove "
            "`protocol: stateless` from its config.",
        )
    _use_discovery(upstream_client, discovery)


class _InitializeRejectedError(InterlockError):
    """The server responded to `initialize` with an error."""

    def __init__(self, upstream_client: UpstreamClient, error: UpstreamResponseError) -> None:
        super().__init__(
            UPSTREAM_PROTOCOL,
            f"{upstream_client.label} rejected the start of a session: {error.message}",
        )
        self.is_modern = error.code in _MODERN_ERRORS
        """True if only servers of the stateless generation respond with this code."""


async def _open(upstream_client: UpstreamClient, session_first: bool, revision: str) -> None:
    if session_first:
        await _initialize(upstream_client, revision)
        return
    if upstream_client.transport.is_http:
        discovery = await _discover(upstream_client)
        if discovery is None:
            await _initialize(upstream_client, revision)
        else:
            _use_discovery(upstream_client, discovery)
        return
    probe = asyncio.get_running_loop().create_task(_discover(upstream_client))
    try:
        await asyncio.wait([probe], timeout=PROBE_TIMEOUT_SECONDS)
        discovery = probe.result() if probe.done() else None
        if discovery is None:
            # Some session servers never respond to the probe.
            try:
                await _initialize(upstream_client, revision)
                return
            except _InitializeRejectedError as rejected:
                # A slow stateless server. It has read the probe and may respond to it after this
                # error: servers handle requests concurrently.
                await asyncio.wait(
                    [probe], timeout=None if rejected.is_modern else PROBE_TIMEOUT_SECONDS
                )
                discovery = probe.result() if probe.done() else None
                if discovery is None:
                    raise
        _use_discovery(upstream_client, discovery)
    finally:
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)


async def _discover(upstream_client: UpstreamClient) -> mcp.DiscoverResult | None:
    """Return the description of a stateless server. None: it must be a session server."""
    upstream_client.set_revision(mcp.Era.STATELESS, mcp.LATEST_STATELESS)
    transport = upstream_client.transport
    for _ in range(2):
        transport.set_protocol_headers(mcp.LATEST_STATELESS)
        try:
            return _read_discovery((await upstream_client.request(mcp.DISCOVER)).result)
        except UpstreamResponseError as error:
            _check_error(upstream_client, error)
            return None
        except UpstreamLostError as error:
            if error.status in _REDIRECTS:
                if await transport.follow_redirect(error.location):
                    continue
                raise InterlockError(
                    UPSTREAM_UNAVAILABLE,
                    f"{upstream_client.label} redirects to another server. Set `url` to its "
                    "final URL.",
                ) from None
            if 400 <= error.status < 500 and error.status not in (401, 403, 429):
                return None
            raise
    raise InterlockError(UPSTREAM_UNAVAILABLE, f"{upstream_client.label} redirects in a loop.")


def _check_error(upstream_client: UpstreamClient, error: UpstreamResponseError) -> None:
    """Raise InterlockError if the error proves that there is no common revision."""
    if error.code not in _MODERN_ERRORS:
        return
    supported: list[str] = []
    if error.raw_data is not None:
        data = jsonrpc.decode_value(error.raw_data)
        if isinstance(data, dict) and isinstance(data.get("supported"), list):
            supported = data["supported"]
    if any(revision in mcp.SESSION_REVISIONS for revision in supported):
        return
    raise InterlockError(
        UPSTREAM_PROTOCOL,
        f"{upstream_client.label} supports only MCP "
        f"{', '.join(map(str, supported)) or 'revisions'}, unknown "
        f"to this node: {error.message}",
    )


def _read_discovery(result: bytes | Raw) -> mcp.DiscoverResult | None:
    try:
        discovery = msgspec.json.decode(result, type=mcp.DiscoverResult)
    except (msgspec.DecodeError, RecursionError):
        return None
    known = any(revision in mcp.STATELESS_REVISIONS for revision in discovery.supported_versions)
    return discovery if known else None


def _use_discovery(upstream_client: UpstreamClient, discovery: mcp.DiscoverResult) -> None:
    upstream_client.set_revision(mcp.Era.STATELESS, mcp.LATEST_STATELESS)
    upstream_client.capabilities = discovery.capabilities
    upstream_client.instructions = discovery.instructions
    info = discovery.meta.get(mcp.META_SERVER_INFO)
    upstream_client.server_info = _masked_info(
        upstream_client, info if isinstance(info, dict) else {}
    )


async def _initialize(upstream_client: UpstreamClient, revision: str) -> None:
    transport = upstream_client.transport
    upstream_client.set_revision(mcp.Era.SESSION, revision)
    transport.clear_protocol_headers()
    params = {
        "protocolVersion": revision,
        "capabilities": Raw(upstream_client.client_capabilities),
        "clientInfo": Raw(upstream_client.node_info),
    }
    try:
        try:
            outcome = await upstream_client.request(mcp.INITIALIZE, params)
        except UpstreamLostError as error:
            if error.status not in _REDIRECTS or not await transport.follow_redirect(
                error.location
            ):
                raise
            outcome = await upstream_client.request(mcp.INITIALIZE, params)
    except UpstreamResponseError as error:
        raise _InitializeRejectedError(upstream_client, error) from None
    try:
        result = msgspec.json.decode(outcome.result, type=mcp.InitializeResult)
    except msgspec.DecodeError as exc:
        raise InterlockError(
            UPSTREAM_PROTOCOL,
            f"{upstream_client.label} sent an invalid result of `initialize`: {exc}.",
        ) from None
    if result.protocol_version not in mcp.SESSION_REVISIONS:
        raise InterlockError(
            UPSTREAM_PROTOCOL,
            f"{upstream_client.label} requires MCP {result.protocol_version}, unknown to this "
            "node.",
        )
    upstream_client.set_revision(mcp.Era.SESSION, result.protocol_version)
    upstream_client.capabilities = result.capabilities
    upstream_client.instructions = result.instructions
    upstream_client.server_info = _masked_info(upstream_client, result.server_info)
    transport.set_protocol_headers(result.protocol_version, session=transport.offered_session_id)
    # Over HTTP the next request could overtake this one, and strict servers reject it then.
    await transport.post_and_wait(jsonrpc.notification(mcp.INITIALIZED))


def _masked_info(upstream_client: UpstreamClient, info: dict[str, Any]) -> dict[str, Any]:
    """Return the server's description of itself with secrets masked."""
    return {
        key: upstream_client.mask(value) if isinstance(value, str) else value
        for key, value in info.items()
    }
