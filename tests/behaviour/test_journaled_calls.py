"""A live node and its journal: mutating calls are journaled first or not sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.core.config import Config
from interlock.core.journal.reader import JournalQuery, JournalReader, JournalRow
from interlock.core.journal.verification import verify
from tests.support.node import NodeThread, result_text


class Recording(NodeThread):
    """A node with a tool that only reads, `echo`, and others that do not say so."""

    def config(self, **changes: Any) -> Config:
        config = super().config(**changes)
        shop = msgspec.structs.replace(config.servers["shop"], effects={"echo": "read_only"})
        return msgspec.structs.replace(config, servers={"shop": shop})

    @property
    def journal(self) -> Path:
        return self.folder / "journal.db"

    def health(self) -> dict[str, Any]:
        told = self.do(lambda: self.node.status()).journal
        assert told is not None
        return told

    def rows(self, name: str) -> list[JournalRow]:
        return list(JournalReader(self.journal).iterate(JournalQuery(name=name)))

    def reads(self) -> bool:
        return result_text(self.once(self.call("echo", {"text": "read"}))) == "read"

    def adds(self) -> dict[str, Any]:
        """What a call that may change something comes to: its error, or nothing."""
        answer = self.once(self.call("add", {"a": 1, "b": 2}))
        error: dict[str, Any] = answer.json.get("error", {})
        return error

    def move_aside(self) -> None:
        for file in self.folder.glob("journal.db*"):
            file.rename(self.folder / f"aside-{file.name}")


@pytest.fixture
def start_recording(tmp_path: Path) -> Iterator[Any]:
    started: list[Recording] = []

    def start() -> Recording:
        started.append(Recording(tmp_path))
        return started[-1]

    yield start
    for node in started:
        node.stop()


def test_mutating_call_is_journaled_before_and_after(start_recording: Any) -> None:
    node = start_recording()
    assert node.adds() == {}
    # It left when the first entry was on disk: nobody had to ask for that.
    [before] = node.rows("shop.add")[:1]
    assert before.outcome == "dispatching"
    assert before.detail.startswith("call:")
    assert node.reads()
    node.stop()
    assert [(row.outcome, row.detail) for row in node.rows("shop.add")] == [
        ("dispatching", before.detail),
        ("ok", before.detail),
    ]
    assert [row.outcome for row in node.rows("shop.echo")] == ["ok"]
    assert verify(node.journal).is_intact


def test_unfinished_call_stays_in_journal(start_recording: Any) -> None:
    node = start_recording()
    with node.connect() as wire:
        wire.send(node.call("hold"))
        node.shop.wait_for(lambda: node.shop.calls("hold"))
        [row] = JournalReader(node.journal).unfinished()
        assert (row.name, row.outcome) == ("shop.hold", "dispatching")


def is_unrecordable(error: dict[str, Any]) -> bool:
    return error.get("code") == -31037 and "journal cannot be written" in error["message"]


def test_damaged_journal_allows_reads_only(tmp_path: Path, start_recording: Any) -> None:
    (tmp_path / "journal.db").write_bytes(b"not what it was\n" * 500)
    node = start_recording()
    health = node.health()
    assert health["state"] == "failing"
    assert "Move it aside" in health["reason"]
    assert node.reads()
    assert is_unrecordable(node.adds())
    assert not node.shop.calls("add")
    assert (tmp_path / "journal.db").read_bytes() == b"not what it was\n" * 500
    # A person moves it aside, and all is well without a restart.
    node.move_aside()
    node.until(lambda: node.node._journal.flush(0.01))
    assert node.adds() == {}
    assert node.health()["state"] == "ok"
    node.stop()
    outcomes = [row.outcome for row in node.rows("shop.add")]
    assert outcomes[-2:] == ["dispatching", "ok"]
    assert "journal_unavailable" in outcomes
    assert verify(node.journal).is_intact


def test_overwritten_journal_rejects_mutating_calls(start_recording: Any) -> None:
    node = start_recording()
    assert node.adds() == {}
    with open(node.journal, "r+b") as file:
        file.write(b"overwritten by another program " * 200)
    assert is_unrecordable(node.adds())
    assert "overwritten" in node.health()["reason"]
    assert len(node.shop.calls("add")) == 1
    assert node.reads()
    node.move_aside()
    node.until(lambda: node.node._journal.flush(0.01))
    assert node.adds() == {}
    assert len(node.shop.calls("add")) == 2
