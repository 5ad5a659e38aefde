"""What is kept of sign-ins, as this package needs it: records instead of bytes, off the event loop.

The store itself (`stores/tokens.py`) knows nothing of OAuth, and this room nothing of SQLite.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from interlock.upstreams.oauth.grant import Client, Grant, decode_client, decode_grant, encode


class TokenStore(Protocol):
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


class Kept(NamedTuple):
    """A grant as it was found in the store."""

    grant: Grant
    stamp: int


class Wallet:
    """The records of one upstream."""

    def __init__(self, store: TokenStore, key: str, url: str) -> None:
        self._store = store
        self._key = key
        self.url = url

    async def grant(self) -> Kept | None:
        """The grant for this upstream, if there is one that is meant for its URL."""
        if not self._store.exists():
            return None
        found = await asyncio.to_thread(self._store.grant, self._key, self.url)
        grant = None if found is None else decode_grant(found[0])
        if found is None or grant is None or grant.url != self.url:
            return None
        return Kept(grant, found[1])

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

    async def client(self, issuer: str) -> Client | None:
        """The node's own registration with an issuer."""
        if not self._store.exists():
            return None
        body = await asyncio.to_thread(self._store.client, self._key, self.url, issuer)
        client = None if body is None else decode_client(body)
        return client if client is not None and client.issuer == issuer else None

    async def keep_client(self, client: Client) -> None:
        body = encode(client)
        await asyncio.to_thread(self._store.keep_client, self._key, self.url, client.issuer, body)

    async def forget_client(self, client: Client) -> None:
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
