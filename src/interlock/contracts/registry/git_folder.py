"""The folder of a Git repository, as its files say it is: where its parts are, what HEAD is, who
has it locked, and what an earlier publisher left unfinished. Nothing here starts a program."""

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

from interlock.contracts.registry.records import locked, unusable

_UNFINISHED: Final = "interlock-unfinished"
_LOCK: Final = "interlock.lock"
_WRITTEN: Final = "interlock-written-"
_HUMANS_WORK: Final = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "BISECT_LOG": "a bisection",
}
_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH: Final = re.compile(r"refs/heads/[^\x00-\x20\x7f~^:?*\[\\]+")
_LOOK_EVERY: Final = 0.02
_LONG_FOR_GIT: Final = 1.0
"""Git itself has a lock for less than this."""
_LEFT_BEHIND: Final = 60.0
"""A lock that appeared this many seconds at most after a publisher that was cut short began to move
things is that publisher's own."""


class GitHead(NamedTuple):
    """Where the repository stands."""

    branch: str | None
    """None: on none, it is detached."""
    commit: str | None
    """None: there is none yet."""


class UnfinishedPublication(msgspec.Struct, frozen=True):
    """What a publisher is about to bring into the index and the working tree."""

    commit: str
    before: dict[str, str | None]
    """By path: the blob before the commit. None: there was none."""
    after: dict[str, str]
    pid: int = 0
    """Of whoever is at it. 0: it came to its end, but could not bring everything."""


