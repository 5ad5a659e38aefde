"""File watching: one report for each change, after the write is complete."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from interlock.app.file_watch import FileWatch, Fingerprint, read_fingerprint


class FingerprintSequence:
    """What is seen of a file, look by look; sleeping moves on to the next."""

    def __init__(self, *looks: Fingerprint | None) -> None:
        self._looks = list(looks)
        self._now = 0
        self.over = False

    def look(self, path: Path) -> Fingerprint | None:
        return self._looks[self._now]

    async def sleep(self, seconds: float) -> None:
        if self._now + 1 == len(self._looks):
            self.over = True
            raise asyncio.CancelledError
        self._now += 1


def fingerprint(size: int) -> Fingerprint:
    return Fingerprint(1, size, size)


def count_changes(*looks: Fingerprint | None) -> int:
    """How many changes are told."""
    film = FingerprintSequence(*looks)

    async def watch() -> int:
        told = 0
        sleep: Callable[[float], Awaitable[None]] = film.sleep
        try:
            async for _ in FileWatch(Path("x"), sleep=sleep, read=film.look).changes():
                told += 1
        except asyncio.CancelledError:
            assert film.over
        return told

    return asyncio.run(watch())


def test_unchanged_file_is_not_reported() -> None:
    assert count_changes(fingerprint(1), fingerprint(1), fingerprint(1), fingerprint(1)) == 0


def test_change_is_reported_once() -> None:
    assert (
        count_changes(
            fingerprint(1), fingerprint(2), fingerprint(2), fingerprint(2), fingerprint(2)
        )
        == 1
    )


def test_incomplete_write_is_awaited() -> None:
    assert (
        count_changes(
            fingerprint(1),
            fingerprint(0),
            fingerprint(5),
            fingerprint(9),
            fingerprint(9),
            fingerprint(9),
        )
        == 1
    )
    assert count_changes(fingerprint(1), fingerprint(0), fingerprint(5), fingerprint(9)) == 0


def test_missing_file_is_awaited() -> None:
    assert count_changes(fingerprint(1), None, None, None) == 0
    assert count_changes(fingerprint(1), None, fingerprint(2), fingerprint(2), fingerprint(2)) == 1
    assert count_changes(fingerprint(1), fingerprint(2), None, None, None) == 0
    assert count_changes(fingerprint(1), None, fingerprint(1), fingerprint(1), fingerprint(1)) == 0


def test_removal_is_reported_once() -> None:
    def told(*looks: Fingerprint | None) -> int:
        film = FingerprintSequence(*looks)
        gone: list[None] = []

        async def watch() -> None:
            one = FileWatch(
                Path("x"), sleep=film.sleep, read=film.look, on_missing=lambda: gone.append(None)
            )
            try:
                async for _ in one.changes():
                    continue
            except asyncio.CancelledError:
                assert film.over

        asyncio.run(watch())
        return len(gone)

    assert told(fingerprint(1), None, None, None, None) == 1
    # An editor that replaces the file leaves it away for a moment.
    assert told(fingerprint(1), None, fingerprint(2), fingerprint(2), fingerprint(2)) == 0
    assert told(fingerprint(1), None, None, fingerprint(1), None, None, None) == 2


def test_fingerprint_depends_on_content_and_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read_fingerprint(path) is None
    path.write_text("one", encoding="utf-8")
    first = read_fingerprint(path)
    assert first == read_fingerprint(path)
    path.write_text("four", encoding="utf-8")
    assert read_fingerprint(path) != first
    other = tmp_path / "other"
    other.write_text("four", encoding="utf-8")
    before = read_fingerprint(path)
    os.replace(other, path)
    assert read_fingerprint(path) != before
