"""Reaching the codes of a node: by the socket of its own user or over HTTP, after signing in."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.cli import operator_key
from interlock.cli.inbox import BASE, Inbox, _told
from interlock.cli.running import Meant
from interlock.errors import UNKNOWN_APPROVAL, UPSTREAM_UNAVAILABLE, InterlockError

_WITHIN: Final = 15.0
_CODES: Final = f"{BASE}/codes"


class Challenge(msgspec.Struct, frozen=True):
    """One code, and who waits for it."""

    id: str
    caller: str
    element_name: str
    tier: str
    hint: str
    seconds_left: float
    approval: str = ""
    above: str = ""
    code: str | None = None

    def __repr__(self) -> str:
        return f"Challenge({self.id})"


class Blocked(msgspec.Struct, frozen=True):
    """Somebody who may do nothing."""

    caller: str
    element_name: str
    hint: str
    reason: str
    since: str
    challenge: str = ""
    above: str = ""


class Execution(msgspec.Struct, frozen=True):
    """An agent at work, whose calls are watched."""

    id: str
    caller: str
    element_name: str
    since: str
    steps: int
    violations: int
    last_step: str = ""
    above: str = ""
    state: str = ""


class Shown(msgspec.Struct, frozen=True):
    """What one node shows."""

    mode: str
    challenges: list[Challenge]
    blocks: list[Blocked]
    executions: list[Execution] = []


class _Question(msgspec.Struct, frozen=True):
    nonce: str
    aud: str
    now: float


class CodeDesk(Inbox):
    """The nodes that are meant, each after signing in there."""

    def __init__(self, meant: Meant, key: Any) -> None:
        super().__init__(meant)
        self.key = key
        self._sessions: dict[Path | None, str] = {}

    def shown(self) -> list[tuple[Path | None, Shown]]:
        """Of every node that has a safety loop. Raises InterlockError."""
        found = []
        for way in self._ways():
            try:
                body = self._signed_in(way, "GET", _CODES)
            except InterlockError as error:
                if error.failure is not UNKNOWN_APPROVAL:
                    raise
                continue
            found.append((way, msgspec.json.decode(body, type=Shown)))
        return found

    def another(self, sent: dict[str, str]) -> Challenge:
        """Another challenge, of whichever node knows what it is about. Raises InterlockError."""
        return msgspec.json.decode(self._answered(sent), type=Challenge)

    def end(self, id: str) -> Execution:
        """End an execution. Raises InterlockError."""
        return msgspec.json.decode(self._answered({"end": id}), type=Execution)

    def _answered(self, sent: dict[str, str]) -> bytes:
        unknown: InterlockError | None = None
        for way in self._ways():
            try:
                return self._signed_in(way, "POST", _CODES, sent)
            except InterlockError as error:
                if error.failure is not UNKNOWN_APPROVAL:
                    raise
                unknown = error
        assert unknown is not None
        raise unknown

    def _signed_in(self, way: Path | None, method: str, path: str, sent: Any = None) -> bytes:
        session = self._sessions.get(way)
        if session is None:
            session = self._sessions[way] = self._session(way)
        return self._fetched(way, method, path, sent, {"Interlock-Session": session})

    def _session(self, way: Path | None) -> str:
        question = msgspec.json.decode(self._fetched(way, "GET", f"{BASE}/session"), type=_Question)
        claims = {
            "aud": question.aud,
            "jti": "inbox",
            "args_sha256": question.nonce,
            "decision": "approve",
        }
        proof = operator_key.sign(self.key, now=question.now, claims=claims)
        body = self._fetched(
            way, "POST", f"{BASE}/session", {"nonce": question.nonce, "proof": proof}
        )
        session: str = msgspec.json.decode(body)["session"]
        return session

    def _fetched(
        self,
        way: Path | None,
        method: str,
        path: str,
        sent: Any = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        connection = self._connection(way, _WITHIN)
        try:
            body = None if sent is None else msgspec.json.encode(sent)
            said = {"Accept": "application/json", **(headers or {})}
            if body is not None:
                said["Content-Type"] = "application/json"
            connection.request(method, path, body, said)
            answer = connection.getresponse()
            got = answer.read()
        except (OSError, http.client.HTTPException):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, "the node went away while it was asked."
            ) from None
        finally:
            connection.close()
        if answer.status != 200:
            raise _told(got, answer.status)
        return got
