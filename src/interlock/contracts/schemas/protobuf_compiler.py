"""Reads what the Protobuf compiler wrote, into the plain data of `proto.py`.

The only module that uses the classes of Protobuf. They belong to an extra, and are imported when
they are needed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from interlock.contracts.schemas.proto import (
    ApiInfo,
    EnumType,
    EnumValue,
    FieldDeclaration,
    HttpRule,
    MessageDeclaration,
    MethodDeclaration,
    ProtoFile,
    ProtoFiles,
    ServiceDeclaration,
)
from interlock.contracts.schemas.reader import SchemaError, SchemaProblem
from interlock.errors import CONFIG, InterlockError

_HTTP: Final = "google.api.http"
_BEHAVIOR: Final = "google.api.field_behavior"
_JSON: Final = "interlock.schema.json"
_API: Final = "interlock.schema.api"
_CLOSED: Final = "interlock.schema.closed"
_INLINE: Final = "interlock.schema.inline"
_WORD: Final = "interlock.schema.word"
_ACCESS: Final = "interlock.schema.access"
_PLAIN: Final = 1
_ACCESSES: Final = {1: "anybody", 2: "operator", 3: "signed_in"}
_BEHAVIORS: Final = {1: "OPTIONAL", 2: "REQUIRED"}
# The numbers by which a descriptor says where a comment stands.
_FILE_MESSAGE, _FILE_ENUM, _FILE_SERVICE, _FILE_SYNTAX = 4, 5, 6, 12
_MESSAGE_FIELD, _MESSAGE_NESTED, _MESSAGE_ENUM = 2, 3, 4
_ENUM_VALUE, _SERVICE_METHOD = 2, 2
_VERBS: Final = ("get", "put", "post", "delete", "patch")
_Path = tuple[int, ...]


def read_descriptors(data: bytes, *, only: Container[str]) -> ProtoFiles:
    """What a `FileDescriptorSet` says of these files, and of what they import."""
    if not data:
        return ProtoFiles([])
    descriptor_pb2 = import_module("google.protobuf.descriptor_pb2")
    whole = descriptor_pb2.FileDescriptorSet.FromString(data)
    options = _Options(whole)
    files = [_File(one, options).read() for one in whole.file]
    return ProtoFiles(
        [one for one in files if one.name in only],
        [one for one in files if one.name not in only],
    )


class _Options:
    """Options that are not Protobuf's own, read by the definitions that came along."""

    def __init__(self, whole: Any) -> None:
        pool_of = import_module("google.protobuf.descriptor_pool")
        self._factory = import_module("google.protobuf.message_factory")
        self._pool = pool_of.DescriptorPool()
        for file in whole.file:
            self._pool.Add(file)
        self._known: dict[str, Any] = {}

    def get(self, options: Any, name: str) -> Any:
        """The value of an option; None: it is not set, or nobody defined it."""
        extension = self._extension(name)
        if extension is None:
            return None
        read = self._read(options, extension)
        return read.Extensions[extension] if read.HasExtension(extension) else None

    def all(self, options: Any, name: str) -> list[Any]:
        """The values of an option that may be set more than once."""
        extension = self._extension(name)
        return (
            [] if extension is None else list(self._read(options, extension).Extensions[extension])
        )

    def _read(self, options: Any, extension: Any) -> Any:
        of = self._factory.GetMessageClass(extension.containing_type)
        return of.FromString(options.SerializeToString())

    def _extension(self, name: str) -> Any:
        if name not in self._known:
            try:
                found = self._pool.FindExtensionByName(name)
                # Makes the classes of this file, with the extension among what they know.
                self._factory.GetMessageClassesForFiles([found.file.name], self._pool)
            except KeyError:
                found = None
            self._known[name] = found
        return self._known[name]


