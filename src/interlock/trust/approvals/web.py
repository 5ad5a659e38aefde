"""Approvals over HTTP: the page for people, and the same as JSON for approval services.

Whoever has the unguessable id of an approval may see that one. The list and the values of masked
arguments are for operators. Only a proof decides, wherever the request comes from, and the proof is
not checked here. The one exception is refusing, which the node's own user may without.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import uvicorn
from msgspec import Raw
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from interlock.core.call import Call, Caller, Credentials, Outcome
from interlock.core.pipeline.authentication import LOCAL_PEER
from interlock.core.redaction import MASK
from interlock.core.server.http.asgi import (
    JSON,
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
from interlock.core.server.http.guard import Guard, peer_name
from interlock.core.server.http.plain_requests import call_of, caller_of, words
from interlock.errors import (
    ALREADY_DECIDED,
    FORBIDDEN,
    FOREIGN_ORIGIN,
    INVALID_REQUEST,
    MASKED_ARGUMENTS,
    PROOF_INVALID,
    TOO_BUSY,
    UNKNOWN_APPROVAL,
    InterlockError,
)
from interlock.primitives.rate_limits import KeyedWindows
from interlock.protocol.jsonrpc import encode_value
from interlock.trust.approvals.page import PAGE, SECURITY, page_files
from interlock.trust.approvals.record import NOT_SHOWN, REFUSED, Approval, view

# -- An approval as people and approval services see it, and what this face asks of the node.
#
# Numbers stand as they came: the page shows text that the node wrote, since a browser that parsed
# the arguments could round them.

PASSED_ON: Final = "passed_on"
_MOST_LISTED: Final = 1_000
"""Bytes of arguments, and characters of a description, that a list shows of one approval."""
_MOST_TEXT: Final = 80
"""Characters of one text in arguments that are cut."""
_UNDECIDED: Final = (ALREADY_DECIDED, MASKED_ARGUMENTS, PROOF_INVALID, UNKNOWN_APPROVAL)
"""What is wrong with a proof. Other errors may be what the call itself came to."""


class ApprovalsBackend(Protocol):
    """What the node knows of approvals."""

    def pending(self) -> Sequence[Approval]: ...

    def pending_below(self) -> Sequence[Approval]: ...

    def find(self, id: str) -> Approval | None: ...

    async def confirm(
        self, id: str, proof: str, presented_by: Caller | None, *, accept_masked: bool
    ) -> Outcome:
        """Raises InterlockError: the proof was no good, or what the call came to."""
        ...

    def reveal(self, id: str, to: str) -> Approval:
        """Raises InterlockError."""
        ...

    async def refuse(
        self,
        id: str,
        *,
        proof: str | None = None,
        reason: str = "",
        presented_by: Caller | None = None,
        local: bool = False,
    ) -> Approval: ...

    def watch(
        self,
        callback: Callable[[Approval], None],
        states: Collection[str] = ...,
        ids: Container[str] | None = None,
    ) -> Callable[[], None]: ...


class OperatorService(Protocol):
    """Where operators enrol, and show who they are."""

    def question(self) -> dict[str, str]:
        """What an operator signs to be let in: `nonce` and `aud`."""
        ...

    async def admit(self, nonce: str, proof: str) -> str:
        """A session for whoever answered. Raises InterlockError."""
        ...

    def known(self, session: str) -> str:
        """Whose session it is. Raises InterlockError."""
        ...

    def left(self, session: str) -> float:
        """For how many seconds a session is still good."""
        ...

    async def enrol(self, asked: bytes) -> dict[str, str]:
        """Enrol what a browser sent with a code; returns the operator's `name`, and the id under
        which the enrolment is `pending` where an operator has to confirm it. Raises
        InterlockError."""
        ...

    async def enrolments(self) -> dict[str, Any]:
        """Who the operators are, and what of enrolments is pending. Raises InterlockError."""
        ...

    async def admit_enrolment(self, id: str, entry: str, proof: str) -> str:
        """Enrol what is pending; returns the operator's name. Raises InterlockError."""
        ...

    async def refuse_enrolment(self, id: str) -> None:
        """Raises InterlockError."""
        ...


