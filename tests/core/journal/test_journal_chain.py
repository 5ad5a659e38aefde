"""The hash chain of the journal: `verify` locates every manual change."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.journal import file as journal_file
from interlock.core.journal.archives import MAX_FINDINGS
from interlock.core.journal.chain import GENESIS_HASH, ChainHead, hash_page
from interlock.core.journal.journal import Entry, Journal, JournalReader
from interlock.core.journal.verification import VerificationReport, read_chain_head, verify
from interlock.core.journal.writer import encode_fragment, join_pages
from interlock.errors import InterlockError

NEVER = 3600.0


def entry(number: int, name: str = "jira.create_issue") -> Entry:
    return (number, "local", "mcp", "tools/call", name, "jira", "additive", "ok", 412, "")


def write_journal(
    path: Path, pages: int = 5, each: int = 3, start: int = 0, **settings: object
) -> Path:
    journal = Journal(path, group_seconds=NEVER, **settings)  # type: ignore[arg-type]
    for page in range(pages):
        for number in range(each):
            journal.record(entry(start + page * each + number))
        assert journal.flush()
    journal.close()
    return path


def tamper(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as shell, shell:
        for statement in statements:
            shell.execute(statement)


def list_findings(path: Path, head: str = "") -> list[tuple[str, int, int]]:
    return [finding[:3] for finding in verify(path, head).findings]


def test_verifies_unchanged_journal(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db")
    verdict = verify(path)
    assert verdict.is_intact
    assert (verdict.pages, verdict.entries, verdict.first_seq) == (5, 15, 1)
    assert verdict.head == read_chain_head(path)
    assert verdict.notes == []
    assert verify(path, str(verdict.head)).is_intact
    assert verify(path, verdict.head.hash.hex()).is_intact


def test_chain_continues_across_restarts_and_processes(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db")
    head = str(read_chain_head(path))
    write_journal(path)
    one = Journal(path, group_seconds=NEVER)
    two = Journal(path, group_seconds=NEVER)
    for number in range(10):
        for journal in (one, two):
            journal.record(entry(number))
            assert journal.flush()
    assert one.close().state == two.close().state == "ok"
    assert verify(path, head).is_intact
    assert verify(path).entries == 50


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        # A word in an entry.
        (
            ["UPDATE page SET body = replace(body, 'jira', 'jura') WHERE last_seq = 6"],
            [("changed", 4, 6)],
        ),
        # The time by which entries are searched.
        (["UPDATE page SET newest_ns = 99 WHERE last_seq = 6"], [("changed", 4, 6)]),
        # The very first, and the very last.
        (["UPDATE page SET body = '[]' WHERE last_seq = 3"], [("changed", 1, 3)]),
        (["UPDATE page SET body = '[]' WHERE last_seq = 15"], [("changed", 13, 15)]),
        # A page, two pages, the first page.
        (["DELETE FROM page WHERE last_seq = 6"], [("missing", 4, 6)]),
        (["DELETE FROM page WHERE last_seq IN (6, 9)"], [("missing", 4, 9)]),
        (["DELETE FROM page WHERE last_seq = 3"], [("beginning", 1, 3)]),
        # A page is put between others: all later ones must be numbered anew.
        (
            [
                "UPDATE page SET last_seq = -last_seq - 3 WHERE last_seq > 6",
                "UPDATE page SET last_seq = -last_seq WHERE last_seq < 0",
                "INSERT INTO page SELECT 9, 3, newest_ns, body, hash FROM page WHERE last_seq = 6",
            ],
            [("changed", 7, 9), ("changed", 10, 12), ("changed", 13, 15), ("changed", 16, 18)],
        ),
        # One without a hash, one with a number that others have.
        (
            ["INSERT INTO page (last_seq, count, newest_ns, body) VALUES (16, 1, 0, '[]')"],
            [("inserted", 16, 16)],
        ),
        (
            ["INSERT INTO page SELECT 7, 3, newest_ns, body, hash FROM page WHERE last_seq = 6"],
            [("inserted", 5, 7), ("changed", 7, 9)],
        ),
        # Two pages change places.
        (
            [
                "UPDATE page SET last_seq = -6 WHERE last_seq = 9",
                "UPDATE page SET last_seq = 9 WHERE last_seq = 6",
                "UPDATE page SET last_seq = 6 WHERE last_seq = -6",
            ],
            [("changed", 4, 6), ("changed", 7, 9), ("changed", 10, 12)],
        ),
    ],
)
def test_locates_manual_changes(
    tmp_path: Path, statements: list[str], expected: list[tuple[str, int, int]]
) -> None:
    path = write_journal(tmp_path / "journal.db")
    tamper(path, *statements)
    numbers = [(kind, first, last) for kind, first, last in list_findings(path)]
    if expected[0][0] == "inserted" and expected[0][1] == 5:
        # Behind the one that was put in, the numbers no longer follow each other.
        assert numbers[0] == expected[0]
    else:
        assert numbers == expected


def test_finds_changed_page_with_recomputed_hash(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db")
    with closing(sqlite3.connect(path)) as shell, shell:
        before = shell.execute("SELECT hash FROM page WHERE last_seq = 3").fetchone()[0]
        last, count, newest, body = shell.execute(
            "SELECT last_seq, count, newest_ns, CAST(body AS BLOB) FROM page WHERE last_seq = 6"
        ).fetchone()
        body = body.replace(b"jira", b"jura")
        shell.execute(
            "UPDATE page SET body = CAST(? AS TEXT), hash = ? WHERE last_seq = 6",
            (body, hash_page(before, last, count, newest, body)),
        )
    assert list_findings(path) == [("changed", 7, 9)]


def rewrite_journal(path: Path) -> None:
    """Rewrite all entries with valid hashes: the file alone does not show the change."""
    with closing(sqlite3.connect(path)) as shell, shell:
        rows = shell.execute(
            "SELECT last_seq, count, newest_ns, CAST(body AS BLOB) FROM page ORDER BY last_seq"
        ).fetchall()
        hash_ = GENESIS_HASH
        for last, count, newest, body in rows:
            changed = body.replace(b"jira", b"jura")
            hash_ = hash_page(hash_, last, count, newest, changed)
            shell.execute(
                "UPDATE page SET body = CAST(? AS TEXT), hash = ? WHERE last_seq = ?",
                (changed, hash_, last),
            )


def test_external_head_reveals_rewritten_journal(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db")
    head = read_chain_head(path)
    write_journal(path, pages=2)
    rewrite_journal(path)
    assert verify(path).is_intact
    assert list_findings(path, str(head)) == [("head", 15, 21)]
    assert "rewritten" in verify(path, str(head)).findings[0].sentence
    assert [finding.kind for finding in verify(path, head.hash.hex()).findings] == ["head"]


def test_external_head_reveals_truncation(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db")
    head = read_chain_head(path)
    tamper(path, "DELETE FROM page WHERE last_seq > 9")
    assert verify(path).is_intact
    assert list_findings(path, str(head)) == [("head", 10, 15)]
    assert "Missing: entries 10 to 15" in verify(path, str(head)).findings[0].sentence


@pytest.mark.parametrize("head", ["x", "12", "1:abcd", "-1:" + "0" * 64, "a:" + "0" * 64, ":"])
def test_rejects_invalid_head(tmp_path: Path, head: str) -> None:
    path = write_journal(tmp_path / "journal.db")
    with pytest.raises(InterlockError, match="Invalid head of a journal"):
        verify(path, head)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 4), data=st.data())
def test_finds_any_changed_byte(
    place: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_journal(tmp_path_factory.mktemp("chain") / "journal.db", each=1)
    with closing(sqlite3.connect(path)) as shell, shell:
        last, body = shell.execute(
            "SELECT last_seq, CAST(body AS BLOB) FROM page ORDER BY last_seq LIMIT 1 OFFSET ?",
            (place,),
        ).fetchone()
        at = data.draw(st.integers(0, len(body) - 1))
        other = data.draw(st.integers(0, 127).filter(lambda byte: byte != body[at]))
        changed = body[:at] + bytes([other]) + body[at + 1 :]
        shell.execute("UPDATE page SET body = ? WHERE last_seq = ?", (changed, last))
    assert ("changed", last, last) in list_findings(path)


def test_reports_damaged_file_without_exception(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db", pages=200, each=50)
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * 8192)
    verdict = verify(path)
    assert not verdict.is_intact


def test_counts_findings_above_limit(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db", pages=30, each=1)
    tamper(path, "UPDATE page SET newest_ns = newest_ns + 1")
    verdict = verify(path)
    assert len(verdict.findings) == MAX_FINDINGS
    assert verdict.more_findings == 10


def test_verifies_during_writes(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, max_rows=500, group_seconds=0.0)
    journal.record(entry(0))
    assert journal.flush()
    stop = threading.Event()
    verdicts: list[VerificationReport] = []

    def look() -> None:
        while not stop.is_set():
            verdicts.append(verify(path))

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(200):
        for _ in range(20):
            journal.record(entry(number))
        assert journal.flush()
    stop.set()
    thread.join()
    journal.close()
    verdicts.append(verify(path))
    assert [verdict.findings for verdict in verdicts if not verdict.is_intact] == []


def test_reports_progress(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db")
    results: list[tuple[int, int]] = []
    verify(path, "", lambda done, total: results.append((done, total)))
    assert results == [(3, 15), (15, 15)]


# --- what retention removes ---


@pytest.mark.parametrize("archive", [False, True])
def test_accepts_removal_by_retention(tmp_path: Path, archive: bool) -> None:
    path = write_journal(tmp_path / "journal.db", pages=40, max_rows=30, archive=archive)
    verdict = verify(path)
    assert verdict.findings == []
    assert verdict.first_seq > 1
    gone = verdict.first_seq - 1
    if archive:
        assert verdict.archived == gone
        assert verdict.notes == []
    else:
        limits = f"Removed to keep the journal within its limits: entries 1 to {gone}."
        assert verdict.notes == [limits]


def test_finds_removal_beyond_retention(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db", pages=40, max_rows=30)
    first = verify(path).first_seq
    with closing(sqlite3.connect(path)) as shell, shell:
        shell.execute("DELETE FROM page WHERE last_seq = (SELECT min(last_seq) FROM page)")
    [finding] = verify(path).findings
    assert finding.kind == "beginning"
    assert finding.last_seq > first - 1


def test_forged_note_does_not_hide_removal(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db")
    note = '[[1,"","journal","cut","6","","","ok",0,"hash:00 removed"]]'
    tamper(
        path,
        "DELETE FROM page WHERE last_seq <= 6",
        f"INSERT INTO page VALUES (16, 1, 1, '{note}', zeroblob(32))",
    )
    kinds = {finding.kind for finding in verify(path).findings}
    assert kinds == {"changed"}
    assert len(verify(path).findings) == 2


def test_caller_cannot_write_cut_note(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, group_seconds=NEVER)
    journal.record((1, "local", "mcp", "journal", "cut", "6", "", "ok", 0, "hash:00"))
    assert journal.flush()
    journal.record(entry(1))
    journal.close()
    tamper(path, "DELETE FROM page WHERE last_seq = 1")
    assert list_findings(path) == [("beginning", 1, 1)]


# --- files from before there was a chain ---


def old_file(path: Path, pages: int) -> None:
    with closing(sqlite3.connect(path)) as shell, shell:
        for statement in journal_file._MIGRATIONS[0]:
            shell.execute(statement)
        seq = 0
        for number in range(pages):
            [page] = join_pages([encode_fragment([entry(number), entry(number)])])
            seq += page.entries
            shell.execute(
                "INSERT INTO page VALUES (?, ?, ?, CAST(? AS TEXT))",
                (seq, page.entries, page.newest_ns, page.body),
            )
        shell.execute(f"PRAGMA application_id = {journal_file._APPLICATION_ID}")
        shell.execute("PRAGMA user_version = 1")


def test_older_journal_gets_chain_from_migration(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    old_file(path, pages=1200)
    assert len(JournalReader(path).read(limit=10_000)) == 2400
    with pytest.raises(InterlockError, match="has no hash chain yet"):
        verify(path)
    with pytest.raises(InterlockError, match="no entries in a chain"):
        read_chain_head(path)
    write_journal(path, pages=2)
    verdict = verify(path)
    assert verdict.is_intact
    assert verdict.notes == [
        "Older than the hash chain: entries 1 to 2400. Changes to them from before cannot be "
        "detected."
    ]
    assert verdict.entries == 2400 + 1 + 6
    tamper(path, "UPDATE page SET newest_ns = 99 WHERE last_seq = 100")
    assert list_findings(path) == [("changed", 99, 100)]


def test_older_empty_journal_verifies(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    old_file(path, pages=0)
    write_journal(path, pages=1)
    assert verify(path).notes == []
    assert verify(path).is_intact


def test_formats_chain_head() -> None:
    assert str(ChainHead(7, GENESIS_HASH)) == "7:" + "0" * 64
