"""The MCP client that sits at the near end of a link: ids, eras, progress, questions.

A peer may serve every caller of the node at once. Ids and progress tokens are its own, so callers
cannot collide; an answer that nobody waits for is dropped; an answer with an unknown id harms
nobody. What an upstream asks or says goes to the caller whom it is about: that of the request on
whose stream it came, else the only one who has any request under way. When that could be two
people, it goes to none of them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.call import Call, ClientSession, Outcome
from interlock.errors import UPSTREAM_LOST, UPSTREAM_PROTOCOL, ProtocolError
from interlock.pipeline.hearing import may_hear
from interlock.ports import Back
from interlock.protocol import jsonrpc, mcp
from interlock.upstreams.exchange import Exchange, answered_error
from interlock.upstreams.incoming import (
    CHANGED,
    Incoming,
    batch_of,
    decode_cancelled,
    decode_incoming,
    decode_progress,
    decode_updated,
)
from interlock.upstreams.links.link import Link, NobodyYet, Ticket
from interlock.upstreams.pacing import Pace
from interlock.upstreams.questions import Questions
from interlock.upstreams.said import EVERYBODY, about, signed
from interlock.upstreams.wording import Wording

_log = logging.getLogger("interlock.upstreams")

_NOT_CANCELLED: Final = frozenset({mcp.INITIALIZE, mcp.DISCOVER})
"""Requests that open a conversation: while there is none, nothing can be cancelled in it."""


_STILL_TALKED_OF: Final = 30.0
"""How long an upstream may still speak of a request that was given up."""
_OF_THE_TREE: Final = "notifications/mcpax/"
_BRACE: Final = ord("{")


class Peer:
    """One MCP connection to an upstream."""

    def __init__(
        self, label: str, link: Link, own_info: bytes, mask: Callable[[str], str] = str
    ) -> None:
        """`mask` makes the upstream's own words fit to be repeated."""
        self.label = label
        self.link = link
        self.pending: dict[int, Exchange] = {}
        self.answered = 0
        self.noise = 0
        self.era = mcp.Era.SESSION
        self.revision = ""
        self._wording = Wording(self.era, "", own_info, http=False)
        self.capabilities: dict[str, Any] = {}
        self.instructions: str | None = None
        self.server_info: dict[str, Any] = {}
        self._given_up: dict[int, tuple[object, float]] = {}
        self.questions = Questions(self)
        """What the upstream wants to know."""
        self.on_changed: Callable[[str], None] | None = None
        """Told which list is a new one: `tools`, `prompts` or `resources`."""
        self.on_updated: Callable[[str], None] | None = None
        """Told the URI of a resource that is not what it was."""
        self.on_acknowledged: Callable[[Raw], None] | None = None
        """Told what a subscription of ours will bring."""
        self.on_said: Callable[[str, bytes | Raw], None] | None = None
        """Told of every other notification that is about no request in particular."""
        self.mute = False
        """Whether nobody is to hear what the upstream says beside progress, and of lists and
        resources that are new ones."""
        self.on_lost: Callable[[str], None] | None = None
        self._speaks_ax = False
        self._stamp: Callable[[Call], bytes] | None = None
        self._shows: Callable[[Call], bytes] | None = None
        """The same, where it goes into the headers."""
        self.on_ax: Callable[[str, bytes | None, Raw | UnsetType], bool] | None = None
        """Takes what the other end says as a subserver, before anybody else: the method, the raw
        id of a request, the params. True: it was taken, and will be answered."""
        self.segment = ""
        """By what name those who hear it know the upstream. Empty: they need not be told."""
        self.pace: Pace | None = None
        """How fast the upstream may speak. None: as fast as it likes."""
        self.session: ClientSession | None = None
        """The only client that this peer speaks for, when it is one that stays connected."""
        self.promises = b"{}"
        """What a session server is told that its client can do."""
        self.private = False
        """Whether this peer speaks for one client only."""
        self.back: Back | None = None
        """Who is told of questions that are about no request in particular."""
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.own_info = own_info
        self.mask = mask
        # Not to be guessed: an upstream talked into answering twice must not hit upon an id.
        self._first_id = self._next_id = secrets.randbelow(2**40)
        early = link.receiver
        if isinstance(early, NobodyYet):
            self.noise += early.heard
        link.receiver = self

    # -- what goes out

    def adopt(self, era: mcp.Era, revision: str) -> None:
        """Speak this revision from now on."""
        self.era = era
        self.revision = revision
        self._wording = Wording(
            era,
            revision,
            self.own_info,
            http=self.link.is_http,
            ax=self._speaks_ax,
            stamp=self._stamp if self._speaks_ax else None,
        )

    @property
    def speaks_ax(self) -> bool:
        """Whether the other end is a node or a subserver that speaks MCP-AX."""
        return self._speaks_ax

    @speaks_ax.setter
    def speaks_ax(self, speaks: bool) -> None:
        self._speaks_ax = speaks
        self.adopt(self.era, self.revision)

    @property
    def stamp(self) -> Callable[[Call], bytes] | None:
        """Gives the token that goes with a call: as header lines on HTTP, as members of a `_meta`
        to whoever speaks MCP-AX. Others get none."""
        return self._stamp

    @stamp.setter
    def stamp(self, stamp: Callable[[Call], bytes] | None) -> None:
        self._stamp = stamp
        self._shows = stamp if self.link.is_http else None
        self.adopt(self.era, self.revision)

    def start(self, call: Call, back: Back) -> Exchange:
        """Send a caller's request on, in this upstream's own words."""
        self._next_id = id = self._next_id + 1
        exchange = Exchange(self, id, call.verb, call)
        meta, token = call.meta, None
        if (
            meta is not None
            and mcp.META_PROGRESS_TOKEN in meta
            and call.on_notification is not None
        ):
            exchange.token = token = meta[mcp.META_PROGRESS_TOKEN]
        wording = self._wording
        payload = wording.call(id, call, token)
        lines = b""
        if wording.with_headers:
            if call.route is wording.last_route and call.route is not None:
                lines = wording.last_lines
            else:
                lines = wording.header_lines(call.verb, call)
        if self._shows is not None:
            lines = self._shows(call) + lines
        self.pending[id] = exchange
        self.link.send(exchange, payload, lines)
        if exchange.error is not None:
            # It could not even be sent: the sender hears of that from here, and only from here.
            raise exchange.error
        exchange.back = back
        return exchange

    def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        stays_open: bool = False,
    ) -> Exchange:
        """Send a request of the node's own."""
        self._next_id = id = self._next_id + 1
        exchange = Exchange(self, id, method)
        payload = self._wording.own(id, method, jsonrpc.encode_value(params or {}))
        lines = self._wording.header_lines(method, None)
        self.pending[id] = exchange
        if stays_open:
            self.link.send_open(exchange, payload, lines)
        else:
            self.link.send(exchange, payload, lines)
        return exchange

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        encoded = None if params is None else jsonrpc.encode_value(params)
        self.link.post(jsonrpc.notification(method, encoded), b"")

    def abandon(self, exchange: Exchange, reason: str) -> None:
        """Forget a request, and tell the upstream to stop working on it."""
        if self.pending.pop(exchange.id, None) is None:
            return
        call = exchange.call
        if call is not None and not self.private and not self.link.is_http:
            # What the upstream still says about it must not be taken for another caller's.
            now = asyncio.get_running_loop().time()
            self._given_up[exchange.id] = (_party(exchange, call), now)
        if exchange.method not in _NOT_CANCELLED and not (
            self.link.is_http and self.era is mcp.Era.STATELESS
        ):
            # On stateless HTTP closing the stream says it all; everywhere else it must be said.
            self.notify(mcp.CANCELLED, {"requestId": exchange.id, "reason": reason})
        self.link.drop(exchange)

    # -- what comes in

    def deliver(self, data: bytes, ticket: Ticket | None = None) -> None:
        """A message from the upstream. Garbage is counted, and harms nobody."""
        try:
            if not data.isascii():
                data.decode()
            incoming = decode_incoming(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._unreadable(data, ticket)
            return
        if incoming.method is UNSET:
            result = incoming.result
            if result is not UNSET and (ticket is None or incoming.id == ticket.id):
                # Not `bytes(result)`: that costs twice as much.
                raw, exchange = b"" + result, None
                try:
                    glance = mcp.read_glance(raw)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    glance = mcp.STRANGE
                # Whatever can be read as one is an object.
                if glance is not mcp.STRANGE or raw[0] == _BRACE:
                    exchange = self.pending.pop(incoming.id, None)  # type: ignore[arg-type]
                if exchange is not None:
                    # The answer that everybody hopes for; anything else takes the long look.
                    self.answered += 1
                    call, back = exchange.call, exchange.back
                    if call is None or back is None or exchange.asks or not exchange.open:
                        exchange.succeed(Outcome(raw, self.era, glance))
                        return
                    # What `succeed` does for a caller's request, without the step into it. It and
                    # its carrier point at each other: taken apart, they are freed at once.
                    exchange.open = False
                    exchange.carrier = None
                    back.settled(call, Outcome(raw, self.era, glance), None)
                    return
            self._answer(incoming, ticket)
        elif incoming.id is UNSET:
            self._notification(incoming.method, incoming.params, ticket)
        else:
            id = jsonrpc.encode_value(incoming.id)
            if not self._takes_ax(incoming.method, id, incoming.params):
                self.questions.asked(incoming.method, id, incoming.params, ticket)

    def _unreadable(self, data: bytes, ticket: Ticket | None) -> None:
        """No message: a batch, where the revision has batches, or noise."""
        if self.revision in mcp.BATCH_REVISIONS:
            batch = batch_of(data)
            for item in batch:
                member = bytes(item)
                if member[:1] == b"{":
                    self.deliver(member, ticket)
            if batch:
                return
        self.noise += 1

    def undelivered(self, id: int, why: str) -> None:
        exchange = self.pending.get(id)
        if exchange is not None:
            exchange.fail(UPSTREAM_PROTOCOL, f"{self.label} answered, but: {why}", sent=True)

    def _answer(self, incoming: Incoming, ticket: Ticket | None) -> None:
        id = incoming.id
        if ticket is not None and id != ticket.id:
            if incoming.error is UNSET or isinstance(id, int):
                # Whatever it answers, it is not what was asked here.
                self.noise += 1
                return
            # An error about no request in particular (null, nothing, or a word: our own ids are
            # numbers). On a stream of its own it is clear which one it is about.
            id = ticket.id
        exchange = self.pending.pop(id, None)  # type: ignore[arg-type]
        if exchange is None:
            # The late answer to something that was given up is no fault of the upstream's.
            self._given_up.pop(id, None)  # type: ignore[arg-type]
            if not (isinstance(id, int) and self._first_id < id <= self._next_id):
                self.noise += 1
            return
        self.answered += 1
        result = incoming.result
        if result is not UNSET:
            exchange.fail(
                UPSTREAM_PROTOCOL, f"{self.label}: its result is not an object.", sent=True
            )
        elif incoming.error is not UNSET:
            error = jsonrpc.decode_error(incoming.error)
            exchange.fail_with(answered_error(exchange, error))
        else:
            exchange.fail(
                UPSTREAM_LOST, f"{self.label} answered with neither result nor error.", sent=True
            )

    def _notification(self, method: str, params: Raw | UnsetType, ticket: Ticket | None) -> None:
        if self._takes_ax(method, None, params):
            return
        said = Raw(b"{}") if params is UNSET else params
        try:
            if method == mcp.PROGRESS:
                self._progress(said)
            elif method in CHANGED:
                if self.on_changed is not None:
                    self.on_changed(CHANGED[method])
            elif method == mcp.RESOURCE_UPDATED:
                if self.on_updated is not None:
                    uri = decode_updated(said).uri
                    self._in_turn(partial(self.on_updated, uri), len(uri))
            elif method == mcp.ACKNOWLEDGED:
                if self.on_acknowledged is not None:
                    self.on_acknowledged(said)
            elif method == mcp.CANCELLED:
                self._cancelled(said)
            else:
                self._hear(method, said, ticket)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ProtocolError):
            self.noise += 1

    def _takes_ax(self, method: str, id: bytes | None, params: Raw | UnsetType) -> bool:
        """Whether it is said by a subserver to its aggregator, not by a server to its client."""
        if self.on_ax is None:
            return False
        if method.startswith("mcpax/") or method == mcp.INITIALIZE:
            return self.on_ax(method, id, params)
        return method == mcp.INITIALIZED

    def _cancelled(self, params: Raw) -> None:
        """The upstream no longer wants to know, or ends a subscription."""
        named = decode_cancelled(params)
        if named.request_id is UNSET:
            return
        id = bytes(named.request_id)
        if self.questions.withdrawn(id, named.reason or "The server no longer asks."):
            return
        try:
            exchange = self.pending.get(int(id))
        except ValueError:
            return
        if exchange is not None and exchange.method == mcp.LISTEN:
            # How some end a subscription.
            exchange.fail(UPSTREAM_LOST, f"{self.label} ended the subscription.", sent=True)

    def _in_turn(self, deliver: Callable[[], None], size: int) -> None:
        if self.pace is None:
            deliver()
        else:
            self.pace.give(deliver, size)

    def _hear(self, method: str, said: Raw, ticket: Ticket | None) -> None:
        """Something for whoever calls, or else for whoever is connected."""
        if self.mute:
            return
        params = signed(method, mcp.past_this_hop(said), self.segment)
        exchange, everybody = self._whom(method, said, ticket)
        call = None if exchange is None else exchange.call
        if exchange is None or call is None:
            if everybody:
                self._in_turn(partial(self._say, method, params), len(params))
        elif self.pace is None:
            self._tell(exchange, method, params)
        elif may_hear(call, method, params):
            self.pace.give(partial(self._tell_late, exchange, call, method, params), len(params))

    def _whom(self, method: str, said: Raw, ticket: Ticket | None) -> tuple[Exchange | None, bool]:
        """The request that something is about; where it is about none, whether all may hear it."""
        if not self._speaks_ax:
            exchange = self.whose(ticket)
            return exchange, exchange is None
        if method.startswith(_OF_THE_TREE):
            return None, True
        request = about(said)
        if request is not None:
            # What is over, or never was, is for nobody else.
            return self.pending.get(request), request == EVERYBODY
        exchange = self.whose(ticket)
        # While anybody calls, it may be about what they alone may know.
        return exchange, exchange is None and not self._is_called()

    def _is_called(self) -> bool:
        """Whether there is a caller whom something may be about, or was a short while ago."""
        if any(exchange.call is not None for exchange in self.pending.values()):
            return True
        return bool(self._given_up) and bool(self._lately_given_up())

    def _say(self, method: str, params: bytes) -> None:
        if self.on_said is not None:
            try:
                self.on_said(method, params)
            except Exception:
                # One client's trouble is not that of the link.
                _log.exception("%s: a client could not take %s", self.label, method)

    def _tell_late(self, exchange: Exchange, call: Call, method: str, params: bytes) -> None:
        """Something about a request, which may be answered by now."""
        session = call.session
        if exchange.open:
            self._tell(exchange, method, params)
        elif session is not None and session.alive and may_hear(call, method, params):
            session.tell(method, params)
        elif self.pace is not None:
            self.pace.lost()

    def _progress(self, params: Raw) -> None:
        token = decode_progress(params).progress_token
        exchange = self.pending.get(token) if isinstance(token, int) else None
        if exchange is None or exchange.token is None:
            return
        if self.pace is not None and not self.pace.lets_progress_by():
            return
        members = jsonrpc.decode_members(params)
        members["progressToken"] = Raw(exchange.token)
        self._tell(exchange, mcp.PROGRESS, mcp.past_this_hop(jsonrpc.encode_members(members)))

    def _tell(self, exchange: Exchange, method: str, params: bytes | Raw) -> None:
        call, back = exchange.call, exchange.back
        if call is None or back is None:
            return
        try:
            back.heard(call, method, params)
        except Exception:
            # One caller's trouble is not that of the others on this link.
            _log.exception("%s: a caller could not take %s", self.label, method)

    def whose(self, ticket: Ticket | None) -> Exchange | None:
        """The request that something is about. None: there is none, or it could be another's."""
        if isinstance(ticket, Exchange):
            return None if ticket.call is None else ticket
        latest: Exchange | None = None
        whose: object = None
        for exchange in self.pending.values():
            call = exchange.call
            if call is None:
                continue
            party = _party(exchange, call)
            if latest is not None and party != whose and not self.private:
                return None
            latest, whose = exchange, party
        if latest is not None and self._given_up and self._lately_given_up() - {whose}:
            # It may be about a request that is over for its caller, but not for the upstream.
            return None
        return latest

    def _lately_given_up(self) -> set[object]:
        late = asyncio.get_running_loop().time() - _STILL_TALKED_OF
        for id in [id for id, one in self._given_up.items() if one[1] < late]:
            del self._given_up[id]
        return {party for party, _ in self._given_up.values()}

    # -- the end

    def interrupted(self, ticket: Ticket) -> None:
        """The upstream hangs up and will go on later: so does the node, to its own client."""
        call = ticket.call if isinstance(ticket, Exchange) else None
        if call is not None and call.session is not None:
            call.session.hang_up(call)

    def retired(self, reason: str) -> None:
        """The link takes nothing more; what is under way may still be answered."""
        if not self.closed.done():
            self.closed.set_result(reason)
            if self.on_lost is not None:
                self.on_lost(reason)

    def lost(self, reason: str) -> None:
        """The link is gone: everybody who waits is told."""
        self.retired(reason)
        self.questions.drop(reason)
        for exchange in list(self.pending.values()):
            exchange.fail(
                UPSTREAM_LOST, f"{self.label} was lost during the call: {reason}", sent=True
            )

    async def close(self) -> None:
        await self.link.close()
        self.lost("closed by the node")


def _party(exchange: Exchange, call: Call) -> object:
    """Who may hear what is said about a request. Behind a parent there is somebody else each
    time, for all that a node knows."""
    return exchange.id if call.credentials.known_as else (call.caller, call.session)
