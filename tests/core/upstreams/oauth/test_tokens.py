"""The token store: private, versioned, shared by processes."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from interlock.core.upstreams.oauth.token_store import SCHEMA_VERSION, TokenStore
from interlock.errors import CONFIG, INTERNAL, InterlockError
from tests.support.timeouts import HANG_TIMEOUT

URL = "https://example.com/mcp"


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "deep" / "tokens.db")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_reading_creates_no_file(store: TokenStore) -> None:
    assert not store.exists()
    assert store.grant("jira", URL) is None
    assert store.client("jira", URL, "i") is None
    assert not store.delete("jira", URL)
    assert not store.exists()


def test_file_is_private(store: TokenStore) -> None:
    before = os.umask(0)
    try:
        store.save_grant("jira", URL, b"secret")
    finally:
        os.umask(before)
    assert mode(store.path) == 0o600
    assert mode(store.path.parent) == 0o700
    # Whoever opened it up, it is closed again.
    store.path.chmod(0o644)
    store.grant("jira", URL)
    assert mode(store.path) == 0o600


def test_stores_grant_by_server_and_url(store: TokenStore) -> None:
    stamp = store.save_grant("jira", URL, b"one")
    assert store.grant("jira", URL) == (b"one", stamp)
    assert store.grant("wiki", URL) is None
    assert store.grant("jira", URL + "/other") is None
    again = store.save_grant("jira", URL, b"two")
    assert store.grant("jira", URL) == (b"two", again)
    assert again != stamp


def test_conditional_save_detects_newer_grant(store: TokenStore) -> None:
    first = store.save_grant("jira", URL, b"one")
    second = store.save_grant("jira", URL, b"two", replaces=first)
    assert second is not None
    assert store.save_grant("jira", URL, b"late", replaces=first) is None
    assert store.grant("jira", URL) == (b"two", second)
    store.delete("jira", URL)
    # What was forgotten does not come back by a renewal.
    assert store.save_grant("jira", URL, b"late", replaces=second) is None
    assert store.grant("jira", URL) is None


def test_stores_client_by_issuer(store: TokenStore) -> None:
    store.save_client("jira", URL, "https://a", b"client a")
    assert store.client("jira", URL, "https://a") == b"client a"
    assert store.client("jira", URL, "https://a/") is None
    assert store.client("jira", URL, "https://b") is None


def test_delete_leaves_no_secret_in_file(store: TokenStore) -> None:
    secret = b"a-secret-that-nobody-needs-any-more"
    store.save_grant("jira", URL, secret)
    store.save_client("jira", URL, "i", secret)
    store.save_grant("wiki", URL, b"stays")
    assert store.delete("jira", URL)
    assert not store.delete("jira", URL)
    assert store.client("jira", URL, "i") is None
    assert store.grant("wiki", URL) is not None
    for path in store.path.parent.iterdir():
        assert secret not in path.read_bytes()


def test_one_process_gets_lease(tmp_path: Path) -> None:
    now = 100.0
    store = TokenStore(tmp_path / "tokens.db", clock=lambda: now)
    got: list[str] = []

    def take_lease(name: str) -> None:
        if store.lease("jira", URL, name, 40.0):
            got.append(name)

    threads = [threading.Thread(target=take_lease, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (holder,) = got
    # Its holder may renew it, somebody else may not,
    assert store.lease("jira", URL, holder, 40.0)
    assert not store.lease("jira", URL, "other", 40.0)
    assert store.lease("wiki", URL, "other", 40.0)
    # not even give it back.
    store.release("jira", URL, "other")
    assert not store.lease("jira", URL, "other", 40.0)
    store.release("jira", URL, holder)
    assert store.lease("jira", URL, "other", 40.0)
    # Who died with it does not keep it for ever,
    now = 141.0
    assert store.lease("jira", URL, "third", 40.0)
    # and a clock that was set back does not either.
    now = -10_000.0
    assert store.lease("jira", URL, "fourth", 40.0)


def test_processes_share_store(store: TokenStore) -> None:
    store.save_grant("jira", URL, b"here")
    code = (
        "import sys; from pathlib import Path\n"
        "from interlock.core.upstreams.oauth.token_store import TokenStore\n"
        f"store = TokenStore(Path(sys.argv[1])); print(store.grant('jira', {URL!r})[0])\n"
        f"store.save_grant('jira', {URL!r}, b'there')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.path)],
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=True,
    )
    assert done.stdout == "b'here'\n"
    result = store.grant("jira", URL)
    assert result is not None
    assert result[0] == b"there"


def test_rejects_other_file(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(InterlockError, match="another program's database") as caught:
        TokenStore(path).save_grant("jira", URL, b"x")
    assert caught.value.failure is CONFIG
    path.write_bytes(b"no database at all, but long enough to be looked at" * 50)
    with pytest.raises(InterlockError, match="cannot be used") as caught:
        TokenStore(path).grant("jira", URL)
    assert caught.value.failure is INTERNAL


def test_rejects_newer_schema(store: TokenStore) -> None:
    store.save_grant("jira", URL, b"x")
    with sqlite3.connect(store.path) as file:
        file.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    file.close()
    with pytest.raises(InterlockError, match="newer Interlock"):
        store.grant("jira", URL)


def test_rejects_symlink(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    path = tmp_path / "tokens.db"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InterlockError, match="cannot be used"):
        TokenStore(path).save_grant("jira", URL, b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InterlockError, match="cannot be used"):
        TokenStore(tmp_path / "folder").save_grant("jira", URL, b"x")
