"""The store of operators: keys, passkeys, the chain, and codes for single use."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from interlock.errors import PROOF_INVALID, InterlockError
from interlock.trust.operators.chain import Enrolment
from interlock.trust.operators.store import (
    CODE_SECONDS,
    PENDING_SECONDS,
    Invitation,
    OperatorReader,
    OperatorStore,
    PendingEnrolment,
)
from tests.support.clock import ManualClock
from tests.trust.approvals.operator_keys import Operator


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> OperatorStore:
    return OperatorStore(tmp_path / "state" / "operators.db", clock=clock)


CHIEF = Operator("chief")


def key(id: str = "k1", name: str = "deputy") -> Enrolment:
    return Enrolment(id, name, "key", "EdDSA", b"public", tools=("a.*",), caller="bot")


@pytest.fixture
def enrolled_store(store: OperatorStore) -> OperatorStore:
    """A store with one operator."""
    store.add(CHIEF.enrolled)
    return store


def passkey(id: str = "cGs", counter: int = 1) -> Enrolment:
    return Enrolment(id, "chief", "passkey", "-7", b"public", "localhost", counter)


def test_enrolled_keys_can_be_loaded(store: OperatorStore, clock: ManualClock) -> None:
    assert store.all() == []
    assert not store.path.exists()
    store.add(CHIEF.enrolled)
    clock.now += 1
    store.add(passkey(), CHIEF.sign)
    store.add(key(), CHIEF.sign)
    assert [(operator.id, operator.kind, operator.created) for operator in store.all()] == [
        (CHIEF.enrolled.id, "key", 1000.0),
        ("cGs", "passkey", 1001.0),
        ("k1", "key", 1001.0),
    ]
    (_, _, last) = OperatorStore(store.path).all()
    assert (last.tools, last.caller, last.public) == (("a.*",), "bot", b"public")
    found = store.all()[1].passkey
    assert (found.id, found.name, found.algorithm, found.rp_id) == (b"pk", "chief", -7, "localhost")
    assert Enrolment.from_passkey(found) == Enrolment.from_passkey(passkey().passkey)
    with pytest.raises(InterlockError, match="already"):
        store.add(key(name="another"), CHIEF.sign)


def test_file_is_private(store: OperatorStore) -> None:
    store.add(key())
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    store.path.chmod(0o644)
    store.invite(Invitation("chief"))
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


def test_removed_operator_is_gone(store: OperatorStore) -> None:
    assert store.remove("chief") == []
    store.add(CHIEF.enrolled)
    store.add(key(), CHIEF.sign)
    code = store.invite(Invitation("deputy"))
    pending = store.add_pending(key("k2"))
    with pytest.raises(InterlockError) as error:
        store.remove("deputy")
    assert error.value.failure is PROOF_INVALID
    assert [item.id for item in store.remove("deputy", CHIEF.sign)] == ["k1"]
    assert store.find_invitation(code) is None
    assert pending.id not in [approval.id for approval in store.pending()]
    assert [item.name for item in store.remove(CHIEF.enrolled.id, CHIEF.sign)] == ["chief"]
    assert store.all() == []
    # Nobody is left to confirm the next one.
    store.add(key("k3"))
    assert [operator.id for operator in store.all()] == ["k3"]


def test_passkey_counter_never_decreases(store: OperatorStore) -> None:
    store.add(passkey(counter=4))
    assert store.record_use(b"pk", 5)
    assert not store.record_use(b"pk", 5)
    assert not store.record_use(b"pk", 4)
    assert not store.record_use(b"other", 9)
    assert store.all()[0].passkey.counter == 5


def test_further_key_requires_proof_of_operator(enrolled_store: OperatorStore) -> None:
    for sign in (None, Operator("other").sign, lambda draft: "not.a.proof"):
        with pytest.raises(InterlockError) as error:
            enrolled_store.add(key(), sign)
        assert error.value.failure is PROOF_INVALID
    assert [operator.name for operator in enrolled_store.all()] == ["chief"]
    enrolled_store.add(key(), CHIEF.sign)
    assert [operator.name for operator in enrolled_store.all()] == ["chief", "deputy"]


def test_config_root_confirms_first_key(store: OperatorStore) -> None:
    root = Operator("root")
    store.roots = lambda: (root.enrolled,)
    for sign in (None, CHIEF.sign):
        with pytest.raises(InterlockError):
            store.add(CHIEF.enrolled, sign)
    store.add(CHIEF.enrolled, root.sign)
    # It confirms no more than the first, and may leave the config afterwards.
    with pytest.raises(InterlockError):
        store.add(key(), root.sign)
    reader = OperatorReader(store)
    assert reader.read_changes()
    reader.store_head()
    reader.close()
    store.roots = lambda: (Operator("another").enrolled,)
    assert [operator.name for operator in store.all()] == ["chief"]


def test_rows_without_proof_are_ignored(enrolled_store: OperatorStore) -> None:
    reader = OperatorReader(enrolled_store)
    assert reader.read_changes()
    draft = enrolled_store.draft(enrol=[key()])
    with sqlite3.connect(enrolled_store.path) as file:
        file.execute("INSERT INTO chain VALUES (2, ?, '')", (draft.entry,))
    for look in (reader, OperatorReader(OperatorStore(enrolled_store.path))):
        changes = look.read_changes()
        assert changes is not None
        assert [operator.name for operator in changes.operators] == ["chief"]
        assert "entry 2" in changes.warning
        look.close()
    # It is not in the way of one that an operator confirms.
    enrolled_store.add(key("k2"), CHIEF.sign)
    assert [operator.id for operator in enrolled_store.all()] == [CHIEF.enrolled.id, "k2"]


@pytest.mark.parametrize("change", ["cut", "exchanged", "gone"])
def test_detects_truncated_or_replaced_chain(enrolled_store: OperatorStore, change: str) -> None:
    enrolled_store.add(key(), CHIEF.sign)
    enrolled_store.remove("deputy", CHIEF.sign)
    reader = OperatorReader(enrolled_store)
    assert reader.read_changes()
    reader.store_head()
    if change == "cut":
        # The removed one would be back.
        with sqlite3.connect(enrolled_store.path) as file:
            file.execute("DELETE FROM chain WHERE number = 3")
    else:
        enrolled_store.path.unlink()
    if change == "exchanged":
        other = OperatorStore(enrolled_store.path.with_name("other.db"))
        other.add(key())
        other.path.rename(enrolled_store.path)
    for look in (reader, OperatorReader(OperatorStore(enrolled_store.path))):
        with pytest.raises(InterlockError, match="cut or replaced"):
            look.read_changes()
        look.close()
    for ask in (enrolled_store.all, lambda: enrolled_store.add(key("k9"))):
        with pytest.raises(InterlockError, match="cut or replaced"):
            ask()


def _write_foreign_chain(store: OperatorStore) -> None:
    """What another process of the same user can write: a chain of its own, and its head."""
    other = OperatorStore(store.path.with_name("other.db"))
    other.add(key())
    head = other.chain().head
    assert head is not None
    store.path.unlink(missing_ok=True)
    other.path.rename(store.path)
    store.write_head(head)


def test_head_file_of_other_process_does_not_replace_chain(
    enrolled_store: OperatorStore,
) -> None:
    reader = OperatorReader(enrolled_store)
    assert names(reader) == ["chief"]
    reader.store_head()
    _write_foreign_chain(enrolled_store)
    with pytest.raises(InterlockError, match="cut or replaced"):
        reader.read_changes()
    reader.close()


def test_head_file_of_other_process_does_not_replace_root(store: OperatorStore) -> None:
    store.roots = lambda: (CHIEF.enrolled,)
    reader = OperatorReader(store)
    assert names(reader) is None
    _write_foreign_chain(store)
    with pytest.raises(InterlockError, match="no operator of the config signed it"):
        reader.read_changes()
    # The operator of the config enrols itself, and the node goes on with that.
    store.path.unlink()
    store.head_path.unlink()
    store.add(CHIEF.enrolled, CHIEF.sign)
    assert names(reader) == ["chief"]
    reader.close()


def test_enrolment_stays_pending_until_confirmed(
    enrolled_store: OperatorStore, clock: ManualClock
) -> None:
    pending = enrolled_store.add_pending(key())
    assert [operator.id for operator in enrolled_store.all()] == [CHIEF.enrolled.id]
    assert enrolled_store.find_pending(pending.id[:6]) == pending
    draft = enrolled_store.draft(enrol=[key("another")])
    with pytest.raises(InterlockError):
        enrolled_store.admit(pending.id, draft.entry, CHIEF.sign(draft))
    draft = enrolled_store.draft(enrol=[pending.enrolment])
    with pytest.raises(InterlockError):
        enrolled_store.admit(pending.id, draft.entry, Operator("other").sign(draft))
    enrolled_store.admit(pending.id, draft.entry, CHIEF.sign(draft))
    assert [operator.id for operator in enrolled_store.all()] == [CHIEF.enrolled.id, "k1"]
    assert enrolled_store.pending() == []
    with pytest.raises(InterlockError, match="already"):
        enrolled_store.add_pending(key())
    # Refused, and forgotten after a while.
    assert enrolled_store.reject(enrolled_store.add_pending(key("k2")).id)
    assert not enrolled_store.reject("unknown")
    enrolled_store.add_pending(key("k3"))
    clock.now += PENDING_SECONDS
    assert enrolled_store.pending() == []


def test_recovery_takes_effect_after_node_measured_delay(
    enrolled_store: OperatorStore, clock: ManualClock
) -> None:
    enrolled_store.path.with_name("seal.key").write_bytes(b"s" * 32)
    reader = OperatorReader(enrolled_store)
    assert reader.read_changes()
    reader.start()
    pending = enrolled_store.add_pending(key(), recovery=True)
    # Another process writes that it waited long enough.
    with sqlite3.connect(enrolled_store.path) as file:
        file.execute("UPDATE pending SET seen = 1, mark = x'00'")
    assert [approval.seen for approval in enrolled_store.pending()] == [0.0]
    assert enrolled_store.recover(pending.id) is None
    enrolled_store.mark_seen(pending.id)
    assert [approval.seen for approval in enrolled_store.pending()] == [clock.now]
    digest = enrolled_store.recover(pending.id)
    assert digest is not None
    # The running node did not let it happen: it counts for nothing there.
    changes = reader.read_changes()
    assert changes is not None
    assert ([operator.name for operator in changes.operators], bool(changes.warning)) == (
        ["chief"],
        True,
    )
    reader.close()
    reader.recoveries.add(digest)
    changes = reader.read_changes()
    assert changes is not None
    assert [operator.name for operator in changes.operators] == ["chief", "deputy"]
    reader.close()


@pytest.mark.skipif(os.getuid() != 0, reason="takes root, and a node of another user's")
def test_only_root_recovers_without_delay(enrolled_store: OperatorStore) -> None:
    with pytest.raises(InterlockError):
        # A node of root's: a program of the same user is root as well.
        enrolled_store.recover_as_root(key())
    folder = enrolled_store.path.parent
    for path in (folder, enrolled_store.path):
        os.chown(path, 65534, 65534)
    enrolled_store.recover_as_root(key())
    assert [operator.name for operator in enrolled_store.all()] == ["chief", "deputy"]
    reader = OperatorReader(enrolled_store)
    reader.start()
    assert names(reader) == ["chief", "deputy"]
    reader.close()
    (witness,) = folder.glob("operators.recovery-*")
    os.chown(witness, 65534, 65534)
    assert [operator.name for operator in enrolled_store.all()] == ["chief"]


def test_migrates_file_without_chain(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "operators.db"
    with sqlite3.connect(path) as file:
        file.execute(
            "CREATE TABLE enrolled (id, name, kind, algorithm, public, rp_id, counter, tools, "
            "caller, created)"
        )
        file.execute("CREATE TABLE code (digest, name, tools, caller, made, ends)")
        file.execute(
            "INSERT INTO enrolled VALUES "
            "('k1', 'chief', 'key', 'EdDSA', x'01', '', 0, '[]', '', 5.0)"
        )
        file.execute("PRAGMA application_id = 1229737808")
        file.execute("PRAGMA user_version = 1")
    store = OperatorStore(path, clock=clock)
    assert [(operator.id, operator.created) for operator in store.all()] == [("k1", 5.0)]
    with pytest.raises(InterlockError):
        store.add(key("k2"))


def test_invitation_code_is_single_use_and_expires(
    store: OperatorStore, clock: ManualClock
) -> None:
    invitation = Invitation("chief", ("a.*",), "bot")
    code = store.invite(invitation)
    assert store.find_invitation(code) == invitation
    assert store.find_invitation(code.lower().replace("-", " ")) == invitation
    assert store.find_invitation(code[:-1] + ("A" if code[-1] != "A" else "B")) is None
    assert code.replace("-", "").encode() not in store.path.read_bytes()
    made = store.redeem(code, lambda one: key(name=one.name))
    assert isinstance(made, Enrolment)
    assert store.redeem(code, lambda one: key("k2")) is None
    # Once there is an operator, that one has to confirm it.
    made = store.redeem(store.invite(invitation), lambda one: key("k2"))
    assert isinstance(made, PendingEnrolment)
    late = store.invite(invitation)
    clock.now += CODE_SECONDS
    assert store.redeem(late, lambda one: key("k3")) is None
    # The clock is set back: a code of the future is no good.
    later = store.invite(invitation)
    clock.now -= 1
    assert store.find_invitation(later) is None
    assert [operator.id for operator in store.all()] == ["k1"]


def test_failed_enrolment_keeps_invitation_code(store: OperatorStore) -> None:
    code = store.invite(Invitation("chief"))

    def fails(_: Invitation) -> Enrolment:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.redeem(code, fails)
    assert store.redeem(code, lambda one: key()) is not None


def test_concurrent_redemptions_enrol_once(store: OperatorStore) -> None:
    code = store.invite(Invitation("chief"))
    ready = threading.Barrier(2)
    got: list[Enrolment | PendingEnrolment | None] = []

    def redeem(id: str) -> None:
        ready.wait()
        got.append(OperatorStore(store.path, clock=lambda: 1000.0).redeem(code, lambda _: key(id)))

    threads = [threading.Thread(target=redeem, args=(id,)) for id in ("k1", "k2")]
    for thread in threads:
        thread.start()
    for item in threads:
        item.join()
    assert sum(result is not None for result in got) == 1
    assert len(store.all()) == 1


def test_refuses_file_of_other_program(tmp_path: Path) -> None:
    path = tmp_path / "operators.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE theirs (x)")
    with pytest.raises(InterlockError, match="another program"):
        OperatorStore(path).add(key())
    path.write_bytes(b"no database at all, but longer than a header of one")
    with pytest.raises(InterlockError, match="cannot be used"):
        OperatorStore(path).all()


def names(reader: OperatorReader) -> list[str] | None:
    changes = reader.read_changes()
    return None if changes is None else [operator.name for operator in changes.operators]


def test_reader_notices_enrolments_and_removals(store: OperatorStore) -> None:
    reader = OperatorReader(store)
    assert names(reader) is None
    store.add(CHIEF.enrolled)
    assert names(reader) == ["chief"]
    assert names(reader) is None
    store.add(key(), CHIEF.sign)
    assert names(reader) == ["chief", "deputy"]
    store.remove("deputy", CHIEF.sign)
    assert names(reader) == ["chief"]
    assert names(reader) is None
    # The file is taken away, and comes back.
    kept = store.path.with_name("aside.db")
    store.path.rename(kept)
    with pytest.raises(InterlockError):
        reader.read_changes()
    kept.rename(store.path)
    assert names(reader) == ["chief"]
    reader.close()


def test_reports_unreadable_file_and_rereads_it(
    store: OperatorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.trust.operators.store._BUSY_SECONDS", 0.01)
    store.add(key())
    reader = OperatorReader(store)
    assert reader.read_changes()
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InterlockError, match="locked"):
        reader.read_changes()
    holder.execute("ROLLBACK")
    holder.close()
    assert names(reader) == ["deputy"]
    reader.close()
