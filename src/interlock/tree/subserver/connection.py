"""The connection of a subserver to its node: its address, its id, its state and its messages.

It is dialled and kept up by a `Registrant`. What happens to it is logged here, and awaited by the
author's program.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.channels.channel import Channel
from interlock.channels.dial import dial
from interlock.channels.lines import open_stdio
from interlock.core.config import ConfigError
from interlock.core.config.problems import BadValue
from interlock.core.config.quantities import check_parent_url
from interlock.core.instance_lock import segment_lock
from interlock.core.paths import make_private, state_home
from interlock.errors import ROUTE_MISMATCH, UPSTREAM_LOST, InterlockError, ProtocolError
from interlock.protocol import jsonrpc, mcp
from interlock.protocol import mcpax as ax
from interlock.protocol.jsonrpc import BadMessage, decode_members, decode_message, encode_value
from interlock.sdk.connection_state import ConnectionState
from interlock.sdk.mcp_server import Conversation, ServerDescription, ServerRequest
from interlock.sdk.tool import ServedTool
from interlock.tree.config import ParentConfig
from interlock.tree.registrant import (
    Dialer,
    ParentRejectionError,
    ParentRequests,
    Registrant,
    RegistrantState,
    advice,
    check_presented,
    read_ended,
)
from interlock.tree.store import TreeStore

_log = logging.getLogger("interlock.subserver")
STDIO: Final = "stdio:"
"""The address of the node that started this program."""
_FIELDS: Final = (
    "token", "authority", "authority_key", "ca", "certificate", "key", "heartbeat",
)  # fmt: skip


# -- the address and the id


def parent_of(url: str, segment: str, backup: Sequence[str], **settings: Any) -> ParentConfig:
    """Raises ConfigError for what cannot be used."""
    if url == STDIO:
        return ParentConfig(url=url, segment=os.environ.get(ax.SEGMENT_VARIABLE, segment))
    for one in (url, *backup):
        try:
            check_parent_url(one)
        except BadValue as bad:
            raise ConfigError.of(f"{one}: {bad.message}", bad.hint) from None
    parent = ParentConfig(url=url, segment=segment, backup=list(backup), **settings)
    check_presented(parent, {field: f"`{field}`" for field in _FIELDS})
    return parent


def dial_of(parent: ParentConfig) -> Dialer:
    """How it is dialled."""
    return _stdio if parent.url == STDIO else dial


async def _stdio(url: str, *, bearer: str | None = None, ssl: Any = None) -> Channel:
    return await open_stdio()


@contextmanager
def known_as(parent: ParentConfig, given: str | None) -> Iterator[str]:
    """The id by which the node knows this subserver again: the one given, by the author or by the
    node that started this program, or else one that is made once and kept. Nobody else on this
    machine has a kept one meanwhile. Raises InterlockError."""
    if given is None and parent.url == STDIO:
        told = os.environ.get(ax.ID_VARIABLE)
        given = told if ax.is_uuid(told) else None
    if given is not None:
        yield given
    elif parent.url == STDIO:
        yield _kept_id(parent)
    else:
        place = blake2b(f"{parent.url} {parent.segment}".encode(), digest_size=6).hexdigest()
        lock = state_home(os.environ) / "subservers" / f"{parent.segment}-{place}.lock"
        otherwise = "end that one first, or give this one another segment or a subserver_id"
        with segment_lock(lock, parent.segment, parent.url, advice=otherwise):
            yield _kept_id(parent)


def _kept_id(parent: ParentConfig) -> str:
    folder = state_home(os.environ)
    make_private(folder)
    store = TreeStore(folder / "subservers.db")
    try:
        return store.identity(f"{parent.url} {parent.segment}")
    finally:
        store.close()


# -- the state


def tell_on_stderr() -> None:
    """For a program that is nothing but a subserver. Whoever has set up logging is left alone."""
    if _log.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    # What it would say is said here already, in the words of a subserver.
    logging.getLogger("interlock.tree").setLevel(logging.ERROR)


class RegistrationState(ConnectionState):
    """The state of the registration: logs every change, and tells whoever awaits it."""

    def __init__(self, parent: ParentConfig) -> None:
        super().__init__()
        self._parent = parent
        self._registered = False
        self._before = False
        """Whether it was registered ever."""
        self._told = ""

    def moved(self, registrant: Registrant) -> None:
        """It has come to another state."""
        problem = registrant.problem
        if registrant.state is RegistrantState.REGISTERED:
            again = " again" if self._before else ""
            self._say(
                logging.INFO,
                f"registered{again} as {registrant.assigned_segment} at {registrant.url}",
            )
            self._registered = self._before = True
            self.set_ready()
        elif registrant.state is RegistrantState.WAITING and problem is not None:
            lost, self._registered = self._registered, False
            # A refusal that is the end of it is raised, and not told twice.
            if not registrant.refused or self._parent.backup:
                sentence = problem.message.rstrip(".")
                first = "" if lost else "not registered: "
                self._say(logging.WARNING, f"{first}{sentence}. Trying again.", always=lost)
        elif registrant.state is RegistrantState.ENDED:
            self._over(problem, refused=registrant.refused)

    def _say(self, level: int, sentence: str, *, always: bool = False) -> None:
        if always or sentence != self._told:
            _log.log(level, "%s", sentence)
        self._told = sentence

    def _over(self, problem: InterlockError | None, *, refused: bool) -> None:
        if self._before and not refused:
            # The node that started this program has gone, or it is told to end.
            return
        lost = problem or InterlockError(UPSTREAM_LOST, "It was ended before it was registered.")
        self.end(InterlockError(lost.failure, f"{lost.message} {advice(lost)}".strip(), lost.data))

    async def until_registered(self) -> None:
        """Raises InterlockError when that will not be."""
        await self.wait_until_ready()


# -- the messages


class ToolCallContext(msgspec.Struct, eq=False):
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


working: ContextVar[ToolCallContext | None] = ContextVar("working", default=None)
"""What whoever speaks is working on, also in a thread of its own."""


class SubserverConversation(Conversation):
    """One parent."""

    ax = True

    def __init__(
        self,
        channel: Channel,
        registrant: Registrant,
        tools: Mapping[str, ServedTool],
        about: ServerDescription,
    ) -> None:
        super().__init__(channel.send, tools, about)
        self._registrant = registrant
        self._asking = ParentRequests(channel.send)
        self.ended_by: ParentRejectionError | None = None

    def take(self, data: bytes) -> None:
        """A message from the parent."""
        try:
            message = decode_message(data)
        except ProtocolError as error:
            self.reject(error.id if isinstance(error, BadMessage) else jsonrpc.NULL, error)
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

    def _call(self, request: ServerRequest) -> bytes | asyncio.Task[bytes | None]:
        work = ToolCallContext(Raw(bytes(request.id)))
        before = working.set(work)
        try:
            answer = super()._call(request)
        finally:
            working.reset(before)
        if isinstance(answer, asyncio.Task):
            work.task = answer
        return answer

    def _check(self, request: ServerRequest) -> None:
        """A call must have come the right way. Raises InterlockError."""
        if request.method != mcp.TOOLS_CALL or isinstance(request.raw, UnsetType):
            return
        meta: Any = decode_members(request.raw).get("_meta")
        hop = None if meta is None else ax.read_hop(decode_members(meta))
        if hop is None:
            return
        here, name = self._registrant.assigned_segment, request.params.name
        if hop.route[hop.cursor] != here or hop.remaining_name != name:
            raise InterlockError(
                ROUTE_MISMATCH, f"This is {here or 'nobody'}, and the call came by another way."
            )
