"""Sees to it that what was revoked is refused everywhere, soon: looks at the access store again and
again, tells whose tokens do not count any more, and writes down when tokens were last used."""

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

SHORTEST: Final = 0.05
MOST_IDS: Final = 256
"""How many tokens of one caller are told apart."""
WRITE_USES: Final = 60.0
"""How often it is written down which tokens were used."""

_log = logging.getLogger("interlock.node")

Told = Callable[[frozenset[str]], None]
"""Takes the names of callers."""


ToldRevoked = Callable[[RevokedCallers], None]
"""Takes the callers whose tokens were revoked."""


class AccessWatch:
    """Keeps `ApiTokens` as the store is, and knows who was let in by what."""

    def __init__(
        self,
        path: Path,
        tokens: ApiTokens,
        *,
        seconds: float,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        changed: Callable[[], None],
        on_revoked: ToldRevoked,
        on_expired: Told,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """A revocation counts within `seconds`. `changed`: what is known by digest must be looked
        at anew. `also` is done at every look. Raises InterlockError for a store that cannot be
        read: what was revoked in it would count again."""
        self.seconds = seconds
        self.problem: str | None = None
        self.on_change: Callable[[str, str], None] = lambda *_: None
        """Hears which token or subject was made, revoked or forgotten, for the record."""
        self._tokens = tokens
        self._store = AccessStore(path, clock=wall_clock)
        self._reader = AccessReader(path)
        self._clock = wall_clock
        self._call_later = call_later
        self._changed = changed
        self._on_revoked = on_revoked
        self._on_expired = on_expired
        self._also = also
        self._timer: Any = None
        self._seen: dict[str, dict[str, float | None]] = {}
        """By the name of a caller: its tokens by id, and when each is over."""
        self._written_at = wall_clock()
        self._writing: asyncio.Future[None] | None = None
        tokens.access = self._reader.changed() or AccessSnapshot()

    # -- life

    def start(self) -> None:
        if self._timer is None:
            self._timer = self._call_later(max(SHORTEST, self.seconds / 2), self._tick)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._write_uses()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._reader.close()

    def _tick(self) -> None:
        self._timer = None
        try:
            self.look()
        except Exception:
            # Whatever it is: nothing would be revoked any more if this stopped.
            _log.exception("the access store could not be looked at")
        self.start()

    # -- who is there

    def record_login(self, known: KnownToken) -> None:
        """Somebody was let in by a token."""
        ids = self._seen.get(known.caller.name)
        if ids is None:
            ids = self._seen[known.caller.name] = BoundedDict(MOST_IDS)
        ids[known.caller.id] = known.expires_at

    def is_active(self, name: str) -> bool:
        """Whether a caller of this name may still be there by a token that counts."""
        now = self._clock()
        ends = self._seen.get(name, {}).values()
        return any(one is None or now < one for one in ends)

    def forget(self, kept: Iterable[str] = ()) -> None:
        """The config is another one: whoever was let in has to be let in again."""
        self._seen = {name: self._seen[name] for name in kept if name in self._seen}

    # -- looking

    def look(self) -> None:
        """Look once, now."""
        try:
            found = self._reader.changed()
        except InterlockError as error:
            if self.problem is None:
                _log.error("%s Until then nothing more is revoked.", error.message)
            self.problem = error.message
        else:
            self.problem = None
            if found is not None:
                self._swap(found)
        self._drop_expired()
        self._also()
        if self._clock() - self._written_at >= WRITE_USES:
            self._write_uses()

    def _swap(self, found: AccessSnapshot) -> None:
        before, self._tokens.access = self._tokens.access, found
        if _essence(before) == _essence(found):
            return
        self._changed()
        for id, word in _changes(before, found).items():
            self.on_change(id, word)
        revoked = self._revoked(before, found)
        for name in revoked:
            left = self._seen.get(name, {})
            for id in revoked.token_ids & left.keys():
                del left[id]
            if name in revoked.without_tokens or not left:
                self._seen.pop(name, None)
        if revoked:
            _log.info("revoked: %s", ", ".join(sorted(revoked)))
            self._on_revoked(revoked)

    def _revoked(self, before: AccessSnapshot, found: AccessSnapshot) -> RevokedCallers:
        names, ids = set(), set()
        for id, token in before.tokens.items():
            now = found.tokens.get(id)
            if token.revoked is None and (now is None or now.revoked is not None):
                names.add(token.name)
                ids.add(id)
        # What is revoked of a subject is about all that it was given.
        wholly = {
            name for name, since in found.subjects.items() if before.subjects.get(name) != since
        }
        fresh = found.jtis - before.jtis
        names |= {name for name, seen in self._seen.items() if fresh.intersection(seen)}
        ids |= fresh
        good = found.good_names(self._clock())
        for name in names:
            if name not in good and not self._seen.get(name, {}).keys() - ids:
                wholly.add(name)
        revoked = RevokedCallers(names | wholly)
        revoked.token_ids, revoked.without_tokens = frozenset(ids), frozenset(wholly)
        return revoked

    def _drop_expired(self) -> None:
        now = self._clock()
        expired = set()
        for name, ids in list(self._seen.items()):
            over = [id for id, ends in ids.items() if ends is not None and now >= ends]
            for id in over:
                del ids[id]
            if not ids:
                del self._seen[name]
                expired.add(name)
        if expired:
            self._on_expired(frozenset(expired))

    # -- what was used

    def _write_uses(self) -> None:
        """Write down which tokens were used, beside the loop: a disk may be slow."""
        self._written_at = self._clock()
        used, self._tokens.used = self._tokens.used, {}
        if used and (self._writing is None or self._writing.done()):
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(None, self._write, used)

    def _write(self, used: dict[str, float]) -> None:
        try:
            self._store.used(used)
        except InterlockError as error:
            # It is worth knowing, but nothing depends on it.
            _log.warning("the last use of tokens could not be written down: %s", error.message)


def _essence(access: AccessSnapshot) -> AccessSnapshot:
    """Without what a node itself writes, which changes nothing for anybody."""
    tokens = {id: msgspec.structs.replace(one, last_used=None) for id, one in access.tokens.items()}
    return msgspec.structs.replace(access, tokens=tokens)


def _changes(before: AccessSnapshot, found: AccessSnapshot) -> dict[str, str]:
    """What somebody did to the store: the name and id of each token or subject, and a word."""
    changes = {}
    for id in before.tokens.keys() | found.tokens.keys():
        was, now = before.tokens.get(id), found.tokens.get(id)
        if now is None and was is not None:
            changes[f"{was.name} ({id})"] = "forgotten"
        elif now is not None and was is None:
            changes[f"{now.name} ({id})"] = "made"
        elif now is not None and was is not None and now.revoked != was.revoked:
            changes[f"{now.name} ({id})"] = "revoked"
    for name in found.subjects:
        if found.subjects[name] != before.subjects.get(name):
            changes[name] = "revoked"
    for jti in found.jtis - before.jtis:
        changes[jti] = "revoked"
    return changes
