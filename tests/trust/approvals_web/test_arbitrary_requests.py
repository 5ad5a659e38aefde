"""Arbitrary requests to the paths of approvals get an error response and change nothing."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.http_client import HttpConnection, request
from tests.trust.approvals_web.office import Office

_NAMES = st.one_of(
    st.sampled_from(["", "enrol", "session", "events", "page", "page/page.js", "ID", "ID/events"]),
    st.text("abcAB-_./%25~", max_size=20),
)
_BODIES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            b'{"proof":"a.b.c"}',
            b'{"proof":"passkey:e30"}',
            b'{"proof":1}',
            b'{"refuse":true}',
            b'{"code":"A","key":{"kty":"OKP"}}',
            b'{"code":"A","passkey":{}}',
            b'{"nonce":"","proof":""}',
            b"[" * 3000,
            b'{"proof":"\\ud800"}',
        ]
    ),
)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(["GET", "POST", "POST", "HEAD", "DELETE", "OPTIONS"]),
    name=_NAMES,
    body=_BODIES,
    kind=st.sampled_from(["application/json", "application/json; charset=utf-8", "text/plain"]),
    accept=st.sampled_from(["application/json", "text/html", "*/*"]),
)
def test_arbitrary_requests_get_error_responses(
    office: Office, method: str, name: str, body: bytes, kind: str, accept: str
) -> None:
    pending = office.held()
    id = pending["confirmation_id"]
    if method == "GET" and (name.endswith("events") or accept == "text/event-stream"):
        # A stream of one that waits goes on; that is tested elsewhere.
        name = "page.html"
    path = f"/approvals/{name.replace('ID', id)}"
    with HttpConnection(("127.0.0.1", office.port)) as wire:
        wire.send(
            request(
                f"localhost:{office.port}",
                body,
                ("Accept", accept),
                ("Content-Type", kind),
                method=method,
                path=path,
            )
        )
        answer = wire.read_response(to_head=method == "HEAD")
    assert answer.status < 500, answer
    assert office.approving.approvals.find(id).state == "pending"  # type: ignore[union-attr]
    assert office.dropped() == []
