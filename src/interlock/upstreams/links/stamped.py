"""A link over streamable HTTP on which every call has its own token.

What the node itself wants to know (which tools there are) carries a token of the node. The two are
never on one request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.ports import Clock
from interlock.upstreams.links.bearer import Settle
from interlock.upstreams.links.http import HttpLink
from interlock.upstreams.links.http_replies import PostReply
from interlock.upstreams.links.link import Ticket

LINE: Final = b"Authorization: Bearer "


class OwnLines(Protocol):
    """Whoever gives the node's own header line."""

    def own(self) -> bytes: ...


def as_header(token: str) -> bytes:
    """A token as a header line."""
    return b"%b%b\r\n" % (LINE, token.encode())


class _Own:
    """The node's own credentials there. They are renewed in time, so another try is of no use."""

    idle = False

    def __init__(self, label: str, own: Callable[[], bytes]) -> None:
        self._label = label
        self.current = own

    def refused(self, status: int, challenge: bytes, sent: bytes, settle: Settle) -> None:
        settle(InterlockError(UPSTREAM_UNAVAILABLE, _refusal(self._label, status)))


class StampedLink(HttpLink):
    """POSTs to one URL, each with the token of its caller."""

    def __init__(
        self,
        label: str,
        url: str,
        headers: Mapping[str, str],
        *,
        connections: int,
        clock: Clock,
        stamp: OwnLines,
    ) -> None:
        super().__init__(
            label,
            url,
            headers,
            connections=connections,
            clock=clock,
            bearer=_Own(label, stamp.own),
        )
        self._cut: tuple[bytes, bytes] = (b"", b"")
        """The head with the node's own line in it, and the same without it."""

    def send(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
        if not headers.startswith(LINE):
            super().send(ticket, payload, headers)
            return
        # Nobody lends it other credentials when these are refused.
        ticket.carrier = reply = PostReply(self, ticket)
        self._pool.send(
            b"%b%bContent-Length: %d\r\n\r\n%b" % (self._bare(), headers, len(payload), payload),
            reply,
        )

    def bad_status(
        self, ticket: Ticket, status: int, headers: dict[bytes, bytes], body: bytes
    ) -> None:
        if status in (401, 403):
            ticket.fail(
                UPSTREAM_UNAVAILABLE, _refusal(self.label, status), sent=True, status=status
            )
        else:
            super().bad_status(ticket, status, headers, body)

    def _bare(self) -> bytes:
        whole, bare = self._cut
        if whole is not self._prefix:
            bare = self._prefix.replace(self._line, b"", 1) if self._line else self._prefix
            self._cut = (self._prefix, bare)
        return bare


def _refusal(label: str, status: int) -> str:
    return (
        f"{label} refused the token that this node made (HTTP {status}): let it trust the keys at "
        "/.well-known/jwks.json, or turn `minted_tokens` off."
    )
