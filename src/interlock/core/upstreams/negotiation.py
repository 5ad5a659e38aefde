"""Finding out which wire an upstream speaks, and opening the conversation on it.

`server/discover` first; anything but evidence of the stateless wire falls back to `initialize`.
An answer that says nothing about the era (no connection, 401, 5xx) is an error, never a verdict.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.call import UpstreamLostError, UpstreamResponseError
from interlock.core.upstreams.client import UpstreamClient
from interlock.errors import UPSTREAM_PROTOCOL, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol import jsonrpc, mcp

PROBE_WAIT: Final = 5.0
"""How long a started process may leave the probe unanswered before `initialize` is tried."""
_REDIRECTS: Final = (301, 302, 307, 308)
_MODERN_ERRORS: Final = frozenset({-32020, -32021, -32022})


async def open_peer(
    peer: UpstreamClient,
    *,
    session_first: bool,
    timeout: float,
    revision: str = mcp.LATEST_SESSION,
    stateless_only: bool = False,
) -> None:
    """Agree on a revision; `revision` is the one that a session server is asked for.
    `stateless_only`: do not fall back to a session. Raises InterlockError with the reason when that
    fails."""
    try:
        async with asyncio.timeout(timeout):
            if stateless_only and not session_first:
                await _open_stateless(peer)
            else:
                await _open(peer, session_first, revision)
    except UpstreamLostError as gone:
        if peer.link.is_http or not peer.closed.done():
            raise
        raise UpstreamLostError(
            UPSTREAM_UNAVAILABLE,
            f"{peer.label} failed to start: {peer.closed.result()}",
            was_sent=gone.was_sent,
            status=gone.status,
        ) from None
    except TimeoutError:
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"{peer.label} did not get ready within {timeout:g} s. "
            "`start_timeout` of this server gives it longer.",
        ) from None


async def _open_stateless(peer: UpstreamClient) -> None:
    found = await _discover(peer)
    if found is None:
        raise InterlockError(
            UPSTREAM_PROTOCOL,
            f"{peer.label} does not speak the stateless protocol generation. Remove "
            "`protocol: stateless` from its config.",
        )
    _adopt(peer, found)


class _Refused(InterlockError):
    """The server answered `initialize` with an error."""

    def __init__(self, peer: UpstreamClient, error: UpstreamResponseError) -> None:
        super().__init__(
            UPSTREAM_PROTOCOL, f"{peer.label} refused to start a session: {error.message}"
        )
        self.is_modern = error.code in _MODERN_ERRORS
        """Only a server of the stateless generation answers with this code."""


async def _open(peer: UpstreamClient, session_first: bool, revision: str) -> None:
    if session_first:
        await _initialize(peer, revision)
        return
    if peer.link.is_http:
        found = await _discover(peer)
        if found is None:
            await _initialize(peer, revision)
        else:
            _adopt(peer, found)
        return
    probe = asyncio.get_running_loop().create_task(_discover(peer))
    try:
        await asyncio.wait([probe], timeout=PROBE_WAIT)
        found = probe.result() if probe.done() else None
        if found is None:
            # Some old ones leave the probe unanswered.
            try:
                await _initialize(peer, revision)
                return
            except _Refused as refused:
                # Not old, but slow to start. It has read the probe, and may answer it after this
                # refusal: servers handle requests concurrently.
                await asyncio.wait([probe], timeout=None if refused.is_modern else PROBE_WAIT)
                found = probe.result() if probe.done() else None
                if found is None:
                    raise
        _adopt(peer, found)
    finally:
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)


async def _discover(peer: UpstreamClient) -> mcp.DiscoverResult | None:
    """What a server of the stateless wire says of itself; None when it must be the other wire."""
    peer.adopt(mcp.Era.STATELESS, mcp.LATEST_STATELESS)
    link = peer.link
    for _ in range(2):
        link.speak(mcp.LATEST_STATELESS)
        try:
            return _read_discovery((await peer.request(mcp.DISCOVER)).result)
        except UpstreamResponseError as error:
            _judge_error(peer, error)
            return None
        except UpstreamLostError as gone:
            if gone.status in _REDIRECTS:
                if await link.follow(gone.location):
                    continue
                raise InterlockError(
                    UPSTREAM_UNAVAILABLE,
                    f"{peer.label} redirects to another server; put its own URL in the config.",
                ) from None
            if 400 <= gone.status < 500 and gone.status not in (401, 403, 429):
                return None
            raise
    raise InterlockError(UPSTREAM_UNAVAILABLE, f"{peer.label} redirects in a circle.")


def _judge_error(peer: UpstreamClient, error: UpstreamResponseError) -> None:
    """Raises when the error proves that there is no wire that both sides know."""
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
        f"{peer.label} speaks only MCP {', '.join(map(str, supported)) or 'revisions'} that this "
        f"node does not know: {error.message}",
    )


def _read_discovery(result: bytes | Raw) -> mcp.DiscoverResult | None:
    try:
        found = msgspec.json.decode(result, type=mcp.DiscoverResult)
    except (msgspec.DecodeError, RecursionError):
        return None
    known = any(revision in mcp.STATELESS_REVISIONS for revision in found.supported_versions)
    return found if known else None


def _adopt(peer: UpstreamClient, found: mcp.DiscoverResult) -> None:
    peer.adopt(mcp.Era.STATELESS, mcp.LATEST_STATELESS)
    peer.capabilities = found.capabilities
    peer.instructions = found.instructions
    info = found.meta.get(mcp.META_SERVER_INFO)
    peer.server_info = _about(peer, info if isinstance(info, dict) else {})


async def _initialize(peer: UpstreamClient, revision: str) -> None:
    link = peer.link
    peer.adopt(mcp.Era.SESSION, revision)
    link.say_nothing()
    params = {
        "protocolVersion": revision,
        "capabilities": Raw(peer.promises),
        "clientInfo": Raw(peer.own_info),
    }
    try:
        try:
            outcome = await peer.request(mcp.INITIALIZE, params)
        except UpstreamLostError as gone:
            if gone.status not in _REDIRECTS or not await link.follow(gone.location):
                raise
            outcome = await peer.request(mcp.INITIALIZE, params)
    except UpstreamResponseError as error:
        raise _Refused(peer, error) from None
    try:
        answer = msgspec.json.decode(outcome.result, type=mcp.InitializeResult)
    except msgspec.DecodeError as exc:
        raise InterlockError(
            UPSTREAM_PROTOCOL, f"{peer.label} answered `initialize` with nonsense: {exc}."
        ) from None
    if answer.protocol_version not in mcp.SESSION_REVISIONS:
        raise InterlockError(
            UPSTREAM_PROTOCOL,
            f"{peer.label} wants MCP {answer.protocol_version}, which this node does not know.",
        )
    peer.adopt(mcp.Era.SESSION, answer.protocol_version)
    peer.capabilities = answer.capabilities
    peer.instructions = answer.instructions
    peer.server_info = _about(peer, answer.server_info)
    link.speak(answer.protocol_version, session=link.session_offered)
    # Over HTTP the next request may overtake it, and strict servers answer nothing before it.
    await link.hand_over(jsonrpc.notification(mcp.INITIALIZED))


def _about(peer: UpstreamClient, info: dict[str, Any]) -> dict[str, Any]:
    """What the server says about itself, fit to be shown."""
    return {
        key: peer.mask(value) if isinstance(value, str) else value for key, value in info.items()
    }