class _File:
    """One file, while it is read."""

    def __init__(self, file: Any, options: _Options) -> None:
        self._file = file
        self._options = options
        self._package: str = file.package
        self._plain = options.get(file.options, _JSON) == _PLAIN
        self._comments: dict[_Path, str] = {
            tuple(one.path): tidy(one.leading_comments or one.trailing_comments)
            for one in file.source_code_info.location
        }

    def read(self) -> ProtoFile:
        file = self._file
        messages, enums = [], []
        for path, scope, message in self._messages():
            messages.append(self._message(path, scope, message))
            enums += [
                self._enum((*path, _MESSAGE_ENUM, number), f"{scope}.{message.name}", one)
                for number, one in enumerate(message.enum_type)
            ]
        enums += [
            self._enum((_FILE_ENUM, number), self._package, one)
            for number, one in enumerate(file.enum_type)
        ]
        api = self._options.get(file.options, _API)
        return ProtoFile(
            name=file.name,
            package=self._package,
            imports=tuple(file.dependency),
            messages=tuple(messages),
            enums=tuple(enums),
            services=tuple(
                self._service((_FILE_SERVICE, number), one)
                for number, one in enumerate(file.service)
            ),
            api=None if api is None else _api(api),
            about=self._comments.get((_FILE_SYNTAX,), ""),
        )

    def _messages(self) -> Iterator[tuple[_Path, str, Any]]:
        """Every message but those that stand for the entries of a map, in the order of the file."""

        def walk(path: _Path, scope: str, found: Any) -> Iterator[tuple[_Path, str, Any]]:
            for number, one in enumerate(found):
                if one.options.map_entry:
                    continue
                here = (*path, number)
                yield here, scope, one
                inside = f"{scope}.{one.name}".lstrip(".")
                yield from walk((*here, _MESSAGE_NESTED), inside, one.nested_type)

        yield from walk((_FILE_MESSAGE,), self._package, self._file.message_type)

    def _message(self, path: _Path, scope: str, message: Any) -> MessageDeclaration:
        full_name = f"{scope}.{message.name}".lstrip(".")
        entries = {
            f".{full_name}.{one.name}": one for one in message.nested_type if one.options.map_entry
        }
        fields = []
        for number, one in enumerate(message.field):
            about = self._comments.get((*path, _MESSAGE_FIELD, number), "")
            fields.append(self._field(one, about, message, entries.get(one.type_name)))
        return MessageDeclaration(
            full_name=full_name,
            file=self._file.name,
            package=self._package,
            fields=tuple(fields),
            about=self._comments.get(path, ""),
            plain=self._plain,
            closed=bool(self._options.get(message.options, _CLOSED)),
            inline=bool(self._options.get(message.options, _INLINE)),
            deprecated=message.options.deprecated,
        )

    def _field(self, field: Any, about: str, message: Any, entry: Any) -> FieldDeclaration:
        value = field if entry is None else entry.field[1]
        behaviors = self._options.all(field.options, _BEHAVIOR)
        in_oneof = field.HasField("oneof_index") and not field.proto3_optional
        return FieldDeclaration(
            name=field.name,
            json_name=field.json_name,
            number=field.number,
            kind=_kind(value),
            type=value.type_name.removeprefix("."),
            repeated=entry is None and field.label == field.LABEL_REPEATED,
            optional=field.proto3_optional,
            behaviors=tuple(_BEHAVIORS[one] for one in behaviors if one in _BEHAVIORS),
            oneof=message.oneof_decl[field.oneof_index].name if in_oneof else "",
            about=about,
            deprecated=field.options.deprecated,
            secret=field.options.debug_redact,
            key="" if entry is None else _kind(entry.field[0]),
        )

    def _enum(self, path: _Path, scope: str, enum: Any) -> EnumType:
        return EnumType(
            full_name=f"{scope}.{enum.name}".lstrip("."),
            file=self._file.name,
            package=self._package,
            values=tuple(
                EnumValue(
                    name=one.name,
                    number=one.number,
                    about=self._comments.get((*path, _ENUM_VALUE, number), ""),
                    word=self._options.get(one.options, _WORD) or "",
                )
                for number, one in enumerate(enum.value)
            ),
            about=self._comments.get(path, ""),
            plain=self._plain,
        )

    def _service(self, path: _Path, service: Any) -> ServiceDeclaration:
        return ServiceDeclaration(
            full_name=f"{self._package}.{service.name}".lstrip("."),
            file=self._file.name,
            methods=tuple(
                self._method((*path, _SERVICE_METHOD, number), one)
                for number, one in enumerate(service.method)
            ),
            about=self._comments.get(path, ""),
        )

    def _method(self, path: _Path, method: Any) -> MethodDeclaration:
        access = self._options.get(method.options, _ACCESS)
        rule = self._options.get(method.options, _HTTP)
        return MethodDeclaration(
            name=method.name,
            input=method.input_type.removeprefix("."),
            output=method.output_type.removeprefix("."),
            http=() if rule is None else tuple(_rules(rule)),
            streams=method.server_streaming,
            access=_ACCESSES.get(access or 0, ""),
            about=self._comments.get(path, ""),
            deprecated=method.options.deprecated,
        )


