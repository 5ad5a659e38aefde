"""Methods to which the node responds itself: lists, log level, resource subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from interlock.core.call import Call, Outcome
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.names import AX, DOTTED, choose_style
from interlock.core.catalog.snapshot import View
from interlock.core.pipeline.internal_error import internal_error
from interlock.core.pipeline.notification_filter import read_level
from interlock.core.pipeline.subscriptions import ResourceSubscriptions
from interlock.core.ports import Upstream
from interlock.errors import METHOD_NOT_FOUND, InterlockError
from interlock.protocol.jsonrpc import decode_value
from interlock.protocol.mcp import (
    LIST_METHODS,
    METHODS,
    SET_LEVEL,
    SUBSCRIBE,
    TOOLS_LIST,
    UNSUBSCRIBE,
    Era,
    declares_capability,
    supports_ax,
)
from interlock.protocol.mcpx_terms import TOPIC_SERVER

_REQUIREMENTS: Final = {
    name: (method.capability, method.extension)
    for name, method in METHODS.items()
    if not method.to_client and (method.capability or method.extension)
    # Every node has tools.
    if method.capability != "tools"
}
"""The capability and the extension that at least one upstream must have for a method."""

EMPTY_OUTCOME: Final = Outcome(b"{}", Era.SESSION)
"""The outcome of a method without a result."""

FinishCall = Callable[[Call, Outcome | None, InterlockError | None], None]


class LocalMethods:
    """Handles methods that concern no upstream, or all upstreams."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        upstreams: Mapping[str, Upstream],
        subscriptions: ResourceSubscriptions,
        finish: FinishCall,
        names: str,
        view_of: Callable[[Call], View | None] = lambda _: None,
    ) -> None:
        """
        Args:
            names: the style of the tool names that clients see.
            view_of: returns the tools that a caller can see. None: all tools.
        """
        self.names = names
        self.handlers: dict[str, Callable[[Call], None]] = {
            **dict.fromkeys(LIST_METHODS, self._list),
            SET_LEVEL: self._set_level,
            SUBSCRIBE: self._subscribe,
            UNSUBSCRIBE: self._subscribe,
        }
        self._catalog = catalog
        self._upstreams = upstreams
        self._subscriptions = subscriptions
        self._finish = finish
        self._tasks: set[asyncio.Task[None]] = set()
        self._view_of = view_of

    def check_offered(self, method: str) -> None:
        """Reject a method that no upstream supports. Raises InterlockError."""
        requirement = _REQUIREMENTS.get(method)
        if requirement is not None and not any(
            declares_capability(upstream.capabilities, *requirement)
            for upstream in self._upstreams.values()
        ):
            raise InterlockError(METHOD_NOT_FOUND, f"No upstream of this node supports {method!r}.")

    def _list(self, call: Call) -> None:
        client = call.client
        # A parent adds its own prefix to names: it needs the original names.
        if call.credentials.assigned_name or supports_ax(client.capabilities):
            style = AX
        elif call.server == TOPIC_SERVER:
            # Capabilities in a topic use canonical names.
            style = DOTTED
        else:
            style = choose_style(client.name, self.names)
        view = self._view_of(call) if call.method == TOOLS_LIST else None
        page = self._catalog.current.page(call.method, client.era, style, call.cursor, view)
        self._finish(call, Outcome(page, client.era), None)

    def _set_level(self, call: Call) -> None:
        level = read_level((call.extra_params or {}).get("level"))
        session = call.session
        if session is None:
            raise InterlockError(METHOD_NOT_FOUND, f"{call.method!r} requires a session.")
        session.log_level = level
        for upstream in self._upstreams.values():
            if "logging" in upstream.capabilities:
                upstream.set_log_level(level, session)
        self._finish(call, EMPTY_OUTCOME, None)

    def _subscribe(self, call: Call) -> None:
        session = call.session
        upstream = self._upstreams.get(call.upstream)
        offers = None if upstream is None else upstream.capabilities.get("resources")
        if session is None or not isinstance(offers, dict) or not offers.get("subscribe"):
            raise InterlockError(
                METHOD_NOT_FOUND, f"The upstream of {call.name} does not support {call.method!r}."
            )
        uri = decode_value((call.extra_params or {})["uri"])
        if call.method == SUBSCRIBE:
            work = self._subscriptions.subscribe(session, call, call.upstream, uri)
        else:
            work = self._subscriptions.unsubscribe(session, call, call.upstream, uri)
        task = asyncio.get_running_loop().create_task(self._finish_after(call, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish_after(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            self._finish(call, EMPTY_OUTCOME, None)
        except InterlockError as error:
            self._finish(call, None, error)
        except Exception as bug:
            self._finish(call, None, internal_error(call, bug))
