"""Property tests: a compatible change keeps valid instances valid."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, note, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from interlock.contracts.diff.changes import ChangeReason, Role, breaking
from interlock.contracts.diff.schemas import diff_schemas
from tests.contracts.diff.instances import instances
from tests.contracts.diff.random_schemas import VALUES, Schemas, parts_of

EVERY = list(HealthCheck)
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]
ROLES: tuple[Role, ...] = ("input", "output")
seeds = st.integers(0, 2**48)


def validator(schema: Any) -> Any:
    """Return the validator of a schema, or None if the schema is unusable."""
    try:
        return jsonschema_rs.Draft202012Validator(schema)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None


def find_contradictions(sent: Any, taken: Any) -> list[Any]:
    """Return small values that are valid for the sender and invalid for the receiver."""
    before, after = validator(sent), validator(taken)
    assume(before is not None and after is not None)
    return [value for value in VALUES if before.is_valid(value) and not after.is_valid(value)]


@pytest.mark.parametrize("role", ROLES)
@settings(max_examples=1_000, suppress_health_check=SLOW)
@given(seed=seeds, forth=st.booleans())
def test_compatible_change_keeps_small_values_valid(role: Role, seed: int, forth: bool) -> None:
    make = Schemas(seed)
    old = make.whole()
    new = make.changed(old)
    if not forth:
        old, new = new, old
    changes = diff_schemas(old, new, role)
    event("breaking" if breaking(changes) else "compatible")
    if not breaking(changes):
        note(f"{old}\n{new}\n{changes}")
        assert find_contradictions(*((old, new) if role == "input" else (new, old))) == []


def instances_agree(sent: Any, taken: Any) -> bool:
    """Return whether generated instances are valid for the receiver. False if there are none."""
    before, after = validator(sent), validator(taken)
    if before is None or after is None:
        return False
    strategy = instances(sent)
    if strategy.is_empty:
        return False

    # A strategy for each schema, made once: made again, it draws otherwise.
    @settings(max_examples=12, database=None, phases=[Phase.generate], suppress_health_check=EVERY)
    @given(strategy)
    def each(instance: Any) -> None:
        assume(before.is_valid(instance))
        assert after.is_valid(instance), f"{instance} of {sent} is not valid for {taken}"

    try:
        each()
    except Unsatisfiable:
        return False
    return True


@pytest.mark.parametrize("role", ROLES)
def test_compatible_change_keeps_generated_instances_valid(role: Role) -> None:
    agreed = 0
    for seed in range(80):
        # hypothesis-jsonschema speaks draft 7, so only words that mean the same there are used.
        make = Schemas(seed, modern=False, references=False)
        old = make.whole()
        new = make.changed(old)
        if not breaking(diff_schemas(old, new, role)):
            sent, taken = (old, new) if role == "input" else (new, old)
            agreed += instances_agree(sent, taken)
    assert agreed > 25


def close_schema(schema: Any) -> Any:
    """Return the schema with undeclared members forbidden."""
    closed = copy.deepcopy(schema)
    for part in parts_of(closed):
        if "properties" in part and "additionalProperties" not in part:
            part["additionalProperties"] = False
    return closed


_objects = st.recursive(
    st.sampled_from(({"type": "string"}, {"type": "integer"}, {"enum": [1, "a"]}, {})),
    lambda inner: (
        st.builds(
            lambda ones, required: {"type": "object", "properties": ones, "required": required},
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.lists(st.sampled_from("abc"), max_size=1),
        )
        | st.builds(lambda one: {"type": "array", "items": one}, inner)
    ),
    max_leaves=5,
)


@settings(max_examples=150, suppress_health_check=SLOW)
@given(old=_objects, seed=seeds)
def test_lenient_comparison_keeps_declared_members_valid(old: Any, seed: int) -> None:
    new = Schemas(seed, references=False).changed(old)
    changes = diff_schemas(old, new, "input", strict=False)
    if not breaking(changes):
        note(f"{new}\n{changes}")
        assert find_contradictions(close_schema(old), new) == []


@settings(max_examples=150, suppress_health_check=SLOW)
@given(seed=seeds)
def test_wider_schema_is_compatible(seed: int) -> None:
    make = Schemas(seed, references=False)
    schema, other = make.whole(), make.whole()
    assume(validator(schema) is not None and validator(other) is not None)
    # Two unions are compared branch by branch, and with three names strangers look like relatives.
    assume(not any("anyOf" in part for part in parts_of(schema)))
    wider = {"anyOf": [other, schema]}
    assert not breaking(diff_schemas(schema, wider, "input"))
    assert not breaking(diff_schemas(wider, schema, "output"))
    moved = {"$ref": "#/$defs/X", "$defs": {"X": schema}}
    reasons = {change.reason for change in diff_schemas(schema, moved, "both")}
    assert reasons <= {ChangeReason.REWRITTEN}
