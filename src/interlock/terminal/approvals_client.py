"""A client for the approvals of a node: over the Unix socket of the node's user, else over HTTP
with a token."""

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
    INVALID_REQUEST,
    UNKNOWN_APPROVAL,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    failure_by_name,
)
from interlock.terminal import node_discovery, node_http
from interlock.terminal.node_discovery import TargetNode

_TIMEOUT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.5
_CALL_TIMEOUT_SECONDS: Final = 660.0
"""Approving a call runs it before the response is sent, so the response can take long."""
BASE_PATH: Final = "/approvals"
_Route = Path | None
"""The socket of a node, or None for its address over HTTP."""


class PendingApproval(msgspec.Struct, frozen=True):
    """The fields of an approval that the command line uses."""

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
    """JSON pointers to the arguments whose values are hidden."""
    revealed: bool = False
    meta_text: str = ""
    """The `_meta` that is sent with the arguments."""
    at: str = ""
    """The child node that has the approval. All other fields are then data of that node."""
    proposal: dict[str, str] | None = None
    """The proposal of a topic that the call comes from: `topic`, `id`, `by`."""
    note: str = ""
    by: str = ""
    outcome: str = ""
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, str] | None = None


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_SECONDS)
        self.sock.connect(str(self._path))


class ApprovalsClient:
    """The approvals of the target node.

    Several nodes can share one state folder, for example if every client starts its own node.
    The client then covers all of them.
    """

    def __init__(self, target: TargetNode) -> None:
        self._target = target
        self._routes_by_id: dict[str, _Route] = {}
        """The route to the node of each approval that was listed."""

    def list_pending(self) -> list[PendingApproval]:
        """Return the pending approvals, the oldest first. Raises InterlockError."""
        pending: list[PendingApproval] = []
        for route in self._routes():
            body = self._send(route, "GET", f"{BASE_PATH}/")
            approvals = msgspec.json.decode(body, type=_List).approvals
            self._routes_by_id |= dict.fromkeys((approval.id for approval in approvals), route)
            pending += approvals
        return sorted(pending, key=lambda approval: approval.created_at)

    def list_pending_raw(self) -> list[Any]:
        """Return the pending approvals with every field that the nodes send."""
        bodies = [
            msgspec.json.decode(self._send(route, "GET", f"{BASE_PATH}/"))
            for route in self._routes()
        ]
        approvals = [approval for body in bodies for approval in body["approvals"]]
        return sorted(approvals, key=lambda approval: str(approval["created_at"]))

    def list_enrolments(self) -> list[dict[str, Any]]:
        """Return the pending enrolments of operators. Raises InterlockError."""
        bodies = [
            msgspec.json.decode(self._send(route, "GET", f"{BASE_PATH}/operators"))
            for route in self._routes()
        ]
        # Nodes that share a state folder return the same enrolments.
        return list(
            {
                enrolment["id"]: enrolment for body in bodies for enrolment in body["pending"]
            }.values()
        )

    def find(self, id: str) -> PendingApproval:
        """Return an approval by its id, or a pending one by the beginning of its id.

        Raises InterlockError.
        """
        matches = [approval for approval in self.list_pending() if approval.id.startswith(id)]
        if len(matches) == 1:
            # A list can truncate long arguments. A decision needs the complete arguments.
            route = self._routes_by_id[matches[0].id]
            body = self._send(route, "GET", f"{BASE_PATH}/{_check_id(matches[0].id)}")
            return msgspec.json.decode(body, type=PendingApproval)
        if matches:
            raise InterlockError(
                INTERNAL,
                f"{len(matches)} pending approvals have an id that begins with {id}. "
                "Enter more characters.",
            )
        if len(id) < _ID_LENGTH:
            raise InterlockError(
                INTERNAL,
                f"No pending approval has an id that begins with {id}. "
                f"List the approvals: `{self._target.selector.format_command('approvals')}`.",
            )
        unknown_error: InterlockError | None = None
        for route in self._routes():
            try:
                body = self._send(route, "GET", f"{BASE_PATH}/{_check_id(id)}")
            except InterlockError as failure:
                if failure.failure is not UNKNOWN_APPROVAL:
                    raise
                unknown_error = failure
                continue
            self._routes_by_id[id] = route
            return msgspec.json.decode(body, type=PendingApproval)
        assert unknown_error is not None
        raise unknown_error

    def reveal(self, approval: PendingApproval) -> PendingApproval:
        """Return the approval with the values of its masked arguments. Raises InterlockError."""
        route = self._routes_by_id[approval.id]
        body = self._send(route, "GET", f"{BASE_PATH}/{_check_id(approval.id)}/revealed")
        return msgspec.json.decode(body, type=PendingApproval)

    def is_local(self, approval: PendingApproval) -> bool:
        """Return whether the node of the approval runs on this machine, as this user."""
        return self._routes_by_id[approval.id] is not None

    def decide(self, approval: PendingApproval, payload: dict[str, Any]) -> bytes:
        """Send a decision and return the response body.

        A decision is a proof, or a rejection without a proof. Raises InterlockError.
        """
        route = self._routes_by_id[approval.id]
        return self._send(
            route,
            "POST",
            f"{BASE_PATH}/{_check_id(approval.id)}",
            payload,
            timeout=_CALL_TIMEOUT_SECONDS,
        )

    def watch_pending(self) -> Iterator[list[PendingApproval]]:
        """Yield the pending approvals now and after every change, until the nodes have stopped.

        Nodes that start later are not watched.
        """
        updates: queue.SimpleQueue[tuple[_Route, list[PendingApproval] | InterlockError | None]]
        updates = queue.SimpleQueue()

        def follow(route: _Route) -> None:
            try:
                for pending in self._follow_events(route):
                    updates.put((route, pending))
                updates.put((route, None))
            except InterlockError as error:
                updates.put((route, error))

        routes = self._routes()
        for route in routes:
            threading.Thread(target=follow, args=(route,), daemon=True).start()
        pending_by_route: dict[_Route, list[PendingApproval]] = {}
        remaining = len(routes)
        while remaining:
            try:
                # A timeout, because Ctrl-C just before a wait without a timeout would not end it.
                route, pending = updates.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(pending, InterlockError):
                raise pending
            if pending is None:
                remaining -= 1
            pending_by_route[route] = pending or []
            if remaining:
                yield [approval for pending in pending_by_route.values() for approval in pending]

    def _follow_events(self, route: _Route) -> Iterator[list[PendingApproval]]:
        connection = self._connection(route, None)
        try:
            response = self._request(connection, "GET", f"{BASE_PATH}/events", None)
            try:
                for line in response:
                    if line.startswith(b"data:"):
                        yield msgspec.json.decode(line[5:], type=_List).approvals
            except (OSError, http.client.HTTPException):
                # The node was killed, so no more events come.
                return
        finally:
            connection.close()

    # -- requests

    def _routes(self) -> list[_Route]:
        """Return the sockets of running local nodes, else the HTTP address of the target."""
        sockets: list[_Route] = []
        if is_trusted(self._target.socket.parent):
            paths = approvals_sockets(self._target.socket)
            sockets += [path for path in paths if is_socket_open(path)]
        return sockets or [None]

    def _send(
        self,
        route: _Route,
        method: str,
        path: str,
        payload: Any = None,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> bytes:
        connection = self._connection(route, timeout)
        try:
            return self._request(connection, method, path, payload).read()
        except TimeoutError:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                "The node does not respond in time. Look at its state: `interlock status`",
            ) from None
        finally:
            connection.close()

    def _connection(self, route: _Route, timeout: float | None) -> http.client.HTTPConnection:
        config = self._target.config
        address = config.address
        connection: http.client.HTTPConnection
        if route is not None:
            connection = _UnixConnection(route)
        elif config.tls is None:
            connection = http.client.HTTPConnection(
                address.host, address.port, timeout=_TIMEOUT_SECONDS
            )
        else:
            connection = http.client.HTTPSConnection(
                address.host,
                address.port,
                timeout=_TIMEOUT_SECONDS,
                context=node_http.create_ssl_context(self._target),
            )
        try:
            connection.connect()
        except OSError:
            connection.close()
            raise node_discovery.unreachable_error(self._target) from None
        connection.sock.settimeout(timeout)
        return connection

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, payload: Any
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        body = None
        if not isinstance(connection, _UnixConnection):
            headers |= node_http.authorization_header(self._target, "approve")
        if payload is not None:
            body = msgspec.json.encode(payload)
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                "The node closed the connection before it responded. Look at its state: "
                "`interlock status`",
            ) from None
        if response.status != 200:
            raise read_error(response.read(), response.status)
        return response


class _List(msgspec.Struct, frozen=True):
    approvals: list[PendingApproval]


class _ErrorBody(msgspec.Struct, frozen=True):
    error: str
    message: str


_ID_LENGTH: Final = 22


def _check_id(id: str) -> str:
    if not id or not all(char.isascii() and (char.isalnum() or char in "-_") for char in id):
        raise InterlockError(
            INVALID_REQUEST,
            f"{id[:80]!r} is not the id of an approval. List the approvals: `interlock approvals`.",
        )
    return id


def read_error(body: bytes, code: int) -> InterlockError:
    try:
        error_body = msgspec.json.decode(body, type=_ErrorBody)
        return InterlockError(failure_by_name(error_body.error), error_body.message)
    except (msgspec.MsgspecError, KeyError):
        return InterlockError(INTERNAL, f"The node responded with HTTP {code}.")