def seen(
    approval: Approval, now: float, outcome: Outcome | None = None, *, revealed: bool = False
) -> dict[str, Any]:
    """One approval. `outcome`: what its call came to, for the one who confirmed it. `revealed`:
    whether it has the real values of what is masked otherwise."""
    shown = view(approval)
    kept = approval.shown != NOT_SHOWN
    shown |= {
        "arguments_text": msgspec.json.format(approval.shown, indent=2).decode() if kept else "",
        **_times(approval, now),
        "revealed": revealed,
        "contract": approval.contract,
        "policy": approval.policy,
    }
    if approval.meta_shown:
        shown["meta_text"] = msgspec.json.format(approval.meta_shown, indent=2).decode()
    if outcome is not None:
        shown["result"] = Raw(outcome.result)
        shown["result_text"] = msgspec.json.format(bytes(outcome.result), indent=2).decode()
    return shown


def _times(approval: Approval, now: float) -> dict[str, Any]:
    return {
        "mask": MASK,
        "now": now,
        "created": approval.created,
        "expires": approval.expires,
        "decided": approval.decided,
        "seconds_left": max(0.0, approval.expires - now) if approval.waits else 0.0,
        "seconds_whole": approval.expires - approval.created,
    }


def summed_up(approval: Approval, now: float) -> dict[str, Any]:
    """One of many: long arguments are cut, as `arguments_cut` says. Nobody decides by this."""
    long = len(approval.shown) + len(approval.meta_shown)
    if long <= _MOST_LISTED and len(approval.description) <= _MOST_LISTED:
        return {**seen(approval, now), "arguments_cut": False}
    cut = long > _MOST_LISTED
    brief = msgspec.structs.replace(
        approval,
        shown=NOT_SHOWN if cut else approval.shown,
        meta_shown=b"" if cut else approval.meta_shown,
        description=approval.description[:_MOST_LISTED],
    )
    shown = {**seen(brief, now), "arguments_cut": cut}
    if cut:
        shown["arguments_text"] = _shortened(approval.shown)
    return shown


def _shortened(arguments: bytes) -> str:
    """The beginning of long arguments: as JSON with the beginning of each long text, so that a
    short path behind a long content is in it; where that is too long as well, just the beginning.
    """
    # Not msgspec: it makes a float of a very large number.
    text = json.dumps(_with_short_texts(json.loads(arguments)), ensure_ascii=False)
    if len(text) <= _MOST_LISTED:
        return text
    return f"{arguments[:_MOST_LISTED].decode('utf-8', 'ignore')}…"


