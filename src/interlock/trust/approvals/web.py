"""Approvals over HTTP: the approval page for people, and JSON for approval services.

Anyone who has the unguessable id of an approval may see that approval. The list of approvals and
the values of masked arguments are for operators. Only a proof decides, wherever the request comes
from; the proof is verified elsewhere. One exception: the node's own user may reject a call without
a proof.
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
from interlock.core.server.http.plain_requests import create_call, error_body, resolve_caller
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
from interlock.trust.approvals.record import ARGUMENTS_REMOVED, REFUSED, Approval, view

# -- An approval for people and approval services, and what this app needs of the node.
#
# Numbers are sent as text that the node wrote, because a browser that parsed the arguments could
# round them.

PASSED_ON: Final = "passed_on"
_MAX_LISTED_LENGTH: Final = 1_000
"""Bytes of arguments, and characters of a description, that a list shows of one approval."""
_MAX_TEXT_LENGTH: Final = 80
"""Characters of one text in shortened arguments."""
_PROOF_FAILURES: Final = (ALREADY_DECIDED, MASKED_ARGUMENTS, PROOF_INVALID, UNKNOWN_APPROVAL)
"""Failures of a proof. Other errors may be the outcome of the call itself."""


class ApprovalsBackend(Protocol):
    """The approvals of the node."""

    def pending(self) -> Sequence[Approval]: ...

    def pending_at_children(self) -> Sequence[Approval]: ...

    def find(self, id: str) -> Approval | None: ...

    async def confirm(
        self, id: str, proof: str, presented_by: Caller | None, *, accept_masked: bool
    ) -> Outcome:
        """Raises InterlockError when the proof is invalid, or the error that the call ended
        with."""
        ...

    def reveal(self, id: str, to: str) -> Approval:
        """Raises InterlockError."""
        ...

    async def reject(
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
    """Enrolment and sign-in of operators."""

    def new_challenge(self) -> dict[str, str]:
        """Return what an operator signs to sign in: `nonce` and `aud`."""
        ...

    async def sign_in(self, nonce: str, proof: str) -> str:
        """Return a new session for the operator who signed the challenge. Raises InterlockError."""
        ...

    def session_operator(self, session: str) -> str:
        """Return the name of the operator of a session. Raises InterlockError."""
        ...

    def session_seconds(self, session: str) -> float:
        """Return for how many seconds a session is still valid."""
        ...

    async def enrol(self, request: bytes) -> dict[str, str]:
        """Enrol the key or passkey that a browser sent with a code.

        Returns the operator's `name`, and in `pending` the id of the enrolment if an operator has
        to confirm it. Raises InterlockError.
        """
        ...

    async def enrolments(self) -> dict[str, Any]:
        """Return the operators and the pending enrolments. Raises InterlockError."""
        ...

    async def admit_enrolment(self, id: str, entry: str, proof: str) -> str:
        """Enrol what is pending, and return the name of the operator. Raises InterlockError."""
        ...

    async def reject_enrolment(self, id: str) -> None:
        """Raises InterlockError."""
        ...


def to_json(
    approval: Approval, now: float, outcome: Outcome | None = None, *, revealed: bool = False
) -> dict[str, Any]:
    """Return an approval as JSON for the page.

    Args:
        outcome: the outcome of the call, for the operator who approved it.
        revealed: whether `approval` has the real values of masked arguments.
    """
    fields = view(approval)
    has_arguments = approval.shown != ARGUMENTS_REMOVED
    text = msgspec.json.format(approval.shown, indent=2).decode() if has_arguments else ""
    fields |= {
        "arguments_text": text,
        **_time_fields(approval, now),
        "revealed": revealed,
        "contract": approval.contract,
        "policy": approval.policy,
    }
    if approval.meta_shown:
        fields["meta_text"] = msgspec.json.format(approval.meta_shown, indent=2).decode()
    if outcome is not None:
        fields["result"] = Raw(outcome.result)
        fields["result_text"] = msgspec.json.format(bytes(outcome.result), indent=2).decode()
    return fields


def _time_fields(approval: Approval, now: float) -> dict[str, Any]:
    return {
        "mask": MASK,
        "now": now,
        "created": approval.created,
        "expires": approval.expires,
        "decided": approval.decided,
        "seconds_left": max(0.0, approval.expires - now) if approval.is_pending else 0.0,
        "seconds_whole": approval.expires - approval.created,
    }


def to_summary(approval: Approval, now: float) -> dict[str, Any]:
    """Return an approval for a list. Long arguments are shortened, as `arguments_cut` says; nobody
    decides by them."""
    size = len(approval.shown) + len(approval.meta_shown)
    if size <= _MAX_LISTED_LENGTH and len(approval.description) <= _MAX_LISTED_LENGTH:
        return {**to_json(approval, now), "arguments_cut": False}
    cut = size > _MAX_LISTED_LENGTH
    brief = msgspec.structs.replace(
        approval,
        shown=ARGUMENTS_REMOVED if cut else approval.shown,
        meta_shown=b"" if cut else approval.meta_shown,
        description=approval.description[:_MAX_LISTED_LENGTH],
    )
    fields = {**to_json(brief, now), "arguments_cut": cut}
    if cut:
        fields["arguments_text"] = _shorten(approval.shown)
    return fields


def _shorten(arguments: bytes) -> str:
    """Return the beginning of long arguments.

    It is JSON with the beginning of each long text, so that a short path behind a long text is
    shown. If that is too long as well, it is the beginning of the bytes.
    """
    # Not msgspec: it converts a very large integer to a float.
    text = json.dumps(_shorten_texts(json.loads(arguments)), ensure_ascii=False)
    if len(text) <= _MAX_LISTED_LENGTH:
        return text
    return f"{arguments[:_MAX_LISTED_LENGTH].decode('utf-8', 'ignore')}…"


def _shorten_texts(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT_LENGTH else f"{value[:_MAX_TEXT_LENGTH]}…"
    if isinstance(value, dict):
        return {name: _shorten_texts(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_shorten_texts(item) for item in value]
    return value


def all_pending(approvals: ApprovalsBackend) -> list[Approval]:
    """Return the pending approvals of this node and its children, the oldest first."""
    pending = [*approvals.pending(), *approvals.pending_at_children()]
    return sorted(pending, key=lambda approval: approval.created)


def to_list(approvals: Sequence[Approval], now: float) -> dict[str, Any]:
    """Return approvals as a JSON list."""
    return {"approvals": [to_summary(approval, now) for approval in approvals]}


async def confirm(
    approvals: ApprovalsBackend,
    id: str,
    proof: str,
    wall_clock: Callable[[], float],
    *,
    accept_masked: bool,
) -> dict[str, Any]:
    """Confirm an approval by a proof and return it as JSON. Raises InterlockError when the proof
    does not count."""
    outcome, call_error = None, None
    before = approvals.find(id)
    try:
        outcome = await approvals.confirm(id, proof, None, accept_masked=accept_masked)
    except InterlockError as error:
        if error.failure in _PROOF_FAILURES:
            raise
        call_error = error
    approval = approvals.find(id)
    if approval is None and outcome is not None:
        # A child node holds the approval, and received the proof.
        if before is not None:
            fields = to_json(before, wall_clock(), outcome)
            return {**fields, "state": PASSED_ON, "seconds_left": 0.0}
        return {"id": id, "state": PASSED_ON, "result": Raw(outcome.result)}
    if approval is None or not approval.decided:
        raise call_error or InterlockError(
            UNKNOWN_APPROVAL,
            "The approval is unknown now. List the approvals: `interlock approvals`.",
        )
    if approval.state == REFUSED:
        return to_json(approval, wall_clock())
    fields = to_json(approval, wall_clock(), outcome)
    if call_error is not None:
        fields["error"] = {"name": call_error.failure.name, "message": call_error.message}
    return fields


BASE: Final = "/approvals"
OPERATORS: Final = "operators"
LOCAL: Final = "interlock.local"
"""Set in the scope of a request by the Unix socket of the node's own user."""

