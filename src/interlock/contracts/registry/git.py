"""The Git repository behind the contract registry: what is committed there, and one commit for
every publication.

Objects and the branch are written, never through the index: what somebody has staged or changed by
hand in the working tree is neither committed nor lost. Only then the new files are brought into the
working tree and the index, so that a person reads them. Whoever is cut short on the way leaves a
repository that is whole, and a note by which the next publisher finishes the work.
"""

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

from interlock.contracts.registry.git_dulwich import GitDulwich, is_there
from interlock.contracts.registry.git_folder import (
    GitHead,
    RepositoryFolder,
    UnfinishedPublication,
    blob_id,
    find_place,
)
from interlock.contracts.registry.git_program import CommitEntry, GitProgram
from interlock.contracts.registry.records import locked, unusable
from interlock.errors import InterlockError

GitChoice = Literal["auto", "git", "dulwich"]
PATIENCE: Final = 10.0
"""How long one waits for others who use the same repository."""
_MOST_TRIES: Final = 20
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f<>]+")
_log = logging.getLogger("interlock.state")


class GitBackend(Protocol):
    """What is done to a repository, by whatever means."""

    @property
    def name(self) -> str: ...

    def tree(self, commit: str) -> dict[str, str]: ...

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]: ...

    def log(self, commit: str, paths: Sequence[str], most: int) -> list[CommitEntry]: ...

    def commit(
        self,
        parent: str | None,
        files: Mapping[str, bytes],
        message: str,
        author: tuple[str, str],
        seconds: int,
    ) -> str: ...

    def move(self, branch: str, commit: str, parent: str | None, reason: str) -> bool: ...

    def tag(self, name: str, commit: str) -> None: ...

    def staged(self, paths: Sequence[str]) -> dict[str, str]: ...

    def stage(self, blobs: Mapping[str, str]) -> None: ...


CommitPreparer = Callable[[str | None], tuple[Mapping[str, bytes], str]]
"""Takes the newest commit; gives the files to publish over it, and the message. No files: there is
nothing to publish. Raises InterlockError when it must not be. Asked again when others are first."""


