"""Resolution of prompts, resources and completion references."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.core.call import Call
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import Offering
from interlock.core.pipeline.resolution import resolve_method
from interlock.errors import INVALID_PARAMS, UNKNOWN_PROMPT, UNKNOWN_RESOURCE, InterlockError
from interlock.protocol.mcp import (
    COMPLETE_ARGUMENT,
    PROMPTS_GET,
    RESOURCES_READ,
    SUBSCRIBE,
    TOOLS_LIST,
    UNSUBSCRIBE,
)
from tests.core.pipeline.client_request_harness import call_of, stateless
from tests.protocol.json_values import values
from tests.support.offerings import offer


def make_catalog(*offerings: Offering) -> Catalog:
    catalog = Catalog(server_info=b"{}")
    for offering in offerings:
        catalog.publish(offering)
    return catalog


CATALOG = make_catalog(
    offer("one", prompts=["write"], resources=["test://a", "test://both"]),
    offer("two", prompts=["write"], resources=["test://both"], templates=["two://{id}/x"]),
)


def request(verb: str, name: str = "", **fields: Any) -> Call:
    extra = fields.pop("extra_params", None)
    call = call_of(stateless(), name, verb=verb, **fields)
    if extra is not None:
        call.extra_params = {key: Raw(json.dumps(value).encode()) for key, value in extra.items()}
    return call


def read_params(call: Call) -> dict[str, Any]:
    return {key: json.loads(bytes(raw)) for key, raw in (call.extra_params or {}).items()}


def reject(call: Call) -> InterlockError:
    with pytest.raises(InterlockError) as caught:
        resolve_method(call, CATALOG)
    assert call.upstream == "", "what leads nowhere can reach nobody"
    return caught.value


# --- prompts ---


@pytest.mark.parametrize("name", ["two.write", "two__write"])
def test_resolves_prompt_to_upstream_name(name: str) -> None:
    call = request(PROMPTS_GET, name, arguments={"a": "b"}, extra_params={"more": 1})
    assert resolve_method(call, CATALOG)
    assert call.upstream == "two"
    assert read_params(call) == {"name": "write", "arguments": {"a": "b"}, "more": 1}
    assert call.is_retryable


def test_omits_absent_prompt_arguments() -> None:
    call = request(PROMPTS_GET, "one.write")
    resolve_method(call, CATALOG)
    assert read_params(call) == {"name": "write"}


def test_client_cannot_override_prompt_name() -> None:
    call = request(PROMPTS_GET, "one.write", extra_params={"name": "other"})
    resolve_method(call, CATALOG)
    assert read_params(call) == {"name": "write"}


def test_rejects_unknown_prompt() -> None:
    error = reject(request(PROMPTS_GET, "x" * 1000))
    assert error.failure is UNKNOWN_PROMPT
    assert len(error.message) < 200


# --- resources ---


@pytest.mark.parametrize("verb", [RESOURCES_READ, SUBSCRIBE, UNSUBSCRIBE])
@pytest.mark.parametrize(
    ("uri", "upstream", "own"),
    [
        ("test://a", "one", "test://a"),
        ("two://5/x", "two", "two://5/x"),
        ("interlock:two:test://both", "two", "test://both"),
        ("interlock:one:test://a", "one", "test://a"),
    ],
)
def test_resolves_resource_to_upstream_uri(verb: str, uri: str, upstream: str, own: str) -> None:
    call = request(verb, uri)
    assert resolve_method(call, CATALOG)
    assert (call.upstream, read_params(call)) == (upstream, {"uri": own})


def test_rejects_unknown_resource() -> None:
    error = reject(request(RESOURCES_READ, "test://nothing"))
    assert error.failure is UNKNOWN_RESOURCE
    assert error.data == {"uri": "test://nothing"}


def test_rejects_ambiguous_uri() -> None:
    error = reject(request(RESOURCES_READ, "test://both"))
    assert error.failure is INVALID_PARAMS


# --- completions ---


def completion_request(reference: Any) -> Call:
    argument = {"name": "a", "value": "x"}
    return request(COMPLETE_ARGUMENT, extra_params={"ref": reference, "argument": argument})


def test_resolves_completion_for_prompt() -> None:
    call = completion_request({"type": "ref/prompt", "name": "two.write", "title": "kept"})
    assert resolve_method(call, CATALOG)
    assert call.upstream == "two"
    assert read_params(call)["ref"] == {"type": "ref/prompt", "name": "write", "title": "kept"}
    assert read_params(call)["argument"] == {"name": "a", "value": "x"}


@pytest.mark.parametrize(
    ("uri", "upstream", "own"),
    [
        ("test://a", "one", "test://a"),
        ("two://{id}/x", "two", "two://{id}/x"),
        ("interlock:two:test://both", "two", "test://both"),
    ],
)
def test_resolves_completion_for_resource(uri: str, upstream: str, own: str) -> None:
    call = completion_request({"type": "ref/resource", "uri": uri})
    assert resolve_method(call, CATALOG)
    assert (call.upstream, read_params(call)["ref"]) == (
        upstream,
        {"type": "ref/resource", "uri": own},
    )


@pytest.mark.parametrize(
    "reference",
    [
        None,
        5,
        [],
        {},
        {"type": "ref/prompt"},
        {"type": "ref/prompt", "name": 5},
        {"type": "ref/prompt", "uri": "test://a"},
        {"type": "ref/resource", "name": "one.write"},
        {"type": "ref/resource", "uri": None},
        {"type": "ref/else", "name": "one.write", "uri": "test://a"},
        {"type": ["ref/prompt"], "name": "one.write"},
    ],
)
def test_rejects_invalid_reference(reference: Any) -> None:
    assert reject(completion_request(reference)).failure is INVALID_PARAMS


def test_rejects_completion_without_reference() -> None:
    assert reject(request(COMPLETE_ARGUMENT)).failure is INVALID_PARAMS


def test_rejects_completion_for_unknown_target() -> None:
    unknown = completion_request({"type": "ref/prompt", "name": "one.nothing"})
    assert reject(unknown).failure is UNKNOWN_PROMPT
    unknown = completion_request({"type": "ref/resource", "uri": "test://nothing"})
    assert reject(unknown).failure is UNKNOWN_RESOURCE


# --- everything else ---


def test_ignores_other_methods() -> None:
    call = request(TOOLS_LIST)
    assert not resolve_method(call, CATALOG)
    assert (call.upstream, call.is_retryable) == ("", False)


@given(
    st.sampled_from([PROMPTS_GET, RESOURCES_READ, SUBSCRIBE, COMPLETE_ARGUMENT]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    values,
)
def test_resolves_or_rejects_any_request(verb: str, name: str, reference: Any) -> None:
    call = request(verb, name, extra_params={"ref": reference})
    failure = None
    try:
        resolve_method(call, CATALOG)
    except InterlockError as error:
        failure = error.failure
    assert failure in (None, UNKNOWN_PROMPT, UNKNOWN_RESOURCE, INVALID_PARAMS)
    assert (call.upstream in ("one", "two")) is (failure is None)
