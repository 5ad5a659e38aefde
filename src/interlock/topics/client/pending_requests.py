"""Pending requests of a participant, and the responses that complete them.

A response completes a request only if it names its envelope, has its JSON-RPC id, method and
context, and comes from a recipient. Other responses are shown and complete nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from msgspec import Raw

from interlock.errors import (
    UPSTREAM_ERROR,
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    InterlockError,
    ProtocolError,
)
from interlock.protocol import jsonrpc
from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import Response
from interlock.topics.wire.threads import ThreadMessage, is_response_to


class TopicRequest:
    """A pending request to one or more participants."""

    def __init__(
        self, message: ThreadMessage, participants: Iterable[str], *, wait_for_all: bool
    ) -> None:
        """
        Args:
            participants: the participants that may respond.
            wait_for_all: wait for all responses, not only for the first.
        """
        self.message = message
        self.missing = set(participants)
        self.responses: dict[str, Any] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wait_for_all = wait_for_all
        self.error: InterlockError | None = None

    def finish(self, error: InterlockError | None = None) -> None:
        if not self.done.done():
            self.error = error
            self.done.set_result(None)


class TopicRequests:
    """The pending requests of one participant, by envelope id."""

    def __init__(self) -> None:
        self._requests: dict[str, TopicRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, id: str) -> bool:
        return id in self._requests

    def add(
        self, message: ThreadMessage, participants: Iterable[str], *, wait_for_all: bool = False
    ) -> TopicRequest:
        request = self._requests[message.head.id] = TopicRequest(
            message, participants, wait_for_all=wait_for_all
        )
        if wait_for_all and not request.missing:
            request.finish()
        return request

    def remove(self, request: TopicRequest) -> None:
        """Remove a request that nothing waits for any more."""
        self._requests.pop(request.message.head.id, None)

    def handle_response(self, head: EnvelopeHeader, response: Response) -> bool:
        """Handle a response. Returns whether a request was waiting for it."""
        request = self._requests.get(head.correlation_id or "")
        if request is None or head.sender in request.responses:
            return False
        if request.done.done():
            # The first response has arrived, but its waiter has not run yet.
            return False
        if not is_response_to(request.message, head, response):
            return False
        request.responses[head.sender] = read_outcome(head.sender, response)
        request.missing.discard(head.sender)
        if not request.wait_for_all or not request.missing:
            request.finish()
        return True

    def fail(self, id: str | None, error: InterlockError) -> bool:
        """Fail a request that the gateway did not forward."""
        request = self._requests.get(id or "")
        if request is not None:
            request.finish(error)
        return request is not None

    def on_leave(self, participant: str) -> None:
        """Handle the departure of a participant: its responses will not come."""
        for request in list(self._requests.values()):
            if participant in request.missing:
                request.missing.discard(participant)
                if request.missing:
                    continue
                reason = f"{participant} left the topic before it responded."
                request.finish(None if request.wait_for_all else request_lost_error(reason))

    def fail_all(self, reason: str) -> None:
        """Fail all requests: the connection is lost."""
        for request in list(self._requests.values()):
            request.finish(
                request_lost_error(f"The request was sent, but got no response: {reason}.")
            )


def request_lost_error(error_text: str) -> InterlockError:
    """Return the error for a request that may or may not have been executed."""
    return InterlockError(UPSTREAM_LOST, error_text, {"sent": True})


def read_outcome(sender: str, response: Response) -> Any:
    """Return the result as a Python value, or an InterlockError for an error response."""
    try:
        return _decode_outcome(sender, response)
    except ProtocolError as error:
        return InterlockError(UPSTREAM_PROTOCOL, f"{sender} sent an invalid response. {error}")


def _decode_outcome(sender: str, response: Response) -> Any:
    if response.error is None:
        return jsonrpc.decode_value(response.result or Raw(b"null"))
    error = jsonrpc.decode_error(response.error)
    data: dict[str, Any] = {"code": error.code, "participant": sender}
    if isinstance(error.data, Raw):
        data["data"] = jsonrpc.decode_value(error.data)
    error_text = error.message or f"error {error.code}"
    return InterlockError(UPSTREAM_ERROR, f"{sender}: {error_text}", data)
