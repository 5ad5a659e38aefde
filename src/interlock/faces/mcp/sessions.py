"""Sessions of clients that speak the session wire: who they are, what they wait for.

Clients hardly ever say goodbye. A session is dropped when it has been quiet for long, and the
quietest one when there are too many.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from heapq import nsmallest
from typing import Final

from interlock.call import Call, Client
from interlock.errors import UNKNOWN_SESSION, InterlockError
from interlock.ports import Clock

_SWEEP: Final = 60.0
"""How often quiet sessions are looked for."""


class Session:
    """One client's session."""

    __slots__ = ("alive", "calls", "client", "id", "last_seen", "owner", "streams")

    def __init__(self, id: str, client: Client, owner: str, now: float) -> None:
        self.id = id
        self.client = client
        self.owner = owner
        """The caller it belongs to: another caller's request cannot use it."""
        self.last_seen = now
        self.alive = True
        self.calls: dict[bytes, Call] = {}
        """Its calls that are under way, by the client's own ids."""
        self.streams = 0
        """How many streams it listens on."""

    @property
    def in_use(self) -> bool:
        """Whether somebody is on the other side, however quiet."""
        return bool(self.calls or self.streams)


class Sessions:
    """All sessions."""

    def __init__(self, *, most: int, idle: float, clock: Clock) -> None:
        self._most = most
        self._idle = idle
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._next_sweep = 0.0
        self.on_closed: Callable[[Session], None] | None = None
        """Told when a session is over, whoever ended it."""

    def __len__(self) -> int:
        return len(self._sessions)

    def configure(self, *, most: int, idle: float) -> None:
        self._most = most
        self._idle = idle

    def open(self, client: Client, owner: str) -> Session:
        now = self._clock()
        self._drop_quiet(now)
        session = Session(secrets.token_urlsafe(24), client, owner, now)
        self._sessions[session.id] = session
        return session

    def find(self, id: str) -> Session:
        """The session with this id. Raises InterlockError when there is none."""
        session = self._sessions.get(id)
        if session is None:
            raise InterlockError(
                UNKNOWN_SESSION,
                "This session has ended or never was: send `initialize` to start a new one.",
            )
        session.last_seen = self._clock()
        return session

    def close(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            session.alive = False
            if self.on_closed is not None:
                self.on_closed(session)

    def _drop_quiet(self, now: float) -> None:
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP
            for session in list(self._sessions.values()):
                if session.in_use:
                    session.last_seen = now
                elif session.last_seen < now - self._idle:
                    self.close(session)
        if len(self._sessions) >= self._most:
            # A few at a time, so that the next newcomer need not search again.
            few = max(1, self._most // 100)
            for session in nsmallest(few, self._sessions.values(), key=_worth):
                self.close(session)


def _worth(session: Session) -> tuple[bool, float]:
    return session.in_use, session.last_seen
