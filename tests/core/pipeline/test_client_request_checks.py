"""Checks of client requests: by the capabilities of the client, and by the config."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Client, ClientRequest, ClientResponse
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.client_requests import (
    ClientRequestFilter,
    ClientRequestPolicy,
    ClientRequestRejection,
    capabilities_of,
    shared_capabilities,
)
from interlock.errors import FORBIDDEN, MISSING_CLIENT_CAPABILITY, UPSTREAM_PROTOCOL
from interlock.protocol.mcp import ELICITATION, ROOTS, SAMPLING, Era
from tests.core.pipeline.client_request_harness import (
    EVERYTHING,
    FORM,
    SAMPLE,
    URL,
    call_of,
    stateless,
)
from tests.protocol.json_values import objects, values


def fail_on_response(answer: ClientResponse) -> None:
    raise AssertionError("Looking at a question does not answer it.")


def check_request(
    method: str,
    params: Any = None,
    able: Any = EVERYTHING,
    policy: ClientRequestPolicy | None = None,
    *,
    era: Era = Era.SESSION,
) -> tuple[ClientRequestRejection | None, ClientRequest]:
    """Return the rejection of a client request, if any. `params` may be raw bytes."""
    raw = params if isinstance(params, bytes) else b"" if params is None else _json(params)
    client_request = ClientRequest(method, raw, fail_on_response, "s")
    asked_of: list[str] = []

    def policy_of(upstream: str) -> ClientRequestPolicy:
        asked_of.append(upstream)
        return policy or ClientRequestPolicy()

    client = Client(era, "2025-11-25", "", able if isinstance(able, bytes) else _json(able))
    refusal = ClientRequestFilter(policy_of, Audit(None), lambda: 0.0).check(
        client_request, client, "s"
    )
    assert asked_of in ([], ["s"])
    return refusal, client_request


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


# --- what the client can do ---


@pytest.mark.parametrize(
    ("method", "params", "able"),
    [
        (ROOTS, None, {"roots": {}}),
        (ROOTS, None, {"roots": {"listChanged": True}}),
        (SAMPLING, SAMPLE, {"sampling": {}}),
        (SAMPLING, {**SAMPLE, "tools": []}, {"sampling": {"tools": {}}}),
        (SAMPLING, {**SAMPLE, "toolChoice": {}}, {"sampling": {"tools": {}}}),
        (ELICITATION, FORM, {"elicitation": {}}),
        (ELICITATION, FORM, {"elicitation": {"form": {}}}),
        (ELICITATION, {"mode": "form", **FORM}, {"elicitation": {}}),
        (ELICITATION, FORM, {"elicitation": {"org.example/else": {}}}),
        (ELICITATION, URL, {"elicitation": {"url": {}}}),
        (ELICITATION, URL, {"elicitation": {"url": {}, "form": {}}}),
    ],
)
def test_accepts_supported_client_request(method: str, params: Any, able: Any) -> None:
    refusal, client_request = check_request(method, params, able)
    assert refusal is None
    assert client_request.params == (b"" if params is None else _json(params)), "nothing is changed"


@pytest.mark.parametrize(
    ("method", "params", "able", "code", "missing"),
    [
        (ROOTS, None, {}, -32601, {"roots": {}}),
        (ROOTS, None, {"roots": True}, -32601, {"roots": {}}),
        (SAMPLING, SAMPLE, {"roots": {}}, -32601, {"sampling": {}}),
        (SAMPLING, {**SAMPLE, "tools": []}, {"sampling": {}}, -32602, {"sampling": {"tools": {}}}),
        (ELICITATION, FORM, {}, -32601, {"elicitation": {}}),
        (ELICITATION, URL, {}, -32601, {"elicitation": {"url": {}}}),
        (ELICITATION, URL, {"elicitation": {}}, -32602, {"elicitation": {"url": {}}}),
        (ELICITATION, URL, {"elicitation": {"form": {}}}, -32602, {"elicitation": {"url": {}}}),
        (ELICITATION, FORM, {"elicitation": {"url": {}}}, -32602, {"elicitation": {"form": {}}}),
    ],
)
def test_rejects_unsupported_client_request(
    method: str, params: Any, able: Any, code: int, missing: Any
) -> None:
    refusal, _ = check_request(method, params, able)
    assert refusal is not None
    assert (refusal.code, refusal.missing) == (code, missing)
    error = refusal.to_error()
    assert error.failure is MISSING_CLIENT_CAPABILITY
    assert error.data == {"requiredCapabilities": missing}


def test_rejects_unknown_elicitation_mode() -> None:
    refusal, _ = check_request(ELICITATION, {"mode": "v" * 1000, "message": "m"})
    assert refusal is not None
    assert refusal.code == -32602
    assert len(refusal.message) < 100
    assert refusal.to_error().failure is UPSTREAM_PROTOCOL


@pytest.mark.parametrize("method", ["ping", "tools/call", "", "roots/list/", "x" * 100])
def test_rejects_other_methods(method: str) -> None:
    refusal, _ = check_request(method)
    assert refusal is not None
    assert (refusal.code, refusal.missing) == (-32601, None)


@pytest.mark.parametrize("params", [b"[]", b"null", b"5", b'"x"', b"{", b"\xff"])
def test_rejects_invalid_params(params: bytes) -> None:
    refusal, _ = check_request(ELICITATION, params)
    assert refusal is not None
    assert refusal.code == -32602


@pytest.mark.parametrize("able", [b"[]", b"null", b"5", b"{", b"", b"\xff", b'{"roots":{}'])
def test_treats_invalid_capabilities_as_none(able: bytes) -> None:
    assert capabilities_of(able) == {}
    refusal, _ = check_request(ROOTS, None, able)
    assert refusal is not None


@given(values, objects, st.sampled_from([ELICITATION, SAMPLING, ROOTS]))
def test_accepts_any_capabilities_and_params(able: Any, params: Any, method: str) -> None:
    for message in (able, {"elicitation": able, "sampling": able, "roots": able}):
        refusal, client_request = check_request(
            method, params, message, ClientRequestPolicy(max_tokens=5)
        )
        if refusal is None:
            assert isinstance(json.loads(client_request.params), dict)
            assert isinstance(message, dict)


# --- what the config lets servers ask ---


@pytest.mark.parametrize(
    ("method", "params", "policy"),
    [
        (SAMPLING, SAMPLE, ClientRequestPolicy(sampling=False)),
        (ELICITATION, FORM, ClientRequestPolicy(elicitation=False)),
        (ROOTS, None, ClientRequestPolicy(roots=False)),
    ],
)
def test_rejects_forbidden_methods(method: str, params: Any, policy: ClientRequestPolicy) -> None:
    refusal, _ = check_request(method, params, policy=policy)
    assert refusal is not None
    assert (refusal.code, refusal.missing) == (-1, None)
    assert refusal.to_error().failure is FORBIDDEN
    for other in {SAMPLING, ELICITATION, ROOTS} - {method}:
        allowed, _ = check_request(other, SAMPLE if other == SAMPLING else {}, policy=policy)
        assert allowed is None, "what is forbidden is that alone"


@pytest.mark.parametrize(
    ("requested", "supplied"),
    [(5, 5), (10, 10), (11, 10), (10**30, 10), ("many", 10), (None, 10), (True, 10), (9.5, 9.5)],
)
def test_limits_max_tokens(requested: Any, supplied: Any) -> None:
    refusal, client_request = check_request(
        SAMPLING, {**SAMPLE, "maxTokens": requested}, policy=ClientRequestPolicy(max_tokens=10)
    )
    assert refusal is None
    assert json.loads(client_request.params) == {**SAMPLE, "maxTokens": supplied}


def test_adds_max_tokens_when_absent() -> None:
    _, client_request = check_request(
        SAMPLING, {"messages": []}, policy=ClientRequestPolicy(max_tokens=10)
    )
    assert json.loads(client_request.params) == {"messages": [], "maxTokens": 10}


def test_keeps_params_without_token_limit() -> None:
    _, client_request = check_request(SAMPLING, SAMPLE)
    assert json.loads(client_request.params) == SAMPLE


# --- extensions that both sides know ---


@pytest.mark.parametrize(
    ("able", "offered", "common"),
    [
        ({"extensions": {"a": {}}}, {"extensions": {"a": {}, "b": {}}}, True),
        ({"extensions": {"a": {}}}, {"extensions": {"b": {}}}, False),
        ({"extensions": {}}, {"extensions": {}}, False),
        ({}, {"extensions": {"a": {}}}, False),
        ({"extensions": []}, {"extensions": []}, False),
    ],
)
def test_finds_shared_extension(able: Any, offered: Any, common: bool) -> None:
    assert shared_capabilities(call_of(stateless(able), verb="x/y"), offered) is common


# --- a question is answered once ---


def test_only_first_response_counts() -> None:
    responses: list[ClientResponse] = []
    withdrawn: list[str] = []
    over: list[Any] = []
    ask = ClientRequest(ROOTS, b"", responses.append)
    ask.on_withdraw = lambda ask, reason: withdrawn.append(reason)
    ask.on_end = over.append
    ask.respond(b"{}")
    ask.reject(-1, "no")
    ask.withdraw("never mind")
    assert [response.result for response in responses] == [b"{}"]
    assert (withdrawn, len(over)) == ([], 1)


def test_withdrawn_request_is_not_answered() -> None:
    responses: list[ClientResponse] = []
    over: list[Any] = []
    client_request = ClientRequest(ROOTS, b"", responses.append)
    client_request.on_end = over.append
    client_request.withdraw("never mind")
    client_request.withdraw("once more")
    client_request.respond(b"{}")
    assert (responses, over) == ([], ["never mind"])


def test_error_code_zero_is_rejection() -> None:
    responses: list[ClientResponse] = []
    ClientRequest(ROOTS, b"", responses.append).reject(0, "no")
    assert responses[0].is_error
