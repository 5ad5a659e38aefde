"""Sessions of clients that speak the session wire: who they are, what they wait for.

Clients hardly ever say goodbye. A session is dropped when it has been quiet for long, and the
quietest one when there are too many.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict

from interlock.call import Call, Client
from interlock.errors import UNKNOWN_SESSION, InterlockError
from interlock.ports import Clock


class Session:
    """One client's session."""

    __slots__ = ("calls", "client", "id", "last_seen", "owner")

    def __init__(self, id: str, client: Client, owner: str, now: float) -> None:
        self.id = id
        self.client = client
        self.owner = owner
        """The caller it belongs to: another caller's request cannot use it."""
        self.last_seen = now
        self.calls: dict[bytes, Call] = {}
        """Its calls that are under way, by the client's own ids."""


class Sessions:
    """All sessions, the quietest first."""

    def __init__(self, *, most: int, idle: float, clock: Clock) -> None:
        self._most = most
        self._idle = idle
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def configure(self, *, most: int, idle: float) -> None:
        self._most = most
        self._idle = idle

    def open(self, client: Client, owner: str) -> Session:
        self._drop_quiet()
        session = Session(secrets.token_urlsafe(24), client, owner, self._clock())
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
        self._sessions.move_to_end(session.id)
        return session

    def close(self, session: Session) -> None:
        self._sessions.pop(session.id, None)

    def _drop_quiet(self) -> None:
        oldest_kept = self._clock() - self._idle
        for session in list(self._sessions.values()):
            if len(self._sessions) < self._most and session.last_seen >= oldest_kept:
                break
            if session.calls and len(self._sessions) < self._most:
                continue
            self.close(session)
