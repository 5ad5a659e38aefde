"""Tests of the repository of the contract registry, with git and with dulwich."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interlock.contracts.registry import git as contract_git
from interlock.contracts.registry.git import ContractGit, GitChoice
from interlock.contracts.registry.git_folder import UnfinishedPublication, blob_id, find_repository
from interlock.errors import InterlockError
from tests.contracts.registry.git_repositories import MEANS, git, is_clean, publish

Open = Callable[[], ContractGit]


@pytest.fixture(params=MEANS)
def means(request: pytest.FixtureRequest) -> GitChoice:
    found: GitChoice = request.param
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def store(folder: Path, means: GitChoice) -> ContractGit:
    return ContractGit(folder, backend=means, lock_timeout=0.2)


def publish_and_get_error(store: ContractGit, **files: bytes) -> InterlockError:
    with pytest.raises(InterlockError) as raised:
        publish(store, files or {"d/n/9.txt": b"nine\n"})
    return raised.value


@pytest.mark.spec("ST-4.6.4-1")
def test_one_commit_per_publication_with_author_and_reason(
    store: ContractGit, folder: Path, means: GitChoice
) -> None:
    assert store.backend_name == means
    assert (store.head(), store.log()) == (None, [])
    first = publish(store, {"d/n/1.txt": b"one\n"}, "the first of all")
    second = publish(
        store, {"d/n/2.txt": b"two\n", "d/n/1.txt": b"uno\n"}, "räsons", "An Author <a@example.org>"
    )
    assert store.head() == second
    told = git(folder, "log", "--format=%H|%an|%ae|%s")
    assert told.splitlines() == [
        f"{second}|An Author|a@example.org|räsons",
        f"{first}|operator|operator@localhost|the first of all",
    ]
    assert is_clean(folder)
    assert (folder / "d/n/1.txt").read_bytes() == b"uno\n"
    assert [(one[0], one[1], one[3].strip()) for one in store.log()] == [
        (second, "An Author", "räsons"),
        (first, "operator", "the first of all"),
    ]
    assert [one[0] for one in store.log(["d/n/2.txt"])] == [second]
    assert [one[0] for one in store.log(["d/n"], 1)] == [second]
    assert store.log(["other"]) == []
    tree = store.tree(second)
    assert sorted(tree) == ["d/n/1.txt", "d/n/2.txt"]
    assert sorted(store.blobs(list(tree.values())).values()) == [b"two\n", b"uno\n"]
    assert store.publish(lambda _: ({}, ""), author="x", seconds=0) is None
    assert store.head() == second


def test_backends_read_each_other(folder: Path) -> None:
    by_git, by_dulwich = (ContractGit(folder, backend=one) for one in MEANS)
    publish(by_git, {"d/n/1.txt": b"one\n"})
    newest = publish(by_dulwich, {"d/n/2.txt": b"two\n"})
    git(folder, "pack-refs", "--all")
    git(folder, "gc", "--quiet")
    assert by_git.head() == by_dulwich.head() == newest
    assert by_git.tree(newest) == by_dulwich.tree(newest)
    assert by_git.log() == [
        type(one)((one[0], one[1], one[2], one[3].strip())) for one in by_dulwich.log()
    ]
    last = publish(by_dulwich, {"d/n/3.txt": b"three\n"})
    assert by_git.log(["d/n/3.txt"])[0][0] == last
    assert is_clean(folder)


def test_ignores_git_config_of_user(
    store: ContractGit, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    ran = tmp_path / "ran"
    for name in ("pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        hook = hooks / name
        hook.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
        hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    (home / ".gitconfig").write_text(
        "[user]\n name = Somebody Else\n email = else@example.org\n[commit]\n gpgsign = true\n"
        f"[gpg]\n program = {hooks}/pre-commit\n[core]\n hooksPath = {hooks}\n"
        "[init]\n defaultBranch = other\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody Else")
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere-index"))
    publish(store, {"d/n/1.txt": b"one\n"})
    # Those of the repository itself count no more than the user's.
    for hook in hooks.iterdir():
        (folder / ".git" / "hooks").mkdir(exist_ok=True)
        os.link(hook, folder / ".git" / "hooks" / hook.name)
    git(folder, "config", "core.fsmonitor", str(hooks / "pre-commit"))
    publish(store, {"d/n/2.txt": b"two\n"})
    assert not ran.exists()
    assert not (tmp_path / "elsewhere").exists()
    git(folder, "config", "--unset", "core.fsmonitor")
    assert set(git(folder, "log", "--format=%an|%cn").splitlines()) == {"operator|operator"}
    assert git(folder, "symbolic-ref", "HEAD") == "refs/heads/main\n"


# -- what others have left


def test_keeps_manual_changes_uncommitted(store: ContractGit, folder: Path) -> None:
    publish(store, {"d/n/1.txt": b"one\n", "d/n/2.txt": b"two\n", "d/n/3.txt": b"three\n"})
    (folder / "d/n/1.txt").write_text("by hand\n")
    (folder / "d/n/2.txt").write_text("staged\n")
    git(folder, "add", "d/n/2.txt")
    (folder / "new.txt").write_text("nobody knows it\n")
    (folder / "d/n/4.txt").write_text("in the way\n")
    assert store.changed_by_hand() == ["d/n/1.txt", "d/n/2.txt"]
    files = {f"d/n/{n}.txt": f"published {n}\n".encode() for n in (1, 2, 3, 4, 5)}
    newest = publish(store, files)
    committed = store.blobs(list(store.tree(newest).values()))
    assert set(committed.values()) == set(files.values())
    assert (folder / "d/n/1.txt").read_text() == "by hand\n"
    assert (folder / "d/n/2.txt").read_text() == "staged\n"
    assert (folder / "d/n/3.txt").read_text() == "published 3\n"
    assert (folder / "d/n/4.txt").read_text() == "in the way\n"
    assert (folder / "d/n/5.txt").read_text() == "published 5\n"
    told = git(folder, "status", "--porcelain").splitlines()
    assert sorted(told) == [" M d/n/1.txt", " M d/n/4.txt", "?? new.txt", "M  d/n/2.txt"]
    assert "new.txt" not in store.tree(newest)


@pytest.mark.parametrize("lock", ["index.lock", "refs/heads/main.lock"])
def test_reports_locked_repository(store: ContractGit, folder: Path, lock: str) -> None:
    publish(store, {"d/n/1.txt": b"one\n"})
    held = folder / ".git" / lock
    held.touch()
    before = store.head()
    error = publish_and_get_error(store)
    assert error.failure.name == "too_busy"
    assert error.retryable
    assert str(held) in error.message
    assert "remove the file" in error.message
    assert store.head() == before
    # Reading goes on.
    assert "d/n/1.txt" in store.tree(str(before))
    held.unlink()
    publish(store, {"d/n/9.txt": b"nine\n"})
    assert is_clean(folder)


def test_reports_pending_publication(store: ContractGit, folder: Path, means: GitChoice) -> None:
    publish(store, {"d/n/1.txt": b"one\n"})
    place = find_repository(folder)
    assert place is not None
    with place.lock(0.0):
        error = publish_and_get_error(store)
    assert error.failure.name == "too_busy"
    assert "Another process is publishing" in error.message
    publish(store, {"d/n/2.txt": b"two\n"})


def test_rejects_folder_that_is_no_repository(store: ContractGit, folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine\n")
    error = publish_and_get_error(store)
    assert error.failure.name == "config_error"
    assert "is not a Git repository" in error.message
    assert sorted(one.name for one in folder.iterdir()) == ["notes.txt"]
    (folder / "notes.txt").unlink()
    publish(store, {"d/n/1.txt": b"one\n"})
    assert is_clean(folder)


def test_rejects_file_in_place_of_folder(tmp_path: Path, means: GitChoice) -> None:
    (tmp_path / "registry").write_text("")
    error = publish_and_get_error(ContractGit(tmp_path / "registry", backend=means))
    assert "is a file" in error.message or "Cannot read the registry" in error.message


def test_folder_inside_repository_becomes_own_repository(tmp_path: Path, means: GitChoice) -> None:
    git(tmp_path, "init", "--quiet")
    store = ContractGit(tmp_path / "contracts", backend=means)
    publish(store, {"d/n/1.txt": b"one\n"})
    assert git(tmp_path, "log", "--oneline", check=False) == ""
    assert is_clean(tmp_path / "contracts")


def test_publishes_to_bare_repository(folder: Path, tmp_path: Path, means: GitChoice) -> None:
    folder.mkdir()
    git(folder, "init", "--quiet", "--bare", "--initial-branch=trunk")
    store = ContractGit(folder, backend=means)
    publish(store, {"d/n/1.txt": b"one\n"})
    newest = publish(store, {"d/n/2.txt": b"two\n"})
    assert git(folder, "rev-parse", "trunk").strip() == newest
    assert sorted(store.tree(newest)) == ["d/n/1.txt", "d/n/2.txt"]
    assert store.changed_by_hand() == []
    assert not (folder / "index").exists()
    assert not (folder / "d").exists()
    git(folder, "fsck", "--strict")


def test_publishes_to_linked_worktree(folder: Path, tmp_path: Path, means: GitChoice) -> None:
    publish(ContractGit(folder, backend=means), {"d/n/1.txt": b"one\n"})
    linked = tmp_path / "linked"
    git(folder, "worktree", "add", "--quiet", "-b", "other", str(linked))
    store = ContractGit(linked, backend=means)
    newest = publish(store, {"d/n/2.txt": b"two\n"})
    assert git(folder, "rev-parse", "other").strip() == newest
    assert (linked / "d/n/2.txt").exists()
    assert is_clean(linked)
    assert is_clean(folder)


def test_rejects_detached_head(store: ContractGit, folder: Path) -> None:
    first = publish(store, {"d/n/1.txt": b"one\n"})
    publish(store, {"d/n/2.txt": b"two\n"})
    git(folder, "checkout", "--quiet", first)
    error = publish_and_get_error(store)
    assert "is on no branch" in error.message
    assert "git switch" in error.message
    # Who asks reads what is checked out.
    assert store.head() == first
    git(folder, "switch", "--quiet", "main")
    publish(store, {"d/n/3.txt": b"three\n"})


def test_rejects_merge_in_progress(store: ContractGit, folder: Path) -> None:
    publish(store, {"d/n/1.txt": b"one\n"})
    git(folder, "switch", "--quiet", "-c", "side")
    (folder / "d/n/1.txt").write_text("side\n")
    git(folder, "commit", "--quiet", "-am", "side")
    git(folder, "switch", "--quiet", "main")
    (folder / "d/n/1.txt").write_text("main\n")
    git(folder, "commit", "--quiet", "-am", "main")
    git(folder, "merge", "side", check=False)
    error = publish_and_get_error(store)
    assert error.failure.name == "too_busy"
    assert "merge is in progress" in error.message
    git(folder, "merge", "--abort")
    publish(store, {"d/n/3.txt": b"three\n"})
    assert is_clean(folder)


def test_prepares_again_after_foreign_commit(store: ContractGit, folder: Path) -> None:
    publish(store, {"d/n/1.txt": b"one\n"})
    heads: list[str | None] = []

    def prepare(head: str | None) -> tuple[dict[str, bytes], str]:
        heads.append(head)
        if len(heads) == 1:
            (folder / "by-hand.txt").write_text("a person's\n")
            git(folder, "add", "by-hand.txt")
            git(folder, "commit", "--quiet", "-m", "by hand")
        return {"d/n/2.txt": b"two\n"}, "published\n"

    newest = store.publish(prepare, author="operator", seconds=0)
    assert len(heads) == 2
    assert heads[0] != heads[1]
    assert newest == store.head()
    assert git(folder, "log", "--format=%s").split("\n")[:2] == ["published", "by hand"]
    assert is_clean(folder)


def test_reports_damaged_repository(store: ContractGit, folder: Path) -> None:
    newest = publish(store, {"d/n/1.txt": b"one\n"})
    blob = store.tree(newest)["d/n/1.txt"]
    loose = folder / ".git" / "objects" / blob[:2] / blob[2:]
    loose.chmod(0o600)
    loose.unlink()
    with pytest.raises(InterlockError) as raised:
        store.blobs([blob])
    assert raised.value.failure.name == "config_error"
    assert "fsck" in raised.value.message


@pytest.mark.parametrize(
    "head",
    [b"\xff\xfe", b"", b"nonsense", b"ref: refs/heads/../../config", b"ref: config", b"a" * 39],
)
def test_reports_unreadable_head(store: ContractGit, folder: Path, head: bytes) -> None:
    publish(store, {"d/n/1.txt": b"one\n"})
    (folder / ".git" / "HEAD").write_bytes(head)
    with pytest.raises(InterlockError, match="HEAD of"):
        store.head()


def test_reports_unreadable_branch(store: ContractGit, folder: Path) -> None:
    publish(store, {"d/n/1.txt": b"one\n"})
    (folder / ".git" / "refs" / "heads" / "main").write_text("--help\n")
    with pytest.raises(InterlockError, match="is damaged"):
        store.head()


def test_does_not_follow_links(store: ContractGit, folder: Path, tmp_path: Path) -> None:
    publish(store, {"d/n/1.txt": b"one\n"})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "e").symlink_to(elsewhere)
    publish(store, {"e/n/1.txt": b"one\n"})
    assert list(elsewhere.iterdir()) == []


# -- cut short


@pytest.mark.parametrize("moved", [False, True])
def test_completes_interrupted_publication(store: ContractGit, folder: Path, moved: bool) -> None:
    first = publish(store, {"d/n/1.txt": b"one\n"})
    second = publish(store, {"d/n/2.txt": b"two\n"})
    # As if it had ended just before, or just after, the branch was moved.
    git(folder, "reset", "--quiet", "--hard", first)
    place = find_repository(folder)
    assert place is not None
    work = UnfinishedPublication(
        second, {"d/n/2.txt": None}, {"d/n/2.txt": blob_id(b"two\n", second)}, 2**22
    )
    place.write_unfinished(work)
    if moved:
        git(folder, "update-ref", "refs/heads/main", second)
        assert git(folder, "status", "--porcelain") == "D  d/n/2.txt\n"
    (folder / ".git" / "index.lock").touch()
    (folder / ".git" / "refs/heads/main.lock").write_text(second[:7])
    (folder / ".git" / "interlock-written-abc").write_text("half")
    publish(store, {"d/n/3.txt": b"three\n"})
    assert is_clean(folder)
    assert (folder / "d/n/2.txt").exists() is moved
    left = {one.name for one in (folder / ".git").iterdir() if one.name.startswith("interlock")}
    assert left == {"interlock.lock"}


def test_keeps_lock_of_running_process(store: ContractGit, folder: Path) -> None:
    newest = publish(store, {"d/n/1.txt": b"one\n"})
    place = find_repository(folder)
    assert place is not None
    place.write_unfinished(UnfinishedPublication(newest, {}, {}, os.getpid()))
    lock = folder / ".git" / "index.lock"
    lock.touch()
    assert publish_and_get_error(store).failure.name == "too_busy"
    assert lock.exists()


def test_index_lock_delays_working_tree(
    store: ContractGit, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(store, {"d/n/1.txt": b"one\n"})
    lock = folder / ".git" / "index.lock"

    def prepare(_: str | None) -> tuple[dict[str, bytes], str]:
        lock.touch()
        return {"d/n/2.txt": b"two\n"}, "published\n"

    newest = store.publish(prepare, author="operator", seconds=0)
    assert newest == store.head()
    assert "the working tree is not up to date yet" in caplog.text
    lock.unlink()
    publish(store, {"d/n/3.txt": b"three\n"})
    assert is_clean(folder)


# -- where there is no git


def test_uses_dulwich_without_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert ContractGit(folder).backend_name == "dulwich"
    monkeypatch.setattr(contract_git, "is_installed", lambda: False)
    with pytest.raises(InterlockError, match=r"interlock\[contracts\]"):
        ContractGit(folder)


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    yield
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before
