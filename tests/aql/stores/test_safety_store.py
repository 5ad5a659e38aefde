"""Tests of the stored records of the safety loop."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from interlock.aql.safety.store import (
    AgentExecution,
    CodeAttempts,
    CodeDigest,
    PrincipalBlock,
    SafetyChallenge,
    SafetyState,
    SafetyStore,
)
from interlock.core.call import Caller
from interlock.errors import CONFIG, UNRECORDABLE, InterlockError

WHO = ("ada", "token", "")
BLOCK = PrincipalBlock(WHO, Caller("ada", kind="token"), "agent", "drop it", "denied", 5.0, "c")
CHALLENGE = SafetyChallenge(
    "c", WHO, Caller("ada"), "agent", "drop it", "danger_zone", 1.0, 2.0, CodeDigest(b"s", b"d")
)
EXECUTION = AgentExecution("e", WHO, "agent", 1.0, 50, "moderate")
ATTEMPTS = CodeAttempts(WHO, (1.0, 2.0), 1, 60.0)


def test_loads_stored_records(tmp_path: Path) -> None:
    path = tmp_path / "state" / "safety.db"
    store = SafetyStore(path)
    assert store.load() == SafetyState()
    store.delete(BLOCK)
    assert not path.exists()
    for record in (BLOCK, CHALLENGE, EXECUTION, ATTEMPTS):
        store.save(record)
    store.save(BLOCK)
    # Another process that shares it sees the same.
    found = SafetyStore(path).load()
    assert (found.blocks, found.challenges, found.attempts) == ([BLOCK], [CHALLENGE], [ATTEMPTS])
    assert [one.id for one in found.executions] == ["e"]
    store.delete(BLOCK)
    store.delete(CHALLENGE)
    store.close()
    left = SafetyStore(path).load()
    assert (left.blocks, left.challenges) == ([], [])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_do_not_collide(tmp_path: Path) -> None:
    store = SafetyStore(tmp_path / "safety.db")
    for who in (("a", "b,c", ""), ("a,b", "c", ""), ('a","b', "c", "")):
        store.save(CodeAttempts(who, (1.0,)))
    assert len(store.load().attempts) == 3


def test_rejects_foreign_database(tmp_path: Path) -> None:
    path = tmp_path / "safety.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE theirs (x)")
    with pytest.raises(InterlockError) as raised:
        SafetyStore(path).save(BLOCK)
    assert raised.value.failure is CONFIG


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_rejects_unwritable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InterlockError) as raised:
        SafetyStore(tmp_path / "safety.db").save(BLOCK)
    assert raised.value.failure is UNRECORDABLE


def test_reports_unreadable_block(tmp_path: Path) -> None:
    path = tmp_path / "safety.db"
    store = SafetyStore(path)
    store.save(EXECUTION)
    store.close()
    with sqlite3.connect(path) as file:
        file.execute("UPDATE record SET body = x'c1'")
    assert SafetyStore(path).load() == SafetyState()
    with sqlite3.connect(path) as file:
        file.execute("INSERT INTO record VALUES ('block', 'x', x'c1')")
    with pytest.raises(InterlockError, match="unreadable block"):
        SafetyStore(path).load()
