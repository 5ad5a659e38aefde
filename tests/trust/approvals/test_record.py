"""Approval records: documented transitions, no secrets in `repr`, one digest for equal calls."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core import crash_points as faults
from interlock.core.call import Caller
from interlock.errors import INVALID_ARGUMENTS, InterlockError
from interlock.trust.approvals.record import (
    APPROVED,
    DISPATCHING,
    DONE,
    FINAL_STATES,
    MAX_ARGUMENT_BYTES,
    REFUSED,
    TRANSITIONS,
    ReviewedCall,
    compute_digest,
    create_record,
    encode_canonical,
    new_id,
    parse_exact,
)
from interlock.trust.policy.decision import PolicyAction, make_decision
from tests.support.calls import tool_call
from tests.trust.approvals.test_proofs import approval

DOCS = Path(__file__).parents[3] / "docs" / "approvals.md"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def test_docs_diagram_shows_all_transitions() -> None:
    drawn = set(re.findall(r"^ +(\w+) --> (\w+)", DOCS.read_text(encoding="utf-8"), re.M))
    table = {
        (state, after)
        for state, following in TRANSITIONS.items()
        for after in following
        if after != state
    }
    assert drawn == table


def test_rejects_invalid_transitions() -> None:
    with pytest.raises(ValueError, match="cannot go from"):
        approval().with_state(DONE)
    refused = approval().with_state(REFUSED)
    with pytest.raises(ValueError, match="cannot go from"):
        refused.with_state(APPROVED)
    for state in FINAL_STATES:
        assert TRANSITIONS[state] - {DISPATCHING} == {state}
    result = approval().with_state(APPROVED).with_state(DISPATCHING).with_state(DONE)
    with pytest.raises(ValueError, match="cannot go from"):
        result.with_state(DISPATCHING)
    with pytest.raises(ValueError, match="cannot go from"):
        refused.with_state(DISPATCHING)
    # It was stopped below, and asks there again.
    assert result.with_state(DONE, below="there").with_state(DISPATCHING).state == DISPATCHING


def test_approval_ids_are_random() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{32}", item) for item in ids)


def test_repr_hides_arguments() -> None:
    record = approval(arguments=b'{"a":"correct horse"}')
    assert "correct horse" not in repr(record)


def test_rejects_oversized_arguments() -> None:
    with pytest.raises(InterlockError) as error:
        parse_exact(b'"' + b"x" * MAX_ARGUMENT_BYTES + b'"')
    assert error.value.failure is INVALID_ARGUMENTS
    assert "limit is 65536 bytes" in error.value.message


@pytest.mark.spec("AQ-TOK-3.2-1")
@given(JSON)
def test_equal_arguments_have_equal_digests(value: Any) -> None:
    caller = Caller("model")
    spelled = json.dumps(value, indent=3, ensure_ascii=True).encode()
    try:
        read = parse_exact(spelled)
        digest = compute_digest("t", read, "c", caller)
    except InterlockError:
        # A half of a surrogate pair is JSON, and no text. Beyond 2^53 some readers round.
        numbers = map(int, re.findall(rb"\d{16,}", spelled))
        assert re.search(rb"\\ud[89a-f]", spelled) or any(number > 2**53 for number in numbers)
        return
    assert digest == compute_digest("t", parse_exact(encode_canonical(read)), "c", caller)
    for other in (
        compute_digest("u", read, "c", caller),
        compute_digest("t", read, "d", caller),
        compute_digest("t", read, "c", Caller("another")),
        compute_digest("t", read, "c", Caller("model", parent_caller="another")),
        compute_digest("t", [read], "c", caller),
    ):
        assert other != digest


def test_fault_points_do_nothing_by_default() -> None:
    for point in faults.POINTS:
        faults.reach(point)


def test_rejects_deeply_nested_arguments() -> None:
    deep: Any = "x"
    for _ in range(2_000):
        deep = [deep]
    call = tool_call("s.wipe")
    call.caller = Caller("agent")
    with pytest.raises(InterlockError, match="nested too deeply") as error:
        create_record(
            call,
            make_decision(PolicyAction.CONFIRM, "rule"),
            ReviewedCall(deep, None, b"", "s.wipe", "", ""),
            audience="",
            policy="",
            created=0.0,
            expires=1.0,
        )
    assert error.value.failure is INVALID_ARGUMENTS
