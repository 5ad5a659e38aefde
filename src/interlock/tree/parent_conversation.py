"""The conversation with the parent of this node: MCP and MCP-AX on one channel.

The parent is an MCP client of this node. In addition, this node sends requests to the parent
(registration, heartbeats), the parent can ask for the identity and the tree of this node, and its
calls contain their route through the tree.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from interlock.core.call import Call, Client, Credentials
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.conversation import Conversation
from interlock.core.server.mcp.requests import read_client
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.errors import INTERNAL, INTERNAL_ERROR_TEXT, TOO_BUSY, InterlockError, ProtocolError
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol import jsonrpc, mcp
from interlock.protocol import mcpax as ax
from interlock.protocol.jsonrpc import Message
from interlock.tree.registrant import ParentRejectionError, ParentRequests, read_session_end

AX_PROTOCOL: Final = "ax"
PARENT_NAME: Final = "parent"
"""The caller name of the parent."""
_PARAMS_END: Final = b"}}"
"""The end of a call whose last member is `params`."""
_REQUEST_KEY: Final = ax.REQUEST.encode()
_MAX_CACHED_METAS: Final = 512
_MAX_TREE_REQUESTS: Final = 4
"""The maximum number of concurrent tree requests. Each one asks all nodes below."""
_MAX_CACHED_LENGTH: Final = 4_096

_log = logging.getLogger("interlock.tree")

TreeSource = Callable[[Raw | UnsetType], Any]
"""Returns this node's part of the tree, or an awaitable for it, for the raw params of a request."""


class _CallMeta(NamedTuple):
    """The parsed `_meta` of a call."""

    client: Client
    meta: dict[str, Raw]
    hop: ax.Hop | None
    credentials: Credentials


