"""What is kept of sign-ins, as this package needs it: records instead of bytes, off the event loop.

The store itself (`token_store.py`) knows nothing of OAuth, and this module nothing of SQLite.
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from interlock.core.upstreams.oauth.responses import TokenResponse

# -- What is kept of a sign-in: the client that the node is at an authorization server, and the
# grant.
#
# A grant is bound to the server's URL, to the resource, and to the issuer that gave it, and holds
# the one address at which it may be renewed. Its fields never show in a `repr`.

ClientKind = Literal["configured", "document", "registered"]

EARLY: Final = 60.0
"""A token is renewed this long before it ends, or a fifth of its life if that is less."""


class RegisteredClient(msgspec.Struct, frozen=True):
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
        return f"RegisteredClient({self.kind}, issuer={self.issuer!r})"


class Grant(msgspec.Struct, frozen=True):
    """What a human, or the node's own credentials, obtained from an authorization server."""

    url: str
    """The MCP server, as `addresses.canonical` writes it."""
    resource: str
    """What the tokens are for, exactly as the server published it."""
    issuer: str
    token_endpoint: str
    client: RegisteredClient
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

    def with_token(self, answer: TokenResponse, now: float) -> Grant:
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


def encode(record: Grant | RegisteredClient) -> bytes:
    """A record for the store."""
    return msgspec.json.encode(record)


def decode_grant(body: bytes) -> Grant | None:
    """A record from the store; None when it is of another version, or broken."""
    try:
        return msgspec.json.decode(body, type=Grant)
    except msgspec.DecodeError:
        return None


def decode_client(body: bytes) -> RegisteredClient | None:
    """A record from the store; None when it is of another version, or broken."""
    try:
        return msgspec.json.decode(body, type=RegisteredClient)
    except msgspec.DecodeError:
        return None


class GrantStore(Protocol):
    """Where secrets are kept, by the key of a server and its URL. Every call may block."""

    def exists(self) -> bool:
        """Whether anything was ever kept."""
        ...

    def grant(self, server: str, url: str) -> tuple[bytes, int] | None:
        """A grant, and the stamp by which this version of it is known."""
        ...

    def keep_grant(
        self, server: str, url: str, body: bytes, *, instead_of: int | None = None
    ) -> int | None:
        """Keep a grant; its stamp. With `instead_of` only in place of that version, else None."""
        ...

    def client(self, server: str, url: str, issuer: str) -> bytes | None:
        """The client that was registered with an issuer."""
        ...

    def keep_client(self, server: str, url: str, issuer: str, body: bytes) -> None: ...

    def forget(self, server: str, url: str) -> bool:
        """Forget everything about a server; whether there was anything."""
        ...

    def lease(self, server: str, url: str, holder: str, seconds: float) -> bool:
        """Be the only one, of all processes, who renews this grant for so long."""
        ...

    def release(self, server: str, url: str, holder: str) -> None: ...


class StoredGrant(NamedTuple):
    """A grant as it was found in the store."""

    grant: Grant
    stamp: int


class UpstreamGrants:
    """The records of one upstream."""

    def __init__(self, store: GrantStore, key: str, url: str) -> None:
        self._store = store
        self._key = key
        self.url = url

    async def grant(self) -> StoredGrant | None:
        """The grant for this upstream, if there is one that is meant for its URL."""
        if not self._store.exists():
            return None
        found = await asyncio.to_thread(self._store.grant, self._key, self.url)
        grant = None if found is None else decode_grant(found[0])
        if found is None or grant is None or grant.url != self.url:
            return None
        return StoredGrant(grant, found[1])

    async def stamp(self) -> int:
        """The version of the grant that is in the store; 0 when there is none."""
        if not self._store.exists():
            return 0
        found = await asyncio.to_thread(self._store.grant, self._key, self.url)
        return 0 if found is None else found[1]

    async def keep(self, grant: Grant, *, instead_of: int | None = None) -> int | None:
        """Keep a grant; its stamp, or None when somebody else was faster."""
        return await asyncio.to_thread(
            lambda: self._store.keep_grant(
                self._key, self.url, encode(grant), instead_of=instead_of
            )
        )

    async def client(self, issuer: str) -> RegisteredClient | None:
        """The node's own registration with an issuer."""
        if not self._store.exists():
            return None
        body = await asyncio.to_thread(self._store.client, self._key, self.url, issuer)
        client = None if body is None else decode_client(body)
        return client if client is not None and client.issuer == issuer else None

    async def keep_client(self, client: RegisteredClient) -> None:
        body = encode(client)
        await asyncio.to_thread(self._store.keep_client, self._key, self.url, client.issuer, body)

    async def forget_client(self, client: RegisteredClient) -> None:
        """The issuer no longer knows this client: register anew next time."""
        await self.keep_client(replace(client, redirect_uri=""))

    async def forget(self) -> bool:
        if not self._store.exists():
            return False
        return await asyncio.to_thread(self._store.forget, self._key, self.url)

    async def lease(self, holder: str, seconds: float) -> bool:
        return await asyncio.to_thread(self._store.lease, self._key, self.url, holder, seconds)

    async def release(self, holder: str) -> None:
        await asyncio.to_thread(self._store.release, self._key, self.url, holder)
