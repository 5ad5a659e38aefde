"""Properties of the config reader and writer for any text and any servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.core.config import (
    Config,
    ConfigError,
    ServerConfig,
    add_server,
    parse_config,
    to_yaml,
)
from interlock.core.config.quantities import (
    format_size,
    parse_size,
)
from tests.core.config.strategies import keys, server_sets, servers

# Pieces of which real files and real mistakes are made.
fragments = st.sampled_from(
    ["servers:", "\n", "  ", "a: ", "url: ", "http://x", "command: ", "run", "- ", "[", "]", "{",
     "}", ",", "'", '"', "*", "&a ", "*a", "!x ", "|", ">", "#", "\t", "---", "...", "%", "? ",
     ": ", "${env:X}", "${", "timeout: ", "5s", "tokens: ", "name: ", "token: ", "listen: ",
     "0.0.0.0:1", "limits: ", "sessions: ", "~", "true", "1e9999", "\\", "\\U", "<<: ", "!!int ",
     "!!null ", "!!bool ", "!!float ", "!!map ", "!!str ", "page_size: ", "journal: "]
)  # fmt: skip
known_words = st.text(max_size=4) | st.sampled_from(
    [*Config.__struct_fields__, *ServerConfig.__struct_fields__, "a", "b"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(known_words, inner, max_size=4),
    max_leaves=12,
)


def parse_or_reject(text: str) -> None:
    problems = None
    try:
        parse_config(text)
    except ConfigError as error:
        problems = error.problems
    assert problems is None or all(problem.message and problem.hint for problem in problems)


@given(st.text())
@example("\ud800")
@example('"\\UFFFFFFFF"')
@example("%YAML 1." + "1" * 5000)
@example("page_size: " + "1" * 5000)
@example("timeout: 1e999")
@example("page_size: !!int abc")
@example("page_size: !!float abc")
@example("a: &a [*a]")
@example("servers: &a {b: *a}")
@example("{" * 3000)
@example("servers: {a: 'http://[x'}")
@example("servers: {a: {url: 'http://[::1'}}")
@example("listen: '[::%1]:1'")
def test_parses_any_text_or_raises_config_error(text: str) -> None:
    parse_or_reject(text)


@given(st.lists(fragments, max_size=30).map("".join))
def test_parses_any_fragments_or_raises_config_error(text: str) -> None:
    parse_or_reject(text)


@given(json_values)
def test_parses_any_json_or_raises_config_error(value: Any) -> None:
    parse_or_reject(json.dumps(value))


@given(server_sets())
def test_servers_survive_round_trip(servers: dict[str, ServerConfig]) -> None:
    text = to_yaml(servers)
    assert parse_config(text).servers == servers
    assert to_yaml(parse_config(text).servers) == text


@given(server_sets(), keys, servers())
def test_adds_server_to_any_rendered_file(
    before: dict[str, ServerConfig], key: str, server: ServerConfig
) -> None:
    text = to_yaml(before)
    expected = Config(servers={**before, key: server}).servers
    segments = [s.segment for s in expected.values()]
    if key in before or len(set(segments)) < len(segments) or "" in segments:
        with pytest.raises(ConfigError):
            add_server(text, key, server)
        return
    edited = add_server(text, key, server)
    assert parse_config(edited).servers == expected
    if before:
        assert edited.startswith(text)


@given(st.integers(min_value=1, max_value=2**50))
def test_sizes_survive_round_trip(value: int) -> None:
    assert parse_size(format_size(value)) == value
