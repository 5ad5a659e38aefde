"""The configuration reference: docs/configuration.md equals the generated page."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct

from interlock.app.features import FEATURES
from interlock.core.config import (
    BreakerConfig,
    Config,
    JournalConfig,
    Limits,
    OAuthConfig,
    ServerConfig,
    TokenConfig,
    parse_config,
)
from interlock.core.config.feature_sections import fields_of
from interlock.core.config.reference import EXAMPLE, config_reference

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"
DOCUMENTED = {"aql", "automation", "contracts", "drivers", "topics", "tree"}
SECTIONS = [Config, ServerConfig, OAuthConfig, TokenConfig, Limits, BreakerConfig, JournalConfig]


def test_reference_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    if set(FEATURES) >= DOCUMENTED:
        assert page == config_reference()
    else:
        # The page has the sections of all features; this build lacks some.
        assert {*config_reference().splitlines()} <= {*page.splitlines()}


@pytest.mark.parametrize("struct", SECTIONS)
def test_documents_every_key(struct: type[Struct]) -> None:
    lines = config_reference().splitlines()
    for name in fields_of(struct):
        rows = [line.split(" | ") for line in lines if line.startswith(f"| `{name}` | ")]
        assert rows, name
        assert all(len(row) == 4 and len(row[3]) > 10 for row in rows), name


def test_example_config_is_valid() -> None:
    config = parse_config(EXAMPLE)
    assert list(config.servers) == ["jira", "files", "wiki", "db"]
    assert config.tokens[0].token == "${env:INTERLOCK_TOKEN}"
