"""Reaching a node's approvals: by the socket of its own user, else over HTTP with a token."""

from __future__ import annotations

import http.client
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.core.paths import approvals_sockets, is_socket_open, is_trusted
from interlock.errors import (
    INTERNAL,
    UNKNOWN_APPROVAL,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    failure_by_name,
)
from interlock.terminal import node_discovery, node_http
from interlock.terminal.node_discovery import TargetNode

_WITHIN: Final = 5.0
_LOOK_UP: Final = 0.5
_CALL_WITHIN: Final = 660.0
"""An approved call is made while one waits, and may take its time."""
BASE_PATH: Final = "/approvals"
_Way = Path | None
"""The socket of a node; None: its address, over HTTP."""


class PendingApproval(msgspec.Struct, frozen=True):
    """What of an approval matters on the command line."""

    id: str
    state: str
    tool: str
    server: str
    route: list[str]
    effect: str
    description: str
    caller: dict[str, str]
    action: str
    rule: str
    reason: str
    args_sha256: str
    aud: str
    arguments_text: str
    now: float
    expires: float
    seconds_left: float
    created_at: str
    expires_at: str
    masked: list[str] = []
    """JSON pointers to the arguments that are not shown."""
    revealed: bool = False
    meta_text: str = ""
    """What is sent beside its arguments."""
    at: str = ""
    """The node below that holds it, and said all this of it."""
    proposal: dict[str, str] | None = None
    """Where it was proposed, and by whom: topic, id, by."""
    note: str = ""
    by: str = ""
    outcome: str = ""
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, str] | None = None


class _Unix(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_WITHIN)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_WITHIN)
        self.sock.connect(str(self._path))