class RepositoryFolder(NamedTuple):
    """A repository on disk."""

    folder: Path
    git_dir: Path
    common_dir: Path
    """Where refs are: another one in a linked working tree."""
    work_tree: Path | None
    """None: it is bare."""

    # -- where it stands

    def head(self) -> GitHead:
        """Raises InterlockError."""
        try:
            text = (self.git_dir / "HEAD").read_text(encoding="utf-8").strip()
            if _ID.fullmatch(text):
                return GitHead(None, text)
            branch = text.removeprefix("ref:").strip()
            if not text.startswith("ref:") or not _BRANCH.fullmatch(branch) or ".." in branch:
                raise unusable(
                    f"The HEAD of {self.folder} names neither a branch nor a commit, so it cannot "
                    "be read. `git fsck` in it says more.",
                    registry=str(self.folder),
                )
            if (self.common_dir / "reftable").exists():
                raise unusable(
                    f"{self.folder} keeps its branches in a reftable, which is not understood "
                    "here. Use a repository that `git init` makes by default."
                )
            return GitHead(branch, self._ref(branch))
        except (OSError, UnicodeDecodeError) as error:
            raise unusable(f"The HEAD of {self.folder} cannot be read: {error}.") from None

    def _ref(self, name: str) -> str | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            id = (self.common_dir / name).read_text(encoding="ascii").strip()
            if not _ID.fullmatch(id):
                raise unusable(
                    f"The branch {name} of {self.folder} is damaged. `git fsck` in it says more.",
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

    def check_free(self) -> GitHead:
        """What HEAD is, where something may be committed now. Raises InterlockError."""
        head = self.head()
        if head.branch is None:
            raise unusable(
                f"{self.folder} is on no branch (its HEAD is detached at {str(head.commit)[:12]}): "
                "nothing is published there. Run `git switch BRANCH` in it.",
                registry=str(self.folder),
            )
        for name, work in _HUMANS_WORK.items():
            if (self.git_dir / name).exists():
                raise locked(
                    f"{work.capitalize()} is under way in {self.folder}: finish or abort it there.",
                    registry=str(self.folder),
                )
        return head

    # -- who has it

    @contextlib.contextmanager
    def alone(self, patience: float) -> Iterator[None]:
        """While no other publisher of ours is at it. The system lets go when a process ends,
        however that comes about. Raises InterlockError."""
        try:
            lock = os.open(self.git_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unusable(
                f"Nothing can be published in {self.folder}: {error.strerror or error}.",
                registry=str(self.folder),
            ) from None
        try:
            deadline = time.monotonic() + patience
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise locked(
                            f"Somebody else publishes in {self.folder} and does not come to an "
                            "end: try again.",
                            registry=str(self.folder),
                        ) from None
                    time.sleep(_LOOK_EVERY)
            yield
        finally:
            os.close(lock)

    def wait_for_git(self, patience: float, branch: str) -> None:
        """Until no other git program has the index or the branch. Raises InterlockError."""
        locks = [self.common_dir / f"{branch}.lock", self.git_dir / "HEAD.lock"]
        if self.work_tree is not None:
            locks.insert(0, self.git_dir / "index.lock")
        began = time.monotonic()
        for lock in locks:
            while lock.exists():
                waited = time.monotonic() - began
                if waited >= min(patience, _LONG_FOR_GIT) and self._is_left_behind(lock):
                    lock.unlink(missing_ok=True)
                    break
                if waited > patience:
                    raise locked(
                        f"{lock} exists: another git program uses {self.folder}. If none does, one "
                        "was cut short there; then remove that file.",
                        registry=str(self.folder),
                        lock=str(lock),
                    )
                time.sleep(_LOOK_EVERY)

    def _is_left_behind(self, lock: Path) -> bool:
        """Whether a lock is that of a publisher of ours that was cut short."""
        work = self.unfinished()
        if work is None or not work.pid or _lives(work.pid):
            return False
        try:
            began = (self.git_dir / _UNFINISHED).stat().st_mtime
            made = lock.stat().st_mtime
        except OSError:
            return False
        # What it wrote down just before is still there, so it never came to its end.
        return began <= made + 1 and made <= began + _LEFT_BEHIND

    # -- what was left unfinished

    def begin(self, work: UnfinishedPublication) -> None:
        """Write down what is about to be done. Raises OSError."""
        path = self.git_dir / f"{_UNFINISHED}.new"
        with path.open("wb") as file:
            file.write(msgspec.json.encode(work))
            file.flush()
            os.fsync(file.fileno())
        path.replace(self.git_dir / _UNFINISHED)

    def unfinished(self) -> UnfinishedPublication | None:
        try:
            return msgspec.json.decode(
                (self.git_dir / _UNFINISHED).read_bytes(), type=UnfinishedPublication
            )
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            # None was begun, or writing it down was cut short: then nothing was moved.
            return None

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            (self.git_dir / _UNFINISHED).unlink(missing_ok=True)

    # -- the working tree

    def bring(
        self,
        work: UnfinishedPublication,
        contents: Callable[[str], bytes],
        staged: Mapping[str, str],
    ) -> dict[str, str]:
        """Write files that a commit brought. What somebody changed by hand stays as that somebody
        wants it. Returns what is to be staged, by path. Raises OSError."""
        if self.work_tree is None:
            return {}
        self._sweep()
        for path, blob in work.after.items():
            if self._holds(path, (work.before.get(path), None)):
                self._write(path, contents(blob))
        return {
            path: blob
            for path, blob in work.after.items()
            if staged.get(path) == work.before.get(path)
        }

    def changed_by_hand(self, tree: Mapping[str, str]) -> list[str]:
        """Paths whose file is not what was committed."""
        if self.work_tree is None:
            return []
        return sorted(path for path, blob in tree.items() if not self._holds(path, (blob,)))

    def _holds(self, path: str, blobs: tuple[str | None, ...]) -> bool:
        """Whether the file at this path is one of these. None: there is none."""
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
        written = self.git_dir / f"{_WRITTEN}{secrets.token_hex(8)}"
        try:
            written.write_bytes(content)
            os.replace(written, file)
        finally:
            written.unlink(missing_ok=True)

    def _file(self, path: str) -> Path | None:
        """Where a path of the tree is on disk. None: a link leads it elsewhere."""
        assert self.work_tree is not None
        file = self.work_tree / path
        inside = file.parent.resolve().is_relative_to(self.work_tree.resolve())
        return file if inside else None

    def _sweep(self) -> None:
        """Take away what publishers that were cut short had not moved to its place yet."""
        for left in self.git_dir.glob(f"{_WRITTEN}*"):
            left.unlink(missing_ok=True)


def find_place(folder: Path) -> RepositoryFolder | None:
    """The repository in this folder. None: there is nothing there yet. Raises InterlockError."""
    try:
        if (folder / "HEAD").is_file() and (folder / "objects").is_dir():
            return RepositoryFolder(folder, folder, folder, None)
        hidden = folder / ".git"
        if hidden.is_file():
            # A linked working tree, or one whose repository is elsewhere.
            pointed = hidden.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
            hidden = folder / pointed
        if (hidden / "HEAD").is_file():
            common = hidden
            if (hidden / "commondir").is_file():
                common = hidden / (hidden / "commondir").read_text(encoding="utf-8").strip()
            return RepositoryFolder(folder, hidden, common, folder)
        if not folder.exists():
            return None
        if not folder.is_dir():
            raise unusable(f"{folder} is a file, not the folder of a contract registry.")
        if any(folder.iterdir()):
            raise unusable(
                f"{folder} is no Git repository, and something else is in it. Name an empty "
                "folder, or one that is to be made; or run `git init` in it.",
                registry=str(folder),
            )
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise unusable(f"The registry {folder} cannot be looked into: {error}.") from None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # Somebody else's, but there.
        return True
    return True


def blob_id(content: bytes, like: str) -> str:
    """What Git calls a file with this content, by the same kind of digest as another id."""
    kind = hashlib.sha256 if len(like) == 64 else hashlib.sha1
    return kind(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
