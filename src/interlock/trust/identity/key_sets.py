"""The public keys of issuers: fetched, kept, and looked for again when a token names a new one.

One request at a time per issuer, and at most one every few seconds however many tokens come with
keys that nobody knows. A key that its issuer no longer shows counts for a little longer, so that
what it signed just before does not fall into a gap. Only https is asked, or this very machine.
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
from interlock.trust.identity.keys import PublicKey, fitting, read_keys

WITHIN: Final = 10.0
"""How long a request for keys may take."""
LONGEST: Final = 1024 * 1024
PAUSE: Final = 5.0
"""Between two requests for the keys of one issuer because of keys that nobody knows."""
REFRESH: Final = 15 * 60.0
"""How old keys get before they are read again."""
RETRY: Final = 30.0
OVERLAP: Final = 15 * 60.0
"""For so long a key counts that its issuer no longer shows."""
KEPT_WITHOUT_NEWS: Final = 24 * 3600.0
"""For so long keys count while their issuer cannot be reached."""

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
        ask: Fetch = fetch,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost` is told when a key does not count any more. Raises InterlockError for an
        issuer whose keys could never be found."""
        self.config = config
        self.issuer = config.issuer
        self.problem: str | None = None
        self._file = None if config.jwks_file is None else base_dir / Path(config.jwks_file)
        self._url = config.jwks_url
        self._clock = clock
        self._fetch = ask
        self._on_lost = on_lost
        self._keys: tuple[PublicKey, ...] = ()
        self._gone: dict[str, tuple[PublicKey, float]] = {}
        """Keys that are no longer shown, by thumbprint, and until when they count."""
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._asked_at: float | None = None
        """When they were last read because a token named one that was not there."""
        self._reading: asyncio.Task[None] | None = None
        self._check(config)

    # -- what is known now

    def find(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        """Those that may have made a signature. What is shown now comes before what was."""
        self._drop_old()
        found = fitting(self._keys, kid, algorithm)
        if kid is not None and found:
            return found
        return [*found, *fitting([one for one, _ in self._gone.values()], kid, algorithm)]

    def ask(self) -> PendingIdentity | None:
        """What to wait for, when the keys may be others by now."""
        asked = self._asked_at
        if self._reading is None and asked is not None and self._clock() - asked < PAUSE:
            return None
        return PendingIdentity(self._refresh_for_somebody)

    async def _refresh_for_somebody(self) -> None:
        try:
            await self.refresh()
        finally:
            self._asked_at = self._clock()

    @property
    def due(self) -> bool:
        """Whether it is time to read them again, though nobody asked."""
        if self._tried_at is None:
            return True
        waited = self._clock() - self._tried_at
        return waited >= (REFRESH if self.problem is None else RETRY)

    # -- reading them

    async def refresh(self) -> None:
        """Read the keys, unless that is under way already. Never raises."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._refresh(), name="keys")
        # Whoever waits may give up; the others still want them.
        await asyncio.shield(self._reading)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(WITHIN):
                found = read_keys(await self._document())
        except (SignInProblem, TimeoutError, OSError, ValueError) as error:
            why = (
                error.reason
                if isinstance(error, SignInProblem)
                else str(error) or "it took too long"
            )
            if self.problem is None:
                _log.warning("the keys of the issuer %s cannot be read: %s", self.issuer, why)
            self.problem = why
        except Exception:
            # Whoever waits for it must not wait for ever.
            _log.exception("the keys of the issuer %s could not be read", self.issuer)
            self.problem = "the node failed on them; see its log"
        else:
            if self.problem is not None:
                _log.info("the keys of the issuer %s can be read again", self.issuer)
            self.problem = None
            self._take(found)
        finally:
            self._tried_at = self._clock()
            self._reading = None

    def _take(self, found: tuple[PublicKey, ...]) -> None:
        now = self._clock()
        shown = {one.thumbprint for one in found}
        for one in self._keys:
            if one.thumbprint not in shown:
                self._gone[one.thumbprint] = (one, now + OVERLAP)
        for thumbprint in shown & set(self._gone):
            del self._gone[thumbprint]
        self._keys, self._read_at = found, now

    def _drop_old(self) -> None:
        now = self._clock()
        over = [thumbprint for thumbprint, (_, until) in self._gone.items() if now >= until]
        for thumbprint in over:
            del self._gone[thumbprint]
        stale = self._read_at is not None and now - self._read_at >= KEPT_WITHOUT_NEWS
        if stale and self._keys:
            self._keys = ()
            over.append("all")
        if over:
            self._on_lost()

    def sweep(self) -> None:
        """Let go of keys whose time is over, also when nobody asks for any."""
        self._drop_old()

    async def _document(self) -> bytes:
        if self._file is not None:
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(None, self._file.read_bytes)
        else:
            url = self._url or await self._published()
            if not is_secure(url, allow_loopback=self._url is not None or is_local(self.issuer)):
                raise ValueError("the address of its keys is not https")
            body = (await self._get(url)).body
        if len(body) > LONGEST:
            raise ValueError("its keys are more than anybody could need")
        return body

    async def _published(self) -> str:
        """Where the issuer itself says that its keys are."""
        trouble, mismatch = "it publishes no metadata", ""
        for address in server_metadata_urls(self.issuer):
            try:
                body = (await self._get(address)).body
                found = msgspec.json.decode(body, type=_Metadata)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
                trouble = str(error)
                continue
            if found.issuer == self.issuer:
                return found.jwks_uri
            mismatch = "its metadata are those of somebody else"
        raise ValueError(mismatch or trouble)

    async def _get(self, url: str) -> FetchResponse:
        answer = await self._fetch("GET", url, {})
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}")
        return answer

    def _check(self, config: IssuerConfig) -> None:
        named = config.jwks_url or config.issuer
        if self._file is not None:
            if config.jwks_url is not None:
                raise _unusable(config, "has both `jwks_url` and `jwks_file`: keep one")
            try:
                self._take(read_keys(self._file.read_bytes()))
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise _unusable(config, f"has a `jwks_file` that cannot be read: {why}") from None
            self._tried_at = self._clock()
        elif not is_secure(named):
            raise _unusable(
                config,
                "has keys that would come over plain http, or from nowhere: give an https "
                "`jwks_url`, or a `jwks_file`",
            )


def _unusable(config: IssuerConfig, why: str) -> InterlockError:
    return InterlockError(CONFIG, f"The issuer {config.issuer} of `identity.issuers` {why}.")
