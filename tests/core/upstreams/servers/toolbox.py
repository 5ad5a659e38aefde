"""A small MCP server of both generations, without a transport.

`receive` takes a decoded message and a `send` for the responses on the same channel. Nothing here
waits: a call that takes long is pending until another call releases it. Standard library only, so
that a process starts quickly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
Send = Callable[[Message], None]

REVISION = "io.modelcontextprotocol/protocolVersion"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
STATELESS = "2026-07-28"
SESSION = "2025-11-25"
INFO = {"name": "toolbox", "version": "1"}


def tool(name: str, **more: Any) -> Message:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


class ToolboxExit(Exception):
    """Raised by the `die` tool: the process must end without a response."""


class Toolbox:
    """A server of one upstream, on any number of channels."""

    def __init__(
        self, generations: str = "both", *, revision: str = SESSION, announces: bool = False
    ) -> None:
        self.stateless = generations in ("both", "stateless")
        self.session = generations in ("both", "session")
        self.revision = revision
        self.capabilities: Message = {"tools": {"listChanged": True} if announces else {}}
        names = ("echo", "report", "hold", "release", "cancelled", "die", "fail", "change")
        self.tools: list[Any] = [tool(name) for name in names]
        self.pages: dict[str | None, Message] | None = None
        self.pending_calls: dict[Any, tuple[Message, Send]] = {}
        self.cancelled: list[Any] = []
        self.listeners: dict[Any, Send] = {}
        self.filters: dict[Any, Message] = {}
        """What each listener asked for."""
        self.subscribed: set[str] = set()
        self.unwatchable: set[str] = set()
        """Resources of whose changes nobody is told."""
        self.lists = 0
        self.calls = 0
        self.initialized = 0
        self.received: list[Message] = []

    # -- one message

    def receive(self, message: Message, send: Send) -> None:
        self.received.append(message)
        method, id = message.get("method"), message.get("id")
        if method is None:
            return
        if id is None:
            self._notice(message)
            return
        params = message.get("params") or {}
        revision = params.get("_meta", {}).get(REVISION)
        if revision is not None and not self.stateless:
            send(error(id, -32602, "Invalid request parameters"))
        elif revision is not None and revision != STATELESS:
            send(error(id, -32022, "Unsupported", {"supported": [STATELESS]}))
        elif method == "server/discover" and self.stateless:
            send(self._result(message, self._discovery()))
        elif method == "initialize" and self.session:
            send(self._result(message, self._greeting()))
        elif method == "ping":
            send(self._result(message, {}))
        elif method == "tools/list":
            self.lists += 1
            send(self._result(message, self._page(params.get("cursor"))))
        elif method == "tools/call":
            self.calls += 1
            self._call(message, params["name"], params.get("arguments") or {}, send)
        elif method == "subscriptions/listen" and self.stateless:
            self._listen(id, params["notifications"], send)
        elif method in ("resources/subscribe", "resources/unsubscribe"):
            self._subscribe(message, method, params["uri"], send)
        else:
            send(error(id, -32601, f"Method not found: {method}"))

    def _listen(self, id: Any, requested: Message, send: Send) -> None:
        self.listeners[id] = send
        self.filters[id] = requested
        honoured = dict(requested)
        if "resourceSubscriptions" in requested:
            uris = requested["resourceSubscriptions"]
            honoured["resourceSubscriptions"] = [u for u in uris if u not in self.unwatchable]
        params = {"notifications": honoured, "_meta": {SUBSCRIPTION: id}}
        send(notification("notifications/subscriptions/acknowledged", params))

    def _subscribe(self, message: Message, method: str, uri: str, send: Send) -> None:
        if uri in self.unwatchable:
            send(error(message["id"], -32602, f"Nobody is told of {uri}."))
            return
        if method == "resources/subscribe":
            self.subscribed.add(uri)
        else:
            self.subscribed.discard(uri)
        send(self._result(message, {}))

    def update(self, uri: str) -> None:
        """Notify the listeners of a changed resource."""
        for id, send in list(self.listeners.items()):
            if uri in self.filters[id].get("resourceSubscriptions", ()):
                params = {"uri": uri, "_meta": {SUBSCRIPTION: id}}
                send(notification("notifications/resources/updated", params))

    def change(self, *names: str) -> None:
        """Change the tools without a notification."""
        self.tools = [tool(name) for name in names]

    def announce(self) -> None:
        """Notify every listener of a changed list."""
        for id, send in list(self.listeners.items()):
            send(list_changed({"_meta": {SUBSCRIPTION: id}}))

    def end_listening(self) -> None:
        """End every subscription with a result."""
        for id, send in list(self.listeners.items()):
            send(result(id, {"resultType": "complete", "_meta": {SUBSCRIPTION: id}}))
        self.listeners.clear()

    # -- tools

    def _call(self, message: Message, name: str, arguments: Message, send: Send) -> None:
        if name == "echo":
            send(self._text(message, arguments.get("text", "")))
        elif name == "report":
            token = message["params"]["_meta"]["progressToken"]
            for step in range(1, arguments["steps"] + 1):
                params = {"progressToken": token, "progress": step, "total": arguments["steps"]}
                send(notification("notifications/progress", params))
            send(self._text(message, "reported"))
        elif name == "hold":
            self.pending_calls[message["id"]] = (message, send)
        elif name == "release":
            for pending_call, reply in self.pending_calls.values():
                reply(self._text(pending_call, pending_call["params"]["arguments"].get("text", "")))
            count = len(self.pending_calls)
            self.pending_calls.clear()
            send(self._text(message, str(count)))
        elif name == "cancelled":
            send(self._text(message, json.dumps(self.cancelled)))
        elif name == "die":
            raise ToolboxExit
        elif name == "change":
            self.change(*arguments["names"])
            if not self.listeners:
                send(list_changed())
            self.announce()
            send(self._text(message, "changed"))
        elif name == "fail":
            send(error(message["id"], -32042, "It failed on purpose.", {"why": "asked"}))
        else:
            send(error(message["id"], -32602, f"Unknown tool: {name}"))

    def _notice(self, message: Message) -> None:
        method = message["method"]
        if method == "notifications/initialized":
            self.initialized += 1
        elif method == "notifications/cancelled":
            id = message["params"]["requestId"]
            self.cancelled.append(id)
            self.pending_calls.pop(id, None)
            self.listeners.pop(id, None)

    # -- answers

    def _greeting(self) -> Message:
        return {
            "protocolVersion": self.revision,
            "capabilities": self.capabilities,
            "serverInfo": INFO,
            "instructions": "A toolbox.",
        }

    def _discovery(self) -> Message:
        return {
            "supportedVersions": [STATELESS],
            "capabilities": self.capabilities,
            "instructions": "A toolbox.",
            "ttlMs": 0,
            "cacheScope": "private",
        }

    def _page(self, cursor: str | None) -> Message:
        if self.pages is not None:
            return self.pages[cursor]
        return {"tools": self.tools}

    def _text(self, message: Message, text: str) -> Message:
        return self._result(message, {"content": [{"type": "text", "text": text}]})

    def _result(self, message: Message, members: Message) -> Message:
        if REVISION in (message.get("params") or {}).get("_meta", {}):
            members = {
                **members,
                "resultType": "complete",
                "_meta": {"io.modelcontextprotocol/serverInfo": INFO},
            }
        return result(message["id"], members)


def result(id: Any, members: Message) -> Message:
    return {"jsonrpc": "2.0", "id": id, "result": members}


def error(id: Any, code: int, text: str, data: Any = None) -> Message:
    body = {"code": code, "message": text}
    if data is not None:
        body["data"] = data
    return {"jsonrpc": "2.0", "id": id, "error": body}


def notification(method: str, params: Message | None = None) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


def list_changed(params: Message | None = None) -> Message:
    return notification("notifications/tools/list_changed", params)
