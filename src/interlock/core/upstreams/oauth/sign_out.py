"""Giving tokens back to who issued them (RFC 7009)."""

from __future__ import annotations

from msgspec.structs import replace

from interlock.core.config.model import OAuthConfig
from interlock.core.upstreams.oauth.fetch import Fetch
from interlock.core.upstreams.oauth.grants import Grant
from interlock.core.upstreams.oauth.requests import revocation_request
from interlock.core.upstreams.oauth.responses import refusal


async def give_back(grant: Grant, settings: OAuthConfig, fetch: Fetch) -> None:
    """Tell the issuer that its tokens are no longer wanted. Raises Trouble.

    An issuer that takes nothing back is not told: its tokens end by themselves.
    """
    if not grant.revocation_endpoint:
        return
    client = grant.client
    if client.kind == "configured":
        client = replace(client, client_secret=settings.client_secret or "")
    tokens = (("refresh_token", grant.refresh_token), ("access_token", grant.access_token))
    for hint, token in tokens:
        if not token:
            continue
        headers, body = revocation_request(
            client,
            grant.revocation_endpoint,
            token,
            hint,
            private_key=settings.private_key or "",
        )
        answer = await fetch("POST", grant.revocation_endpoint, headers, body)
        if answer.status != 200:
            told = [token, client.client_secret]
            raise refusal(answer.status, answer.body, "the authorization server refused", told)
