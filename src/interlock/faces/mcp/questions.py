"""What servers have asked one client, and the answers that come back.

The ids are the session's own and never used twice, so an answer finds its question whichever
server put it. A progress token is the question's own id for the same reason.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Raw

from interlock.call import Ask, Call
from interlock.errors import INTERNAL, InterlockError
from interlock.faces.mcp.reading import read_params
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.jsonrpc import Message

_MOST_OPEN: Final = 100
"""So many questions may wait for one client; more would only pile up."""


class Questions:
    """The questions that one client has not answered yet."""

    __slots__ = ("_last", "open")

    def __init__(self) -> None:
        self.open: dict[bytes, tuple[Ask, Call | None]] = {}
        """Each with the call that it is about, by the raw id under which the client was asked."""
        self._last = 0

    @property
    def full(self) -> bool:
        return len(self.open) >= _MOST_OPEN

    def word(self, ask: Ask) -> tuple[bytes, bytes]:
        """A new id, and the request that puts the question under it."""
        self._last = id = self._last + 1
        params = ask.params
        if params and ask.progress_token is not None:
            members = jsonrpc.decode_members(params)
            if "_meta" in members:
                meta = jsonrpc.decode_members(members["_meta"])
                meta[mcp.META_PROGRESS_TOKEN] = Raw(b"%d" % id)
                members["_meta"] = Raw(jsonrpc.encode_members(meta))
                params = jsonrpc.encode_members(members)
        return b"%d" % id, jsonrpc.request(id, ask.method, params or None)

    def answered(self, response: Message) -> None:
        """The client's answer goes to its question; one that nobody waits for goes nowhere."""
        found = None if response.id is UNSET else self.open.pop(bytes(response.id), None)
        if found is None:
            return
        ask = found[0]
        if response.error is not UNSET:
            error = jsonrpc.decode_error(response.error)
            ask.refuse(error.code, error.message, None if error.data is UNSET else error.data)
        elif response.result is not UNSET:
            ask.reply(mcp.past_this_hop(response.result))

    def progress(self, notification: Message) -> None:
        """How an answer comes along, told in the token of whoever asked."""
        try:
            members = read_params(notification)
        except InterlockError:
            # Nothing can be made of it, and nobody waits for an answer.
            return
        token = members.get("progressToken")
        found = None if token is None else self.open.get(bytes(token))
        if found is None:
            return
        ask = found[0]
        if ask.progress_token is None or ask.on_progress is None:
            return
        members["progressToken"] = Raw(ask.progress_token)
        ask.on_progress(mcp.past_this_hop(jsonrpc.encode_members(members)))

    def forget(self, ask: Ask) -> tuple[bytes, Call | None] | None:
        """The id and the call of a question that is no longer asked. None: it was answered."""
        for id, (one, call) in self.open.items():
            if one is ask:
                del self.open[id]
                return id, call
        return None

    def refuse_all(self, why: str) -> None:
        asks, self.open = self.open, {}
        for ask, _ in asks.values():
            ask.refuse(INTERNAL.code, why)
