"""The digest of a call's arguments in the journal."""

from __future__ import annotations

from hashlib import sha256

import pytest

from interlock.core.call import Call, Caller
from interlock.trust.approvals.record import MAX_ARGUMENT_BYTES, compute_digest, journal_digest
from tests.support.calls import tool_call


def call_with(arguments: bytes) -> Call:
    call = tool_call("s.drop", arguments)
    call.caller = Caller("model")
    return call


def test_journal_digest_equals_approval_digest() -> None:
    wanted = compute_digest("s.drop", {"a": 1, "b": [None]}, "", Caller("model"))
    for spelled in (b'{"a":1,"b":[null]}', b'{ "b": [ null ], "\\u0061": 1 }'):
        assert journal_digest(call_with(spelled)) == f"args_sha256:{wanted}"


@pytest.mark.parametrize(
    "arguments",
    [
        b'{"a":1,"a":2}',
        b'{"a":9007199254740993}',
        b'{"a":"' + b"x" * MAX_ARGUMENT_BYTES + b'"}',
    ],
    ids=["twice", "rounded", "long"],
)
def test_arguments_without_canonical_form_are_digested_raw(arguments: bytes) -> None:
    wanted = sha256(arguments).hexdigest()
    assert journal_digest(call_with(arguments)) == f"args_raw_sha256:{wanted}"
