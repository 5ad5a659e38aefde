"""Git by its own program: objects, commits, branches and the index, each with one short process.

The program is left nothing to decide. No config but the repository's own is read, and of that
nothing that could start another program: no hooks, no pager, no signatures, no file system monitor.
No protocol is allowed, so nothing is ever fetched.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from interlock.contracts.registry.git_folder import RepositoryFolder
from interlock.contracts.registry.records import locked, unusable
from interlock.errors import InterlockError

_WITHIN: Final = 120.0
_MOST_ARGUMENTS: Final = 1000
"""So many paths fit on a command line, however long they are."""
_SETTINGS: Final = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "core.fsync=committed,reference",
    "core.quotePath=false",
    "gc.auto=0",
    "log.showSignature=false",
    "maintenance.auto=false",
    "protocol.allow=never",
)
_ENVIRON: Final = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "HOME": os.devnull,
    "XDG_CONFIG_HOME": os.devnull,
    "LC_ALL": "C",
}
_OWN_REF: Final = "refs/interlock/publishing"
_END: Final = b"\x1e"
_BETWEEN: Final = b"\x1f"
_FILE: Final = "100644"


class CommitEntry(tuple[str, str, int, str]):
    """A commit as it is logged: id, author, seconds on the wall clock, message."""

    __slots__ = ()


class GitProgram:
    """The repository at a place, by the program `git`."""

    name = "git"

    def __init__(self, program: str, place: RepositoryFolder) -> None:
        self._program = program
        self._place = place

    @classmethod
    def make(cls, program: str, folder: Path) -> None:
        """A new repository in a folder that is empty or not there. Raises InterlockError."""
        _run(
            [program, "init", "--quiet", "--template=", "--initial-branch=main", str(folder)],
            folder,
        )

    # -- reading

    def tree(self, commit: str) -> dict[str, str]:
        """Every file of a commit: its blob by its path."""
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", commit)
        found: dict[str, str] = {}
        for line in listed.split(b"\0"):
            kind, _, path = line.partition(b"\t")
            words = kind.split(b" ")
            if len(words) == 3 and words[1] == b"blob":
                found[os.fsdecode(path)] = words[2].decode()
        return found

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The content of each."""
        if not ids:
            return {}
        asked = "".join(f"{id}\n" for id in ids).encode()
        told = memoryview(self._git("cat-file", "--batch", input=asked))
        found: dict[str, bytes] = {}
        at = 0
        for id in ids:
            line = bytes(told[at : at + 200]).partition(b"\n")[0]
            words = line.split(b" ")
            if len(words) != 3:
                raise unusable(
                    f"{self._place.folder} is damaged: its object {id} is missing. "
                    "`git fsck` in it says more."
                )
            begin, size = at + len(line) + 1, int(words[2])
            found[id] = bytes(told[begin : begin + size])
            at = begin + size + 1
        return found

    def log(self, commit: str, paths: Sequence[str], most: int) -> list[CommitEntry]:
        """The newest commits that touched these paths, or any, newest first."""
        format = "%H%x1f%an%x1f%at%x1f%B%x1e"
        told = self._git(
            "--literal-pathspecs", "log", "--no-color", "--no-notes", "--no-show-signature",
            "--topo-order", f"--max-count={most}", f"--format={format}", commit, "--", *paths,
        )  # fmt: skip
        return [_said(one) for one in told.split(_END) if one.strip()]

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
        who = f"{author[0]} <{author[1]}> {seconds} +0000"
        stream = [
            f"commit {_OWN_REF}\nmark :1\nauthor {who}\ncommitter {who}\n".encode(),
            _data(message.encode()),
            f"from {parent}\n".encode() if parent is not None else b"",
        ]
        for path, content in files.items():
            stream.append(f"M {_FILE} inline {path}\n".encode())
            stream.append(_data(content))
        # The branch of its own is not needed any longer than the stream is read.
        stream.append(b"get-mark :1\nreset %b\nfrom %b\n\ndone\n" % (_OWN_REF.encode(), _NULL))
        made = self._git(
            "fast-import", "--quiet", "--done", "--force", "--date-format=raw",
            input=b"".join(stream),
        )  # fmt: skip
        return made.decode().strip()

    def move(self, branch: str, commit: str, parent: str | None, reason: str) -> bool:
        """Let a branch lead to a commit, if it led to the parent. Whether it did."""
        try:
            self._git("update-ref", "-m", reason[:200], branch, commit, parent or "")
        except InterlockError:
            if self._place.head().commit != parent:
                return False
            raise
        return True

    def tag(self, name: str, commit: str) -> None:
        """Raises InterlockError when there is one of this name."""
        self._git("update-ref", f"refs/tags/{name}", commit, "")

    def staged(self, paths: Sequence[str]) -> dict[str, str]:
        """What the index has at these paths."""
        found: dict[str, str] = {}
        for first in range(0, len(paths), _MOST_ARGUMENTS):
            some = paths[first : first + _MOST_ARGUMENTS]
            listed = self._git("--literal-pathspecs", "ls-files", "--stage", "-z", "--", *some)
            for line in listed.split(b"\0"):
                kind, _, path = line.partition(b"\t")
                if path:
                    found[os.fsdecode(path)] = kind.split(b" ")[1].decode()
        return found

    def stage(self, blobs: Mapping[str, str]) -> None:
        """Put these into the index."""
        lines = [f"{_FILE} {blob}\t{path}\0" for path, blob in blobs.items()]
        if lines:
            self._git("update-index", "-z", "--index-info", input="".join(lines).encode())

    # -- the program

    def _git(self, *arguments: str, input: bytes = b"") -> bytes:
        place = self._place
        command = [self._program, "--no-pager", f"--git-dir={place.git_dir}"]
        if place.work_tree is not None:
            command.append(f"--work-tree={place.work_tree}")
        for setting in _SETTINGS:
            command += ["-c", setting]
        return _run([*command, *arguments], place.folder, input)


_NULL: Final = b"0" * 40


def _data(content: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(content), content)


def _said(one: bytes) -> CommitEntry:
    id, author, seconds, message = one.strip(b"\n").split(_BETWEEN, 3)
    texts = [part.decode(errors="replace") for part in (id, author, message)]
    return CommitEntry((texts[0], texts[1], int(seconds), texts[2]))


def _run(command: list[str], folder: Path, input: bytes = b"") -> bytes:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command,
            input=input,
            capture_output=True,
            env=environ | _ENVIRON,
            timeout=_WITHIN,
            check=False,
            # What is told to end the command line must not leave half a commit behind.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise locked(f"git did not come to an end in {folder} within {_WITHIN:g} s.") from None
    except OSError as error:
        raise unusable(f"git cannot be started: {error.strerror or error}.") from None
    if done.returncode:
        raise _trouble(done.stderr.decode(errors="replace"), folder)
    return done.stdout


def _trouble(said: str, folder: Path) -> InterlockError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith(("fatal:", "error:"))), "")
    sentence = (told or (lines[0] if lines else "it did not say why")).removeprefix("fatal: ")
    if ".lock'" in said and "File exists" in said:
        return locked(f"Another git program uses {folder}: {sentence}", registry=str(folder))
    return unusable(f"git cannot do its work in {folder}: {sentence}", registry=str(folder))
