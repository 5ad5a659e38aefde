"""Approvals on disk: one step at a time, in order, through to the platter."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import InterlockError
from interlock.trust.approvals.record import APPROVED, DISPATCHING, REFUSED, Approval
from interlock.trust.approvals.store import SCHEMA_VERSION, ApprovalStore, WriteResult
from tests.core.state.delivery import Told
from tests.trust.approvals.test_proofs import approval

Loop = Told[WriteResult]


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def store(tmp_path: Path, loop: Loop) -> Iterator[ApprovalStore]:
    store = ApprovalStore(tmp_path / "state" / "approvals.db", deliver=loop.deliver)
    yield store
    store.close()


def put(
    store: ApprovalStore, loop: Loop, one: Approval, before: str | None, **more: Any
) -> WriteResult:
    number = len(loop.became) + 1
    store.write(one, before, loop.then, **more)
    return loop.wait(number)[-1]


def test_what_is_written_is_read_again(store: ApprovalStore, loop: Loop) -> None:
    one = approval(id="one", created=2.0)
    other = approval(id="other", created=1.0)
    assert put(store, loop, one, None) is WriteResult.WRITTEN
    assert put(store, loop, other, None) is WriteResult.WRITTEN
    approved = one.with_state(APPROVED, by="clerk")
    assert put(store, loop, approved, "pending") is WriteResult.WRITTEN
    assert store.load() == [other, approved]
    store.remove(["other"])
    assert put(store, loop, approved.with_state(DISPATCHING), APPROVED) is WriteResult.WRITTEN
    assert [one.id for one in store.load()] == ["one"]


def test_a_step_is_taken_once(store: ApprovalStore, loop: Loop) -> None:
    one = approval()
    put(store, loop, one, None)
    assert put(store, loop, one.with_state(REFUSED), "pending") is WriteResult.WRITTEN
    assert put(store, loop, one.with_state(APPROVED), "pending") is WriteResult.TAKEN
    assert (
        put(store, loop, approval(id="nobody").with_state(APPROVED), "pending") is WriteResult.TAKEN
    )
    [kept] = store.load()
    assert kept.state == REFUSED


def test_many_steps_take_few_commits(store: ApprovalStore, loop: Loop) -> None:
    for number in range(200):
        store.write(approval(id=f"a{number}"), None, loop.then)
    assert loop.wait(200) == [WriteResult.WRITTEN] * 200
    assert store.commits < 100
    assert len(store.load()) == 200


def test_a_token_is_used_for_good(store: ApprovalStore, loop: Loop) -> None:
    for id in ("one", "two", "three"):
        put(store, loop, approval(id=id), None)
    one, two, three = (approval(id=id).with_state(APPROVED) for id in ("one", "two", "three"))
    assert put(store, loop, one, "pending", token=("desk", "t")) is WriteResult.WRITTEN
    assert put(store, loop, two, "pending", token=("desk", "t")) is WriteResult.USED
    assert put(store, loop, three, "pending", token=("other desk", "t")) is WriteResult.WRITTEN
    store.remove(["one"])
    assert put(store, loop, two, "pending", token=("desk", "t")) is WriteResult.USED
    assert {one.id: one.state for one in store.load()}["two"] == "pending"


def test_a_token_is_not_used_by_a_step_that_is_not_taken(store: ApprovalStore, loop: Loop) -> None:
    one = approval()
    put(store, loop, one, None)
    assert (
        put(store, loop, one.with_state(APPROVED), APPROVED, token=("desk", "t"))
        is WriteResult.TAKEN
    )
    assert (
        put(store, loop, one.with_state(APPROVED), "pending", token=("desk", "t"))
        is WriteResult.WRITTEN
    )


def test_only_its_owner_can_read_it(store: ApprovalStore, loop: Loop) -> None:
    put(store, loop, approval(), None)
    for path in store.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_it_is_durable(store: ApprovalStore, loop: Loop) -> None:
    put(store, loop, approval(), None)
    assert store._connection is not None
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_nothing_is_made_before_it_is_needed(store: ApprovalStore) -> None:
    assert store.load() == []
    assert not store.path.parent.exists()


def test_a_full_disk_and_its_end(store: ApprovalStore, loop: Loop) -> None:
    assert put(store, loop, approval(id="before"), None) is WriteResult.WRITTEN
    assert store._connection is not None
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    large = approval(id="large", arguments=b'"' + b"x" * 100_000 + b'"')
    assert put(store, loop, large, None) is WriteResult.FAILED
    assert "full" in store.problem
    # The next try opens the file anew, where there is room again.
    assert put(store, loop, large, None) is WriteResult.WRITTEN
    assert store.problem == ""
    assert {one.id for one in store.load()} == {"before", "large"}


def test_a_step_among_others_that_fails(store: ApprovalStore, loop: Loop) -> None:
    """An id that is there already: it, and whoever was in the same commit, are told."""
    put(store, loop, approval(), None)
    assert put(store, loop, approval(), None) is WriteResult.FAILED
    assert put(store, loop, approval(id="other"), None) is WriteResult.WRITTEN


def test_what_comes_after_the_end_is_not_taken(store: ApprovalStore, loop: Loop) -> None:
    put(store, loop, approval(), None)
    store.close()
    assert put(store, loop, approval(id="late"), None) is WriteResult.FAILED
    store.remove(["x"])
    store.close()


def test_everything_is_written_before_it_ends(tmp_path: Path, loop: Loop) -> None:
    store = ApprovalStore(tmp_path / "approvals.db", deliver=loop.deliver)
    for number in range(50):
        store.write(approval(id=f"a{number}"), None, loop.then)
    store.close()
    assert loop.became == [WriteResult.WRITTEN] * 50
    assert list(tmp_path.glob("*.lock")) == []


def test_whoever_lives_keeps_its_own(tmp_path: Path, loop: Loop) -> None:
    path = tmp_path / "approvals.db"
    one = ApprovalStore(path, deliver=loop.deliver)
    other = ApprovalStore(path, deliver=loop.deliver)
    put(one, loop, approval(id="one"), None)
    assert other.load() == []
    assert put(other, loop, approval(id="one").with_state(APPROVED), "pending") is WriteResult.TAKEN
    one.close()
    assert [each.id for each in other.load()] == ["one"]
    assert (
        put(other, loop, approval(id="one").with_state(APPROVED), "pending") is WriteResult.WRITTEN
    )
    other.close()


def test_a_newer_file_is_left_alone(store: ApprovalStore, loop: Loop) -> None:
    put(store, loop, approval(), None)
    with sqlite3.connect(store.path) as file:
        file.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    later = ApprovalStore(store.path, deliver=loop.deliver)
    with pytest.raises(InterlockError, match="newer"):
        later.load()
    assert put(later, loop, approval(id="x"), None) is WriteResult.FAILED
    later.close()


def test_a_record_that_cannot_be_read_hides_no_other(store: ApprovalStore, loop: Loop) -> None:
    put(store, loop, approval(id="good"), None)
    put(store, loop, approval(id="bad"), None)
    with sqlite3.connect(store.path) as file:
        file.execute("UPDATE approval SET record = x'00' WHERE id = 'bad'")
    assert [one.id for one in store.load()] == ["good"]


def test_one_that_fails_strands_no_other(store: ApprovalStore, loop: Loop) -> None:
    def fails(kept: WriteResult) -> None:
        raise OSError("nobody is there any more")

    with store._connection_lock:
        store.write(approval(id="a"), None, loop.then)
        store.write(approval(id="b"), None, fails)
        store.write(approval(id="c"), None, loop.then)
    assert loop.wait(2) == [WriteResult.WRITTEN, WriteResult.WRITTEN]
    assert {one.id for one in store.load()} == {"a", "b", "c"}


def test_one_that_cannot_be_written_down_strands_no_other(store: ApprovalStore, loop: Loop) -> None:
    # Half a surrogate pair is no text.
    odd = approval(id="odd", reason="\ud800")
    with store._connection_lock:
        store.write(approval(id="a"), None, loop.then)
        store.write(odd, None, loop.then)
    assert sorted(loop.wait(2), key=lambda one: one.value) == [
        WriteResult.FAILED,
        WriteResult.WRITTEN,
    ]
    assert [one.id for one in store.load()] == ["a"]


def test_whatever_goes_wrong_the_writer_lives_on(
    store: ApprovalStore, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        def put_wrong(*_: object) -> WriteResult:
            raise KeyError("a mistake of ours")

        broken.setattr(store, "_put", put_wrong)
        assert put(store, loop, approval(id="a"), None) is WriteResult.FAILED
    assert put(store, loop, approval(id="b"), None) is WriteResult.WRITTEN