class ContractGit:
    """The repository in one folder. Everything here waits for the disk: off the event loop."""

    def __init__(
        self, folder: Path, *, means: GitChoice = "auto", patience: float = PATIENCE
    ) -> None:
        """Raises InterlockError where there is neither git nor dulwich."""
        self.folder = folder
        self._program = shutil.which("git") if means in ("auto", "git") else None
        self._patience = patience
        if self._program is None and (means == "git" or not is_there()):
            raise unusable(
                "A contract registry needs git: install it, or the library dulwich with "
                "`pip install 'interlock[contracts]'`, or '.[contracts]' in a checkout."
            )
        self._place: RepositoryFolder | None = None

    # -- reading

    @property
    def place(self) -> RepositoryFolder | None:
        """Where it is. None: there is none yet. Raises InterlockError."""
        if self._place is None or not (self._place.git_dir / "HEAD").exists():
            self._place = find_place(self.folder)
        return self._place

    @property
    def means(self) -> str:
        """By what the work is done."""
        return GitProgram.name if self._program is not None else GitDulwich.name

    def head(self) -> str | None:
        """The newest commit. None: there is none. Raises InterlockError."""
        place = self.place
        return None if place is None else place.head().commit

    def tree(self, commit: str) -> dict[str, str]:
        """Every file of a commit: its blob by its path."""
        return self._plumbing().tree(commit)

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The content of each blob."""
        return self._plumbing().blobs(ids)

    def log(self, paths: Sequence[str] = (), most: int = 50) -> list[CommitEntry]:
        """The newest commits that touched these paths, or any, newest first."""
        head = self.head()
        return [] if head is None else self._plumbing().log(head, paths, most)

    def changed_by_hand(self) -> list[str]:
        """Files of the working tree that are not what was committed."""
        place, head = self.place, self.head()
        if place is None or head is None:
            return []
        return place.changed_by_hand(self._plumbing().tree(head))

    # -- writing

    def publish(
        self,
        prepare: CommitPreparer,
        *,
        author: str,
        seconds: float,
        tag: Callable[[], str] | None = None,
    ) -> str | None:
        """One commit with what `prepare` gives. None: it gave nothing. Raises InterlockError."""
        place = self._made()
        plumbing = self._plumbing()
        with place.alone(self._patience):
            self._finish(place, plumbing)
            for _ in range(_MOST_TRIES):
                head = place.check_free()
                assert head.branch is not None
                place.wait_for_git(self._patience, head.branch)
                files, message = prepare(head.commit)
                if not files:
                    return None
                commit = self._commit(
                    place, plumbing, head, files, message, _identity(author), int(seconds)
                )
                if commit is not None:
                    if tag is not None:
                        plumbing.tag(tag(), commit)
                    return commit
        raise locked(
            f"Others commit to {self.folder} all the time: try again.", registry=str(self.folder)
        )

    def _commit(
        self,
        place: RepositoryFolder,
        plumbing: GitBackend,
        head: GitHead,
        files: Mapping[str, bytes],
        message: str,
        author: tuple[str, str],
        seconds: int,
    ) -> str | None:
        """None: somebody else was first."""
        assert head.branch is not None
        before = plumbing.tree(head.commit) if head.commit is not None else {}
        commit = plumbing.commit(head.commit, files, message, author, seconds)
        work = UnfinishedPublication(
            commit,
            {path: before.get(path) for path in files},
            {path: blob_id(content, commit) for path, content in files.items()},
            os.getpid(),
        )
        try:
            place.begin(work)
        except OSError as error:
            raise unusable(
                f"Nothing can be written in {self.folder}: {error.strerror or error}."
            ) from None
        moved = False
        try:
            moved = plumbing.move(head.branch, commit, head.commit, message.partition("\n")[0])
        finally:
            if not moved:
                place.finish()
        if not moved:
            return None
        self._finish(place, plumbing)
        return commit

    def _finish(self, place: RepositoryFolder, plumbing: GitBackend) -> None:
        """Bring what was committed into the working tree and the index."""
        work = place.unfinished()
        if work is None:
            return
        try:
            head, branch = place.head().commit, place.head().branch
            place.wait_for_git(self._patience, branch or "HEAD")
            tree = plumbing.tree(head) if head is not None else {}
            # Only what is still there: it may never have been committed, or be long gone.
            after = {path: blob for path, blob in work.after.items() if tree.get(path) == blob}
            if after and place.work_tree is not None:
                contents = plumbing.blobs(list(set(after.values())))
                staged = plumbing.staged(list(after))
                brought = msgspec.structs.replace(work, after=after)
                plumbing.stage(place.bring(brought, contents.__getitem__, staged))
        except (InterlockError, OSError) as error:
            # What counts is committed. The note stays, and the next publisher tries again.
            _log.warning("%s: new files are not in the working tree yet: %s", self.folder, error)
            with contextlib.suppress(OSError):
                place.begin(msgspec.structs.replace(work, pid=0))
            return
        place.finish()

    # -- means

    def _made(self) -> RepositoryFolder:
        place = self.place
        if place is None:
            self._make()
            place = self.place
            if place is None:
                raise unusable(f"No repository could be made in {self.folder}.")
        return place

    def _make(self) -> None:
        """A new repository, there whole or not at all: another publisher may make it as well."""
        made: Path | None = None
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}-", dir=self.folder.parent))
            if self._program is not None:
                GitProgram.make(self._program, made)
            else:
                GitDulwich.make(made)
            self.folder.mkdir(exist_ok=True)
            try:
                os.rename(made / ".git", self.folder / ".git")
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        except OSError as error:
            raise unusable(
                f"No registry can be made in {self.folder}: {error.strerror or error}.",
                registry=str(self.folder),
            ) from None
        finally:
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)

    def _plumbing(self) -> GitBackend:
        place = self.place
        if place is None:
            raise unusable(
                f"There is no contract registry at {self.folder} yet: the first thing that is "
                "published makes it."
            )
        return GitDulwich(place) if self._program is None else GitProgram(self._program, place)


def _identity(author: str) -> tuple[str, str]:
    """A name and an address, given explicitly so that no config is asked: `Name <mail>`, or a name
    alone."""
    name, _, mail = author.partition("<")
    name = " ".join(_UNFIT.sub(" ", name).split())[:200] or "interlock"
    mail = _UNFIT.sub("", mail).strip()[:200]
    return name, mail or f"{re.sub(r'[^A-Za-z0-9._-]+', '.', name).strip('.') or 'x'}@localhost"
