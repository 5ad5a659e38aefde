"""Archives of a journal: `verify` finds manual changes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock.core.journal import retention as journal_retention
from interlock.core.journal.chain import GENESIS_HASH, hash_page
from interlock.core.journal.journal import JournalReader
from interlock.core.journal.verification import read_chain_head, verify
from tests.core.journal.test_journal_chain import write_journal


def archived_pages(path: Path) -> list[Path]:
    return sorted(path.with_name("journal.archive").glob("*.jsonl.gz"))


def test_archives_contain_removed_entries_in_order(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db", pages=40, max_rows=30, archive=True)
    head = read_chain_head(path)
    lines = b"".join(gzip.decompress(page.read_bytes()) for page in archived_pages(path))
    decoded = [journal_retention.msgspec.json.decode(line) for line in lines.splitlines()]  # type: ignore[attr-defined]
    times = [item[0] for page in decoded for item in page["entries"] if item[2] != "journal"] + [
        row.time_ns for row in JournalReader(path).read(limit=1000) if row.face != "journal"
    ]
    assert times == list(range(120))
    for file in archived_pages(path):
        assert file.stat().st_mode & 0o777 == 0o600
    # A head from long ago is still found there.
    early = decoded[0]
    assert verify(path, f"{early['last_seq']}:{early['hash']}").is_intact
    assert verify(path, str(head)).is_intact


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (lambda text: text.replace(b"jira", b"jura", 1), "archive"),
        (lambda text: text.split(b"\n", 1)[1], "archive"),
        (lambda text: b"{}\n" + text, "archive"),
    ],
)
def test_finds_changed_archives(tmp_path: Path, harm: Callable[[bytes], bytes], kind: str) -> None:
    path = write_journal(tmp_path / "journal.db", pages=40, max_rows=30, archive=True)
    file = archived_pages(path)[1]
    file.write_bytes(gzip.compress(harm(gzip.decompress(file.read_bytes()))))
    assert {finding.kind for finding in verify(path).findings} == {kind}


def reconnect(files: list[Path], before: bytes = GENESIS_HASH) -> dict[str, Any]:
    """Write other entries with valid hashes into archives, and return the last page."""
    page: dict[str, Any] = {}
    for file in files:
        text = b""
        for line in gzip.decompress(file.read_bytes()).splitlines():
            page = json.loads(line.replace(b"jira", b"jura"))
            text += archive_line(page, before)
            before = bytes.fromhex(page["hash"])
        file.write_bytes(gzip.compress(text))
    return page


def archive_line(page: dict[str, Any], before: bytes) -> bytes:
    body = json.dumps(page["entries"], separators=(",", ":")).encode()
    hash_ = hash_page(before, page["last_seq"], page["count"], page["newest_ns"], body)
    page.update(before=before.hex(), hash=hash_.hex())
    return json.dumps(page, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize("extra", [False, True])
def test_finds_rewritten_archives(tmp_path: Path, extra: bool) -> None:
    path = write_journal(tmp_path / "journal.db", pages=40, max_rows=30, archive=True)
    last = reconnect(archived_pages(path))
    seq = last["last_seq"] + 1
    if extra:
        more = {"last_seq": seq, "count": 1, "newest_ns": 1, "entries": [[1, *[""] * 9]]}
        file = path.with_name("journal.archive") / f"{seq:012d}-{seq:012d}.jsonl.gz"
        file.write_bytes(gzip.compress(archive_line(more, bytes.fromhex(last["hash"]))))
    findings = verify(path).findings
    assert any("does not belong" in finding.sentence for finding in findings)
    assert (
        any(finding.sentence.startswith(f"Inserted: entry {seq}") for finding in findings) == extra
    )


def test_finds_inserted_archive(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db", pages=40, max_rows=30, archive=True)
    end, seq = verify(path).first_seq, 10_000
    for first in (end, seq):
        more = {"last_seq": first, "count": 1, "newest_ns": 1, "entries": [[1, *[""] * 9]]}
        file = path.with_name("journal.archive") / f"{first:012d}-{first:012d}.jsonl.gz"
        file.write_bytes(gzip.compress(archive_line(more, GENESIS_HASH)))
        assert first in [finding.first_seq for finding in verify(path).findings]
        file.unlink()
    assert verify(path).is_intact


@pytest.mark.parametrize("which", ["middle", "newest"])
def test_finds_missing_archive(tmp_path: Path, which: str) -> None:
    path = write_journal(tmp_path / "journal.db", pages=60, max_rows=30, archive=True)
    files = archived_pages(path)
    assert len(files) > 4
    lost = files[2] if which == "middle" else files[-1]
    first, last = map(int, lost.name.removesuffix(".jsonl.gz").split("-"))
    lost.unlink()
    found_now = verify(path).findings
    assert ("archive", first, last) in [item[:3] for item in found_now]
    # What is before the gap is held against the notes of its own cuts.
    reconnect(files[:2])
    assert len(verify(path).findings) > len(found_now)


def test_accepts_removal_of_oldest_archives(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db", pages=60, max_rows=30, archive=True)
    files = archived_pages(path)
    for file in files[:2]:
        file.unlink()
    assert verify(path).is_intact
    for file in files[2:]:
        file.unlink()
    verdict = verify(path)
    assert verdict.is_intact
    assert "the archives are not beside the journal" in verdict.notes[0]


def test_accepts_disabled_archives(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db", pages=40, max_rows=30, archive=True)
    write_journal(path, pages=5, max_rows=30, start=200)
    verdict = verify(path)
    assert verdict.findings == []
    assert "Removed to keep the journal" in verdict.notes[0]


def test_compares_archived_entries_with_file(tmp_path: Path) -> None:
    """A node stopped in between."""
    path = write_journal(tmp_path / "journal.db", pages=10)
    kept = path.read_bytes()
    write_journal(path, pages=1, max_rows=6, archive=True)
    path.write_bytes(kept)
    assert verify(path).is_intact
    reconnect(archived_pages(path))
    assert verify(path).findings[0].kind == "archive"


def test_finds_truncated_archive(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db", pages=40, max_rows=30, archive=True)
    file = archived_pages(path)[0]
    file.write_bytes(file.read_bytes()[:-9])
    assert "archive" in {finding.kind for finding in verify(path).findings}


def test_keeps_entries_when_archive_is_not_writable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "journal.archive").write_text("in the way")
    path = write_journal(tmp_path / "journal.db", pages=40, max_rows=30, archive=True)
    assert "maintenance failed" in caplog.text
    verdict = verify(path)
    assert verdict.is_intact
    assert verdict.entries == 120


def test_restart_before_cut_creates_no_second_archive(tmp_path: Path) -> None:
    path = write_journal(tmp_path / "journal.db", pages=10)
    folder = tmp_path / "journal.archive"
    folder.mkdir()
    # As if an earlier bite had been archived, and the node had stopped before it cut it off.
    (folder / "000000000001-000000000003.jsonl.gz").write_bytes(b"whatever it had got to")
    write_journal(path, pages=1, max_rows=6, archive=True)
    [archive] = archived_pages(path)
    assert archive.name == "000000000001-000000000027.jsonl.gz"
    verdict = verify(path)
    assert verdict.is_intact
    assert verdict.archived == 27
