"""The contract registry: every published version of every schema, with its provenance.

A Git repository stores the contracts (`git.py`), and an index beside it answers queries
(`index.py`). Calls wait for the disk and for programs: run them off the event loop. All methods are
thread-safe."""

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
    assign_version,
    check_contract,
    needs_publication,
)
from interlock.contracts.registry.git import LOCK_TIMEOUT_SECONDS, ContractGit, GitChoice
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
    invalid_request,
    registry_error,
)
from interlock.contracts.registry.validation import ValidatorCache
from interlock.primitives.timestamps import format_utc

ANY_VERSION: Final = "*"
SUPPORT_SECONDS: Final = 180 * 86_400.0
"""The time for which a deprecated major stays supported, unless the request names an end."""
MIN_SUPPORT_SECONDS: Final = 90 * 86_400.0
"""The shortest support of a deprecated major. An earlier end needs the explicit consent of the
caller."""
_MAX_LISTED: Final = 20


def ends_early(deprecated_at: float, sunset_at: float, now: float) -> bool:
    """Return whether a major that is deprecated at `began` ends before the minimum support time."""
    return sunset_at <= now or sunset_at < deprecated_at + MIN_SUPPORT_SECONDS


class ContractRegistry:
    """A contract registry in one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        backend: GitChoice = "auto",
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the registry. The repository is created by the first publication.

        Args:
            backend: the Git implementation: the program, the library dulwich, or whichever is
                installed.
            lock_timeout: seconds to wait for other processes that use the repository.

        Raises:
            InterlockError: Neither git nor dulwich is installed.
        """
        self.folder = folder
        self._git = ContractGit(folder, backend=backend, lock_timeout=lock_timeout)
        self._clock = clock
        self._index: ContractIndex | None = None
        self._validators = ValidatorCache()
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            index, self._index = self._index, None
            if index is not None:
                index.close()

    # -- publishing

    def publish(self, contract: Contract, *, author: str, reason: str) -> StoredContract:
        """Publish one version of one contract. An identical document that exists already stays as
        it is.

        Raises:
            InterlockError: Another document exists under this version, or the change is breaking
                and
                the major is the same.
        """
        return self.publish_all([contract], author=author, reason=reason)[0]

    def publish_all(
        self, contracts: Sequence[Contract], *, author: str, reason: str
    ) -> list[StoredContract]:
        """Publish several contracts in one commit. On an error, nothing is published."""
        for contract in contracts:
            check_contract(contract)

        def prepare(head: str | None) -> tuple[Mapping[str, bytes], str]:
            index = self._load_index_at(head)
            new: list[Contract] = []
            for contract in contracts:
                if needs_publication(contract, index, new, contracts):
                    new.append(contract)
            return _files(new, head), layout.format_message(
                reason, [_contract_label(contract) for contract in new]
            )

        self._commit(prepare, author)
        index = self._load_index()
        return [_find_stored(index, contract) for contract in contracts]

    def snapshot(
        self,
        snapshots: Sequence[ContractSnapshot],
        *,
        author: str,
        reason: Callable[[Sequence[SnapshotResult]], str],
    ) -> list[SnapshotResult]:
        """Publish contracts that another system owns, each with the version that its change
        requires.

        All new contracts go into one commit.

        Args:
            reason: returns the commit message for the new contracts.
        """
        results: list[SnapshotResult] = []

        def prepare(head: str | None) -> tuple[Mapping[str, bytes], str]:
            index = self._load_index_at(head)
            results[:] = [assign_version(snapshot, index, snapshots) for snapshot in snapshots]
            new = [result for result in results if result.is_new]
            message = reason(new) if new else ""
            files = _files([result.contract for result in new], head)
            return files, layout.format_message(
                message, [_contract_label(result.contract) for result in new]
            )

        self._commit(prepare, author)
        return results

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
        allow_early: bool = False,
    ) -> Deprecation:
        """Deprecate a major of a contract. Queries do not return it from `sunset_at` on.

        Args:
            deprecated_at: default: now.
            sunset_at: default: 180 days after `deprecated_at`.
            allow_early: accept an end in the past, or less than 90 days after `deprecated_at`.

        Raises:
            InterlockError: The major does not exist, or the times are invalid.
        """
        index = self._load_index()
        majors = [
            contract
            for contract in index.search(name=name, domain=domain)
            if contract.major == major
        ]
        if not majors:
            raise queries.unknown_contract_error(index, name, f"{major}.x", domain)
        matched_domain = queries.single_domain(name, majors)
        deprecation_time = (
            queries.parse_request_time(deprecated_at) if deprecated_at else self._clock()
        )
        sunset_time = (
            queries.parse_request_time(sunset_at)
            if sunset_at
            else deprecation_time + SUPPORT_SECONDS
        )
        if sunset_time < deprecation_time:
            raise invalid_request("`sunset_at` must not be before `deprecated_at`.")
        if not allow_early and ends_early(deprecation_time, sunset_time, self._clock()):
            raise invalid_request(
                f"{name} {major}.x would end at {format_utc(sunset_time)}, but a deprecated major "
                "is supported for at least 90 days. Name a later end, or allow an early end."
            )
        deprecation = Deprecation(
            name,
            matched_domain,
            major,
            format_utc(deprecation_time),
            format_utc(sunset_time),
            migration_uri,
        )

        def prepare(head: str | None) -> tuple[Mapping[str, bytes], str]:
            others = [
                other
                for other in self._load_index_at(head).deprecations(name)
                if other.domain == matched_domain and other.major != major
            ]
            content = layout.encode_deprecations([*others, deprecation])
            message = f"Deprecate {name} {major}.x until {deprecation.sunset_at[:10]}"
            return (
                {layout.deprecations_path(matched_domain, name): content},
                layout.format_message(message, []),
            )

        self._commit(prepare, author)
        return deprecation

    def record_run(self, run: PipelineRun, *, author: str, reason: str = "") -> Release:
        """Record a run of the schema pipeline: give the registry a new version and a tag."""
        mark = layout.RegistryMark()

        def prepare(head: str | None) -> tuple[Mapping[str, bytes], str]:
            nonlocal mark
            previous = self._load_index_at(head).mark() or layout.RegistryMark()
            mark = layout.RegistryMark(
                version=previous.version + 1, time=format_utc(self._clock()), run=run
            )
            message = reason or f"Version {mark.version} of the registry"
            first = layout.initial_files() if head is None else {}
            return {**first, layout.MARK_FILE: layout.encode_mark(mark)}, layout.format_message(
                message, []
            )

        commit = self._commit(prepare, author, tag=lambda: _tag_name(mark))
        return Release(mark.version, _tag_name(mark), commit or "", mark.time, run)

    # -- queries

    def find(
        self,
        name: str,
        range: str = ANY_VERSION,
        *,
        domain: str | None = None,
        protocol: ContractProtocol | None = None,
        include_sunset: bool = False,
    ) -> StoredContract:
        """Return the newest version of a contract in a version range.

        Args:
            include_sunset: also return a major whose support has ended.

        Raises:
            InterlockError: No contract matches, or several do. The message lists what exists.
        """
        return queries.find(
            self._load_index(),
            name,
            range,
            domain=domain,
            protocol=protocol,
            now=self._clock(),
            include_sunset=include_sunset,
        )

    def versions(
        self, name: str, *, domain: str | None = None, protocol: ContractProtocol | None = None
    ) -> list[str]:
        """Return every version of a contract, oldest first."""
        contracts = self._load_index().search(name=name, domain=domain, protocol=protocol)
        return sorted({contract.version for contract in contracts}, key=read_version)

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
        """Return all matching versions without their documents, sorted by name and version.

        Args:
            name: A glob.
            source: A glob on the source of the provenance.
            since: the earliest time of the provenance.
            until: the time of the provenance must be before this.
        """
        contracts = self._load_index().search(
            names=name,
            domain=domain,
            protocol=protocol,
            source=source,
            generator_version=generator_version,
            since=queries.parse_request_time(since) if since else None,
            until=queries.parse_request_time(until) if until else None,
        )
        if range is not None:
            contracts = [
                contract for contract in contracts if queries.is_in_range(contract.version, range)
            ]
        return sorted(
            contracts,
            key=lambda contract: (contract.name, contract.domain, read_version(contract.version)),
        )

    def history(self, name: str | None = None, limit: int = 50) -> list[Commit]:
        """Return who published what, when and why, newest first. Raises InterlockError."""
        paths: list[str] = []
        if name is not None:
            index = self._load_index()
            contracts = index.search(name=name)
            if not contracts:
                raise queries.unknown_contract_error(index, name, ANY_VERSION)
            paths = sorted(
                {layout.contract_folder(contract.domain, contract.name) for contract in contracts}
            )
        commits: list[Commit] = []
        for id, author, seconds, message in self._git.log(paths, limit):
            reason, published = layout.read_message(message)
            commits.append(Commit(id, author, format_utc(seconds), reason, published))
        return commits

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
        """Validate a payload against a contract.

        Args:
            part: for a tool: `input` or `output`.

        Raises:
            InterlockError: The contract does not exist, or has no JSON Schema for this part.
        """
        contract = self.find(name, range, domain=domain, protocol=protocol)
        schema: Any = None
        if contract.protocol == "json-schema":
            schema = contract.schema()
        elif contract.protocol == "mcp-tool":
            schema = contract.schema().get("inputSchema" if part == "input" else "outputSchema")
        if schema is None:
            raise invalid_request(
                f"{name} {contract.version} ({contract.protocol}) has no JSON Schema for its "
                f"{part}, so payloads cannot be validated."
            )
        errors = self._validators.check(f"{contract.digest}/{part}", schema, payload)
        return Validation(
            not errors,
            contract.name,
            contract.version,
            contract.protocol,
            errors,
            contract.deprecation,
        )

    def deprecation(
        self, name: str, major: int, *, domain: str | None = None
    ) -> Deprecation | None:
        """Return the end of support for a major. None: the major is not deprecated."""
        return queries.deprecation(self._load_index(), name, major, domain)

    def deprecations(self) -> list[Deprecation]:
        """Return all deprecated majors of all contracts."""
        return self._load_index().deprecations()

    def head(self) -> str | None:
        """Return the newest commit without starting a program. None: there is none."""
        return self._git.head()

    def supported_majors(self, name: str) -> list[int]:
        """Return the majors of a contract that are still supported, oldest first.

        A request without a version gets the first of them.
        """
        index, now = self._load_index(), self._clock()
        ended_majors = {end.major for end in index.deprecations(name) if end.is_over(now)}
        return sorted({contract.major for contract in index.search(name=name)} - ended_majors)

    # -- status

    def metrics(self) -> RegistryMetrics:
        index = self._load_index()
        mark = index.mark() or layout.RegistryMark()
        run = mark.run or PipelineRun(0, 0, 0.0)
        return RegistryMetrics(
            index.count(), run.drift_violations, run.generation_duration, mark.version, index.head()
        )

    def problems(self) -> list[str]:
        """Return problems for an operator to check, including those that do not prevent use."""
        problems = self._load_index().problems()
        edited_files = self._git.changed_by_hand()
        if edited_files:
            remainder = (
                f" and {len(edited_files) - _MAX_LISTED} more"
                if len(edited_files) > _MAX_LISTED
                else ""
            )
            problems.append(
                "edited by hand and not committed, so the changes have no effect: "
                f"{', '.join(edited_files[:_MAX_LISTED])}{remainder}"
            )
        return problems

    def rebuild(self) -> None:
        """Rebuild the index from the committed files."""
        with self._lock:
            self._load_index_at(None).clear()
        self._load_index()

    @property
    def backend_name(self) -> str:
        """The name of the Git implementation: `git` or `dulwich`."""
        return self._git.backend_name

    # -- parts

    def _commit(
        self,
        prepare: Callable[[str | None], tuple[Mapping[str, bytes], str]],
        author: str,
        *,
        tag: Callable[[], str] | None = None,
    ) -> str | None:
        return self._git.publish(prepare, author=author, seconds=self._clock(), tag=tag)

    def _load_index(self) -> ContractIndex:
        """Return the index of the newest commit. Raises InterlockError."""
        return self._load_index_at(self._git.head())

    def _load_index_at(self, head: str | None) -> ContractIndex:
        with self._lock:
            repository = self._git.repository
            if self._index is None:
                self._index = ContractIndex(
                    None if repository is None else repository.git_dir / NAME
                )
            index = self._index
            index.refresh(head, self._git)
            if repository is None:
                # The next query may find a repository, and with it a place for the index file.
                self._index = None
        if head is not None and index.mark() is None:
            raise registry_error(
                f"{self.folder} is a Git repository but not a contract registry: it has no "
                f"{layout.MARK_FILE}. Name a separate folder for the registry.",
                registry=str(self.folder),
            )
        return index


def _files(new: Iterable[Contract], head: str | None) -> dict[str, bytes]:
    """Return the files to commit for new contracts. The first commit also creates the registry's
    own files."""
    files: dict[str, bytes] = {}
    for contract in new:
        files |= layout.contract_files(contract)
    return {**layout.initial_files(), **files} if files and head is None else files


def _find_stored(index: ContractIndex, contract: Contract) -> StoredContract:
    path = layout.document_path(contract.domain, contract.name, contract.version, contract.protocol)
    for stored in index.search(
        name=contract.name, domain=contract.domain, protocol=contract.protocol
    ):
        if stored.path == path:
            return msgspec.structs.replace(stored, document=index.document(path))
    raise registry_error(
        f"{contract.name} {contract.version} was published, but the index does not contain it. "
        "Rebuild the index."
    )


def _tag_name(mark: layout.RegistryMark) -> str:
    return f"registry-v{mark.version}"


def _contract_label(contract: Contract) -> str:
    return f"{contract.name}@{contract.version} ({contract.protocol})"
