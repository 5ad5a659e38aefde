"""The public keys of issuers: fetched, cached, and fetched again when a token names an unknown key.

There is one request at a time for each issuer, and at most one every few seconds, however many
tokens have unknown keys. A key that its issuer no longer publishes counts a little longer, so that
recent tokens stay valid. Keys are fetched by https, or from this machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from interlock.core.config.trust import IssuerConfig
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.core.ports import Clock
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import Fetch, FetchResponse, fetch
from interlock.core.upstreams.oauth.urls import is_local, is_secure, server_metadata_urls
from interlock.errors import CONFIG, InterlockError
from interlock.trust.identity.keys import PublicKey, read_keys, select_keys

FETCH_TIMEOUT_SECONDS: Final = 10.0
MAX_DOCUMENT_BYTES: Final = 1024 * 1024
UNKNOWN_KEY_PAUSE_SECONDS: Final = 5.0
"""Between two requests for the keys of one issuer because of unknown keys."""
REFRESH_SECONDS: Final = 15 * 60.0
"""The age at which keys are read again."""
RETRY_SECONDS: Final = 30.0
OVERLAP_SECONDS: Final = 15 * 60.0
"""The time for which a key counts that its issuer no longer publishes."""
MAX_AGE_SECONDS: Final = 24 * 3600.0
"""The time for which keys count while their issuer cannot be reached."""

_log = logging.getLogger("interlock.node")


class _Metadata(msgspec.Struct):
    issuer: str
    jwks_uri: str


class KeySet:
    """The keys of one issuer."""

    def __init__(
        self,
        config: IssuerConfig,
        base_dir: Path,
        *,
        clock: Clock,
        fetch: Fetch = fetch,
        on_removed: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        on_removed: called when a key no longer counts.

        Raises InterlockError for an issuer whose keys can never be found.
        """
        self.config = config
        self.issuer = config.issuer
        self.problem: str | None = None
        self._file = None if config.jwks_file is None else base_dir / Path(config.jwks_file)
        self._url = config.jwks_url
        self._clock = clock
        self._fetch = fetch
        self._on_removed = on_removed
        self._keys: tuple[PublicKey, ...] = ()
        self._retired: dict[str, tuple[PublicKey, float]] = {}
        """Keys that are no longer published, by thumbprint, with the end of their validity."""
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._requested_at: float | None = None
        """The last time when the keys were read because a token named an unknown key."""
        self._reading: asyncio.Task[None] | None = None
        self._check(config)

    # -- Current keys

    def find(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        """Return the keys that may have made a signature, the published ones first."""
        self.remove_expired()
        keys = select_keys(self._keys, kid, algorithm)
        if kid is not None and keys:
            return keys
        return [*keys, *select_keys([key for key, _ in self._retired.values()], kid, algorithm)]

    def request_refresh(self) -> PendingIdentity | None:
        """Return what to wait for if the keys may have changed. None: they were read just now."""
        last_request_at = self._requested_at
        pause = UNKNOWN_KEY_PAUSE_SECONDS
        if (
            self._reading is None
            and last_request_at is not None
            and self._clock() - last_request_at < pause
        ):
            return None
        return PendingIdentity(self._refresh_on_request)

    async def _refresh_on_request(self) -> None:
        try:
            await self.refresh()
        finally:
            self._requested_at = self._clock()

    @property
    def is_due(self) -> bool:
        """True if it is time to read the keys again."""
        if self._tried_at is None:
            return True
        age = self._clock() - self._tried_at
        return age >= (REFRESH_SECONDS if self.problem is None else RETRY_SECONDS)

    # -- Reading

    async def refresh(self) -> None:
        """Read the keys, or wait for a read that is under way. Never raises."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._refresh(), name="keys")
        # A cancelled caller must not stop the read, because others may wait for it.
        await asyncio.shield(self._reading)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
                keys = read_keys(await self._fetch_document())
        except (SignInProblem, TimeoutError, OSError, ValueError) as error:
            reason = error.reason if isinstance(error, SignInProblem) else str(error) or "timeout"
            if self.problem is None:
                _log.warning("issuer %s: cannot read its keys: %s", self.issuer, reason)
            self.problem = reason
        except Exception:
            # Callers wait for the end of this task, so it must not fail.
            # A waiting caller must get a result in any case.
            _log.exception("issuer %s: cannot read its keys", self.issuer)
            self.problem = "internal error, see the log of the node"
        else:
            if self.problem is not None:
                _log.info("issuer %s: its keys can be read again", self.issuer)
            self.problem = None
            self._use(keys)
        finally:
            self._tried_at = self._clock()
            self._reading = None

    def _use(self, keys: tuple[PublicKey, ...]) -> None:
        now = self._clock()
        published = {key.thumbprint for key in keys}
        for key in self._keys:
            if key.thumbprint not in published:
                self._retired[key.thumbprint] = (key, now + OVERLAP_SECONDS)
        for thumbprint in published & set(self._retired):
            del self._retired[thumbprint]
        self._keys, self._read_at = keys, now

    def remove_expired(self) -> None:
        """Remove keys that no longer count. Call it regularly, also without lookups."""
        now = self._clock()
        expired = [thumbprint for thumbprint, (_, until) in self._retired.items() if now >= until]
        for thumbprint in expired:
            del self._retired[thumbprint]
        is_stale = self._read_at is not None and now - self._read_at >= MAX_AGE_SECONDS
        if is_stale and self._keys:
            self._keys = ()
            expired.append("all")
        if expired:
            self._on_removed()

    async def _fetch_document(self) -> bytes:
        if self._file is not None:
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(None, self._file.read_bytes)
        else:
            url = self._url or await self._discover_url()
            if not is_secure(url, allow_loopback=self._url is not None or is_local(self.issuer)):
                raise ValueError("the address of its keys is not https")
            body = (await self._get(url)).body
        if len(body) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"its key document is longer than {MAX_DOCUMENT_BYTES} bytes")
        return body

    async def _discover_url(self) -> str:
        """Return the address of the keys from the metadata of the issuer."""
        problem, mismatch = "it publishes no metadata", ""
        for address in server_metadata_urls(self.issuer):
            try:
                body = (await self._get(address)).body
                metadata = msgspec.json.decode(body, type=_Metadata)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
                problem = str(error)
                continue
            if metadata.issuer == self.issuer:
                return metadata.jwks_uri
            mismatch = "its metadata is of another issuer"
        raise ValueError(mismatch or problem)

    async def _get(self, url: str) -> FetchResponse:
        response = await self._fetch("GET", url, {})
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}")
        return response

    def _check(self, config: IssuerConfig) -> None:
        url = config.jwks_url or config.issuer
        if self._file is not None:
            if config.jwks_url is not None:
                raise _config_error(config, "has both `jwks_url` and `jwks_file`: keep one")
            try:
                self._use(read_keys(self._file.read_bytes()))
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise _config_error(
                    config, f"has a `jwks_file` that cannot be read: {reason}"
                ) from None
            self._tried_at = self._clock()
        elif not is_secure(url):
            raise _config_error(
                config,
                "has no https address for its keys. Set an https `jwks_url`, or a `jwks_file`",
            )


def _config_error(config: IssuerConfig, reason: str) -> InterlockError:
    return InterlockError(CONFIG, f"`identity.issuers`: the issuer {config.issuer} {reason}.")
