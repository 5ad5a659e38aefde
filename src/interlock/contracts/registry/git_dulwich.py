"""Git without its program: the same as `contract_git_program`, by the library dulwich, for machines
on which no git is installed (the extra `interlock[contracts]`). Objects, branches and the index
only: no hooks, no filters, no config of the user, no network."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from interlock.contracts.registry.git_folder import RepositoryFolder
from interlock.contracts.registry.git_program import CommitEntry
from interlock.contracts.registry.records import locked, unusable

if TYPE_CHECKING:
    from dulwich.index import Index
    from dulwich.objects import Commit, ObjectID
    from dulwich.refs import Ref
    from dulwich.repo import Repo

_FILE: Final = stat.S_IFREG | 0o644


def is_there() -> bool:
    """Whether the library is installed."""
    try:
        import dulwich.repo  # noqa: F401
    except ImportError:
        return False
    return True


class GitDulwich:
    """The repository at a place, by dulwich."""

    name = "dulwich"

    def __init__(self, place: RepositoryFolder) -> None:
        self._place = place

    @classmethod
    def make(cls, folder: Path) -> None:
        """A new repository in a folder that is empty or not there. Raises InterlockError."""
        from dulwich.repo import Repo

        with _said_of(folder):
            folder.mkdir(parents=True, exist_ok=True)
            Repo.init(folder, default_branch=b"main", symlinks=False).close()

    # -- reading

    def tree(self, commit: str) -> dict[str, str]:
        """Every file of a commit: its blob by its path."""
        from dulwich.object_store import iter_tree_contents

        with self._repo() as repo:
            found: dict[str, str] = {}
            for path, mode, id in iter_tree_contents(repo.object_store, _commit(repo, commit).tree):
                if path is not None and mode is not None and id is not None and stat.S_ISREG(mode):
                    found[os.fsdecode(path)] = id.decode()
            return found

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The content of each."""
        with self._repo() as repo:
            return {id: repo.object_store[_id(id)].as_raw_string() for id in ids}

    def log(self, commit: str, paths: Sequence[str], most: int) -> list[CommitEntry]:
        """The newest commits that touched these paths, or any, newest first."""
        with self._repo() as repo:
            walker = repo.get_walker(
                include=[_id(commit)],
                order="topo",
                max_entries=most,
                paths=[os.fsencode(path) for path in paths] or None,
                simplify_history=True,
            )
            found = []
            for entry in walker:
                one = entry.commit
                author = one.author.decode(errors="replace").partition(" <")[0]
                message = one.message.decode(errors="replace")
                found.append(CommitEntry((one.id.decode(), author, int(one.author_time), message)))
            return found

    # -- writing

    def commit(
        self,
        parent: str | None,
        files: Mapping[str, bytes],
        message: str,
        author: tuple[str, str],
        seconds: int,
    ) -> str:
        """Make a commit with these files over those of its parent; no branch leads to it yet."""
        from dulwich.object_store import commit_tree_changes
        from dulwich.objects import Blob, Commit, Tree

        with self._repo() as repo:
            store = repo.object_store
            changes: list[tuple[bytes, int | None, ObjectID | None]] = []
            for path, content in files.items():
                blob = Blob.from_string(content)
                store.add_object(blob)
                changes.append((os.fsencode(path), _FILE, blob.id))
            before = Tree() if parent is None else _commit(repo, parent).tree
            commit = Commit()
            commit.tree = commit_tree_changes(store, before, changes)
            commit.parents = [] if parent is None else [_id(parent)]
            commit.author = commit.committer = f"{author[0]} <{author[1]}>".encode()
            commit.author_time = commit.commit_time = seconds
            commit.author_timezone = commit.commit_timezone = 0
            commit.message = message.encode()
            store.add_object(commit)
            return commit.id.decode()

    def move(self, branch: str, commit: str, parent: str | None, reason: str) -> bool:
        """Let a branch lead to a commit, if it led to the parent. Whether it did."""
        from dulwich.protocol import ZERO_SHA

        with self._repo() as repo:
            old = ZERO_SHA if parent is None else _id(parent)
            return repo.refs.set_if_equals(_ref(branch), old, _id(commit))

    def tag(self, name: str, commit: str) -> None:
        """Raises InterlockError when there is one of this name."""
        with self._repo() as repo:
            if not repo.refs.add_if_new(_ref(f"refs/tags/{name}"), _id(commit)):
                raise unusable(f"{self._place.folder} has a tag {name} already.")

    def staged(self, paths: Sequence[str]) -> dict[str, str]:
        """What the index has at these paths."""
        from dulwich.index import IndexEntry

        index = self._index()
        found: dict[str, str] = {}
        for path in paths:
            try:
                entry = index[os.fsencode(path)]
            except KeyError:
                continue
            # Somebody resolves a conflict there: nothing is like it.
            found[path] = entry.sha.decode() if isinstance(entry, IndexEntry) else ""
        return found

    def stage(self, blobs: Mapping[str, str]) -> None:
        """Put these into the index."""
        from dulwich.index import IndexEntry

        if not blobs:
            return
        with _said_of(self._place.folder):
            index = self._index()
            for path, blob in blobs.items():
                # Without what the file system says of it, git looks into the file itself.
                index[os.fsencode(path)] = IndexEntry(0, 0, 0, 0, _FILE, 0, 0, 0, _id(blob))
            index.write()

    # -- the library

    def _index(self) -> Index:
        from dulwich.index import Index

        with _said_of(self._place.folder):
            return Index(self._place.git_dir / "index")

    @contextmanager
    def _repo(self) -> Iterator[Repo]:
        from dulwich.repo import Repo

        place = self._place
        with _said_of(place.folder):
            repo = Repo(
                controldir=place.git_dir, commondir=place.common_dir, worktree=place.work_tree
            )
            try:
                if repo.object_format is not None and repo.object_format.name != "sha1":
                    raise unusable(
                        f"{place.folder} is kept by {repo.object_format.name}, for which the "
                        "program git is needed: install it."
                    )
                # What is published outlives a power cut.
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

    found = repo.object_store[_id(id)]
    assert isinstance(found, Commit)
    return found


@contextmanager
def _said_of(folder: Path) -> Iterator[None]:
    """What the library says goes wrong, as an InterlockError."""
    from dulwich import errors
    from dulwich.file import FileLocked
    from dulwich.refs import SymrefLoop
    from dulwich.repo import UnsupportedExtension, UnsupportedVersion

    try:
        yield
    except FileLocked as error:
        lock = os.fsdecode(error.lockfilename)
        raise locked(
            f"{lock} exists: another git program uses {folder}. If none does, one was cut short "
            "there; then remove that file.",
            registry=str(folder),
            lock=lock,
        ) from None
    except KeyError as error:
        raise unusable(
            f"{folder} is damaged: its object {error} is missing. `git fsck` in it says more."
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
        raise unusable(
            f"dulwich cannot do its work in {folder}: {error}", registry=str(folder)
        ) from None
