"""The store of approvals: atomic transitions in order, and durable writes."""

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


def test_stored_approval_can_be_loaded(store: ApprovalStore, loop: Loop) -> None:
    one = approval(id="one", created=2.0)
    other = approval(id="other", created=1.0)
    assert put(store, loop, one, None) is WriteResult.WRITTEN
    assert put(store, loop, other, None) is WriteResult.WRITTEN
    approved = one.with_state(APPROVED, by="clerk")
    assert put(store, loop, approved, "pending") is WriteResult.WRITTEN
    assert store.load() == [other, approved]
    store.remove(["other"])
    assert put(store, loop, approved.with_state(DISPATCHING), APPROVED) is WriteResult.WRITTEN
    assert [record.id for record in store.load()] == ["one"]


def test_transition_succeeds_once(store: ApprovalStore, loop: Loop) -> None:
    one = approval()
    put(store, loop, one, None)
    assert put(store, loop, one.with_state(REFUSED), "pending") is WriteResult.WRITTEN
    assert put(store, loop, one.with_state(APPROVED), "pending") is WriteResult.TAKEN
    assert (
        put(store, loop, approval(id="nobody").with_state(APPROVED), "pending") is WriteResult.TAKEN
    )
    [kept] = store.load()
    assert kept.state == REFUSED


def test_many_transitions_share_commits(store: ApprovalStore, loop: Loop) -> None:
    for number in range(200):
        store.write(approval(id=f"a{number}"), None, loop.then)
    assert loop.wait(200) == [WriteResult.WRITTEN] * 200
    assert store.commits < 100
    assert len(store.load()) == 200


def test_one_time_token_stays_used(store: ApprovalStore, loop: Loop) -> None:
    for id in ("one", "two", "three"):
        put(store, loop, approval(id=id), None)
    one, two, three = (approval(id=id).with_state(APPROVED) for id in ("one", "two", "three"))
    assert put(store, loop, one, "pending", token=("desk", "t")) is WriteResult.WRITTEN
    assert put(store, loop, two, "pending", token=("desk", "t")) is WriteResult.USED
    assert put(store, loop, three, "pending", token=("other desk", "t")) is WriteResult.WRITTEN
    store.remove(["one"])
    assert put(store, loop, two, "pending", token=("desk", "t")) is WriteResult.USED
    assert {record.id: record.state for record in store.load()}["two"] == "pending"


def test_failed_transition_does_not_use_token(store: ApprovalStore, loop: Loop) -> None:
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


def test_file_is_private(store: ApprovalStore, loop: Loop) -> None:
    put(store, loop, approval(), None)
    for path in store.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_writes_are_durable(store: ApprovalStore, loop: Loop) -> None:
    put(store, loop, approval(), None)
    assert store._connection is not None
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_file_is_created_on_first_write(store: ApprovalStore) -> None:
    assert store.load() == []
    assert not store.path.parent.exists()


def test_full_disk_fails_writes_until_space_returns(store: ApprovalStore, loop: Loop) -> None:
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
    assert {record.id for record in store.load()} == {"before", "large"}


def test_failed_transition_leaves_store_usable(store: ApprovalStore, loop: Loop) -> None:
    """An id that is there already: it, and whoever was in the same commit, are told."""
    put(store, loop, approval(), None)
    assert put(store, loop, approval(), None) is WriteResult.FAILED
    assert put(store, loop, approval(id="other"), None) is WriteResult.WRITTEN


def test_rejects_writes_after_close(store: ApprovalStore, loop: Loop) -> None:
    put(store, loop, approval(), None)
    store.close()
    assert put(store, loop, approval(id="late"), None) is WriteResult.FAILED
    store.remove(["x"])
    store.close()


def test_close_writes_queued_transitions(tmp_path: Path, loop: Loop) -> None:
    store = ApprovalStore(tmp_path / "approvals.db", deliver=loop.deliver)
    for number in range(50):
        store.write(approval(id=f"a{number}"), None, loop.then)
    store.close()
    assert loop.became == [WriteResult.WRITTEN] * 50
    assert list(tmp_path.glob("*.lock")) == []


def test_running_store_keeps_its_approvals(tmp_path: Path, loop: Loop) -> None:
    path = tmp_path / "approvals.db"
    one = ApprovalStore(path, deliver=loop.deliver)
    other = ApprovalStore(path, deliver=loop.deliver)
    put(one, loop, approval(id="one"), None)
    assert other.load() == []
    assert put(other, loop, approval(id="one").with_state(APPROVED), "pending") is WriteResult.TAKEN
    one.close()
    assert [record.id for record in other.load()] == ["one"]
    assert (
        put(other, loop, approval(id="one").with_state(APPROVED), "pending") is WriteResult.WRITTEN
    )
    other.close()


def test_refuses_file_of_newer_version(store: ApprovalStore, loop: Loop) -> None:
    put(store, loop, approval(), None)
    with sqlite3.connect(store.path) as file:
        file.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    later = ApprovalStore(store.path, deliver=loop.deliver)
    with pytest.raises(InterlockError, match="newer"):
        later.load()
    assert put(later, loop, approval(id="x"), None) is WriteResult.FAILED
    later.close()


def test_unreadable_record_is_skipped(store: ApprovalStore, loop: Loop) -> None:
    put(store, loop, approval(id="good"), None)
    put(store, loop, approval(id="bad"), None)
    with sqlite3.connect(store.path) as file:
        file.execute("UPDATE approval SET record = x'00' WHERE id = 'bad'")
    assert [record.id for record in store.load()] == ["good"]


def test_failing_callback_does_not_affect_others(store: ApprovalStore, loop: Loop) -> None:
    def fails(kept: WriteResult) -> None:
        raise OSError("nobody is there any more")

    with store._connection_lock:
        store.write(approval(id="a"), None, loop.then)
        store.write(approval(id="b"), None, fails)
        store.write(approval(id="c"), None, loop.then)
    assert loop.wait(2) == [WriteResult.WRITTEN, WriteResult.WRITTEN]
    assert {record.id for record in store.load()} == {"a", "b", "c"}


def test_unencodable_record_does_not_affect_others(store: ApprovalStore, loop: Loop) -> None:
    # Half a surrogate pair is no text.
    odd = approval(id="odd", reason="\ud800")
    with store._connection_lock:
        store.write(approval(id="a"), None, loop.then)
        store.write(odd, None, loop.then)
    assert sorted(loop.wait(2), key=lambda one: one.value) == [
        WriteResult.FAILED,
        WriteResult.WRITTEN,
    ]
    assert [record.id for record in store.load()] == ["a"]


def test_writer_survives_unexpected_error(
    store: ApprovalStore, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        def put_wrong(*_: object) -> WriteResult:
            raise KeyError("a mistake of ours")

        broken.setattr(store, "_put", put_wrong)
        assert put(store, loop, approval(id="a"), None) is WriteResult.FAILED
    assert put(store, loop, approval(id="b"), None) is WriteResult.WRITTEN
