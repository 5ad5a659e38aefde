"""The Protobuf compiler: runs it and converts its descriptors into the plain data of `proto.py`.

This is the only module that uses the Protobuf library. The library belongs to an extra, and is
imported when it is needed.
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
_PLAIN_STYLE: Final = 1
_ACCESS_NAMES: Final = {1: "anybody", 2: "operator", 3: "signed_in"}
_BEHAVIOR_NAMES: Final = {1: "OPTIONAL", 2: "REQUIRED"}
# Field numbers in descriptors, by which a descriptor locates a comment.
_FILE_MESSAGE, _FILE_ENUM, _FILE_SERVICE, _FILE_SYNTAX = 4, 5, 6, 12
_MESSAGE_FIELD, _MESSAGE_NESTED, _MESSAGE_ENUM = 2, 3, 4
_ENUM_VALUE, _SERVICE_METHOD = 2, 2
_HTTP_METHODS: Final = ("get", "put", "post", "delete", "patch")
_LocationPath = tuple[int, ...]


def read_descriptors(data: bytes, *, only: Container[str]) -> ProtoFiles:
    """Return the declarations of these files, and of the files that they import."""
    if not data:
        return ProtoFiles([])
    descriptor_pb2 = import_module("google.protobuf.descriptor_pb2")
    descriptor_set = descriptor_pb2.FileDescriptorSet.FromString(data)
    options = _OptionReader(descriptor_set)
    files = [_FileReader(file, options).read() for file in descriptor_set.file]
    return ProtoFiles(
        [file for file in files if file.name in only],
        [file for file in files if file.name not in only],
    )


class _OptionReader:
    """A reader for custom options, by the definitions in the descriptor set."""

    def __init__(self, descriptor_set: Any) -> None:
        pool_module = import_module("google.protobuf.descriptor_pool")
        self._factory = import_module("google.protobuf.message_factory")
        self._pool = pool_module.DescriptorPool()
        for file in descriptor_set.file:
            self._pool.Add(file)
        self._extensions: dict[str, Any] = {}

    def get(self, options: Any, name: str) -> Any:
        """Return the value of an option. None: it is not set, or not defined."""
        extension = self._extension(name)
        if extension is None:
            return None
        parsed = self._read(options, extension)
        return parsed.Extensions[extension] if parsed.HasExtension(extension) else None

    def all(self, options: Any, name: str) -> list[Any]:
        """Return the values of a repeated option."""
        extension = self._extension(name)
        return (
            [] if extension is None else list(self._read(options, extension).Extensions[extension])
        )

    def _read(self, options: Any, extension: Any) -> Any:
        message_class = self._factory.GetMessageClass(extension.containing_type)
        return message_class.FromString(options.SerializeToString())

    def _extension(self, name: str) -> Any:
        if name not in self._extensions:
            try:
                extension = self._pool.FindExtensionByName(name)
                # Create the classes of this file, so that they know the extension.
                self._factory.GetMessageClassesForFiles([extension.file.name], self._pool)
            except KeyError:
                extension = None
            self._extensions[name] = extension
        return self._extensions[name]


class _FileReader:
    """A reader for one file of a descriptor set."""

    def __init__(self, file: Any, options: _OptionReader) -> None:
        self._file = file
        self._options = options
        self._package: str = file.package
        self._plain = options.get(file.options, _JSON) == _PLAIN_STYLE
        self._comments: dict[_LocationPath, str] = {
            tuple(location.path): format_comment(
                location.leading_comments or location.trailing_comments
            )
            for location in file.source_code_info.location
        }

    def read(self) -> ProtoFile:
        file = self._file
        messages, enums = [], []
        for path, scope, message in self._messages():
            messages.append(self._message(path, scope, message))
            enums += [
                self._enum((*path, _MESSAGE_ENUM, number), f"{scope}.{message.name}", enum)
                for number, enum in enumerate(message.enum_type)
            ]
        enums += [
            self._enum((_FILE_ENUM, number), self._package, enum)
            for number, enum in enumerate(file.enum_type)
        ]
        api = self._options.get(file.options, _API)
        return ProtoFile(
            name=file.name,
            package=self._package,
            imports=tuple(file.dependency),
            messages=tuple(messages),
            enums=tuple(enums),
            services=tuple(
                self._service((_FILE_SERVICE, number), service)
                for number, service in enumerate(file.service)
            ),
            api=None if api is None else _api_info(api),
            description=self._comments.get((_FILE_SYNTAX,), ""),
        )

    def _messages(self) -> Iterator[tuple[_LocationPath, str, Any]]:
        """Yield all messages in the order of the file, except those that represent the entries
        of a map."""

        def walk(
            path: _LocationPath, scope: str, messages: Any
        ) -> Iterator[tuple[_LocationPath, str, Any]]:
            for number, message in enumerate(messages):
                if message.options.map_entry:
                    continue
                message_path = (*path, number)
                yield message_path, scope, message
                nested_scope = f"{scope}.{message.name}".lstrip(".")
                yield from walk((*message_path, _MESSAGE_NESTED), nested_scope, message.nested_type)

        yield from walk((_FILE_MESSAGE,), self._package, self._file.message_type)

    def _message(self, path: _LocationPath, scope: str, message: Any) -> MessageDeclaration:
        full_name = f"{scope}.{message.name}".lstrip(".")
        entries = {
            f".{full_name}.{nested.name}": nested
            for nested in message.nested_type
            if nested.options.map_entry
        }
        fields = []
        for number, field in enumerate(message.field):
            description = self._comments.get((*path, _MESSAGE_FIELD, number), "")
            fields.append(self._field(field, description, message, entries.get(field.type_name)))
        return MessageDeclaration(
            full_name=full_name,
            file=self._file.name,
            package=self._package,
            fields=tuple(fields),
            description=self._comments.get(path, ""),
            plain=self._plain,
            closed=bool(self._options.get(message.options, _CLOSED)),
            inline=bool(self._options.get(message.options, _INLINE)),
            deprecated=message.options.deprecated,
        )

    def _field(self, field: Any, description: str, message: Any, entry: Any) -> FieldDeclaration:
        value = field if entry is None else entry.field[1]
        behaviors = self._options.all(field.options, _BEHAVIOR)
        in_oneof = field.HasField("oneof_index") and not field.proto3_optional
        return FieldDeclaration(
            name=field.name,
            json_name=field.json_name,
            number=field.number,
            kind=_kind_name(value),
            type=value.type_name.removeprefix("."),
            repeated=entry is None and field.label == field.LABEL_REPEATED,
            optional=field.proto3_optional,
            behaviors=tuple(
                _BEHAVIOR_NAMES[behavior] for behavior in behaviors if behavior in _BEHAVIOR_NAMES
            ),
            oneof=message.oneof_decl[field.oneof_index].name if in_oneof else "",
            description=description,
            deprecated=field.options.deprecated,
            secret=field.options.debug_redact,
            key="" if entry is None else _kind_name(entry.field[0]),
        )

    def _enum(self, path: _LocationPath, scope: str, enum: Any) -> EnumType:
        return EnumType(
            full_name=f"{scope}.{enum.name}".lstrip("."),
            file=self._file.name,
            package=self._package,
            values=tuple(
                EnumValue(
                    name=value.name,
                    number=value.number,
                    description=self._comments.get((*path, _ENUM_VALUE, number), ""),
                    json_value=self._options.get(value.options, _WORD) or "",
                )
                for number, value in enumerate(enum.value)
            ),
            description=self._comments.get(path, ""),
            plain=self._plain,
        )

    def _service(self, path: _LocationPath, service: Any) -> ServiceDeclaration:
        return ServiceDeclaration(
            full_name=f"{self._package}.{service.name}".lstrip("."),
            file=self._file.name,
            methods=tuple(
                self._method((*path, _SERVICE_METHOD, number), method)
                for number, method in enumerate(service.method)
            ),
            description=self._comments.get(path, ""),
        )

    def _method(self, path: _LocationPath, method: Any) -> MethodDeclaration:
        access = self._options.get(method.options, _ACCESS)
        rule = self._options.get(method.options, _HTTP)
        return MethodDeclaration(
            name=method.name,
            input=method.input_type.removeprefix("."),
            output=method.output_type.removeprefix("."),
            http=() if rule is None else tuple(_http_rules(rule)),
            streams=method.server_streaming,
            access=_ACCESS_NAMES.get(access or 0, ""),
            description=self._comments.get(path, ""),
            deprecated=method.options.deprecated,
        )


def _http_rules(rule: Any) -> Iterator[HttpRule]:
    method = rule.WhichOneof("pattern")
    if method in _HTTP_METHODS:
        yield HttpRule(method, getattr(rule, method), rule.body, rule.response_body)
    for binding in rule.additional_bindings:
        yield from _http_rules(binding)


def _api_info(options: Any) -> ApiInfo:
    return ApiInfo(options.title, options.version, options.error, options.session_header)


def _kind_name(field: Any) -> str:
    """Return the name of a field type: `TYPE_INT64` → `int64`."""
    name: str = field.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


def format_comment(comment: str) -> str:
    """Return a comment as text: the lines of a paragraph are joined, empty lines separate
    paragraphs."""
    paragraphs: list[list[str]] = [[]]
    for line in comment.splitlines():
        text = line.strip()
        if text:
            paragraphs[-1].append(text)
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n\n".join(" ".join(paragraph) for paragraph in paragraphs if paragraph)


# -- The compiler: texts of `.proto` files in, descriptors out.
#
# The compiler runs in a process of its own, because it writes errors to its own stderr. It belongs
# to an extra, and is required only when there is something to compile.

PROTO: Final = "proto"
"""The folder of the sources, below the folder of schemas. Imports are relative to it."""
_TIMEOUT_SECONDS: Final = 60.0
_LOCATED_MESSAGE: Final = re.compile(
    r"^(?P<file>[^:]+):(?P<line>\d+):(?P<column>\d+): (?P<words>.*)$"
)
_FILE_ONLY_MESSAGE: Final = re.compile(r"^(?P<file>[^:\s]+\.proto): (?P<words>.*)$")
_WARNING_PREFIX: Final = "warning: "
_LOG_LINE: Final = re.compile(r"^(WARNING: |[IWEF]\d{4} )")


def require_extra() -> None:
    """Raise InterlockError with installation instructions if Protobuf is not installed."""
    for package in ("google.protobuf", "grpc_tools"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            raise InterlockError(
                CONFIG,
                "Protobuf support is not installed. Install it: "
                "`pip install 'interlock[contracts]'`, or '.[contracts]' in a checkout.",
            )


def include_folder() -> Path:
    """Return the folder of `.proto` files that all sources may import: options for HTTP and
    JSON."""
    return Path(str(files("interlock.contracts.schemas") / "include"))


def compile_protos(sources: Mapping[str, str]) -> ProtoFiles:
    """Compile files, by their import names.

    Raises:
        SchemaError: A file is invalid; with file and line.
        InterlockError: No compiler is installed.
    """
    return read_descriptors(descriptor_set(sources), only=sources)


def descriptor_set(sources: Mapping[str, str]) -> bytes:
    """Compile files into the bytes of a `FileDescriptorSet` that includes their imports."""
    if not sources:
        return b""
    require_extra()
    with tempfile.TemporaryDirectory(prefix="interlock-protos-") as folder:
        source_folder = Path(folder)
        for name, text in sources.items():
            _check_name(name)
            path = source_folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        try:
            # The source folder comes first: its own copy of a file of the include folder is used.
            return protoc(sorted(sources), (".", include_folder()), cwd=source_folder)
        except CompileError as error:
            raise SchemaError(compiler_problems(error.output)) from None


class CompileError(Exception):
    """The compiler rejected the files. `output` is what it wrote to stderr."""

    def __init__(self, output: str) -> None:
        super().__init__(output)
        self.output = output


def protoc(names: Iterable[str], folders: Iterable[str | Path], *, cwd: Path) -> bytes:
    """Compile files into the bytes of a `FileDescriptorSet` that includes their imports.

    Args:
        folders: where to look for imports, in this order.
        cwd: the folder that relative paths start from.

    Raises:
        CompileError: A file is invalid.
        InterlockError: No compiler is installed, or it does not finish.
    """
    require_extra()
    with tempfile.TemporaryDirectory(prefix="interlock-protoc-") as folder:
        out = Path(folder, "descriptors")
        command = [
            *(sys.executable, "-P", "-m", "grpc_tools.protoc"),
            *(f"-I{import_folder}" for import_folder in folders),
            *("--include_imports", "--include_source_info", f"--descriptor_set_out={out}"),
            *names,
        ]
        try:
            process = subprocess.run(
                command,
                cwd=cwd,
                env={**os.environ, "GRPC_PYTHON_DISABLE_DYNAMIC_STUBS": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InterlockError(
                CONFIG,
                f"The Protobuf compiler did not finish within {_TIMEOUT_SECONDS:.0f} s. Try again.",
            ) from None
        if process.returncode != 0 or not out.exists():
            raise CompileError(process.stderr.decode("utf-8", "replace"))
        return out.read_bytes()


class CompilerMessage(NamedTuple):
    """An error of the compiler. The file is empty if the message names none."""

    file: str
    line: int
    column: int
    text: str


def read_messages(output: str) -> Iterator[CompilerMessage]:
    """Yield the errors in the output of the compiler, without warnings and log lines."""
    for line in output.splitlines():
        located, file_only = _LOCATED_MESSAGE.match(line), _FILE_ONLY_MESSAGE.match(line)
        text = located["words"] if located is not None else line
        if not text.strip() or text.startswith(_WARNING_PREFIX) or _LOG_LINE.match(line):
            continue
        if located is not None:
            yield CompilerMessage(
                located["file"], int(located["line"]), int(located["column"]), text
            )
        elif file_only is not None:
            yield CompilerMessage(file_only["file"], 0, 0, file_only["words"])
        else:
            yield CompilerMessage("", 0, 0, text)


def compiler_problems(output: str) -> list[SchemaProblem]:
    """Return the errors in the output of the compiler, with paths in the folder of schemas."""
    problems = [
        SchemaProblem(
            f"{PROTO}/{message.file}" if message.file else PROTO,
            message.text,
            message.line,
            message.column,
        )
        for message in read_messages(output)
    ]
    return problems or [SchemaProblem(PROTO, "the Protobuf compiler failed without a message")]


def _check_name(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or name.startswith("-"):
        raise SchemaError(
            [SchemaProblem(name, "the path of a .proto file must be inside its folder")]
        )
