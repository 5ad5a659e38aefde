"""A dictionary with a maximum, compared with a plain list of keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlock.primitives.bounded_dict import BoundedDict

steps = st.lists(st.tuples(st.sampled_from(["set", "use", "del", "default"]), st.integers(0, 9)))


@given(steps, st.integers(1, 6))
def test_removes_oldest_entry_first(steps: list[tuple[str, int]], most: int) -> None:
    pending_call: BoundedDict[int, str] = BoundedDict(most)
    order: list[int] = []
    for what, key in steps:
        known = key in order
        if what == "set":
            pending_call[key] = str(key)
        elif what == "default":
            assert pending_call.setdefault(key, str(key)) == str(key)
        elif what == "use":
            assert pending_call.touch(key) == (str(key) if known else None)
        else:
            pending_call.pop(key, None)
        if known and what != "default":
            order.remove(key)
        if (what == "use" and known) or what == "set" or (what == "default" and not known):
            order.append(key)
        del order[:-most]
        assert list(pending_call) == order


def test_update_keeps_maximum() -> None:
    pending_call: BoundedDict[int, int] = BoundedDict(3)
    pending_call.update({number: number for number in range(10)})
    pending_call |= {10: 10}
    assert list(pending_call) == [8, 9, 10]
    assert pending_call.get(0) is None
