"""The public class `Subserver`. See the docstring of the package."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from msgspec import UnsetType

from interlock.channels.channel import Channel
from interlock.errors import InterlockError
from interlock.protocol import jsonrpc, mcp
from interlock.protocol import mcpax as ax
from interlock.sdk.functions import FunctionTool
from interlock.sdk.mcp_server import ServerDescription
from interlock.tree.registrant import Registrant
from interlock.tree.status import ParentStatus
from interlock.tree.subserver.connection import (
    STDIO,
    RegistrationState,
    SubserverConversation,
    choose_dialer,
    create_parent_config,
    current_call,
    lock_subserver_id,
    log_to_stderr,
)

_LEAVE_TIMEOUT_SECONDS: Final = 1.5
"""The time limit for the deregistration when the program stops."""
_UNSET: Final = object()
_CAPABILITIES: Final = ax.SubserverCapabilities(tools=True, resources=False, notifications=True)
_USAGE: Final = (
    "The address of the node is missing. Run: {program} ws://127.0.0.1:8420/ax (or wss://…, "
    "unix:/path/ax.sock). Or let a node start this program with --stdio and `transport: ax`."
)
Function = TypeVar("Function", bound=Callable[..., Any])


class Subserver:
    """A program that offers its tools in the tree of a node."""

    def __init__(
        self,
        segment: str,
        *,
        version: str = "0",
        instructions: str | None = None,
        subserver_id: str | None = None,
        transport_class: str = ax.NATIVE,
    ) -> None:
        """Create a subserver.

        Args:
            segment: the first part of the tool names, of a-z, 0-9, _ and -.
            version: the version of the program.
            instructions: a text for models about the use of the tools.
            subserver_id: a permanent UUID, for programs without a state folder.
            transport_class: the transport to a device behind the subserver, such as `uart_cbor`.
        """
        if not ax.is_segment(segment) or segment in ax.RESERVED_SEGMENTS:
            raise ValueError(
                f"{segment!r} is not a valid segment. Use 1 to 63 characters of a-z, 0-9, _ and -."
            )
        if subserver_id is not None and not ax.is_uuid(subserver_id):
            raise ValueError(f"{subserver_id!r} is not a UUID.")
        if transport_class not in ax.TRANSPORT_CLASSES:
            raise ValueError(
                f"transport_class must be one of {', '.join(ax.TRANSPORT_CLASSES)}. "
                f"Found {transport_class!r}."
            )
        self.segment = segment
        self._transport_class = transport_class
        self._description = ServerDescription(
            {"name": segment, "version": version}, instructions, logs=True
        )
        self._id = subserver_id
        self._tools: dict[str, FunctionTool] = {}
        self._registrant: Registrant | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._conversation: SubserverConversation | None = None

    def tool(
        self,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        latency_class: str | None = None,
        consistency: str | None = None,
        mutable: bool | None = None,
        reversible: bool | None = None,
        idempotent: bool | None = None,
        auth_scope: str | None = None,
        cost_class: str | None = None,
        availability: str | None = None,
        schema_version: str | None = None,
    ) -> Callable[[Function], Function]:
        """Register a function as a tool. Call it before `connect` or `run`."""
        capability = {
            "latency_class": latency_class, "consistency": consistency, "mutable": mutable,
            "reversible": reversible, "idempotent": idempotent, "auth_scope": auth_scope,
            "cost_class": cost_class, "availability": availability,
            "schema_version": schema_version,
        }  # fmt: skip

        def register(function: Function) -> Function:
            tool_name = name or function.__name__
            if tool_name in self._tools:
                raise ValueError(f"A tool {tool_name!r} exists already. Choose another name.")
            if not ax.is_segment(tool_name):
                raise ValueError(
                    f"{tool_name!r} is not a valid tool name. Use 1 to 63 characters of a-z, "
                    "0-9, _ "
                    'and -, or set another name: tool(name="…").'
                )
            self._tools[tool_name] = FunctionTool(
                function,
                name=tool_name,
                title=title,
                description=description,
                capability=capability,
            )
            return function

        return register

    # -- connection

    @asynccontextmanager
    async def connect(
        self,
        url: str,
        *,
        token: str | None = None,
        backup: Sequence[str] = (),
        heartbeat: float = 5.0,
        authority: str | None = None,
        authority_key: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
    ) -> AsyncIterator[Subserver]:
        """Register with a node while the block runs.

        An unreachable node is tried again without a limit, also when the connection is lost later.
        Raises InterlockError if the node rejects the subserver: before the block, or inside it if
        the node ends the registration later.

        Args:
            url: the address: `ws://…`, `wss://…` or `unix:…`.
            token: the bearer token.
            backup: addresses of other nodes, tried in this order.
            heartbeat: the interval in seconds. 0: no heartbeats.
            authority: the owner of the segment, such as `dns:edge01.example.com`.
            authority_key: the private key (PEM) that proves the authority.
            ca: the CA file of the node's certificate.
            certificate: the client certificate (PEM file).
            key: the file with the private key of the certificate.
        """
        parent = create_parent_config(
            url, self.segment, backup, token=token, heartbeat=heartbeat, authority=authority,
            authority_key=authority_key, ca=ca, certificate=certificate, key=key,
        )  # fmt: skip
        if self._registrant is not None:
            raise RuntimeError("The subserver is already connected.")
        with lock_subserver_id(parent, self._id) as subserver_id:
            state = RegistrationState(parent)
            self._loop = asyncio.get_running_loop()
            registrant = self._registrant = Registrant(
                parent=parent,
                subserver_id=subserver_id,
                transport_class=self._transport_class,
                role="leaf",
                create_conversation=self._create_conversation,
                on_state=state.on_state,
                offers=_CAPABILITIES,
                is_single_attempt=url == STDIO,
                retries_rejections=False,
                dial=choose_dialer(parent),
            )
            registrant.start()
            try:
                await state.wait_until_registered()
                async with state.cancel_on_end():
                    yield self
            finally:
                self._registrant = self._conversation = self._loop = None
                await registrant.end()

    def run(self, url: str | None = None, **settings: Any) -> None:
        """Serve until the program is stopped, the node that started it stops, or the node rejects
        the subserver permanently. State changes are logged to stderr.

        Args:
            url: the address of the node. None: take it from the command line.
            settings: the arguments of `connect`.
        """
        address = url or _read_address()
        log_to_stderr()
        try:
            asyncio.run(self._run(address, settings))
        except InterlockError as error:
            raise SystemExit(f"{sys.argv[0]}: {error.message}") from None

    async def _run(self, url: str, settings: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        serve_task = loop.create_task(self._serve(url, settings))
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        stop_task = loop.create_task(stopped.wait())
        await asyncio.wait([serve_task, stop_task], return_when=asyncio.FIRST_COMPLETED)
        stop_task.cancel()
        if not serve_task.done():
            serve_task.cancel()
            # Do not wait longer for a node that hangs.
            await asyncio.wait([serve_task], timeout=_LEAVE_TIMEOUT_SECONDS)
        elif not serve_task.cancelled():
            serve_task.result()

    async def _serve(self, url: str, settings: dict[str, Any]) -> None:
        async with self.connect(url, **settings):
            if url == STDIO and self._registrant is not None:
                await self._registrant.wait_until_ended()
            else:
                await asyncio.get_running_loop().create_future()

    # -- notifications

    @property
    def status(self) -> ParentStatus | None:
        """The state of the registration. None: not connected."""
        return None if self._registrant is None else self._registrant.status()

    async def notify(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        event_id: str | None = None,
        causal_parent: Any = _UNSET,
    ) -> None:
        """Send a notification. Without a connection it is dropped.

        Inside a tool, the notification goes to the caller of the tool, otherwise to all clients.

        Args:
            event_id: a UUID of the event.
            causal_parent: the UUID of the event that caused this one. None: there is no cause.
        """
        self._send(method, dict(params or {}), event_id, causal_parent)

    def log(
        self,
        level: str,
        data: Any,
        *,
        logger: str | None = None,
        event_id: str | None = None,
        causal_parent: Any = _UNSET,
    ) -> None:
        """Send a log message, to the same receivers as `notify`.

        Args:
            level: `debug`, `info`, `notice`, `warning`, `error`, …
        """
        if level not in mcp.LOG_LEVELS:
            raise ValueError(f"{level!r} is not one of {', '.join(mcp.LOG_LEVELS)}.")
        minimum_level = None if self._conversation is None else self._conversation.level
        if minimum_level is not None and mcp.LOG_LEVELS.index(level) < mcp.LOG_LEVELS.index(
            minimum_level
        ):
            return
        params = {"level": level, "data": data, **({} if logger is None else {"logger": logger})}
        self._send(mcp.LOG_MESSAGE, params, event_id, causal_parent)

    def _send(
        self, method: str, params: dict[str, Any], event_id: str | None, causal_parent: Any
    ) -> None:
        meta: dict[str, Any] = {}
        if event_id is not None:
            meta[ax.EVENT_ID] = event_id
        if causal_parent is not _UNSET:
            meta[ax.CAUSAL_PARENT] = causal_parent
        for value in meta.values():
            if value is not None and not ax.is_uuid(value):
                raise ValueError(f"{value!r} is not a UUID.")
        call_context = current_call.get()
        meta[ax.REQUEST] = request = (
            None if call_context is None else call_context.related_request_id()
        )
        registrant, loop = self._registrant, self._loop
        if registrant is None or loop is None or isinstance(request, UnsetType):
            return
        params["_meta"] = {**params.get("_meta", {}), **meta}
        encoded = jsonrpc.encode_value(params)
        if _get_running_loop() is loop:
            registrant.send_notification(method, encoded)
        else:
            # Functions without `async` run in threads.
            loop.call_soon_threadsafe(registrant.send_notification, method, encoded)

    def _create_conversation(
        self, channel: Channel, registrant: Registrant
    ) -> SubserverConversation:
        self._conversation = SubserverConversation(
            channel, registrant, self._tools, self._description
        )
        return self._conversation


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _read_address() -> str:
    arguments = sys.argv[1:]
    if arguments == ["--stdio"]:
        return STDIO
    if len(arguments) == 1 and not arguments[0].startswith("-"):
        return arguments[0]
    raise SystemExit(_USAGE.format(program=sys.argv[0]))