class AxConversation(Conversation):
    """The conversation with one parent. It receives and sends complete messages."""

    speaks_ax = True
    max_open_requests = 100_000
    """The callers of the whole tree share this channel. The pipeline has a limit for all."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        server_info: ServerInfo,
        listeners: ChangeListeners,
        send: Callable[[bytes], None],
        peer: str,
        identify: Callable[[], ax.SubserverIdentity],
        tree: TreeSource | None = None,
        on_keys: Callable[[Raw], None] | None = None,
    ) -> None:
        """Create the conversation.

        Args:
            peer: the origin of the channel.
            identify: returns the identity of this node.
            tree: returns this node's part of the tree.
            on_keys: called when the parent changes the keys with which it signs.
        """
        super().__init__(
            pipeline=pipeline,
            server_info=server_info,
            listeners=listeners,
            send=send,
            face=AX_PROTOCOL,
            credentials=Credentials(peer, assigned_name=PARENT_NAME),
        )
        self._identify = identify
        self._tree = tree
        self._on_keys = on_keys
        self._parent_requests = ParentRequests(send)
        self._tree_tasks: set[asyncio.Task[None]] = set()
        self.ended_by: ParentRejectionError | None = None
        self._cached_metas: BoundedDict[bytes, _CallMeta] = BoundedDict(_MAX_CACHED_METAS)
        """Parsed `_meta` objects, because the parent sends similar ones with every call."""
        self._last_meta = b""
        self._last_call_meta: _CallMeta | None = None
        self._last_suffix = b""
        self._last_suffix_offset = 0
        """The last `_meta` as the end of a message, and the (negative) offset of its beginning."""
        # Look up these attributes once, not for every call.
        self.max_open_requests = type(self).max_open_requests
        self._notification_callback = self._on_call_notification
        self._over = self._done

    def process_message(self, data: bytes) -> None:
        offset = self._last_suffix_offset
        if data[offset:] == self._last_suffix:
            # The end of the message equals the last `_meta`, which is long. It is really a `_meta`
            # if the rest of the message is a complete call without one.
            request = mcp.decode_tool_call(data[:offset] + _PARAMS_END)
            if request is not None and request.params.meta is UNSET:
                if self._begin(request, self._last_call_meta):
                    return
                super().process_message(data)
                return
        request = mcp.decode_tool_call(data)
        if request is None or not self._begin(request, self._find_call_meta(request, data)):
            super().process_message(data)

    # -- requests and notifications to the parent

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        return self._parent_requests.request(method, params)

    def send_notification(self, method: str, params: bytes | Raw | None) -> None:
        session = self._session
        if session is not None and (
            method == mcp.LOG_MESSAGE or mcp.supports_ax(session.client.capabilities)
        ):
            # The parent is a client with a session, which sends the notification.
            return
        if method != mcp.INITIALIZED:
            # State explicitly that the notification belongs to no request.
            params = add_request_id(b"{}" if params is None else params, jsonrpc.NULL)
        self._send(jsonrpc.notification(method, params))

    def closed(self) -> None:
        self._parent_requests.fail_all()
        for task in list(self._tree_tasks):
            task.cancel()
        super().closed()

    def _response(self, message: Message) -> None:
        if not self._parent_requests.handle_response(message):
            super()._response(message)

    # -- requests and notifications of the parent

    def _request(
        self,
        message: Message,
        method: str,
        id: bytes,
        params: dict[str, Raw],
        meta: dict[str, Raw],
        client: Client | None,
    ) -> None:
        if method == ax.IDENTIFY:
            self._send(jsonrpc.result_response(id, jsonrpc.encode_value(self._identify())))
        elif method == ax.TREE and self._tree is not None:
            if len(self._tree_tasks) >= _MAX_TREE_REQUESTS:
                raise InterlockError(
                    TOO_BUSY, "Too many tree requests are in progress. Try again later."
                )
            coroutine = self._send_tree(id, self._tree, message.params)
            task = asyncio.get_running_loop().create_task(coroutine)
            self._tree_tasks.add(task)
            task.add_done_callback(self._tree_tasks.discard)
        else:
            super()._request(message, method, id, params, meta, client)

    async def _send_tree(self, id: bytes, tree_source: TreeSource, params: Raw | UnsetType) -> None:
        try:
            tree_node = tree_source(params)
            if inspect.isawaitable(tree_node):
                tree_node = await tree_node
            self._send(jsonrpc.result_response(id, jsonrpc.encode_value(tree_node)))
        except InterlockError as error:
            self.send_error(id, error, None)
        except Exception:
            _log.exception("parent: cannot build the tree")
            failed = InterlockError(INTERNAL, INTERNAL_ERROR_TEXT)
            self.send_error(id, failed, None)

    def _notification(self, message: Message) -> None:
        if message.method == ax.SESSION_ENDED:
            self.ended_by = read_session_end(message)
        elif message.method == ax.KEYS_CHANGED:
            self._take_keys(message.params)
        else:
            super()._notification(message)

    def _take_keys(self, params: Raw | UnsetType) -> None:
        try:
            keys = ax.read_keys_changed(params)
        except ProtocolError as error:
            _log.warning("parent: its new keys are invalid: %s", error)
            return
        if self._on_keys is not None:
            self._on_keys(keys)

    # -- calls

    def _find_call_meta(self, request: mcp.ToolCall, data: bytes) -> _CallMeta | None:
        """Return the parsed `_meta` of a call. None: it is missing or invalid."""
        raw_meta = request.params.meta
        if raw_meta is UNSET:
            return None
        meta_bytes = bytes(raw_meta)
        # Compare with the last one first, which is faster than a lookup: it is long.
        if meta_bytes == self._last_meta:
            return self._last_call_meta
        call_meta = self._cached_metas.get(meta_bytes)
        if call_meta is None:
            return self._parse_meta(meta_bytes)
        self._last_meta, self._last_call_meta = meta_bytes, call_meta
        suffix = b',"_meta":%b%b' % (meta_bytes, _PARAMS_END)
        # Nodes write `_meta` as the last member.
        self._last_suffix = suffix if data.endswith(suffix) else b""
        self._last_suffix_offset = -len(self._last_suffix)
        return call_meta

    def _begin(self, request: mcp.ToolCall, call_meta: _CallMeta | None) -> bool:
        """Start a plain call. Return False if the call needs the general path."""
        params, open_calls = request.params, self._open_calls
        # Not `bytes(…)`, which takes twice the time.
        id = b"" + request.id
        if (
            call_meta is None
            or id in open_calls
            or id in self._subscriptions
            or not (id.isdigit() or id[:1] == b'"')
            or len(open_calls) >= self.max_open_requests
        ):
            return False
        client, meta, hop, credentials = call_meta
        call = Call(
            mcp.TOOLS_CALL, AX_PROTOCOL, credentials, client, params.name, "", None,
            params.arguments, meta, None, None, self._notification_callback, self._over, None, hop,
            id,
        )  # fmt: skip
        open_calls[id] = call
        try:
            self._pipeline.begin(call)
        except Exception:
            _log.exception("parent: internal error in a request")
            open_calls.pop(id, None)
            failed = InterlockError(INTERNAL, INTERNAL_ERROR_TEXT)
            self.send_error(id, failed, client)
        return True

    def _parse_meta(self, meta_bytes: bytes) -> _CallMeta | None:
        """Parse a `_meta`. None: it is not a valid `_meta` of a stateless call."""
        try:
            meta = jsonrpc.decode_members(meta_bytes)
            client = read_client(mcp.TOOLS_CALL, meta)
            hop = ax.read_hop(meta)
            credentials = self._read_credentials(meta)
        except InterlockError:
            return None
        if client.revision not in mcp.STATELESS_REVISIONS:
            return None
        # The route is parsed. The servers of this node do not get other MCP-AX members.
        own_meta = {
            k: v for k, v in meta.items() if not k.startswith(ax.PREFIX) or k in ax.EVENT_META_KEYS
        }
        call_meta = _CallMeta(client, own_meta, hop, credentials)
        if len(meta_bytes) <= _MAX_CACHED_LENGTH and mcp.META_PROGRESS_TOKEN not in meta:
            self._cached_metas[meta_bytes] = call_meta
        return call_meta

    def _place(self, call: Call) -> None:
        call.hop = ax.read_hop(call.meta)
        if call.meta is not None and ax.AUTHORIZATION in call.meta:
            call.credentials = self._read_credentials(call.meta)
            call.meta = {k: v for k, v in call.meta.items() if k != ax.AUTHORIZATION}

    def _read_credentials(self, meta: dict[str, Raw]) -> Credentials:
        """Return the credentials of the parent, with its token for this call.

        Raises ProtocolError.
        """
        raw = meta.get(ax.AUTHORIZATION)
        if raw is None:
            return self._credentials
        token = jsonrpc.decode_value(raw)
        # Another value is an invalid token, and must not be treated like a missing one.
        return replace(self._credentials, hop_token=token if isinstance(token, str) else "")

    def _on_call_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        self._send(
            jsonrpc.notification(method, add_request_id(params, cast("bytes", call.context)))
        )


def add_request_id(params: bytes | Raw, id: bytes) -> bytes | Raw:
    """Add the id of the related request to the params of a notification."""
    raw = bytes(params)
    # The key can be written with an escape sequence.
    is_simple = b'"_meta"' not in raw and b"\\u" not in raw
    if is_simple and raw[:1] == b"{" and raw[1:].lstrip()[:1] == b'"':
        return b'{"_meta":{"%b":%b},%b' % (_REQUEST_KEY, id, raw[1:])
    try:
        members = jsonrpc.decode_members(raw)
        meta = jsonrpc.decode_members(members["_meta"]) if "_meta" in members else {}
    except ProtocolError:
        return params
    meta[ax.REQUEST] = Raw(id)
    members["_meta"] = Raw(jsonrpc.encode_members(meta))
    return jsonrpc.encode_members(members)
