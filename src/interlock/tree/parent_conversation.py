"""MCP with the parent that this node registered with, on the one channel between them.

The parent is a client like any other, and more: it is also asked (to register, whether it is
alive), it may ask who this is, and what it calls says where it is on its way through the tree.
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
from interlock.errors import INTERNAL, TOO_BUSY, InterlockError, ProtocolError
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol import jsonrpc, mcp
from interlock.protocol import mcpax as ax
from interlock.protocol.jsonrpc import Message
from interlock.tree.registrant import ParentRejectionError, ParentRequests, read_ended

FACE: Final = "ax"
PARENT: Final = "parent"
"""What the parent is called as a caller."""
_END: Final = b"}}"
"""How a call ends whose params stand last in it."""
_REQUEST: Final = ax.REQUEST.encode()
_MOST_KEPT: Final = 512
_MOST_LOOKING: Final = 4
"""So often may the parent look at the tree at once: each look asks all nodes below."""
_LONGEST_KEPT: Final = 4_096

_log = logging.getLogger("interlock.tree")

Tree = Callable[[Raw | UnsetType], Any]
"""Gives this node's part of the tree, as plain data or structs, or something to await for it. It is
given the raw params of the request."""


class _Said(NamedTuple):
    """What a `_meta` says about a call."""

    client: Client
    meta: dict[str, Raw]
    hop: ax.Hop | None
    credentials: Credentials


class AxConversation(Conversation):
    """One parent. Hand it messages; it sends whole messages."""

    speaks_ax = True
    most_under_way = 100_000
    """The callers of a whole tree come by this one channel; the pipeline has a limit for all."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        hello: ServerInfo,
        listeners: ChangeListeners,
        send: Callable[[bytes], None],
        peer: str,
        identify: Callable[[], ax.SubserverIdentity],
        tree: Tree | None = None,
        on_keys: Callable[[Raw], None] | None = None,
    ) -> None:
        """`peer`: as a channel calls the other side. `on_keys` is told when the parent signs with
        other keys than it did."""
        super().__init__(
            pipeline=pipeline,
            hello=hello,
            listeners=listeners,
            send=send,
            face=FACE,
            credentials=Credentials(peer, assigned_name=PARENT),
        )
        self._identify = identify
        self._tree = tree
        self._on_keys = on_keys
        self._asking = ParentRequests(send)
        self._looking: set[asyncio.Task[None]] = set()
        self.ended_by: ParentRejectionError | None = None
        self._known: BoundedDict[bytes, _Said] = BoundedDict(_MOST_KEPT)
        """What the parent has said in a `_meta`: it says much the same with every call."""
        self._last_said = b""
        self._last_known: _Said | None = None
        self._last_end = b""
        self._last_end_at = 0
        """The same as the last call ended with it, and where that began, counted from the end."""
        # Looked up once, and not for every call.
        self.most_under_way = type(self).most_under_way
        self._heard = self._hear
        self._over = self._done

    def take(self, data: bytes) -> None:
        at = self._last_end_at
        if data[at:] == self._last_end:
            # What it ends with was read before, and is long. That it is a `_meta` and nothing else
            # is for the rest to say, which must be a whole call without one.
            request = mcp.decode_tool_call(data[:at] + _END)
            if request is not None and request.params.meta is UNSET:
                if self._begin(request, self._last_known):
                    return
                super().take(data)
                return
        request = mcp.decode_tool_call(data)
        if request is None or not self._begin(request, self._said_in(request, data)):
            super().take(data)

    # -- what the parent is asked and told

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        return self._asking.request(method, params)

    def announce(self, method: str, params: bytes | Raw | None) -> None:
        session = self._session
        if session is not None and (
            method == mcp.LOG_MESSAGE or mcp.supports_ax(session.client.capabilities)
        ):
            # It listens as a client with a session, and is told there.
            return
        if method != mcp.INITIALIZED:
            # Said outright: without it a parent has to guess whom it is about.
            params = about_request(b"{}" if params is None else params, jsonrpc.NULL)
        self._send(jsonrpc.notification(method, params))

    def closed(self) -> None:
        self._asking.give_up()
        for task in list(self._looking):
            task.cancel()
        super().closed()

    def _response(self, message: Message) -> None:
        if not self._asking.answered(message):
            super()._response(message)

    # -- what the parent asks and says

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
            if len(self._looking) >= _MOST_LOOKING:
                raise InterlockError(TOO_BUSY, "The tree is being looked at already: try later.")
            looking = self._look(id, self._tree, message.params)
            task = asyncio.get_running_loop().create_task(looking)
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
        else:
            super()._request(message, method, id, params, meta, client)

    async def _look(self, id: bytes, tree: Tree, params: Raw | UnsetType) -> None:
        try:
            found = tree(params)
            if inspect.isawaitable(found):
                found = await found
            self._send(jsonrpc.result_response(id, jsonrpc.encode_value(found)))
        except InterlockError as error:
            self.send_error(id, error, None)
        except Exception:
            _log.exception("the tree could not be shown")
            failed = InterlockError(INTERNAL, "The node failed on this request; see its log.")
            self.send_error(id, failed, None)

    def _notification(self, message: Message) -> None:
        if message.method == ax.SESSION_ENDED:
            self.ended_by = read_ended(message)
        elif message.method == ax.KEYS_CHANGED:
            self._take_keys(message.params)
        else:
            super()._notification(message)

    def _take_keys(self, params: Raw | UnsetType) -> None:
        try:
            jwks = ax.read_keys_changed(params)
        except ProtocolError as error:
            _log.warning("the parent's new keys cannot be read: %s", error)
            return
        if self._on_keys is not None:
            self._on_keys(jwks)

    # -- calls

    def _said_in(self, request: mcp.ToolCall, data: bytes) -> _Said | None:
        """What the `_meta` of a call says. None: it has none, or not that of a lawful one."""
        raw_meta = request.params.meta
        if raw_meta is UNSET:
            return None
        said = bytes(raw_meta)
        # To compare it with the last one costs less than to find it: it is long.
        if said == self._last_said:
            return self._last_known
        known = self._known.get(said)
        if known is None:
            return self._understand(said)
        self._last_said, self._last_known = said, known
        end = b',"_meta":%b%b' % (said, _END)
        # Nodes put it last.
        self._last_end = end if data.endswith(end) else b""
        self._last_end_at = -len(self._last_end)
        return known

    def _begin(self, request: mcp.ToolCall, known: _Said | None) -> bool:
        """Start a plain call. False: something about it wants the long look."""
        params, under_way = request.params, self._under_way
        # Not `bytes(…)`: that costs twice as much.
        id = b"" + request.id
        if (
            known is None
            or id in under_way
            or id in self._subscriptions
            or not (id.isdigit() or id[:1] == b'"')
            or len(under_way) >= self.most_under_way
        ):
            return False
        client, meta, hop, credentials = known
        call = Call(
            mcp.TOOLS_CALL, FACE, credentials, client, params.name, "", None, params.arguments,
            meta, None, None, self._heard, self._over, None, hop, id,
        )  # fmt: skip
        under_way[id] = call
        try:
            self._pipeline.begin(call)
        except Exception:
            _log.exception("a request could not be served")
            under_way.pop(id, None)
            failed = InterlockError(INTERNAL, "The node failed on this request; see its log.")
            self.send_error(id, failed, client)
        return True

    def _understand(self, said: bytes) -> _Said | None:
        """What a `_meta` says. None: it is not that of a lawful stateless call."""
        try:
            meta = jsonrpc.decode_members(said)
            client = read_client(mcp.TOOLS_CALL, meta)
            hop = ax.read_hop(meta)
            credentials = self._shown_by(meta)
        except InterlockError:
            return None
        if client.revision not in mcp.STATELESS_REVISIONS:
            return None
        # Where it is, is known now; nothing else of the tree is for this node's own servers.
        kept = {
            k: v for k, v in meta.items() if not k.startswith(ax.PREFIX) or k in ax.EVENT_META_KEYS
        }
        found = _Said(client, kept, hop, credentials)
        if len(said) <= _LONGEST_KEPT and mcp.META_PROGRESS_TOKEN not in meta:
            self._known[said] = found
        return found

    def _place(self, call: Call) -> None:
        call.hop = ax.read_hop(call.meta)
        if call.meta is not None and ax.AUTHORIZATION in call.meta:
            call.credentials = self._shown_by(call.meta)
            call.meta = {k: v for k, v in call.meta.items() if k != ax.AUTHORIZATION}

    def _shown_by(self, meta: dict[str, Raw]) -> Credentials:
        """The parent, with the token that it made for this call. Raises ProtocolError."""
        raw = meta.get(ax.AUTHORIZATION)
        if raw is None:
            return self._credentials
        token = jsonrpc.decode_value(raw)
        # Whatever else stands there is no token, and must not pass for none.
        return replace(self._credentials, hop_token=token if isinstance(token, str) else "")

    def _hear(self, call: Call, method: str, params: bytes | Raw) -> None:
        self._send(jsonrpc.notification(method, about_request(params, cast("bytes", call.context))))


def about_request(params: bytes | Raw, id: bytes) -> bytes | Raw:
    """The params of a notification that say which request it is about; the rest as it was."""
    raw = bytes(params)
    # The key may be spelled with an escape.
    plain = b'"_meta"' not in raw and b"\\u" not in raw
    if plain and raw[:1] == b"{" and raw[1:].lstrip()[:1] == b'"':
        return b'{"_meta":{"%b":%b},%b' % (_REQUEST, id, raw[1:])
    try:
        members = jsonrpc.decode_members(raw)
        meta = jsonrpc.decode_members(members["_meta"]) if "_meta" in members else {}
    except ProtocolError:
        return params
    meta[ax.REQUEST] = Raw(id)
    members["_meta"] = Raw(jsonrpc.encode_members(meta))
    return jsonrpc.encode_members(members)