_MAX_BODY_BYTES: Final = 64 * 1024
_MAX_STREAMS: Final = 200
_PING_SECONDS: Final = 15.0
_MAX_FAILURES: Final = 10
_FAILURE_WINDOW_SECONDS: Final = 60.0
_GUESS_FAILURES: Final = (PROOF_INVALID, FORBIDDEN, UNKNOWN_APPROVAL)
"""Failures that count as a wrong guess."""
_LIST_CACHE_SECONDS: Final = 1.0
"""The time for which an encoded list is reused while the same approvals are pending."""
T = TypeVar("T")


class ApprovalDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A proof, or a rejection without a proof by the node's own user."""

    proof: str | None = None
    refuse: bool = False
    reason: str = ""
    accept_masked: bool = False
    """True if the operator has revealed the masked arguments, or approves without seeing them."""


class SessionAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The signed challenge of an operator who signs in."""

    nonce: str
    proof: str


class EnrolmentDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's decision about a pending enrolment."""

    id: str
    entry: str = ""
    proof: str = ""
    refuse: bool = False


class ApprovalsApp:
    """The ASGI app of all paths under /approvals."""

    def __init__(
        self,
        *,
        approvals: ApprovalsBackend,
        operators: OperatorService,
        guard: Guard,
        authenticate: Callable[[Credentials], Caller],
        on_rejected: Callable[[Call, InterlockError], None],
        origins: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
        operators: enrolment and sign-in of operators.
        on_rejected: journals a request that was rejected.
        origins: returns the origins of the page, the preferred one first.
        """
        self._guard = guard
        self._approvals = approvals
        self._operators = operators
        self._authenticate = authenticate
        self._on_rejected = on_rejected
        self._origins = origins
        self._now = wall_clock
        self._failures: KeyedWindows[str] = KeyedWindows(
            _MAX_FAILURES, _FAILURE_WINDOW_SECONDS, clock
        )
        self._files = page_files()
        self._streams: dict[EventStream, str | None] = {}
        """The open event streams, each with the name of its caller. None: the right to read it does
        not depend on a caller."""
        self._list_cache: tuple[tuple[str, ...], float, bytes] = ((), -math.inf, b"")
        """The ids of the list, the time of its encoding, and its JSON."""
        self._decisions: set[asyncio.Task[dict[str, Any]]] = set()
        self._closed = False

    def close(self) -> None:
        """End all event streams: the node stops."""
        self._closed = True
        for stream in self._streams:
            stream.wake()

    def wake_streams(self) -> None:
        """Make event streams check again whether their readers are operators."""
        for stream in self._streams:
            stream.wake()

    def retain_only(self, callers: Container[str]) -> None:
        """End the event streams of all callers that are not in `callers`."""
        for stream, name in self._streams.items():
            if name is not None and name not in callers:
                stream.end()

    async def local(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of the node's own user, by a socket that no other user can open."""
        await self({**scope, LOCAL: True}, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path != BASE and not path.startswith(f"{BASE}/"):
            await self._send_error(send, 404, "not_found", "No such path.")
            return
        try:
            self._check_origin(scope)
            await self._serve(scope, receive, send, path.removeprefix(BASE))
        except InterlockError as error:
            await self._send_interlock_error(send, error)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        name, _, subpath = path.removeprefix("/").partition("/")
        posted = scope["method"] == "POST"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            await self._send_error(send, 405, "method_not_allowed", "Use GET or POST.")
        elif name == "page":
            await self._send_file(scope, send, subpath)
        elif not posted and not subpath and name != "session" and _wants_page(scope):
            await self._send_page(scope, send, path)
        elif name == "enrol" and posted and not subpath:
            await self._enrol(scope, receive, send)
        elif name == OPERATORS and not subpath:
            await self._serve_operators(scope, receive, send, posted)
        elif name == "session" and not subpath:
            await self._serve_session(scope, receive, send, posted)
        elif not name and not posted:
            await self._send_list(scope, send)
        elif name == "events" and not subpath and not posted:
            await self._stream_list(scope, receive, send)
        elif subpath == "events" and not posted:
            await self._stream_approval(self._find(name), receive, send)
        elif subpath == "revealed" and not posted:
            await self._send_revealed(scope, send, name)
        elif subpath:
            await self._send_error(send, 404, "not_found", "No such path.")
        elif posted:
            await self._decide(scope, receive, send, name)
        else:
            await respond_json(send, 200, self._to_json(self._find(name)), SECURITY)

    # -- Access

    def _check_origin(self, scope: Scope) -> None:
        """Reject a request that a page of another origin made, or by another host name. Raises
        InterlockError."""
        if LOCAL in scope:
            return
        fields = dict(scope["headers"])
        host, origin = fields.get(b"host", b""), fields.get(b"origin")
        name = host.decode("latin-1").strip().lower()
        is_page_host = name in {urlsplit(page).netloc for page in self._origins()}
        rejection = None if is_page_host else self._guard.find_rejection(host, None)
        if origin is not None and not self._is_own_origin(
            origin.decode("latin-1"), None if is_page_host else name
        ):
            rejection = "Pages of another origin may not use the approval page."
        # Browsers say where a request comes from. A link or a bookmark to the page is fine.
        elif fields.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none") and (
            scope["method"] == "POST" or fields.get(b"sec-fetch-mode") != b"navigate"
        ):
            rejection = "Pages of another origin may not read the approval page."
        if rejection is not None:
            error = InterlockError(FOREIGN_ORIGIN, rejection)
            self._on_rejected(self._call(scope), error)
            raise error

    def _is_own_origin(self, origin: str, host: str | None) -> bool:
        """Return whether an origin is a page of this node.

        Args:
            host: the host name of the request, where the config names no address of the page.
        """
        if origin in self._origins():
            return True
        return host is not None and origin.lower() in (f"http://{host}", f"https://{host}")

    async def _check_operator(self, scope: Scope) -> Caller:
        """Return the caller who may see all pending approvals. Raises InterlockError."""
        session = _read_session(scope)
        if session is not None:
            return Caller(self._operators.session_operator(session), can_view_approvals=True)
        caller = await self._authenticate_caller(scope)
        if LOCAL in scope or caller.can_view_approvals:
            return caller
        error = InterlockError(
            FORBIDDEN,
            f"{caller.name} may not see pending approvals. A token needs `may: [approve]`. On the "
            "machine of the node, use `interlock approvals`.",
        )
        self._on_rejected(self._call(scope), error)
        raise error

    async def _authenticate_caller(self, scope: Scope) -> Caller:
        call = self._call(scope)
        try:
            return await resolve_caller(call, self._authenticate)
        except InterlockError as error:
            self._on_rejected(call, error)
            raise

    @staticmethod
    def _call(scope: Scope) -> Call:
        return create_call(scope, "approvals", peer=LOCAL_PEER if LOCAL in scope else None)

    async def _limit_failures(self, scope: Scope, key: str, attempt: Awaitable[T]) -> T:
        """Return the result of an attempt, and limit wrong guesses.

        A correct attempt always counts, so guessing locks nobody out. After too many wrong guesses
        the reason is not reported. Raises InterlockError.
        """
        try:
            return await attempt
        except InterlockError as error:
            # The node's own user is never limited.
            if error.failure in _GUESS_FAILURES and LOCAL not in scope:
                key = f"{key} of {peer_name(scope.get('client'))}"
                self._check_failures(key)
                self._failures.add(key)
            raise

    def _check_failures(self, key: str) -> None:
        wait = self._failures.wait_seconds(key)
        if wait > 0:
            raise InterlockError(
                TOO_BUSY,
                f"Too many failed attempts. Try again in {math.ceil(wait)} s.",
                data={"retry_after_ms": math.ceil(wait * 1000)},
            )

    # -- Reading

    def _find(self, id: str) -> Approval:
        approval = self._approvals.find(id)
        if approval is None:
            raise InterlockError(
                UNKNOWN_APPROVAL,
                "No approval with this id is known. It was decided long ago, or the id is invalid. "
                "List the approvals: `interlock approvals`.",
            )
        return approval

    def _to_json(self, approval: Approval) -> dict[str, Any]:
        return to_json(approval, self._now())

    async def _send_revealed(self, scope: Scope, send: Send, id: str) -> None:
        """Show an operator the real values of masked arguments."""
        operator = await self._check_operator(scope)
        approval = self._approvals.reveal(id, "local" if LOCAL in scope else operator.name)
        await respond_json(send, 200, to_json(approval, self._now(), revealed=True), SECURITY)

    async def _send_list(self, scope: Scope, send: Send) -> None:
        await self._check_operator(scope)
        await respond(send, 200, self._encode_list(all_pending(self._approvals)), JSON, SECURITY)

    def _encode_list(self, approvals: list[Approval]) -> bytes:
        """Return the list as JSON, encoded once for all readers."""
        ids, now = tuple(approval.id for approval in approvals), self._now()
        cached_ids, encoded_at, encoded = self._list_cache
        if ids != cached_ids or not 0.0 <= now - encoded_at < _LIST_CACHE_SECONDS:
            encoded = encode_value(to_list(approvals, now))
            self._list_cache = (ids, now, encoded)
        return encoded

    async def _send_page(self, scope: Scope, send: Send, path: str) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        name, _, port = host.rpartition(":")
        if path == "":
            await respond(send, 307, b"", b"text/plain", [(b"location", b"approvals/"), *SECURITY])
        elif name in ("127.0.0.1", "[::1]") and host not in {
            urlsplit(origin).netloc for origin in self._origins()
        }:
            # Browsers bind keys and passkeys to a host name, and passkeys never to an address. The
            # path is decoded, so it is quoted again: no line break of it reaches a header.
            location = f"{scope.get('scheme', 'http')}://localhost:{port}{BASE}{quote(path)}"
            fields = [(b"location", location.encode()), *SECURITY]
            await respond(send, 307, b"", b"text/plain", fields)
        else:
            await self._send_file(scope, send, PAGE)

    async def _send_file(self, scope: Scope, send: Send, name: str) -> None:
        file = self._files.get(name)
        if file is None:
            await self._send_error(send, 404, "not_found", "No such path.")
            return
        fields = [*SECURITY, (b"vary", b"accept-encoding, accept")]
        body = file.body
        if b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b""):
            body = file.packed
            fields.append((b"content-encoding", b"gzip"))
        await respond(send, 200, body, file.content_type, fields)

    # -- Event streams

    async def _stream_approval(self, approval: Approval, receive: Receive, send: Send) -> None:
        def read_state() -> Told:
            current = self._approvals.find(approval.id)
            if current is None:
                return None, bytes, True
            shown = current
            is_last = self._closed or current.is_final
            return current.state, lambda: encode_value(self._to_json(shown)), is_last

        await self._stream("approval", read_state, receive, send, approval_id=approval.id)

    async def _stream_list(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = await self._check_operator(scope)
        session = _read_session(scope)

        def read_state() -> Told:
            pending = all_pending(self._approvals)
            ids = tuple(approval.id for approval in pending)
            return ids, lambda: self._encode_list(pending), self._closed

        async def is_allowed() -> bool:
            try:
                await self._check_operator(scope)
            except InterlockError:
                return False
            return True

        seconds = None
        if session is not None:
            seconds = self._operators.session_seconds(session)
        elif caller.expires_at is not None:
            seconds = caller.expires_at - self._now()
        # A session of the page, and the node's own user, do not depend on a caller's name.
        name = None if session is not None or LOCAL in scope else caller.name
        await self._stream(
            "approvals",
            read_state,
            receive,
            send,
            is_allowed=is_allowed,
            caller_name=name,
            seconds=seconds,
        )

    async def _stream(
        self,
        event: str,
        read_state: Callable[[], Told],
        receive: Receive,
        send: Send,
        approval_id: str | None = None,
        is_allowed: Callable[[], Awaitable[bool]] | None = None,
        caller_name: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Send an event stream.

        Args:
            read_state: returns what to send.
            approval_id: the approval that the stream is about. None: all.
            is_allowed: called before each event: whether the reader may still see it.
            caller_name: the caller that reads the stream.
            seconds: for how long the reader is allowed.
        """
        if len(self._streams) >= _MAX_STREAMS:
            raise InterlockError(TOO_BUSY, "Too many event streams are open. Try again later.")
        stream = EventStream(receive, send)
        self._streams[stream] = caller_name
        end_timer = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            end_timer = loop.call_later(max(0.0, seconds), stream.end)

        ids = None if approval_id is None else (approval_id,)
        stop = self._approvals.watch(lambda _: stream.wake(), ids=ids)
        try:
            await stream.run(
                event, read_state, fields=SECURITY, ping=_PING_SECONDS, may_continue=is_allowed
            )
        finally:
            stop()
            if end_timer is not None:
                end_timer.cancel()
            del self._streams[stream]

    # -- Decisions

    async def _decide(self, scope: Scope, receive: Receive, send: Send, id: str) -> None:
        decision = await read_json(scope, receive, ApprovalDecision, _MAX_BODY_BYTES)
        key = f"approval {id}"
        if self._approvals.find(id) is None:
            # A child node may know it. Guessing ids must not reach the children.
            key = "unknown"
            if LOCAL not in scope:
                self._check_failures(f"{key} of {peer_name(scope.get('client'))}")
        response = await self._limit_failures(scope, key, self._apply(scope, id, decision))
        await respond_json(send, 200, response, SECURITY)

    async def _apply(self, scope: Scope, id: str, decision: ApprovalDecision) -> dict[str, Any]:
        if decision.proof is not None:
            # The sender of a proof does not matter: a caller may present the proof of an operator.
            deciding = confirm(
                self._approvals,
                id,
                decision.proof,
                self._now,
                accept_masked=decision.accept_masked,
            )
        elif decision.refuse:
            operator = await self._check_operator(scope)
            deciding = self._reject(id, decision.reason, operator, local=LOCAL in scope)
        else:
            raise InterlockError(INVALID_REQUEST, "Send a `proof`.")
        # It continues when the client disconnects: the proof cannot be used a second time.
        task = asyncio.ensure_future(deciding)
        self._decisions.add(task)
        task.add_done_callback(self._decisions.discard)
        return await asyncio.shield(task)

    async def _reject(
        self, id: str, reason: str, operator: Caller, *, local: bool
    ) -> dict[str, Any]:
        return self._to_json(
            await self._approvals.reject(id, reason=reason, presented_by=operator, local=local)
        )

    async def _enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await read_json(scope, receive, msgspec.Raw, _MAX_BODY_BYTES)
        response = await self._limit_failures(scope, "enrol", self._operators.enrol(bytes(request)))
        await respond_json(send, 200, response, SECURITY)

    async def _serve_operators(
        self, scope: Scope, receive: Receive, send: Send, posted: bool
    ) -> None:
        """Send the operators and pending enrolments, or decide an enrolment."""
        if not posted:
            await self._check_operator(scope)
            await respond_json(send, 200, await self._operators.enrolments(), SECURITY)
            return
        decision = await read_json(scope, receive, EnrolmentDecision, _MAX_BODY_BYTES)
        if decision.refuse:
            await self._check_operator(scope)
            await self._operators.reject_enrolment(decision.id)
            await respond_json(send, 200, {"id": decision.id, "state": "refused"}, SECURITY)
            return
        # The sender does not matter: only an operator can have signed the entry.
        admission = self._operators.admit_enrolment(decision.id, decision.entry, decision.proof)
        name = await self._limit_failures(scope, OPERATORS, admission)
        response = {"id": decision.id, "name": name, "state": "enrolled"}
        await respond_json(send, 200, response, SECURITY)

    async def _serve_session(
        self, scope: Scope, receive: Receive, send: Send, posted: bool
    ) -> None:
        if not posted:
            challenge = {**self._operators.new_challenge(), "now": self._now()}
            await respond_json(send, 200, challenge, SECURITY)
            return
        answer = await read_json(scope, receive, SessionAnswer, _MAX_BODY_BYTES)
        signing_in = self._operators.sign_in(answer.nonce, answer.proof)
        session = await self._limit_failures(scope, "session", signing_in)
        await respond_json(send, 200, {"session": session}, SECURITY)

    # -- Errors

    async def _send_interlock_error(self, send: Send, error: InterlockError) -> None:
        status = error.failure.http if error.failure.http >= 400 else 502
        fields = list(SECURITY)
        retry = (error.data or {}).get("retry_after_ms")
        if isinstance(retry, int):
            status = 429
            fields.append((b"retry-after", str(math.ceil(retry / 1000)).encode()))
        if status == 401:
            fields.append((b"www-authenticate", b"Bearer"))
        await respond_json(send, status, error_body(error.failure.name, error.message), fields)

    @staticmethod
    async def _send_error(send: Send, status: int, name: str, message: str) -> None:
        await respond_json(send, status, error_body(name, message), SECURITY)


def _read_session(scope: Scope) -> str | None:
    session = dict(scope["headers"]).get(b"interlock-session")
    return None if session is None else session.decode("latin-1")


def _wants_page(scope: Scope) -> bool:
    return b"text/html" in dict(scope["headers"]).get(b"accept", b"")


# -- Verification codes of AQL over HTTP: only for an operator who signed in with a key or a
# passkey. The node's own user cannot read them by the local socket, because a model may run as that
# user.
#
# It is the app of the approvals with one more path.

CODES: Final = "codes"
_MAX_CODES_BODY_BYTES: Final = 4 * 1024


class Verification(Protocol):
    """The safety loop of AQL from the operator's side."""

    def list_challenges(self) -> dict[str, Any]: ...

    async def renew(self, id: str, by: str) -> dict[str, Any]:
        """Raises InterlockError."""
        ...

    async def challenge_again(self, name: str, by: str) -> dict[str, Any]:
        """Raises InterlockError."""
        ...

    async def end(self, id: str, by: str) -> dict[str, Any]:
        """Raises InterlockError."""
        ...


class SafetyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for another challenge, because a code was lost or an agent is blocked, or for the
    end of an execution. One member is set."""

    renew: str = ""
    blocked: str = ""
    end: str = ""


class VerificationApp(ApprovalsApp):
    """The approvals app with the verification codes under /approvals/codes."""

    verification: Verification | None = None
    """Set by the node. None: there is no safety loop, and no such path."""

    async def _serve(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        verification = self.verification
        is_supported = scope["method"] in ("GET", "POST")
        if (
            verification is None
            or path != f"/{CODES}"
            or not is_supported
            or _is_page_request(scope)
        ):
            await super()._serve(scope, receive, send, path)
            return
        operator = await self._limit_failures(scope, CODES, self._check_signed_in(scope))
        if scope["method"] == "GET":
            await respond_json(send, 200, verification.list_challenges(), SECURITY)
            return
        request = await read_json(scope, receive, SafetyRequest, _MAX_CODES_BODY_BYTES)
        if sum(map(bool, (request.renew, request.blocked, request.end))) != 1:
            raise InterlockError(INVALID_REQUEST, "Send one of `renew`, `blocked` and `end`.")
        if request.renew:
            response = await verification.renew(request.renew, operator)
        elif request.blocked:
            response = await verification.challenge_again(request.blocked, operator)
        else:
            response = await verification.end(request.end, operator)
        await respond_json(send, 200, response, SECURITY)

    async def _check_signed_in(self, scope: Scope) -> str:
        """Return the operator of the session. Raises InterlockError."""
        session = dict(scope["headers"]).get(b"interlock-session")
        if session is not None:
            return self._operators.session_operator(session.decode("latin-1"))
        error = InterlockError(
            FORBIDDEN, "Codes are shown to operators who signed in. Run `interlock operator`."
        )
        self._on_rejected(self._call(scope), error)
        raise error


def _is_page_request(scope: Scope) -> bool:
    return scope["method"] == "GET" and b"text/html" in dict(scope["headers"]).get(b"accept", b"")


# -- The Unix socket by which the node's own user sees and decides approvals: HTTP, as on the
# network. Only that user can open it, so no token is needed. A proof is needed all the same.


class ApprovalsSocket:
    """The server of the Unix socket. Open it with the node, and close it before the node."""

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
        """Accept no more connections, and finish the open requests."""
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
    """Remove a socket of this node, or one that a killed node left behind."""
    path.unlink(missing_ok=True)
