"""Who may confirm calls, on disk: keys, passkeys, and codes that work once."""

from __future__ import annotations

import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from interlock.errors import InterlockError
from interlock.stores.operators import (
    CODE_LASTS,
    Enrolled,
    Invitation,
    OperatorReader,
    OperatorStore,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> OperatorStore:
    return OperatorStore(tmp_path / "state" / "operators.db", clock=clock)


def key(id: str = "k1", name: str = "chief") -> Enrolled:
    return Enrolled(id, name, "key", "EdDSA", b"public", tools=("a.*",), caller="bot")


def passkey(id: str = "cGs", counter: int = 1) -> Enrolled:
    return Enrolled(id, "chief", "passkey", "-7", b"public", "localhost", counter)


def test_what_is_enrolled_is_kept(store: OperatorStore, clock: Clock) -> None:
    assert store.all() == []
    assert not store.path.exists()
    store.add(key())
    clock.now += 1
    store.add(passkey())
    assert [(one.id, one.kind, one.created) for one in store.all()] == [
        ("k1", "key", 1000.0),
        ("cGs", "passkey", 1001.0),
    ]
    (first, _) = OperatorStore(store.path).all()
    assert (first.tools, first.caller, first.public) == (("a.*",), "bot", b"public")
    found = store.all()[1].passkey
    assert (found.id, found.name, found.algorithm, found.rp_id) == (b"pk", "chief", -7, "localhost")
    assert Enrolled.of_passkey(found) == Enrolled.of_passkey(passkey().passkey)
    with pytest.raises(InterlockError, match="already"):
        store.add(key(name="deputy"))


def test_only_its_user_can_read_it(store: OperatorStore) -> None:
    store.add(key())
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    store.path.chmod(0o644)
    store.add(key("k2"))
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


def test_taken_back(store: OperatorStore) -> None:
    assert store.remove("chief") == []
    store.add(key())
    store.add(key("k2", "deputy"))
    code = store.invite(Invitation("chief"))
    assert [one.id for one in store.remove("chief")] == ["k1"]
    assert store.invited(code) is None
    assert [one.name for one in store.remove("k2")] == ["deputy"]
    assert store.all() == []


def test_a_passkey_counts_on(store: OperatorStore) -> None:
    store.add(passkey(counter=4))
    assert store.used(b"pk", 5)
    assert not store.used(b"pk", 5)
    assert not store.used(b"pk", 4)
    assert not store.used(b"other", 9)
    assert store.all()[0].passkey.counter == 5


def test_a_code_works_once_and_not_for_long(store: OperatorStore, clock: Clock) -> None:
    invitation = Invitation("chief", ("a.*",), "bot")
    code = store.invite(invitation)
    assert store.invited(code) == invitation
    assert store.invited(code.lower().replace("-", " ")) == invitation
    assert store.invited(code[:-1] + ("A" if code[-1] != "A" else "B")) is None
    assert code.replace("-", "").encode() not in store.path.read_bytes()
    made = store.redeem(code, lambda one: key(name=one.name))
    assert made is not None
    assert store.redeem(code, lambda one: key("k2")) is None
    late = store.invite(invitation)
    clock.now += CODE_LASTS
    assert store.redeem(late, lambda one: key("k3")) is None
    # The clock is set back: a code of the future is no good.
    later = store.invite(invitation)
    clock.now -= 1
    assert store.invited(later) is None
    assert [one.id for one in store.all()] == ["k1"]


def test_what_goes_wrong_leaves_the_code(store: OperatorStore) -> None:
    code = store.invite(Invitation("chief"))

    def fails(_: Invitation) -> Enrolled:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.redeem(code, fails)
    assert store.redeem(code, lambda one: key()) is not None


def test_two_at_once_with_one_code(store: OperatorStore) -> None:
    code = store.invite(Invitation("chief"))
    ready = threading.Barrier(2)
    got: list[Enrolled | None] = []

    def redeem(id: str) -> None:
        ready.wait()
        got.append(OperatorStore(store.path, clock=lambda: 1000.0).redeem(code, lambda _: key(id)))

    threads = [threading.Thread(target=redeem, args=(id,)) for id in ("k1", "k2")]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sum(one is not None for one in got) == 1
    assert len(store.all()) == 1


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "operators.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE theirs (x)")
    with pytest.raises(InterlockError, match="another program"):
        OperatorStore(path).add(key())
    path.write_bytes(b"no database at all, but longer than a header of one")
    with pytest.raises(InterlockError, match="cannot be used"):
        OperatorStore(path).all()


def test_a_running_node_notices_who_was_enrolled_and_removed(store: OperatorStore) -> None:
    reader = OperatorReader(store.path)
    assert reader.changed() is None
    store.add(key())
    assert [one.id for one in reader.changed() or ()] == ["k1"]
    assert reader.changed() is None
    store.add(passkey())
    assert len(reader.changed() or ()) == 2
    store.remove("chief")
    assert reader.changed() == []
    assert reader.changed() is None
    store.add(key())
    assert reader.changed()
    # Another file by the same name, and none at all.
    kept = store.path.with_name("aside.db")
    store.path.rename(kept)
    assert reader.changed() == []
    kept.rename(store.path)
    assert [one.id for one in reader.changed() or ()] == ["k1"]
    reader.close()


def test_a_file_that_cannot_be_read_is_said_and_then_read_whole(
    store: OperatorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.stores.operators._BUSY_SECONDS", 0.01)
    store.add(key())
    reader = OperatorReader(store.path)
    assert reader.changed()
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InterlockError, match="locked"):
        reader.changed()
    holder.execute("ROLLBACK")
    holder.close()
    assert [one.id for one in reader.changed() or ()] == ["k1"]
    reader.close()
