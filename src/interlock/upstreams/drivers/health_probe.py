"""One request of a manifest to an HTTP server, of whose answer only the status matters.

The same plain HTTP as for sign-ins (`upstreams/oauth/fetch.py`): no redirect is followed,
certificates are verified, and without TLS only this machine is spoken to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from interlock.errors import InterlockError
from interlock.manifests.driver import DriverManifest, HttpProbe
from interlock.upstreams.egress.remote import check_remote
from interlock.upstreams.oauth.addresses import is_secure
from interlock.upstreams.oauth.fetch import fetch
from interlock.upstreams.oauth.trouble import Trouble


class NoAnswer(Exception):
    """Why there was no answer, as the rest of a sentence."""


class Asks(Protocol):
    """Makes the request; the status of its answer. Raises NoAnswer."""

    async def __call__(self, probe: HttpProbe, *, within: float) -> int: ...


def declared_only(
    manifest: DriverManifest, *, any_egress: bool = False, local_egress: bool = False
) -> Asks:
    """Asks for a driver, and nobody whom its server could not ask as well: a manifest must not send
    the node to places that it does not declare."""

    async def ask_declared(probe: HttpProbe, *, within: float) -> int:
        try:
            check_remote(
                probe.url,
                manifest.egress,
                any_egress=any_egress,
                local_egress=local_egress,
                key=manifest.id,
                what="what it has the node ask",
                field="a url",
            )
        except InterlockError as error:
            raise NoAnswer(error.message.rstrip(".")) from None
        return await ask(probe, within=within)

    return ask_declared


async def ask(probe: HttpProbe, *, within: float, headers: Mapping[str, str] | None = None) -> int:
    """The status of the answer. Raises NoAnswer."""
    if not is_secure(probe.url):
        raise NoAnswer(f"{probe.url} is neither https nor on this machine")
    try:
        async with asyncio.timeout(within):
            answer = await fetch(probe.method, probe.url, {"Accept": "*/*", **(headers or {})})
    except TimeoutError:
        raise NoAnswer(f"{probe.url} did not answer within {within:g} s") from None
    except Trouble as trouble:
        raise NoAnswer(trouble.why.rstrip(".")) from None
    return answer.status
