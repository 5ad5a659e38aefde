"""Views of a node without features."""

from __future__ import annotations

import pytest

from interlock.core import feature
from interlock.core.config import Config
from interlock.core.server.mcp.views import Views
from interlock.errors import ProtocolError
from interlock.protocol.aql_terms import PLAIN_VIEW


def test_only_plain_view_exists_without_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "_section_references", ())
    views = Views(Config())
    assert views.names == ["plain"]
    assert views.named(b"view=plain") is PLAIN_VIEW
    assert views.named(b"namespace=github") is PLAIN_VIEW
    assert views.choose_view("claude-code", "local") is None
    with pytest.raises(ProtocolError, match="Available views: plain"):
        views.named(b"view=aql")
