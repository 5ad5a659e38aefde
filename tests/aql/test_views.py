"""Tests of the selection of a view: by URL, by config and by client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config import parse_config
from interlock.core.server.mcp.views import Views
from interlock.errors import ProtocolError
from interlock.protocol.aql_terms import PLAIN_VIEW, Category, OperationView


def make_views(text: str = "") -> Views:
    return Views(parse_config(text, "interlock.yaml"))


@pytest.mark.parametrize(
    ("query", "tools"),
    [
        (b"view=aql", ["create", "read", "update", "delete", "execute"]),
        (b"view=semantic", ["discover", "query", "manage", "operate"]),
        (b"a=1&view=crude&b", ["create", "read", "update", "delete", "execute"]),
    ],
)
@pytest.mark.spec("AQ-EPM-2.1-1")
def test_url_selects_endpoints(query: bytes, tools: list[str]) -> None:
    face = make_views().named(query)
    assert face is not None
    assert list(face.tools) == [f"mcp_aql_{name}" for name in tools]


def test_single_view_has_one_endpoint() -> None:
    face = make_views("aql: {prefix: home_}").named(b"view=aql-single")
    assert face is not None
    assert face.tools == {"home_mcp_aql": None}
    both = make_views().named(b"view=aql-all")
    assert both is not None
    assert len(both.tools) == 6


def test_default_view_is_plain_unless_configured() -> None:
    assert make_views().named(b"") is None
    assert make_views().named(b"other=1") is None
    assert make_views().choose_view("claude-code", "local") is None
    assert make_views("aql: {view: plain}").choose_view("x", "y") is None
    assert make_views("aql: {view: aql}").choose_view("x", "y") is not None
    assert make_views("aql: {view: aql}").named(b"view=plain") is PLAIN_VIEW


def test_first_matching_client_rule_applies() -> None:
    found = make_views(
        "aql:\n"
        "  view: aql\n"
        "  clients:\n"
        "    - {clients: ['claude*'], view: aql-single}\n"
        "    - {callers: [ci], view: plain}\n"
    )
    one, none, default = (
        found.choose_view("claude-code", "ci"),
        found.choose_view("cursor", "ci"),
        found.choose_view("cursor", "local"),
    )
    assert one is not None
    assert one.mode == "single"
    assert none is None
    assert default is not None
    assert default.mode == "semantic"


@pytest.mark.parametrize("name", ["interlock", "interlock-cli"])
def test_nodes_and_command_line_get_plain_view(name: str) -> None:
    assert make_views("aql: {view: aql}").choose_view(name, "local") is None
    asked = make_views(f"aql: {{clients: [{{clients: [{name}], view: aql}}]}}")
    assert asked.choose_view(name, "local") is not None


DENIED = "aql: {plain: deny, clients: [{callers: [ci], view: aql-single}]}"


@pytest.mark.parametrize("client", ["claude-code", "interlock", "interlock-cli", ""])
def test_denied_plain_view_is_unavailable(client: str) -> None:
    found = make_views(DENIED)
    default = found.choose_view(client, "local")
    assert default is not None
    assert default.mode == "semantic"
    assert found.choose_view(client, "ci").mode == "single"  # type: ignore[union-attr]
    for query in (b"view=plain", b"view=aql&view=plain", b"view=plain&namespace=x"):
        with pytest.raises(ProtocolError, match="Available views: aql, aql-single"):
            found.named(query)
    with pytest.raises(ProtocolError, match="not open"):
        found.find_view("plain")
    assert "plain" not in found.names
    # It would be plain where that is shorter.
    assert found.find_view("auto").mode == "semantic"


@pytest.mark.parametrize("name", ["interlock", "interlock-cli"])
def test_local_command_line_gets_plain_view_despite_deny(name: str) -> None:
    found = make_views(DENIED)
    assert found.local.choose_view(name, "local") is None
    assert found.local.choose_view("claude-code", "local") is not None
    with pytest.raises(ProtocolError, match="not open"):
        found.local.find_view("plain")
    found.configure(parse_config("aql: {}", "interlock.yaml"))
    assert found.local.choose_view("claude-code", "local") is None
    assert found.named(b"view=plain") is PLAIN_VIEW


def test_rejects_unknown_view_and_lists_views() -> None:
    with pytest.raises(ProtocolError, match="aql-single"):
        make_views().named(b"view=everything")


def test_namespace_is_separate_view() -> None:
    face = make_views().named(b"view=aql&namespace=github")
    assert face is not None
    assert face.namespace == "github"
    assert face != make_views().named(b"view=aql")
    assert hash(face) == hash(make_views().named(b"namespace=github&view=aql"))


@given(st.binary(max_size=200))
def test_any_url_returns_view_or_error(query: bytes) -> None:
    try:
        face = make_views().named(b"view=" + query)
    except ProtocolError:
        return
    assert face is None or isinstance(face, OperationView)


def test_rejects_too_many_url_parameters() -> None:
    with pytest.raises(ProtocolError):
        make_views().named(b"&".join([b"a=1"] * 100))


@given(st.sampled_from(["aql", "semantic", "crude"]), st.sampled_from(list(Category)), st.text())
def test_every_operation_belongs_to_one_endpoint(view: str, category: Category, name: str) -> None:
    face = make_views().named(f"view={view}".encode())
    assert face is not None
    assert face.find_family(name, category) in face.families
