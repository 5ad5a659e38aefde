"""A subserver's side of the channel to its parent: serves its tools, and asks to be registered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.channels.channel import Channel
from interlock.errors import ROUTE_MISMATCH, InterlockError, ProtocolError
from interlock.protocol import jsonrpc, mcp
from interlock.protocol import mcpax as ax
from interlock.protocol.jsonrpc import BadMessage, decode_members, decode_message, encode_value
from interlock.sdk.mcp_server import About, Conversation, Request
from interlock.sdk.tool import ServedTool
from interlock.tree.registrant import Asking, RefusedError, Registrant, read_ended


class Work(msgspec.Struct, eq=False):
    """A call that is being worked on, for what is said meanwhile."""

    id: Raw
    task: asyncio.Task[bytes | None] | None = None

    def about(self) -> Raw | UnsetType | None:
        """Which request something said now is about: None, when that is answered. UNSET: nobody
        waits for it any more, and nobody else may hear of it."""
        task = self.task
        if task is None or not task.done():
            return UNSET if task is not None and task.cancelling() else self.id
        return UNSET if task.cancelled() else None


working: ContextVar[Work | None] = ContextVar("working", default=None)
"""What whoever speaks is working on, also in a thread of its own."""


class ParentConversation(Conversation):
    """One parent."""

    ax = True

    def __init__(
        self,
        channel: Channel,
        registrant: Registrant,
        tools: Mapping[str, ServedTool],
        about: About,
    ) -> None:
        super().__init__(channel.send, tools, about)
        self._registrant = registrant
        self._asking = Asking(channel.send)
        self.ended_by: RefusedError | None = None

    def take(self, data: bytes) -> None:
        """A message from the parent."""
        try:
            message = decode_message(data)
        except ProtocolError as error:
            self.refuse(error.id if isinstance(error, BadMessage) else jsonrpc.NULL, error)
            return
        if isinstance(message, list):
            self.receive(data)
        elif message.method is UNSET:
            self._asking.answered(message)
        elif message.method == ax.IDENTIFY and isinstance(message.id, Raw):
            identity = encode_value(self._registrant.identity())
            self._send(jsonrpc.result_response(message.id, identity))
        elif message.method == ax.SESSION_ENDED:
            self.ended_by = read_ended(message)
        else:
            self.serve(message)

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        return self._asking.request(method, params)

    def announce(self, method: str, params: bytes | Raw | None) -> None:
        self._send(jsonrpc.notification(method, params))

    def closed(self) -> None:
        self._asking.give_up()
        self.close()

    def _call(self, request: Request) -> bytes | asyncio.Task[bytes | None]:
        work = Work(Raw(bytes(request.id)))
        before = working.set(work)
        try:
            answer = super()._call(request)
        finally:
            working.reset(before)
        if isinstance(answer, asyncio.Task):
            work.task = answer
        return answer

    def _check(self, request: Request) -> None:
        """A call must have come the right way. Raises InterlockError."""
        if request.method != mcp.TOOLS_CALL or isinstance(request.raw, UnsetType):
            return
        meta: Any = decode_members(request.raw).get("_meta")
        hop = None if meta is None else ax.read_hop(decode_members(meta))
        if hop is None:
            return
        here, name = self._registrant.assigned_segment, request.params.name
        if hop.route[hop.cursor] != here or hop.rest != name:
            raise InterlockError(
                ROUTE_MISMATCH, f"This is {here or 'nobody'}, and the call came by another way."
            )
