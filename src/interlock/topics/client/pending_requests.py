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

    def __init__(self, seen: ThreadMessage, of: Iterable[str], *, all: bool) -> None:
        """
        Args:
            of: the participants that may respond.
            all: wait for all responses, not only for the first.
        """
        self.seen = seen
        self.missing = set(of)
        self.answers: dict[str, Any] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.all = all
        self.error: InterlockError | None = None

    def finish(self, error: InterlockError | None = None) -> None:
        if not self.done.done():
            self.error = error
            self.done.set_result(None)


class TopicRequests:
    """The pending requests of one participant, by envelope id."""

    def __init__(self) -> None:
        self._asked: dict[str, TopicRequest] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, id: str) -> bool:
        return id in self._asked

    def expect(self, seen: ThreadMessage, of: Iterable[str], *, all: bool = False) -> TopicRequest:
        asked = self._asked[seen.head.id] = TopicRequest(seen, of, all=all)
        if all and not asked.missing:
            asked.finish()
        return asked

    def forget(self, asked: TopicRequest) -> None:
        """Remove a request that nothing waits for any more."""
        self._asked.pop(asked.seen.head.id, None)

    def settle(self, head: EnvelopeHeader, response: Response) -> bool:
        """Handle a response. Returns whether a request was waiting for it."""
        asked = self._asked.get(head.correlation_id or "")
        if asked is None or head.sender in asked.answers:
            return False
        if asked.done.done():
            # The first response has arrived, but its waiter has not run yet.
            return False
        if not is_response_to(asked.seen, head, response):
            return False
        asked.answers[head.sender] = read_outcome(head.sender, response)
        asked.missing.discard(head.sender)
        if not asked.all or not asked.missing:
            asked.finish()
        return True

    def refused(self, id: str | None, error: InterlockError) -> bool:
        """Fail a request that the gateway did not forward."""
        asked = self._asked.get(id or "")
        if asked is not None:
            asked.finish(error)
        return asked is not None

    def left(self, participant: str) -> None:
        """Handle the departure of a participant: its responses will not come."""
        for asked in list(self._asked.values()):
            if participant in asked.missing:
                asked.missing.discard(participant)
                if asked.missing:
                    continue
                gone = f"{participant} left the topic before it responded."
                asked.finish(None if asked.all else request_lost_error(gone))

    def lost(self, why: str) -> None:
        """Fail all requests: the connection is lost."""
        for asked in list(self._asked.values()):
            asked.finish(request_lost_error(f"The request was sent, but got no response: {why}."))


def request_lost_error(sentence: str) -> InterlockError:
    """Return the error for a request that may or may not have been executed."""
    return InterlockError(UPSTREAM_LOST, sentence, {"sent": True})


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
    sentence = error.message or f"error {error.code}"
    return InterlockError(UPSTREAM_ERROR, f"{sender}: {sentence}", data)
