"""Git operations by the program `git`: objects, commits, branches and the index, each with one
short process.

The program gets no choices. It reads only the config of the repository, and no setting of it that
could start another program: no hooks, no pager, no signatures, no file system monitor. No protocol
is allowed, so nothing is ever fetched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from interlock.contracts.registry.git_folder import RepositoryFolder
from interlock.contracts.registry.records import busy_error, registry_error
from interlock.errors import InterlockError

_TIMEOUT_SECONDS: Final = 120.0
_MAX_PATH_ARGUMENTS: Final = 1000
"""This number of paths fits on a command line, whatever their length."""
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
_TEMPORARY_REF: Final = "refs/interlock/publishing"
_ENTRY_SEPARATOR: Final = b"\x1e"
_FIELD_SEPARATOR: Final = b"\x1f"
_FILE_MODE: Final = "100644"


class CommitEntry(tuple[str, str, int, str]):
    """A commit in the log: id, author, seconds since 1970, message."""

    __slots__ = ()


class GitProgram:
    """A repository that is accessed with the program `git`."""

    name = "git"

    def __init__(self, program: str, place: RepositoryFolder) -> None:
        self._program = program
        self._repository = place

    @classmethod
    def create(cls, program: str, folder: Path) -> None:
        """Create a repository in a folder that is empty or does not exist. Raises
        InterlockError."""
        _run(
            [program, "init", "--quiet", "--template=", "--initial-branch=main", str(folder)],
            folder,
        )

    # -- reading

    def tree(self, commit: str) -> dict[str, str]:
        """Return the files of a commit: blob ids by path."""
        output = self._git("ls-tree", "-r", "-z", "--full-tree", commit)
        blobs: dict[str, str] = {}
        for line in output.split(b"\0"):
            header, _, path = line.partition(b"\t")
            fields = header.split(b" ")
            if len(fields) == 3 and fields[1] == b"blob":
                blobs[os.fsdecode(path)] = fields[2].decode()
        return blobs

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the content of each blob."""
        if not ids:
            return {}
        request = "".join(f"{id}\n" for id in ids).encode()
        output = memoryview(self._git("cat-file", "--batch", input=request))
        contents: dict[str, bytes] = {}
        offset = 0
        for id in ids:
            header = bytes(output[offset : offset + 200]).partition(b"\n")[0]
            fields = header.split(b" ")
            if len(fields) != 3:
                raise registry_error(
                    f"{self._repository.folder} is damaged: its object {id} is missing. Run `git "
                    "fsck` in it."
                )
            start, size = offset + len(header) + 1, int(fields[2])
            contents[id] = bytes(output[start : start + size])
            offset = start + size + 1
        return contents

    def log(self, commit: str, paths: Sequence[str], limit: int) -> list[CommitEntry]:
        """Return the newest commits that touched these paths, or all commits, newest first."""
        format = "%H%x1f%an%x1f%at%x1f%B%x1e"
        output = self._git(
            "--literal-pathspecs", "log", "--no-color", "--no-notes", "--no-show-signature",
            "--topo-order", f"--max-count={limit}", f"--format={format}", commit, "--", *paths,
        )  # fmt: skip
        return [_parse_entry(entry) for entry in output.split(_ENTRY_SEPARATOR) if entry.strip()]

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
        identity = f"{author[0]} <{author[1]}> {seconds} +0000"
        stream = [
            f"commit {_TEMPORARY_REF}\nmark :1\nauthor {identity}\ncommitter {identity}\n".encode(),
            _data_command(message.encode()),
            f"from {parent}\n".encode() if parent is not None else b"",
        ]
        for path, content in files.items():
            stream.append(f"M {_FILE_MODE} inline {path}\n".encode())
            stream.append(_data_command(content))
        # The temporary ref is needed only while the stream is read.
        stream.append(
            b"get-mark :1\nreset %b\nfrom %b\n\ndone\n" % (_TEMPORARY_REF.encode(), _NULL)
        )
        commit = self._git(
            "fast-import", "--quiet", "--done", "--force", "--date-format=raw",
            input=b"".join(stream),
        )  # fmt: skip
        return commit.decode().strip()

    def update_branch(self, branch: str, commit: str, parent: str | None, reason: str) -> bool:
        """Move a branch to a commit if it points to the parent. Return whether it did."""
        try:
            self._git("update-ref", "-m", reason[:200], branch, commit, parent or "")
        except InterlockError:
            if self._repository.head().commit != parent:
                return False
            raise
        return True

    def tag(self, name: str, commit: str) -> None:
        """Create a tag. Raises InterlockError if the tag exists."""
        self._git("update-ref", f"refs/tags/{name}", commit, "")

    def read_staged(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the blob ids of these paths in the index."""
        blobs: dict[str, str] = {}
        for start in range(0, len(paths), _MAX_PATH_ARGUMENTS):
            batch = paths[start : start + _MAX_PATH_ARGUMENTS]
            output = self._git("--literal-pathspecs", "ls-files", "--stage", "-z", "--", *batch)
            for line in output.split(b"\0"):
                header, _, path = line.partition(b"\t")
                if path:
                    blobs[os.fsdecode(path)] = header.split(b" ")[1].decode()
        return blobs

    def stage(self, blobs: Mapping[str, str]) -> None:
        """Write these blobs to the index."""
        lines = [f"{_FILE_MODE} {blob}\t{path}\0" for path, blob in blobs.items()]
        if lines:
            self._git("update-index", "-z", "--index-info", input="".join(lines).encode())

    # -- the program

    def _git(self, *arguments: str, input: bytes = b"") -> bytes:
        place = self._repository
        command = [self._program, "--no-pager", f"--git-dir={place.git_dir}"]
        if place.work_tree is not None:
            command.append(f"--work-tree={place.work_tree}")
        for setting in _SETTINGS:
            command += ["-c", setting]
        return _run([*command, *arguments], place.folder, input)


_NULL: Final = b"0" * 40


def _data_command(content: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(content), content)


def _parse_entry(entry: bytes) -> CommitEntry:
    id, author, seconds, message = entry.strip(b"\n").split(_FIELD_SEPARATOR, 3)
    texts = [part.decode(errors="replace") for part in (id, author, message)]
    return CommitEntry((texts[0], texts[1], int(seconds), texts[2]))


def _run(command: list[str], folder: Path, input: bytes = b"") -> bytes:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.run(
            command,
            input=input,
            capture_output=True,
            env=environment | _ENVIRON,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            # An interrupt of the command line (Ctrl-C) must not stop git in the middle of a commit.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise busy_error(
            f"git did not finish in {folder} within {_TIMEOUT_SECONDS:g} s. Try again."
        ) from None
    except OSError as error:
        raise registry_error(f"Cannot start git: {error.strerror or error}.") from None
    if process.returncode:
        raise _git_error(process.stderr.decode(errors="replace"), folder)
    return process.stdout


def _git_error(stderr: str, folder: Path) -> InterlockError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    error_line = next((line for line in lines if line.startswith(("fatal:", "error:"))), "")
    message = (error_line or (lines[0] if lines else "no reason given")).removeprefix("fatal: ")
    if ".lock'" in stderr and "File exists" in stderr:
        return busy_error(f"Another git program uses {folder}: {message}", registry=str(folder))
    return registry_error(f"git failed in {folder}: {message}", registry=str(folder))
