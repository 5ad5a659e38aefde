"""Codes over HTTP: for an operator who signed in with a key or a passkey, and for nobody else. Not
even for the node's own user by the local socket: a model may run as that user.

It is the app of the approvals, with one more path.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from interlock.errors import FORBIDDEN, INVALID_REQUEST, InterlockError
from interlock.faces.http.answers import Receive, Scope, Send, read_json, respond_json
from interlock.faces.http.approvals import ApprovalsApp
from interlock.faces.http.page import SECURITY

CODES: Final = "codes"
_MOST_BODY: Final = 4 * 1024


class Verification(Protocol):
    """The safety loop from the operator's side."""

    def shown(self) -> dict[str, Any]: ...

    async def renew(self, id: str, by: str) -> dict[str, Any]:
        """Raises InterlockError."""
        ...

    async def ask_again(self, name: str, by: str) -> dict[str, Any]:
        """Raises InterlockError."""
        ...

    async def end(self, id: str, by: str) -> dict[str, Any]:
        """Raises InterlockError."""
        ...


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another challenge: in place of one whose code is lost, or for somebody who is blocked. Or the
    end of an execution."""

    renew: str = ""
    blocked: str = ""
    end: str = ""


class VerificationApp(ApprovalsApp):
    """Everything under /approvals, and the codes under /approvals/codes."""

    verification: Verification | None = None
    """Set by the node. None: there is no safety loop, and no such path."""

    async def _serve(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        wanted = self.verification
        asks = scope["method"] in ("GET", "POST")
        if wanted is None or path != f"/{CODES}" or not asks or _is_page(scope):
            await super()._serve(scope, receive, send, path)
            return
        operator = await self._tried(scope, CODES, self._signed_in(scope))
        if scope["method"] == "GET":
            await respond_json(send, 200, wanted.shown(), SECURITY)
            return
        asked = await read_json(scope, receive, Wanted, _MOST_BODY)
        if sum(map(bool, (asked.renew, asked.blocked, asked.end))) != 1:
            raise InterlockError(INVALID_REQUEST, "Send one of `renew`, `blocked` and `end`.")
        if asked.renew:
            told = await wanted.renew(asked.renew, operator)
        elif asked.blocked:
            told = await wanted.ask_again(asked.blocked, operator)
        else:
            told = await wanted.end(asked.end, operator)
        await respond_json(send, 200, told, SECURITY)

    async def _signed_in(self, scope: Scope) -> str:
        """The operator whose session it is. Raises InterlockError."""
        session = dict(scope["headers"]).get(b"interlock-session")
        if session is not None:
            return self._desk.known(session.decode("latin-1"))
        error = InterlockError(
            FORBIDDEN, "Codes are shown to operators who signed in: run `interlock operator`."
        )
        self._refused(self._call(scope), error)
        raise error


def _is_page(scope: Scope) -> bool:
    return scope["method"] == "GET" and b"text/html" in dict(scope["headers"]).get(b"accept", b"")
