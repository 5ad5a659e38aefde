"""Sealed request state: encrypted, bound to caller and request, and limited in time."""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Call, Caller
from interlock.core.pipeline.request_state import SealedState, StateSealer, digest_request
from interlock.errors import INVALID_STATE, UPSTREAM_PROTOCOL, InterlockError
from interlock.protocol.mcp import PROMPTS_GET
from tests.core.pipeline.client_request_harness import KEY, call_of, stateless
from tests.protocol.json_values import objects

NOW = 1_700_000_000.0


def make_sealer(key: bytes = KEY, now: float = NOW) -> StateSealer:
    return StateSealer(key, lambda: now)


def make_call(caller: str = "operator", **fields: Any) -> Call:
    call = call_of(stateless(), **fields)
    call.caller = Caller(caller)
    call.upstream = "s"
    return call


def reject_state(state: str, call: Call, by: StateSealer) -> InterlockError:
    with pytest.raises(InterlockError) as caught:
        by.open(state, call)
    return caught.value


def test_opens_state_for_sealing_caller() -> None:
    state = make_sealer().seal(make_call(), 60, upstream_state="theirs")
    assert make_sealer().open(state, make_call()).upstream_state == "theirs"


def test_state_survives_restart_with_same_key() -> None:
    state = make_sealer().seal(make_call(), 60, handle="handle")
    assert make_sealer().open(state, make_call()).handle == "handle"


def test_other_key_opens_nothing() -> None:
    state = make_sealer().seal(make_call(), 60, handle="handle")
    assert reject_state(state, make_call(), make_sealer(b"x" * 32)).failure is INVALID_STATE


@pytest.mark.parametrize(
    "other",
    [
        make_call("auditor"),
        make_call(""),
        make_call(name="s.other"),
        make_call(arguments={"n": 1}),
        make_call(verb=PROMPTS_GET),
    ],
    ids=["other caller", "no caller", "other tool", "other arguments", "other method"],
)
def test_state_is_bound_to_caller_and_request(other: Call) -> None:
    state = make_sealer().seal(make_call(), 60, upstream_state="theirs")
    assert reject_state(state, other, make_sealer()).failure is INVALID_STATE


def test_state_is_bound_to_upstream() -> None:
    state = make_sealer().seal(make_call(), 60, upstream_state="theirs")
    moved = make_call()
    moved.upstream = "elsewhere"
    assert reject_state(state, moved, make_sealer()).failure is INVALID_STATE


def test_rejects_expired_state() -> None:
    state = make_sealer().seal(make_call(), 60, upstream_state="theirs")
    assert make_sealer(now=NOW + 60).open(state, make_call()).upstream_state == "theirs"
    assert reject_state(state, make_call(), make_sealer(now=NOW + 60.1)).failure is INVALID_STATE


def test_every_rejection_has_same_message() -> None:
    """Who has to ask why, learns nothing from it."""
    state = make_sealer().seal(make_call(), 60, upstream_state="theirs")
    late = reject_state(state, make_call(), make_sealer(now=NOW + 61))
    foreign = reject_state(state, make_call("auditor"), make_sealer())
    forged = reject_state("i1.AAAA", make_call(), make_sealer())
    message = {
        (item.failure, item.message, json.dumps(item.data)) for item in (late, foreign, forged)
    }
    assert len(message) == 1


def test_state_reveals_nothing() -> None:
    state = make_sealer().seal(
        make_call("operator"), 60, handle="the-handle", upstream_state="their-secret-state"
    )
    raw = urlsafe_b64decode(state[3:] + "==")
    for secret in (b"operator", b"the-handle", b"their-secret-state", digest_request(make_call())):
        assert secret not in raw
        assert secret not in state.encode()


def test_equal_states_are_sealed_differently() -> None:
    one, two = (make_sealer().seal(make_call(), 60, upstream_state="theirs") for _ in range(2))
    assert one != two
    assert one[3:19] != two[3:19]


