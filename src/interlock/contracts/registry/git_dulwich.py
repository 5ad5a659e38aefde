"""Git operations by the library dulwich, for machines without the program git (the extra
`interlock[contracts]`). It has the interface of `git_program.py`. It uses objects, branches and the
index
only: no hooks, no filters, no user config, no network.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from interlock.contracts.registry.git_folder import RepositoryFolder
from interlock.contracts.registry.git_program import CommitEntry
from interlock.contracts.registry.records import busy_error, registry_error

if TYPE_CHECKING:
    from dulwich.index import Index
    from dulwich.objects import Commit, ObjectID
    from dulwich.refs import Ref
    from dulwich.repo import Repo

_FILE_MODE: Final = stat.S_IFREG | 0o644


def is_installed() -> bool:
    """Return whether the library is installed."""
    try:
        import dulwich.repo  # noqa: F401
    except ImportError:
        return False
    return True


class GitDulwich:
    """A repository that is accessed with dulwich."""

    name = "dulwich"

    def __init__(self, place: RepositoryFolder) -> None:
        self._repository = place

    @classmethod
    def create(cls, folder: Path) -> None:
        """Create a repository in a folder that is empty or does not exist. Raises
        InterlockError."""
        from dulwich.repo import Repo

        with _translate_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            Repo.init(folder, default_branch=b"main", symlinks=False).close()

    # -- reading

    def tree(self, commit: str) -> dict[str, str]:
        """Return the files of a commit: blob ids by path."""
        from dulwich.object_store import iter_tree_contents

        with self._repo() as repo:
            blobs: dict[str, str] = {}
            for path, mode, id in iter_tree_contents(repo.object_store, _commit(repo, commit).tree):
                if path is not None and mode is not None and id is not None and stat.S_ISREG(mode):
                    blobs[os.fsdecode(path)] = id.decode()
            return blobs

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the content of each blob."""
        with self._repo() as repo:
            return {id: repo.object_store[_id(id)].as_raw_string() for id in ids}

    def log(self, commit: str, paths: Sequence[str], limit: int) -> list[CommitEntry]:
        """Return the newest commits that touched these paths, or all commits, newest first."""
        with self._repo() as repo:
            walker = repo.get_walker(
                include=[_id(commit)],
                order="topo",
                max_entries=limit,
                paths=[os.fsencode(path) for path in paths] or None,
                simplify_history=True,
            )
            entries = []
            for entry in walker:
                commit_object = entry.commit
                author = commit_object.author.decode(errors="replace").partition(" <")[0]
                message = commit_object.message.decode(errors="replace")
                entries.append(
                    CommitEntry(
                        (commit_object.id.decode(), author, int(commit_object.author_time), message)
                    )
                )
            return entries

    # -- writing

    def commit(
        self,
        parent: str | None,
        files: Mapping[str, bytes],
        message: str,
        author: tuple[str, str],
        seconds: int,
    ) -> str:
        """Create a commit with these files over the files of its parent. No branch points to it
        yet."""
        from dulwich.object_store import commit_tree_changes
        from dulwich.objects import Blob, Commit, Tree

        with self._repo() as repo:
            store = repo.object_store
            changes: list[tuple[bytes, int | None, ObjectID | None]] = []
            for path, content in files.items():
                blob = Blob.from_string(content)
                store.add_object(blob)
                changes.append((os.fsencode(path), _FILE_MODE, blob.id))
            parent_tree = Tree() if parent is None else _commit(repo, parent).tree
            commit = Commit()
            commit.tree = commit_tree_changes(store, parent_tree, changes)
            commit.parents = [] if parent is None else [_id(parent)]
            commit.author = commit.committer = f"{author[0]} <{author[1]}>".encode()
            commit.author_time = commit.commit_time = seconds
            commit.author_timezone = commit.commit_timezone = 0
            commit.message = message.encode()
            store.add_object(commit)
            return commit.id.decode()

    def update_branch(self, branch: str, commit: str, parent: str | None, reason: str) -> bool:
        """Move a branch to a commit if it points to the parent. Return whether it did."""
        from dulwich.protocol import ZERO_SHA

        with self._repo() as repo:
            old = ZERO_SHA if parent is None else _id(parent)
            return repo.refs.set_if_equals(_ref(branch), old, _id(commit))

    def tag(self, name: str, commit: str) -> None:
        """Create a tag. Raises InterlockError if the tag exists."""
        with self._repo() as repo:
            if not repo.refs.add_if_new(_ref(f"refs/tags/{name}"), _id(commit)):
                raise registry_error(f"{self._repository.folder} already has a tag {name}.")

    def read_staged(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the blob ids of these paths in the index."""
        from dulwich.index import IndexEntry

        index = self._index()
        blobs: dict[str, str] = {}
        for path in paths:
            try:
                entry = index[os.fsencode(path)]
            except KeyError:
                continue
            # A merge conflict at this path: no blob is equal to it.
            blobs[path] = entry.sha.decode() if isinstance(entry, IndexEntry) else ""
        return blobs

    def stage(self, blobs: Mapping[str, str]) -> None:
        """Write these blobs to the index."""
        from dulwich.index import IndexEntry

        if not blobs:
            return
        with _translate_errors(self._repository.folder):
            index = self._index()
            for path, blob in blobs.items():
                # Without the file's metadata, git compares the content of the file itself.
                index[os.fsencode(path)] = IndexEntry(0, 0, 0, 0, _FILE_MODE, 0, 0, 0, _id(blob))
            index.write()

    # -- the library

    def _index(self) -> Index:
        from dulwich.index import Index

        with _translate_errors(self._repository.folder):
            return Index(self._repository.git_dir / "index")

    @contextmanager
    def _repo(self) -> Iterator[Repo]:
        from dulwich.repo import Repo

        repository = self._repository
        with _translate_errors(repository.folder):
            repo = Repo(
                controldir=repository.git_dir,
                commondir=repository.common_dir,
                worktree=repository.work_tree,
            )
            try:
                if repo.object_format is not None and repo.object_format.name != "sha1":
                    raise registry_error(
                        f"{repository.folder} uses {repo.object_format.name}, which dulwich does "
                        "not support. Install git."
                    )
                # Flush objects to disk, so that a publication survives a power failure.
                setattr(repo.object_store, "fsync_object_files", True)  # noqa: B010
                yield repo
            finally:
                repo.close()


def _id(text: str) -> ObjectID:
    from dulwich.objects import ObjectID

    return ObjectID(text.encode("ascii"))


def _ref(text: str) -> Ref:
    from dulwich.refs import Ref

    return Ref(text.encode())


def _commit(repo: Repo, id: str) -> Commit:
    from dulwich.objects import Commit

    commit = repo.object_store[_id(id)]
    assert isinstance(commit, Commit)
    return commit


@contextmanager
def _translate_errors(folder: Path) -> Iterator[None]:
    """Convert errors of the library to InterlockError."""
    from dulwich import errors
    from dulwich.file import FileLocked
    from dulwich.refs import SymrefLoop
    from dulwich.repo import UnsupportedExtension, UnsupportedVersion

    try:
        yield
    except FileLocked as error:
        lock = os.fsdecode(error.lockfilename)
        raise busy_error(
            f"{lock} exists: another git program uses {folder}. If no git program runs, remove the "
            "file.",
            registry=str(folder),
            lock=lock,
        ) from None
    except KeyError as error:
        raise registry_error(
            f"{folder} is damaged: its object {error} is missing. Run `git fsck` in it."
        ) from None
    except (
        errors.ChecksumMismatch,
        errors.FileFormatException,
        errors.MissingCommitError,
        errors.NotGitRepository,
        errors.ObjectMissing,
        errors.RefFormatError,
        errors.WrongObjectException,
        SymrefLoop,
        UnsupportedExtension,
        UnsupportedVersion,
        AssertionError,
        OSError,
        ValueError,
    ) as error:
        raise registry_error(f"dulwich failed in {folder}: {error}", registry=str(folder)) from None
