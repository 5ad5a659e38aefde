"""Tests of the thread that watches contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from interlock.contracts.changed_tools import Dependents
from interlock.contracts.registry.registry import ContractRegistry
from interlock.contracts.tool_records import ObservedTool, ToolRecordStore, create_record
from interlock.contracts.watch import ContractWatch, DeclaredContract, WatchReport
from interlock.core.catalog.offering import Offering
from interlock.errors import InterlockError
from tests.contracts.registry.git_repositories import git
from tests.support.offerings import definition, offer
from tests.support.timeouts import HANG_TIMEOUT


class WatchBench:
    """A contract watch with a manual loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1_800_000_000.0
        self.store = ToolRecordStore(folder / "contracts.db")
        self.reports: list[WatchReport] = []
        self._loop: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.watch = ContractWatch(
            self.store,
            self._loop.put,
            on_report=self.reports.append,
            find_dependents=lambda tool: Dependents(callers=[f"caller of {tool}"]),
            check_interval=1000.0,
            gather_seconds=0.0,
            clock=lambda: self.now,
        )
        self.watch.start()

    def turn(self) -> None:
        assert self.watch.process_now().wait(HANG_TIMEOUT)
        while not self._loop.empty():
            self._loop.get()()

    def sees(self, *offerings: Offering) -> None:
        for one in offerings:
            self.watch.observe(one)
        self.turn()

    def publishes(self) -> None:
        self.watch.use_registry(self.registry)
        self.turn()

    def registry(self) -> ContractRegistry:
        return ContractRegistry(self.folder / "registry", clock=lambda: self.now)

    def problem(self) -> str | None:
        return self.watch.problem

    @property
    def words(self) -> list[tuple[str, str]]:
        return [(one.record.tool, one.kind) for report in self.reports for one in report.events]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchBench]:
    one = WatchBench(tmp_path)
    yield one
    one.watch.close()


def files(*required: str, key: str = "files", **more: Any) -> Offering:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": required}
    return offer(key, [definition("read", inputSchema=schema), definition("list")], **more)


def test_publishes_simultaneous_changes_in_one_commit(watched: WatchBench) -> None:
    watched.publishes()
    watched.sees(files(), files(key="more"), files(key="others"))
    assert watched.words == []
    told = git(watched.folder / "registry", "log", "--format=%s").splitlines()
    assert told == ["First seen: 6 tools of files, more, others"]
    watched.sees(files("path"), files("path", key="more"))
    [newest, _] = git(watched.folder / "registry", "log", "--format=%s").splitlines()
    assert newest.startswith("files.read: REQUIRED_FIELD_ADDED /")
    assert "; more.read: REQUIRED_FIELD_ADDED /" in newest
    assert sorted(watched.words) == [("files.read", "breaking"), ("more.read", "breaking")]
    rows = watched.reports[-1].broken_tools
    assert rows["files.read"] is not None
    assert rows["files.read"].dependents.callers == ["caller of files.read"]


def test_unchanged_contract_is_not_published_again(watched: WatchBench) -> None:
    watched.publishes()
    watched.sees(files())
    reports = len(watched.reports)
    for again in (
        files(),
        files(degraded=True),
        files(descriptions={"read": "Ours."}),
        files(effects={"read": "irreversible"}),
    ):
        watched.sees(again)
    assert len(watched.reports) == reports
    assert git(watched.folder / "registry", "log", "--oneline").count("\n") == 1


def test_unreadable_contract_does_not_block_others(
    watched: WatchBench, caplog: pytest.LogCaptureFixture
) -> None:
    seen = ObservedTool("files.bad", "files", "d" * 64, b"{")
    watched.store.write([create_record(seen, watched.now)])
    watched.publishes()
    watched.sees(files(), files(key="more"))
    assert "contract of files.bad: not published" in caplog.text
    registry = watched.registry()
    names = {one.name for one in registry.search()}
    registry.close()
    assert names == {"files.read", "files.list", "more.read", "more.list"}
    assert watched.store.find_unpublished() == []
    assert watched.watch.problem is None


def test_publishes_declared_versions(watched: WatchBench, caplog: pytest.LogCaptureFixture) -> None:
    watched.publishes()

    def declare(name: str, version: str, *required: str) -> None:
        words = ", ".join(f'"{one}"' for one in required)
        document = (
            '{"name": "x", "inputSchema": {"type": "object", "properties": {"a": {"type": '
            f'"string"}}}}, "required": [{words}]}}}}'
        )
        watched.watch.declare(DeclaredContract(name, version, document.encode(), f"{name}/TOOL.md"))

    declare("mail.send", "1.0.0")
    declare("mail.list", "2.1.0")
    watched.turn()
    # One that breaks without a new major is told; the others are published all the same.
    declare("mail.send", "1.1.0", "a")
    declare("mail.list", "2.2.0")
    watched.turn()
    assert "contract mail.send 1.1.0: not published: Breaking changes detected" in caplog.text
    registry = watched.registry()
    assert registry.versions("mail.send") == ["1.0.0"]
    assert registry.versions("mail.list") == ["2.1.0", "2.2.0"]
    registry.close()


def test_retries_failed_registry_after_delay(watched: WatchBench) -> None:
    watched.publishes()
    watched.sees(files())
    lock = watched.folder / "registry" / ".git" / "MERGE_HEAD"
    lock.touch()
    watched.sees(files("path"))
    assert "merge is in progress" in str(watched.problem())
    lock.unlink()
    watched.turn()
    assert watched.store.find_unpublished() != []
    watched.now += 61
    watched.turn()
    assert watched.problem() is None
    assert watched.store.find_unpublished() == []


def test_missing_registry_gets_everything_again(watched: WatchBench) -> None:
    watched.publishes()
    watched.sees(files())
    registry = watched.folder / "registry"
    registry.rename(watched.folder / "moved")
    watched.publishes()
    assert sorted(one.name for one in registry.iterdir() if one.is_dir()) == [
        ".git",
        "upstream.files",
    ]


def test_works_without_registry(watched: WatchBench) -> None:
    def refuse() -> ContractRegistry:
        from interlock.contracts.registry.records import registry_error

        raise registry_error("There is no git.")

    watched.watch.use_registry(refuse)
    watched.sees(files())
    watched.sees(files("path"))
    assert watched.words == [("files.read", "breaking")]


def test_reads_changes_of_other_processes(watched: WatchBench) -> None:
    watched.sees(files())
    watched.sees(files("path"))
    beside = ToolRecordStore(watched.folder / "contracts.db")
    [open_one] = beside.find_broken()
    assert beside.accept(open_one, "somebody")
    watched.turn()
    assert watched.words[-1] == ("files.read", "accepted")
    assert watched.reports[-1].broken_tools == {"files.read": None}
    # Who accepts what is there already changes nothing.
    again = beside.get("files.read")
    assert again is not None
    assert not again.is_broken
    beside.close()


def test_rejects_file_that_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "contracts.db"
    path.write_bytes(b"no database, but long enough to be taken for one" * 100)
    with pytest.raises(InterlockError) as raised:
        ToolRecordStore(path)
    assert raised.value.failure.name == "config_error"
    assert "every tool is as if first seen" in raised.value.message