def _with_short_texts(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _MOST_TEXT else f"{value[:_MOST_TEXT]}…"
    if isinstance(value, dict):
        return {name: _with_short_texts(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_short_texts(one) for one in value]
    return value


def waiting(approvals: ApprovalsBackend) -> list[Approval]:
    """All that wait, here and as far as is known below, the oldest first."""
    found = [*approvals.pending(), *approvals.pending_below()]
    return sorted(found, key=lambda one: one.created)


def listed(found: Sequence[Approval], now: float) -> dict[str, Any]:
    """The same as people see them."""
    return {"approvals": [summed_up(one, now) for one in found]}


async def decided(
    approvals: ApprovalsBackend,
    id: str,
    proof: str,
    wall_clock: Callable[[], float],
    *,
    accept_masked: bool,
) -> dict[str, Any]:
    """What became of an approval by this proof. Raises InterlockError when it decided nothing."""
    outcome, trouble = None, None
    before = approvals.find(id)
    try:
        outcome = await approvals.confirm(id, proof, None, accept_masked=accept_masked)
    except InterlockError as error:
        if error.failure in _UNDECIDED:
            raise
        trouble = error
    approval = approvals.find(id)
    if approval is None and outcome is not None:
        # A node below holds it, and was given the proof.
        if before is not None:
            return {**seen(before, wall_clock(), outcome), "state": PASSED_ON, "seconds_left": 0.0}
        return {"id": id, "state": PASSED_ON, "result": Raw(outcome.result)}
    if approval is None or not approval.decided:
        raise trouble or InterlockError(UNKNOWN_APPROVAL, "The approval is not known any more.")
    if approval.state == REFUSED:
        return seen(approval, wall_clock())
    shown = seen(approval, wall_clock(), outcome)
    if trouble is not None:
        shown["error"] = {"name": trouble.failure.name, "message": trouble.message}
    return shown


BASE: Final = "/approvals"
OPERATORS: Final = "operators"
LOCAL: Final = "interlock.local"
"""Set in the scope of what comes by the Unix socket of the node's own user."""

_MOST_BODY: Final = 64 * 1024
_MOST_STREAMS: Final = 200
_PING: Final = 15.0
_TRIES: Final = 10
_TRIES_WITHIN: Final = 60.0
_TRIED_IN_VAIN: Final = (PROOF_INVALID, FORBIDDEN, UNKNOWN_APPROVAL)
_LIST_HOLDS: Final = 1.0
"""For so many seconds a list is told as it was made, if the same still wait."""
T = TypeVar("T")


class ApprovalDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A proof; or, from the node's own user, a refusal without one."""

    proof: str | None = None
    refuse: bool = False
    reason: str = ""
    accept_masked: bool = False
    """Whoever approves has revealed the masked arguments, or approves without seeing them."""


class SessionAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The signed answer of an operator who wants to see what waits."""

    nonce: str
    proof: str


class EnrolmentDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's answer about an enrolment that is pending."""

    id: str
    entry: str = ""
    proof: str = ""
    refuse: bool = False


class ApprovalsApp:
    """Everything under /approvals."""

    def __init__(
        self,
        *,
        approvals: ApprovalsBackend,
        desk: OperatorService,
        guard: Guard,
        authenticate: Callable[[Credentials], Caller],
        refused: Callable[[Call, InterlockError], None],
        origins: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`desk`: where operators enrol and show who they are. `refused` records who was turned
        away. `origins`: where people reach the page, the best first."""
        self._guard = guard
        self._approvals = approvals
        self._desk = desk
        self._authenticate = authenticate
        self._refused = refused
        self._origins = origins
        self._now = wall_clock
        self._failures: KeyedWindows[str] = KeyedWindows(_TRIES, _TRIES_WITHIN, clock)
        self._files = page_files()
        self._streams: dict[EventStream, str | None] = {}
        """Who listens: the name of a caller, or None where that is not what lets it listen."""
        self._listed: tuple[tuple[str, ...], float, bytes] = ((), -math.inf, b"")
        self._deciding: set[asyncio.Task[dict[str, Any]]] = set()
        self._closed = False

    def close(self) -> None:
        """Let those go who listen: the node stops."""
        self._closed = True
        for stream in self._streams:
            stream.wake()

    def wake_streams(self) -> None:
        """Somebody was enrolled or removed: who listens is looked at anew."""
        for stream in self._streams:
            stream.wake()

    def retain_only(self, callers: Container[str]) -> None:
        """Only these callers are known any more: nothing more is told to others."""
        for stream, name in self._streams.items():
            if name is not None and name not in callers:
                stream.end()

    async def local(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The same for the node's own user, who came by a socket that nobody else can open."""
        await self({**scope, LOCAL: True}, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path != BASE and not path.startswith(f"{BASE}/"):
            await self._json(send, 404, "not_found", "There is nothing here.")
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
        elif name == OPERATORS and not more:
            await self._operators(scope, receive, send, posted)
        elif name == "session" and not more:
            await self._session(scope, receive, send, posted)
        elif not name and not posted:
            await self._list(scope, send)
        elif name == "events" and not more and not posted:
            await self._follow_all(scope, receive, send)
        elif more == "events" and not posted:
            await self._follow(self._find(name), receive, send)
        elif more == "revealed" and not posted:
            await self._reveal(scope, send, name)
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
        refusal = None if name in known else self._guard.refusal(host, None)
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
        session = _session_of(scope)
        if session is not None:
            return Caller(self._desk.known(session), can_view_approvals=True)
        caller = await self._caller(scope)
        if LOCAL in scope or caller.can_view_approvals:
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
            return await caller_of(call, self._authenticate)
        except InterlockError as error:
            self._refused(call, error)
            raise

    @staticmethod
    def _call(scope: Scope) -> Call:
        return call_of(scope, "approvals", peer=LOCAL_PEER if LOCAL in scope else None)

    async def _tried(self, scope: Scope, key: str, attempt: Awaitable[T]) -> T:
        """What an attempt comes to. One that is good always counts: whoever guesses keeps nobody
        else out. Too many bad ones are not even told what was wrong. Raises InterlockError."""
        try:
            return await attempt
        except InterlockError as error:
            # The node's own user cannot be locked out by anybody.
            if error.failure in _TRIED_IN_VAIN and LOCAL not in scope:
                key = f"{key} of {peer_name(scope.get('client'))}"
                self._paced(key)
                self._failures.add(key)
            raise

    def _paced(self, key: str) -> None:
        wait = self._failures.wait_seconds(key)
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

    async def _reveal(self, scope: Scope, send: Send, id: str) -> None:
        """Show an operator the real values of masked arguments."""
        who = await self._operator(scope)
        approval = self._approvals.reveal(id, "local" if LOCAL in scope else who.name)
        await respond_json(send, 200, seen(approval, self._now(), revealed=True), SECURITY)

    async def _list(self, scope: Scope, send: Send) -> None:
        await self._operator(scope)
        await respond(send, 200, self._list_as_json(waiting(self._approvals)), JSON, SECURITY)

    def _list_as_json(self, found: list[Approval]) -> bytes:
        """What waits. Made once for all who listen."""
        ids, now = tuple(one.id for one in found), self._now()
        known, made, told = self._listed
        if ids != known or not 0.0 <= now - made < _LIST_HOLDS:
            told = encode_value(listed(found, now))
            self._listed = (ids, now, told)
        return told

    async def _page(self, scope: Scope, send: Send, path: str) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        name, _, port = host.rpartition(":")
        if path == "":
            await respond(send, 307, b"", b"text/plain", [(b"location", b"approvals/"), *SECURITY])
        elif name in ("127.0.0.1", "[::1]") and host not in {
            urlsplit(one).netloc for one in self._origins()
        }:
            # Keys and passkeys belong to one name of the machine, and passkeys never to a number.
            # The path is decoded: quoted again, no line break of it ends up in a header.
            where = f"{scope.get('scheme', 'http')}://localhost:{port}{BASE}{quote(path)}"
            fields = [(b"location", where.encode()), *SECURITY]
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
                return None, bytes, True
            shown = now
            return now.state, lambda: encode_value(self._seen(shown)), self._closed or now.over

        await self._stream("approval", tell, receive, send, only=approval.id)

    async def _follow_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = await self._operator(scope)
        session = _session_of(scope)

        def tell() -> Told:
            found = waiting(self._approvals)
            ids = tuple(one.id for one in found)
            return ids, lambda: self._list_as_json(found), self._closed

        async def may() -> bool:
            try:
                await self._operator(scope)
            except InterlockError:
                return False
            return True

        left = None
        if session is not None:
            left = self._desk.left(session)
        elif caller.expires_at is not None:
            left = caller.expires_at - self._now()
        # A session of the page and the node's own user do not go by the name of a caller.
        name = None if session is not None or LOCAL in scope else caller.name
        await self._stream("approvals", tell, receive, send, may=may, whose=name, left=left)

    async def _stream(
        self,
        event: str,
        tell: Callable[[], Told],
        receive: Receive,
        send: Send,
        only: str | None = None,
        may: Callable[[], Awaitable[bool]] | None = None,
        whose: str | None = None,
        left: float | None = None,
    ) -> None:
        """`only`: the approval that it is about. `may`: asked whenever there may be something to
        tell. `whose`: the caller who listens. `left`: for how many seconds that one may."""
        if len(self._streams) >= _MOST_STREAMS:
            raise InterlockError(TOO_BUSY, "Too many listen already; try again later.")
        stream = EventStream(receive, send)
        self._streams[stream] = whose
        ending = None
        if left is not None:
            loop = asyncio.get_running_loop()
            ending = loop.call_later(max(0.0, left), stream.end)

        stop = self._approvals.watch(lambda _: stream.wake(), ids=None if only is None else (only,))
        try:
            await stream.run(event, tell, fields=SECURITY, ping=_PING, may=may)
        finally:
            stop()
            if ending is not None:
                ending.cancel()
            del self._streams[stream]

    # -- what people do

    async def _decide(self, scope: Scope, receive: Receive, send: Send, id: str) -> None:
        decision = await read_json(scope, receive, ApprovalDecision, _MOST_BODY)
        key = f"approval {id}"
        if self._approvals.find(id) is None:
            # It may be known to a node below, and nobody may try them all.
            key = "unknown"
            if LOCAL not in scope:
                self._paced(f"{key} of {peer_name(scope.get('client'))}")
        answer = await self._tried(scope, key, self._decided(scope, id, decision))
        await respond_json(send, 200, answer, SECURITY)

    async def _decided(self, scope: Scope, id: str, decision: ApprovalDecision) -> dict[str, Any]:
        if decision.proof is not None:
            # Who carries a proof does not matter: a caller may bring one that a human made.
            deciding = decided(
                self._approvals,
                id,
                decision.proof,
                self._now,
                accept_masked=decision.accept_masked,
            )
        elif decision.refuse:
            who = await self._operator(scope)
            deciding = self._refuse(id, decision.reason, who, local=LOCAL in scope)
        else:
            raise InterlockError(INVALID_REQUEST, "Send a `proof`.")
        # It goes on when the one who confirms hangs up: nobody may confirm it again.
        task = asyncio.ensure_future(deciding)
        self._deciding.add(task)
        task.add_done_callback(self._deciding.discard)
        return await asyncio.shield(task)

    async def _refuse(self, id: str, reason: str, who: Caller, *, local: bool) -> dict[str, Any]:
        return self._seen(
            await self._approvals.refuse(id, reason=reason, presented_by=who, local=local)
        )

    async def _enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = await read_json(scope, receive, msgspec.Raw, _MOST_BODY)
        told = await self._tried(scope, "enrol", self._desk.enrol(bytes(asked)))
        await respond_json(send, 200, told, SECURITY)

    async def _operators(self, scope: Scope, receive: Receive, send: Send, posted: bool) -> None:
        """Who is an operator, and who wants to be."""
        if not posted:
            await self._operator(scope)
            await respond_json(send, 200, await self._desk.enrolments(), SECURITY)
            return
        answer = await read_json(scope, receive, EnrolmentDecision, _MOST_BODY)
        if answer.refuse:
            await self._operator(scope)
            await self._desk.refuse_enrolment(answer.id)
            await respond_json(send, 200, {"id": answer.id, "state": "refused"}, SECURITY)
            return
        # Whoever brings it: only an operator can have signed it.
        admitted = self._desk.admit_enrolment(answer.id, answer.entry, answer.proof)
        name = await self._tried(scope, OPERATORS, admitted)
        told = {"id": answer.id, "name": name, "state": "enrolled"}
        await respond_json(send, 200, told, SECURITY)

    async def _session(self, scope: Scope, receive: Receive, send: Send, posted: bool) -> None:
        if not posted:
            question = {**self._desk.question(), "now": self._now()}
            await respond_json(send, 200, question, SECURITY)
            return
        answer = await read_json(scope, receive, SessionAnswer, _MOST_BODY)
        admitted = self._desk.admit(answer.nonce, answer.proof)
        session = await self._tried(scope, "session", admitted)
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
        await respond_json(send, status, words(error.failure.name, error.message), fields)

    @staticmethod
    async def _json(send: Send, status: int, word: str, message: str) -> None:
        await respond_json(send, status, words(word, message), SECURITY)


def _session_of(scope: Scope) -> str | None:
    session = dict(scope["headers"]).get(b"interlock-session")
    return None if session is None else session.decode("latin-1")


def _wants_page(scope: Scope) -> bool:
    return b"text/html" in dict(scope["headers"]).get(b"accept", b"")


# -- Codes over HTTP: for an operator who signed in with a key or a passkey, and for nobody else.
# Not even for the node's own user by the local socket: a model may run as that user.
#
# It is the app of the approvals, with one more path.

CODES: Final = "codes"
_VERIFICATION_MOST_BODY: Final = 4 * 1024


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


class SafetyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
        asked = await read_json(scope, receive, SafetyRequest, _VERIFICATION_MOST_BODY)
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


# -- The Unix socket by which a node's own user sees and decides approvals: HTTP, as on the network.
# Only that user can open it, so nobody is asked for a token; a proof is asked for all the same.


class ApprovalsSocket:
    """Opened with a node, closed before it."""

    def __init__(self, app: App) -> None:
        config = uvicorn.Config(
            app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
        )
        config.load()
        self._config = config
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def open(self, path: Path) -> None:
        """Raises OSError."""
        _remove(path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: HttpToolsProtocol(self._config, self._state, {}, loop), path=str(path)
        )
        self._path = path
        os.chmod(path, 0o600)

    async def close(self) -> None:
        """Take nobody any more; what is being answered is answered."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=2.0)
        if self._path is not None:
            _remove(self._path)


def _remove(path: Path) -> None:
    """A socket of ours, or one that a killed node left behind."""
    path.unlink(missing_ok=True)
