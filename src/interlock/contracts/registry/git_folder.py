"""The files of a Git repository: its parts, HEAD, locks, and publications that were interrupted.
This module starts no program."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from interlock.contracts.registry.records import busy_error, registry_error

_UNFINISHED_FILE: Final = "interlock-unfinished"
_LOCK_FILE: Final = "interlock.lock"
_TEMPORARY_PREFIX: Final = "interlock-written-"
_OPERATIONS_IN_PROGRESS: Final = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "BISECT_LOG": "a bisection",
}
_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH: Final = re.compile(r"refs/heads/[^\x00-\x20\x7f~^:?*\[\\]+")
_POLL_SECONDS: Final = 0.02
_MAX_GIT_LOCK_SECONDS: Final = 1.0
"""Git itself keeps a lock for a shorter time."""
_STALE_LOCK_SECONDS: Final = 60.0
"""A lock belongs to an interrupted publisher if it appeared at most this many seconds after the
publisher began to copy files."""


class GitHead(NamedTuple):
    """The branch and the commit of HEAD."""

    branch: str | None
    """None: HEAD is detached."""
    commit: str | None
    """None: there is no commit yet."""


class UnfinishedPublication(msgspec.Struct, frozen=True):
    """Files that a publisher is about to copy into the index and the working tree."""

    commit: str
    before: dict[str, str | None]
    """Blob ids before the commit, by path. None: the file did not exist."""
    after: dict[str, str]
    pid: int = 0
    """The process that copies. 0: that process ended and could not copy everything."""


class RepositoryFolder(NamedTuple):
    """A Git repository on disk."""

    folder: Path
    git_dir: Path
    common_dir: Path
    """The folder of the refs. It differs from `git_dir` in a linked working tree."""
    work_tree: Path | None
    """None: the repository is bare."""

    # -- HEAD

    def head(self) -> GitHead:
        """Read HEAD. Raises InterlockError."""
        try:
            text = (self.git_dir / "HEAD").read_text(encoding="utf-8").strip()
            if _ID.fullmatch(text):
                return GitHead(None, text)
            branch = text.removeprefix("ref:").strip()
            if not text.startswith("ref:") or not _BRANCH.fullmatch(branch) or ".." in branch:
                raise registry_error(
                    f"The HEAD of {self.folder} names neither a branch nor a commit. Run `git "
                    "fsck` in it.",
                    registry=str(self.folder),
                )
            if (self.common_dir / "reftable").exists():
                raise registry_error(
                    f"{self.folder} stores its branches in a reftable, which Interlock does not "
                    "support. Use a repository with the default ref format of `git init`."
                )
            return GitHead(branch, self._read_ref(branch))
        except (OSError, UnicodeDecodeError) as error:
            raise registry_error(f"Cannot read the HEAD of {self.folder}: {error}.") from None

    def _read_ref(self, name: str) -> str | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            id = (self.common_dir / name).read_text(encoding="ascii").strip()
            if not _ID.fullmatch(id):
                raise registry_error(
                    f"The branch {name} of {self.folder} is damaged. Run `git fsck` in it.",
                    registry=str(self.folder),
                )
            return id
        try:
            packed = (self.common_dir / "packed-refs").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        for line in packed.splitlines():
            id, _, ref = line.partition(" ")
            if ref == name and _ID.fullmatch(id):
                return id
        return None

    def check_writable(self) -> GitHead:
        """Return HEAD if a commit is possible now. Raises InterlockError."""
        head = self.head()
        if head.branch is None:
            raise registry_error(
                f"{self.folder} is on no branch (HEAD is detached at {str(head.commit)[:12]}), so "
                "nothing can be published. Run `git switch BRANCH` in it.",
                registry=str(self.folder),
            )
        for name, operation in _OPERATIONS_IN_PROGRESS.items():
            if (self.git_dir / name).exists():
                raise busy_error(
                    f"{operation.capitalize()} is in progress in {self.folder}. Finish or abort "
                    "it.",
                    registry=str(self.folder),
                )
        return head

    # -- locks

    @contextlib.contextmanager
    def lock(self, timeout: float) -> Iterator[None]:
        """Hold the lock of publishers. The system releases the lock when the process ends, however
        it ends.

        Raises InterlockError.
        """
        try:
            descriptor = os.open(
                self.git_dir / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise registry_error(
                f"Cannot publish in {self.folder}: {error.strerror or error}.",
                registry=str(self.folder),
            ) from None
        try:
            deadline = time.monotonic() + timeout
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise busy_error(
                            f"Another process is publishing in {self.folder} and has not finished. "
                            "Try again.",
                            registry=str(self.folder),
                        ) from None
                    time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def wait_for_git(self, timeout: float, branch: str) -> None:
        """Wait until no other git program locks the index or the branch. Raises InterlockError."""
        locks = [self.common_dir / f"{branch}.lock", self.git_dir / "HEAD.lock"]
        if self.work_tree is not None:
            locks.insert(0, self.git_dir / "index.lock")
        started_at = time.monotonic()
        for lock in locks:
            while lock.exists():
                waited = time.monotonic() - started_at
                if waited >= min(timeout, _MAX_GIT_LOCK_SECONDS) and self._is_stale(lock):
                    lock.unlink(missing_ok=True)
                    break
                if waited > timeout:
                    raise busy_error(
                        f"{lock} exists: another git program uses {self.folder}. If no git program "
                        "runs, remove the file.",
                        registry=str(self.folder),
                        lock=str(lock),
                    )
                time.sleep(_POLL_SECONDS)

    def _is_stale(self, lock: Path) -> bool:
        """Return whether a lock was left by an interrupted publisher of Interlock."""
        unfinished = self.read_unfinished()
        if unfinished is None or not unfinished.pid or _is_running(unfinished.pid):
            return False
        try:
            copy_time = (self.git_dir / _UNFINISHED_FILE).stat().st_mtime
            lock_time = lock.stat().st_mtime
        except OSError:
            return False
        # The note is still there, so the publisher did not finish.
        return copy_time <= lock_time + 1 and lock_time <= copy_time + _STALE_LOCK_SECONDS

    # -- unfinished publications

    def write_unfinished(self, publication: UnfinishedPublication) -> None:
        """Write the note about files that are about to be copied. Raises OSError."""
        path = self.git_dir / f"{_UNFINISHED_FILE}.new"
        with path.open("wb") as file:
            file.write(msgspec.json.encode(publication))
            file.flush()
            os.fsync(file.fileno())
        path.replace(self.git_dir / _UNFINISHED_FILE)

    def read_unfinished(self) -> UnfinishedPublication | None:
        try:
            return msgspec.json.decode(
                (self.git_dir / _UNFINISHED_FILE).read_bytes(), type=UnfinishedPublication
            )
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            # There is no note, or writing it was interrupted: then no file was copied.
            return None

    def clear_unfinished(self) -> None:
        with contextlib.suppress(OSError):
            (self.git_dir / _UNFINISHED_FILE).unlink(missing_ok=True)

    # -- the working tree

    def write_files(
        self,
        publication: UnfinishedPublication,
        contents: Callable[[str], bytes],
        staged: Mapping[str, str],
    ) -> dict[str, str]:
        """Write the files of a commit. Files that a person edited by hand stay as they are.

        Returns the blobs to stage, by path. Raises OSError.
        """
        if self.work_tree is None:
            return {}
        self._delete_temporary_files()
        for path, blob in publication.after.items():
            if self._has_content(path, (publication.before.get(path), None)):
                self._write(path, contents(blob))
        return {
            path: blob
            for path, blob in publication.after.items()
            if staged.get(path) == publication.before.get(path)
        }

    def changed_by_hand(self, tree: Mapping[str, str]) -> list[str]:
        """Return the paths whose file differs from the commit."""
        if self.work_tree is None:
            return []
        return sorted(path for path, blob in tree.items() if not self._has_content(path, (blob,)))

    def _has_content(self, path: str, blobs: tuple[str | None, ...]) -> bool:
        """Return whether the file at this path has one of these contents. None stands for no
        file."""
        file = self._file(path)
        try:
            if file is None or file.is_symlink():
                return False
            content = file.read_bytes()
            return any(blob is not None and blob_id(content, blob) == blob for blob in blobs)
        except (FileNotFoundError, NotADirectoryError):
            return None in blobs
        except OSError:
            return False

    def _write(self, path: str, content: bytes) -> None:
        file = self._file(path)
        if file is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.git_dir / f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        try:
            temporary.write_bytes(content)
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)

    def _file(self, path: str) -> Path | None:
        """Return the file for a path of the tree. None: a symbolic link leads out of the working
        tree."""
        assert self.work_tree is not None
        file = self.work_tree / path
        inside = file.parent.resolve().is_relative_to(self.work_tree.resolve())
        return file if inside else None

    def _delete_temporary_files(self) -> None:
        """Delete temporary files of interrupted publishers."""
        for temporary in self.git_dir.glob(f"{_TEMPORARY_PREFIX}*"):
            temporary.unlink(missing_ok=True)


def find_repository(folder: Path) -> RepositoryFolder | None:
    """Return the repository in a folder. None: there is none yet. Raises InterlockError."""
    try:
        if (folder / "HEAD").is_file() and (folder / "objects").is_dir():
            return RepositoryFolder(folder, folder, folder, None)
        git_dir = folder / ".git"
        if git_dir.is_file():
            # A linked working tree, or one whose repository is elsewhere.
            target = git_dir.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
            git_dir = folder / target
        if (git_dir / "HEAD").is_file():
            common_dir = git_dir
            if (git_dir / "commondir").is_file():
                common_dir = git_dir / (git_dir / "commondir").read_text(encoding="utf-8").strip()
            return RepositoryFolder(folder, git_dir, common_dir, folder)
        if not folder.exists():
            return None
        if not folder.is_dir():
            raise registry_error(f"{folder} is a file. A contract registry needs a folder.")
        if any(folder.iterdir()):
            raise registry_error(
                f"{folder} is not a Git repository and is not empty. Name an empty folder or a "
                "folder that does not exist, or run `git init` in it.",
                registry=str(folder),
            )
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise registry_error(f"Cannot read the registry {folder}: {error}.") from None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # The process belongs to another user, but it runs.
        return True
    return True


def blob_id(content: bytes, sample_id: str) -> str:
    """Return the id that Git gives a file with this content.

    Args:
        sample_id: an id of the same repository: its length tells the hash algorithm.
    """
    algorithm = hashlib.sha256 if len(sample_id) == 64 else hashlib.sha1
    return algorithm(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
