"""The contract registry: every version of every schema that was published, with where it came from.

A Git repository keeps it (`contract_git`), an index beside it answers questions (`contract_index`).
Everything here waits for the disk and for programs: off the event loop. Any thread may ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.contracts.diff.compatibility import read_version
from interlock.contracts.registry import layout, queries
from interlock.contracts.registry.changes import (
    ContractSnapshot,
    SnapshotResult,
    check_contract,
    is_new,
    next_version,
)
from interlock.contracts.registry.git import PATIENCE, ContractGit, GitChoice
from interlock.contracts.registry.index import NAME, ContractIndex
from interlock.contracts.registry.records import (
    Commit,
    Contract,
    ContractProtocol,
    Deprecation,
    PipelineRun,
    RegistryMetrics,
    Release,
    StoredContract,
    Validation,
    refused,
    unusable,
)
from interlock.contracts.registry.validation import Validators
from interlock.primitives.timestamps import format_utc

NEWEST: Final = "*"
SUPPORTED_FOR: Final = 180 * 86_400.0
"""How long a major is still supported after it was deprecated, where nobody says."""
MIN_SUPPORT: Final = 90 * 86_400.0
"""The shortest support of a deprecated major that needs no consent to an early end."""
_MOST_NAMED: Final = 20


def ends_early(began: float, ends: float, now: float) -> bool:
    """Whether a major that is deprecated at `began` ends sooner than callers can expect."""
    return ends <= now or ends < began + MIN_SUPPORT


class ContractRegistry:
    """The registry in one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        means: GitChoice = "auto",
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Nothing is made before something is published. Raises InterlockError where there is
        neither git nor dulwich."""
        self.folder = folder
        self._git = ContractGit(folder, means=means, patience=patience)
        self._clock = clock
        self._index: ContractIndex | None = None
        self._validators = Validators()
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            index, self._index = self._index, None
            if index is not None:
                index.close()

    # -- publishing

    def publish(self, contract: Contract, *, author: str, reason: str) -> StoredContract:
        """One version of one contract. What is there already, exactly so, stays as it is.

        Raises InterlockError: for another document under a version that is there, and for a change
        that breaks without a new major.
        """
        return self.publish_all([contract], author=author, reason=reason)[0]

    def publish_all(
        self, contracts: Sequence[Contract], *, author: str, reason: str
    ) -> list[StoredContract]:
        """All of them with one commit, or none."""
        for one in contracts:
            check_contract(one)

        def prepare(head: str | None) -> tuple[Mapping[str, bytes], str]:
            index = self._index_of(head)
            new: list[Contract] = []
            for one in contracts:
                if is_new(one, index, new, contracts):
                    new.append(one)
            return _files(new, head), layout.message_of(reason, [_called(one) for one in new])

        self._commit(prepare, author)
        index = self._fresh()
        return [_stored(index, one) for one in contracts]

    def snapshot(
        self,
        seen: Sequence[ContractSnapshot],
        *,
        author: str,
        reason: Callable[[Sequence[SnapshotResult]], str],
    ) -> list[SnapshotResult]:
        """What somebody else decides about is taken as it is: each gets the version that its change
        asks for. One commit with everything that is new, which `reason` is told of."""
        taken: list[SnapshotResult] = []

        def prepare(head: str | None) -> tuple[Mapping[str, bytes], str]:
            index = self._index_of(head)
            taken[:] = [next_version(one, index, seen) for one in seen]
            new = [one for one in taken if one.is_new]
            told = reason(new) if new else ""
            files = _files([one.contract for one in new], head)
            return files, layout.message_of(told, [_called(one.contract) for one in new])

        self._commit(prepare, author)
        return taken

    def deprecate(
        self,
        name: str,
        major: int,
        *,
        author: str,
        migration_uri: str,
        deprecated_at: str | None = None,
        sunset_at: str | None = None,
        domain: str | None = None,
        early: bool = False,
    ) -> Deprecation:
        """A major of a contract ends: from `sunset_at` on it is not found any more. The default is
        180 days after `deprecated_at`, which is now by default. Raises InterlockError.

        Args:
            early: Accept an end that is over already, or less than 90 days after `deprecated_at`.
        """
        index = self._fresh()
        found = [one for one in index.search(name=name, domain=domain) if one.major == major]
        if not found:
            raise queries.unknown(index, name, f"{major}.x", domain)
        where = queries.one_domain(name, found)
        began = queries.moment(deprecated_at) if deprecated_at else self._clock()
        ends = queries.moment(sunset_at) if sunset_at else began + SUPPORTED_FOR
        if ends < began:
            raise refused("A major cannot end before it is deprecated.")
        if not early and ends_early(began, ends, self._clock()):
            raise refused(
                f"{name} {major}.x would end at {format_utc(ends)}: a deprecated major is "
                "supported for at least 90 days. Name a later end, or consent to an early one."
            )
        one = Deprecation(
            name,
            where,
            major,
            format_utc(began),
            format_utc(ends),
            migration_uri,
        )

        def prepare(head: str | None) -> tuple[Mapping[str, bytes], str]:
            others = [
                other
                for other in self._index_of(head).deprecations(name)
                if other.domain == where and other.major != major
            ]
            content = layout.deprecations_file([*others, one])
            told = f"Deprecate {name} {major}.x until {one.sunset_at[:10]}"
            return {layout.deprecations_path(where, name): content}, layout.message_of(told, [])

        self._commit(prepare, author)
        return one

    def record_run(self, run: PipelineRun, *, author: str, reason: str = "") -> Release:
        """A run of the schema pipeline is over: the registry as a whole gets a new version, and a
        tag that leads to it."""
        mark = layout.RegistryMark()

        def prepare(head: str | None) -> tuple[Mapping[str, bytes], str]:
            nonlocal mark
            before = self._index_of(head).mark() or layout.RegistryMark()
            mark = layout.RegistryMark(
                version=before.version + 1, time=format_utc(self._clock()), run=run
            )
            told = reason or f"Version {mark.version} of the registry"
            first = layout.first_files() if head is None else {}
            return {**first, layout.MARK: layout.mark_file(mark)}, layout.message_of(told, [])

        commit = self._commit(prepare, author, tag=lambda: _tag(mark))
        return Release(mark.version, _tag(mark), commit or "", mark.time, run)

    # -- asking

    def find(
        self,
        name: str,
        range: str = NEWEST,
        *,
        domain: str | None = None,
        protocol: ContractProtocol | None = None,
        sunset: bool = False,
    ) -> StoredContract:
        """The newest version of a contract in a range: exactly one. `sunset`: also of a major that
        is not supported any more. Raises InterlockError, which says what there is."""
        return queries.find(
            self._fresh(),
            name,
            range,
            domain=domain,
            protocol=protocol,
            now=self._clock(),
            sunset=sunset,
        )

    def versions(
        self, name: str, *, domain: str | None = None, protocol: ContractProtocol | None = None
    ) -> list[str]:
        """Every version of a contract, oldest first."""
        found = self._fresh().search(name=name, domain=domain, protocol=protocol)
        return sorted({one.version for one in found}, key=read_version)

    def search(
        self,
        *,
        name: str | None = None,
        range: str | None = None,
        domain: str | None = None,
        protocol: ContractProtocol | None = None,
        source: str | None = None,
        generator_version: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> list[StoredContract]:
        """Every version that fits, without the documents, in the order of names and versions.
        `name` and `source` may be globs; `since` and `until` are about the provenance."""
        found = self._fresh().search(
            names=name,
            domain=domain,
            protocol=protocol,
            source=source,
            generator_version=generator_version,
            since=queries.moment(since) if since else None,
            until=queries.moment(until) if until else None,
        )
        if range is not None:
            found = [one for one in found if queries.is_in_range(one.version, range)]
        return sorted(found, key=lambda one: (one.name, one.domain, read_version(one.version)))

    def history(self, name: str | None = None, most: int = 50) -> list[Commit]:
        """Who published what, when and why, newest first. Raises InterlockError."""
        paths: list[str] = []
        if name is not None:
            index = self._fresh()
            found = index.search(name=name)
            if not found:
                raise queries.unknown(index, name, NEWEST)
            paths = sorted({layout.folder_of(one.domain, one.name) for one in found})
        told = []
        for id, author, seconds, message in self._git.log(paths, most):
            reason, contracts = layout.read_message(message)
            told.append(Commit(id, author, format_utc(seconds), reason, contracts))
        return told

    def validate(
        self,
        name: str,
        range: str,
        payload: Any,
        *,
        domain: str | None = None,
        protocol: ContractProtocol | None = None,
        part: str = "input",
    ) -> Validation:
        """Whether a payload is what a contract asks for. `part`: of a tool, its `input` or its
        `output`. Raises InterlockError."""
        found = self.find(name, range, domain=domain, protocol=protocol)
        schema: Any = None
        if found.protocol == "json-schema":
            schema = found.schema()
        elif found.protocol == "mcp-tool":
            schema = found.schema().get("inputSchema" if part == "input" else "outputSchema")
        if schema is None:
            raise refused(
                f"{name} {found.version} ({found.protocol}) has no JSON Schema of its {part} to "
                "validate by."
            )
        errors = self._validators.check(f"{found.digest}/{part}", schema, payload)
        return Validation(
            not errors, found.name, found.version, found.protocol, errors, found.deprecation
        )

    def deprecation(
        self, name: str, major: int, *, domain: str | None = None
    ) -> Deprecation | None:
        """Until when a major is supported. None: nobody has deprecated it."""
        return queries.deprecation(self._fresh(), name, major, domain)

    def deprecations(self) -> list[Deprecation]:
        """Every major that ends, of every contract."""
        return self._fresh().deprecations()

    def head(self) -> str | None:
        """The newest commit, looked at without starting anything. None: there is none."""
        return self._git.head()

    def supported_majors(self, name: str) -> list[int]:
        """Majors of a contract that have not ended, oldest first. What names no version means the
        first of them."""
        index, now = self._fresh(), self._clock()
        over = {one.major for one in index.deprecations(name) if one.is_over(now)}
        return sorted({one.major for one in index.search(name=name)} - over)

    # -- how it fares

    def metrics(self) -> RegistryMetrics:
        index = self._fresh()
        mark = index.mark() or layout.RegistryMark()
        run = mark.run or PipelineRun(0, 0, 0.0)
        return RegistryMetrics(
            index.count(), run.drift_violations, run.generation_duration, mark.version, index.head()
        )

    def problems(self) -> list[str]:
        """What somebody should look at, also where nothing stands in the way."""
        found = self._fresh().problems()
        changed = self._git.changed_by_hand()
        if changed:
            more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
            found.append(
                "changed by hand and not committed, so it does not count: "
                f"{', '.join(changed[:_MOST_NAMED])}{more}"
            )
        return found

    def rebuild(self) -> None:
        """Make the index anew from what is committed."""
        with self._lock:
            self._index_of(None).forget()
        self._fresh()

    @property
    def means(self) -> str:
        """By what Git is spoken: `git` or `dulwich`."""
        return self._git.means

    # -- parts

    def _commit(
        self,
        prepare: Callable[[str | None], tuple[Mapping[str, bytes], str]],
        author: str,
        *,
        tag: Callable[[], str] | None = None,
    ) -> str | None:
        return self._git.publish(prepare, author=author, seconds=self._clock(), tag=tag)

    def _fresh(self) -> ContractIndex:
        """The index of what is committed now. Raises InterlockError."""
        return self._index_of(self._git.head())

    def _index_of(self, head: str | None) -> ContractIndex:
        with self._lock:
            place = self._git.place
            if self._index is None:
                self._index = ContractIndex(None if place is None else place.git_dir / NAME)
            index = self._index
            index.refresh(head, self._git)
            if place is None:
                # The next question may find a repository, and a place for the index.
                self._index = None
        if head is not None and index.mark() is None:
            raise unusable(
                f"{self.folder} is a Git repository, but no contract registry: it has no "
                f"{layout.MARK}. Name a folder of its own for the registry.",
                registry=str(self.folder),
            )
        return index


def _files(new: Iterable[Contract], head: str | None) -> dict[str, bytes]:
    """What is to be committed for these; with the first of all, what a registry begins with."""
    files: dict[str, bytes] = {}
    for one in new:
        files |= layout.files_of(one)
    return {**layout.first_files(), **files} if files and head is None else files


def _stored(index: ContractIndex, contract: Contract) -> StoredContract:
    path = layout.document_path(contract.domain, contract.name, contract.version, contract.protocol)
    for one in index.search(name=contract.name, domain=contract.domain, protocol=contract.protocol):
        if one.path == path:
            return msgspec.structs.replace(one, document=index.document(path))
    raise unusable(f"{contract.name} {contract.version} is not where it was published.")


def _tag(mark: layout.RegistryMark) -> str:
    return f"registry-v{mark.version}"


def _called(contract: Contract) -> str:
    return f"{contract.name}@{contract.version} ({contract.protocol})"
