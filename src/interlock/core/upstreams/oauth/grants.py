"""Stored sign-ins, as this package uses them: records instead of bytes, off the event loop.

The store itself (`token_store.py`) does not know OAuth, and this module does not know SQLite.
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from interlock.core.upstreams.oauth.responses import TokenResponse

# -- What is stored of a sign-in: the client registration of the node, and the grant.
#
# A grant is bound to the server's URL, the resource and the issuer, and has the only endpoint that
# may renew it. Its fields are never part of a `repr`.

ClientKind = Literal["configured", "document", "registered"]

RENEW_EARLY_SECONDS: Final = 60.0
"""A token is renewed this long before it expires, or after 4/5 of a shorter lifetime."""


_STORED_NAMES: Final = {
    "auth_method": "method",
    "secret_expires_at": "secret_ends",
    "requested_scope": "asked",
    "missing_scope": "wanted",
    "expires_at": "ends",
    "renew_at": "renew",
}
"""Attributes whose name differs in stored records."""


class RegisteredClient(msgspec.Struct, frozen=True, rename=_STORED_NAMES):
    """The node's client at one authorization server."""

    kind: ClientKind
    """From the config, from a client id metadata document, or registered by the node."""
    client_id: str
    issuer: str
    auth_method: str = "none"
    """The authentication method at the token endpoint."""
    client_secret: str = ""
    secret_expires_at: float = 0.0
    redirect_uri: str = ""
    scope: str = ""
    """The registered scopes. Empty: not specified."""

    def __repr__(self) -> str:
        return f"RegisteredClient({self.kind}, issuer={self.issuer!r})"


class Grant(msgspec.Struct, frozen=True, rename=_STORED_NAMES):
    """A grant of an authorization server to a person or to the node."""

    url: str
    """The URL of the MCP server, as `urls.canonical` returns it."""
    resource: str
    """The resource of the tokens, exactly as the server published it."""
    issuer: str
    token_endpoint: str
    client: RegisteredClient
    revocation_endpoint: str = ""
    requested_scope: str = ""
    """The scopes that were requested."""
    scope: str = ""
    """The scopes that were granted."""
    missing_scope: str = ""
    """Scopes that the server required later. The next sign-in requests them."""
    access_token: str = ""
    refresh_token: str = ""
    expires_at: float = 0.0
    """The expiry of the access token, in seconds since 1970. 0: unknown."""
    renew_at: float = 0.0
    """The time of its renewal."""

    def __repr__(self) -> str:
        return f"Grant(url={self.url!r}, issuer={self.issuer!r}, scope={self.scope!r})"

    def with_token(self, response: TokenResponse, now: float) -> Grant:
        """Return the grant with a new token. Members that the response omits stay the same."""
        lifetime = response.lifetime
        return replace(
            self,
            access_token=response.access_token,
            refresh_token=response.refresh_token or self.refresh_token,
            scope=self.scope or self.requested_scope if response.scope is None else response.scope,
            expires_at=now + lifetime if lifetime else 0.0,
            renew_at=now + lifetime - min(RENEW_EARLY_SECONDS, lifetime / 5) if lifetime else 0.0,
        )

    def without_tokens(self) -> Grant:
        """Return the grant without tokens. Issuer and resource remain useful."""
        return replace(self, access_token="", refresh_token="", expires_at=0.0, renew_at=0.0)

    def secrets(self) -> list[str]:
        """Return the secrets, which must be masked."""
        values = (self.access_token, self.refresh_token, self.client.client_secret)
        return [value for value in values if value]


def encode(record: Grant | RegisteredClient) -> bytes:
    """Encode a record for the store."""
    return msgspec.json.encode(record)


def decode_grant(body: bytes) -> Grant | None:
    """Decode a record of the store. None: it is invalid or of another version."""
    try:
        return msgspec.json.decode(body, type=Grant)
    except msgspec.DecodeError:
        return None


def decode_client(body: bytes) -> RegisteredClient | None:
    """Decode a record of the store. None: it is invalid or of another version."""
    try:
        return msgspec.json.decode(body, type=RegisteredClient)
    except msgspec.DecodeError:
        return None


class GrantStore(Protocol):
    """A store of secrets, by the key of a server and its URL. All methods may block."""

    def exists(self) -> bool:
        """Return whether anything was ever stored."""
        ...

    def grant(self, server: str, url: str) -> tuple[bytes, int] | None:
        """Return a grant and its version."""
        ...

    def save_grant(
        self, server: str, url: str, body: bytes, *, replaces: int | None = None
    ) -> int | None:
        """Save a grant and return its version. With `replaces`, only if that is the current
        version; else return None."""
        ...

    def client(self, server: str, url: str, issuer: str) -> bytes | None:
        """Return the client that was registered with an issuer."""
        ...

    def save_client(self, server: str, url: str, issuer: str, body: bytes) -> None: ...

    def delete(self, server: str, url: str) -> bool:
        """Delete everything about a server. Returns whether there was anything."""
        ...

    def lease(self, server: str, url: str, holder: str, seconds: float) -> bool:
        """Lock the renewal of a grant for all processes. Returns whether that succeeded."""
        ...

    def release(self, server: str, url: str, holder: str) -> None: ...


class StoredGrant(NamedTuple):
    """A grant and the version of its record in the store."""

    grant: Grant
    version: int


class UpstreamGrants:
    """The stored records of one upstream."""

    def __init__(self, store: GrantStore, key: str, url: str) -> None:
        self._store = store
        self._key = key
        self.url = url

    async def grant(self) -> StoredGrant | None:
        """Return the grant for this upstream and its URL, if there is one."""
        if not self._store.exists():
            return None
        stored = await asyncio.to_thread(self._store.grant, self._key, self.url)
        grant = None if stored is None else decode_grant(stored[0])
        if stored is None or grant is None or grant.url != self.url:
            return None
        return StoredGrant(grant, stored[1])

    async def version(self) -> int:
        """Return the version of the grant in the store. 0: there is none."""
        if not self._store.exists():
            return 0
        stored = await asyncio.to_thread(self._store.grant, self._key, self.url)
        return 0 if stored is None else stored[1]

    async def save(self, grant: Grant, *, replaces: int | None = None) -> int | None:
        """Save a grant and return its version. None: another process changed it meanwhile."""
        return await asyncio.to_thread(
            lambda: self._store.save_grant(self._key, self.url, encode(grant), replaces=replaces)
        )

    async def client(self, issuer: str) -> RegisteredClient | None:
        """Return the node's registration with an issuer."""
        if not self._store.exists():
            return None
        body = await asyncio.to_thread(self._store.client, self._key, self.url, issuer)
        client = None if body is None else decode_client(body)
        return client if client is not None and client.issuer == issuer else None

    async def save_client(self, client: RegisteredClient) -> None:
        body = encode(client)
        await asyncio.to_thread(self._store.save_client, self._key, self.url, client.issuer, body)

    async def delete_client(self, client: RegisteredClient) -> None:
        """Delete a client that the issuer no longer knows, so that the node registers again."""
        await self.save_client(replace(client, redirect_uri=""))

    async def delete(self) -> bool:
        if not self._store.exists():
            return False
        return await asyncio.to_thread(self._store.delete, self._key, self.url)

    async def lease(self, holder: str, seconds: float) -> bool:
        return await asyncio.to_thread(self._store.lease, self._key, self.url, holder, seconds)

    async def release(self, holder: str) -> None:
        await asyncio.to_thread(self._store.release, self._key, self.url, holder)
