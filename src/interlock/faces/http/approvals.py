"""Approvals over HTTP: the page for people, and the same as JSON for approval services.

Whoever has the unguessable id of an approval may see that one, without secrets; the list is for
operators. Nobody is let decide by where a request comes from: only a proof decides, and this room
does not look into it. The one exception is refusing, which the node's own user may without.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.call import Call, Caller, Client, Credentials
from interlock.errors import (
    FORBIDDEN,
    FOREIGN_ORIGIN,
    INVALID_REQUEST,
    PROOF_INVALID,
    TOO_BUSY,
    UNKNOWN_APPROVAL,
    InterlockError,
)
from interlock.faces.http.answers import (
    App,
    EventStream,
    Receive,
    Scope,
    Send,
    Told,
    read_json,
    respond,
    respond_json,
)
from interlock.faces.http.approval_shown import Approvals, Desk, decided, listed, seen
from interlock.faces.http.guard import Guard, peer_name
from interlock.faces.http.pace import Pace
from interlock.faces.http.page import PAGE, SECURITY, page_files
from interlock.pipeline.approval.record import Approval
from interlock.pipeline.authenticate import LOCAL_PEER
from interlock.protocol.headers import bearer_of
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import LATEST_STATELESS, Era

BASE: Final = "/approvals"
LOCAL: Final = "interlock.local"
"""Set in the scope of what comes by the Unix socket of the node's own user."""

_log = logging.getLogger("interlock.faces.http")
_CLIENT: Final = Client(Era.STATELESS, LATEST_STATELESS)
_MOST_BODY: Final = 64 * 1024
_MOST_STREAMS: Final = 200
_PING: Final = 15.0
_TRIES: Final = 10
_TRIES_WITHIN: Final = 60.0
_TRIED_IN_VAIN: Final = (PROOF_INVALID, FORBIDDEN, UNKNOWN_APPROVAL)


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A proof; or, from the node's own user, a refusal without one."""

    proof: str | None = None
    refuse: bool = False
    reason: str = ""


