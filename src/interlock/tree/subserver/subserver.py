"""The public class: tools by decorator, registering with a node. See the package's docstring."""

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
    dial_of,
    known_as,
    parent_of,
    tell_on_stderr,
    working,
)

_FAREWELL: Final = 1.5
"""How long a node may take to hear that this subserver leaves, when the program is to end."""
_NOTHING: Final = object()
_OFFERS: Final = ax.SubserverCapabilities(tools=True, resources=False, notifications=True)
_USAGE: Final = (
    "Where is the node? Name it: {program} ws://127.0.0.1:8420/ax (or wss://…, unix:/path/ax.sock),"
    " or let a node start this program with --stdio and `transport: ax`."
)
Function = TypeVar("Function", bound=Callable[..., Any])


class Subserver:
    """A program's tools, in the tree of a node."""

    def __init__(
        self,
        segment: str,
        *,
        version: str = "0",
        instructions: str | None = None,
        subserver_id: str | None = None,
        transport_class: str = ax.NATIVE,
    ) -> None:
        """`segment` is what the tools' names begin with: a-z, 0-9, _ and -. `subserver_id`: a UUID
        that stays the same for ever, for programs that have no folder to keep one in.
        `transport_class`: what it stands in front of, such as `uart_cbor`, if that is a device."""
        if not ax.is_segment(segment) or segment in ax.RESERVED_SEGMENTS:
            raise ValueError(f"{segment!r} cannot be a segment: use 1 to 63 of a-z, 0-9, _ and -.")
        if subserver_id is not None and not ax.is_uuid(subserver_id):
            raise ValueError(f"{subserver_id!r} is not a UUID.")
        if transport_class not in ax.TRANSPORT_CLASSES:
            raise ValueError(f"{transport_class!r} is none of {', '.join(ax.TRANSPORT_CLASSES)}.")
        self.segment = segment
        self._transport_class = transport_class
        self._about = ServerDescription(
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
        """Offer a function as a tool. Do so before it connects."""
        capability = {
            "latency_class": latency_class, "consistency": consistency, "mutable": mutable,
            "reversible": reversible, "idempotent": idempotent, "auth_scope": auth_scope,
            "cost_class": cost_class, "availability": availability,
            "schema_version": schema_version,
        }  # fmt: skip

        def offer(function: Function) -> Function:
            called = name or function.__name__
            if called in self._tools:
                raise ValueError(f"There is a tool {called!r} already: give this one another name.")
            if not ax.is_segment(called):
                raise ValueError(
                    f"{called!r} cannot be the name of a tool: use 1 to 63 of a-z, 0-9, _ and -, "
                    'or give it another one: tool(name="…").'
                )
            self._tools[called] = FunctionTool(
                function, name=called, title=title, description=description, capability=capability
            )
            return function

        return offer

    # -- connected

    @asynccontextmanager
    async def connected(
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
        """Registered with a node for as long as the block runs. A node that cannot be reached is
        waited for, and looked for again when it is lost. Raises InterlockError when it does not
        want this subserver: before the block, or out of it when it changes its mind."""
        parent = parent_of(
            url, self.segment, backup, token=token, heartbeat=heartbeat, authority=authority,
            authority_key=authority_key, ca=ca, certificate=certificate, key=key,
        )  # fmt: skip
        if self._registrant is not None:
            raise RuntimeError("This subserver is connected already.")
        with known_as(parent, self._id) as subserver_id:
            standing = RegistrationState(parent)
            self._loop = asyncio.get_running_loop()
            registrant = self._registrant = Registrant(
                parent=parent,
                subserver_id=subserver_id,
                transport_class=self._transport_class,
                role="leaf",
                converse=self._converse,
                on_state=standing.moved,
                offers=_OFFERS,
                once=url == STDIO,
                stubborn=False,
                dial=dial_of(parent),
            )
            registrant.begin()
            try:
                await standing.until_registered()
                async with standing.cancel_on_end():
                    yield self
            finally:
                self._registrant = self._conversation = self._loop = None
                await registrant.end()

    def run(self, url: str | None = None, **settings: Any) -> None:
        """Serve until the program is interrupted, the node that started it goes, or the node does
        not want it any more. `settings` are those of `connected`. Without `url` it stands on the
        command line. How it stands with the node is told on stderr."""
        place = url or _named_on_the_command_line()
        tell_on_stderr()
        try:
            asyncio.run(self._run(place, settings))
        except InterlockError as error:
            raise SystemExit(f"{sys.argv[0]}: {error.message}") from None

    async def _run(self, url: str, settings: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        serving = loop.create_task(self._serve(url, settings))
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        stopping = loop.create_task(stopped.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            serving.cancel()
            # A node that hangs is not waited for any longer than this.
            await asyncio.wait([serving], timeout=_FAREWELL)
        elif not serving.cancelled():
            serving.result()

    async def _serve(self, url: str, settings: dict[str, Any]) -> None:
        async with self.connected(url, **settings):
            if url == STDIO and self._registrant is not None:
                await self._registrant.until_over()
            else:
                await asyncio.get_running_loop().create_future()

    # -- what goes up the tree

    @property
    def status(self) -> ParentStatus | None:
        """How it stands with the node. None: it is not connected."""
        return None if self._registrant is None else self._registrant.status()

    async def notify(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        event_id: str | None = None,
        causal_parent: Any = _NOTHING,
    ) -> None:
        """Send a notification. From inside a tool it is for that call's caller, else for everybody
        who is connected. `event_id` is a UUID; `causal_parent` that of the event that led to
        this one, or None where there was none. Without a node it is lost."""
        self._tell(method, dict(params or {}), event_id, causal_parent)

    def log(
        self,
        level: str,
        data: Any,
        *,
        logger: str | None = None,
        event_id: str | None = None,
        causal_parent: Any = _NOTHING,
    ) -> None:
        """Send a log message: `debug`, `info`, `notice`, `warning`, `error`, … For whom: as with
        `notify`."""
        if level not in mcp.LOG_LEVELS:
            raise ValueError(f"{level!r} is not one of {', '.join(mcp.LOG_LEVELS)}.")
        wanted = None if self._conversation is None else self._conversation.level
        if wanted is not None and mcp.LOG_LEVELS.index(level) < mcp.LOG_LEVELS.index(wanted):
            return
        params = {"level": level, "data": data, **({} if logger is None else {"logger": logger})}
        self._tell(mcp.LOG_MESSAGE, params, event_id, causal_parent)

    def _tell(
        self, method: str, params: dict[str, Any], event_id: str | None, causal_parent: Any
    ) -> None:
        about: dict[str, Any] = {}
        if event_id is not None:
            about[ax.EVENT_ID] = event_id
        if causal_parent is not _NOTHING:
            about[ax.CAUSAL_PARENT] = causal_parent
        for one in about.values():
            if one is not None and not ax.is_uuid(one):
                raise ValueError(f"{one!r} is not a UUID.")
        work = working.get()
        about[ax.REQUEST] = request = None if work is None else work.about()
        registrant, loop = self._registrant, self._loop
        if registrant is None or loop is None or isinstance(request, UnsetType):
            return
        params["_meta"] = {**params.get("_meta", {}), **about}
        said = jsonrpc.encode_value(params)
        if _running_loop() is loop:
            registrant.tell(method, said)
        else:
            # Plain functions run in threads.
            loop.call_soon_threadsafe(registrant.tell, method, said)

    def _converse(self, channel: Channel, registrant: Registrant) -> SubserverConversation:
        self._conversation = SubserverConversation(channel, registrant, self._tools, self._about)
        return self._conversation


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _named_on_the_command_line() -> str:
    given = sys.argv[1:]
    if given == ["--stdio"]:
        return STDIO
    if len(given) == 1 and not given[0].startswith("-"):
        return given[0]
    raise SystemExit(_USAGE.format(program=sys.argv[0]))
