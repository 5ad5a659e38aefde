"""The connection of a subserver to its node: address, id, state and messages.

A `Registrant` opens and maintains the connection. This module logs its events.
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
from interlock.core.config.problems import InvalidValueError
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
    check_credentials,
    read_session_end,
    suggest_fix,
)
from interlock.tree.store import TreeStore

_log = logging.getLogger("interlock.subserver")
STDIO: Final = "stdio:"
"""The address of the node that started this program."""
_FIELDS: Final = (
    "token", "authority", "authority_key", "ca", "certificate", "key", "heartbeat",
)  # fmt: skip


# -- address and id


def create_parent_config(
    url: str, segment: str, backup: Sequence[str], **settings: Any
) -> ParentConfig:
    """Create the settings for a parent. Raises ConfigError for invalid values."""
    if url == STDIO:
        return ParentConfig(url=url, segment=os.environ.get(ax.SEGMENT_VARIABLE, segment))
    for address in (url, *backup):
        try:
            check_parent_url(address)
        except InvalidValueError as error:
            raise ConfigError.of(f"{address}: {error.message}", error.hint) from None
    parent = ParentConfig(url=url, segment=segment, backup=list(backup), **settings)
    check_credentials(parent, {field: f"`{field}`" for field in _FIELDS})
    return parent


def choose_dialer(parent: ParentConfig) -> Dialer:
    """Return the function that opens a channel to the parent."""
    return _stdio if parent.url == STDIO else dial


async def _stdio(url: str, *, bearer: str | None = None, ssl: Any = None) -> Channel:
    return await open_stdio()


@contextmanager
def lock_subserver_id(parent: ParentConfig, subserver_id: str | None) -> Iterator[str]:
    """Hold the id of this subserver while the block runs.

    The id is set by the author or by the node that started this program. Otherwise it is created
    once and stored. A stored id is locked, so that no other process of this machine uses it at the
    same time. Raises InterlockError.
    """
    if subserver_id is None and parent.url == STDIO:
        assigned_id = os.environ.get(ax.ID_VARIABLE)
        subserver_id = assigned_id if ax.is_uuid(assigned_id) else None
    if subserver_id is not None:
        yield subserver_id
    elif parent.url == STDIO:
        yield _stored_id(parent)
    else:
        digest = blake2b(f"{parent.url} {parent.segment}".encode(), digest_size=6).hexdigest()
        lock_path = state_home(os.environ) / "subservers" / f"{parent.segment}-{digest}.lock"
        advice = "stop that subserver first, or use another segment or subserver_id"
        with segment_lock(lock_path, parent.segment, parent.url, advice=advice):
            yield _stored_id(parent)


def _stored_id(parent: ParentConfig) -> str:
    folder = state_home(os.environ)
    make_private(folder)
    store = TreeStore(folder / "subservers.db")
    try:
        return store.identity(f"{parent.url} {parent.segment}")
    finally:
        store.close()


# -- state


def log_to_stderr() -> None:
    """Log to stderr, for a program without its own logging configuration."""
    if _log.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    # This module logs the same events, in terms of a subserver.
    logging.getLogger("interlock.tree").setLevel(logging.ERROR)


class RegistrationState(ConnectionState):
    """The state of the registration. Logs every change and wakes waiting tasks."""

    def __init__(self, parent: ParentConfig) -> None:
        super().__init__()
        self._parent = parent
        self._registered = False
        self._was_registered = False
        """True after the first registration."""
        self._last_message = ""

    def on_state(self, registrant: Registrant) -> None:
        """Handle a state change."""
        problem = registrant.problem
        if registrant.state is RegistrantState.REGISTERED:
            suffix = " again" if self._was_registered else ""
            self._log_message(
                logging.INFO,
                f"registered{suffix} as {registrant.assigned_segment} at {registrant.url}",
            )
            self._registered = self._was_registered = True
            self.set_ready()
        elif registrant.state is RegistrantState.WAITING and problem is not None:
            was_registered, self._registered = self._registered, False
            # A permanent rejection is raised, so it is not logged, too.
            if not registrant.is_rejected or self._parent.backup:
                message = problem.message.rstrip(".")
                prefix = "" if was_registered else "not registered: "
                self._log_message(
                    logging.WARNING, f"{prefix}{message}. Trying again.", always=was_registered
                )
        elif registrant.state is RegistrantState.ENDED:
            self._end_with_error(problem, is_rejected=registrant.is_rejected)

    def _log_message(self, level: int, message: str, *, always: bool = False) -> None:
        if always or message != self._last_message:
            _log.log(level, "subserver: %s", message)
        self._last_message = message

    def _end_with_error(self, problem: InterlockError | None, *, is_rejected: bool) -> None:
        if self._was_registered and not is_rejected:
            # The node that started this program has stopped, or the program is stopping.
            return
        error = problem or InterlockError(UPSTREAM_LOST, "Stopped before the registration.")
        self.end(
            InterlockError(
                error.failure, f"{error.message} {suggest_fix(error)}".strip(), error.data
            )
        )

    async def wait_until_registered(self) -> None:
        """Wait for the registration. Raises InterlockError if it is rejected."""
        await self.wait_until_ready()


# -- messages


class ToolCallContext(msgspec.Struct, eq=False):
    """A running call, for the notifications that it sends."""

    id: Raw
    task: asyncio.Task[bytes | None] | None = None

    def related_request_id(self) -> Raw | UnsetType | None:
        """Return the request that a notification belongs to.

        None: the request has its response, so the notification belongs to no request. UNSET: the
        request was cancelled, so the notification must not be sent.
        """
        task = self.task
        if task is None or not task.done():
            return UNSET if task is not None and task.cancelling() else self.id
        return UNSET if task.cancelled() else None


current_call: ContextVar[ToolCallContext | None] = ContextVar("working", default=None)
"""The call that the present code works for, also in its thread."""


class SubserverConversation(Conversation):
    """The conversation with one parent."""

    ax = True

    def __init__(
        self,
        channel: Channel,
        registrant: Registrant,
        tools: Mapping[str, ServedTool],
        description: ServerDescription,
    ) -> None:
        super().__init__(channel.send, tools, description)
        self._registrant = registrant
        self._parent_requests = ParentRequests(channel.send)
        self.ended_by: ParentRejectionError | None = None

    def process_message(self, data: bytes) -> None:
        """Process a message from the parent."""
        try:
            message = decode_message(data)
        except ProtocolError as error:
            self.reject(error.id if isinstance(error, BadMessage) else jsonrpc.NULL, error)
            return
        if isinstance(message, list):
            self.receive(data)
        elif message.method is UNSET:
            self._parent_requests.handle_response(message)
        elif message.method == ax.IDENTIFY and isinstance(message.id, Raw):
            identity = encode_value(self._registrant.identity())
            self._send(jsonrpc.result_response(message.id, identity))
        elif message.method == ax.SESSION_ENDED:
            self.ended_by = read_session_end(message)
        else:
            self.serve(message)

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        return self._parent_requests.request(method, params)

    def send_notification(self, method: str, params: bytes | Raw | None) -> None:
        self._send(jsonrpc.notification(method, params))

    def closed(self) -> None:
        self._parent_requests.fail_all()
        self.close()

    def _call(self, request: ServerRequest) -> bytes | asyncio.Task[bytes | None]:
        call_context = ToolCallContext(Raw(bytes(request.id)))
        token = current_call.set(call_context)
        try:
            response = super()._call(request)
        finally:
            current_call.reset(token)
        if isinstance(response, asyncio.Task):
            call_context.task = response
        return response

    def _check(self, request: ServerRequest) -> None:
        """Check the route of a call (MCP-AX). Raises InterlockError."""
        if request.method != mcp.TOOLS_CALL or isinstance(request.raw, UnsetType):
            return
        meta: Any = decode_members(request.raw).get("_meta")
        hop = None if meta is None else ax.read_hop(decode_members(meta))
        if hop is None:
            return
        own_segment, name = self._registrant.assigned_segment, request.params.name
        if hop.route[hop.cursor] != own_segment or hop.remaining_name != name:
            raise InterlockError(
                ROUTE_MISMATCH,
                f"The route of the call does not lead to {own_segment or 'this subserver'}.",
            )
