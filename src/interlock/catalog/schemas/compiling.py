"""Runs the Protobuf compiler: texts of `.proto` files in, what they say out.

The compiler is a process of its own, because it writes what is wrong to its own stderr. It is part
of an extra, and asked for only when there is something to compile.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from interlock.catalog.schemas.descriptors import read_descriptors
from interlock.catalog.schemas.problems import Problem, SchemasWrong
from interlock.catalog.schemas.proto import Protos
from interlock.errors import CONFIG, InterlockError

PROTO: Final = "proto"
"""The folder of the sources, below that of the schemas; imports are relative to it."""
_WITHIN: Final = 60.0
_SAID: Final = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+):(?P<column>\d+): (?P<words>.*)$")
_OF_FILE: Final = re.compile(r"^(?P<file>[^:\s]+\.proto): (?P<words>.*)$")
_WARNING: Final = "warning: "
_LOGGED: Final = re.compile(r"^(WARNING: |[IWEF]\d{4} )")


def require_extra() -> None:
    """Raises InterlockError, with what to install, when there is no Protobuf here."""
    for package in ("google.protobuf", "grpc_tools"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise InterlockError(
                CONFIG,
                "Protobuf needs a part of Interlock that is not installed: "
                "pip install 'interlock[contracts]', or '.[contracts]' in a checkout.",
            )


def include_folder() -> Path:
    """The `.proto` files that everybody may import: options for HTTP and JSON."""
    return Path(str(files("interlock.catalog.schemas") / "include"))


def compile_protos(sources: Mapping[str, str]) -> Protos:
    """What these files say, by the names by which they import each other.

    Raises SchemasWrong, with file and line, for what is no Protobuf; InterlockError when there is
    no compiler.
    """
    return read_descriptors(descriptor_set(sources), only=sources)


def descriptor_set(sources: Mapping[str, str]) -> bytes:
    """The same, as the bytes of a `FileDescriptorSet` with everything they import."""
    if not sources:
        return b""
    require_extra()
    with tempfile.TemporaryDirectory(prefix="interlock-protos-") as folder:
        below = Path(folder)
        for name, text in sources.items():
            _check_name(name)
            path = below / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        try:
            # A folder that brings a file of ours, or the whole of it, is read by its own.
            return protoc(sorted(sources), (".", include_folder()), cwd=below)
        except NotCompiled as refused:
            raise SchemasWrong(problems_of(refused.said)) from None


class NotCompiled(Exception):
    """The compiler refused. `said` is its own words."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


def protoc(names: Iterable[str], folders: Iterable[str | Path], *, cwd: Path) -> bytes:
    """The bytes of a `FileDescriptorSet` of these files and everything they import.

    `folders` are where imports are looked for, in their order; `cwd` is what relative paths start
    from. Raises NotCompiled; InterlockError when there is no compiler, or it does not end.
    """
    require_extra()
    with tempfile.TemporaryDirectory(prefix="interlock-protoc-") as folder:
        out = Path(folder, "descriptors")
        command = [
            *(sys.executable, "-P", "-m", "grpc_tools.protoc"),
            *(f"-I{one}" for one in folders),
            *("--include_imports", "--include_source_info", f"--descriptor_set_out={out}"),
            *names,
        ]
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                env={**os.environ, "GRPC_PYTHON_DISABLE_DYNAMIC_STUBS": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_WITHIN,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InterlockError(
                CONFIG, f"The Protobuf compiler did not end within {_WITHIN:.0f} s."
            ) from None
        if done.returncode != 0 or not out.exists():
            raise NotCompiled(done.stderr.decode("utf-8", "replace"))
        return out.read_bytes()


class Said(NamedTuple):
    """One thing that the compiler did not like. Without a file: it names none."""

    file: str
    line: int
    column: int
    words: str


def read_said(said: str) -> Iterator[Said]:
    """What the compiler said, without warnings and what it writes into logs."""
    for line in said.splitlines():
        placed, of_file = _SAID.match(line), _OF_FILE.match(line)
        words = placed["words"] if placed is not None else line
        if not words.strip() or words.startswith(_WARNING) or _LOGGED.match(line):
            continue
        if placed is not None:
            yield Said(placed["file"], int(placed["line"]), int(placed["column"]), words)
        elif of_file is not None:
            yield Said(of_file["file"], 0, 0, of_file["words"])
        else:
            yield Said("", 0, 0, words)


def problems_of(said: str) -> list[Problem]:
    """What the compiler said, with the places in the folder of schemas."""
    found = [
        Problem(f"{PROTO}/{one.file}" if one.file else PROTO, one.words, one.line, one.column)
        for one in read_said(said)
    ]
    return found or [Problem(PROTO, "the Protobuf compiler failed, and did not say why")]


def _check_name(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or name.startswith("-"):
        raise SchemasWrong([Problem(name, "a file of Protobuf lies inside its folder")])