@given(st.data())
def test_rejects_changed_state(data: st.DataObject) -> None:
    state = make_sealer().seal(make_call(), 60, upstream_state="theirs")
    place = data.draw(st.integers(0, len(state) - 1))
    put = data.draw(st.one_of(st.just(""), st.characters(), st.text("AZaz09-_=.+/ ", max_size=3)))
    touched = data.draw(
        st.sampled_from(
            [
                state[:place] + put + state[place + 1 :],
                state[:place] + put + state[place:],
                state + put,
            ]
        )
    )
    if touched != state:
        assert reject_state(touched, make_call(), make_sealer()).failure is INVALID_STATE


@given(st.text(max_size=200))
def test_rejects_forged_state(made_up: str) -> None:
    for state in (made_up, "i1." + made_up):
        assert reject_state(state, make_call(), make_sealer()).failure is INVALID_STATE


@given(st.text(max_size=300).filter(lambda text: text.isprintable()))
def test_restores_server_state(theirs: str) -> None:
    state = make_sealer().seal(make_call(), 60, upstream_state=theirs)
    assert make_sealer().open(state, make_call()).upstream_state == theirs


def test_rejects_oversized_server_state() -> None:
    with pytest.raises(InterlockError) as caught:
        make_sealer().seal(make_call(), 60, upstream_state="x" * 1024 * 1024)
    assert caught.value.failure is UPSTREAM_PROTOCOL
    longest = "x" * 700_000
    assert (
        make_sealer()
        .open(make_sealer().seal(make_call(), 60, upstream_state=longest), make_call())
        .upstream_state
        == longest
    )


def test_rejects_oversized_state_without_decoding() -> None:
    assert (
        reject_state("i1." + "A" * 2_000_000, make_call(), make_sealer()).failure is INVALID_STATE
    )


def test_rejects_invalid_content_sealed_with_key() -> None:
    nonce = os.urandom(12)
    raw = nonce + AESGCM(KEY).encrypt(nonce, b"\x93not a seal", None)
    state = "i1." + urlsafe_b64encode(raw).decode().rstrip("=")
    assert reject_state(state, make_call(), make_sealer()).failure is INVALID_STATE


# --- the same request ---


def test_accepts_reordered_arguments() -> None:
    one = make_call(arguments=b'{"a":{"x":1,"y":[2,{"p":1,"q":2}]},"b":2}')
    two = make_call(arguments=b'{ "b": 2, "a": {"y": [2, {"q":2,"p":1}], "x":1} }')
    assert digest_request(one) == digest_request(two)


@given(objects, st.randoms())
def test_digest_ignores_order_and_whitespace(arguments: dict[str, Any], chance: Any) -> None:
    keys = list(arguments)
    chance.shuffle(keys)
    plain = make_call(arguments=json.dumps(arguments).encode())
    other = make_call(
        arguments=json.dumps({key: arguments[key] for key in keys}, indent=2).encode()
    )
    assert digest_request(plain) == digest_request(other)


@given(objects, objects)
def test_other_arguments_have_other_digest(one: dict[str, Any], two: dict[str, Any]) -> None:
    alike = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert (
        digest_request(make_call(arguments=one)) == digest_request(make_call(arguments=two))
    ) == alike


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (b'{"n":1}', b'{"n":"1"}'),
        (b'{"n":1}', b'{"n":true}'),
        (b'{"n":[1,2]}', b'{"n":[2,1]}'),
        (b'{"n":100000000000000000000000001}', b'{"n":100000000000000000000000002}'),
        (b'{"n":null}', b"{}"),
    ],
)
def test_similar_arguments_have_other_digest(one: bytes, two: bytes) -> None:
    assert digest_request(make_call(arguments=one)) != digest_request(make_call(arguments=two))


def test_digest_separates_parts() -> None:
    one, two = make_call(name="ab"), make_call(name="b")
    two.upstream = "sa"
    assert digest_request(one) != digest_request(two)


def test_state_is_small() -> None:
    inside = SealedState("operator", b"d" * 16, NOW, "h" * 24)
    state = make_sealer().seal(make_call(), 60, handle=inside.handle)
    assert len(state) < 200
