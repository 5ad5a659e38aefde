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
from interlock.upstreams.egress.patterns import normal_host
from interlock.upstreams.egress.remote import check_remote
from interlock.upstreams.egress.resolving import Never, reachable, resolve_outside
from interlock.upstreams.oauth.addresses import is_secure, parts
from interlock.upstreams.oauth.fetch import fetch
from interlock.upstreams.oauth.trouble import Trouble


class NoAnswer(Exception):
    """Why there was no answer, as the rest of a sentence."""


class Asks(Protocol):
    """Makes the request; the status of its answer. Raises NoAnswer."""

    async def __call__(self, probe: HttpProbe, *, within: float) -> int: ...


def declared_only(
    manifest: DriverManifest,
    *,
    any_egress: bool = False,
    local_egress: bool = False,
    never: Never = (),
) -> Asks:
    """Asks for a driver, and nobody whom its server could not ask as well: a manifest must not send
    the node to places that it does not declare, nor to the node itself, which is at `never`."""

    reach = reachable(resolve_outside, never=never, local=local_egress)

    async def ask_declared(probe: HttpProbe, *, within: float) -> int:
        try:
            check_remote(
                probe.url,
                manifest.egress,
                any_egress=any_egress,
                local_egress=local_egress,
                never=never,
                key=manifest.id,
                what="what it has the node ask",
                field="a url",
            )
            place = parts(probe.url)
            port = place.port or (443 if place.scheme == "https" else 80)
            async with asyncio.timeout(within):
                # Where a name leads is its owner's to say, and may be here.
                await reach(normal_host(place.hostname or ""), port)
        except InterlockError as error:
            raise NoAnswer(error.message.rstrip(".")) from None
        except TimeoutError:
            raise NoAnswer(f"the host of {probe.url} was not found within {within:g} s") from None
        except OSError as error:
            raise NoAnswer(f"{probe.url} cannot be asked: {error.strerror or error}") from None
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
