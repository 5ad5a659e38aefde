"""The HTTP headers of an MCP request, read once per head and cached with it."""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from interlock.core.call import Client
from interlock.core.server.http.cors import answer_lines
from interlock.core.server.http.credentials import CREDENTIAL_HEADERS, read_credentials
from interlock.core.server.http.exchange import HttpExchange, RequestHead
from interlock.core.server.http.guard import Guard
from interlock.core.server.mcp.sessions import HttpSession
from interlock.core.server.mcp.views import Views
from interlock.errors import ProtocolError
from interlock.protocol import headers, mcp
from interlock.protocol.aql_terms import OperationView

_STREAM: Final = b"text/event-stream"
_UNIQUE_HEADERS: Final = frozenset(
    {
        *CREDENTIAL_HEADERS,
        b"content-type",
        b"host",
        b"origin",
        headers.LAST_EVENT_ID,
        headers.SESSION_ID,
    }
)
"""The headers that may occur once, because the node bases decisions on them: if there are two, a
proxy may have checked the other one."""


class RequestHeaders:
    """The decoded headers of an MCP request. The body must repeat the MCP headers."""

    __slots__ = (
        "accepts_stream", "cached_session", "client", "client_view", "credentials", "duplicate",
        "guard_version", "is_fast_path", "is_json", "meta", "method", "method_header", "name",
        "name_header", "raw_meta", "rejection", "repeated_header", "session", "stateless", "tool",
        "version", "version_header", "view", "view_error",
    )  # fmt: skip

    def __init__(
        self,
        head: RequestHead,
        peer: str,
        guard: Guard,
        certificate: tuple[str, ...] = (),
        views: Views | None = None,
    ) -> None:
        fields = head.fields
        self.guard_version = guard.version
        """The version of the guard that checked the head."""
        origin = fields.get(b"origin")
        self.rejection = guard.find_rejection(fields.get(b"host"), origin)
        head.lines = b"" if origin is None or self.rejection else answer_lines(origin)
        kind = fields.get(b"content-type", b"").partition(b";")[0]
        self.is_json = kind.strip().lower() == b"application/json"
        accept = fields.get(b"accept", b"*/*")
        self.duplicate: str | None = None
        self.repeated_header: str | None = None
        if len(fields) != len(head.headers):
            accept_values = [value for name, value in head.headers if name == b"accept"]
            accept = b",".join(accept_values) or accept
            self._check_duplicates(head.headers)
        self.accepts_stream = _STREAM in accept or b"*/*" in accept
        self.credentials = read_credentials(fields, peer, certificate)
        session = fields.get(headers.SESSION_ID)
        self.session = None if session is None else session.strip().decode("latin-1")
        self.version_header = fields.get(headers.PROTOCOL_VERSION)
        self.method_header = fields.get(headers.METHOD)
        self.name_header = fields.get(headers.NAME)
        self.version = _text(self.version_header)
        self.method = _text(self.method_header)
        name = _text(self.name_header)
        self.name = None if name is None else headers.decode_header_value(name)
        self.stateless = self.version in mcp.STATELESS_REVISIONS
        calls = self.method == mcp.TOOLS_CALL and self.version == mcp.LATEST_STATELESS
        self.tool = self.name if calls else None
        """The tool that a stateless call with these headers must name in its body."""
        self.client: Client | None = None
        """The client of the last plain stateless call with this head."""
        self.raw_meta = Raw(b"")
        """The raw `_meta` of that call."""
        self.meta: dict[str, Raw] | None = None
        self.view: OperationView | None = None
        """The view that the URL selects."""
        self.view_error: ProtocolError | None = None
        self.client_view: OperationView | None = None
        """The view of the last plain stateless call with this head."""
        if views is not None and head.query:
            try:
                self.view = self.client_view = views.named(head.query)
            except ProtocolError as error:
                self.view_error = error
        self.cached_session: HttpSession | None = None
        """The session that was found by the session id of this head."""
        in_session = self.session is not None and (
            self.version is None or self.version in mcp.SESSION_REVISIONS
        )
        self.is_fast_path = (
            head.method == b"POST"
            and self.is_json
            and self.rejection is None
            and self.duplicate is None
            and self.repeated_header is None
            and self.view_error is None
            and (self.stateless or in_session)
        )
        """True if the headers allow a plain tool call to start without the full checks."""

    def _check_duplicates(self, all_headers: list[tuple[bytes, bytes]]) -> None:
        """Find headers that occur more than once but must not: a client that repeats a header on
        which decisions are based tries to mislead the node or a proxy."""
        try:
            headers.pick_request_headers(all_headers)
        except ProtocolError as error:
            self.duplicate = error.message
        names = [name for name, _ in all_headers]
        for name in sorted(_UNIQUE_HEADERS):
            if names.count(name) > 1:
                self.repeated_header = f"{name.decode().title()} header appears more than once"


def read_request_headers(
    exchange: HttpExchange, guard: Guard, views: Views | None = None
) -> RequestHeaders:
    """Return the decoded headers of a request. They are cached in its head until the guard
    changes."""
    head, protocol = exchange.head, exchange.protocol
    request_headers = head.request_headers
    if (
        not isinstance(request_headers, RequestHeaders)
        or request_headers.guard_version is not guard.version
    ):
        request_headers = head.request_headers = RequestHeaders(
            head, protocol.peer, guard, protocol.certificate, views
        )
    return request_headers


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.strip(b" \t").decode("latin-1")
