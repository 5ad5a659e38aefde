"""What is kept of a sign-in: the client that the node is at an authorization server, and the grant.

A grant is bound to the server's URL, to the resource, and to the issuer that gave it, and holds the
one address at which it may be renewed. Its fields never show in a `repr`.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from interlock.upstreams.oauth.answers import TokenAnswer

ClientKind = Literal["configured", "document", "registered"]

EARLY: Final = 60.0
"""A token is renewed this long before it ends, or a fifth of its life if that is less."""


class Client(msgspec.Struct, frozen=True):
    """Who the node is to one authorization server."""

    kind: ClientKind
    """From the config, a client id metadata document, or registered by the node itself."""
    client_id: str
    issuer: str
    method: str = "none"
    """How it proves itself to the token endpoint."""
    client_secret: str = ""
    secret_ends: float = 0.0
    redirect_uri: str = ""
    scope: str = ""
    """What it was registered for; empty when that was not said."""

    def __repr__(self) -> str:
        return f"Client({self.kind}, issuer={self.issuer!r})"


class Grant(msgspec.Struct, frozen=True):
    """What a human, or the node's own credentials, obtained from an authorization server."""

    url: str
    """The MCP server, as `addresses.canonical` writes it."""
    resource: str
    """What the tokens are for, exactly as the server published it."""
    issuer: str
    token_endpoint: str
    client: Client
    revocation_endpoint: str = ""
    asked: str = ""
    """The scopes that were asked for."""
    scope: str = ""
    """The scopes that were granted."""
    wanted: str = ""
    """Scopes that the server asked for since, and that wait for the next sign-in."""
    access_token: str = ""
    refresh_token: str = ""
    ends: float = 0.0
    """When the access token ends, in seconds since 1970; 0 when nobody knows."""
    renew: float = 0.0
    """When it should be renewed."""

    def __repr__(self) -> str:
        return f"Grant(url={self.url!r}, issuer={self.issuer!r}, scope={self.scope!r})"

    def with_token(self, answer: TokenAnswer, now: float) -> Grant:
        """The same grant with a new token. What the answer leaves out stays as it was."""
        life = answer.lifetime
        return replace(
            self,
            access_token=answer.access_token,
            refresh_token=answer.refresh_token or self.refresh_token,
            scope=self.scope or self.asked if answer.scope is None else answer.scope,
            ends=now + life if life else 0.0,
            renew=now + life - min(EARLY, life / 5) if life else 0.0,
        )

    def spent(self) -> Grant:
        """The same grant without tokens: who gave it, and for what, is still of use."""
        return replace(self, access_token="", refresh_token="", ends=0.0, renew=0.0)

    def secrets(self) -> list[str]:
        """What must not be repeated."""
        known = (self.access_token, self.refresh_token, self.client.client_secret)
        return [one for one in known if one]


def encode(record: Grant | Client) -> bytes:
    """A record for the store."""
    return msgspec.json.encode(record)


def decode_grant(body: bytes) -> Grant | None:
    """A record from the store; None when it is of another version, or broken."""
    try:
        return msgspec.json.decode(body, type=Grant)
    except msgspec.DecodeError:
        return None


def decode_client(body: bytes) -> Client | None:
    """A record from the store; None when it is of another version, or broken."""
    try:
        return msgspec.json.decode(body, type=Client)
    except msgspec.DecodeError:
        return None