class ApprovalsClient:
    """The approvals of the node that is target; of all that share its state folder, if several
    do, as when every client starts one of its own."""

    def __init__(self, target: TargetNode) -> None:
        self._target = target
        self._of: dict[str, _Way] = {}
        """How the node is reached that holds an approval, once that is known."""

    def list_pending(self) -> list[PendingApproval]:
        """What waits, the oldest first. Raises InterlockError."""
        found: list[PendingApproval] = []
        for way in self._ways():
            told = msgspec.json.decode(self._ask(way, "GET", f"{BASE_PATH}/"), type=_List).approvals
            self._of |= dict.fromkeys((one.id for one in told), way)
            found += told
        return sorted(found, key=lambda one: one.created_at)

    def list_pending_raw(self) -> list[Any]:
        """The same with all that the nodes tell of it."""
        told = [msgspec.json.decode(self._ask(way, "GET", f"{BASE_PATH}/")) for way in self._ways()]
        found = [one for each in told for one in each["approvals"]]
        return sorted(found, key=lambda one: str(one["created_at"]))

    def list_enrolments(self) -> list[dict[str, Any]]:
        """Who wants to become an operator. Raises InterlockError."""
        told = [
            msgspec.json.decode(self._ask(way, "GET", f"{BASE_PATH}/operators"))
            for way in self._ways()
        ]
        # Nodes that share a state folder tell the same.
        return list({one["id"]: one for each in told for one in each["pending"]}.values())

    def find(self, id: str) -> PendingApproval:
        """One of them, by its id or the beginning of it. Raises InterlockError."""
        found = [one for one in self.list_pending() if one.id.startswith(id)]
        if len(found) == 1:
            # A list may cut long arguments: one is decided by all of them.
            way = self._of[found[0].id]
            told = self._ask(way, "GET", f"{BASE_PATH}/{_safe(found[0].id)}")
            return msgspec.json.decode(told, type=PendingApproval)
        if found:
            raise InterlockError(INTERNAL, f"{len(found)} ids begin with {id}: give more.")
        if len(id) < _WHOLE_ID:
            raise InterlockError(INTERNAL, f"no approval that waits begins with {id}.")
        unknown: InterlockError | None = None
        for way in self._ways():
            try:
                told = self._ask(way, "GET", f"{BASE_PATH}/{_safe(id)}")
            except InterlockError as error:
                if error.failure is not UNKNOWN_APPROVAL:
                    raise
                unknown = error
                continue
            self._of[id] = way
            return msgspec.json.decode(told, type=PendingApproval)
        assert unknown is not None
        raise unknown

    def reveal(self, approval: PendingApproval) -> PendingApproval:
        """The same with the real values of its masked arguments. Raises InterlockError."""
        way = self._of[approval.id]
        told = self._ask(way, "GET", f"{BASE_PATH}/{_safe(approval.id)}/revealed")
        return msgspec.json.decode(told, type=PendingApproval)

    def is_local(self, one: PendingApproval) -> bool:
        """Whether the node that holds it runs on this machine, as this user."""
        return self._of[one.id] is not None

    def decide(self, one: PendingApproval, sent: dict[str, Any]) -> bytes:
        """Send a proof, or a refusal without one; what became of it. Raises InterlockError."""
        way = self._of[one.id]
        return self._ask(way, "POST", f"{BASE_PATH}/{_safe(one.id)}", sent, within=_CALL_WITHIN)

    def watch_pending(self) -> Iterator[list[PendingApproval]]:
        """What waits, now and whenever that changes, until the nodes of now have stopped."""
        told: queue.SimpleQueue[tuple[_Way, list[PendingApproval] | InterlockError | None]]
        told = queue.SimpleQueue()

        def follow(way: _Way) -> None:
            try:
                for waiting in self._followed(way):
                    told.put((way, waiting))
                told.put((way, None))
            except InterlockError as error:
                told.put((way, error))

        ways = self._ways()
        for way in ways:
            threading.Thread(target=follow, args=(way,), daemon=True).start()
        now: dict[_Way, list[PendingApproval]] = {}
        left = len(ways)
        while left:
            try:
                # An interrupt that comes just before a wait without an end would not end it.
                way, waiting = told.get(timeout=_LOOK_UP)
            except queue.Empty:
                continue
            if isinstance(waiting, InterlockError):
                raise waiting
            if waiting is None:
                left -= 1
            now[way] = waiting or []
            if left:
                yield [one for each in now.values() for one in each]

    def _followed(self, way: _Way) -> Iterator[list[PendingApproval]]:
        connection = self._connection(way, None)
        try:
            answer = self._asked(connection, "GET", f"{BASE_PATH}/events", None)
            try:
                for line in answer:
                    if line.startswith(b"data:"):
                        yield msgspec.json.decode(line[5:], type=_List).approvals
            except (OSError, http.client.HTTPException):
                # The node was killed: there is nothing more to hear from it.
                return
        finally:
            connection.close()

    # -- how

    def _ways(self) -> list[_Way]:
        """The sockets of nodes that run here; else the address of one, over HTTP."""
        found: list[_Way] = []
        if is_trusted(self._target.socket.parent):
            paths = approvals_sockets(self._target.socket)
            found += [path for path in paths if is_socket_open(path)]
        return found or [None]

    def _ask(
        self, way: _Way, method: str, path: str, sent: Any = None, within: float = _WITHIN
    ) -> bytes:
        connection = self._connection(way, within)
        try:
            return self._asked(connection, method, path, sent).read()
        except TimeoutError:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, "the node does not answer. `interlock status` says more."
            ) from None
        finally:
            connection.close()

    def _connection(self, way: _Way, within: float | None) -> http.client.HTTPConnection:
        config = self._target.config
        address = config.address
        connection: http.client.HTTPConnection
        if way is not None:
            connection = _Unix(way)
        elif config.tls is None:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=_WITHIN)
        else:
            connection = http.client.HTTPSConnection(
                address.host,
                address.port,
                timeout=_WITHIN,
                context=node_http.create_ssl_context(self._target),
            )
        try:
            connection.connect()
        except OSError:
            connection.close()
            raise node_discovery.unreachable_error(self._target) from None
        connection.sock.settimeout(within)
        return connection

    def _asked(
        self, connection: http.client.HTTPConnection, method: str, path: str, sent: Any
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        body = None
        if not isinstance(connection, _Unix):
            headers |= node_http.authorization_header(self._target, "approve")
        if sent is not None:
            body = msgspec.json.encode(sent)
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, "the node went away while it was asked."
            ) from None
        if answer.status != 200:
            raise read_error(answer.read(), answer.status)
        return answer


class _List(msgspec.Struct, frozen=True):
    approvals: list[PendingApproval]


class _Trouble(msgspec.Struct, frozen=True):
    error: str
    message: str


_WHOLE_ID: Final = 22


def _safe(id: str) -> str:
    if not id or not all(one.isascii() and (one.isalnum() or one in "-_") for one in id):
        raise InterlockError(INTERNAL, "that is not the id of an approval.")
    return id


def read_error(body: bytes, code: int) -> InterlockError:
    try:
        trouble = msgspec.json.decode(body, type=_Trouble)
        return InterlockError(failure_by_name(trouble.error), trouble.message)
    except (msgspec.MsgspecError, KeyError):
        return InterlockError(INTERNAL, f"the node answered with HTTP {code}.")
