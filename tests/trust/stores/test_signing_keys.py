"""A node's signing keys: changed in time, shown long enough, never readable by others."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws
from joserfc.errors import BadSignatureError
from joserfc.jwk import OKPKey

from interlock.errors import InterlockError
from interlock.trust.hop_tokens import LEEWAY_SECONDS, MAX_TOKEN_SECONDS
from interlock.trust.signing_keys import OVERLAP_SECONDS, ROTATION_SECONDS, SigningKeys
from tests.support.clock import ManualClock
from tests.support.timeouts import HANG_TIMEOUT


@pytest.fixture
def wall() -> ManualClock:
    return ManualClock(1_000_000.0)


def shown(keys: SigningKeys) -> dict[str, dict[str, Any]]:
    return {one["kid"]: one for one in json.loads(keys.jwks())["keys"]}


def verify(token: str, jwks: bytes) -> Any:
    kid = jws.extract_compact(token.encode()).headers()["kid"]
    [key] = [one for one in json.loads(jwks)["keys"] if one["kid"] == kid]
    with pytest.warns(UserWarning, match="EdDSA"):
        found = jws.deserialize_compact(token, OKPKey.import_key(key), algorithms=["EdDSA"])
    return json.loads(found.payload)


def test_what_it_signs_anybody_can_check(tmp_path: Path, wall: ManualClock) -> None:
    keys = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    token = keys.sign({"sub": "somebody"})
    assert verify(token, keys.jwks()) == {"sub": "somebody"}
    head, body, signature = token.split(".")
    other = SigningKeys(None).sign({"sub": "somebody"}).split(".")[2]
    [key] = json.loads(keys.jwks())["keys"]
    with pytest.raises(BadSignatureError), pytest.warns(UserWarning, match="EdDSA"):
        jws.deserialize_compact(
            f"{head}.{body}.{other}", OKPKey.import_key(key), algorithms=["EdDSA"]
        )
    assert signature != other


def test_the_id_of_a_key_is_its_thumbprint(wall: ManualClock) -> None:
    [key] = json.loads(SigningKeys(None, wall_clock=wall).jwks())["keys"]
    assert OKPKey.import_key(key).thumbprint() == key["kid"]
    assert set(key) == {"kty", "crv", "use", "alg", "kid", "x"}


def test_the_file_is_for_nobody_else(tmp_path: Path, wall: ManualClock) -> None:
    path = tmp_path / "state" / "keys.json"
    old = os.umask(0)
    try:
        SigningKeys(path, wall_clock=wall)
    finally:
        os.umask(old)
    for one in path.parent.iterdir():
        assert stat.S_IMODE(one.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_after_a_restart_it_is_the_same_key(tmp_path: Path, wall: ManualClock) -> None:
    first = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    wall.now += ROTATION_SECONDS - 1
    again = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    assert again.kid == first.kid
    assert verify(again.sign({"a": 1}), first.jwks()) == {"a": 1}


@pytest.mark.spec("ST-4.8.5-3")
def test_keys_change_every_day_and_no_token_is_left_without_its_key(
    tmp_path: Path, wall: ManualClock
) -> None:
    keys = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    first, token = keys.kid, keys.sign({"a": 1})
    assert keys.refresh() is False
    wall.now += ROTATION_SECONDS
    assert keys.refresh() is True
    assert keys.kid != first
    assert list(shown(keys)) == [keys.kid, first]
    last_moment = MAX_TOKEN_SECONDS + LEEWAY_SECONDS
    assert last_moment < OVERLAP_SECONDS
    wall.now += last_moment
    assert keys.refresh() is False
    assert verify(token, keys.jwks()) == {"a": 1}
    wall.now += OVERLAP_SECONDS
    assert keys.refresh() is True
    assert list(shown(keys)) == [keys.kid]


@pytest.mark.spec("ST-4.8.5-3")
def test_two_changes_in_a_row_leave_all_tokens_good(tmp_path: Path, wall: ManualClock) -> None:
    keys = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    tokens = [keys.sign({"n": 0})]
    for number in (1, 2):
        assert keys.rotate() == keys.kid
        tokens.append(keys.sign({"n": number}))
    assert len(shown(keys)) == 3
    assert [verify(one, keys.jwks())["n"] for one in tokens] == [0, 1, 2]
    assert [row.signs for row in keys.list_keys()] == [True, False, False]


def test_the_private_part_of_an_old_key_is_gone(tmp_path: Path, wall: ManualClock) -> None:
    path = tmp_path / "keys.json"
    keys = SigningKeys(path, wall_clock=wall)
    [old] = json.loads(path.read_bytes())["keys"]
    keys.rotate()
    text = path.read_text()
    assert old["d"] not in text
    assert old["x"] in text


def test_a_running_node_sees_what_another_process_changed(
    tmp_path: Path, wall: ManualClock
) -> None:
    path = tmp_path / "keys.json"
    node, other = SigningKeys(path, wall_clock=wall), SigningKeys(path, wall_clock=wall)
    before = node.jwks()
    new = other.rotate()
    assert node.kid != new
    assert node.refresh() is True
    assert node.kid == new
    assert node.jwks() == other.jwks() != before
    assert node.refresh() is False


def test_many_processes_that_change_it_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    SigningKeys(path)
    program = (
        "import sys, pathlib; from interlock.trust.signing_keys import SigningKeys; "
        "print(SigningKeys(pathlib.Path(sys.argv[1])).rotate())"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    made = {one.communicate(timeout=HANG_TIMEOUT)[0].strip() for one in running}
    assert len(made) == 4
    assert made < set(shown(SigningKeys(path)))


def test_however_often_keys_are_changed_few_are_shown(wall: ManualClock) -> None:
    keys = SigningKeys(None, wall_clock=wall)
    for _ in range(100):
        keys.rotate()
    assert len(shown(keys)) == 24


@pytest.mark.parametrize(
    "bad",
    [b"", b"{}", b"[]", b'{"keys":[]}', b'{"keys":[{"kid":"a","x":"a","created":1}]}', b"\xff" * 9],
)
def test_what_holds_no_keys_is_replaced(tmp_path: Path, wall: ManualClock, bad: bytes) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(bad)
    keys = SigningKeys(path, wall_clock=wall)
    assert verify(keys.sign({"a": 1}), SigningKeys(path, wall_clock=wall).jwks()) == {"a": 1}


def test_a_key_that_was_tampered_with_is_not_used(tmp_path: Path, wall: ManualClock) -> None:
    path = tmp_path / "keys.json"
    first = SigningKeys(path, wall_clock=wall)
    held = json.loads(path.read_bytes())
    held["keys"][0]["x"] = json.loads(SigningKeys(None).jwks())["keys"][0]["x"]
    path.write_text(json.dumps(held))
    again = SigningKeys(path, wall_clock=wall)
    assert first.kid not in shown(again)


@pytest.mark.parametrize("jump", [-1e6, 1e9])
def test_a_clock_that_jumps_makes_a_new_key_and_loses_none(
    tmp_path: Path, wall: ManualClock, jump: float
) -> None:
    keys = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    first = keys.kid
    wall.now += jump
    assert keys.refresh() is True
    assert keys.kid != first
    assert list(shown(keys)) == [keys.kid, first]
    assert keys.refresh() is False


def test_a_folder_that_cannot_be_used_costs_only_the_memory(
    tmp_path: Path, wall: ManualClock
) -> None:
    (tmp_path / "file").write_text("")
    keys = SigningKeys(tmp_path / "file" / "keys.json", wall_clock=wall)
    assert verify(keys.sign({"a": 1}), keys.jwks()) == {"a": 1}
    keys.rotate()
    assert len(shown(keys)) == 2


def test_a_folder_that_is_lost_later_is_said_and_leaves_the_key(
    tmp_path: Path, wall: ManualClock
) -> None:
    folder = tmp_path / "state"
    keys = SigningKeys(folder / "keys.json", wall_clock=wall)
    kid = keys.kid
    for one in folder.iterdir():
        one.unlink()
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(InterlockError, match="cannot be read or written"):
        keys.rotate()
    assert keys.kid == kid
    assert verify(keys.sign({"a": 1}), keys.jwks()) == {"a": 1}


def test_no_key_is_ever_shown_in_words(wall: ManualClock) -> None:
    keys = SigningKeys(None, wall_clock=wall)
    private = keys._keys[0].d
    assert private is not None
    assert private not in repr(keys._keys)
    assert private not in repr(keys.list_keys())


def test_who_holds_the_file_is_not_waited_for_for_ever(
    tmp_path: Path, wall: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.trust.signing_keys._LOCK_TIMEOUT_SECONDS", 0.05)
    path = tmp_path / "keys.json"
    keys = SigningKeys(path, wall_clock=wall)
    with path.with_name("keys.json.lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InterlockError, match="another process holds the file"):
            keys.rotate()
        # It signs with what it has.
        assert verify(keys.sign({"a": 1}), keys.jwks()) == {"a": 1}
    assert keys.rotate() == keys.kid


def test_what_was_read_counts_only_once_it_is_taken(tmp_path: Path, wall: ManualClock) -> None:
    path = tmp_path / "keys.json"
    node = SigningKeys(path, wall_clock=wall)
    before = node.kid
    new = SigningKeys(path, wall_clock=wall).rotate()
    found = node.read_changes()
    assert (node.kid, verify(node.sign({"a": 1}), node.jwks())) == (before, {"a": 1})
    assert node.apply(found) is True
    assert node.kid == new
    assert node.read_changes() is None
