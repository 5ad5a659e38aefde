"""The Git repository of the contract registry: reads the committed files and makes one commit for
each publication.

A publication writes objects and moves the branch without using Git's index. Changes that a person
has staged or made in the working tree are neither committed nor lost. Afterwards the new files are
copied into the working tree and the index, so that people can read them. If a publisher is
interrupted, the repository stays consistent, and a note tells the next publisher to finish the
copy."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from interlock.contracts.registry.git_dulwich import GitDulwich, is_installed
from interlock.contracts.registry.git_folder import (
    GitHead,
    RepositoryFolder,
    UnfinishedPublication,
    blob_id,
    find_repository,
)
from interlock.contracts.registry.git_program import CommitEntry, GitProgram
from interlock.contracts.registry.records import busy_error, registry_error
from interlock.errors import InterlockError

GitChoice = Literal["auto", "git", "dulwich"]
LOCK_TIMEOUT_SECONDS: Final = 10.0
"""The time to wait for other processes that use the same repository."""
_MAX_ATTEMPTS: Final = 20
_UNSAFE_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f<>]+")
_log = logging.getLogger("interlock.state")


class GitBackend(Protocol):
    """The operations on a repository that each Git implementation provides."""

    @property
    def name(self) -> str: ...

    def tree(self, commit: str) -> dict[str, str]: ...

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]: ...

    def log(self, commit: str, paths: Sequence[str], limit: int) -> list[CommitEntry]: ...

    def commit(
        self,
        parent: str | None,
        files: Mapping[str, bytes],
        message: str,
        author: tuple[str, str],
        seconds: int,
    ) -> str: ...

    def update_branch(self, branch: str, commit: str, parent: str | None, reason: str) -> bool: ...

    def tag(self, name: str, commit: str) -> None: ...

    def read_staged(self, paths: Sequence[str]) -> dict[str, str]: ...

    def stage(self, blobs: Mapping[str, str]) -> None: ...


CommitPreparer = Callable[[str | None], tuple[Mapping[str, bytes], str]]
"""Returns the files and the message of the next commit, given the newest commit.