class Answered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The signed answer of an operator who wants to see what waits."""

    nonce: str
    proof: str


class ApprovalsApp:
    """Everything under /approvals; all other paths are `otherwise`'s."""

    def __init__(
        self,
        *,
        approvals: Approvals,
        desk: Desk,
        guard: Guard,
        authenticate: Callable[[Credentials], Caller],
        refused: Callable[[Call, InterlockError], None],
        origins: Callable[[], Collection[str]],
        otherwise: App,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`desk`: where operators enrol and show who they are. `refused` records who was turned
        away. `origins`: where people reach the page, the best first."""
        self.guard = guard
        self._approvals = approvals
        self._desk = desk
        self._authenticate = authenticate
        self._refused = refused
        self._origins = origins
        self._otherwise = otherwise
        self._now = wall_clock
        self._pace = Pace(_TRIES, _TRIES_WITHIN, clock)
        self._files = page_files()
        self._streams: set[EventStream] = set()
        self._deciding: set[asyncio.Task[dict[str, Any]]] = set()
        self._closed = False

    def close(self) -> None:
        """Let those go who listen: the node stops."""
        self._closed = True
        for stream in self._streams:
            stream.wake()

    async def local(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The same for the node's own user, who came by a socket that nobody else can open."""
        await self({**scope, LOCAL: True}, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path != BASE and not path.startswith(f"{BASE}/"):
            await self._otherwise(scope, receive, send)
            return
        try:
            self._guarded(scope)
            await self._serve(scope, receive, send, path.removeprefix(BASE))
        except InterlockError as error:
            await self._say(send, error)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        name, _, more = path.removeprefix("/").partition("/")
        posted = scope["method"] == "POST"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            await self._json(send, 405, "method_not_allowed", "Use GET or POST.")
        elif name == "page":
            await self._file(scope, send, more)
        elif not posted and not more and name != "session" and _wants_page(scope):
            await self._page(scope, send, path)
        elif name == "enrol" and posted and not more:
            await self._enrol(scope, receive, send)
        elif name == "session" and not more:
            await self._session(scope, receive, send, posted)
        elif not name and not posted:
            await self._list(scope, send)
        elif name == "events" and not more and not posted:
            await self._follow_all(scope, receive, send)
        elif more == "events" and not posted:
            await self._follow(self._find(name), receive, send)
        elif more:
            await self._json(send, 404, "not_found", "There is nothing here.")
        elif posted:
            await self._decide(scope, receive, send, name)
        else:
            await respond_json(send, 200, self._seen(self._find(name)), SECURITY)

    # -- who may come

    def _guarded(self, scope: Scope) -> None:
        """Raises InterlockError for a request that another page, or another name, made."""
        if LOCAL in scope:
            return
        fields = dict(scope["headers"])
        host, origin = fields.get(b"host", b""), fields.get(b"origin")
        name = host.decode("latin-1").strip().lower()
        known = {urlsplit(one).netloc for one in self._origins()}
        refusal = None if name in known else self.guard.refusal(host, None)
        if origin is not None and not self._own(
            origin.decode("latin-1"), None if name in known else name
        ):
            refusal = "Pages of another origin may not decide."
        # Browsers say where a request comes from; one that a link or a bookmark made is fine.
        elif fields.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none") and (
            scope["method"] == "POST" or fields.get(b"sec-fetch-mode") != b"navigate"
        ):
            refusal = "Pages of another origin may not look."
        if refusal is not None:
            error = InterlockError(FOREIGN_ORIGIN, refusal)
            self._refused(self._call(scope), error)
            raise error

    def _own(self, origin: str, host: str | None) -> bool:
        """Whether it is a page of this node; `host`: one more name by which the page was asked
        for, where nobody said what its address is."""
        if origin in self._origins():
            return True
        return host is not None and origin.lower() in (f"http://{host}", f"https://{host}")

    async def _operator(self, scope: Scope) -> Caller:
        """Who may see all that waits. Raises InterlockError."""
        fields = dict(scope["headers"])
        session = fields.get(b"interlock-session")
        if session is not None:
            return Caller(self._desk.known(session.decode("latin-1")), approves=True)
        caller = await self._caller(scope)
        if LOCAL in scope or caller.approves:
            return caller
        error = InterlockError(
            FORBIDDEN,
            f"{caller.name} may not see what waits: `may: [approve]` lets a token, and on the "
            "node's machine `interlock approvals` shows it.",
        )
        self._refused(self._call(scope), error)
        raise error

    async def _caller(self, scope: Scope) -> Caller:
        call = self._call(scope)
        try:
            try:
                return self._authenticate(call.credentials)
            except InterlockError as error:
                settle = getattr(error, "settle", None)
                if settle is None:
                    raise
                await settle()
                return self._authenticate(call.credentials)
        except InterlockError as error:
            self._refused(call, error)
            raise

    @staticmethod
    def _call(scope: Scope) -> Call:
        fields = dict(scope["headers"])
        peer = LOCAL_PEER if LOCAL in scope else peer_name(scope.get("client"))
        credentials = Credentials(peer, bearer_of(fields.get(b"authorization")))
        return Call("approvals", "http", credentials, _CLIENT, name=scope["path"][:200])

    def _paced(self, key: str) -> None:
        wait = self._pace.wait(key)
        if wait > 0:
            raise InterlockError(
                TOO_BUSY,
                f"Too many attempts went wrong: try again in {math.ceil(wait)} s.",
                data={"retry_after_ms": math.ceil(wait * 1000)},
            )

    # -- what is shown

    def _find(self, id: str) -> Approval:
        approval = self._approvals.find(id)
        if approval is None:
            raise InterlockError(
                UNKNOWN_APPROVAL,
                "No approval with this id is known: it was decided long ago, or never was.",
            )
        return approval

    def _seen(self, approval: Approval) -> dict[str, Any]:
        return seen(approval, self._now())

    async def _list(self, scope: Scope, send: Send) -> None:
        await self._operator(scope)
        await respond_json(send, 200, listed(self._approvals, self._now()), SECURITY)

    async def _page(self, scope: Scope, send: Send, path: str) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        name, _, port = host.rpartition(":")
        if path == "":
            await respond(send, 307, b"", b"text/plain", [(b"location", b"approvals/"), *SECURITY])
        elif name in ("127.0.0.1", "[::1]") and host not in {
            urlsplit(one).netloc for one in self._origins()
        }:
            # Keys and passkeys belong to one name of the machine, and passkeys never to a number.
            where = f"{scope.get('scheme', 'http')}://localhost:{port}{BASE}{path}"
            fields = [(b"location", where.encode("latin-1", "replace")), *SECURITY]
            await respond(send, 307, b"", b"text/plain", fields)
        else:
            await self._file(scope, send, PAGE)

    async def _file(self, scope: Scope, send: Send, name: str) -> None:
        file = self._files.get(name)
        if file is None:
            await self._json(send, 404, "not_found", "There is nothing here.")
            return
        fields = [*SECURITY, (b"vary", b"accept-encoding, accept")]
        body = file.body
        if b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b""):
            body = file.packed
            fields.append((b"content-encoding", b"gzip"))
        await respond(send, 200, body, file.content_type, fields)

    # -- what changes

    async def _follow(self, approval: Approval, receive: Receive, send: Send) -> None:
        def tell() -> Told:
            now = self._approvals.find(approval.id)
            if now is None:
                return None, b"", True
            return now.state, encode_value(self._seen(now)), self._closed or now.over

        await self._stream("approval", tell, receive, send, only=approval.id)

    async def _follow_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._operator(scope)

        def tell() -> Told:
            waiting = listed(self._approvals, self._now())
            ids = tuple(one["id"] for one in waiting["approvals"])
            return ids, encode_value(waiting), self._closed

        await self._stream("approvals", tell, receive, send)

    async def _stream(
        self,
        event: str,
        tell: Callable[[], Told],
        receive: Receive,
        send: Send,
        only: str | None = None,
    ) -> None:
        if len(self._streams) >= _MOST_STREAMS:
            raise InterlockError(TOO_BUSY, "Too many listen already; try again later.")
        stream = EventStream(receive, send)
        self._streams.add(stream)

        def changed(approval: Approval) -> None:
            if only is None or approval.id == only:
                stream.wake()

        stop = self._approvals.watch(changed)
        try:
            await stream.run(event, tell, fields=SECURITY, ping=_PING)
        finally:
            stop()
            self._streams.discard(stream)

    # -- what people do

    async def _decide(self, scope: Scope, receive: Receive, send: Send, id: str) -> None:
        decision = await read_json(scope, receive, Decision, _MOST_BODY)
        # One that is not known here may be known to a node below; nobody may try them all.
        key = id if self._approvals.find(id) else f"unknown {peer_name(scope.get('client'))}"
        self._paced(key)
        try:
            if decision.proof is not None:
                self._desk.look_again()
                # Who carries a proof does not matter: a caller may bring one that a human made.
                deciding = decided(self._approvals, id, decision.proof, self._now)
            elif decision.refuse:
                who = await self._operator(scope)
                deciding = self._refuse(id, decision.reason, who, local=LOCAL in scope)
            else:
                raise InterlockError(INVALID_REQUEST, "Send a `proof`.")
            # It goes on when the one who confirms hangs up: nobody may confirm it again.
            task = asyncio.ensure_future(deciding)
            self._deciding.add(task)
            task.add_done_callback(self._deciding.discard)
            answer = await asyncio.shield(task)
        except InterlockError as error:
            if error.failure in _TRIED_IN_VAIN:
                self._pace.failed(key)
            raise
        await respond_json(send, 200, answer, SECURITY)

    async def _refuse(self, id: str, reason: str, who: Caller, *, local: bool) -> dict[str, Any]:
        return self._seen(
            await self._approvals.refuse(id, reason=reason, presented_by=who, local=local)
        )

    async def _enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = peer_name(scope.get("client"))
        self._paced(f"enrol {peer}")
        asked = await read_json(scope, receive, msgspec.Raw, _MOST_BODY)
        try:
            name = self._desk.enrol(bytes(asked))
        except InterlockError as error:
            if error.failure in _TRIED_IN_VAIN:
                self._pace.failed(f"enrol {peer}")
            raise
        await respond_json(send, 200, {"name": name}, SECURITY)

    async def _session(self, scope: Scope, receive: Receive, send: Send, posted: bool) -> None:
        if not posted:
            question = {**self._desk.question(), "now": self._now()}
            await respond_json(send, 200, question, SECURITY)
            return
        peer = peer_name(scope.get("client"))
        self._paced(f"session {peer}")
        answer = await read_json(scope, receive, Answered, _MOST_BODY)
        try:
            session = self._desk.admit(answer.nonce, answer.proof)
        except InterlockError:
            self._pace.failed(f"session {peer}")
            raise
        await respond_json(send, 200, {"session": session}, SECURITY)

    # -- what is said

    async def _say(self, send: Send, error: InterlockError) -> None:
        status = error.failure.http if error.failure.http >= 400 else 502
        fields = list(SECURITY)
        retry = (error.data or {}).get("retry_after_ms")
        if isinstance(retry, int):
            status = 429
            fields.append((b"retry-after", str(math.ceil(retry / 1000)).encode()))
        if status == 401:
            fields.append((b"www-authenticate", b"Bearer"))
        body = {"error": error.failure.name, "message": error.message}
        await respond_json(send, status, body, fields)

    @staticmethod
    async def _json(send: Send, status: int, word: str, message: str) -> None:
        await respond_json(send, status, {"error": word, "message": message}, SECURITY)


def _wants_page(scope: Scope) -> bool:
    return b"text/html" in dict(scope["headers"]).get(b"accept", b"")
