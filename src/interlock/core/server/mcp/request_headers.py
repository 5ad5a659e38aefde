"""What the HTTP headers of an MCP request say, read once for every head that a client sends."""

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
_SAID_ONCE: Final = frozenset(
    {
        *CREDENTIAL_HEADERS,
        b"content-type",
        b"host",
        b"origin",
        headers.LAST_EVENT_ID,
        headers.SESSION_ID,
    }
)
"""Headers that the node decides by: of two, somebody on the way may have read the other."""


class RequestHeaders:
    """The headers, understood. Values are what the body must repeat, decoded."""

    __slots__ = (
        "accepts_stream", "client", "credentials", "duplicate", "found", "guarded", "is_json",
        "meta", "method", "method_header", "name", "name_header", "refusal", "said", "session",
        "shortcut", "stateless", "tool", "twice", "version", "version_header", "view",
        "view_problem", "viewed",
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
        self.guarded = guard.version
        """The version of the guard that they were read by."""
        origin = fields.get(b"origin")
        self.refusal = guard.refusal(fields.get(b"host"), origin)
        head.lines = b"" if origin is None or self.refusal else answer_lines(origin)
        kind = fields.get(b"content-type", b"").partition(b";")[0]
        self.is_json = kind.strip().lower() == b"application/json"
        accept = fields.get(b"accept", b"*/*")
        self.duplicate: str | None = None
        self.twice: str | None = None
        if len(fields) != len(head.headers):
            accept = b",".join(v for name, v in head.headers if name == b"accept") or accept
            self._look_for_twins(head.headers)
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
        """What a stateless call with these headers must name."""
        self.client: Client | None = None
        """The client of the last plain stateless call with this head."""
        self.said = Raw(b"")
        """Its `_meta`, as it came."""
        self.meta: dict[str, Raw] | None = None
        self.view: OperationView | None = None
        """The view that the URL asks for."""
        self.view_problem: ProtocolError | None = None
        self.viewed: OperationView | None = None
        """The view of the client of the last plain stateless call."""
        if views is not None and head.query:
            try:
                self.view = self.viewed = views.named(head.query)
            except ProtocolError as error:
                self.view_problem = error
        self.found: HttpSession | None = None
        """The session that the id led to the last time."""
        in_session = self.session is not None and (
            self.version is None or self.version in mcp.SESSION_REVISIONS
        )
        self.shortcut = (
            head.method == b"POST"
            and self.is_json
            and self.refusal is None
            and self.duplicate is None
            and self.twice is None
            and self.view_problem is None
            and (self.stateless or in_session)
        )
        """Whether nothing in the headers keeps a plain call from being taken straight in."""

    def _look_for_twins(self, all_headers: list[tuple[bytes, bytes]]) -> None:
        """Something is there twice. For a header that somebody decides by, that is a lie."""
        try:
            headers.pick_request_headers(all_headers)
        except ProtocolError as error:
            self.duplicate = error.message
        names = [name for name, _ in all_headers]
        for name in sorted(_SAID_ONCE):
            if names.count(name) > 1:
                self.twice = f"{name.decode().title()} header appears more than once"


def facts_of(exchange: HttpExchange, guard: Guard, views: Views | None = None) -> RequestHeaders:
    """The facts of a head; they are kept with it for as long as the guard does not change."""
    head, lane = exchange.head, exchange.lane
    facts = head.facts
    if not isinstance(facts, RequestHeaders) or facts.guarded is not guard.version:
        facts = head.facts = RequestHeaders(head, lane.peer, guard, lane.certificate, views)
    return facts


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.strip(b" \t").decode("latin-1")
