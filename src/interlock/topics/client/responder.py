"""The responder: it handles the requests of other participants.

All participants of a room receive requests that are meant for others. So a participant handles only
requests that are addressed to it, or requests to everybody for something that it offers, and only
if it may send the response. A request to everybody never gets an error response.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.core.call import UpstreamResponseError
from interlock.errors import INTERNAL, TOO_BUSY, InterlockError
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.kinds import request_kind, response_kind
from interlock.topics.client.tools import RequestServer, progress_reporter
from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import Notification, Request
from interlock.topics.wire.proposals import TrackedProposal
from interlock.topics.wire.threads import decode_id

MAX_REQUESTS_PER_SENDER: Final = 100
"""The maximum number of requests of one participant that are handled at the same time."""
_log = logging.getLogger("interlock.topics")


class EnvelopeSender(Protocol):
    """Sends an envelope and returns its id. Raises SendError."""

    def __call__(
        self, kind: str, payload: bytes, to: Sequence[str], correlation_id: str | None
    ) -> str: ...


class _Meta(msgspec.Struct):
    progressToken: int | str | None = None


class _WithMeta(msgspec.Struct):
    meta: _Meta = msgspec.field(default_factory=_Meta, name="_meta")


class TopicResponder:
    """The requests of others that are being handled."""

    def __init__(
        self,
        server: RequestServer,
        send: EnvelopeSender,
        can_send: Callable[[str], bool],
        find_proposal: Callable[[str | None], TrackedProposal | None],
        max_requests: int = MAX_REQUESTS_PER_SENDER,
    ) -> None:
        """
        Args:
            find_proposal: finds a proposal that was seen.
        """
        self._server = server
        self._send = send
        self._can_send = can_send
        self._find_proposal = find_proposal
        self._max_requests = max_requests
        self._active: dict[tuple[str, str], tuple[str | bytes, asyncio.Task[None]]] = {}
        """By sender and envelope id. JSON-RPC ids may repeat: a restarted program counts from the
        beginning."""
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._active)

    def on_request(self, head: EnvelopeHeader, request: Request, own_id: str) -> None:
        """Handle a request."""
        if head.to and own_id not in head.to:
            return
        if not head.to and not self._server.can_handle(request.method, request.context):
            return
        kind = response_kind(request.method, request.context)
        if not self._can_send(kind):
            # Executing the call without a response would be worse than ignoring it.
            _log.warning(
                "topic client: request ignored, this participant may not send %.100s", kind
            )
            return
        key = (head.sender, head.id)
        try:
            if self._counts[head.sender] >= self._max_requests:
                raise InterlockError(
                    TOO_BUSY,
                    f"{head.sender} has {self._max_requests} pending requests, which is the limit. "
                    "Wait for a response.",
                )
        except InterlockError as error:
            self._respond(head, request, own_id, error)
            return
        reset_token = progress_reporter.set(self._make_reporter(head, request))
        try:
            coroutine = self._handle(head, request, own_id)
            task = asyncio.get_running_loop().create_task(coroutine)
        finally:
            progress_reporter.reset(reset_token)
        self._active[key] = (decode_id(request.id), task)
        self._counts[head.sender] += 1
        task.add_done_callback(lambda _: self._on_done(key))

    def on_notification(self, head: EnvelopeHeader, notification: Notification) -> None:
        """Handle a cancellation by the sender of a request."""
        if notification.method != mcp.CANCELLED:
            return
        try:
            cancelled_id = msgspec.json.decode(
                notification.params, type=mcp.CancelledParams
            ).request_id
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # a notification has no error response
        for (sender, _), (id, task) in list(self._active.items()):
            if cancelled_id and sender == head.sender and id == decode_id(cancelled_id):
                task.cancel()

    def on_leave(self, participant: str) -> None:
        """Cancel the requests of a participant that has left."""
        for (sender, _), (_, task) in list(self._active.items()):
            if sender == participant:
                task.cancel()

    def close(self) -> None:
        for _, task in list(self._active.values()):
            task.cancel()

    async def _handle(self, head: EnvelopeHeader, request: Request, own_id: str) -> None:
        outcome: bytes | InterlockError
        try:
            outcome = await self._server.handle(request)
        except InterlockError as error:
            outcome = error
        except Exception:
            _log.exception(
                "topic client: %s failed", request_kind(request.method, request.context)[:200]
            )
            outcome = InterlockError(INTERNAL, "Internal error. See the log of the participant.")
        self._respond(head, request, own_id, outcome)

    def _respond(
        self, head: EnvelopeHeader, request: Request, own_id: str, outcome: bytes | InterlockError
    ) -> None:
        if isinstance(outcome, bytes):
            payload = jsonrpc.result_response(request.id, outcome)
        elif not head.to:
            return
        else:
            payload = _write_error(request.id, outcome)
        kind = response_kind(request.method, request.context)
        to = self._find_recipients(head, request, own_id)
        try:
            self._send(kind, payload, to, head.id)
        except InterlockError as error:
            _log.warning(
                "topic client: cannot send a response to %.128s: %s", head.sender, error.message
            )
            if isinstance(outcome, bytes) and head.to:
                self._respond(head, request, own_id, InterlockError(INTERNAL, error.message))

    def _find_recipients(self, head: EnvelopeHeader, request: Request, own_id: str) -> list[str]:
        """Return the sender of the request and, if known, the proposer of the call."""
        proposal = self._find_proposal(head.correlation_id)
        if proposal is None or proposal.proposer in (head.sender, own_id):
            return [head.sender]
        if (proposal.method, proposal.context) != (request.method, request.context):
            return [head.sender]
        return [head.sender, proposal.proposer]

    def _make_reporter(
        self, head: EnvelopeHeader, request: Request
    ) -> Callable[[float, float, str], None]:
        try:
            token = msgspec.json.decode(request.params, type=_WithMeta).meta.progressToken
        except (msgspec.DecodeError, UnicodeDecodeError):
            token = None

        def report(done: float, total: float, text: str) -> None:
            kind = request_kind(mcp.PROGRESS)
            key = (head.sender, head.id)
            if token is None or key not in self._active or not self._can_send(kind):
                return
            params: dict[str, Any] = {"progressToken": token, "progress": done, "total": total}
            if text:
                params["message"] = text
            message = jsonrpc.notification(mcp.PROGRESS, jsonrpc.encode_value(params))
            try:
                self._send(kind, message, [head.sender], head.id)
            except InterlockError as error:
                _log.debug("topic client: cannot send progress: %s", error.message)

        return report

    def _on_done(self, key: tuple[str, str]) -> None:
        del self._active[key]
        self._counts[key[0]] -= 1
        if not self._counts[key[0]]:
            del self._counts[key[0]]


def _write_error(id: Raw, error: InterlockError) -> bytes:
    if isinstance(error, UpstreamResponseError):
        return jsonrpc.error_response(id, error.code, error.message, error.raw_data)
    return jsonrpc.error_response(id, error.failure.code, error.message, error.data)
