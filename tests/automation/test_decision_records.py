"""Tests of the record of a decision: operator, call, masked secrets and size."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.automation.decision import (
    MAX_ARGUMENT_BYTES,
    MAX_TEXT_LENGTH,
    encode_arguments,
    is_decision,
    is_hidden,
    is_long_prose,
    is_long_text,
    make_decision,
    mask_secrets,
)
from interlock.core.call import Caller, Client, ProposedCall
from interlock.core.redaction import MASK, redact_value
from interlock.protocol.mcp import Era
from interlock.trust.approvals.record import Approval, encode_canonical
from tests.protocol.json_values import values


def make_approval(**fields: Any) -> Approval:
    made = {
        "id": "a1",
        "state": "approved",
        "audience": "n",
        "nonce": "x",
        "caller": Caller("agent", kind="token"),
        "client": Client(Era.SESSION, "2025-11-25", "tests"),
        "face": "http",
        "name": "write",
        "tool": "files.write",
        "upstream": "files",
        "route": ("files", "write"),
        "arguments": b'{"path":"/a","password":"hunter2-hunter2"}',
        "shown": encode_canonical({"path": "/a", "password": "hunter2-hunter2"}),
        "capability": b"{}",
        "effect": "mutating",
        "description": "",
        "digest": "d",
        "contract": "c",
        "policy": "v",
        "rule": "writes",
        "action": "confirm",
        "reason": "",
        "created": 1.0,
        "expires": 9.0,
        "decided": 5.0,
        "by": "clerk",
        "proof": "operator",
        **fields,
    }
    return Approval(**made)


def test_records_approval() -> None:
    decision = make_approval()
    assert is_decision(decision)
    found = make_decision(decision, 7.0)
    assert (found.time, found.source, found.caller, found.tool) == (
        5.0, "approval", "agent", "files.write",
    )  # fmt: skip
    assert (found.verdict, found.by, found.proof, found.approval, found.rule) == (
        "approve", "clerk", "operator", "a1", "writes",
    )  # fmt: skip
    assert json.loads(found.arguments)["path"] == "/a"
    assert b"hunter2" not in found.arguments


def test_records_proposal_source() -> None:
    decision = make_approval(proposal=ProposedCall("room", "e1", "robot"), rule="proposal")
    assert is_decision(decision)
    found = make_decision(decision, 7.0)
    assert found.source == "proposal"


@pytest.mark.parametrize("proof", ["operator", "passkey", "local"])
def test_records_rejection(proof: str) -> None:
    decision = make_approval(state="refused", proof=proof)
    assert is_decision(decision)
    found = make_decision(decision, 7.0)
    assert found.verdict == "refuse"


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "pending", "proof": ""},
        {"state": "dispatching"},
        {"state": "done"},
        {"state": "expired", "proof": ""},
        {"state": "void"},
        {"proof": "policy_engine"},
        {"proof": "service"},
        {"proof": "local"},
        {"state": "refused", "proof": "service"},
        {"state": "refused", "proof": "policy_engine"},
        {"state": "refused", "proof": "caller"},
        {"action": "verify"},
        {"rule": "danger:confirm"},
        {"rule": "safety:confirm"},
        {"at": "below"},
        {"caller": Caller("parent", parent_caller="somebody")},
        {"caller": Caller("parent", kind="parent")},
        {"caller": Caller("guest-abcd", kind="guest")},
        {"shown": b"null"},
    ],
)
def test_ignores_other_outcomes(fields: dict[str, Any]) -> None:
    assert not is_decision(make_approval(**fields))


def test_long_texts_are_hidden() -> None:
    found = json.loads(
        encode_arguments(encode_canonical({"path": "/a", "content": "x" * (MAX_TEXT_LENGTH + 1)}))
    )
    assert found["path"] == "/a"
    assert MASK in found["content"]
    assert is_hidden(found["content"])
    assert not is_hidden(found["path"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "take password=hunter2-hunter2 for this"},
        {"text": "take password=hunter2-hunter2 for this " + "and that " * 200},
        {"text": "curl --api-key hunter2-hunter2 x"},
        {"text": "https://ada:hunter2-hunter2@h.example/"},
        {"deep": [{"text": "Authorization: Bearer hunter2-hunter2"}]},
        {"args": ["--token", "hunter2-hunter2"]},
        {"password=hunter2-hunter2": 1},
    ],
)
def test_masks_secrets_in_texts(arguments: dict[str, Any]) -> None:
    found = encode_arguments(encode_canonical(arguments))
    assert b"hunter2" not in found
    assert is_hidden(json.loads(found))
    assert not is_long_text(next(iter(json.loads(found).values())))


@pytest.mark.parametrize("begun", ["${a ", "eyJaaaaaaaa-"])
def test_masks_texts_that_cost_too_much_work(begun: str) -> None:
    assert mask_secrets({"text": begun * 5_000}) == {"text": MASK}
    assert mask_secrets({"text": begun * 9}) == {"text": begun * 9}


def test_remembers_whether_long_text_was_prose() -> None:
    prose, other = "We met some people. " * 99, "ls /tmp; " * 199
    found = json.loads(encode_arguments(encode_canonical({"prose": prose, "other": other})))
    assert is_long_text(found["prose"])
    assert is_long_prose(found["prose"])
    assert is_long_text(found["other"])
    assert not is_long_prose(found["other"])
    # Nobody can say so of a text that was short.
    [forged] = json.loads(encode_arguments(encode_canonical([found["prose"]])))
    assert is_hidden(forged)
    assert not is_long_text(forged)


def test_hides_longest_texts_first() -> None:
    many = {f"k{one}": "x" * (300 + one) for one in range(60)} | {"path": "/a"}
    found = json.loads(encode_arguments(encode_canonical(many)))
    assert found["path"] == "/a"
    assert found["k0"] == many["k0"]
    assert is_hidden(found["k59"])


def test_equal_long_texts_stay_equal() -> None:
    one, other = ({"content": text * 2_000} for text in "ab")
    assert (
        encode_arguments(encode_canonical(one))
        == encode_arguments(encode_canonical(one))
        != encode_arguments(encode_canonical(other))
    )


def test_hides_too_many_arguments() -> None:
    assert is_hidden(
        json.loads(encode_arguments(encode_canonical({str(one): one for one in range(9_999)})))
    )


MANY: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "list": lambda value: [value] * 999,
    "object": lambda value: {str(index): value for index in range(999)},
}


@given(values, st.sampled_from(sorted(MANY)))
@example({"TOKEN": 0}, "itself")
@example({"TOKEN": 0}, "list")
@example({"TOKEN": 0}, "object")
@example({"TOKEN": 0, "x": "y" * 190}, "itself")
@example({"TOKEN": 0, "x": "y" * 190}, "list")
@example({"TOKEN": 0, "x": "y" * 190}, "object")
def test_limits_stored_arguments(value: Any, form: str) -> None:
    whole = MANY[form](value)
    found = encode_arguments(encode_canonical(whole))
    assert len(found) <= MAX_ARGUMENT_BYTES
    masked = encode_canonical(mask_secrets(redact_value(whole)))
    if len(masked) <= MAX_TEXT_LENGTH:
        assert found == masked