def _rules(rule: Any) -> Iterator[HttpRule]:
    verb = rule.WhichOneof("pattern")
    if verb in _VERBS:
        yield HttpRule(verb, getattr(rule, verb), rule.body, rule.response_body)
    for one in rule.additional_bindings:
        yield from _rules(one)


def _api(said: Any) -> ApiInfo:
    return ApiInfo(said.title, said.version, said.error, said.session_header)


def _kind(field: Any) -> str:
    """`TYPE_INT64` → `int64`."""
    name: str = field.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


def tidy(comment: str) -> str:
    """A comment as text: lines of a paragraph are one line, an empty line parts paragraphs."""
    paragraphs: list[list[str]] = [[]]
    for line in comment.splitlines():
        words = line.strip()
        if words:
            paragraphs[-1].append(words)
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n\n".join(" ".join(one) for one in paragraphs if one)


# -- Runs the Protobuf compiler: texts of `.proto` files in, what they say out.
#
# The compiler is a process of its own, because it writes what is wrong to its own stderr. It is
# part of an extra, and asked for only when there is something to compile.

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
    return Path(str(files("interlock.contracts.schemas") / "include"))


def compile_protos(sources: Mapping[str, str]) -> ProtoFiles:
    """What these files say, by the names by which they import each other.

    Raises SchemaError, with file and line, for what is no Protobuf; InterlockError when there is
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
        except CompileError as refused:
            raise SchemaError(problems_of(refused.said)) from None


class CompileError(Exception):
    """The compiler refused. `said` is its own words."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


def protoc(names: Iterable[str], folders: Iterable[str | Path], *, cwd: Path) -> bytes:
    """The bytes of a `FileDescriptorSet` of these files and everything they import.

    `folders` are where imports are looked for, in their order; `cwd` is what relative paths start
    from. Raises CompileError; InterlockError when there is no compiler, or it does not end.
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
            raise CompileError(done.stderr.decode("utf-8", "replace"))
        return out.read_bytes()


class CompilerMessage(NamedTuple):
    """One thing that the compiler did not like. Without a file: it names none."""

    file: str
    line: int
    column: int
    words: str


def read_messages(said: str) -> Iterator[CompilerMessage]:
    """What the compiler said, without warnings and what it writes into logs."""
    for line in said.splitlines():
        placed, of_file = _SAID.match(line), _OF_FILE.match(line)
        words = placed["words"] if placed is not None else line
        if not words.strip() or words.startswith(_WARNING) or _LOGGED.match(line):
            continue
        if placed is not None:
            yield CompilerMessage(placed["file"], int(placed["line"]), int(placed["column"]), words)
        elif of_file is not None:
            yield CompilerMessage(of_file["file"], 0, 0, of_file["words"])
        else:
            yield CompilerMessage("", 0, 0, words)


def problems_of(said: str) -> list[SchemaProblem]:
    """What the compiler said, with the places in the folder of schemas."""
    found = [
        SchemaProblem(f"{PROTO}/{one.file}" if one.file else PROTO, one.words, one.line, one.column)
        for one in read_messages(said)
    ]
    return found or [SchemaProblem(PROTO, "the Protobuf compiler failed, and did not say why")]


def _check_name(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or name.startswith("-"):
        raise SchemaError([SchemaProblem(name, "a file of Protobuf lies inside its folder")])
