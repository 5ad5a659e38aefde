"""Random servers that a config may hold, for property tests."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from interlock.core.config import OAuthConfig, ServerConfig
from interlock.core.config.quantities import SERVER_KEY_PATTERN, default_segment
from interlock.core.config.secrets import escape

words = st.text(min_size=1, max_size=12)
keys = words.filter(lambda key: re.fullmatch(SERVER_KEY_PATTERN, key))
# `$${` keeps any text from being read as a reference.
values = st.one_of(
    st.text(max_size=20).map(escape),
    st.sampled_from(["${env:X}", "Bearer ${env:X:-y}", "true", "1e3", "0o7", "~", "null", "12"]),
)
hosts = st.from_regex(r"[a-z]{1,8}(\.[a-z]{2,5})?(:[1-9][0-9]{0,3})?", fullmatch=True)
paths = st.from_regex(r"(/[A-Za-z0-9_.~-]{0,6}){0,3}(\?[a-z]=[a-z0-9]{0,4})?", fullmatch=True)
urls = st.builds("{}://{}{}".format, st.sampled_from(["http", "https"]), hosts, paths)
seconds = st.floats(min_value=0.001, max_value=1e6)
variables = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)
headers = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,10}", fullmatch=True)
tool_names = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
segments = st.from_regex(r"[a-z0-9_-]{1,20}", fullmatch=True)


def _shared() -> dict[str, st.SearchStrategy[Any]]:
    return {
        "description": st.none() | st.text(max_size=20),
        "enabled": st.booleans(),
        "segment": st.just("") | segments,
        "allow": st.lists(words, max_size=3),
        "deny": st.lists(words, max_size=3),
        "rename": st.dictionaries(words, tool_names, max_size=2),
        "descriptions": st.dictionaries(words, st.text(max_size=20), max_size=2),
        "effects": st.dictionaries(
            words,
            st.sampled_from(["read_only", "additive", "mutating", "irreversible"]),
            max_size=2,
        ),
        "trust_annotations": st.booleans(),
        "timeout": st.none() | seconds,
        "start_timeout": seconds,
        "grace": st.just(0.0) | seconds,
        "min_latency_class": st.sampled_from([None, "fast", "batch"]),
        "connections": st.integers(min_value=1, max_value=10**6),
    }


def _some(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[ServerConfig]:
    shape = st.fixed_dictionaries(required, optional={**_shared(), **optional})
    return shape.map(lambda given: ServerConfig(**given))


def sign_ins() -> st.SearchStrategy[OAuthConfig]:
    """Ways to sign in that a config may hold."""
    shared = {
        "enabled": st.booleans(),
        "scopes": st.lists(words, max_size=2),
        "issuer": hosts.map("https://{}".format),
        "redirect_port": st.integers(min_value=0, max_value=65535),
        "client_metadata_url": hosts.map("https://{}/client.json".format),
    }
    proven: dict[str, Any] = {
        "client_id": words.map(escape),
        "client_secret": st.just("${env:X}"),
        "grant": st.sampled_from(["authorization_code", "client_credentials"]),
    }
    shapes = st.fixed_dictionaries({}, optional=shared) | st.fixed_dictionaries(
        proven, optional=shared
    )
    return shapes.map(lambda given: OAuthConfig(**given))  # type: ignore[arg-type]


def remote_servers() -> st.SearchStrategy[ServerConfig]:
    return _some(
        {"url": urls},
        {
            "oauth": sign_ins(),
            "headers": st.dictionaries(
                headers.filter(lambda name: name.lower() != "authorization"), values, max_size=2
            ),
            "transport": st.sampled_from(["auto", "http", "sse"]),
        },
    )


def spawned_servers() -> st.SearchStrategy[ServerConfig]:
    return _some(
        {"command": words.map(escape)},
        {
            "args": st.lists(values, max_size=3),
            "env": st.dictionaries(variables, values, max_size=2),
            "cwd": words.map(escape),
            "transport": st.sampled_from(["auto", "stdio", "ax"]),
        },
    )


def servers() -> st.SearchStrategy[ServerConfig]:
    """One server of either kind."""
    return remote_servers() | spawned_servers()


def server_sets() -> st.SearchStrategy[dict[str, ServerConfig]]:
    """Servers by key, each with a segment of its own."""
    return st.dictionaries(keys, servers(), max_size=4).map(_with_own_segments)


def _with_own_segments(result: dict[str, ServerConfig]) -> dict[str, ServerConfig]:
    named: dict[str, ServerConfig] = {}
    taken: set[str] = set()
    for number, (key, server) in enumerate(result.items()):
        segment = server.segment or default_segment(key)
        if not segment or segment in taken:
            segment = f"own-{number}"
        taken.add(segment)
        named[key] = replace(server, segment=segment)
    return named
