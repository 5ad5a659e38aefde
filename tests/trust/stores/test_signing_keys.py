"""Signing keys of a node: rotation, overlap, and permissions of the file."""

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


def published_keys(keys: SigningKeys) -> dict[str, dict[str, Any]]:
    return {key["kid"]: key for key in json.loads(keys.jwks())["keys"]}


def verify(token: str, jwks: bytes) -> Any:
    kid = jws.extract_compact(token.encode()).headers()["kid"]
    [key] = [key for key in json.loads(jwks)["keys"] if key["kid"] == kid]
    with pytest.warns(UserWarning, match="EdDSA"):
        result = jws.deserialize_compact(token, OKPKey.import_key(key), algorithms=["EdDSA"])
    return json.loads(result.payload)


def test_published_keys_verify_signatures(tmp_path: Path, wall: ManualClock) -> None:
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


def test_key_id_is_its_thumbprint(wall: ManualClock) -> None:
    [key] = json.loads(SigningKeys(None, wall_clock=wall).jwks())["keys"]
    assert OKPKey.import_key(key).thumbprint() == key["kid"]
    assert set(key) == {"kty", "crv", "use", "alg", "kid", "x"}


def test_file_is_private(tmp_path: Path, wall: ManualClock) -> None:
    path = tmp_path / "state" / "keys.json"
    old = os.umask(0)
    try:
        SigningKeys(path, wall_clock=wall)
    finally:
        os.umask(old)
    for item in path.parent.iterdir():
        assert stat.S_IMODE(item.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_key_survives_restart(tmp_path: Path, wall: ManualClock) -> None:
    first = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    wall.now += ROTATION_SECONDS - 1
    again = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    assert again.kid == first.kid
    assert verify(again.sign({"a": 1}), first.jwks()) == {"a": 1}


@pytest.mark.spec("ST-4.8.5-3")
def test_key_rotates_daily_and_old_key_stays_published(tmp_path: Path, wall: ManualClock) -> None:
    keys = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    first, token = keys.kid, keys.sign({"a": 1})
    assert keys.refresh() is False
    wall.now += ROTATION_SECONDS
    assert keys.refresh() is True
    assert keys.kid != first
    assert list(published_keys(keys)) == [keys.kid, first]
    last_moment = MAX_TOKEN_SECONDS + LEEWAY_SECONDS
    assert last_moment < OVERLAP_SECONDS
    wall.now += last_moment
    assert keys.refresh() is False
    assert verify(token, keys.jwks()) == {"a": 1}
    wall.now += OVERLAP_SECONDS
    assert keys.refresh() is True
    assert list(published_keys(keys)) == [keys.kid]


@pytest.mark.spec("ST-4.8.5-3")
def test_repeated_rotation_keeps_tokens_valid(tmp_path: Path, wall: ManualClock) -> None:
    keys = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    tokens = [keys.sign({"n": 0})]
    for number in (1, 2):
        assert keys.rotate() == keys.kid
        tokens.append(keys.sign({"n": number}))
    assert len(published_keys(keys)) == 3
    assert [verify(token, keys.jwks())["n"] for token in tokens] == [0, 1, 2]
    assert [row.signs for row in keys.list_keys()] == [True, False, False]


def test_rotation_deletes_private_part_of_old_key(tmp_path: Path, wall: ManualClock) -> None:
    path = tmp_path / "keys.json"
    keys = SigningKeys(path, wall_clock=wall)
    [old] = json.loads(path.read_bytes())["keys"]
    keys.rotate()
    text = path.read_text()
    assert old["d"] not in text
    assert old["x"] in text


def test_running_node_reads_key_rotated_by_other_process(tmp_path: Path, wall: ManualClock) -> None:
    path = tmp_path / "keys.json"
    node, other = SigningKeys(path, wall_clock=wall), SigningKeys(path, wall_clock=wall)
    before = node.jwks()
    new = other.rotate()
    assert node.kid != new
    assert node.refresh() is True
    assert node.kid == new
    assert node.jwks() == other.jwks() != before
    assert node.refresh() is False


def test_concurrent_rotations_lose_no_key(tmp_path: Path) -> None:
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
    made = {process.communicate(timeout=HANG_TIMEOUT)[0].strip() for process in running}
    assert len(made) == 4
    assert made < set(published_keys(SigningKeys(path)))


def test_published_keys_are_limited(wall: ManualClock) -> None:
    keys = SigningKeys(None, wall_clock=wall)
    for _ in range(100):
        keys.rotate()
    assert len(published_keys(keys)) == 24


@pytest.mark.parametrize(
    "bad",
    [b"", b"{}", b"[]", b'{"keys":[]}', b'{"keys":[{"kid":"a","x":"a","created":1}]}', b"\xff" * 9],
)
def test_invalid_key_file_is_replaced(tmp_path: Path, wall: ManualClock, bad: bytes) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(bad)
    keys = SigningKeys(path, wall_clock=wall)
    assert verify(keys.sign({"a": 1}), SigningKeys(path, wall_clock=wall).jwks()) == {"a": 1}


def test_tampered_key_is_not_used(tmp_path: Path, wall: ManualClock) -> None:
    path = tmp_path / "keys.json"
    first = SigningKeys(path, wall_clock=wall)
    held = json.loads(path.read_bytes())
    held["keys"][0]["x"] = json.loads(SigningKeys(None).jwks())["keys"][0]["x"]
    path.write_text(json.dumps(held))
    again = SigningKeys(path, wall_clock=wall)
    assert first.kid not in published_keys(again)


@pytest.mark.parametrize("jump", [-1e6, 1e9])
def test_clock_jump_rotates_key_and_keeps_old_key(
    tmp_path: Path, wall: ManualClock, jump: float
) -> None:
    keys = SigningKeys(tmp_path / "keys.json", wall_clock=wall)
    first = keys.kid
    wall.now += jump
    assert keys.refresh() is True
    assert keys.kid != first
    assert list(published_keys(keys)) == [keys.kid, first]
    assert keys.refresh() is False


def test_unusable_folder_keeps_keys_in_memory(tmp_path: Path, wall: ManualClock) -> None:
    (tmp_path / "file").write_text("")
    keys = SigningKeys(tmp_path / "file" / "keys.json", wall_clock=wall)
    assert verify(keys.sign({"a": 1}), keys.jwks()) == {"a": 1}
    keys.rotate()
    assert len(published_keys(keys)) == 2


def test_lost_folder_fails_rotation_and_keeps_key(tmp_path: Path, wall: ManualClock) -> None:
    folder = tmp_path / "state"
    keys = SigningKeys(folder / "keys.json", wall_clock=wall)
    kid = keys.kid
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(InterlockError, match="cannot be read or written"):
        keys.rotate()
    assert keys.kid == kid
    assert verify(keys.sign({"a": 1}), keys.jwks()) == {"a": 1}


def test_repr_hides_private_keys(wall: ManualClock) -> None:
    keys = SigningKeys(None, wall_clock=wall)
    private = keys._keys[0].d
    assert private is not None
    assert private not in repr(keys._keys)
    assert private not in repr(keys.list_keys())


def test_locked_file_times_out(
    tmp_path: Path, wall: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.trust.signing_keys._LOCK_TIMEOUT_SECONDS", 0.05)
    path = tmp_path / "keys.json"
    keys = SigningKeys(path, wall_clock=wall)
    with path.with_name("keys.json.lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InterlockError, match="another process has locked the file"):
            keys.rotate()
        # It signs with what it has.
        assert verify(keys.sign({"a": 1}), keys.jwks()) == {"a": 1}
    assert keys.rotate() == keys.kid


def test_read_keys_apply_only_when_applied(tmp_path: Path, wall: ManualClock) -> None:
    path = tmp_path / "keys.json"
    node = SigningKeys(path, wall_clock=wall)
    before = node.kid
    new = SigningKeys(path, wall_clock=wall).rotate()
    changes = node.read_changes()
    assert (node.kid, verify(node.sign({"a": 1}), node.jwks())) == (before, {"a": 1})
    assert node.apply(changes) is True
    assert node.kid == new
    assert node.read_changes() is None
