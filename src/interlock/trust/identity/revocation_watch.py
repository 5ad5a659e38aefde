"""Watches the access store: applies revocations soon after they are written, reports the callers
whose tokens no longer count, and stores when tokens were last used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.core.call import RevokedCallers
from interlock.core.pipeline.authentication import KnownToken
from interlock.errors import InterlockError
from interlock.primitives.bounded_dict import BoundedDict
from interlock.trust.identity.api_tokens import AccessSnapshot, ApiTokens
from interlock.trust.identity.token_store import AccessReader, AccessStore

MIN_INTERVAL_SECONDS: Final = 0.05
MAX_TOKENS_PER_CALLER: Final = 256
"""The maximum number of active tokens that are tracked for one caller."""
STORE_USES_SECONDS: Final = 60.0
"""The interval at which the last uses of tokens are stored."""

_log = logging.getLogger("interlock.node")

NamesCallback = Callable[[frozenset[str]], None]
"""Takes the names of callers."""


RevokedCallback = Callable[[RevokedCallers], None]
"""Takes the callers whose tokens were revoked."""


class AccessWatch:
    """Keeps `ApiTokens` up to date with the store, and tracks which tokens admitted callers."""

    def __init__(
        self,
        path: Path,
        tokens: ApiTokens,
        *,
        seconds: float,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        clear_cache: Callable[[], None],
        on_revoked: RevokedCallback,
        on_expired: NamesCallback,
        on_check: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        seconds: a revocation counts within this time.
        clear_cache: removes cached results of tokens, because some may be revoked.
        on_revoked: called with callers whose tokens were revoked.
        on_expired: called with callers whose tokens have expired.
        on_check: called at every check.

        Raises InterlockError for an unreadable store: its revocations must not be lost.
        """
        self.seconds = seconds
        self.problem: str | None = None
        self.on_change: Callable[[str, str], None] = lambda *_: None
        """Takes a change for the journal: a token or subject, and the event."""
        self._tokens = tokens
        self._store = AccessStore(path, clock=wall_clock)
        self._reader = AccessReader(path)
        self._clock = wall_clock
        self._call_later = call_later
        self._clear_cache = clear_cache
        self._on_revoked = on_revoked
        self._on_expired = on_expired
        self._on_check = on_check
        self._timer: Any = None
        self._active: dict[str, dict[str, float | None]] = {}
        """The tokens that admitted callers, by caller and id, and when each ends."""
        self._stored_at = wall_clock()
        self._storing: asyncio.Future[None] | None = None
        tokens.access = self._reader.read_changes() or AccessSnapshot()

    # -- Start and stop

    def start(self) -> None:
        if self._timer is None:
            interval = max(MIN_INTERVAL_SECONDS, self.seconds / 2)
            self._timer = self._call_later(interval, self._on_timer)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._storing is not None:
            await asyncio.wait([self._storing])
        self._store_uses()
        if self._storing is not None:
            await asyncio.wait([self._storing])
        self._reader.close()

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.check()
        except Exception:
            # The checks must go on, or no revocation would count any more.
            _log.exception("access store: the check failed")
        self.start()

    # -- Active callers

    def record_login(self, login: KnownToken) -> None:
        """Record that a token admitted a caller."""
        ids = self._active.get(login.caller.name)
        if ids is None:
            ids = self._active[login.caller.name] = BoundedDict(MAX_TOKENS_PER_CALLER)
        ids[login.caller.id] = login.expires_at

    def is_active(self, name: str) -> bool:
        """Return whether a caller may still be connected by a valid token."""
        now = self._clock()
        expires_at = self._active.get(name, {}).values()
        return any(end is None or now < end for end in expires_at)

    def retain_only(self, names: Iterable[str] = ()) -> None:
        """Remove the logins of all other callers, after a change of the config: they log in
        again."""
        self._active = {name: self._active[name] for name in names if name in self._active}

    # -- Checks

    def check(self) -> None:
        """Read the store now, and apply its changes."""
        try:
            snapshot = self._reader.read_changes()
        except InterlockError as error:
            if self.problem is None:
                _log.error(
                    "access store: %s New revocations have no effect until then.", error.message
                )
            self.problem = error.message
        else:
            self.problem = None
            if snapshot is not None:
                self._use(snapshot)
        self._remove_expired()
        self._on_check()
        if self._clock() - self._stored_at >= STORE_USES_SECONDS:
            self._store_uses()

    def _use(self, snapshot: AccessSnapshot) -> None:
        before, self._tokens.access = self._tokens.access, snapshot
        if _without_uses(before) == _without_uses(snapshot):
            return
        self._clear_cache()
        for subject, event in _find_changes(before, snapshot).items():
            self.on_change(subject, event)
        revoked = self._find_revoked(before, snapshot)
        for name in revoked:
            active = self._active.get(name, {})
            for id in revoked.token_ids & active.keys():
                del active[id]
            if name in revoked.without_tokens or not active:
                self._active.pop(name, None)
        if revoked:
            _log.info("access store: tokens of %s revoked", ", ".join(sorted(revoked)))
            self._on_revoked(revoked)

    def _find_revoked(self, before: AccessSnapshot, after: AccessSnapshot) -> RevokedCallers:
        names, ids = set(), set()
        for id, token in before.tokens.items():
            current = after.tokens.get(id)
            if token.revoked is None and (current is None or current.revoked is not None):
                names.add(token.name)
                ids.add(id)
        # The revocation of a subject covers all tokens that it has.
        without_tokens = {
            name
            for name, revoked_at in after.subjects.items()
            if before.subjects.get(name) != revoked_at
        }
        new_jtis = after.jtis - before.jtis
        names |= {name for name, active in self._active.items() if new_jtis.intersection(active)}
        ids |= new_jtis
        good = after.good_names(self._clock())
        for name in names:
            if name not in good and not self._active.get(name, {}).keys() - ids:
                without_tokens.add(name)
        revoked = RevokedCallers(names | without_tokens)
        revoked.token_ids, revoked.without_tokens = frozenset(ids), frozenset(without_tokens)
        return revoked

    def _remove_expired(self) -> None:
        now = self._clock()
        expired = set()
        for name, ids in list(self._active.items()):
            expired_ids = [id for id, end in ids.items() if end is not None and now >= end]
            for id in expired_ids:
                del ids[id]
            if not ids:
                del self._active[name]
                expired.add(name)
        if expired:
            self._on_expired(frozenset(expired))

    # -- Last uses

    def _store_uses(self) -> None:
        """Store which tokens were used, off the event loop, because a disk may be slow."""
        self._stored_at = self._clock()
        uses, self._tokens.last_uses = self._tokens.last_uses, {}
        if uses and (self._storing is None or self._storing.done()):
            loop = asyncio.get_running_loop()
            self._storing = loop.run_in_executor(None, self._write_uses, uses)

    def _write_uses(self, uses: dict[str, float]) -> None:
        try:
            self._store.record_uses(uses)
        except InterlockError as error:
            # The last use is for information only; nothing depends on it.
            _log.warning("access store: last uses of tokens not stored: %s", error.message)


def _without_uses(access: AccessSnapshot) -> AccessSnapshot:
    """Return a snapshot without the last uses, which nodes write themselves."""
    tokens = {
        id: msgspec.structs.replace(token, last_used=None) for id, token in access.tokens.items()
    }
    return msgspec.structs.replace(access, tokens=tokens)


def _find_changes(before: AccessSnapshot, after: AccessSnapshot) -> dict[str, str]:
    """Return the changed tokens and subjects, each with an event name for the journal."""
    changes = {}
    for id in before.tokens.keys() | after.tokens.keys():
        old, new = before.tokens.get(id), after.tokens.get(id)
        if new is None and old is not None:
            changes[f"{old.name} ({id})"] = "forgotten"
        elif new is not None and old is None:
            changes[f"{new.name} ({id})"] = "made"
        elif new is not None and old is not None and new.revoked != old.revoked:
            changes[f"{new.name} ({id})"] = "revoked"
    for name in after.subjects:
        if after.subjects[name] != before.subjects.get(name):
            changes[name] = "revoked"
    for jti in after.jtis - before.jtis:
        changes[jti] = "revoked"
    return changes
