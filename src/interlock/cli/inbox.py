"""Reaching a node's approvals: by the socket of its own user, else over HTTP with a token."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlock.cli import running, status
from interlock.cli.running import Meant
from interlock.errors import INTERNAL, UPSTREAM_UNAVAILABLE, InterlockError, by_name
from interlock.node.approvals_socket import approvals_socket_path
from interlock.node.places import is_trusted

if TYPE_CHECKING:
    from pathlib import Path

_WITHIN: Final = 5.0
_CALL_WITHIN: Final = 660.0
"""An approved call is made while one waits, and may take its time."""
BASE: Final = "/approvals"


class Waiting(msgspec.Struct, frozen=True):
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


class Inbox:
    """The approvals of the node that is meant."""

    def __init__(self, meant: Meant) -> None:
        self._meant = meant

    def waiting(self) -> list[Waiting]:
        """What waits. Raises InterlockError."""
        return msgspec.json.decode(self.waiting_json(), type=_List).approvals

    def waiting_json(self) -> bytes:
        return self._ask("GET", f"{BASE}/")

    def find(self, id: str) -> Waiting:
        """One of them, by its id or the beginning of it. Raises InterlockError."""
        if len(id) >= _WHOLE_ID:
            return msgspec.json.decode(self._ask("GET", f"{BASE}/{_safe(id)}"), type=Waiting)
        found = [one for one in self.waiting() if one.id.startswith(id)]
        if len(found) == 1:
            return found[0]
        if found:
            raise InterlockError(INTERNAL, f"{len(found)} approvals begin with {id}: give more.")
        raise InterlockError(INTERNAL, f"no approval that waits begins with {id}.")

    def decide(self, id: str, sent: dict[str, Any]) -> bytes:
        """Send a proof, or a refusal without one; what became of it. Raises InterlockError."""
        return self._ask("POST", f"{BASE}/{_safe(id)}", sent, within=_CALL_WITHIN)

    def changes(self) -> Iterator[list[Waiting]]:
        """What waits, now and whenever that changes, until the node stops."""
        connection = self._connection(None)
        try:
            answer = self._asked(connection, "GET", f"{BASE}/events", None)
            for line in answer:
                if line.startswith(b"data:"):
                    yield msgspec.json.decode(line[5:], type=_List).approvals
        finally:
            connection.close()

    # -- how

    def _ask(
        self, method: str, path: str, sent: Any = None, within: float | None = _WITHIN
    ) -> bytes:
        connection = self._connection(within)
        try:
            return self._asked(connection, method, path, sent).read()
        except TimeoutError:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, "the node does not answer. `interlock status` says more."
            ) from None
        finally:
            connection.close()

    def _connection(self, within: float | None) -> http.client.HTTPConnection:
        path = approvals_socket_path(self._meant.socket)
        if is_trusted(path.parent):
            local = _Unix(path)
            try:
                local.connect()
            except OSError:
                # Nobody is there, or a killed node left its socket behind.
                local.close()
            else:
                local.sock.settimeout(within)
                return local
        config = self._meant.config
        address = config.address
        if config.tls is None:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=_WITHIN)
        else:
            connection = http.client.HTTPSConnection(
                address.host,
                address.port,
                timeout=_WITHIN,
                context=status.own_certificate(self._meant),
            )
        try:
            connection.connect()
        except OSError:
            connection.close()
            hint = running.elsewhere(self._meant)
            if self._meant.problem is not None and not hint:
                raise self._meant.problem from None
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"no node answers at {config.listen}"
                + (f", but {hint}" if hint else ". Start one with: interlock up"),
            ) from None
        connection.sock.settimeout(within)
        return connection

    def _asked(
        self, connection: http.client.HTTPConnection, method: str, path: str, sent: Any
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        body = None
        if not isinstance(connection, _Unix):
            headers |= status.authorization(self._meant, "approve")
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
            raise _told(answer.read(), answer.status)
        return answer


class _List(msgspec.Struct, frozen=True):
    approvals: list[Waiting]


class _Trouble(msgspec.Struct, frozen=True):
    error: str
    message: str


_WHOLE_ID: Final = 22


def _safe(id: str) -> str:
    if not id or not all(one.isascii() and (one.isalnum() or one in "-_") for one in id):
        raise InterlockError(INTERNAL, "that is not the id of an approval.")
    return id


def _told(body: bytes, code: int) -> InterlockError:
    try:
        trouble = msgspec.json.decode(body, type=_Trouble)
        return InterlockError(by_name(trouble.error), trouble.message)
    except (msgspec.MsgspecError, KeyError):
        return InterlockError(INTERNAL, f"the node answered with HTTP {code}.")