No files: there is nothing to publish. Raises InterlockError if the publication is rejected. It is
called again if another publisher commits first.
"""


class ContractGit:
    """The repository in one folder. Calls wait for the disk: run them off the event loop."""

    def __init__(
        self,
        folder: Path,
        *,
        backend: GitChoice = "auto",
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> None:
        """Raises InterlockError where neither git nor dulwich is installed."""
        self.folder = folder
        self._program = shutil.which("git") if backend in ("auto", "git") else None
        self._lock_timeout = lock_timeout
        if self._program is None and (backend == "git" or not is_installed()):
            raise registry_error(
                "A contract registry needs git. Install git, or the library dulwich: "
                "`pip install 'interlock[contracts]'`, or '.[contracts]' in a checkout."
            )
        self._repository: RepositoryFolder | None = None

    # -- reading

    @property
    def repository(self) -> RepositoryFolder | None:
        """The repository folder. None: there is none yet. Raises InterlockError."""
        if self._repository is None or not (self._repository.git_dir / "HEAD").exists():
            self._repository = find_repository(self.folder)
        return self._repository

    @property
    def backend_name(self) -> str:
        """The name of the Git implementation in use."""
        return GitProgram.name if self._program is not None else GitDulwich.name

    def head(self) -> str | None:
        """Return the newest commit. None: there is none. Raises InterlockError."""
        place = self.repository
        return None if place is None else place.head().commit

    def tree(self, commit: str) -> dict[str, str]:
        """Return the files of a commit: blob ids by path."""
        return self._backend().tree(commit)

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the content of each blob."""
        return self._backend().blobs(ids)

    def log(self, paths: Sequence[str] = (), limit: int = 50) -> list[CommitEntry]:
        """Return the newest commits that touched these paths, or all commits, newest first."""
        head = self.head()
        return [] if head is None else self._backend().log(head, paths, limit)

    def changed_by_hand(self) -> list[str]:
        """Return the files of the working tree that differ from the newest commit."""
        place, head = self.repository, self.head()
        if place is None or head is None:
            return []
        return place.changed_by_hand(self._backend().tree(head))

    # -- writing

    def publish(
        self,
        prepare: CommitPreparer,
        *,
        author: str,
        seconds: float,
        tag: Callable[[], str] | None = None,
    ) -> str | None:
        """Commit the files that `prepare` returns. Return the commit, or None if there is nothing
        to commit.

        Args:
            seconds: the time of the commit, in seconds since 1970.
            tag: returns the name of a tag for the commit.

        Raises:
            InterlockError: The publication is rejected, or the repository cannot be used.
        """
        repository = self._open_or_create()
        backend = self._backend()
        with repository.lock(self._lock_timeout):
            self._update_work_tree(repository, backend)
            for _ in range(_MAX_ATTEMPTS):
                head = repository.check_writable()
                assert head.branch is not None
                repository.wait_for_git(self._lock_timeout, head.branch)
                files, message = prepare(head.commit)
                if not files:
                    return None
                commit = self._commit(
                    repository, backend, head, files, message, _parse_author(author), int(seconds)
                )
                if commit is not None:
                    if tag is not None:
                        backend.tag(tag(), commit)
                    return commit
        raise busy_error(
            f"Other processes keep committing to {self.folder}. Try again.",
            registry=str(self.folder),
        )

    def _commit(
        self,
        repository: RepositoryFolder,
        backend: GitBackend,
        head: GitHead,
        files: Mapping[str, bytes],
        message: str,
        author: tuple[str, str],
        seconds: int,
    ) -> str | None:
        """Create a commit and move the branch to it. None: another publisher committed first."""
        assert head.branch is not None
        before = backend.tree(head.commit) if head.commit is not None else {}
        commit = backend.commit(head.commit, files, message, author, seconds)
        unfinished = UnfinishedPublication(
            commit,
            {path: before.get(path) for path in files},
            {path: blob_id(content, commit) for path, content in files.items()},
            os.getpid(),
        )
        try:
            repository.write_unfinished(unfinished)
        except OSError as error:
            raise registry_error(
                f"Cannot write to {self.folder}: {error.strerror or error}."
            ) from None
        is_moved = False
        try:
            is_moved = backend.update_branch(
                head.branch, commit, head.commit, message.partition("\n")[0]
            )
        finally:
            if not is_moved:
                repository.clear_unfinished()
        if not is_moved:
            return None
        self._update_work_tree(repository, backend)
        return commit

    def _update_work_tree(self, repository: RepositoryFolder, backend: GitBackend) -> None:
        """Copy committed files into the working tree and the index."""
        unfinished = repository.read_unfinished()
        if unfinished is None:
            return
        try:
            head, branch = repository.head().commit, repository.head().branch
            repository.wait_for_git(self._lock_timeout, branch or "HEAD")
            tree = backend.tree(head) if head is not None else {}
            # Copy only files that HEAD still has: the commit may have been lost or superseded.
            after = {
                path: blob for path, blob in unfinished.after.items() if tree.get(path) == blob
            }
            if after and repository.work_tree is not None:
                contents = backend.blobs(list(set(after.values())))
                staged = backend.read_staged(list(after))
                remaining = msgspec.structs.replace(unfinished, after=after)
                backend.stage(repository.write_files(remaining, contents.__getitem__, staged))
        except (InterlockError, OSError) as error:
            # The commit is what counts. The note stays, and the next publisher tries again.
            _log.warning(
                "registry %s: the working tree is not up to date yet: %s", self.folder, error
            )
            with contextlib.suppress(OSError):
                repository.write_unfinished(msgspec.structs.replace(unfinished, pid=0))
            return
        repository.clear_unfinished()

    # -- setup

    def _open_or_create(self) -> RepositoryFolder:
        repository = self.repository
        if repository is None:
            self._create()
            repository = self.repository
            if repository is None:
                raise registry_error(f"Cannot create a repository in {self.folder}.")
        return repository

    def _create(self) -> None:
        """Create the repository atomically, because another publisher may create it at the same
        time."""
        new_folder: Path | None = None
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            new_folder = Path(
                tempfile.mkdtemp(prefix=f".{self.folder.name}-", dir=self.folder.parent)
            )
            if self._program is not None:
                GitProgram.create(self._program, new_folder)
            else:
                GitDulwich.create(new_folder)
            self.folder.mkdir(exist_ok=True)
            try:
                os.rename(new_folder / ".git", self.folder / ".git")
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        except OSError as error:
            raise registry_error(
                f"Cannot create a registry in {self.folder}: {error.strerror or error}.",
                registry=str(self.folder),
            ) from None
        finally:
            if new_folder is not None:
                shutil.rmtree(new_folder, ignore_errors=True)

    def _backend(self) -> GitBackend:
        repository = self.repository
        if repository is None:
            raise registry_error(
                f"There is no contract registry at {self.folder} yet. The first publication "
                "creates it."
            )
        return (
            GitDulwich(repository)
            if self._program is None
            else GitProgram(self._program, repository)
        )


def _parse_author(author: str) -> tuple[str, str]:
    """Split an author into name and mail address: `Name <mail>`, or only a name.

    Both are passed to Git explicitly, so that Git does not read them from its config.
    """
    name, _, mail = author.partition("<")
    name = " ".join(_UNSAFE_CHARACTERS.sub(" ", name).split())[:200] or "interlock"
    mail = _UNSAFE_CHARACTERS.sub("", mail).strip()[:200]
    return name, mail or f"{re.sub(r'[^A-Za-z0-9._-]+', '.', name).strip('.') or 'x'}@localhost"
