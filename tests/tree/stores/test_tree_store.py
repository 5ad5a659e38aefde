"""Tests of the tree store: identities, claims and leases."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from interlock.errors import CONFIG, INTERNAL, TOO_BUSY, InterlockError
from interlock.protocol.mcpax import is_uuid
from interlock.tree.store import UNPROVEN_CLAIM_SECONDS, Lease, TreeStore
from tests.support.clock import ManualClock

CHILD, OTHER_CHILD = "child", "other child"
ONE, TWO = "one", "two"
TREE, OTHER_TREE = "tree", "other tree"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["alone", "shared"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> object:
    """Return the lease stores of two nodes: the same store, or two stores of one file."""
    shared = tmp_path / "shared" / "leases.db"
    one = TreeStore(tmp_path / "one.db", leases=shared, clock=clock)
    two = one if request.param == "alone" else TreeStore(tmp_path / "2.db", leases=shared)
    two._clock = clock
    yield one, two
    one.close()
    two.close()


# -- identities


@pytest.mark.spec("AX-13.4-1", "AX-6.1-2")
def test_creates_identity_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tree.db"
    store = TreeStore(path)
    first = store.identity("aggregator")
    assert is_uuid(first)
    assert store.identity("aggregator") == first
    leaf = store.identity("leaf")
    assert leaf != first
    store.close()
    again = TreeStore(path)
    assert (again.identity("aggregator"), again.identity("leaf")) == (first, leaf)
    again.close()
    path.unlink()
    other = TreeStore(path)
    assert other.identity("aggregator") != first
    other.close()


def test_nodes_have_separate_identities(tmp_path: Path) -> None:
    shared = tmp_path / "shared.db"
    one, two = (TreeStore(tmp_path / name, leases=shared) for name in ("1.db", "2.db"))
    assert one.identity("aggregator") != two.identity("aggregator")
    one.close()
    two.close()


def test_concurrent_starts_agree_on_identity(tmp_path: Path) -> None:
    found: list[str] = []
    ready = threading.Barrier(4)

    def start() -> None:
        store = TreeStore(tmp_path / "tree.db")
        ready.wait()
        found.append(store.identity("aggregator"))
        store.close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 4
    assert len(set(found)) == 1


# -- claims


@pytest.mark.spec("AX-4.2-5", "AX-4.2-7", "AX-4.2-10")
def test_claims(tmp_path: Path, clock: ManualClock) -> None:
    store = TreeStore(tmp_path / "tree.db", clock=clock)
    assert store.find_claim("x") is None
    assert store.save_claim("x", "dns:a", False)
    assert store.save_claim("x", "dns:b", False)
    assert store.find_claim("x") == ("x", "dns:b", False, 1000.0)
    assert store.save_claim("x", "dns:c", True)
    assert not store.save_claim("x", "dns:d", False)
    assert not store.save_claim("x", "dns:c", False)
    assert store.save_claim("y", "dns:y", False)
    store.close()
    again = TreeStore(tmp_path / "tree.db", clock=clock)
    assert again.list_claims() == [("x", "dns:c", True, 1000.0), ("y", "dns:y", False, 1000.0)]
    assert again.remove_claim("x")
    assert not again.remove_claim("x")
    assert again.find_claim("x") is None
    again.close()


def test_unproven_claim_expires(tmp_path: Path, clock: ManualClock) -> None:
    store = TreeStore(tmp_path / "tree.db", clock=clock)
    assert store.save_claim("claimed", "dns:a", False)
    assert store.save_claim("proven", "dns:a", True)
    clock.now += UNPROVEN_CLAIM_SECONDS - 1
    assert store.find_claim("claimed") is not None
    # It is used: its day begins anew.
    assert store.save_claim("claimed", "dns:a", False)
    clock.now += UNPROVEN_CLAIM_SECONDS - 1
    assert [one.segment for one in store.list_claims()] == ["claimed", "proven"]
    clock.now += 1
    assert store.find_claim("claimed") is None
    assert [one.segment for one in store.list_claims()] == ["proven"]
    clock.now += 1000 * UNPROVEN_CLAIM_SECONDS
    assert store.find_claim("proven") is not None
    # What has lapsed does not stay in the file.
    assert store.save_claim("other", "dns:b", False)
    store.close()
    with sqlite3.connect(tmp_path / "tree.db") as file:
        kept = file.execute("SELECT segment FROM claim ORDER BY segment").fetchall()
        assert kept == [("other",), ("proven",)]
    file.close()


def test_upgrades_first_file_version(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "tree.db"
    TreeStore(path).identity("aggregator")
    file = sqlite3.connect(path, isolation_level=None)
    file.execute("ALTER TABLE claim DROP COLUMN used")
    file.execute("INSERT INTO claim VALUES ('x', 'dns:a', 0)")
    file.execute("PRAGMA user_version = 1")
    file.close()
    store = TreeStore(path, clock=clock)
    assert store.list_claims() == [("x", "dns:a", False, 1000.0)]
    store.close()


# -- leases


@pytest.mark.spec("AX-13.4-3", "AX-13.4-5")
def test_lease_excludes_others_in_tree(
    stores: tuple[TreeStore, TreeStore], clock: ManualClock
) -> None:
    one, two = stores
    assert one.take_lease(CHILD, ONE, TREE, "dns:a", 1015.0) is None
    mine = Lease(CHILD, ONE, TREE, "dns:a", 1015.0)
    assert two.find_leases(CHILD) == [mine]
    assert two.find_other_lease(CHILD, TWO, TREE) == mine
    assert two.take_lease(CHILD, TWO, TREE, "", 1020.0) == mine
    # Itself, another child, and another tree are another matter.
    assert one.find_other_lease(CHILD, ONE, TREE) is None
    assert two.find_other_lease(CHILD, TWO, OTHER_TREE) is None
    assert one.take_lease(CHILD, ONE, TREE, "dns:a", 1016.0) is None
    assert two.take_lease(OTHER_CHILD, TWO, TREE, "", 1020.0) is None
    assert two.take_lease(CHILD, TWO, OTHER_TREE, "", 1020.0) is None
    assert len(one.find_leases(CHILD)) == 2


@pytest.mark.spec("AX-13.4-6")
def test_lease_expires_without_renewal(
    stores: tuple[TreeStore, TreeStore], clock: ManualClock
) -> None:
    one, two = stores
    one.take_lease(CHILD, ONE, TREE, "", 1015.0)
    clock.now = 1014.0
    one.renew_leases(ONE, [(CHILD, 1029.0), ("unknown", 1029.0)])
    # Nobody renews another's.
    two.renew_leases(TWO, [(CHILD, 9999.0)])
    clock.now = 1028.9
    assert two.take_lease(CHILD, TWO, TREE, "", 1050.0) is not None
    clock.now = 1029.0
    assert two.find_leases(CHILD) == []
    assert two.take_lease(CHILD, TWO, TREE, "", 1050.0) is None
    # And what was taken over stays so.
    one.renew_leases(ONE, [(CHILD, 1060.0)])
    assert [lease.aggregator_id for lease in one.find_leases(CHILD)] == [TWO]


def test_releases_lease(stores: tuple[TreeStore, TreeStore]) -> None:
    one, two = stores
    one.take_lease(CHILD, ONE, TREE, "", 1015.0)
    two.release_lease(CHILD, TWO)
    assert two.take_lease(CHILD, TWO, TREE, "", 1015.0) is not None
    one.release_lease(CHILD, ONE)
    assert two.take_lease(CHILD, TWO, TREE, "", 1015.0) is None


def test_concurrent_requests_grant_one_lease(tmp_path: Path) -> None:
    got: list[str] = []
    ready = threading.Barrier(6)

    def grab(name: str) -> None:
        store = TreeStore(tmp_path / f"{name}.db", leases=tmp_path / "shared.db")
        ready.wait()
        while True:
            try:
                if store.take_lease(CHILD, name, TREE, "", 1e12) is None:
                    got.append(name)
                break
            except InterlockError as error:
                # They are all making the file: whoever waits too long for it tries again.
                if error.failure is not TOO_BUSY:
                    raise
        store.close()

    threads = [threading.Thread(target=grab, args=(str(n),)) for n in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(got) == 1


def test_takes_many_leases_except_taken_leases(
    stores: tuple[TreeStore, TreeStore],
) -> None:
    one, two = stores
    one.take_lease(CHILD, ONE, TREE, "", 1015.0)
    wanted = [(CHILD, "", 1020.0), (OTHER_CHILD, "dns:a", 1020.0)]
    mine = Lease(CHILD, ONE, TREE, "", 1015.0)
    assert two.take_leases(TWO, TREE, wanted) == {CHILD: mine}
    assert one.find_leases(CHILD) == [mine]
    assert one.find_leases(OTHER_CHILD) == [Lease(OTHER_CHILD, TWO, TREE, "dns:a", 1020.0)]
    two.renew_leases(TWO, [(OTHER_CHILD, 1030.0)], [CHILD])
    assert one.find_leases(CHILD) == [mine]
    one.renew_leases(ONE, [], [CHILD])
    assert one.find_leases(CHILD) == []


# -- the file


def test_does_not_wait_for_locked_file(tmp_path: Path) -> None:
    shared = tmp_path / "shared.db"
    store = TreeStore(tmp_path / "tree.db", leases=shared)
    assert store.take_lease(CHILD, ONE, TREE, "", 1e12) is None
    other = sqlite3.connect(shared, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waits: list[str] = []
    connection = store._lease_file._connection
    assert connection is not None
    connection.set_trace_callback(
        lambda statement: waits.append(statement) if "busy_timeout" in statement else None
    )
    # Who reads waits for nobody.
    assert len(store.find_leases(CHILD)) == 1
    assert store.find_other_lease(CHILD, TWO, TREE) is not None
    for _ in range(50):
        with pytest.raises(InterlockError, match="Try again") as caught:
            store.renew_leases(ONE, [(CHILD, 2e12)])
        assert caught.value.failure is TOO_BUSY
        with pytest.raises(InterlockError, match="Try again"):
            store.take_lease(CHILD, ONE, TREE, "", 1e12)
    # It waits once, at the first write.
    writes = waits[-100:]
    assert writes.count("PRAGMA busy_timeout = 50") == 1
    assert writes.count("PRAGMA busy_timeout = 0") == 99
    other.execute("ROLLBACK")
    other.close()
    store.renew_leases(ONE, [(CHILD, 2e12)])
    assert store.find_leases(CHILD)[0].until == 2e12
    store.close()


def test_only_owner_can_read_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = TreeStore(tmp_path / "tree.db")
        store.identity("aggregator")
        modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert modes == {0o600}


def test_rejects_foreign_database(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE theirs (x)")
    file.close()
    with pytest.raises(InterlockError, match="another program's") as caught:
        TreeStore(path).identity("aggregator")
    assert caught.value.failure is CONFIG


def test_rejects_newer_file(tmp_path: Path) -> None:
    path = tmp_path / "tree.db"
    store = TreeStore(path)
    store.identity("aggregator")
    store.close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(InterlockError, match="newer"):
        TreeStore(path).identity("aggregator")


@pytest.mark.parametrize("what", ["folder", "noise"])
def test_rejects_file_that_is_no_database(tmp_path: Path, what: str) -> None:
    path = tmp_path / "tree.db"
    if what == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"noise" * 1000)
    with pytest.raises(InterlockError, match=r"tree\.db") as caught:
        TreeStore(path).identity("aggregator")
    assert caught.value.failure is INTERNAL


def test_reopens_closed_store(tmp_path: Path) -> None:
    store = TreeStore(tmp_path / "tree.db")
    first = store.identity("aggregator")
    store.close()
    store.close()
    assert store.identity("aggregator") == first
    store.close()
